//! What all locks share: waiting, losing, logging, identity, forks.

pub(crate) mod fork;
pub(crate) mod hosts;
pub(crate) mod identity;
pub(crate) mod listening;
pub(crate) mod logger;
pub(crate) mod loss;
pub(crate) mod rights;
pub(crate) mod waiting;
