//! What a guard is made of.

use std::cell::OnceCell;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use crossbeam_channel::{Receiver, bounded};

use crate::call::{Call, Fault};
use crate::client::Shared;
use crate::error::{Error, Result};
use crate::gate::wake;
use crate::hold::{Hold, Loss, LossReason};
use crate::room::Left;
use crate::script::{self, Released};
use crate::wait::Called;

/// What a guard is made of: one hold of one thread, given back when it goes.
pub(crate) struct Held {
    shared: Arc<Shared>,
    hold: Arc<Hold>,
    thread: u64,
    lost: OnceLock<Receiver<Loss>>,
    released: bool,
}

impl Held {
    pub(crate) fn new(shared: &Arc<Shared>, hold: Arc<Hold>, thread: u64) -> Self {
        Self {
            shared: Arc::clone(shared),
            hold,
            thread,
            lost: OnceLock::new(),
            released: false,
        }
    }

    pub(crate) fn reentered(
        shared: &Arc<Shared>,
        hold: Arc<Hold>,
        thread: u64,
        count: u32,
    ) -> Self {
        hold.count.store(count, Ordering::Relaxed);
        Self::new(shared, hold, thread)
    }

    pub(crate) fn name(&self) -> &str {
        &self.hold.gate.name
    }

    pub(crate) fn owner(&self) -> &str {
        &self.hold.owner
    }

    pub(crate) fn hold_count(&self) -> u32 {
        let inside = self.hold.gate.lock();
        if self.is_valid() && inside.room.held() == Some(&self.hold) {
            inside.room.count(self.thread)
        } else {
            0
        }
    }

    pub(crate) fn is_valid(&self) -> bool {
        self.hold.is_valid(Instant::now())
    }

    pub(crate) fn valid_until(&self) -> Instant {
        self.hold.valid_until()
    }

    pub(crate) fn lost(&self) -> &Receiver<Loss> {
        self.lost.get_or_init(|| {
            let (tell, told) = bounded(1);
            self.hold.listen(tell);
            told
        })
    }

    /// Gives this hold back and waits for Redis to say so.
    pub(crate) fn unlock(mut self) -> Result<()> {
        self.released = true;
        let in_time = self.hold.valid_until() > Instant::now();
        let Some(call) = self.let_go()? else {
            return Ok(());
        };
        let engine = &self.shared.engine;
        let until = Instant::now() + engine.response_timeout;
        let (value, replayed) = match engine.link.settled(&call, until) {
            Ok(settled) => settled,
            Err(Fault::Closed) => return Err(Error::Closed),
            Err(Fault::Refused(err) | Fault::Unreachable(err)) => {
                return Err(Error::redis("releasing the lock", err));
            }
            Err(Fault::Stopped) => return Err(Error::Closed),
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
        Err(self.lost_error(reason))
    }

    fn lost_error(&self, reason: LossReason) -> Error {
        Error::Lost {
            name: self.name().to_owned(),
            reason,
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
            let call = Call::deferred(hold.release(false));
            engine.link.submit(&call);
            call
        };
        let call = OnceCell::new();
        let left = inside
            .room
            .leave(self.thread, hold, hold.validity(), now, &|| {
                Arc::clone(call.get_or_init(release))
            });
        match left {
            Left::Nested { count } => {
                hold.count.store(count, Ordering::Relaxed);
                drop(inside);
                match hold.loss() {
                    Some(reason) => Err(self.lost_error(reason)),
                    None => Ok(None),
                }
            }
            Left::Passed { waiter, hold } => {
                hold.forget_listeners();
                hold.count.store(1, Ordering::Relaxed);
                waiter.store(Called::Granted(hold));
                drop(inside);
                waiter.wake();
                match self.hold.loss() {
                    Some(reason) => Err(self.lost_error(reason)),
                    None => Ok(None),
                }
            }
            Left::Release { next } => {
                let next = inside.call(next);
                drop(inside);
                // First, so that the release does not count this process among those that wait.
                drop(hold.take_subscription());
                engine.link.flush(false);
                wake(next);
                engine.agenda.tend_soon();
                match hold.loss() {
                    Some(reason) => Err(self.lost_error(reason)),
                    None => Ok(call.into_inner()),
                }
            }
            Left::Gone => {
                drop(inside);
                engine.agenda.tend_soon();
                // The room has forgotten it, so nobody else would end it.
                let ended = hold.end();
                if ended {
                    engine.agenda.disarm(hold);
                }
                if ended || hold.may_be_held_still() {
                    engine.link.send_deferred(hold.release(true));
                }
                Err(self.lost_error(hold.loss().unwrap_or(LossReason::Expired)))
            }
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.released
            && let Err(err) = self.let_go()
        {
            // The holder could have known; whoever waits for the lock is not harmed.
            log::debug!("dropping a guard: {err}");
        }
    }
}
