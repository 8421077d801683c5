//! Several masters: asking all of them, and a hold that a majority keeps.
//!
//! | file | what it has |
//! | --- | --- |
//! | `announcements` | which messages announce a release, if several masters do (pure) |
//! | `tally` | majority arithmetic, and what a round of requests does next (pure) |
//! | `keeping` | what is known of each node's share of a hold, and of the answers to its release (pure) |
//! | `nodes` | the servers of a lock, and how one thread waits for several |
//! | `round` | one request to all nodes |
//! | `ask` | asking for the lock, and about it |
//! | `hold` | what the nodes keep of one hold: upkeep by the watchdogs, renewal, release |
//! | `failure` | too few agreed |
//! | `identity` | which servers these are: each has to be a master of its own |

pub(crate) mod announcements;
pub(crate) mod ask;
pub(crate) mod failure;
mod hold;
pub(crate) mod identity;
mod keeping;
#[cfg(test)]
mod model;
pub(crate) mod nodes;
mod round;
mod tally;
