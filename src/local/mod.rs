//! Inside the process: who holds, who waits, who asks Redis.

mod cohort;
pub(crate) mod lock;
pub(crate) mod preference;
mod queue;
pub(crate) mod queued_thread;
pub(crate) mod registry;
pub(crate) mod run;
pub(crate) mod semaphore;
pub(crate) mod waiter;
