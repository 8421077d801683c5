//! Several masters: asking all of them, and a hold that a majority keeps.
//!
//! | file | what it has |
//! | --- | --- |
//! | `tally` | majority arithmetic, and what a round of requests does next (pure) |
//! | `parts` | which parts of a hold count, and how long a majority of them is certain (pure) |
//! | `nodes` | the servers of a lock, and the time limits and pauses of their requests |
//! | `round` | one request to all nodes |
//! | `ask` | requests for the lock, and questions about it |
//! | `hold` | a hold of one part for each node, and its release |
//! | `failure` | why one server, or too many of several, did not answer |
//! | `identity` | whether the servers are different masters |

pub(crate) mod ask;
pub(crate) mod failure;
mod hold;
pub(crate) mod identity;
#[cfg(test)]
mod model;
pub(crate) mod nodes;
mod parts;
mod round;
pub(crate) mod tally;
