//! Whether a client is ready, and what an observer hears before a hold is lost.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redlatch::{Client, Loss, Observer, RenewalFailed};

use crate::support::{
    LONG, Mode, Net, RESPONSE, SLACK, Server, Target, eventually, in_haste, in_time, loosely, ms,
    quorum, settings, timed, unique,
};

/// A lease that leaves time for several looks between a failed renewal and the loss.
const LEASE: Duration = ms(2_400);

timed!(a_client_is_ready_while_redis_answers_and_holds_are_renewed);
fn a_client_is_ready_while_redis_answers_and_holds_are_renewed() {
    let server = Server::start();
    let config = in_haste(settings(&server)).lease(loosely(LEASE));
    let client = Client::open(config).unwrap();
    let first = client.health();
    assert!(first.is_ready() && first.reachable, "{first}");
    assert_eq!(
        (first.since, &first.why, &first.renewal),
        (Duration::ZERO, &None, &None)
    );
    let name = unique("renewed");
    let guard = client.mutex(&name).lock().unwrap();
    eventually("time goes by", || client.health().since > ms(20));
    server.freeze();
    let frozen = in_time("asking", RESPONSE, || client.health());
    assert!(!frozen.is_ready() && !frozen.reachable);
    assert!(frozen.since <= RESPONSE + loosely(SLACK), "since then");
    assert!(frozen.why.is_some(), "{frozen}");
    eventually("a renewal is late", || {
        let health = client.health();
        let late = health
            .renewal
            .filter(|renewal| renewal.confirmed_ago > renewal.lease * 2 / 3);
        late.is_some_and(|renewal| renewal.name == name && renewal.lease == loosely(LEASE))
    });
    let frozen = client.health();
    assert!(!frozen.since.is_zero());
    assert!(frozen.to_string().contains(&name), "{frozen}");
    server.thaw();
    eventually("it is ready again", || client.health().is_ready());
    drop(guard);
    client.close(LONG).unwrap();
    let closed = client.health();
    assert!(!closed.is_ready() && closed.why.unwrap().contains("closed"));
}

timed!(a_hold_with_a_long_lease_does_not_hide_one_with_a_short_lease);
fn a_hold_with_a_long_lease_does_not_hide_one_with_a_short_lease() {
    let servers = quorum::masters(3);
    let long = quorum::open_with(&servers[..1], |config| config.lease(loosely(2 * LEASE)));
    let short = quorum::open_with(&servers[1..], |config| {
        config.lease(loosely(LEASE)).command_timeout(ms(200))
    });
    // The parts of a `RedLock` have the lease of its first client.
    let clients = [long, short].concat();
    let (looking, name) = (&clients[1], unique("short"));
    let red = quorum::red(&clients, &unique("long"));
    let _red = quorum::take_from_all(&red, 3);
    let taken = Instant::now();
    eventually("a part of the lease later", || {
        taken.elapsed() > loosely(LEASE) / 3
    });
    let _guard = looking.mutex(&name).lock().unwrap();
    servers[1].freeze();
    eventually("the hold with the short lease is named", || {
        let renewal = looking.health().renewal;
        let late = renewal.filter(|renewal| renewal.confirmed_ago > loosely(LEASE) / 2);
        late.is_some_and(|renewal| renewal.name == name)
    });
}

/// The renewals that failed and the losses, by name, with the time that was left.
#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Vec<Event>>>);

/// The name of the hold, and the time that was left; `None` if it was lost.
type Event = (String, Option<Duration>);

impl Observer for Heard {
    fn renewal_failed(&self, event: &RenewalFailed<'_>) {
        assert!(event.owner.contains(':'));
        let name = event.name.to_owned();
        self.0
            .lock()
            .unwrap()
            .push((name, Some(event.remaining_lease)));
    }

    fn lost(&self, loss: &Loss) {
        self.0.lock().unwrap().push((loss.name.clone(), None));
    }
}

timed!(a_failed_renewal_is_heard_once_while_the_hold_is_valid);
fn a_failed_renewal_is_heard_once_while_the_hold_is_valid() {
    let (heard, lease) = (Heard::default(), loosely(LEASE));
    let ears = heard.clone();
    let settings = move |config| in_haste(config).lease(lease).observer(ears.clone());
    let net = Net::of(Server::start(), settings, |config| config);
    let count = || {
        let heard = heard.0.lock().unwrap();
        heard
            .iter()
            .filter(|(_, time_left)| time_left.is_some())
            .count()
    };
    let guard = net.client.mutex(&net.name).lock().unwrap();
    let fixed = net
        .client
        .mutex(unique("fixed"))
        .fixed_lease(lease)
        .lock()
        .unwrap();
    for outage in 1..=2 {
        net.proxy.set(Target::All, Mode::BlackHole);
        eventually("a renewal has failed", || count() == outage);
        assert!(guard.is_valid());
        net.proxy.pass();
        let renewals = net.client.stats().renewals;
        eventually("it is renewed", || net.client.stats().renewals > renewals);
        assert_eq!(net.client.stats().renewals_failed, outage as u64);
    }
    net.proxy.set(Target::All, Mode::BlackHole);
    assert!(guard.lost().recv_timeout(LONG).is_ok());
    drop(fixed);
    let heard = heard.0.lock().unwrap();
    let of_renewed: Vec<_> = heard.iter().filter(|(name, _)| *name == net.name).collect();
    assert_eq!(of_renewed.len(), 4, "{heard:?}");
    assert!(of_renewed[3].1.is_none(), "and then the loss: {heard:?}");
    for (_, time_left) in &of_renewed[..3] {
        assert!(
            time_left
                .is_some_and(|time_left| time_left > Duration::ZERO && time_left < lease * 2 / 3)
        );
    }
    let of_fixed = heard
        .iter()
        .filter(|(name, time_left)| *name != net.name && time_left.is_some());
    assert_eq!(
        of_fixed.count(),
        0,
        "a fixed lease is not renewed: {heard:?}"
    );
}
