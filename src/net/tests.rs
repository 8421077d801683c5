//! Stand-ins for tests that look neither at housekeeping nor at the outcome of releases.

use redis::{RedisError, Value};

use super::call::{DeferredInfo, OnReply};
use super::connection::Housekeeper;

/// Does no housekeeping, and ignores the outcome of releases.
pub(super) struct Nobody;

impl Housekeeper for Nobody {
    fn housekeep_soon(&self) {}

    fn housekeep_now(&self) {}
}

impl OnReply for Nobody {
    fn released(&self, _: &DeferredInfo, _: &Value, _: bool) {}

    fn given_up(&self, _: &DeferredInfo, _: &RedisError) {}
}

/// Ignores the replies to releases. No release may be given up.
pub(super) struct Patient;

impl OnReply for Patient {
    fn released(&self, _: &DeferredInfo, _: &Value, _: bool) {}

    fn given_up(&self, _: &DeferredInfo, why: &RedisError) {
        panic!("given up: {why}");
    }
}
