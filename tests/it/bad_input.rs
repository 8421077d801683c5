//! Names, keys, settings and addresses that users get wrong or make strange: correct behaviour or a clear error, nothing
//! overwritten, nothing sent.

use std::error::Error as _;
use std::time::{Duration, Instant};

use redlatch::{Client, Config, Error, MAX_LEASE, MIN_LEASE, Result};

use crate::contract::{Crew, open, subscribed};
use crate::support::{Server, connection_to, eventually, free_port, ms, unique};

const LONG: Duration = Duration::from_secs(10);

/// Names that could trip a parser, a pattern or a hash tag.
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

fn channel_of(key: &str) -> String {
    if key.contains('{') {
        format!("redisson_lock__channel:{key}")
    } else {
        format!("redisson_lock__channel:{{{key}}}")
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Names
// ---------------------------------------------------------------------------------------------------------------------

// I11
#[test]
fn every_name_is_its_key_to_the_byte() {
    let server = Server::start();
    for prefix in ["", "app:", "sp ace{", "\r\n"] {
        let client = Client::open(Config::new(server.url()).key_prefix(prefix)).unwrap();
        for name in odd_names() {
            let key = format!("{prefix}{name}");
            if key.len() > 64 * 1024 {
                continue;
            }
            let mut con = server.connection();
            let mut pubsub = con.as_pubsub();
            pubsub.subscribe(channel_of(&key)).unwrap();
            for waits in [false, true] {
                let mutex = client.mutex(&name);
                let guard = if waits {
                    mutex.try_lock_for(LONG)
                } else {
                    mutex.try_lock()
                };
                assert!(guard.unwrap().is_some(), "{name:?}");
                let message = pubsub.get_message().unwrap();
                assert_eq!(message.get_payload::<String>().unwrap(), "0");
            }
            let lock = client.reentrant_lock(&name);
            let guard = lock.lock().unwrap();
            assert_eq!((lock.name(), guard.name()), (&*name, &*name));
            assert_eq!(server.keys(), [key.as_str()]);
            assert_eq!(
                server.hgetall(&key),
                [(guard.owner().to_owned(), "1".to_owned())]
            );
            assert!(lock.is_locked().unwrap() && lock.remaining().unwrap().is_some());
            guard.unlock().unwrap();
            assert_eq!(server.dbsize(), 0, "{key:?}");
            assert!(!lock.force_unlock().unwrap());
        }
    }
}

#[test]
fn waiters_hear_of_releases_whatever_the_name() {
    let server = Server::start();
    let (holder, client) = (open(&server), open(&server));
    let guards: Vec<_> = odd_names()
        .iter()
        .map(|name| holder.reentrant_lock(name).lock().unwrap())
        .collect();
    let mut crew = Crew::new();
    for name in odd_names() {
        let lock = client.mutex(&name);
        crew.spawn(move || {
            lock.lock().unwrap().unlock().unwrap();
        });
    }
    subscribed(&server, guards.len() as u64);
    crew.all_parked();
    drop(guards);
    crew.join();
    eventually("nothing is left", || server.dbsize() == 0);
    eventually("nobody listens", || {
        server
            .ask::<Vec<String>>(&["PUBSUB", "CHANNELS", "*"])
            .is_empty()
    });
}

#[test]
fn names_that_differ_are_different_locks() {
    let server = Server::start();
    let client = open(&server);
    let _guards: Vec<_> = odd_names()
        .iter()
        .map(|name| client.mutex(name).try_lock().unwrap().unwrap())
        .collect();
    assert_eq!(server.dbsize(), odd_names().len() as u64);
    // A prefix makes others of them, and joins what spells the same key.
    let prefixed = Client::open(Config::new(server.url()).key_prefix("two ")).unwrap();
    assert!(prefixed.mutex("0").try_lock().unwrap().is_some());
    assert!(prefixed.mutex("words").try_lock().unwrap().is_none());
}

#[test]
fn impossible_names_are_refused_and_nothing_is_sent() {
    let server = Server::start();
    let plain = open(&server);
    let prefixed = Client::open(Config::new(server.url()).key_prefix("app:")).unwrap();
    let before = server.command_total();
    let cases = [
        (&plain, String::new()),
        (&prefixed, String::new()),
        (&plain, "x".repeat(64 * 1024 + 1)),
        (&plain, "ž".repeat(40_000)),
        (&prefixed, "x".repeat(64 * 1024 - 3)),
    ];
    for (client, name) in cases {
        let (lock, mutex) = (client.reentrant_lock(&name), client.mutex(&name));
        let verdicts: [Result<()>; 10] = [
            lock.lock().map(drop),
            lock.try_lock().map(drop),
            lock.try_lock_for(LONG).map(drop),
            lock.try_lock_until(Instant::now() + LONG).map(drop),
            lock.with(|_| ()),
            mutex.lock().map(drop),
            mutex.try_lock().map(drop),
            lock.is_locked().map(drop),
            lock.remaining().map(drop),
            lock.force_unlock().map(drop),
        ];
        for verdict in verdicts {
            let err = verdict.unwrap_err();
            assert!(matches!(err, Error::InvalidName { .. }), "{err:?}");
            assert!(!err.is_retryable() && err.source().is_none());
            assert!(err.to_string().len() < 200, "the name is not repeated");
        }
        assert!(!lock.is_owned_by_current_thread() && lock.hold_count() == 0);
    }
    assert_eq!(server.command_total(), before);
    assert_eq!(plain.stats().rooms + prefixed.stats().rooms, 0);
}

// ---------------------------------------------------------------------------------------------------------------------
// Strangers' data
// ---------------------------------------------------------------------------------------------------------------------

// A4, I11
#[test]
fn a_key_of_another_type_is_an_error_and_stays_as_it_is() {
    let server = Server::start();
    let client = open(&server);
    let kinds: [&[&str]; 5] = [
        &["SET", "KEY", "1"],
        &["RPUSH", "KEY", "a", "b"],
        &["SADD", "KEY", "a"],
        &["ZADD", "KEY", "1", "a"],
        &["XADD", "KEY", "1-1", "field", "value"],
    ];
    for kind in kinds {
        let name = unique("typed");
        let command: Vec<_> = kind
            .iter()
            .map(|&part| if part == "KEY" { &*name } else { part })
            .collect();
        server.cli(&command);
        let dump: Vec<u8> = server.ask(&["DUMP", &name]);
        let (lock, mutex) = (client.reentrant_lock(&name), client.mutex(&name));
        let verdicts: [(&str, Result<()>); 7] = [
            ("lock", lock.lock().map(drop)),
            ("try_lock", lock.try_lock().map(drop)),
            ("try_lock_for", lock.try_lock_for(LONG).map(drop)),
            ("with", mutex.with(|_| ())),
            ("fixed", mutex.lease(LONG).lock().map(drop)),
            ("is_locked", lock.is_locked().map(drop)),
            ("force_unlock", lock.force_unlock().map(drop)),
        ];
        for (verb, verdict) in verdicts {
            match verdict {
                Err(Error::WrongType { name: its }) => assert_eq!(its, name),
                other => panic!("{verb} on {}: {other:?}", kind[0]),
            }
        }
        assert_eq!(server.ask::<Vec<u8>>(&["DUMP", &name]), dump);
        assert_eq!(server.pttl(&name), -1);
        // Once it is gone the name is as good as any.
        server.cli(&["DEL", &name]);
        lock.lock().unwrap().unlock().unwrap();
    }
}

// I11
#[test]
fn a_hash_of_data_is_neither_taken_nor_deleted() {
    let server = Server::start();
    let client = open(&server);
    let name = unique("user");
    server.cli(&["HSET", &name, "name", "alice", "mail", "a@example.org"]);
    let lock = client.reentrant_lock(&name);
    assert!(lock.try_lock().unwrap().is_none());
    assert!(lock.try_lock_for(ms(50)).unwrap().is_none());
    assert!(matches!(lock.force_unlock(), Err(Error::WrongType { .. })));
    assert_eq!(server.hgetall(&name).len(), 2);
    assert_eq!(server.pttl(&name), -1);
}

#[test]
fn a_key_that_changes_its_type_under_a_holder_is_told() {
    let server = Server::start();
    let client = Client::open(Config::new(server.url()).lease(ms(300))).unwrap();
    let name = unique("switch");
    let lock = client.reentrant_lock(&name);
    let guard = lock.lock().unwrap();
    server.cli(&["SET", &name, "precious"]);
    let loss = guard.lost().recv_timeout(LONG).unwrap();
    assert_eq!(loss.name, name);
    assert!(!guard.is_valid());
    assert!(matches!(guard.unlock(), Err(Error::Lost { .. })));
    assert!(matches!(lock.try_lock(), Err(Error::WrongType { .. })));
    assert_eq!(server.ask::<String>(&["GET", &name]), "precious");
    assert_eq!(server.pttl(&name), -1, "nobody gave it a limit");
}

// ---------------------------------------------------------------------------------------------------------------------
// Settings
// ---------------------------------------------------------------------------------------------------------------------

// L6
#[test]
fn impossible_leases_are_refused_and_nothing_is_sent() {
    let server = Server::start();
    let client = open(&server);
    let name = unique("lease");
    let lock = client.reentrant_lock(&name);
    let mutex = client.mutex(&name);
    let before = server.command_total();
    let bad = [
        lock.clone().lease(Duration::ZERO),
        lock.clone().lease(ms(9)),
        lock.clone().lease(Duration::from_nanos(9_999_999)),
        lock.clone().lease(MAX_LEASE + Duration::from_nanos(1)),
        lock.clone().lease(Duration::MAX),
        lock.clone().max_hold(Duration::ZERO),
        lock.clone().lease(LONG).max_hold(LONG),
    ];
    for lock in bad {
        for verdict in [
            lock.lock().map(Some),
            lock.try_lock(),
            lock.try_lock_for(LONG),
        ] {
            let err = verdict.unwrap_err();
            assert!(matches!(err, Error::Config(_)), "{err:?}");
            assert!(!err.is_retryable());
        }
    }
    assert!(matches!(mutex.lease(ms(9)).lock(), Err(Error::Config(_))));
    assert_eq!(server.command_total(), before);

    // The limits themselves are good.
    let guard = lock.clone().lease(MAX_LEASE).lock().unwrap();
    assert!(guard.is_valid());
    let year = 365 * 24 * 3600 * 1000;
    assert!(server.pttl(&name) > 99 * year);
    guard.unlock().unwrap();
    let guard = lock.clone().lease(MIN_LEASE).try_lock();
    assert!(matches!(guard, Ok(Some(_)) | Err(Error::Lost { .. })));
    drop(guard);
    let guard = lock.max_hold(Duration::MAX).lock().unwrap();
    assert!(guard.is_valid() && guard.lost().is_empty());
}

#[test]
fn impossible_settings_are_refused_before_anything_is_sent() {
    // Nobody is there, so that anything sent would be told as an error of Redis.
    let url = format!("redis://127.0.0.1:{}/", free_port());
    let ok = || Config::new(&*url);
    for (config, named) in [
        (ok().lease(Duration::ZERO), "lease"),
        (ok().lease(ms(9)), "lease"),
        (ok().lease(MAX_LEASE + ms(1)), "lease"),
        (ok().lease(Duration::MAX), "lease"),
        (ok().response_timeout(Duration::ZERO), "response_timeout"),
        (ok().connect_timeout(Duration::MAX), "connect_timeout"),
        (ok().tenure(Duration::from_secs(2)), "tenure"),
        (ok().label("two words"), "label"),
        (ok().label("line\r\nbreak"), "label"),
        (ok().key_prefix("x".repeat(2000)), "key_prefix"),
        (Config::new(""), "url"),
        (Config::new("not a url"), "url"),
        (Config::new("http://127.0.0.1/"), "url"),
    ] {
        match Client::open(config) {
            Err(Error::Config(what)) => assert!(what.starts_with(named), "{what}"),
            other => panic!("{named}: {other:?}"),
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Addresses and credentials
// ---------------------------------------------------------------------------------------------------------------------

#[test]
fn a_server_that_is_not_there_is_told_soon() {
    let begun = Instant::now();
    let err = Client::open(format!("redis://127.0.0.1:{}/", free_port())).unwrap_err();
    assert!(matches!(err, Error::Redis { .. }), "{err:?}");
    assert!(err.is_retryable() && err.source().is_some());
    let err = Client::open("redis+unix:///nowhere/redis.sock").unwrap_err();
    assert!(matches!(err, Error::Redis { .. }) && err.is_retryable());
    assert!(
        begun.elapsed() < Duration::from_secs(2),
        "{:?}",
        begun.elapsed()
    );
}

/// A lock can be had and given back, and another thread waits for it.
fn works(url: &str) {
    let client = Client::open(url).unwrap();
    let lock = client.reentrant_lock(unique("works"));
    let guard = lock.lock().unwrap();
    std::thread::scope(|scope| {
        let other = Client::open(url).unwrap();
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

fn url_for(server: &Server, credentials: &str, db: &str) -> String {
    format!("redis://{credentials}127.0.0.1:{}/{db}", server.port())
}

#[test]
fn a_password_is_asked_for_and_given() {
    let server = Server::start_with(&["--requirepass", "s e/cret"]);
    works(&url_for(&server, ":s%20e%2Fcret@", ""));
    works(&url_for(&server, "default:s%20e%2Fcret@", ""));
    for credentials in ["", ":wr0ng@", "nobody:s%20e%2Fcret@"] {
        let begun = Instant::now();
        let err = Client::open(url_for(&server, credentials, "")).unwrap_err();
        assert!(matches!(err, Error::Redis { .. }), "{err:?}");
        assert!(!err.is_retryable(), "{credentials:?}: {err:?}");
        assert!(begun.elapsed() < Duration::from_secs(2));
        let said = format!("{err} {err:?} {}", err.source().unwrap());
        assert!(!said.contains("wr0ng") && !said.contains("cret"), "{said}");
    }
}

#[test]
fn an_acl_user_needs_no_more_than_the_locks_do() {
    let server = Server::start();
    let acl = |rule: &[&str]| server.cli(&[&["ACL", "SETUSER"], rule].concat());
    // Everything the scripts call, on the keys and channels of locks; a channel is among the KEYS of a script.
    acl(&[
        "alice",
        "on",
        ">s3cret",
        "~works:*",
        "~redisson_lock__channel:*",
        "&redisson_lock__channel:*",
        "-@all",
    ]);
    for command in [
        "ping",
        "hello",
        "auth",
        "select",
        "client",
        "evalsha",
        "eval",
        "exists",
        "hexists",
        "hset",
        "hdel",
        "hget",
        "hkeys",
        "hlen",
        "del",
        "type",
        "pttl",
        "pexpire",
        "publish",
        "subscribe",
        "unsubscribe",
    ] {
        acl(&["alice", &format!("+{command}")]);
    }
    works(&url_for(&server, "alice:s3cret@", ""));

    let client = Client::open(url_for(&server, "alice:s3cret@", "")).unwrap();
    let err = client.mutex("private").lock().unwrap_err();
    assert!(matches!(err, Error::Redis { .. }), "{err:?}");
    assert!(!err.is_retryable(), "{err:?}");
    assert!(!server.exists("private"));

    // Without the channel a release still releases, and who waits asks again and again.
    acl(&["alice", "resetchannels"]);
    works(&url_for(&server, "alice:s3cret@", ""));
}

#[test]
fn the_database_of_the_url_is_used() {
    let server = Server::start();
    let (three, zero) = (
        Client::open(url_for(&server, "", "3")).unwrap(),
        open(&server),
    );
    let name = unique("db");
    let _guard = three.reentrant_lock(&name).lock().unwrap();
    assert_eq!(server.dbsize(), 0);
    let mut con = connection_to(&url_for(&server, "", "3"));
    let exists: bool = redis::cmd("EXISTS").arg(&name).query(&mut con).unwrap();
    assert!(exists);
    assert!(zero.mutex(&name).try_lock().unwrap().is_some());
    works(&url_for(&server, "", "3"));

    let err = Client::open(url_for(&server, "", "99")).unwrap_err();
    assert!(matches!(err, Error::Redis { .. }), "{err:?}");
    assert!(!err.is_retryable(), "{err:?}");
}

#[test]
fn a_unix_socket_will_do() {
    let server = Server::start();
    works(&server.unix_url());
    let (unix, tcp) = (Client::open(server.unix_url()).unwrap(), open(&server));
    let name = unique("unix");
    let _guard = unix.mutex(&name).lock().unwrap();
    assert!(tcp.mutex(&name).try_lock().unwrap().is_none());
    let db = Client::open(format!("{}?db=2", server.unix_url())).unwrap();
    assert!(db.mutex(&name).try_lock().unwrap().is_some());
}
