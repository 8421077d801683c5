//! Several locks as one.

mod members;
mod names;
mod processes;
