//! Waiting for replies: one thread reads for all.
//!
//! The moments that a wait compares:
//!
//! | moment | meaning |
//! | --- | --- |
//! | `sent_at` | the caller's command was queued |
//! | `last_heard` | the latest of these moments: the last reply came; a socket that had been full took bytes; a command was queued while no reply was due; the connection began, or a successor took over |
//! | `silent_at` | `last_heard` plus the caller's patience: if no reply is completed by then, the server may count as silent |
//! | `quiet_at` | all that had arrived by this moment has been read; set when the last read of a leader's slice brings no complete reply |
//! | `until` | the end of the caller's time |
//! | `slice_ends` | when this turn of the loop stops reading, or parking |
//!
//! If `until` or `silent_at` has passed, that alone does not prove that no reply came: this thread may have been suspended
//! while a reply lay unread in the socket. So silence and timeouts are proved by `quiet_at` and not by `now`: see
//! `InFlight::has_read_all_by`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{RedisError, Value};

use super::{Connection, ConnectionState, GLANCE, Phase, SLICE, WaitFault, Wrote, wake};
use crate::net::call::{Call, CallPhase, CallState, Fault};
use crate::net::pipeline::Received;
use crate::net::socket::{self, Reader};
use crate::report;

/// How many replies are handed out before the mutex is released for a moment.
const AT_ONCE: usize = 256;

/// If a read finds nothing, and ends at most this much after the end of its slice, nothing had arrived by the moment at
/// which the read ended. After a longer delay the process may have been suspended, with bytes arriving unseen.
const LATE: Duration = Duration::from_millis(10);

impl Connection {
    /// Waits for the reply to a submitted call, leading or following.
    pub(crate) fn wait(
        &self,
        call: &Arc<Call>,
        until: Instant,
        stop: &dyn Fn() -> bool,
    ) -> Result<(Value, Instant), WaitFault> {
        self.wait_for(call, true, until, stop)
    }

    /// Waits for the reply until `until`, the end of a slice of the caller's time. The patience is `max_silence`, even if
    /// the connection is in doubt. The outcome stays in the call, where the caller looks for it.
    pub(crate) fn wait_a_slice(&self, call: &Arc<Call>, until: Instant) {
        self.wait_for(call, false, until, &|| false).ok();
    }

    /// Waits for the reply to `call`. `is_own`: the caller has sent `call`, and its whole time ends at `until`. Then a
    /// connection in doubt is given up early, so that another connection can be tried: see [`patience`](Self::patience).
    ///
    /// Each turn of the loop locks both mutexes, first the connection's and then the call's, and checks in this order:
    ///
    /// 1. The call has its outcome: return it.
    /// 2. The call has moved to another node, or the connection is down: return.
    /// 3. The caller has to stop, or the time is up and a read since then has found nothing: leave, and pass on an
    ///    appointment. If the time is up without such a read, read once more first.
    /// 4. The server has been silent for too long: give the connection up.
    /// 5. No thread has the reader, and no other thread is appointed: lead, which means to read for all.
    /// 6. Otherwise follow: park until the leader wakes this thread.
    ///
    /// No wake-up is lost between the decision to follow and the park: the call's mutex stays locked until the condition
    /// variable has queued this thread, and a thread that ends the call locks that mutex before it notifies.
    fn wait_for(
        &self,
        call: &Arc<Call>,
        is_own: bool,
        until: Instant,
        stop: &dyn Fn() -> bool,
    ) -> Result<(Value, Instant), WaitFault> {
        let mut has_looked_again = false;
        loop {
            let mut state = self.state.lock();
            let mut call_state = call.state.lock();
            if let Some(outcome) = outcome(&state, &call_state) {
                return outcome;
            }
            // The call has moved to another node. If this thread followed the call here, the other connection would count
            // the thread as a follower, and might appoint it to read there.
            if call.node() != self.node {
                let why = socket::timed_out("another node of the cluster has to answer");
                return Err(WaitFault::NoReply(why));
            }
            let (now, generation) = (Instant::now(), state.generation);
            let Some((up, in_flight)) = state.up(generation) else {
                // Not reached: `take_down` ends `Up` and settles all awaiting calls without releasing the mutex.
                return Err(WaitFault::Closed);
            };
            // The time is up, but the reply may lie unread in the socket: the thread appointed to read it may not have been
            // scheduled yet. Unless a read since `until` has found nothing, look once more before reporting a timeout.
            let (is_late, has_to_stop) = (now >= until, stop());
            let looks_again =
                is_late && !has_to_stop && !has_looked_again && !in_flight.has_read_all_by(until);
            if (is_late || has_to_stop) && !looks_again {
                // `leave` may lock any call in flight, this one too.
                drop(call_state);
                // Since this thread last looked, a leader may have appointed it. If it left without passing the
                // appointment on, no follower would ever lead: rule 4 at `ReadLeadership`.
                let next = up.leadership.leave(call, in_flight);
                // While this thread was appointed, senders may have left their bytes to it. If no thread follows, no other
                // thread writes the bytes.
                self.write_queued(state, false);
                wake(next);
                return Err(match is_late {
                    true => WaitFault::TimedOut,
                    false => WaitFault::Stopped,
                });
            }
            let own_sent_at = is_own.then_some(call_state.sent_at);
            let patience = self.patience(up, in_flight, own_sent_at, until);
            // The connection is given up only once a read has found nothing since the call was sent; until then the reply
            // might lie unread.
            if !looks_again
                && in_flight.is_silent(patience)
                && in_flight.has_read_all_by(call_state.sent_at)
            {
                drop(call_state);
                drop(state);
                // Another thread may drop the connection first, or read a reply. `fail_silent` looks again under the mutex.
                self.fail_silent(generation);
                continue;
            }
            let silent_at = in_flight.last_heard + patience;
            let slice_ends = if looks_again {
                now + GLANCE
            } else if now < silent_at {
                until.min(silent_at).min(now + SLICE)
            } else {
                // A last short read checks that nothing has arrived before the connection is given up.
                until.min(now + GLANCE)
            };
            has_looked_again |= looks_again;
            let reader = match looks_again {
                // Past its deadline, this thread does not wait for the appointed one. Taking the reader ends the
                // appointment. The appointed thread, when it wakes, follows until `step_down` appoints again.
                true => up.leadership.take_from_anyone(),
                false => up.leadership.lead(call),
            };
            if let Some(reader) = reader {
                drop(call_state);
                drop(state);
                self.lead(reader, generation, Some(call), now, slice_ends);
                continue;
            }
            // The call's own mutex stays locked until this thread follows, so that the thread which hands the reply out cannot
            // come in between without waking it.
            drop(state);
            // A leader wakes all followers about every `SLICE`, so most need no timer of their own. If the deadline is less
            // than two slices away, that may be too late, so wait with a time limit.
            let is_soon = looks_again || until.min(silent_at) < now + 2 * SLICE;
            let most = is_soon.then(|| slice_ends.saturating_duration_since(now));
            call_state = call.follow(call_state, most);
            // A thread that has its reply returns here, without the connection's mutex, for which all the threads that
            // were woken would compete. A call gets its reply from the thread with the reader, and taking the reader ended any
            // appointment (rule 3). So a call that is done is not appointed, and its thread need not `leave`.
            if let CallPhase::Done(value) = &call_state.phase {
                return Ok((value.clone(), call_state.sent_at));
            }
        }
    }

    /// Waits until the calls of the [backlog](crate::net::pipeline::Pipeline::backlog_end) are answered; returns at once if
    /// there is no backlog.
    pub(crate) fn wait_for_backlog(
        &self,
        until: Instant,
        stop: &dyn Fn() -> bool,
    ) -> Result<(), Fault> {
        let end = self.state.lock().pipeline.backlog_end();
        let Some(end) = end else {
            return Ok(());
        };
        match self.wait_for(&end, false, until, stop) {
            Ok(_) | Err(WaitFault::NoReply(_)) => Ok(()),
            Err(WaitFault::TimedOut) => Err(self.no_answer()),
            Err(WaitFault::Stopped) => Err(Fault::Stopped),
            Err(WaitFault::Closed) => Err(Fault::Closed),
        }
    }

    /// Reads replies and hands them to their calls until the reply to `call` has come, a successor can take over, or
    /// `slice_ends` is reached. The first read begins at `now`.
    pub(super) fn lead(
        &self,
        reader: Reader,
        generation: u64,
        call: Option<&Arc<Call>>,
        now: Instant,
        slice_ends: Instant,
    ) {
        let mut leader = FailOnPanic {
            connection: self,
            generation,
            is_done: false,
        };
        self.read_for_all(reader, generation, call, now, slice_ends);
        leader.is_done = true;
    }

    fn read_for_all(
        &self,
        mut reader: Reader,
        generation: u64,
        call: Option<&Arc<Call>>,
        now: Instant,
        slice_ends: Instant,
    ) {
        // The logger is user code and may block, while all followers wait for this thread. Records wait until the reader is
        // back in its place.
        let _held_back = report::hold_back();
        // When the next read begins.
        let mut read_at = now;
        let mut slice = slice_ends.saturating_duration_since(read_at);
        // Calls that were answered by this thread. Their threads are woken only once there is nothing left to read. If
        // they were woken earlier, each would interrupt this thread. However this function ends, dropping `served` wakes
        // them.
        let mut served = Served::default();
        loop {
            let read = reader.read_from(read_at, slice, &mut || {
                served.wake();
                // If the connection that this thread reads has been replaced, `write_out` writes over the new one. That is
                // allowed: any thread may write.
                let mut wrote = self.write_out(true);
                // A socket that has taken part of a long command has space again soon, since the server is reading. A read in
                // between would cost a `GLANCE` for each part.
                while wrote == Wrote::Part && Instant::now() < slice_ends {
                    wrote = self.write_out(true);
                }
                match wrote {
                    // The socket is full, and no reply announces that it has space again. So the read is short, and the
                    // write is tried again before the next one.
                    Wrote::Part | Wrote::Full => GLANCE,
                    Wrote::Done | Wrote::Down => Duration::MAX,
                }
            });
            let first = match read {
                Ok(Some(value)) => value,
                Ok(None) => {
                    let now = Instant::now();
                    slice = slice_ends.saturating_duration_since(now);
                    if slice.is_zero() {
                        if let Some((_, in_flight)) = self.state.lock().up(generation) {
                            // If this thread was suspended, bytes may have arrived after its last read. Then only the
                            // moment at which that read began proves silence.
                            let in_time = now < slice_ends + LATE;
                            in_flight.quiet_at = if in_time { now } else { read_at };
                        }
                        return self.step_down(reader, generation, now, served);
                    }
                    read_at = now;
                    continue;
                }
                // `fail` wakes all followers. If another thread has taken the connection down, that thread wakes them.
                Err(err) => return self.fail(generation, &err, false),
            };
            let now = Instant::now();
            let then = self.hand_out(first, &mut reader, generation, call, now, &mut served);
            match then {
                // The leader stops in time, however many replies come for others.
                Then::ReadOn if now < slice_ends => {}
                Then::ReadOn | Then::StepDown => {
                    return self.step_down(reader, generation, now, served);
                }
                Then::Fail(err) => return self.fail(generation, &err, false),
                // The connection was taken down meanwhile. The thread that did so wakes the followers without a reply.
                // Dropping `served` wakes the followers whose replies this thread has read.
                Then::Gone => return,
            }
            read_at = now;
            slice = shortened(slice, now, slice_ends);
        }
    }

    /// Hands `first`, and up to [`AT_ONCE`] - 1 replies that were read together with it, to their calls, locking the mutex
    /// once. So a leader that has its own reply hands out the replies read behind it too, before it stops.
    fn hand_out(
        &self,
        first: Value,
        reader: &mut Reader,
        generation: u64,
        call: Option<&Arc<Call>>,
        now: Instant,
        served: &mut Served,
    ) -> Then {
        let mut then = Then::ReadOn;
        let mut state = self.state.lock();
        // Another thread may have taken the connection down while this thread read. The call then has its outcome or is back
        // in the ledger, so the reply is discarded.
        if state.up(generation).is_none() {
            return Then::Gone;
        }
        let mut next = Some(first);
        for replies_left in (0..AT_ONCE).rev() {
            let Some(value) = next.take() else {
                break;
            };
            match state.pipeline.reply(value, now, &*self.settings.on_reply) {
                Received::Of(replied) => {
                    if call.is_some_and(|call| Arc::ptr_eq(call, &replied.call)) {
                        then = Then::StepDown;
                    }
                    // Another node has to execute this release, which is in the ledger now. Perhaps no thread waits for
                    // it, so housekeeping takes care that it is sent there.
                    if replied.is_elsewhere {
                        self.settings.housekeeper.housekeep_now();
                    }
                    if replied.was_followed {
                        served.0.push(replied.call);
                    }
                    // If another thread submits a call before `fail` gets the mutex, that call is settled as lost.
                    if let Some(err) = replied.leaving {
                        return Then::Fail(err);
                    }
                }
                Received::Part => {}
                Received::Stray => return Then::Fail(socket::unasked()),
            }
            if replies_left == 0 || !reader.has_unread() {
                break;
            }
            // Bytes that no command has asked for must not be taken for the reply to the next command.
            let is_due = state
                .up(generation)
                .is_some_and(|(_, in_flight)| in_flight.due() > 0);
            match reader.next_unread() {
                _ if !is_due => return Then::Fail(socket::unasked()),
                Ok(value) => next = value,
                Err(err) => return Then::Fail(err),
            }
        }
        // The successor takes over only with the reader in its place. If this was the last reply over the old connection,
        // the next read would block for the whole slice, with the commands for the successor unwritten.
        let hands_over =
            (state.up(generation)).is_some_and(|(up, in_flight)| up.can_hand_over(in_flight));
        if hands_over && matches!(then, Then::ReadOn) {
            then = Then::StepDown;
        }
        then
    }

    /// Puts the reader back, writes what is left, and wakes the next leader. About every `SLICE` it wakes all followers, since
    /// they wait without a limit: each checks its deadline and whether it has to stop.
    ///
    /// The next leader is appointed with the mutex held and woken last. In between other threads may send, time out, or hand
    /// over to a successor: the appointed thread finds that when it looks, and leads, follows, or passes the appointment on.
    fn step_down(&self, reader: Reader, generation: u64, now: Instant, mut served: Served) {
        let mut state = self.state.lock();
        // If another thread has taken the connection down, `lost` has listed all followers, and `take_down` wakes them.
        let Some((up, in_flight)) = state.up(generation) else {
            return;
        };
        let next = up.leadership.put_back(reader, in_flight);
        if now >= up.all_looked_at + SLICE / 2 {
            up.all_looked_at = now;
            served.0.extend(in_flight.followed_calls().cloned());
        }
        // Threads that saw this thread lead have left their queued bytes to it, so it writes these before the next leader is
        // woken.
        self.write_queued(state, true);
        served.wake();
        wake(next);
    }

    pub(super) fn fail_silent(&self, generation: u64) {
        let mut state = self.state.lock();
        let mut why = "redis was silent while a reply was due";
        if let Some((up, in_flight)) = state.up(generation) {
            // A successor may have taken over, or a reply may have come, since the caller looked.
            if !in_flight.is_silent(Duration::ZERO) {
                return;
            }
            if up.leadership.reader().is_some_and(Reader::is_skipping) {
                why = "a reply that is too large did not end in time, so its connection was closed";
            }
            state.doubted_until = in_flight.last_heard + self.max_silence;
        }
        drop(state);
        // A reply that is read before `fail` gets the mutex still settles its call. The connection is dropped all the
        // same, and the other calls are settled as lost.
        self.fail(generation, &socket::timed_out(why), true);
    }

    pub(super) fn is_silent(&self, generation: u64) -> bool {
        let mut state = self.state.lock();
        let up = state.up(generation);
        up.is_some_and(|(_, in_flight)| in_flight.is_silent(self.max_silence))
    }
}

/// The outcome of a call; `None` while its reply is due. If a deferred call is on no connection, the outcome is `NoReply`,
/// or `Closed` once the client is closed. `NoReply` is not final: the call is sent again while it is useful, perhaps to
/// another node.
fn outcome(
    state: &ConnectionState,
    call: &CallState,
) -> Option<Result<(Value, Instant), WaitFault>> {
    let no_connection = || socket::timed_out("there was no connection to send the command over");
    Some(match &call.phase {
        CallPhase::Awaiting => return None,
        CallPhase::Done(value) => Ok((value.clone(), call.sent_at)),
        CallPhase::Broken(err) => Err(WaitFault::NoReply(err.clone())),
        CallPhase::Idle(_) if matches!(state.phase, Phase::Closed) => Err(WaitFault::Closed),
        CallPhase::Idle(why) => Err(WaitFault::NoReply(
            why.clone().unwrap_or_else(no_connection),
        )),
    })
}

/// How a leader goes on.
enum Then {
    ReadOn,
    /// The leader has its own reply, or a successor waits to take over.
    StepDown,
    /// The connection has to be dropped.
    Fail(RedisError),
    /// Another thread has dropped the connection, and settled its calls.
    Gone,
}

/// How long to read on after a reply to another call. A slice that is too long by up to a `GLANCE` stays: each change of
/// the socket's read timeout costs a system call.
fn shortened(slice: Duration, now: Instant, slice_ends: Instant) -> Duration {
    if now + slice > slice_ends + GLANCE {
        slice_ends.saturating_duration_since(now)
    } else {
        slice
    }
}

/// Drops the connection if the leading thread panics: the reader would be lost with it, and followers wait without a limit.
struct FailOnPanic<'a> {
    connection: &'a Connection,
    generation: u64,
    is_done: bool,
}

impl Drop for FailOnPanic<'_> {
    fn drop(&mut self) {
        if !self.is_done {
            let why = std::io::Error::other("the thread that read the replies has panicked");
            self.connection.fail(self.generation, &why.into(), false);
        }
    }
}

/// Calls whose threads have to be woken, which happens at the latest when this is dropped.
#[derive(Default)]
struct Served(Vec<Arc<Call>>);

impl Served {
    fn wake(&mut self) {
        for call in self.0.drain(..) {
            call.wake();
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.wake();
    }
}

#[cfg(test)]
mod slices {
    use super::*;

    #[test]
    fn a_leader_is_hardly_late_however_many_replies_come_for_others() {
        let began = Instant::now();
        let until = began + SLICE;
        let (mut now, mut slice, mut changes) = (began, SLICE, 0);
        while now < until {
            assert!(now + slice <= until + GLANCE);
            now += GLANCE / 4;
            let next = shortened(slice, now, until);
            changes += u32::from(next != slice);
            slice = next;
        }
        // The time limit is not changed for each reply.
        assert!(changes <= 64, "{changes}");
        assert_eq!(shortened(GLANCE, began, until), GLANCE);
    }
}

#[cfg(all(test, unix))]
pub(super) mod tests;
