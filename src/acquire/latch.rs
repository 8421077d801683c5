//! Waiting for a latch to open.

use std::sync::Arc;
use std::time::Instant;

use crate::acquire::listening::Listening;
use crate::acquire::spec::LockSpec;
use crate::acquire::{Busy, NoReply, Reply, Strategy};
use crate::error::Result;
use crate::hold::Entry;
use crate::protocol::latch;
use crate::protocol::script::{self, LatchState};

const ASKING: &str = "asking for a latch";

/// A thread that waits for a latch. A latch is not held, so a request leaves nothing to undo.
pub(crate) struct LatchWait<'a> {
    spec: &'a LockSpec,
    entry: Arc<Entry>,
    first_round: Option<Vec<u8>>,
    listening: Listening,
}

impl<'a> LatchWait<'a> {
    pub(crate) fn new(spec: &'a LockSpec) -> Result<Self> {
        let entry = spec.unregistered_entry()?;
        spec.check_going()?;
        Ok(Self {
            spec,
            entry,
            first_round: None,
            listening: Listening::new(spec.command_timeout),
        })
    }
}

impl Strategy for LatchWait<'_> {
    type Grant = ();

    const DOING: &'static str = ASKING;

    fn entry(&self) -> &Arc<Entry> {
        &self.entry
    }

    fn ask(&mut self, until: Instant) -> std::result::Result<Reply<()>, NoReply> {
        let (spec, request) = (self.spec, latch::state(&self.entry.protocol));
        let stop = || spec.must_stop();
        let answer = spec.session().connection.ask(&request, until, &stop)?;
        let state = script::latch_state(answer.value);
        let state =
            state.map_err(|unexpected| spec.session().error(ASKING, &spec.name, unexpected))?;
        Ok(if note_round(&mut self.first_round, state) {
            Reply::Granted(())
        } else {
            Reply::Busy(Busy::default())
        })
    }

    fn listening(&mut self) -> &mut Listening {
        &mut self.listening
    }
}

impl Drop for LatchWait<'_> {
    fn drop(&mut self) {
        self.listening.leave();
    }
}

/// Whether the round that the waiter saw first is over. The first call stores that round.
fn note_round(first_round: &mut Option<Vec<u8>>, state: LatchState) -> bool {
    match (state, &first_round) {
        (LatchState::Open, _) => true,
        (LatchState::Closed { round, .. }, None) => {
            *first_round = Some(round);
            false
        }
        // A latch that was opened and closed again between two questions has another round mark. If the mark is empty now,
        // Redis has lost it, which proves nothing.
        (LatchState::Closed { round, .. }, Some(first)) => !round.is_empty() && round != *first,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_mark_frees_a_waiter_and_a_lost_one_does_not() {
        let closed = |round: &str| LatchState::Closed {
            count: 1,
            round: round.into(),
        };
        let frees = |first: &str, later: &str| {
            let mut first_round = None;
            assert!(!note_round(&mut first_round, closed(first)));
            assert!(!note_round(&mut first_round, closed(first)));
            let frees = note_round(&mut first_round, closed(later));
            assert!(note_round(&mut first_round, LatchState::Open));
            frees
        };
        assert!(frees("a", "b"));
        assert!(frees("", "b"));
        assert!(!frees("a", ""));
        assert!(note_round(&mut None, LatchState::Open));
    }
}
