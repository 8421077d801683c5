//! Bytes: sockets, the pipelined connection, messages.

pub(crate) mod call;
pub(crate) mod channels;
#[cfg(feature = "cluster")]
pub(crate) mod cluster;
pub(crate) mod connection;
pub(crate) mod connections;
pub(crate) mod outbox;
mod own_message;
mod pipeline;
pub(crate) mod request;
pub(crate) mod route;
mod script_error;
pub(crate) mod slot;
pub(crate) mod socket;
#[cfg(test)]
pub(crate) mod strange;
pub(crate) mod subscriber;
pub(crate) mod subscribers;
mod write_queue;
