//! Which events an observer receives, and when.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread::{self, ThreadId};
use std::time::Duration;

use crossbeam_channel::bounded;
use redlatch::{
    Acquired, CancelToken, Client, Error, ExpirableSemaphore, Loss, LossReason, MultiLock,
    Observer, RedLock, RefusalReason, Refused, Released, StatKind,
};

use crate::support::{
    Crew, Deployment, Dice, Mode, Proxy, Server, Target, deployment, eventually, loosely, ms, open,
    scoped, settings, settings_by, subscribed, timed, unique,
};

/// An event: what happened, name, kind, and details.
type Event = (&'static str, String, &'static str, String);

#[derive(Clone, Default)]
struct Ears(Arc<Mutex<Vec<(ThreadId, Event)>>>);

impl Ears {
    fn hear(&self, what: &'static str, name: &str, kind: &'static str, more: String) {
        let event = (what, name.to_owned(), kind, more);
        self.0.lock().unwrap().push((thread::current().id(), event));
    }

    fn heard(&self) -> Vec<Event> {
        let heard = self.0.lock().unwrap();
        heard.iter().map(|(_, event)| event.clone()).collect()
    }

    /// Takes the events about locks, all of which must have come on this thread: what happened, kind, and details.
    #[track_caller]
    fn take_own(&self) -> Vec<(&'static str, &'static str, String)> {
        let heard = std::mem::take(&mut *self.0.lock().unwrap());
        let of_locks = (heard.into_iter()).filter(|(_, (what, ..))| *what != "up");
        let own_events = of_locks.map(|(thread, (what, _, kind, more))| {
            assert_eq!(thread, thread::current().id());
            (what, kind, more)
        });
        own_events.collect()
    }
}

impl Observer for Ears {
    fn acquired(&self, event: &Acquired<'_>) {
        assert!(event.waited < Duration::from_secs(60));
        let more = if event.handed_over { "handed over" } else { "" };
        self.hear("acquired", event.name, event.kind, more.into());
    }

    fn refused(&self, event: &Refused<'_>) {
        self.hear("refused", event.name, event.kind, event.reason.to_string());
    }

    fn released(&self, event: &Released<'_>) {
        let more = if event.held >= ms(30) { "long" } else { "" };
        self.hear("released", event.name, event.kind, more.into());
    }

    fn lost(&self, loss: &Loss) {
        self.hear("lost", &loss.name, "", format!("{:?}", loss.reason));
    }

    fn server_down(&self, server: &str, why: &str) {
        assert!(!why.is_empty());
        self.hear("down", server, "", String::new());
    }

    fn server_up(&self, server: &str) {
        self.hear("up", server, "", String::new());
    }
}

fn with_ears(server: &Server) -> (Client, Ears) {
    let ears = Ears::default();
    (
        Client::open(settings(server).observer(Arc::new(ears.clone()))).unwrap(),
        ears,
    )
}

fn plain<const N: usize>(
    events: [(&'static str, &'static str, &str); N],
) -> Vec<(&'static str, &'static str, String)> {
    events
        .map(|(what, kind, more)| (what, kind, more.to_owned()))
        .to_vec()
}

timed!(every_kind_is_heard_to_be_acquired_and_released);
fn every_kind_is_heard_to_be_acquired_and_released() {
    let server = Server::start();
    let (client, ears) = with_ears(&server);
    let both = |kind| plain([("acquired", kind, ""), ("released", kind, "")]);
    macro_rules! each {
        ($($kind:literal: $lock:ident;)+) => {$(
            drop(client.$lock(unique("a")).lock().unwrap());
            assert_eq!(ears.take_own(), both($kind), "dropped");
            client.$lock(unique("a")).lock().unwrap().unlock().unwrap();
            assert_eq!(ears.take_own(), both($kind), "unlocked");
        )+};
    }
    each! {
        "mutex": mutex;
        "reentrant": reentrant_lock;
        "fair": fair_lock;
        "fenced": fenced_lock;
        "spin": spin_lock;
    }
    let prices = client.rw_lock(unique("rw"));
    drop(prices.read().unwrap());
    assert_eq!(ears.take_own(), both("read-write"));
    prices.write().unwrap().unlock().unwrap();
    assert_eq!(ears.take_own(), both("read-write"));
    let semaphore = client.semaphore(unique("s"));
    semaphore.try_set_permits(2).unwrap();
    drop(semaphore.acquire().unwrap());
    assert_eq!(ears.take_own(), both("semaphore"));
    semaphore.acquire().unwrap().forget();
    assert_eq!(ears.take_own(), plain([("acquired", "semaphore", "")]));
    let slots = client.expirable_semaphore(unique("e"));
    slots.try_set_permits(2).unwrap();
    slots.acquire().unwrap().release().unwrap();
    assert_eq!(ears.take_own(), both("permits"));
    // Each member of a multi-lock has its events; attempts in between have none.
    let names = [unique("one"), unique("two")];
    drop(client.multi_lock(&names).lock().unwrap());
    let heard = ears.take_own();
    assert_eq!(
        heard
            .iter()
            .filter(|(what, ..)| *what == "acquired")
            .count(),
        2
    );
    assert_eq!(
        heard
            .iter()
            .filter(|(what, ..)| *what == "released")
            .count(),
        2
    );
    // A further hold of the same thread has no events; the hold ends with its last guard.
    let lock = client.reentrant_lock(unique("r"));
    let (one, two) = (lock.lock().unwrap(), lock.lock().unwrap());
    thread::sleep(ms(30));
    drop(one);
    assert_eq!(ears.take_own(), plain([("acquired", "reentrant", "")]));
    two.unlock().unwrap();
    assert_eq!(ears.take_own(), plain([("released", "reentrant", "long")]));
    // An acquire of several permits is one hold of a semaphore; in an expirable semaphore each permit is a hold.
    drop(semaphore.try_acquire_many(1).unwrap());
    assert_eq!(ears.take_own(), both("semaphore"));
    drop(slots.acquire_many(2).unwrap());
    let each = ["acquired", "acquired", "released", "released"];
    assert_eq!(
        ears.take_own(),
        plain(each.map(|what| (what, "permits", "")))
    );
}

/// How many acquired, released and lost events a name has.
fn counted(heard: &[Event], name: &str) -> [usize; 3] {
    ["acquired", "released", "lost"].map(|what| {
        let is = |event: &&Event| event.0 == what && event.1 == name;
        heard.iter().filter(is).count()
    })
}

timed!(each_thread_that_shares_a_hold_hears_of_its_loss);
fn each_thread_that_shares_a_hold_hears_of_its_loss() {
    let server = Server::start();
    let ears = Ears::default();
    let lease = loosely(ms(600));
    let config = settings(&server).observer(ears.clone()).lease(lease);
    let client = Client::open(config).unwrap();
    let rw = client.rw_lock(unique("shared"));
    let (held, done) = (Barrier::new(6), Barrier::new(6));
    scoped(|scope| {
        for _ in 0..5 {
            scope.spawn(|| {
                let guards = (rw.read().unwrap(), rw.read().unwrap());
                held.wait();
                done.wait();
                drop(guards);
            });
        }
        held.wait();
        assert_eq!(counted(&ears.heard(), rw.name()), [5, 0, 0]);
        for key in server.keys() {
            server.ask::<i64>(&["DEL", &key]);
        }
        eventually("the loss is heard", || {
            counted(&ears.heard(), rw.name())[2] > 0
        });
        done.wait();
    });
    let lock = client.reentrant_lock(unique("again"));
    let guards = [(); 3].map(|()| lock.lock().unwrap());
    server.ask::<i64>(&["DEL", lock.name()]);
    eventually("the loss is heard", || {
        counted(&ears.heard(), lock.name())[2] > 0
    });
    drop(guards);
    client.close(Duration::from_secs(5)).unwrap();
    assert_eq!(counted(&ears.heard(), rw.name()), [5, 0, 5]);
    assert_eq!(counted(&ears.heard(), lock.name()), [1, 0, 1]);
}

timed!(whoever_finds_at_the_end_that_it_was_lost_is_heard_to_have_lost_it);
fn whoever_finds_at_the_end_that_it_was_lost_is_heard_to_have_lost_it() {
    let server = Server::start();
    let (client, ears) = with_ears(&server);
    let is_lost = |name: &str, ended: redlatch::Result<()>| {
        assert!(matches!(ended, Err(Error::Lost { .. })), "{ended:?}");
        assert_eq!(counted(&ears.heard(), name), [1, 0, 1], "{name}");
    };
    let forget = || {
        for key in server.keys() {
            server.ask::<i64>(&["DEL", &key]);
        }
    };
    macro_rules! each {
        ($($lock:ident;)+) => {$(
            let lock = client.$lock(unique("a"));
            let guard = lock.lock().unwrap();
            forget();
            is_lost(lock.name(), guard.unlock());
        )+};
    }
    each! { mutex; reentrant_lock; fair_lock; fair_mutex; fenced_lock; spin_lock; }
    let rw = [unique("r"), unique("w")].map(|name| client.rw_lock(name));
    let (read, write) = (rw[0].read().unwrap(), rw[1].write().unwrap());
    forget();
    is_lost(rw[0].name(), read.unlock());
    is_lost(rw[1].name(), write.unlock());
    let names = [unique("one"), unique("two")];
    let both = client.multi_lock(&names).lock().unwrap();
    forget();
    assert!(both.unlock().is_err());
    for name in &names {
        assert_eq!(counted(&ears.heard(), name), [1, 0, 1], "{name}");
    }
    let semaphore = client.semaphore(unique("s"));
    semaphore.try_set_permits(1).unwrap();
    let permit = semaphore.acquire().unwrap();
    forget();
    is_lost(semaphore.name(), permit.release());
    let slots = client.expirable_semaphore(unique("e"));
    slots.try_set_permits(1).unwrap();
    let permit = slots.acquire().unwrap();
    forget();
    is_lost(slots.name(), permit.release());
}

timed!(every_hold_is_heard_to_begin_once_and_to_end_once_whatever_happens);
fn every_hold_is_heard_to_begin_once_and_to_end_once_whatever_happens() {
    if deployment() != Deployment::Single {
        return;
    }
    let mut server = Server::start();
    let ears = Ears::default();
    let config = settings(&server)
        .observer(ears.clone())
        .lease(loosely(ms(300)))
        .command_timeout(loosely(ms(300)));
    let client = Client::open(config).unwrap();
    let names = [(); 3].map(|()| unique("any"));
    let (stop, slots) = (
        AtomicBool::new(false),
        client.expirable_semaphore(unique("e")),
    );
    slots.try_set_permits(3).unwrap();
    scoped(|scope| {
        for worker in 0..6 {
            let (client, names, stop, slots) = (&client, &names, &stop, &slots);
            scope.spawn(move || use_any(client, names, slots, Dice::new(worker), stop));
        }
        let mut dice = Dice::new(99);
        for round in 0..40 {
            match dice.draw(3) {
                0 => {
                    let mut keys = server.keys();
                    keys.retain(|_| dice.draw(3) == 0);
                    for key in keys {
                        server.ask::<i64>(&["DEL", &key]);
                    }
                }
                1 => {
                    let role = ["link", "watchdog", "subscriber"][dice.draw(3)];
                    server.kill_clients_named(role);
                }
                _ => thread::sleep(ms(20)),
            }
            if round % 16 == 9 {
                server.kill();
                server.restart();
            }
            slots.try_set_permits(3).ok();
        }
        stop.store(true, Ordering::Relaxed);
    });
    // The result of closing does not matter here, after so many faults.
    client.close(Duration::from_secs(5)).ok();
    let heard = ears.heard();
    let mut held = BTreeMap::new();
    for (what, name, _, _) in &heard {
        let change = match *what {
            "acquired" => 1,
            "released" | "lost" => -1,
            _ => 0,
        };
        let held: &mut i64 = held.entry(name).or_default();
        *held += change;
        assert!(
            *held >= 0,
            "`{name}` ends more often than it has begun: {heard:?}"
        );
    }
    for what in ["acquired", "released", "lost"] {
        assert!(
            heard.iter().any(|event| event.0 == what),
            "{what} is never heard"
        );
    }
    assert!(held.values().all(|held| *held == 0), "{held:?}");
}

/// Acquires and releases locks of any kind, until `stop` is set.
fn use_any(
    client: &Client,
    names: &[String; 3],
    slots: &ExpirableSemaphore,
    mut dice: Dice,
    stop: &AtomicBool,
) {
    let within = ms(50);
    while !stop.load(Ordering::Relaxed) {
        let name = &names[dice.draw(names.len())];
        let name = |kind: &str| format!("{name}-{kind}");
        let pause = ms(dice.draw(40).try_into().unwrap());
        let rest = || thread::sleep(pause);
        // An attempt may also end in an error.
        match dice.draw(8) {
            0 => drop(client.mutex(name("mutex")).try_lock_for(within)),
            1 => {
                let lock = client.reentrant_lock(name("reentrant"));
                let one = lock.try_lock_for(within);
                let two = lock.try_lock_for(within);
                rest();
                drop(one);
                drop(two.map(|two| two.map(|two| two.unlock())));
            }
            2 => {
                let guard = client.rw_lock(name("rw")).try_read_for(within);
                let again = client.rw_lock(name("rw")).try_read_for(within);
                rest();
                drop((guard, again));
            }
            3 => {
                let guard = client.rw_lock(name("rw")).try_write_for(within);
                rest();
                if let Ok(Some(guard)) = guard {
                    drop(guard.downgrade());
                }
            }
            4 => {
                let guard = client.mutex(name("mutex")).try_lock_owned_for(within);
                rest();
                drop(guard.map(|guard| guard.map(|guard| guard.unlock())));
            }
            5 => {
                let several = client
                    .multi_lock([&names[0], &names[1]])
                    .try_lock_for(within);
                rest();
                drop(several);
            }
            6 => {
                let permits = slots.try_acquire_many_for(2, within);
                rest();
                drop(permits);
            }
            _ => {
                let lock = client.fair_lock(name("fair")).fixed_lease(loosely(ms(60)));
                let guard = lock.try_lock_for(within);
                rest();
                drop(guard.map(|guard| guard.map(|guard| guard.unlock())));
            }
        }
    }
}

timed!(refusals_are_heard_with_their_reason);
fn refusals_are_heard_with_their_reason() {
    let mut server = Server::start();
    let ears = Ears::default();
    let config = settings(&server)
        .observer(ears.clone())
        .command_timeout(ms(300));
    let client = Client::open(config).unwrap();
    let other = open(&server);
    let name = unique("busy");
    let guard = other.mutex(&name).lock().unwrap();
    let lock = client.mutex(&name);
    assert!(lock.try_lock().unwrap().is_none());
    assert!(lock.try_lock_for(ms(20)).unwrap().is_none());
    assert!(
        client
            .multi_lock([&name, &unique("free")])
            .try_lock()
            .unwrap()
            .is_none()
    );
    let of = |kind| ("refused", kind, "busy");
    let busy = plain(["mutex", "mutex", "reentrant", "reentrant"].map(of));
    assert_eq!(ears.take_own(), busy);
    assert_eq!(client.stats().refused, 4);
    drop(guard);
    drop(lock.lock().unwrap());
    ears.take_own();
    let token = CancelToken::new();
    token.cancel();
    let cancelled = lock.clone().cancel_on(&token).lock();
    assert!(matches!(cancelled, Err(Error::Cancelled)));
    assert_eq!(
        ears.take_own(),
        plain([("refused", "mutex", "cancelled")]),
        "a clean shutdown is no error"
    );
    let (_held, refused_before) = (other.mutex(unique("held")), client.stats().refused);
    server.kill();
    assert!(lock.try_lock().is_err());
    eventually("the server is gone", || {
        ears.heard().iter().any(|event| event.0 == "down")
    });
    let refused = ears.heard().into_iter().find(|event| event.0 == "refused");
    assert_eq!(refused.unwrap().3, RefusalReason::Error.to_string());
    assert_eq!(client.stats().refused, refused_before + 1);
}

timed!(losses_and_servers_that_come_back_are_heard);
fn losses_and_servers_that_come_back_are_heard() {
    if deployment() != Deployment::Single {
        return;
    }
    let mut server = Server::start();
    let ears = Ears::default();
    let lease = loosely(ms(600));
    let client = Client::open(settings(&server).observer(ears.clone()).lease(lease)).unwrap();
    let name = unique("lost");
    let guard = client.mutex(&name).lock().unwrap();
    server.cli(&["DEL", &name]);
    let heard = || ears.heard();
    let lost = (
        "lost",
        name.clone(),
        "",
        format!("{:?}", LossReason::Forced),
    );
    eventually("the loss is heard", || heard().contains(&lost));
    drop(guard);
    assert!(
        !heard().iter().any(|event| event.0 == "released"),
        "it was lost"
    );
    let guard = client.mutex(&name).lock().unwrap();
    server.kill();
    eventually("it is gone", || {
        heard().iter().any(|event| event.0 == "down")
    });
    server.restart();
    eventually("it is back", || {
        let ups = heard().into_iter().filter(|event| event.0 == "up");
        ups.count() == 2
    });
    drop(guard);
}

timed!(a_hand_over_is_heard_and_waiting_threads_are_counted);
fn a_hand_over_is_heard_and_waiting_threads_are_counted() {
    let server = Server::start();
    let ears = Ears::default();
    let config = settings(&server)
        .observer(ears.clone())
        .tenure(Duration::from_secs(1));
    let client = Client::open(config).unwrap();
    let name = unique("handed");
    let guard = client.mutex(&name).lock().unwrap();
    let mut crew = Crew::new();
    let lock = client.mutex(&name);
    crew.spawn(move || lock.lock().unwrap().unlock().unwrap());
    eventually("it waits", || client.stats().waiting == 1);
    let waiting = client.stats().iter().find(|(name, ..)| *name == "waiting");
    assert_eq!(waiting, Some(("waiting", StatKind::Gauge, 1)));
    drop(guard);
    crew.join();
    assert_eq!(client.stats().waiting, 0);
    let acquired = |more: &str| ("acquired", name.clone(), "mutex", more.to_owned());
    let heard = ears.heard();
    assert!(heard.contains(&acquired("")), "{heard:?}");
    // The hand-over only happens within the tenure, which a slow machine may miss.
    let passed = client.stats().local_handoffs == 1;
    assert_eq!(
        heard.contains(&acquired("handed over")),
        passed,
        "{heard:?}"
    );
}

#[test]
fn a_permit_that_another_thread_hands_over_is_reported_as_handed_over() {
    let (server, ears) = (Server::start(), Ears::default());
    let config = settings(&server).tenure(Duration::from_secs(1));
    let client = Client::open(config.observer(ears.clone())).unwrap();
    let semaphore = client.semaphore("permits");
    semaphore.try_set_permits(1).unwrap();
    let permit = semaphore.acquire().unwrap();
    let mut crew = Crew::new();
    let waits = semaphore.clone();
    crew.spawn(move || drop(waits.acquire().unwrap()));
    crew.all_parked();
    drop(permit);
    crew.join();
    let heard = ears.heard().into_iter();
    let acquired = heard.filter(|(what, ..)| *what == "acquired");
    let how: Vec<_> = acquired.map(|(.., how)| how).collect();
    // The hand-over only happens within the tenure, which a slow machine may miss.
    let passed = client.stats().local_handoffs == 1;
    assert_eq!(how, ["", if passed { "handed over" } else { "" }]);
}

timed!(the_loss_of_a_hold_that_was_handed_on_is_told_to_the_thread_that_has_it);
fn the_loss_of_a_hold_that_was_handed_on_is_told_to_the_thread_that_has_it() {
    let servers = [Server::start(), Server::start()];
    let proxy = Proxy::before(&servers[0]);
    let slow = Client::open(settings_by(&servers[0], proxy.addr())).unwrap();
    let ears = Ears::default();
    let config = settings(&servers[1]).observer(ears.clone());
    let client = Client::open(config.tenure(Duration::from_secs(1))).unwrap();
    let handed = client.reentrant_lock(unique("handed"));
    let first = slow.reentrant_lock(unique("first"));
    let both = MultiLock::new(vec![Box::new(first), Box::new(handed.clone())]);
    let guard = both.lock().unwrap();
    let (has_it, is_there) = bounded(1);
    let (done, is_done) = bounded::<()>(1);
    let mut crew = Crew::new();
    let lock = handed.clone();
    crew.spawn(move || {
        let guard = lock.lock().unwrap();
        has_it.send(()).unwrap();
        assert!(is_done.recv().is_err());
        assert!(matches!(guard.unlock(), Err(Error::Lost { .. })));
    });
    eventually("it waits", || client.stats().waiting == 1);
    // The hold is lost after it was handed over, while the release of the other member is still unconfirmed.
    proxy.set(Target::Link, Mode::Stall);
    scoped(|scope| {
        scope.spawn(|| {
            is_there.recv().unwrap();
            assert!(handed.force_unlock().unwrap());
            proxy.pass();
        });
        guard.unlock().unwrap();
    });
    drop(done);
    crew.join();
    assert_eq!(counted(&ears.heard(), handed.name()), [2, 1, 1]);
}

/// Panics in every event, and uses the client that reports it.
struct Odd(Mutex<Option<std::sync::Weak<Client>>>);

impl Observer for Odd {
    fn acquired(&self, event: &Acquired<'_>) {
        let client = self
            .0
            .lock()
            .unwrap()
            .as_ref()
            .and_then(std::sync::Weak::upgrade);
        if let Some(client) = client.filter(|_| !event.name.starts_with("inner")) {
            drop(client.mutex(unique("inner")).lock().unwrap());
            assert!(client.stats().acquired > 0);
        }
        panic!("on purpose");
    }

    fn released(&self, _event: &Released<'_>) {
        panic!("on purpose");
    }

    fn lost(&self, _loss: &Loss) {
        panic!("on purpose");
    }
}

#[test]
fn an_observer_that_panics_does_no_harm() {
    let server = Server::start();
    let odd = Arc::new(Odd(Mutex::default()));
    struct Shared(Arc<Odd>);
    impl Observer for Shared {
        fn acquired(&self, event: &Acquired<'_>) {
            self.0.acquired(event);
        }
        fn released(&self, event: &Released<'_>) {
            self.0.released(event);
        }
        fn lost(&self, loss: &Loss) {
            self.0.lost(loss);
        }
    }
    let config = settings(&server)
        .observer(Shared(Arc::clone(&odd)))
        .lease(loosely(ms(300)));
    let client = Arc::new(Client::open(config).unwrap());
    *odd.0.lock().unwrap() = Some(Arc::downgrade(&client));
    let name = unique("odd");
    for _ in 0..3 {
        client.mutex(&name).lock().unwrap().unlock().unwrap();
    }
    let guard = client.mutex(&name).lock().unwrap();
    server.cli(&["DEL", &name]);
    eventually("it is lost", || guard.lost().try_recv().is_ok());
    let kept = client.mutex(unique("kept")).lock().unwrap();
    let renewals = client.stats().renewals;
    eventually("others are renewed", || client.stats().renewals > renewals);
    drop((guard, kept));
}

timed!(a_red_lock_is_heard_once);
fn a_red_lock_is_heard_once() {
    if deployment() != Deployment::Single {
        return;
    }
    let servers = [(); 3].map(|()| Server::start());
    let ears = Ears::default();
    let clients = servers
        .each_ref()
        .map(|server| Client::open(settings(server).observer(ears.clone())).unwrap());
    let lock = RedLock::new(&clients, unique("red")).unwrap();
    lock.lock().unwrap().unlock().unwrap();
    assert_eq!(
        ears.take_own(),
        plain([("acquired", "red", ""), ("released", "red", "")])
    );
}

timed!(a_waiting_thread_is_counted_until_a_message_ends_its_wait);
fn a_waiting_thread_is_counted_until_a_message_ends_its_wait() {
    let server = Server::start();
    let [holder, waiter] = [open(&server), open(&server)];
    let name = unique("w");
    let guard = holder.mutex(&name).lock().unwrap();
    let mut crew = Crew::new();
    let lock = waiter.mutex(&name);
    crew.spawn(move || lock.lock().unwrap().unlock().unwrap());
    subscribed(&server, 1);
    eventually("it waits", || waiter.stats().waiting == 1);
    guard.unlock().unwrap();
    crew.join();
    assert_eq!(waiter.stats().waiting, 0);
}
