//! Locks of one key, and behaviour that only one kind has.

mod any;
mod fenced;
mod late;
mod min_hold;
mod owned;
mod spin;
mod ticket;
