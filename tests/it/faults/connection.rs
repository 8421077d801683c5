//! The connection for commands under faults: thousands of releases that are left after an outage, sockets whose buffers
//! are full, servers that are busy or at their limit of clients, connections that ended while idle.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use redlatch::{Client, Config, Error, MutexGuard, RedLock};

use crate::support::quorum::all_keep;
use crate::support::{
    LONG, Mode, Part, Proxy, RESPONSE, SLACK, STRANGER, Server, Target, client, config,
    connection_to, eventually, given, in_time, logs, loosely, ms, nothing_is_left, order, say,
    scoped, timed, unique, within,
};

/// A timeout that a busy machine does not reach: no test that uses this setting is about an unresponsive server.
const PATIENT: Duration = ms(8_000);

fn patient(url: &str) -> Config {
    config(url)
        .command_timeout(PATIENT)
        .connect_timeout(PATIENT)
}

/// Acquires these locks, with a lease longer than any test.
fn hold(client: &Client, names: impl Iterator<Item = String>) -> Vec<MutexGuard> {
    let lease = Duration::from_secs(600);
    names
        .map(|name| client.mutex(name).fixed_lease(lease).lock().unwrap())
        .collect()
}

/// The state after an outage: the server still has every lock, and the client has every release queued, in the order of
/// the names.
struct Outage {
    server: Server,
    proxy: Proxy,
    client: Client,
    names: Vec<String>,
}

impl Outage {
    fn with(releases: u64, name: impl Fn(u64) -> String) -> Self {
        let server = Server::start();
        let proxy = Proxy::start(server.addr());
        let client = Client::open(patient(&proxy.url())).unwrap();
        let names: Vec<_> = (0..releases).map(name).collect();
        let held = hold(&client, names.iter().cloned());
        proxy.set(Target::Link, Mode::Refuse);
        proxy.cut(Target::Link);
        drop(held);
        assert_eq!(server.dbsize(), releases);
        Self {
            server,
            proxy,
            client,
            names,
        }
    }

    /// Connects the client again, with a delay for each reply: releases sent without waiting for a reply are then told
    /// apart from those that wait for one.
    fn ends(&self, delay: Duration) {
        self.proxy.set(Target::Link, Mode::Delay(delay));
    }

    fn is_over(&self) {
        self.proxy.pass();
        eventually("all is given back", || self.server.dbsize() == 0);
        let stats = self.client.stats();
        assert_eq!((stats.lost, stats.releases_failed), (0, 0));
        assert_eq!(stats.releases_of_lost, 0);
    }
}

timed!(the_releases_of_an_outage_go_out_in_portions_and_a_text_once_each);
fn the_releases_of_an_outage_go_out_in_portions_and_a_text_once_each() {
    const RELEASES: u64 = 2_000;
    let outage = Outage::with(RELEASES, |n| format!("portion:{n}"));
    let texts = outage.server.calls("eval");
    outage.ends(ms(300));
    eventually("the first portion comes", || {
        outage.server.dbsize() < RELEASES
    });
    // The next portion is sent only after the reply to the first.
    assert!(!within(ms(60), || {
        outage.server.dbsize() < RELEASES * 3 / 4
    }));
    outage.is_over();
    let texts = outage.server.calls("eval") - texts;
    assert!(
        texts <= RELEASES / 10,
        "{texts} texts for {RELEASES} releases"
    );
}

timed!(the_releases_of_an_outage_go_out_one_portion_a_round_trip_although_nobody_else_sends);
fn the_releases_of_an_outage_go_out_one_portion_a_round_trip_although_nobody_else_sends() {
    const RELEASES: u64 = 1_200;
    let outage = Outage::with(RELEASES, |n| format!("alone:{n}"));
    outage.ends(ms(15));
    eventually("the first portion comes", || {
        outage.server.dbsize() < RELEASES
    });
    let begun = Instant::now();
    eventually("all is given back", || outage.server.dbsize() == 0);
    let took = begun.elapsed();
    // A portion is about 80 releases.
    let portions = u32::try_from(RELEASES / 80).unwrap();
    let lock = outage.client.mutex("own");
    let begun = Instant::now();
    for _ in 0..portions {
        drop(lock.try_lock().unwrap());
    }
    let round_trips = begun.elapsed();
    assert!(
        took < round_trips * 5 / 2 + loosely(Duration::ZERO),
        "{took:?} and {round_trips:?}"
    );
    outage.is_over();
}

timed!(a_lock_is_had_while_the_releases_of_an_outage_go_out);
fn a_lock_is_had_while_the_releases_of_an_outage_go_out() {
    const RELEASES: u64 = 2_000;
    let outage = Outage::with(RELEASES, |n| format!("backlog:{n}"));
    outage.ends(ms(15));
    // The acquire waits for at most one portion of releases.
    let guard = outage.client.mutex("own").lock().unwrap();
    let keys_left = outage.server.dbsize();
    assert!(keys_left > RELEASES / 3, "had after all but {keys_left}");
    guard.unlock().unwrap();
    outage.is_over();
}

timed!(what_was_let_go_in_an_outage_can_be_taken_again_at_once);
fn what_was_let_go_in_an_outage_can_be_taken_again_at_once() {
    const RELEASES: u64 = 1_000;
    let outage = Outage::with(RELEASES, |n| format!("again:{n}"));
    outage.ends(ms(15));
    // The release of this name is last in the queue.
    let last = outage.client.mutex(outage.names.last().unwrap());
    let guard = last.try_lock().unwrap().expect("let go, and not held");
    assert!(outage.server.dbsize() > 1);
    guard.unlock().unwrap();
    outage.is_over();
}

timed!(unlocking_waits_for_its_own_release_and_not_for_those_of_an_outage);
fn unlocking_waits_for_its_own_release_and_not_for_those_of_an_outage() {
    const RELEASES: u64 = 2_000;
    let outage = Outage::with(RELEASES, |n| format!("unlock:{n}"));
    let (client, server) = (&outage.client, &outage.server);
    outage.ends(ms(15));
    let guard = client.mutex("own").lock().unwrap();
    // The release of `own` is queued behind the other 2,000.
    outage.proxy.set(Target::Link, Mode::Refuse);
    outage.proxy.cut(Target::Link);
    eventually("the link is down", || {
        server.clients_named("link").is_empty()
    });
    scoped(|scope| {
        scope.spawn(|| {
            std::thread::sleep(ms(20)); // long enough for `unlock` to have begun
            outage.ends(ms(15));
        });
        guard.unlock().unwrap();
    });
    let keys_left = server.dbsize();
    assert!(
        keys_left > RELEASES / 3,
        "given back after all but {keys_left}"
    );
    outage.is_over();
}

/// Names so long that a few hundred releases fill every socket buffer between client and server.
fn long_names(n: u64) -> String {
    format!("long:{n}:{}", "x".repeat(60_000))
}

timed!(a_backlog_on_a_slow_network_holds_up_neither_renewals_nor_short_waits);
fn a_backlog_on_a_slow_network_holds_up_neither_renewals_nor_short_waits() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let client = Client::open(patient(&proxy.url()).lease(ms(900))).unwrap();
    let held = hold(&client, (0..120).map(long_names));
    let guard = client.mutex(unique("kept")).lock().unwrap();
    eventually("it is renewed", || client.stats().renewals > 0);
    proxy.set(Target::Link, Mode::Refuse);
    proxy.cut(Target::Link);
    drop(held);
    proxy.set(Target::Link, Mode::Slow(ms(30)));
    for _ in 0..5 {
        let lock = client.mutex(unique("hurry"));
        drop(in_time("try_lock_for", ms(2_000), || {
            lock.try_lock_for(ms(50))
        }));
    }
    let lost = guard.lost().recv_timeout(ms(500));
    assert!(lost.is_err(), "{lost:?}");
    guard.unlock().unwrap();
    proxy.pass();
    eventually("all is given back", || server.dbsize() == 0);
    assert_eq!(client.stats().lost, 0);
}

timed!(a_server_that_reads_nothing_for_a_while_is_waited_for_and_nobody_who_drops_is);
fn a_server_that_reads_nothing_for_a_while_is_waited_for_and_nobody_who_drops_is() {
    let server = Server::start();
    let client = Client::open(patient(&server.url())).unwrap();
    let held = hold(&client, (0..150).map(long_names));
    server.freeze();
    let begun = Instant::now();
    drop(held);
    // Keep the server frozen for longer than a write may stall, with full socket buffers.
    std::thread::sleep(ms(150));
    let took = begun.elapsed();
    server.thaw();
    assert!(took < loosely(ms(2_000)), "{took:?} for dropping");
    eventually("all is given back", || server.dbsize() == 0);
    let stats = client.stats();
    assert_eq!(stats.reconnects, 0);
    assert_eq!((stats.releases_failed, stats.releases_of_lost), (0, 0));
}

/// A script that keeps the server busy until this is dropped.
struct Busy<'a> {
    server: &'a Server,
    script: Option<std::thread::JoinHandle<()>>,
}

impl<'a> Busy<'a> {
    fn start(server: &'a Server) -> Self {
        let mut con = server.connection();
        con.set_read_timeout(None).unwrap();
        let script = std::thread::spawn(move || {
            let ran = redis::cmd("EVAL")
                .arg("while true do end")
                .arg(0)
                .query::<()>(&mut con);
            assert!(ran.is_err());
        });
        eventually("the server is busy", || {
            let set = server.try_ask::<String>(&["SET", "busy", "1", "PX", "1000"]);
            set.is_err_and(|err| err.code() == Some("BUSY"))
        });
        Self {
            server,
            script: Some(script),
        }
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        let () = self.server.ask(&["SCRIPT", "KILL"]);
        if let Some(script) = self.script.take() {
            script.join().ok();
        }
    }
}

timed!(a_busy_server_is_waited_for_over_the_connections_there_are);
fn a_busy_server_is_waited_for_over_the_connections_there_are() {
    let server = Server::start_with(&["--lua-time-limit", "20"]);
    for database in ["", "3"] {
        // A database other than 0 has to be selected, which a busy server rejects; the connection for messages selects
        // none.
        is_waited_for_while_busy(&server, database);
    }
}

fn is_waited_for_while_busy(server: &Server, database: &str) {
    let proxy = Proxy::start(server.addr());
    let waiter = Client::open(patient(&format!("{}{database}", proxy.url()))).unwrap();
    let name = unique("busy");
    let mut con = connection_to(&format!("{}{database}", server.url()));
    let () = redis::cmd("HSET")
        .arg(&[&name, STRANGER, "1"])
        .query(&mut con)
        .unwrap();
    let dropped = waiter.mutex(unique("dropped")).lock().unwrap();
    scoped(|scope| {
        let waiting = scope.spawn(|| {
            let got = waiter.mutex(&name).try_lock_for(PATIENT);
            drop(got.unwrap().unwrap());
        });
        eventually("it listens", || {
            let subscribers = server.clients_named("subscriber");
            subscribers.iter().any(|client| client.subscriptions == 1)
        });
        let busy = Busy::start(server);
        let opened = proxy.opened(Target::All);
        proxy.cut(Target::All);
        drop(dropped);
        // A connection for commands and one for messages.
        assert!(!within(ms(900), || proxy.opened(Target::All) > opened + 2));
        eventually("both are there", || proxy.opened(Target::All) == opened + 2);
        drop(busy);
        let () = redis::cmd("DEL").arg(&name).query(&mut con).unwrap();
        waiting.join().unwrap();
        assert!(proxy.opened(Target::All) <= opened + 3);
    });
    eventually("nothing is left", || {
        redis::cmd("DBSIZE").query::<u64>(&mut con).unwrap() == 0
    });
}

timed!(a_server_with_all_the_clients_it_wants_is_waited_for_with_a_password_too);
fn a_server_with_all_the_clients_it_wants_is_waited_for_with_a_password_too() {
    let server = Server::start();
    let () = server.ask(&["ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all"]);
    for url in [
        server.url(),
        format!("redis://app:pw@127.0.0.1:{}/", server.port()),
    ] {
        let client = Client::open(patient(&url)).unwrap();
        let lock = client.mutex(unique("crowd"));
        drop(lock.lock().unwrap());
        let mut con = server.connection();
        let mut ask = |parts: &[&str]| redis::cmd(parts[0]).arg(&parts[1..]).query::<()>(&mut con);
        ask(&["CONFIG", "SET", "maxclients", "1"]).unwrap();
        ask(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).unwrap();
        let err = lock.try_lock_for(ms(60)).unwrap_err();
        assert!(err.is_retryable(), "{err:?}");
        scoped(|scope| {
            let waiting = scope.spawn(|| {
                let got = lock.try_lock_for(PATIENT);
                got.unwrap().unwrap().unlock().unwrap();
            });
            assert!(!within(ms(60), || waiting.is_finished()));
            ask(&["CONFIG", "SET", "maxclients", "1000"]).unwrap();
            waiting.join().unwrap();
        });
    }
}

/// How many connections the server has accepted so far.
fn received(server: &Server) -> u64 {
    let info: String = server.ask(&["INFO", "stats"]);
    let line = info
        .lines()
        .find_map(|line| line.strip_prefix("total_connections_received:"));
    line.unwrap().trim().parse().unwrap()
}

timed!(a_server_that_lets_this_user_in_no_more_is_not_asked_again_for_every_release);
fn a_server_that_lets_this_user_in_no_more_is_not_asked_again_for_every_release() {
    let server = Server::start();
    let () = server.ask(&["ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all"]);
    let url = format!("redis://app:pw@127.0.0.1:{}/", server.port());
    let client = Client::open(patient(&url)).unwrap();
    let held = hold(&client, (0..200).map(|n| format!("out:{n}")));
    let () = server.ask(&["ACL", "DELUSER", "app"]);
    let received_before = received(&server);
    drop(held);
    client.close(ms(200)).unwrap_err();
    let made = received(&server) - received_before;
    assert!(made <= 40, "{made} connections");
}

timed!(who_comes_to_wait_does_not_shorten_the_pauses_of_a_subscriber_that_is_not_let_in);
fn who_comes_to_wait_does_not_shorten_the_pauses_of_a_subscriber_that_is_not_let_in() {
    let server = Server::start();
    let client = Client::open(patient(&server.url())).unwrap();
    let name = unique("crowd");
    let () = server.ask(&["HSET", &name, STRANGER, "1"]);
    let lock = client.mutex(&name);
    assert!(lock.try_lock().unwrap().is_none());
    let mut con = server.connection();
    let () = redis::cmd("CONFIG")
        .arg(&["SET", "maxclients", "1"])
        .query(&mut con)
        .unwrap();
    for _ in 0..60 {
        let got = lock.try_lock_for(ms(10));
        assert!(!matches!(got, Ok(Some(_))), "{got:?}");
    }
    let info: String = redis::cmd("INFO").arg("stats").query(&mut con).unwrap();
    let mut lines = info.lines();
    let rejected = lines.find_map(|line| line.strip_prefix("rejected_connections:"));
    let rejected: u64 = rejected.unwrap().trim().parse().unwrap();
    assert!((1..=20).contains(&rejected), "{rejected}");
}

timed!(a_subscriber_whose_password_is_refused_tries_once_a_second);
fn a_subscriber_whose_password_is_refused_tries_once_a_second() {
    let server = Server::start();
    let () = server.ask(&["ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all"]);
    let url = format!("redis://app:pw@127.0.0.1:{}/", server.port());
    let client = Client::open(patient(&url)).unwrap();
    let name = unique("refused");
    let () = server.ask(&["HSET", &name, STRANGER, "1"]);
    let lock = client.mutex(&name);
    assert!(lock.try_lock().unwrap().is_none());
    // The connection for commands is logged in already and stays so.
    let () = server.ask(&["ACL", "SETUSER", "app", "<pw", ">other"]);
    let received_before = received(&server);
    assert!(lock.try_lock_for(ms(3_000)).unwrap().is_none());
    let made = received(&server) - received_before;
    assert!((2..=7).contains(&made), "{made} connections");
}

timed!(a_subscriber_that_is_greeted_and_then_cut_makes_longer_and_longer_pauses);
fn a_subscriber_that_is_greeted_and_then_cut_makes_longer_and_longer_pauses() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let client = Client::open(patient(&proxy.url())).unwrap();
    let name = unique("cut");
    let () = server.ask(&["HSET", &name, STRANGER, "1"]);
    let waits = AtomicBool::new(true);
    scoped(|scope| {
        // Each connection that subscribes is cut.
        let cutter = scope.spawn(|| {
            while waits.load(Ordering::Relaxed) {
                let trap = proxy.black_hole_on(Target::Subscriber, "SUBSCRIBE");
                eventually("it asks, or nobody waits", || {
                    trap.fired() || !waits.load(Ordering::Relaxed)
                });
                proxy.cut(Target::Subscriber);
            }
        });
        let got = client.mutex(&name).try_lock_for(ms(1_500)).unwrap();
        waits.store(false, Ordering::Relaxed);
        assert!(got.is_none());
        cutter.join().unwrap();
    });
    let made = proxy.opened(Target::Subscriber);
    // The pauses are 10, 20, 40, 80 and 160 ms, then 250 ms each.
    assert!((2..=12).contains(&made), "{made} connections");
}

timed!(short_waits_for_a_frozen_server_share_one_connection_in_the_making);
fn short_waits_for_a_frozen_server_share_one_connection_in_the_making() {
    let server = Server::start();
    let client = Client::open(patient(&server.url())).unwrap();
    let lock = client.mutex(unique("hurry"));
    drop(lock.lock().unwrap());
    let received_before = received(&server);
    server.kill_clients_named("link");
    let aside = received(&server) - received_before;
    server.freeze();
    scoped(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..20 {
                    let got = lock.try_lock_for(ms(2));
                    assert!(!matches!(got, Ok(Some(_))), "{got:?}");
                }
            });
        }
    });
    server.thaw();
    // The next call acquires the lock, unaffected by the short waits that timed out.
    let guard = lock.try_lock_for(PATIENT).unwrap();
    guard.expect("nobody has it").unlock().unwrap();
    let made = received(&server) - received_before - aside;
    assert!(made <= 4, "{made} connections for 80 short waits");
}

#[test]
#[ignore = "run by another test, as a process of its own"]
fn a_process_that_drops_a_guard_and_exits() {
    let Some([url, name]) = &given() else {
        return;
    };
    let client = Client::open(url).unwrap();
    drop(client.reentrant_lock("warm").lock().unwrap());
    let guard = client.reentrant_lock(name).lock().unwrap();
    std::thread::sleep(ms(150)); // longer than a connection counts as recently used
    assert!(guard.is_valid());
    drop(guard);
    std::process::exit(0);
}

timed!(a_release_reaches_the_server_although_the_process_exits_right_after_it);
fn a_release_reaches_the_server_although_the_process_exits_right_after_it() {
    let server = Server::start();
    let name = unique("exits");
    let given = [&*server.url(), &name];
    Part::start(a_process_that_drops_a_guard_and_exits, &given).ends();
    assert!(
        within(ms(5_000), || !server.exists(&name)),
        "held for {} ms by nobody",
        server.pttl(&name)
    );
}

#[test]
#[ignore = "run by another test, as a process of its own"]
fn a_process_that_drops_a_guard_of_several_masters_and_exits() {
    let Some(urls) = given::<3>() else { return };
    let clients = urls.each_ref().map(|url| Client::open(url).unwrap());
    let lock = RedLock::new(&clients, "red").unwrap();
    let guard = lock.fixed_lease(ms(600_000)).lock().unwrap();
    all_keep(&guard, 3);
    std::thread::sleep(ms(150)); // longer than a connection counts as recently used
    assert!(guard.is_valid());
    drop(guard);
    std::process::exit(0);
}

#[test]
fn a_release_reaches_all_masters_although_the_process_exits_right_after_it() {
    let servers = [(); 3].map(|()| Server::start());
    let urls = servers.each_ref().map(Server::url);
    let part = a_process_that_drops_a_guard_of_several_masters_and_exits;
    Part::start(part, &urls.each_ref().map(String::as_str)).ends();
    eventually("nobody holds it", || {
        servers.iter().all(|server| !server.exists("red"))
    });
}

timed!(the_link_of_a_holder_is_made_again_before_it_is_needed);
fn the_link_of_a_holder_is_made_again_before_it_is_needed() {
    let server = Server::start();
    let client = Client::open(patient(&server.url()).lease(ms(1_500))).unwrap();
    let guard = client.mutex(unique("kept")).lock().unwrap();
    for _ in 0..2 {
        assert_eq!(server.kill_clients_named("link"), 1);
        eventually("there is another", || {
            server.clients_named("link").len() == 1
        });
    }
    guard.unlock().unwrap();
    assert_eq!(client.stats().lost, 0);
}

timed!(a_link_that_has_gone_silent_is_found_out_while_it_is_idle);
fn a_link_that_has_gone_silent_is_found_out_while_it_is_idle() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let client = Client::open(
        patient(&proxy.url())
            .command_timeout(ms(600))
            .lease(ms(1_500)),
    )
    .unwrap();
    let guard = client.mutex(unique("kept")).lock().unwrap();
    let opened = proxy.opened(Target::Link);
    proxy.stall_present(Target::Link);
    eventually("there is another", || proxy.opened(Target::Link) > opened);
    guard.unlock().unwrap();
}

timed!(closing_says_how_many_releases_nobody_has_acknowledged);
fn closing_says_how_many_releases_nobody_has_acknowledged() {
    let logs = logs();
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let client = Client::open(patient(&proxy.url())).unwrap();
    let held = hold(&client, (0..3).map(|n| format!("unheard:{n}")));
    proxy.set(Target::All, Mode::Refuse);
    proxy.cut(Target::All);
    drop(held);
    let said = "3 releases";
    let logged_before = logs.count(log::Level::Warn, said);
    let err = client.close(ms(100)).unwrap_err();
    assert!(matches!(err, Error::Redis { .. }), "{err:?}");
    assert!(err.to_string().contains(said), "{err}");
    assert_eq!(client.stats().releases_failed, 3);
    eventually("that is logged", || {
        logs.count(log::Level::Warn, said) - logged_before == 1
    });
}

timed!(a_release_is_given_up_when_its_lease_is_over_although_the_server_is_still_away);
fn a_release_is_given_up_when_its_lease_is_over_although_the_server_is_still_away() {
    let logs = logs();
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let client = Client::open(patient(&proxy.url())).unwrap();
    let name = unique("over");
    let guard = client.mutex(&name).fixed_lease(ms(300)).lock().unwrap();
    let until = guard.valid_until();
    proxy.set(Target::All, Mode::Refuse);
    proxy.cut(Target::All);
    drop(guard);
    eventually("it is given up", || client.stats().releases_failed == 1);
    assert!(Instant::now() >= until);
    eventually("that is logged", || {
        logs.count(log::Level::Warn, &name) == 1
    });
    client.close(ms(100)).unwrap();
}

timed!(callers_in_a_hurry_get_a_connection_in_the_end);
fn callers_in_a_hurry_get_a_connection_in_the_end() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let client = Client::open(patient(&proxy.url())).unwrap();
    let lock = client.mutex(unique("hurry"));
    drop(lock.lock().unwrap());
    // Each caller times out long before the reply to the greeting.
    proxy.set(Target::Link, Mode::Delay(ms(120)));
    proxy.cut(Target::Link);
    let opened = proxy.opened(Target::All);
    let stop = AtomicBool::new(false);
    scoped(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                drop(lock.try_lock_for(ms(5)));
            }
        });
        let connected = within(PATIENT, || {
            server.clients_named("link").len() == 1 && client.stats().reconnects > 0
        });
        stop.store(true, Ordering::Relaxed);
        assert!(connected);
    });
    assert!(proxy.opened(Target::All) <= opened + 2);
    proxy.pass();
    eventually("what was undone is gone", || server.dbsize() == 0);
}

timed!(a_link_busy_with_few_or_many_threads_does_not_capture_the_watchdog);
fn a_link_busy_with_few_or_many_threads_does_not_capture_the_watchdog() {
    for threads in [1, 8] {
        let server = Server::start();
        let lease = ms(500);
        let client = Client::open(Config::new(server.url()).lease(lease)).unwrap();
        let guard = client.mutex(unique("kept")).lock().unwrap();
        let stop = AtomicBool::new(false);
        let pairs = AtomicU64::new(0);
        scoped(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    let lock = client.mutex(unique("busy"));
                    while !stop.load(Ordering::Relaxed) {
                        drop(lock.lock().unwrap()); // the reply to this release is read by another thread, or by none
                        pairs.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            let lost = guard.lost().recv_timeout(lease * 2);
            stop.store(true, Ordering::Relaxed);
            assert!(lost.is_err(), "{threads} threads: {lost:?}");
        });
        // Two leases are six renewal intervals; `pairs` shows that the link was busy.
        let (stats, pairs) = (client.stats(), pairs.into_inner());
        assert!(stats.renewals >= 3 && pairs > 200, "{pairs}, {stats:?}");
        assert!(guard.is_valid());
        guard.unlock().unwrap();
        nothing_is_left(&server);
    }
}

timed!(closing_keeps_its_deadline_with_the_server_gone);
fn closing_keeps_its_deadline_with_the_server_gone() {
    let mut server = Server::start();
    let client = client(&server.url());
    let guard = client.mutex(unique("held")).lock().unwrap();
    server.kill();
    let closed = in_time("closing", ms(100), || client.close(ms(100)));
    assert!(matches!(closed, Err(Error::Redis { .. })), "{closed:?}");
    assert!(!guard.is_valid());
    in_time("dropping", ms(0), || drop(guard));
}

timed!(closing_does_not_wait_for_a_connection_that_only_a_caller_in_a_hurry_wanted);
fn closing_does_not_wait_for_a_connection_that_only_a_caller_in_a_hurry_wanted() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let client = client(&proxy.url());
    proxy.set(Target::All, Mode::BlackHole);
    proxy.cut(Target::All);
    // `is_locked` leaves no release to be sent, so `close` has nothing to wait for.
    let asked = client.mutex(unique("asked")).is_locked();
    assert!(matches!(asked, Err(Error::Redis { .. })), "{asked:?}");
    let begun = Instant::now();
    client.close(ms(5_000)).unwrap();
    assert!(
        begun.elapsed() < loosely(ms(2_500)),
        "{:?}",
        begun.elapsed()
    );
}

timed!(a_connection_that_went_dead_is_replaced_although_nobody_waits_for_long);
fn a_connection_that_went_dead_is_replaced_although_nobody_waits_for_long() {
    // The network drops the packets of existing connections, as a NAT does that forgot them; new connections work.
    for threads in [1, 4] {
        let server = Server::start();
        let proxy = Proxy::start(server.addr());
        let client = client(&proxy.url());
        drop(client.mutex(unique("first")).lock().unwrap());
        nothing_is_left(&server);
        let opened = proxy.opened(Target::Link);
        proxy.stall_present(Target::All);
        let begun = Instant::now();
        scoped(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    let lock = client.mutex(unique("short"));
                    let mut failed = 0;
                    let guard = loop {
                        match lock.try_lock_for(ms(100)) {
                            Ok(Some(guard)) => break guard,
                            Ok(None) | Err(Error::Redis { .. }) => failed += 1,
                            Err(err) => panic!("{err:?}"),
                        }
                        assert!(begun.elapsed() < loosely(RESPONSE * 8), "no way back");
                    };
                    let took = begun.elapsed();
                    // The first attempt had no reply, and used its whole time.
                    assert!(failed >= 1 && took >= ms(100), "{failed}, {took:?}");
                    assert!(took <= RESPONSE + ms(100) + loosely(SLACK), "{took:?}");
                    assert!(guard.is_valid());
                    guard.unlock().unwrap();
                });
            }
        });
        assert!(proxy.opened(Target::Link) > opened);
        nothing_is_left(&server);
    }
}

timed!(a_connection_that_was_silent_for_one_call_does_not_cost_the_next);
fn a_connection_that_was_silent_for_one_call_does_not_cost_the_next() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let client = Client::open(Config::new(proxy.url())).unwrap();
    let lock = client.mutex(unique("short"));
    drop(lock.lock().unwrap());
    nothing_is_left(&server);
    proxy.black_hole_present(Target::Link);
    // 400 ms is far less than the default `command_timeout`.
    assert!(!matches!(lock.try_lock_for(ms(400)), Ok(Some(_))));
    assert!(lock.try_lock_for(ms(400)).unwrap().is_some());
}

timed!(a_firewall_that_forgets_an_idle_connection_costs_no_lock);
fn a_firewall_that_forgets_an_idle_connection_costs_no_lock() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let client = Client::open(Config::new(proxy.url())).unwrap();
    let lock = client.mutex(unique("idle"));
    lock.lock().unwrap().unlock().unwrap();
    // Leave the connection idle.
    thread::sleep(ms(2_100));
    proxy.black_hole_present(Target::All);
    let opened = proxy.opened(Target::Link);
    let got = lock.try_lock_for(ms(1_000)).unwrap();
    got.expect("it is free").unlock().unwrap();
    assert_eq!(proxy.opened(Target::Link), opened + 1);
}

timed!(a_wait_shorter_than_a_round_trip_takes_long_is_no_error);
fn a_wait_shorter_than_a_round_trip_takes_long_is_no_error() {
    let server = Server::start();
    let name = unique("hot");
    let [hurried, patient, third] = [(); 3].map(|()| client(&server.url()));
    let stop = AtomicBool::new(false);
    let (ok, none) = (AtomicU64::new(0), AtomicU64::new(0));
    scoped(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let lock = hurried.mutex(&name);
                while !stop.load(Ordering::Relaxed) {
                    let count = match lock.try_lock_for(ms(2)).unwrap() {
                        Some(_) => &ok,
                        None => &none,
                    };
                    count.fetch_add(1, Ordering::Relaxed);
                }
            });
            for client in [&patient, &third] {
                let lock = client.mutex(&name);
                let stop = &stop;
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        let guard = lock.lock().unwrap();
                        thread::sleep(Duration::from_micros(500));
                        drop(guard);
                    }
                });
            }
        }
        thread::sleep(ms(1_200));
        stop.store(true, Ordering::Relaxed);
    });
    let (ok, none) = (ok.into_inner(), none.into_inner());
    assert!(none > 20, "{ok}, {none}");
    nothing_is_left(&server);
}

#[test]
#[ignore = "part of a_reply_that_came_while_the_process_was_suspended_counts"]
fn part_that_waits_for_a_reply() {
    let Some([url, name, response, wait]) = &given() else {
        return;
    };
    let [response, wait] = [response, wait].map(|span| ms(span.parse().unwrap()));
    let config = config(url).command_timeout(response).lease(wait + PATIENT);
    let client = Client::open(config).unwrap();
    let lock = client.mutex(name);
    say("ready");
    while order() == "lock" {
        let got = lock.try_lock_for(wait).unwrap();
        say(&format!("got {}", got.is_some()));
        got.map_or(Ok(()), |guard| guard.unlock()).unwrap();
        say(&format!("reconnects {}", client.stats().reconnects));
    }
}

timed!(a_reply_that_came_while_the_process_was_suspended_counts);
fn a_reply_that_came_while_the_process_was_suspended_counts() {
    const OVER: Duration = ms(2_000);
    // The limit that expires while the process is suspended: that of the wait in one case, the `command_timeout` in the
    // other.
    for (response, wait) in [("60000", "2000"), ("4000", "60000")] {
        let server = Server::start();
        let proxy = Proxy::start(server.addr());
        let given = [&proxy.url(), &unique("suspended"), response, wait];
        let mut part = Part::start(part_that_waits_for_a_reply, &given);
        part.says("ready");
        for _ in 0..3 {
            proxy.set(Target::Link, Mode::Delay(LONG));
            part.order("lock");
            eventually("the reply is on its way", || proxy.held() > 0);
            part.stop();
            thread::sleep(OVER);
            proxy.pass();
            eventually("the reply has come", || proxy.held() == 0);
            part.signal(Signal::SIGCONT);
            assert_eq!(part.says("got"), "true", "{given:?}");
            assert_eq!(part.says("reconnects"), "0", "{given:?}");
        }
        part.order("end");
        part.ends();
    }
}
