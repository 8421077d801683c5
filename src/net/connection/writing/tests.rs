use super::*;

use std::io::Read as _;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::super::housekeeping::tests::undo;
use super::super::leading::tests::{GENEROUS, led};
use crate::net::connection::{Housekeeper, WorkLeft};
use crate::net::request::Request;

/// More than a socket takes.
const MUCH: usize = 16 * 1024 * 1024;

/// How often housekeeping was woken at once.
#[derive(Default)]
pub(in crate::net::connection) struct Woken(AtomicUsize);

impl Housekeeper for Woken {
    fn housekeep_soon(&self) {}

    fn housekeep_now(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Woken {
    pub(in crate::net::connection) fn take(&self) -> usize {
        self.0.swap(0, Ordering::SeqCst)
    }
}

/// A connection on which no thread leads.
pub(in crate::net::connection) fn unled() -> (Arc<Connection>, UnixStream, Arc<Woken>) {
    let (mut connection, reader, server) = led();
    let woken = Arc::new(Woken::default());
    connection.settings.housekeeper = Arc::clone(&woken) as _;
    connection.max_silence = GENEROUS;
    let (up, in_flight) = connection.state.get_mut().up(1).expect("it is up");
    assert!(up.leadership.put_back(reader, in_flight).is_none());
    (Arc::new(connection), server, woken)
}

fn ping() -> Arc<Call> {
    Call::question(Request::command("asking", &["PING"]))
}

/// A command that is more than the socket takes.
pub(in crate::net::connection) fn large() -> Arc<Call> {
    Call::question(Request::command("asking", &["ECHO", &"x".repeat(MUCH)]))
}

fn unwritten(connection: &Connection) -> usize {
    let mut state = connection.state.lock();
    state.up(1).expect("it is up").1.unwritten.bytes.len()
}

#[test]
fn housekeeping_is_woken_for_bytes_that_no_thread_goes_on_to_write() {
    let (connection, mut server, woken) = unled();
    let connection = &connection;
    let (mut bytes_left, mut was_woken) = (0, false);
    thread::scope(|scope| {
        scope.spawn(move || while server.read(&mut [0; 4096]).is_ok_and(|read| read > 0) {});
        for _ in 0..500 {
            thread::scope(|scope| {
                let send = || {
                    for _ in 0..200 {
                        connection.send(&ping());
                    }
                };
                for _ in 0..3 {
                    scope.spawn(send);
                }
            });
            (bytes_left, was_woken) = (unwritten(connection), woken.take() > 0);
            if bytes_left > 0 {
                break;
            }
        }
        connection.close();
    });
    // On one core there may be nothing left in any round.
    assert!(
        bytes_left == 0 || was_woken,
        "{bytes_left} bytes are left to nobody"
    );
}

#[test]
fn housekeeping_writes_once_a_full_socket_takes_bytes_again() {
    let (connection, mut server, woken) = unled();
    assert!(connection.send(&large()).is_some());
    assert_eq!(woken.take(), 1, "no other thread writes the rest");
    assert_eq!(connection.housekeep(), WorkLeft::Soon);
    let useful_until = Instant::now() + GENEROUS;
    let kept = undo(&"name".into(), useful_until);
    assert!(connection.send(&kept).is_none() && woken.take() == 0);
    let connection = &connection;
    thread::scope(|scope| {
        scope.spawn(move || while server.read(&mut [0; 4096]).is_ok_and(|read| read > 0) {});
        while unwritten(connection) > 0 && Instant::now() < useful_until {
            assert!(connection.housekeep() >= WorkLeft::Soon);
        }
        // The thread that writes the rest does not send the release.
        let was_woken = woken.take() > 0;
        connection.housekeep();
        let is_kept = connection.state.lock().pipeline.owes();
        let bytes_left = unwritten(connection);
        connection.close();
        assert!(
            was_woken && !is_kept && bytes_left == 0,
            "{was_woken} {is_kept} {bytes_left}"
        );
    });
}

#[test]
fn a_leader_that_fills_the_socket_looks_soon_whether_a_silent_server_reads_again() {
    let (connection, mut server, _) = unled();
    assert!(connection.submit(&large()).is_some());
    let all = unwritten(&connection);
    let reader = connection
        .state
        .lock()
        .up(1)
        .and_then(|(up, _)| up.leadership.take_from_anyone());
    let (reader, connection) = (reader.expect("nobody leads"), &connection);
    thread::scope(|scope| {
        let now = Instant::now();
        scope.spawn(move || connection.lead(reader, 1, None, now, now + 2 * GENEROUS));
        let is_full = || {
            connection
                .state
                .lock()
                .up(1)
                .is_none_or(|(_, in_flight)| in_flight.unwritten.is_full())
        };
        while !is_full() {
            thread::yield_now();
        }
        // The server reads, and answers nothing.
        let read = server.read_exact(&mut vec![0; all]);
        connection.close();
        drop(server);
        assert!(read.is_ok(), "{read:?}");
    });
}
