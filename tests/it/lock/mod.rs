//! Locks of one key, and what only they do.

mod fenced;
mod spin;
