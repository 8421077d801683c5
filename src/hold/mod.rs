//! A hold on a lock: how long it certainly lasts, when it is renewed, and the server or servers that keep it.

pub(crate) mod entry;
pub(crate) mod loss;
pub(crate) mod permits;
pub(crate) mod places;
mod registry;
pub(crate) mod releases;
pub(crate) mod renewal;
pub(crate) mod schedule;
pub(crate) mod validity;
pub(crate) mod watchdog;

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use redis::Value;

pub(crate) use self::entry::{Entry, WaitingThread, Wakeup};
pub(crate) use self::registry::Registry;
use crate::error::{Error, Loss, LossReason, Result};
use crate::hold::loss::{LossListener, add_listener};
use crate::hold::schedule::Times;
use crate::hold::validity::{Duty, Lease};
use crate::local::lock::{Holding, LeasePolicy, Mode, Validity};
use crate::net::call::{Call, Deferred, Undo};
use crate::net::request::Request;
use crate::observer::Observed;
use crate::protocol;
use crate::protocol::owner::{OwnerId, OwnerNumber};
use crate::protocol::script::{Released, Renewed, Unexpected};
use crate::time;

/// How long to keep sending the undo of an acquire with unknown outcome: for this long the server may still execute the
/// acquire.
pub(crate) const UNDO_FOR: Duration = Duration::from_secs(3600);

std::thread_local! {
    static GUARDS: Cell<usize> = const { Cell::new(0) };
}

/// The type that the compiler names when a bound guard would go to another thread.
pub(crate) enum GuardStaysOnItsThreadUnlessTakenByLockOwned {}

type NotSend = std::sync::MutexGuard<'static, GuardStaysOnItsThreadUnlessTakenByLockOwned>;

/// The marker of a [`Guard`](crate::Guard) that stays on its thread: `Sync`, but not `Send`.
#[derive(Debug)]
pub struct Bound(PhantomData<NotSend>);

impl Bound {
    pub(crate) fn new() -> Self {
        GUARDS.with(|guards| guards.set(guards.get() + 1));
        Self(PhantomData)
    }

    /// Whether the calling thread has any bound guard, and so may hold something.
    pub(crate) fn has_some() -> bool {
        GUARDS.with(|guards| guards.get() > 0)
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        GUARDS.with(|guards| guards.set(guards.get() - 1));
    }
}

const HELD: u8 = 0;
const RELEASED: u8 = 1;
const LOST: u8 = 2; // plus the reason's index in ALL

/// An acquisition from Redis.
///
/// Rules on which several files rely:
///
/// 1. `number` belongs to one acquisition and is never used for another, so a late or repeated command affects only the
///    hold for which it was meant.
/// 2. `state` leaves `HELD` once: by [`end`](Self::end), or by [`lose`](Self::lose), whose caller reports the loss.
/// 3. Validity counts from before the first byte of a confirmed request was sent, so it never outlasts the lease in
///    Redis.
/// 4. A hold is on the watchdog's schedule before its guard exists. A thread that ends a hold changes `state` first and then
///    takes the hold off. The watchdog's thread takes a due hold off for a moment, although it is `HELD`, and puts it back.
///    `state` is checked under the mutex of the schedule, so a hold that is over never gets back onto it. Closing the client
///    ends that thread first, then takes off all holds that are left and ends them.
pub(crate) struct Hold {
    entry: Arc<Entry>,
    pub(crate) mode: Mode,
    pub(crate) number: OwnerNumber,
    state: AtomicU8,
    /// When the granted acquire was sent, in [`time::nanos`].
    asked_at: AtomicU64,
    /// A copy of the end of validity in `lease`, readable without the mutex of `lease`. Stored only with that mutex held.
    valid_until: AtomicU64,
    lease: Mutex<Lease>,
    /// The hold count: how many times the holder has locked without unlocking. Renewals write this count to Redis, where
    /// others can see it. Always 1 for a shared hold.
    pub(crate) count: AtomicU32,
    times: Times,
    extras: OnceLock<Box<HoldExtras>>,
}

/// Fields that few holds need; made when the first of them is.
#[derive(Default)]
struct HoldExtras {
    /// The owner id, if it was given, or once [`owner_ref`](Hold::owner_ref) has made it from the number.
    owner: OnceLock<OwnerId>,
    /// The parts that several servers keep; `None` if the client's own server keeps the hold.
    several: Option<Arc<dyn Several>>,
    /// For a part: the whole hold, and the number of the part's server.
    whole: Option<(Weak<Hold>, usize)>,
    /// The token of the thread that has the hold now, and the last one drawn for the hold; zero without tokens.
    token: AtomicU64,
    last_token: AtomicU64,
    /// The end of the permit according to the last reply, in milliseconds of the server's clock. A renewal carries it, and
    /// does nothing if somebody else has changed the end since.
    ends_at: AtomicI64,
    /// Until when the name stays taken in Redis after the release, in [`time::nanos`]; zero if the release frees the name
    /// at once.
    kept_until: AtomicU64,
    /// A guarded command has no answer, and may still run for as long as Redis keeps the hold.
    unanswered: AtomicBool,
    /// This process may still be subscribed to the lock's channel when the hold is released: the thread that acquired the
    /// hold listened there, or an earlier one did.
    listened: AtomicBool,
    listeners: Mutex<Vec<LossListener>>,
    /// The threads whose hold was reported to an observer. An element is removed when the share of its thread ends. The
    /// code that removes it reports that end, so each end is reported once. Once the hold is lost, only
    /// [`Hold::take_observed`] removes elements.
    observed: Mutex<Vec<Watched>>,
}

/// A thread's share of a hold, whose end is reported to an observer.
pub(crate) struct Watched {
    thread: u64,
    /// How many guards the thread has.
    guards: u32,
    pub(crate) observed: Box<Observed>,
}

/// The request of a thread that locks a hold of fixed lease again.
pub(crate) struct Reentry<'a> {
    /// The policy from now on, and the lease to request (`ttl`).
    pub(crate) lease: LeasePolicy,
    pub(crate) ttl: Duration,
    /// How often the thread will have the lock if this succeeds.
    pub(crate) count: u32,
    pub(crate) until: Instant,
    pub(crate) stop: &'a dyn Fn() -> bool,
}

/// Why a renewal for which the holder waits has no answer.
pub(crate) enum NotRenewed {
    /// `Reentry::stop` ended the wait.
    Stopped,
    /// The time was up, although the servers respond.
    Late(Error),
    Failed(Error),
}

/// The parts of a hold that several servers keep. Each part is a hold of its own.
pub(crate) trait Several: Send + Sync {
    /// How many of the servers certainly keep their parts.
    fn held(&self) -> usize;

    /// A part was renewed.
    fn part_is_kept(&self, node: usize);

    /// The part of server `node` no longer counts. Either the server does not keep it any more, or that is unknown, or the
    /// server's client is being closed.
    fn part_is_lost(&self, node: usize, why: LossReason);

    /// Ends all parts and queues their releases. Returns one of these calls, or a call that is never sent if there is
    /// nothing to release.
    fn release(&self) -> Arc<Call>;

    /// Sends what is queued, without waiting, and lets the watchdogs read the replies.
    fn send(&self);

    /// Waits for the replies to the releases; see [`lost_before`].
    fn released(&self, in_time: bool, until: Instant) -> Result<Option<LossReason>>;

    /// Renews the whole because its holder locks it again.
    fn renew(&self, again: &Reentry<'_>) -> std::result::Result<(Renewed, Instant), NotRenewed>;
}

/// Returns why a hold was lost before its release, according to the reply to the release; `None` if it was not lost.
/// `replayed`: the release was sent twice. `in_time`: the hold was valid when it was released.
pub(crate) fn lost_before(released: Released, replayed: bool, in_time: bool) -> Option<LossReason> {
    let why = released.err()?;
    // If the release was sent twice, the first copy may have been executed, and another owner may have the lock by now. If
    // the hold was valid when it was released, that is no loss.
    (!(replayed && in_time)).then(|| why.or_expired(in_time))
}

impl Hold {
    /// A hold that is about to be requested. [`Hold::grant`] makes it valid.
    pub(crate) fn new(
        entry: Arc<Entry>,
        mode: Mode,
        number: OwnerNumber,
        lease: LeasePolicy,
        ttl: Duration,
    ) -> Self {
        Self {
            entry,
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

    /// Makes this the whole of a hold whose parts `several` keeps. The watchdogs renew the parts separately; for the
    /// whole, only `max_hold` is checked.
    pub(crate) fn kept_by(mut self, several: Arc<dyn Several>) -> Self {
        self.lease.get_mut().set_has_parts();
        self.extras_mut().several = Some(several);
        self
    }

    /// Makes `owner` the id by which Redis knows the hold, instead of the id made from its number.
    pub(crate) fn known_as(mut self, owner: OwnerId) -> Self {
        self.extras_mut().owner = OnceLock::from(owner);
        self
    }

    /// Makes the hold the part of `whole` that server `node` keeps.
    pub(crate) fn part_of(mut self, whole: Weak<Self>, node: usize) -> Self {
        self.extras_mut().whole = Some((whole, node));
        self
    }

    fn extras_mut(&mut self) -> &mut HoldExtras {
        self.extras();
        self.extras.get_mut().expect("just made")
    }

    pub(crate) fn is_part(&self) -> bool {
        let extras = self.extras.get();
        extras.is_some_and(|extras| extras.whole.is_some())
    }

    /// For a part: the hold to which it belongs, if that still exists, and the number of the part's server.
    pub(crate) fn whole(&self) -> Option<(Option<Arc<Self>>, usize)> {
        let (whole, node) = self.extras.get()?.whole.as_ref()?;
        Some((whole.upgrade(), *node))
    }

    /// The owner as Redis knows it. Made on each call, to keep holds small: few need their owner.
    pub(crate) fn owner(&self) -> OwnerId {
        let known = self.extras.get().and_then(|extras| extras.owner.get());
        known.cloned().unwrap_or_else(|| self.owner_by_number())
    }

    /// The owner as Redis knows it, stored from now on.
    pub(crate) fn owner_ref(&self) -> &str {
        let owner = &self.extras().owner;
        owner.get_or_init(|| self.owner_by_number())
    }

    fn owner_by_number(&self) -> OwnerId {
        self.entry().owners().id(self.number)
    }

    /// The client's entry for the lock's name.
    pub(crate) fn entry(&self) -> &Arc<Entry> {
        &self.entry
    }

    /// The parts of the hold, if several servers keep it.
    pub(crate) fn several(&self) -> Option<&dyn Several> {
        self.extras.get()?.several.as_deref()
    }

    fn extras(&self) -> &HoldExtras {
        self.extras.get_or_init(Box::default)
    }

    /// A guarded command of the holder has no answer. The hold is not handed over after that, since the command might
    /// run under the next holder: Redis knows both by the same number.
    pub(crate) fn record_unanswered(&self) {
        self.extras().unanswered.store(true, Ordering::Relaxed);
    }

    fn is_unanswered(&self) -> bool {
        let extras = self.extras.get();
        extras.is_some_and(|extras| extras.unanswered.load(Ordering::Relaxed))
    }

    /// Records that this process may still be subscribed to the lock's channel.
    pub(crate) fn record_subscription(&self) {
        self.extras().listened.store(true, Ordering::Relaxed);
    }

    /// The channel to which this process may still be subscribed when the hold is released.
    pub(crate) fn listened_to(&self) -> Option<Arc<str>> {
        let listened = self.extras.get()?.listened.load(Ordering::Relaxed);
        listened.then(|| self.entry().protocol.channel())
    }

    /// Runs `with` on the lease, with its mutex held. Only [`change`](Self::change) may move the end of the lease, because it
    /// also stores the new end.
    pub(crate) fn with_lease<T>(&self, with: impl FnOnce(&mut Lease) -> T) -> T {
        with(&mut self.lease.lock())
    }

    /// Changes the lease, and stores until when the hold is valid.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Lease)) {
        let mut lease = self.lease.lock();
        change(&mut lease);
        // Stored with the mutex held, so the later of two changes is stored last.
        self.valid_until.store(lease.until(), Ordering::Release);
    }

    /// Redis has granted the hold. The acquire was sent no earlier than `sent_at`.
    pub(crate) fn grant(&self, sent_at: Instant) {
        self.asked_at.store(time::nanos(sent_at), Ordering::Relaxed);
        self.change(|lease| {
            // A `max_hold` counts from when the grant is noticed. Without one, the clock need not be read.
            let now = match lease.is_limited() {
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

    /// Whether the hold was granted after `other`. The send times tell, since Redis executes the requests of a connection
    /// in order.
    pub(crate) fn is_later_than(&self, other: &Self) -> bool {
        self.asked_at.load(Ordering::Relaxed) > other.asked_at.load(Ordering::Relaxed)
    }

    pub(crate) fn valid_until(&self) -> Instant {
        time::instant(self.valid_until.load(Ordering::Acquire))
    }

    /// Tokens `first` to `last` were drawn for this hold.
    pub(crate) fn set_tokens(&self, first: u64, last: u64) {
        let extras = self.extras();
        extras.last_token.store(last, Ordering::Relaxed);
        extras.token.store(first, Ordering::Relaxed);
    }

    /// The token of the thread that has the hold now; zero without tokens.
    pub(crate) fn token(&self) -> u64 {
        let extras = self.extras.get();
        extras.map_or(0, |extras| extras.token.load(Ordering::Relaxed))
    }

    /// Whether there is a token for the next thread, if each thread needs one.
    fn has_next_token(&self) -> bool {
        self.extras.get().is_none_or(|extras| {
            let token = extras.token.load(Ordering::Relaxed);
            token == 0 || token < extras.last_token.load(Ordering::Relaxed)
        })
    }

    /// The hold changes threads, with the entry's mutex held. The listeners and the count of the leaving thread end
    /// here.
    pub(crate) fn change_threads(&self) {
        self.count.store(1, Ordering::Relaxed);
        if let Some(extras) = self.extras.get() {
            *extras.listeners.lock() = Vec::new();
            if extras.token.load(Ordering::Relaxed) != 0 {
                extras.token.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Whether the hold has not ended, and certainly still lasts by the clock.
    pub(crate) fn is_valid(&self, now: Instant) -> bool {
        self.is_held() && time::nanos(now) < self.valid_until.load(Ordering::Acquire)
    }

    pub(crate) fn is_held(&self) -> bool {
        self.state.load(Ordering::Acquire) == HELD
    }

    /// Why the hold was lost, if it was.
    pub(crate) fn loss(&self) -> Option<LossReason> {
        let state = self.state.load(Ordering::Acquire);
        state
            .checked_sub(LOST)
            .and_then(|index| LossReason::ALL.get(usize::from(index)).copied())
    }

    /// When the hold is due for the watchdog, in [`time::nanos`], after a grant or renewal sent at `sent_at`.
    pub(crate) fn due_after(&self, sent_at: Instant) -> u64 {
        self.lease.lock().due_after(sent_at, self.mode)
    }

    pub(crate) fn duty(&self, now: Instant) -> Duty {
        if !self.is_held() {
            return Duty::Nothing;
        }
        self.lease.lock().duty(now, self.mode)
    }

    /// A reply says that this permit ends at `ends_at`, in milliseconds of the server's clock.
    pub(crate) fn set_ends_at(&self, ends_at: i64) {
        self.extras().ends_at.store(ends_at, Ordering::Relaxed);
    }

    /// When the permit ends by the last reply; zero for holds that are no permits.
    fn permit_ends_at(&self) -> i64 {
        let extras = self.extras.get();
        extras.map_or(0, |extras| extras.ends_at.load(Ordering::Relaxed))
    }

    /// The request that renews the hold for `lease`, and writes how often the holder has it.
    pub(crate) fn renew_for(&self, lease: Duration, count: u32) -> Request {
        self.entry().protocol.renew(&protocol::kind::RenewalArgs {
            mode: self.mode,
            owner: self.owner().as_bytes(),
            lease,
            count,
            ends_at: self.permit_ends_at(),
        })
    }

    /// The meaning of the reply to [`renew_request`](Self::renew_request). Stores a permit's new end. `None`: somebody has
    /// changed the lease of a permit, so the renewal did nothing and has to be sent again. Re-entry reads its reply with
    /// `script::renewed` instead, and need not handle `None`: only permits give it, and they are not reentered.
    fn renewal(&self, reply: Value) -> std::result::Result<Option<Renewed>, Unexpected> {
        let previous_end = self.permit_ends_at();
        let mut ends_at = previous_end;
        let renewed = (self.entry().protocol.kind().renewed)(reply, &mut ends_at)?;
        if ends_at != previous_end {
            self.set_ends_at(ends_at);
        }
        Ok(renewed)
    }

    pub(crate) fn lease(&self) -> Duration {
        self.with_lease(|lease| lease.ttl())
    }

    /// Makes the name stay taken in Redis until `until`, even if the hold is released earlier.
    pub(crate) fn keep_until(&self, until: Instant) {
        let until = time::nanos(until);
        self.extras().kept_until.fetch_max(until, Ordering::Relaxed);
    }

    /// Makes the release free the name at once after all; returns until when the name would have stayed taken.
    pub(crate) fn take_kept_until(&self) -> Option<Instant> {
        let until = self.extras.get()?.kept_until.swap(0, Ordering::Relaxed);
        (until > 0).then(|| time::instant(until))
    }

    /// How long the name stays taken if the hold is released `now`; `None` if the release frees it at once. The clock is
    /// read only if the name may stay taken.
    pub(crate) fn kept_for(&self, now: impl FnOnce() -> Instant) -> Option<Duration> {
        let until = self.extras.get()?.kept_until.load(Ordering::Relaxed);
        let time_left = |until| time::instant(until).saturating_duration_since(now());
        (until > 0)
            .then(|| time_left(until))
            .filter(|kept_for| !kept_for.is_zero())
    }

    /// The request that releases the hold.
    pub(crate) fn release(&self, undo: bool, now: Instant) -> Deferred {
        let longest = self.with_lease(|lease| lease.longest());
        // Redis may execute an unanswered renewal as late as the end of the lease. Redis then keeps the hold for up to the
        // longest lease ever requested. So the release stays useful for that long after the validity. An undo is useful
        // for longer: a frozen server executes the acquire, and so begins the lease, only when it resumes.
        let after = if undo { longest.max(UNDO_FOR) } else { longest };
        let useful_until = self.valid_until().max(now) + after;
        let owner = self.owner();
        let entry = self.entry();
        let mut release = match self.kept_for(|| now) {
            Some(kept_for) => {
                let protocol = &entry.protocol;
                let keep = (protocol.kind().keep)(protocol, self.mode, owner.as_bytes(), kept_for);
                entry.deferred(keep, &owner, useful_until, undo)
            }
            None => entry.release(self.mode, &owner, useful_until, undo),
        };
        release.info.valid_until = Some(self.valid_until()).filter(|until| now < *until);
        release
    }

    /// The holder releases the hold; `false` if it was lost before: rule 2.
    pub(crate) fn end(&self) -> bool {
        self.state
            .compare_exchange(HELD, RELEASED, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// Whether to send a release although the hold was lost: its server may still keep it, or some of several servers
    /// may.
    pub(crate) fn may_still_be_held(&self) -> bool {
        let many = self.several().is_some();
        self.loss()
            .is_some_and(|reason| many || reason.may_still_be_held())
    }

    /// Marks the hold lost and notifies its listeners. Does nothing and returns `None` if it was released or lost before,
    /// or is valid after all.
    pub(crate) fn lose(&self, reason: LossReason) -> Option<Loss> {
        let index = LossReason::ALL.iter().position(|other| *other == reason)?;
        let lost = LOST + u8::try_from(index).ok()?;
        // A renewal may have been confirmed since the caller found that the time was over. With the mutex held, none
        // can be confirmed between this check and the change of `state`.
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
        // `listen` and `observe` check `state` with the mutex of their list held, and then add to the list. This thread
        // has changed `state`, and then takes the same mutexes: here that of the listeners, in `take_observed` that of the
        // observed threads. So either they see the loss, or this thread finds what they have added. For that, the extras
        // are made if there are none.
        for listener in std::mem::take(&mut *self.extras().listeners.lock()) {
            listener.notify(&loss);
        }
        Some(loss)
    }

    /// The error for its holder.
    pub(crate) fn lost_error(&self, reason: LossReason) -> Error {
        Error::lost(&**self.entry().name(), reason)
    }

    /// The error for a holder that finds the hold gone: with why it was lost, or `otherwise` if that is unknown.
    pub(crate) fn lost_or(&self, otherwise: LossReason) -> Error {
        self.lost_error(self.loss().unwrap_or(otherwise))
    }

    /// Checks that the hold was not lost.
    pub(crate) fn check_not_lost(&self) -> Result<()> {
        match self.loss() {
            Some(reason) => Err(self.lost_error(reason)),
            None => Ok(()),
        }
    }

    /// Stores that the grant to `thread` was reported to an observer, so that its end is reported too. If the hold was lost
    /// before this call, reports the loss now.
    pub(crate) fn observe(&self, thread: u64, observed: Box<Observed>) {
        // `lose` changes `state` before its caller takes the elements, so either the loss is seen here, or the caller
        // takes the new element too.
        let mut all = self.extras().observed.lock();
        let Some(reason) = self.loss() else {
            all.push(Watched {
                thread,
                guards: 1,
                observed,
            });
            return;
        };
        // The observer is user code, and runs without a mutex.
        drop(all);
        observed.lost(&self.loss_for(reason));
    }

    /// The thread has one more guard.
    pub(crate) fn observe_again(&self, thread: u64) {
        let mut all = self.extras().observed.lock();
        if let Some(watched) = all.iter_mut().find(|watched| watched.thread == thread) {
            watched.guards += 1;
        }
    }

    /// The thread has one guard less. If that was the last one, returns its `Observed`, by which the caller reports the
    /// end.
    pub(crate) fn unobserve(&self, thread: u64) -> Option<Box<Observed>> {
        let mut all = self.extras.get()?.observed.lock();
        // If the hold is lost, the thread that found the loss reports the end.
        if self.loss().is_some() {
            return None;
        }
        let at = all.iter().position(|watched| watched.thread == thread)?;
        all[at].guards -= 1;
        (all[at].guards == 0).then(|| all.swap_remove(at).observed)
    }

    /// Takes out all elements, so that the caller reports the end of each as a loss. The hold is lost already.
    pub(crate) fn take_observed(&self) -> Vec<Watched> {
        let extras = self.extras.get();
        extras.map_or_else(Vec::new, |extras| {
            std::mem::take(&mut *extras.observed.lock())
        })
    }

    pub(crate) fn loss_for(&self, reason: LossReason) -> Loss {
        Loss {
            name: self.entry().name().to_string(),
            owner: self.owner().to_string(),
            reason,
        }
    }

    /// Notifies `listener` of the loss: at once if the hold is lost already, else when it is.
    pub(crate) fn listen(&self, listener: LossListener) {
        let mut listeners = self.extras().listeners.lock();
        match self.loss() {
            Some(reason) => listener.notify(&self.loss_for(reason)),
            None => add_listener(&mut listeners, listener),
        }
    }
}

impl Holding for Arc<Hold> {
    fn validity(&self) -> Validity {
        Validity {
            // The watchdog marks a hold lost before it removes it from the local lock. In between the hold must not be
            // handed over.
            until: match self.is_held() {
                true => self.valid_until(),
                false => time::instant(0),
            },
            lease: self.lease(),
            may_change_threads: self.has_next_token()
                && self.kept_for(Instant::now).is_none()
                && !self.is_unanswered(),
        }
    }
}

impl Undo for Hold {
    /// Always safe: an acquire that is undone is never repeated with the same number, so no valid hold has that number.
    fn undo(&self) -> Deferred {
        self.release(true, Instant::now())
    }
}

impl PartialEq for Hold {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}
