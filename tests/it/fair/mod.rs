//! The fair lock.

mod basics;
mod faults;
mod leaving;
mod processes;
mod redisson;
