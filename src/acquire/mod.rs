//! How a thread comes to hold something: asking Redis, waiting, asking again.

pub(crate) mod contender;
pub(crate) mod guard;
pub(crate) mod notified;
pub(crate) mod spec;
pub(crate) mod turn;
