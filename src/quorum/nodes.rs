//! The servers of one lock, and how one thread waits for several of them.
//!
//! A thread that waits for a reply reads the socket itself, and cannot block on several sockets. So it waits on one
//! connection after another (a *visit*), the nearest server first: by the time that the farthest server it needs has
//! answered, the replies of the nearer ones have come and are read without waiting. A reader thread for each connection would
//! cost a thread switch per server, and one condition variable for all replies would need such threads.
//!
//! How far a server is, is what its last replies took ([`RoundTrip`](crate::session::server::RoundTrip)). A server that is
//! slower than it was delays a round by one visit, of at most 16 ms (Linux rounds the time limit of a read up by some
//! milliseconds), and counts as far from then on. One that owes an answer for too long is not asked at all.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use redis::Value;

use crate::hold::Entry;
use crate::net::call::{Call, Fault};
use crate::net::connection::WaitFault;
use crate::protocol::script::{self, Released};
use crate::quorum::tally::Majority;
use crate::session::Session;
use crate::time;

/// How long to wait for one node: this part of the lease, within these limits.
///
/// Source: the Redlock description in the Redis documentation asks for a time small against the lease, 5 to 50 ms of
/// 10 s. This is longer, since a busy machine answers late, and since nobody waits for a node that is not needed.
const NODE_TIMEOUT: (u32, Duration, Duration) =
    (20, Duration::from_millis(50), Duration::from_millis(500));

/// The shortest and the longest random pause before a majority is asked for again.
pub(crate) const PAUSE: (Duration, Duration) =
    (Duration::from_millis(5), Duration::from_millis(50));

/// The shortest and the longest visit. A visit lasts until twice the time that the reply should take.
const SLICE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(16));

/// A random pause, so that callers who each got some of the nodes do not collide again.
pub(crate) fn pause() -> Duration {
    time::between(PAUSE.0, PAUSE.1)
}

pub(crate) fn node_timeout(lease: Duration) -> Duration {
    (lease / NODE_TIMEOUT.0)
        .clamp(NODE_TIMEOUT.1, NODE_TIMEOUT.2)
        .min(lease / 4)
}

/// One of the servers: its client, and the lock's names there.
pub(crate) struct Node {
    pub(crate) session: Arc<Session>,
    pub(crate) entry: Arc<Entry>,
}

pub(crate) struct Nodes {
    pub(crate) list: Vec<Node>,
    pub(crate) majority: Majority,
    /// Which of several nodes that are equally far the next round visits first. It changes, so that the replies of no node
    /// stay unread for long.
    pub(crate) visit_first: AtomicUsize,
    /// The latest releases, of which the replies say whether anybody was notified.
    released: Mutex<[Vec<Arc<Call>>; 2]>,
}

impl Nodes {
    /// The address of each server.
    pub(crate) fn addresses(&self) -> Vec<String> {
        let address = |node: &Node| node.session.endpoint.to_string();
        self.list.iter().map(address).collect()
    }

    pub(crate) fn new(list: Vec<Node>) -> Self {
        Self {
            majority: Majority::of(list.len()),
            list,
            visit_first: AtomicUsize::new(0),
            released: Mutex::default(),
        }
    }

    /// A hold was released by these calls. Memory only.
    pub(crate) fn was_released(&self, calls: impl Iterator<Item = Arc<Call>>) {
        let mut released = self.released.lock();
        released.swap(0, 1);
        released[0].clear();
        released[0].extend(calls);
    }

    /// How many processes were notified of the latest release that a node has confirmed by now; `None` if that is not known.
    pub(crate) fn notified(&self) -> Option<i64> {
        let released = self.released.lock();
        let mut latest = released.iter().map(|calls| {
            let replies = calls.iter().filter_map(|call| call.outcome()?.ok());
            most_notified(replies.map(|answer| answer.value))
        });
        latest.find_map(|most| most)
    }

    /// The client that keeps the lock and has the settings.
    pub(crate) fn home(&self) -> &Arc<Session> {
        &self.list[0].session
    }

    /// Why a node has not answered in time.
    pub(crate) fn unanswered(&self, node: usize) -> Fault {
        self.list[node].session.connection.no_answer()
    }

    /// Writes what was submitted to any node.
    pub(crate) fn flush(&self) {
        for node in &self.list {
            node.session.connection.flush(false);
        }
    }

    /// The same, over new connections where the last ones were closed.
    pub(crate) fn deliver(&self) {
        for node in &self.list {
            node.session.connection.deliver_queued();
        }
    }

    /// Has each watchdog send what is queued, and read replies that nobody waits for.
    pub(crate) fn housekeep_soon(&self) {
        for node in &self.list {
            node.session.watchdog.housekeep_soon();
        }
    }

    /// Makes the connections that are missing, all at the same time.
    pub(crate) fn connect(
        &self,
        missing: &[usize],
        until: Instant,
    ) -> Vec<(usize, std::result::Result<(), Fault>)> {
        let home = self.home();
        let connect = |node: usize| {
            let connection = &self.list[node].session.connection;
            (node, connection.up(until, &mut || !home.is_closed()))
        };
        let Some((first, others)) = missing.split_first() else {
            return Vec::new();
        };
        std::thread::scope(|scope| {
            let connect = &connect;
            let spawned: Vec<_> = others
                .iter()
                .map(|node| {
                    let thread = std::thread::Builder::new().name("redlatch-connect".into());
                    (*node, thread.spawn_scoped(scope, || connect(*node)))
                })
                .collect();
            let mut made = vec![connect(*first)];
            made.extend(spawned.into_iter().map(|(node, thread)| {
                let joined = thread.ok().and_then(|thread| thread.join().ok());
                joined.unwrap_or_else(|| (node, Err(self.unanswered(node))))
            }));
            made
        })
    }
}

/// The most that one of several nodes has notified of a release. One that no longer had the lock says nothing about that.
fn most_notified(replies: impl Iterator<Item = Value>) -> Option<i64> {
    let notified = replies.filter_map(|reply| match script::released(&reply) {
        Ok(Released::Yes { listeners }) => Some(listeners),
        _ => None,
    });
    notified.max()
}

/// Equal for round trips that hardly differ, and for all below half a millisecond: if the first to answer were always
/// waited for first, the thread would be woken by each reply.
fn distance(round_trip: Duration) -> u32 {
    (round_trip.as_micros() >> 8).checked_ilog2().unwrap_or(0)
}

/// A wait for the replies of several nodes.
pub(crate) trait Gather {
    /// The call of a node whose reply is still waited for, and until when, if not all nodes have the same time.
    fn pending(&self, node: usize) -> Option<(Arc<Call>, Option<Instant>)>;

    /// Handles the outcome of a visit.
    fn visited(
        &mut self,
        node: usize,
        call: &Arc<Call>,
        outcome: std::result::Result<(Value, Instant), WaitFault>,
    ) -> Visit;
}

/// The result of visiting one node, or all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Visit {
    Nothing,
    /// A reply has come.
    News,
    /// No other node has to be visited.
    Enough,
}

/// Visits the nodes, the nearest first, for about as long as their replies should take; longer and longer while nothing
/// comes.
pub(crate) struct Visits<'a> {
    nodes: &'a Nodes,
    order: Vec<usize>,
    slice: Duration,
    /// Each node was visited once.
    has_visited: bool,
}

impl<'a> Visits<'a> {
    /// `first` says which of several nodes that are equally far comes first.
    pub(crate) fn new(nodes: &'a Nodes, first: usize) -> Self {
        let n = nodes.list.len();
        let mut order: Vec<_> = (0..n).map(|node| first.wrapping_add(node) % n).collect();
        order
            .sort_by_cached_key(|node| distance(nodes.list[*node].session.server.round_trip.get()));
        Self {
            nodes,
            order,
            slice: SLICE.0,
            has_visited: false,
        }
    }

    /// Visits each pending node once, and is over by `until` even if all of them are silent. The first time each is visited
    /// even if it is past `until` by then, since its reply may have come.
    pub(crate) fn visit_all(
        &mut self,
        gather: &mut impl Gather,
        until: Instant,
        stop: &dyn Fn() -> bool,
    ) -> Visit {
        let mut sum = Visit::Nothing;
        for (index, &node) in self.order.iter().enumerate() {
            let Some((call, its_until)) = gather.pending(node) else {
                continue;
            };
            let Session {
                connection, server, ..
            } = &*self.nodes.list[node].session;
            let began = Instant::now();
            if self.has_visited && began >= until {
                break;
            }
            let slice = (server.round_trip.get() * 2).clamp(self.slice, SLICE.1);
            let ends = its_until.map_or(began + slice, |its| its.min(began + slice));
            let by = visit_until(began, ends, until, self.order.len() - index - 1);
            let outcome = connection.wait(&call, by, stop);
            let ended = Instant::now();
            match &outcome {
                Ok((_, sent_at)) => {
                    let took = ended.saturating_duration_since(*sent_at);
                    if (ended - began) * 2 > took {
                        server.round_trip.is(took);
                    } else {
                        server.round_trip.is_at_most(took);
                    }
                }
                Err(WaitFault::TimedOut) => server.round_trip.is_at_least(ended - began),
                Err(_) => {}
            }
            match gather.visited(node, &call, outcome) {
                Visit::Nothing => {}
                Visit::News => sum = Visit::News,
                Visit::Enough => {
                    for &node in &self.order[index + 1..] {
                        self.nodes.list[node].session.server.round_trip.is_unseen();
                    }
                    return Visit::Enough;
                }
            }
        }
        self.has_visited = true;
        if sum == Visit::Nothing {
            self.slice = (self.slice * 2).min(SLICE.1);
        }
        sum
    }

    /// A pause, if the visits that began then have returned at once.
    pub(crate) fn rest_since(began: Instant) {
        std::thread::sleep(SLICE.0.saturating_sub(began.elapsed()));
    }
}

/// Until when to visit a node: until `ends`, but so that so many others can be visited before `until`. Each takes a slice
/// to be found silent.
fn visit_until(began: Instant, ends: Instant, until: Instant, others: usize) -> Instant {
    let others = u32::try_from(others).unwrap_or(u32::MAX);
    let last = until.checked_sub(SLICE.0.saturating_mul(others));
    ends.min(last.unwrap_or(began)).max(began + SLICE.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When a visit of all of `n` silent nodes is over that begins `before` their time is.
    fn all_silent(n: usize, before: Duration, slice: Duration) -> Duration {
        let began = Instant::now();
        let visit = |now: Instant, others| visit_until(now, now + slice, began + before, others);
        let ended = (0..n).rev().fold(began, visit);
        ended - began
    }

    #[test]
    fn however_many_nodes_are_silent_their_visits_are_over_in_time() {
        for n in 1..=7_u32 {
            for (ms, slice) in [(0, 16), (3, 16), (7, 1), (9, 16), (40, 16), (500, 16)] {
                let (before, slice) = (Duration::from_millis(ms), Duration::from_millis(slice));
                let took = all_silent(n as usize, before, slice);
                assert!(took <= before.max(SLICE.0 * n), "{n} {before:?} {took:?}");
                assert!(took >= before.min(slice * n), "{n} {before:?} {took:?}");
            }
        }
    }

    #[test]
    fn only_a_node_that_had_the_lock_says_whether_anybody_listens() {
        let most = |replies: &[i64]| most_notified(replies.iter().copied().map(Value::Int));
        assert_eq!(most(&[0, 2, 1]), Some(2));
        assert_eq!(most(&[-1, 0, -2]), Some(0));
        assert_eq!(most(&[-1, -2, -1]), None);
        assert_eq!(most(&[]), None);
    }

    #[test]
    fn masters_are_equally_far_if_their_round_trips_hardly_differ() {
        let at = |us| distance(Duration::from_micros(us));
        assert_eq!([0, 50, 300, 500].map(at), [0; 4]);
        assert!(at(500) < at(1_200) && at(1_200) < at(2_400) && at(2_400) < at(10_500));
        assert_eq!(at(2_200), at(2_600));
        assert_eq!(at(20_100), at(21_500));
    }
}
