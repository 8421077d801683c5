//! The lock over several masters.

mod basics;
mod faults;
mod node_holds;
mod waits;
