//! How waiters learn of a release: by messages, and by polling where messages are missing.

use std::thread;

use crate::support::{
    STRANGER, Server, client, eventually, is_waited_for, ms, nothing_is_left, scoped, timed,
    unique, within,
};

/// The URL of a user who may do everything except `rules`.
fn url_without(server: &Server, rules: &[&str]) -> String {
    let user = [
        &["ACL", "SETUSER", "user", "on", ">pw", "~*", "&*", "+@all"][..],
        rules,
    ]
    .concat();
    let () = server.ask(&user);
    format!("redis://user:pw@127.0.0.1:{}/", server.port())
}

timed!(a_user_without_ping_hears_of_releases_also_after_silence);
fn a_user_without_ping_hears_of_releases_also_after_silence() {
    let server = Server::start();
    let url = url_without(&server, &["-ping"]);
    let (holder, waiter) = (client(&url), client(&url));
    // The second hold is long enough for the client to check whether the silent connection is alive.
    for held in [ms(50), ms(2_700)] {
        let stats_before = waiter.stats();
        is_waited_for(&holder, &waiter, &unique("no-ping"), held);
        let after = waiter.stats();
        assert_eq!(
            after.wakes,
            stats_before.wakes + 1,
            "{stats_before:?}, {after:?}"
        );
        assert_eq!(after.missed_messages, 0);
    }
    assert_eq!(waiter.stats().resubscriptions, 0);
    nothing_is_left(&server);
}

timed!(a_user_without_subscribe_waits_by_asking);
fn a_user_without_subscribe_waits_by_asking() {
    for rules in [&["-subscribe"][..], &["-@pubsub"], &["-ping", "-subscribe"]] {
        let server = Server::start();
        let url = url_without(&server, rules);
        let (holder, waiter) = (client(&url), client(&url));
        for held in [ms(50), ms(400)] {
            is_waited_for(&holder, &waiter, &unique("deaf"), held);
        }
        let stats = waiter.stats();
        assert_eq!(stats.wakes, 0, "{rules:?}: {stats:?}");
        assert_eq!((stats.lost, stats.releases_failed), (0, 0), "{rules:?}");
        nothing_is_left(&server);
    }
}

timed!(a_confirmation_is_no_message_although_there_was_another_connection_before);
fn a_confirmation_is_no_message_although_there_was_another_connection_before() {
    const ROUNDS: u64 = 10;
    let server = Server::start();
    let (holder, waiter) = (client(&server.url()), client(&server.url()));
    let subscribed = || {
        server
            .clients_named("subscriber")
            .iter()
            .any(|client| client.subscriptions == 1)
    };
    let hand_over = |disturb: &dyn Fn()| {
        let name = unique("confirmed");
        let commands = waiter.stats().commands;
        let guard = holder.mutex(&name).lock().unwrap();
        scoped(|scope| {
            let waiting = scope.spawn(|| waiter.mutex(&name).lock().unwrap().unlock().unwrap());
            eventually("the waiter is subscribed", subscribed);
            disturb();
            eventually("the waiter has asked again", || {
                waiter.stats().commands >= commands + 2
            });
            thread::sleep(ms(10)); // time for a wake-up that a confirmation must not cause
            guard.unlock().unwrap();
            waiting.join().unwrap();
        });
        eventually("the subscription has ended", || !subscribed());
    };
    hand_over(&|| {
        assert_eq!(server.kill_clients_named("subscriber"), 1);
        eventually("the waiter is subscribed again", || {
            waiter.stats().resubscriptions == 1 && subscribed()
        });
    });
    let stats_before = waiter.stats();
    for _ in 0..ROUNDS {
        hand_over(&|| {});
    }
    let after = waiter.stats();
    assert_eq!(after.resubscriptions, 1);
    let wakes = after.wakes - stats_before.wakes;
    assert!(
        wakes > ROUNDS / 2 && wakes <= ROUNDS + ROUNDS / 5,
        "{wakes} of {ROUNDS}: {after:?}"
    );
    // A busy reply, another one after the confirmation, a grant, the release, and one in reserve.
    let commands = after.commands - stats_before.commands;
    assert!(commands <= ROUNDS * 5, "{commands}: {after:?}");
    nothing_is_left(&server);
}

timed!(processes_that_take_turns_send_little_more_than_three_commands_each);
fn processes_that_take_turns_send_little_more_than_three_commands_each() {
    const TURNS: u64 = 30;
    let server = Server::start();
    let clients = [client(&server.url()), client(&server.url())];
    let name = unique("turns");
    let sent = || {
        let commands = clients.iter().map(|client| client.stats().commands);
        commands.sum::<u64>() + server.calls("subscribe") + server.calls("unsubscribe")
    };
    let take_turns = |turns: u64| {
        scoped(|scope| {
            for client in &clients {
                scope.spawn(|| {
                    let lock = client.mutex(&name);
                    for _ in 0..turns {
                        let _guard = lock.lock().unwrap();
                        // While one client works, the other begins to wait.
                        thread::sleep(ms(10));
                    }
                });
            }
        });
    };
    take_turns(2);
    let sent_before = sent();
    take_turns(TURNS);
    let sent = sent() - sent_before;
    // Each turn takes a rejected request, a grant and the release. In addition, each client subscribes at the
    // beginning, and the last one runs alone.
    assert!(sent <= 2 * TURNS * 7 / 2, "{sent} for {}", 2 * TURNS);
    for client in &clients {
        let stats = client.stats();
        assert_eq!(stats.missed_messages, 0, "{stats:?}");
        assert!(stats.wakes > TURNS / 2, "{stats:?}");
    }
    nothing_is_left(&server);
}

timed!(a_subscription_that_is_left_behind_ends_soon_also_where_no_message_came);
fn a_subscription_that_is_left_behind_ends_soon_also_where_no_message_came() {
    let server = Server::start();
    let waiter = client(&server.url());
    let subscribed = || {
        server
            .clients_named("subscriber")
            .iter()
            .any(|client| client.subscriptions == 1)
    };
    // The dead holder's lease ends soon after the confirmation of the subscription, or long after.
    for lease_left in ["30", "200"] {
        let ends_soon = || {
            let name = unique("expires");
            let _: u64 = server.ask(&["HSET", &name, STRANGER, "1"]);
            let _: bool = server.ask(&["PEXPIRE", &name, lease_left]);
            let guard = waiter.mutex(&name).lock().unwrap();
            let ends_soon = within(ms(150), || !subscribed());
            drop(guard);
            eventually("the subscription has ended", || !subscribed());
            ends_soon
        };
        assert!((0..10).any(|_| ends_soon()), "after {lease_left} ms");
    }
    assert_eq!(waiter.stats().wakes, 0);
    nothing_is_left(&server);
}
