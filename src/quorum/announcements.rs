//! What a thread hears of releases that several masters announce. Pure: no I/O, no clock.
//!
//! A release is announced by every master that kept the lock, which are a majority at least, and the first message is
//! enough to ask for it. The others are *echoes*. Any two majorities have a master in common. So a message from a master that
//! has announced the latest release counts as another release, and any other message as an echo of the latest.
//!
//! That is a guess: messages can be late, and a thread may listen to some of the masters only. So an echo is not ignored.
//! Whoever has asked and was refused looks again after a pause, which covers all echoes that came meanwhile; and one that
//! comes later leads to another look. A wrong guess costs a round trip.

use crate::quorum::tally::Majority;

/// What one thread has heard of one lock.
pub(crate) struct Announcements {
    majority: Majority,
    nodes: Vec<Node>,
    /// How many releases it has noticed.
    releases: u64,
    /// Whether the thread is notified of echoes.
    hears_echoes: bool,
}

#[derive(Clone, Default)]
struct Node {
    /// The latest of these that the node has announced.
    release: u64,
    is_listening: bool,
}

impl Announcements {
    pub(crate) fn new(majority: Majority) -> Self {
        Self {
            majority,
            nodes: vec![Node::default(); majority.nodes()],
            releases: 0,
            hears_echoes: true,
        }
    }

    /// A message has come from a node; whether the thread is notified.
    pub(crate) fn message(&mut self, node: usize) -> bool {
        let is_news = self.nodes[node].release == self.releases;
        self.releases += u64::from(is_news);
        self.nodes[node].release = self.releases;
        is_news || self.hears_echoes
    }

    /// Whether the thread is notified of echoes from now on: it is not while it will look again in any case.
    pub(crate) fn hear_echoes(&mut self, hears_echoes: bool) {
        self.hears_echoes = hears_echoes;
    }

    /// How many releases it has noticed.
    pub(crate) fn releases(&self) -> u64 {
        self.releases
    }

    /// Messages of a node arrive from now on, or no longer.
    pub(crate) fn listens(&mut self, node: usize, is_listening: bool) {
        self.nodes[node].is_listening = is_listening;
    }

    /// Whether no release can go unheard.
    pub(crate) fn is_listening(&self) -> bool {
        let listening = self.nodes.iter().filter(|node| node.is_listening);
        listening.count() >= self.majority.blocking()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All majorities of `n` nodes.
    fn majorities(n: usize) -> Vec<Vec<usize>> {
        let sets = (0..1_u32 << n).map(|set| (0..n).filter(|node| set & 1 << node != 0).collect());
        sets.filter(|set: &Vec<_>| Majority::of(n).has(set.len()))
            .collect()
    }

    #[test]
    fn a_release_is_noticed_once_and_the_next_one_as_well() {
        for n in [2, 3, 4, 5] {
            let all = majorities(n);
            for (first, second) in all
                .iter()
                .flat_map(|first| all.iter().map(move |second| (first, second)))
            {
                for hears_echoes in [false, true] {
                    let mut heard = Announcements::new(Majority::of(n));
                    heard.hear_echoes(hears_echoes);
                    for (release, nodes) in (1..).zip([first, second]) {
                        let notified = nodes.iter().filter(|node| heard.message(**node));
                        let notified = notified.count();
                        assert_eq!(heard.releases(), release, "{first:?} {second:?}");
                        assert_eq!(notified, if hears_echoes { nodes.len() } else { 1 });
                    }
                }
            }
        }
    }

    #[test]
    fn it_listens_once_every_majority_has_a_node_to_which_it_does() {
        for n in [2, 3, 4, 5, 7] {
            for set in 0..1_u32 << n {
                let mut heard = Announcements::new(Majority::of(n));
                for node in 0..n {
                    heard.listens(node, true);
                    heard.listens(node, set & 1 << node != 0);
                }
                let listens = |nodes: &Vec<usize>| nodes.iter().any(|node| set & 1 << node != 0);
                let expected = majorities(n).iter().all(listens);
                assert_eq!(heard.is_listening(), expected, "{n} {set:b}");
            }
        }
    }
}
