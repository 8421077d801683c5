//! Whose turn it is among the readers and writers of several processes.
//!
//! Who waits is behind the waiter of the other side that was noted in Redis when it first asked, and behind nobody else. So
//! readers and writers take turns, and nobody waits for itself by way of others: whoever is noted asked earlier. The notes
//! are made, looked at and removed by the scripts that ask for the lock (`lua/prelude/notes.lua`):
//!
//! ```text
//!               refused, nobody is noted: notes itself        granted; a note of readers by any reader's grant
//!   first asks ─────────────────────────────────► noted ─────────────────────────────────────────────────► holds
//!       │                                        │  ▲  └─ asks again and again, which prolongs the note
//!       └─ refused, another is noted ─► waits ───┘  │
//!                                         └─────────┘ that one was granted, has given up, or counts as gone
//! ```
//!
//! A note that its waiter does not prolong is gone after a `waiter_lease`, or when its call has to be over.

#[cfg(test)]
mod model;

use std::time::{Duration, Instant};

use crate::acquire::wait_mode::WaitMode;
use crate::protocol::kind::Note;
use crate::protocol::owner::OwnerNumber;

/// For how long a waiter has precedence. Clients of Redisson neither leave notes nor read them, so where their readers
/// overlap a writer may wait for ever, and those behind it would, too.
const PRECEDENCE: Duration = Duration::from_secs(10);

/// Of one that waits: what it has told the others, and whom it has to let go first.
pub(crate) struct Turn {
    /// By this number others know it, that of its first request.
    waiter: Option<OwnerNumber>,
    was_refused: bool,
    behind: String,
    precedes_until: Instant,
    /// When its call is over, if it waits at all. Until then it leaves notes.
    waits_until: Option<Instant>,
}

impl Turn {
    pub(crate) fn new(wait: WaitMode, readers_first: bool, now: Instant) -> Self {
        let precedes_until = now + PRECEDENCE;
        let behind = if readers_first { "" } else { Note::FIRST };
        Self {
            waiter: None,
            was_refused: false,
            behind: behind.to_owned(),
            precedes_until,
            waits_until: wait
                .asks_again()
                .then(|| wait.deadline().or(precedes_until)),
        }
    }

    /// It asks with this number.
    pub(crate) fn asks(&mut self, number: OwnerNumber) -> OwnerNumber {
        *self.waiter.get_or_insert(number)
    }

    /// What it says of itself; `waiter` is the text of what [`asks`](Self::asks) has returned.
    pub(crate) fn note<'a>(
        &'a self,
        waiter: &'a str,
        waiter_lease: Duration,
        now: Instant,
    ) -> Note<'a> {
        let left = |until: Instant| until.saturating_duration_since(now);
        Note {
            waiter,
            behind: if now < self.precedes_until {
                &self.behind
            } else {
                ""
            },
            lives: self
                .waits_until
                .map_or(Duration::ZERO, left)
                .min(waiter_lease),
        }
    }

    /// It was refused, and is behind this one.
    pub(crate) fn is_behind(&mut self, behind: String) {
        (self.was_refused, self.behind) = (true, behind);
    }

    /// The number in a note that it may leave behind if it gives up now.
    pub(crate) fn may_be_noted(&self, now: Instant) -> Option<OwnerNumber> {
        let waits = self.was_refused && self.waits_until.is_some_and(|until| now < until);
        self.waiter.filter(|_| waits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::time::Deadline;

    #[test]
    fn a_note_lives_for_as_long_as_its_waiter_waits_and_has_precedence() {
        const LEASE: Duration = Duration::from_secs(3);
        let now = Instant::now();
        let second = |n| Duration::from_secs(n);
        let until = |n| WaitMode::Until(Deadline::at(now + second(n)));
        let lives = |wait, at| {
            let mut turn = Turn::new(wait, false, now);
            turn.asks(OwnerNumber(7));
            turn.is_behind("u:3".to_owned());
            let (note, noted) = (
                turn.note("u:7", LEASE, now + at),
                turn.may_be_noted(now + at),
            );
            assert_eq!(noted.is_some(), !note.lives.is_zero());
            (note.lives, note.behind == "u:3")
        };
        assert_eq!(lives(until(60), second(0)), (LEASE, true));
        assert_eq!(lives(until(8), second(6)), (second(2), true));
        assert_eq!(lives(until(60), second(9)), (second(1), true));
        assert_eq!(lives(until(60), second(10)), (second(0), false));
        assert_eq!(lives(WaitMode::Once, second(0)), (second(0), true));
        let together = WaitMode::Together {
            until: now + second(9),
            callers: true,
            waits: true,
        };
        assert_eq!(lives(together, second(0)), (second(0), true));
    }

    #[test]
    fn it_asks_as_one_waiter_and_first_behind_whoever_is_noted() {
        let now = Instant::now();
        let behind = |readers_first| {
            let mut turn = Turn::new(WaitMode::Once, readers_first, now);
            let waiters = [7, 8].map(|number| turn.asks(OwnerNumber(number)));
            assert_eq!(waiters, [OwnerNumber(7); 2]);
            turn.note("u:7", Duration::ZERO, now).behind.to_owned()
        };
        assert_eq!((&*behind(false), &*behind(true)), ("?", ""));
    }
}
