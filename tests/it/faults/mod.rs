//! What networks and servers do to a client.

mod are_real;
mod connection;
mod drops;
mod failover;
mod hostile;
mod network;
mod outage;
mod replicas;
mod server;
mod waits;
