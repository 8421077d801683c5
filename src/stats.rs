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

        /// What a client has done since it was opened, and what it has in hand. Read without stopping anybody, so
        /// numbers that belong together may be a moment apart.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Stats {
            $($(#[$doc])* pub $name: u64,)+
            /// Holds that the watchdog keeps an eye on, now.
            pub holds: u64,
            /// Locks that a thread of this process holds, wants, or has just let go, now.
            pub names: u64,
            /// Channels subscribed to, now.
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
    /// Grants by another thread of this process, without a round trip.
    passed,
    /// Read holds shared with another thread of this process, without a round trip.
    shared,
    /// Further holds of a thread that held already.
    reentered,
    /// Commands sent for locks, without those of the watchdog and the subscriber.
    commands,
    /// Waits that a message ended.
    wakes,
    /// Waits that the poll cap or the holder's lease ended and that then found the lock free: a message was lost, or
    /// there was none to be had.
    poll_rescues,
    /// Contenders that let others go first because this process had had its turn.
    held_back,
    /// Renewals confirmed by Redis.
    renewals,
    /// The longest time that a renewal was begun after it was due, in microseconds.
    renewal_lateness_max_us,
    /// Holds lost, for any reason.
    lost,
    /// Releases that found the lock not ours any more.
    releases_of_lost,
    /// Releases that Redis refused or never acknowledged; the lease ends such holds.
    releases_failed,
    /// Times the connection for commands was made again.
    reconnects,
    /// Times the connection for messages was made again.
    resubscriptions,
}
