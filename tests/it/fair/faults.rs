//! Faults while threads wait for a fair lock: of the network, of the server, and the closing of a client.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::bounded;
use redlatch::{CancelToken, Client, Config, Error, LossReason};

use crate::support::fair::{Line, nothing_left, queue, queued, timeouts, with_waiter_lease};
use crate::support::scripts::sha;
use crate::support::{
    BY_MESSAGE, Crew, LONG, Mode, Net, Server, Stops, Target, always, eventually, loosely, lua, ms,
    open, scoped, timed, unique, within,
};

/// How long Redis keeps the place of a waiter that is no longer heard of.
const WAITER_LEASE: Duration = ms(1_000);

/// A `command_timeout`; a lost request costs half of it.
const RESPONSE: Duration = ms(600);

/// Extra time for a busy machine, in tests that run many steps at once.
const SLACK: Duration = ms(1_000);

fn acquire_sha() -> String {
    sha(lua::FAIR_ACQUIRE)
}

fn release_sha() -> String {
    sha(lua::FAIR_RELEASE)
}

/// A network whose clients have these settings, have used every script, and have no subscription.
fn warm(response: Duration, waiter_lease: Duration) -> Net {
    warm_with(response, waiter_lease, |config| config)
}

fn warm_with(response: Duration, waiter_lease: Duration, more: fn(Config) -> Config) -> Net {
    let config = |config: Config| {
        let config = config.command_timeout(response);
        more(config.waiter_lease(waiter_lease))
    };
    let net = Net::of(Server::start(), config, config);
    let lock = net.client.fair_lock(&net.name);
    let other = net.other.fair_lock(&net.name).lock().unwrap();
    // On a busy machine 50 ms may pass without a reply.
    assert!(!matches!(lock.try_lock_for(ms(50)), Ok(Some(_))));
    other.unlock().unwrap();
    lock.lock().unwrap().unlock().unwrap();
    eventually("nobody listens", || net.client.stats().subscriptions == 0);
    nothing_left(&net.server);
    net
}

/// The point in a wait at which the fault happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    FirstQuestion,
    Subscription,
    SecondQuestion,
    Park,
}

/// The fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Cut,
    LostRequest,
    LostReply,
}

const FAULTS: [Fault; 3] = [Fault::Cut, Fault::LostRequest, Fault::LostReply];

/// Runs each fault at each step; the steps run at the same time.
fn at_each_step(case: impl Fn(Step, Fault) + Sync) {
    let steps = [
        Step::FirstQuestion,
        Step::Subscription,
        Step::SecondQuestion,
        Step::Park,
    ];
    scoped(|scope| {
        for step in steps {
            let case = &case;
            scope.spawn(move || {
                for fault in FAULTS {
                    case(step, fault);
                }
            });
        }
    });
}

impl Net {
    fn link_is_silent_with_a_reply_held(&self) {
        eventually("a reply is held back", || self.proxy.held() > 0);
    }

    /// Configures the network so that the next wait can be caught at `step`.
    fn prepare(&self, step: Step) {
        match step {
            Step::SecondQuestion => {
                // A late confirmation leaves time to see the waiter in the queue before it asks a second time.
                self.proxy.set(Target::Subscriber, Mode::Delay(ms(150)));
            }
            _ => self.proxy.pass(),
        }
    }

    /// Waits until a wait that has begun is about to reach `step`; the first two steps need no waiting.
    fn reach(&self, step: Step, asked: u64) {
        match step {
            Step::FirstQuestion | Step::Subscription => {}
            Step::SecondQuestion => queued(&self.server, &self.name, 1),
            Step::Park => eventually("it has asked twice", || {
                self.server.calls("evalsha") >= asked + 2
            }),
        }
    }

    fn target(step: Step) -> Target {
        match step {
            Step::FirstQuestion | Step::SecondQuestion => Target::Link,
            Step::Subscription => Target::Subscriber,
            Step::Park => Target::All,
        }
    }
}

// After a permanent fault the call ends in time, and waiters behind it are held up for a waiter lease at most.
timed!(whatever_fails_for_good_the_wait_ends_in_time_and_its_place_soon_after);
fn whatever_fails_for_good_the_wait_ends_in_time_and_its_place_soon_after() {
    const WAIT: Duration = ms(700);
    at_each_step(|step, fault| {
        let case = format!("{fault:?} at {step:?}");
        // A timeout so long that no call ends because of it.
        let net = warm(LONG, WAITER_LEASE);
        let target = Net::target(step);
        let guard = net.other.fair_lock(&net.name).lock().unwrap();
        let asked = net.server.calls("evalsha");
        let fail = || match fault {
            Fault::Cut => {
                net.proxy.set(target, Mode::Refuse);
                net.proxy.cut(target);
            }
            Fault::LostRequest => net.proxy.set(target, Mode::BlackHole),
            Fault::LostReply => net.proxy.set(target, Mode::SwallowReplies),
        };
        net.prepare(step);
        let early = matches!(step, Step::FirstQuestion | Step::Subscription);
        let between = fault == Fault::Cut && step == Step::FirstQuestion;
        if between {
            net.proxy.set(target, Mode::Delay(LONG));
        } else if early {
            fail();
        }
        let lock = net.client.fair_lock(&net.name);
        scoped(|scope| {
            let waiting = scope.spawn(|| {
                let begun = Instant::now();
                let granted = lock.try_lock_for(WAIT).map(|guard| guard.is_some());
                (granted, begun.elapsed())
            });
            if between {
                net.link_is_silent_with_a_reply_held();
                fail();
            } else if !early {
                net.reach(step, asked);
                fail();
            }
            let (granted, time_taken) = waiting.join().unwrap();
            assert!(time_taken < WAIT + loosely(SLACK), "{case}: {time_taken:?}");
            match granted {
                Ok(granted) => assert!(!granted, "{case}"),
                Err(err) => assert!(matches!(err, Error::Redis { .. }), "{case}: {err:?}"),
            }
        });
        if step == Step::Subscription {
            // The link is intact, so the waiter leaves the queue at once.
            let gone = within(WAITER_LEASE / 2, || {
                queue(&net.server, &net.name).is_empty()
            });
            assert!(gone, "{case}");
        }
        let ended = Instant::now();
        drop(guard);
        let next = net.other.fair_lock(&net.name).try_lock_for(LONG).unwrap();
        let took = ended.elapsed();
        assert!(took < WAITER_LEASE + loosely(SLACK), "{case}: {took:?}");
        next.unwrap_or_else(|| panic!("{case}: not served"))
            .unlock()
            .unwrap();
        nothing_left(&net.server);
        // Everything works again afterwards.
        net.proxy.pass();
        net.proxy.cut(Target::All);
        lock.lock().unwrap().unlock().unwrap();
        nothing_left(&net.server);
        assert_eq!(net.client.stats().lost, 0);
    });
}

// A waiter keeps its place through a single fault.
timed!(whatever_fails_once_costs_a_waiter_nothing_but_time);
fn whatever_fails_once_costs_a_waiter_nothing_but_time() {
    at_each_step(|step, fault| {
        let case = format!("{fault:?} at {step:?}");
        // Generous times, so that a busy machine does not add the loss of a place to the fault.
        let net = warm(ms(1_500), 3 * WAITER_LEASE);
        let target = Net::target(step);
        let guard = net.other.fair_lock(&net.name).lock().unwrap();
        let asked = net.server.calls("evalsha");
        let needle = match step {
            Step::Subscription => "SUBSCRIBE".to_owned(),
            _ => acquire_sha(),
        };
        let arm = || match fault {
            Fault::Cut => {
                // Hold replies back, so that the cut happens between a request and its reply. A parked waiter has no
                // request under way.
                if step != Step::Park {
                    net.proxy.set(target, Mode::Delay(LONG));
                }
                None
            }
            Fault::LostRequest => Some(net.proxy.black_hole_request(&needle)),
            Fault::LostReply => Some(net.proxy.swallow_reply_to(&needle)),
        };
        net.prepare(step);
        let early = matches!(step, Step::FirstQuestion | Step::Subscription);
        let armed = early.then(arm);
        let mut line = Line::new(&net.server, &net.name);
        line.join_with(net.client.fair_lock(&net.name));
        let armed = armed.unwrap_or_else(|| {
            net.reach(step, asked);
            arm()
        });
        match armed {
            Some(trap) => eventually("it sprang", || trap.fired()),
            None => {
                if step != Step::Park {
                    net.link_is_silent_with_a_reply_held();
                    net.proxy.set(target, Mode::Pass);
                }
                net.proxy.cut(target);
            }
        }
        // A waiter without a reply to its first request asks again, and may then have another place.
        let subscribed = || net.client.stats().subscriptions == 1;
        eventually("it listens", subscribed);
        let first = queue(&net.server, &net.name);
        assert_eq!(first.len(), 1, "{case}");
        line.join_with(net.other.fair_lock(&net.name));
        // Long enough for every delayed request to arrive.
        thread::sleep(ms(800));
        assert!(line.received.is_empty(), "{case}");
        let stood = queue(&net.server, &net.name);
        assert_eq!((stood.len(), &stood[0]), (2, &first[0]), "{case}");
        assert_eq!(timeouts(&net.server, &net.name).len(), 2, "{case}");
        net.proxy.pass();
        drop(guard);
        line.served_in_order();
        nothing_left(&net.server);
        assert_eq!(net.client.stats().lost, 0);
    });
}

// The command that gives up a place is repeated until Redis acknowledges it.
timed!(a_place_is_given_up_although_the_word_of_it_is_lost);
fn a_place_is_given_up_although_the_word_of_it_is_lost() {
    for lost in [Fault::LostRequest, Fault::LostReply, Fault::Cut] {
        let net = warm(RESPONSE, WAITER_LEASE);
        let guard = net.other.fair_lock(&net.name).lock().unwrap();
        let lock = net.client.fair_lock(&net.name);
        let trap = match lost {
            Fault::LostRequest => Some(net.proxy.black_hole_request(release_sha())),
            Fault::LostReply => Some(net.proxy.swallow_reply_to(release_sha())),
            Fault::Cut => None,
        };
        let token = CancelToken::new();
        let cancelled = lock.clone().cancel_on(&token);
        scoped(|scope| {
            scope.spawn(|| assert!(matches!(cancelled.lock(), Err(Error::Cancelled))));
            queued(&net.server, &net.name, 1);
            if trap.is_none() {
                net.proxy.set(Target::Link, Mode::Refuse);
                net.proxy.cut(Target::Link);
            }
            token.cancel();
        });
        match trap {
            Some(trap) => eventually("it sprang", || trap.fired()),
            None => net.proxy.pass(),
        }
        let gone = within(WAITER_LEASE + loosely(SLACK), || {
            queue(&net.server, &net.name).is_empty()
        });
        assert!(gone, "{lost:?}");
        assert!(timeouts(&net.server, &net.name).is_empty());
        drop(guard);
        nothing_left(&net.server);
    }
}

// A request on an abandoned connection arrives after its sender has acquired the lock by a later request.
timed!(a_question_that_arrives_late_takes_nothing_from_its_sender);
fn a_question_that_arrives_late_takes_nothing_from_its_sender() {
    let net = warm(ms(1_500), WAITER_LEASE);
    for asks in 0..3 {
        let guard = net.other.fair_lock(&net.name).lock().unwrap();
        let lock = net.client.fair_lock(&net.name);
        let held = AtomicBool::new(false);
        scoped(|scope| {
            net.proxy.stall_present(Target::Link);
            let waiting = scope.spawn(|| {
                let guard = lock.lock().unwrap();
                held.store(true, Ordering::SeqCst);
                eventually("all has arrived", || net.proxy.held() == 0);
                let owner = guard.owner().to_owned();
                let stays = !within(ms(200), || {
                    net.server.hgetall(&net.name) != [(owner.clone(), "1".to_owned())]
                });
                assert!(stays, "after {asks} more questions");
                assert!(guard.is_valid());
                guard.unlock().unwrap();
            });
            queued(&net.server, &net.name, 1);
            // Each round waits until more of the later requests have been answered.
            let commands_before = net.client.stats().commands;
            eventually("it has asked more", || {
                net.client.stats().commands >= commands_before + asks
            });
            drop(guard);
            eventually("it has the lock", || held.load(Ordering::SeqCst));
            net.proxy.pass();
            waiting.join().unwrap();
        });
        // The late request may have left a place in the queue, which lasts for a waiter lease.
        let next = net
            .other
            .fair_lock(&net.name)
            .try_lock_for(WAITER_LEASE + loosely(SLACK));
        next.unwrap().expect("the lock").unlock().unwrap();
        nothing_left(&net.server);
    }
    assert_eq!(net.client.stats().lost, 0);
}

// An attempt that was never sent needs no undo, nor does an attempt that the server rejected.
timed!(trying_again_and_again_leaves_nothing_to_be_sent_later);
fn trying_again_and_again_leaves_nothing_to_be_sent_later() {
    const TRIES: u64 = 150;
    let mut server = Server::start();
    let client = open(&server);
    let lock = client.fair_lock(unique("backlog"));
    let scripts = |server: &Server| server.calls("evalsha");
    lock.lock().unwrap().unlock().unwrap();
    server.kill();
    for _ in 0..TRIES {
        assert!(lock.try_lock_for(ms(1)).is_err());
    }
    server.restart();
    lock.lock().unwrap().unlock().unwrap();
    // Queued releases would be sent first over the new connection.
    let sent = scripts(&server);
    assert!(sent < TRIES / 10, "{sent} scripts");

    server.cli(&["CONFIG", "SET", "lua-time-limit", "10"]);
    let (mut refused, mut unanswered) = (0, 0);
    // Doubled after a timeout, so that a late machine gets some replies, too.
    let mut moment = ms(2);
    scoped(|scope| {
        let busy = scope.spawn(|| server.try_ask::<()>(&["EVAL", "while true do end", "0"]));
        let mut con = server.connection();
        let is_busy = |con: &mut redis::Connection| {
            let ping = redis::cmd("PING").query::<String>(con);
            ping.is_err_and(|err| err.code() == Some("BUSY"))
        };
        eventually("it is busy", || is_busy(&mut con));
        let begun = Instant::now();
        while refused < TRIES / 3 {
            assert!(begun.elapsed() < 6 * LONG, "refused {refused} times");
            let commands_before = client.stats().commands;
            match lock.try_lock_for(moment) {
                Err(_) => {
                    refused += 1;
                    // An attempt makes two requests at once. A third command undoes the second, which had no reply in
                    // time.
                    unanswered += u64::from(client.stats().commands > commands_before + 2);
                    moment = (moment / 2).max(ms(2));
                }
                Ok(got) => {
                    assert!(got.is_none());
                    unanswered += 1;
                    moment *= 2;
                }
            }
        }
        let () = redis::cmd("SCRIPT").arg("KILL").query(&mut con).unwrap();
        assert!(busy.join().unwrap().is_err());
    });
    lock.lock().unwrap().unlock().unwrap();
    // Closing sends what is still queued.
    client.close(LONG).unwrap();
    let sent = scripts(&server) - sent;
    // An attempt without a reply may have run, and is undone.
    let most = TRIES / 10 + 2 * unanswered;
    assert!(sent < most, "{sent} scripts, {unanswered} unanswered");
    nothing_left(&server);
}

// A lost message delays a waiter until its next poll.
timed!(a_lost_message_is_made_good);
fn a_lost_message_is_made_good() {
    // Every hand-over between threads takes a message, since there is no tenure.
    let net = warm_with(RESPONSE, WAITER_LEASE, |config| {
        config.tenure(Duration::ZERO)
    });
    // The connection ends just before the release, so the message reaches nobody.
    let guard = net.other.fair_lock(&net.name).lock().unwrap();
    let mut line = Line::new(&net.server, &net.name);
    let (go, turn) = bounded::<()>(0);
    let lock = net.client.fair_lock(&net.name);
    line.join(move |here| {
        let guard = lock.lock().unwrap();
        here();
        turn.recv().unwrap();
        guard.unlock().unwrap();
    });
    line.join_with(net.client.fair_lock(&net.name));
    line.all_parked();
    assert_eq!(net.server.kill_clients_named("subscriber"), 1);
    let begun = Instant::now();
    drop(guard);
    eventually("the other one listens again", || {
        net.client.stats().resubscriptions >= 1
    });
    go.send(()).unwrap();
    line.served_in_order();
    assert!(
        begun.elapsed() < loosely(ms(2_500)),
        "{:?}",
        begun.elapsed()
    );
    assert!(net.client.stats().resubscriptions >= 1);

    // A silent connection gives no sign that messages are lost. Both hand-overs wait for a poll.
    let rescues = net.client.stats().missed_messages;
    let guard = net.other.fair_lock(&net.name).lock().unwrap();
    let mut line = Line::new(&net.server, &net.name);
    for _ in 0..2 {
        line.join_with(net.client.fair_lock(&net.name));
    }
    line.all_parked();
    net.proxy.set(Target::Subscriber, Mode::BlackHole);
    let begun = Instant::now();
    drop(guard);
    line.served_in_order();
    // A waiter polls 1 s after its request, and again 2 s later: the first poll of the second may precede the release of
    // the first. The pings of the subscriber wake no waiter.
    let took = begun.elapsed();
    assert!(took < ms(1_000 + 2_000) + loosely(SLACK), "{took:?}");
    assert!(net.client.stats().missed_messages > rescues);
    nothing_left(&net.server);
}

// A place needs no subscription: a client that is cut off for less than a waiter lease keeps its place; after that it
// is passed.
timed!(one_that_is_cut_off_keeps_its_place_for_a_waiter_lease);
fn one_that_is_cut_off_keeps_its_place_for_a_waiter_lease() {
    const WAITER_LEASE: Duration = ms(1_500);
    for (away, order) in [(ms(300), [0, 1]), (2 * WAITER_LEASE, [1, 0])] {
        let net = warm(LONG, WAITER_LEASE);
        let guard = net.other.fair_lock(&net.name).lock().unwrap();
        let mut line = Line::new(&net.server, &net.name);
        line.join_with(net.client.fair_lock(&net.name));
        line.join_with(net.other.fair_lock(&net.name));
        line.all_parked();
        net.proxy.set(Target::All, Mode::Refuse);
        net.proxy.cut(Target::All);
        let released = Instant::now();
        guard.unlock().unwrap();
        if order == [1, 0] {
            assert_eq!(line.received.recv_timeout(LONG), Ok(1));
            let took = released.elapsed();
            // The last sign of life may be a third of a waiter lease old, and the next waiter asks after another third.
            assert!(took > WAITER_LEASE / 2, "{took:?}");
            assert!(took < WAITER_LEASE * 4 / 3 + loosely(SLACK), "{took:?}");
        } else {
            thread::sleep(away);
            assert!(line.received.is_empty());
        }
        net.proxy.pass();
        line.crew.join();
        let rest: Vec<_> = line.received.try_iter().collect();
        assert_eq!(rest, order[order.len() - rest.len()..]);
        nothing_left(&net.server);
    }
}

timed!(those_who_cannot_listen_ask_once_a_second_while_the_lock_is_held);
fn those_who_cannot_listen_ask_once_a_second_while_the_lock_is_held() {
    const WAITERS: u64 = 4;
    let net = warm(LONG, LONG);
    let guard = net.other.fair_lock(&net.name).lock().unwrap();
    net.proxy.set(Target::Subscriber, Mode::Refuse);
    net.proxy.cut(Target::Subscriber);
    let mut line = Line::new(&net.server, &net.name);
    for _ in 0..WAITERS {
        line.join_with(net.client.fair_lock(&net.name));
    }
    let (begun, asked) = (Instant::now(), net.server.calls("evalsha"));
    eventually("each has asked three times", || {
        net.server.calls("evalsha") >= asked + 3 * WAITERS
    });
    // The pause before a poll is up to a quarter shorter than 1 s, and the first waiter began earlier.
    let took = begun.elapsed();
    assert!(took >= 2 * ms(750), "{took:?}");
    net.proxy.pass();
    guard.unlock().unwrap();
    line.served_in_order();
    nothing_left(&net.server);
}

// Waiters without the right to subscribe poll, and keep a place each.
timed!(a_user_who_may_not_listen_keeps_one_place);
fn a_user_who_may_not_listen_keeps_one_place() {
    let server = Server::start();
    let name = unique("deaf");
    for rule in [
        &[
            "deaf",
            "on",
            ">pw",
            "~*",
            "+@all",
            "-subscribe",
            "allchannels",
        ][..],
        &["mute", "on", ">pw", "~*", "+@all", "resetchannels"],
    ] {
        server.cli(&[&["ACL", "SETUSER"], rule].concat());
        let url = format!("redis://{}:pw@127.0.0.1:{}/", rule[0], server.port());
        let client = Client::open(&*url).unwrap();
        let guard = client.fair_lock(&name).lock().unwrap();
        let mut line = Line::new(&server, &name);
        for _ in 0..2 {
            line.join_with(client.fair_lock(&name));
        }
        thread::sleep(ms(300));
        assert_eq!(queue(&server, &name).len(), 2);
        let begun = Instant::now();
        guard.unlock().unwrap();
        line.served_in_order();
        // Each waiter polls on its own, with pauses of 1 s at first.
        assert!(begun.elapsed() < loosely(LONG), "{:?}", begun.elapsed());
        nothing_left(&server);
    }
}

// The hold lasts longer than the place of a silent waiter.
timed!(a_long_hold_does_not_wear_the_queue_out);
fn a_long_hold_does_not_wear_the_queue_out() {
    let server = Server::start();
    let name = unique("long");
    let clients = [(); 3].map(|()| with_waiter_lease(&server.url(), WAITER_LEASE));
    let guard = clients[0].fair_lock(&name).lock().unwrap();
    let mut line = Line::new(&server, &name);
    for i in 0..12 {
        line.join_with(clients[i % 3].fair_lock(&name));
    }
    let stood = queue(&server, &name);
    let until = Instant::now() + 3 * WAITER_LEASE;
    while Instant::now() < until {
        assert_eq!(queue(&server, &name), stood);
        thread::sleep(ms(50));
    }
    assert!(line.received.is_empty());
    drop(guard);
    line.served_in_order();
    nothing_left(&server);
}

// ---------------------------------------------------------------------------------------------------------------------
// The server
// ---------------------------------------------------------------------------------------------------------------------

#[test]
fn a_server_that_comes_back_with_its_data_has_kept_the_queue() {
    let mut server = Server::start_with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let name = unique("kept");
    let clients = [open(&server), open(&server)];
    let guard = clients[0].fair_lock(&name).lock().unwrap();
    let mut line = Line::new(&server, &name);
    for i in 0..20 {
        line.join_with(clients[i % 2].fair_lock(&name));
    }
    line.all_parked();
    let stood = queue(&server, &name);
    server.restart();
    eventually("it has read its data", || {
        server.try_ask::<u64>(&["DBSIZE"]).is_ok()
    });
    assert_eq!(queue(&server, &name), stood);
    eventually("all listen again", || {
        let clients = server.clients_named("subscriber");
        let listening: u64 = clients.iter().map(|client| client.subscriptions).sum();
        listening == 20
    });
    line.all_parked();
    assert!(guard.is_valid() && line.received.is_empty());
    assert_eq!(queue(&server, &name), stood);
    guard.unlock().unwrap();
    line.served_in_order();
    nothing_left(&server);
}

timed!(a_server_that_comes_back_empty_serves_everybody_one_after_another);
fn a_server_that_comes_back_empty_serves_everybody_one_after_another() {
    let mut server = Server::start();
    let name = unique("empty");
    let clients = [open(&server), open(&server)];
    let guard = clients[0].fair_lock(&name).lock().unwrap();
    let mut line = Line::new(&server, &name);
    let inside = std::sync::Arc::new(AtomicBool::new(false));
    for i in 0..20 {
        let (lock, inside) = (
            clients[i % 2].fair_lock(&name),
            std::sync::Arc::clone(&inside),
        );
        line.join(move |here| {
            let guard = lock.lock().unwrap();
            always(!inside.swap(true, Ordering::SeqCst), "two are inside");
            here();
            thread::sleep(ms(3));
            inside.store(false, Ordering::SeqCst);
            guard.unlock().unwrap();
        });
    }
    line.all_parked();
    server.restart();
    let begun = Instant::now();
    line.crew.join();
    assert!(
        begun.elapsed() < loosely(ms(5_000)),
        "{:?}",
        begun.elapsed()
    );
    let mut served: Vec<_> = line.received.try_iter().collect();
    served.sort_unstable();
    assert_eq!(served, (0..20).collect::<Vec<_>>());
    // The previous holder learns of its loss.
    let lost = guard.unlock().unwrap_err();
    assert!(
        matches!(&lost, Error::Lost { reason, .. } if *reason != LossReason::Expired),
        "{lost:?}"
    );
    nothing_left(&server);
}

// After a freeze that exceeds the waiter lease, no waiter counts as dead.
timed!(a_server_that_was_frozen_for_longer_than_a_waiter_lease_has_kept_the_queue);
fn a_server_that_was_frozen_for_longer_than_a_waiter_lease_has_kept_the_queue() {
    let server = Server::start();
    let name = unique("frozen");
    let clients = [(); 2].map(|()| {
        let config = Config::new(server.url()).command_timeout(ms(6_000));
        Client::open(config.waiter_lease(WAITER_LEASE)).unwrap()
    });
    let guard = clients[0].fair_lock(&name).lock().unwrap();
    let mut line = Line::new(&server, &name);
    for i in 0..20 {
        line.join_with(clients[i % 2].fair_lock(&name));
    }
    line.all_parked();
    let stood = queue(&server, &name);
    // Twice, since after the first freeze all waiters have renewed their places.
    for _ in 0..2 {
        server.freeze();
        thread::sleep(2 * WAITER_LEASE);
        server.thaw();
        eventually("it answers", || guard.is_valid() && server.exists(&name));
        thread::sleep(WAITER_LEASE);
        assert_eq!(queue(&server, &name), stood);
    }
    guard.unlock().unwrap();
    line.served_in_order();
    nothing_left(&server);
}

// After a pause of the server, threads with short limits get the lock again, however many they are.
timed!(threads_with_little_time_go_on_after_a_pause_of_the_server);
fn threads_with_little_time_go_on_after_a_pause_of_the_server() {
    let server = Server::start();
    let lock = open(&server).fair_lock(unique("hasty"));
    let (done, granted) = (AtomicBool::new(false), AtomicU64::new(0));
    scoped(|scope| {
        let _stops = Stops(&done);
        for _ in 0..12 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    if let Ok(Some(_guard)) = lock.try_lock_for(ms(20)) {
                        granted.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        let go_on = |what| {
            let granted_before = granted.load(Ordering::Relaxed);
            let begun = Instant::now();
            eventually(what, || {
                granted.load(Ordering::Relaxed) >= granted_before + 20
            });
            begun.elapsed()
        };
        go_on("they take turns");
        server.freeze();
        thread::sleep(ms(300));
        server.thaw();
        let time_taken = go_on("they go on");
        assert!(time_taken < loosely(ms(1_500)), "{time_taken:?}");
        done.store(true, Ordering::Relaxed);
    });
    nothing_left(&server);
}

// ---------------------------------------------------------------------------------------------------------------------
// The end of a client
// ---------------------------------------------------------------------------------------------------------------------

timed!(closing_takes_a_hundred_out_of_the_queue);
fn closing_takes_a_hundred_out_of_the_queue() {
    const WAITERS: usize = 100;
    let server = Server::start();
    let name = unique("close");
    let (client, other) = (open(&server), open(&server));
    let guard = other.fair_lock(&name).lock().unwrap();
    let mut crew = Crew::new();
    for i in 0..WAITERS {
        let (lock, mutex) = (client.fair_lock(&name), client.fair_mutex(&name));
        crew.spawn(move || {
            let ended = match i % 3 {
                0 => lock.lock().map(drop),
                1 => mutex.try_lock_for(LONG * 6).map(drop),
                _ => lock.with(|_| ()),
            };
            assert!(matches!(ended, Err(Error::Closed)), "{ended:?}");
        });
    }
    queued(&server, &name, WAITERS);
    let mut line = Line::new(&server, &name);
    line.join_with(other.fair_lock(&name));
    line.all_parked();
    crew.all_parked();
    let begun = Instant::now();
    client.close(LONG).unwrap();
    assert!(
        begun.elapsed() < loosely(ms(2_000)),
        "{:?}",
        begun.elapsed()
    );
    // By the time `close` returns, not later.
    assert_eq!(queue(&server, &name).len(), 1);
    assert_eq!(timeouts(&server, &name).len(), 1);
    crew.join();
    let begun = Instant::now();
    drop(guard);
    assert_eq!(line.received.recv_timeout(LONG), Ok(0));
    assert!(
        begun.elapsed() < loosely(BY_MESSAGE),
        "{:?}",
        begun.elapsed()
    );
    line.crew.join();
    nothing_left(&server);
}
