//! Several locks as one.

pub(crate) mod members;
pub(crate) mod names;
pub(crate) mod processes;
