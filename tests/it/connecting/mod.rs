//! How a client gets to its server: addresses, credentials that change, and servers that are away at first.

mod addresses;
mod credentials;
mod eviction;
mod lazy;
mod mistakes;
mod refusals;
