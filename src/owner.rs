//! Who holds: the client's id and a number that is new for every acquisition.

use std::sync::atomic::{AtomicU64, Ordering};

/// Makes the owner ids of one client.
///
/// No number is used twice, and a number is drawn for every acquire that is sent. A command that arrives late, twice,
/// or from a connection long given up can therefore only touch the hold it was made for.
pub(crate) struct Owners {
    client: String,
    next: AtomicU64,
}

/// The number of one acquisition; together with the client's id it is the owner in Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct OwnerNumber(pub(crate) u64);

impl Owners {
    /// Owners of a client nobody has met before.
    pub(crate) fn new() -> Self {
        Self {
            client: uuid::Uuid::new_v4().to_string(),
            next: AtomicU64::new(1),
        }
    }

    /// A number never drawn before.
    pub(crate) fn draw(&self) -> OwnerNumber {
        OwnerNumber(self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// The client's id.
    pub(crate) fn client(&self) -> &str {
        &self.client
    }

    /// The owner as Redis knows it: `<client uuid>:<number>`, the shape of Redisson's `<client id>:<thread id>`.
    pub(crate) fn id(&self, number: OwnerNumber) -> String {
        format!("{}:{}", self.client, number.0)
    }
}

std::thread_local! {
    static THREAD: u64 = {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        NEXT.fetch_add(1, Ordering::Relaxed)
    };
}

/// A number for the calling thread that no other thread of this process ever has, not even after this one has ended.
pub(crate) fn this_thread() -> u64 {
    THREAD.with(|number| *number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_threads_are_never_reused() {
        let owners = Owners::new();
        assert_ne!(owners.draw(), owners.draw());
        assert!(owners.id(OwnerNumber(7)).ends_with(":7"));
        assert_eq!(owners.id(OwnerNumber(7)).len(), 36 + 2);
        let elsewhere = std::thread::spawn(this_thread).join().expect("thread");
        let later = std::thread::spawn(this_thread).join().expect("thread");
        assert!(elsewhere != this_thread() && later != elsewhere);
    }
}
