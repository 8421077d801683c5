use super::*;

use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::thread;

use super::super::housekeeping::tests::undo;
use super::super::leading::tests::{GENEROUS, led};
use super::super::writing::tests::{large, unled};
use crate::net::call::Call;
use crate::net::request::Request;
use crate::net::socket::Socket;

const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";

fn ping(connection: &Connection) -> Arc<Call> {
    let call = Call::question(Request::command("asking", &["PING"]));
    assert!(connection.send(&call).is_some());
    connection.flush(true);
    call
}

fn is_pinged(server: &mut UnixStream) {
    let mut asked = [0; PING.len()];
    server.read_exact(&mut asked).expect("a command");
    assert_eq!(asked, PING);
}

/// A connection that was greeted, and the server's end of it.
fn successor() -> (Duplex, UnixStream) {
    let (client, server) = UnixStream::pair().expect("a pair");
    server.set_read_timeout(Some(GENEROUS)).expect("a limit");
    (
        Duplex::over(Socket::Plain(OwnedFd::from(client).into())),
        server,
    )
}

fn has_taken_over(connection: &Connection) -> bool {
    let mut state = connection.state.lock();
    state.up(1).expect("it is up").0.successor.is_none()
}

fn is_closed(mut server: UnixStream) {
    let mut rest = Vec::new();
    server.read_to_end(&mut rest).expect("its end");
    assert!(rest.is_empty(), "{rest:?}");
}

#[test]
fn a_successor_takes_over_between_two_replies_whichever_thread_reads_the_last() {
    for leads_for_first in [true, false] {
        let ((connection, reader, mut old), (next, mut new)) = (led(), successor());
        let first = ping(&connection);
        is_pinged(&mut old);
        connection.succeed(1, next);
        let second = ping(&connection);
        let leads_for = match leads_for_first {
            true => &first,
            false => &second,
        };
        let (connection, now) = (&connection, Instant::now());
        let until = now + GENEROUS;
        thread::scope(|scope| {
            scope.spawn(move || connection.lead(reader, 1, Some(leads_for), now, until));
            old.write_all(b"+PONG\r\n").expect("it is open");
            is_pinged(&mut new);
        });
        assert!(matches!(first.outcome(), Some(Ok(_))));
        new.write_all(b"+PONG\r\n").expect("it is open");
        let answered = connection.wait(&second, until, &|| false);
        assert!(answered.is_ok(), "{answered:?}");
        is_closed(old);
        assert_eq!(second.state.lock().sendings, 1);
    }
}

#[test]
fn housekeeping_reads_what_is_due_before_a_successor_takes_over() {
    let (connection, mut old, woken) = unled();
    let (next, mut new) = successor();
    let useful_until = Instant::now() + GENEROUS;
    let release = || undo(&"name".into(), useful_until);
    assert!(connection.send(&release()).is_some());
    connection.succeed(1, next);
    woken.take();
    let second = release();
    assert!(connection.send(&second).is_some());
    assert!(woken.take() > 0, "no thread leads");
    old.write_all(b":0\r\n").expect("it is open");
    while !has_taken_over(&connection) && Instant::now() < useful_until {
        connection.housekeep();
    }
    new.write_all(b":0\r\n").expect("it is open");
    while second.outcome().is_none() && Instant::now() < useful_until {
        connection.housekeep();
    }
    assert!(matches!(second.outcome(), Some(Ok(_))));
}

#[test]
fn a_successor_takes_over_at_once_from_a_connection_that_is_idle() {
    let ((connection, old, _), (next, mut new)) = (unled(), successor());
    // A thread that looks for news may still have the old socket.
    let writer = connection
        .state
        .lock()
        .up(1)
        .map(|(up, _)| Arc::clone(&up.writer));
    connection.succeed(1, next);
    is_closed(old);
    drop(writer);
    ping(&connection);
    is_pinged(&mut new);
    // A successor of a connection that was lost is not needed.
    connection.fail(1, &socket::timed_out("lost"), false);
    let (next, late) = successor();
    connection.succeed(1, next);
    is_closed(late);
    assert_eq!(connection.generation(), None);
}

#[test]
fn a_command_that_waits_for_a_successor_is_sent_over_the_connection_that_its_sender_knows() {
    let ((connection, mut old, _), (next, mut new)) = (unled(), successor());
    let first = ping(&connection);
    is_pinged(&mut old);
    connection.succeed(1, next);
    let call = Call::question(Request::command("asking", &["PING"]));
    let sent = connection.send(&call).expect("a connection");
    old.write_all(b"+PONG\r\n").expect("it is open");
    let until = Instant::now() + GENEROUS;
    assert!(connection.wait(&first, until, &|| false).is_ok());
    is_pinged(&mut new);
    new.write_all(b"+PONG\r\n").expect("it is open");
    assert!(connection.wait(&call, until, &|| false).is_ok());
    // The reply says that its server is no master any more.
    connection.leave_when_answered(sent, &socket::timed_out("no master"));
    assert_eq!(connection.generation(), None);
    is_closed(new);
}

#[test]
fn a_command_that_is_written_in_part_is_written_to_its_end_before_a_successor_takes_over() {
    let ((connection, mut old, _), (next, mut new)) = (unled(), successor());
    let call = large();
    let mut bytes = Vec::new();
    call.request.write(&mut bytes, false);
    assert!(connection.send(&call).is_some());
    connection.succeed(1, next);
    let (connection, until) = (&connection, Instant::now() + GENEROUS);
    thread::scope(|scope| {
        scope.spawn(move || {
            let read = old.read_exact(&mut bytes);
            old.write_all(b"+PONG\r\n").expect("it is open");
            read.expect("the whole command");
        });
        while !has_taken_over(connection) && Instant::now() < until {
            connection.housekeep();
        }
    });
    ping(connection);
    is_pinged(&mut new);
}

#[test]
fn a_successor_is_sent_the_texts_of_scripts() {
    let ((connection, mut old, _), (next, mut new)) = (unled(), successor());
    let release = undo(&"name".into(), Instant::now() + GENEROUS);
    let says_eval = |server: &mut UnixStream| {
        let mut begins = [0; 14];
        server.read_exact(&mut begins).expect("a command");
        assert!(begins.ends_with(b"$4\r\nEVAL\r\n"), "{begins:?}");
    };
    assert!(connection.send(&release).is_some());
    says_eval(&mut old);
    old.write_all(b":0\r\n").expect("it is open");
    connection
        .wait(&release, Instant::now() + GENEROUS, &|| false)
        .expect("a reply");
    // With Sentinels the successor may lead to another server.
    connection.succeed(1, next);
    assert!(
        connection
            .send(&undo(&"name".into(), Instant::now() + GENEROUS))
            .is_some()
    );
    says_eval(&mut new);
}
