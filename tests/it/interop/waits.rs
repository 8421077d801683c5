//! What one side has the other waits for, and is woken by the message: for every primitive, both ways.

use std::time::Duration;

use crossbeam_channel::unbounded;
use redlatch::Client;

use super::sides::{measured, take};
use crate::support::java::{Java, Theirs, now_ns};
use crate::support::{Crew, GENEROUS, Server, eventually, loosely, ms, timed, unique};

/// How often each wait is made.
const ROUNDS: usize = 9;

/// Half of the waits that a message ends are over within this. The caps of the polls are far above it.
const WOKEN: Duration = ms(50);

/// Half of the waits with pauses: Redisson's grow up to 128 ms.
const POLLED: Duration = ms(150);

/// What one takes, and the other waits for.
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

/// One server, one client of each side.
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

    /// A name of that kind that nobody has used; of a semaphore it has one permit.
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

    /// Somebody listens to a channel of that name, or has at least asked for it twice where nothing is announced.
    fn is_waited_for(&self, kind: &str, name: &str, asked: u64) -> bool {
        if kind == "spin" {
            return self.server.calls("evalsha") >= asked + 2;
        }
        let first = name.split('+').next().unwrap();
        let channels = self.server.channels();
        channels.iter().any(|channel| channel.contains(first))
    }

    /// The same for a thread of Java. The message of a writer has to find it parked: Redisson keeps it for nobody who is
    /// only about to park.
    fn java_waits(&self, held: &str, wanted: &str, name: &str, asked: u64) -> bool {
        self.is_waited_for(wanted, name, asked)
            && (held != "write" || self.java.is_parked(&self.theirs))
    }
}

fn median(mut spans: Vec<Duration>) -> Duration {
    spans.sort();
    spans[spans.len() / 2]
}

/// The moment that Java notes with what it does.
fn moment(noted: &str) -> u64 {
    let moment = noted.split(' ').next();
    moment.expect("a moment").parse().expect("a moment")
}

/// The token that follows it.
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
        let before = client.stats();
        let mut spans = Vec::new();
        for _ in 0..ROUNDS {
            let name = pair.name(held);
            let held_as = pair.java.does(&pair.theirs, &pair.takes(held, &name));
            let asked = pair.server.calls("evalsha");
            let (sender, got) = unbounded();
            let (ours, its) = (pair.ours.clone(), name.clone());
            let mut crew = Crew::new();
            crew.spawn(move || {
                let taken = take(&ours, wanted, &its).unwrap();
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
            after.missed_messages, before.missed_messages,
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
            // One of the two requests was that of the holder.
            eventually("it waits", || {
                pair.java_waits(held, wanted, &name, asked + 1)
            });
            assert!(!waits.is_done(), "{held} does not keep {wanted} out");
            let (freed, token) = (now_ns(), taken.token);
            drop(taken);
            // Until then it would sleep for the 30 s of the lease; of a semaphore, for ever.
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
        let its = latch.clone();
        crew.spawn(move || {
            its.wait().unwrap();
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
