//! Bytes: sockets, the pipelined connection, messages.

pub(crate) mod call;
pub(crate) mod channels;
pub(crate) mod connection;
pub(crate) mod outbox;
mod pipeline;
pub(crate) mod request;
mod script_error;
pub(crate) mod socket;
pub(crate) mod subscriber;
