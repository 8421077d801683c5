//! Servers that reject a client. The reason is reported until a connection succeeds, and no call waits for another
//! attempt.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::unbounded;
use redlatch::{Client, Config, Error};

use crate::support::{
    Deployment, LONG, Mode, Proxy, Server, Target, config, deployments, eventually, in_time,
    loosely, ms, scoped, settings_as, timed, unique,
};

/// Longer than twenty rejections take, and shorter than the pauses after them.
const SOON: Duration = ms(3_000);

#[track_caller]
fn is_refused<T>(result: redlatch::Result<T>, reason: &str) {
    let err = result.map(drop).expect_err("a rejection");
    assert!(matches!(err, Error::Redis { .. }), "{err:?}");
    let said = err.to_string();
    assert!(said.contains(reason) && !err.is_retryable(), "{said}");
}

timed!(no_call_waits_after_a_refusal_and_a_mended_password_lets_the_client_in);
fn no_call_waits_after_a_refusal_and_a_mended_password_lets_the_client_in() {
    scoped(|scope| {
        for deployment in deployments() {
            scope.spawn(move || is_let_in_later(deployment));
        }
    });
}

fn is_let_in_later(deployment: Deployment) {
    let server = Server::start_as(deployment);
    let password = |it: &str| {
        server.cli(&[
            "ACL",
            "SETUSER",
            "locker",
            "on",
            "resetpass",
            it,
            "~*",
            "&*",
            "+@all",
        ]);
    };
    password(">right");
    // The timeouts are so long that no call ends because of them.
    let settings = settings_as(&server, "locker:right@", "").command_timeout(LONG);
    let client = Client::open(settings.connect_timeout(LONG)).unwrap();
    let lock = client.mutex(unique("refused"));
    lock.lock().unwrap().unlock().unwrap();
    password(">other");
    assert!(server.kill_clients_named("link") > 0);
    in_time("twenty calls", loosely(SOON), || {
        for _ in 0..10 {
            is_refused(lock.lock(), "WRONGPASS");
            is_refused(lock.try_lock_for(ms(5_000)), "WRONGPASS");
        }
    });
    password(">right");
    in_time("recovering", loosely(SOON), || {
        eventually("the client is let in", || lock.lock().is_ok());
    });
    // The old reason is gone, so a later loss of the connection does not report it.
    assert!(server.kill_clients_named("link") > 0);
    lock.lock().unwrap().unlock().unwrap();
}

/// The ways in which a server rejects a client: the reason in the error, the login, and the database.
fn refusals() -> Vec<(&'static str, &'static str, &'static str)> {
    vec![
        ("WRONGPASS", "locker:wrong@", ""),
        ("WRONGPASS", "nobody:secret@", ""),
        ("NOAUTH", "", ""),
        ("out of range", "locker:secret@", "9999"),
        ("DENIED", "locker:secret@", ""),
    ]
}

timed!(a_call_that_ends_during_an_attempt_reports_the_last_refusal);
fn a_call_that_ends_during_an_attempt_reports_the_last_refusal() {
    let server = Server::start_with(&["--requirepass", "other"]);
    let user = [
        "ACL", "SETUSER", "locker", "on", ">secret", "~*", "&*", "+@all",
    ];
    let mut con = redis::Client::open(server.url().replace("redis://", "redis://:other@"))
        .and_then(|client| client.get_connection())
        .unwrap();
    let () = redis::cmd(user[0]).arg(&user[1..]).query(&mut con).unwrap();
    scoped(|scope| {
        for (reason, login, db) in refusals() {
            let server = &server;
            scope.spawn(move || keeps_its_reason(server, reason, login, db));
        }
    });
}

fn keeps_its_reason(server: &Server, reason: &str, login: &str, db: &str) {
    let proxy = Proxy::before(server);
    let url = format!(
        "{}{db}",
        proxy.url().replacen("//", &format!("//{login}"), 1)
    );
    if reason == "DENIED" {
        let text = b"-DENIED Redis is running in protected mode\r\n";
        proxy.rewrite_replies(Target::All, |_| text.to_vec());
    }
    proxy.set(Target::All, Mode::Delay(ms(300)));
    let settings = Config::new(url).command_timeout(LONG).connect_timeout(LONG);
    let client = Client::open(settings.lazy()).unwrap();
    let lock = client.mutex(unique("short"));
    is_refused(lock.lock(), reason);
    // Continue long enough for another attempt.
    let until = Instant::now() + ms(2_000);
    while Instant::now() < until {
        is_refused(lock.try_lock_for(ms(30)), reason);
        thread::sleep(ms(5));
    }
    is_refused(lock.try_lock(), reason);
    is_refused(lock.is_locked(), reason);
}

timed!(a_call_that_ends_while_another_master_is_looked_for_reports_the_replica);
fn a_call_that_ends_while_another_master_is_looked_for_reports_the_replica() {
    let server = Server::start_with(&[]);
    let proxy = Proxy::before(&server);
    let client = Client::open(config(&proxy.url())).unwrap();
    let lock = client.mutex(unique("replica"));
    server.cli(&["REPLICAOF", "127.0.0.1", "1"]);
    server.cli(&["CONFIG", "SET", "replica-serve-stale-data", "yes"]);
    proxy.set(Target::All, Mode::Delay(ms(100)));
    let mut refused = 0;
    eventually("some calls are refused", || {
        match lock.try_lock_for(ms(150)) {
            Err(err) => {
                assert!(err.to_string().contains("READONLY"), "{err}");
                assert!(err.is_retryable(), "another master may be elected");
                refused += 1;
            }
            got => assert!(got.unwrap().is_none()),
        }
        refused > 5
    });
}

/// Forwards everything from one connection to the other.
fn carry(from: &TcpStream, target: &TcpStream) {
    let (mut from, mut target) = (from.try_clone().unwrap(), target.try_clone().unwrap());
    thread::spawn(move || {
        io::copy(&mut from, &mut target).ok();
        target.shutdown(Shutdown::Both).ok();
    });
}

timed!(an_attempt_that_takes_long_has_one_beside_it_and_is_used_though_that_is_refused);
fn an_attempt_that_takes_long_has_one_beside_it_and_is_used_though_that_is_refused() {
    let server = Server::start();
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let url = format!("redis://{}/", listener.local_addr().unwrap());
    let settings = Config::new(url).command_timeout(LONG).connect_timeout(LONG);
    let client = Client::open(settings.lazy()).unwrap();
    let name = unique("slow");
    let (told, tells) = unbounded();
    let stands_in = thread::spawn(move || {
        let (mut open, mut made, mut most) = (Vec::new(), 0, 0);
        listener.set_nonblocking(true).unwrap();
        while tells.try_recv().is_err() {
            if let Ok((stream, _)) = listener.accept() {
                stream.set_nonblocking(true).unwrap();
                open.push((stream, Vec::new()));
                made += 1;
            }
            // Keep the greeting of each connection until the client closes it.
            open.retain_mut(|(stream, greeting)| {
                let mut bytes = [0; 1_024];
                let read = stream.read(&mut bytes);
                greeting.extend_from_slice(&bytes[..*read.as_ref().unwrap_or(&0)]);
                !matches!(read, Ok(0))
            });
            most = most.max(open.len());
            thread::sleep(ms(5));
        }
        // From now on no attempt can connect.
        drop(listener);
        assert_eq!(most, 2, "attempts at once");
        assert!(made > 2, "another after the second");
        let (first, greeting) = open.swap_remove(0);
        drop(open);
        first.set_nonblocking(false).unwrap();
        thread::sleep(ms(1_000));
        let mut target = TcpStream::connect(server.addr()).unwrap();
        target.write_all(&greeting).unwrap();
        carry(&first, &target);
        carry(&target, &first);
        tells.recv().ok();
        drop(server);
    });
    assert!(client.mutex(&name).try_lock_for(ms(3_000)).is_err());
    told.send(()).unwrap();
    let guard = client.mutex(&name).try_lock_for(LONG / 2).unwrap().unwrap();
    guard.unlock().unwrap();
    drop((client, told));
    stands_in.join().unwrap();
}
