//! Locks of one key, and what only they do.

mod any;
mod at_least;
mod fenced;
mod late;
mod owned;
mod spin;
