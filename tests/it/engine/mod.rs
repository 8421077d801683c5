//! What all locks share: waiting, losing, logging, identity, forks.

mod docs;
mod fork;
mod hosts;
mod identity;
mod layers;
mod listening;
mod logger;
mod loss;
mod rights;
mod waiting;
