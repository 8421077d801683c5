//! The Lua scripts, called by EVALSHA without the library.

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
