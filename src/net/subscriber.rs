//! The subscriber: a thread with a connection of its own, which receives the messages for all waiting threads.
//!
//! [`Channels`] stores which channels are wanted, whether there is a connection or not. A waiting thread adds its channel
//! and writes SUBSCRIBE itself, since the subscriber's thread blocks in a read. If the connection is lost, the
//! subscriber's thread makes another, subscribes to all wanted channels again, and wakes every waiter once, since a
//! message may have been missed.
//!
//! The mutex is not held during I/O.

mod cluster;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use redis::{ErrorKind, RedisError, ServerErrorKind, Value};

use crate::error::is_transient;
use crate::net::back_off::BackOff;
use crate::net::channels::{Channels, LINGER, Listener, News};
use crate::net::connection::Settings;
use crate::net::dialling::{Dialling, Succession};
use crate::net::masters::Masters;
use crate::net::socket::{self, Duplex, Endpoint, Reader, SLICE, Socket};
use crate::net::write_queue::write_turn;
use crate::process::HomeProcess;
use crate::report::report;
use crate::time;
use crate::verdict::{RequestFacts, Verdict, verdict};

/// The name of its connection in `CLIENT LIST`.
const ROLE: &str = "subscriber";

/// The thread, its connection, and the channels.
pub(crate) struct Subscriber {
    endpoint: Endpoint,
    map: Arc<Masters>,
    /// The node that this subscriber listens to, for the channels of that node's slots.
    node: usize,
    settings: Settings,
    state: Mutex<State>,
    changed: Condvar,
    process: HomeProcess,
}

#[derive(Default)]
struct State {
    channels: Channels,
    live: Option<Live>,
    /// When the last reply came on the current connection.
    heard_at: Option<Instant>,
    /// When a thread first had commands to write after the reply at `heard_at`. If `asked_at` is not later than
    /// `heard_at`, no thread has had commands to write since that reply.
    asked_at: Option<Instant>,
    /// When the last message or confirmation came.
    news_at: Option<Instant>,
    stopped: bool,
    /// The node is no master any more and no thread waits, so the subscriber's thread ends.
    retired: bool,
}

impl State {
    /// Whether there was news lately. If so, a waiter that was woken may leave a lingering subscription behind, which has
    /// to end after `LINGER`. So the subscriber's thread reads in short slices.
    fn has_news(&self, now: Instant) -> bool {
        self.news_at
            .is_some_and(|at| now.saturating_duration_since(at) < 3 * LINGER)
    }
}

struct Live {
    writer: Arc<Socket>,
    writing: bool,
}

/// A thread's interest in a channel; ends when dropped.
pub(crate) struct Subscription {
    subscriber: Arc<Subscriber>,
    channel: Arc<str>,
    /// The number of the waiter.
    waiter: u64,
    /// Whether the subscription may linger after the drop.
    lingers: bool,
}

impl Subscriber {
    /// The subscriber of one node.
    pub(crate) fn new(map: Arc<Masters>, node: usize, settings: Settings) -> Arc<Self> {
        let state = State {
            channels: Channels::new(map.is_sharded()),
            ..State::default()
        };
        Arc::new(Self {
            endpoint: map.endpoint(node),
            map,
            node,
            settings,
            state: Mutex::new(state),
            changed: Condvar::new(),
            process: HomeProcess::this(),
        })
    }

    /// Whether messages on `channel` come to this process.
    pub(crate) fn listens_to(&self, channel: &str) -> bool {
        self.state.lock().channels.listens_to(channel)
    }

    fn is_refused(&self, channel: &str) -> bool {
        self.state.lock().channels.is_refused(channel)
    }

    /// How many channels are wanted.
    pub(crate) fn len(&self) -> usize {
        self.state.lock().channels.len()
    }

    /// Subscribes to `channel` for `waiter`, which is notified once the server has confirmed or rejected the subscription.
    /// Returns `None` if the subscriber's thread has ended because the node is no longer a master.
    pub(crate) fn try_subscribe(
        self: &Arc<Self>,
        channel: &Arc<str>,
        waiter: &Arc<impl Listener + 'static>,
    ) -> Option<Subscription> {
        let mut state = self.state.lock();
        // `retire_if_unused` sets this under the mutex, and only while no channel is wanted. So no waiter depends on a
        // thread that ends.
        if state.retired {
            return None;
        }
        let listener = Arc::clone(waiter) as _;
        let waiter = state.channels.subscribe(channel, listener);
        self.changed.notify_all();
        self.flush(state);
        Some(self.subscription(channel, waiter))
    }

    fn subscription(self: &Arc<Self>, channel: &Arc<str>, waiter: u64) -> Subscription {
        Subscription {
            subscriber: Arc::clone(self),
            channel: Arc::clone(channel),
            waiter,
            lingers: false,
        }
    }

    /// Ends a lingering subscription to `channel`, so that Redis does not count this process among the listeners when the
    /// next release is announced there.
    pub(crate) fn end_lingering(&self, channel: &str) {
        if !self.process.is_copy() {
            let mut state = self.state.lock();
            state.channels.end_lingering(channel);
            self.flush(state);
        }
    }

    /// Writes what is queued. If another thread is writing, that thread goes on with it. If the socket is full, or the
    /// other thread stops before all is written, the subscriber's thread writes the rest.
    fn flush(&self, mut state: MutexGuard<'_, State>) {
        let unwritten = state.channels.unwritten();
        if unwritten.is_some_and(|unwritten| !unwritten.is_full()) {
            self.write(&mut state);
        }
    }

    /// Called by the subscriber's thread: writes what is queued, including bytes that other threads have left. Returns
    /// whether bytes are left, or another thread is still writing.
    ///
    /// If so, the subscriber's thread reads only for a short time, and then writes again. If another thread's `flush`
    /// leaves bytes during a long read, the server's answer to what was written ends the read early. Then the rest is
    /// written.
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
        if state.asked_at <= state.heard_at {
            state.asked_at = Some(Instant::now());
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
            // The last look of `write_turn` found this connection still in use, and the mutex was not released since.
            (Ok(Some(_)), Some(live)) => live.writing = false,
            // The connection was lost during the write. The next one has a `writing` of its own.
            (Ok(_), _) => {}
            // `writing` stays set, so no thread writes over this connection again before `hang_up` drops it.
            (Err(err), _) => MutexGuard::unlocked(state, || {
                report!(Debug, "subscribing: {err}");
                // The subscriber's thread finds the connection closed and makes another.
                writer.shut_down();
            }),
        }
    }

    /// Closes the connection if a command on it is overdue; the subscriber's thread then makes another. If nothing has come
    /// for a while, sends a PING; if that is not answered, a later check closes the connection.
    ///
    /// Called by the threads that wait for messages, each time before they park, since the subscriber's thread itself
    /// blocks in a read. Without a waiter it does not matter whether the connection works.
    fn check(&self) {
        let (mut state, now) = (self.state.lock(), Instant::now());
        let (Some(live), Some(heard_at)) = (&state.live, state.heard_at) else {
            return;
        };
        let writer = Arc::clone(&live.writer);
        if !state.channels.is_owed() {
            if now.saturating_duration_since(heard_at) >= BackOff::POLL.first {
                state.channels.ping();
                self.write(&mut state);
            }
            return;
        }
        let asked_at = state.asked_at.unwrap_or(now);
        if now < asked_at.max(heard_at) + self.settings.command_timeout {
            return;
        }
        // Cleared, so that no other waiter closes the connection too.
        state.heard_at = None;
        drop(state);
        report!(
            Debug,
            "redis did not answer in time on the connection for messages; connecting again"
        );
        writer.shut_down();
    }

    /// Makes the thread end.
    pub(crate) fn stop(&self) {
        let mut state = self.state.lock();
        state.stopped = true;
        self.end_thread(state);
    }

    /// Wakes the thread, which finds that it has to end: `stopped` or `retired` is set.
    fn end_thread(&self, mut state: MutexGuard<'_, State>) {
        // The caller has set the flag under the mutex, which is still locked. So if `listen` installs a connection later,
        // it finds the flag, and an earlier connection is in `live` and is shut down here.
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
        // A waiter that has left since the mutex was released may ask once more than needed, which does no harm.
        for waiter in waiters {
            waiter.message();
        }
    }

    /// The oldest unanswered command was carried out, or was refused with `refusal`.
    fn answered(&self, refusal: Option<&RedisError>) {
        let mut state = self.state.lock();
        let now = Instant::now();
        let news = state.channels.answered(refusal.is_some(), now);
        drop(state);
        match (news, refusal) {
            (Some(News::Refused(channel)), Some(err)) => {
                report!(
                    Warn,
                    "redis does not let this user subscribe to `{channel}` ({err}); waiting threads poll until the user has the right"
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
    /// Lets the subscription end a little later, if there was a message or a confirmation lately. Then nothing is written now,
    /// and a thread that subscribes to the channel in the meantime need not write either.
    pub(crate) fn leave(mut self) {
        self.lingers = true;
    }

    /// Checks the connection, for a thread that is about to wait for messages; see [`Subscriber::check`].
    pub(crate) fn check(&self) {
        self.subscriber.check();
    }

    /// Whether this user may not subscribe. Then a waiting thread has to poll.
    pub(crate) fn is_refused(&self) -> bool {
        self.subscriber.is_refused(&self.channel)
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if self.subscriber.process.is_copy() {
            return;
        }
        let mut state = self.subscriber.state.lock();
        let now = Instant::now();
        // The subscription lingers only if there was news. Without news, the subscriber's thread may block in a read for
        // longer than `LINGER`, so it would end the subscription too late.
        let until = (self.lingers && state.has_news(now)).then(|| now + LINGER);
        state.channels.end(&self.channel, self.waiter, until);
        self.subscriber.flush(state);
    }
}

impl Subscriber {
    /// The body of the subscriber's thread.
    pub(crate) fn run(&self) {
        // Nothing here should panic; if something does, waiting threads still need a subscriber.
        while std::panic::catch_unwind(AssertUnwindSafe(|| self.listen_until_stopped())).is_err() {
            report!(
                Error,
                "the thread for messages panicked; it goes on with a new connection"
            );
            self.hang_up();
        }
    }

    fn listen_until_stopped(&self) {
        let mut failures = 0;
        let mut has_connected = false;
        loop {
            {
                let mut state = self.state.lock();
                state.channels.end_lingering_until(Instant::now());
                while state.channels.is_empty() && !state.stopped {
                    if self.retire_if_unused(&mut state) {
                        return;
                    }
                    // A thread that subscribes notifies with the mutex held, and one that makes this thread end sets a
                    // flag under the mutex first. So no wake-up is lost.
                    self.changed.wait(&mut state);
                }
                if state.stopped {
                    return;
                }
            }
            let mut rule = BackOff::SERVER;
            match self.connect() {
                Ok(connection) => {
                    let mut next = Ok(connection);
                    // A successor subscribes after the old connection is closed. Messages in between are missed, so with
                    // `again` each waiter is notified once its SUBSCRIBE is answered.
                    while let Ok(connection) = next {
                        let again = std::mem::replace(&mut has_connected, true);
                        if again {
                            self.settings.counters.resubscriptions.add(1);
                        }
                        next = self.listen(connection, again);
                        // The pauses become short again only if a confirmation or a message came: the server may reject
                        // every SUBSCRIBE.
                        if self.hang_up() {
                            failures = 0;
                        }
                    }
                    if let Err(err) = next {
                        report!(Debug, "the connection for messages was lost: {err}");
                    }
                }
                Err(err) => {
                    if !is_transient(&err) {
                        rule = BackOff::REFUSED;
                    }
                    report!(Debug, "no connection for messages: {err}");
                }
            }
            failures += 1;
            {
                let state = self.state.lock();
                if state.stopped || state.retired {
                    return;
                }
            }
            if !self.map.is_one() {
                self.look_around();
            }
            let mut state = self.state.lock();
            // `changed` is also notified when a thread subscribes, which must not shorten the pause.
            let again_at = Instant::now() + time::jittered(rule.after(failures));
            while !state.stopped && Instant::now() < again_at {
                self.changed.wait_until(&mut state, again_at);
            }
        }
    }

    /// Makes a connection. Gives up if the thread has to stop or another node may have the channels by now.
    fn connect(&self) -> Result<Duplex, RedisError> {
        let version = self.map.version();
        let timeout = self.settings.connect_timeout;
        let dialling = Dialling::start(&self.map, self.node, ROLE, timeout, false)?;
        loop {
            if let Some(made) = dialling.wait(SLICE) {
                return made;
            }
            if self.map.version() != version || self.state.lock().stopped {
                return Err(socket::timed_out("the connection is not needed any more"));
            }
        }
    }

    /// Subscribes to all wanted channels and handles what comes, until the connection is lost. If its login is old,
    /// returns the successor that replaces it.
    fn listen(&self, connection: Duplex, again: bool) -> Result<Duplex, RedisError> {
        let mut succession = Succession::of(&connection, &self.endpoint);
        let mut reader = connection.reader;
        {
            let mut state = self.state.lock();
            state.channels.connected(again);
            state.live = Some(Live {
                writer: connection.writer,
                writing: false,
            });
            state.heard_at = Some(Instant::now());
            // If a flag was set before `live`, the thread that set the flag could not shut this socket down.
            if state.stopped || state.retired {
                return Err(socket::timed_out("the connection is not needed any more"));
            }
        }
        loop {
            let (is_left, asks_again_at) = {
                let (mut state, now) = (self.state.lock(), Instant::now());
                let lingers = state.channels.end_lingering_until(now);
                let asks_again_at = state.channels.ask_again(now);
                let soon = lingers || state.has_news(now);
                (self.write_rest(&mut state) || soon, asks_again_at)
            };
            let timeout = self.settings.connect_timeout;
            match succession.advance(&self.map, self.node, ROLE, timeout) {
                Some(Ok(successor)) => return Ok(successor),
                Some(Err(why)) => self.endpoint.log_login_kept(ROLE, &why),
                None => {}
            }
            let slice = match is_left || succession.under_way.is_some() {
                true => LINGER,
                // A long read: while threads wait, the answers to their PINGs end it sooner.
                false => [asks_again_at, succession.at]
                    .into_iter()
                    .flatten()
                    .map(|at| at.saturating_duration_since(Instant::now()))
                    .fold(BackOff::BACKGROUND.longest, Duration::min),
            };
            self.read(&mut reader, slice)?;
        }
    }

    /// Reads one reply, if there is one within `slice`.
    fn read(&self, reader: &mut Reader, slice: Duration) -> Result<(), RedisError> {
        let Some(reply) = reader.read(slice)? else {
            return Ok(());
        };
        self.state.lock().heard_at = Some(Instant::now());
        let parts = match verdict(reply, || RequestFacts::question(!self.map.is_one())) {
            Verdict::Answer(Value::Array(parts)) => parts,
            // The pong is a plain reply while no channel is subscribed.
            Verdict::Answer(Value::SimpleString(pong)) if pong == "PONG" => {
                self.answered(None);
                return Ok(());
            }
            Verdict::Answer(_) | Verdict::SendText => return Err(socket::unasked()),
            Verdict::Never(err) if is_refusal(&err) => {
                self.answered(Some(&err));
                return Ok(());
            }
            Verdict::Never(err) => return Err(err),
            Verdict::Elsewhere(redirection) => {
                self.follow(&redirection);
                return Ok(());
            }
            // The server cannot execute the command now. A new connection would not help.
            Verdict::Later(err) => {
                report!(Debug, "subscribing: {err}; asking again");
                self.state.lock().channels.postpone(Instant::now());
                return Ok(());
            }
        };
        match parts.as_slice() {
            [Value::BulkString(kind), Value::BulkString(channel), _]
                if [&b"message"[..], b"smessage"].contains(&&kind[..]) =>
            {
                if let Ok(channel) = std::str::from_utf8(channel) {
                    self.message(channel);
                }
            }
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
            _ => return Err(socket::unasked()),
        }
        Ok(())
    }

    /// Closes and forgets the connection; nobody listens until there is another. Returns whether a confirmation or a
    /// message came over it.
    fn hang_up(&self) -> bool {
        let mut state = self.state.lock();
        let live = state.live.take();
        state.heard_at = None;
        let was_confirmed = state.news_at.take().is_some();
        state.channels.lost();
        drop(state);
        if let Some(live) = live {
            live.writer.shut_down();
        }
        was_confirmed
    }
}

fn is_refusal(err: &RedisError) -> bool {
    matches!(
        err.kind(),
        ErrorKind::Server(ServerErrorKind::NoPerm | ServerErrorKind::ResponseError)
    )
}
