//! A waiter of either side is woken by the other side's message, for every primitive.

use std::any::Any;
use std::time::Duration;

use crossbeam_channel::unbounded;
use redlatch::{Client, Config};

use super::sides::{measured, take};
use crate::support::java::{Java, Theirs, now_ns};
use crate::support::{Crew, GENEROUS, Server, eventually, loosely, ms, timed, unique};

/// The number of waits per kind and direction.
const ROUNDS: usize = 9;

/// The limit of the median wait that ends by a message, far below the intervals of polls.
const WOKEN: Duration = ms(50);

/// The limit of the median wait by polling: Redisson's pauses grow up to 128 ms.
const POLLED: Duration = ms(150);

/// The kind that a thread holds, and the kind that a thread of the other side waits for.
const KINDS: [(&str, &str); 11] = [
    ("lock", "lock"),
    ("lock", "fenced"),
    ("fair", "fair"),
    ("fenced", "fenced"),
    ("spin", "spin"),
    ("write", "write"),
    ("write", "read"),
    ("read", "write"),
    ("multi", "multi"),
    ("semaphore", "semaphore"),
    ("permit", "permit"),
];

/// A server, with a client of each side.
struct Pair {
    server: Server,
    java: &'static Java,
    theirs: Theirs<'static>,
    ours: [Client; 1],
}

impl Pair {
    fn start() -> Option<Self> {
        let java = Java::shared()?;
        let server = Server::start();
        Some(Self {
            theirs: java.open(&server.url()),
            ours: [Client::open(server.url()).unwrap()],
            server,
            java,
        })
    }

    /// A new name of this kind; a semaphore gets a permit.
    fn name(&self, kind: &str) -> String {
        let name = match kind {
            "multi" => format!("{}+{}", unique("one"), unique("two")),
            _ => unique(kind),
        };
        if matches!(kind, "semaphore" | "permit") {
            let theirs = &self.theirs;
            let order = format!("permits {theirs} {kind} {name} 1");
            assert_eq!(self.java.does(theirs, &order), "true");
        }
        name
    }

    fn takes(&self, kind: &str, name: &str) -> String {
        let lease = if kind == "permit" { 30_000 } else { -1 };
        format!("take {} {kind} {name} -1 {lease}", self.theirs)
    }

    /// Whether a waiter has subscribed to a channel of this name or, where no release is announced, has asked twice.
    fn is_waited_for(&self, kind: &str, name: &str, asked: u64) -> bool {
        if kind == "spin" {
            return self.server.calls("evalsha") >= asked + 2;
        }
        let first = name.split('+').next().unwrap();
        let channels = self.server.channels();
        channels.iter().any(|channel| channel.contains(first))
    }

    /// Whether a Java thread waits. For a writer's message it also has to be parked, since Redisson drops the message
    /// for a thread that is about to park.
    fn java_waits(&self, held: &str, wanted: &str, name: &str, asked: u64) -> bool {
        self.is_waited_for(wanted, name, asked)
            && (held != "write" || self.java.is_parked(&self.theirs))
    }
}

fn median(mut spans: Vec<Duration>) -> Duration {
    spans.sort();
    spans[spans.len() / 2]
}

/// The time that Java prints with a result.
fn moment(noted: &str) -> u64 {
    let moment = noted.split(' ').next();
    moment.expect("a moment").parse().expect("a moment")
}

/// The token that follows the time.
fn token_of(noted: &str) -> u64 {
    let token = noted.split(' ').nth(1);
    token.expect("a token").parse().expect("a token")
}

fn since(noted: &str, later: u64) -> Duration {
    Duration::from_nanos(later.saturating_sub(moment(noted)))
}

fn is_soon(kind: &str, side: &str, spans: Vec<Duration>) {
    let limit = if kind == "spin" { POLLED } else { WOKEN };
    let took = median(spans);
    measured(&format!("{side} waits for {kind}: {took:.1?}"));
    assert!(took < loosely(limit), "{side} waits for {kind}: {took:?}");
}

timed!(a_thread_here_is_woken_by_the_release_of_one_of_java);
fn a_thread_here_is_woken_by_the_release_of_one_of_java() {
    let Some(pair) = Pair::start() else {
        return;
    };
    for (held, wanted) in KINDS {
        let client = &pair.ours[0];
        let stats_before = client.stats();
        let mut spans = Vec::new();
        for _ in 0..ROUNDS {
            let name = pair.name(held);
            let held_as = pair.java.does(&pair.theirs, &pair.takes(held, &name));
            let asked = pair.server.calls("evalsha");
            let (sender, got) = unbounded();
            let (ours, name_there) = (pair.ours.clone(), name.clone());
            let mut crew = Crew::new();
            crew.spawn(move || {
                let taken = take(&ours, wanted, &name_there).unwrap();
                sender.send((now_ns(), taken.token)).unwrap();
                drop(taken);
            });
            eventually("it waits", || pair.is_waited_for(wanted, &name, asked));
            assert!(got.is_empty(), "{held} does not keep {wanted} out");
            let theirs = &pair.theirs;
            let freed = pair
                .java
                .does(theirs, &format!("free {theirs} {held} {name}"));
            let at = got.recv_timeout(loosely(GENEROUS));
            let (at, token) =
                at.unwrap_or_else(|_| panic!("{wanted} is never had after Java's {held}"));
            if held == "fenced" {
                assert!(token > token_of(&held_as), "{held_as}, then {token}");
            }
            spans.push(since(&freed, at));
            crew.join();
        }
        is_soon(wanted, "Rust", spans);
        let after = client.stats();
        assert_eq!(
            after.missed_messages, stats_before.missed_messages,
            "{wanted}: {after:?}"
        );
    }
}

timed!(a_thread_of_java_is_woken_by_a_release_here);
fn a_thread_of_java_is_woken_by_a_release_here() {
    let Some(pair) = Pair::start() else {
        return;
    };
    for (held, wanted) in KINDS {
        let mut spans = Vec::new();
        for _ in 0..ROUNDS {
            let name = pair.name(held);
            let asked = pair.server.calls("evalsha");
            let taken = take(&pair.ours, held, &name).unwrap();
            let waits = pair.java.order(&pair.theirs, &pair.takes(wanted, &name));
            // The first of the two requests was the holder's.
            eventually("it waits", || {
                pair.java_waits(held, wanted, &name, asked + 1)
            });
            assert!(!waits.is_done(), "{held} does not keep {wanted} out");
            let (freed, token) = (now_ns(), taken.token);
            drop(taken);
            // Without a message Java would sleep for the 30 s of the lease; at a semaphore, without end.
            let has = waits.ok();
            if held == "fenced" {
                assert!(token < token_of(&has), "{token}, then {has}");
            }
            spans.push(since(&freed.to_string(), moment(&has)));
            let theirs = &pair.theirs;
            pair.java
                .does(theirs, &format!("free {theirs} {wanted} {name}"));
        }
        is_soon(wanted, "Java", spans);
    }
}

// Java sleeps until the end of the lease that it found, so it has to learn that the hold ends earlier.
#[test]
fn a_thread_of_java_learns_that_a_hold_here_ends_earlier() {
    let Some(pair) = Pair::start() else {
        return;
    };
    let (java, theirs) = (pair.java, &pair.theirs);
    let config = Config::new(pair.server.url()).lease(ms(600_000));
    let client = Client::open(config).unwrap();
    for kind in ["lock", "fair", "write", "read"] {
        let (name, keeps) = (unique(kind), ms(1_000));
        let guard: Box<dyn Any> = match kind {
            "lock" => Box::new(client.mutex(&name).min_hold(keeps).lock().unwrap()),
            "fair" => Box::new(client.fair_lock(&name).min_hold(keeps).lock().unwrap()),
            "write" => Box::new(client.rw_lock(&name).min_hold(keeps).write().unwrap()),
            _ => Box::new(client.rw_lock(&name).min_hold(keeps).read().unwrap()),
        };
        let wanted = if kind == "read" { "write" } else { kind };
        let waits = java.order(theirs, &pair.takes(wanted, &name));
        eventually(&format!("{kind}: it waits"), || {
            pair.java_waits("write", wanted, &name, 0)
        });
        assert!(!waits.is_done(), "{kind}");
        drop(guard);
        // The test waits for far less than the lease.
        waits.ok();
        java.does(theirs, &format!("free {theirs} {wanted} {name}"));
    }
}

timed!(a_latch_counted_down_by_one_side_is_open_for_the_other);
fn a_latch_counted_down_by_one_side_is_open_for_the_other() {
    let Some(pair) = Pair::start() else {
        return;
    };
    let (java, theirs) = (pair.java, &pair.theirs);
    let [mut here, mut there] = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        let name = unique("latch");
        let latch = pair.ours[0].latch(&name);
        assert!(latch.try_set_count(2).unwrap());
        assert_eq!(
            java.does(theirs, &format!("count {theirs} {name} 3")),
            "false"
        );
        let (sender, opened) = unbounded();
        let mut crew = Crew::new();
        let waited_for = latch.clone();
        crew.spawn(move || {
            waited_for.wait().unwrap();
            sender.send(now_ns()).unwrap();
        });
        let waiter = format!("{theirs}-waits");
        let waits = java.order(&waiter, &format!("await {theirs} {name}"));
        let listening = format!("redisson_countdownlatch__channel__{{{name}}}");
        eventually("both wait", || {
            let (_, listeners): (String, u64) = pair.server.ask(&["PUBSUB", "NUMSUB", &listening]);
            listeners == 2 && java.is_parked(&waiter)
        });
        latch.count_down().unwrap();
        assert!(opened.is_empty() && !waits.is_done());
        let freed = java.does(theirs, &format!("down {theirs} {name}"));
        here.push(since(
            &freed,
            opened.recv_timeout(loosely(GENEROUS)).unwrap(),
        ));
        there.push(since(&freed, waits.ok().parse().unwrap()));
        crew.join();
    }
    is_soon("latch", "Rust", here);
    is_soon("latch", "Java", there);
}
