//! The fair lock.

pub(crate) mod basics;
pub(crate) mod faults;
pub(crate) mod leaving;
pub(crate) mod processes;
pub(crate) mod redisson;
