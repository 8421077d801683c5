//! The fair lock.

mod basics;
mod faults;
mod handing_over;
mod leaving;
mod processes;
mod redisson;
