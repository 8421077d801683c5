//! Semaphores: plain permits, and permits with an id and a lease each.

mod expirable;
mod expirable_faults;
mod expirable_model;
mod permits;
