//! The subscriber: a thread with a connection of its own, which receives the messages for all waiting threads.
//!
//! [`Channels`] keeps which channels are wanted, independent of the connection. A waiting thread adds its channel and writes
//! SUBSCRIBE itself, while the subscriber's thread blocks in a read. After a lost connection that thread subscribes to all
//! wanted channels again, and wakes every waiter once, since a message may have been missed.
//!
//! The mutex is not held during I/O.

#[cfg(feature = "cluster")]
mod cluster;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use redis::{ErrorKind, RedisError, ServerErrorKind, Value};

#[cfg(feature = "cluster")]
pub(crate) use self::cluster::Place;
#[cfg(feature = "cluster")]
use crate::error::is_redirection;
use crate::error::is_transient;
use crate::net::call::Call;
use crate::net::channels::{Channels, LINGER, Listener, News};
use crate::net::socket::{self, Duplex, Endpoint, Reader, Socket, Successor};
use crate::net::write_queue::write_turn;
use crate::process::Process;
use crate::report::report;
use crate::stats::Counters;
use crate::time;

/// After how long without a byte from the server the connection is tested with a PING.
const PING_AFTER: Duration = Duration::from_secs(2);

/// The longest the thread blocks in a read before it checks what else it has to do.
const SLICE: Duration = Duration::from_millis(500);

/// The same while it has something left to write, or makes a connection that replaces the present one; also how long it goes
/// on with that.
const SHORT: Duration = Duration::from_millis(5);

/// The pause after the first failed connection, doubled up to the second for each further one.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// The longest pause where another node may take over meanwhile.
#[cfg(feature = "cluster")]
const AWAY: Duration = Duration::from_millis(100);

/// The longest a thread parks before it asks again: at first, and once it has parked several times while the connection
/// works.
pub(crate) const POLL_CAP: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(5));

/// The same for a channel to which this user may not subscribe.
pub(crate) const POLL_CAP_UNHEARD: Duration = Duration::from_millis(100);

/// The thread, its connection, and the channels.
pub(crate) struct Subscriber {
    endpoint: Endpoint,
    /// Which node of a cluster it listens to.
    #[cfg(feature = "cluster")]
    place: Option<Place>,
    connect_timeout: Duration,
    response_timeout: Duration,
    counters: Arc<Counters>,
    state: Mutex<State>,
    changed: Condvar,
    process: Process,
}

#[derive(Default)]
struct State {
    channels: Channels,
    live: Option<Live>,
    /// When the last byte came on the current connection.
    heard_at: Option<Instant>,
    /// When the last message or confirmation came.
    news_at: Option<Instant>,
    stopped: bool,
    /// Its node is no master any more and nobody waits: the thread ends.
    #[cfg(feature = "cluster")]
    retired: bool,
}

impl State {
    /// Whether a wait may have ended just now, so that its subscription lingers soon. Then the thread reads in short slices.
    fn has_news(&self, now: Instant) -> bool {
        self.news_at
            .is_some_and(|at| now.saturating_duration_since(at) < 3 * LINGER)
    }
}

struct Live {
    writer: Arc<Socket>,
    writing: bool,
}

/// One thread's interest in a channel; ends when dropped.
pub(crate) struct Subscription {
    subscriber: Arc<Subscriber>,
    channel: Arc<str>,
    /// Its number among the waiters.
    waiter: u64,
    /// Whether to keep the channel subscribed for a while.
    lingers: bool,
}

impl Subscriber {
    pub(crate) fn new(
        endpoint: Endpoint,
        connect_timeout: Duration,
        response_timeout: Duration,
        counters: Arc<Counters>,
    ) -> Arc<Self> {
        Arc::new(Self {
            endpoint,
            #[cfg(feature = "cluster")]
            place: None,
            connect_timeout,
            response_timeout,
            counters,
            state: Mutex::default(),
            changed: Condvar::new(),
            process: Process::this(),
        })
    }

    /// Whether a thread of this process listens to `channel`.
    pub(crate) fn listens_to(&self, channel: &str) -> bool {
        self.state.lock().channels.listens_to(channel)
    }

    /// How many messages have come on `channel`, if its subscription is confirmed.
    pub(crate) fn messages(&self, channel: &str) -> Option<u64> {
        self.state.lock().channels.messages(channel)
    }

    /// Subscribes to `channel` for `waiter` if a subscription to it is confirmed already. Writes nothing. What the waiter
    /// asks the server comes after the `last` release of its process; see [`Subscription::settle_own`].
    pub(crate) fn take_over(
        self: &Arc<Self>,
        channel: &Arc<str>,
        waiter: &Arc<impl Listener + 'static>,
        last: &Call,
    ) -> Option<Subscription> {
        let mut state = self.state.lock();
        state.channels.messages(channel)?;
        let listener = Arc::clone(waiter) as _;
        let waiter = state.channels.subscribe(channel, listener, Instant::now());
        let queued_at = last.heard_by_us();
        state.channels.comes_after(channel, waiter, queued_at);
        Some(self.subscription(channel, waiter))
    }

    fn is_refused(&self, channel: &str) -> bool {
        self.state.lock().channels.is_refused(channel)
    }

    /// Whether the server has sent anything lately.
    fn is_alive(&self) -> bool {
        self.state
            .lock()
            .heard_at
            .is_some_and(|at| at.elapsed() < PING_AFTER * 2)
    }

    /// How many channels are wanted.
    pub(crate) fn len(&self) -> usize {
        self.state.lock().channels.len()
    }

    /// Subscribes to `channel` for `waiter`, which is notified once the server has confirmed.
    pub(crate) fn subscribe(
        self: &Arc<Self>,
        channel: &Arc<str>,
        waiter: &Arc<impl Listener + 'static>,
    ) -> Subscription {
        self.subscribe_in(self.state.lock(), channel, waiter)
    }

    fn subscribe_in(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, State>,
        channel: &Arc<str>,
        waiter: &Arc<impl Listener + 'static>,
    ) -> Subscription {
        let listener = Arc::clone(waiter) as _;
        let waiter = state.channels.subscribe(channel, listener, Instant::now());
        self.changed.notify_all();
        self.flush(state);
        self.subscription(channel, waiter)
    }

    fn subscription(self: &Arc<Self>, channel: &Arc<str>, waiter: u64) -> Subscription {
        Subscription {
            subscriber: Arc::clone(self),
            channel: Arc::clone(channel),
            waiter,
            lingers: false,
        }
    }

    /// Ends what was left behind on `channel`, so that what this process publishes there next does not count it among
    /// those that wait.
    pub(crate) fn end_lingering(&self, channel: &str) {
        if !self.process.is_copy() {
            let mut state = self.state.lock();
            state.channels.end_lingering(channel);
            self.flush(state);
        }
    }

    /// Writes what is queued, unless another thread does or will.
    fn flush(&self, mut state: MutexGuard<'_, State>) {
        let unwritten = state.channels.unwritten();
        if unwritten.is_some_and(|unwritten| !unwritten.is_behind()) {
            self.write(&mut state);
        }
    }

    /// The same for the subscriber's thread, which also writes what others have left; `true` if there is more.
    ///
    /// Then it has to look again soon. If it is in a long read when something is left, what was written before is confirmed
    /// and ends that read.
    fn write_rest(&self, state: &mut MutexGuard<'_, State>) -> bool {
        self.write(state);
        let is_writing = state.live.as_ref().is_some_and(|live| live.writing);
        let unwritten = state.channels.unwritten();
        is_writing || unwritten.is_some_and(|unwritten| !unwritten.is_empty())
    }

    fn write(&self, state: &mut MutexGuard<'_, State>) {
        let unwritten = state.channels.unwritten();
        if unwritten.is_none_or(|unwritten| unwritten.is_empty()) {
            return;
        }
        let Some(live) = state.live.as_mut().filter(|live| !live.writing) else {
            return;
        };
        live.writing = true;
        let writer = Arc::clone(&live.writer);
        let wrote = write_turn(state, &writer, |state| {
            let live = state.live.as_ref()?;
            let is_up = Arc::ptr_eq(&live.writer, &writer);
            state.channels.unwritten().filter(|_| is_up)
        });
        match (wrote, &mut state.live) {
            (Ok(Some(_)), Some(live)) => live.writing = false,
            (Ok(_), _) => {}
            (Err(err), _) => MutexGuard::unlocked(state, || {
                report!(Debug, "subscribing: {err}");
                // The subscriber's thread finds the connection closed and makes another.
                writer.shut_down();
            }),
        }
    }

    /// Ends the thread.
    pub(crate) fn stop(&self) {
        let mut state = self.state.lock();
        state.stopped = true;
        let live = state.live.take();
        drop(state);
        self.changed.notify_all();
        if let Some(live) = live {
            live.writer.shut_down();
        }
    }

    /// Notifies all waiters of a channel that a message has come.
    fn message(&self, channel: &str) {
        let mut state = self.state.lock();
        state.news_at = Some(Instant::now());
        let waiters = state.channels.message(channel);
        drop(state);
        for waiter in waiters {
            waiter.message();
        }
    }

    /// The oldest unanswered command was confirmed, or refused with `refusal`.
    fn answered(&self, refusal: Option<&RedisError>) {
        let mut state = self.state.lock();
        let now = Instant::now();
        let news = state.channels.answered(refusal.is_some(), now);
        drop(state);
        match (news, refusal) {
            (Some(News::Refused(channel)), Some(err)) => {
                report!(
                    Warn,
                    "redis does not let this user subscribe to `{channel}` ({err}); threads that wait there ask again and again"
                );
            }
            (Some(News::Allowed), _) => {
                report!(Info, "redis lets this user subscribe again");
            }
            _ => {}
        }
    }
}

impl Subscription {
    /// The waiter is about to park. Whether the release that it comes after was announced, and executed before what the
    /// waiter has asked: then it is not notified of that release's message.
    pub(crate) fn settle_own(&self, was_announced: bool) {
        let mut state = self.subscriber.state.lock();
        let channels = &mut state.channels;
        channels.settle_own(&self.channel, self.waiter, was_announced);
    }

    /// Has it end a little later, if there was a message or a confirmation lately. Then nothing is written now, and whoever
    /// subscribes to the channel in the meantime need not do so either.
    pub(crate) fn leave(mut self) {
        self.lingers = true;
    }

    /// Whether this user may not subscribe, so that a waiting thread has to poll.
    pub(crate) fn is_refused(&self) -> bool {
        self.subscriber.is_refused(&self.channel)
    }

    /// How long a thread that has parked so often may park at most before it asks again.
    pub(crate) fn poll_cap(&self, parked: u32) -> Duration {
        if self.is_refused() {
            POLL_CAP_UNHEARD
        } else if self.subscriber.is_alive() {
            (POLL_CAP.0 * 2_u32.saturating_pow(parked.saturating_sub(1).min(8))).min(POLL_CAP.1)
        } else {
            POLL_CAP.0
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if self.subscriber.process.is_copy() {
            return;
        }
        let mut state = self.subscriber.state.lock();
        let now = Instant::now();
        // Without news the thread may block for long in a read, and would not end what lingers in time.
        let until = (self.lingers && state.has_news(now)).then(|| now + LINGER);
        state.channels.end(&self.channel, self.waiter, until);
        self.subscriber.flush(state);
    }
}

impl Subscriber {
    /// What the thread runs.
    pub(crate) fn run(&self) {
        // Nothing here should panic; if something does, waiting threads must still be notified.
        while std::panic::catch_unwind(AssertUnwindSafe(|| self.listen_until_stopped())).is_err() {
            report!(Error, "the subscriber panicked and goes on");
            self.hang_up();
        }
    }

    fn listen_until_stopped(&self) {
        let mut back_off = BACK_OFF.0;
        let mut anew = false;
        loop {
            {
                let mut state = self.state.lock();
                state.channels.end_lingering_until(Instant::now());
                while state.channels.is_empty() && !state.stopped {
                    #[cfg(feature = "cluster")]
                    if let Some(place) = &self.place {
                        if Self::retires(place, &mut state) {
                            return;
                        }
                        self.changed.wait_for(&mut state, SLICE);
                        continue;
                    }
                    self.changed.wait(&mut state);
                }
                if state.stopped {
                    return;
                }
            }
            let deadline = Instant::now() + self.connect_timeout;
            #[cfg(feature = "cluster")]
            let version = self.place.as_ref().map(|place| place.map.version());
            let go_on = &mut || {
                #[cfg(feature = "cluster")]
                if self.place.as_ref().map(|place| place.map.version()) != version {
                    return false;
                }
                !self.state.lock().stopped
            };
            match socket::connect(&self.endpoint, "subscriber", deadline, go_on) {
                Ok(connection) => {
                    back_off = BACK_OFF.0;
                    let mut next = Ok(connection);
                    while let Ok(connection) = next {
                        let again = std::mem::replace(&mut anew, true);
                        if again {
                            self.counters.resubscriptions.add(1);
                        }
                        next = self.listen(connection, again);
                        self.hang_up();
                    }
                    if let Err(err) = next {
                        report!(Debug, "the connection for messages was lost: {err}");
                    }
                }
                Err(err) => report!(Debug, "no connection for messages: {err}"),
            }
            #[cfg(feature = "cluster")]
            if let Some(place) = &self.place {
                {
                    let state = self.state.lock();
                    if state.stopped || state.retired {
                        return;
                    }
                }
                self.look_around(place);
                back_off = back_off.min(AWAY);
            }
            let mut state = self.state.lock();
            // However many subscribe meanwhile.
            let again_at = Instant::now() + time::jittered(back_off);
            while !state.stopped && Instant::now() < again_at {
                self.changed.wait_until(&mut state, again_at);
            }
            back_off = (back_off * 2).min(BACK_OFF.1);
        }
    }

    /// Subscribes to all wanted channels and handles what comes, until the connection is lost, or there is another to
    /// replace it, since its login was old.
    fn listen(&self, connection: Duplex, anew: bool) -> Result<Duplex, RedisError> {
        let mut successor = Successor::of(&self.endpoint, &connection);
        let mut reader = connection.reader;
        {
            let mut state = self.state.lock();
            state.channels.connected(anew);
            state.live = Some(Live {
                writer: connection.writer,
                writing: false,
            });
            state.heard_at = Some(Instant::now());
            if state.stopped {
                return Err(socket::timed_out("the client is closed"));
            }
        }
        let mut asked_at = None;
        #[cfg(feature = "cluster")]
        let mut version = 0;
        loop {
            #[cfg(feature = "cluster")]
            if let Some(place) = &self.place {
                let now = place.map.version();
                if std::mem::replace(&mut version, now) != now {
                    self.leave_moved(place);
                }
                if Self::retires(place, &mut self.state.lock()) {
                    return Err(socket::timed_out("the node is no master any more"));
                }
            }
            let (soon, is_left, is_used) = {
                let (mut state, now) = (self.state.lock(), Instant::now());
                let lingers = state.channels.end_lingering_until(now);
                state.channels.ask_again(now);
                let soon = lingers || state.has_news(now);
                let is_left = self.write_rest(&mut state);
                (soon, is_left, !state.channels.is_empty())
            };
            if is_used {
                self.endpoint.follow_master();
            }
            if successor.is_due()
                && let Some(made) = self.advance(&mut successor)
            {
                return Ok(made);
            }
            let slice = match soon {
                _ if successor.is_under_way() || is_left => SHORT,
                true => successor.rests(LINGER),
                false if is_used => self.endpoint.follows_master_for(successor.rests(SLICE)),
                false => successor.rests(SLICE),
            };
            match self.read(&mut reader, slice) {
                Ok(true) => asked_at = None,
                Ok(false) => {
                    let mut state = self.state.lock();
                    if state.stopped {
                        return Err(socket::timed_out("the client is closed"));
                    }
                    let quiet = state.heard_at.is_none_or(|at| at.elapsed() >= PING_AFTER);
                    if state.live.is_none() {
                        return Err(socket::timed_out("the connection is gone"));
                    }
                    match asked_at {
                        Some(at) if Instant::now() >= at + self.response_timeout => {
                            return Err(socket::timed_out(
                                "redis was silent when asked for a sign of life",
                            ));
                        }
                        // If nobody waits, it does not matter whether the connection works.
                        None if quiet && state.channels.ping() => {
                            asked_at = Some(Instant::now());
                        }
                        _ => {}
                    }
                }
                Err(err) => return Err(err),
            }
        }
    }

    /// Goes on with the connection that replaces the present one; nothing is read meanwhile.
    fn advance(&self, successor: &mut Successor) -> Option<Duplex> {
        let until = Instant::now() + SHORT;
        let timeout = self.connect_timeout;
        successor.advance(&self.endpoint, "subscriber", timeout, until, &mut || true)
    }

    /// Reads one reply; `false` if there was none within `slice`.
    fn read(&self, reader: &mut Reader, slice: Duration) -> Result<bool, RedisError> {
        let Some(reply) = reader.read(slice)? else {
            return Ok(false);
        };
        self.state.lock().heard_at = Some(Instant::now());
        let parts = match reply.extract_error() {
            Ok(Value::Array(parts)) => parts,
            // PONG comes bare while nothing is subscribed.
            Ok(_) => {
                self.answered(None);
                return Ok(true);
            }
            Err(err) if is_refusal(&err) => {
                self.answered(Some(&err));
                return Ok(true);
            }
            #[cfg(feature = "cluster")]
            Err(err) if is_redirection(&err) && self.follow(&err) => {
                return Ok(true);
            }
            // The server is busy. Another connection would not help.
            Err(err) if is_transient(&err) => {
                report!(Debug, "subscribing: {err}; asking again");
                self.state.lock().channels.postpone(Instant::now());
                return Ok(true);
            }
            Err(err) => return Err(err),
        };
        match parts.as_slice() {
            [Value::BulkString(kind), Value::BulkString(channel), _]
                if [&b"message"[..], b"smessage"].contains(&&kind[..]) =>
            {
                if let Ok(channel) = std::str::from_utf8(channel) {
                    self.message(channel);
                }
            }
            #[cfg(feature = "cluster")]
            [Value::BulkString(kind), Value::BulkString(channel), _] if kind == b"sunsubscribe" => {
                self.ended(channel);
            }
            [Value::BulkString(kind), ..]
                if [&b"subscribe"[..], b"ssubscribe"].contains(&&kind[..]) =>
            {
                self.state.lock().news_at = Some(Instant::now());
                self.answered(None);
            }
            [Value::BulkString(kind), ..]
                if [&b"unsubscribe"[..], b"pong"].contains(&&kind[..]) =>
            {
                self.answered(None);
            }
            _ => {}
        }
        Ok(true)
    }

    /// Forgets the connection; nobody is listening until there is another.
    fn hang_up(&self) {
        let mut state = self.state.lock();
        let live = state.live.take();
        (state.heard_at, state.news_at) = (None, None);
        state.channels.lost();
        drop(state);
        if let Some(live) = live {
            live.writer.shut_down();
        }
    }
}

fn is_refusal(err: &RedisError) -> bool {
    matches!(
        err.kind(),
        ErrorKind::Server(ServerErrorKind::NoPerm | ServerErrorKind::ResponseError)
    )
}
