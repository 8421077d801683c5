//! What goes to Redis: keys, channels, requests and replies of every kind of lock.

#[cfg(test)]
mod golden;
pub(crate) mod keys;
pub(crate) mod kind;
pub(crate) mod owner;
pub(crate) mod script;
