//! Counts and reports the outcomes of releases, whether a thread waits for them or not.

use std::sync::Arc;
use std::time::Instant;

use redis::{RedisError, Value};

use crate::error::{Loss, LossReason};
use crate::hold::loss::Notices;
use crate::hold::lost_before;
use crate::net::call::{DeferredInfo, OnReply};
use crate::protocol::script;
use crate::report::report;
use crate::stats::Counters;

pub(crate) struct Releases {
    pub(crate) counters: Arc<Counters>,
    pub(crate) notices: Arc<Notices>,
}

impl Releases {
    /// The release as a log names it. Permits without a lease have no owner.
    fn doing(release: &DeferredInfo) -> String {
        let (name, owner) = (&release.name, &release.owner);
        match release.has_no_lease {
            true => format!("returning permits of `{name}`"),
            false => format!("releasing `{name}` of {owner}"),
        }
    }
}

impl OnReply for Releases {
    fn released(&self, release: &DeferredInfo, reply: &Value, replayed: bool) {
        let (name, owner) = (&release.name, &release.owner);
        match script::released(reply) {
            // An acquire that is undone may never have been executed.
            Ok(_) if release.undo => {}
            Ok(released) => {
                let in_time = release.valid_until.is_some() || release.has_no_lease;
                let Some(reason) = lost_before(released, replayed, in_time) else {
                    return;
                };
                self.counters.releases_of_lost.add(1);
                let cause = match reason {
                    _ if release.has_no_lease => "no number of permits is set",
                    LossReason::TakenOver => "another owner held it",
                    _ => "it was no longer held",
                };
                let doing = Self::doing(release);
                report!(Warn, "{doing} came too late: {cause}");
                // No loss is reported if the hold was released in time and its validity is over by now: the lease may have
                // ended before Redis executed the release, for example during an outage. Permits without a lease are no
                // holds, so none was lost.
                let may_have_ended =
                    (release.valid_until).is_some_and(|until| Instant::now() >= until);
                if may_have_ended || release.has_no_lease {
                    return;
                }
                self.notices.notify(Loss {
                    name: name.to_string(),
                    owner: owner.to_string(),
                    reason,
                });
            }
            Err(unexpected) => {
                self.counters.releases_failed.add(1);
                report!(Warn, "{} failed: {unexpected}", Self::doing(release));
            }
        }
    }

    fn given_up(&self, release: &DeferredInfo, why: &RedisError) {
        if release.undo && !release.has_no_lease {
            let name = &release.name;
            report!(
                Debug,
                "releasing what may be left of `{name}` failed: {why}"
            );
            return;
        }
        // What was not released ends with its lease. Permits without a lease stay taken, and the log must say so.
        self.counters.releases_failed.add(1);
        let then = match release.has_no_lease {
            true => "they stay taken until `add_permits` replaces them",
            false => "it expires with its lease",
        };
        report!(Warn, "{} failed: {why}; {then}", Self::doing(release));
    }
}
