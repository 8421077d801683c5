//! The read-write lock.

mod basics;
mod model;
mod order;
mod sharing;
