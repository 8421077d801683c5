//! Inside the process: who holds, who waits, who asks Redis.

pub(crate) mod cohort;
pub(crate) mod lock;
mod queue;
pub(crate) mod semaphore;
pub(crate) mod waiter;
