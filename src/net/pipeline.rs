//! The order of commands on a connection, and what becomes of each. Memory only: no I/O, and `now` is an argument.
//!
//! ```text
//!            submit                            reply
//!    idle ───────────► awaiting ─────────────────────────► done
//!     ▲                 │  │  │
//!     │ connection lost,│  │  └─ rejected for good: done, or broken if deferred
//!     │ or rejected     │  │
//!     │ for now         │  └─ connection lost, not deferred ────► broken: the thread decides whether to send it again
//!     └─────────────────┘
//!       deferred: in the ledger, sent again ─────────────────────► broken once it is useless
//! ```
//!
//! Redis answers in the order in which it was asked, so the oldest awaiting command owns the next reply. The way of a
//! deferred command is described at the [ledger](crate::net::ledger).
//!
//! Some calls consist of several commands in a row: `ASKING` precedes a command to a node to which the slot of its key is
//! still moving, and `WAIT` follows a command that replicas have to acknowledge. The call is answered once all its
//! commands are.
//!
//! A script is sent by its hash, or by its text after the server has answered `NOSCRIPT`. But `NOSCRIPT` helps only if a
//! thread reads it, and the replies to some calls (`unattended`) may be read late or never: the process may end right
//! after a release, and a quorum may be decided before its last master answers. So on each connection the first such call
//! of each script carries the text, and so does the first after a `NOSCRIPT`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{RedisError, Value};

use crate::net::call::{Call, CallPhase, DeferredInfo, OnReply};
use crate::net::ledger::{AT_ONCE, Ledger};
use crate::net::request::{Request, Script, Wording};
use crate::net::socket::unasked;
use crate::net::write_queue::WriteQueue;
use crate::verdict::{self, Reach, RequestKind, Verdict, verdict};

/// Makes a node execute the next command although the key's slot is still moving to this node.
const ASKING: &[u8] = b"*1\r\n$6\r\nASKING\r\n";

/// How long a connection [rests](Pipeline::rests_until) after the server has replied that it cannot serve now.
const REST: Duration = Duration::from_millis(50);

/// After how long without a command the connection is checked before the next one is sent.
pub(super) const IDLE: Duration = Duration::from_millis(100);

/// After this long without a command, the next one puts the connection [in doubt](InFlight::is_in_doubt). When the
/// watchdog renews something, a PING tests such a connection.
pub(super) const PING_AFTER: Duration = Duration::from_secs(2);

/// The commands of a client to one node, over one connection after another.
pub(super) struct Pipeline {
    /// The node to which the connections lead.
    node: usize,
    /// The commands on the current connection, if there is one.
    in_flight: Option<InFlight>,
    /// Deferred calls that are on no connection.
    ledger: Arc<Ledger>,
    /// When the rest ends. A rest begins when a reply says that the server cannot execute the command now. During the
    /// rest, only entries that have to precede a new command are taken from the ledger.
    rests_until: Option<Instant>,
    /// The last undo that was submitted, until its outcome is known: see [`backlog_end`](Self::backlog_end).
    last_undo: Option<Arc<Call>>,
}

/// The commands on one connection.
pub(super) struct InFlight {
    node: usize,
    ledger: Arc<Ledger>,
    pub(super) unwritten: WriteQueue,
    awaiting: VecDeque<Arc<Call>>,
    /// How many calls were queued over this connection.
    queued: u64,
    /// The value of `queued` when the last batch from the ledger had been queued. Once that many calls are answered, so is the
    /// batch.
    batch_ends: u64,
    /// The latest of these moments: the last reply came; a socket that had been full took bytes; a command was queued
    /// while no reply was due; the connection began, or a successor took over.
    pub(super) last_heard: Instant,
    /// Everything that had arrived by this moment has been read. Set when a leader's slice ends without a reply from its
    /// final read: see `connection::leading`.
    pub(super) quiet_at: Instant,
    /// Before the oldest unanswered command was queued, the connection was idle for [`IDLE`]: the server may have closed
    /// it. The thread that writes next checks that first.
    pub(super) check_before_write: bool,
    /// The server has sent nothing since a caller timed out, or since the first command after a long idle time (a firewall
    /// may have forgotten the connection). Then a silence shorter than `max_silence` may end the connection: see
    /// `Connection::patience`.
    pub(super) is_in_doubt: bool,
    /// The scripts whose texts were sent with calls whose replies may never be read.
    introduced: Vec<&'static Script>,
    /// Why the connection is closed once all replies have come: the server is no longer the master.
    leaving: Option<RedisError>,
}

/// The meaning of a reply that was read.
pub(super) enum Received {
    /// No reply is due.
    Stray,
    /// More replies to the same call are due.
    Part,
    Of(Replied),
}

/// The call that a reply belongs to, and what follows.
pub(super) struct Replied {
    pub(super) call: Arc<Call>,
    /// Another node has to execute the call, and its connection takes the call from the ledger.
    pub(super) is_elsewhere: bool,
    /// A thread followed the call when the reply arrived, and has to be woken: rule 6 at `ReadLeadership`. Noted before
    /// the call can be sent again, which would reset the count of followers.
    pub(super) was_followed: bool,
    /// Why the connection has to be closed now, if so.
    pub(super) leaving: Option<RedisError>,
}

/// The remains of a lost connection.
pub(super) struct Lost {
    /// The unanswered calls that threads follow.
    pub(super) followed: Vec<Arc<Call>>,
    /// The bytes that undo the lost acquires. The server may still have an acquire unread, and execute it after the next
    /// holder has come and gone.
    pub(super) undoing: Vec<u8>,
    /// The last command may have been written in part, so nothing can be sent after it.
    pub(super) torn: bool,
}

impl Pipeline {
    pub(super) fn new(node: usize, ledger: Arc<Ledger>) -> Self {
        Self {
            node,
            in_flight: None,
            ledger,
            rests_until: None,
            last_undo: None,
        }
    }

    /// There is a connection, with nothing on its way yet.
    pub(super) fn connected(&mut self, now: Instant) {
        self.in_flight = Some(InFlight {
            node: self.node,
            ledger: Arc::clone(&self.ledger),
            unwritten: WriteQueue::default(),
            awaiting: VecDeque::new(),
            queued: 0,
            batch_ends: 0,
            last_heard: now,
            quiet_at: now,
            check_before_write: false,
            is_in_doubt: false,
            introduced: Vec::new(),
            leaving: None,
        });
        self.feed(now);
    }

    pub(super) fn in_flight(&mut self) -> Option<&mut InFlight> {
        self.in_flight.as_mut()
    }

    /// Whether the ledger has something for this node.
    pub(super) fn owes(&self) -> bool {
        self.ledger.owes(self.node)
    }

    /// Queues a call after all others, if there is a connection. Without one, or while the socket is full, a deferred call
    /// goes to the ledger. An attempt is not queued until it has waited for the [backlog](Self::backlog_end).
    pub(super) fn submit(&mut self, call: &Arc<Call>, now: Instant) -> bool {
        if self.last_undo.is_some() && call.has_to_wait() && self.backlog_end().is_some() {
            return false;
        }
        if call.deferred.as_ref().is_some_and(|info| info.undo) {
            self.last_undo = Some(Arc::clone(call));
        }
        match &mut self.in_flight {
            Some(in_flight) if !(in_flight.unwritten.is_full() && call.deferred.is_some()) => {
                in_flight.enqueue_about(&call.request, now);
                in_flight.enqueue(call, now);
                true
            }
            _ => {
                // The node is stored so that a waiting thread can find this connection. `keep` takes only deferred calls; the
                // thread of any other call submits it again.
                call.set_node(self.node);
                self.ledger.keep([call]);
                false
            }
        }
    }

    /// Takes the next batch from the ledger, once the last one is answered.
    pub(super) fn feed(&mut self, now: Instant) {
        let rests = self.rests(now);
        let Some(in_flight) = &mut self.in_flight else {
            return;
        };
        if rests || self.ledger.is_empty() || in_flight.unwritten.is_full() || in_flight.has_batch()
        {
            return;
        }
        for call in self.ledger.take(self.node) {
            in_flight.enqueue(&call, now);
        }
        in_flight.batch_ends = in_flight.queued;
    }

    /// The call that ends the backlog; `None` if there is no backlog. There is one if the last undo has no reply and
    /// [`AT_ONCE`] or more calls are in flight.
    ///
    /// An attempt to acquire waits once, before it is sent, until this call is answered. By then the earlier attempts of
    /// its thread are answered too, so a thread has at most one attempt in the backlog. Threads with short time limits
    /// would otherwise send attempts and undos faster than the server executes them.
    pub(super) fn backlog_end(&mut self) -> Option<Arc<Call>> {
        self.last_undo.take_if(|undo| undo.outcome().is_some());
        let awaiting = &self.in_flight.as_ref()?.awaiting;
        // With fewer in flight, the wait would not be worth it: a working server answers them soon.
        let has_backlog = self.last_undo.is_some() && awaiting.len() >= AT_ONCE;
        awaiting.back().filter(|_| has_backlog).cloned()
    }

    fn rests(&self, now: Instant) -> bool {
        self.rests_until.is_some_and(|until| now < until)
    }

    /// Queues what the ledger has about the keys of a request, unless the connection is down or rests.
    pub(super) fn bring(&mut self, about: &Request, now: Instant) {
        let rests = self.rests(now);
        if let Some(in_flight) = self.in_flight.as_mut().filter(|_| !rests) {
            in_flight.enqueue_about(about, now);
        }
    }

    /// The reply to the oldest command has come.
    pub(super) fn reply(&mut self, value: Value, now: Instant, on_reply: &dyn OnReply) -> Received {
        let Some(in_flight) = self.in_flight.as_mut() else {
            return Received::Stray;
        };
        in_flight.last_heard = now;
        in_flight.is_in_doubt = false;
        let Some(call) = in_flight.awaiting.pop_front() else {
            return Received::Stray;
        };
        let mut state = call.state.lock();
        let Some(value) = state.take_reply(value, call.request.acknowledgements.is_some()) else {
            drop(state);
            in_flight.awaiting.push_front(call);
            return Received::Part;
        };
        let (replayed, was_followed) = (state.sendings > 1, state.is_followed());
        // Scripts of the user, and guarded commands, may return anything. The scripts of this crate do not: an odd reply to one
        // of them shows that replies and commands no longer match. So the connection is dropped before another call takes a
        // reply that is not its own.
        let mut is_out_of_step = false;
        if let Some(script) = call
            .request
            .our_script()
            .filter(|_| !call.request.is_sent_once)
        {
            if verdict::has_forgotten_scripts(&value) {
                in_flight
                    .introduced
                    .retain(|known| !std::ptr::eq(*known, script));
            }
            is_out_of_step = !is_of_a_script(&value, &call.request);
        }
        let mut is_elsewhere = false;
        if let Some(deferred) = &call.deferred {
            // `settle` calls `on_reply` without the call's mutex, and may put the call into the ledger, which takes that mutex.
            // The call is on no connection until then, so no other thread changes it.
            drop(state);
            is_elsewhere = self.settle(&call, deferred, value, replayed, now, on_reply);
        } else {
            state.phase = CallPhase::Done(value);
            drop(state);
        }
        let leaving = match is_out_of_step {
            true => Some(unasked()),
            false => self.in_flight.as_mut().and_then(InFlight::leave),
        };
        // A connection that is about to be dropped takes nothing more from the ledger.
        if leaving.is_none() && call.deferred.is_some() {
            self.feed(now);
        }
        Received::Of(Replied {
            call,
            is_elsewhere,
            was_followed,
            leaving,
        })
    }

    /// Settles a deferred call by its reply, or sends it once more. Returns whether another node has to execute it.
    fn settle(
        &mut self,
        call: &Arc<Call>,
        deferred: &DeferredInfo,
        value: Value,
        replayed: bool,
        now: Instant,
        on_reply: &dyn OnReply,
    ) -> bool {
        let verdict = verdict(value, || {
            call.asked(RequestKind::Kept, self.ledger.is_clustered())
        });
        let verdict = match verdict {
            Verdict::Later(err) if now >= deferred.useful_until => Verdict::Never(err),
            verdict => verdict,
        };
        match verdict {
            Verdict::Answer(value) => {
                on_reply.released(deferred, &value, replayed);
                call.state.lock().phase = CallPhase::Done(value);
            }
            Verdict::Never(err) => {
                on_reply.given_up(deferred, &err);
                call.state.lock().phase = CallPhase::Broken(err);
            }
            // The server has not executed this release, but executes the commands behind it. So an acquire among these may
            // find the lock still taken; its thread is notified when the release, sent again here, is executed.
            Verdict::SendText => {
                call.send_text();
                // The call is idle only while the connection's mutex is held, so no waiting thread takes it for a lost one.
                call.discount_sending(None);
                if let Some(in_flight) = &mut self.in_flight {
                    in_flight.enqueue(call, now);
                }
            }
            // With this connection's mutex held, another connection must not be called. So the release goes through the
            // ledger.
            Verdict::Elsewhere(redirection) => {
                call.discount_sending(None);
                self.ledger.redirect(call, self.node, &redirection);
                return true;
            }
            // The connection rests (`rests_until`): otherwise batch after batch would be rejected at once.
            Verdict::Later(err) => {
                call.discount_sending(Some(err.clone()));
                call.reset_redirections();
                // From here on another connection may take the call, so its state is not changed any more.
                self.ledger.keep([call]);
                self.rests_until = Some(now + REST);
                if let Some(in_flight) = &mut self.in_flight
                    && verdict::reach(&err) == Reach::Master
                {
                    in_flight.leave_for(err);
                }
            }
        }
        false
    }

    /// The connection is lost, or given up.
    pub(super) fn lost(&mut self, why: &RedisError) -> Option<Lost> {
        let in_flight = self.in_flight.take()?;
        let (mut undoing, mut followed) = (Vec::new(), Vec::new());
        // No byte of the last `unwritten` calls was taken for writing. `awaiting` may be shorter than `unwritten` if the
        // server has sent a reply that was not due: that reply removed a call of which nothing was written.
        let unwritten = in_flight.unwritten.calls;
        let written = in_flight.awaiting.len().saturating_sub(unwritten);
        for (index, call) in in_flight.awaiting.iter().enumerate() {
            let mut state = call.state.lock();
            if state.is_followed() {
                followed.push(Arc::clone(call));
            }
            // A call of which no byte was written cannot have been executed.
            state.sendings -= u32::from(index >= written);
            // Any other may have been executed. A deferred call is sent again. A call that is not deferred is left to its
            // thread, which decides whether to send it again; its undo, if it has one, is written behind it if the socket
            // still works.
            if call.deferred.is_some() {
                state.phase = CallPhase::Idle(Some(why.clone()));
            } else {
                state.phase = CallPhase::Broken(why.clone());
                drop(state);
                if let Some(undo) = call.undo() {
                    // The reply to the undo is never read, and might be `NOSCRIPT`. So the script is sent by its text.
                    let wording = Wording {
                        by_text: true,
                        sharded: self.ledger.map.is_sharded(),
                    };
                    undo.request.write_as(&mut undoing, wording);
                }
            }
        }
        // From here on another connection may take these calls and send them. The threads that follow them, woken later
        // and without the mutex, find each of them idle, sent again, or settled.
        let deferred = in_flight.awaiting.iter();
        self.ledger
            .keep(deferred.filter(|call| call.deferred.is_some()));
        Some(Lost {
            followed,
            undoing,
            torn: in_flight.unwritten.is_torn(),
        })
    }
}

#[cfg(test)]
impl Pipeline {
    /// A copy that works on another ledger, and with each call replaced.
    pub(super) fn copy(&self, ledger: &Arc<Ledger>, of: impl Fn(&Arc<Call>) -> Arc<Call>) -> Self {
        let in_flight = self.in_flight.as_ref();
        Self {
            node: self.node,
            in_flight: in_flight.map(|in_flight| InFlight {
                ledger: Arc::clone(ledger),
                unwritten: in_flight.unwritten.clone(),
                awaiting: in_flight.awaiting.iter().map(&of).collect(),
                introduced: in_flight.introduced.clone(),
                leaving: in_flight.leaving.clone(),
                ..*in_flight
            }),
            ledger: Arc::clone(ledger),
            rests_until: self.rests_until,
            last_undo: self.last_undo.as_ref().map(&of),
        }
    }

    pub(super) fn awaiting(&self) -> impl Iterator<Item = &Arc<Call>> {
        let in_flight = self.in_flight.iter();
        in_flight.flat_map(|in_flight| &in_flight.awaiting)
    }
}

/// Whether the reply may be one of a script of this crate: a number, a string, nil, an error, or an array of these. An
/// array has at most three elements, or at most as many as the request has keys and arguments: the reply to a joined
/// request has one for each lock or place.
fn is_of_a_script(reply: &Value, request: &Request) -> bool {
    let is_one =
        |part: &Value| !matches!(part, Value::Array(_) | Value::Okay | Value::SimpleString(_));
    match reply {
        Value::Array(parts) => {
            let is_short = parts.len() <= 3 || parts.len() <= request.given();
            is_short && parts.iter().all(is_one)
        }
        reply => is_one(reply),
    }
}

impl InFlight {
    pub(super) fn enqueue(&mut self, call: &Arc<Call>, now: Instant) {
        let mut state = call.state.lock();
        state.sent_at = now;
        call.set_node(self.node);
        state.begin_sending();
        state.replies_before = u8::from(state.asking);
        (state.own_reply, state.acknowledged) = (None, None);
        if self.awaiting.is_empty() {
            let idle = now.saturating_duration_since(self.last_heard);
            self.check_before_write = idle >= IDLE;
            self.is_in_doubt = idle >= PING_AFTER;
            // No reply was due until now, so silence counts from here.
            self.last_heard = now;
        }
        if call.unattended
            && let Some(script) = call.request.our_script()
            && !self
                .introduced
                .iter()
                .any(|known| std::ptr::eq(*known, script))
        {
            state.by_text = true;
            self.introduced.push(script);
        }
        if state.asking {
            self.unwritten.bytes.extend_from_slice(ASKING);
        }
        let wording = Wording {
            by_text: state.by_text,
            sharded: self.ledger.map.is_sharded(),
        };
        call.request.write_as(&mut self.unwritten.bytes, wording);
        drop(state);
        self.unwritten.calls += 1;
        self.queued += 1;
        self.awaiting.push_back(Arc::clone(call));
    }

    /// Queues the ledger's entries about the keys of a request, so that they precede it.
    fn enqueue_about(&mut self, request: &Request, now: Instant) {
        if !self.ledger.is_empty() {
            for call in self.ledger.take_about(request, self.node) {
                self.enqueue(&call, now);
            }
        }
    }

    /// Whether a call of the last batch from the ledger has no answer yet.
    fn has_batch(&self) -> bool {
        self.queued - (self.awaiting.len() as u64) < self.batch_ends
    }

    /// How many calls are unanswered.
    pub(super) fn due(&self) -> usize {
        self.awaiting.len()
    }

    /// When the oldest unanswered call was queued; `None` if no reply is due.
    pub(super) fn due_since(&self) -> Option<Instant> {
        Some(self.awaiting.front()?.state.lock().sent_at)
    }

    /// Whether a reply is due, and it is certain that none was completed within `max_silence` of `last_heard`. (Part of a
    /// reply does not count.)
    pub(super) fn is_silent(&self, max_silence: Duration) -> bool {
        !self.awaiting.is_empty() && self.has_read_all_by(self.last_heard + max_silence)
    }

    /// Whether all that had arrived by `moment` is known to have been read.
    pub(super) fn has_read_all_by(&self, moment: Instant) -> bool {
        self.quiet_at >= moment
    }

    /// The calls that threads follow, the oldest first.
    pub(super) fn followed_calls(&self) -> impl Iterator<Item = &Arc<Call>> {
        let awaiting = self.awaiting.iter();
        awaiting.filter(|call| call.state.lock().is_followed())
    }

    /// Whether a thread should write although another leads: once a third of the calls in flight is unwritten, the server
    /// may run out of work before the leader writes. Writing earlier costs more than it brings (bench: 3, 8 and 64 threads
    /// on as many locks, also with a server that is 1 ms away).
    pub(super) fn is_worth_a_write(&self) -> bool {
        self.unwritten.calls >= self.due() / 3
    }

    /// Whether every command of which any byte was written is answered.
    pub(super) fn is_answered(&self) -> bool {
        self.awaiting.len() <= self.unwritten.calls && !self.unwritten.is_full()
    }

    pub(super) fn has_bytes(&self) -> bool {
        !self.unwritten.is_empty()
    }

    /// The unwritten bytes go over another connection, perhaps to another server. `leaving` is kept: the successor may
    /// lead to the same server.
    pub(super) fn go_on(&mut self, now: Instant) {
        (self.last_heard, self.check_before_write, self.is_in_doubt) = (now, false, false);
        self.introduced.clear();
    }

    /// Gives the connection up once all replies have come.
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

#[cfg(test)]
mod tests;

/// Every schedule of a few commands, exhaustively: submitted, written in whole or in part, run, refused or forgotten by
/// the server, answered, lost with the connection before or after they ran, sent again, and given up.
#[cfg(test)]
mod model;
