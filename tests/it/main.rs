//! Everything that needs a real Redis server.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod scripts;
mod support;
mod support_itself;
