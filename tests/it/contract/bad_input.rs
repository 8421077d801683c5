//! Names, keys, settings and addresses that are wrong or unusual. Each works or fails with a clear error; nothing is
//! overwritten, and nothing invalid is sent.

use std::time::{Duration, Instant};

use redlatch::{Client, Config, Error, MAX_LEASE, MIN_LEASE};

use crate::support::{
    Crew, Deployment, FAIR_LOCK, FAIR_MUTEX, FENCED_LOCK, KINDS, Kind, LONG, Messages, Notified,
    Server, beside, connection_to, deployment, eventually, for_each_kind, loosely, ms,
    nothing_is_left_of, open, scoped, settings, settings_as, skipped, subscribed, timed, unique,
    verdicts, waited_for_by,
};

/// Names that could confuse a parser, a pattern or a hash tag.
fn odd_names() -> Vec<String> {
    [
        " ",
        "two words",
        "tab\tand\nline",
        "line\r\nbreak",
        "\r\n",
        "nul\0byte",
        "\0",
        "{}",
        "{tag}ged",
        "half{brace",
        "half}brace",
        "}{",
        "{{double}}",
        "🔒 žluťoučký 日本",
        "\u{feff}mark",
        "*1\r\n$4\r\nPING\r\n",
        "$-1\r\n",
        "*?[a]\\'\"%s",
        "redisson_lock__channel:{other}",
        "'; DROP TABLE locks; --",
        "0",
        "-1",
    ]
    .map(str::to_owned)
    .into_iter()
    .chain(["x".repeat(64 * 1024), "{".repeat(5000)])
    .collect()
}

/// The part of a key that decides its slot in a cluster.
fn tag(key: &str) -> &str {
    let tag = key
        .split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'));
    tag.map(|(tag, _)| tag)
        .filter(|tag| !tag.is_empty())
        .unwrap_or(key)
}

/// Whether a key and the lock's channel are in different slots, so that a cluster rejects the name.
fn leaves_its_slot(key: &str) -> bool {
    deployment() == Deployment::Cluster && tag(key) != tag(&beside("redisson_lock__channel", key))
}

/// The odd names that the deployment accepts.
fn good_names() -> Vec<String> {
    let mut names = odd_names();
    names.retain(|name| !leaves_its_slot(name));
    names
}

// ---------------------------------------------------------------------------------------------------------------------
// Names
// ---------------------------------------------------------------------------------------------------------------------

timed!(every_name_is_its_key_to_the_byte);
fn every_name_is_its_key_to_the_byte() {
    let server = Server::start();
    for prefix in ["", "app:", "sp ace{", "\r\n"] {
        let client = Client::open(settings(&server).key_prefix(prefix)).unwrap();
        for name in odd_names() {
            let key = format!("{prefix}{name}");
            if key.len() > 64 * 1024 {
                continue;
            }
            if leaves_its_slot(&key) {
                let refused = client.mutex(&name).lock();
                assert!(
                    matches!(refused, Err(Error::InvalidName { .. })),
                    "{refused:?}"
                );
                continue;
            }
            let channel = beside("redisson_lock__channel", &key);
            let mut messages = Messages::of(&server);
            for waits in [false, true] {
                let mutex = client.mutex(&name);
                let guard = if waits {
                    mutex.try_lock_for(LONG)
                } else {
                    mutex.try_lock()
                };
                assert!(guard.unwrap().is_some(), "{name:?}");
                eventually("the lock is released", || !server.exists(&key));
                assert_eq!(
                    messages.published(&server),
                    [(channel.clone(), "0".to_owned())]
                );
            }
            let lock = client.reentrant_lock(&name);
            let guard = lock.lock().unwrap();
            assert_eq!((lock.name(), guard.name()), (&*name, &*name));
            assert_eq!(server.keys_but_requests(), [key.as_str()]);
            assert_eq!(
                server.hgetall(&key),
                [(guard.owner().to_owned(), "1".to_owned())]
            );
            assert!(lock.is_locked().unwrap() && lock.remaining_lease().unwrap().is_some());
            guard.unlock().unwrap();
            assert!(server.keys_but_requests().is_empty(), "{key:?}");
            assert!(!lock.force_unlock().unwrap());
        }
    }
}

fn has_its_keys_whatever_the_name(kind: Kind) {
    let server = Server::start();
    let client = Client::open(settings(&server).key_prefix("app:")).unwrap();
    let mut messages = Messages::of(&server);
    for name in odd_names() {
        let key = format!("app:{name}");
        if key.len() > 64 * 1024 {
            continue;
        }
        let lock = kind.of(&client, &name);
        if leaves_its_slot(&key) {
            let refused = lock.lock();
            assert!(
                matches!(refused, Err(Error::InvalidName { .. })),
                "{refused:?}"
            );
            continue;
        }
        let guard = lock.lock().unwrap();
        assert_eq!(lock.name(), name);
        assert_eq!(server.keys(), kind.keys(&key, guard.owner()));
        assert_eq!(server.hgetall(&key), kind.fields(guard.owner(), 1));
        assert!(lock.is_locked().unwrap() && lock.remaining_lease().unwrap().is_some());
        guard.unlock().unwrap();
        assert!(nothing_is_left_of(kind, &server), "{key:?}");
        assert!(!lock.force_unlock().unwrap());
        let received = messages.published(&server);
        match kind.notified {
            Notified::All(prefix, payload) => {
                assert_eq!(received, [(beside(prefix, &key), payload.to_owned())]);
            }
            Notified::First | Notified::Nobody => assert!(received.is_empty()),
        }
        server.cli(&["FLUSHALL"]);
    }
}

timed!(every_kind_has_its_keys_whatever_the_name);
fn every_kind_has_its_keys_whatever_the_name() {
    for_each_kind(&KINDS, has_its_keys_whatever_the_name);
}

fn hears_of_releases_whatever_the_name(kind: Kind) {
    const ROUNDS: u32 = 5;
    let server = Server::start();
    let (holder, client) = (open(&server), open(&server));
    // A waiter that has just polled may find the lock free before the message arrives, which does not count as a
    // wake-up. On a late machine that happens often, so a single round in which every name is notified is enough. A
    // name whose channel is wrong fails in every round.
    let all_heard = (0..ROUNDS).any(|_| {
        let guards: Vec<_> = good_names()
            .iter()
            .map(|name| kind.foe().of(&holder, name).lock().unwrap())
            .collect();
        let mut crew = Crew::new();
        for name in good_names() {
            let lock = kind.of(&client, &name);
            crew.spawn(move || {
                lock.lock().unwrap().unlock().unwrap();
            });
        }
        waited_for_by(kind, &server, guards.len() as u64);
        crew.all_parked();
        let wakes = client.stats().wakes;
        drop(guards);
        crew.join();
        let woken = client.stats().wakes - wakes;
        eventually("nothing is left", || nothing_is_left_of(kind, &server));
        eventually("no subscription is left", || server.channels().is_empty());
        kind.listens == 0 || woken >= good_names().len() as u64
    });
    assert!(all_heard, "{:?}", client.stats());
}

timed!(waiters_hear_of_releases_whatever_the_name);
fn waiters_hear_of_releases_whatever_the_name() {
    for_each_kind(&KINDS, hears_of_releases_whatever_the_name);
}

timed!(names_that_differ_are_different_locks);
fn names_that_differ_are_different_locks() {
    let server = Server::start();
    let client = open(&server);
    let _guards: Vec<_> = good_names()
        .iter()
        .map(|name| client.mutex(name).try_lock().unwrap().unwrap())
        .collect();
    assert_eq!(server.dbsize(), good_names().len() as u64);
    // A prefix makes a different lock of the same name; prefix and name that together spell the same key make the same
    // lock.
    let prefixed = Client::open(settings(&server).key_prefix("two ")).unwrap();
    assert!(prefixed.mutex("0").try_lock().unwrap().is_some());
    assert!(prefixed.mutex("words").try_lock().unwrap().is_none());
}

timed!(impossible_names_are_refused_and_nothing_is_sent);
fn impossible_names_are_refused_and_nothing_is_sent() {
    let server = Server::start();
    let plain = open(&server);
    let prefixed = Client::open(settings(&server).key_prefix("app:")).unwrap();
    let commands_before = server.command_total();
    let cases = [
        (&plain, String::new()),
        (&prefixed, String::new()),
        (&plain, "x".repeat(64 * 1024 + 1)),
        (&plain, "ž".repeat(40_000)),
        (&prefixed, "x".repeat(64 * 1024 - 3)),
    ];
    for (client, name) in &cases {
        for kind in KINDS {
            let lock = kind.of(client, name);
            for (verb, verdict) in verdicts(&lock) {
                let err = verdict.unwrap_err();
                assert!(
                    matches!(err, Error::InvalidName { .. }),
                    "{verb} of {}: {err:?}",
                    kind.title
                );
                assert!(!err.is_retryable());
                assert!(err.to_string().len() < 200, "the name is not repeated");
            }
            assert!(!lock.is_owned_by_current_thread() && lock.hold_count() == 0);
        }
    }
    assert_eq!(server.command_total(), commands_before);
    assert_eq!(plain.stats().names + prefixed.stats().names, 0);
}

// ---------------------------------------------------------------------------------------------------------------------
// Keys of other applications
// ---------------------------------------------------------------------------------------------------------------------

/// The key of another application stands in place of a key that this kind needs besides its lock. The acquire fails and
/// changes nothing.
fn is_refused_for(kind: Kind, besides: &str, commands: &[&[&str]]) {
    let server = Server::start();
    let client = open(&server);
    for command in commands {
        let name = unique("besides");
        let key = beside(besides, &name);
        let lock = kind.of(&client, &name);
        lock.lock().unwrap().unlock().unwrap();
        server.cli(&["FLUSHALL"]);
        let command: Vec<_> = command
            .iter()
            .map(|&part| if part == "KEY" { &*key } else { part })
            .collect();
        server.cli(&command);
        let dump: Vec<u8> = server.ask(&["DUMP", &key]);
        for (verb, verdict) in verdicts(&lock) {
            // Questions read only the lock's own key, and a forced release does not touch the counter of tokens.
            let asks = ["is_locked", "remaining_lease"].contains(&verb);
            if asks || kind.tokens && verb == "force_unlock" {
                verdict.unwrap();
                continue;
            }
            match verdict {
                Err(Error::WrongType { name: named, .. }) => assert_eq!(named, name),
                other => panic!("{verb} with {command:?}: {other:?}"),
            }
        }
        assert_eq!(server.ask::<Vec<u8>>(&["DUMP", &key]), dump);
        eventually("only the other application's key is left", || {
            server.keys_but_requests() == [key.as_str()]
        });
        server.cli(&["DEL", &key]);
        lock.lock().unwrap().unlock().unwrap();
    }
}

timed!(a_strangers_key_in_the_place_of_the_queue_is_an_error_and_stays_as_it_is);
fn a_strangers_key_in_the_place_of_the_queue_is_an_error_and_stays_as_it_is() {
    let commands: [&[&str]; 3] = [
        &["SET", "KEY", "1"],
        &["HSET", "KEY", "a", "b"],
        &["SADD", "KEY", "a"],
    ];
    is_refused_for(FAIR_LOCK, "redisson_lock_queue", &commands);
    is_refused_for(FAIR_MUTEX, "redisson_lock_timeout", &commands);
}

timed!(a_strangers_key_in_the_place_of_the_tokens_is_an_error_and_stays_as_it_is);
fn a_strangers_key_in_the_place_of_the_tokens_is_an_error_and_stays_as_it_is() {
    let commands: [&[&str]; 6] = [
        &["RPUSH", "KEY", "1"],
        &["HSET", "KEY", "a", "b"],
        &["SET", "KEY", "seven"],
        &["SET", "KEY", ""],
        &["SET", "KEY", "1.5"],
        &["SET", "KEY", " 1"],
    ];
    is_refused_for(FENCED_LOCK, "redisson_lock_token", &commands);
}

fn is_told_when_the_key_changes_its_type(kind: Kind) {
    let server = Server::start();
    let client = Client::open(settings(&server).lease(loosely(ms(300)))).unwrap();
    let name = unique("switch");
    let lock = kind.of(&client, &name);
    let guard = lock.lock().unwrap();
    server.cli(&["SET", &name, "precious"]);
    let loss = guard.lost().recv_timeout(LONG).unwrap();
    assert_eq!(loss.name, name);
    assert!(!guard.is_valid());
    let unlocked = guard.unlock();
    assert!(matches!(unlocked, Err(Error::Lost { .. })), "{unlocked:?}");
    assert!(matches!(lock.try_lock(), Err(Error::WrongType { .. })));
    assert_eq!(server.ask::<String>(&["GET", &name]), "precious");
    assert_eq!(server.pttl(&name), -1, "the key has no TTL");
    // Once the key is deleted the name works as any other.
    server.cli(&["DEL", &name]);
    lock.lock().unwrap().unlock().unwrap();
    // A release that comes before the first renewal finds it.
    let (patient, name) = (open(&server), unique("switch"));
    let guard = kind.of(&patient, &name).lock().unwrap();
    server.cli(&["SET", &name, "precious"]);
    let unlocked = guard.unlock();
    assert!(
        matches!(&unlocked, Err(Error::WrongType { name: named, .. }) if *named == name),
        "{unlocked:?}"
    );
    assert_eq!(server.ask::<String>(&["GET", &name]), "precious");
}

timed!(a_key_that_changes_its_type_under_a_holder_is_told);
fn a_key_that_changes_its_type_under_a_holder_is_told() {
    for_each_kind(&KINDS, is_told_when_the_key_changes_its_type);
}

// ---------------------------------------------------------------------------------------------------------------------
// Settings
// ---------------------------------------------------------------------------------------------------------------------

fn refuses_impossible_leases(kind: Kind) {
    let server = Server::start();
    let client = open(&server);
    let name = unique("lease");
    let lock = kind.of(&client, &name);
    let commands_before = server.command_total();
    let bad = [
        lock.lease(Duration::ZERO),
        lock.lease(ms(9)),
        lock.lease(Duration::from_nanos(9_999_999)),
        lock.lease(MAX_LEASE + Duration::from_nanos(1)),
        lock.lease(Duration::MAX),
        lock.max_hold(Duration::ZERO),
        lock.lease(LONG).max_hold(LONG),
    ];
    for lock in bad {
        for verdict in [
            lock.lock().map(drop),
            lock.try_lock().map(drop),
            lock.try_lock_for(LONG).map(drop),
            lock.try_lock_until(Instant::now() + LONG).map(drop),
            lock.with(|_| ()),
        ] {
            let err = verdict.unwrap_err();
            assert!(matches!(err, Error::InvalidSetting { .. }), "{err:?}");
            assert!(!err.is_retryable());
        }
    }
    assert_eq!(server.command_total(), commands_before);
    assert_eq!(client.stats().names, 0);

    // The limits themselves are good.
    let guard = lock.lease(MAX_LEASE).lock().unwrap();
    assert!(guard.is_valid());
    let year = 365 * 24 * 3600 * 1000;
    assert!(server.pttl(&name) > 99 * year);
    guard.unlock().unwrap();
    match lock.lease(MIN_LEASE).try_lock() {
        Ok(guard) => assert!(guard.is_some()),
        // On a busy machine the reply arrives after the lease.
        Err(err) => assert!(err.is_retryable(), "{err:?}"),
    }
    let guard = lock.max_hold(Duration::MAX).try_lock_for(LONG);
    let guard = guard.unwrap().unwrap();
    assert!(guard.is_valid());
    assert!(guard.lost().try_recv().is_err());
}

timed!(impossible_leases_are_refused_and_nothing_is_sent);
fn impossible_leases_are_refused_and_nothing_is_sent() {
    for_each_kind(&KINDS, refuses_impossible_leases);
}

timed!(impossible_lives_of_a_token_counter_are_refused_and_nothing_is_sent);
fn impossible_lives_of_a_token_counter_are_refused_and_nothing_is_sent() {
    let server = Server::start();
    let client = open(&server);
    let name = unique("ttl");
    let lock = client.fenced_lock(&name);
    let counter = beside("redisson_lock_token", &name);
    let commands_before = server.command_total();
    for ttl in [
        Duration::from_nanos(1),
        ms(9),
        Duration::from_nanos(9_999_999),
        MAX_LEASE + Duration::from_nanos(1),
        Duration::MAX,
    ] {
        let lock = lock.clone().token_ttl(ttl);
        for verdict in [
            lock.lock().map(drop),
            lock.try_lock().map(drop),
            lock.try_lock_for(LONG).map(drop),
            lock.with(|_| ()),
        ] {
            match verdict {
                Err(Error::InvalidSetting { reason: what, .. }) => {
                    assert!(what.starts_with("token_ttl"), "{what}")
                }
                other => panic!("{ttl:?}: {other:?}"),
            }
        }
        assert_eq!(lock.hold_count(), 0);
    }
    assert_eq!(server.command_total(), commands_before);
    assert_eq!(client.stats().names, 0);

    // The limits themselves are valid, and so is zero, which means no TTL.
    let year = 365 * 24 * 3600 * 1000;
    let mut last = 0;
    let mut take = |ttl, lives: &dyn Fn(i64) -> bool| {
        let guard = lock.clone().token_ttl(ttl).lock().unwrap();
        assert!(guard.token() > last);
        last = guard.token();
        let ttl_left = server.pttl(&counter);
        assert!(lives(ttl_left), "{ttl:?}: {ttl_left}");
        guard.unlock().unwrap();
    };
    take(MAX_LEASE, &|ttl_left| ttl_left > 99 * year);
    take(Duration::ZERO, &|ttl_left| ttl_left == -1);
    take(ms(60_000), &|ttl_left| {
        (30_000..=60_000).contains(&ttl_left)
    });
    take(MIN_LEASE, &|ttl_left| ttl_left <= 1_000 && ttl_left != -1);
    eventually("the counter expires", || server.dbsize() == 0);
    take(MIN_LEASE, &|ttl_left| ttl_left <= 1_000 && ttl_left != -1);
}

/// Durations at the limits of the integers into which they are converted.
fn odd_spans() -> [Duration; 13] {
    let most = i64::MAX.unsigned_abs();
    [
        Duration::ZERO,
        Duration::from_nanos(1),
        Duration::from_nanos(999_999),
        ms(1),
        ms(10),
        ms(i32::MAX.unsigned_abs().into()),
        ms(u32::MAX.into()),
        MAX_LEASE,
        Duration::from_nanos(u64::MAX),
        Duration::from_micros(most),
        ms(most),
        ms(u64::MAX),
        Duration::MAX,
    ]
}

timed!(whatever_span_or_number_is_given_there_is_an_answer_or_an_error);
fn whatever_span_or_number_is_given_there_is_an_answer_or_an_error() {
    let server = Server::start();
    let (client, other) = (open(&server), open(&server));
    let name = |kind: &str| unique(kind);
    let held = name("held");
    let (held, _guard) = (client.mutex(&held), other.mutex(&held).lock().unwrap());
    for span in odd_spans() {
        // A free lock is granted whatever the limit is, except that a very short one may end before the reply.
        let is_got = |got: redlatch::Result<bool>| got.unwrap() || span < LONG;
        let fair = client.fair_lock(name("fair")).try_lock_for(span);
        assert!(is_got(fair.map(|got| got.is_some())));
        let spin = client.spin_lock(name("spin")).try_lock_for(span);
        assert!(is_got(spin.map(|got| got.is_some())));
        let multi = client.multi_lock([name("a"), name("b")]).try_lock_for(span);
        assert!(is_got(multi.map(|got| got.is_some())));
        let written = client.rw_lock(name("rw")).try_write_for(span);
        assert!(is_got(written.map(|got| got.is_some())));
        assert!(is_got(client.latch(name("latch")).wait_for(span)));
        let lease = client.reentrant_lock(name("lease")).fixed_lease(span);
        let held_for = client.reentrant_lock(name("hold")).max_hold(span);
        for verdict in [lease.try_lock().map(drop), held_for.try_lock().map(drop)] {
            assert!(
                matches!(
                    verdict,
                    Ok(())
                        | Err(Error::InvalidSetting { .. }
                            | Error::Lost { .. }
                            | Error::Redis { .. })
                ),
                "{span:?}: {verdict:?}"
            );
        }
        let slots = client.expirable_semaphore(name("slots"));
        assert!(slots.try_set_permits(1).unwrap());
        let permit = slots
            .try_acquire_for(span)
            .map(|got| got.map(|permit| permit.id().len()));
        assert!(is_got(permit.map(|id| id == Some(32))));
        eventually("the permit is back", || {
            slots.available_permits().unwrap() == 1
        });
        let permit = slots.acquire().unwrap();
        let verdict = permit.update_lease(span);
        assert!(
            matches!(
                verdict,
                Ok(()) | Err(Error::InvalidSetting { .. } | Error::Lost { .. })
            ),
            "{span:?}: {verdict:?}"
        );
        // A held lock is waited for only if the limit is short.
        let now = Instant::now();
        if span < LONG {
            assert!(held.try_lock_for(span).unwrap().is_none());
        }
        if let Some(past_deadline) = now.checked_sub(span) {
            assert!(held.try_lock_until(past_deadline).unwrap().is_none());
        }
        if let Some(after) = now.checked_add(span) {
            let until = client.mutex(name("until")).try_lock_until(after);
            assert!(is_got(until.map(|got| got.is_some())));
        }
    }
    let numbers = [
        0,
        1,
        2,
        1000,
        1001,
        i32::MAX.unsigned_abs(),
        i32::MAX.unsigned_abs() + 1,
        u32::MAX,
    ];
    for number in numbers {
        let (permits, slots) = (
            client.semaphore(name("permits")),
            client.expirable_semaphore(name("slots")),
        );
        let n = i64::from(number);
        let verdicts = [
            permits.try_set_permits(number).map(drop),
            permits.add_permits_if_exists(number).map(drop),
            permits.try_acquire_many(number).map(drop),
            permits.add_permits(n),
            permits.add_permits(-n),
            permits.add_permits(i64::MAX - n),
            permits.add_permits(i64::MIN + n),
            permits.available_permits().map(drop),
            permits.drain_permits().map(drop),
            slots.try_set_permits(number).map(drop),
            slots.set_permits(number),
            slots.try_acquire_many(number.min(2)).map(drop),
            slots.add_permits(n),
            slots.add_permits(i64::MAX - n),
            slots.add_permits(i64::MIN + n),
            slots.permits().map(drop),
            slots.acquired_permits().map(drop),
            client
                .latch(name("latch"))
                .try_set_count(u64::MAX - u64::from(number))
                .map(drop),
        ];
        for (at, verdict) in verdicts.into_iter().enumerate() {
            let possible = matches!(
                verdict,
                Ok(())
                    | Err(Error::InvalidSetting { .. }
                        | Error::Redis { .. }
                        | Error::WrongType { .. })
            );
            assert!(possible, "{number}, {at}: {verdict:?}");
        }
    }
}

timed!(a_place_in_the_queue_lives_for_as_long_as_may_be);
fn a_place_in_the_queue_lives_for_as_long_as_may_be() {
    let server = Server::start();
    let shorter = loosely(ms(300));
    for lease in [shorter, ms(60_000)] {
        let name = unique("place");
        let config = settings(&server).waiter_lease(lease);
        let client = Client::open(config).unwrap();
        let guard = client.fair_lock(&name).lock().unwrap();
        let mut crew = Crew::new();
        let lock = client.fair_lock(&name);
        crew.spawn(move || lock.lock().unwrap().unlock().unwrap());
        subscribed(&server, 1);
        // Wait longer than the shorter waiter lease: the waiter's signs of life keep its place.
        std::thread::sleep(3 * shorter + ms(50));
        let alive = beside("redisson_lock_alive", &name);
        // On a busy machine a sign of life may be late and the place may expire; the next sign of life creates it
        // again.
        eventually("the place is alive", || {
            let until: Vec<(String, f64)> =
                server.ask(&["ZRANGE", &alive, "0", "-1", "WITHSCORES"]);
            let (seconds, micros): (u64, u64) = server.ask(&["TIME"]);
            let now =
                std::time::Duration::new(seconds, 0).as_secs_f64() * 1e3 + micros as f64 / 1e3;
            let times_left: Vec<f64> = until.iter().map(|(_, at)| at - now).collect();
            let most = lease.as_secs_f64() * 1e3 + 1.0;
            assert!(
                times_left.iter().all(|time_left| *time_left <= most),
                "{times_left:?} ms"
            );
            times_left.len() == 1 && times_left[0] > 0.0
        });
        guard.unlock().unwrap();
        crew.join();
        eventually("nothing is left", || server.dbsize() == 0);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Addresses and credentials
// ---------------------------------------------------------------------------------------------------------------------

/// A lock can be acquired and released, and another client can wait for it.
fn works(config: Config) {
    let client = Client::open(config.clone()).unwrap();
    let lock = client.reentrant_lock(unique("works"));
    let guard = lock.lock().unwrap();
    scoped(|scope| {
        let other = Client::open(config).unwrap();
        let name = lock.name();
        let waiting = scope.spawn(move || {
            let guard = other.mutex(name).try_lock_for(LONG).unwrap().unwrap();
            guard.unlock().unwrap();
        });
        std::thread::sleep(ms(20));
        guard.unlock().unwrap();
        waiting.join().unwrap();
    });
    assert!(!lock.is_locked().unwrap());
}

/// The settings for a client of `server` that logs in with `login` and selects `db`.
fn settings_for(server: &Server, login: &str, db: &str) -> Config {
    let slash = match server.deployment() {
        Deployment::Sentinel if !db.is_empty() => "/",
        _ => "",
    };
    settings_as(server, login, &format!("{slash}{db}"))
}

timed!(a_password_is_asked_for_and_given);
fn a_password_is_asked_for_and_given() {
    let server = Server::start_with(&["--requirepass", "s e/cret"]);
    works(settings_for(&server, ":s%20e%2Fcret@", ""));
    works(settings_for(&server, "default:s%20e%2Fcret@", ""));
    for credentials in ["", ":wr0ng@", "nobody:s%20e%2Fcret@"] {
        let begun = Instant::now();
        let err = Client::open(settings_for(&server, credentials, "")).unwrap_err();
        assert!(matches!(err, Error::Redis { .. }), "{err:?}");
        assert!(!err.is_retryable(), "{credentials:?}: {err:?}");
        assert!(begun.elapsed() < loosely(ms(2000)));
        let said = format!("{err} {err:?}");
        assert!(!said.contains("wr0ng") && !said.contains("cret"), "{said}");
    }
}

timed!(the_database_of_the_url_is_used);
fn the_database_of_the_url_is_used() {
    if deployment() == Deployment::Cluster {
        skipped("a database other than 0", "clusters have none");
        return;
    }
    let server = Server::start();
    let (three, zero) = (
        Client::open(settings_for(&server, "", "3")).unwrap(),
        open(&server),
    );
    let name = unique("db");
    let _guard = three.reentrant_lock(&name).lock().unwrap();
    assert_eq!(server.dbsize(), 0);
    let mut con = connection_to(&format!("{}3", server.url()));
    let exists: bool = redis::cmd("EXISTS").arg(&name).query(&mut con).unwrap();
    assert!(exists);
    assert!(zero.mutex(&name).try_lock().unwrap().is_some());
    works(settings_for(&server, "", "3"));

    let err = Client::open(settings_for(&server, "", "99")).unwrap_err();
    assert!(matches!(err, Error::Redis { .. }), "{err:?}");
    assert!(!err.is_retryable(), "{err:?}");
}

timed!(a_unix_socket_will_do);
fn a_unix_socket_will_do() {
    let server = Server::start_with(&[]);
    works(server.unix_url().into());
    let (unix, tcp) = (Client::open(server.unix_url()).unwrap(), open(&server));
    let name = unique("unix");
    let _guard = unix.mutex(&name).lock().unwrap();
    assert!(tcp.mutex(&name).try_lock().unwrap().is_none());
    let db = Client::open(format!("{}?db=2", server.unix_url())).unwrap();
    assert!(db.mutex(&name).try_lock().unwrap().is_some());
}
