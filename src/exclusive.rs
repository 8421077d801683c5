//! What every exclusive lock does, whatever its kind: the way of a thread through room, wire and guard.

use std::cell::OnceCell;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, bounded};

use crate::client::{Engine, Shared};
use crate::config;
use crate::error::{Error, Result};
use crate::gate::{Gate, wake};
use crate::hold::{Duty, Hold, Loss, LossReason};
use crate::link::{Attempt, Call, Fault, Undo};
use crate::owner;
use crate::room::{Entered, Lease, Left, Start};
use crate::script::{self, Acquired, Released, Renewed};
use crate::subscriber::Subscription;
use crate::wait::{self, Called, CancelToken, Deadline, Heard, Waiter};

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

/// How long a caller is willing to wait.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Patience {
    /// One attempt, and no standing in line.
    Once,
    Until(Deadline),
}

/// A handle's settings: which lock, and how to take it.
#[derive(Clone)]
pub(crate) struct Exclusive {
    shared: Arc<Shared>,
    pub(crate) name: Arc<str>,
    reentrant: bool,
    lease: Option<Duration>,
    max_hold: Option<Duration>,
    cancel: Option<CancelToken>,
}

impl Exclusive {
    pub(crate) fn new(shared: &Arc<Shared>, name: &str, reentrant: bool) -> Self {
        Self {
            shared: Arc::clone(shared),
            name: name.into(),
            reentrant,
            lease: None,
            max_hold: None,
            cancel: None,
        }
    }

    pub(crate) fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    pub(crate) fn max_hold(mut self, max_hold: Duration) -> Self {
        self.max_hold = Some(max_hold);
        self
    }

    pub(crate) fn cancel_on(mut self, token: &CancelToken) -> Self {
        self.cancel = Some(token.clone());
        self
    }

    fn engine(&self) -> &Arc<Engine> {
        &self.shared.engine
    }

    /// The lease a hold of this handle gets, and how it behaves.
    fn terms(&self) -> Result<(Lease, Duration)> {
        match (self.lease, self.max_hold) {
            (Some(_), Some(_)) => Err(Error::Config(
                "max_hold limits a renewed lease; a fixed lease is its own limit".into(),
            )),
            (Some(lease), None) => {
                config::check_lease("lease", lease)?;
                Ok((Lease::Fixed(lease), lease))
            }
            (None, max_hold) => {
                if max_hold.is_some_and(|max| max.is_zero()) {
                    return Err(Error::Config("max_hold is zero".into()));
                }
                Ok((Lease::Renewed { max_hold }, self.engine().lease))
            }
        }
    }

    fn is_cancelled(&self) -> bool {
        self.cancel.as_ref().is_some_and(CancelToken::is_cancelled)
    }

    /// Whether to stop before there is an answer. A single attempt is no wait, and nobody can cancel it.
    fn must_stop(&self, patience: Patience) -> bool {
        let waits = matches!(patience, Patience::Until(_));
        self.engine().is_closed() || (waits && self.is_cancelled())
    }

    /// Why a wait was told to stop.
    fn stopped(&self) -> Error {
        if self.engine().is_closed() {
            Error::Closed
        } else {
            Error::Cancelled
        }
    }

    fn error(&self, doing: &'static str, fault: Fault) -> Error {
        match fault {
            Fault::Refused(err) if err.code() == Some("WRONGTYPE") => Error::WrongType {
                name: self.name.to_string(),
            },
            Fault::Refused(err) | Fault::Unreachable(err) => Error::redis(doing, err),
            Fault::Stopped => self.stopped(),
            Fault::Closed => Error::Closed,
        }
    }

    fn lost(&self, reason: LossReason) -> Error {
        Error::Lost {
            name: self.name.to_string(),
            reason,
        }
    }

    /// Takes the lock, or one more hold of it.
    pub(crate) fn acquire(&self, patience: Patience) -> Result<Option<Held>> {
        let (lease, lease_time) = self.terms()?;
        let engine = self.engine();
        let gate = engine.gates.get(&self.name)?;
        engine.check_open()?;
        if matches!(patience, Patience::Until(_)) && self.is_cancelled() {
            return Err(Error::Cancelled);
        }
        engine.start_watchdog()?;
        // The room has to be swept some time, whatever comes of this.
        engine.agenda.tend_soon();
        let thread = owner::this_thread();
        let terms = Terms {
            lease,
            lease_time,
            thread,
        };
        loop {
            let now = Instant::now();
            let waiter = OnceCell::new();
            let queue = || Arc::clone(waiter.get_or_init(Waiter::new));
            let may_queue: Option<&dyn Fn() -> Arc<Waiter>> = match patience {
                Patience::Once => None,
                Patience::Until(_) => Some(&queue),
            };
            let mut inside = gate.lock();
            let entered = inside.room.enter(thread, lease, now, may_queue);
            match entered {
                Entered::Busy => return Ok(None),
                Entered::Contend(start) => {
                    drop(inside);
                    return Contender::new(self, &gate, terms, patience, None).run(start);
                }
                Entered::Queued(ticket) => {
                    drop(inside);
                    let (Some(waiter), Patience::Until(deadline)) = (waiter.get(), patience) else {
                        return Ok(None);
                    };
                    match self.stand_in_line(&gate, ticket, waiter, deadline)? {
                        None => return Ok(None),
                        Some(Called::Granted(hold)) => {
                            if hold.is_valid(Instant::now()) {
                                engine.counters.passed.add(1);
                                return Ok(Some(Held::new(&self.shared, hold, thread)));
                            }
                            self.give_up_lost(&hold);
                        }
                        Some(Called::Contend(start)) => {
                            let waiter = Some(Arc::clone(waiter));
                            return Contender::new(self, &gate, terms, patience, waiter).run(start);
                        }
                        Some(Called::Failed(fault)) => {
                            return Err(self.error("acquiring the lock", fault));
                        }
                    }
                }
                Entered::Mine {
                    hold,
                    count,
                    lease: its,
                } => {
                    if !hold.is_valid(now) {
                        drop(inside);
                        self.give_up_lost(&hold);
                        continue;
                    }
                    if !self.reentrant {
                        return Err(Error::WouldDeadlock {
                            name: self.name.to_string(),
                        });
                    }
                    if matches!(its, Lease::Renewed { .. }) {
                        // Free of charge: whoever renews it, renews it for this hold too.
                        inside.room.reenter(thread, &hold, its);
                        drop(inside);
                        engine.counters.reentered.add(1);
                        return Ok(Some(Held::reentered(&self.shared, hold, thread, count + 1)));
                    }
                    drop(inside);
                    if self.renew_to_reenter(&gate, &hold, terms, count + 1, patience)? {
                        engine.counters.reentered.add(1);
                        return Ok(Some(Held::reentered(&self.shared, hold, thread, count + 1)));
                    }
                }
            }
        }
    }

    /// A hold whose time is over although nobody has said so yet.
    fn give_up_lost(&self, hold: &Arc<Hold>) {
        let reason = match hold.duty(Instant::now()) {
            Duty::Tell(reason) => reason,
            _ => LossReason::Expired,
        };
        self.engine().lose(hold, reason);
        hold.gate.lost(hold);
    }

    /// One more hold of a thread whose lease is fixed: the new hold's lease counts from now, and never shortens.
    fn renew_to_reenter(
        &self,
        gate: &Gate,
        hold: &Arc<Hold>,
        terms: Terms,
        count: u32,
        patience: Patience,
    ) -> Result<bool> {
        let engine = self.engine();
        let until = Instant::now() + engine.response_timeout;
        let mut attempt = || Attempt {
            request: script::renew(&gate.key, &hold.owner, terms.lease_time, count),
            undo: None,
        };
        let answer = engine
            .link
            .call(until, &|| self.must_stop(patience), &mut attempt)
            .map_err(|fault| self.error("renewing the lock", fault))?;
        let renewed = script::renewed(answer.value)
            .map_err(|unexpected| Error::redis("renewing the lock", unexpected))?;
        let in_time = hold.is_valid(Instant::now());
        let reason = match renewed {
            Renewed::Yes => {
                hold.change_lease(terms.lease, terms.lease_time);
                hold.extend(answer.sent_at, terms.lease_time);
                if gate.lock().room.reenter(terms.thread, hold, terms.lease) {
                    engine.agenda.arm(hold, hold.due_after(answer.sent_at));
                    return Ok(true);
                }
                // Told lost while the renewal was under way: Redis keeps it for a whole lease more.
                engine.link.send_deferred(hold.release(true));
                return Ok(false);
            }
            _ if !in_time => LossReason::Expired,
            Renewed::Gone => LossReason::Forced,
            Renewed::Taken => LossReason::TakenOver,
        };
        engine.lose(hold, reason);
        Ok(false)
    }

    fn stand_in_line(
        &self,
        gate: &Gate,
        ticket: u64,
        waiter: &Arc<Waiter>,
        deadline: Deadline,
    ) -> Result<Option<Called>> {
        let patience = Patience::Until(deadline);
        if let Some(token) = &self.cancel {
            token.watch(waiter);
        }
        if let Some(called) = waiter.wait_in_line(deadline, &|| self.must_stop(patience)) {
            return Ok(Some(called));
        }
        let left = gate.lock().room.withdraw(ticket);
        match waiter.called() {
            // Called out of line at the last moment. Whoever is called has to answer.
            Some(called) => Ok(Some(called)),
            None => {
                debug_assert!(left);
                if self.must_stop(patience) {
                    Err(self.stopped())
                } else {
                    Ok(None)
                }
            }
        }
    }

    pub(crate) fn is_locked(&self) -> Result<bool> {
        let gate = self.engine().gates.look(&self.name)?;
        Ok(self.number("asking for the lock", script::is_locked(&gate.key))? > 0)
    }

    pub(crate) fn remaining(&self) -> Result<Option<Duration>> {
        let gate = self.engine().gates.look(&self.name)?;
        let ms = self.number("asking for the lease", script::remaining(&gate.key))?;
        Ok(match ms {
            -1 => Some(Duration::MAX),
            ms => u64::try_from(ms).ok().map(Duration::from_millis),
        })
    }

    fn number(&self, doing: &'static str, request: script::Request) -> Result<i64> {
        self.engine().check_open()?;
        let value = self
            .engine()
            .ask(request)
            .map_err(|fault| self.error(doing, fault))?;
        script::integer(value).map_err(|unexpected| Error::redis(doing, unexpected))
    }

    pub(crate) fn force_unlock(&self) -> Result<bool> {
        let gate = self.engine().gates.look(&self.name)?;
        // Whoever comes later holds it by right.
        let held = gate.lock().room.held().cloned();
        let forced = self.number(
            "forcing the lock open",
            script::force(&gate.key, &gate.channel),
        )? == 1;
        if forced {
            // A holder in another process hears of it at its next renewal; one in this process now.
            if let Some(hold) = held {
                self.engine().lose(&hold, LossReason::Forced);
            }
        }
        Ok(forced)
    }

    pub(crate) fn hold_count(&self) -> u32 {
        let Ok(gate) = self.engine().gates.look(&self.name) else {
            return 0;
        };
        let inside = gate.lock();
        let valid = inside
            .room
            .held()
            .is_some_and(|hold| hold.is_valid(Instant::now()));
        if valid {
            inside.room.count(owner::this_thread())
        } else {
            0
        }
    }
}

/// What a thread wants the lock for, and who it is.
#[derive(Clone, Copy)]
struct Terms {
    lease: Lease,
    lease_time: Duration,
    thread: u64,
}

/// What became of one question to Redis.
enum Attempted {
    Taken { hold: Arc<Hold>, sent_at: Instant },
    Busy { left: Option<Duration> },
}

/// The one thread of a room that talks to Redis. If it leaves without the lock, by whatever way, the next is called.
struct Contender<'a> {
    lock: &'a Exclusive,
    gate: &'a Arc<Gate>,
    terms: Terms,
    patience: Patience,
    waiter: Option<Arc<Waiter>>,
    subscription: Option<Subscription>,
    /// Heard when the last attempt was sent.
    seen: Option<Heard>,
    /// Somebody else was seen to have the lock since the call began.
    knows_busy: bool,
    done: bool,
}

impl Drop for Contender<'_> {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        if let (Some(waiter), Some(subscription)) = (&self.waiter, &self.subscription)
            && Some(waiter.heard()) != self.seen
        {
            subscription.pass_on();
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
    fn new(
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
            seen: None,
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

    fn run(mut self, start: Start<Arc<Call>>) -> Result<Option<Held>> {
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
            self.seen = self.waiter.as_ref().map(|waiter| waiter.heard());
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
            let seen = match self.seen {
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
            woken = waiter.heard().messages != seen.messages;
            if woken {
                engine.counters.wakes.add(1);
            }
            if self.deadline().has_passed(Instant::now()) && !woken {
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

/// What a guard is made of: one hold of one thread, given back when it goes.
pub(crate) struct Held {
    shared: Arc<Shared>,
    hold: Arc<Hold>,
    thread: u64,
    lost: OnceLock<Receiver<Loss>>,
    released: bool,
}

impl Held {
    fn new(shared: &Arc<Shared>, hold: Arc<Hold>, thread: u64) -> Self {
        Self {
            shared: Arc::clone(shared),
            hold,
            thread,
            lost: OnceLock::new(),
            released: false,
        }
    }

    fn reentered(shared: &Arc<Shared>, hold: Arc<Hold>, thread: u64, count: u32) -> Self {
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
                if hold.may_be_held_still() {
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

/// Declares a handle and its guard: the verbs and questions that all exclusive locks have in common.
macro_rules! exclusive_lock {
    (
        $(#[$lock_doc:meta])* $lock:ident,
        $(#[$guard_doc:meta])* $guard:ident,
        made by $maker:literal
    ) => {
        $(#[$lock_doc])*
        #[derive(Clone)]
        pub struct $lock {
            inner: $crate::exclusive::Exclusive,
        }

        $(#[$guard_doc])*
        #[must_use = "if unused the lock is released immediately"]
        pub struct $guard {
            held: $crate::exclusive::Held,
            /// A hold belongs to its thread: `Sync`, but not `Send`.
            stays_here: std::marker::PhantomData<std::sync::MutexGuard<'static, ()>>,
        }

        impl $lock {
            pub(crate) fn new(inner: $crate::exclusive::Exclusive) -> Self {
                Self { inner }
            }

            fn acquire(&self, patience: $crate::exclusive::Patience) -> $crate::Result<Option<$guard>> {
                let held = self.inner.acquire(patience)?;
                Ok(held.map(|held| $guard {
                    held,
                    stays_here: std::marker::PhantomData,
                }))
            }

            /// A handle that takes the lock for a fixed time instead of renewing it: Redisson's `leaseTime`.
            ///
            /// A hold ends `lease` after it was granted, released or not, and its guard is told. Taking one more hold
            /// renews the lease and costs a round trip. A hold that was passed on by another thread of this process
            /// may have less left, by at most a tenth and at most the client's tenure. From 10 ms
            /// ([`MIN_LEASE`](crate::MIN_LEASE)) to 100 years ([`MAX_LEASE`](crate::MAX_LEASE)); anything else is
            /// answered [`Error::Config`](crate::Error::Config) by the verbs.
            #[must_use]
            pub fn lease(self, lease: std::time::Duration) -> Self {
                Self { inner: self.inner.lease(lease) }
            }

            /// A handle whose holds are renewed for at most `max_hold` after they were granted.
            ///
            /// Then renewal stops and the guard is told [`LossReason::MaxHold`](crate::LossReason::MaxHold); the lock
            /// frees itself within one lease of the client, so that a wedged job or a leaked guard does not keep it
            /// for ever. Zero, or together with a fixed lease, is answered [`Error::Config`](crate::Error::Config) by
            /// the verbs.
            #[must_use]
            pub fn max_hold(self, max_hold: std::time::Duration) -> Self {
                Self { inner: self.inner.max_hold(max_hold) }
            }

            /// A handle whose waits end with [`Error::Cancelled`](crate::Error::Cancelled) when `token` is cancelled.
            #[must_use]
            pub fn cancel_on(self, token: &$crate::CancelToken) -> Self {
                Self { inner: self.inner.cancel_on(token) }
            }

            /// Waits until the lock is held.
            ///
            /// Blocks without limit while others hold it, and at most for the client's response timeout (3 s unless
            /// set) while Redis does not answer.
            ///
            /// # Errors
            ///
            /// [`Error::Redis`](crate::Error::Redis) if Redis could not be asked;
            /// [`Error::WrongType`](crate::Error::WrongType) if the key is no lock;
            /// [`Error::Cancelled`](crate::Error::Cancelled) by the handle's token;
            /// [`Error::Closed`](crate::Error::Closed) once the client is closed;
            /// [`Error::Lost`](crate::Error::Lost) if the lease was over before its grant arrived;
            /// [`Error::WouldDeadlock`](crate::Error::WouldDeadlock) if the thread holds the lock and it is not
            /// reentrant; [`Error::InvalidName`](crate::Error::InvalidName) and
            /// [`Error::Config`](crate::Error::Config) before anything is sent.
            pub fn lock(&self) -> $crate::Result<$guard> {
                use $crate::exclusive::Patience;
                self.acquire(Patience::Until($crate::wait::Deadline::NEVER))?.ok_or($crate::Error::Closed)
            }

            /// Tries once; `Ok(None)` if somebody has it, also a thread of this process that is waiting for it.
            ///
            /// Blocks for a round trip, or none if this process has the lock; at most for the response timeout.
            ///
            /// # Errors
            ///
            /// As [`lock`](Self::lock), without `Cancelled`.
            pub fn try_lock(&self) -> $crate::Result<Option<$guard>> {
                self.acquire($crate::exclusive::Patience::Once)
            }

            /// Waits up to `wait` for the lock; `Ok(None)` if somebody else still had it then.
            ///
            /// `wait` is the whole budget, connecting and round trips included. Zero is one attempt; a span beyond what
            /// the clock can tell is no limit.
            ///
            /// # Errors
            ///
            /// As [`lock`](Self::lock). If Redis has not answered when the time is up, or for the response timeout before,
            /// it is [`Error::Redis`](crate::Error::Redis), since nobody knows who has the lock; should it have been
            /// granted to us, that is undone.
            pub fn try_lock_for(&self, wait: std::time::Duration) -> $crate::Result<Option<$guard>> {
                use $crate::exclusive::Patience;
                if wait.is_zero() {
                    return self.acquire(Patience::Once);
                }
                self.acquire(Patience::Until($crate::wait::Deadline::after(wait)))
            }

            /// Waits until `instant` for the lock; otherwise as [`try_lock_for`](Self::try_lock_for).
            ///
            /// A moment that has passed is one attempt.
            ///
            /// # Errors
            ///
            /// As [`try_lock_for`](Self::try_lock_for).
            pub fn try_lock_until(&self, instant: std::time::Instant) -> $crate::Result<Option<$guard>> {
                use $crate::exclusive::Patience;
                if instant <= std::time::Instant::now() {
                    return self.acquire(Patience::Once);
                }
                self.acquire(Patience::Until($crate::wait::Deadline::at(instant)))
            }

            /// Runs `work` under the lock and waits for its release.
            ///
            /// # Errors
            ///
            /// Those of [`lock`](Self::lock), and after `work` has run those of the guard's `unlock`: a lock that was
            /// lost meanwhile is [`Error::Lost`](crate::Error::Lost), since the work was not protected to its end. What
            /// `work` returned is dropped then; take the guard yourself where both matter.
            pub fn with<T>(&self, work: impl FnOnce(&$guard) -> T) -> $crate::Result<T> {
                let guard = self.lock()?;
                let done = work(&guard);
                guard.unlock()?;
                Ok(done)
            }

            /// Whether anybody holds the lock, here or elsewhere. Asks Redis: one round trip.
            ///
            /// # Errors
            ///
            /// [`Error::Redis`](crate::Error::Redis), [`Error::WrongType`](crate::Error::WrongType),
            /// [`Error::Closed`](crate::Error::Closed), [`Error::InvalidName`](crate::Error::InvalidName).
            pub fn is_locked(&self) -> $crate::Result<bool> {
                self.inner.is_locked()
            }

            /// Whether the calling thread holds the lock and its hold is valid. Does not ask Redis.
            #[must_use]
            pub fn is_owned_by_current_thread(&self) -> bool {
                self.inner.hold_count() > 0
            }

            /// How many holds the calling thread has, zero if they are not valid any more. Does not ask Redis.
            #[must_use]
            pub fn hold_count(&self) -> u32 {
                self.inner.hold_count()
            }

            /// How long Redis keeps the lock if nobody renews it; `None` if nobody holds it. One round trip.
            ///
            /// `Duration::MAX` for a key without a limit, which this crate never leaves behind.
            ///
            /// # Errors
            ///
            /// [`Error::Redis`](crate::Error::Redis), [`Error::Closed`](crate::Error::Closed),
            /// [`Error::InvalidName`](crate::Error::InvalidName).
            pub fn remaining(&self) -> $crate::Result<Option<std::time::Duration>> {
                self.inner.remaining()
            }

            /// Takes the lock away from whoever holds it; `false` if nobody did. One round trip.
            ///
            /// Waiting threads everywhere are told. A holder in this process hears at once that it lost the lock
            /// ([`LossReason::Forced`](crate::LossReason::Forced)), one in another process at its next renewal.
            ///
            /// # Errors
            ///
            /// [`Error::Redis`](crate::Error::Redis), [`Error::Closed`](crate::Error::Closed),
            /// [`Error::InvalidName`](crate::Error::InvalidName), and [`Error::WrongType`](crate::Error::WrongType) for
            /// a key that is no lock, which is left as it is.
            pub fn force_unlock(&self) -> $crate::Result<bool> {
                self.inner.force_unlock()
            }

            /// The name, as given to the client.
            #[must_use]
            pub fn name(&self) -> &str {
                &self.inner.name
            }
        }

        impl std::fmt::Debug for $lock {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($lock)).field("name", &self.name()).finish_non_exhaustive()
            }
        }

        impl $guard {
            /// Gives the hold back and waits for Redis to say so.
            ///
            /// Dropping the guard gives it back too, without waiting for the answer. Blocks for a round trip, at most for
            /// the response timeout; not at all if the thread has further holds or another thread of this process takes
            /// over.
            ///
            /// # Errors
            ///
            /// [`Error::Lost`](crate::Error::Lost) if it was not ours any more;
            /// [`Error::Redis`](crate::Error::Redis) if Redis did not say: the release is sent again until it does, and
            /// the lease ends the hold at the latest.
            pub fn unlock(self) -> $crate::Result<()> {
                self.held.unlock()
            }

            /// Whether the lock is certainly still ours, as far as this process's clock tells. No I/O.
            ///
            /// The monotonic clock of Linux stands still while the machine is suspended, and with it this answer; the next
            /// renewal finds out. Nothing holds the world still after the answer: where a stale write would do harm, let the resource check
            /// a fencing token as well.
            #[must_use]
            pub fn is_valid(&self) -> bool {
                self.held.is_valid()
            }

            /// Until when the hold is certainly ours unless it is renewed. No I/O.
            ///
            /// Counted on the monotonic clock from before the last successful acquire or renewal was sent, less a
            /// hundredth of the lease and 2 ms for clocks that drift apart.
            #[must_use]
            pub fn valid_until(&self) -> std::time::Instant {
                self.held.valid_until()
            }

            /// Where the loss of this hold is told, at the latest when [`valid_until`](Self::valid_until) has come.
            ///
            /// At most one [`Loss`](crate::Loss) comes; usable in `crossbeam_channel::select!`. Nothing comes when the
            /// hold is given back.
            #[must_use]
            pub fn lost(&self) -> &crossbeam_channel::Receiver<$crate::Loss> {
                self.held.lost()
            }

            /// The name, as given to the client.
            #[must_use]
            pub fn name(&self) -> &str {
                self.held.name()
            }

            /// The owner in Redis: `<client uuid>:<number>`. Holds that were passed on inside a process share it.
            #[must_use]
            pub fn owner(&self) -> &str {
                self.held.owner()
            }

            /// How many holds the thread has, this one included; zero once they are lost.
            #[must_use]
            pub fn hold_count(&self) -> u32 {
                self.held.hold_count()
            }
        }

        impl std::fmt::Debug for $guard {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($guard))
                    .field("name", &self.name())
                    .field("owner", &self.owner())
                    .field("valid", &self.is_valid())
                    .finish_non_exhaustive()
            }
        }

        #[doc = concat!("```compile_fail,E0277\nfn send<T: Send>(_: T) {}\nlet client = redlatch::Client::open(\"redis://127.0.0.1/\").unwrap();\nsend(client.", $maker, "(\"a\").lock().unwrap());\n```")]
        #[cfg(doctest)]
        struct NotSend;
    };
}

pub(crate) use exclusive_lock;
