//! What networks and servers do to a client.

pub(crate) mod are_real;
pub(crate) mod connection;
pub(crate) mod failover;
pub(crate) mod network;
pub(crate) mod outage;
pub(crate) mod server;
