//! A master that is found by asking Sentinels, and what becomes of locks when it is replaced.

mod failover;
mod finding;
mod following;
mod rights;
