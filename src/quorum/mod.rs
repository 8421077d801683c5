//! Several masters: asking all of them, and a hold that a majority keeps.

pub(crate) mod hold;
pub(crate) mod identity;
mod keeping;
pub(crate) mod round;
mod tally;
