//! Results of every method while Redis is unreachable, and that everything works again afterwards.

use redlatch::Client;

use crate::support::{
    Data, FAIR_LOCK, Kind, Losses, Mode, Proxy, REENTRANT_LOCK, RESPONSE, Server, Target, bad_day,
    config, eventually, fails, in_time, ms, timed, unique, unless_late,
};

fn network_day(kind: Kind, mode: Mode, target: Target) {
    unless_late(&|| {
        let server = Server::start();
        let proxy = Proxy::start(server.addr());
        bad_day(
            kind,
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

/// A test for each of these faults.
macro_rules! network_days {
    ($kind:path: $($day:ident: $mode:expr, $target:ident;)+) => {
        $(
            #[test]
            fn $day() {
                network_day($kind, $mode, Target::$target);
            }
        )+
    };
}

network_days! { REENTRANT_LOCK:
    a_day_in_a_black_hole: Mode::BlackHole, All;
    a_day_on_which_everything_stalls: Mode::Stall, All;
    a_day_without_replies: Mode::SwallowReplies, All;
    a_day_of_refused_connections: Mode::Refuse, All;
    a_day_of_replies_later_than_anybody_waits: Mode::Delay(RESPONSE * 3), All;
    a_day_without_the_link_alone: Mode::BlackHole, Link;
}

fn day_of_a_kill(kind: Kind) {
    unless_late(&|| {
        let server = Server::start();
        let proxy = Proxy::start(server.addr());
        bad_day(
            kind,
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
    day_of_a_kill(REENTRANT_LOCK);
}

#[test]
fn a_day_on_which_a_queue_and_its_server_are_killed() {
    day_of_a_kill(FAIR_LOCK);
}

timed!(a_day_on_which_the_server_is_frozen);
fn a_day_on_which_the_server_is_frozen() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    bad_day(
        REENTRANT_LOCK,
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
    bad_day(
        REENTRANT_LOCK,
        server,
        &proxy,
        |server, _| {
            let paused = server.connection();
            let () = server.ask(&["CLIENT", "PAUSE", "1200", "ALL"]);
            paused
        },
        |server, _, paused| {
            drop(paused);
            assert_eq!(server.ask::<String>(&["PING"]), "PONG"); // waits for the end of the pause
        },
        Data::Kept,
    );
}

/// The worst of these faults for a kind with scripts of its own: each command may have been executed.
macro_rules! worst_days {
    ($($title:ident: $kind:ident,)+) => {
        $(mod $title {
            use super::*;
            use crate::support::$kind;

            network_days! { $kind:
                a_day_without_replies: Mode::SwallowReplies, All;
            }
        })+
    };
}

worst_days! {
    fair_lock: FAIR_LOCK,
    fenced_lock: FENCED_LOCK,
    writing: WRITING,
    reading: READING,
}

timed!(a_day_as_a_read_only_replica);
fn a_day_as_a_read_only_replica() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    // A replica answers questions, so this test cannot use `bad_day`.
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
    // Long enough for a busy machine to reply.
    fails("try_lock_for", ms(300), || lock.try_lock_for(ms(300)));
    fails("force_unlock", RESPONSE, || {
        client.mutex(&kept).force_unlock()
    });
    assert!(client.mutex(&kept).is_locked().unwrap());
    assert!(client.mutex(&kept).remaining_lease().unwrap().is_some());
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
