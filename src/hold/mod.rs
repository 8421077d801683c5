//! What is held: a hold on a lock, how long it is certainly ours, and the server or servers that keep it.

pub(crate) mod entry;
pub(crate) mod loss;
pub(crate) mod permits;
pub(crate) mod releases;
pub(crate) mod schedule;
mod spare;
pub(crate) mod validity;
pub(crate) mod watchdog;

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicI64, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use redis::Value;

use crate::error::{Error, Loss, LossReason, Result};
use crate::hold::loss::{Losable, LossListener};
use crate::hold::schedule::{Scheduled, Times};
use crate::hold::validity::{Duty, Lease, RenewedBy};
use crate::local::lock::{Holding, LeasePolicy, Mode, Validity};
use crate::net::call::{Call, Deferred, Undo};
use crate::net::request::Request;
use crate::protocol::owner::{OwnerId, OwnerNumber};
use crate::protocol::script::{self, Renewed, Unexpected};
use crate::report::report;
use crate::time::{self, Moment};

/// For how long an acquire of unknown outcome is undone: until then the server may still execute it.
pub(crate) const UNDO_FOR: Duration = Duration::from_secs(3600);

/// The types of [`entry`], for local locks that are held by a [`Hold`].
pub(crate) type Entry = crate::hold::entry::Entry<Arc<Hold>>;
pub(crate) type LockedEntry<'a> = crate::hold::entry::LockedEntry<'a, Arc<Hold>>;
pub(crate) type EntryState = crate::hold::entry::EntryState<Arc<Hold>>;
pub(crate) type Registry = crate::hold::entry::Registry<Arc<Hold>>;
pub(crate) type Waiter = crate::hold::entry::Waiter<Arc<Hold>>;
pub(crate) type Wakeup = crate::hold::entry::Wakeup<Arc<Hold>>;

std::thread_local! {
    static GUARDS: Cell<usize> = const { Cell::new(0) };
}

/// A guard, as one of those of its thread. It cannot go to another.
pub(crate) struct Counted(PhantomData<std::sync::MutexGuard<'static, ()>>);

impl Counted {
    pub(crate) fn new() -> Self {
        GUARDS.with(|guards| guards.set(guards.get() + 1));
        Self(PhantomData)
    }

    /// Whether the calling thread has any, so that it may hold something.
    pub(crate) fn has_some() -> bool {
        GUARDS.with(|guards| guards.get() > 0)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        GUARDS.with(|guards| guards.set(guards.get() - 1));
    }
}

const HELD: u8 = 0;
const RELEASED: u8 = 1;
const LOST: u8 = 2; // plus the reason's index in ALL

/// One acquisition from Redis.
pub(crate) struct Hold {
    /// `None` only in a [spare](spare) one.
    entry: Option<Arc<Entry>>,
    pub(crate) mode: Mode,
    pub(crate) number: OwnerNumber,
    state: AtomicU8,
    /// When the acquire that was granted was sent, of `time::nanos`.
    asked_at: AtomicU64,
    /// The same as in `lease`, to be read without its mutex.
    valid_until: AtomicU64,
    lease: Mutex<Lease>,
    /// How many times its holder has it, which renewals write to Redis for others to see. One for a shared hold.
    pub(crate) count: AtomicU32,
    times: Times,
    extras: OnceLock<Box<Extras>>,
}

/// What only few holds need; made when it is first needed.
#[derive(Default)]
struct Extras {
    /// The owner id, if it is not made of the number, or if somebody has asked for it.
    owner: OnceLock<OwnerId>,
    /// The servers that keep it, if they are several; `None` if its client's server does.
    backing: Option<Arc<dyn Backing>>,
    /// The token of the thread that has it now, and the last one drawn for it; zero without tokens.
    token: AtomicU64,
    last_token: AtomicU64,
    /// When a permit ends, in milliseconds of the server's clock, as Redis said last. If somebody has changed that, a
    /// renewal does nothing.
    ends_at: AtomicI64,
    /// The index of the lock's name for which its contender has left a subscription behind, plus one; zero for none.
    listened_for: AtomicU32,
    listeners: Mutex<Vec<LossListener>>,
}

/// What a client does about a lost hold: its listener, its counters and the local lock are notified.
pub(crate) trait LossSink: Send + Sync {
    /// `hold` is lost for this reason, unless it was over before.
    fn lose(&self, hold: &Arc<Hold>, reason: LossReason);

    /// The client of `hold` is being closed: the hold is lost, and released in Redis.
    fn give_up(&self, hold: &Arc<Hold>);
}

/// Why a renewal that the holder waits for has no answer.
pub(crate) enum NotRenewed {
    /// The holder had to stop.
    Stopped,
    /// The time was up, although the servers respond.
    Late(Error),
    Failed(Error),
}

/// The server that keeps a hold, or several that keep it together.
pub(crate) trait Backing: Send + Sync {
    /// Queues the release; [`deliver`](Self::deliver) sends it. With `undo` it is normal that Redis no longer knows the hold.
    fn release(&self, hold: &Hold, undo: bool, now: Instant) -> Arc<Call>;

    /// Sends a release that was queued, over new connections where the old ones were closed.
    fn deliver(&self, release: &Call);

    /// Releases what Redis may still keep of a hold that is over.
    fn give_back(&self, hold: &Hold);

    /// Has the watchdog write and read what is left.
    fn housekeep_soon(&self);

    /// Waits for the reply to a release; returns why the hold was already lost, if it was. `in_time`: it was certainly ours
    /// when it was released.
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

    /// How many of several servers certainly keep it.
    fn nodes_held(&self) -> usize {
        0
    }
}

/// Something the watchdog renews, or whose end it reports.
pub(crate) trait Renewable: Scheduled + Send + Sync {
    /// The lock's name, for the log.
    fn name(&self) -> &str;

    /// Whether it still needs the watchdog.
    fn is_held(&self) -> bool;

    /// Itself, by the schedule that it is on.
    fn armed(self: Arc<Self>) -> Armed;

    /// What the watchdog has to do about it at `now`. A node's hold does most of that itself, here.
    fn attend(self: Arc<Self>, now: Instant) -> Duty;

    /// Whether its renewal may be sent early, together with those that are due at `now`.
    fn may_be_early(&self, now: Instant) -> bool;

    /// When it ends unless it is renewed. What ends first is renewed first.
    fn ends(&self) -> Instant;

    fn lease(&self) -> Duration;

    /// When it is due again, if no reply has come by `at`.
    fn look_again(&self, at: Instant) -> Instant;

    /// The request that renews it.
    fn request(&self) -> Request;

    /// What the `reply` to a request sent at `sent_at` means.
    fn complete(self: Arc<Self>, reply: Value, sent_at: Instant) -> Next;

    /// What it means that the server found a key of another type.
    fn was_overwritten(self: Arc<Self>, sent_at: Instant) -> Next;

    /// The server did not answer, or refused.
    fn could_not_be_renewed(&self);

    /// It is lost for this reason; if it turns out to be held after all, returns when it is due again.
    fn lose(self: Arc<Self>, sink: &dyn LossSink, reason: LossReason) -> Option<Instant>;

    /// Its client is being closed.
    fn close(self: Arc<Self>, sink: &dyn LossSink);
}

/// What is on a schedule of the watchdog. There may be many holds, so they have one with smaller pointers.
pub(crate) enum Armed {
    Hold(Arc<Hold>),
    /// What one node keeps of a hold. Such a hold is counted once, not once per node.
    Node(Arc<dyn Renewable>),
}

/// What follows from the reply to a renewal.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Nothing,
    /// It was renewed, and is due again then.
    Renewed(Instant),
    /// It is due again then.
    Look(Instant),
    Lost(LossReason),
}

impl Hold {
    /// A hold that is about to be requested. It becomes valid with [`Hold::grant`].
    pub(crate) fn new(
        entry: Arc<Entry>,
        mode: Mode,
        number: OwnerNumber,
        lease: LeasePolicy,
        ttl: Duration,
    ) -> Self {
        Self {
            entry: Some(entry),
            mode,
            number,
            state: AtomicU8::new(HELD),
            asked_at: AtomicU64::new(0),
            valid_until: AtomicU64::new(0),
            lease: Mutex::new(Lease::new(lease, ttl)),
            count: AtomicU32::new(1),
            times: Times::default(),
            extras: OnceLock::new(),
        }
    }

    /// The same, kept by several servers. What each of them keeps is renewed separately; the watchdog only has to notice
    /// when the hold is over.
    pub(crate) fn backed_by(self, backing: Arc<dyn Backing>) -> Self {
        let lease = self.lease.into_inner().renewed_by(RenewedBy::Nodes);
        let mut extras = self.extras.into_inner().unwrap_or_default();
        extras.backing = Some(backing);
        Self {
            lease: Mutex::new(lease),
            extras: OnceLock::from(extras),
            ..self
        }
    }

    /// The same, but Redis knows it under another id than that of its number.
    pub(crate) fn known_as(self, owner: OwnerId) -> Self {
        let mut extras = self.extras.into_inner().unwrap_or_default();
        extras.owner = OnceLock::from(owner);
        Self {
            extras: OnceLock::from(extras),
            ..self
        }
    }

    /// Its owner as Redis knows it. Made anew, since many holds are kept and few are asked.
    pub(crate) fn owner(&self) -> OwnerId {
        let known = self.extras.get().and_then(|extras| extras.owner.get());
        known.cloned().unwrap_or_else(|| self.owner_by_number())
    }

    /// The same, kept from now on.
    pub(crate) fn owner_ref(&self) -> &str {
        let owner = &self.extras().owner;
        owner.get_or_init(|| self.owner_by_number())
    }

    fn owner_by_number(&self) -> OwnerId {
        self.entry().common().id(self.number)
    }

    /// What its client keeps for the lock's name.
    pub(crate) fn entry(&self) -> &Arc<Entry> {
        let entry = self.entry.as_ref();
        entry.expect("nobody refers to a spare hold")
    }

    /// The servers that keep it, if they are several.
    pub(crate) fn backing(&self) -> Option<&dyn Backing> {
        self.extras.get()?.backing.as_deref()
    }

    fn extras(&self) -> &Extras {
        self.extras.get_or_init(Box::default)
    }

    /// Its contender has left a subscription behind, for the lock's name with this index.
    pub(crate) fn has_listened_for(&self, index: usize) {
        let next = u32::try_from(index + 1).unwrap_or(0);
        self.extras().listened_for.store(next, Ordering::Relaxed);
    }

    /// The channel on which that may linger.
    pub(crate) fn listened_to(&self) -> Option<Arc<str>> {
        let listened_for = self.extras.get()?.listened_for.load(Ordering::Relaxed);
        let index = listened_for.checked_sub(1)?;
        Some(
            self.entry()
                .protocol
                .channel_at(usize::try_from(index).ok()?),
        )
    }

    /// Changes the lease, and stores until when the hold is certain.
    fn change<T>(&self, change: impl FnOnce(&mut Lease) -> T) -> T {
        let mut lease = self.lease.lock();
        let changed = change(&mut lease);
        self.valid_until.store(lease.until(), Ordering::Release);
        changed
    }

    /// Redis has granted it. The acquire was sent no earlier than `sent_at`.
    pub(crate) fn grant(&self, sent_at: Instant) {
        self.asked_at.store(time::nanos(sent_at), Ordering::Relaxed);
        self.change(|lease| {
            let now = match lease.needs_now() {
                true => Instant::now(),
                false => sent_at,
            };
            lease.grant(sent_at, now);
        });
    }

    /// When the acquire that was granted was sent.
    pub(crate) fn asked_at(&self) -> Instant {
        time::instant(self.asked_at.load(Ordering::Relaxed))
    }

    /// Whether it was granted after `other`: Redis executes requests in the order in which they are sent.
    pub(crate) fn is_later_than(&self, other: &Self) -> bool {
        self.asked_at.load(Ordering::Relaxed) > other.asked_at.load(Ordering::Relaxed)
    }

    pub(crate) fn valid_until(&self) -> Instant {
        time::instant(self.valid_until.load(Ordering::Acquire))
    }

    /// Tokens `first` to `last` were drawn for this hold.
    pub(crate) fn has_tokens(&self, first: u64, last: u64) {
        let extras = self.extras();
        extras.last_token.store(last, Ordering::Relaxed);
        extras.token.store(first, Ordering::Relaxed);
    }

    /// The token of the thread that has the hold now; zero without tokens.
    pub(crate) fn token(&self) -> u64 {
        let extras = self.extras.get();
        extras.map_or(0, |extras| extras.token.load(Ordering::Relaxed))
    }

    /// Whether there is a token for the next thread, if each needs one.
    fn has_next_token(&self) -> bool {
        self.extras.get().is_none_or(|extras| {
            let token = extras.token.load(Ordering::Relaxed);
            token == 0 || token < extras.last_token.load(Ordering::Relaxed)
        })
    }

    /// The hold changes threads. The listeners and the count of the thread that had it do not.
    pub(crate) fn change_threads(&self) {
        self.count.store(1, Ordering::Relaxed);
        if let Some(extras) = self.extras.get() {
            *extras.listeners.lock() = Vec::new();
            if extras.token.load(Ordering::Relaxed) != 0 {
                extras.token.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Whether it is certainly still ours by the clock.
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
            .and_then(|index| LossReason::ALL.get(usize::from(index)).copied())
    }

    /// Redis has confirmed the hold for `ttl` from `sent_at` on. Never shortens.
    pub(crate) fn extend(&self, sent_at: Instant, ttl: Duration) {
        self.change(|lease| lease.extend(sent_at, ttl, Instant::now()));
    }

    /// See [`Lease::was_renewed`].
    pub(crate) fn was_renewed(&self, sent_at: Instant) {
        self.change(|lease| lease.was_renewed(sent_at, Instant::now()));
    }

    /// See [`Lease::majority_keeps_until`].
    pub(crate) fn majority_keeps_until(&self, until: Instant) -> bool {
        self.change(|lease| lease.majority_keeps_until(until, Instant::now()))
    }

    /// See [`Lease::change`].
    pub(crate) fn change_lease(&self, policy: LeasePolicy, ttl: Duration) {
        self.change(|lease| lease.change(policy, ttl, Instant::now()));
    }

    /// See [`Lease::may_last`].
    pub(crate) fn may_last(&self, ttl: Duration) {
        self.lease.lock().may_last(ttl);
    }

    /// See [`Lease::ask_for`].
    pub(crate) fn ask_for_lease(&self, asked_at: Instant, ttl: Duration) {
        self.change(|lease| lease.ask_for(asked_at, ttl));
    }

    /// See [`Lease::was_set`].
    pub(crate) fn lease_was_set(&self, sent_at: Instant, ttl: Duration) {
        self.change(|lease| lease.was_set(sent_at, ttl));
    }

    /// See [`Lease::lock_was_shortened`].
    pub(crate) fn lock_was_shortened(&self, found: Option<Duration>) {
        self.lease.lock().lock_was_shortened(found);
    }

    /// When it is due for the watchdog, after a grant or renewal sent at `sent_at`.
    pub(crate) fn due_after(&self, sent_at: Instant) -> Instant {
        self.lease.lock().due_after(sent_at, self.mode)
    }

    pub(crate) fn duty(&self, now: Instant) -> Duty {
        if !self.is_held() {
            return Duty::Nothing;
        }
        self.lease.lock().duty(now, self.mode)
    }

    /// For how long a renewal asks.
    pub(crate) fn renewal_lease(&self) -> Duration {
        self.lease.lock().renewal_ttl()
    }

    fn renew_request(&self) -> Request {
        let lease = self.renewal_lease();
        let ends_at = self.permit_ends_at();
        if let Some(request) = self
            .entry()
            .protocol
            .renew_permit(&self.owner(), lease, ends_at)
        {
            return request;
        }
        let count = self.count.load(Ordering::Relaxed);
        self.entry()
            .protocol
            .renew(self.mode, &self.owner(), lease, count)
    }

    /// Redis has said when this permit ends, in milliseconds of its own clock.
    pub(crate) fn ends_at(&self, ends_at: i64) {
        self.extras().ends_at.store(ends_at, Ordering::Relaxed);
    }

    /// Zero for holds that are no permits.
    fn permit_ends_at(&self) -> i64 {
        let extras = self.extras.get();
        extras.map_or(0, |extras| extras.ends_at.load(Ordering::Relaxed))
    }

    /// What the reply to [`renew_request`](Self::renew_request) means. `None`: somebody has changed the lease of a permit, so
    /// it was not renewed and has to be requested again.
    fn renewal(&self, reply: Value) -> std::result::Result<Option<Renewed>, Unexpected> {
        let before = self.permit_ends_at();
        let mut ends_at = before;
        let renewed = self.entry().protocol.renewed(reply, &mut ends_at)?;
        if ends_at != before {
            self.ends_at(ends_at);
        }
        Ok(renewed)
    }

    pub(crate) fn lease(&self) -> Duration {
        self.lease.lock().ttl()
    }

    /// How it was taken, or taken last.
    pub(crate) fn lease_policy(&self) -> LeasePolicy {
        self.lease.lock().policy()
    }

    /// The request that releases it.
    pub(crate) fn release(&self, undo: bool, now: Instant) -> Deferred {
        self.release_of(&self.owner(), undo, now)
    }

    /// The request that releases what Redis keeps of it for this owner.
    pub(crate) fn release_of(&self, owner: &str, undo: bool, now: Instant) -> Deferred {
        let longest = self.lease.lock().longest();
        // A frozen server executes the acquire when it resumes, and the lease begins only then.
        let after = if undo { longest.max(UNDO_FOR) } else { longest };
        self.entry()
            .release(self.mode, owner, self.valid_until().max(now) + after, undo)
    }

    /// The holder releases it; `false` if it was lost before.
    pub(crate) fn end(&self) -> bool {
        self.state
            .compare_exchange(HELD, RELEASED, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// Whether to send a release although the hold was lost: Redis may keep it, or the other names or servers may if it
    /// has several.
    pub(crate) fn may_still_be_held(&self) -> bool {
        let many = self.entry().protocol.kind().is_set() || self.backing().is_some();
        self.loss()
            .is_some_and(|reason| many || reason.may_still_be_held())
    }

    /// Marks it lost and notifies its own listeners; `None` if it was over already.
    pub(crate) fn lose(&self, reason: LossReason) -> Option<Loss> {
        let index = LossReason::ALL.iter().position(|other| *other == reason)?;
        let lost = LOST + u8::try_from(index).ok()?;
        // A renewal may have been confirmed since the caller found that its time was over.
        let lease = self.lease.lock();
        let timed = matches!(reason, LossReason::Expired | LossReason::Unreachable);
        if timed && Instant::now() < self.valid_until() {
            return None;
        }
        self.state
            .compare_exchange(HELD, lost, Ordering::AcqRel, Ordering::Acquire)
            .ok()?;
        drop(lease);
        let loss = self.loss_for(reason);
        // Even if there were no extras: under their mutex, a thread that listens later sees the loss.
        for listener in std::mem::take(&mut *self.extras().listeners.lock()) {
            listener.notify(&loss);
        }
        Some(loss)
    }

    fn loss_for(&self, reason: LossReason) -> Loss {
        Loss {
            name: self.entry().name().to_string(),
            owner: self.owner().to_string(),
            reason,
        }
    }
}

impl Losable for Hold {
    fn listen(&self, listener: LossListener) {
        let mut listeners = self.extras().listeners.lock();
        match self.loss() {
            Some(reason) => listener.notify(&self.loss_for(reason)),
            None => {
                if listeners.len() == listeners.capacity() {
                    // A shared hold outlives many of its guards.
                    listeners.retain(LossListener::is_alive);
                }
                listeners.push(listener);
            }
        }
    }
}

impl Hold {
    fn validity(&self, lease: Duration) -> Validity {
        Validity {
            // A lost hold is not handed over, even if the local lock has not been notified yet.
            until: Moment::of(if self.is_held() {
                self.valid_until.load(Ordering::Acquire)
            } else {
                0
            }),
            lease,
            complete: self.has_next_token(),
        }
    }

    /// How long it is valid, to be handed over as it is; `None` if there is more to do then, or another thread has one of
    /// its mutexes.
    pub(crate) fn simple_validity(&self) -> Option<Validity> {
        let is_simple = self.extras.get().is_none();
        let lease = self.lease.try_lock().filter(|_| is_simple)?.ttl();
        Some(self.validity(lease))
    }
}

impl Holding for Arc<Hold> {
    fn validity(&self) -> Validity {
        Hold::validity(self, self.lease())
    }
}

impl Scheduled for Hold {
    fn number(&self) -> u64 {
        self.number.0
    }

    fn times(&self) -> &Times {
        &self.times
    }
}

impl Renewable for Hold {
    fn name(&self) -> &str {
        self.entry().name()
    }

    fn armed(self: Arc<Self>) -> Armed {
        Armed::Hold(self)
    }

    fn is_held(&self) -> bool {
        self.is_held()
    }

    fn attend(self: Arc<Self>, now: Instant) -> Duty {
        let duty = self.duty(now);
        if duty == Duty::Renew {
            // If it is not confirmed in time, the hold is lost as unreachable.
            self.lease.lock().renewal_failed();
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
        self.lease.lock().look_again(at)
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
                report!(Warn, "renewing `{}`: {unexpected}", self.entry().name());
                return Next::Lost(LossReason::TakenOver);
            }
        };
        // After its time the key is gone because it expired, not because somebody removed it.
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
        self.lease.lock().renewal_failed();
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
    /// Always safe: an acquire of unknown outcome is never repeated with the same number, so nothing that is held has it.
    fn undo(&self) -> Option<Deferred> {
        Some(self.release(true, Instant::now()))
    }
}

impl PartialEq for Hold {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}
