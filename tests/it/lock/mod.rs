//! Locks of one key, and what only they do.

mod at_least;
mod fenced;
mod spin;
