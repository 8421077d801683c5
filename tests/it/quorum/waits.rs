//! Waiting for the lock over several masters: who waits is notified, and asks nothing meanwhile.

use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, bounded, select, unbounded};
use redlatch::{CancelToken, Client, Error, RedLockGuard};

use crate::support::quorum::{all_keep, masters, nothing_is_left, open, red, take};
use crate::support::{
    Crew, LONG, Messages, Mode, Proxy, STRANGER, Server, Target, eventually, loosely, ms,
    subscribed, timed, unique,
};

/// Nothing here waits for such a lease to end, and it is not renewed.
const FOR_LONG: Duration = ms(60_000);

/// So often a thread may look for itself while a second passes: the poll cap is at most a second, and at least half of
/// that. Whoever asks again and again does so every 5 to 50 ms.
const LOOKS: u64 = 3;

/// A thread of another process waits for the lock, takes it, says when, and keeps it until it may go.
fn waits(crew: &mut Crew, clients: &[Client], name: &str) -> (Receiver<Instant>, Receiver<()>) {
    let (has_it, got) = unbounded();
    let (hold, let_go) = bounded(0);
    let lock = red(clients, name).lease(FOR_LONG);
    crew.spawn(move || {
        let guard = lock.lock().unwrap();
        has_it.send(Instant::now()).unwrap();
        // Until that is received, or nobody will.
        hold.send(()).ok();
        drop(guard);
    });
    (got, let_go)
}

/// A process of which a thread waits.
struct Waiter {
    clients: Vec<Client>,
    got: Receiver<Instant>,
    may_go: Receiver<()>,
}

/// Two processes wait for what a third one holds, and are subscribed everywhere.
fn two_wait(servers: &[Server], name: &str) -> (RedLockGuard, Crew, [Waiter; 2]) {
    let guard = held(servers, &open(servers), name);
    let mut crew = Crew::new();
    let waiters = [(); 2].map(|()| {
        let clients = open(servers);
        let (got, may_go) = waits(&mut crew, &clients, name);
        Waiter {
            clients,
            got,
            may_go,
        }
    });
    for server in servers {
        subscribed(server, 2);
    }
    crew.all_parked();
    (guard, crew, waiters)
}

/// Another process has it, and everybody knows.
fn held(servers: &[Server], holder: &[Client], name: &str) -> RedLockGuard {
    let guard = take(&red(holder, name).lease(FOR_LONG));
    all_keep(&guard, servers.len());
    guard
}

/// Lets a second pass by the clock of a server that keeps the lock.
fn a_second_passes(server: &Server, name: &str) {
    let before = server.pttl(name);
    eventually("a second has passed", || server.pttl(name) <= before - 1000);
}

/// How many commands clients have sent to their servers.
fn sent(clients: &[Client]) -> Vec<u64> {
    let sent = clients.iter().map(|client| client.stats().commands);
    sent.collect()
}

#[track_caller]
fn looked_now_and_then(clients: &[Client], before: &[u64]) {
    let after = sent(clients);
    let grown = after
        .iter()
        .zip(before)
        .map(|(after, before)| after - before);
    assert!(grown.max() <= Some(LOOKS), "{before:?} {after:?}");
}

// L1, M3
#[test]
fn those_who_wait_ask_nothing_until_it_is_released_and_then_once() {
    let servers = masters(3);
    let name = unique("notified");
    let (guard, crew, [first, second]) = two_wait(&servers, &name);
    let before = [&first, &second].map(|its| sent(&its.clients));
    a_second_passes(&servers[0], &name);
    for (its, before) in [&first, &second].into_iter().zip(&before) {
        looked_now_and_then(&its.clients, before);
    }
    drop(guard);
    select! {
        recv(first.got) -> when => when.unwrap(),
        recv(second.got) -> when => when.unwrap(),
    };
    // Both may go as soon as they have had it.
    drop((first.may_go, second.may_go));
    crew.join();
    for clients in [&first.clients, &second.clients] {
        let stats = clients[0].stats();
        assert_eq!(stats.missed_messages, 0, "{stats:?}");
        assert!(stats.wakes >= 1, "{stats:?}");
    }
    nothing_is_left(&servers);
}

// Those who have lost come again once, since nobody may have it, and then wait to be notified.
#[test]
fn whoever_comes_too_late_waits_to_be_notified_again() {
    let servers = masters(3);
    let name = unique("late");
    let (guard, crew, [first, second]) = two_wait(&servers, &name);
    drop(guard);
    let is_first = select! {
        recv(first.got) -> when => { when.unwrap(); true }
        recv(second.got) -> when => { when.unwrap(); false }
    };
    let (winner, loser) = match is_first {
        true => (first, second),
        false => (second, first),
    };
    crew.all_parked();
    let before = sent(&loser.clients);
    // On some server that keeps it: a winner that was granted two of three has no more.
    let keeps = |server: &&Server| server.exists(&name);
    a_second_passes(servers.iter().find(keeps).unwrap(), &name);
    looked_now_and_then(&loser.clients, &before);
    winner.may_go.recv_timeout(LONG).unwrap();
    loser.got.recv_timeout(LONG).unwrap();
    loser.may_go.recv_timeout(LONG).unwrap();
    crew.join();
    nothing_is_left(&servers);
}

/// Servers behind proxies, and two clients of each.
fn proxied(n: usize) -> (Vec<Server>, Vec<Proxy>, [Vec<Client>; 2]) {
    let servers = masters(n);
    let proxies: Vec<_> = servers.iter().map(Proxy::before).collect();
    let open = || {
        let open = |proxy: &Proxy| Client::open(proxy.url()).unwrap();
        proxies.iter().map(open).collect()
    };
    let clients = [open(), open()];
    (servers, proxies, clients)
}

// L1: half a round trip to the servers, half of one to the thread that waits, and one for its request.
timed!(a_release_far_away_is_followed_by_a_grant_two_round_trips_later);
fn a_release_far_away_is_followed_by_a_grant_two_round_trips_later() {
    const DELAY: Duration = ms(30);
    let (servers, proxies, [holder, waiter]) = proxied(3);
    let name = unique("far");
    for proxy in &proxies {
        proxy.set(Target::All, Mode::DelayBoth(DELAY));
    }
    let guard = held(&servers, &holder, &name);
    let mut crew = Crew::new();
    let (got, _) = waits(&mut crew, &waiter, &name);
    // The holder has asked. The waiter asks, looks after a pause, and again once it is subscribed. After that only a message
    // can notify it.
    for server in &servers {
        subscribed(server, 1);
        // A renewal asks for both.
        let asked = || server.calls("pttl").saturating_sub(server.calls("hget"));
        eventually("it has looked", || asked() >= 4);
    }
    let released = Instant::now();
    drop(guard);
    let took = got.recv_timeout(LONG).unwrap() - released;
    assert!(took >= 4 * DELAY, "{took:?}");
    // Without a look, which would take another.
    assert!(took < loosely(6 * DELAY), "{took:?}");
    crew.join();
    let stats = waiter[0].stats();
    assert!(stats.wakes >= 1, "{stats:?}");
    assert_eq!(stats.missed_messages, 0, "{stats:?}");
}

// L1, M7
timed!(a_release_is_heard_with_two_of_five_servers_dead);
fn a_release_is_heard_with_two_of_five_servers_dead() {
    let (mut servers, proxies, [holder, waiter]) = proxied(5);
    let name = unique("dead");
    servers[0].kill();
    proxies[3].set(Target::All, Mode::BlackHole);
    for round in 1..=3 {
        let guard = take(&red(&holder, &name).lease(FOR_LONG));
        let mut crew = Crew::new();
        let (got, _) = waits(&mut crew, &waiter, &name);
        for node in [1, 2, 4] {
            subscribed(&servers[node], 1);
        }
        crew.all_parked();
        drop(guard);
        got.recv_timeout(LONG).unwrap();
        crew.join();
        let stats = waiter[0].stats();
        assert!(stats.wakes >= round, "{stats:?}");
        assert_eq!(stats.missed_messages, 0, "{stats:?}");
        for node in [1, 2, 4] {
            subscribed(&servers[node], 0);
        }
    }
}

// L1, C1: any majority of five has one of three in it.
timed!(a_release_is_heard_while_two_subscriptions_are_lost);
fn a_release_is_heard_while_two_subscriptions_are_lost() {
    let (servers, proxies, [holder, waiter]) = proxied(5);
    let name = unique("lost");
    let guard = held(&servers, &holder, &name);
    let mut crew = Crew::new();
    let (got, _) = waits(&mut crew, &waiter, &name);
    for server in &servers {
        subscribed(server, 1);
    }
    crew.all_parked();
    for proxy in &proxies[..2] {
        proxy.set(Target::Subscriber, Mode::Refuse);
        assert_eq!(proxy.cut(Target::Subscriber), 1);
    }
    for server in &servers[..2] {
        subscribed(server, 0);
    }
    drop(guard);
    got.recv_timeout(LONG).unwrap();
    crew.join();
    let stats = waiter[0].stats();
    assert!(stats.wakes >= 1, "{stats:?}");
    assert_eq!(stats.missed_messages, 0, "{stats:?}");
}

// L1, C1: lost one after another, there are always enough to listen to, and yet a message may have come over none of them.
#[test]
fn a_waiter_looks_when_a_lost_subscription_is_back() {
    let (servers, proxies, [holder, waiter]) = proxied(3);
    let name = unique("back");
    let guard = held(&servers, &holder, &name);
    let mut crew = Crew::new();
    let (got, _) = waits(&mut crew, &waiter, &name);
    for server in &servers {
        subscribed(server, 1);
    }
    for (lost, proxy) in (1..).zip(&proxies) {
        crew.all_parked();
        assert_eq!(proxy.cut(Target::Subscriber), 1);
        eventually("it is woken", || waiter[0].stats().wakes >= lost);
    }
    drop(guard);
    got.recv_timeout(LONG).unwrap();
    crew.join();
}

/// What was published about `name` since the last look.
fn announced(messages: &mut Messages, server: &Server, name: &str) -> usize {
    let published = messages.published(server);
    let ours = |(channel, _): &&(String, String)| channel.contains(name);
    published.iter().filter(ours).count()
}

// L1: whoever has seen a majority taken waits for a message, and nobody else may come.
#[test]
fn what_a_single_attempt_gives_back_is_announced_and_not_what_one_gives_back_that_comes_again() {
    let servers = masters(3);
    let name = unique("split");
    let clients = open(&servers);
    drop(take(&red(&clients, &unique("warm"))));
    let mut messages = Messages::of(&servers[0]);
    // Others were granted a server each.
    for server in &servers[1..] {
        server.cli(&["HSET", &name, STRANGER, "1"]);
        server.cli(&["PEXPIRE", &name, "60000"]);
    }
    let lock = red(&clients, &name);
    assert!(lock.try_lock().unwrap().is_none());
    eventually("it is given back", || !servers[0].exists(&name));
    assert_eq!(announced(&mut messages, &servers[0], &name), 1);

    // They hold it for no longer than this takes: nobody else is there to announce anything.
    let given_back = servers[0].calls("hdel");
    let mut crew = Crew::new();
    let (got, may_go) = waits(&mut crew, &clients, &name);
    eventually("it is given back", || servers[0].calls("hdel") > given_back);
    for server in &servers {
        subscribed(server, 1);
    }
    crew.all_parked();
    assert_eq!(announced(&mut messages, &servers[0], &name), 0);
    for server in &servers[1..] {
        server.cli(&["DEL", &name]);
    }
    got.recv_timeout(LONG).unwrap();
    may_go.recv_timeout(LONG).unwrap();
    crew.join();
    nothing_is_left(&servers);
}

// L1, D1: nobody knows what was granted, but others may have seen that a majority was taken.
timed!(what_is_given_back_unread_is_announced);
fn what_is_given_back_unread_is_announced() {
    let (servers, proxies, [clients, _]) = proxied(3);
    let name = unique("unread");
    drop(take(&red(&clients, &unique("warm"))));
    let mut messages: Vec<_> = servers.iter().map(Messages::of).collect();
    for proxy in &proxies {
        proxy.set(Target::Link, Mode::SwallowReplies);
    }
    let mut crew = Crew::new();
    let (got, _) = waits(&mut crew, &clients, &name);
    for (server, messages) in servers.iter().zip(&mut messages) {
        eventually("it is announced", || announced(messages, server, &name) > 0);
    }
    for proxy in &proxies {
        proxy.pass();
        proxy.cut(Target::Link);
    }
    got.recv_timeout(LONG).unwrap();
    crew.join();
    nothing_is_left(&servers);
}

/// Those who wait for a lock of three servers, of which others were granted the last two. So whoever asks is granted the
/// first, gives that back without a message, and asks again after a pause. It may have been the reason to wait.
struct Split {
    servers: Vec<Server>,
    name: String,
    waiter: Vec<Client>,
    crew: Crew,
    token: CancelToken,
}

impl Split {
    fn new(name: &str) -> Self {
        let split = Self {
            servers: masters(3),
            name: unique(name),
            waiter: Vec::new(),
            crew: Crew::new(),
            token: CancelToken::new(),
        };
        for server in &split.servers[1..] {
            server.cli(&["HSET", &split.name, STRANGER, "1"]);
            server.cli(&["PEXPIRE", &split.name, "60000"]);
        }
        split
    }

    /// A thread of another process waits, which can be notified by a message only until it looks for itself.
    fn waits(&mut self) {
        self.waiter = open(&self.servers);
        let lock = red(&self.waiter, &self.name).cancel_on(&self.token);
        self.crew.spawn(move || {
            let result = lock.lock();
            assert!(matches!(result, Err(Error::Cancelled)), "{result:?}");
        });
        for server in &self.servers {
            subscribed(server, 1);
        }
        self.crew.all_parked();
    }

    /// It has no other reason to wake.
    fn is_notified(&self) -> bool {
        self.waiter[0].stats().wakes > 0
    }

    /// Within what time the waiter looks for itself does not matter: that is no message.
    fn ends(self) {
        self.token.cancel();
        self.crew.join();
    }
}

// L1, D1: granted over a connection that is lost before anybody knows.
#[test]
fn what_is_undone_after_its_connection_was_lost_is_announced() {
    let mut split = Split::new("torn");
    let proxies: Vec<_> = split.servers.iter().map(Proxy::before).collect();
    let open = |proxy: &Proxy| Client::open(proxy.url()).unwrap();
    let clients: Vec<_> = proxies.iter().map(open).collect();
    drop(take(&red(&clients, &unique("warm"))));
    split.waits();
    let trap = proxies[0].swallow_reply_to(&split.name);
    for proxy in &proxies[1..] {
        proxy.set(Target::Link, Mode::Stall);
    }
    let lock = red(&clients, &split.name).lease(FOR_LONG);
    let mut crew = Crew::new();
    crew.spawn(move || assert!(!matches!(lock.try_lock(), Ok(Some(_)))));
    eventually("it is taken", || {
        trap.fired() && split.servers[0].exists(&split.name)
    });
    proxies[0].cut(Target::Link);
    for proxy in &proxies[1..] {
        proxy.pass();
    }
    eventually("the other one is notified", || split.is_notified());
    crew.join();
    split.ends();
}
