//! Bad days: what every verb says and does while Redis is out of reach, and that all is well afterwards.

use redlatch::{Client, FairLock, FencedLock, ReentrantLock};

use crate::support::{
    Data, Lock, Losses, Mode, Proxy, RESPONSE, Reading, Server, Target, Writing, bad_day, config,
    eventually, fails, in_time, ms, timed, unique, unless_late,
};

fn network_day<L: Lock>(mode: Mode, target: Target) {
    unless_late(|| {
        let server = Server::start();
        let proxy = Proxy::start(server.addr());
        bad_day::<L, _>(
            server,
            &proxy,
            |_, proxy| {
                proxy.set(target, mode);
                if mode == Mode::Refuse {
                    proxy.cut(target);
                }
            },
            |_, proxy, ()| proxy.pass(),
            Data::Kept,
        );
    });
}

#[test]
fn a_day_in_a_black_hole() {
    network_day::<ReentrantLock>(Mode::BlackHole, Target::All); // L5, C1
}

#[test]
fn a_day_on_which_everything_stalls() {
    network_day::<ReentrantLock>(Mode::Stall, Target::All); // D1
}

#[test]
fn a_day_without_replies() {
    network_day::<ReentrantLock>(Mode::SwallowReplies, Target::All); // L8, O1
}

#[test]
fn a_day_of_refused_connections() {
    network_day::<ReentrantLock>(Mode::Refuse, Target::All); // C1
}

#[test]
fn a_day_of_replies_later_than_anybody_waits() {
    network_day::<ReentrantLock>(Mode::Delay(RESPONSE * 3), Target::All); // C1, D1
}

#[test]
fn a_day_without_the_link_alone() {
    network_day::<ReentrantLock>(Mode::BlackHole, Target::Link); // C1
}

fn day_of_a_kill<L: Lock>() {
    unless_late(|| {
        let server = Server::start();
        let proxy = Proxy::start(server.addr());
        bad_day::<L, _>(
            server,
            &proxy,
            |server, _| server.kill(),
            |server, _, ()| server.restart(),
            Data::Gone,
        );
    });
}

#[test]
fn a_day_on_which_the_server_is_killed_and_comes_back_empty() {
    day_of_a_kill::<ReentrantLock>();
}

timed!(a_day_on_which_the_server_is_frozen);
fn a_day_on_which_the_server_is_frozen() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    bad_day::<ReentrantLock, _>(
        server,
        &proxy,
        |server, _| server.freeze(),
        |server, _, ()| server.thaw(),
        Data::Kept,
    );
}

timed!(a_day_on_which_the_server_answers_nobody_for_a_while);
fn a_day_on_which_the_server_answers_nobody_for_a_while() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    bad_day::<ReentrantLock, _>(
        server,
        &proxy,
        |server, _| {
            let paused = server.connection();
            let () = server.ask(&["CLIENT", "PAUSE", "1200", "ALL"]);
            paused
        },
        |server, _, paused| {
            drop(paused);
            assert_eq!(server.ask::<String>(&["PING"]), "PONG"); // after the pause
        },
        Data::Kept,
    );
}

/// The worst of those days for a kind with scripts of its own.
macro_rules! worst_days {
    ($($kind:ident: $lock:ty),+) => {
        $(mod $kind {
            use super::*;

            #[test]
            fn a_day_without_replies() {
                network_day::<$lock>(Mode::SwallowReplies, Target::All); // L8, O1
            }

            #[test]
            fn a_day_on_which_everything_stalls() {
                network_day::<$lock>(Mode::Stall, Target::All); // D1, F4
            }

            #[test]
            fn a_day_on_which_the_server_is_killed_and_comes_back_empty() {
                day_of_a_kill::<$lock>();
            }
        })+
    };
}

worst_days!(
    fair_lock: FairLock,
    fenced_lock: FencedLock,
    writing: Writing,
    reading: Reading
);

timed!(a_day_as_a_read_only_replica);
fn a_day_as_a_read_only_replica() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    // Answers questions, so that this is not a day like the others.
    let received = Losses::default();
    let client = Client::open(config(&proxy.url()).on_lost(received.listener())).unwrap();
    let (kept, other) = (unique("replica"), unique("replica"));
    let keeper = client.mutex(&kept).lock().unwrap();
    let dropped = client.mutex(&other).lock().unwrap();
    let dead = crate::support::free_port().to_string();
    let () = server.ask(&["REPLICAOF", "127.0.0.1", &dead]);
    let lock = client.mutex(unique("replica"));
    fails("lock", RESPONSE, || lock.lock());
    fails("try_lock", RESPONSE, || lock.try_lock());
    // Long enough for an answer from a busy machine.
    fails("try_lock_for", ms(300), || lock.try_lock_for(ms(300)));
    fails("force_unlock", RESPONSE, || {
        client.mutex(&kept).force_unlock()
    });
    assert!(client.mutex(&kept).is_locked().unwrap());
    assert!(client.mutex(&kept).remaining().unwrap().is_some());
    in_time("dropping", ms(0), || drop(dropped));
    let () = server.ask(&["REPLICAOF", "NO", "ONE"]);
    in_time("lock", RESPONSE, || lock.lock())
        .unwrap()
        .unlock()
        .unwrap();
    eventually("what was dropped is gone", || server.keys() == [&*kept]);
    let renewals = client.stats().renewals;
    eventually("it is renewed", || client.stats().renewals > renewals);
    keeper.unlock().unwrap();
    assert!(received.reasons(&kept).is_empty());
}
