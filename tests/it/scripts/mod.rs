//! The Lua scripts by bare EVALSHA.

pub(crate) mod fair;
pub(crate) mod fenced;
pub(crate) mod lock;
pub(crate) mod multi;
pub(crate) mod permits;
pub(crate) mod rw;
pub(crate) mod rw_model;
