//! The Lua scripts by bare EVALSHA.

mod fair;
mod fenced;
mod lock;
mod multi;
mod permits;
mod rw;
mod rw_model;
mod strict;
