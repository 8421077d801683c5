//! Bytes: sockets, the pipelined connection, messages.

pub(crate) mod call;
pub(crate) mod connection;
pub(crate) mod outbox;
mod pipeline;
pub(crate) mod request;
pub(crate) mod socket;
pub(crate) mod subscriber;
