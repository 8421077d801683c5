//! One hold on a lock, how long it is certainly ours, and the news of its loss.

pub(crate) mod entry;
pub(crate) mod permits;
pub(crate) mod releases;
pub(crate) mod schedule;
pub(crate) mod watchdog;

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};
use parking_lot::Mutex;
use redis::Value;

use crate::callback::Callback;
use crate::config::Listener;
use crate::error::{Error, Loss, LossReason, Result};
use crate::hold::entry::Entry;
use crate::hold::schedule::{Place, Scheduled};
use crate::hold::watchdog::{Next, Renewable};
use crate::local::lock::{Holding, LeasePolicy, Mode, Validity};
use crate::net::call::{Call, Deferred, Undo};
use crate::net::request::Request;
use crate::net::subscriber::Subscription;
use crate::protocol::owner::OwnerNumber;
use crate::protocol::script::{self, Renewed, Unexpected};
use crate::report::report;
use crate::time;

/// How much of a lease is not counted on: a hundredth for clocks that run at different speeds, and 2 ms.
///
/// Source: the drift allowance of the Redlock description in the Redis documentation.
fn margin(lease: Duration) -> Duration {
    lease / 100 + Duration::from_millis(2)
}

/// For how long an acquire of unknown outcome may yet be carried out, and is undone.
pub(crate) const UNDO_FOR: Duration = Duration::from_secs(3600);

/// How often at least a read hold sees to it that the lock lives as long as it does: a Redisson client that reads too
/// shortens the lock to 30 s every 10 s, and may die. One with other settings may shorten it further; once that was
/// seen, it is seen to more often.
const KEEP_LOCK: Duration = Duration::from_secs(10);

/// How often at most.
const KEEP_LOCK_MOST: Duration = Duration::from_millis(5);

const HELD: u8 = 0;
const RELEASED: u8 = 1;
const LOST: u8 = 2; // and the reason's place in ALL

/// One acquisition from Redis, for as long as this process keeps it.
pub(crate) struct Hold {
    pub(crate) entry: Arc<Entry>,
    pub(crate) mode: Mode,
    pub(crate) number: OwnerNumber,
    pub(crate) owner: String,
    /// Several servers that keep it together; none if it is the one of its client.
    backing: Option<Arc<dyn Backing>>,
    /// The present thread's token, and the last one that was drawn; zero without tokens.
    token: AtomicU64,
    last_token: AtomicU64,
    state: AtomicU8,
    /// When the acquire that was granted was sent, of `time::nanos`.
    asked_at: AtomicU64,
    /// Of `time::nanos`.
    valid_until: AtomicU64,
    terms: Mutex<Terms>,
    /// The holder's count, for whoever looks into Redis; renewals bring it there. One for a shared hold.
    pub(crate) count: AtomicU32,
    /// When a permit is over by the server's clock in milliseconds, as Redis said last. A renewal that finds it changed
    /// since does nothing.
    ends_at: AtomicI64,
    /// Where on the watchdog's watchdog it is.
    place: Place,
    /// A renewal was due, or could not be had, and has not been confirmed since.
    pub(crate) renewal_failed: AtomicBool,
    listeners: Mutex<Vec<LossListener>>,
    /// What its contender listened to. While we hold the lock nobody else releases it, so it costs nothing to end this
    /// a little later, and not before the grant is returned.
    subscription: Mutex<Option<Subscription>>,
}

/// Where one guard is told of the first of its holds that is lost; made when somebody asks for it.
#[derive(Default)]
pub(crate) struct LossChannel(OnceLock<(Receiver<Loss>, Arc<AtomicBool>)>);

impl LossChannel {
    pub(crate) fn of<'a>(&self, holds: impl IntoIterator<Item = &'a Hold>) -> &Receiver<Loss> {
        let (told, _) = self.0.get_or_init(|| {
            let (tell, told) = bounded(1);
            let guard = Arc::new(AtomicBool::new(false));
            for hold in holds {
                hold.listen(tell.clone(), &guard);
            }
            (told, guard)
        });
        told
    }
}

/// Who is notified when something that is held is lost: of a client its listener and counters, and the local lock.
pub(crate) trait LossSink: Send + Sync {
    /// `hold` is over for this reason, unless it was before.
    fn lose(&self, hold: &Arc<Hold>, reason: LossReason);

    /// The client of `hold` is being closed: it is lost, and given back.
    fn give_up(&self, hold: &Arc<Hold>);
}

/// Why there is no answer to a renewal that its holder waits for.
pub(crate) enum NotRenewed {
    /// The holder was to stop.
    Stopped,
    /// The time was up, and nothing is known against the servers.
    Late(Error),
    Failed(Error),
}

/// The server that keeps a hold, or several that keep it together.
pub(crate) trait Backing: Send + Sync {
    /// Submits the release, in memory only: it has to be delivered. With `undo` Redis may know nothing of the hold any
    /// more.
    fn release(&self, hold: &Hold, undo: bool) -> Arc<Call>;

    /// Writes what was submitted, over new connections where the last ones were closed.
    fn deliver(&self);

    /// Takes back what Redis may still keep of a hold that is over.
    fn give_back(&self, hold: &Hold);

    /// Has what is left to be written or read looked after.
    fn housekeep_soon(&self);

    /// Waits for the answer to a release; why it was not held any more, if so. `in_time`: it was certain when it was
    /// released.
    fn released(
        &self,
        hold: &Hold,
        release: &Arc<Call>,
        in_time: bool,
        until: Instant,
    ) -> Result<Option<LossReason>>;

    /// Renews the hold for one more `count` of its holder, with this lease from now on.
    fn renew(
        &self,
        hold: &Hold,
        lease: LeasePolicy,
        ttl: Duration,
        count: u32,
        until: Instant,
        stop: &dyn Fn() -> bool,
    ) -> std::result::Result<(Renewed, Instant), NotRenewed>;

    /// How many of several servers keep it for certain.
    fn nodes_held(&self) -> usize {
        0
    }
}

/// Where a guard wants to be told, for as long as it lives.
struct LossListener {
    sender: Sender<Loss>,
    guard: Weak<AtomicBool>,
}

impl LossListener {
    /// Tells a guard that has not been told of another of its holds.
    fn tell(&self, loss: &Loss) {
        // A guard that is gone does not want to know.
        if let Some(told) = self.guard.upgrade()
            && !told.swap(true, Ordering::Relaxed)
        {
            self.sender.try_send(loss.clone()).unwrap_or_default();
        }
    }
}

#[derive(Clone, Copy)]
struct Terms {
    /// What Redis is told at a renewal.
    lease: Duration,
    /// The longest that Redis was ever told: a shorter one may not have arrived.
    longest: Duration,
    renewed: bool,
    max_hold: Option<Duration>,
    max_until: Option<Instant>,
    /// How soon a read hold sees to its lock again.
    keep_lock: Duration,
}

/// What the watchdog has to do about a hold.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Duty {
    Nothing,
    Wait(Instant),
    Renew,
    Lose(LossReason),
}

impl Hold {
    /// A hold that is about to be asked for; it is valid once [`Hold::grant`] has been called.
    pub(crate) fn new(
        entry: Arc<Entry>,
        mode: Mode,
        number: OwnerNumber,
        owner: String,
        lease: LeasePolicy,
        ttl: Duration,
    ) -> Self {
        Self {
            entry,
            mode,
            number,
            owner,
            backing: None,
            token: AtomicU64::new(0),
            last_token: AtomicU64::new(0),
            state: AtomicU8::new(HELD),
            asked_at: AtomicU64::new(0),
            valid_until: AtomicU64::new(0),
            terms: Mutex::new(Terms {
                lease: ttl,
                longest: ttl,
                renewed: matches!(lease, LeasePolicy::Renewed { .. }),
                max_hold: match lease {
                    LeasePolicy::Renewed { max_hold } => max_hold,
                    LeasePolicy::Fixed(_) => None,
                },
                max_until: None,
                keep_lock: KEEP_LOCK,
            }),
            count: AtomicU32::new(1),
            ends_at: AtomicI64::new(0),
            place: Place::default(),
            renewal_failed: AtomicBool::new(false),
            listeners: Mutex::new(Vec::new()),
            subscription: Mutex::new(None),
        }
    }

    /// The same, kept by several servers: they renew what each of them keeps, and the watchdog only looks whether it is over.
    pub(crate) fn backed_by(self, backing: Arc<dyn Backing>) -> Self {
        Self {
            backing: Some(backing),
            ..self
        }
    }

    /// The servers that keep it, if they are several.
    pub(crate) fn backing(&self) -> Option<&dyn Backing> {
        self.backing.as_deref()
    }

    pub(crate) fn keep_subscription(&self, subscription: Subscription) {
        *self.subscription.lock() = Some(subscription);
    }

    /// Ends it, which may write to the subscriber's connection when dropped.
    pub(crate) fn take_subscription(&self) -> Option<Subscription> {
        self.subscription.lock().take()
    }

    /// Redis has granted it to an acquire of which the first byte left after `sent_at`.
    pub(crate) fn grant(&self, sent_at: Instant) {
        self.asked_at.store(time::nanos(sent_at), Ordering::Relaxed);
        let mut terms = self.terms.lock();
        terms.max_until = terms
            .max_hold
            .and_then(|max| Instant::now().checked_add(max));
        let lease = terms.lease;
        drop(terms);
        self.extend(sent_at, lease);
    }

    /// When the acquire that was granted was sent.
    pub(crate) fn asked_at(&self) -> Instant {
        time::instant(self.asked_at.load(Ordering::Relaxed))
    }

    /// Whether this was asked for later than `other`; answers come in the order of the questions.
    pub(crate) fn is_later_than(&self, other: &Self) -> bool {
        self.asked_at.load(Ordering::Relaxed) > other.asked_at.load(Ordering::Relaxed)
    }

    pub(crate) fn valid_until(&self) -> Instant {
        time::instant(self.valid_until.load(Ordering::Acquire))
    }

    /// Tokens `first` to `last` were drawn for this hold.
    pub(crate) fn has_tokens(&self, first: u64, last: u64) {
        self.last_token.store(last, Ordering::Relaxed);
        self.token.store(first, Ordering::Relaxed);
    }

    pub(crate) fn token(&self) -> u64 {
        self.token.load(Ordering::Relaxed)
    }

    /// The hold changes threads: whatever belongs to the thread that had it is over.
    pub(crate) fn change_threads(&self) {
        self.listeners.lock().clear();
        self.count.store(1, Ordering::Relaxed);
        if self.token() != 0 {
            self.token.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether it is certainly still ours, as far as the clock tells.
    pub(crate) fn is_valid(&self, now: Instant) -> bool {
        self.is_held() && time::nanos(now) < self.valid_until.load(Ordering::Acquire)
    }

    pub(crate) fn is_held(&self) -> bool {
        self.state.load(Ordering::Acquire) == HELD
    }

    /// Why it was lost, if it was.
    pub(crate) fn loss(&self) -> Option<LossReason> {
        let state = self.state.load(Ordering::Acquire);
        state
            .checked_sub(LOST)
            .and_then(|place| LossReason::ALL.get(usize::from(place)).copied())
    }

    /// Redis has confirmed the hold for `lease` from `sent_at` on. Never shortens.
    pub(crate) fn extend(&self, sent_at: Instant, lease: Duration) {
        self.extend_to(sent_at + lease.saturating_sub(margin(lease)));
    }

    /// Redis has confirmed a renewal that was sent at `sent_at`. It counts for nothing if the lease was changed since.
    pub(crate) fn was_renewed(&self, sent_at: Instant) {
        let terms = self.terms.lock();
        if terms.renewed {
            let until = sent_at + terms.lease.saturating_sub(margin(terms.lease));
            self.raise_validity(&terms, until);
        }
    }

    fn extend_to(&self, until: Instant) {
        self.raise_validity(&self.terms.lock(), until);
    }

    fn raise_validity(&self, _terms: &Terms, until: Instant) {
        let until = time::nanos(until);
        if self.backing.is_some() && self.is_over(Instant::now()) {
            return;
        }
        if self.valid_until.fetch_max(until, Ordering::AcqRel) < until {
            self.renewal_failed.store(false, Ordering::Relaxed);
        }
    }

    /// Whether it was certain once, and that has passed.
    fn is_over(&self, now: Instant) -> bool {
        let until = self.valid_until.load(Ordering::Acquire);
        until != 0 && until <= time::nanos(now)
    }

    /// A majority of servers keeps the hold until then and no longer, which can be less than before. `false` if its time
    /// had passed: others may have had it since, so it never becomes valid again.
    pub(crate) fn majority_keeps_until(&self, until: Instant) -> bool {
        let until = time::nanos(until);
        let _terms = self.terms.lock();
        if self.is_over(Instant::now()) {
            return false;
        }
        if self.valid_until.swap(until, Ordering::AcqRel) < until {
            self.renewal_failed.store(false, Ordering::Relaxed);
        }
        true
    }

    /// The hold is certain until then and no longer.
    pub(crate) fn certain_until(&self, until: Instant) {
        let until = time::nanos(until);
        let _terms = self.terms.lock();
        if self.valid_until.swap(until, Ordering::AcqRel) < until {
            self.renewal_failed.store(false, Ordering::Relaxed);
        }
    }

    /// From now on it is renewed, or ends by itself, with another lease.
    pub(crate) fn change_lease(&self, lease: LeasePolicy, ttl: Duration) {
        let mut terms = self.terms.lock();
        terms.lease = ttl;
        terms.longest = terms.longest.max(ttl);
        terms.renewed = matches!(lease, LeasePolicy::Renewed { .. });
        terms.max_hold = match lease {
            LeasePolicy::Renewed { max_hold } => max_hold,
            LeasePolicy::Fixed(_) => None,
        };
        if let LeasePolicy::Renewed {
            max_hold: Some(max),
        } = lease
        {
            terms.max_until = Instant::now().checked_add(max);
        }
    }

    /// Redis is about to be told that lease, and may keep the hold for as long although no answer comes.
    pub(crate) fn may_last(&self, lease: Duration) {
        let mut terms = self.terms.lock();
        terms.longest = terms.longest.max(lease);
    }

    /// Redis is about to be told another lease: from now on it is not renewed, and certain for no longer than both the old
    /// lease and one that begins at `asked_at`.
    pub(crate) fn ask_for_lease(&self, asked_at: Instant, lease: Duration) {
        let until = time::nanos(asked_at + lease.saturating_sub(margin(lease)));
        let mut terms = self.terms.lock();
        terms.lease = lease;
        terms.longest = terms.longest.max(lease);
        terms.renewed = false;
        (terms.max_hold, terms.max_until) = (None, None);
        self.valid_until.fetch_min(until, Ordering::AcqRel);
    }

    /// Redis has confirmed what it was asked for at `sent_at`, and nothing can make that shorter than `lease`.
    pub(crate) fn lease_was_set(&self, sent_at: Instant, lease: Duration) {
        self.certain_until(sent_at + lease.saturating_sub(margin(lease)));
    }

    /// The first moment the watchdog has to look at it, after a grant or renewal sent at `sent_at`.
    pub(crate) fn due_after(&self, sent_at: Instant) -> Instant {
        let terms = *self.terms.lock();
        let mut due = self.valid_until();
        if terms.renewed && self.backing.is_none() {
            due = due.min(sent_at + terms.lease / 3);
        }
        if self.mode == Mode::Shared {
            due = due.min(sent_at + terms.keep_lock);
        }
        terms.max_until.map_or(due, |max| due.min(max))
    }

    /// The lock of a read hold was found with that much to live, less than it should have had; `None` if it was not.
    pub(crate) fn lock_was_shortened(&self, found: Option<Duration>) {
        let mut terms = self.terms.lock();
        terms.keep_lock = keep_lock_again(terms.keep_lock, found);
    }

    pub(crate) fn duty(&self, now: Instant) -> Duty {
        if !self.is_held() {
            return Duty::Nothing;
        }
        let (terms, valid_until) = (*self.terms.lock(), self.valid_until());
        if now >= valid_until {
            let unreachable = terms.renewed && self.renewal_failed.load(Ordering::Relaxed);
            return Duty::Lose(if unreachable {
                LossReason::Unreachable
            } else {
                LossReason::Expired
            });
        }
        match terms.max_until {
            Some(max) if now >= max => Duty::Lose(LossReason::MaxHold),
            Some(max) if self.backing.is_some() => Duty::Wait(max.min(valid_until)),
            None if self.backing.is_some() => Duty::Wait(valid_until),
            _ if terms.renewed || self.mode == Mode::Shared => Duty::Renew,
            _ => Duty::Wait(valid_until),
        }
    }

    /// For how long a renewal asks. A fixed read hold is not made longer: only what it is kept in is.
    pub(crate) fn renewal_lease(&self) -> Duration {
        let terms = self.terms.lock();
        if terms.renewed {
            terms.lease
        } else {
            Duration::from_millis(1)
        }
    }

    fn renew_request(&self) -> Request {
        let lease = self.renewal_lease();
        let ends_at = self.ends_at.load(Ordering::Relaxed);
        if let Some(request) = self
            .entry
            .protocol
            .renew_permit(&self.owner, lease, ends_at)
        {
            return request;
        }
        let count = self.count.load(Ordering::Relaxed);
        self.entry
            .protocol
            .renew(self.mode, &self.owner, lease, count)
    }

    /// Redis has said when this permit is over, in milliseconds by its own clock.
    pub(crate) fn ends_at(&self, ends_at: i64) {
        self.ends_at.store(ends_at, Ordering::Relaxed);
    }

    /// What a reply to [`renew_request`](Self::renew_request) says; `None` if somebody has changed the lease of a permit:
    /// then it was not renewed, and asking again will do.
    fn renewal(&self, reply: Value) -> std::result::Result<Option<Renewed>, Unexpected> {
        let mut ends_at = self.ends_at.load(Ordering::Relaxed);
        let renewed = self.entry.protocol.renewed(reply, &mut ends_at)?;
        self.ends_at(ends_at);
        Ok(renewed)
    }

    pub(crate) fn lease(&self) -> Duration {
        self.terms.lock().lease
    }

    /// How it was taken, or taken last.
    pub(crate) fn terms(&self) -> LeasePolicy {
        let terms = self.terms.lock();
        if terms.renewed {
            LeasePolicy::Renewed {
                max_hold: terms.max_hold,
            }
        } else {
            LeasePolicy::Fixed(terms.lease)
        }
    }

    /// The command that gives it back.
    pub(crate) fn release(&self, undo: bool) -> Deferred {
        let longest = self.terms.lock().longest;
        // A frozen server carries an acquire out when it thaws, and the lease begins only then.
        let after = if undo { longest.max(UNDO_FOR) } else { longest };
        self.entry.release(
            self.mode,
            &self.owner,
            self.valid_until().max(Instant::now()) + after,
            undo,
        )
    }

    /// The holder lets it go; `false` if it had been lost before.
    pub(crate) fn end(&self) -> bool {
        self.state
            .compare_exchange(HELD, RELEASED, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// Whether a release is worth a command although the hold was lost.
    ///
    /// Of several names or servers others may keep it when one has lost it.
    pub(crate) fn may_still_be_held(&self) -> bool {
        let many = self.entry.protocol.kind().is_set() || self.backing.is_some();
        self.loss()
            .is_some_and(|reason| many || reason.may_still_be_held())
    }

    /// Marks it lost and tells its own listeners; `None` if it was over already.
    pub(crate) fn lose(&self, reason: LossReason) -> Option<Loss> {
        let place = LossReason::ALL.iter().position(|other| *other == reason)?;
        let lost = LOST + u8::try_from(place).ok()?;
        // Whoever found its time over may have been overtaken by a renewal.
        let terms = self.terms.lock();
        let timed = matches!(reason, LossReason::Expired | LossReason::Unreachable);
        if timed && Instant::now() < self.valid_until() {
            return None;
        }
        self.state
            .compare_exchange(HELD, lost, Ordering::AcqRel, Ordering::Acquire)
            .ok()?;
        drop(terms);
        let loss = self.news(reason);
        for listener in self.listeners.lock().drain(..) {
            listener.tell(&loss);
        }
        Some(loss)
    }

    fn news(&self, reason: LossReason) -> Loss {
        Loss {
            name: self.entry.name.to_string(),
            owner: self.owner.clone(),
            reason,
        }
    }

    /// Adds a listener for as long as `guard` lives; it is told at once if the hold is lost already. `guard` says
    /// whether it has been told of another hold.
    fn listen(&self, sender: Sender<Loss>, guard: &Arc<AtomicBool>) {
        let listener = LossListener {
            sender,
            guard: Arc::downgrade(guard),
        };
        let mut listeners = self.listeners.lock();
        match self.loss() {
            Some(reason) => listener.tell(&self.news(reason)),
            None => {
                if listeners.len() == listeners.capacity() {
                    // Guards of a shared hold come and go while it stays.
                    listeners.retain(|listener| listener.guard.strong_count() > 0);
                }
                listeners.push(listener);
            }
        }
    }
}

/// How soon to see to the lock again, `last` after the time before, when it was `found` shortened or not.
///
/// A third of what was found, as with a lease. Whoever keeps shortening it may not have come round since the time before,
/// so the pauses go back to normal step by step.
fn keep_lock_again(last: Duration, found: Option<Duration>) -> Duration {
    found
        .map_or(last * 2, |found| found / 3)
        .clamp(KEEP_LOCK_MOST, KEEP_LOCK)
}

impl Holding for Arc<Hold> {
    fn validity(&self) -> Validity {
        Validity {
            // What is lost is not passed on, even if its lock has not heard of it yet.
            until: if self.is_held() {
                self.valid_until()
            } else {
                time::instant(0)
            },
            lease: self.lease(),
            complete: self.token() == 0 || self.token() < self.last_token.load(Ordering::Relaxed),
        }
    }
}

impl Scheduled for Hold {
    fn number(&self) -> u64 {
        self.number.0
    }

    fn place(&self) -> &Place {
        &self.place
    }
}

impl Renewable for Hold {
    fn name(&self) -> &str {
        &self.entry.name
    }

    fn is_held(&self) -> bool {
        self.is_held()
    }

    fn attend(self: Arc<Self>, now: Instant) -> Duty {
        let duty = self.duty(now);
        if duty == Duty::Renew {
            // If it is not confirmed in time, that is why the hold is lost.
            self.renewal_failed.store(true, Ordering::Relaxed);
        }
        duty
    }

    fn may_be_early(&self, now: Instant) -> bool {
        self.duty(now) == Duty::Renew
    }

    fn ends(&self) -> Instant {
        self.valid_until()
    }

    fn lease(&self) -> Duration {
        self.lease()
    }

    fn look_again(&self, at: Instant) -> Instant {
        let at = at.min(self.valid_until());
        let max_until = self.terms.lock().max_until;
        max_until.map_or(at, |max| at.min(max))
    }

    fn request(&self) -> Request {
        self.renew_request()
    }

    fn complete(self: Arc<Self>, reply: Value, sent_at: Instant) -> Next {
        let shortened_to = script::shortened_to(&reply);
        let renewed = match self.renewal(reply) {
            Ok(Some(renewed)) => renewed,
            Ok(None) => return Next::Look(Instant::now()),
            Err(unexpected) => {
                report!(Warn, "renewing `{}`: {unexpected}", self.entry.name);
                return Next::Lost(LossReason::TakenOver);
            }
        };
        // Past its time the key may well be gone: nobody took it away.
        let in_time = Instant::now() < self.valid_until();
        match renewed {
            Renewed::Yes => {
                self.was_renewed(sent_at);
                self.lock_was_shortened(shortened_to);
                Next::Renewed(self.due_after(sent_at))
            }
            _ if !in_time => Next::Lost(LossReason::Expired),
            Renewed::Gone => Next::Lost(LossReason::Forced),
            Renewed::Taken => Next::Lost(LossReason::TakenOver),
        }
    }

    fn was_overwritten(self: Arc<Self>, _sent_at: Instant) -> Next {
        Next::Lost(LossReason::TakenOver)
    }

    fn could_not_be_renewed(&self) {
        self.renewal_failed.store(true, Ordering::Relaxed);
    }

    fn lose(self: Arc<Self>, sink: &dyn LossSink, reason: LossReason) -> Option<Instant> {
        sink.lose(&self, reason);
        self.is_held().then(|| self.due_after(Instant::now()))
    }

    fn close(self: Arc<Self>, sink: &dyn LossSink) {
        if self.is_held() {
            sink.give_up(&self);
        }
    }
}

impl Undo for Hold {
    /// Its number was sent once, and is of no use any more if nobody knows what became of that: this never takes anything
    /// that is held.
    fn undo(&self) -> Option<Deferred> {
        Some(self.release(true))
    }
}

impl PartialEq for Hold {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

/// Brings losses to the client's listener, one after another.
pub(crate) struct Notices(Option<Arc<Callback<Loss>>>);

impl Notices {
    pub(crate) fn new(listener: Option<Listener>) -> Self {
        let panicked = |loss: &Loss| {
            report!(
                Error,
                "the listener for losses panicked over `{}`",
                loss.name
            );
        };
        Self(listener.map(|listener| {
            Callback::new(
                "redlatch-listener",
                move |loss: &Loss| listener(loss),
                panicked,
            )
        }))
    }

    pub(crate) fn notify(&self, loss: Loss) {
        if let Some(callback) = &self.0
            && let Err(err) = callback.give(loss)
        {
            report!(Warn, "no thread to tell of a loss: {err}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::hold::entry::Registry;

    #[test]
    fn what_a_majority_keeps_may_change_until_its_time_has_passed_once() {
        let registry = Registry::new(String::new(), 0, Duration::ZERO);
        let entry = registry
            .apart(&crate::protocol::reentrant::KIND, &"a".into())
            .expect("a name");
        let lease = Duration::from_secs(60);
        let (number, owner) = (OwnerNumber(1), "c:1".to_owned());
        let hold = Hold::new(
            entry,
            Mode::Exclusive,
            number,
            owner,
            LeasePolicy::Fixed(lease),
            lease,
        );
        let begin = Instant::now();
        hold.grant(begin);
        for secs in [70, 50] {
            let until = begin + Duration::from_secs(secs);
            assert!(hold.majority_keeps_until(until));
            assert_eq!(hold.valid_until(), until);
        }
        let until = Instant::now();
        assert!(hold.majority_keeps_until(until));
        assert!(!hold.majority_keeps_until(begin + lease));
        assert!(!hold.is_valid(Instant::now()));
        assert_eq!(hold.valid_until(), until);
    }

    #[test]
    fn a_lock_that_somebody_keeps_shortening_is_seen_to_in_time_whenever_they_die() {
        // They shorten it to `to_live` every third of that, as Redisson's watchdog does; all in milliseconds.
        for to_live in [90_u64, 900, 4_000, 9_999, 30_000] {
            for phase in (0..100).map(|part| to_live / 3 * part / 100) {
                let shortened = |n: u64| n * to_live / 3;
                // We come in `phase` after one of their rounds.
                let (mut now, mut pause) = (shortened(1) + phase, KEEP_LOCK);
                let mut found = Some(Duration::from_millis(to_live - phase));
                for _ in 0..50 {
                    pause = keep_lock_again(pause, found);
                    let before = now;
                    now += u64::try_from(pause.as_millis()).expect("short");
                    let mut rounds = (1..).map(shortened).skip_while(|at| *at <= before);
                    let first = rounds.next().expect("endless");
                    if first > now {
                        found = None;
                        continue;
                    }
                    assert!(now < first + to_live, "{to_live} {phase}: {pause:?}");
                    let last = rounds.take_while(|at| *at <= now).last();
                    let ago = now - last.unwrap_or(first);
                    found = Some(Duration::from_millis(to_live - ago));
                }
            }
        }
        // Nobody does any more.
        let mut pause = keep_lock_again(KEEP_LOCK, Some(Duration::ZERO));
        assert!(pause > Duration::ZERO);
        for _ in 0..20 {
            pause = keep_lock_again(pause, None);
        }
        assert_eq!(pause, KEEP_LOCK);
    }
}
