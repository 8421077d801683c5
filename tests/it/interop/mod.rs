//! Beside Redisson itself: Java and Rust on one lock.

mod sides;
mod together;
mod waits;
