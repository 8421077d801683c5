//! The read-write lock.

mod basics;
mod faults;
mod model;
mod order;
mod sharing;
