//! Telling *late* from *busy*: whether somebody holds the lock, or Redis was too slow to answer.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use redlatch::{
    CancelToken, Client, Error, MultiLock, Observer, RedLock, RefusalReason, Refused, Result,
};

use crate::support::{
    Crew, Deployment, Mode, Net, Proxy, Server, Target, in_haste, ms, open, settings_by, timed,
    unique,
};

/// The result of a short wait.
#[derive(Debug, PartialEq, Eq)]
enum Came {
    Got,
    Busy,
    Late,
}

fn came<G>(what: &str, result: Result<Option<G>>) -> Came {
    match result {
        Ok(Some(_)) => Came::Got,
        Ok(None) => Came::Busy,
        Err(err @ Error::Late { .. }) => {
            assert!(
                err.is_retryable() && err.to_string().contains("too slow"),
                "{what}: {err}"
            );
            Came::Late
        }
        Err(err) => panic!("{what}: {err}"),
    }
}

/// The reasons for refused calls, as an observer gets them.
#[derive(Clone, Default)]
struct Whys(Arc<Mutex<Vec<(&'static str, RefusalReason)>>>);

impl Observer for Whys {
    fn refused(&self, event: &Refused<'_>) {
        self.0.lock().unwrap().push((event.kind, event.reason));
    }
}

/// Waits for everything that has a wait with a limit; `strict` uses handles that tell late from busy.
fn each(client: &Client, name: &str, strict: bool, wait: Duration) -> Vec<(&'static str, Came)> {
    let mut all = Vec::new();
    macro_rules! each {
        ($($what:literal: $handle:expr, $take:ident;)+) => {$(
            let handle = $handle;
            let handle = if strict { handle.late_is_error() } else { handle };
            all.push(($what, came($what, handle.$take(wait))));
        )+};
    }
    let n = |of: &str| format!("{of}:{name}");
    each! {
        "reentrant": client.reentrant_lock(n("lock")), try_lock_for;
        "mutex": client.mutex(n("lock")), try_lock_for;
        "owned": client.mutex(n("lock")), try_lock_owned_for;
        "fair": client.fair_lock(n("lock")), try_lock_for;
        "fair mutex": client.fair_mutex(n("lock")), try_lock_for;
        "fenced": client.fenced_lock(n("lock")), try_lock_for;
        "spin": client.spin_lock(n("lock")), try_lock_for;
        "read": client.rw_lock(n("rw")), try_read_for;
        "write": client.rw_lock(n("rw")), try_write_for;
        "multi": client.multi_lock([n("lock")]), try_lock_for;
        "several": client.multi_lock([n("lock"), n("more")]), try_lock_for;
        "semaphore": client.semaphore(n("plain")), try_acquire_for;
        "expirable": client.expirable_semaphore(n("leased")), try_acquire_for;
    }
    all
}

timed!(who_is_too_slow_is_told_from_who_has_it);
fn who_is_too_slow_is_told_from_who_has_it() {
    let server = Server::start();
    let proxy = Proxy::before(&server);
    let whys = Whys::default();
    let config = in_haste(settings_by(&server, proxy.addr())).observer(whys.clone());
    let (client, other) = (
        Client::open(config.command_timeout(ms(3_000))).unwrap(),
        open(&server),
    );
    let name = unique("late");
    let n = |of: &str| format!("{of}:{name}");
    other.semaphore(n("plain")).try_set_permits(1).unwrap();
    other
        .expirable_semaphore(n("leased"))
        .try_set_permits(1)
        .unwrap();
    let held = (
        other.mutex(n("lock")).lock().unwrap(),
        other.rw_lock(n("rw")).write().unwrap(),
        other.semaphore(n("plain")).acquire().unwrap(),
        other.expirable_semaphore(n("leased")).acquire().unwrap(),
    );
    let all_are = |what: Came, strict: bool, wait: Duration| {
        for (of, came) in each(&client, &name, strict, wait) {
            assert_eq!(came, what, "{of}, strict: {strict}");
        }
        std::mem::take(&mut *whys.0.lock().unwrap())
    };
    for strict in [true, false] {
        for (kind, why) in all_are(Came::Busy, strict, ms(60)) {
            assert_eq!(why, RefusalReason::Busy, "{kind}, strict: {strict}");
        }
    }
    drop(held);
    // The server works, but slower than the limits.
    proxy.set(Target::Link, Mode::Delay(ms(400)));
    for (expected, strict) in [(Came::Late, true), (Came::Busy, false)] {
        for (kind, why) in all_are(expected, strict, ms(40)) {
            assert_eq!(why, RefusalReason::Late, "{kind}, strict: {strict}");
        }
    }
    proxy.pass();
    all_are(Came::Got, true, ms(20_000));
}

timed!(a_majority_that_is_too_slow_is_late);
fn a_majority_that_is_too_slow_is_late() {
    let net = || {
        let patient = |config| in_haste(config).command_timeout(ms(3_000));
        Net::of(Server::start_as(Deployment::Single), patient, in_haste)
    };
    let nets = [(); 3].map(|()| net());
    let lock = RedLock::new(nets.each_ref().map(|net| &net.client), unique("majority")).unwrap();
    drop(lock.lock().unwrap());
    for net in &nets[..2] {
        net.proxy.set(Target::Link, Mode::Delay(ms(300)));
    }
    assert_eq!(
        came("strict", lock.clone().late_is_error().try_lock_for(ms(40))),
        Came::Late
    );
    assert_eq!(came("common", lock.try_lock_for(ms(40))), Came::Busy);
    for net in &nets {
        net.proxy.pass();
    }
    let strict = lock.late_is_error();
    assert_eq!(came("in time", strict.try_lock_for(ms(20_000))), Came::Got);
    // A RedLock cannot be a member of a multi-lock.
    let several = MultiLock::new(vec![Box::new(strict)]);
    assert!(matches!(
        several.try_lock(),
        Err(Error::InvalidSetting { .. })
    ));
}

timed!(threads_behind_others_know_as_much_as_those);
fn threads_behind_others_know_as_much_as_those() {
    let server = Server::start();
    let proxy = Proxy::before(&server);
    let config = in_haste(settings_by(&server, proxy.addr())).command_timeout(ms(3_000));
    let (client, other) = (Client::open(config).unwrap(), open(&server));
    let name = unique("behind");
    let mutex = client.mutex(&name).late_is_error();
    let slots = client.semaphore(format!("slots:{name}")).late_is_error();
    slots.try_set_permits(1).unwrap();
    let held = (
        other.mutex(&name).lock().unwrap(),
        other.semaphore(slots.name()).acquire().unwrap(),
    );
    let token = CancelToken::new();
    let mut crew = Crew::new();
    let waits = (
        mutex.clone().cancel_on(&token),
        slots.clone().cancel_on(&token),
    );
    crew.spawn(move || assert!(matches!(waits.0.lock(), Err(Error::Cancelled))));
    crew.spawn(move || assert!(matches!(waits.1.acquire(), Err(Error::Cancelled))));
    crew.all_parked();
    // The contender of each has been told that somebody else holds it.
    assert_eq!(came("mutex", mutex.try_lock_for(ms(40))), Came::Busy);
    assert_eq!(came("slots", slots.try_acquire_for(ms(40))), Came::Busy);
    token.cancel();
    crew.join();
    drop(held);
    assert_eq!(came("free", mutex.try_lock_for(ms(20_000))), Came::Got);
    assert_eq!(came("free", slots.try_acquire_for(ms(20_000))), Came::Got);
    // The contender of each gets no reply in time.
    proxy.set(Target::Link, Mode::Delay(ms(1_000)));
    let mut crew = Crew::new();
    let waits = (mutex.clone(), slots.clone());
    crew.spawn(move || drop(waits.0.lock().unwrap()));
    crew.spawn(move || drop(waits.1.acquire().unwrap()));
    crew.all_parked();
    assert_eq!(came("mutex", mutex.try_lock_for(ms(40))), Came::Late);
    assert_eq!(came("slots", slots.try_acquire_for(ms(40))), Came::Late);
    proxy.pass();
    crew.join();
}

timed!(one_that_was_told_once_that_somebody_has_it_is_not_late);
fn one_that_was_told_once_that_somebody_has_it_is_not_late() {
    let net = Net::with(ms(5_000));
    let theirs = net.other.mutex(&net.name).lock().unwrap();
    let mutex = net.client.mutex(&net.name).late_is_error();
    let mut crew = Crew::new();
    crew.spawn(move || assert_eq!(came("waits", mutex.try_lock_for(ms(1_500))), Came::Busy));
    crew.all_parked();
    net.proxy.set(Target::Link, Mode::Delay(ms(3_000)));
    // The waiter asks once more, and the reply arrives after its limit.
    drop(theirs);
    crew.join();
}
