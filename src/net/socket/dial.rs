//! An attempt to connect: its time, how far it is, and whether a caller still needs it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use redis::{RedisError, RedisResult};

use super::{GLANCE, timed_out};

/// If several servers are asked in turn, the next one is asked when the present one has failed, or is not done after a
/// share of at least this long. If an attempt to connect to one server takes longer, a second attempt begins beside it:
/// the first may have begun while the server was unreachable.
pub(in crate::net) const SHARE: Duration = Duration::from_millis(500);

/// How far a dial has got, for those who wait for it.
pub(crate) struct DialProgress {
    pub(crate) began: Instant,
    /// The thread is in a step without a time limit (a look-up, or the user's function for logging in), or the server has
    /// answered that it is not ready. In both cases another attempt would not help.
    is_patient: AtomicBool,
    reason: Mutex<RedisError>,
    is_given_up: AtomicBool,
}

impl DialProgress {
    pub(in crate::net) fn new() -> Arc<Self> {
        Arc::new(Self {
            began: Instant::now(),
            is_patient: AtomicBool::new(false),
            reason: Mutex::new(timed_out("no connection to redis in time")),
            is_given_up: AtomicBool::new(false),
        })
    }

    /// The error for a caller whose time is up: it names the present step, or says why the server is not ready.
    pub(crate) fn reason(&self) -> RedisError {
        self.reason.lock().clone()
    }

    /// Whether it has taken so long that another should be tried beside it.
    pub(crate) fn is_stale(&self) -> bool {
        !self.is_patient.load(Ordering::Relaxed) && self.began.elapsed() >= SHARE
    }

    pub(in crate::net) fn is_given_up(&self) -> bool {
        self.is_given_up.load(Ordering::Relaxed)
    }

    /// Gives the attempt up: nobody needs the connection any more. The present step is not interrupted; the attempt fails
    /// when it next asks for the time left.
    pub(crate) fn give_up(&self) {
        self.is_given_up.store(true, Ordering::Relaxed);
    }
}

/// An attempt, as its own thread sees it.
pub(in crate::net) struct Dial {
    pub(in crate::net) role: &'static str,
    /// When the attempt counts as failed.
    ends: Instant,
    progress: Arc<DialProgress>,
}

impl Dial {
    pub(in crate::net) fn new(
        role: &'static str,
        timeout: Duration,
        progress: Arc<DialProgress>,
    ) -> Self {
        Self {
            role,
            ends: Instant::now() + timeout,
            progress,
        }
    }

    /// An attempt of a thread that connects for itself.
    pub(in crate::net) fn by_itself(role: &'static str, timeout: Duration) -> Self {
        Self::new(role, timeout, DialProgress::new())
    }

    /// A part of the attempt. The part fails if it is not done within `share`.
    pub(in crate::net) fn part(&self, role: &'static str, share: Duration) -> Self {
        Self {
            role,
            ends: self.ends.min(Instant::now() + share),
            progress: Arc::clone(&self.progress),
        }
    }

    /// How much time is left; an error if none is, or nobody needs the connection.
    pub(in crate::net) fn left(&self) -> RedisResult<Duration> {
        let time_left = self.ends.saturating_duration_since(Instant::now());
        if time_left.is_zero() || self.progress.is_given_up() {
            return Err(self.progress.reason());
        }
        Ok(time_left.max(GLANCE))
    }

    /// Sets the [`reason`](DialProgress::reason) for the step that begins now.
    pub(in crate::net) fn set_reason(&self, why: RedisError) {
        *self.progress.reason.lock() = why;
    }

    /// The server has answered that it is not ready.
    pub(in crate::net) fn record_not_ready(&self, why: RedisError) {
        self.progress.is_patient.store(true, Ordering::Relaxed);
        self.set_reason(why);
    }

    /// Runs a step without a time limit; the step's duration extends the deadline.
    pub(in crate::net) fn unbounded<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        self.progress.is_patient.store(true, Ordering::Relaxed);
        let done = work();
        self.progress.is_patient.store(false, Ordering::Relaxed);
        self.ends += began.elapsed();
        done
    }
}
