//! The listening thread: one connection, any number of channels, and who waits on each.
//!
//! What is *wanted* is kept apart from the socket. A waiting thread adds its channel and writes SUBSCRIBE itself while
//! the subscriber's thread blocks in a read; whenever the connection is made anew, that thread subscribes to all that is
//! wanted and then wakes everybody once, since a message may have been missed.
//!
//! Confirmations come in the order of the commands, so a queue of what was sent shows which of several subscriptions
//! to one channel a confirmation belongs to; an older one does not count.

use std::collections::{HashMap, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use redis::{ErrorKind, RedisError, ServerErrorKind, Value};

use crate::error::is_transient;
use crate::net::request::Request;
use crate::net::socket::{self, Endpoint, Reader, Socket};
use crate::process::Process;
use crate::report::report;
use crate::stats::Counters;
use crate::time;

/// How long the connection may be silent before it is asked whether it lives.
const PING_AFTER: Duration = Duration::from_secs(2);

/// How often the thread looks whether it has to stop.
const SLICE: Duration = Duration::from_millis(500);

/// The pause after the first failed connection, doubled up to the second for each further one.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// The longest a thread parks without asking, however reliable its subscription is; it grows while the subscription
/// shows signs of life.
const POLL_CAP: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(5));

/// The same for a channel to which the server does not let us subscribe.
pub(crate) const POLL_CAP_UNHEARD: Duration = Duration::from_millis(100);

/// How long a subscription that nobody waits for is kept. It costs every release on its channel a few microseconds and
/// has others believe that somebody waits here, so the next message after that ends it; without one, the thread does
/// the next time it looks.
const LINGER: Duration = Duration::from_millis(20);

/// How soon the server is asked again for a channel that it has refused: rights may be given later.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// How long a refusal is remembered that nobody has met since.
const FORGET: Duration = Duration::from_secs(60);

/// How many refusals are remembered for that long.
const REFUSALS: usize = 1024;

/// Whoever waits for messages. Called with the subscriber's mutex held: it notes what it learns, and may wake a thread.
pub(crate) trait Listener: Send + Sync {
    /// A message has come on the channel.
    fn message(&self);

    /// The subscription is confirmed or refused (`true`), or was lost (`false`).
    fn set_listening(&self, listening: bool);
}

/// The channels that threads of this process wait on.
pub(crate) struct Subscriber {
    endpoint: Endpoint,
    connect_timeout: Duration,
    response_timeout: Duration,
    counters: Arc<Counters>,
    state: Mutex<State>,
    changed: Condvar,
    process: Process,
}

struct State {
    wanted: HashMap<Arc<str>, Entry>,
    /// Channels to which the server does not let this user subscribe, and when it was last asked.
    refusals: HashMap<Arc<str>, Instant>,
    next_epoch: u64,
    next_id: u64,
    /// Subscriptions that end soon, in the order of their ends.
    lingering: VecDeque<(Instant, Arc<str>, u64)>,
    live: Option<Live>,
    /// When the server last said anything on the live connection.
    heard_at: Option<Instant>,
    stopped: bool,
}

struct Entry {
    /// By the number of their subscription; those that linger, too.
    waiters: Vec<(u64, Arc<dyn Listener>)>,
    /// Which subscription to this channel it is.
    epoch: u64,
    /// SUBSCRIBE was sent and not answered.
    asked: bool,
    confirmed: bool,
    refused: bool,
}

impl Entry {
    /// Whether the server has answered: confirmed or refused.
    fn is_listening(&self) -> bool {
        self.confirmed || self.refused
    }
}

struct Live {
    writer: Arc<Socket>,
    writing: bool,
    outbox: Vec<u8>,
    /// What was sent and not answered.
    pending: VecDeque<Pending>,
    /// What the server could not do when it was asked, and when it is asked again.
    postponed: Vec<Pending>,
    again_at: Instant,
}

enum Pending {
    Subscribe {
        channel: Arc<str>,
        epoch: u64,
        /// It replaces a subscription of an earlier connection, so a message may have been missed.
        anew: bool,
    },
    Unsubscribe {
        channel: Arc<str>,
    },
    Ping,
}

impl Live {
    fn send(&mut self, command: &[&str], pending: Pending) {
        Request::command("listening", command).write(&mut self.outbox, false);
        self.pending.push_back(pending);
    }

    fn unsubscribe(&mut self, channel: &Arc<str>) {
        let channel = Arc::clone(channel);
        self.send(
            &["UNSUBSCRIBE", &Arc::clone(&channel)],
            Pending::Unsubscribe { channel },
        );
    }

    fn subscribe(&mut self, channel: &Arc<str>, epoch: u64, anew: bool) {
        let channel = Arc::clone(channel);
        self.send(
            &["SUBSCRIBE", &Arc::clone(&channel)],
            Pending::Subscribe {
                channel,
                epoch,
                anew,
            },
        );
    }
}

impl State {
    /// Queues again what the server could not do before, as far as it is still wanted; whether there was anything.
    fn ask_again(&mut self) -> bool {
        let Some(live) = &mut self.live else {
            return false;
        };
        if live.postponed.is_empty() || Instant::now() < live.again_at {
            return false;
        }
        for postponed in std::mem::take(&mut live.postponed) {
            match postponed {
                Pending::Subscribe {
                    channel,
                    epoch,
                    anew,
                } => {
                    let entry = self.wanted.get(&channel);
                    if entry.is_some_and(|entry| entry.epoch == epoch) {
                        live.subscribe(&channel, epoch, anew);
                    }
                }
                Pending::Unsubscribe { channel } if !self.wanted.contains_key(&channel) => {
                    live.unsubscribe(&channel);
                }
                Pending::Unsubscribe { .. } | Pending::Ping => {}
            }
        }
        true
    }
}

/// What has been read.
#[derive(PartialEq, Eq)]
enum Read {
    Message,
    Answer,
}

/// One thread's interest in a channel; ends when dropped, unless it [was left](Subscription::leave).
pub(crate) struct Subscription {
    subscriber: Arc<Subscriber>,
    channel: Arc<str>,
    /// Zero once it was left.
    id: u64,
}

impl State {
    /// Ends a subscription, if it has not ended; `true` if there is something to be flushed.
    fn end(&mut self, channel: &Arc<str>, id: u64) -> bool {
        let Some(entry) = self.wanted.get_mut(channel) else {
            return false;
        };
        entry.waiters.retain(|(its, _)| *its != id);
        if !entry.waiters.is_empty() {
            return false;
        }
        let subscribed = entry.asked || entry.confirmed;
        self.wanted.remove(channel);
        if self.wanted.is_empty() && self.wanted.capacity() > 1024 {
            self.wanted = HashMap::new();
        }
        let Some(live) = self.live.as_mut().filter(|_| subscribed) else {
            return false;
        };
        live.unsubscribe(channel);
        true
    }
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
            connect_timeout,
            response_timeout,
            counters,
            state: Mutex::new(State {
                wanted: HashMap::new(),
                refusals: HashMap::new(),
                next_epoch: 0,
                next_id: 0,
                lingering: VecDeque::new(),
                live: None,
                heard_at: None,
                stopped: false,
            }),
            changed: Condvar::new(),
            process: Process::this(),
        })
    }

    /// Whether anybody of this process listens to `channel`.
    pub(crate) fn listens_to(&self, channel: &str) -> bool {
        let state = self.state.lock();
        state
            .wanted
            .get(channel)
            .is_some_and(|entry| !entry.refused)
    }

    fn is_refused(&self, channel: &str) -> bool {
        let state = self.state.lock();
        state.wanted.get(channel).is_some_and(|entry| entry.refused)
    }

    /// Whether the connection has shown signs of life lately.
    fn is_alive(&self) -> bool {
        self.state
            .lock()
            .heard_at
            .is_some_and(|at| at.elapsed() < PING_AFTER * 2)
    }

    /// How many channels are wanted.
    pub(crate) fn len(&self) -> usize {
        self.state.lock().wanted.len()
    }

    /// Begins to listen to `channel` for `waiter`, who is notified when the server has confirmed.
    pub(crate) fn subscribe(
        self: &Arc<Self>,
        channel: &Arc<str>,
        waiter: &Arc<impl Listener + 'static>,
    ) -> Subscription {
        let mut state = self.state.lock();
        let State {
            wanted,
            refusals,
            next_epoch,
            next_id,
            live,
            ..
        } = &mut *state;
        *next_id += 1;
        let id = *next_id;
        let entry = wanted.entry(Arc::clone(channel)).or_insert_with(|| {
            *next_epoch += 1;
            let refused = refusals
                .get(channel)
                .is_some_and(|asked_at| asked_at.elapsed() < ASK_AGAIN);
            let asked = match live {
                Some(live) if !refused => {
                    live.subscribe(channel, *next_epoch, false);
                    true
                }
                _ => false,
            };
            Entry {
                waiters: Vec::new(),
                epoch: *next_epoch,
                asked,
                confirmed: false,
                refused,
            }
        });
        entry.waiters.push((id, Arc::clone(waiter) as _));
        waiter.set_listening(entry.is_listening());
        drop(state);
        self.changed.notify_all();
        self.flush();
        Subscription {
            subscriber: Arc::clone(self),
            channel: Arc::clone(channel),
            id,
        }
    }

    /// Writes what is queued; whoever writes goes on until nothing is left.
    fn flush(&self) {
        let mut state = self.state.lock();
        let Some(live) = state.live.as_mut().filter(|live| !live.writing) else {
            return;
        };
        live.writing = true;
        let writer = Arc::clone(&live.writer);
        loop {
            let Some(live) = state
                .live
                .as_mut()
                .filter(|live| Arc::ptr_eq(&live.writer, &writer))
            else {
                return;
            };
            if live.outbox.is_empty() {
                live.writing = false;
                return;
            }
            let bytes = std::mem::take(&mut live.outbox);
            let wrote = MutexGuard::unlocked(&mut state, || writer.write_all(&bytes));
            if let Err(err) = wrote {
                report!(Debug, "subscribing: {err}");
                // The thread in the read finds the connection ended and makes another.
                writer.shut_down();
                return;
            }
        }
    }

    /// Ends the thread.
    pub(crate) fn stop(&self) {
        let mut state = self.state.lock();
        state.stopped = true;
        if let Some(live) = &state.live {
            live.writer.shut_down();
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Notifies all waiters of a channel that a message has come. For a lock that is one contender, and perhaps one whose
    /// subscription is about to end; for a latch all who wait.
    fn message(&self, channel: &str) {
        let state = self.state.lock();
        let waiters: Vec<_> = match state.wanted.get(channel) {
            Some(entry) => entry.waiters.clone(),
            None => return,
        };
        drop(state);
        for (_, waiter) in waiters {
            waiter.message();
        }
    }

    /// The server cannot do now what the oldest command without an answer wants.
    fn postpone(&self) {
        let mut state = self.state.lock();
        if let Some(live) = &mut state.live
            && let Some(pending) = live.pending.pop_front()
        {
            live.postponed.push(pending);
            live.again_at = Instant::now() + SLICE;
        }
    }

    /// The oldest command without an answer was confirmed, or refused with `refusal`.
    fn answered(&self, refusal: Option<&RedisError>) {
        let mut state = self.state.lock();
        let pending = state
            .live
            .as_mut()
            .and_then(|live| live.pending.pop_front());
        let Some(Pending::Subscribe {
            channel,
            epoch,
            anew,
        }) = pending
        else {
            return;
        };
        let State {
            wanted, refusals, ..
        } = &mut *state;
        if let Some(entry) = wanted
            .get_mut(&channel)
            .filter(|entry| entry.epoch == epoch)
        {
            entry.asked = false;
            entry.confirmed = refusal.is_none();
            entry.refused = refusal.is_some();
            // Under the mutex: a waiter that moves on to another channel could take it for the confirmation of that one.
            for (_, waiter) in &entry.waiters {
                waiter.set_listening(true);
                if anew {
                    waiter.message();
                }
            }
        }
        let had_refusals = !refusals.is_empty();
        if refusal.is_some() {
            refusals.insert(Arc::clone(&channel), Instant::now());
        } else {
            refusals.remove(&channel);
        }
        let has_refusals = !refusals.is_empty();
        drop(state);
        match refusal {
            Some(err) if !had_refusals => {
                report!(
                    Warn,
                    "redis does not let this user subscribe to `{channel}` ({err}); threads that wait there ask again and again"
                );
            }
            None if had_refusals && !has_refusals => {
                report!(Info, "redis lets this user subscribe again");
            }
            _ => {}
        }
    }

    /// Ends what has lingered for long enough, and says whether anything still does.
    fn end_lingering(&self) -> bool {
        let mut state = self.state.lock();
        let now = Instant::now();
        let mut flushes = false;
        while let Some((at, channel, id)) = state.lingering.pop_front() {
            if now < at {
                state.lingering.push_front((at, channel, id));
                break;
            }
            flushes |= state.end(&channel, id);
        }
        let lingers = !state.lingering.is_empty();
        drop(state);
        if flushes {
            self.flush();
        }
        lingers
    }

    /// Asks for the channels again that were refused a while ago, and forgets refusals that nobody meets any more.
    fn ask_for_refused(&self) {
        let mut state = self.state.lock();
        let State {
            wanted,
            refusals,
            live: Some(live),
            ..
        } = &mut *state
        else {
            return;
        };
        if refusals.is_empty() {
            return;
        }
        let now = Instant::now();
        let keep = if refusals.len() > REFUSALS {
            ASK_AGAIN
        } else {
            FORGET
        };
        refusals.retain(|channel, asked_at| {
            let age = now.saturating_duration_since(*asked_at);
            if age < ASK_AGAIN {
                return true;
            }
            match wanted.get_mut(channel).filter(|entry| entry.refused) {
                Some(entry) => {
                    *asked_at = now;
                    entry.asked = true;
                    live.subscribe(channel, entry.epoch, false);
                    true
                }
                None => age < keep,
            }
        });
        drop(state);
        self.flush();
    }
}

impl Subscription {
    /// Has it end a little later, unless it is dropped before. Nothing is written now, and whoever subscribes to the
    /// channel in the meantime need not do so either.
    pub(crate) fn end_soon(&self) {
        let record = (Instant::now() + LINGER, Arc::clone(&self.channel), self.id);
        self.subscriber.state.lock().lingering.push_back(record);
    }

    /// Ends it as [`end_soon`](Self::end_soon) does.
    pub(crate) fn leave(mut self) {
        if !self.subscriber.process.is_copy() {
            self.end_soon();
            self.id = 0;
        }
    }

    /// Whether the server does not let us listen, so that waiting means asking again and again.
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
        if self.id != 0 {
            let flushes = self.subscriber.state.lock().end(&self.channel, self.id);
            if flushes {
                self.subscriber.flush();
            }
        }
    }
}

impl Subscriber {
    /// What the thread runs.
    pub(crate) fn run(&self) {
        // Nothing here should panic; if something does, waiting threads must not be left to polling for good.
        while std::panic::catch_unwind(AssertUnwindSafe(|| self.listen_until_stopped())).is_err() {
            report!(Error, "the subscriber panicked and goes on");
            self.hang_up();
        }
    }

    fn listen_until_stopped(&self) {
        let mut back_off = BACK_OFF.0;
        let mut anew = false;
        loop {
            self.end_lingering();
            {
                let mut state = self.state.lock();
                while state.wanted.is_empty() && !state.stopped {
                    self.changed.wait(&mut state);
                }
                if state.stopped {
                    return;
                }
            }
            let deadline = Instant::now() + self.connect_timeout;
            let go_on = &mut || !self.state.lock().stopped;
            match socket::connect(&self.endpoint, "subscriber", deadline, go_on) {
                Ok(connection) => {
                    if anew {
                        self.counters.resubscriptions.add(1);
                    }
                    back_off = BACK_OFF.0;
                    let err = self.listen(connection, anew);
                    report!(Debug, "the connection for messages was lost: {err}");
                    anew = true;
                    self.hang_up();
                }
                Err(err) => report!(Debug, "no connection for messages: {err}"),
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

    /// Subscribes to all that is wanted and hands out what comes, until the connection is lost.
    fn listen(&self, connection: socket::Duplex, anew: bool) -> RedisError {
        let mut reader = connection.reader;
        {
            let mut state = self.state.lock();
            let mut live = Live {
                writer: connection.writer,
                writing: false,
                outbox: Vec::new(),
                pending: VecDeque::new(),
                postponed: Vec::new(),
                again_at: Instant::now(),
            };
            for (channel, entry) in &mut state.wanted {
                entry.asked = true;
                live.subscribe(channel, entry.epoch, anew);
            }
            state.live = Some(live);
            state.heard_at = Some(Instant::now());
        }
        self.flush();
        let mut asked_at = None;
        let mut message_at: Option<Instant> = None;
        loop {
            let lingers = self.end_lingering();
            if self.state.lock().ask_again() {
                self.flush();
            }
            self.ask_for_refused();
            // A wait that a message has ended leaves a subscription behind a moment later.
            let soon = lingers || message_at.is_some_and(|at| at.elapsed() < 3 * LINGER);
            match self.read(&mut reader, if soon { LINGER } else { SLICE }) {
                Ok(Some(read)) => {
                    asked_at = None;
                    if read == Read::Message {
                        message_at = Some(Instant::now());
                    }
                }
                Ok(None) => {
                    let mut state = self.state.lock();
                    if state.stopped {
                        return socket::timed_out("the client is closed");
                    }
                    let quiet = state.heard_at.is_none_or(|at| at.elapsed() >= PING_AFTER);
                    let wanted = !state.wanted.is_empty();
                    let Some(live) = state.live.as_mut() else {
                        return socket::timed_out("the connection is gone");
                    };
                    match asked_at {
                        Some(at) if Instant::now() >= at + self.response_timeout => {
                            return socket::timed_out(
                                "redis was silent when asked for a sign of life",
                            );
                        }
                        // With nobody waiting it does not matter whether it lives.
                        None if quiet && (wanted || !live.pending.is_empty()) => {
                            live.send(&["PING"], Pending::Ping);
                            asked_at = Some(Instant::now());
                            drop(state);
                            self.flush();
                        }
                        _ => {}
                    }
                }
                Err(err) => return err,
            }
        }
    }

    /// Reads one reply; `None` if there was none for so long.
    fn read(&self, reader: &mut Reader, slice: Duration) -> Result<Option<Read>, RedisError> {
        let Some(reply) = reader.read(slice, &mut || {})? else {
            return Ok(None);
        };
        self.state.lock().heard_at = Some(Instant::now());
        let parts = match reply.extract_error() {
            Ok(Value::Array(parts)) => parts,
            // PONG comes bare while nothing is subscribed.
            Ok(_) => {
                self.answered(None);
                return Ok(Some(Read::Answer));
            }
            Err(err) if is_refusal(&err) => {
                self.answered(Some(&err));
                return Ok(Some(Read::Answer));
            }
            // It is busy, which another connection would not change.
            Err(err) if is_transient(&err) => {
                report!(Debug, "subscribing: {err}; asking again");
                self.postpone();
                return Ok(Some(Read::Answer));
            }
            Err(err) => return Err(err),
        };
        match parts.as_slice() {
            [Value::BulkString(kind), Value::BulkString(channel), _] if kind == b"message" => {
                if let Ok(channel) = std::str::from_utf8(channel) {
                    self.message(channel);
                }
                return Ok(Some(Read::Message));
            }
            [Value::BulkString(kind), ..]
                if [&b"subscribe"[..], b"unsubscribe", b"pong"].contains(&&kind[..]) =>
            {
                self.answered(None);
            }
            _ => {}
        }
        Ok(Some(Read::Answer))
    }

    /// Forgets the connection; nobody is listening until there is another.
    fn hang_up(&self) {
        let mut state = self.state.lock();
        if let Some(live) = state.live.take() {
            live.writer.shut_down();
        }
        state.heard_at = None;
        let mut waiters = Vec::new();
        for entry in state.wanted.values_mut() {
            (entry.asked, entry.confirmed) = (false, false);
            waiters.extend(entry.waiters.iter().map(|(_, waiter)| Arc::clone(waiter)));
        }
        drop(state);
        for waiter in waiters {
            waiter.set_listening(false);
        }
    }
}

fn is_refusal(err: &RedisError) -> bool {
    matches!(
        err.kind(),
        ErrorKind::Server(ServerErrorKind::NoPerm | ServerErrorKind::ResponseError)
    )
}
