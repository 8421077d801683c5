//! What an observer hears, and when.

use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};
use std::time::Duration;

use redlatch::{
    Acquired, Client, Loss, LossReason, Observer, RedLock, Refusal, Refused, Released, StatKind,
};

use crate::support::{
    Crew, Deployment, Server, deployment, eventually, loosely, ms, open, settings, subscribed,
    timed, unique,
};

/// One thing that was heard: what, of which name and kind, and what else.
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

    /// Takes what was heard, all of it on this thread: what, of which kind, and what else.
    #[track_caller]
    fn take_own(&self) -> Vec<(&'static str, &'static str, String)> {
        let heard = std::mem::take(&mut *self.0.lock().unwrap());
        let own = heard.into_iter().map(|(thread, (what, _, kind, more))| {
            assert_eq!(thread, thread::current().id());
            (what, kind, more)
        });
        own.collect()
    }
}

impl Observer for Ears {
    fn acquired(&self, event: &Acquired<'_>) {
        assert!(event.waited < Duration::from_secs(60));
        let more = if event.handed_over { "handed over" } else { "" };
        self.hear("acquired", event.name, event.kind, more.into());
    }

    fn refused(&self, event: &Refused<'_>) {
        self.hear("refused", event.name, event.kind, event.why.to_string());
    }

    fn released(&self, event: &Released<'_>) {
        let more = if event.held >= ms(30) { "long" } else { "" };
        self.hear("released", event.name, event.kind, more.into());
    }

    fn lost(&self, loss: &Loss) {
        self.hear("lost", &loss.name, "", format!("{:?}", loss.reason));
    }

    fn server_gone(&self, server: &str, why: &str) {
        assert!(!why.is_empty());
        self.hear("gone", server, "", String::new());
    }

    fn server_back(&self, server: &str) {
        self.hear("back", server, "", String::new());
    }
}

fn with_ears(server: &Server) -> (Client, Ears) {
    let ears = Ears::default();
    (
        Client::open(settings(server).observer(ears.clone())).unwrap(),
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
        "reentrant": mutex;
        "reentrant": reentrant_lock;
        "fair": fair_lock;
        "fenced": fenced_lock;
        "spin": spin_lock;
    }
    let prices = client.rwlock(unique("rw"));
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
    // Of several each is heard of, and nothing of what was tried in between.
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
    // A thread that has it already.
    let lock = client.reentrant_lock(unique("r"));
    let (one, two) = (lock.lock().unwrap(), lock.lock().unwrap());
    thread::sleep(ms(30));
    drop((one, two));
    let expected = [
        ("acquired", ""),
        ("acquired", ""),
        ("released", "long"),
        ("released", "long"),
    ];
    assert_eq!(
        ears.take_own(),
        plain(expected.map(|(what, more)| (what, "reentrant", more)))
    );
}

timed!(refusals_are_heard_with_their_reason);
fn refusals_are_heard_with_their_reason() {
    let mut server = Server::start();
    let ears = Ears::default();
    let config = settings(&server)
        .observer(ears.clone())
        .response_timeout(ms(300));
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
    let busy = plain([("refused", "reentrant", "busy"); 4]);
    assert_eq!(ears.take_own(), busy);
    assert_eq!(client.stats().refused, 4);
    drop(guard);
    drop(lock.lock().unwrap());
    ears.take_own();
    let (_held, before) = (other.mutex(unique("held")), client.stats().refused);
    server.kill();
    assert!(lock.try_lock().is_err());
    eventually("the server is gone", || {
        ears.heard().iter().any(|event| event.0 == "gone")
    });
    let refused = ears.heard().into_iter().find(|event| event.0 == "refused");
    assert_eq!(refused.unwrap().3, Refusal::Error.to_string());
    assert_eq!(client.stats().refused, before + 1);
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
        heard().iter().any(|event| event.0 == "gone")
    });
    server.restart();
    eventually("it is back", || {
        heard().iter().any(|event| event.0 == "back")
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
    let acquired = |more: &str| ("acquired", name.clone(), "reentrant", more.to_owned());
    let heard = ears.heard();
    assert!(heard.contains(&acquired("")), "{heard:?}");
    // Within the tenure, if the machine was fast enough.
    let passed = client.stats().passed == 1;
    assert_eq!(
        heard.contains(&acquired("handed over")),
        passed,
        "{heard:?}"
    );
}

/// Panics at everything, and uses the client that it hears of.
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
