//! The network: sockets, pipelined connections, the masters, and messages on channels.

pub(crate) mod apart;
pub(crate) mod back_off;
pub(crate) mod call;
pub(crate) mod channels;
pub(crate) mod connection;
mod dialling;
pub(crate) mod ledger;
pub(crate) mod masters;
pub(crate) mod nodes;
mod pipeline;
pub(crate) mod request;
mod script_error;
pub(crate) mod slot;
pub(crate) mod socket;
#[cfg(test)]
pub(crate) mod strange;
pub(crate) mod subscriber;
pub(crate) mod subscribers;
#[cfg(test)]
mod tests;
pub(crate) mod text;
mod write_queue;
