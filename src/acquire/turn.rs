//! The turns of the readers and writers of several processes.
//!
//! A *note* is a key in Redis that names one waiting reader or one waiting writer; each side has one note at most. A
//! waiter that finds a note of the other side at its first question is behind the noted waiter, and behind nobody else. So
//! readers and writers take turns. A waiter is only ever behind one that asked earlier, so waiters never wait for each
//! other in a circle. The scripts that ask for the lock make, read and remove the notes (`lua/prelude/notes.lua`):
//!
//! ```text
//!               refused, its side has no note: notes itself   granted; a reader's grant ends the readers' note
//!   first asks ─────────────────────────────────► noted ─────────────────────────────────────────────────► holds
//!       │                                           ▲  └─ asks again and again, which prolongs the note
//!       └─ refused, its side has one ─► waits ──────┘ once the noted waiter was granted, gave up or counts as gone
//! ```
//!
//! 1. A note expires one `waiter_lease` after its waiter last prolonged it, or earlier, when the waiter's call or its
//!    precedence (10 s, [`PRECEDENCE`]) ends.
//! 2. A note is known by the number of the request that made it.
//! 3. A request without a reply is undone, and its note with it. The next request has a new number, and its waiter counts
//!    as a newcomer. The number has to be new, because another waiter may be behind the old one. For example, V is behind
//!    W's note when a request of W gets no reply. W asks again, finds V's note, and is behind V. If W kept its number, V
//!    would still be behind W, and each would wait for the other.

#[cfg(test)]
mod model;

use std::time::{Duration, Instant};

use crate::acquire::wait_mode::WaitMode;
use crate::protocol::kind::Note;
use crate::protocol::owner::OwnerNumber;

/// The time for which a waiter has precedence. Limited because Redisson's clients ignore notes: if their readers overlap,
/// a noted writer may wait without end, and the waiters behind it must not.
const PRECEDENCE: Duration = Duration::from_secs(10);

/// The turn of one waiter: the number by which others know it, and the waiter that it lets go first.
pub(crate) struct Turn {
    /// The number of its last request, if that was refused.
    refused: Option<OwnerNumber>,
    behind: String,
    /// The `behind` that a newcomer sends. With [`Note::FIRST`] the script itself looks for a noted waiter of the other
    /// side. With `readers_first` the text is empty, and the script looks for none.
    newcomer_behind: &'static str,
    precedes_until: Instant,
    /// Until when the waiter leaves notes; `None` if its call does not wait.
    waits_until: Option<Instant>,
}

impl Turn {
    pub(crate) fn new(wait: WaitMode, readers_first: bool, now: Instant) -> Self {
        let precedes_until = now + PRECEDENCE;
        Self {
            refused: None,
            behind: String::new(),
            newcomer_behind: if readers_first { "" } else { Note::FIRST },
            precedes_until,
            waits_until: wait
                .asks_again()
                .then(|| wait.deadline().earliest(precedes_until)),
        }
    }

    /// The number for the next request: the last one if that was refused, otherwise a `new` one (rule 3).
    pub(crate) fn take_number(&mut self, new: impl FnOnce() -> OwnerNumber) -> OwnerNumber {
        // `take`: unless the reply to this request puts the number back with `set_behind`, it is not used again.
        self.refused.take().unwrap_or_else(|| {
            self.behind = self.newcomer_behind.to_owned();
            new()
        })
    }

    /// The note that goes with the next request.
    pub(crate) fn note(&self, waiter_lease: Duration, now: Instant) -> Note<'_> {
        let time_left = |until: Instant| until.saturating_duration_since(now);
        Note {
            behind: if now < self.precedes_until {
                &self.behind
            } else {
                ""
            },
            lives: self
                .waits_until
                .map_or(Duration::ZERO, time_left)
                .min(waiter_lease),
        }
    }

    /// The request with this number was refused, and the waiter is behind the waiter `behind`.
    pub(crate) fn set_behind(&mut self, number: OwnerNumber, behind: String) {
        (self.refused, self.behind) = (Some(number), behind);
    }

    /// The number in a note that a waiter may have to remove if it gives up now. After a request without a reply there
    /// is none: the undo of that request removes its note.
    pub(crate) fn noted(&self, now: Instant) -> Option<OwnerNumber> {
        let waits = self.waits_until.is_some_and(|until| now < until);
        self.refused.filter(|_| waits)
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
            turn.set_behind(OwnerNumber(7), "u:3".to_owned());
            let (note, noted) = (turn.note(LEASE, now + at), turn.noted(now + at));
            assert_eq!(noted.is_some(), !note.lives.is_zero());
            (note.lives, note.behind == "u:3")
        };
        assert_eq!(lives(until(60), second(0)), (LEASE, true));
        assert_eq!(lives(until(8), second(6)), (second(2), true));
        assert_eq!(lives(until(60), second(9)), (second(1), true));
        assert_eq!(lives(until(60), second(10)), (second(0), false));
        assert_eq!(lives(WaitMode::Once, second(0)), (second(0), true));
        let budget = Deadline::at(now + second(9)).budget(now, second(60));
        let within = WaitMode::OnceWithin(budget);
        assert_eq!(lives(within, second(0)), (second(0), true));
    }

    #[test]
    fn a_number_without_a_reply_is_not_asked_with_again() {
        let now = Instant::now();
        for (readers_first, newcomer) in [(false, "?"), (true, "")] {
            let mut turn = Turn::new(WaitMode::FOREVER, readers_first, now);
            let mut last = 6;
            let mut asks = |turn: &mut Turn| {
                let number = turn.take_number(|| {
                    last += 1;
                    OwnerNumber(last)
                });
                let behind = turn.note(Duration::ZERO, now).behind.to_owned();
                assert_eq!(turn.noted(now), None, "its undo removes the note");
                (number.0, behind)
            };
            assert_eq!(asks(&mut turn), (7, newcomer.to_owned()));
            assert_eq!(asks(&mut turn), (8, newcomer.to_owned()), "no reply");
            turn.set_behind(OwnerNumber(8), "u:3".to_owned());
            assert_eq!(turn.noted(now), Some(OwnerNumber(8)));
            assert_eq!(asks(&mut turn), (8, "u:3".to_owned()), "refused");
            assert_eq!(asks(&mut turn), (9, newcomer.to_owned()), "no reply");
        }
    }
}
