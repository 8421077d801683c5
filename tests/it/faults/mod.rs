//! Faults of networks and servers, and how a client copes with them.

mod are_real;
mod connection;
mod drops;
mod failover;
mod hostile;
mod network;
mod outage;
mod replicas;
mod server;
mod torture;
mod waits;
