//! Locks of one key, and what only they do.

pub(crate) mod fenced;
pub(crate) mod spin;
