//! Handles and guards, as users hold them: one of each for all kinds of locks, and a file for each primitive with its
//! documentation and the methods that it alone has.

// Before the modules of single kinds, since rustdoc lists the methods of `Handle` and `Guard` in the order of modules.
pub(crate) mod guard;
pub(crate) mod handle;

pub(crate) mod election;
pub(crate) mod expirable_semaphore;
pub(crate) mod fair_lock;
pub(crate) mod fair_mutex;
pub(crate) mod fenced_lock;
pub(crate) mod guarded;
pub(crate) mod kind;
pub(crate) mod latch;
pub(crate) mod multi_lock;
pub(crate) mod mutex;
pub(crate) mod red_lock;
pub(crate) mod reentrant_lock;
pub(crate) mod rwlock;
pub(crate) mod semaphore;
pub(crate) mod spin_lock;
pub(crate) mod ticket;
pub(crate) mod traits;

use guard::Guard;
use handle::Handle;
use kind::{AnyKind, Scope};

macro_rules! debug_by_name {
    ($($type:ty: $name:literal,)+) => {$(
        impl std::fmt::Debug for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let mut shown = f.debug_struct($name);
                shown.field("name", &self.name()).finish_non_exhaustive()
            }
        }
    )+};
}

debug_by_name! {
    expirable_semaphore::ExpirableSemaphore: "ExpirableSemaphore",
    latch::Latch: "Latch",
    rwlock::RwLock: "RwLock",
    semaphore::Semaphore: "Semaphore",
}

macro_rules! unwind_safe {
    ($([$($parameters:tt)*] $type:ty,)+) => {$(
        impl<$($parameters)*> std::panic::UnwindSafe for $type {}
        impl<$($parameters)*> std::panic::RefUnwindSafe for $type {}
    )+};
}

// A panic of the user's code leaves nothing half done: such code runs without a mutex held. The one exception is the
// logger during `ExpirablePermit::update_lease` (see `report`), and a panic of the logger is caught. The same holds for
// `Client`.
unwind_safe! {
    [] crate::local::waiter::CancelToken,
    [K: AnyKind] Handle<K>,
    [K: AnyKind, S: Scope] Guard<K, S>,
    [] expirable_semaphore::ExpirablePermit,
    [] expirable_semaphore::ExpirableSemaphore,
    [] latch::Latch,
    [] rwlock::RwLock,
    [] semaphore::Semaphore,
    [] semaphore::SemaphorePermit,
}
