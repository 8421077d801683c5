//! A thread that asks Redis for a lock, on behalf of the local lock of its name.
//!
//! How it waits depends on the kind of lock, and is its [`Way`]: releases are announced, or Redis keeps the queue, or
//! nothing is announced.
//! What it does once it has the lock, or gives up, is the same for all.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::acquire::guard::GuardInner;
use crate::acquire::listening::Listening;
use crate::acquire::spec::{HoldParams, LockSpec};
use crate::acquire::wait_mode::WaitMode;
use crate::acquire::way::Way;
use crate::acquire::{self, Busy, NoReply, Outcome, Prepared, Reply, Strategy, quorum, yielding};
use crate::error::LossReason;
use crate::error::{Error, Result};
use crate::hold::entry::wake;
use crate::hold::{Entry, Hold, UNDO_FOR, Waiter, Wakeup};
use crate::local::lock::{Mode, Order, Parked, Start};
use crate::local::run::{Ahead, Then};
use crate::net::call::{Attempt, Call, Undo};
use crate::net::route;
use crate::protocol::kind::AcquireArgs;
use crate::protocol::script::Acquired;
use crate::quorum::ask::{Known, Quorum, QuorumRequest};
use crate::quorum::failure::Failure;
use crate::session::{Contending, Session};
use crate::time;

/// How many tokens to request when other threads of this process wait, so that each hand-over has one.
///
/// About as many as there are hand-overs in a tenure of 5 ms. Redis grants fewer, but at least one, to a process that
/// comes back within fewer microseconds than that.
const TOKENS: u64 = 1024;

/// How long a thread waits to be served by another one of its process before it subscribes.
const WAIT_HERE: Duration = Duration::from_millis(50);

/// A thread that asks Redis for a lock. If it gives up, in whatever way, the next thread of its process may ask.
pub(crate) struct Contender<'a> {
    lock: &'a LockSpec,
    entry: Arc<Entry>,
    params: HoldParams,
    wait: WaitMode,
    /// The thread's exclusive hold, if it takes a shared one as well.
    under: Option<Arc<Hold>>,
    way: Way,
    start: Start<Arc<Call>>,
    /// The first request, if it has been sent already, and the hold that it is for.
    ahead: Option<(route::Ahead, Arc<Hold>)>,
    listening: Listening,
    /// The last release of this process, if this process listened to its channel: its subscription may still be there.
    last: Option<Arc<Call>>,
    is_granted: bool,
    /// Several other processes wait, and this one has had the lock before.
    steps_aside: bool,
    was_refused: bool,
    /// Dropped, and so announced, before `_contending`: until then the first of the clients does not close.
    unannounced: quorum::Unannounced,
    _contending: Contending<'a>,
}

impl Drop for Contender<'_> {
    fn drop(&mut self) {
        if let Some((ahead, _)) = self.ahead.take() {
            self.session().connection.abandon(&ahead);
        }
        self.leave_queue();
        if self.is_granted {
            return;
        }
        if let Some(hold) = self.gives_up_place() {
            let mut state = self.entry.lock();
            state.forget_contender(self.listening.known_waiter());
            drop(state);
            drop(GuardInner::new(self.lock, hold, self.params.thread));
            return;
        }
        // Before others are woken: readers must not yield to a writer that has given up.
        self.way.withdraw_intent();
        let mut state = self.entry.lock();
        state.forget_contender(self.listening.known_waiter());
        let next = state
            .lock
            .withdraw_contender(self.lock.mode, Instant::now());
        state.store_wakeups(&next);
        drop(state);
        wake(next);
    }
}

impl<'a> Contender<'a> {
    /// `queued` is the waiter of one that has waited in the queue of its process.
    pub(crate) fn new(
        lock: &'a LockSpec,
        entry: Arc<Entry>,
        params: HoldParams,
        wait: WaitMode,
        queued: Option<Arc<Waiter>>,
        under: Option<Arc<Hold>>,
        start: Start<Arc<Call>>,
    ) -> Self {
        let last = match &start {
            Start::Ask => None,
            Start::YieldAfter(release) => Some(Arc::clone(release)),
        };
        Self {
            way: Way::of(lock, &entry, wait),
            last,
            lock,
            entry,
            params,
            wait,
            under,
            start,
            ahead: None,
            listening: queued.map_or_else(Listening::default, Listening::queued),
            is_granted: false,
            steps_aside: false,
            was_refused: false,
            unannounced: quorum::Unannounced::default(),
            _contending: lock.session().contending(),
        }
    }

    /// It asks after this release of its process.
    pub(crate) fn comes_after(&mut self, last: Option<Arc<Call>>) {
        if last.is_some() {
            self.last = last;
        }
    }

    fn session(&self) -> &'a Arc<Session> {
        self.lock.session()
    }

    /// Its requests also remove these places, of threads that were served in memory. It asks after so many releases.
    pub(crate) fn begins_in_turn(&mut self, served: Vec<u64>, releases: u64) {
        if let Way::Queued(queued) = &mut self.way {
            queued.served = served;
            queued.asked_after = releases;
        }
    }

    /// Its next request does not remove a place that is in use again, since the hold was lost meanwhile.
    fn keep_places_in_use(&mut self) {
        if let Way::Queued(queued) = &mut self.way
            && !queued.served.is_empty()
        {
            let state = self.entry.lock();
            queued.served.retain(|place| state.lock.is_served(*place));
        }
    }

    /// It is about to ask: nobody may hand the lock over to it from now on. `true` if there is a wakeup to be looked at first.
    fn stops_parking(&mut self) -> bool {
        let Way::Queued(queued) = &mut self.way else {
            return false;
        };
        let (true, Some(waiter)) = (queued.is_known, self.listening.known_waiter()) else {
            return false;
        };
        let mut state = self.entry.lock();
        if waiter.has_wakeup() {
            return true;
        }
        state.lock.asks(queued.place);
        queued.asked_after = state.lock.releases();
        false
    }

    /// It was refused, and keeps its place: another thread of this process may hand the lock over to it.
    fn parks_in_turn(&mut self, ahead: Option<Ahead>) {
        let Way::Queued(queued) = &mut self.way else {
            return;
        };
        let waiter = Arc::clone(self.listening.waiter());
        let mut state = self.entry.lock();
        state.lock.end_removal(&queued.served, true);
        state.lock.refused_place(queued.place);
        let mut stranded = Vec::new();
        // A late request could be granted the lock by Redis as well.
        if queued.is_certain() {
            let parked = Parked {
                thread: self.params.thread,
                lease: self.params.lease,
                waiter,
            };
            // It waits here once, and for a limited time.
            let may_wait = !queued.has_waited;
            let asked_after = queued.asked_after;
            (queued.then, stranded) =
                state
                    .lock
                    .park(queued.place, ahead, asked_after, may_wait, parked);
            queued.has_waited |= queued.then == Then::WaitsHere;
            queued.is_known = true;
            store_to_ask(&stranded);
        }
        drop(state);
        wake_to_ask(stranded);
        queued.served.clear();
        if queued.then != Then::Listens {
            self.listening.watch(self.lock.cancel.as_ref());
        }
    }

    /// It gives its place up, and the next of its process asks if that was its turn. Returns a hold that was handed over to it.
    fn gives_up_place(&mut self) -> Option<Arc<Hold>> {
        let Way::Queued(queued) = &mut self.way else {
            return None;
        };
        let mut state = self.entry.lock();
        if let Some(waiter) = self.listening.known_waiter()
            && let Ok(Some(hold)) = queued.handed_over(waiter)
        {
            return Some(hold);
        }
        state.lock.end_removal(&queued.served, false);
        let next = state.lock.left_place(queued.place);
        store_to_ask(&next);
        drop(state);
        wake_to_ask(next);
        None
    }

    /// A thread of this process has handed the lock over.
    fn was_handed_over(mut self, hold: Arc<Hold>) -> GuardInner {
        if self.listening.has_begun() {
            self.listening.leave();
        }
        let mut state = self.entry.lock();
        state.forget_contender(self.listening.known_waiter());
        let asks_for_clearing = state.lock.asks_for_clearing();
        drop(state);
        if asks_for_clearing {
            self.session().clear_served_soon(&self.entry);
        }
        self.session().counters.passed.add(1);
        GuardInner::new(self.lock, hold, self.params.thread)
    }

    /// Asks until it has the lock or its time is up.
    pub(crate) fn run(mut self) -> Result<Outcome<GuardInner>> {
        let (lock, wait) = (self.lock, self.wait);
        Ok(match acquire::acquire(&mut self, lock, wait)? {
            Outcome::Granted((hold, _)) if self.is_granted => {
                Outcome::Granted(self.was_handed_over(hold))
            }
            Outcome::Granted((hold, sent_at)) => Outcome::Granted(self.granted(hold, sent_at)?),
            Outcome::Busy(busy) => Outcome::Busy(busy),
            Outcome::TooLate => Outcome::TooLate,
        })
    }

    /// Sends the first request, if there is a connection; [`run`](Self::run) waits for the reply.
    pub(crate) fn ask_ahead(&mut self) {
        // Checked once it is counted: either closing waits for it, or it sends nothing. Nobody could undo it.
        if !self.way.can_ask_ahead() || self.lock.must_stop(self.wait) {
            return;
        }
        let mut asked = None;
        let attempt = self.question(&mut asked);
        match self.session().connection.send_ahead(attempt) {
            Some(ahead) => self.ahead = asked.map(|hold| (ahead, hold)),
            // Its number was not sent, and can be used again.
            None => self.way.is_unanswered(false),
        }
    }

    /// Before the first request: if this process still listens, one is enough.
    fn take_over_subscription(&mut self) {
        let Some(last) = self.last.take() else {
            return;
        };
        let may_wait = self.wait.asks_again() && self.ahead.is_none();
        if may_wait
            && last.heard_by_us().is_some()
            && let Some(channel) = self.way.common_channel(&*self.entry.protocol)
        {
            let session = self.session();
            self.listening.take_over(session, 0, &channel, last);
        }
    }

    /// After the tenure, lets other processes go first if any were notified and there is time. `true` if it did, or has to stop.
    ///
    /// A single attempt does so too, but without a subscription.
    pub(crate) fn yield_to_others(&mut self, until: Instant) -> Result<bool> {
        let Start::YieldAfter(release) = std::mem::replace(&mut self.start, Start::Ask) else {
            return Ok(false);
        };
        let (lock, wait) = (self.lock, self.wait);
        let session = lock.session();
        let stop = || lock.must_stop(wait);
        let span = if let Some(quorum) = &lock.quorum {
            match quorum.yield_for(yielding::FOR_UNNOTIFIED) {
                Some(span) => span,
                None => return Ok(stop()),
            }
        } else if self.entry.protocol.kind().is_notified {
            let we_listened = release.heard_by_us().is_some();
            let others = yielding::others_notified(session, &release, we_listened, until, &stop);
            if others == 0 {
                return Ok(stop());
            }
            self.steps_aside = others > 1;
            let longer = yielding::has_time(yielding::FOR_THE_SLOW, until);
            if longer && time::one_in(yielding::LONGER_EVERY) {
                yielding::FOR_THE_SLOW
            } else {
                yielding::FOR
            }
        } else {
            yielding::FOR_UNNOTIFIED
        };
        if !yielding::has_time(span, until) {
            return Ok(false);
        }
        let waiter = if wait.asks_again() && lock.quorum.is_none() {
            acquire::listen(self, lock, 0)?;
            Some(Arc::clone(self.listening.waiter()))
        } else {
            None
        };
        self.listening.settle_own();
        yielding::yield_to_others(session, waiter.as_ref(), span, until, &stop);
        Ok(true)
    }

    /// Leaves a lock that was released to others now and then, if this process has had it before and several others wait.
    fn step_aside(&mut self, until: Instant) -> bool {
        let span = yielding::FOR_THE_SLOW;
        let was_refused = std::mem::take(&mut self.was_refused);
        let may = self.steps_aside && was_refused && yielding::has_time(span, until);
        if !may || !time::one_in(yielding::ASIDE_EVERY) {
            return false;
        }
        let (lock, wait) = (self.lock, self.wait);
        let waiter = self.listening.known_waiter();
        let stop = || lock.must_stop(wait);
        yielding::yield_to_others(lock.session(), waiter, span, until, &stop);
        true
    }

    /// How many tokens to request: one, or enough to hand the lock over.
    fn tokens(&self) -> u64 {
        let others = self.entry.protocol.kind().has_tokens
            && self.entry.lock().lock.waiters().next().is_some();
        if others { TOKENS } else { 1 }
    }

    /// Makes one request, the first or a repeated one, and notes the hold that it is for.
    fn question(&mut self, asked: &mut Option<Arc<Hold>>) -> Attempt {
        let (session, params, mode) = (self.session(), self.params, self.lock.mode);
        let tokens = self.tokens();
        let number = self.way.next_number(session);
        let owner = session.owners.id(number);
        let shown: &str = &owner;
        let under = self.under.as_ref().map(|hold| hold.owner());
        let served = self.way.served(&session.owners);
        let mut request = self.entry.protocol.acquire(&AcquireArgs {
            owner: shown,
            lease: params.ttl,
            mode,
            under: under.as_deref(),
            ignored_writers: self.way.ignored_writers(&self.entry),
            place: self.way.place(shown, session.waiter_lease, &served),
            tokens,
            token_ttl: self.lock.token_ttl,
            up_for: Duration::ZERO,
            run_id: "",
        });
        let hold = Hold::new(
            Arc::clone(&self.entry),
            mode,
            number,
            params.lease,
            params.ttl,
        )
        .placed();
        session.replicate(&mut request);
        let undo = Some(Arc::clone(&hold) as Arc<dyn Undo>);
        *asked = Some(hold);
        Attempt { request, undo }
    }

    /// Asks the one server of the lock.
    fn ask_server(&mut self, until: Instant) -> std::result::Result<Answered, NoReply> {
        let (lock, wait, session) = (self.lock, self.wait, self.session());
        if self.stops_parking() {
            return Ok(Reply::HandedOver);
        }
        let yielded = self.way.yields();
        let (ahead, mut asked) = self.ahead.take().unzip();
        let mut attempt = || {
            self.keep_places_in_use();
            self.question(&mut asked)
        };
        let mut may_have_run = false;
        let stop = || lock.must_stop(wait);
        let answer =
            session
                .connection
                .call_and_say(until, &stop, ahead, &mut attempt, &mut may_have_run);
        let mut answer = match answer {
            Ok(answer) => answer,
            Err(fault) => {
                self.way.is_unanswered(may_have_run);
                return Err(fault.into());
            }
        };
        if self.way.has_lost_its_place(&answer.value) {
            let mut state = self.entry.lock();
            let stranded = state.lock.place_lost();
            store_to_ask(&stranded);
            drop(state);
            wake_to_ask(stranded);
            return self.ask_server(until);
        }
        let ahead = self.way.split_ahead(session, &mut answer.value);
        let replicated = session.is_replicated(&answer);
        let sent_at = answer.sent_at;
        let has_tokens = self.entry.protocol.kind().has_tokens;
        let acquired = self.way.read_reply(answer.value, has_tokens);
        let (acquired, seen) = acquired.map_err(|unexpected| {
            if let Some(hold) = &asked {
                session.give_back(hold);
            }
            session.error("acquiring the lock", unexpected)
        })?;
        let waiter_lease = session.waiter_lease;
        if yielded && seen.is_some_and(|seen| seen.writers > Some(0)) {
            lock.look_for_passers(&self.entry);
        }
        self.way
            .is_answered(&self.entry, acquired, seen, yielded, waiter_lease, sent_at);
        match (acquired, asked) {
            (Acquired::Taken { tokens }, Some(hold)) => {
                if let Err(err) = replicated {
                    session.give_back(&hold);
                    return Err(err.into());
                }
                hold.grant(answer.sent_at);
                if let Some((first, last)) = tokens {
                    hold.has_tokens(first, last);
                }
                if let Some(left) = seen.and_then(|seen| seen.left) {
                    // Another client has given the key this time to live, and may do so again.
                    hold.lock_was_shortened(Some(left));
                }
                Ok(Reply::Granted((hold, answer.sent_at)))
            }
            (Acquired::Busy { left, at }, _) => {
                self.parks_in_turn(ahead);
                Ok(Reply::Busy(Busy {
                    retry_after: left,
                    listen_on: at,
                    is_contested: false,
                }))
            }
            (Acquired::Taken { .. }, None) => unreachable!("nothing was sent without an owner"),
        }
    }

    /// Gives up the place in Redis's queue, unless the grant has certainly removed it.
    fn leave_queue(&mut self) {
        if let Some(request) = self.way.leave(&*self.entry.protocol, self.is_granted) {
            // A frozen server executes the request for the place when it resumes, and only then there is one.
            let leaving = self.entry.leaving(request, Instant::now() + UNDO_FOR);
            self.session().connection.send_deferred(leaving);
        }
    }

    fn declare_intent(&mut self) {
        let (session, waiter) = (self.lock.session(), self.listening.waiter());
        self.way
            .declare_intent(&*self.entry.protocol, session, waiter);
    }

    fn granted(mut self, hold: Arc<Hold>, sent_at: Instant) -> Result<GuardInner> {
        let (session, entry, params) = (self.session(), Arc::clone(&self.entry), self.params);
        let now = Instant::now();
        // If it was lost to somebody else meanwhile, its guard reports that.
        if now >= hold.valid_until() {
            // The lease is over already, and somebody else may have the lock.
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
        self.is_granted = true;
        // At once, since readers yield for as long as they see the intent.
        self.way.withdraw_intent();
        // Nobody else releases the lock while we hold it, so it costs nothing that the subscription lingers. In the queue
        // that Redis keeps each waiter has its own channel, on which nothing is counted.
        if let Some(index) = self.listening.leave()
            && self.way.shares_its_channel()
        {
            hold.has_listened_for(index);
        }
        let mut state = self.entry.lock();
        state.forget_contender(self.listening.known_waiter());
        if self.lock.mode == Mode::Shared {
            state.let_in(now, session.waiter_lease);
        }
        // With a queue in Redis several threads of a process are contenders. A grant to one of them may be the first sign that
        // an earlier hold of the process is over.
        let displaced = match entry.protocol.kind().order {
            Order::Server => state.lock.holds().next().cloned(),
            Order::Local => None,
        };
        if displaced
            .as_ref()
            .is_some_and(|other| other.is_later_than(&hold))
        {
            // Lost before it was recorded, and granted to another thread of this process since.
            self.is_granted = false;
            drop(state);
            hold.end();
            session.watchdog.disarm(&hold);
            session.give_back(&hold);
            return Err(self.lock.lost(LossReason::TakenOver));
        }
        // Its reply has come before the grant.
        let last = state.lock.last_release();
        let alone = self.way.notifies_whoever_waits()
            && last.is_some_and(|last| yielding::has_notified_nobody(session, last));
        state.lock.was_alone(alone);
        if entry.protocol.kind().order == Order::Server {
            let place = match &self.way {
                Way::Queued(queued) => {
                    state.lock.end_removal(&queued.served, true);
                    Some(queued.place)
                }
                _ => None,
            };
            state.lock.granted_place(place);
        }
        let next = state.lock.granted(
            params.thread,
            self.lock.mode,
            Arc::clone(&hold),
            params.lease,
            now,
        );
        state.store_wakeups(&next);
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
            // Lost before the local lock had it.
            session.remove_lost(&hold);
        }
        session.counters.acquired.add(1);
        Ok(GuardInner::new(self.lock, hold, params.thread))
    }
}

/// Has these threads ask in their places. [`wake_to_ask`] has to follow once the mutex of the entry is released.
fn store_to_ask(waiters: &[Arc<Waiter>]) {
    for waiter in waiters {
        waiter.store(Wakeup::Contend(Start::Ask));
    }
}

fn wake_to_ask(waiters: Vec<Arc<Waiter>>) {
    for waiter in waiters {
        waiter.notify();
    }
}

type Answered = Reply<(Arc<Hold>, Instant)>;

impl Strategy for Contender<'_> {
    type Grant = (Arc<Hold>, Instant);

    const DOING: &'static str = "acquiring the lock";

    fn handed_over(&mut self) -> Result<Option<Self::Grant>> {
        let known = self.listening.known_waiter();
        let (Way::Queued(queued), Some(waiter)) = (&mut self.way, known) else {
            return Ok(None);
        };
        let Some(hold) = queued.handed_over(waiter)? else {
            return Ok(None);
        };
        if self.lock.is_still_ours(&hold) {
            self.is_granted = true;
            return Ok(Some((hold, Instant::now())));
        }
        let mut state = self.entry.lock();
        state.lock.contends_again(self.lock.mode, queued.place);
        Ok(None)
    }

    fn withdraw(&mut self) -> Result<Option<Self::Grant>> {
        if let Way::Queued(queued) = &self.way
            && queued.is_known
        {
            self.entry.lock().lock.asks(queued.place);
        }
        self.handed_over()
    }

    fn has_news(&self) -> bool {
        matches!(&self.way, Way::Queued(queued) if queued.then != Then::Listens)
    }

    fn prepare(&mut self, until: Instant) -> Result<Prepared> {
        if let Way::Queued(queued) = &mut self.way
            && queued.begins_to_wait_here()
        {
            let (lock, wait) = (self.lock, self.wait);
            let until = wait.deadline().or(Instant::now() + WAIT_HERE);
            let stop = || lock.must_stop(wait);
            self.listening.waiter().wait_for_wakeup(until, &stop);
            return Ok(Prepared::Waited);
        }
        self.take_over_subscription();
        Ok(if self.yield_to_others(until)? || self.step_aside(until) {
            Prepared::Yielded
        } else {
            Prepared::Asks
        })
    }

    fn ask(&mut self, until: Instant) -> std::result::Result<Answered, NoReply> {
        let reply = match &self.lock.quorum {
            Some(servers) => {
                let known = self.way.knows(self.listening.releases());
                // While it looks: after an acquire it looks again in any case.
                self.listening.hear_echoes(known == Known::Busy);
                let (lock, wait) = (self.lock, self.wait);
                let request = QuorumRequest {
                    lease: self.params.lease,
                    ttl: self.params.ttl,
                    up_for: lock.up_for,
                    comes_again_in: wait.asks_again().then(|| self.way.longest_pause()),
                    known,
                };
                let unannounced = &mut self.unannounced;
                quorum::ask(
                    servers,
                    unannounced,
                    lock,
                    &self.entry,
                    wait,
                    request,
                    until,
                )?
            }
            None => self.ask_server(until)?,
        };
        if let Reply::Busy(busy) = &reply {
            // Unless it looks again in any case.
            self.listening.hear_echoes(!busy.is_contested);
            self.way.is_refused(busy.is_contested);
            self.entry.lock().lock.refused();
            self.was_refused = true;
        }
        Ok(reply)
    }

    fn channel(&self, listen_on: usize) -> Option<Arc<str>> {
        self.way.channel(&*self.entry.protocol, listen_on)
    }

    fn quorum(&self) -> Option<Arc<Quorum>> {
        self.lock.quorum.clone()
    }

    fn listening(&mut self) -> &mut Listening {
        &mut self.listening
    }

    fn may_wait(&mut self) -> Result<()> {
        if !self.lock.has_it_otherwise(&*self.entry.protocol) {
            return Ok(());
        }
        let state = self.entry.lock();
        // It may have it by now because it was handed over.
        match state.lock.count(self.params.thread, Mode::Exclusive) {
            Some(_) if matches!(self.way, Way::Queued(_)) => Ok(()),
            _ => Err(self.lock.would_deadlock()),
        }
    }

    fn begins_to_wait(&mut self, waiter: &Arc<Waiter>) {
        self.entry.lock().add_contender(waiter);
        // Before the subscription to releases: once that is confirmed, readers are certain to see this one.
        self.declare_intent();
    }

    #[cfg(feature = "cluster")]
    fn follow(&mut self) {
        if self.way.intent_has_moved() {
            self.declare_intent();
        }
    }

    fn park_for(&mut self, cap: Duration) -> Duration {
        let listens = self.listening.is_confirmed();
        self.way
            .pause(cap, self.lock.session().waiter_lease, listens)
    }

    fn dismiss(&mut self, failure: &Failure) {
        let entry = &self.entry;
        self.lock.dismiss(entry, Self::DOING, failure.clone());
    }
}
