//! The faults that tests inject are real: what [`Server`] and [`Proxy`] do to a plain connection.

use std::cell::Cell;
use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use redis::{Connection, RedisResult};

use crate::support::{
    Mode, Proxy, Server, Target, connection_to, eventually, free_port, lateness, lateness_since,
    logs, loosely, ms, repeated, rss_kib, scoped, thread_count, threads_named, try_connection_to,
    unique, within,
};

/// Longer than a reply on loopback takes; a test that expects no reply waits for this long.
const PATIENCE: Duration = ms(300);

/// The name that redlatch gives to its connection for this purpose, as the proxy recognises it.
fn name_of(role: &str) -> String {
    format!("redlatch:id:host:1:shop:{role}")
}

fn named(url: &str, role: &str) -> Connection {
    let mut con = connection_to(url);
    let () = redis::cmd("CLIENT")
        .arg("SETNAME")
        .arg(name_of(role))
        .query(&mut con)
        .unwrap();
    con
}

fn incr(con: &mut Connection, key: &str) -> RedisResult<i64> {
    redis::cmd("INCR").arg(key).query(con)
}

#[track_caller]
fn assert_unanswered(con: &mut Connection, key: &str) {
    con.set_read_timeout(Some(PATIENCE)).unwrap();
    let err = incr(con, key).unwrap_err();
    assert!(err.is_timeout(), "{err:?}");
    con.set_read_timeout(Some(ms(5_000))).unwrap();
}

#[track_caller]
fn assert_closed(result: RedisResult<i64>) {
    let err = result.unwrap_err();
    assert!(err.is_io_error() && !err.is_timeout(), "{err:?}");
}

#[test]
fn a_server_comes_back_empty_on_its_port() {
    let mut server = Server::start();
    let (port, pid) = (server.port(), server.pid());
    let mut con = server.connection();
    assert_eq!(incr(&mut con, "n").unwrap(), 1);
    server.kill();
    assert_closed(incr(&mut con, "n"));
    assert!(try_connection_to(&server.url()).is_err());
    server.restart();
    assert_eq!((server.port(), server.dbsize()), (port, 0));
    assert_ne!(server.pid(), pid);
    server.restart();
    assert_eq!(incr(&mut server.connection(), "n").unwrap(), 1);
}

#[test]
fn a_killed_server_can_be_dropped() {
    let mut server = Server::start();
    server.kill();
    server.kill();
}

#[test]
fn a_server_that_another_test_had_is_as_good_as_new() {
    for _ in 0..5 {
        let server = Server::start();
        assert_eq!(server.dbsize(), 0);
        assert_eq!((server.calls("set"), server.calls("script|load")), (0, 0));
        let mut con = server.connection();
        assert_eq!(incr(&mut con, "n").unwrap(), 1);
        let () = redis::cmd("SELECT").arg(1).query(&mut con).unwrap();
        let () = redis::cmd("SET").arg("k").arg("v").query(&mut con).unwrap();
        let known: Vec<bool> = server.ask(&["SCRIPT", "EXISTS", &"0".repeat(40)]);
        assert_eq!(known, [false]);
        server.cli(&["SCRIPT", "LOAD", "return 1"]);
    }
}

#[test]
fn a_server_that_was_changed_or_is_in_use_ends_with_its_test() {
    let lasts = |server: Server| {
        let process = format!("/proc/{}", server.pid());
        assert!(std::path::Path::new(&process).exists());
        drop(server);
        std::path::Path::new(&process).exists()
    };
    let changed: [fn(&mut Server); 6] = [
        |server| drop(server.cli(&["CONFIG", "SET", "maxmemory", "1gb"])),
        |server| drop(server.cli(&["ACL", "SETUSER", "somebody", "on"])),
        |server| drop(server.cli(&["CLIENT", "PAUSE", "1"])),
        |server| drop(server.cli(&["REPLICAOF", "NO", "ONE"])),
        |server| server.restart(),
        |server| {
            server.freeze();
            server.thaw();
        },
    ];
    for change in changed {
        let mut server = Server::start();
        change(&mut server);
        assert!(!lasts(server));
    }
    let server = Server::start();
    let connected = server.connection();
    assert!(!lasts(server));
    drop(connected);
    assert!(!lasts(Server::start_with(&[])));
}

#[test]
fn a_frozen_server_answers_once_thawed() {
    let server = Server::start();
    let mut con = connection_to(&server.url());
    server.freeze();
    assert_unanswered(&mut con, "n");
    server.thaw();
    eventually("the request is served late", || server.get_int("n") == 1);
    server.freeze();
}

#[test]
fn a_server_takes_arguments_and_keeps_them() {
    let mut server = Server::start_with(&["--requirepass", "secret"]);
    assert!(server.try_ask::<String>(&["PING"]).is_err());
    server.restart();
    let err = server.try_ask::<String>(&["PING"]).unwrap_err();
    assert_eq!(err.code(), Some("NOAUTH"));
    let mut con = connection_to(&format!("redis://:secret@127.0.0.1:{}/", server.port()));
    assert_eq!(incr(&mut con, "n").unwrap(), 1);
}

#[test]
fn a_server_listens_on_a_unix_socket_too() {
    let server = Server::start();
    assert_eq!(
        incr(&mut connection_to(&server.unix_url()), "n").unwrap(),
        1
    );
    assert_eq!(server.get_int("n"), 1);
}

#[test]
fn what_a_server_holds_and_did_can_be_asked() {
    let server = Server::start();
    let total = server.command_total();
    let () = server.ask(&["HSET", "h", "b", "2", "a", "1"]);
    let () = server.ask(&["PEXPIRE", "h", "60000"]);
    assert_eq!(server.command_total(), total + 2);
    assert_eq!(
        (
            server.calls("hset"),
            server.calls("HSET"),
            server.calls("get")
        ),
        (1, 1, 0)
    );
    assert_eq!(
        server.hgetall("h"),
        [("a".into(), "1".into()), ("b".into(), "2".into())]
    );
    assert!((1..=60_000).contains(&server.pttl("h")));
    assert_eq!((server.pttl("none"), server.get_int("none")), (-2, 0));
    assert!(server.exists("h") && !server.exists("none"));
    assert_eq!((server.keys(), server.dbsize()), (vec!["h".into()], 1));
}

#[test]
fn clients_are_found_and_killed_by_name() {
    let server = Server::start();
    let mut link = named(&server.url(), "link");
    let mut watchdog = named(&server.url(), "watchdog");
    let found = server.clients_named("link");
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].name, name_of("link"));
    assert_eq!(server.clients_named("").len(), 2);
    assert_eq!(server.kill_clients_named("link"), 1);
    assert_closed(incr(&mut link, "n"));
    assert_eq!(incr(&mut watchdog, "n").unwrap(), 1);
}

#[test]
fn a_proxy_passes() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let mut con = connection_to(&proxy.url());
    let long = "x".repeat(3 << 20);
    let () = redis::cmd("SET")
        .arg("k")
        .arg(&long)
        .query(&mut con)
        .unwrap();
    let back: String = redis::cmd("GET").arg("k").query(&mut con).unwrap();
    assert!(back == long, "{} bytes came back", back.len());
    assert_eq!(
        (proxy.connections(Target::All), proxy.opened(Target::All)),
        (1, 1)
    );
    assert_eq!(proxy.dropped(), 0);
    // The proxy updates its count of held bytes only after it has written them.
    eventually("nothing is held back", || proxy.held() == 0);
    drop(con);
    eventually("the proxy sees it go", || {
        proxy.connections(Target::All) == 0
    });
}

#[test]
fn a_black_hole_loses_requests_and_its_connections_stay_silent() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let mut con = connection_to(&proxy.url());
    let mut idle = connection_to(&proxy.url());
    assert_eq!(incr(&mut idle, "m").unwrap(), 1);
    proxy.set(Target::All, Mode::BlackHole);
    assert_unanswered(&mut con, "n");
    assert!(proxy.dropped() > 0);
    let newcomer = std::net::TcpStream::connect(proxy.addr()).unwrap();
    eventually("a newcomer is accepted", || {
        proxy.connections(Target::All) == 3
    });
    drop(newcomer);
    proxy.pass();
    assert_unanswered(&mut con, "n");
    assert_eq!(incr(&mut idle, "m").unwrap(), 2); // the idle connection had sent nothing into the black hole
    assert_eq!(incr(&mut connection_to(&proxy.url()), "n").unwrap(), 1);
}

#[test]
fn a_black_hole_hides_that_the_server_went() {
    let mut server = Server::start();
    let proxy = Proxy::start(server.addr());
    let mut con = connection_to(&proxy.url());
    proxy.set(Target::All, Mode::BlackHole);
    server.kill();
    assert_unanswered(&mut con, "n");
    let mut newcomer = std::net::TcpStream::connect(proxy.addr()).unwrap();
    newcomer.set_read_timeout(Some(PATIENCE)).unwrap();
    let read = std::io::Read::read(&mut newcomer, &mut [0; 8]);
    assert_eq!(read.unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[test]
fn that_the_server_went_is_passed_on() {
    let mut server = Server::start();
    let proxy = Proxy::start(server.addr());
    let mut con = connection_to(&proxy.url());
    assert_eq!(incr(&mut con, "n").unwrap(), 1);
    server.kill();
    assert_closed(incr(&mut con, "n"));
    assert!(try_connection_to(&proxy.url()).is_err());
    server.restart();
    assert_eq!(incr(&mut connection_to(&proxy.url()), "n").unwrap(), 1);
}

#[test]
fn a_stall_delivers_late_even_for_a_client_that_left() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let mut con = connection_to(&proxy.url());
    assert_eq!(incr(&mut con, "n").unwrap(), 1);
    proxy.set(Target::All, Mode::Stall);
    assert_unanswered(&mut con, "n");
    assert!(proxy.held() > 0);
    drop(con);
    eventually("the proxy sees it go", || {
        proxy.connections(Target::All) == 0
    });
    assert_eq!(server.get_int("n"), 1);
    proxy.pass();
    eventually("the late request arrives", || server.get_int("n") == 2);
    eventually("nothing is held", || proxy.held() == 0);
}

#[test]
fn a_stalled_connection_goes_on_in_step() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let mut con = connection_to(&proxy.url());
    proxy.set(Target::All, Mode::Stall);
    scoped(|scope| {
        let answer = scope.spawn(|| (incr(&mut con, "n"), incr(&mut con, "n")));
        eventually("the request is held", || proxy.held() > 0);
        assert_eq!(server.get_int("n"), 0);
        proxy.pass();
        let (first, second) = answer.join().unwrap();
        assert_eq!((first.unwrap(), second.unwrap()), (1, 2));
    });
}

#[test]
fn swallowed_replies_leave_their_requests_done() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let mut con = connection_to(&proxy.url());
    proxy.set(Target::All, Mode::SwallowReplies);
    assert_unanswered(&mut con, "n");
    assert_eq!(server.get_int("n"), 1);
    proxy.pass();
    assert_unanswered(&mut con, "other");
    assert_eq!(incr(&mut connection_to(&proxy.url()), "n").unwrap(), 2);
}

#[test]
fn a_delay_is_at_least_that_long_and_keeps_order() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let mut con = connection_to(&proxy.url());
    for (mode, least) in [
        (Mode::Delay(ms(120)), ms(120)),
        (Mode::DelayBoth(ms(60)), ms(120)),
    ] {
        proxy.set(Target::All, mode);
        let begun = Instant::now();
        let got: (i64, i64) = redis::pipe()
            .cmd("INCR")
            .arg("n")
            .cmd("INCR")
            .arg("n")
            .query(&mut con)
            .unwrap();
        assert!(begun.elapsed() >= least, "{mode:?}");
        assert_eq!(got.0 + 1, got.1);
    }
    assert_eq!(server.get_int("n"), 4);
}

#[test]
fn refusing_closes_newcomers_and_spares_the_rest() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let mut con = connection_to(&proxy.url());
    assert_eq!(incr(&mut con, "n").unwrap(), 1);
    proxy.set(Target::All, Mode::Refuse);
    assert!(try_connection_to(&proxy.url()).is_err());
    assert_eq!(incr(&mut con, "n").unwrap(), 2);
    assert_eq!(proxy.opened(Target::All), 2);
    proxy.pass();
    assert_eq!(incr(&mut connection_to(&proxy.url()), "n").unwrap(), 3);
}

#[test]
fn cutting_resets_both_sides_at_once() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let mut con = named(&proxy.url(), "link");
    let mut dead = named(&proxy.url(), "link");
    let mut raw = std::net::TcpStream::connect(proxy.addr()).unwrap();
    eventually("it is accepted", || proxy.connections(Target::All) == 3);
    proxy.set(Target::All, Mode::SwallowReplies);
    assert_unanswered(&mut dead, "n");
    proxy.pass();
    assert_eq!(proxy.cut(Target::All), 3);
    let err = std::io::Read::read(&mut raw, &mut [0]).unwrap_err();
    assert_eq!(err.kind(), ErrorKind::ConnectionReset);
    assert_eq!(proxy.connections(Target::All), 0);
    assert_closed(incr(&mut con, "n"));
    assert_closed(incr(&mut dead, "n"));
    eventually("the server sees them go", || {
        server.clients_named("").is_empty()
    });
    assert_eq!(incr(&mut connection_to(&proxy.url()), "n").unwrap(), 2);
}

#[test]
fn a_fault_is_for_its_target_alone() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let mut link = named(&proxy.url(), "link");
    let mut watchdog = named(&proxy.url(), "watchdog");
    let mut subscriber = named(&proxy.url(), "subscriber");
    let mut other = connection_to(&proxy.url());
    for target in [Target::Link, Target::Watchdog, Target::Subscriber] {
        assert_eq!((proxy.connections(target), proxy.opened(target)), (1, 1));
    }
    assert_eq!(proxy.connections(Target::All), 4);
    assert_eq!(proxy.opened(Target::All), 4);
    proxy.set(Target::Watchdog, Mode::BlackHole);
    assert_unanswered(&mut watchdog, "w");
    assert_eq!(incr(&mut link, "n").unwrap(), 1);
    assert_eq!(proxy.cut(Target::Link), 1);
    assert_closed(incr(&mut link, "n"));
    assert_eq!(incr(&mut subscriber, "n").unwrap(), 2);
    assert_eq!(incr(&mut other, "n").unwrap(), 3);
    proxy.set(Target::Link, Mode::Refuse);
    let mut late = connection_to(&proxy.url());
    let refused: RedisResult<i64> = redis::cmd("CLIENT")
        .arg("SETNAME")
        .arg(name_of("link"))
        .query(&mut late);
    assert_closed(refused);
    assert_eq!(
        (proxy.connections(Target::Link), proxy.opened(Target::Link)),
        (0, 2)
    );
}

#[test]
fn a_trap_swallows_the_reply_of_its_request_alone() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let trap = proxy.swallow_reply_to("needle");
    let mut con = connection_to(&proxy.url());
    let mut witness = connection_to(&proxy.url());
    assert_eq!(incr(&mut con, "hay").unwrap(), 1);
    assert!(!trap.fired());
    assert_unanswered(&mut con, "needle");
    assert!(trap.fired());
    assert_eq!(server.get_int("needle"), 1);
    assert_unanswered(&mut con, "hay");
    assert_eq!(incr(&mut witness, "needle").unwrap(), 2); // the trap fires once
}

#[test]
fn a_trap_loses_its_request_alone() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let mut con = connection_to(&proxy.url());
    let mut witness = connection_to(&proxy.url());
    let trap = proxy.black_hole_request(b"needle");
    assert_eq!(incr(&mut con, "hay").unwrap(), 1);
    assert_unanswered(&mut con, "needle");
    assert!(trap.fired());
    assert_unanswered(&mut con, "hay");
    assert_eq!(incr(&mut witness, "needle").unwrap(), 1);
    assert_eq!(server.get_int("hay"), 1);
    let disarmed = proxy.black_hole_request("needle");
    proxy.pass();
    assert_eq!(incr(&mut witness, "needle").unwrap(), 2);
    assert!(!disarmed.fired());
}

#[test]
fn a_trap_springs_across_chunks() {
    use std::io::{Read, Write};
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let trap = proxy.swallow_reply_to("needle");
    let mut raw = std::net::TcpStream::connect(proxy.addr()).unwrap();
    raw.set_nodelay(true).unwrap();
    raw.write_all(b"PING\r\nINCR nee").unwrap();
    let mut pong = [0; 7];
    raw.read_exact(&mut pong).unwrap(); // so the proxy has forwarded the first half on its own
    raw.write_all(b"dle\r\n").unwrap();
    eventually("it springs", || trap.fired());
    eventually("the request is served", || server.get_int("needle") == 1);
}

#[test]
fn a_dropped_proxy_leaves_no_connection_behind() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let url = proxy.url();
    let mut con = named(&url, "link");
    proxy.set(Target::All, Mode::Stall);
    assert_unanswered(&mut con, "n");
    drop(proxy);
    assert_closed(incr(&mut con, "n"));
    assert!(try_connection_to(&url).is_err());
    eventually("the server sees it go", || {
        server.clients_named("").is_empty()
    });
}

#[test]
fn logs_are_heard() {
    let logs = logs();
    let name = unique("log");
    log::log!(log::Level::Warn, "lost `{name}`");
    log::log!(log::Level::Debug, "lost `{name}` again");
    assert_eq!(logs.about(&name).len(), 2);
    assert_eq!(logs.count(log::Level::Warn, &name), 1);
}

#[test]
fn this_process_can_be_measured() {
    let name = unique("rl");
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::Builder::new()
        .name("measured-thread-long".into())
        .spawn(move || stopped.recv())
        .unwrap();
    eventually("it has its name", || {
        threads_named("measured-thread-long") == 1
    });
    assert!(thread_count() >= 2);
    assert!(rss_kib() > 100);
    assert_ne!(name, unique("rl"));
    assert_ne!(free_port(), 0);
    drop(stop);
    assert!(thread.join().unwrap().is_err());
    assert_eq!(threads_named("measured-thread-long"), 0);
    assert!(!within(ms(1), || false));
}

#[test]
fn what_fails_once_or_on_a_late_machine_is_repeated() {
    let attempts = |late: u64, fails: u32| {
        let (attempts, reports) = (Cell::new(0), Cell::new(0));
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            repeated(
                &|_| ms(late),
                &|| {
                    attempts.set(attempts.get() + 1);
                    assert!(attempts.get() > fails, "on purpose");
                },
                &|_| reports.set(reports.get() + 1),
            );
        }));
        assert_eq!(reports.get() + 1, attempts.get());
        (outcome.is_ok(), attempts.get())
    };
    assert_eq!(attempts(1000, 0), (true, 1));
    assert_eq!(attempts(0, 1), (true, 2));
    assert_eq!(attempts(0, 2), (false, 2));
    assert_eq!(attempts(1000, 2), (true, 3));
    assert_eq!(attempts(1000, 1000), (false, 5));
}

#[test]
fn how_late_the_machine_is_can_be_measured() {
    let started_at = Instant::now();
    eventually("it is measured", || {
        lateness_since(started_at) > Duration::ZERO
    });
    let since = lateness_since(started_at);
    assert!(lateness() >= since);
    assert!(loosely(ms(100)) > ms(100));
}

#[test]
#[should_panic(expected = "not within 10s: pigs fly")]
#[ignore = "waits ten seconds in vain"]
fn eventually_gives_up() {
    eventually("pigs fly", || false);
}
