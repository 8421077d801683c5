//! Encrypted connections. What every lock must do is checked over TLS by `contract`.

mod basics;
mod faults;
mod refusals;
mod sentinel;
