//! Asking a majority of several servers.

use std::sync::Arc;
use std::time::Instant;

use crate::acquire::spec::LockSpec;
use crate::acquire::{NoReply, Reply};
use crate::hold::{Entry, Hold};
use crate::protocol::kind::ACQUIRING;
use crate::quorum::ask::{Quorum, QuorumReply, QuorumRequest};
use crate::quorum::failure::Short;
use crate::time;

pub(crate) use crate::quorum::nodes::{PAUSE, pause};

/// Asks a majority of the servers, and asks again if too few of them answered.
pub(crate) fn ask(
    quorum: &Quorum,
    lock: &LockSpec,
    entry: &Arc<Entry>,
    mut request: QuorumRequest,
    until: Instant,
) -> std::result::Result<Reply<Arc<Hold>>, NoReply> {
    let stop = || lock.must_stop();
    let mut again = false;
    // The previous round, if too many servers were unreachable in it or rejected the request.
    let mut previous_short: Option<Short> = None;
    loop {
        let short = match quorum.ask(entry, request, until, &stop) {
            QuorumReply::Granted(hold) => return Ok(Reply::Granted(hold)),
            QuorumReply::Busy(busy) => return Ok(Reply::Busy(busy)),
            QuorumReply::GrantedTooLate => return Err(lock.granted_too_late().into()),
            QuorumReply::TooFew(short) => short,
            QuorumReply::Stopped => return Err(lock.stopped().into()),
        };
        if stop() {
            return Err(lock.stopped().into());
        }
        // Without time for another round, the attempt ends. If the time limit cut this round short, the round before it
        // makes the better error.
        let (now, pause) = (Instant::now(), pause());
        if now + pause >= until {
            let short = short.unless_cut_short(now >= until, previous_short);
            return Err(NoReply::Unanswered(short.into()));
        }
        // The first repetition follows at once: the connections may have been idle for so long that they are broken.
        if again {
            if request.asks_again_in.is_none() || short.is_final() {
                // A single attempt is repeated only once, and repeating does not change a final rejection. Both end with an
                // error.
                return Err(lock.error(ACQUIRING, short).into());
            }
            time::sleep_unless(pause, &stop);
        }
        previous_short = short.cannot_agree().then_some(short);
        again = true;
        // Too few servers answered, so nothing is known about the lock any more.
        request.is_busy = false;
    }
}
