//! The count-down latch: its scripts, its channel, and invalid values of its key.

use crate::support::lua;

pub(crate) const SET: &str = lua::LATCH_SET;
pub(crate) const COUNT_DOWN: &str = lua::LATCH_COUNT_DOWN;
pub(crate) const DELETE: &str = lua::LATCH_DELETE;
pub(crate) const STATE: &str = lua::LATCH_STATE;

/// Values that are not a valid count.
pub(crate) const NO_COUNTS: [&str; 9] = [
    "",
    "abc",
    "1.5",
    "007",
    "+3",
    " 1",
    "1 ",
    "-",
    "99999999999999999999",
];

/// The channel always adds braces, even if the name has some.
pub(crate) fn channel(name: &str) -> String {
    format!("redisson_countdownlatch__channel__{{{name}}}")
}
