//! A thread that talks to Redis for its lock: asking, listening, parking, asking again.
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

use crate::acquire::guard::GuardInner;
use crate::acquire::spec::{Busy, LockSpec, Outcome, Terms};
use crate::acquire::wait_mode::WaitMode;
use crate::acquire::yielding;
use crate::error::LossReason;
use crate::error::{Error, Result};
use crate::hold::entry::{Entry, wake};
use crate::hold::{Hold, UNDO_FOR};
use crate::local::lock::{Mode, Order, Start};
use crate::local::waiter::Waiter;
use crate::net::call::{Attempt, Call, Deferred, DeferredTerms, Undo};
use crate::net::connection::Ahead;
use crate::net::subscriber::{POLL_CAP_UNHEARD, Subscription};
use crate::protocol::kind::{AcquireArgs, Place, PlaceState};
use crate::protocol::owner::OwnerNumber;
use crate::protocol::script::{self, Acquired};
use crate::quorum::ask::{Asked, Bid, Quorum};
use crate::quorum::failure::Failure;
use crate::quorum::nodes::pause;
use crate::session::{Contending, Session};
use crate::time;
use crate::time::{BackOff, Budget, Deadline};

/// How long others go first where they are not woken but come by: the shortest of their pauses.
const YIELD_FOR_SPIN: Duration = Duration::from_millis(1);

/// How often a reader finds the lock free and leaves it to a writer that does not come.
const MAX_YIELDS: u32 = 8;

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
    stood: PlaceState,
    /// A question may have been carried out without an answer, and another was asked.
    doubtful: bool,
}

/// A thread that talks to Redis for its lock. If it leaves without the lock, by whatever way, the next is called.
pub(crate) struct Contender<'a> {
    lock: &'a LockSpec,
    entry: Arc<Entry>,
    terms: Terms,
    patience: WaitMode,
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
    yields_left: u32,
    done: bool,
    _contending: Contending<'a>,
}

impl Drop for Contender<'_> {
    fn drop(&mut self) {
        if let Some((ahead, _)) = self.ahead.take() {
            self.session().connection.abandon(ahead);
        }
        self.leave_line();
        if self.done {
            return;
        }
        // First, or it would keep out those who are called next.
        drop(self.claim.take());
        let mut state = self.entry.lock();
        state.forget_contender(self.waiter.as_ref());
        let next = state
            .lock
            .withdraw_contender(self.lock.mode, Instant::now());
        state.tell(&next);
        drop(state);
        wake(next);
    }
}

impl<'a> Contender<'a> {
    pub(crate) fn new(
        lock: &'a LockSpec,
        entry: Arc<Entry>,
        terms: Terms,
        patience: WaitMode,
        waiter: Option<Arc<Waiter>>,
        under: Option<Arc<Hold>>,
        start: Start<Arc<Call>>,
    ) -> Self {
        let session = lock.session();
        let standing = match patience {
            WaitMode::Until(_) if entry.protocol.kind().order == Order::Server => {
                let number = session.owners.draw();
                Some(Standing {
                    number,
                    ticket: session.owners.id(number),
                    spent: false,
                    stood: PlaceState::Never,
                    doubtful: false,
                })
            }
            _ => None,
        };
        let now = Instant::now();
        let kept_out_since = match lock.mode {
            Mode::Shared => entry.lock().kept_out_since(now),
            Mode::Exclusive => now,
        };
        Self {
            lock,
            entry,
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
            yields_until: kept_out_since + session.waiter_lease,
            yields_left: MAX_YIELDS,
            done: false,
            _contending: session.contending(),
        }
    }

    fn session(&self) -> &'a Arc<Session> {
        self.lock.session()
    }

    fn must_stop(&self) -> bool {
        self.lock.must_stop(self.patience)
    }

    fn deadline(&self) -> Deadline {
        self.patience.deadline()
    }

    fn spins(&self) -> bool {
        !self.entry.protocol.kind().is_notified
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
            standing.stood == PlaceState::Never && !standing.spent && !standing.doubtful
        };
        if clean {
            return;
        }
        if let Some(request) = self.entry.protocol.leave(&standing.ticket) {
            self.session().connection.send_deferred(Deferred {
                request,
                terms: DeferredTerms {
                    name: Arc::clone(&self.entry.name),
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
        let session = self.session();
        let waiter = Arc::clone(self.waiter.get_or_insert_with(Waiter::new));
        if self.listens {
            if self.listens_at != at {
                self.listens_at = at;
                // First the old one: with both the signal would tell of either.
                drop(self.subscription.take());
                let channel = self.entry.protocol.channel_at(at);
                self.subscription = Some(session.subscriber.subscribe(channel, &waiter));
            }
            return Ok(waiter);
        }
        self.listens_at = at;
        if !self.spins() {
            session.start_subscriber()?;
        }
        self.listens = true;
        if let Some(token) = &self.lock.cancel {
            token.watch(&waiter);
        }
        self.entry.lock().contenders.push(Arc::clone(&waiter));
        if self.spins() {
            return Ok(waiter);
        }
        let protocol = &self.entry.protocol;
        if let (Some(writers), Mode::Exclusive) = (protocol.writers(), self.lock.mode) {
            // Before the other one, so that it is confirmed before; nothing is ever told there.
            self.claim = Some(session.subscriber.subscribe(writers, &Waiter::new()));
        }
        let channel = match &self.standing {
            Some(standing) => protocol.channel_of(&standing.ticket),
            None => Arc::clone(protocol.channel_at(at)),
        };
        self.subscription = Some(session.subscriber.subscribe(&channel, &waiter));
        Ok(waiter)
    }

    /// After our tenure lets others go first, if any heard our release; `true` if that took time.
    ///
    /// One attempt does the same, but does not subscribe for it.
    pub(crate) fn yield_to_others(&mut self) -> Result<bool> {
        let Start::YieldAfter(release) = std::mem::replace(&mut self.start, Start::Ask) else {
            return Ok(false);
        };
        let listens = matches!(self.patience, WaitMode::Until(_));
        let session = self.session();
        if self.spins() {
            let span = match &self.lock.quorum {
                Some(quorum) => quorum.yield_for(YIELD_FOR_SPIN),
                None => YIELD_FOR_SPIN,
            };
            if self.deadline().has_passed(Instant::now() + 2 * span) {
                // Who has no time for the pause had better ask.
                return Ok(false);
            }
            session.counters.held_back.add(1);
            if listens {
                let waiter = self.listen(0)?;
                let until = self.deadline().or(Instant::now() + span);
                waiter.wait_to_hear(waiter.heard(), until, &|| self.must_stop());
            } else {
                time::sleep_unless(span, &|| self.must_stop());
            }
            return Ok(true);
        }
        let deadline = self.deadline();
        let (lock, patience) = (self.lock, self.patience);
        let stop = || lock.must_stop(patience);
        if yielding::was_heard(session, &release, false, deadline, &stop) {
            let waiter = if listens { Some(self.listen(0)?) } else { None };
            yielding::yield_to_others(session, waiter.as_ref(), deadline, &stop);
        }
        Ok(true)
    }

    /// Sends the first question, if there is a connection; [`run`](Self::run) waits for the answer.
    pub(crate) fn ask_ahead(&mut self) {
        if self.lock.quorum.is_some() {
            return;
        }
        let (attempt, hold) = self.question();
        match self.session().connection.send_ahead(attempt) {
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
    pub(crate) fn once(mut self) -> Result<Outcome> {
        if self.must_stop() {
            return Err(self.lock.stopped());
        }
        match self.attempt(Instant::now())? {
            Attempted::Taken { hold, sent_at } => self.granted(hold, sent_at).map(Outcome::Held),
            Attempted::Busy { left, .. } => {
                self.entry.lock().lock.refused();
                Ok(Outcome::Busy(Busy::Elsewhere { left }))
            }
            Attempted::TooLate => Ok(Outcome::TooLate),
        }
    }

    pub(crate) fn run(mut self) -> Result<Option<GuardInner>> {
        let session = self.session();
        let mut began = Instant::now();
        let mut has_waited = self.waiter.is_some();
        if self.ahead.is_none() {
            has_waited |= self.yield_to_others()?;
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
                        session.counters.poll_rescues.add(1);
                    }
                    return self.granted(hold, sent_at).map(Some);
                }
                Attempted::Busy { left, at } => (left, at),
                Attempted::TooLate => return Ok(None),
            };
            let now = Instant::now();
            let mut state = self.entry.lock();
            state.lock.refused();
            drop(state);
            if !matches!(self.patience, WaitMode::Until(_)) || self.deadline().has_passed(now) {
                return Ok(None);
            }
            if !std::mem::replace(&mut looked, true)
                && self.lock.has_it_otherwise(&*self.entry.protocol)
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
                    pause()
                } else {
                    time::jittered(back_off.next())
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
                park = time::jittered(self.poll_cap(parked));
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
                session.counters.wakes.add(1);
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
        let session = self.session();
        let told = self.subscription.as_ref();
        let cap = told.map_or(POLL_CAP_UNHEARD, |told| told.poll_cap(parked));
        if self.standing.is_some() {
            // Asking is what keeps the place.
            cap.min(session.waiter_lease / 3)
        } else {
            cap
        }
    }

    /// How many tokens to draw: one, or enough to pass the lock on with.
    fn tokens(&self) -> u64 {
        let others = self.entry.protocol.kind().has_tokens
            && self.entry.lock().lock.waiters().next().is_some();
        if others { TOKENS } else { 1 }
    }

    /// One question to Redis, the first or a later one of an attempt.
    fn question(&mut self) -> (Attempt, Arc<Hold>) {
        let (session, terms, mode) = (self.session(), self.terms, self.lock.mode);
        let tokens = self.tokens();
        let yields = self
            .yields()
            .then(|| self.entry.lock().no_shows(Instant::now()));
        let standing = &mut self.standing;
        let number = match standing {
            Some(standing) if !standing.spent => standing.number,
            _ => session.owners.draw(),
        };
        let owner = session.owners.id(number);
        let place = match standing {
            Some(standing) => {
                standing.doubtful |= standing.spent;
                standing.number = number;
                standing.spent = true;
                Place {
                    ticket: &standing.ticket,
                    keep: session.waiter_lease,
                    stood: standing.stood,
                }
            }
            None => Place {
                ticket: &owner,
                keep: Duration::ZERO,
                stood: PlaceState::Never,
            },
        };
        let request = self.entry.protocol.acquire(&AcquireArgs {
            owner: &owner,
            lease: terms.ttl,
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
            Arc::clone(&self.entry),
            mode,
            number,
            owner,
            terms.lease,
            terms.ttl,
        ));
        let undo = Some(Arc::clone(&hold) as Arc<dyn Undo>);
        (Attempt { request, undo }, hold)
    }

    /// Whether a reader lets writers go first that wait already.
    fn yields(&self) -> bool {
        self.lock.yields && self.yields_left > 0 && Instant::now() < self.yields_until
    }

    /// Asks Redis once, reconnecting as need be.
    fn attempt(&mut self, began: Instant) -> Result<Attempted> {
        let session = self.session();
        let budget = self.patience.budget(began, session.response_timeout);
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
        let answer = session.connection.call_and_say(
            budget.until,
            &stop,
            ahead,
            &mut attempt,
            &mut may_have_run,
        );
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
            standing.stood = PlaceState::Lost;
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
                session.give_back(hold);
            }
            Error::redis("acquiring the lock", unexpected)
        })?;
        if let Some(seen) = seen {
            let mut state = self.entry.lock();
            match (acquired, seen.writers) {
                (Acquired::Busy { .. }, writers) => {
                    state.keep_out(Instant::now(), session.waiter_lease, writers);
                }
                (_, Some(writers)) => state.count_writers(writers),
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
                    standing.stood = PlaceState::Stands;
                    // Answered and over: nothing under its number, the last one drawn, is on its way any more.
                    standing.spent = false;
                }
                if yields && left == Some(Duration::ZERO) {
                    self.yields_left -= 1;
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
        let bid = Bid {
            lease: self.terms.lease,
            ttl: self.terms.ttl,
            up_for: self.lock.up_for,
            will_retry: matches!(self.patience, WaitMode::Until(_)),
        };
        let mut again = false;
        loop {
            let short = match quorum.ask(&self.entry, bid, until, &stop) {
                Asked::Granted { hold, sent_at } => {
                    return Ok(Attempted::Taken { hold, sent_at });
                }
                Asked::Busy => return Ok(Attempted::Busy { left: None, at: 0 }),
                Asked::TooLate => return Err(self.lock.lost(LossReason::Expired)),
                Asked::TooFew(short) => short,
            };
            if stop() {
                return Err(self.lock.stopped());
            }
            // The first time it may have been connections that were idle for too long.
            let pause = pause();
            let out_of_time = Instant::now() + pause >= until;
            if again || out_of_time {
                if !bid.will_retry || out_of_time || short.is_final() {
                    if out_of_time {
                        return self.unanswered(budget, short);
                    }
                    return Err(self.lock.error("acquiring the lock", short));
                }
                time::sleep_unless(pause, &stop);
            }
            again = true;
        }
    }

    /// An attempt had no answer, or was refused.
    fn unanswered(&self, budget: Budget, failure: impl Into<Failure>) -> Result<Attempted> {
        let failure = failure.into();
        if budget.was_too_short(&failure) {
            return Ok(Attempted::TooLate);
        }
        if budget.concerns_all(&failure) {
            self.lock
                .dismiss(&self.entry, "acquiring the lock", failure.clone());
        }
        Err(self.lock.error("acquiring the lock", failure))
    }

    fn granted(mut self, hold: Arc<Hold>, sent_at: Instant) -> Result<GuardInner> {
        let (session, entry, terms) = (self.session(), Arc::clone(&self.entry), self.terms);
        let now = Instant::now();
        // If it was lost to somebody else meanwhile, that is for its guard to tell.
        if now >= hold.valid_until() {
            // Too late to be of use, and perhaps somebody else's by now.
            session.give_back(&hold);
            return Err(self.lock.lost(LossReason::Expired));
        }
        session.watchdog.arm(&hold, hold.due_after(sent_at));
        if session.is_closed() {
            hold.end();
            session.watchdog.disarm(&hold);
            session.give_back(&hold);
            return Err(Error::Closed);
        }
        self.done = true;
        // At once, or readers would go on letting this writer go first.
        drop(self.claim.take());
        if let Some(subscription) = self.subscription.take() {
            subscription.end_soon();
            hold.keep_subscription(subscription);
        }
        let mut state = self.entry.lock();
        state.forget_contender(self.waiter.as_ref());
        if self.lock.mode == Mode::Shared {
            state.let_in(now, session.waiter_lease);
        }
        // Threads that contend each for itself find out before the watchdog what a hold of their process has come to.
        let displaced = match entry.protocol.kind().order {
            Order::Server => state.lock.holds().next().cloned(),
            Order::Local => None,
        };
        if displaced
            .as_ref()
            .is_some_and(|other| other.is_later_than(&hold))
        {
            // Taken away before we could sit down, and granted to another of our threads.
            self.done = false;
            drop(state);
            hold.end();
            session.watchdog.disarm(&hold);
            session.give_back(&hold);
            return Err(self.lock.lost(LossReason::TakenOver));
        }
        let next = state.lock.granted(
            terms.thread,
            self.lock.mode,
            Arc::clone(&hold),
            terms.lease,
            now,
        );
        state.tell(&next);
        drop(state);
        wake(next);
        if let Some(displaced) = displaced {
            let reason = if displaced.is_valid(now) {
                LossReason::TakenOver
            } else {
                LossReason::Expired
            };
            session.lose(&displaced, reason);
        }
        if !hold.is_held() {
            // Lost before the lock knew of it.
            entry.lost(&hold);
        }
        session.counters.acquired.add(1);
        Ok(GuardInner::new(self.lock, hold, terms.thread))
    }
}
