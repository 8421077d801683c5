//! The rights that the guide names are enough, for every kind of lock, contended and not.

use std::time::Duration;

use redlatch::{Client, Config, RedLock};

use crate::support::rights::{OPERATIONS, acl_line, hands_over};
use crate::support::{Crew, Server, eventually, loosely, lua, ms, timed};

/// A client that is no more.
const READER: &str = "9f8e7d6c-5b4a-4321-8fed-cba987654321";

// Some commands run only after a waiter has died or a key was evicted.
#[test]
fn every_command_of_the_scripts_is_among_the_rights_in_the_guide() {
    let rights: Vec<_> = acl_line(OPERATIONS, "locker")
        .into_iter()
        .filter_map(|word| word.strip_prefix('+')?.split('|').next())
        .collect();
    let mut seen = 0;
    for (file, script) in lua::ALL {
        for call in script.split("call('").skip(1) {
            let command = call.split('\'').next().unwrap();
            assert!(rights.contains(&command), "{command} of {file}");
            seen += 1;
        }
    }
    assert!(seen > 100, "only {seen} commands");
}

timed!(the_rights_in_the_guide_are_enough_for_every_lock);
fn the_rights_in_the_guide_are_enough_for_every_lock() {
    let servers = [(); 3].map(|()| Server::start());
    let rule = acl_line(OPERATIONS, "locker");
    for server in &servers {
        server.cli(&rule);
    }
    let open = |server: &Server| {
        let url = server.url().replace("redis://", "redis://locker:secret@");
        let config = Config::new(url)
            .key_prefix("shop:")
            .lease(loosely(Duration::from_millis(300)));
        Client::open(config).unwrap()
    };
    let [client, other] = [open(&servers[0]), open(&servers[0])];
    let [second, third] = [open(&servers[1]), open(&servers[2])];
    // The second with a brace of its own, which changes how the other keys are named.
    for name in ["plain", "in{braces}"] {
        let of = |kind: &str| format!("{kind}:{name}");
        let n = of("lock");
        hands_over(
            [&client, &other],
            |c| c.reentrant_lock(of("lock")).lock(),
            move |c| c.mutex(&n).lock(),
        );
        let n = of("fair");
        hands_over(
            [&client, &other],
            |c| c.fair_lock(of("fair")).lock(),
            move |c| c.fair_mutex(&n).lock(),
        );
        let n = of("fenced");
        hands_over(
            [&client, &other],
            |c| c.fenced_lock(of("fenced")).lock(),
            move |c| c.fenced_lock(&n).lock(),
        );
        let n = of("spin");
        hands_over(
            [&client, &other],
            |c| c.spin_lock(of("spin")).lock(),
            move |c| c.spin_lock(&n).lock(),
        );
        let n = of("rw");
        hands_over(
            [&client, &other],
            |c| c.rwlock(of("rw")).write(),
            move |c| c.rwlock(&n).read(),
        );
        let n = of("rw");
        hands_over(
            [&client, &other],
            |c| c.rwlock(of("rw")).read(),
            move |c| c.rwlock(&n).write(),
        );

        // Behind more readers that died than are looked at in one go.
        let mut dead = vec!["HSET".to_owned(), format!("shop:{}", of("rw"))];
        dead.extend(["mode".to_owned(), "read".to_owned()]);
        for n in 0..200 {
            dead.extend([format!("{READER}:{n}"), "1".to_owned()]);
        }
        let dead: Vec<&str> = dead.iter().map(String::as_str).collect();
        servers[0].cli(&dead);
        drop(client.rwlock(of("rw")).write().unwrap());

        let names = [of("lock"), of("one of several")];
        let (held, wanted) = (names.clone(), of("one of several"));
        hands_over(
            [&client, &other],
            move |c| c.multi_lock(&held).lock(),
            move |c| c.reentrant_lock(&wanted).lock(),
        );
        let several = client.multi_lock(&names);
        let both = names.clone();
        hands_over(
            [&client, &other],
            |c| c.reentrant_lock(&names[1]).lock(),
            move |c| c.multi_lock(&both).lock(),
        );
        let n = of("red");
        let red = RedLock::new([&client, &second, &third], &n).unwrap();
        let (two, three) = (second.clone(), third.clone());
        hands_over(
            [&client, &other],
            |_| red.lock(),
            move |c| RedLock::new([c, &two, &three], &n)?.lock(),
        );
        eventually("all have been up for a second", || {
            let grown = red.clone().keep_out_restarted(ms(10));
            grown
                .try_lock()
                .is_ok_and(|guard| guard.is_some_and(|guard| guard.is_valid()))
        });

        let latch = client.latch(of("latch"));
        assert!(latch.try_set_count(2).unwrap());
        let (n, waits) = (of("latch"), other.clone());
        let mut crew = Crew::new();
        crew.spawn(move || waits.latch(&n).wait().unwrap());
        crew.all_parked();
        latch.count_down().unwrap();
        latch.count_down().unwrap();
        crew.join();
        assert!(latch.try_set_count(1).unwrap() && latch.delete().unwrap());

        let n = of("gate");
        let gate = client.semaphore(of("gate"));
        assert!(gate.try_set_permits(1).unwrap());
        hands_over(
            [&client, &other],
            |c| c.semaphore(of("gate")).acquire(),
            move |c| c.semaphore(&n).acquire(),
        );
        gate.add_permits(2).unwrap();
        gate.release(1).unwrap();
        eventually("all are back", || gate.available_permits().unwrap() == 4);
        assert_eq!(gate.drain_permits().unwrap(), 4);

        let n = of("slots");
        let slots = client.expirable_semaphore(of("slots"));
        assert!(slots.try_set_permits(1).unwrap());
        hands_over(
            [&client, &other],
            |c| c.expirable_semaphore(of("slots")).acquire(),
            move |c| c.expirable_semaphore(&n).acquire(),
        );
        slots.set_permits(2).unwrap();
        slots.add_permits(-1).unwrap();
        let permit = slots.clone().lease(Duration::from_millis(20)).acquire();
        // Over by itself, and renewed.
        let slot = slots.acquire().unwrap();
        drop(permit);
        slot.update_lease(Duration::from_secs(5)).unwrap();
        assert!(slots.lease_of(slot.id()).unwrap().is_some());
        assert!(slots.release_id(slot.id()).unwrap());
        assert_eq!(slots.permits().unwrap(), 1);

        let slot = slots.acquire().unwrap();
        let fenced = client.fenced_lock(of("fenced"));
        let fair = client.fair_lock(of("fair"));
        let rwlock = client.rwlock(of("rw"));
        let guards = (
            fenced.lock().unwrap(),
            fair.lock().unwrap(),
            rwlock.read().unwrap(),
            several.lock().unwrap(),
            red.lock().unwrap(),
        );
        let renewed = client.stats().renewals + 4;
        eventually("all are renewed", || client.stats().renewals > renewed);
        assert!(fenced.is_locked().unwrap() && rwlock.is_read_locked().unwrap());
        assert!(fenced.force_unlock().unwrap() && fair.force_unlock().unwrap());
        assert!(rwlock.force_unlock().unwrap());
        assert!(several.is_locked().unwrap() && several.remaining().unwrap().is_some());
        assert!(red.is_locked().unwrap() && red.remaining().unwrap().is_some());
        assert!(several.force_unlock().unwrap() && red.force_unlock().unwrap());
        assert!(guards.0.unlock().is_err());
        slot.release().unwrap();
    }
    for client in [client, other, second, third] {
        let stats = client.stats();
        assert_eq!(
            (stats.releases_failed, stats.poll_rescues),
            (0, 0),
            "{stats:?}"
        );
    }
}
