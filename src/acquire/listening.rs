//! The waiter of a thread, and its subscription, or its subscriptions at several servers.

use std::cell::OnceCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::acquire::spec::LockSpec;
use crate::hold::{WaitingThread, Wakeup};
use crate::local::waiter::Signals;
use crate::net::channels::Listener;
use crate::net::subscriber::Subscription;
use crate::quorum::ask::Quorum;
use crate::report::report;
use crate::session::Session;
use crate::time::Deadline;

/// The waiter of one thread, made when it is needed, and its subscription: to one channel at a time, or to the channel
/// of a lock at each of its masters.
#[derive(Default)]
pub(crate) struct Listening {
    /// The command timeout of the thread's handle.
    command_timeout: Duration,
    waiter: OnceCell<Arc<WaitingThread>>,
    /// The thread has begun its first park, so a cancelled token or the closing of the client wakes it.
    has_parked: bool,
    /// The thread has begun to listen, or knows that nothing is announced.
    has_begun: bool,
    /// Empty if nothing is announced; one subscription for each master of a quorum.
    subscriptions: Vec<Subscription>,
    /// How many subscriptions are enough: so many that the masters without one are too few for a majority. Then every
    /// majority that grants the lock contains a master to which this thread listens.
    needed: usize,
    /// When the wait began, and when it is logged next.
    long_wait: Option<(Instant, Option<Instant>)>,
}

/// The subscription of a thread at one of several masters.
///
/// Every master that kept the lock announces its release, so the thread may be woken several times for one release. Only
/// the first wake-up is needed. The others may make the thread ask again, although nothing has changed.
struct AtNode {
    node: usize,
    /// Which masters have answered the subscription, by node.
    answered: Arc<Mutex<Vec<bool>>>,
    needed: usize,
    waiter: Arc<WaitingThread>,
}

impl Listener for AtNode {
    fn message(&self) {
        self.waiter.message();
    }

    fn set_answered(&self, is_answered: bool) {
        let mut answered = self.answered.lock();
        answered[self.node] = is_answered;
        let count = answered.iter().filter(|is_answered| **is_answered).count();
        // The subscribers of several masters come here at the same time. The mutex is held, so that the last count is
        // the one that is stored.
        self.waiter.set_answered(count >= self.needed);
    }
}

impl Listening {
    pub(crate) fn new(command_timeout: Duration) -> Self {
        Self {
            command_timeout,
            ..Self::default()
        }
    }

    pub(crate) fn waiter(&self) -> &Arc<WaitingThread> {
        self.waiter
            .get_or_init(|| WaitingThread::new(self.command_timeout))
    }

    /// The waiter, if there is one by now.
    pub(crate) fn known_waiter(&self) -> Option<&Arc<WaitingThread>> {
        self.waiter.get()
    }

    /// The signals so far. A thread reads them before a request whose reply may lead to a park.
    pub(crate) fn signals(&self) -> Signals {
        let waiter = self.known_waiter();
        waiter.map_or_else(Signals::default, |waiter| waiter.signals())
    }

    /// Whether another thread of this process has woken this one.
    pub(crate) fn has_wakeup(&self) -> bool {
        self.is_woken(|_| true)
    }

    /// Whether a thread of this process has woken it, for a reason that `is_such` accepts.
    pub(crate) fn is_woken(&self, is_such: impl FnOnce(&Wakeup) -> bool) -> bool {
        let waiter = self.known_waiter();
        waiter.is_some_and(|waiter| waiter.is_woken(is_such))
    }

    pub(crate) fn take_wakeup(&self) -> Option<Wakeup> {
        self.known_waiter()?.take_wakeup()
    }

    /// Whether its thread has spent time waiting.
    pub(crate) fn has_parked(&self) -> bool {
        self.has_parked
    }

    /// Parks until another thread of this process has woken this one, there is news since `known_signals`, `stop` returns
    /// true, or the deadline has passed. Threads that wait for others park only here; other pauses are short. A long wait
    /// is logged, with how long the lease of the holder still lasts, if that is known.
    pub(crate) fn park(
        &mut self,
        spec: &LockSpec,
        known_signals: Signals,
        until: Deadline,
        lease_left: impl Fn(Instant) -> Option<Duration>,
        stop: &dyn Fn() -> bool,
    ) {
        if !std::mem::replace(&mut self.has_parked, true) {
            // The tokens are watched before `WaitingThread::park` checks them: one cancelled before the check is found by
            // it, one cancelled afterwards wakes the waiter.
            let tokens = spec.cancel.iter().chain([&spec.session().closing]);
            tokens.for_each(|token| token.watch(self.waiter()));
        }
        if until == Deadline::NEVER {
            spec.session().ask_for_reminders();
        }
        let waiting = &spec.session().counters.waiting;
        waiting.fetch_add(1, Ordering::Relaxed);
        self.subscriptions.iter().for_each(Subscription::check);
        loop {
            let now = Instant::now();
            let log_due = self.log_long_wait(spec, now, || lease_left(now));
            // A wait with a deadline costs the system half a microsecond more, a tenth of a hand-over among eight threads.
            // So a wait without a deadline is not given one just to log: the watchdog wakes such threads now and then.
            let wakes_at = match (until.instant(), log_due) {
                (Some(until), Some(due)) => Deadline::at(until.min(due)),
                _ => until,
            };
            let is_over = self.waiter().park(known_signals, wakes_at, stop);
            if is_over || until.has_passed(Instant::now()) {
                break;
            }
        }
        waiting.fetch_sub(1, Ordering::Relaxed);
    }

    /// Logs a long wait, with the time left on the holder's lease, if that is known. Returns when to log next, if ever.
    /// The wait begins with the first call.
    fn log_long_wait(
        &mut self,
        spec: &LockSpec,
        now: Instant,
        lease_left: impl FnOnce() -> Option<Duration>,
    ) -> Option<Instant> {
        let after = spec.session().log_long_waits;
        let first = || now.checked_add(after).filter(|_| !after.is_zero());
        let (began, due) = self.long_wait.get_or_insert_with(|| (now, first()));
        if due.is_some_and(|due| now >= due) {
            let (waited, name, kind) = (now - *began, &spec.name, spec.key.kind);
            *due = now.checked_add(waited);
            let lease = lease_left().map_or_else(String::new, |lease_left| {
                format!("; the lease of its holder lasts another {lease_left:.1?}")
            });
            report!(
                Info,
                "waiting for `{name}` ({kind:?}) for {waited:.1?} now{lease}"
            );
        }
        *due
    }

    /// Whether the thread has begun to listen, and its channel has not moved to another node of the cluster.
    pub(crate) fn has_begun(&self) -> bool {
        self.has_begun && !self.subscriptions.iter().any(Subscription::has_moved)
    }

    /// Ends the subscriptions, until the thread begins again.
    pub(crate) fn end(&mut self) {
        self.has_begun = false;
        self.subscriptions.clear();
    }

    /// Listens to `channel` from now on, and to no other channel.
    pub(crate) fn begin(&mut self, session: &Arc<Session>, channel: Option<Arc<str>>) {
        // The earlier subscription ends before the next one begins, since a confirmation does not say to which of two
        // it belongs.
        self.end();
        (self.has_begun, self.needed) = (true, 1);
        if let Some(channel) = channel {
            let subscription = session.subscriber.subscribe(&channel, self.waiter());
            self.subscriptions.push(subscription);
        }
    }

    /// Listens at all masters of a quorum from now on. If some are unreachable, `needed` subscriptions are enough.
    pub(crate) fn begin_at_each(&mut self, quorum: &Quorum) {
        self.end();
        let needed = quorum.majority().blocking();
        (self.has_begun, self.needed) = (true, needed);
        let waiter = Arc::clone(self.waiter());
        waiter.set_answered(false);
        let answered = Arc::new(Mutex::new(vec![false; quorum.majority().nodes()]));
        let subscribe = |(node, (session, channel)): (usize, (&Arc<Session>, Arc<str>))| {
            let listener = Arc::new(AtNode {
                node,
                answered: Arc::clone(&answered),
                needed,
                waiter: Arc::clone(&waiter),
            });
            session.subscriber.subscribe(&channel, &listener)
        };
        let subscriptions = quorum.channels().enumerate().map(subscribe);
        self.subscriptions = subscriptions.collect();
    }

    /// Whether messages can arrive: the server has not rejected the subscription.
    pub(crate) fn is_notified(&self) -> bool {
        let subscriptions = self.subscriptions.iter();
        let accepted = subscriptions
            .filter(|subscription| !subscription.is_refused())
            .count();
        self.is_subscribed() && accepted >= self.needed
    }

    /// Whether the thread has a subscription, confirmed or not.
    pub(crate) fn is_subscribed(&self) -> bool {
        !self.subscriptions.is_empty()
    }

    /// Ends the wait. If there was a message or a confirmation lately, the subscription ends a little later, and the
    /// thread need not write UNSUBSCRIBE now. Returns whether the thread listened.
    pub(crate) fn leave(&mut self) -> bool {
        let has_listened = self.is_subscribed();
        self.subscriptions.drain(..).for_each(Subscription::leave);
        has_listened
    }
}
