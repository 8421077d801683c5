//! The lock over several masters.

mod basics;
mod faults;
mod parts;
mod waits;
