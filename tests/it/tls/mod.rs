//! Encrypted connections. The suite that every lock must pass also runs over TLS, in `contract`.

mod basics;
mod faults;
mod refusals;
mod sentinel;
