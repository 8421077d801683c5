//! What a program can hear of its locks while it runs: for metrics, traces and tests.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::Loss;
use crate::report::report;

/// Hears what becomes of the locks and permits of a client. Every method does nothing unless it is implemented.
///
/// Called on the thread concerned, with no mutex held: the one that acquires or releases; for a loss mostly the one that
/// renews all holds; for a server one that connects. So return quickly, and put aside what takes long. It may use the
/// client that it hears of, but not own a handle of it, or that client would never be dropped. A panic is logged, and
/// otherwise does no harm.
///
/// A hold is one outermost acquisition by one thread, or a permit. Each is [`acquired`](Self::acquired) once, and later
/// either [`released`](Self::released) or [`lost`](Self::lost), once, so acquired less released less lost is what is held.
/// In detail:
///
/// - Locking again in the same thread tells nothing; the hold ends with the last of its guards.
/// - Each thread that reads by a shared hold has one of its own, also where Redis has one for all of them.
/// - Members of a multi-lock count by their names, a `RedLock` once, permits of an expirable semaphore each, and permits
///   that a [`Semaphore`](crate::Semaphore) gave to one call together. Permits that are forgotten stay acquired.
/// - `unlock` waits for Redis, and tells `lost` if somebody else had taken the lock; dropping a guard does not wait, and
///   tells `released`.
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
pub trait Observer: Send + Sync {
    /// Something was acquired.
    fn acquired(&self, _event: &Acquired<'_>) {}

    /// Something was not acquired.
    fn refused(&self, _event: &Refused<'_>) {}

    /// Something was released by its holder, and was not known to be lost.
    fn released(&self, _event: &Released<'_>) {}

    /// A hold is lost. [`Config::on_lost`](crate::Config::on_lost) hears once of readers that shared one in Redis, and this
    /// hears of each of them.
    fn lost(&self, _loss: &Loss) {}

    /// A connection to the server failed: the first one, or the first after it was reached.
    fn server_down(&self, _server: &str, _why: &str) {}

    /// A connection to the server stands: the first one, and the first after each [`server_down`](Self::server_down).
    fn server_up(&self, _server: &str) {}
}

/// Something was acquired: see [`Observer::acquired`].
#[derive(Debug)]
#[non_exhaustive]
pub struct Acquired<'a> {
    /// The name, as given to the client.
    pub name: &'a str,
    /// `reentrant`, `mutex`, `fair` (a [`FairMutex`](crate::FairMutex), too), `fenced`, `spin`, `read-write`, `red`,
    /// `semaphore`, `permits` (of an expirable semaphore).
    pub kind: &'static str,
    /// How long the call took.
    pub waited: Duration,
    /// A lock that another thread of this process has handed over or shares, without a round trip.
    pub handed_over: bool,
}

/// Something was not acquired: see [`Observer::refused`].
#[derive(Debug)]
#[non_exhaustive]
pub struct Refused<'a> {
    /// As in [`Acquired`].
    pub name: &'a str,
    /// As in [`Acquired`].
    pub kind: &'static str,
    /// How long the call took.
    pub waited: Duration,
    /// Why not.
    pub why: Refusal,
}

/// Why something was not acquired.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Refusal {
    /// Somebody else had it.
    Busy,
    /// The time was up before Redis had answered.
    Late,
    /// The call returned an error.
    Error,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Busy => "busy",
            Self::Late => "late",
            Self::Error => "error",
        })
    }
}

/// Something was released: see [`Observer::released`].
#[derive(Debug)]
#[non_exhaustive]
pub struct Released<'a> {
    /// As in [`Acquired`].
    pub name: &'a str,
    /// As in [`Acquired`].
    pub kind: &'static str,
    /// For how long this thread has held it.
    pub held: Duration,
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

    /// Tells it something. To be called with no mutex held.
    pub(crate) fn tell(&self, what: impl FnOnce(&dyn Observer)) {
        let Some(observer) = &self.0 else {
            return;
        };
        let told = std::panic::catch_unwind(AssertUnwindSafe(|| what(&**observer)));
        if told.is_err() {
            report!(Error, "the observer panicked");
        }
    }
}

/// A hold that an observer was told of, and whose end has to be told once.
pub(crate) struct Observed {
    pub(crate) observer: Observers,
    pub(crate) name: Arc<str>,
    pub(crate) kind: &'static str,
    pub(crate) since: Instant,
}

impl Observed {
    /// Tells that the holder has released it.
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
