//! The hold under which a program runs.

use redlatch::Result;

/// A hold of any kind.
pub(crate) trait AnyHold {
    fn is_valid(&self) -> bool;

    /// The owner as Redis shows it; for a permit, its id.
    fn owner(&self) -> &str;

    /// Releases the hold and waits for the reply.
    fn release(self: Box<Self>) -> Result<()>;

    /// The fencing token.
    fn token(&self) -> Option<u64> {
        None
    }
}

macro_rules! held {
    ($($guard:ident of $owner:ident by $release:ident $(with $token:ident)?;)+) => {$(
        impl AnyHold for redlatch::$guard {
            fn is_valid(&self) -> bool {
                Self::is_valid(self)
            }

            fn owner(&self) -> &str {
                Self::$owner(self)
            }

            fn release(self: Box<Self>) -> Result<()> {
                (*self).$release()
            }

            $(fn token(&self) -> Option<u64> {
                Some(Self::$token(self))
            })?
        }
    )+};
}

held! {
    MutexGuard of owner by unlock;
    FairMutexGuard of owner by unlock;
    FencedLockGuard of owner by unlock with token;
    RwLockReadGuard of owner by unlock;
    RwLockWriteGuard of owner by unlock;
    ExpirablePermit of id by release;
}

/// A hold, if it was granted.
pub(crate) fn boxed<H: AnyHold + 'static>(
    taken: Result<Option<H>>,
) -> Result<Option<Box<dyn AnyHold>>> {
    taken.map(|held| held.map(|held| Box::new(held) as Box<dyn AnyHold>))
}
