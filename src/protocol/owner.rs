//! Owners of holds: the client's id, and a number that no other hold has.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::net::call::LONGEST_OWNER;
use crate::net::text::Text;
use crate::process;

/// Draws the owner ids of one client.
///
/// No number is drawn twice, and none is used for two holds. So a command that arrives late, or twice, or from a
/// connection given up long ago, affects only the hold for which it was made.
pub(crate) struct Owners {
    /// The client's id and a colon.
    front: String,
    next: AtomicU64,
}

/// The number of one acquire, of one request that counts once, or of an entry of the watchdog's schedule. In Redis the
/// owner of a hold is the client's id together with the number of its acquire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct OwnerNumber(pub(crate) u64);

/// An owner as Redis knows it, or the id of a permit. The longest is a UUID, a colon and the largest number.
pub(crate) type OwnerId = Text<LONGEST_OWNER>;

impl Owners {
    /// Owners of a client with a new id.
    pub(crate) fn new() -> Self {
        Self::of(&process::client_id().to_string())
    }

    /// Owners of the client with this id.
    pub(crate) fn of(client: &str) -> Self {
        Self {
            front: format!("{client}:"),
            next: AtomicU64::new(1),
        }
    }

    /// A number that was never drawn before.
    pub(crate) fn draw(&self) -> OwnerNumber {
        OwnerNumber(self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// The client's id.
    pub(crate) fn client(&self) -> &str {
        self.front.strip_suffix(":").unwrap_or_default()
    }

    /// The owner as Redis knows it: `<client uuid>:<number>`, the shape of Redisson's `<client id>:<thread id>`.
    pub(crate) fn id(&self, number: OwnerNumber) -> OwnerId {
        OwnerId::numbered(&self.front, number.0)
    }
}

/// The id of a permit as Redis knows it: 16 random bytes. People see it as 32 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct PermitId(pub(crate) [u8; 16]);

impl PermitId {
    /// A new random id.
    pub(crate) fn draw() -> Self {
        Self(uuid::Uuid::new_v4().into_bytes())
    }

    /// The id that these 32 hexadecimal digits stand for; `None` for any other text.
    pub(crate) fn parse(written: &str) -> Option<Self> {
        // `try_parse` also accepts longer texts with hyphens or braces, which no permit id has.
        let digits = (written.len() == 32).then_some(written)?;
        let id = uuid::Uuid::try_parse(digits).ok()?;
        Some(Self(id.into_bytes()))
    }
}

impl fmt::Display for PermitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        uuid::Uuid::from_bytes(self.0).simple().fmt(f)
    }
}

std::thread_local! {
    static THREAD: u64 = draw_thread();
}

/// Draws a number for a thread, or for something that locks as if it were a thread of its own (an owned guard, a ticket,
/// an election). No number is drawn twice.
pub(crate) fn draw_thread() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The number of the calling thread. No other thread of this process ever has it, not even after this one has ended.
pub(crate) fn this_thread() -> u64 {
    THREAD.with(|number| *number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permit_ids_are_read_as_they_are_written() {
        let id = PermitId::draw();
        let written = id.to_string();
        assert_eq!(written.len(), 32);
        assert_eq!(PermitId::parse(&written), Some(id));
        assert_eq!(PermitId::parse(&written.to_uppercase()), Some(id));
        let zeros = PermitId([0; 16]);
        assert_eq!(PermitId::parse(&zeros.to_string()), Some(zeros));
        for odd in [
            "",
            "7",
            &written[1..],
            &format!("{written}0"),
            &format!("+{}", &written[1..]),
            &"é".repeat(16),
        ] {
            assert_eq!(PermitId::parse(odd), None, "{odd:?}");
        }
        assert_ne!(PermitId::draw(), id);
    }

    #[test]
    fn numbers_and_threads_are_never_reused() {
        let owners = Owners::new();
        assert_ne!(owners.draw(), owners.draw());
        assert!(owners.id(OwnerNumber(7)).ends_with(":7"));
        assert_eq!(owners.id(OwnerNumber(7)).len(), 36 + 2);
        assert_ne!(Owners::new().client(), owners.client());
        assert_eq!(owners.id(OwnerNumber(u64::MAX)).len(), 36 + 1 + 20);
        let elsewhere = std::thread::spawn(this_thread).join().expect("thread");
        let later = std::thread::spawn(this_thread).join().expect("thread");
        assert!(elsewhere != this_thread() && later != elsewhere);
    }
}
