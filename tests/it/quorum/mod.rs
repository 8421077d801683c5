//! The lock over several masters.

pub(crate) mod basics;
pub(crate) mod faults;
pub(crate) mod node_holds;
