//! What the masters of a `RedLock` keep of one hold: under which numbers, what becomes of it when some of them forget, and
//! how others who want the lock stay out of the way.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use redlatch::{Client, Config, Error, LossReason, RedLockGuard};

use crate::support::quorum;
use crate::support::quorum::{
    TAKE_OVER, all_keep, confirmed_by_all, kept_for, masters, nothing_is_left, open_with, red,
};
use crate::support::{
    LONG, Mode, Proxy, STRANGER, Server, Target, eventually, logs, ms, timed, unique,
};

/// A third of it is longer than any test waits: nothing is found out by a renewal that was due.
const LEASE: Duration = ms(60_000);

fn open(servers: &[Server]) -> Vec<Client> {
    open_with(servers, |config| config.lease(LEASE))
}

/// Clients of all servers, those at `through` behind proxies.
fn open_through(
    servers: &[Server],
    through: &[usize],
    set: impl Fn(Config) -> Config,
) -> (Vec<Client>, Vec<Proxy>) {
    let mut proxies = Vec::new();
    let clients = servers.iter().enumerate().map(|(node, server)| {
        let url = if through.contains(&node) {
            proxies.push(Proxy::start(server.addr()));
            proxies[proxies.len() - 1].url()
        } else {
            server.url()
        };
        Client::open(set(Config::new(url))).unwrap()
    });
    (clients.collect(), proxies)
}

fn a_stranger_has(servers: &[Server], name: &str) {
    for server in servers {
        server.cli(&["HSET", name, STRANGER, "1"]);
    }
}

fn the_stranger_leaves(servers: &[Server], name: &str) {
    for server in servers {
        server.cli(&["HDEL", name, STRANGER]);
    }
}

/// Under which owner a server keeps `name`.
fn owner(server: &Server, name: &str) -> Option<String> {
    let owners: Vec<String> = server.ask(&["HKEYS", name]);
    assert!(owners.len() <= 1, "{owners:?}");
    owners.into_iter().next()
}

#[track_caller]
fn received(guard: &RedLockGuard, reason: LossReason) {
    let loss = guard.lost().recv_timeout(LONG).expect("told of the loss");
    assert_eq!(loss.reason, reason);
    assert!(!guard.is_valid());
}

// ---------------------------------------------------------------------------------------------------------------------
// Numbers
// ---------------------------------------------------------------------------------------------------------------------

// I2
timed!(a_part_that_is_taken_again_has_a_number_of_its_own_and_is_given_back_with_the_others);
fn a_part_that_is_taken_again_has_a_number_of_its_own_and_is_given_back_with_the_others() {
    let servers = masters(3);
    let clients = quorum::open(&servers);
    let name = unique("number");
    let guard = red(&clients, &name).lock().unwrap();
    let mut seen = vec![guard.owner().to_owned()];
    for _ in 0..2 {
        confirmed_by_all(&guard, &servers);
        servers[2].cli(&["DEL", &name]);
        eventually("it has it again", || owner(&servers[2], &name).is_some());
        let now = owner(&servers[2], &name).unwrap();
        assert!(!seen.contains(&now), "{now} was used before");
        seen.push(now);
    }
    for server in &servers[..2] {
        assert_eq!(owner(server, &name).as_deref(), Some(guard.owner()));
    }
    guard.unlock().unwrap();
    nothing_is_left(&servers);
}

// An undo that was the last word on a connection of the round may arrive at any time.
timed!(an_undo_that_arrives_late_takes_nothing_that_is_held);
fn an_undo_that_arrives_late_takes_nothing_that_is_held() {
    let servers = masters(3);
    for _ in 0..10 {
        let (clients, proxies) = open_through(&servers, &[1, 2], |config| {
            let config = config.lease(ms(10_000)).connect_timeout(ms(300));
            config.response_timeout(ms(900))
        });
        let [first, second] = &proxies[..] else {
            unreachable!("two of them")
        };
        let name = unique("undo");
        let lock = red(&clients, &name);
        // One is known to be away.
        first.set(Target::Link, Mode::Refuse);
        first.cut(Target::Link);
        lock.is_locked().unwrap();
        // What the other is sent arrives late, and a connection that is made meanwhile is of no use.
        second.stall_present(Target::Link);
        second.set(Target::All, Mode::BlackHole);
        let granted = thread::scope(|scope| {
            scope.spawn(|| {
                eventually("the connection is given up", || {
                    second.connections(Target::Link) == 0
                });
                first.pass();
            });
            lock.lock()
        });
        let Ok(guard) = granted else {
            // The machine was too busy to connect to the first in the time that the attempt had left.
            continue;
        };
        second.set(Target::All, Mode::Pass);
        all_keep(&guard, 3);
        let before = (owner(&servers[2], &name), servers[2].calls("hdel"));
        assert!(before.0.is_some());
        second.pass();
        eventually("the undo has arrived", || {
            servers[2].calls("hdel") > before.1
        });
        assert_eq!(owner(&servers[2], &name), before.0);
        assert!(guard.is_valid());
        guard.unlock().unwrap();
        return nothing_is_left(&servers);
    }
    panic!("it was never granted");
}

// The node keeps it under a number of which nobody knows: that may not stand in the way of the next.
timed!(a_part_whose_grant_was_not_heard_is_undone_and_taken_anew);
fn a_part_whose_grant_was_not_heard_is_undone_and_taken_anew() {
    let servers = masters(3);
    let (clients, proxies) = open_through(&servers, &[2], |config| {
        let config = config.lease(LEASE).connect_timeout(ms(1000));
        config.response_timeout(ms(600))
    });
    let proxy = &proxies[0];
    let name = unique("unheard");
    let lock = red(&clients, &name);
    proxy.set(Target::Link, Mode::Refuse);
    proxy.cut(Target::Link);
    lock.is_locked().unwrap();
    let guard = lock.lock().unwrap();
    assert_eq!(guard.nodes_held(), 2);
    let grant = proxy.swallow_reply_to(&name);
    proxy.set(Target::Link, Mode::Pass);
    eventually("it is granted", || servers[2].exists(&name));
    let unheard = owner(&servers[2], &name).unwrap();
    all_keep(&guard, 3);
    assert!(grant.fired());
    assert_ne!(owner(&servers[2], &name), Some(unheard));
    assert!(guard.is_valid() && guard.lost().is_empty());
    guard.unlock().unwrap();
    nothing_is_left(&servers);
}

// One more hold has to be confirmed by a majority; what is on its way may undo a number of which the grant was not heard.
timed!(a_number_that_may_be_undone_does_not_count_for_one_more_hold);
fn a_number_that_may_be_undone_does_not_count_for_one_more_hold() {
    let servers = masters(3);
    let (clients, proxies) = open_through(&servers, &[1, 2], |config| {
        config.lease(LEASE).response_timeout(ms(900))
    });
    let [second, third] = &proxies[..] else {
        unreachable!("two of them")
    };
    let name = unique("counts");
    let lock = red(&clients, &name).lease(LEASE);
    let grant = third.swallow_reply_to(&name);
    let guard = lock.lock().unwrap();
    eventually("it is granted", || servers[2].exists(&name));
    assert!(grant.fired());
    // The last words on that connection come late, and the next one is sound.
    third.stall_present(Target::Link);
    second.set(Target::All, Mode::Refuse);
    second.cut(Target::All);
    let until = guard.valid_until();
    let again = lock.lock();
    assert!(
        matches!(&again, Err(Error::NoQuorum { agreed: 1, .. })),
        "{again:?}"
    );
    assert_eq!((guard.valid_until(), guard.hold_count()), (until, 1));
    second.pass();
    third.pass();
    drop(guard);
    nothing_is_left(&servers);
}

// ---------------------------------------------------------------------------------------------------------------------
// Forgetful servers
// ---------------------------------------------------------------------------------------------------------------------

// M5: with no more than a majority, a node that has forgotten it is found out soon, and the hold is over.
timed!(a_bare_majority_of_which_one_forgets_is_lost_at_once_and_for_good);
fn a_bare_majority_of_which_one_forgets_is_lost_at_once_and_for_good() {
    let logs = logs();
    let servers = masters(5);
    let clients = open(&servers);
    for (fixed, reason) in [
        (false, LossReason::Forced),
        (false, LossReason::TakenOver),
        (true, LossReason::Forced),
    ] {
        let name = unique("bare");
        a_stranger_has(&servers[3..], &name);
        let lock = red(&clients, &name);
        let lock = if fixed { lock.lease(LEASE) } else { lock };
        let guard = lock.lock().unwrap();
        assert_eq!(guard.nodes_held(), 3);
        let asked: Vec<_> = servers.iter().map(|server| server.calls("hget")).collect();
        eventually("those that keep it are asked again and again", || {
            let mut both = servers[..3].iter().zip(&asked);
            both.all(|(server, before)| server.calls("hget") >= before + 3)
        });
        assert!(guard.is_valid() && guard.lost().is_empty());
        if reason == LossReason::Forced {
            servers[1].cli(&["DEL", &name]);
        } else {
            let warned = format!("`{name}` is held by no more than 3 of 5 nodes");
            eventually("it is logged", || {
                logs.count(log::Level::Warn, &warned) == 1
            });
            servers[1].cli(&["EVAL", TAKE_OVER, "1", &name, STRANGER]);
        }
        received(&guard, reason);
        assert_eq!(guard.nodes_held(), 0);
        let forgot = format!("node 1 of 5 has forgotten `{name}`");
        eventually("it is logged", || {
            logs.count(log::Level::Warn, &forgot) == 1
        });
        eventually("what the others keep is given back", || {
            kept_for(&servers, &name, guard.owner()).is_empty()
        });
        for server in &servers {
            server.cli(&["DEL", &name]);
        }
        // Nothing of it comes again, and it can be had again.
        drop(quorum::take(&lock));
        assert!(!guard.is_valid());
        assert!(matches!(guard.unlock(), Err(Error::Lost { .. })));
        nothing_is_left(&servers);
    }
}

// Each of them keeps it now, or is thought to; but others may have had three of them at the same time.
timed!(that_others_may_have_had_it_meanwhile_is_told_even_if_all_keep_it_again);
fn that_others_may_have_had_it_meanwhile_is_told_even_if_all_keep_it_again() {
    let servers = masters(5);
    let (clients, proxies) = open_through(&servers, &[2], |config| config.lease(LEASE));
    let watchdog = |mode| proxies[0].set(Target::Watchdog, mode);
    for unlocks in [false, true] {
        let name = unique("meanwhile");
        a_stranger_has(&servers[3..], &name);
        // Whether this one keeps it is not found out before that is wanted.
        watchdog(Mode::Stall);
        let guard = red(&clients, &name).lock().unwrap();
        servers[2].cli(&["DEL", &name]);
        // At this moment three of five are somebody else's, or anybody's.
        the_stranger_leaves(&servers[3..], &name);
        all_keep(&guard, 5);
        assert!(guard.is_valid() && guard.lost().is_empty());
        if unlocks {
            let lost = guard.unlock();
            let forced = matches!(
                &lost,
                Err(Error::Lost {
                    reason: LossReason::Forced,
                    ..
                })
            );
            assert!(forced, "{lost:?}");
            watchdog(Mode::Pass);
        } else {
            watchdog(Mode::Pass);
            received(&guard, LossReason::Forced);
        }
        nothing_is_left(&servers);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Those who wait
// ---------------------------------------------------------------------------------------------------------------------

timed!(whoever_waits_takes_no_part_of_what_others_have_and_tells_nobody_of_it);
fn whoever_waits_takes_no_part_of_what_others_have_and_tells_nobody_of_it() {
    let servers = masters(5);
    let clients = open(&servers);
    let name = unique("wait");
    a_stranger_has(&servers[..3], &name);
    let looks = || -> u64 { servers[3..].iter().map(|server| server.calls("pttl")).sum() };
    thread::scope(|scope| {
        let waiting = scope.spawn(|| drop(quorum::take(&red(&clients, &name))));
        // After the attempt, once it is subscribed, and when it has heard nothing for a while.
        eventually("it looks again", || looks() >= 6);
        for server in &servers[..3] {
            // Once to be refused, and nothing is given back that was not granted.
            assert_eq!((server.calls("hexists"), server.calls("hdel")), (1, 0));
        }
        for server in &servers[3..] {
            // Only the first attempt has not known better.
            assert_eq!((server.calls("hset"), server.calls("hdel")), (1, 1));
        }
        for server in &servers {
            assert_eq!(server.calls("publish"), 0);
        }
        the_stranger_leaves(&servers[..3], &name);
        waiting.join().unwrap();
    });
    nothing_is_left(&servers);
}

timed!(those_who_wait_leave_a_holder_what_it_lacks);
fn those_who_wait_leave_a_holder_what_it_lacks() {
    let servers = masters(5);
    let name = unique("lacks");
    let ours = open(&servers);
    a_stranger_has(&servers[3..], &name);
    let guard = red(&ours, &name).lock().unwrap();
    assert_eq!(guard.nodes_held(), 3);
    let theirs = [(); 3].map(|()| open(&servers));
    thread::scope(|scope| {
        for clients in &theirs {
            scope.spawn(|| drop(red(clients, &name).lock().unwrap()));
        }
        // The first was an attempt, and the second has undone that.
        let looked = |clients: &Vec<Client>| clients[3].stats().commands >= 4;
        eventually("all of them look again", || theirs.iter().all(looked));
        let taken = || [3, 4].map(|node: usize| servers[node].calls("hset"));
        let before = taken();
        the_stranger_leaves(&servers[3..], &name);
        all_keep(&guard, 5);
        assert_eq!(taken(), before.map(|calls| calls + 1), "by the holder");
        assert!(guard.is_valid() && guard.lost().is_empty());
        drop(guard);
    });
    nothing_is_left(&servers);
}

// Between looking and asking there is a round trip, and those who have it come back at once.
timed!(after_its_turn_a_process_lets_those_go_first_who_look_from_afar);
fn after_its_turn_a_process_lets_those_go_first_who_look_from_afar() {
    let servers = masters(3);
    let name = unique("afar");
    let (ours, our_way) = open_through(&servers, &[0, 1, 2], |config| config);
    let (theirs, their_way) = open_through(&servers, &[0, 1, 2], |config| config);
    for proxy in our_way.iter().chain(&their_way) {
        proxy.set(Target::Link, Mode::DelayBoth(ms(3)));
    }
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let lock = red(&theirs, &name);
            while !done.load(Ordering::SeqCst) {
                drop(lock.lock().unwrap());
            }
        });
        eventually("they have it all the time", || {
            servers[0].calls("hset") > 10
        });
        let lock = red(&ours, &name);
        let turn = |_| lock.try_lock_for(LONG).map(|guard| guard.is_some());
        let turns: Result<Vec<_>, _> = (0..3).map(turn).collect();
        done.store(true, Ordering::SeqCst);
        assert_eq!(turns.unwrap(), [true; 3]);
    });
    nothing_is_left(&servers);
    // Closing waits for a server that is out of reach.
    drop((ours, theirs));
}

// ---------------------------------------------------------------------------------------------------------------------
// Questions
// ---------------------------------------------------------------------------------------------------------------------

timed!(questions_wait_for_all_servers_that_are_away_at_the_same_time);
fn questions_wait_for_all_servers_that_are_away_at_the_same_time() {
    let servers = masters(5);
    let (clients, proxies) = open_through(&servers, &[1, 3], |config| config);
    let lock = red(&clients, &unique("away"));
    let asks: [&dyn Fn() -> redlatch::Result<()>; 3] = [
        &|| lock.is_locked().map(drop),
        &|| lock.remaining().map(drop),
        &|| lock.force_unlock().map(drop),
    ];
    for ask in asks {
        for proxy in &proxies {
            proxy.set(Target::All, Mode::BlackHole);
            proxy.cut(Target::All);
        }
        // With this it is known that the connections are gone.
        ask().unwrap();
        let (done, both) = (AtomicBool::new(false), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::SeqCst) {
                    let dialled = |proxy: &Proxy| proxy.connections(Target::All) > 0;
                    both.fetch_or(proxies.iter().all(dialled), Ordering::SeqCst);
                    thread::sleep(ms(2));
                }
            });
            ask().unwrap();
            done.store(true, Ordering::SeqCst);
        });
        assert!(both.into_inner(), "one was waited for after the other");
        for proxy in &proxies {
            proxy.pass();
        }
        ask().unwrap();
    }
}
