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
