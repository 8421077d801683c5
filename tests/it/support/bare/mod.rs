//! The environment of tests and benches: a private Redis server, a proxy that disturbs the network in front of it,
//! captured logs, and waits for events instead of sleeps.
//!
//! The module depends on nothing of the crate but the names of its connections and its scripts, so that benches can
//! include it by `#[path]`.

#![allow(
    dead_code,
    unused_imports,
    unused_macros,
    reason = "each borrower uses a part"
)]

pub(crate) mod acl;
mod adversary;
#[cfg(feature = "tls")]
mod certificates;
pub(crate) mod cluster;
mod deployment;
pub(crate) mod history;
mod lateness;
mod logs;
#[path = "../../../../src/protocol/lua.rs"]
pub(crate) mod lua;
mod parts;
mod pool;
mod process;
mod proxy;
pub(crate) mod sentinel;
mod server;
mod wait;

pub(crate) use adversary::*;
#[cfg(feature = "tls")]
pub(crate) use certificates::*;
pub(crate) use deployment::*;
pub(crate) use lateness::*;
pub(crate) use logs::*;
pub(crate) use parts::*;
pub(crate) use process::*;
pub(crate) use proxy::*;
pub(crate) use server::*;
pub(crate) use wait::*;
