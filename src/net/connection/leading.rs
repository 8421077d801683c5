//! Waiting for replies: one thread reads for all.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::Value;

use super::{Connection, GLANCE, Phase, SLICE, WaitFault, Wrote, next_leader, wake_leader};
use crate::net::call::{Call, CallPhase};
use crate::net::pipeline::Received;
use crate::net::socket::{self, Reader};

/// How long the leader reads at a time while the socket's buffer is full and bytes are left to be written.
const BEHIND: Duration = Duration::from_millis(4);

/// How late a read may end that has seen all that came meanwhile. If it ends later, the process may have been suspended.
const LATE: Duration = Duration::from_millis(10);

impl Connection {
    /// Waits for the reply to a submitted call, leading or following.
    pub(crate) fn wait(
        &self,
        call: &Arc<Call>,
        until: Instant,
        stop: &dyn Fn() -> bool,
    ) -> Result<(Value, Instant), WaitFault> {
        let mut has_looked = false;
        loop {
            let mut state = self.state.lock();
            let mut mine = call.state.lock();
            mine.following = false;
            match &mine.phase {
                CallPhase::Done(value) => return Ok((value.clone(), mine.sent_at)),
                CallPhase::Broken(err) => return Err(WaitFault::Broken(err.clone())),
                CallPhase::Idle if matches!(state.phase, Phase::Closed) => {
                    return Err(WaitFault::Closed);
                }
                CallPhase::Idle => {
                    return Err(WaitFault::Broken(socket::timed_out(
                        "the connection was lost",
                    )));
                }
                CallPhase::Awaiting => {}
            }
            let (now, generation) = (Instant::now(), state.generation);
            let Some((up, in_flight)) = state.up(generation) else {
                return Err(WaitFault::Closed);
            };
            if now >= until || stop() {
                drop(mine);
                // A reply that has come counts, even if nobody has read it yet.
                let may_be_unread = in_flight.quiet_at < until && !has_looked;
                if let Some(reader) = up.reader.take_if(|_| may_be_unread && !stop()) {
                    drop(state);
                    has_looked = true;
                    self.lead(reader, generation, Some(call), now + GLANCE);
                    continue;
                }
                // This thread may have been appointed leader in the meantime.
                let next = next_leader(up, in_flight);
                drop(state);
                wake_leader(next);
                return Err(if now >= until {
                    WaitFault::TimedOut
                } else {
                    WaitFault::Stopped
                });
            }
            if in_flight.is_silent(self.max_silence) {
                drop(mine);
                drop(state);
                self.fail_silent(generation);
                continue;
            }
            let silent_at = in_flight.last_heard + self.max_silence;
            let slice_ends = until.min(match now < silent_at {
                true => silent_at.min(now + SLICE),
                // Something may have come since anybody read.
                false => now + GLANCE,
            });
            if let Some(reader) = up.reader.take() {
                drop(mine);
                drop(state);
                self.lead(reader, generation, Some(call), slice_ends);
                continue;
            }
            mine.following = true;
            drop(state);
            call.changed.wait_until(&mut mine, slice_ends);
        }
    }

    /// Reads replies and hands them to their calls, until that of `call` has come, or `until`.
    pub(super) fn lead(
        &self,
        mut reader: Reader,
        generation: u64,
        call: Option<&Arc<Call>>,
        until: Instant,
    ) {
        // When the next read begins.
        let mut read_at = Instant::now();
        let mut slice = until.saturating_duration_since(read_at);
        // Threads are woken once there is nothing left to read, or each of them would interrupt this one.
        let mut served = Served(Vec::new());
        loop {
            let mut wrote = Wrote::Yes;
            let read = reader.read(slice, &mut || {
                served.wake();
                wrote = self.write_out(true);
            });
            let value = match read {
                Ok(Some(value)) => value,
                Ok(None) => {
                    let now = Instant::now();
                    slice = until.saturating_duration_since(now);
                    if wrote == Wrote::Behind {
                        slice = slice.min(BEHIND);
                    }
                    if slice.is_zero() {
                        if let Some((_, in_flight)) = self.state.lock().up(generation) {
                            // Interrupted, it has not seen what came before the thread went on.
                            let in_time = now < until + LATE;
                            in_flight.quiet_at = if in_time { now } else { read_at };
                        }
                        return self.step_down(reader, generation);
                    }
                    read_at = now;
                    continue;
                }
                Err(err) => return self.fail(generation, &err, false),
            };
            let mut state = self.state.lock();
            if state.up(generation).is_none() {
                return;
            }
            let now = Instant::now();
            let reply = state.pipeline.reply(value, now, &*self.on_reply);
            let is_unasked = reader.has_unread()
                && (state.up(generation)).is_some_and(|(_, in_flight)| in_flight.due() == 0);
            drop(state);
            let replied = match reply {
                Received::Of(replied) => replied,
                Received::Part if now >= until => return self.step_down(reader, generation),
                Received::Part => {
                    read_at = now;
                    slice = in_time(slice, now, until);
                    continue;
                }
                Received::Stray => {
                    return self.fail(generation, &socket::unasked(), false);
                }
            };
            let first = replied.call;
            if let Some(to) = replied.elsewhere {
                self.on_reply.redirect(&first, &to);
            }
            if first.deferred.is_some() {
                first.changed.notify_all();
            } else if replied.following {
                served.0.push(Arc::clone(&first));
            }
            if let Some(err) = replied.leaving {
                return self.fail(generation, &err, false);
            }
            if is_unasked {
                return self.fail(generation, &socket::unasked(), false);
            }
            // The leader stops in time, however many replies come for others.
            if now >= until || call.is_some_and(|call| Arc::ptr_eq(call, &first)) {
                return self.step_down(reader, generation);
            }
            read_at = now;
            slice = in_time(slice, now, until);
        }
    }

    /// Puts the reader back, writes what is left, and wakes the next leader.
    pub(super) fn step_down(&self, reader: Reader, generation: u64) {
        let mut state = self.state.lock();
        let Some((up, in_flight)) = state.up(generation) else {
            return;
        };
        up.reader = Some(reader);
        let next = in_flight.first_following();
        let unwritten = in_flight.has_bytes();
        drop(state);
        if unwritten {
            self.flush(true);
        }
        wake_leader(next);
    }

    pub(super) fn fail_silent(&self, generation: u64) {
        let why = socket::timed_out("redis was silent with a reply due");
        self.fail(generation, &why, true);
    }

    pub(super) fn is_silent(&self, generation: u64) -> bool {
        let mut state = self.state.lock();
        let up = state.up(generation);
        up.is_some_and(|(_, in_flight)| in_flight.is_silent(self.max_silence))
    }
}

/// How long to read on after a reply to another call. A little too long is left as it is, since each change costs a system
/// call.
fn in_time(slice: Duration, now: Instant, until: Instant) -> Duration {
    if now + slice > until + GLANCE {
        until.saturating_duration_since(now)
    } else {
        slice
    }
}

/// Calls that have their replies and whose threads have to be woken. Dropping it wakes them.
struct Served(Vec<Arc<Call>>);

impl Served {
    fn wake(&mut self) {
        for call in self.0.drain(..) {
            call.changed.notify_all();
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leader_is_hardly_late_however_many_replies_come_for_others() {
        let began = Instant::now();
        let until = began + SLICE;
        let (mut now, mut slice, mut changes) = (began, SLICE, 0);
        while now < until {
            assert!(now + slice <= until + GLANCE);
            now += GLANCE / 4;
            let next = in_time(slice, now, until);
            changes += u32::from(next != slice);
            slice = next;
        }
        // Not for each reply.
        assert!(changes <= 64, "{changes}");
        assert_eq!(in_time(GLANCE, began, until), GLANCE);
    }
}
