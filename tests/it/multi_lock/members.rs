//! Locks of any clients as one: members on several servers, and the fate of the other members when one of them fails.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::bounded;
use redlatch::{CancelToken, Client, Config, Error, Lock, LossReason, MultiLock, Result};

use crate::support::multi_lock::{left, open, verdicts};
use crate::support::{
    BY_MESSAGE, Crew, LONG, Mode, Proxy, RESPONSE, SLACK, Server, Target, elsewhere, eventually,
    hold_by_stranger, in_time, loosely, ms, scoped, subscribed, timed, unique,
};

// ---------------------------------------------------------------------------------------------------------------------
// Helpers
// ---------------------------------------------------------------------------------------------------------------------

/// `N` servers, each with a client that has already used it.
fn some<const N: usize>() -> [(Server, Client); N] {
    [(); N].map(|()| {
        let server = Server::start();
        let client = open(&server.url());
        client.mutex("warm").lock().unwrap().unlock().unwrap();
        (server, client)
    })
}

/// A plain lock of each client, all with the same name.
fn one_each<'a>(clients: impl IntoIterator<Item = &'a Client>, name: &str) -> MultiLock {
    let member = |client: &Client| Box::new(client.reentrant_lock(name)) as Box<dyn Lock>;
    MultiLock::new(clients.into_iter().map(member).collect())
}

/// The names of the members that failed, all of them because their server was unreachable.
#[track_caller]
fn failed<T: std::fmt::Debug>(result: Result<T>) -> Vec<String> {
    match result {
        Err(Error::Members { failures, .. }) => {
            let name = |(name, err): (String, Error)| {
                assert!(matches!(err, Error::Redis { .. }), "{name}: {err}");
                name
            };
            failures.into_iter().map(name).collect()
        }
        other => panic!("no failed members: {other:?}"),
    }
}

#[track_caller]
fn config_fault<T: std::fmt::Debug>(result: &Result<T>) {
    assert!(
        matches!(result, Err(Error::InvalidSetting { .. })),
        "{result:?}"
    );
}

// `b` was taken a moment ago, so the thread asks again for as long as two round trips take. The last of these replies comes
// too late, but Redis has said before that somebody else has `b`.
timed!(a_member_that_was_refused_in_a_round_makes_the_call_busy_and_not_late);
fn a_member_that_was_refused_in_a_round_makes_the_call_busy_and_not_late() {
    let server = Server::start();
    let proxy = Proxy::before(&server);
    let client = open(&proxy.url());
    let [a, b] = [unique("a"), unique("b")];
    let lock = client.multi_lock([&a, &b]).late_is_error();
    drop(lock.lock().unwrap());
    proxy.set(Target::All, Mode::DelayBoth(ms(100)));
    let theirs = open(&server.url());
    let _guard = theirs.mutex(&b).lock().unwrap();
    assert!(lock.try_lock_for(ms(500)).unwrap().is_none());
}

// ---------------------------------------------------------------------------------------------------------------------
// Members
// ---------------------------------------------------------------------------------------------------------------------

#[test]
fn locks_of_several_kinds_and_servers_are_held_as_one() {
    let [(here, one), (there, two)] = some();
    let [a, b, c] = &["a", "b", "c"].map(unique);
    let lock = MultiLock::new(vec![
        Box::new(one.reentrant_lock(a)),
        Box::new(two.fair_lock(b)),
        Box::new(one.spin_lock(c)),
        Box::new(two.mutex(a)),
    ]);
    assert!(!lock.is_locked().unwrap());
    assert_eq!(lock.remaining_lease().unwrap(), None);
    let guard = lock.lock().unwrap();
    left(&here, &[a, c]);
    left(&there, &[a, b]);
    let owners: Vec<_> = guard.owner().split(", ").collect();
    let fields = |server: &Server, key| server.hgetall(key).into_iter().map(|(owner, _)| owner);
    for owner in [(&here, a), (&here, c), (&there, a), (&there, b)] {
        let owner: Vec<_> = fields(owner.0, owner.1).collect();
        assert!(
            owner.len() == 1 && owners.contains(&&*owner[0]),
            "{owner:?}"
        );
    }
    assert_eq!(owners.len(), 4);
    for name in [a, b, c] {
        assert!(guard.name().contains(name.as_str()));
    }
    assert_eq!(guard.name(), lock.name());
    assert!(guard.is_valid() && guard.valid_until() > Instant::now() + ms(30_000));
    assert_eq!((guard.hold_count(), lock.hold_count()), (1, 1));
    assert!(lock.is_locked().unwrap() && lock.remaining_lease().unwrap() > Some(ms(50_000)));
    let others = [open(&here.url()), open(&there.url())];
    assert!(others[0].reentrant_lock(c).try_lock().unwrap().is_none());
    assert!(others[1].fenced_lock(b).try_lock().unwrap().is_none());
    guard.unlock().unwrap();
    assert_eq!((here.dbsize(), there.dbsize()), (0, 0));
    // A forced release takes every member from its holder.
    assert!(!lock.force_unlock().unwrap());
    let guard = lock.lock().unwrap();
    assert!(lock.force_unlock().unwrap());
    for server in [&here, &there] {
        assert!(server.keys_but_requests().is_empty());
    }
    assert!(!guard.is_valid() && guard.hold_count() == 0);
    assert!(guard.unlock().is_err());
}

timed!(a_forced_release_that_freed_some_members_is_not_repeated);
fn a_forced_release_that_freed_some_members_is_not_repeated() {
    let mut servers = [(); 2].map(|()| Server::start());
    let clients = servers.each_ref().map(|server| open(&server.url()));
    let name = unique("forced");
    let lock = one_each(&clients, &name);
    let mut freed = [0, 1].map(|dead| {
        let guard = lock.lock().unwrap();
        servers[dead].kill();
        // From here the client knows that there is no connection, and sends nothing to that server.
        let alone = clients[dead].reentrant_lock(&name).command_timeout(ms(300));
        assert!(alone.is_locked().unwrap_err().is_retryable());
        let err = lock.clone().command_timeout(ms(300)).force_unlock();
        let err = err.unwrap_err();
        let is_freed = !servers[1 - dead].exists(&name);
        assert_eq!(err.is_retryable(), !is_freed, "{err}");
        drop(guard);
        servers[dead].restart();
        is_freed
    });
    // The ids of the clients decide which member comes first.
    freed.sort_unstable();
    assert_eq!(freed, [false, true]);
}

timed!(settings_are_those_of_every_member);
fn settings_are_those_of_every_member() {
    let [(here, one), (there, two)] = some();
    let name = unique("set");
    let lock = one_each([&one, &two], &name);
    let guard = lock.clone().fixed_lease(ms(600)).lock().unwrap();
    for server in [&here, &there] {
        assert!((1..=600).contains(&server.pttl(&name)));
    }
    let loss = guard.lost().recv_timeout(LONG).unwrap();
    assert_eq!(loss.reason, LossReason::Expired);
    assert!(guard.unlock().is_err());
    let guard = lock.clone().max_hold(ms(50)).lock().unwrap();
    let loss = guard.lost().recv_timeout(LONG).unwrap();
    assert_eq!(loss.reason, LossReason::MaxHold);
    drop(guard);
    left(&here, &[]);
    left(&there, &[]);
    config_fault(&lock.clone().fixed_lease(Duration::ZERO).lock());
    config_fault(&lock.fixed_lease(ms(300)).max_hold(ms(300)).try_lock());
}

#[test]
fn what_cannot_be_is_refused_before_anything_is_sent() {
    let (here, there) = (Server::start(), Server::start());
    let urls = [here.url(), here.url(), there.url()];
    let [one, same, two] = urls.map(|url| open(&url));
    let name = &unique("same");
    let asked = [&here, &there].map(Server::command_total);
    let cannot = [
        MultiLock::new(Vec::new()),
        MultiLock::new(vec![
            Box::new(one.reentrant_lock(name)),
            Box::new(one.fair_lock(name)),
        ]),
        MultiLock::new(vec![
            Box::new(two.spin_lock("other")),
            Box::new(one.reentrant_lock(name)),
            Box::new(one.mutex(name)),
        ]),
        MultiLock::new(vec![
            Box::new(one.fenced_lock(name)),
            Box::new(two.mutex(name)),
            Box::new(same.fenced_lock(name)),
        ]),
        MultiLock::new(vec![
            Box::new(one.mutex(name)),
            Box::new(one.mutex(name).fixed_lease(LONG)),
        ]),
        MultiLock::new(vec![
            Box::new(one.mutex(name).max_hold(LONG)),
            Box::new(one.mutex(name)),
        ]),
        MultiLock::new(vec![
            Box::new(one.mutex(name).cancel_on(&CancelToken::new())),
            Box::new(one.mutex(name).cancel_on(&CancelToken::new())),
        ]),
        MultiLock::new(vec![
            Box::new(one.mutex(name).command_timeout(LONG)),
            Box::new(one.mutex(name)),
        ]),
    ];
    for lock in &cannot {
        for verdict in verdicts(lock) {
            config_fault(&verdict);
        }
        assert_eq!(lock.hold_count(), 0);
        // Settings that are added later do not make it valid.
        config_fault(&lock.clone().fixed_lease(LONG).lock());
    }
    let unnamed = MultiLock::new(vec![Box::new(two.mutex(name)), Box::new(one.mutex(""))]);
    for verdict in [
        unnamed.lock().map(drop),
        unnamed.try_lock().map(drop),
        unnamed.try_lock_for(LONG).map(drop),
    ] {
        let refused = matches!(verdict, Err(Error::InvalidName { .. }));
        assert!(refused, "{verdict:?}");
    }
    for client in [&one, &same, &two] {
        assert_eq!(client.stats().commands, 0);
    }
    assert_eq!([&here, &there].map(Server::command_total), asked);
}

#[test]
fn the_same_lock_twice_is_one_and_other_keys_are_others() {
    let [(here, one), (there, two)] = some();
    let name = &unique("same");
    let twice = MultiLock::new(vec![
        Box::new(one.mutex(name)),
        Box::new(two.mutex(name)),
        Box::new(one.mutex(name)),
        Box::new(one.clone().mutex(name)),
    ]);
    let guard = twice.lock().unwrap();
    assert_eq!(guard.owner().split(", ").count(), 2);
    assert_eq!(here.ask::<u64>(&["HLEN", name]), 1);
    guard.unlock().unwrap();
    // Other prefixes and other databases make other keys.
    let prefixed = Client::open(Config::new(here.url()).key_prefix("app:")).unwrap();
    let second = Client::open(format!("{}1", here.url())).unwrap();
    let apart = MultiLock::new(vec![
        Box::new(one.mutex(name)),
        Box::new(prefixed.mutex(name)),
        Box::new(second.fair_lock(name)),
    ]);
    let guard = apart.lock().unwrap();
    left(&here, &[name, &format!("app:{name}")]);
    guard.unlock().unwrap();
    let clash = MultiLock::new(vec![
        Box::new(one.mutex("app:x")),
        Box::new(prefixed.mutex("x")),
    ]);
    config_fault(&clash.try_lock());
    left(&here, &[]);
    left(&there, &[]);
}

#[test]
fn a_closed_client_is_noticed_before_anything_is_sent() {
    let [(here, one), (_, two)] = some();
    let name = unique("closed");
    let lock = one_each([&one, &two], &name);
    two.close(LONG).unwrap();
    let commands = one.stats().commands;
    for verdict in [
        lock.lock().map(drop),
        lock.try_lock().map(drop),
        lock.try_lock_for(LONG).map(drop),
    ] {
        assert!(matches!(verdict, Err(Error::Closed)), "{verdict:?}");
    }
    assert_eq!(one.stats().commands, commands);
    left(&here, &[]);
}

#[test]
fn closing_one_client_ends_a_hold_of_several() {
    let [(here, one), (there, two)] = some();
    let name = unique("closed");
    let lock = one_each([&one, &two], &name);
    let guard = lock.lock().unwrap();
    two.close(LONG).unwrap();
    assert!(!guard.is_valid());
    let loss = guard.lost().recv_timeout(LONG).unwrap();
    assert_eq!(loss.reason, LossReason::Closed);
    drop(guard);
    left(&here, &[]);
    left(&there, &[]);
}

#[test]
fn closing_the_client_of_the_member_that_is_waited_for_ends_the_wait() {
    let [(here, one), (there, two)] = some();
    let name = unique("closed");
    let other = open(&here.url());
    let busy = other.mutex(&name).lock().unwrap();
    let ended = scoped(|scope| {
        let lock = one_each([&one, &two], &name);
        let waits = scope.spawn(move || lock.try_lock_for(LONG).map(drop));
        subscribed(&here, 1);
        one.close(LONG).unwrap();
        waits.join().unwrap()
    });
    assert!(matches!(ended, Err(Error::Closed)), "{ended:?}");
    drop(busy);
    left(&here, &[]);
    left(&there, &[]);
}

// ---------------------------------------------------------------------------------------------------------------------
// Several servers at the same time
// ---------------------------------------------------------------------------------------------------------------------

timed!(servers_are_asked_at_the_same_time);
fn servers_are_asked_at_the_same_time() {
    const DELAY: Duration = ms(200);
    let servers = [(); 3].map(|()| Server::start());
    let proxies = servers.each_ref().map(|server| Proxy::start(server.addr()));
    let clients = proxies.each_ref().map(|proxy| open(&proxy.url()));
    let lock = one_each(&clients, &unique("delayed"));
    lock.lock().unwrap().unlock().unwrap();
    for proxy in &proxies {
        proxy.set(Target::Link, Mode::Delay(DELAY));
    }
    let begun = Instant::now();
    let guard = lock.lock().unwrap();
    let locked = begun.elapsed();
    guard.unlock().unwrap();
    let unlocked = begun.elapsed() - locked;
    for took in [locked, unlocked] {
        assert!(took >= DELAY && took < DELAY * 5 / 2, "{took:?}");
    }
    for server in &servers {
        assert_eq!(server.dbsize(), 0);
    }
}

timed!(a_frozen_server_costs_the_time_that_was_given_and_the_others_are_free_again);
fn a_frozen_server_costs_the_time_that_was_given_and_the_others_are_free_again() {
    let servers: [_; 3] = some();
    let names = ["a", "b", "c"].map(unique);
    let members = servers.iter().zip(&names);
    let lock = MultiLock::new(
        members
            .map(|((_, client), name)| Box::new(client.mutex(name)) as Box<dyn Lock>)
            .collect(),
    );
    // Each server is frozen once.
    for (frozen, (ill, _)) in servers.iter().enumerate() {
        let asked = servers
            .each_ref()
            .map(|(server, _)| server.calls("evalsha"));
        ill.freeze();
        let limit = ms(80);
        let answer = in_time("no answer", limit, || lock.try_lock_for(limit));
        assert!(matches!(answer, Ok(None)), "{answer:?}");
        for (n, (server, _)) in servers.iter().enumerate() {
            if n != frozen {
                assert!(server.calls("evalsha") > asked[n]);
                left(server, &[]);
            }
        }
        ill.thaw();
        eventually("it has executed the request", || {
            ill.calls("evalsha") > asked[frozen]
        });
        left(ill, &[]);
        assert!(lock.try_lock_for(LONG).unwrap().is_some());
    }
}

// Without that, each queued thread would find the outage out again, and take a command timeout of its own.
timed!(threads_queued_behind_a_multi_lock_that_gets_no_reply_end_with_it);
fn threads_queued_behind_a_multi_lock_that_gets_no_reply_end_with_it() {
    const PATIENCE: Duration = ms(1_000);
    let server = Server::start();
    let config = Config::new(server.url()).command_timeout(PATIENCE);
    let client = Client::open(config).unwrap();
    let names = ["a", "b"].map(unique);
    let both = client.multi_lock(&names);
    drop(both.lock().unwrap());
    server.freeze();
    let mut crew = Crew::new();
    let frozen = Instant::now();
    crew.spawn(move || assert!(both.lock().is_err()));
    crew.all_parked();
    for name in &names {
        let lock = client.mutex(name);
        crew.spawn(move || {
            assert!(lock.lock().is_err());
            let took = frozen.elapsed();
            assert!(took < loosely(PATIENCE * 3 / 2), "{took:?}");
        });
    }
    crew.join();
    server.thaw();
}

timed!(two_frozen_servers_cost_one_command_timeout);
fn two_frozen_servers_cost_one_command_timeout() {
    let servers = [(); 3].map(|()| Server::start());
    let clients = servers.each_ref().map(|server| {
        let config = Config::new(server.url()).lease(LONG);
        Client::open(config.command_timeout(ms(600)).connect_timeout(ms(600))).unwrap()
    });
    let names = ["a", "b", "c"].map(unique);
    let members = clients.iter().zip(&names);
    let lock = MultiLock::new(
        members
            .map(|(client, name)| Box::new(client.mutex(name)) as Box<dyn Lock>)
            .collect(),
    );
    lock.lock().unwrap().unlock().unwrap();
    servers[0].freeze();
    servers[2].freeze();
    let answer = in_time("no answer", ms(600), || lock.try_lock());
    assert!(
        matches!(&answer, Err(err) if err.is_retryable()),
        "{answer:?}"
    );
    let mut received = failed(answer);
    received.sort();
    assert_eq!(received, [names[0].clone(), names[2].clone()]);
    // The reply of the second server arrived in time, so its connection stays open.
    assert_eq!(clients[1].stats().reconnects, 0);
    left(&servers[1], &[]);
    servers[0].thaw();
    servers[2].thaw();
    let guard = lock.try_lock_for(LONG).unwrap().unwrap();
    servers[0].freeze();
    servers[2].freeze();
    let answer = in_time("no answer", ms(600), || guard.unlock());
    assert!(
        matches!(&answer, Err(err) if !err.is_retryable()),
        "{answer:?}"
    );
    assert_eq!(failed(answer).len(), 2);
    servers[0].thaw();
    servers[2].thaw();
    for server in &servers {
        left(server, &[]);
    }
}

timed!(dead_members_are_told_by_their_names_and_the_others_are_free_again);
fn dead_members_are_told_by_their_names_and_the_others_are_free_again() {
    let mut servers = [(); 3].map(|()| Server::start());
    let clients = servers.each_ref().map(|server| {
        let config = Config::new(server.url()).command_timeout(RESPONSE);
        Client::open(config.connect_timeout(RESPONSE)).unwrap()
    });
    let names = ["a", "b", "c"].map(unique);
    let members = clients.iter().zip(&names);
    let lock = MultiLock::new(
        members
            .map(|(client, name)| Box::new(client.reentrant_lock(name)) as Box<dyn Lock>)
            .collect(),
    );
    lock.lock().unwrap().unlock().unwrap();
    servers[1].kill();
    let err = lock.lock().unwrap_err();
    assert!(err.to_string().contains(&names[1]), "{err}");
    assert_eq!(failed::<()>(Err(err)), [names[1].clone()]);
    servers[0].kill();
    let mut received = failed(lock.try_lock());
    received.sort();
    assert_eq!(received, names[..2]);
    let mut received = failed(in_time("dead members", ms(150), || {
        lock.try_lock_for(ms(150))
    }));
    received.sort();
    assert_eq!(received, names[..2]);
    left(&servers[2], &[]);
    servers[0].restart();
    servers[1].restart();
    let guard = lock.try_lock_for(LONG).unwrap().unwrap();
    drop(guard);
    for server in &servers {
        left(server, &[]);
    }
}

#[test]
fn what_is_no_lock_is_told_by_its_name() {
    let [(here, one), (there, two)] = some();
    let [a, b] = &["a", "b"].map(unique);
    there.cli(&["SET", b, "text"]);
    let lock = MultiLock::new(vec![Box::new(one.mutex(a)), Box::new(two.mutex(b))]);
    for verdict in [
        lock.lock().map(drop),
        lock.try_lock().map(drop),
        lock.try_lock_for(LONG).map(drop),
    ] {
        let Err(Error::Members { failures, .. }) = verdict else {
            panic!("{verdict:?}");
        };
        let received =
            matches!(&*failures, [(at, Error::WrongType { name, .. })] if at == b && name == b);
        assert!(received, "{failures:?}");
        left(&here, &[]);
    }
    left(&there, &[b]);
}

// ---------------------------------------------------------------------------------------------------------------------
// Waiting
// ---------------------------------------------------------------------------------------------------------------------

timed!(while_it_waits_for_one_member_it_holds_none);
fn while_it_waits_for_one_member_it_holds_none() {
    let servers: [_; 3] = some();
    let others = servers.each_ref().map(|(server, _)| open(&server.url()));
    let name = unique("waits");
    // The servers that are busy, in the order in which they become free.
    for order in [&[0][..], &[2], &[1, 0], &[0, 2], &[2, 1, 0]] {
        let mut held: Vec<_> = order
            .iter()
            .map(|&n| (n, others[n].mutex(&name).lock().unwrap()))
            .collect();
        let lock = one_each(servers.iter().map(|(_, client)| client), &name);
        let (sender, received) = bounded(1);
        let mut crew = Crew::new();
        crew.spawn(move || {
            let guard = lock.lock().unwrap();
            sender.send(()).unwrap();
            guard.unlock().unwrap();
        });
        while !held.is_empty() {
            eventually("it listens to one", || {
                let listens = |server: &Server| {
                    let clients = server.clients_named("subscriber");
                    clients
                        .iter()
                        .map(|client| client.subscriptions)
                        .sum::<u64>()
                };
                servers
                    .iter()
                    .map(|(server, _)| listens(server))
                    .sum::<u64>()
                    == 1
            });
            crew.all_parked();
            assert!(received.is_empty());
            for (n, (server, _)) in servers.iter().enumerate() {
                let busy = held.iter().any(|(at, _)| *at == n);
                assert_eq!(server.exists(&name), busy, "{n} of {order:?}");
            }
            drop(held.remove(0));
        }
        assert_eq!(
            received.recv_timeout(loosely(BY_MESSAGE)),
            Ok(()),
            "{order:?}"
        );
        crew.join();
        for (server, _) in &servers {
            left(server, &[]);
            subscribed(server, 0);
        }
    }
}

timed!(cancelling_ends_a_wait_and_a_question_and_nothing_is_left);
fn cancelling_ends_a_wait_and_a_question_and_nothing_is_left() {
    let servers = [(); 2].map(|()| Server::start());
    let proxies = servers.each_ref().map(|server| Proxy::start(server.addr()));
    let clients = proxies.each_ref().map(|proxy| open(&proxy.url()));
    let name = unique("cancelled");
    one_each(&clients, &name).lock().unwrap().unlock().unwrap();
    for waits in [true, false] {
        let token = CancelToken::new();
        let lock = one_each(&clients, &name).cancel_on(&token);
        if waits {
            hold_by_stranger(&servers[1], &name, 60_000);
        } else {
            proxies[1].set(Target::Link, Mode::SwallowReplies);
        }
        let ended = scoped(|scope| {
            let ends = scope.spawn(|| lock.try_lock_for(LONG).map(drop));
            if waits {
                subscribed(&servers[1], 1);
            } else {
                eventually("both have granted it", || {
                    servers.iter().all(|server| server.exists(&name))
                });
            }
            let begun = Instant::now();
            token.cancel();
            let ended = ends.join().unwrap();
            assert!(begun.elapsed() < ms(64) + loosely(SLACK));
            ended
        });
        assert!(matches!(ended, Err(Error::Cancelled)), "{ended:?}");
        assert!(matches!(lock.lock(), Err(Error::Cancelled)));
        left(&servers[0], &[]);
        servers[1].cli(&["HDEL", &name, crate::support::STRANGER]);
        proxies[1].pass();
        left(&servers[1], &[]);
    }
}

timed!(short_waits_and_single_attempts_take_no_more_than_they_may);
fn short_waits_and_single_attempts_take_no_more_than_they_may() {
    let [(here, one), (there, two)] = some();
    let name = unique("short");
    for busy in [&here, &there] {
        hold_by_stranger(busy, &name, 60_000);
        let lock = one_each([&one, &two], &name);
        assert!(lock.try_lock().unwrap().is_none());
        assert!(lock.try_lock_for(Duration::ZERO).unwrap().is_none());
        assert!(lock.try_lock_until(Instant::now()).unwrap().is_none());
        let (limit, begun) = (ms(200), Instant::now());
        let answer = in_time("a short wait", limit, || lock.try_lock_for(limit));
        assert!(answer.unwrap().is_none());
        assert!(begun.elapsed() >= limit);
        // Limits that are too short for a reply, or for a pause after it.
        for limit in [Duration::from_nanos(1), ms(1), ms(2)] {
            let answer = in_time("hardly a wait", limit, || lock.try_lock_for(limit));
            let fair = matches!(answer, Ok(None) | Err(Error::Members { .. }));
            assert!(fair, "{answer:?}");
        }
        left(busy, &[&name]);
        busy.cli(&["DEL", &name]);
        left(&here, &[]);
        left(&there, &[]);
        assert!(lock.try_lock_for(Duration::ZERO).unwrap().is_some());
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Holding
// ---------------------------------------------------------------------------------------------------------------------

#[test]
fn a_thread_may_take_the_same_set_again_unless_a_member_is_a_mutex() {
    let [(here, one), (there, two)] = some();
    let [a, b] = &["a", "b"].map(unique);
    let lock = MultiLock::new(vec![
        Box::new(one.reentrant_lock(a)),
        Box::new(two.fair_lock(b)),
    ]);
    let guard = lock.lock().unwrap();
    let commands = (one.stats().commands, two.stats().commands);
    let again = lock.try_lock().unwrap().unwrap();
    assert_eq!((again.hold_count(), lock.hold_count()), (2, 2));
    assert_eq!(again.owner(), guard.owner());
    assert_eq!((one.stats().commands, two.stats().commands), commands);
    drop(guard);
    assert_eq!(again.hold_count(), 1);
    left(&here, &[a]);
    drop(again);
    left(&here, &[]);
    left(&there, &[]);
    // Wherever the mutex stands among the members, the other member keeps its count.
    for first in [true, false] {
        let lock: MultiLock = if first {
            MultiLock::new(vec![
                Box::new(one.mutex(a)),
                Box::new(two.reentrant_lock(b)),
            ])
        } else {
            MultiLock::new(vec![
                Box::new(one.reentrant_lock(a)),
                Box::new(two.mutex(b)),
            ])
        };
        let guard = lock.lock().unwrap();
        for verdict in [
            lock.lock().map(drop),
            lock.try_lock().map(drop),
            lock.try_lock_for(LONG).map(drop),
        ] {
            let received = matches!(verdict, Err(Error::WouldDeadlock { .. }));
            assert!(received, "{verdict:?}");
        }
        let (plain, member) = if first { (&two, b) } else { (&one, a) };
        assert_eq!(plain.reentrant_lock(member).hold_count(), 1);
        assert!(guard.is_valid() && guard.hold_count() == 1);
        guard.unlock().unwrap();
        assert_eq!((here.dbsize(), there.dbsize()), (0, 0));
        // A member that is held on its own fails in the same way, and the other one is released.
        let alone = two.mutex(b).lock().unwrap();
        if !first {
            assert!(matches!(lock.lock(), Err(Error::WouldDeadlock { .. })));
        }
        left(&here, &[]);
        drop(alone);
    }
}

timed!(losing_one_member_is_losing_all);
fn losing_one_member_is_losing_all() {
    const SHORT: Duration = ms(1_500);
    let servers = [(); 2].map(|()| Server::start());
    let clients = servers
        .each_ref()
        .map(|server| Client::open(Config::new(server.url()).lease(SHORT)).unwrap());
    let [a, b, c] = &["a", "b", "c"].map(unique);
    let set = |name: &str| {
        MultiLock::new(vec![
            Box::new(clients[0].mutex(name)),
            Box::new(clients[1].fair_lock(name)),
        ])
    };
    let [gone, taken, twice] = [a, b, c].map(|name| set(name).lock().unwrap());
    servers[1].cli(&["DEL", a]);
    servers[0].cli(&["DEL", b]);
    hold_by_stranger(&servers[0], b, 60_000);
    servers[0].cli(&["DEL", c]);
    for (guard, reason) in [
        (&gone, LossReason::Forced),
        (&taken, LossReason::TakenOver),
        (&twice, LossReason::Forced),
    ] {
        let loss = guard.lost().recv_timeout(LONG).unwrap();
        assert_eq!(loss.reason, reason);
        assert!(guard.name().starts_with(&loss.name) && guard.owner().contains(&loss.owner));
        assert!(!guard.is_valid() && guard.hold_count() == 0);
    }
    // When the third guard also loses its other member, the loss is not reported again.
    assert!(clients[1].fair_lock(c).force_unlock().unwrap());
    assert!(twice.lost().try_recv().is_err());
    // The members that were not lost are released together with the guard.
    assert!(servers[0].exists(a) && servers[1].exists(b));
    let unlocked = gone.unlock();
    let received =
        matches!(&unlocked, Err(Error::Lost { name, reason: LossReason::Forced, .. }) if name == a);
    assert!(received, "{unlocked:?}");
    drop(taken);
    let unlocked = twice.unlock();
    let Err(Error::Members { failures, .. }) = unlocked else {
        panic!("{unlocked:?}");
    };
    assert_eq!(failures.len(), 2);
    left(&servers[0], &[b]);
    left(&servers[1], &[]);
    // A caller that asks for the receiver after the loss is notified at once.
    let guard = set(a).lock().unwrap();
    assert!(clients[1].fair_lock(a).force_unlock().unwrap());
    assert!(guard.lost().try_recv().is_ok());
    assert!(guard.lost().try_recv().is_err());
}

#[test]
fn a_panic_gives_every_member_back() {
    let [(here, one), (there, two)] = some();
    let lock = one_each([&one, &two], &unique("panic"));
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _guard = lock.lock().unwrap();
        std::panic::resume_unwind(Box::new("on purpose"));
    }));
    assert!(panicked.is_err());
    left(&here, &[]);
    left(&there, &[]);
    assert!(elsewhere(|| lock.try_lock().unwrap().is_some()));
}

// ---------------------------------------------------------------------------------------------------------------------
// Many
// ---------------------------------------------------------------------------------------------------------------------

#[test]
fn sets_that_overlap_on_two_servers_never_deadlock() {
    const THREADS: usize = 8;
    const LOCKS: usize = 6;
    let servers = [(); 2].map(|()| Server::start());
    let names: Vec<_> = (0..LOCKS / 2).map(|_| unique("n")).collect();
    let inside: Vec<_> = (0..LOCKS).map(|_| AtomicBool::new(false)).collect();
    // Two threads share each pair of clients.
    let clients: Vec<_> = (0..THREADS / 2)
        .map(|_| servers.each_ref().map(|server| open(&server.url())))
        .collect();
    let until = Instant::now() + ms(1_200);
    let rounds: Vec<_> = (0..THREADS).map(|_| AtomicU64::new(0)).collect();
    scoped(|scope| {
        for worker in 0..THREADS {
            let (clients, names, inside) = (&clients[worker / 2], &names, &inside);
            let rounds = &rounds[worker];
            scope.spawn(move || {
                let mut dice = crate::support::Dice::new(worker as u64 + 1);
                while Instant::now() < until {
                    let set = dice.some_of(LOCKS, 4);
                    let member = |&n: &usize| -> Box<dyn Lock> {
                        let (client, name) = (&clients[n % 2], &names[n / 2]);
                        match (n + worker) % 3 {
                            0 => Box::new(client.mutex(name)),
                            1 => Box::new(client.reentrant_lock(name)),
                            _ => Box::new(client.fenced_lock(name)),
                        }
                    };
                    let lock = MultiLock::new(set.iter().map(member).collect());
                    let guard = lock.try_lock_for(LONG).unwrap().expect("progress");
                    for &n in &set {
                        assert!(!inside[n].swap(true, Ordering::SeqCst), "two hold {n}");
                    }
                    thread::yield_now();
                    for &n in &set {
                        inside[n].store(false, Ordering::SeqCst);
                    }
                    drop(guard);
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    let rounds: Vec<_> = rounds.into_iter().map(AtomicU64::into_inner).collect();
    assert!(rounds.iter().all(|&rounds| rounds > 0), "{rounds:?}");
    for server in &servers {
        eventually("nothing is left but tokens", || {
            let keys = server.keys();
            keys.iter()
                .all(|key| key.starts_with("redisson_lock_token:"))
        });
    }
}

/// Tries all locks once at the same moment, and releases none before all have tried; returns how many were acquired.
fn try_together(locks: &[MultiLock]) -> usize {
    let (start, end) = (Barrier::new(locks.len()), Barrier::new(locks.len()));
    scoped(|scope| {
        let tries = locks.iter().map(|lock| {
            scope.spawn(|| {
                start.wait();
                let guard = lock.try_lock().unwrap();
                end.wait();
                guard.is_some()
            })
        });
        let tries: Vec<_> = tries.collect();
        let won = tries.into_iter().map(|one| one.join().unwrap());
        won.filter(|won| *won).count()
    })
}

#[test]
fn of_many_who_try_free_locks_once_somebody_always_has_them() {
    const THREADS: usize = 10;
    const ROUNDS: usize = 25;
    let servers = [(); 2].map(|()| Server::start());
    let one = servers.each_ref().map(|server| open(&server.url()));
    let own_clients: Vec<_> = (0..THREADS)
        .map(|_| servers.each_ref().map(|server| open(&server.url())))
        .collect();
    for client in own_clients.iter().flatten() {
        client
            .mutex(unique("warm"))
            .lock()
            .unwrap()
            .unlock()
            .unwrap();
    }
    for round in 0..ROUNDS {
        let names = ["a", "b", "c"].map(unique);
        let set = |clients: &[Client; 2], places: &[usize]| {
            let member = |&place: &usize| {
                Box::new(clients[place % 2].reentrant_lock(&names[place])) as Box<dyn Lock>
            };
            MultiLock::new(places.iter().map(member).collect())
        };
        // All threads use one client, then each its own.
        let same = vec![set(&one, &[0, 1, 2]); THREADS];
        assert_eq!(try_together(&same), 1, "one client, round {round}");
        let same: Vec<_> = own_clients
            .iter()
            .map(|clients| set(clients, &[0, 1, 2]))
            .collect();
        assert_eq!(try_together(&same), 1, "round {round}");
        // Any two of these sets overlap.
        let overlapping: Vec<_> = own_clients
            .iter()
            .enumerate()
            .map(|(n, clients)| set(clients, [&[0, 1, 2][..], &[2, 1], &[2, 0], &[0, 1]][n % 4]))
            .collect();
        assert_eq!(try_together(&overlapping), 1, "overlapping, round {round}");
    }
    for server in &servers {
        left(server, &[]);
    }
}

#[test]
fn a_try_asks_again_only_for_a_later_member_that_was_taken_a_moment_ago() {
    let [(here, one), (there, two)] = some();
    let name = unique("busy");
    let asks = |busy: &Server, lease_left: u64| {
        hold_by_stranger(busy, &name, lease_left);
        let calls_before = busy.calls("evalsha");
        // A new set has not been refused yet, so it tries all members.
        assert!(one_each([&one, &two], &name).try_lock().unwrap().is_none());
        let asks = busy.calls("evalsha") - calls_before;
        busy.cli(&["DEL", &name]);
        eventually("the other is released", || {
            here.dbsize() + there.dbsize() == 0
        });
        asks
    };
    // Half of the holder's lease is over, so it did not take the lock just now.
    assert_eq!([&here, &there].map(|busy| asks(busy, 30_000)), [1, 1]);
    // With a full lease the busy member looks newly taken. If it is the later one in the order, its holder may be a
    // rival that still lacks the first and gives way soon, so it is asked for again. If it is the first, no rival has
    // to give way. On a busy machine the lease may look older.
    eventually("it is asked again", || {
        let mut asks = [&here, &there].map(|busy| asks(busy, 60_000));
        asks.sort_unstable();
        assert_eq!(asks[0], 1);
        asks[1] > 1
    });
}

timed!(after_its_turn_a_set_lets_those_go_first_who_wait_for_a_member);
fn after_its_turn_a_set_lets_those_go_first_who_wait_for_a_member() {
    const TURNS: usize = 12;
    let servers: [_; 2] = some();
    // A tenure of zero makes each hold a turn.
    let our_clients = servers.each_ref().map(|(server, _)| {
        Client::open(Config::new(server.url()).lease(LONG).tenure(Duration::ZERO)).unwrap()
    });
    let name = unique("turns");
    let set = one_each(&our_clients, &name);
    for (n, (_, other)) in servers.iter().enumerate() {
        let mut first = 0;
        for _ in 0..TURNS {
            let guard = set.lock().unwrap();
            let (sender, received) = bounded(1);
            let others = other.reentrant_lock(&name);
            let mut crew = Crew::new();
            crew.spawn(move || {
                let guard = others.lock().unwrap();
                sender.send(()).unwrap();
                guard.unlock().unwrap();
            });
            eventually("it waits", || other.stats().subscriptions == 1);
            crew.all_parked();
            drop(guard);
            drop(set.lock().unwrap());
            first += usize::from(!received.is_empty());
            crew.join();
        }
        let held_back = our_clients[n].stats().yields;
        assert!(held_back >= TURNS as u64 / 2, "{held_back}");
        assert!(first > 0);
    }
}

// Before members of the same name are locked, the client must know whether they are on different servers. That question
// takes no extra time, and can be cancelled.
timed!(a_server_that_does_not_say_who_it_is_is_waited_for_no_longer_than_a_lock);
fn a_server_that_does_not_say_who_it_is_is_waited_for_no_longer_than_a_lock() {
    let servers = [Server::start(), Server::start()];
    let proxy = Proxy::start(servers[1].addr());
    let response = ms(1_000);
    let open = |url: String| Client::open(Config::new(url).command_timeout(response)).unwrap();
    let here = open(servers[0].url());
    let there = open(proxy.url());
    proxy.set(Target::Link, Mode::SwallowReplies);
    let names = ["a", "b", "c"];
    let members = names.iter().flat_map(|name| {
        [&here, &there].map(|client| Box::new(client.mutex(name)) as Box<dyn Lock>)
    });
    let lock = MultiLock::new(members.collect());
    let failed = failed(in_time("try_lock", response, || lock.try_lock()));
    assert_eq!(failed, names, "the members of the silent server");

    proxy.pass();
    let there = Client::open(Config::new(proxy.url()).command_timeout(LONG)).unwrap();
    proxy.set(Target::Link, Mode::SwallowReplies);
    let token = CancelToken::new();
    let lock = one_each([&here, &there], &unique("cancelled")).cancel_on(&token);
    let dropped = proxy.dropped();
    scoped(|scope| {
        scope.spawn(|| {
            eventually("it is asked", || proxy.dropped() > dropped);
            token.cancel();
        });
        let cancelled = in_time("lock", ms(1_000), || lock.lock());
        assert!(matches!(cancelled, Err(Error::Cancelled)), "{cancelled:?}");
    });
}
