//! Counters and gauges, for reports and tests.

use std::sync::atomic::{AtomicU64, Ordering};

/// One number that only grows, or the largest seen.
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

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        /// What a client counts while it runs.
        #[derive(Debug, Default)]
        pub(crate) struct Counters { $(pub(crate) $name: Counter),+ }

        /// What a client has done since it was opened, and what it has in hand: see
        /// [`Client::stats`](crate::Client::stats).
        ///
        /// Read without stopping anybody, so numbers that belong together may be a moment apart.
        ///
        /// ```no_run
        /// let client = redlatch::Client::open("redis://127.0.0.1/")?;
        /// let stats = client.stats();
        /// println!("{} of {} releases failed", stats.releases_failed, stats.acquired);
        /// # Ok::<(), redlatch::Error>(())
        /// ```
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Stats {
            $($(#[$doc])* pub $name: u64,)+
            /// Now: holds that the watchdog watches.
            pub holds: u64,
            /// Now: locks that a thread of this process holds, waits for, or has just released.
            pub names: u64,
            /// Now: channels subscribed to.
            pub subscriptions: u64,
        }

        impl Counters {
            /// The counters, with every gauge at zero.
            pub(crate) fn read(&self) -> Stats {
                Stats { $($name: self.$name.get(),)+ holds: 0, names: 0, subscriptions: 0 }
            }
        }
    };
}

counters! {
    /// Grants by Redis.
    acquired,
    /// Locks and permits handed over by another thread of this process, without a round trip.
    passed,
    /// Read holds shared with another thread of this process, without a round trip.
    shared,
    /// Further holds of a thread that held the lock already.
    reentered,
    /// Commands sent, except those of the watchdog and the subscriber.
    commands,
    /// Waits that a message ended.
    wakes,
    /// Waits ended by the poll cap or the holder's lease that then found the lock free: a message was lost, or none was
    /// sent.
    poll_rescues,
    /// Times this process let others go first, because its tenure was over or several of them wait.
    held_back,
    /// Renewals confirmed by Redis.
    renewals,
    /// The longest delay between a renewal's due time and its start, in microseconds.
    renewal_lateness_max_us,
    /// Holds lost, for any reason.
    lost,
    /// Releases that found that the lock was no longer ours.
    releases_of_lost,
    /// Releases that Redis refused or never acknowledged; the lease ends such holds.
    releases_failed,
    /// Times the connection for commands was made again.
    reconnects,
    /// Times the connection for messages was made again.
    resubscriptions,
}
