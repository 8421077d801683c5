//! How a client reaches its server: addresses, credentials that change, and servers that are unreachable at first.

mod addresses;
mod credentials;
mod eviction;
mod lazy;
mod mistakes;
mod refusals;
