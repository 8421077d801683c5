//! Counts and logs the outcomes of releases for which no thread has to wait.

use redis::{RedisError, Value};

use crate::error::LossReason;
use crate::net::call::{DeferredInfo, OnReply};
use crate::protocol::script;
use crate::report::report;
use crate::stats::Counters;

impl OnReply for Counters {
    fn released(&self, release: &DeferredInfo, reply: &Value, replayed: bool) {
        let (name, owner) = (&release.name, &release.owner);
        match script::released(reply) {
            Ok(Ok(_)) => {}
            // An undone acquire may never have been executed, and a release that was sent twice may have been executed
            // the first time.
            Ok(Err(_)) if release.undo || replayed => {}
            Ok(Err(gone)) => {
                self.releases_of_lost.add(1);
                let what = match gone {
                    LossReason::TakenOver => "another owner held it",
                    _ => "it was no longer held",
                };
                report!(Warn, "releasing `{name}` of {owner} came too late: {what}");
            }
            Err(unexpected) => {
                self.releases_failed.add(1);
                report!(Warn, "releasing `{name}` of {owner} failed: {unexpected}");
            }
        }
    }

    fn given_up(&self, release: &DeferredInfo, why: &RedisError) {
        let (name, owner) = (&release.name, &release.owner);
        if release.undo && !release.for_good {
            report!(
                Debug,
                "releasing what may be left of `{name}` failed: {why}"
            );
            return;
        }
        // A lease ends what was not released; permits without one stay taken, which the log must say.
        self.releases_failed.add(1);
        let (doing, then) = match release.for_good {
            true => (
                format!("returning permits of `{name}`"),
                "they stay taken until `add_permits` replaces them",
            ),
            false => (
                format!("releasing `{name}` of {owner}"),
                "it expires with its lease",
            ),
        };
        report!(Warn, "{doing} failed: {why}; {then}");
    }
}
