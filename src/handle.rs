//! What every lock does, whatever its kind: the way of a thread through room, wire and guard.

use std::cell::OnceCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::call::{Attempt, Call, Fault};
use crate::client::{Engine, Shared};
use crate::config;
use crate::contender::Contender;
use crate::error::{Error, Result};
use crate::gate::{Gate, wake};
use crate::held::Held;
use crate::hold::{Duty, Hold, LossReason};
use crate::keys;
use crate::owner;
use crate::quorum::Quorum;
use crate::room::{Entered, Lease, Mode};
use crate::script::{self, Renewed};
use crate::wait::{Budget, Called, CancelToken, Deadline, Waiter};
use crate::wire::{Family, Wire};

/// How long a caller is willing to wait.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Patience {
    /// One attempt, and no standing in line.
    Once,
    /// One attempt among several at once, which end together; `waits` if they are part of a wait.
    Together {
        until: Instant,
        /// It is the caller who says so.
        callers: bool,
        waits: bool,
    },
    Until(Deadline),
}

impl Patience {
    /// Whether it can be cancelled.
    fn waits(self) -> bool {
        matches!(self, Self::Until(_) | Self::Together { waits: true, .. })
    }

    /// When it ends, if it is the caller who says so.
    pub(crate) fn deadline(self) -> Deadline {
        match self {
            Self::Once => Deadline::NEVER,
            Self::Together { until, .. } => Deadline::at(until),
            Self::Until(until) => until,
        }
    }

    /// The time for a question asked at `began`.
    pub(crate) fn budget(self, began: Instant, response_timeout: Duration) -> Budget {
        match self {
            Self::Together { until, callers, .. } => {
                Budget { until, callers }.within(began, response_timeout)
            }
            _ => self.deadline().budget(began, response_timeout),
        }
    }

    /// For `wait` from now on; one attempt if that is nothing.
    pub(crate) fn span(wait: Duration) -> Self {
        if wait.is_zero() {
            Self::Once
        } else {
            Self::Until(Deadline::after(wait))
        }
    }

    /// Until `instant`; one attempt if that has passed.
    pub(crate) fn moment(instant: Instant) -> Self {
        if instant <= Instant::now() {
            Self::Once
        } else {
            Self::Until(Deadline::at(instant))
        }
    }
}

/// A handle's settings: which lock, and how to take it.
#[derive(Clone)]
pub(crate) struct Handle {
    pub(crate) shared: Arc<Shared>,
    /// As the user gave it; several names joined.
    pub(crate) name: Arc<str>,
    /// By which its gate is found: the name, or a list.
    id: Arc<str>,
    pub(crate) family: Family,
    /// The servers of which a majority has to grant it; `shared` is the client of one of them.
    pub(crate) quorum: Option<Arc<Quorum>>,
    /// How long a server must have been up to be one of them.
    pub(crate) up_for: Duration,
    pub(crate) mode: Mode,
    reentrant: bool,
    lease: Option<Duration>,
    max_hold: Option<Duration>,
    pub(crate) cancel: Option<CancelToken>,
    /// Whether a reader lets writers go first that wait already.
    pub(crate) yields: bool,
    /// How long a token counter outlives its last use; for ever if zero.
    pub(crate) token_ttl: Duration,
}

impl Handle {
    pub(crate) fn new(shared: &Arc<Shared>, id: Arc<str>, family: Family) -> Self {
        Self {
            shared: Arc::clone(shared),
            name: family.shown(&id),
            id,
            family,
            quorum: None,
            up_for: Duration::ZERO,
            mode: Mode::Exclusive,
            reentrant: true,
            lease: None,
            max_hold: None,
            cancel: None,
            yields: true,
            token_ttl: Duration::ZERO,
        }
    }

    /// Settings to take the lock of a hold with, as that was taken.
    pub(crate) fn like(shared: &Arc<Shared>, hold: &Hold) -> Self {
        let name = Arc::clone(&hold.gate.name);
        let handle = Self::new(shared, name, hold.gate.wire.family);
        match hold.terms() {
            Lease::Renewed { max_hold } => Self { max_hold, ..handle },
            Lease::Fixed(lease) => handle.lease(lease),
        }
    }

    /// For locks that a majority of servers keeps.
    pub(crate) fn of_quorum(quorum: Arc<Quorum>, id: Arc<str>) -> Self {
        let handle = Self::new(quorum.home(), id, Family::Quorum);
        Self {
            quorum: Some(quorum),
            ..handle
        }
    }

    /// A plain lock for each of several names, to be taken in the same way.
    pub(crate) fn apart(&self) -> Vec<Self> {
        let apart = |name: &str| Self {
            name: name.into(),
            id: name.into(),
            family: Family::Lock,
            ..self.clone()
        };
        keys::names(&self.id).into_iter().map(apart).collect()
    }

    /// For locks that their holder cannot take again.
    pub(crate) fn non_reentrant(mut self) -> Self {
        self.reentrant = false;
        self
    }

    /// The same lock, to be shared with others that share it.
    pub(crate) fn sharing(mut self) -> Self {
        self.mode = Mode::Shared;
        self
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

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.shared.engine
    }

    /// The lease a hold of this handle gets, and how it behaves.
    pub(crate) fn terms(&self) -> Result<(Lease, Duration)> {
        for (setting, span) in [
            ("token_ttl", self.token_ttl),
            ("keep_out_restarted", self.up_for),
        ] {
            if !span.is_zero() {
                config::check_lease(setting, span)?;
            }
        }
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
    pub(crate) fn must_stop(&self, patience: Patience) -> bool {
        self.engine().is_closed() || (patience.waits() && self.is_cancelled())
    }

    /// Why a wait was told to stop.
    pub(crate) fn stopped(&self) -> Error {
        if self.engine().is_closed() {
            Error::Closed
        } else {
            Error::Cancelled
        }
    }

    pub(crate) fn error(&self, doing: &'static str, fault: Fault) -> Error {
        match fault {
            Fault::Refused(err) if err.code() == Some("WRONGTYPE") => Error::WrongType {
                name: self.name.to_string(),
            },
            Fault::Refused(err) | Fault::Unreachable(err) | Fault::Late(err) => {
                Error::redis(doing, err)
            }
            Fault::NoQuorum(short) => short.into_error(&self.name),
            Fault::Stopped => self.stopped(),
            Fault::Closed => Error::Closed,
        }
    }

    pub(crate) fn lost(&self, reason: LossReason) -> Error {
        Error::Lost {
            name: self.name.to_string(),
            reason,
        }
    }

    /// Takes the lock, or one more hold of it.
    pub(crate) fn acquire(&self, patience: Patience) -> Result<Option<Held>> {
        self.engine().check_open()?;
        let result = self.come_in(patience).and_then(|came| match came {
            Came::In(held) => Ok(Some(held)),
            Came::Away => Ok(None),
            Came::ToAsk(contender) => contender.run(),
        });
        if !matches!(result, Ok(Some(_))) {
            // The room may be idle now, and nobody else comes to see.
            self.engine().agenda.tend_soon();
        }
        result
    }

    /// Waits for the answer to one attempt, which may be under way already.
    pub(crate) fn told(&self, came: Result<Came<'_>>) -> Result<Told> {
        let told = came.and_then(|came| match came {
            Came::In(held) => Ok(Told::Held(held)),
            Came::Away => Ok(Told::Busy(Busy::Here)),
            Came::ToAsk(contender) => contender.once(),
        });
        if !matches!(told, Ok(Told::Held(_))) {
            // The room may be idle now, and nobody else comes to see.
            self.engine().agenda.tend_soon();
        }
        told
    }

    /// Whether those who have it, or ask for it, came to it only within the last `span`, and may have to give it back.
    ///
    /// Of others than this client's threads that can be told if their lease is that of this handle or of the client.
    pub(crate) fn may_be_given_back(&self, busy: Busy, span: Duration) -> bool {
        let engine = self.engine();
        let (Ok(gate), Ok((_, lease))) = (self.look(), self.terms()) else {
            return false;
        };
        if self.has_it_otherwise(&gate.wire) {
            return false;
        }
        match busy {
            Busy::Here => {
                let (inside, now) = (gate.lock(), Instant::now());
                let is_young =
                    |hold: &Arc<Hold>| now.saturating_duration_since(hold.asked_at()) < span;
                // Who waits for it has seen it with somebody else.
                !inside.is_waited_for() && inside.room.holds().all(is_young)
            }
            Busy::Elsewhere { left } => left.is_some_and(|left| {
                // Redis counts in whole milliseconds.
                let ms = Duration::from_millis(1);
                [lease, engine.lease]
                    .into_iter()
                    .any(|lease| left <= lease + ms && lease <= left + span + ms)
            }),
        }
    }

    /// Whether it can be asked for at all, before anything is sent.
    pub(crate) fn check(&self, patience: Patience) -> Result<()> {
        self.terms()?;
        self.look()?;
        self.check_going(patience)
    }

    pub(crate) fn check_going(&self, patience: Patience) -> Result<()> {
        self.engine().check_open()?;
        if patience.waits() && self.is_cancelled() {
            return Err(Error::Cancelled);
        }
        Ok(())
    }

    /// Its gate, kept until its room is idle.
    pub(crate) fn gate(&self) -> Result<Arc<Gate>> {
        self.engine().check_open()?;
        self.engine().gates.get(self.family, &self.id)
    }

    /// Its gate, if a thread has come to it lately.
    pub(crate) fn known_gate(&self) -> Option<Arc<Gate>> {
        self.engine().gates.known(self.family, &self.id)
    }

    /// A gate of its name for its wire, which nobody else needs to know.
    pub(crate) fn wire_gate(&self) -> Result<Arc<Gate>> {
        self.engine().check_open()?;
        self.engine().gates.apart(self.family, &self.id)
    }

    /// Its gate, or one that nobody else knows.
    fn look(&self) -> Result<Arc<Gate>> {
        self.engine().check_open()?;
        self.engine().gates.look(self.family, &self.id)
    }

    /// Which key and server it is about.
    pub(crate) fn place(&self) -> (String, String) {
        let gate = self.look();
        let key = gate.map_or_else(|_| self.id.to_string(), |gate| gate.wire.key.clone());
        (key, format!("{:?}", self.engine().endpoint))
    }

    /// Whether it is the same lock, to be taken in the same way.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let settings = |handle: &Self| {
            (
                handle.family,
                handle.reentrant,
                handle.lease,
                handle.max_hold,
            )
        };
        Arc::ptr_eq(self.engine(), other.engine())
            && self.id == other.id
            && settings(self) == settings(other)
    }

    /// As far as there is nothing to ask Redis for.
    pub(crate) fn come_in(&self, patience: Patience) -> Result<Came<'_>> {
        let (lease, lease_time) = self.terms()?;
        let engine = self.engine();
        let gate = engine.gates.get(self.family, &self.id)?;
        if self.must_stop(patience) {
            return Err(self.stopped());
        }
        match &self.quorum {
            Some(quorum) => {
                let until = patience
                    .deadline()
                    .or(Instant::now() + engine.response_timeout);
                quorum.masters.check(until)?;
                quorum.start_watchdogs()?;
            }
            None => engine.start_watchdog()?,
        }

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
                Patience::Once | Patience::Together { .. } => None,
                Patience::Until(_) => Some(&queue),
            };
            let mut inside = gate.lock();
            let entered = inside
                .room
                .enter(thread, self.mode, lease, now, may_queue, self.yields);
            match entered {
                Entered::Busy => return Ok(Came::Away),
                Entered::Deadlock(hold) => {
                    drop(inside);
                    if self.is_still_ours(&hold) {
                        return Err(self.would_deadlock());
                    }
                }
                Entered::Contend { start, under } => {
                    drop(inside);
                    let contender = Contender::new(self, gate, terms, patience, None, under, start);
                    return Ok(Came::ToAsk(contender));
                }
                Entered::Joined(hold) => {
                    let looks = self.yields
                        && inside.look_out(now, || {
                            let call = Call::question(gate.wire.look_for_writers()?);
                            engine.link.submit(&call).map(|_| call)
                        });
                    drop(inside);
                    if looks {
                        engine.link.flush(false);
                        engine.agenda.tend_soon();
                    }
                    if self.is_still_ours(&hold) {
                        engine.counters.shared.add(1);
                        return Ok(Came::In(Held::new(self, hold, thread)));
                    }
                }
                Entered::Queued(ticket) => {
                    drop(inside);
                    let (Some(waiter), Patience::Until(deadline)) = (waiter.get(), patience) else {
                        return Ok(Came::Away);
                    };
                    match self.stand_in_line(&gate, ticket, waiter, deadline)? {
                        None => return Ok(Came::Away),
                        Some(Called::Granted(hold)) => {
                            if self.is_still_ours(&hold) {
                                match self.mode {
                                    Mode::Exclusive => engine.counters.passed.add(1),
                                    Mode::Shared => engine.counters.shared.add(1),
                                }
                                return Ok(Came::In(Held::new(self, hold, thread)));
                            }
                        }
                        Some(Called::Contend(start)) => {
                            let waiter = Some(Arc::clone(waiter));
                            let contender =
                                Contender::new(self, gate, terms, patience, waiter, None, start);
                            return Ok(Came::ToAsk(contender));
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
                        return Err(self.would_deadlock());
                    }
                    if matches!(its, Lease::Renewed { .. }) {
                        // Free of charge: whoever renews it, renews it for this hold too.
                        inside.room.reenter(thread, &hold, its);
                        drop(inside);
                        engine.counters.reentered.add(1);
                        return Ok(Came::In(Held::reentered(self, hold, thread, count + 1)));
                    }
                    drop(inside);
                    match self.renew_to_reenter(&gate, &hold, terms, count + 1, patience)? {
                        Reentered::Yes => {
                            engine.counters.reentered.add(1);
                            return Ok(Came::In(Held::reentered(self, hold, thread, count + 1)));
                        }
                        Reentered::TooLate => return Ok(Came::Away),
                        Reentered::Lost => {}
                    }
                }
            }
        }
    }

    /// Whether the calling thread has the lock, or one of several names, already as a lock of another kind or as part of
    /// another set. To be looked at by who is about to wait: it would wait for itself.
    pub(crate) fn has_it_otherwise(&self, wire: &Wire) -> bool {
        let names = match self.family {
            Family::Several => keys::names(&self.id).into_iter().map(Arc::from).collect(),
            family if Family::OF_ONE_KEY.contains(&family) => vec![Arc::clone(&self.id)],
            _ => return false,
        };
        let (gates, thread) = (&self.engine().gates, owner::this_thread());
        let is_mine = |gate: &Arc<Gate>| {
            let inside = gate.lock();
            let mine = inside.room.count(thread, Mode::Exclusive);
            mine.is_some_and(|(hold, _)| hold.is_valid(Instant::now()))
        };
        let known = |name| Family::OF_ONE_KEY.map(|family| gates.known(family, name));
        let mut alone = names.iter().flat_map(known).flatten();
        alone.any(|gate| is_mine(&gate))
            || gates
                .sets()
                .iter()
                .any(|set| is_mine(set) && set.wire.overlaps(wire))
    }

    pub(crate) fn would_deadlock(&self) -> Error {
        Error::WouldDeadlock {
            name: self.name.to_string(),
        }
    }

    /// Whether a hold that another thread has left or shared with this one is not over by now.
    fn is_still_ours(&self, hold: &Arc<Hold>) -> bool {
        if !hold.is_valid(Instant::now()) {
            self.give_up_lost(hold);
        }
        hold.is_held()
    }

    /// A hold whose time is over although nobody has said so yet.
    fn give_up_lost(&self, hold: &Arc<Hold>) {
        let reason = match hold.duty(Instant::now()) {
            Duty::Tell(reason) => reason,
            _ => LossReason::Expired,
        };
        self.engine().lose(hold, reason);
        // Unless a renewal was faster: then it is ours still.
        if !hold.is_held() {
            hold.gate.lost(hold);
        }
    }

    /// One more hold of a thread whose lease is fixed: the new hold's lease counts from now, and never shortens.
    fn renew_to_reenter(
        &self,
        gate: &Gate,
        hold: &Arc<Hold>,
        terms: Terms,
        count: u32,
        patience: Patience,
    ) -> Result<Reentered> {
        let engine = self.engine();
        let budget = patience.budget(Instant::now(), engine.response_timeout);
        let until = budget.until;
        let stop = || self.must_stop(patience);
        let doing = "renewing the lock";
        let asked = match hold.grip() {
            Some(grip) => grip.renew(terms, count, until, &stop),
            None => {
                hold.may_last(terms.lease_time);
                let mut attempt = || Attempt {
                    request: gate
                        .wire
                        .renew(self.mode, &hold.owner, terms.lease_time, count),
                    undo: None,
                };
                match engine.link.call(until, &stop, None, &mut attempt) {
                    Ok(answer) => {
                        let renewed = script::renewed(answer.value)
                            .map_err(|unexpected| Error::redis(doing, unexpected))?;
                        Ok((renewed, answer.sent_at))
                    }
                    Err(fault) => Err(fault),
                }
            }
        };
        let (renewed, sent_at) = match asked {
            Ok(answer) => answer,
            Err(fault) if budget.was_too_short(&fault) => return Ok(Reentered::TooLate),
            Err(fault) => return Err(self.error(doing, fault)),
        };
        let in_time = hold.is_valid(Instant::now());
        let reason = match renewed {
            Renewed::Yes => {
                // That of a quorum has been by its grip.
                if hold.grip().is_none() {
                    hold.change_lease(terms.lease, terms.lease_time);
                    hold.extend(sent_at, terms.lease_time);
                }
                if gate.lock().room.reenter(terms.thread, hold, terms.lease) {
                    engine.agenda.arm(hold, hold.due_after(sent_at));
                    if hold.is_held() {
                        return Ok(Reentered::Yes);
                    }
                    gate.lost(hold);
                }
                // Told lost while the renewal was under way: Redis keeps it for a whole lease more.
                engine.give_back(hold);
                return Ok(Reentered::Lost);
            }
            _ if !in_time => LossReason::Expired,
            Renewed::Gone => LossReason::Forced,
            Renewed::Taken => LossReason::TakenOver,
        };
        engine.lose(hold, reason);
        Ok(Reentered::Lost)
    }

    pub(crate) fn stand_in_line(
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
        let deadlocked = self.has_it_otherwise(&gate.wire);
        let stop = || deadlocked || self.must_stop(patience);
        if let Some(called) = waiter.wait_in_line(deadline, &stop) {
            return Ok(Some(called));
        }
        let mut inside = gate.lock();
        let left = inside.room.withdraw(ticket, Instant::now());
        if let Some(next) = &left {
            inside.tell(next);
        }
        drop(inside);
        if let Some(next) = left {
            wake(next);
        }
        match waiter.called() {
            // Called out of line at the last moment. Whoever is called has to answer.
            Some(called) => Ok(Some(called)),
            None => {
                if self.must_stop(patience) {
                    Err(self.stopped())
                } else if deadlocked {
                    Err(self.would_deadlock())
                } else {
                    Ok(None)
                }
            }
        }
    }

    pub(crate) fn is_locked(&self) -> Result<bool> {
        if let Some(quorum) = &self.quorum {
            return self.survey("asking for the lock", |until| quorum.is_locked(until));
        }
        let wire = &self.look()?.wire;
        let state = self.number("asking for the lock", wire.state())?;
        Ok(wire.is_locked(self.mode, state))
    }

    pub(crate) fn remaining(&self) -> Result<Option<Duration>> {
        let doing = "asking for the lease";
        let ms = match &self.quorum {
            Some(quorum) => self.survey(doing, |until| quorum.remaining(until))?,
            None => {
                let gate = self.look()?;
                self.number(doing, gate.wire.remaining())?
            }
        };
        Ok(match ms {
            -1 => Some(Duration::MAX),
            ms => u64::try_from(ms).ok().map(Duration::from_millis),
        })
    }

    /// Asks the servers of a quorum, for at most the response timeout.
    fn survey<T>(
        &self,
        doing: &'static str,
        ask: impl FnOnce(Instant) -> std::result::Result<T, Fault>,
    ) -> Result<T> {
        self.engine().check_open()?;
        let until = Instant::now() + self.engine().response_timeout;
        ask(until).map_err(|fault| self.error(doing, fault))
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
        let gate = self.look()?;
        // Whoever comes later holds it by right.
        let held: Vec<_> = gate.lock().room.holds().cloned().collect();
        let doing = "forcing the lock open";
        let forced = match &self.quorum {
            Some(quorum) => self.survey(doing, |until| quorum.force(until))?,
            None => self.number(doing, gate.wire.force())? == 1,
        };
        if forced {
            // Holders in other processes hear of it at their next renewals; those in this process now.
            for hold in held {
                self.engine().lose(&hold, LossReason::Forced);
            }
        }
        Ok(forced)
    }

    pub(crate) fn hold_count(&self) -> u32 {
        let Ok(gate) = self.look() else {
            return 0;
        };
        let inside = gate.lock();
        match inside.room.count(owner::this_thread(), self.mode) {
            Some((hold, count)) if hold.is_valid(Instant::now()) => count,
            _ => 0,
        }
    }
}

/// What became of one more hold that takes a renewal.
enum Reentered {
    Yes,
    /// There was none below it any more.
    Lost,
    /// Redis had not answered when the caller's time was up.
    TooLate,
}

/// How far a thread has come without a question to Redis.
pub(crate) enum Came<'a> {
    In(Held),
    /// Somebody is before it.
    Away,
    ToAsk(Contender<'a>),
}

/// What one attempt has come to.
pub(crate) enum Told {
    Held(Held),
    Busy(Busy),
    /// Redis had not answered when the caller's time was up.
    TooLate,
}

/// Who is before one who asked once.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Busy {
    /// A thread of this client, which has the lock or asks for it.
    Here,
    /// Whoever Redis says has it, for how long yet; `None`: for ever, as far as it knows.
    Elsewhere { left: Option<Duration> },
}

/// What a thread wants the lock for, and who it is.
#[derive(Clone, Copy)]
pub(crate) struct Terms {
    pub(crate) lease: Lease,
    pub(crate) lease_time: Duration,
    pub(crate) thread: u64,
}
