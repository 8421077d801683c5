//! Channels that belong to another node of a cluster from some moment on.

use super::*;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

#[derive(Default)]
struct Waiting {
    messages: AtomicU32,
    is_answered: AtomicBool,
}

impl Listener for Waiting {
    fn message(&self) {
        self.messages.fetch_add(1, Ordering::Relaxed);
    }

    fn set_answered(&self, is_answered: bool) {
        self.is_answered.store(is_answered, Ordering::Relaxed);
    }
}

/// A channel, and who waits on it.
type One = (Arc<str>, u64, Arc<Waiting>);

fn connected(names: &[&str]) -> (Channels, Vec<One>) {
    let mut channels = Channels::new(true);
    channels.connected(false);
    let waiting = names.iter().map(|&name| {
        let (name, waiting) = (Arc::from(name), Arc::<Waiting>::default());
        let listener = Arc::clone(&waiting) as _;
        let waiter = channels.subscribe(&name, listener);
        (name, waiter, waiting)
    });
    let waiting = waiting.collect();
    (channels, waiting)
}

fn was_sent_away(channels: &Channels, subscribed: &One) -> bool {
    let (name, waiter, waiting) = subscribed;
    let messages = waiting.messages.load(Ordering::Relaxed);
    assert_eq!(messages, u32::from(!channels.has(name, *waiter)), "{name}");
    messages > 0
}

#[test]
fn the_commands_are_those_of_sharded_channels() {
    let (mut channels, waiting) = connected(&["a"]);
    channels.end(&waiting[0].0, waiting[0].1, None);
    let sent = String::from_utf8(channels.taken()).expect("text");
    assert!(sent.contains("\nSSUBSCRIBE\r\n"), "{sent}");
    assert!(sent.contains("\nSUNSUBSCRIBE\r\n"), "{sent}");
}

#[test]
fn a_subscription_that_the_node_ends_by_itself_sends_its_waiters_away() {
    let (mut channels, waiting) = connected(&["a", "b"]);
    let now = Instant::now();
    assert!(channels.answered(false, now).is_none() && channels.answered(false, now).is_none());
    assert!(channels.ended("a"));
    assert!(was_sent_away(&channels, &waiting[0]) && !was_sent_away(&channels, &waiting[1]));
    // An `UNSUBSCRIBE` that was sent is answered.
    channels.end(&waiting[1].0, waiting[1].1, None);
    assert!(!channels.ended("b"));
    assert!(channels.is_empty());
    // The number of a waiter that has ended is not used again.
    channels.end(&waiting[0].0, waiting[0].1, None);
}

#[test]
fn what_a_lost_connection_has_refused_is_no_answer_to_whoever_comes_after_it() {
    let (mut channels, _) = connected(&["a"]);
    channels.answered(true, Instant::now());
    let listens = |channels: &mut Channels| {
        let waiting = Arc::<Waiting>::default();
        channels.subscribe(&"a".into(), Arc::clone(&waiting) as _);
        waiting.is_answered.load(Ordering::Relaxed)
    };
    assert!(listens(&mut channels) && channels.is_refused("a"));
    channels.lost();
    assert!(!listens(&mut channels) && !channels.is_refused("a"));
}

#[test]
fn a_subscription_that_is_refused_for_another_node_does_not_shift_the_answers() {
    let (mut channels, waiting) = connected(&["a", "b"]);
    channels.moved(|name| name == "a");
    assert!(was_sent_away(&channels, &waiting[0]) && !was_sent_away(&channels, &waiting[1]));
    // This answers a command whose subscription the node had ended: nobody awaits it now.
    channels.moved(|name| name == "a");
    assert!(channels.answered(false, Instant::now()).is_none());
    assert!(channels.listens_to("b") && !channels.listens_to("a"));
    assert!(channels.exchange.expect("a connection").awaiting.is_empty());
}

#[test]
fn channels_of_other_nodes_are_left() {
    let (mut channels, waiting) = connected(&["a", "b"]);
    channels.keep(|name| name == "b");
    assert!(was_sent_away(&channels, &waiting[0]) && !was_sent_away(&channels, &waiting[1]));
    let sent = String::from_utf8(channels.taken()).expect("text");
    assert_eq!(sent.matches("\nSUNSUBSCRIBE\r\n").count(), 1, "{sent}");
}
