//! Waiting for a red lock: the waiter is notified of the release, and sends few requests until then.

use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, bounded, select, unbounded};
use redlatch::{CancelToken, Client, Error, RedLockGuard};

use crate::support::quorum::{all_keep, masters, nothing_is_left, open, red, take};
use crate::support::{
    Crew, LONG, Messages, Mode, Proxy, STRANGER, Server, Target, eventually, loosely, ms,
    subscribed, timed, unique,
};

/// A lease that no test waits for, and that is not renewed.
const FOR_LONG: Duration = ms(60_000);

/// How many times a waiter may look within a second: the interval between looks is 0.5 s to 1 s. A waiter that retries
/// without being notified does so every 5 to 50 ms.
const LOOKS: u64 = 3;

/// A thread of another process acquires the lock, sends the time, and holds the lock until the second channel is read.
fn waits(crew: &mut Crew, clients: &[Client], name: &str) -> (Receiver<Instant>, Receiver<()>) {
    let (has_it, got) = unbounded();
    let (hold, let_go) = bounded(0);
    let lock = red(clients, name).fixed_lease(FOR_LONG);
    crew.spawn(move || {
        let guard = lock.lock().unwrap();
        has_it.send(Instant::now()).unwrap();
        // Ends when the message is received, or the receiver is dropped.
        hold.send(()).ok();
        drop(guard);
    });
    (got, let_go)
}

/// A process with a waiting thread.
struct Waiter {
    clients: Vec<Client>,
    got: Receiver<Instant>,
    may_go: Receiver<()>,
}

/// Two processes wait for the hold of a third, and have subscribed at every server.
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

/// The holder has the lock on every server.
fn held(servers: &[Server], holder: &[Client], name: &str) -> RedLockGuard {
    let guard = take(&red(holder, name).fixed_lease(FOR_LONG));
    all_keep(&guard, servers.len());
    guard
}

/// Waits for a second, by the clock of a server that keeps the lock.
fn a_second_passes(server: &Server, name: &str) {
    let ttl_before = server.pttl(name);
    eventually("a second has passed", || {
        server.pttl(name) <= ttl_before - 1000
    });
}

/// The number of commands that each client has sent.
fn sent(clients: &[Client]) -> Vec<u64> {
    let sent = clients.iter().map(|client| client.stats().commands);
    sent.collect()
}

#[track_caller]
fn looked_now_and_then(clients: &[Client], sent_before: &[u64]) {
    let after = sent(clients);
    let grown = after
        .iter()
        .zip(sent_before)
        .map(|(after, client_before)| after - client_before);
    assert!(grown.max() <= Some(LOOKS), "{sent_before:?} {after:?}");
}

#[test]
fn those_who_wait_ask_nothing_until_it_is_released_and_then_once() {
    let servers = masters(3);
    let name = unique("notified");
    let (guard, crew, [first, second]) = two_wait(&servers, &name);
    let sent_before = [&first, &second].map(|side| sent(&side.clients));
    a_second_passes(&servers[0], &name);
    for (side, side_before) in [&first, &second].into_iter().zip(&sent_before) {
        looked_now_and_then(&side.clients, side_before);
    }
    drop(guard);
    select! {
        recv(first.got) -> when => when.unwrap(),
        recv(second.got) -> when => when.unwrap(),
    };
    // Each winner releases as soon as it has the lock.
    drop((first.may_go, second.may_go));
    crew.join();
    for clients in [&first.clients, &second.clients] {
        let stats = clients[0].stats();
        assert_eq!(stats.missed_messages, 0, "{stats:?}");
        assert!(stats.wakes >= 1, "{stats:?}");
    }
    nothing_is_left(&servers);
}

// A waiter that lost the race asks once more, since the winner may have no majority either, and then waits to be
// notified.
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
    let sent_before = sent(&loser.clients);
    // Ask a server that keeps the lock; the winner may have only two of three.
    let keeps = |server: &&Server| server.exists(&name);
    a_second_passes(servers.iter().find(keeps).unwrap(), &name);
    looked_now_and_then(&loser.clients, &sent_before);
    winner.may_go.recv_timeout(LONG).unwrap();
    loser.got.recv_timeout(LONG).unwrap();
    loser.may_go.recv_timeout(LONG).unwrap();
    crew.join();
    nothing_is_left(&servers);
}

/// Servers behind proxies, and two clients for each.
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

// A release takes half a round trip to the servers, half of one to the waiter, and one for the waiter's request.
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
    // The holder has asked. The waiter asks, looks after a pause, and looks again once it is subscribed. After that
    // only a message can wake it.
    for server in &servers {
        subscribed(server, 1);
        // A renewal runs both PTTL and HGET, so subtract it.
        let asked = || server.calls("pttl").saturating_sub(server.calls("hget"));
        eventually("it has looked", || asked() >= 4);
    }
    let released = Instant::now();
    drop(guard);
    let took = got.recv_timeout(LONG).unwrap() - released;
    assert!(took >= 4 * DELAY, "{took:?}");
    // Less than a further look would take.
    assert!(took < loosely(6 * DELAY), "{took:?}");
    crew.join();
    let stats = waiter[0].stats();
    assert!(stats.wakes >= 1, "{stats:?}");
    assert_eq!(stats.missed_messages, 0, "{stats:?}");
}

timed!(a_release_is_heard_with_two_of_five_servers_dead);
fn a_release_is_heard_with_two_of_five_servers_dead() {
    let (mut servers, proxies, [holder, waiter]) = proxied(5);
    let name = unique("dead");
    servers[0].kill();
    proxies[3].set(Target::All, Mode::BlackHole);
    for round in 1..=3 {
        let guard = take(&red(&holder, &name).fixed_lease(FOR_LONG));
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

// Any majority of five includes one of the remaining three.
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

// If subscriptions are lost one after another, enough remain at any time, but a message may have been missed by all of
// them. So the waiter looks each time that a subscription is back.
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

// All contenders are confirmed at about the same moment. If that ended their pauses, they would split the votes again.
#[test]
fn the_pause_after_a_contested_round_is_not_cut_short_by_a_confirmation() {
    /// The shortest pause.
    const PAUSE: f64 = 0.005;
    let mut split = Split::new("pause");
    // The round cannot end without the reply of this server.
    let mut commands = split.servers[1].connection();
    commands
        .send_packed_command(&redis::cmd("MONITOR").get_packed_command())
        .unwrap();
    commands.recv_response().unwrap();
    split.waits();
    let name = split.name.clone();
    let mut next = |command: &str| loop {
        let line: String = redis::from_redis_value(commands.recv_response().unwrap()).unwrap();
        // A line has the time, the client in brackets, and each word in quotes.
        let (time, words) = line.split_once(' ').unwrap();
        if words.contains(&format!("] \"{command}")) && words.contains(&name) {
            return time.parse::<f64>().unwrap();
        }
    };
    let asked = next("EVAL");
    let looked = next("PTTL");
    assert!(looked - asked >= PAUSE, "{}", looked - asked);
    split.ends();
}

/// How many messages about `name` have been published since the last call.
fn announced(messages: &mut Messages, server: &Server, name: &str) -> usize {
    let published = messages.published(server);
    let is_ours = |(channel, _): &&(String, String)| channel.contains(name);
    published.iter().filter(is_ours).count()
}

// A waiter that saw a majority taken waits for a message, so a single attempt has to announce what it gives back. A
// waiter that will try again does not.
#[test]
fn what_a_single_attempt_gives_back_is_announced_and_not_what_one_gives_back_that_comes_again() {
    let servers = masters(3);
    let name = unique("split");
    let clients = open(&servers);
    drop(take(&red(&clients, &unique("warm"))));
    let mut messages = Messages::of(&servers[0]);
    // Strangers have one server each.
    for server in &servers[1..] {
        server.cli(&["HSET", &name, STRANGER, "1"]);
        server.cli(&["PEXPIRE", &name, "60000"]);
    }
    let lock = red(&clients, &name);
    assert!(lock.try_lock().unwrap().is_none());
    eventually("it is given back", || !servers[0].exists(&name));
    assert_eq!(announced(&mut messages, &servers[0], &name), 1);

    // The strangers keep their servers, and nobody else publishes.
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

// The client cannot know which parts it was granted, and others may have seen a majority taken.
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

/// Waiters for a lock of three servers, of which strangers have the last two. A waiter is granted the first, gives it
/// back without a message, and tries again after a pause. That part may be the reason why another process waits.
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

    /// A thread of another process waits. Until its own next look, only a message can wake it.
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

    /// A message is the only reason for a wake-up.
    fn is_notified(&self) -> bool {
        self.waiter[0].stats().wakes > 0
    }

    /// Does not wait for the waiter's next look, which would prove nothing about messages.
    fn ends(self) {
        self.token.cancel();
        self.crew.join();
    }
}

// The master grants the lock over a connection that is lost before the reply.
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
    let lock = red(&clients, &split.name).fixed_lease(FOR_LONG);
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
