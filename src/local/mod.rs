//! Inside the process: who holds, who waits, who asks Redis.

pub(crate) mod lock;
pub(crate) mod place;
pub(crate) mod preference;
pub(crate) mod registry;
pub(crate) mod semaphore;
pub(crate) mod waiter;
