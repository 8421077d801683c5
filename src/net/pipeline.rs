//! The order of commands on a connection, and what becomes of each. Memory only: no I/O, and `now` is an argument.
//!
//! ```text
//!            submit                            reply
//!    idle ───────────► awaiting ─────────────────────────► done
//!     ▲                 │  │  │
//!     │ connection lost,│  │  └─ a reply that refuses for good: done, or broken if deferred
//!     │ or refused for  │  │
//!     │ now             │  └─ connection lost, a thread waits ──► broken: it decides whether to send again
//!     └─────────────────┘
//!       deferred: unacknowledged, sent again ────────────────────► broken once it is of no use any more
//! ```
//!
//! Redis answers in the order in which it was asked, so the oldest awaiting command owns the next reply.
//!
//! A deferred command that has no answer when its connection is lost is *unacknowledged*. Such commands are sent again in
//! portions, the next when the former is answered, so that nobody's command has to wait behind all of an outage. A command
//! about a name takes what is unacknowledged about that name along, in front of it.
//!
//! A script is sent by its hash. If its reply may never be read, a `NOSCRIPT` would go unnoticed, so the text is sent
//! unless the server is known to have the script.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{ErrorKind, RedisError, ServerErrorKind, Value};

use crate::error::{is_transient, is_unknown_script};
use crate::net::call::{Call, CallPhase, OnReply};
use crate::net::outbox::Outbox;
use crate::net::request::Script;

/// How many bytes of unacknowledged calls go out before their replies have come.
const PORTION: usize = if cfg!(test) { 128 } else { 16 * 1024 };

/// How many unacknowledged calls about the same name go out in front of a new one about it.
const SAME_NAME: usize = 64;

/// How long unacknowledged calls are kept back after the server has said that it cannot serve now.
const REST: Duration = Duration::from_millis(50);

/// For how long a script that was sent with its text is counted on to be known.
///
/// A script may be forgotten at any moment, and a process may end right after its last release, whose reply nobody reads.
/// A text costs the server some microseconds, so it is sent a hundred times a second at most.
const KNOWN_FOR: Duration = Duration::from_millis(10);

/// After how long without a command the connection is looked at before it is trusted with another.
pub(super) const IDLE: Duration = Duration::from_millis(100);

/// The largest buffer that is kept for the next bytes.
const SPARE: usize = 64 * 1024;

/// All commands of a connection and of those that come after it.
#[derive(Default)]
pub(super) struct Pipeline {
    /// What is on its way over the present connection, if there is one.
    in_flight: Option<InFlight>,
    /// Deferred calls that no connection has acknowledged, but for those that are under way.
    unacknowledged: Outbox,
    /// The server could not serve one of those; until when the others are kept back.
    rests_until: Option<Instant>,
}

/// What is on its way over one connection.
pub(super) struct InFlight {
    /// To be written.
    bytes: Vec<u8>,
    /// An empty buffer for the next bytes.
    spare: Vec<u8>,
    awaiting: VecDeque<Arc<Call>>,
    /// When the last reply came, or the oldest of those that are due became due.
    pub(super) last_heard: Instant,
    /// When somebody last read and there was nothing to be read.
    pub(super) quiet_at: Instant,
    /// The first of `bytes` belong to a command whose beginning has been written.
    torn: bool,
    /// The socket did not take all that was to be written; whoever reads writes the rest.
    pub(super) behind: bool,
    /// It has been idle: the server may have closed it.
    pub(super) doubtful: bool,
    /// How many of the last portion of unacknowledged calls are not answered.
    portion: usize,
    /// The scripts that the server has run here, or will before what comes next, and when the last such command was sent.
    known: Vec<(&'static Script, Instant)>,
    /// Why the connection is given up as soon as all replies have come: the server is no master any more.
    leaving: Option<RedisError>,
}

/// Whose reply it was.
pub(super) struct Replied {
    pub(super) call: Arc<Call>,
    /// Its thread waits to be woken.
    pub(super) following: bool,
    /// Why the connection is to be given up now.
    pub(super) leaving: Option<RedisError>,
}

/// What a lost connection leaves.
pub(super) struct Lost {
    /// Those that had no reply.
    pub(super) calls: Vec<Arc<Call>>,
    /// What undoes the acquires among them. They may lie unread in the server's buffer, and would be carried out when a new
    /// owner has long been and gone.
    pub(super) undoing: Vec<u8>,
    /// The last command was written in part, so nothing can follow it.
    pub(super) torn: bool,
}

impl Pipeline {
    /// There is a connection, with nothing on its way yet.
    pub(super) fn connected(&mut self, now: Instant) {
        self.in_flight = Some(InFlight {
            bytes: Vec::with_capacity(1024),
            spare: Vec::with_capacity(1024),
            awaiting: VecDeque::new(),
            last_heard: now,
            quiet_at: now,
            torn: false,
            behind: false,
            doubtful: false,
            portion: 0,
            known: Vec::new(),
            leaving: None,
        });
        self.feed(now);
    }

    pub(super) fn in_flight(&mut self) -> Option<&mut InFlight> {
        self.in_flight.as_mut()
    }

    pub(super) fn has_unacknowledged(&self) -> bool {
        !self.unacknowledged.is_empty()
    }

    /// Queues a call behind all that were submitted before it, if there is a connection; a deferred one is sent later
    /// otherwise, and is while the socket is full.
    pub(super) fn submit(&mut self, call: &Arc<Call>, now: Instant) -> bool {
        match &mut self.in_flight {
            Some(in_flight) if !(in_flight.behind && call.deferred.is_some()) => {
                if !self.unacknowledged.is_empty() {
                    for earlier in self.unacknowledged.take_about(&call.request, SAME_NAME) {
                        in_flight.enqueue(&earlier, now);
                    }
                }
                in_flight.enqueue(call, now);
                true
            }
            _ => {
                self.unacknowledged.keep(call);
                false
            }
        }
    }

    /// Queues the next portion of unacknowledged calls, when the former is answered.
    pub(super) fn feed(&mut self, now: Instant) {
        let rests = self.rests(now);
        let Some(in_flight) = &mut self.in_flight else {
            return;
        };
        if in_flight.portion > 0 || in_flight.behind || self.unacknowledged.is_empty() || rests {
            return;
        }
        let full = in_flight.bytes.len() + PORTION;
        while in_flight.bytes.len() < full
            && let Some(call) = self.unacknowledged.take_first()
        {
            in_flight.enqueue(&call, now);
            call.state.lock().in_portion = true;
            in_flight.portion += 1;
        }
    }

    fn rests(&self, now: Instant) -> bool {
        self.rests_until.is_some_and(|until| now < until)
    }

    /// Queues an unacknowledged call before all others of its kind, if the server can be asked.
    pub(super) fn bring(&mut self, call: &Arc<Call>, now: Instant) -> bool {
        let rests = self.rests(now);
        match &mut self.in_flight {
            Some(in_flight) if !rests && self.unacknowledged.remove(call) => {
                in_flight.enqueue(call, now);
                true
            }
            _ => false,
        }
    }

    /// The reply to the oldest command has come. `None`: nobody has asked for it.
    pub(super) fn reply(
        &mut self,
        value: Value,
        now: Instant,
        on_reply: &dyn OnReply,
    ) -> Option<Replied> {
        let in_flight = self.in_flight.as_mut()?;
        in_flight.last_heard = now;
        let call = in_flight.awaiting.pop_front()?;
        if std::mem::take(&mut call.state.lock().in_portion) {
            in_flight.portion -= 1;
        }
        if let Some(script) = call.request.script {
            in_flight.learn(script, &call, matches!(value, Value::ServerError(_)));
        }
        let mut following = false;
        if call.deferred.is_some() {
            let elsewhere = self.settle(&call, value, now, on_reply);
            if let (Some(err), Some(in_flight)) = (elsewhere, &mut self.in_flight) {
                in_flight.leaving = Some(err);
            }
        } else {
            let mut its = call.state.lock();
            its.phase = CallPhase::Done(value);
            following = its.following;
        }
        let leaving = self.in_flight.as_mut().and_then(InFlight::leave);
        if leaving.is_none() && call.deferred.is_some() {
            self.feed(now);
        }
        Some(Replied {
            call,
            following,
            leaving,
        })
    }

    /// What a deferred call's reply means: it is settled, or sent once more. Says why if the master is elsewhere.
    fn settle(
        &mut self,
        call: &Arc<Call>,
        value: Value,
        now: Instant,
        on_reply: &dyn OnReply,
    ) -> Option<RedisError> {
        let deferred = call.deferred.as_ref()?;
        let mut its = call.state.lock();
        let err = match value.extract_error() {
            Ok(value) => {
                on_reply.released(deferred, &value, its.sendings > 1);
                its.phase = CallPhase::Done(value);
                return None;
            }
            Err(err) => err,
        };
        let unknown = is_unknown_script(&err) && !its.by_text;
        // A server that takes no writes now may take them later.
        let later = is_transient(&err)
            || deferred.for_good && matches!(err.code(), Some("OOM" | "MISCONF"));
        if !(unknown || later) || now >= deferred.useful_until {
            its.phase = CallPhase::Broken(err.clone());
            on_reply.given_up(deferred, &err);
            return None;
        }
        its.by_text |= unknown;
        its.sendings -= 1; // it was refused before it ran
        its.phase = CallPhase::Idle;
        drop(its);
        match &mut self.in_flight {
            Some(in_flight) if unknown => in_flight.enqueue(call, now),
            _ => {
                self.unacknowledged.keep(call);
                self.rests_until = Some(now + REST);
            }
        }
        (err.kind() == ErrorKind::Server(ServerErrorKind::ReadOnly)).then_some(err)
    }

    /// The connection is lost, or given up.
    pub(super) fn lost(&mut self, why: &RedisError) -> Option<Lost> {
        let in_flight = self.in_flight.take()?;
        let mut undoing = Vec::new();
        for call in &in_flight.awaiting {
            let mut its = call.state.lock();
            if call.deferred.is_some() {
                its.phase = CallPhase::Idle;
                its.in_portion = false;
                drop(its);
                self.unacknowledged.keep(call);
            } else {
                its.phase = CallPhase::Broken(why.clone());
                drop(its);
                if let Some(undo) = call.undo() {
                    // The reply is never read, so the text is sent.
                    undo.request.write(&mut undoing, true);
                }
            }
        }
        Some(Lost {
            calls: in_flight.awaiting.into(),
            undoing,
            torn: in_flight.torn,
        })
    }

    /// Takes out unacknowledged calls that are of no use any more, not more than `most`.
    pub(super) fn take_ended(
        &mut self,
        now: Instant,
        most: usize,
        why: &RedisError,
    ) -> Vec<Arc<Call>> {
        let mut ended = Vec::new();
        while ended.len() < most
            && let Some(call) = self.unacknowledged.take_ended(now)
        {
            call.state.lock().phase = CallPhase::Broken(why.clone());
            ended.push(call);
        }
        ended
    }

    /// Forgets what is unacknowledged: how many releases that is, and how many undoings of acquires.
    pub(super) fn forget(&mut self) -> (u64, u64) {
        let (mut releases, mut undos) = (0, 0);
        while let Some(call) = self.unacknowledged.take_first() {
            match &call.deferred {
                Some(terms) if terms.undo && !terms.for_good => undos += 1,
                _ => releases += 1,
            }
        }
        (releases, undos)
    }
}

impl InFlight {
    pub(super) fn enqueue(&mut self, call: &Arc<Call>, now: Instant) {
        let mut its = call.state.lock();
        its.phase = CallPhase::Awaiting;
        its.sent_at = now;
        if self.awaiting.is_empty() {
            self.doubtful = now.saturating_duration_since(self.last_heard) >= IDLE;
            // Silence counts from when a reply became due, whoever waits for it.
            self.last_heard = now;
        }
        its.sendings += 1;
        if let Some(script) = call.request.script {
            its.by_text |= call.unattended && !self.knows(script, now);
            if its.by_text {
                self.knows_since(script, now);
            }
        }
        call.request.write(&mut self.bytes, its.by_text);
        drop(its);
        self.awaiting.push_back(Arc::clone(call));
    }

    /// What a reply says about a script. The server need not know one that it has refused to run.
    fn learn(&mut self, script: &'static Script, call: &Call, refused: bool) {
        if refused {
            self.known
                .retain(|(known, _)| !std::ptr::eq(*known, script));
        } else {
            self.knows_since(script, call.state.lock().sent_at);
        }
    }

    fn knows_since(&mut self, script: &'static Script, at: Instant) {
        let mut known = self.known.iter_mut();
        match known.find(|(known, _)| std::ptr::eq(*known, script)) {
            Some((_, since)) => *since = at.max(*since),
            None => self.known.push((script, at)),
        }
    }

    fn knows(&self, script: &'static Script, now: Instant) -> bool {
        self.known.iter().any(|(known, since)| {
            std::ptr::eq(*known, script) && now.saturating_duration_since(*since) < KNOWN_FOR
        })
    }

    /// How many replies are due.
    pub(super) fn due(&self) -> usize {
        self.awaiting.len()
    }

    /// When the oldest command was sent whose reply is due.
    pub(super) fn due_since(&self) -> Option<Instant> {
        Some(self.awaiting.front()?.state.lock().sent_at)
    }

    /// Whether a reply is due and nothing has been heard for `patience`.
    pub(super) fn is_silent(&self, patience: Duration, now: Instant) -> bool {
        !self.awaiting.is_empty() && now >= self.last_heard + patience
    }

    /// The first call whose thread waits to be woken.
    pub(super) fn first_following(&self) -> Option<Arc<Call>> {
        let mut awaiting = self.awaiting.iter();
        awaiting.find(|call| call.state.lock().following).cloned()
    }

    pub(super) fn has_bytes(&self) -> bool {
        !self.bytes.is_empty()
    }

    /// Takes what is to be written; [`InFlight::wrote`] has to follow.
    pub(super) fn take_bytes(&mut self) -> Vec<u8> {
        let spare = std::mem::take(&mut self.spare);
        std::mem::replace(&mut self.bytes, spare)
    }

    /// So many of the bytes that were taken are written; the rest goes before all that was queued meanwhile.
    pub(super) fn wrote(&mut self, mut bytes: Vec<u8>, written: usize) {
        self.behind = written < bytes.len();
        if self.behind {
            self.torn |= written > 0;
            bytes.drain(..written);
            bytes.append(&mut self.bytes);
            self.bytes = bytes;
            return;
        }
        self.torn = false;
        if bytes.capacity() <= SPARE {
            bytes.clear();
            self.spare = bytes;
        }
    }

    /// Has the connection given up once all replies have come.
    pub(super) fn leave_for(&mut self, why: RedisError) {
        self.leaving = Some(why);
    }

    /// Why to leave now, if there is a reason and no reply is due.
    pub(super) fn leave(&mut self) -> Option<RedisError> {
        if self.awaiting.is_empty() {
            self.leaving.take()
        } else {
            None
        }
    }
}
