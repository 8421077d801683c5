//! Behaviour that all locks share: waiting, losing, logging, identity, forks.

mod docs;
mod fork;
mod hosts;
mod identity;
mod layers;
mod listening;
mod logger;
mod logs;
mod loss;
mod mistakes;
mod renewals;
mod renewing_link;
mod rights;
mod waiting;
mod yielding;
