//! Counts and logs the outcomes of releases that nobody waits for.

use std::sync::Arc;

use redis::{RedisError, Value};

use crate::net::call::{DeferredInfo, OnReply};
use crate::protocol::script::{self, Released};
use crate::report::report;
use crate::stats::Counters;

pub(crate) struct Releases {
    counters: Arc<Counters>,
}

impl Releases {
    pub(crate) fn new(counters: Arc<Counters>) -> Self {
        Self { counters }
    }
}

impl OnReply for Releases {
    fn released(&self, release: &DeferredInfo, reply: &Value, replayed: bool) {
        match script::released(reply) {
            Ok(Released::Yes { .. }) => {}
            // Normal for an undone acquire, and for a release that was sent twice.
            Ok(Released::Gone | Released::Taken) if release.undo || replayed => {}
            Ok(gone) => {
                self.counters.releases_of_lost.add(1);
                report!(
                    Warn,
                    "releasing `{}`: it was no longer ours ({gone:?})",
                    release.name
                );
            }
            Err(unexpected) => {
                self.counters.releases_failed.add(1);
                report!(Warn, "releasing `{}`: {unexpected}", release.name);
            }
        }
    }

    fn given_up(&self, release: &DeferredInfo, why: &RedisError) {
        let name = &release.name;
        if release.for_good {
            self.counters.releases_failed.add(1);
            report!(
                Warn,
                "giving back permits of `{name}`: {why}; given up, and they count as taken for good"
            );
        } else if release.undo {
            report!(Debug, "undoing an acquire of `{name}`: {why}");
        } else {
            self.counters.releases_failed.add(1);
            report!(
                Warn,
                "releasing `{name}`: {why}; it frees itself when its lease runs out"
            );
        }
    }
}
