//! Java and Rust processes use the same locks: Redisson itself beside redlatch.

mod load;
mod looking;
mod sides;
mod together;
mod waits;
