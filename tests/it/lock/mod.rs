//! Locks of one key, and behaviour that only one kind has.

mod any;
mod at_least;
mod fenced;
mod late;
mod owned;
mod spin;
mod ticket;
