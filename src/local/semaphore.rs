//! The permits of one semaphore inside this process: who waits, who asks Redis, which permits are handed over.
//!
//! The state machine does no I/O and has no clock. The queue is first come, first served. Of the threads that wait, only
//! the *first* asks Redis. A call that does not wait is never queued: it asks Redis once, or not at all if threads wait.
//! Within the tenure, released permits go to the first in the queue if they are enough for that thread, then to the next;
//! the rest goes back to Redis. A thread never gathers permits bit by bit: if two processes did that, both could wait
//! without end.
//!
//! ```text
//!   enter ─► queued ─► first ──granted by Redis────► has them ──give──► the first in the queue, within the tenure
//!               │        ├─────handed over here────►    ▲    └────────► back to Redis
//!               └────────┴──────────────────────────────┘
//! ```
//!
//! A permit's *tenure* begins when Redis grants it. After the tenure the permit goes back to Redis, even if threads wait
//! here, so that other processes get their turn. Giving it back is not enough, since the next request of this process
//! reaches Redis before the others have woken. So if grants go on for a tenure without a long gap (see `cohort`), the next
//! thread to ask lets others go first.

use std::time::{Duration, Instant};

use crate::local::cohort::Cohort;
use crate::local::queue::WaitQueue;

/// A thread in the queue. `W` is how to reach it.
#[derive(Debug, Clone)]
struct QueuedThread<W> {
    need: u32,
    waiter: W,
    /// Redis had too few permits for the thread.
    refused: bool,
}

/// The queue of one semaphore. `R` is a release on its way.
///
/// 1. Of the threads that wait, only the first asks Redis, so requests for few permits do not starve one for many. Each
///    call after which another thread may be first returns that thread's waiter, and the caller wakes it. (After
///    `dismiss`, the caller asks for it by `first`.)
/// 2. A queued thread leaves the queue once: with `withdraw`, with its own grant from Redis, or because `give` or
///    `dismiss` returns its waiter. If `give` or `dismiss` returns it, the caller stores a wakeup before releasing the
///    mutex of the entry.
/// 3. `out` counts the permits without a lease (*plain* permits) of this process: from the grant until they go back to
///    Redis, also while they change threads. Permits with a lease are holds, and not counted here.
#[derive(Debug, Clone)]
pub(crate) struct LocalSemaphore<W, R> {
    queue: WaitQueue<QueuedThread<W>>,
    /// Plain permits that threads of this process have: rule 3.
    out: u64,
    pub(crate) cohort: Cohort<R>,
    /// The client is closed: all permits were returned, and nobody gets any.
    closed: bool,
}

/// Where the permits go that a thread releases.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "threads that are given permits have to be woken"]
pub(crate) struct Given<W> {
    /// Queued threads that were handed their permits.
    pub(crate) receivers: Vec<W>,
    /// The first in the queue, which has to be woken so that it asks Redis: it may have become first just now, or its
    /// request may succeed now.
    pub(crate) first: Option<W>,
    /// How many permits go back to Redis: after the tenure, all of them; within the tenure, the rest that no thread in the
    /// queue was handed. That rest is too small for the thread that is first now, if any.
    pub(crate) back: u32,
}

/// Where the permits go that Redis has granted.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the next in the queue has to be woken"]
pub(crate) enum Granted<W> {
    /// The asking thread keeps them; `first` is first in the queue now.
    Kept { first: Option<W> },
    /// The asking thread was taken off the queue while its request was on its way. If the thread was handed other permits,
    /// the granted ones have to be given to the next thread. If it was dismissed, it keeps the granted ones.
    Surplus,
    /// The client is closed, so the permits have to go back to Redis.
    Closed,
}

impl<W: Clone, R> LocalSemaphore<W, R> {
    pub(crate) fn new(tenure: Duration) -> Self {
        Self {
            queue: WaitQueue::new(),
            out: 0,
            cohort: Cohort::new(tenure),
            closed: false,
        }
    }

    /// Whether no thread waits or has plain permits.
    pub(crate) fn is_free(&self) -> bool {
        self.queue.is_empty() && self.out == 0
    }

    /// Whether the semaphore can be dropped without forgetting anything.
    pub(crate) fn is_idle(&self, now: Instant) -> bool {
        self.is_free() && self.cohort.is_forgettable(now)
    }

    /// Whether a thread waits: any thread behind the first in the queue, and the first itself once Redis had too few
    /// for it.
    pub(crate) fn has_waiters(&self) -> bool {
        self.queue.len() > 1 || self.queue.front().is_some_and(|first| first.refused)
    }

    /// A thread joins the queue; returns its ticket, and whether it is first.
    pub(crate) fn enter(&mut self, need: u32, waiter: W) -> (u64, bool) {
        let ticket = self.queue.push(QueuedThread {
            need,
            waiter,
            refused: false,
        });
        (ticket, self.queue.len() == 1)
    }

    /// Redis had too few for the thread with this ticket. If that thread has left the queue by now, for example because it
    /// was handed permits while its request was on its way, nothing is recorded for the queue.
    ///
    /// `are_handed_over`: permits of this kind are handed over among threads. If so, the refusal ends the cohort: other
    /// processes probably have the missing permits. If not, the cohort goes on. The price: if threads of this process have
    /// all the missing permits, the cohort ends although no other process may want any. If the cohort has ended, the
    /// tenure counts as over. Then the thread that asks after the next release to Redis first waits for the reply to that
    /// release, which costs a round trip.
    pub(crate) fn record_refusal(&mut self, ticket: u64, are_handed_over: bool) {
        if self.queue.is_first(ticket)
            && let Some(first) = self.queue.front_mut()
        {
            first.refused = true;
        }
        if are_handed_over {
            self.cohort.end();
        }
    }

    /// Redis has granted `need` to the thread with this ticket, or to a thread that was not in the queue.
    pub(crate) fn granted(&mut self, ticket: Option<u64>, need: u32, now: Instant) -> Granted<W> {
        if self.closed {
            // `close` has taken `out`, so these permits are counted nowhere and the caller undoes the request.
            return Granted::Closed;
        }
        self.cohort.granted(now);
        self.out += u64::from(need);
        match ticket {
            None => Granted::Kept { first: None },
            Some(ticket) if self.queue.is_first(ticket) => {
                self.queue.pop();
                Granted::Kept {
                    first: self.first(),
                }
            }
            // While the request was on its way, this thread was taken off the queue: by `give`, with permits of another
            // thread, or by `dismiss`.
            Some(_) => Granted::Surplus,
        }
    }

    /// A thread releases permits that Redis granted to this process at `since`.
    pub(crate) fn give(&mut self, permits: u32, since: Instant, now: Instant) -> Given<W> {
        let mut given = Given {
            receivers: Vec::new(),
            first: None,
            back: 0,
        };
        // Closing has given all permits back to Redis; giving them once more would create permits.
        if self.closed {
            return given;
        }
        let mut permits_left = permits;
        if self.cohort.is_within_tenure(since, now) {
            // The first that needs more than is left ends the loop: a later thread must not overtake it.
            while let Some(first) = self.queue.pop_if(|first| first.need <= permits_left) {
                permits_left -= first.need;
                given.receivers.push(first.waiter);
            }
        }
        // Permits that were handed over stay counted: rule 3.
        self.out -= u64::from(permits_left);
        given.back = permits_left;
        if permits_left > 0 || !given.receivers.is_empty() {
            given.first = self.first();
        }
        given
    }

    /// A thread leaves the queue. `None` if the thread was no longer queued: rule 2. Otherwise the thread that has become
    /// first by this, if any.
    pub(crate) fn withdraw(&mut self, ticket: u64) -> Option<Option<W>> {
        let was_first = self.queue.is_first(ticket);
        self.queue.remove(ticket)?;
        Some(if was_first { self.first() } else { None })
    }

    /// A thread will never release these permits, so they are no longer counted.
    pub(crate) fn forget(&mut self, permits: u32) {
        if !self.closed {
            self.out -= u64::from(permits);
        }
    }

    /// Takes the threads for which `concerns` is true off the queue; the caller wakes them.
    pub(crate) fn dismiss(&mut self, concerns: impl Fn(&W) -> bool) -> Vec<W> {
        let dismissed = self.queue.take_if(|queued| concerns(&queued.waiter));
        dismissed.map(|queued| queued.waiter).collect()
    }

    /// Closes the semaphore, and returns how many plain permits threads of this process have.
    pub(crate) fn close(&mut self) -> u64 {
        self.closed = true;
        std::mem::take(&mut self.out)
    }

    /// The first in the queue.
    pub(crate) fn first(&self) -> Option<W> {
        self.queue.front().map(|first| first.waiter.clone())
    }
}

#[cfg(test)]
mod tests;
