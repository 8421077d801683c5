//! Reports to a program what happens to its locks: for metrics, traces and tests.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::Loss;
use crate::report::report;

/// Receives the events of a client's locks and permits. Each method does nothing unless implemented.
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// #[derive(Default)]
/// struct SlowWaits(AtomicU64);
///
/// impl redlatch::Observer for SlowWaits {
///     fn acquired(&self, event: &redlatch::Acquired<'_>) {
///         if event.waited.as_secs() >= 1 {
///             self.0.fetch_add(1, Ordering::Relaxed);
///         }
///     }
/// }
///
/// let config = redlatch::Config::new("redis://127.0.0.1/").observer(SlowWaits::default());
/// # let _ = config;
/// ```
///
/// **Threads.** Methods are called while the client holds no internal mutex, on the thread concerned: the one that acquires
/// or releases; for a loss, mostly the one that renews all holds; for a server, one that connects. So return quickly, and
/// leave slow work to another thread. An observer that owns a clone of its client, or one of its locks, keeps the client
/// open until [`Client::close`](crate::Client::close). A panic is logged and has no other effect. A client has one observer.
/// If yours wraps another, such as a `Metrics`, forward every method.
///
/// **Counting.** All holds that one thread has of one lock count as one. For each such hold, [`acquired`](Self::acquired)
/// is called once, and later [`released`](Self::released) or [`lost`](Self::lost) once. So the number of holds is that of
/// the calls of `acquired`, minus those of `released` and `lost`. In detail:
///
/// - Locking again is not reported, and only the last guard of the thread reports the release.
/// - Threads that share a read hold in Redis are reported one by one.
/// - Each member of a multi-lock is a hold, under its own name; if the set is not acquired, each is
///   [`refused`](Self::refused). A `RedLock` is one hold.
/// - Each permit of an expirable semaphore is a hold. The permits that a [`Semaphore`](crate::Semaphore) grants to
///   one call are one hold; permits that are forgotten stay acquired.
/// - `unlock` waits for Redis. It reports `lost` if the hold had already ended, otherwise `released`.
/// - Dropping a guard does not wait. It reports `released` at once, or nothing if `lost` was reported before. If Redis
///   replies later that the hold had already ended, the observer is not told. [`Config::on_lost`](crate::Config::on_lost)
///   reports such a loss, with the exceptions stated there, and [`Stats::lost`](crate::Stats::lost) counts what `on_lost`
///   reports.
/// - Adopting is `acquired`, detaching is `released`, and a downgrade is both.
pub trait Observer: Send + Sync {
    /// A lock or permit was acquired.
    fn acquired(&self, _event: &Acquired<'_>) {}

    /// A lock or permit was not acquired.
    fn refused(&self, _event: &Refused<'_>) {}

    /// A lock or permit was released by its holder, and was not known to be lost.
    fn released(&self, _event: &Released<'_>) {}

    /// A hold is lost. Readers that share one hold in Redis are reported one by one, while
    /// [`Config::on_lost`](crate::Config::on_lost) is called once. A loss that is found only by the release of a dropped
    /// guard is not reported here.
    fn lost(&self, _loss: &Loss) {}

    /// A renewal of a hold failed, and the hold is still valid: there is time to end the work. Called once for each
    /// hold, and again only if a renewal succeeded in between. If none succeeds in time, [`lost`](Self::lost) follows.
    /// Not called for a [`RedLock`](crate::RedLock), whose parts fail one by one.
    fn renewal_failed(&self, _event: &RenewalFailed<'_>) {}

    /// A connection to the server failed. Called once, and again only after the server was reached.
    fn server_down(&self, _server: &str, _why: &str) {}

    /// A connection to the server was made: the first one, and the first after each
    /// [`server_down`](Self::server_down).
    fn server_up(&self, _server: &str) {}
}

/// So that a program can keep what it has given to [`Config::observer`](crate::Config::observer), and read it.
impl<T: Observer + ?Sized> Observer for Arc<T> {
    fn acquired(&self, event: &Acquired<'_>) {
        (**self).acquired(event);
    }

    fn refused(&self, event: &Refused<'_>) {
        (**self).refused(event);
    }

    fn released(&self, event: &Released<'_>) {
        (**self).released(event);
    }

    fn lost(&self, loss: &Loss) {
        (**self).lost(loss);
    }

    fn renewal_failed(&self, event: &RenewalFailed<'_>) {
        (**self).renewal_failed(event);
    }

    fn server_down(&self, server: &str, why: &str) {
        (**self).server_down(server, why);
    }

    fn server_up(&self, server: &str) {
        (**self).server_up(server);
    }
}

/// The event that a lock or permit was acquired: see [`Observer::acquired`].
#[derive(Debug)]
#[non_exhaustive]
pub struct Acquired<'a> {
    /// The name, as given to the client.
    pub name: &'a str,
    /// `reentrant`, `mutex`, `fair` (a [`FairMutex`](crate::FairMutex), too), `fenced`, `spin`, `read-write`, `red`,
    /// `permits` (of an expirable semaphore), `semaphore`, `election`.
    pub kind: &'static str,
    /// How long the call took.
    pub waited: Duration,
    /// Whether another thread of this process passed the lock on or shares it, without a round trip.
    pub handed_over: bool,
}

/// The event that a lock or permit was not acquired: see [`Observer::refused`].
#[derive(Debug)]
#[non_exhaustive]
pub struct Refused<'a> {
    /// As in [`Acquired`].
    pub name: &'a str,
    /// As in [`Acquired`].
    pub kind: &'static str,
    /// How long the call took.
    pub waited: Duration,
    /// The reason.
    pub reason: RefusalReason,
}

/// Why a lock or permit was not acquired.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RefusalReason {
    /// The lock or permit was taken, even if by the calling thread itself, or another waiter went first.
    Busy,
    /// The time was up before Redis answered.
    Late,
    /// The call ended because its [`CancelToken`](crate::CancelToken) was cancelled, or its client closed.
    Cancelled,
    /// The call returned another error.
    Error,
}

impl fmt::Display for RefusalReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Busy => "busy",
            Self::Late => "late",
            Self::Cancelled => "cancelled",
            Self::Error => "error",
        })
    }
}

/// The event that a lock or permit was released: see [`Observer::released`].
#[derive(Debug)]
#[non_exhaustive]
pub struct Released<'a> {
    /// As in [`Acquired`].
    pub name: &'a str,
    /// As in [`Acquired`].
    pub kind: &'static str,
    /// How long the lock or permit was held.
    pub held: Duration,
}

/// The event that the renewal of a hold failed: see [`Observer::renewal_failed`].
#[derive(Debug)]
#[non_exhaustive]
pub struct RenewalFailed<'a> {
    /// As in [`Acquired`].
    pub name: &'a str,
    /// The owner in Redis, or the id of the permit.
    pub owner: &'a str,
    /// How long the hold is certainly valid unless a renewal is confirmed.
    pub remaining_lease: Duration,
}

/// The observer of a client, if it has one.
#[derive(Clone, Default)]
pub(crate) struct Observers(Option<Arc<dyn Observer>>);

impl Observers {
    pub(crate) fn of(observer: impl Observer + 'static) -> Self {
        Self(Some(Arc::new(observer)))
    }

    pub(crate) fn is_some(&self) -> bool {
        self.0.is_some()
    }

    /// Calls the observer. Must be called without a mutex held.
    pub(crate) fn tell(&self, event: impl FnOnce(&dyn Observer)) {
        let Some(observer) = &self.0 else {
            return;
        };
        let told = std::panic::catch_unwind(AssertUnwindSafe(|| event(&**observer)));
        if told.is_err() {
            report!(Error, "the observer panicked; its methods must not");
        }
    }
}

/// A hold that was reported to an observer, whose end must be reported once.
pub(crate) struct Observed {
    pub(crate) observer: Observers,
    pub(crate) name: Arc<str>,
    pub(crate) kind: &'static str,
    pub(crate) since: Instant,
}

impl Observed {
    /// Reports that the holder has released the hold.
    pub(crate) fn released(&self) {
        let held = self.since.elapsed();
        let (name, kind) = (&*self.name, self.kind);
        self.observer
            .tell(|observer| observer.released(&Released { name, kind, held }));
    }

    pub(crate) fn lost(&self, loss: &Loss) {
        self.observer.tell(|observer| observer.lost(loss));
    }
}
