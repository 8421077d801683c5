//! The red lock: a lock on a majority of several masters.

mod basics;
mod faults;
mod parts;
mod waits;
