//! Beside Redisson itself: Java and Rust on one lock.

mod load;
mod looking;
mod sides;
mod together;
mod waits;
