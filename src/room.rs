//! The process-local gate of one lock: who of this process asks Redis, who holds, who stands in line.
//!
//! A state machine without I/O and without a clock of its own: every verb takes `now` and says what to do next. At
//! most one thread of a room talks to Redis, the *contender*; the others stand in line and cost the server nothing.
//!
//! ```text
//!              enter (nobody here)            granted
//!      FREE ─────────────────────► CONTENDING ───────► HELD ──┐ enter by the holder: count + 1
//!        ▲                          │    ▲  │            │ ▲ ◄┘ leave, count > 1: count - 1
//!        │   withdraw, nobody waits │    │  │ withdraw:  │ │
//!        ├──────────────────────────┘    │  │ next in    │ │ leave, next wants the same, the tenure is young and
//!        │                               │  └─line       │ └─the hold has validity to spare: the hold changes threads
//!        │   leave or lost, nobody waits │               │
//!        ├───────────────────────────────┼───────────────┤
//!        │                               └───────────────┘
//!                                   leave or lost: the next in line contends
//! ```
//!
//! A *tenure* is the time for which this process keeps passing the lock round. Its age survives short gaps without a
//! holder; once it is over, the next contender first learns whether other processes heard the release
//! ([`Start::Offer`]) and, if so, holds back, or the thread that released would win again and again.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// A gap without a holder that is longer than this, and than the tenure, starts a new tenure.
const GAP: Duration = Duration::from_millis(5);

/// How the lease of a hold behaves, and what must be equal for a hold to change threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lease {
    /// Renewed by the watchdog until released, at most until `max_hold` after it was granted.
    Renewed { max_hold: Option<Duration> },
    /// Ends by itself.
    Fixed(Duration),
}

impl Lease {
    /// Whether a hold taken with this lease may be passed to a thread that wants the same.
    ///
    /// A limit on the whole hold starts anew for each, so such holds are not passed.
    fn passable(self) -> bool {
        !matches!(self, Self::Renewed { max_hold: Some(_) })
    }
}

/// What the gate has to know of the hold it is about to pass: how long it is valid, out of which lease.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Validity {
    pub(crate) until: Instant,
    pub(crate) lease: Duration,
}

impl Validity {
    /// Renewed holds need half their lease, since renewal goes on; fixed ones nine tenths, since it does not.
    fn to_spare(self, lease: Lease, now: Instant) -> bool {
        let needed = match lease {
            Lease::Renewed { .. } => self.lease / 2,
            Lease::Fixed(lease) => lease - lease / 10,
        };
        self.until.saturating_duration_since(now) >= needed
    }
}

#[derive(Debug)]
enum Seat<H> {
    Free,
    /// One thread of ours talks to Redis about this lock.
    Contending,
    Held {
        hold: H,
        thread: u64,
        count: u32,
        lease: Lease,
    },
}

/// One who stands in line. `W` is how to reach its thread.
#[derive(Debug)]
struct Waiting<W> {
    ticket: u64,
    thread: u64,
    lease: Lease,
    waiter: W,
}

/// How a contender has to begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Start<R> {
    /// Ask at once.
    Ask,
    /// Our tenure is over: learn from this release whether others heard it, and let them go first.
    Offer(R),
}

/// What became of a thread that came in.
#[derive(Debug)]
pub(crate) enum Entered<H, R> {
    /// It is the contender now.
    Contend(Start<R>),
    /// It stands in line under this ticket.
    Queued(u64),
    /// It holds the lock already; nothing was changed.
    Mine { hold: H, count: u32, lease: Lease },
    /// Somebody is before it, and it did not want to wait.
    Busy,
}

/// What becomes of the hold that a thread let go.
#[derive(Debug)]
pub(crate) enum Left<W, H> {
    /// The thread has `count` holds left.
    Nested { count: u32 },
    /// The hold belongs to this waiter's thread now: tell it.
    Passed { waiter: W, hold: H },
    /// Release the hold on the server; if somebody is in line, it contends next: tell it.
    Release { next: Option<W> },
    /// The hold was not this thread's any more.
    Gone,
}

/// The gate of one lock. `W` reaches a waiting thread, `H` is a hold, `R` a release under way.
#[derive(Debug)]
pub(crate) struct Room<W, H, R> {
    seat: Seat<H>,
    queue: VecDeque<Waiting<W>>,
    next_ticket: u64,
    tenure: Duration,
    tenure_since: Option<Instant>,
    last_release: Option<(Instant, R)>,
}

impl<W: Clone, H: Clone + PartialEq, R: Clone> Room<W, H, R> {
    pub(crate) fn new(tenure: Duration) -> Self {
        Self {
            seat: Seat::Free,
            queue: VecDeque::new(),
            next_ticket: 0,
            tenure,
            tenure_since: None,
            last_release: None,
        }
    }

    /// A thread wants the lock; `queue` makes its waiter if it is willing to stand in line.
    pub(crate) fn enter(
        &mut self,
        thread: u64,
        lease: Lease,
        now: Instant,
        queue: Option<&dyn Fn() -> W>,
    ) -> Entered<H, R> {
        match &self.seat {
            Seat::Held {
                hold,
                thread: holder,
                count,
                lease,
            } if *holder == thread => Entered::Mine {
                hold: hold.clone(),
                count: *count,
                lease: *lease,
            },
            Seat::Free => {
                self.seat = Seat::Contending;
                Entered::Contend(self.start(now))
            }
            _ => match queue {
                None => Entered::Busy,
                Some(waiter) => {
                    let ticket = self.next_ticket;
                    self.next_ticket += 1;
                    self.queue.push_back(Waiting {
                        ticket,
                        thread,
                        lease,
                        waiter: waiter(),
                    });
                    Entered::Queued(ticket)
                }
            },
        }
    }

    /// How the thread that contends now has to begin.
    pub(crate) fn start(&mut self, now: Instant) -> Start<R> {
        let Some((released_at, release)) = &self.last_release else {
            return Start::Ask;
        };
        if now.saturating_duration_since(*released_at) > self.tenure.max(GAP) {
            self.forget_tenure();
            return Start::Ask;
        }
        if self.tenure_is_young(now) {
            return Start::Ask;
        }
        let start = Start::Offer(release.clone());
        self.forget_tenure();
        start
    }

    fn tenure_is_young(&self, now: Instant) -> bool {
        self.tenure_since
            .is_some_and(|since| now.saturating_duration_since(since) < self.tenure)
    }

    fn forget_tenure(&mut self) {
        self.tenure_since = None;
        self.last_release = None;
    }

    /// The contender found the lock with somebody else: our tenure is over.
    pub(crate) fn refused(&mut self) {
        self.forget_tenure();
    }

    /// The contender was granted the lock by Redis.
    pub(crate) fn granted(&mut self, thread: u64, hold: H, lease: Lease, now: Instant) {
        debug_assert!(matches!(self.seat, Seat::Contending));
        self.tenure_since.get_or_insert(now);
        self.seat = Seat::Held {
            hold,
            thread,
            count: 1,
            lease,
        };
    }

    /// The holding thread takes one more hold, possibly with another lease; `false` if it does not hold any more.
    pub(crate) fn reenter(&mut self, thread: u64, hold: &H, lease: Lease) -> bool {
        match &mut self.seat {
            Seat::Held {
                hold: held,
                thread: holder,
                count,
                lease: its,
            } if *holder == thread && held == hold => {
                *count += 1;
                *its = lease;
                true
            }
            _ => false,
        }
    }

    /// How many holds the thread has.
    pub(crate) fn count(&self, thread: u64) -> u32 {
        match &self.seat {
            Seat::Held {
                thread: holder,
                count,
                ..
            } if *holder == thread => *count,
            _ => 0,
        }
    }

    /// The hold of this process, whoever's it is.
    pub(crate) fn held(&self) -> Option<&H> {
        match &self.seat {
            Seat::Held { hold, .. } => Some(hold),
            _ => None,
        }
    }

    /// A thread lets one hold go. `release` is recorded if that ends in [`Left::Release`].
    pub(crate) fn leave(
        &mut self,
        thread: u64,
        hold: &H,
        validity: Validity,
        now: Instant,
        release: &dyn Fn() -> R,
    ) -> Left<W, H> {
        let tenure_is_young = self.tenure_is_young(now);
        let Seat::Held {
            hold: held,
            thread: holder,
            count,
            lease,
        } = &mut self.seat
        else {
            return Left::Gone;
        };
        if *holder != thread || held != hold {
            return Left::Gone;
        }
        if *count > 1 {
            *count -= 1;
            return Left::Nested { count: *count };
        }
        let lease = *lease;
        let same = self.queue.front().is_some_and(|next| next.lease == lease);
        if same
            && lease.passable()
            && tenure_is_young
            && validity.to_spare(lease, now)
            && let Some(next) = self.queue.pop_front()
        {
            *holder = next.thread;
            return Left::Passed {
                waiter: next.waiter,
                hold: held.clone(),
            };
        }
        self.last_release = Some((now, release()));
        Left::Release {
            next: self.call_next(),
        }
    }

    /// The hold is lost, whatever its thread thinks. Somebody in line contends next: tell it.
    pub(crate) fn lost(&mut self, hold: &H) -> Option<W> {
        if self.held() != Some(hold) {
            return None;
        }
        self.forget_tenure();
        self.call_next()
    }

    /// The contender gives up. Somebody in line contends next: tell it.
    pub(crate) fn withdraw_contender(&mut self) -> Option<W> {
        debug_assert!(matches!(self.seat, Seat::Contending));
        self.call_next()
    }

    /// A thread in line gives up; `false` if it had been called out of line before.
    pub(crate) fn withdraw(&mut self, ticket: u64) -> bool {
        let place = self
            .queue
            .iter()
            .position(|waiting| waiting.ticket == ticket);
        place.is_some_and(|place| self.queue.remove(place).is_some())
    }

    fn call_next(&mut self) -> Option<W> {
        match self.queue.pop_front() {
            None => {
                self.seat = Seat::Free;
                None
            }
            Some(next) => {
                self.seat = Seat::Contending;
                Some(next.waiter)
            }
        }
    }

    /// Empties the line, for news that concern everybody in it.
    pub(crate) fn dismiss(&mut self) -> Vec<W> {
        self.queue.drain(..).map(|waiting| waiting.waiter).collect()
    }

    /// Everybody in line.
    pub(crate) fn waiters(&self) -> impl Iterator<Item = &W> {
        self.queue.iter().map(|waiting| &waiting.waiter)
    }

    /// Whether nothing would be forgotten with this room.
    pub(crate) fn is_idle(&self, now: Instant) -> bool {
        matches!(self.seat, Seat::Free)
            && self.last_release.as_ref().is_none_or(|(released_at, _)| {
                now.saturating_duration_since(*released_at) > self.tenure.max(GAP)
            })
    }
}
