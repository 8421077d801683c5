//! Helpers that tests share. Nothing here is a test, and no test module borrows from another.
//!
//! Helpers for many kinds of tests are re-exported here; helpers for one subject are in a module of its name.

mod bare;
mod clients;
pub(crate) mod dice;
pub(crate) mod fair;
pub(crate) mod java;
mod kinds;
pub(crate) mod latch;
pub(crate) mod load;
pub(crate) mod made_up;
pub(crate) mod multi_lock;
mod net;
mod outage;
pub(crate) mod permits;
pub(crate) mod quorum;
pub(crate) mod rights;
pub(crate) mod rw_scripts;
pub(crate) mod rwlock;
pub(crate) mod scripts;
pub(crate) mod semaphore;
mod strangers;
pub(crate) mod table;
mod threads;
mod time;

pub(crate) use bare::*;
pub(crate) use clients::*;
pub(crate) use dice::*;
pub(crate) use kinds::*;
pub(crate) use net::*;
pub(crate) use outage::*;
pub(crate) use strangers::*;
pub(crate) use threads::*;
pub(crate) use time::*;
