//! The contents of requests and replies: keys, channels and scripts, with a file for each kind of lock.

pub(crate) mod adopt;
pub(crate) mod fair;
pub(crate) mod fenced;
#[cfg(test)]
mod golden;
pub(crate) mod guarded;
pub(crate) mod idempotency;
pub(crate) mod inspect;
pub(crate) mod keys;
pub(crate) mod kind;
pub(crate) mod latch;
#[macro_use]
pub(crate) mod lua;
pub(crate) mod owner;
pub(crate) mod permits;
pub(crate) mod red;
pub(crate) mod reentrant;
pub(crate) mod rw;
pub(crate) mod script;
pub(crate) mod semaphore;
pub(crate) mod spin;

/// All kinds there are.
pub(crate) static KINDS: [&kind::Kind; 9] = [
    &reentrant::KIND,
    &spin::KIND,
    &fair::KIND,
    &fenced::KIND,
    &rw::KIND,
    &red::KIND,
    &semaphore::KIND,
    &permits::KIND,
    &latch::KIND,
];
