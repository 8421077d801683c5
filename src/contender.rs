//! The one thread of a room that talks to Redis: asking, listening, parking, asking again.
//!
//! ```text
//!   ask ──taken──► granted
//!    │ busy
//!    ▼
//!   subscribe ─► confirmed ─► ask again ──busy──► park ──► ask again …   parked until a message, the holder's lease, the poll cap, the deadline
//! ```

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::call::{Attempt, Call, Fault, Undo};
use crate::client::Engine;
use crate::error::{Error, Result};
use crate::exclusive::{Exclusive, Patience, Terms};
use crate::gate::{Gate, wake};
use crate::held::Held;
use crate::hold::{Hold, LossReason};
use crate::room::Start;
use crate::script::{self, Acquired, Released};
use crate::subscriber::Subscription;
use crate::wait::{self, Called, Deadline, Waiter};

/// How long a process that has had its turn lets others go first.
///
/// Measured: on a quiet machine 100 µs are enough for another process to be woken and to ask; a busy one needs more.
const HOLD_BACK: Duration = Duration::from_micros(300);

/// How long a contender waits to learn whether others heard the last release of this process.
const OFFER_PATIENCE: Duration = Duration::from_millis(250);

/// The longest a contender parks without asking, however sure it is of being told; it grows while the subscription
/// shows signs of life.
const POLL_CAP: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(5));

/// The same where the server does not let us subscribe.
const POLL_CAP_UNHEARD: Duration = Duration::from_millis(100);

/// A deadline that ends an attempt younger than this is the deadline of somebody else's lock, not Redis's fault.
const LATE_ANSWER: Duration = Duration::from_millis(50);

/// What became of one question to Redis.
enum Attempted {
    Taken { hold: Arc<Hold>, sent_at: Instant },
    Busy { left: Option<Duration> },
}

/// The one thread of a room that talks to Redis. If it leaves without the lock, by whatever way, the next is called.
pub(crate) struct Contender<'a> {
    lock: &'a Exclusive,
    gate: &'a Arc<Gate>,
    terms: Terms,
    patience: Patience,
    waiter: Option<Arc<Waiter>>,
    subscription: Option<Subscription>,
    /// Somebody else was seen to have the lock since the call began.
    knows_busy: bool,
    done: bool,
}

impl Drop for Contender<'_> {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        let mut inside = self.gate.lock();
        inside.contender = None;
        let next = inside.room.withdraw_contender();
        let next = inside.call(next);
        drop(inside);
        wake(next);
    }
}

impl<'a> Contender<'a> {
    pub(crate) fn new(
        lock: &'a Exclusive,
        gate: &'a Arc<Gate>,
        terms: Terms,
        patience: Patience,
        waiter: Option<Arc<Waiter>>,
    ) -> Self {
        Self {
            lock,
            gate,
            terms,
            patience,
            // Whoever stood in line has seen the lock with others of this process.
            knows_busy: waiter.is_some(),
            waiter,
            subscription: None,
            done: false,
        }
    }

    fn engine(&self) -> &'a Arc<Engine> {
        self.lock.engine()
    }

    fn must_stop(&self) -> bool {
        self.lock.must_stop(self.patience)
    }

    fn deadline(&self) -> Deadline {
        match self.patience {
            Patience::Once => Deadline::NEVER,
            Patience::Until(deadline) => deadline,
        }
    }

    /// Begins to listen, once.
    fn listen(&mut self) -> Result<Arc<Waiter>> {
        let engine = self.engine();
        engine.start_subscriber()?;
        let waiter = Arc::clone(self.waiter.get_or_insert_with(Waiter::new));
        if self.subscription.is_none() {
            if let Some(token) = &self.lock.cancel {
                token.watch(&waiter);
            }
            self.gate.lock().contender = Some(Arc::clone(&waiter));
            self.subscription = Some(engine.subscriber.subscribe(&self.gate.channel, &waiter));
        }
        Ok(waiter)
    }

    /// After our tenure: if others heard our release, one of them may go first.
    fn hold_back(&mut self, release: &Arc<Call>) -> Result<()> {
        let engine = self.engine();
        let until = self.deadline().or(Instant::now() + OFFER_PATIENCE);
        let heard = match engine.link.wait(release, until, &|| self.must_stop()) {
            Ok((value, _)) => {
                matches!(script::released(&value), Ok(Released::Yes { listeners }) if listeners > 0)
            }
            Err(_) => false,
        };
        if heard {
            engine.counters.held_back.add(1);
            let waiter = self.listen()?;
            let until = self.deadline().or(Instant::now() + HOLD_BACK);
            // The confirmation of our own subscription is not what we wait for.
            let mut seen = waiter.heard();
            loop {
                waiter.wait_to_hear(seen, until, &|| self.must_stop());
                let now_heard = waiter.heard();
                if now_heard.messages != seen.messages || now_heard == seen {
                    break;
                }
                seen = now_heard;
            }
        }
        Ok(())
    }

    pub(crate) fn run(mut self, start: Start<Arc<Call>>) -> Result<Option<Held>> {
        let engine = self.engine();
        let _contending = engine.contending();
        if let Start::Offer(release) = start
            && matches!(self.patience, Patience::Until(_))
        {
            self.hold_back(&release)?;
        }
        let mut parked = 0_u32;
        let mut woken = false;
        if self.knows_busy && self.deadline().has_passed(Instant::now()) {
            return Ok(None);
        }
        loop {
            if self.must_stop() {
                return Err(self.lock.stopped());
            }
            let before = self.waiter.as_ref().map(|waiter| waiter.heard());
            let left = match self.attempt()? {
                Attempted::Taken { hold, sent_at } => {
                    if parked > 0 && !woken {
                        engine.counters.poll_rescues.add(1);
                    }
                    return self.granted(hold, sent_at).map(Some);
                }
                Attempted::Busy { left } => left,
            };
            self.knows_busy = true;
            self.gate.lock().room.refused();
            let now = Instant::now();
            if matches!(self.patience, Patience::Once) || self.deadline().has_passed(now) {
                return Ok(None);
            }
            let first = self.subscription.is_none();
            let waiter = self.listen()?;
            let seen = match before {
                Some(seen) if !first => seen,
                _ => {
                    // Not a park yet: the confirmation is waited for, and then it is asked again.
                    let heard = waiter.heard();
                    if heard.listening && !engine.subscriber.is_refused() {
                        continue;
                    }
                    heard
                }
            };
            let cap = if engine.subscriber.is_refused() {
                POLL_CAP_UNHEARD
            } else if engine.subscriber.is_alive() {
                (POLL_CAP.0 * 2_u32.saturating_pow(parked.saturating_sub(1).min(8))).min(POLL_CAP.1)
            } else {
                POLL_CAP.0
            };
            parked += 1;
            let mut park = wait::jittered(cap);
            if let Some(left) = left {
                // A key lives for the whole of its last millisecond.
                park = park.min(left + Duration::from_millis(1));
            }
            waiter.wait_to_hear(seen, self.deadline().or(now + park), &|| self.must_stop());
            let heard = waiter.heard();
            // A confirmation is no message, but what it leads to is no rescue either.
            woken = heard != seen;
            if heard.messages != seen.messages {
                engine.counters.wakes.add(1);
            }
            if self.deadline().has_passed(Instant::now()) {
                return if self.must_stop() {
                    Err(self.lock.stopped())
                } else {
                    Ok(None)
                };
            }
        }
    }

    /// Asks Redis once, reconnecting as need be.
    fn attempt(&mut self) -> Result<Attempted> {
        let (engine, gate, terms) = (self.engine(), self.gate, self.terms);
        let began = Instant::now();
        let budget_ends = began + engine.response_timeout;
        let until = self.deadline().or(budget_ends);
        let mut asked: Option<Arc<Hold>> = None;
        let mut attempt = || {
            let number = engine.owners.draw();
            let owner = engine.owners.id(number);
            let request = script::acquire(&gate.key, &owner, terms.lease_time);
            let hold = Hold::new(
                Arc::clone(gate),
                number,
                owner,
                terms.lease,
                terms.lease_time,
            );
            let hold = asked.insert(Arc::new(hold));
            Attempt {
                request,
                undo: Some(Arc::clone(hold) as Arc<dyn Undo>),
            }
        };
        let answer = match engine.link.call(until, &|| self.must_stop(), &mut attempt) {
            Ok(answer) => answer,
            Err(fault) => {
                if matches!(fault, Fault::Unreachable(_)) {
                    if until == budget_ends {
                        self.dismiss(&fault);
                    } else if self.knows_busy && began.elapsed() < LATE_ANSWER {
                        // The deadline fell into a round trip, which says nothing about the server.
                        return Ok(Attempted::Busy { left: None });
                    }
                }
                return Err(self.lock.error("acquiring the lock", fault));
            }
        };
        let acquired = script::acquired(answer.value).map_err(|unexpected| {
            if let Some(hold) = &asked {
                engine.link.send_deferred(hold.release(true));
            }
            Error::redis("acquiring the lock", unexpected)
        })?;
        match (acquired, asked) {
            (Acquired::Taken, Some(hold)) => {
                hold.grant(answer.sent_at);
                Ok(Attempted::Taken {
                    hold,
                    sent_at: answer.sent_at,
                })
            }
            (Acquired::Busy { left }, _) => Ok(Attempted::Busy { left }),
            (Acquired::Taken, None) => unreachable!("nothing was sent without an owner"),
        }
    }

    /// Redis was out of reach for the whole response timeout: nobody in line needs to find that out again.
    fn dismiss(&self, fault: &Fault) {
        let mut inside = self.gate.lock();
        let waiters = inside.room.dismiss();
        for waiter in &waiters {
            waiter.store(Called::Failed(fault.clone()));
        }
        drop(inside);
        for waiter in waiters {
            waiter.wake();
        }
    }

    fn granted(mut self, hold: Arc<Hold>, sent_at: Instant) -> Result<Held> {
        let (engine, gate, terms) = (self.engine(), self.gate, self.terms);
        let now = Instant::now();
        if !hold.is_valid(now) {
            // Too late to be of use, and perhaps somebody else's by now.
            engine.link.send_deferred(hold.release(true));
            return Err(self.lock.lost(LossReason::Expired));
        }
        engine.agenda.arm(&hold, hold.due_after(sent_at));
        if engine.is_closed() {
            hold.end();
            engine.agenda.disarm(&hold);
            engine.link.send_deferred(hold.release(true));
            return Err(Error::Closed);
        }
        self.done = true;
        if let Some(subscription) = self.subscription.take() {
            engine.linger(&hold, subscription);
        }
        let mut inside = self.gate.lock();
        inside.contender = None;
        inside
            .room
            .granted(terms.thread, Arc::clone(&hold), terms.lease, now);
        drop(inside);
        if !hold.is_held() {
            // Lost before the room knew of it.
            gate.lost(&hold);
        }
        engine.counters.acquired.add(1);
        Ok(Held::new(&self.lock.shared, hold, terms.thread))
    }
}
