//! Network faults between a client and a healthy server: requests and replies that are lost, delayed or stalled.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use redlatch::{CancelToken, Client, Error};

use crate::support::scripts::{renew_sha, sha};
use crate::support::{
    FAIR_LOCK, FENCED_LOCK, Kind, MUTEX, Mode, Net, Proxy, Queue, READING, REENTRANT_LOCK,
    RESPONSE, SLACK, Server, Target, Trap, WAITER_LEASE, WRITING, eventually, gets_nothing,
    in_haste, in_time, line, loosely, ms, nothing_is_left_of, scoped, settings, settings_by, timed,
    unique, unless_late, within,
};

/// Pseudo-random numbers, the same in every run.
fn dice(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    move |below| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    }
}

/// A `command_timeout`; a lost reply costs half of it.
const QUICK: Duration = ms(1_000);

/// Rounds in which one request is lost, or its reply. The hold is valid while it lasts; somebody else can acquire the
/// lock soon after, and keeps it when delayed requests arrive.
///
/// `set` arms the trap: before the lock is acquired if `before_lock` says so, else after that, with the owner.
fn rounds_with(
    kind: Kind,
    rounds: u32,
    response: Duration,
    before_lock: bool,
    set: impl Fn(&Proxy, &str) -> Trap,
) {
    let net = Net::with(response);
    let name = unique("round");
    let (lock, other) = (
        kind.of(&net.client, &name),
        kind.foe().of(&net.other, &name),
    );
    for round in 0..rounds {
        let trap = before_lock.then(|| set(&net.proxy, ""));
        let guard = in_time("lock", response, || lock.lock()).unwrap();
        let trap = trap.unwrap_or_else(|| set(&net.proxy, guard.owner()));
        let count = 1 + round % 2;
        let again = (count == 2).then(|| lock.lock().unwrap());
        assert_eq!(net.server.hgetall(&name), kind.fields(guard.owner(), 1));
        drop(again);
        if round % 3 == 0 {
            in_time("unlock", response, || guard.unlock()).unwrap();
            assert!(nothing_is_left_of(kind, &net.server));
        } else {
            in_time("drop", ms(0), || drop(guard));
        }
        if round % 2 == 0 {
            let next = other.try_lock_for(response + loosely(SLACK)).unwrap();
            let next = next.unwrap_or_else(|| panic!("held by nobody in round {round}"));
            eventually("it sprang", || trap.fired());
            assert!(!within(ms(if round % 8 == 0 { 300 } else { 5 }), || {
                net.server.hgetall(&name) != kind.foe().fields(next.owner(), 1)
            }));
            next.unlock().unwrap();
        }
    }
    eventually("nothing is left", || nothing_is_left_of(kind, &net.server));
    let stats = net.client.stats();
    assert_eq!((stats.lost, stats.releases_failed), (0, 0));
    assert_eq!(stats.releases_of_lost, 0);
}

/// The acquire is executed and its reply lost.
fn lost_replies_to_acquires(kind: Kind, rounds: u32, response: Duration) {
    rounds_with(kind, rounds, response, true, |proxy, _| {
        proxy.swallow_reply_on(Target::Link, sha(kind.acquire))
    });
}

fn lost_acquires(kind: Kind, rounds: u32, response: Duration) {
    rounds_with(kind, rounds, response, true, |proxy, _| {
        proxy.black_hole_on(Target::Link, sha(kind.acquire))
    });
}

/// A text that only the release among the further commands of the link contains: the owner, as an argument.
fn release_of(kind: Kind, owner: &str) -> String {
    format!("\r\n{}\r\n", kind.field(owner))
}

fn lost_replies_to_releases(kind: Kind, rounds: u32, response: Duration) {
    rounds_with(kind, rounds, response, false, |proxy, owner| {
        proxy.swallow_reply_on(Target::Link, release_of(kind, owner))
    });
}

fn lost_releases(kind: Kind, rounds: u32, response: Duration) {
    rounds_with(kind, rounds, response, false, |proxy, owner| {
        proxy.black_hole_on(Target::Link, release_of(kind, owner))
    });
}

timed!(acquires_whose_replies_are_lost_are_no_holds);
fn acquires_whose_replies_are_lost_are_no_holds() {
    lost_replies_to_acquires(REENTRANT_LOCK, 6, QUICK);
}

timed!(acquires_that_are_lost_are_sent_again);
fn acquires_that_are_lost_are_sent_again() {
    lost_acquires(REENTRANT_LOCK, 6, QUICK);
}

timed!(releases_whose_replies_are_lost_have_happened_once);
fn releases_whose_replies_are_lost_have_happened_once() {
    lost_replies_to_releases(REENTRANT_LOCK, 6, QUICK);
}

timed!(releases_that_are_lost_are_sent_again);
fn releases_that_are_lost_are_sent_again() {
    lost_releases(REENTRANT_LOCK, 6, QUICK);
}

/// The tests whose scripts run twice or late again, for a kind with scripts of its own.
macro_rules! lost_requests_and_replies {
    ($($title:ident: $kind:ident,)+) => {
        $(mod $title {
            use super::*;

            #[test]
            fn acquires_whose_replies_are_lost_are_no_holds() {
                unless_late(&|| lost_replies_to_acquires($kind, 4, QUICK));
            }

            #[test]
            fn releases_whose_replies_are_lost_have_happened_once() {
                unless_late(&|| lost_replies_to_releases($kind, 4, QUICK));
            }

            #[test]
            fn an_acquire_that_arrives_late_takes_nothing() {
                unless_late(&|| late_acquires($kind, 4));
            }
        })+
    };
}

lost_requests_and_replies! {
    fair_lock: FAIR_LOCK,
    fenced_lock: FENCED_LOCK,
    writing: WRITING,
    reading: READING,
}

#[test]
#[ignore = "takes minutes"]
fn soak_of_lost_requests_and_replies() {
    fn soak(kind: Kind) {
        scoped(|scope| {
            scope.spawn(|| lost_replies_to_acquires(kind, 300, ms(1_200)));
            scope.spawn(|| lost_acquires(kind, 300, ms(1_200)));
            scope.spawn(|| lost_replies_to_releases(kind, 300, ms(1_200)));
            scope.spawn(|| lost_releases(kind, 300, ms(1_200)));
        });
    }
    for kind in [REENTRANT_LOCK, FAIR_LOCK, FENCED_LOCK, WRITING, READING] {
        soak(kind);
    }
}

fn renewals_with(rounds: u32, set: impl Fn(&Proxy) -> Trap) {
    let server = Server::start();
    let proxy = Proxy::before(&server);
    let client =
        Client::open(in_haste(settings_by(&server, proxy.addr())).lease(ms(1_200))).unwrap();
    let name = unique("renewal");
    let lock = client.reentrant_lock(&name);
    let guard = lock.lock().unwrap();
    for round in 0..rounds {
        let count = round % 2 + 1;
        let again = (count == 2).then(|| lock.lock().unwrap());
        let trap = set(&proxy);
        eventually("it springs", || trap.fired());
        let renewals = client.stats().renewals;
        eventually("renewals go on", || client.stats().renewals > renewals);
        assert!(guard.is_valid());
        let held = [(guard.owner().to_owned(), count.to_string())];
        eventually("the count is right", || server.hgetall(&name) == held);
        drop(again);
    }
    guard.unlock().unwrap();
    assert!(server.keys().is_empty());
    assert_eq!(client.stats().lost, 0);
}

timed!(renewals_whose_replies_are_lost_are_repeated_in_time);
fn renewals_whose_replies_are_lost_are_repeated_in_time() {
    renewals_with(4, |proxy| {
        proxy.swallow_reply_on(Target::Watchdog, renew_sha())
    });
}

timed!(renewals_that_are_lost_are_repeated_in_time);
fn renewals_that_are_lost_are_repeated_in_time() {
    renewals_with(4, |proxy| {
        proxy.black_hole_on(Target::Watchdog, renew_sha())
    });
}

/// An acquire that timed out reaches the server later, after others have acquired and released the lock.
fn late_acquires(kind: Kind, rounds: u64) {
    let net = Net::start();
    let name = unique("late");
    let (lock, other) = (
        kind.of(&net.client, &name),
        kind.foe().of(&net.other, &name),
    );
    let mut dice = dice(7);
    for round in 0..rounds {
        lock.lock().unwrap().unlock().unwrap();
        net.proxy.set(Target::Link, Mode::Stall);
        // The client abandons the link before the stall ends in some rounds only.
        let waits = 1 + round % 3;
        for _ in 0..waits {
            let wait = ms(10 + dice(60));
            gets_nothing("try_lock_for", wait, || lock.try_lock_for(wait));
        }
        if round % 4 == 3 {
            std::thread::sleep(RESPONSE); // until the client abandons the silent link
        }
        other.try_lock().unwrap().unwrap().unlock().unwrap();
        let present = (round % 2 == 0).then(|| other.try_lock().unwrap().unwrap());
        net.proxy.pass();
        eventually("all is delivered", || net.proxy.held() == 0);
        if let Some(present) = present {
            assert!(!within(ms(40), || {
                net.server.hgetall(&name) != kind.foe().fields(present.owner(), 1)
            }));
            present.unlock().unwrap();
        }
        assert!(
            within(loosely(ms(500)), || nothing_is_left_of(kind, &net.server)),
            "round {round} left {:?}: {:?}",
            net.server.keys(),
            net.server.hgetall(&name)
        );
    }
    let waited = in_time("lock", RESPONSE, || lock.lock()).unwrap();
    waited.unlock().unwrap();
}

timed!(an_acquire_that_arrives_late_takes_nothing);
fn an_acquire_that_arrives_late_takes_nothing() {
    late_acquires(MUTEX, 12);
}

/// The acquire arrives after its undo, which went over another connection and found nothing to undo.
fn acquires_later_than_their_undo(kind: Kind, rounds: u64) {
    let net = Net::start();
    let name = unique("late");
    let (lock, other) = (
        kind.of(&net.client, &name),
        kind.foe().of(&net.other, &name),
    );
    for round in 0..rounds {
        lock.lock().unwrap().unlock().unwrap();
        net.proxy.stall_present(Target::Link);
        // The client abandons the silent link; the second attempt goes over a new one.
        let guard = in_time("lock", RESPONSE, || lock.lock()).unwrap();
        guard.unlock().unwrap();
        assert!(nothing_is_left_of(kind, &net.server));
        let present = (round % 2 == 0).then(|| other.lock().unwrap());
        assert!(net.proxy.held() > 0);
        net.proxy.pass();
        eventually("all is delivered", || net.proxy.held() == 0);
        if let Some(present) = present {
            assert!(!within(ms(40), || {
                net.server.hgetall(&name) != kind.foe().fields(present.owner(), 1)
            }));
            present.unlock().unwrap();
        }
        if kind.queue == Queue::Redis {
            // A late place in the queue belongs to no waiter, and expires after a waiter lease.
            let next = other.try_lock_for(WAITER_LEASE + loosely(SLACK)).unwrap();
            next.expect("a place for nobody").unlock().unwrap();
        }
        // A late acquire of a reader or writer may leave a note of a waiter, which expires after a waiter lease.
        let is_note = |key: &String| key.starts_with("redisson_rwlock:");
        let is_left = || !nothing_is_left_of(kind, &net.server);
        let holds = || is_left() && !net.server.keys().iter().all(is_note);
        for (limit, has_leftovers) in [
            (ms(300), &holds as &dyn Fn() -> bool),
            (WAITER_LEASE + SLACK, &is_left),
        ] {
            assert!(
                within(loosely(limit), || !has_leftovers()),
                "round {round} left {:?}: {:?}",
                net.server.keys(),
                net.server.hgetall(&name)
            );
        }
    }
}

timed!(an_acquire_on_a_connection_given_up_takes_nothing_when_it_arrives_at_last);
fn an_acquire_on_a_connection_given_up_takes_nothing_when_it_arrives_at_last() {
    acquires_later_than_their_undo(MUTEX, 8);
}

// A waiter's repeated request may arrive after the waiter has left. The place that it then takes in the queue expires
// after a waiter lease.
timed!(a_question_from_the_queue_that_arrives_late_stands_for_a_waiter_lease_at_most);
fn a_question_from_the_queue_that_arrives_late_stands_for_a_waiter_lease_at_most() {
    let net = Net::with(QUICK);
    let name = unique("late");
    let other = net.other.fair_lock(&name);
    for granted in [true, false] {
        let held = other.lock().unwrap();
        scoped(|scope| {
            let waiting = scope.spawn(|| {
                let wait = if granted { ms(8_000) } else { ms(2_400) };
                let got = net.client.fair_lock(&name).try_lock_for(wait).unwrap();
                assert_eq!(got.is_some(), granted);
            });
            eventually("it stands in line", || line(&net.server, &name).len() == 1);
            net.proxy.stall_present(Target::Link);
            eventually("it has asked again", || net.proxy.held() > 0);
            let opened = net.proxy.opened(Target::Link);
            eventually("the link is made anew", || {
                net.proxy.opened(Target::Link) > opened
            });
            let mut held = Some(held);
            if granted {
                drop(held.take());
            }
            waiting.join().unwrap();
            eventually("its place is free", || line(&net.server, &name).is_empty());
            let held = held.unwrap_or_else(|| other.lock().unwrap());
            net.proxy.pass();
            eventually("all is delivered", || net.proxy.held() == 0);
            held.unlock().unwrap();
        });
        let next = other.try_lock_for(WAITER_LEASE + loosely(SLACK)).unwrap();
        next.expect("a place for nobody").unlock().unwrap();
        eventually("nothing is left", || net.server.keys().is_empty());
    }
}

// The reply to a waiter's first request is lost: the waiter keeps the place that this request has taken.
timed!(a_first_question_that_arrives_late_costs_nobody_a_place);
fn a_first_question_that_arrives_late_costs_nobody_a_place() {
    let net = Net::with(QUICK);
    let name = unique("late");
    let held = net.other.fair_lock(&name).lock().unwrap();
    let third = Client::open(in_haste(settings(&net.server))).unwrap();
    let order = &std::sync::Mutex::new(Vec::new());
    scoped(|scope| {
        let wait = |client: &Client, label: &'static str| {
            let lock = client.fair_lock(&name);
            move || {
                let _guard = lock.lock().unwrap();
                order.lock().unwrap().push(label);
            }
        };
        scope.spawn(wait(&third, "first"));
        eventually("the first stands in line", || {
            line(&net.server, &name).len() == 1
        });
        net.proxy.stall_present(Target::Link);
        scope.spawn(wait(&net.client, "second"));
        eventually("so does the second", || line(&net.server, &name).len() == 2);
        let line_before = line(&net.server, &name);
        net.proxy.pass();
        eventually("all is delivered", || net.proxy.held() == 0);
        let commands = net.client.stats().commands;
        eventually("it has asked again", || {
            net.client.stats().commands > commands + 1
        });
        assert_eq!(line(&net.server, &name), line_before);
        drop(held);
        eventually("both had it", || order.lock().unwrap().len() == 2);
        assert_eq!(*order.lock().unwrap(), ["first", "second"]);
    });
    eventually("nothing is left", || net.server.keys().is_empty());
}

timed!(a_renewal_that_arrives_late_revives_nothing);
fn a_renewal_that_arrives_late_revives_nothing() {
    let server = Server::start();
    let proxy = Proxy::before(&server);
    let client = Client::open(in_haste(settings_by(&server, proxy.addr())).lease(ms(600))).unwrap();
    let other = Client::open(in_haste(settings(&server))).unwrap();
    let name = unique("late");
    let guard = client.mutex(&name).lock().unwrap();
    proxy.set(Target::Watchdog, Mode::Stall);
    eventually("a renewal is held", || proxy.held() > 0);
    guard.unlock().unwrap();
    let next = other.mutex(&name).lock().unwrap();
    let ttl_before = server.pttl(&name);
    proxy.pass();
    eventually("it is delivered", || proxy.held() == 0);
    assert!(!within(ms(100), || {
        server.hgetall(&name) != [(next.owner().to_owned(), "1".to_owned())]
    }));
    assert!(server.pttl(&name) <= ttl_before);
    next.unlock().unwrap();
    assert!(server.keys().is_empty());
    assert_eq!(client.stats().lost, 0);
}

timed!(a_caller_who_leaves_at_any_moment_leaves_no_lock_behind);
fn a_caller_who_leaves_at_any_moment_leaves_no_lock_behind() {
    let net = Net::start();
    let name = unique("leave");
    let mut dice = dice(3);
    net.proxy.set(Target::All, Mode::DelayBoth(ms(4)));
    for round in 0..80 {
        let token = CancelToken::new();
        let lock = net.client.mutex(&name).cancel_on(&token);
        let span = Duration::from_micros(1 + dice(14_000));
        let got = if round % 2 == 0 {
            lock.try_lock_for(span)
        } else {
            scoped(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(span);
                    token.cancel();
                });
                lock.lock().map(Some)
            })
        };
        match got {
            Ok(Some(guard)) => assert!(guard.is_valid()),
            Ok(None) | Err(Error::Redis { .. } | Error::Cancelled) => {}
            Err(err) => panic!("{err:?}"),
        }
    }
    assert!(within(ms(1_000), || net.server.keys().is_empty()));
    assert!(!within(ms(100), || !net.server.keys().is_empty()));
}

timed!(a_wait_ends_on_time_whatever_the_network_does);
fn a_wait_ends_on_time_whatever_the_network_does() {
    let server = Server::start();
    scoped(|scope| {
        for mode in [
            Mode::BlackHole,
            Mode::Stall,
            Mode::SwallowReplies,
            Mode::Refuse,
            Mode::Delay(ms(700)),
            Mode::DelayBoth(ms(700)),
        ] {
            for fresh in [false, true] {
                let server = &server;
                scope.spawn(move || {
                    let proxy = Proxy::before(server);
                    let client = Client::open(in_haste(settings_by(server, proxy.addr()))).unwrap();
                    let lock = client.mutex(unique("wait"));
                    lock.lock().unwrap().unlock().unwrap();
                    proxy.set(Target::All, mode);
                    if fresh || mode == Mode::Refuse {
                        proxy.cut(Target::All);
                    }
                    for wait in [30, 400, 60, 150] {
                        let begun = Instant::now();
                        let got = lock.try_lock_for(ms(wait));
                        let took = begun.elapsed();
                        let slow = matches!(mode, Mode::Delay(_) | Mode::DelayBoth(_));
                        let no_connection = mode == Mode::Refuse || fresh && !slow;
                        match got {
                            Err(Error::Redis { .. }) => {}
                            Ok(None) if !no_connection => {}
                            got => panic!("{mode:?}: {got:?}"),
                        }
                        assert!(took >= ms(wait), "{mode:?}: {took:?} of {wait} ms");
                        assert!(
                            took <= ms(wait) + loosely(ms(150)),
                            "{mode:?}: {took:?} of {wait} ms"
                        );
                    }
                    proxy.pass();
                });
            }
        }
    });
    assert!(
        within(ms(1_500), || server.keys().is_empty()),
        "left behind: {:?}",
        server.keys()
    );
}

timed!(a_wait_ends_on_time_although_replies_to_others_keep_coming);
fn a_wait_ends_on_time_although_replies_to_others_keep_coming() {
    // The only thread that waits reads replies to dropped guards' releases, for which nobody waits; reading them must
    // not extend its wait.
    let server = Server::start();
    let proxy = Proxy::before(&server);
    let client =
        Client::open(in_haste(settings_by(&server, proxy.addr())).command_timeout(ms(3_000)))
            .unwrap();
    let mut held: Vec<_> = (0..100)
        .map(|_| client.mutex(unique("stream")).lock().unwrap())
        .collect();
    proxy.set(Target::Link, Mode::Delay(ms(500)));
    let begun = Instant::now();
    while begun.elapsed() < ms(550) {
        held.pop();
        std::thread::sleep(ms(8));
    }
    // From here on a reply arrives every 8 ms for another half second.
    let begun = Instant::now();
    let got = client.mutex(unique("own")).try_lock_for(ms(50));
    let took = begun.elapsed();
    assert!(matches!(got, Ok(None)), "{got:?}");
    assert!(took <= loosely(ms(200)), "{took:?} for a wait of 50 ms");
    proxy.pass();
    drop(held);
    eventually("nothing is left", || server.keys().is_empty());
}

timed!(a_link_that_cannot_be_made_again_does_not_keep_the_watchdog_from_renewing);
fn a_link_that_cannot_be_made_again_does_not_keep_the_watchdog_from_renewing() {
    // The watchdog brings unacknowledged releases, but a connection attempt for them must not delay renewals.
    for mode in [Mode::BlackHole, Mode::Refuse] {
        let server = Server::start();
        let proxy = Proxy::before(&server);
        let client = Client::open(
            in_haste(settings_by(&server, proxy.addr()))
                .lease(ms(900))
                .connect_timeout(ms(3_000)),
        )
        .unwrap();
        let guard = client.mutex(unique("kept")).lock().unwrap();
        let dropped = client.mutex(unique("dropped")).lock().unwrap();
        eventually("it is renewed", || client.stats().renewals > 0);
        let opened = (proxy.opened(Target::Link), proxy.opened(Target::Watchdog));
        proxy.set(Target::Link, mode);
        proxy.cut(Target::Link);
        drop(dropped); // needs a new link
        eventually("it is tried", || proxy.opened(Target::Link) > opened.0);
        let lost = guard.lost().recv_timeout(ms(2_500));
        assert_eq!(proxy.opened(Target::Watchdog), opened.1, "{mode:?}");
        proxy.pass();
        assert!(lost.is_err(), "{mode:?}: {lost:?}");
        guard.unlock().unwrap();
        eventually("nothing is left", || server.keys().is_empty());
    }
}

timed!(a_client_closes_in_time_with_a_release_it_cannot_bring);
fn a_client_closes_in_time_with_a_release_it_cannot_bring() {
    for mode in [Mode::BlackHole, Mode::Refuse] {
        let server = Server::start();
        let proxy = Proxy::before(&server);
        let client =
            Client::open(in_haste(settings_by(&server, proxy.addr())).connect_timeout(ms(3_000)))
                .unwrap();
        let _held = client.mutex(unique("held")).lock().unwrap();
        proxy.set(Target::All, mode);
        proxy.cut(Target::All);
        drop(client.mutex(unique("dropped")).try_lock_for(ms(20)));
        let closed = in_time("closing", ms(200), || client.close(ms(200)));
        assert!(matches!(closed, Err(Error::Redis { .. })), "{closed:?}");
    }
}

timed!(a_dropped_hold_is_free_soon_although_the_server_does_not_know_the_script);
fn a_dropped_hold_is_free_soon_although_the_server_does_not_know_the_script() {
    // `drop` waits for no reply, so another thread has to read the NOSCRIPT reply and send the script. The client's
    // first release is sent with its script.
    let server = Server::start();
    let name = unique("first");
    for (is_first, limit) in [(true, ms(50)), (false, ms(300))] {
        let mut release_times = Vec::new();
        for _ in 0..5 {
            let client = Client::open(in_haste(settings(&server))).unwrap();
            if !is_first {
                client.mutex(&name).lock().unwrap().unlock().unwrap();
            }
            let guard = client.mutex(&name).lock().unwrap();
            let () = server.ask(&["SCRIPT", "FLUSH"]);
            let begun = Instant::now();
            drop(guard);
            eventually("it is free", || !server.exists(&name));
            release_times.push(begun.elapsed());
        }
        let quickest = release_times.iter().min().unwrap();
        assert!(*quickest < loosely(limit), "{release_times:?}");
    }
}

timed!(messages_that_are_lost_cost_a_poll);
fn messages_that_are_lost_cost_a_poll() {
    // The waiter misses the message about the release, and gets the lock by its next poll.
    scoped(|scope| {
        for mode in [
            Mode::BlackHole,
            Mode::Stall,
            Mode::Refuse,
            Mode::SwallowReplies,
        ] {
            scope.spawn(move || {
                let net = Net::start();
                let name = unique("deaf");
                let guard = net.other.mutex(&name).lock().unwrap();
                scoped(|scope| {
                    let waiting = scope.spawn(|| {
                        let got = net.client.mutex(&name).lock().unwrap();
                        (Instant::now(), got.is_valid())
                    });
                    eventually("it listens", || {
                        net.server
                            .clients_named("subscriber")
                            .iter()
                            .any(|client| client.subscriptions == 1)
                    });
                    net.proxy.set(Target::Subscriber, mode);
                    if mode == Mode::Refuse {
                        net.proxy.cut(Target::Subscriber);
                    }
                    let freed = Instant::now();
                    guard.unlock().unwrap();
                    let (got, valid) = waiting.join().unwrap();
                    let took = got.saturating_duration_since(freed);
                    // The second pause between polls may have begun just before the release.
                    assert!(
                        valid && took <= ms(2_000) + loosely(SLACK),
                        "{mode:?}: {took:?}"
                    );
                });
            });
        }
    });
}

timed!(a_silent_subscriber_is_found_out_and_replaced);
fn a_silent_subscriber_is_found_out_and_replaced() {
    let net = Net::start();
    let name = unique("silent");
    let guard = net.other.mutex(&name).lock().unwrap();
    scoped(|scope| {
        let waiting = scope.spawn(|| drop(net.client.mutex(&name).lock().unwrap()));
        eventually("it listens", || {
            net.proxy.connections(Target::Subscriber) == 1
        });
        let trap = net.proxy.black_hole_on(Target::Subscriber, "PING"); // from here on its connection is silent
        let opened = net.proxy.opened(Target::Subscriber);
        eventually("it asks for a sign of life", || trap.fired());
        eventually("it connects again", || {
            net.proxy.opened(Target::Subscriber) > opened
        });
        eventually("it listens again", || {
            let subscribers = net.server.clients_named("subscriber");
            subscribers.iter().any(|client| client.subscriptions == 1)
        });
        // A waiter asks Redis once more after it subscribed. If that request came after the release, it would get the
        // lock without a message, so wait until the requests stop.
        let mut asked = 0;
        eventually("it has asked", || {
            std::thread::sleep(ms(100));
            let asked_before = std::mem::replace(&mut asked, net.server.calls("evalsha"));
            asked_before == asked
        });
        let freed = Instant::now();
        let wakes = net.client.stats().wakes;
        guard.unlock().unwrap();
        waiting.join().unwrap();
        assert!(net.client.stats().wakes > wakes && freed.elapsed() < loosely(ms(700)));
    });
    assert!(net.client.stats().resubscriptions >= 1);
}

timed!(a_waiter_whose_subscription_is_not_answered_has_the_connection_replaced);
fn a_waiter_whose_subscription_is_not_answered_has_the_connection_replaced() {
    let net = Net::with(ms(300));
    let name = unique("unanswered");
    // Shorter than the longest pause between two polls.
    let held = net
        .other
        .mutex(&name)
        .fixed_lease(ms(4_000))
        .lock()
        .unwrap();
    let trap = net.proxy.black_hole_on(Target::Subscriber, "SUBSCRIBE");
    scoped(|scope| {
        let waiting = scope.spawn(|| drop(net.client.mutex(&name).lock().unwrap()));
        eventually("it listens again", || {
            net.client.stats().resubscriptions > 0
        });
        assert!(trap.fired() && held.is_valid());
        held.unlock().unwrap();
        waiting.join().unwrap();
    });
}

timed!(a_short_wait_is_not_spent_writing_for_others);
fn a_short_wait_is_not_spent_writing_for_others() {
    let net = Net::start();
    // Names so long that subscribing to them fills the socket's buffer.
    let names: Vec<_> = (0..8).map(|n| format!("{n:032768}")).collect();
    let lease = Duration::from_secs(60);
    let hold = |name: &String| net.other.mutex(name).fixed_lease(lease).lock().unwrap();
    let _guards: Vec<_> = names.iter().map(hold).collect();
    net.proxy.set(Target::Subscriber, Mode::Slow(ms(20)));
    let wait = |name: &String| {
        let begun = Instant::now();
        let got = net.client.mutex(name).try_lock_for(ms(10)).unwrap();
        assert!(got.is_none());
        begun.elapsed()
    };
    let longest = scoped(|scope| {
        let waits = |name| scope.spawn(move || (0..50).map(|_| wait(name)).max());
        let waiting: Vec<_> = names.iter().map(waits).collect();
        let waited = waiting.into_iter().map(|thread| thread.join().unwrap());
        waited.max().flatten().unwrap()
    });
    assert!(longest < loosely(ms(1_000)), "{longest:?}");
    // Afterwards the subscriber writes the rest at the speed of the network.
    net.proxy.set(Target::Subscriber, Mode::Pass);
    eventually("it listens to nobody", || {
        let subscribers = net.server.clients_named("subscriber");
        subscribers.iter().all(|client| client.subscriptions == 0)
    });
}

timed!(a_confirmation_that_is_late_is_waited_for_and_no_wake_is_lost);
fn a_confirmation_that_is_late_is_waited_for_and_no_wake_is_lost() {
    let net = Net::start();
    net.proxy.set(Target::Subscriber, Mode::Delay(ms(150)));
    let name = unique("confirm");
    for _ in 0..4 {
        let guard = net.other.mutex(&name).lock().unwrap();
        scoped(|scope| {
            let waiting = scope.spawn(|| {
                let got = net.client.mutex(&name).lock().unwrap();
                got.unlock().unwrap();
                Instant::now()
            });
            eventually("it waits", || net.client.stats().subscriptions == 1);
            let freed = Instant::now();
            guard.unlock().unwrap();
            let got = waiting.join().unwrap();
            assert!(got.saturating_duration_since(freed) < loosely(ms(600)));
        });
    }
}

timed!(many_names_random_cancels_and_a_storm_of_reconnects_leave_nothing_behind);
fn many_names_random_cancels_and_a_storm_of_reconnects_leave_nothing_behind() {
    const NAMES: usize = 2_000;
    const THREADS: usize = 40;
    let server = Server::start();
    let patient = in_haste(settings(&server))
        .command_timeout(ms(5_000))
        .lease(ms(30_000));
    let (holder, client) = (
        Client::open(patient.clone()).unwrap(),
        Client::open(patient).unwrap(),
    );
    let names: Vec<_> = (0..NAMES).map(|_| unique("storm")).collect();
    let held: Vec<_> = names
        .iter()
        .map(|name| holder.mutex(name).lock().unwrap())
        .collect();
    let (stop, late) = (AtomicBool::new(false), AtomicU64::new(0));
    scoped(|scope| {
        let storm = scope.spawn(|| {
            let mut killed = 0;
            while !stop.load(Ordering::Relaxed) {
                killed += server.kill_clients_named("subscriber");
                std::thread::sleep(ms(20));
            }
            killed
        });
        let workers: Vec<_> = names
            .chunks(NAMES / THREADS)
            .enumerate()
            .map(|(n, names)| {
                let (client, late) = (&client, &late);
                scope.spawn(move || {
                    let mut dice = dice(n as u64);
                    for name in names {
                        let token = CancelToken::new();
                        let lock = client.mutex(name).cancel_on(&token);
                        let span = ms(30 + dice(60));
                        if dice(2) == 0 {
                            match lock.try_lock_for(span) {
                                Ok(None) => {}
                                // On a busy machine a round trip may take longer than the wait.
                                Err(err) if err.is_retryable() => {
                                    late.fetch_add(1, Ordering::Relaxed);
                                }
                                other => panic!("{other:?}"),
                            }
                        } else {
                            scoped(|scope| {
                                scope.spawn(|| {
                                    std::thread::sleep(span);
                                    token.cancel();
                                });
                                let got = lock.lock();
                                assert!(matches!(got, Err(Error::Cancelled)), "{got:?}");
                            });
                        }
                    }
                })
            })
            .collect();
        let done: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        stop.store(true, Ordering::Relaxed);
        assert!(storm.join().unwrap() > 5);
        assert!(done.iter().all(Result::is_ok));
    });
    let late = late.into_inner();
    assert!(
        late <= NAMES as u64 / 10,
        "{late} waits ended without an answer"
    );
    assert_eq!(client.stats().subscriptions, 0);
    eventually("no channel is left", || server.channels().is_empty());
    drop(held);
    eventually("no key is left", || server.dbsize() == 0);
    eventually("no entry is left", || client.stats().names == 0);
    // The subscriber still works.
    let guard = holder.mutex(&names[0]).lock().unwrap();
    scoped(|scope| {
        let waiting = scope.spawn(|| drop(client.mutex(&names[0]).lock().unwrap()));
        eventually("it listens", || !server.channels().is_empty());
        guard.unlock().unwrap();
        waiting.join().unwrap();
    });
}
