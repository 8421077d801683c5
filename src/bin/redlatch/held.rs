//! What a program runs under.

use crossbeam_channel::Receiver;
use redlatch::{Loss, Result};

/// A hold of any kind.
pub(crate) trait Held {
    fn lost(&self) -> &Receiver<Loss>;

    /// Releases it, and waits for the answer.
    fn release(self: Box<Self>) -> Result<()>;

    /// Its fencing token.
    fn token(&self) -> Option<u64> {
        None
    }
}

macro_rules! held {
    ($($guard:ident by $release:ident $(with $token:ident)?;)+) => {$(
        impl Held for redlatch::$guard {
            fn lost(&self) -> &Receiver<Loss> {
                Self::lost(self)
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
    MutexGuard by unlock;
    FairMutexGuard by unlock;
    FencedLockGuard by unlock with token;
    RwLockReadGuard by unlock;
    RwLockWriteGuard by unlock;
    ExpirablePermit by release;
}

/// A hold, if it was granted.
pub(crate) fn boxed<H: Held + 'static>(taken: Result<Option<H>>) -> Result<Option<Box<dyn Held>>> {
    taken.map(|held| held.map(|held| Box::new(held) as Box<dyn Held>))
}
