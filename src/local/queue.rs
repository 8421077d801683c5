//! The queue of waiting threads: first come, first served. A thread may leave it from any position.

use std::collections::VecDeque;

/// The waiting threads, each under a ticket that is never reused. Allocates nothing until the first thread waits.
#[derive(Debug, Clone)]
pub(super) struct WaitQueue<W> {
    /// By ticket, ascending.
    waiting: VecDeque<(u64, W)>,
    next_ticket: u64,
}

impl<W> WaitQueue<W> {
    pub(super) fn new() -> Self {
        Self {
            waiting: VecDeque::new(),
            next_ticket: 0,
        }
    }

    /// Adds a thread at the end; returns its ticket.
    pub(super) fn push(&mut self, waiting: W) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.waiting.push_back((ticket, waiting));
        ticket
    }

    /// Removes the thread with this ticket; `None` if it is no longer queued.
    pub(super) fn remove(&mut self, ticket: u64) -> Option<W> {
        // Tickets only grow and threads join at the end, so the queue is sorted by ticket.
        let index = self
            .waiting
            .binary_search_by_key(&ticket, |(other, _)| *other)
            .ok()?;
        self.waiting.remove(index).map(|(_, waiting)| waiting)
    }

    pub(super) fn front(&self) -> Option<&W> {
        self.waiting.front().map(|(_, waiting)| waiting)
    }

    pub(super) fn front_mut(&mut self) -> Option<&mut W> {
        self.waiting.front_mut().map(|(_, waiting)| waiting)
    }

    pub(super) fn is_first(&self, ticket: u64) -> bool {
        self.waiting
            .front()
            .is_some_and(|(first, _)| *first == ticket)
    }

    pub(super) fn pop(&mut self) -> Option<W> {
        self.waiting.pop_front().map(|(_, waiting)| waiting)
    }

    /// Removes the first thread if it matches.
    pub(super) fn pop_if(&mut self, matches: impl FnOnce(&W) -> bool) -> Option<W> {
        if self.front().is_some_and(matches) {
            self.pop()
        } else {
            None
        }
    }

    /// Removes the threads that match.
    pub(super) fn take_if(&mut self, matches: impl Fn(&W) -> bool) -> impl Iterator<Item = W> {
        let waiting = std::mem::take(&mut self.waiting).into_iter();
        let (taken, kept): (VecDeque<_>, _) = waiting.partition(|(_, waiting)| matches(waiting));
        self.waiting = kept;
        taken.into_iter().map(|(_, waiting)| waiting)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &W> {
        self.waiting.iter().map(|(_, waiting)| waiting)
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_finds_its_own_wherever_it_waits() {
        for leaves in 0..5 {
            let mut queue = WaitQueue::new();
            // After a thread has left the queue, tickets no longer start at zero.
            queue.push(7);
            assert_eq!(queue.pop(), Some(7));
            let tickets: Vec<_> = (0..5).map(|n| queue.push(n)).collect();
            assert_eq!(queue.is_first(tickets[leaves]), leaves == 0);
            assert_eq!(queue.remove(tickets[leaves]), Some(leaves));
            assert_eq!(queue.remove(tickets[leaves]), None);
            let rest: Vec<_> = (0..5).filter(|n| *n != leaves).collect();
            assert!(queue.iter().eq(&rest));
            assert!(queue.is_first(tickets[rest[0]]));
            assert_eq!(queue.remove(tickets[rest[1]]), Some(rest[1]));
            assert_eq!(queue.pop_if(|first| *first != rest[0]), None);
            assert_eq!(queue.pop_if(|first| *first == rest[0]), Some(rest[0]));
            assert_eq!((queue.len(), queue.front()), (2, Some(&rest[2])));
            assert!(queue.take_if(|n| *n == rest[2]).eq([rest[2]]));
            assert!(queue.take_if(|_| true).eq(rest[3..].iter().copied()));
            assert!(queue.is_empty());
            assert!(queue.push(0) > tickets[4], "a ticket is used once");
        }
    }
}
