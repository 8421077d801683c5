use super::*;

use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crossbeam_channel::bounded;

use super::super::housekeeping::tests::{connection, undo};
use crate::net::call::{DeferredInfo, OnReply};
use crate::net::request::Request;
use crate::net::socket::{Duplex, Socket};

pub(in crate::net::connection) const GENEROUS: Duration = Duration::from_secs(60);

struct Panics;

impl OnReply for Panics {
    fn released(&self, _: &DeferredInfo, _: &Value, _: bool) {
        panic!("as it should not");
    }

    fn given_up(&self, _: &DeferredInfo, _: &RedisError) {}
}

/// A connection on which this thread leads and no thread does the housekeeping, and the server's end of it.
pub(in crate::net::connection) fn led() -> (Connection, Reader, UnixStream) {
    led_at(0)
}

/// Like `led`, at one of several nodes.
fn led_at(node: usize) -> (Connection, Reader, UnixStream) {
    let (connection, (client, server)) = (connection(node), UnixStream::pair().expect("a pair"));
    client.set_write_timeout(Some(GLANCE)).expect("a limit");
    server.set_read_timeout(Some(GENEROUS)).expect("a limit");
    let mut state = connection.state.lock();
    connection.install(
        &mut state,
        Duplex::over(Socket::Plain(OwnedFd::from(client).into())),
    );
    let (up, _) = state.up(1).expect("it is up");
    let reader = up.leadership.take_from_anyone().expect("nobody leads");
    drop(state);
    (connection, reader, server)
}

fn send(connection: &Connection) -> Arc<Call> {
    let call = Call::question(Request::command("asking", &["PING"]));
    assert!(connection.send(&call).is_some());
    call
}

/// Appoints the thread that follows, which has not woken up yet.
fn appoint(connection: &Connection, reader: Reader) {
    let mut state = connection.state.lock();
    let (up, in_flight) = state.up(1).expect("it is up");
    assert!(up.leadership.put_back(reader, in_flight).is_some());
}

fn are_followed(calls: &[Arc<Call>]) {
    for call in calls {
        while !call.state.lock().is_followed() {
            thread::yield_now();
        }
    }
}

#[test]
fn whoever_is_to_lead_and_has_to_stop_has_another_lead() {
    let (connection, reader, mut server) = led();
    let calls = [(); 2].map(|()| send(&connection));
    let (stops, until) = (AtomicBool::new(false), Instant::now() + GENEROUS);
    let (done, is_done) = bounded(1);
    let (connection, stops, call) = (&connection, &stops, &calls[0]);
    thread::scope(|scope| {
        let stop = || stops.load(Ordering::SeqCst);
        let first = scope.spawn(move || connection.wait(call, until, &stop));
        scope.spawn(|| done.send(connection.wait(&calls[1], until, &|| false)));
        are_followed(&calls);
        stops.store(true, Ordering::SeqCst);
        connection.step_down(reader, 1, Instant::now(), Served::default());
        let stopped = first.join().expect("it does not panic");
        assert!(matches!(stopped, Err(WaitFault::Stopped)), "{stopped:?}");
        let answers = server.write_all(b"+PONG\r\n+PONG\r\n");
        let answered = is_done.recv_timeout(GENEROUS);
        connection.close();
        answers.expect("it is open");
        assert!(matches!(answered, Ok(Ok(_))), "{answered:?}");
    });
}

#[test]
fn whoever_follows_a_leader_that_panics_does_not_wait_for_ever() {
    let (mut connection, reader, mut server) = led();
    connection.settings.on_reply = Arc::new(Panics);
    let (connection, until) = (&connection, Instant::now() + GENEROUS);
    let name = "n".into();
    assert!(connection.send(&undo(&name, until)).is_some());
    let follows = send(connection);
    let (done, is_done) = bounded(1);
    thread::scope(|scope| {
        let leads = scope.spawn(move || connection.lead(reader, 1, None, Instant::now(), until));
        let call = &follows;
        scope.spawn(move || done.send(connection.wait(call, until, &|| false)));
        are_followed(std::slice::from_ref(call));
        let answer = server.write_all(b":1\r\n");
        let broken = is_done.recv_timeout(GENEROUS);
        connection.close();
        assert!(answer.is_ok() && leads.join().is_err());
        assert!(
            matches!(broken, Ok(Err(WaitFault::NoReply(_)))),
            "{broken:?}"
        );
    });
}

#[test]
fn what_was_left_to_a_thread_that_stops_instead_of_leading_is_written() {
    const PING: usize = b"*1\r\n$4\r\nPING\r\n".len();
    let (connection, reader, mut server) = led();
    let calls = [(); 6].map(|()| send(&connection));
    connection.flush(true);
    server.read_exact(&mut [0; 6 * PING]).expect("all of them");
    let (stops, until) = (AtomicBool::new(false), Instant::now() + GENEROUS);
    let (connection, stops, call) = (&connection, &stops, &calls[0]);
    thread::scope(|scope| {
        let stop = || stops.load(Ordering::SeqCst);
        let waits = scope.spawn(move || connection.wait(call, until, &stop));
        are_followed(&calls[..1]);
        appoint(connection, reader);
        send(connection);
        stops.store(true, Ordering::SeqCst);
        call.wake();
        let stopped = waits.join().expect("it does not panic");
        assert!(matches!(stopped, Err(WaitFault::Stopped)), "{stopped:?}");
    });
    server.read_exact(&mut [0; PING]).expect("it is written");
}

#[test]
fn a_reply_that_has_come_counts_although_another_thread_is_to_read_it() {
    let (connection, reader, mut server) = led();
    let calls = [(); 2].map(|()| send(&connection));
    let until = Instant::now() + GENEROUS;
    let (connection, first) = (&connection, &calls[0]);
    thread::scope(|scope| {
        let waits = scope.spawn(move || connection.wait(first, until, &|| false));
        are_followed(&calls[..1]);
        appoint(connection, reader);
        let answers = server.write_all(b"+PONG\r\n+PONG\r\n");
        let answered = connection.wait(&calls[1], Instant::now(), &|| false);
        first.wake();
        assert!(waits.join().is_ok_and(|answered| answered.is_ok()));
        answers.expect("it is open");
        assert!(answered.is_ok(), "{answered:?}");
    });
}

#[test]
fn who_waits_for_another_node_is_not_to_lead_here() {
    let (elsewhere, _reader, _server) = led_at(0);
    let (connection, reader, mut server) = led_at(1);
    let (elsewhere, moved) = (&elsewhere, &send(&elsewhere));
    let until = Instant::now() + GENEROUS;
    let (done, is_done) = bounded(1);
    let connection = &connection;
    thread::scope(|scope| {
        let waiter = scope.spawn(move || elsewhere.wait(moved, until, &|| false));
        are_followed(std::slice::from_ref(moved));
        assert!(connection.send(moved).is_some());
        // A second thread follows the call here, and times out before the first thread is scheduled.
        let follows = connection.wait(moved, Instant::now() + 4 * GLANCE, &|| false);
        assert!(matches!(follows, Err(WaitFault::TimedOut)), "{follows:?}");
        connection.step_down(reader, 1, Instant::now(), Served::default());
        moved.wake();
        let outcome = waiter.join().expect("it does not panic");
        assert!(matches!(outcome, Err(WaitFault::NoReply(_))), "{outcome:?}");
        let call = send(connection);
        scope.spawn(move || done.send(connection.wait(&call, until, &|| false)));
        let answers = server.write_all(b"+PONG\r\n+PONG\r\n");
        let answered = is_done.recv_timeout(GENEROUS);
        connection.close();
        answers.expect("it is open");
        assert!(matches!(answered, Ok(Ok(_))), "{answered:?}");
    });
}
