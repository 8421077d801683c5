//! Semaphores: plain permits, and permits with an id and a lease each.

pub(crate) mod expirable;
pub(crate) mod expirable_faults;
pub(crate) mod expirable_model;
pub(crate) mod permits;
