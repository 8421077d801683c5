//! What a guard is made of.

use std::cell::OnceCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use crossbeam_channel::Receiver;

use crate::call::{Call, Fault};
use crate::client::Shared;
use crate::error::{Error, Result};
use crate::gate::wake;
use crate::handle::{Handle, Patience};
use crate::hold::{Hold, Loss, LossEar, LossReason};
use crate::quorum::Quorum;
use crate::report::report;
use crate::room::{Left, Mode};
use crate::script::{self, Released};
use crate::wait::Called;

/// What a guard is made of: one hold of one thread, given back when it goes.
pub(crate) struct Held {
    shared: Arc<Shared>,
    hold: Arc<Hold>,
    thread: u64,
    /// That of this hold, also when the guard is used after the lock has gone to another thread.
    token: u64,
    lost: LossEar,
    released: bool,
    /// The clients of all servers that keep it.
    _quorum: Option<Arc<Quorum>>,
}

impl Held {
    pub(crate) fn new(lock: &Handle, hold: Arc<Hold>, thread: u64) -> Self {
        Self {
            shared: Arc::clone(&lock.shared),
            _quorum: lock.quorum.clone(),
            token: hold.token(),
            hold,
            thread,
            lost: LossEar::default(),
            released: false,
        }
    }

    pub(crate) fn reentered(lock: &Handle, hold: Arc<Hold>, thread: u64, count: u32) -> Self {
        if hold.mode == Mode::Exclusive {
            hold.count.store(count, Ordering::Relaxed);
        }
        Self::new(lock, hold, thread)
    }

    pub(crate) fn name(&self) -> &str {
        &self.hold.gate.name
    }

    pub(crate) fn owner(&self) -> &str {
        &self.hold.owner
    }

    pub(crate) fn is_copy(&self) -> bool {
        self.shared.engine.is_copy()
    }

    pub(crate) fn hold_count(&self) -> u32 {
        if self.is_copy() {
            return 0;
        }
        let inside = self.hold.gate.lock();
        match inside.room.count(self.thread, self.hold.mode) {
            Some((hold, count)) if *hold == self.hold && self.is_valid() => count,
            _ => 0,
        }
    }

    pub(crate) fn token(&self) -> u64 {
        self.token
    }

    pub(crate) fn is_valid(&self) -> bool {
        self.hold.is_valid(Instant::now()) && !self.is_copy()
    }

    pub(crate) fn valid_until(&self) -> Instant {
        self.hold.valid_until()
    }

    pub(crate) fn lost(&self) -> &Receiver<Loss> {
        self.lost
            .of([self.hold()].into_iter().filter(|_| !self.is_copy()))
    }

    pub(crate) fn hold(&self) -> &Hold {
        &self.hold
    }

    /// How many servers are known to keep it; none without a quorum.
    pub(crate) fn nodes_held(&self) -> usize {
        match self.hold.grip() {
            Some(grip) if self.hold.is_held() && !self.is_copy() => grip.nodes_held(),
            _ => 0,
        }
    }

    /// A shared hold of the same thread, on the same terms; `None` if somebody else was in the way.
    pub(crate) fn below(&self) -> Result<Option<Self>> {
        Handle::like(&self.shared, &self.hold)
            .sharing()
            .acquire(Patience::Once)
    }

    /// The error for a hold that is over, or that somebody else was found to have.
    pub(crate) fn lost_error(&self) -> Error {
        let reason = self.hold.loss().unwrap_or(if self.is_valid() {
            LossReason::TakenOver
        } else {
            LossReason::Expired
        });
        self.lost_by(reason)
    }

    /// Gives this hold back and waits for Redis to say so.
    pub(crate) fn unlock(self) -> Result<()> {
        let until = Instant::now() + self.shared.engine.response_timeout;
        self.begin_unlock()?.finish(until)
    }

    /// Gives this hold back; Redis's answer is to be waited for.
    pub(crate) fn begin_unlock(mut self) -> Result<Unlocking> {
        self.released = true;
        if self.is_copy() {
            return Err(Error::Closed);
        }
        let in_time = self.hold.valid_until() > Instant::now();
        let release = self.let_go()?;
        Ok(Unlocking {
            held: self,
            in_time,
            release,
        })
    }

    fn unlocked(&self, call: &Arc<Call>, in_time: bool, until: Instant) -> Result<()> {
        let engine = &self.shared.engine;
        if let Some(grip) = self.hold.grip() {
            return match grip.released(until, in_time) {
                Ok(None) => Ok(()),
                Ok(Some(reason)) => Err(self.lost_by(reason)),
                Err(short) => Err(short.into_error(self.name())),
            };
        }
        let (value, replayed) = match engine.link.settled(call, until) {
            Ok(settled) => settled,
            Err(Fault::Refused(err) | Fault::Unreachable(err)) => {
                return Err(Error::redis("releasing the lock", err));
            }
            Err(_) => return Err(Error::Closed),
        };
        let released = script::released(&value)
            .map_err(|unexpected| Error::redis("releasing the lock", unexpected))?;
        let reason = match released {
            Released::Yes { .. } => return Ok(()),
            // An earlier sending has done it.
            Released::Gone | Released::Taken if replayed && in_time => return Ok(()),
            _ if !in_time => LossReason::Expired,
            Released::Gone => LossReason::Forced,
            Released::Taken => LossReason::TakenOver,
        };
        Err(self.lost_by(reason))
    }

    fn lost_by(&self, reason: LossReason) -> Error {
        Error::Lost {
            name: self.name().to_owned(),
            reason,
        }
    }

    fn not_lost(&self) -> Result<Option<Arc<Call>>> {
        match self.hold.loss() {
            Some(reason) => Err(self.lost_by(reason)),
            None => Ok(None),
        }
    }

    /// Ends this hold here and now. If it was the last of its thread, another thread of this process has the lock
    /// next, or the release is on its way.
    fn let_go(&self) -> Result<Option<Arc<Call>>> {
        let (engine, hold, gate) = (&self.shared.engine, &self.hold, &self.hold.gate);
        let now = Instant::now();
        let mut inside = gate.lock();
        // In memory only: renewal ends, and the release takes its place on the link before anybody can ask again.
        let release = || {
            hold.end();
            engine.agenda.disarm(hold);
            match hold.grip() {
                Some(grip) => grip.let_go(),
                None => {
                    let call = Call::deferred(hold.release(false));
                    engine.link.submit(&call);
                    call
                }
            }
        };
        let call = OnceCell::new();
        let left = inside.room.leave(self.thread, hold, now, &|| {
            Arc::clone(call.get_or_init(release))
        });
        match left {
            Left::Nested { count } => {
                if hold.mode == Mode::Exclusive {
                    hold.count.store(count, Ordering::Relaxed);
                }
                drop(inside);
                self.not_lost()
            }
            Left::Shared => {
                drop(inside);
                self.not_lost()
            }
            Left::Passed { waiter, hold } => {
                hold.change_threads();
                waiter.store(Called::Granted(hold));
                drop(inside);
                waiter.wake();
                self.not_lost()
            }
            Left::Release { next } => {
                inside.tell(&next);
                drop(inside);
                // First, so that the release does not count this process among those that wait.
                drop(hold.take_subscription());
                match hold.grip() {
                    Some(grip) => grip.deliver(),
                    None => engine.link.deliver(),
                }
                wake(next);
                engine.agenda.tend_soon();
                self.not_lost().map(|_| call.into_inner())
            }
            Left::Gone => {
                drop(inside);
                engine.agenda.tend_soon();
                // The room has forgotten it, so nobody else would end it; other guards of it hear of that.
                let taken = hold.is_held();
                if taken {
                    engine.lose(hold, LossReason::TakenOver);
                }
                if taken || hold.may_be_held_still() {
                    engine.give_back(hold);
                }
                Err(self.lost_by(hold.loss().unwrap_or(LossReason::Expired)))
            }
        }
    }
}

/// A hold that has been given back, and Redis's answer to that.
pub(crate) struct Unlocking {
    held: Held,
    in_time: bool,
    /// None if nothing had to be sent.
    release: Option<Arc<Call>>,
}

impl Unlocking {
    pub(crate) fn finish(self, until: Instant) -> Result<()> {
        match &self.release {
            Some(call) => self.held.unlocked(call, self.in_time, until),
            None => Ok(()),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.released
            && !self.is_copy()
            && let Err(err) = self.let_go()
        {
            // The holder could have known; whoever waits for the lock is not harmed.
            report!(Debug, "dropping a guard: {err}");
        }
    }
}
