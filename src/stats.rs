//! Counters and gauges, for reports and tests.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::time;

/// A number that only grows: a sum or a maximum.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn max(&self, n: u64) {
        self.0.fetch_max(n, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Whether a number of [`Stats`] is a counter or a gauge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StatKind {
    /// A sum or a maximum since the client was opened, which only grows.
    Counter,
    /// The current value, or the maximum of the last 30 to 60 s.
    Gauge,
}

/// The maximum of the last 30 to 60 seconds: of the current half of a minute and the one before.
///
/// A single thread writes, and any thread reads. The fields are atomics, because in the child of a `fork()` a mutex could
/// stay locked forever.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    /// The number of the current half minute, counted from 1; 0 if nothing was recorded.
    half: AtomicU64,
    now: AtomicU64,
    previous: AtomicU64,
}

impl Recent {
    const HALF: u64 = 30_000_000_000;

    fn half(now: Instant) -> u64 {
        1 + time::nanos(now) / Self::HALF
    }

    pub(crate) fn add(&self, n: u64, now: Instant) {
        let half = Self::half(now);
        let (current, previous) = self.at(half);
        self.previous.store(previous, Ordering::Relaxed);
        self.now.store(current.max(n), Ordering::Relaxed);
        self.half.store(half, Ordering::Relaxed);
    }

    fn longest(&self, now: Instant) -> u64 {
        let (current, previous) = self.at(Self::half(now));
        current.max(previous)
    }

    /// The maxima of this half minute and the one before.
    fn at(&self, half: u64) -> (u64, u64) {
        let load = |of: &AtomicU64| of.load(Ordering::Relaxed);
        match half - load(&self.half).min(half) {
            0 => (load(&self.now), load(&self.previous)),
            1 => (0, load(&self.now)),
            _ => (0, 0),
        }
    }
}

macro_rules! counters {
    (
        counters: $($(#[doc = $doc:literal])+ $name:ident,)+
        gauges: $($(#[doc = $gauge_doc:literal])+ $gauge:ident,)+
    ) => {
        /// The numbers that a client counts while it runs.
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: Counter,)+
            /// How many threads wait.
            pub(crate) waiting: AtomicU64,
            pub(crate) lateness: Recent,
        }

        /// Numbers about a client: totals since it was opened, and current values. See
        /// [`Client::stats`](crate::Client::stats).
        ///
        /// ```no_run
        /// let client = redlatch::Client::open("redis://127.0.0.1/")?;
        /// let stats = client.stats();
        /// println!("{} grants, {} failed releases", stats.acquired, stats.releases_failed);
        /// # Ok::<(), redlatch::Error>(())
        /// ```
        ///
        /// The numbers are read while other threads change them, so numbers that belong together may be a moment
        /// apart.
        ///
        /// **Names.** Numbers that end in `_us` are microseconds, the others are counts. Of the two about lateness,
        /// `renewal_lateness_max_us` is the maximum since the client was opened, and never falls;
        /// `renewal_lateness_us` is the maximum of the last 30 to 60 s.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize))]
        #[non_exhaustive]
        pub struct Stats {
            $($(#[doc = $doc])+ pub $name: u64,)+
            $($(#[doc = $gauge_doc])+ pub $gauge: u64,)+
        }

        impl Stats {
            /// Returns every number with its name, and whether it only grows.
            ///
            /// ```no_run
            /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
            /// for (name, kind, value) in client.stats().iter() {
            ///     println!("{name} {value} {kind:?}");
            /// }
            /// # Ok::<(), redlatch::Error>(())
            /// ```
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, StatKind, u64)> + use<> {
                let counters = [$((stringify!($name), StatKind::Counter, self.$name)),+];
                let gauges = [$((stringify!($gauge), StatKind::Gauge, self.$gauge)),+];
                counters.into_iter().chain(gauges)
            }

            /// The description of each number by its name.
            #[cfg(feature = "metrics")]
            pub(crate) const HELP: &[(&str, &str)] = &[
                $((stringify!($name), concat!($($doc),+)),)+
                $((stringify!($gauge), concat!($($gauge_doc),+)),)+
            ];
        }

        impl Counters {
            /// Reads the counters, and the gauges that are kept here.
            pub(crate) fn read(&self) -> Stats {
                Stats {
                    $($name: self.$name.get(),)+
                    waiting: self.waiting.load(Ordering::Relaxed),
                    renewal_lateness_us: self.lateness.longest(Instant::now()),
                    ..Stats::default()
                }
            }
        }
    };
}

counters! {
    counters:
    /// Locks and permits granted by Redis. [`Observer::acquired`](crate::Observer::acquired) is also called for those that
    /// [`local_handoffs`](Self::local_handoffs) and [`shared`](Self::shared) count.
    acquired,
    /// Locks and permits passed on by another thread of this process, without a round trip.
    local_handoffs,
    /// Read holds shared with another thread of this process, without a round trip.
    shared,
    /// Times a thread locked again what it held already.
    reentered,
    /// Attempts that ended without the lock or permit, for any [`RefusalReason`](crate::RefusalReason).
    refused,
    /// Commands sent over the connections for commands and for guarded commands.
    commands,
    /// Waits ended by a message.
    wakes,
    /// Waits that ended without the message of a release: the thread found the lock free when it asked by itself, or when
    /// the holder's lease ended. The message was lost, or none was sent, as when the holder has died. Spin locks and permits
    /// with a lease do not count.
    missed_messages,
    /// Times this process let other processes acquire first, because its tenure was over.
    yields,
    /// Renewals confirmed by Redis.
    renewals,
    /// Failed renewals of valid holds. If renewals of one hold fail several times in a row, that counts as one failure.
    /// The next failure counts again only after a renewal of the hold has succeeded. A `RedLock` does not count.
    renewals_failed,
    /// The longest delay between a renewal's due time and its start, in microseconds.
    renewal_lateness_max_us,
    /// Holds lost, for any reason, as [`Config::on_lost`](crate::Config::on_lost) hears of them. Threads that share a read
    /// hold count as one.
    lost,
    /// Releases that found that the hold had already ended; without those of a `RedLock`.
    releases_of_lost,
    /// Releases that Redis rejected or never acknowledged. Leases end such holds; permits of a `Semaphore` stay taken.
    releases_failed,
    /// Times a connection for commands, or for guarded commands, was lost and replaced.
    reconnects,
    /// Times the connection for messages was replaced.
    resubscriptions,

    gauges:
    /// Now: holds, one for each thread and lock (one for all threads that share a read hold), and permits of expirable
    /// semaphores.
    holds,
    /// Now: locks that a thread of this process holds, waits for, or has just released.
    names,
    /// Now: channels subscribed to.
    subscriptions,
    /// Now: threads that wait for a lock, a permit or a latch.
    waiting,
    /// The longest delay of a renewal within the last 30 to 60 s, in microseconds.
    renewal_lateness_us,
}

#[cfg(test)]
mod tests;
