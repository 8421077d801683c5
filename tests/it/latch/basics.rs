//! The count-down latch: compatibility with Redisson's, wake-ups, lost requests and messages, and many rounds in a row.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use redlatch::{CancelToken, Client, Config, Error, Latch, Result};

use crate::support::latch::{COUNT_DOWN, DELETE, NO_COUNTS, SET, STATE, channel};
use crate::support::permits::suffixed;
use crate::support::scripts::{NAMES, listen_to_all, messages, sha};
use crate::support::{
    Crew, LONG, Mode, Proxy, Server, Target, eventually, loosely, ms, open, subscribed, timed,
    unique, within,
};

/// Well under the interval of polls: a waiter that wakes sooner was woken by a message.
const BY_MESSAGE: Duration = ms(600);

/// A waiter without a message polls after a second at most.
const BY_ASKING: Duration = ms(2_500);

/// More than waking a thread takes on a busy machine.
const SLACK: Duration = ms(700);

// ---------------------------------------------------------------------------------------------------------------------
// Helpers
// ---------------------------------------------------------------------------------------------------------------------

/// The commands of Redisson's `countDown`.
fn java_counts_down(server: &Server, name: &str) {
    let count_left: i64 = server.ask(&["DECR", name]);
    if count_left <= 0 {
        server.cli(&["DEL", name]);
    }
    if count_left == 0 {
        server.cli(&["PUBLISH", &channel(name), "0"]);
    }
}

/// A client of a server that has the scripts already.
fn warm(server: &Server) -> Client {
    load_scripts(server);
    open(server)
}

fn load_scripts(server: &Server) {
    for script in [SET, COUNT_DOWN, DELETE, STATE] {
        server.cli(&["SCRIPT", "LOAD", script]);
    }
}

/// The result of every method.
fn verdicts(latch: &Latch) -> Vec<(&'static str, Result<()>)> {
    vec![
        ("try_set_count", latch.try_set_count(1).map(drop)),
        ("count_down", latch.count_down()),
        ("count", latch.count().map(drop)),
        ("wait", latch.wait()),
        ("wait_for", latch.wait_for(LONG).map(drop)),
        (
            "wait_until",
            latch.wait_until(Instant::now() + LONG).map(drop),
        ),
        ("wait_for nothing", latch.wait_for(ms(0)).map(drop)),
        ("delete", latch.delete().map(drop)),
    ]
}

/// A waiting thread. `new` returns once the server knows the subscription and the thread has asked again after it.
struct Waiting<T> {
    thread: thread::JoinHandle<(T, Instant)>,
}

impl<T: Send + 'static> Waiting<T> {
    #[track_caller]
    fn new(server: &Server, wait: impl FnOnce() -> T + Send + 'static) -> Self {
        let asked = server.calls("get");
        let thread = thread::spawn(move || (wait(), Instant::now()));
        subscribed(server, 1);
        eventually("it has asked again", || server.calls("get") >= asked + 4);
        Self { thread }
    }

    fn is_over(&self) -> bool {
        self.thread.is_finished()
    }

    /// Returns the result of the wait, which has to end within `limit` of `since`.
    #[track_caller]
    fn ends(self, since: Instant, limit: Duration) -> T {
        eventually("the wait ends", || self.is_over());
        let (received, at) = self.thread.join().unwrap();
        let took = at.saturating_duration_since(since);
        assert!(took < loosely(limit), "after {took:?}");
        received
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// What users and Redisson's clients see
// ---------------------------------------------------------------------------------------------------------------------

#[test]
fn it_counts_as_redissons_does() {
    fn is_shared<T: Send + Sync + Clone>(_: &T) {}
    let server = Server::start();
    let mut pubsub_con = server.connection();
    let mut pubsub = listen_to_all(&mut pubsub_con);
    let client = Client::open(Config::new(server.url()).key_prefix("app:")).unwrap();
    for name in NAMES {
        let latch = client.latch(name);
        let key = format!("app:{name}");
        is_shared(&latch);
        assert_eq!(latch.name(), name);
        assert_eq!(
            format!("{latch:?}"),
            format!("Latch {{ name: {name:?}, .. }}")
        );
        // A latch without a key is open.
        assert_eq!(latch.count().unwrap(), 0);
        latch.count_down().unwrap();
        assert!(!latch.delete().unwrap());
        latch.wait().unwrap();
        assert!(!server.exists(&key));
        assert_eq!(messages(&server, &mut pubsub), []);

        assert!(latch.try_set_count(2).unwrap());
        assert!(!latch.try_set_count(7).unwrap());
        assert_eq!(server.ask::<String>(&["GET", &key]), "2");
        assert_eq!(server.pttl(&key), -1);
        assert_eq!(
            messages(&server, &mut pubsub),
            [(channel(&key), "1".into())]
        );
        assert_eq!(latch.count().unwrap(), 2);
        assert!(!latch.wait_for(ms(0)).unwrap());
        java_counts_down(&server, &key);
        assert_eq!(latch.count().unwrap(), 1);
        latch.clone().count_down().unwrap();
        assert!(!server.exists(&key));
        assert_eq!(
            messages(&server, &mut pubsub),
            [(channel(&key), "0".into())]
        );
        assert!(latch.wait_for(ms(0)).unwrap());
        for _ in 0..3 {
            latch.count_down().unwrap();
        }
        assert!(!server.exists(&key));
        assert_eq!(messages(&server, &mut pubsub), []);

        assert!(latch.try_set_count(i64::MAX.unsigned_abs()).unwrap());
        latch.count_down().unwrap();
        assert_eq!(latch.count().unwrap(), i64::MAX.unsigned_abs() - 1);
        assert!(latch.delete().unwrap());
        assert!(!server.exists(&key) && !latch.delete().unwrap());
        let received = [(channel(&key), "1".into()), (channel(&key), "1".into())];
        assert_eq!(messages(&server, &mut pubsub), received);

        // Redisson's `trySetCount(0)` leaves a key with 0: the latch is open, and no count can be set.
        server.cli(&["SET", &key, "0"]);
        assert_eq!(latch.count().unwrap(), 0);
        latch.wait().unwrap();
        assert!(!latch.try_set_count(1).unwrap());
        latch.count_down().unwrap();
        assert!(latch.try_set_count(1).unwrap());
        assert_eq!(messages(&server, &mut pubsub).len(), 1);
        server.cli(&["FLUSHALL"]);
    }
}

#[test]
fn bad_input_is_told_before_anything_is_sent() {
    let server = Server::start();
    let client = open(&server);
    client.latch("warm").count().unwrap();
    let commands_before = server.command_total();
    let latch = client.latch("fine");
    for count in [0, 1 << 63, u64::MAX] {
        let said = latch.try_set_count(count);
        assert!(
            matches!(said, Err(Error::InvalidSetting { .. })),
            "{count}: {said:?}"
        );
    }
    for name in [String::new(), "x".repeat(65 * 1024)] {
        for (verb, said) in verdicts(&client.latch(&name)) {
            assert!(
                matches!(said, Err(Error::InvalidName { .. })),
                "{verb}: {said:?}"
            );
        }
    }
    assert_eq!(server.command_total(), commands_before);
    client.close(LONG).unwrap();
    for (verb, said) in verdicts(&latch) {
        assert!(matches!(said, Err(Error::Closed)), "{verb}: {said:?}");
    }
}

timed!(another_kind_of_key_is_told_and_left_as_it_was);
fn another_kind_of_key_is_told_and_left_as_it_was() {
    let server = Server::start();
    let client = open(&server);
    let says_so = |name: &str| {
        for (verb, said) in verdicts(&client.latch(name)) {
            match said {
                Err(Error::WrongType { name: named, .. }) => assert_eq!(named, name),
                said => panic!("{verb}: {said:?}"),
            }
        }
    };
    let guard = client.reentrant_lock("lock").lock().unwrap();
    says_so("lock");
    guard.unlock().unwrap();
    for value in NO_COUNTS {
        server.cli(&["SET", "text", value]);
        says_so("text");
        assert_eq!(server.ask::<String>(&["GET", "text"]), value);
    }
    // The error also ends a wait, if the key gets another type during it.
    let latch = client.latch("turns");
    assert!(latch.try_set_count(1).unwrap());
    let waiting = Waiting::new(&server, move || latch.wait());
    server.cli(&["SET", "turns", "abc"]);
    server.cli(&["PUBLISH", &channel("turns"), "0"]);
    let said = waiting.ends(Instant::now(), BY_MESSAGE);
    assert!(matches!(said, Err(Error::WrongType { .. })), "{said:?}");
}

#[test]
fn verbs_are_one_command_each_and_leave_little() {
    let server = Server::start();
    let client = warm(&server);
    let latch = client.latch("cheap");
    assert!(latch.try_set_count(1_000).unwrap());
    latch.count_down().unwrap();
    let commands_before = client.stats().commands;
    for _ in 0..100 {
        latch.count_down().unwrap();
    }
    assert_eq!(latch.count().unwrap(), 899);
    assert_eq!(client.stats().commands, commands_before + 101);
    // The count, the mark of the round, and the outcome of the last request.
    assert_eq!(server.dbsize(), 3);
    let crew: Vec<_> = (0..4)
        .map(|_| {
            let latch = latch.clone();
            thread::spawn(move || (0..50).for_each(|_| latch.count_down().unwrap()))
        })
        .collect();
    crew.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(latch.count().unwrap(), 699);
    let keys = server.dbsize();
    assert!(keys <= 2 + 4, "{keys} keys");
    assert!(latch.delete().unwrap());
    for key in server.keys() {
        let ttl_left = server.pttl(&key);
        assert!((1..=120_000).contains(&ttl_left), "{key}: {ttl_left}");
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Waiting
// ---------------------------------------------------------------------------------------------------------------------

#[test]
fn an_open_latch_is_passed_with_one_question() {
    let server = Server::start();
    let client = warm(&server);
    let latch = client.latch(unique("open"));
    let commands_before = client.stats().commands;
    latch.wait().unwrap();
    assert!(latch.wait_for(LONG).unwrap());
    assert!(latch.wait_until(Instant::now() + LONG).unwrap());
    assert_eq!(client.stats().commands, commands_before + 3);
    assert!(server.clients_named("subscriber").is_empty());
    assert_eq!(server.dbsize(), 0);
}

timed!(a_limited_wait_takes_its_time);
fn a_limited_wait_takes_its_time() {
    let server = Server::start();
    let latch = open(&server).latch(unique("limit"));
    assert!(latch.try_set_count(1).unwrap());
    for limit in [ms(150), ms(400)] {
        let began = Instant::now();
        assert!(!latch.wait_for(limit).unwrap());
        let took = began.elapsed();
        assert!(took >= limit && took < limit + loosely(SLACK), "{took:?}");
        let began = Instant::now();
        assert!(!latch.wait_until(began + limit).unwrap());
        let took = began.elapsed();
        assert!(took >= limit && took < limit + loosely(SLACK), "{took:?}");
    }
    for said in [
        latch.wait_for(ms(0)),
        latch.wait_until(Instant::now()),
        latch.wait_until(Instant::now().checked_sub(ms(5)).unwrap()),
    ] {
        assert!(!said.unwrap());
    }
    latch.count_down().unwrap();
    assert!(latch.wait_for(Duration::MAX).unwrap());
    eventually("nobody listens", || {
        let clients = server.clients_named("subscriber");
        clients.iter().all(|client| client.subscriptions == 0)
    });
}

timed!(the_last_count_down_wakes_whoever_waits_by_message);
fn the_last_count_down_wakes_whoever_waits_by_message() {
    let server = Server::start();
    let (client, other) = (open(&server), open(&server));
    let counts_down: [&dyn Fn(&str); 2] =
        [&|name| other.latch(name).count_down().unwrap(), &|name| {
            java_counts_down(&server, name);
        }];
    for count_down in counts_down {
        // A new name each time, because a subscriber of the first is also notified when the next count is set.
        let name = unique("woken");
        let latch = client.latch(&name);
        assert!(latch.try_set_count(2).unwrap());
        let waiting = Waiting::new(&server, move || latch.wait_for(LONG));
        count_down(&name);
        assert!(!within(ms(30), || waiting.is_over()));
        let since = Instant::now();
        count_down(&name);
        assert!(waiting.ends(since, BY_MESSAGE).unwrap());
    }
    assert_eq!(client.stats().missed_messages, 0);
    assert_eq!(client.stats().wakes, 2);
}

timed!(deleting_wakes_whoever_waits);
fn deleting_wakes_whoever_waits() {
    let server = Server::start();
    let client = open(&server);
    let latch = client.latch(unique("deleted"));
    assert!(latch.try_set_count(9).unwrap());
    let waiting = Waiting::new(&server, {
        let latch = latch.clone();
        move || latch.wait()
    });
    let since = Instant::now();
    assert!(latch.delete().unwrap());
    waiting.ends(since, BY_MESSAGE).unwrap();
    assert_eq!(client.stats().missed_messages, 0);
}

timed!(a_message_is_only_a_hint);
fn a_message_is_only_a_hint() {
    let server = Server::start();
    let latch = open(&server).latch(unique("hint"));
    assert!(latch.try_set_count(1).unwrap());
    let waiting = Waiting::new(&server, {
        let latch = latch.clone();
        move || latch.wait()
    });
    for lie in ["0", "1", "", "nonsense", "0"] {
        let asked = server.calls("get");
        server.cli(&["PUBLISH", &channel(latch.name()), lie]);
        eventually("it asks again", || server.calls("get") > asked);
    }
    assert!(!within(ms(50), || waiting.is_over()));
    latch.count_down().unwrap();
    waiting.ends(Instant::now(), BY_MESSAGE).unwrap();
}

timed!(one_wake_is_one_question_for_each_thread);
fn one_wake_is_one_question_for_each_thread() {
    const THREADS: u64 = 20;
    let server = Server::start();
    let (client, other) = (warm(&server), open(&server));
    let name = unique("herd");
    assert!(other.latch(&name).try_set_count(1).unwrap());
    let commands_before = client.stats().commands;
    let mut crew = Crew::new();
    for _ in 0..THREADS {
        let latch = client.latch(&name);
        crew.spawn(move || latch.wait().unwrap());
    }
    eventually("all have asked twice", || {
        client.stats().commands >= commands_before + 2 * THREADS
    });
    crew.all_parked();
    let parked = client.stats();
    assert_eq!(
        (parked.commands, parked.subscriptions),
        (commands_before + 2 * THREADS, 1)
    );
    other.latch(&name).count_down().unwrap();
    crew.join();
    let after = client.stats();
    assert_eq!(after.commands, parked.commands + THREADS);
    assert_eq!((after.wakes, after.missed_messages), (THREADS, 0));
    eventually("nobody listens", || client.stats().subscriptions == 0);
}

timed!(a_cancelled_wait_ends);
fn a_cancelled_wait_ends() {
    let server = Server::start();
    let client = open(&server);
    let name = unique("cancel");
    let token = CancelToken::new();
    let latch = client.latch(&name).cancel_on(&token);
    assert!(latch.try_set_count(1).unwrap());
    let waiting = Waiting::new(&server, {
        let latch = latch.clone();
        move || (latch.wait_for(LONG), latch.wait())
    });
    assert!(!within(ms(30), || waiting.is_over()));
    let since = Instant::now();
    token.cancel();
    let said = waiting.ends(since, BY_MESSAGE);
    assert!(
        matches!(said, (Err(Error::Cancelled), Err(Error::Cancelled))),
        "{said:?}"
    );
    assert!(matches!(latch.wait_for(ms(0)), Err(Error::Cancelled)));
    // The token ends waits alone.
    assert_eq!(latch.count().unwrap(), 1);
    latch.count_down().unwrap();
    assert!(matches!(latch.wait(), Err(Error::Cancelled)));
    client.latch(&name).wait().unwrap();
}

timed!(closing_the_client_ends_every_wait);
fn closing_the_client_ends_every_wait() {
    const THREADS: u64 = 30;
    let server = Server::start();
    let (client, other) = (warm(&server), open(&server));
    let name = unique("closing");
    assert!(other.latch(&name).try_set_count(1).unwrap());
    let mut crew = Crew::new();
    for n in 0..THREADS {
        let latch = client.latch(&name);
        crew.spawn(move || {
            let said = if n % 2 == 0 {
                latch.wait()
            } else {
                latch.wait_for(LONG).map(drop)
            };
            assert!(matches!(said, Err(Error::Closed)), "{said:?}");
            let said = latch.count_down();
            assert!(matches!(said, Err(Error::Closed)), "{said:?}");
        });
    }
    eventually("all have asked twice", || {
        client.stats().commands >= 2 * THREADS
    });
    crew.all_parked();
    let since = Instant::now();
    client.close(LONG).unwrap();
    crew.join();
    let took = since.elapsed();
    assert!(took < loosely(SLACK), "{took:?}");
    assert_eq!(other.latch(&name).count().unwrap(), 1);
}

// ---------------------------------------------------------------------------------------------------------------------
// Bad days
// ---------------------------------------------------------------------------------------------------------------------

timed!(a_key_that_vanishes_in_silence_keeps_nobody);
fn a_key_that_vanishes_in_silence_keeps_nobody() {
    let server = Server::start();
    let client = open(&server);
    let latch = client.latch(unique("vanished"));
    assert!(latch.try_set_count(1).unwrap());
    let waiting = Waiting::new(&server, {
        let latch = latch.clone();
        move || latch.wait()
    });
    let since = Instant::now();
    server.cli(&["DEL", latch.name()]);
    waiting.ends(since, BY_ASKING).unwrap();
    assert_eq!(client.stats().missed_messages, 1);
}

timed!(a_lost_subscription_keeps_nobody);
fn a_lost_subscription_keeps_nobody() {
    let server = Server::start();
    let (client, other) = (open(&server), open(&server));
    let name = unique("unheard");
    for _ in 0..3 {
        assert!(other.latch(&name).try_set_count(1).unwrap());
        let waiting = Waiting::new(&server, {
            let latch = client.latch(&name);
            move || latch.wait()
        });
        let since = Instant::now();
        let mut con = server.connection();
        // In one pipeline, so that the subscriber has no time to reconnect before the message.
        let () = redis::pipe()
            .cmd("CLIENT")
            .arg(&["KILL", "TYPE", "pubsub"])
            .ignore()
            .cmd("DEL")
            .arg(&name)
            .ignore()
            .cmd("PUBLISH")
            .arg(channel(&name))
            .arg("0")
            .ignore()
            .query(&mut con)
            .unwrap();
        waiting.ends(since, BY_ASKING).unwrap();
    }
}

timed!(who_may_not_listen_asks_again_and_again);
fn who_may_not_listen_asks_again_and_again() {
    let server = Server::start();
    let rule = ["on", ">pw", "~*", "+@all", "resetchannels"];
    server.cli(&[&["ACL", "SETUSER", "deaf"], &rule[..]].concat());
    let url = server.url().replace("redis://", "redis://deaf:pw@");
    let (client, other) = (Client::open(url).unwrap(), open(&server));
    let latch = client.latch(unique("deaf"));
    assert!(latch.try_set_count(1).unwrap());
    let name = latch.name().to_owned();
    let asked = server.calls("get");
    let thread = thread::spawn(move || latch.wait().map(|()| Instant::now()));
    eventually("it asks", || server.calls("get") > asked + 1);
    let since = Instant::now();
    other.latch(&name).count_down().unwrap();
    let took = thread.join().unwrap().unwrap() - since;
    // The next poll comes after a pause of 5 s at most.
    assert!(took < loosely(ms(5_500)), "{took:?}");
}

timed!(a_frozen_server_does_not_lengthen_a_limited_wait);
fn a_frozen_server_does_not_lengthen_a_limited_wait() {
    let server = Server::start();
    let client = open(&server);
    let latch = client.latch(unique("frozen"));
    assert!(latch.try_set_count(1).unwrap());
    let waiting = Waiting::new(&server, {
        let latch = latch.clone();
        move || latch.wait_for(ms(600))
    });
    server.freeze();
    let since = Instant::now();
    // The last known state is closed, and no reply comes before the limit.
    assert!(!waiting.ends(since, ms(600) + SLACK).unwrap());
    let since = Instant::now();
    let said = latch.wait_for(ms(200));
    let took = since.elapsed();
    // The server has not been silent for long enough to count as unreachable.
    assert!(matches!(said, Ok(false)), "{said:?}");
    assert!(
        took >= ms(200) && took < ms(200) + loosely(SLACK),
        "{took:?}"
    );
    server.thaw();
    assert!(!latch.wait_for(ms(100)).unwrap());
}

timed!(an_endless_wait_tells_of_a_frozen_server);
fn an_endless_wait_tells_of_a_frozen_server() {
    let response = ms(400);
    let server = Server::start();
    let client = Client::open(Config::new(server.url()).command_timeout(response)).unwrap();
    let latch = client.latch(unique("frozen"));
    assert!(latch.try_set_count(1).unwrap());
    let waiting = Waiting::new(&server, {
        let latch = latch.clone();
        move || latch.wait()
    });
    server.freeze();
    let since = Instant::now();
    let said = waiting.ends(since, ms(1_000) + response + SLACK);
    assert!(matches!(said, Err(Error::Redis { .. })), "{said:?}");
    for (verb, said) in [
        ("count_down", latch.count_down()),
        ("try_set_count", latch.try_set_count(1).map(drop)),
        ("delete", latch.delete().map(drop)),
    ] {
        assert!(matches!(said, Err(Error::Redis { .. })), "{verb}: {said:?}");
    }
}

/// The `command_timeout` behind a proxy. A lost reply costs half of it; the repeated command may need the rest.
const RESPONSE: Duration = ms(1_600);

fn behind_a_proxy(server: &Server) -> (Proxy, Client) {
    load_scripts(server);
    let proxy = Proxy::start(server.addr());
    let client = Client::open(Config::new(proxy.url()).command_timeout(RESPONSE)).unwrap();
    (proxy, client)
}

timed!(requests_whose_replies_are_lost_count_once);
fn requests_whose_replies_are_lost_count_once() {
    let server = Server::start();
    let (proxy, client) = behind_a_proxy(&server);
    let latch = client.latch("lost");
    let trap = proxy.swallow_reply_to(sha(SET));
    assert!(latch.try_set_count(5).unwrap());
    assert!(trap.fired());
    for count_left in [4, 3] {
        let trap = proxy.swallow_reply_to(sha(COUNT_DOWN));
        latch.count_down().unwrap();
        assert!(trap.fired());
        assert_eq!(latch.count().unwrap(), count_left);
    }
    let trap = proxy.swallow_reply_to(sha(DELETE));
    assert!(latch.delete().unwrap());
    assert!(trap.fired());
    assert_eq!(latch.count().unwrap(), 0);
    // Redis remembers the request as long as a copy of it might arrive.
    let requests = |key: &String| key.starts_with("{lost}:request:");
    let kept = server.keys().into_iter().filter(requests);
    assert_eq!(kept.count(), 4);
}

#[test]
fn a_request_that_was_sent_before_its_client_was_closed_may_have_counted() {
    let server = Server::start();
    let client = Client::open(Config::new(server.url()).command_timeout(LONG)).unwrap();
    let latch = client.latch("closed");
    assert!(latch.try_set_count(1).unwrap());
    server.freeze();
    thread::scope(|scope| {
        let asked = client.stats().commands;
        let counts = scope.spawn(|| latch.count_down());
        eventually("it is sent", || client.stats().commands > asked);
        client.close(ms(50)).unwrap_err();
        let err = counts.join().unwrap().unwrap_err();
        assert!(err.may_have_run(), "{err}");
    });
    server.thaw();
}

timed!(the_last_count_down_wakes_though_its_reply_is_lost);
fn the_last_count_down_wakes_though_its_reply_is_lost() {
    let server = Server::start();
    let (proxy, client) = behind_a_proxy(&server);
    let latch = client.latch("last");
    assert!(latch.try_set_count(1).unwrap());
    let waiting = Waiting::new(&server, {
        let latch = open(&server).latch("last");
        move || latch.wait()
    });
    let trap = proxy.swallow_reply_to(sha(COUNT_DOWN));
    let since = Instant::now();
    latch.count_down().unwrap();
    assert!(trap.fired());
    waiting.ends(since, BY_MESSAGE).unwrap();
}

timed!(copies_that_were_held_up_count_once);
fn copies_that_were_held_up_count_once() {
    let server = Server::start();
    let (proxy, client) = behind_a_proxy(&server);
    let (latch, other) = (client.latch("held"), open(&server).latch("held"));
    type Verb = (&'static str, fn(&Latch) -> Result<bool>);
    let verbs: [Verb; 3] = [
        ("set", |latch| latch.try_set_count(5)),
        ("count_down", |latch| latch.count_down().map(|()| true)),
        ("delete", Latch::delete),
    ];
    for (verb_name, verb) in verbs {
        other.delete().unwrap();
        if verb_name != "set" {
            assert!(other.try_set_count(5).unwrap());
        }
        latch.count().unwrap();
        proxy.stall_present(Target::Link);
        // The request is repeated over a new connection, and the stalled copy arrives afterwards.
        assert!(verb(&latch).unwrap(), "{verb_name}");
        other.delete().unwrap();
        if verb_name != "set" {
            assert!(other.try_set_count(7).unwrap());
        }
        let ran = server.calls("evalsha");
        proxy.pass();
        eventually("the copy has come", || server.calls("evalsha") > ran);
        let count_left = if verb_name == "set" { 0 } else { 7 };
        assert_eq!(other.count().unwrap(), count_left, "{verb_name}");
    }
}

timed!(a_dead_network_is_told_in_time_and_counts_at_most_once);
fn a_dead_network_is_told_in_time_and_counts_at_most_once() {
    let server = Server::start();
    let (proxy, client) = behind_a_proxy(&server);
    let latch = client.latch("dead");
    assert!(latch.try_set_count(5).unwrap());
    for mode in [Mode::SwallowReplies, Mode::BlackHole] {
        let count_before = server.get_int("dead");
        proxy.set(Target::Link, mode);
        let since = Instant::now();
        let said = latch.count_down();
        assert!(matches!(said, Err(Error::Redis { .. })), "{said:?}");
        let took = since.elapsed();
        assert!(took < RESPONSE + loosely(SLACK), "{took:?}");
        proxy.pass();
        latch.count_down().unwrap();
        let counted = count_before - server.get_int("dead");
        let wanted = if mode == Mode::BlackHole { 1 } else { 2 };
        assert_eq!(counted, wanted, "{mode:?}");
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Rounds
// ---------------------------------------------------------------------------------------------------------------------

timed!(who_is_late_is_released_though_the_next_count_stands);
fn who_is_late_is_released_though_the_next_count_stands() {
    let server = Server::start();
    load_scripts(&server);
    let client = open(&server);
    let name = unique("next");
    let latch = client.latch(&name);
    let (key, round, channel) = (name.as_str(), suffixed(&name, "round"), channel(&name));
    let script = |script: &str, id: &str| {
        let mut run = redis::cmd("EVALSHA");
        let request = suffixed(&name, &format!("request:{id}"));
        run.arg(sha(script)).arg(4).arg(key).arg(&round);
        run.arg(&channel).arg(request).arg(id).arg(60_000);
        run.arg(60_000).arg(1).clone()
    };
    let command = |parts: &[&str]| redis::cmd(parts[0]).arg(&parts[1..]).clone();
    // The end of a round and the start of the next in one transaction, so that no waiter looks in between.
    let we_count_down = script(COUNT_DOWN, "c");
    let we_set = script(SET, "s");
    let java_sets = command(&["SET", key, "1"]);
    let java_tells = command(&["PUBLISH", &channel, "1"]);
    for (what, commands) in [
        ("we and we", vec![&we_count_down, &we_set]),
        ("we delete and set", vec![&script(DELETE, "d"), &we_set]),
        ("we and they", vec![&we_count_down, &java_sets, &java_tells]),
        ("they and we", vec![&command(&["DEL", key]), &we_set]),
    ] {
        assert!(latch.try_set_count(1).unwrap());
        let waiting = Waiting::new(&server, {
            let latch = latch.clone();
            move || latch.wait()
        });
        let since = Instant::now();
        let mut pipe = redis::pipe();
        pipe.atomic();
        for command in commands {
            pipe.add_command(command.clone());
        }
        let () = pipe.query(&mut server.connection()).unwrap();
        waiting.ends(since, BY_MESSAGE).unwrap();
        assert_eq!(latch.count().unwrap(), 1, "{what}");
        server.cli(&["FLUSHALL"]);
    }
    assert_eq!(client.stats().missed_messages, 0);
}

timed!(java_clients_alone_do_not_tell_their_rounds_apart);
fn java_clients_alone_do_not_tell_their_rounds_apart() {
    let server = Server::start();
    let client = open(&server);
    let latch = client.latch(unique("java"));
    server.cli(&["SET", latch.name(), "1"]);
    let waiting = Waiting::new(&server, {
        let latch = latch.clone();
        move || latch.wait()
    });
    // As with Redisson, a waiter that looks too late waits for the end of the next round.
    let asked = server.calls("get");
    let () = redis::pipe()
        .atomic()
        .cmd("DEL")
        .arg(latch.name())
        .cmd("SET")
        .arg(latch.name())
        .arg("1")
        .cmd("PUBLISH")
        .arg(channel(latch.name()))
        .arg("0")
        .ignore()
        .query::<((), ())>(&mut server.connection())
        .map(drop)
        .unwrap();
    eventually("it asks again", || server.calls("get") > asked);
    assert!(!within(ms(50), || waiting.is_over()));
    java_counts_down(&server, latch.name());
    waiting.ends(Instant::now(), BY_MESSAGE).unwrap();
}

timed!(a_mark_that_is_lost_releases_nobody);
fn a_mark_that_is_lost_releases_nobody() {
    let server = Server::start();
    let latch = open(&server).latch(unique("mark"));
    assert!(latch.try_set_count(1).unwrap());
    let waiting = Waiting::new(&server, {
        let latch = latch.clone();
        move || latch.wait()
    });
    server.cli(&["DEL", &suffixed(latch.name(), "round")]);
    let asked = server.calls("get");
    server.cli(&["PUBLISH", &channel(latch.name()), "0"]);
    eventually("it asks again", || server.calls("get") > asked);
    assert!(!within(ms(50), || waiting.is_over()));
    latch.count_down().unwrap();
    assert!(latch.try_set_count(1).unwrap());
    waiting.ends(Instant::now(), BY_MESSAGE).unwrap();
}

/// The progress of a test with many rounds, shared by its threads.
#[derive(Default)]
struct Board {
    /// The number of rounds whose count has been set; raised after that.
    set: AtomicU64,
    /// The number of rounds whose last count-down has been sent; raised before that.
    ended: AtomicU64,
    /// The number of waits that have ended.
    out: AtomicU64,
    turn: Mutex<u64>,
    turned: Condvar,
}

impl Board {
    fn call(&self, turn: u64) {
        *self.turn.lock().unwrap() = turn;
        self.turned.notify_all();
    }

    fn come(&self, turn: u64) {
        let now = self.turn.lock().unwrap();
        drop(self.turned.wait_while(now, |now| *now < turn).unwrap());
    }

    #[track_caller]
    fn all_out(&self, waits: u64) {
        eventually("nobody is left behind", || {
            self.out.load(Ordering::SeqCst) >= waits
        });
    }
}

/// Threads of several clients wait once per round. Most rounds follow each other as fast as they can be counted down,
/// and waits begin at any moment. After every fourth round the next one begins only when all waits have ended; in every
/// twentieth all threads are known to wait, and the next count is set before they can look.
fn rounds(clients: usize, threads: u64, rounds: u64) {
    let server = Server::start();
    let name = unique("rounds");
    let clients: Vec<_> = (0..clients).map(|_| open(&server)).collect();
    let (setter, counter) = (open(&server), open(&server));
    let (setter, counter) = (setter.latch(&name), counter.latch(&name));
    let board = Arc::new(Board::default());
    let mut crew = Crew::new();
    for (client, _) in clients.iter().cycle().zip(0..threads) {
        let (latch, board) = (client.latch(&name), Arc::clone(&board));
        crew.spawn(move || {
            for turn in 1..=rounds {
                board.come(turn);
                let set = board.set.load(Ordering::SeqCst);
                latch.wait().unwrap();
                let ended = board.ended.load(Ordering::SeqCst);
                assert!(ended >= set, "released in round {set}, after {ended}");
                board.out.fetch_add(1, Ordering::SeqCst);
            }
        });
    }
    let commands = || -> u64 { clients.iter().map(|client| client.stats().commands).sum() };
    let mut con = server.connection();
    let mut listeners = || -> u64 {
        let (_, n): (String, u64) = redis::cmd("PUBSUB")
            .arg("NUMSUB")
            .arg(channel(&name))
            .query(&mut con)
            .unwrap();
        n
    };
    let (mut is_set, mut all_known) = (false, 0);
    for round in 1..=rounds {
        let to_be_known = round % 20 == 0;
        if to_be_known {
            // With no subscription left, no message of an earlier round reaches the new waiters: each asks twice and
            // then parks until its poll.
            board.all_out(threads * (round - 1));
            eventually("nobody listens", || listeners() == 0);
        }
        let asked = commands();
        if !is_set {
            assert!(setter.try_set_count(3).unwrap());
        }
        board.set.store(round, Ordering::SeqCst);
        let since = Instant::now();
        board.call(round);
        if to_be_known {
            eventually("all have asked", || commands() >= asked + 2 * threads);
        }
        let known = to_be_known && since.elapsed() < ms(700);
        setter.count_down().unwrap();
        counter.count_down().unwrap();
        board.ended.store(round, Ordering::SeqCst);
        counter.count_down().unwrap();
        is_set = known;
        if known {
            assert!(setter.try_set_count(3).unwrap());
            all_known += 1;
        }
        if known || round % 4 == 0 {
            board.all_out(threads * round);
        }
    }
    setter.delete().unwrap();
    crew.join();
    assert!(all_known > 0 || rounds < 20, "too slow a machine");
    let stats: Vec<_> = clients.iter().map(Client::stats).collect();
    let sum = |of: fn(&redlatch::Stats) -> u64| stats.iter().map(of).sum::<u64>();
    let (wakes, rescues) = (sum(|stats| stats.wakes), sum(|stats| stats.missed_messages));
    eprintln!("{wakes} wakes, {rescues} rescues, {all_known} known");
    // A machine that stands still for a second makes waiters poll.
    assert!(rescues * 1_000 <= threads * rounds, "{rescues} not told");
    assert!(wakes > threads * rounds / 10, "only {wakes} told");
    eventually("nobody listens", || {
        clients
            .iter()
            .all(|client| client.stats().subscriptions == 0)
    });
}

timed!(nobody_is_left_behind_or_released_early_in_many_rounds);
fn nobody_is_left_behind_or_released_early_in_many_rounds() {
    rounds(3, 100, 200);
}

#[test]
#[ignore = "takes a minute"]
fn nobody_is_left_behind_or_released_early_in_very_many_rounds() {
    rounds(4, 100, 2_000);
    rounds(2, 8, 10_000);
}
