//! A thread that talks to Redis for its room: asking, listening, parking, asking again.
//!
//! ```text
//!   ask ──taken──► granted
//!    │ busy
//!    ▼
//!   subscribe ─► confirmed ─► ask again ──busy──► park ──► ask again …   parked until a message, the holder's lease, the poll cap, the deadline
//! ```
//!
//! Where Redis keeps the line (the fair lock), the first question takes a place in it, every further one keeps the
//! place alive, and whoever leaves without the lock gives the place up. Where there are no messages (the spin lock),
//! parking is a pause that grows.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::call::{Attempt, Call, Deferred, DeferredTerms, Fault, Undo};
use crate::client::{Contending, Engine};
use crate::error::{Error, Result};
use crate::gate::{Gate, wake};
use crate::handle::{Busy, Handle, Patience, Terms, Told};
use crate::held::Held;
use crate::hold::{Hold, LossReason, UNDO_FOR};
use crate::link::Ahead;
use crate::owner::OwnerNumber;
use crate::quorum::{self, Asked, Quorum};
use crate::room::{Mode, Start};
use crate::script::{self, Acquired, Released};
use crate::subscriber::{POLL_CAP_UNHEARD, Subscription};
use crate::wait::{self, BackOff, Budget, Deadline, Waiter};
use crate::wire::{Ask, Family, Place, Stood};

/// How long a process that has had its turn lets others go first.
///
/// Measured: on a quiet machine 100 µs are enough for another process to be woken and to ask; a busy one needs more.
pub(crate) const HOLD_BACK: Duration = Duration::from_micros(300);

/// The same where others are not woken but come by: the shortest of their pauses.
const HOLD_BACK_SPIN: Duration = Duration::from_millis(1);

/// How long a contender waits to learn whether others heard the last release of this process.
pub(crate) const OFFER_PATIENCE: Duration = Duration::from_millis(250);

/// How often a reader finds the lock free and leaves it to a writer that does not come.
const COURTESY: u32 = 8;

/// How many tokens are drawn at most when other threads of this process wait for the lock, so that it can be passed on
/// with a token for each.
///
/// About as many as fit into a tenure of 5 ms. Redis gives fewer to those that come back sooner than in as many
/// microseconds, and never less than one for each of them.
const TOKENS: u64 = 1024;

/// What became of one question to Redis.
enum Attempted {
    Taken {
        hold: Arc<Hold>,
        sent_at: Instant,
    },
    Busy {
        left: Option<Duration>,
        at: usize,
    },
    /// The caller's time was up before the answer had come; what it may have taken is being undone.
    TooLate,
}

/// A place in the line that Redis keeps.
struct Standing {
    number: OwnerNumber,
    /// Its name in the line: the owner of the first question. Later ones have other owners if need be.
    ticket: String,
    /// A question under `number` is on its way, or may have been carried out without an answer.
    spent: bool,
    stood: Stood,
    /// A question may have been carried out without an answer, and another was asked.
    doubtful: bool,
}

/// A thread that talks to Redis for its room. If it leaves without the lock, by whatever way, the next is called.
pub(crate) struct Contender<'a> {
    lock: &'a Handle,
    gate: Arc<Gate>,
    terms: Terms,
    patience: Patience,
    /// The exclusive hold below which a shared one is taken.
    under: Option<Arc<Hold>>,
    standing: Option<Standing>,
    start: Start<Arc<Call>>,
    /// The first question, if it is on its way already, and what it asks for.
    ahead: Option<(Ahead, Arc<Hold>)>,
    waiter: Option<Arc<Waiter>>,
    listens: bool,
    /// Of several names the one whose release is waited for.
    listens_at: usize,
    subscription: Option<Subscription>,
    /// A waiting writer is seen by this.
    claim: Option<Subscription>,
    /// For how long, and how often yet, a reader lets writers go first.
    yields_until: Instant,
    courtesy: u32,
    done: bool,
    _contending: Contending<'a>,
}

impl Drop for Contender<'_> {
    fn drop(&mut self) {
        if let Some((ahead, _)) = self.ahead.take() {
            self.engine().link.abandon(ahead);
        }
        self.leave_line();
        if self.done {
            return;
        }
        // First, or it would keep out those who are called next.
        drop(self.claim.take());
        let mut inside = self.gate.lock();
        inside.forget_contender(self.waiter.as_ref());
        let next = inside
            .room
            .withdraw_contender(self.lock.mode, Instant::now());
        inside.tell(&next);
        drop(inside);
        wake(next);
    }
}

impl<'a> Contender<'a> {
    pub(crate) fn new(
        lock: &'a Handle,
        gate: Arc<Gate>,
        terms: Terms,
        patience: Patience,
        waiter: Option<Arc<Waiter>>,
        under: Option<Arc<Hold>>,
        start: Start<Arc<Call>>,
    ) -> Self {
        let engine = lock.engine();
        let standing = match patience {
            Patience::Until(_) if gate.wire.family == Family::Fair => {
                let number = engine.owners.draw();
                Some(Standing {
                    number,
                    ticket: engine.owners.id(number),
                    spent: false,
                    stood: Stood::Never,
                    doubtful: false,
                })
            }
            _ => None,
        };
        let now = Instant::now();
        let kept_out_since = match lock.mode {
            Mode::Shared => gate.lock().kept_out_since(now),
            Mode::Exclusive => now,
        };
        Self {
            lock,
            gate,
            terms,
            patience,
            under,
            standing,
            start,
            ahead: None,
            waiter,
            listens: false,
            listens_at: 0,
            subscription: None,
            claim: None,
            yields_until: kept_out_since + engine.waiter_lease,
            courtesy: COURTESY,
            done: false,
            _contending: engine.contending(),
        }
    }

    fn engine(&self) -> &'a Arc<Engine> {
        self.lock.engine()
    }

    fn must_stop(&self) -> bool {
        self.lock.must_stop(self.patience)
    }

    fn deadline(&self) -> Deadline {
        self.patience.deadline()
    }

    fn spins(&self) -> bool {
        !self.gate.wire.family.is_told()
    }

    /// Gives up the place in the line that Redis keeps, unless the grant has taken it out cleanly.
    fn leave_line(&mut self) {
        let Some(standing) = self.standing.take() else {
            return;
        };
        let clean = if self.done {
            !standing.doubtful
        } else {
            // Without a connection questions are made and not sent, and there is nothing to take back.
            standing.stood == Stood::Never && !standing.spent && !standing.doubtful
        };
        if clean {
            return;
        }
        if let Some(request) = self.gate.wire.leave(&standing.ticket) {
            self.engine().link.send_deferred(Deferred {
                request,
                terms: DeferredTerms {
                    name: Arc::clone(&self.gate.name),
                    // A frozen server carries the question out when it thaws, and the place begins only then.
                    useful_until: Instant::now() + UNDO_FOR,
                    undo: true,
                    for_good: false,
                },
            });
        }
    }

    /// Begins to listen, once; of several names, to that `at` this place.
    fn listen(&mut self, at: usize) -> Result<Arc<Waiter>> {
        let engine = self.engine();
        let waiter = Arc::clone(self.waiter.get_or_insert_with(Waiter::new));
        if self.listens {
            if self.listens_at != at {
                self.listens_at = at;
                // First the old one: with both the signal would tell of either.
                drop(self.subscription.take());
                let channel = self.gate.wire.channel_at(at);
                self.subscription = Some(engine.subscriber.subscribe(channel, &waiter));
            }
            return Ok(waiter);
        }
        self.listens_at = at;
        if !self.spins() {
            engine.start_subscriber()?;
        }
        self.listens = true;
        if let Some(token) = &self.lock.cancel {
            token.watch(&waiter);
        }
        self.gate.lock().contenders.push(Arc::clone(&waiter));
        if self.spins() {
            return Ok(waiter);
        }
        let wire = &self.gate.wire;
        if let (Some(writers), Mode::Exclusive) = (wire.writers(), self.lock.mode) {
            // Before the other one, so that it is confirmed before; nothing is ever told there.
            self.claim = Some(engine.subscriber.subscribe(writers, &Waiter::new()));
        }
        let channel = match &self.standing {
            Some(standing) => wire.channel_of(&standing.ticket),
            None => Arc::clone(wire.channel_at(at)),
        };
        self.subscription = Some(engine.subscriber.subscribe(&channel, &waiter));
        Ok(waiter)
    }

    /// After our tenure lets others go first, if any heard our release; `true` if that took time.
    ///
    /// One attempt does the same, but does not subscribe for it.
    pub(crate) fn give_way(&mut self) -> Result<bool> {
        let Start::Offer(release) = std::mem::replace(&mut self.start, Start::Ask) else {
            return Ok(false);
        };
        let listens = matches!(self.patience, Patience::Until(_));
        let engine = self.engine();
        if self.spins() {
            let span = match &self.lock.quorum {
                Some(quorum) => quorum.hold_back(HOLD_BACK_SPIN),
                None => HOLD_BACK_SPIN,
            };
            if self.deadline().has_passed(Instant::now() + 2 * span) {
                // Who has no time for the pause had better ask.
                return Ok(false);
            }
            engine.counters.held_back.add(1);
            if listens {
                let waiter = self.listen(0)?;
                let until = self.deadline().or(Instant::now() + span);
                waiter.wait_to_hear(waiter.heard(), until, &|| self.must_stop());
            } else {
                wait::sleep_unless(span, &|| self.must_stop());
            }
            return Ok(true);
        }
        let until = self.deadline().or(Instant::now() + OFFER_PATIENCE);
        let heard = match engine.link.wait(&release, until, &|| self.must_stop()) {
            Ok((value, _)) => {
                matches!(script::released(&value), Ok(Released::Yes { listeners }) if listeners > 0)
            }
            Err(_) => false,
        };
        if heard {
            engine.counters.held_back.add(1);
            let until = self.deadline().or(Instant::now() + HOLD_BACK);
            if !listens {
                let span = until.saturating_duration_since(Instant::now());
                wait::sleep_unless(span, &|| self.must_stop());
                return Ok(true);
            }
            let waiter = self.listen(0)?;
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
        Ok(true)
    }

    /// Sends the first question, if there is a connection; [`run`](Self::run) waits for the answer.
    pub(crate) fn ask_ahead(&mut self) {
        if self.lock.quorum.is_some() {
            return;
        }
        let (attempt, hold) = self.question();
        match self.engine().link.send_ahead(attempt) {
            Some(ahead) => self.ahead = Some((ahead, hold)),
            // Nothing was sent under its number.
            None => {
                if let Some(standing) = &mut self.standing {
                    standing.spent = false;
                }
            }
        }
    }

    /// The answer to one attempt of several at once.
    pub(crate) fn once(mut self) -> Result<Told> {
        if self.must_stop() {
            return Err(self.lock.stopped());
        }
        match self.attempt(Instant::now())? {
            Attempted::Taken { hold, sent_at } => self.granted(hold, sent_at).map(Told::Held),
            Attempted::Busy { left, .. } => {
                self.gate.lock().room.refused();
                Ok(Told::Busy(Busy::Elsewhere { left }))
            }
            Attempted::TooLate => Ok(Told::TooLate),
        }
    }

    pub(crate) fn run(mut self) -> Result<Option<Held>> {
        let engine = self.engine();
        let mut began = Instant::now();
        let mut has_waited = self.waiter.is_some();
        if self.ahead.is_none() {
            has_waited |= self.give_way()?;
        }
        let mut parked = 0_u32;
        let mut back_off = BackOff::new();
        let mut woken = false;
        let mut looked = false;
        if has_waited && self.deadline().has_passed(Instant::now()) {
            return Ok(None);
        }
        loop {
            if self.must_stop() {
                return Err(self.lock.stopped());
            }
            let before = self.waiter.as_ref().map(|waiter| waiter.heard());
            let (left, at) = match self.attempt(began)? {
                Attempted::Taken { hold, sent_at } => {
                    if parked > 0 && !woken {
                        engine.counters.poll_rescues.add(1);
                    }
                    return self.granted(hold, sent_at).map(Some);
                }
                Attempted::Busy { left, at } => (left, at),
                Attempted::TooLate => return Ok(None),
            };
            let now = Instant::now();
            let mut inside = self.gate.lock();
            inside.room.refused();
            drop(inside);
            if !matches!(self.patience, Patience::Until(_)) || self.deadline().has_passed(now) {
                return Ok(None);
            }
            if !std::mem::replace(&mut looked, true) && self.lock.has_it_otherwise(&self.gate.wire)
            {
                return Err(self.lock.would_deadlock());
            }
            let first = !self.listens || self.listens_at != at;
            let waiter = self.listen(at)?;
            let mut park;
            let seen;
            if self.spins() {
                seen = waiter.heard();
                park = if self.lock.quorum.is_some() {
                    quorum::pause()
                } else {
                    wait::jittered(back_off.next())
                };
            } else {
                seen = match before {
                    Some(seen) if !first => seen,
                    _ => {
                        // Not a park yet: the confirmation is waited for, and then it is asked again.
                        let heard = waiter.heard();
                        let told = self.subscription.as_ref();
                        if heard.listening && told.is_some_and(|told| !told.is_refused()) {
                            began = Instant::now();
                            continue;
                        }
                        heard
                    }
                };
                park = wait::jittered(self.poll_cap(parked));
                parked += 1;
            }
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
            began = Instant::now();
            if self.deadline().has_passed(began) {
                return if self.must_stop() {
                    Err(self.lock.stopped())
                } else {
                    Ok(None)
                };
            }
        }
    }

    /// The longest to park without asking.
    fn poll_cap(&self, parked: u32) -> Duration {
        let engine = self.engine();
        let told = self.subscription.as_ref();
        let cap = told.map_or(POLL_CAP_UNHEARD, |told| told.poll_cap(parked));
        if self.standing.is_some() {
            // Asking is what keeps the place.
            cap.min(engine.waiter_lease / 3)
        } else {
            cap
        }
    }

    /// How many tokens to draw: one, or enough to pass the lock on with.
    fn tokens(&self) -> u64 {
        let others = self.gate.wire.family == Family::Fenced
            && self.gate.lock().room.waiters().next().is_some();
        if others { TOKENS } else { 1 }
    }

    /// One question to Redis, the first or a later one of an attempt.
    fn question(&mut self) -> (Attempt, Arc<Hold>) {
        let (engine, terms, mode) = (self.engine(), self.terms, self.lock.mode);
        let tokens = self.tokens();
        let yields = self
            .yields()
            .then(|| self.gate.lock().no_shows(Instant::now()));
        let standing = &mut self.standing;
        let number = match standing {
            Some(standing) if !standing.spent => standing.number,
            _ => engine.owners.draw(),
        };
        let owner = engine.owners.id(number);
        let place = match standing {
            Some(standing) => {
                standing.doubtful |= standing.spent;
                standing.number = number;
                standing.spent = true;
                Place {
                    ticket: &standing.ticket,
                    keep: engine.waiter_lease,
                    stood: standing.stood,
                }
            }
            None => Place {
                ticket: &owner,
                keep: Duration::ZERO,
                stood: Stood::Never,
            },
        };
        let request = self.gate.wire.acquire(&Ask {
            owner: &owner,
            lease: terms.lease_time,
            mode,
            under: self.under.as_ref().map(|hold| hold.owner.as_str()),
            yields,
            place,
            tokens,
            token_ttl: self.lock.token_ttl,
            up_for: Duration::ZERO,
            run_id: "",
        });
        let hold = Arc::new(Hold::new(
            Arc::clone(&self.gate),
            mode,
            number,
            owner,
            terms.lease,
            terms.lease_time,
        ));
        let undo = Some(Arc::clone(&hold) as Arc<dyn Undo>);
        (Attempt { request, undo }, hold)
    }

    /// Whether a reader lets writers go first that wait already.
    fn yields(&self) -> bool {
        self.lock.yields && self.courtesy > 0 && Instant::now() < self.yields_until
    }

    /// Asks Redis once, reconnecting as need be.
    fn attempt(&mut self, began: Instant) -> Result<Attempted> {
        let engine = self.engine();
        let budget = self.patience.budget(began, engine.response_timeout);
        if let Some(quorum) = &self.lock.quorum {
            return self.attempt_at(quorum, budget);
        }
        let yields = self.yields();
        let (lock, patience) = (self.lock, self.patience);
        let (ahead, mut asked) = self.ahead.take().unzip();
        let mut attempt = || {
            let (attempt, hold) = self.question();
            asked = Some(hold);
            attempt
        };
        let mut may_have_run = false;
        let stop = || lock.must_stop(patience);
        let answer =
            engine
                .link
                .call_and_say(budget.until, &stop, ahead, &mut attempt, &mut may_have_run);
        let answer = match answer {
            Ok(answer) => answer,
            Err(fault) => {
                if let Some(standing) = &mut self.standing {
                    standing.spent = may_have_run;
                }
                return self.unanswered(budget, fault);
            }
        };
        if answer.value == script::PLACE_LOST
            && let Some(standing) = &mut self.standing
        {
            standing.stood = Stood::Lost;
            standing.spent = false;
            return self.attempt(began);
        }
        let acquired = match self.lock.mode {
            Mode::Exclusive => script::acquired(answer.value).map(|acquired| (acquired, None)),
            Mode::Shared => script::acquired_to_read(answer.value)
                .map(|(acquired, seen)| (acquired, Some(seen))),
        };
        let (acquired, seen) = acquired.map_err(|unexpected| {
            if let Some(hold) = &asked {
                engine.give_back(hold);
            }
            Error::redis("acquiring the lock", unexpected)
        })?;
        if let Some(seen) = seen {
            let mut inside = self.gate.lock();
            match (acquired, seen.writers) {
                (Acquired::Busy { .. }, writers) => {
                    inside.keep_out(Instant::now(), engine.waiter_lease, writers);
                }
                (_, Some(writers)) => inside.count_writers(writers),
                _ => {}
            }
        }
        match (acquired, asked) {
            (Acquired::Taken { tokens }, Some(hold)) => {
                hold.grant(answer.sent_at);
                if let Some((first, last)) = tokens {
                    hold.has_tokens(first, last);
                }
                if let Some(left) = seen.and_then(|seen| seen.left) {
                    // Others keep the lock for no longer, and may shorten it to that again.
                    hold.lock_was_shortened(Some(left));
                }
                Ok(Attempted::Taken {
                    hold,
                    sent_at: answer.sent_at,
                })
            }
            (Acquired::Busy { left, at }, _) => {
                if let Some(standing) = &mut self.standing {
                    standing.stood = Stood::Stands;
                    // Answered and over: nothing under its number, the last one drawn, is on its way any more.
                    standing.spent = false;
                }
                if yields && left == Some(Duration::ZERO) {
                    self.courtesy -= 1;
                }
                Ok(Attempted::Busy { left, at })
            }
            (Acquired::Taken { .. }, None) => unreachable!("nothing was sent without an owner"),
        }
    }

    /// Asks a majority of servers, and again while too few of them answer.
    fn attempt_at(&self, quorum: &Quorum, budget: Budget) -> Result<Attempted> {
        let until = budget.until;
        let stop = || self.must_stop();
        let mut again = false;
        loop {
            let (terms, up_for) = (self.terms, self.lock.up_for);
            let goes_on = matches!(self.patience, Patience::Until(_));
            let short = match quorum.ask(&self.gate, terms, up_for, goes_on, until, &stop) {
                Asked::Taken { whole, sent_at } => {
                    return Ok(Attempted::Taken {
                        hold: whole,
                        sent_at,
                    });
                }
                Asked::Busy => return Ok(Attempted::Busy { left: None, at: 0 }),
                Asked::TooLate => return Err(self.lock.lost(LossReason::Expired)),
                Asked::TooFew(short) => short,
            };
            if stop() {
                return Err(self.lock.stopped());
            }
            // The first time it may have been connections that were idle for too long.
            let pause = quorum::pause();
            let out_of_time = Instant::now() + pause >= until;
            if again || out_of_time {
                if !goes_on || out_of_time || short.is_final() {
                    let fault = Fault::NoQuorum(short);
                    if out_of_time {
                        return self.unanswered(budget, fault);
                    }
                    return Err(self.lock.error("acquiring the lock", fault));
                }
                wait::sleep_unless(pause, &stop);
            }
            again = true;
        }
    }

    /// An attempt had no answer, or was refused.
    fn unanswered(&self, budget: Budget, fault: Fault) -> Result<Attempted> {
        if budget.was_too_short(&fault) {
            return Ok(Attempted::TooLate);
        }
        if budget.concerns_all(&fault) {
            self.gate.dismiss(&fault);
        }
        Err(self.lock.error("acquiring the lock", fault))
    }

    fn granted(mut self, hold: Arc<Hold>, sent_at: Instant) -> Result<Held> {
        let (engine, gate, terms) = (self.engine(), Arc::clone(&self.gate), self.terms);
        let now = Instant::now();
        // If it was lost to somebody else meanwhile, that is for its guard to tell.
        if now >= hold.valid_until() {
            // Too late to be of use, and perhaps somebody else's by now.
            engine.give_back(&hold);
            return Err(self.lock.lost(LossReason::Expired));
        }
        engine.agenda.arm(&hold, hold.due_after(sent_at));
        if engine.is_closed() {
            hold.end();
            engine.agenda.disarm(&hold);
            engine.give_back(&hold);
            return Err(Error::Closed);
        }
        self.done = true;
        // At once, or readers would go on letting this writer go first.
        drop(self.claim.take());
        if let Some(subscription) = self.subscription.take() {
            subscription.end_soon();
            hold.keep_subscription(subscription);
        }
        let mut inside = self.gate.lock();
        inside.forget_contender(self.waiter.as_ref());
        if self.lock.mode == Mode::Shared {
            inside.let_in(now, engine.waiter_lease);
        }
        // Threads that contend each for itself find out before the watchdog what a hold of their process has come to.
        let displaced = match gate.wire.family {
            Family::Fair => inside.room.holds().next().cloned(),
            _ => None,
        };
        if displaced
            .as_ref()
            .is_some_and(|other| other.is_later_than(&hold))
        {
            // Taken away before we could sit down, and granted to another of our threads.
            self.done = false;
            drop(inside);
            hold.end();
            engine.agenda.disarm(&hold);
            engine.give_back(&hold);
            return Err(self.lock.lost(LossReason::TakenOver));
        }
        let next = inside.room.granted(
            terms.thread,
            self.lock.mode,
            Arc::clone(&hold),
            terms.lease,
            now,
        );
        inside.tell(&next);
        drop(inside);
        wake(next);
        if let Some(displaced) = displaced {
            let reason = if displaced.is_valid(now) {
                LossReason::TakenOver
            } else {
                LossReason::Expired
            };
            engine.lose(&displaced, reason);
        }
        if !hold.is_held() {
            // Lost before the room knew of it.
            gate.lost(&hold);
        }
        engine.counters.acquired.add(1);
        Ok(Held::new(self.lock, hold, terms.thread))
    }
}
