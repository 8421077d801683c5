//! What a user holds: one file for each primitive, with its handle, its guard and their documentation.

pub(crate) mod expirable_semaphore;
pub(crate) mod fair_lock;
pub(crate) mod fair_mutex;
pub(crate) mod fenced_lock;
pub(crate) mod guarded;
pub(crate) mod latch;
pub(crate) mod macros;
pub(crate) mod multi_lock;
pub(crate) mod mutex;
pub(crate) mod red_lock;
pub(crate) mod reentrant_lock;
pub(crate) mod rwlock;
pub(crate) mod semaphore;
pub(crate) mod spin_lock;
pub(crate) mod traits;
