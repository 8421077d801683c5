//! Asking a majority of several servers.

use std::sync::Arc;
use std::time::Instant;

use crate::acquire::spec::LockSpec;
use crate::acquire::wait_mode::WaitMode;
use crate::acquire::{Busy, NoReply, Reply};
use crate::error::LossReason;
use crate::hold::{Entry, Hold};
use crate::quorum::ask::{GivenBack, Quorum, QuorumReply, QuorumRequest};
use crate::quorum::failure::Short;
use crate::time;

pub(crate) use crate::quorum::ask::Known;
pub(crate) use crate::quorum::nodes::{PAUSE, pause};

/// What a contender has given back without a message, since it was to ask again. It announces that if it gives up: see
/// [`ask`](crate::quorum::ask).
#[derive(Default)]
pub(crate) struct Unannounced(Option<Arc<Quorum>>);

impl Unannounced {
    /// It has asked once more.
    fn asked(&mut self, quorum: &Arc<Quorum>, reply: &QuorumReply, given_back: GivenBack) {
        match (given_back, reply) {
            (GivenBack::Silently, _) => self.0 = Some(Arc::clone(quorum)),
            // That was at the servers of this attempt only.
            (GivenBack::Announced, _) => {}
            // Whoever has a majority announces the release, or was granted too few and is in this position.
            (GivenBack::Nothing, QuorumReply::Granted { .. } | QuorumReply::Busy { .. }) => {
                self.0 = None;
            }
            (GivenBack::Nothing, _) => {}
        }
    }
}

impl Drop for Unannounced {
    fn drop(&mut self) {
        if let Some(quorum) = self.0.take() {
            quorum.announce();
        }
    }
}

/// Asks a majority once; again if too few servers answered.
pub(crate) fn ask(
    quorum: &Arc<Quorum>,
    unannounced: &mut Unannounced,
    lock: &LockSpec,
    entry: &Arc<Entry>,
    wait: WaitMode,
    mut request: QuorumRequest,
    until: Instant,
) -> std::result::Result<Reply<(Arc<Hold>, Instant)>, NoReply> {
    let stop = || lock.must_stop(wait);
    let mut again = false;
    // The round before, if too many servers were away in it, or refused.
    let mut before: Option<Short> = None;
    loop {
        let (reply, given_back) = quorum.ask(entry, request, until, &stop);
        unannounced.asked(quorum, &reply, given_back);
        let short = match reply {
            QuorumReply::Granted { hold, sent_at } => return Ok(Reply::Granted((hold, sent_at))),
            QuorumReply::Busy {
                free_in,
                is_contested,
            } => {
                return Ok(Reply::Busy(Busy {
                    retry_after: free_in,
                    is_contested,
                    ..Busy::default()
                }));
            }
            QuorumReply::GrantedTooLate => return Err(lock.lost(LossReason::Expired).into()),
            QuorumReply::TooFew(short) => short,
            QuorumReply::Stopped => return Err(lock.stopped().into()),
        };
        if stop() {
            return Err(lock.stopped().into());
        }
        let (now, pause) = (Instant::now(), pause());
        if now + pause >= until {
            let short = short.unless_cut_short(now >= until, before);
            return Err(NoReply::Unanswered(short.into()));
        }
        // The first time the connections may just have been idle for too long.
        if again {
            if request.comes_again_in.is_none() || short.is_final() {
                // The servers had enough time to answer.
                return Err(lock.error("acquiring the lock", short).into());
            }
            time::sleep_unless(pause, &stop);
        }
        before = short.is_away().then_some(short);
        again = true;
        request.known = Known::Nothing;
    }
}
