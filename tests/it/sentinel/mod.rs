//! Masters that are found by Sentinels, and locks when a master is replaced.

mod failover;
mod finding;
mod following;
mod rights;
