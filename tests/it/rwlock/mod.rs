//! The read-write lock.

pub(crate) mod basics;
pub(crate) mod faults;
pub(crate) mod model;
pub(crate) mod order;
pub(crate) mod sharing;
