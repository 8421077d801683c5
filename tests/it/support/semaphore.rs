//! The plain semaphore: its scripts, and the messages that they publish.

use redis::PubSub;

use crate::support::scripts::messages;
use crate::support::{Server, lua};

pub(crate) const ACQUIRE: &str = lua::SEMAPHORE_ACQUIRE;
pub(crate) const RELEASE: &str = lua::SEMAPHORE_RELEASE;
pub(crate) const UNDO: &str = lua::SEMAPHORE_UNDO;
pub(crate) const SET: &str = lua::SEMAPHORE_SET;
pub(crate) const DRAIN: &str = lua::SEMAPHORE_DRAIN;

pub(crate) const CHANNEL: &str = "redisson_sc:{s}";

/// The messages about `s` since the last call.
#[track_caller]
pub(crate) fn published_counts(server: &Server, pubsub: &mut PubSub<'_>) -> Vec<String> {
    let messages = messages(server, pubsub).into_iter();
    messages
        .map(|(channel, count)| {
            assert_eq!(channel, CHANNEL);
            count
        })
        .collect()
}
