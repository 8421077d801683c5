//! The Lua scripts by bare EVALSHA.

mod fair;
mod fenced;
mod force;
mod latch;
mod lock;
mod permits;
mod rw;
mod rw_model;
mod semaphore;
mod strict;
