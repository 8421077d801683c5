//! The text of an error is all that a user reads: for each common mistake it says what is wrong and what to do.

use std::io::Write;
use std::net::TcpListener;
use std::time::Duration;

use redlatch::{CancelToken, Client, Config, DeadlockReason, Error, Result};

use crate::support::{
    Mode, Proxy, RESPONSE, SENTINEL, Server, Target, client, config, eventually, free_port,
    in_time, ms, scoped, timed, unique,
};

/// Asserts that the text of the error contains `parts` and no password, and that the error has no source with more.
#[track_caller]
fn explained<T>(mistake: &str, result: Result<T>, parts: &[&str]) -> Error {
    let err = result.map(drop).expect_err(mistake);
    let text = err.to_string();
    for part in parts {
        assert!(text.contains(part), "{mistake}: {part} is not in: {text}");
    }
    assert!(!text.contains("secret"), "{mistake}: {text}");
    assert!(!text.ends_with('.') && !text.contains('\n'), "{text}");
    assert!(
        std::error::Error::source(&err).is_none(),
        "nothing is left to the source: {text}"
    );
    err
}

/// Expects that another URL is asked for, at once and for good.
#[track_caller]
fn wrong_url(mistake: &str, url: &str, parts: &[&str]) {
    let opened = in_time(mistake, RESPONSE / 2, || Client::open(config(url)));
    let err = explained(mistake, opened, parts);
    assert!(matches!(err, Error::InvalidSetting { .. }), "{err:?}");
    assert!(!err.is_retryable());
}

/// Opens a client and locks something.
fn lock(config: Config) -> Result<()> {
    Client::open(config)?.mutex("orders").lock()?.unlock()
}

fn at(port: u16, login: &str) -> Config {
    config(&format!("redis://{login}127.0.0.1:{port}/"))
}

timed!(the_usual_mistakes_are_explained);
fn the_usual_mistakes_are_explained() {
    let server = Server::start_with(&[]);
    let port = server.port();
    let addr = server.addr().to_string();
    let user = |name: &str, rules: &[&str]| {
        let acl = ["ACL", "SETUSER", name, "on", ">secret"];
        server.cli(&[&acl[..], rules].concat());
    };
    let open = |login: &str| lock(at(port, login));
    user("bob", &["~*", "&*", "+@all"]);
    user("few", &["~*", "&*", "+@all", "-evalsha", "-eval"]);
    user("keyless", &["~shop:*", "&*", "+@all"]);
    server.cli(&["CONFIG", "SET", "requirepass", "secret"]);

    let none = free_port();
    explained(
        "the wrong port",
        lock(at(none, "")),
        &[
            &none.to_string(),
            "refused",
            "check that the server is running",
        ],
    );
    explained(
        "the wrong password",
        open("bob:wrong@"),
        &[
            "WRONGPASS",
            "the user is `bob`",
            "check the user and the password",
            &addr,
        ],
    );
    explained(
        "the wrong password of the default user",
        open(":wrong@"),
        &["WRONGPASS", "the user is `default`"],
    );
    explained(
        "a user that does not exist",
        open("eve:secret@".replace("secret", "secr3t").as_str()),
        &["WRONGPASS", "the user is `eve`"],
    );
    explained(
        "no password where one is needed",
        open(""),
        &["NOAUTH", "redis://user:password@host"],
    );
    let err = explained(
        "a user without the right to EVALSHA",
        open("few:secret@"),
        &[
            "NOPERM",
            "evalsha",
            "`ACL rights`",
            "guide::operations",
            "`orders`",
        ],
    );
    assert!(matches!(err, Error::Redis { name: Some(name), .. } if name == "orders"));
    explained(
        "a user without rights to the key",
        open("keyless:secret@"),
        &["NOPERM", "key", "`ACL rights`", "for `orders`"],
    );
    explained(
        "a database that the server does not have",
        lock(config(&format!("redis://bob:secret@{addr}/99"))),
        &["out of range", "the URL asks for database 99"],
    );
    let replica = Server::start_with(&["--replicaof", "127.0.0.1", &port.to_string()]);
    let said = format!("it is a replica of 127.0.0.1:{port}");
    let to_use = format!("use redis://127.0.0.1:{port}/");
    let err = in_time("a replica", RESPONSE / 2, || {
        let opened = Client::open(at(replica.port(), ""));
        explained("a replica", opened, &[&said, &to_use, "redis+sentinel://"])
    });
    // The replica may be promoted, so a retry may help.
    assert!(matches!(err, Error::Redis { .. }) && err.is_retryable());
    explained(
        "a replica on which something is locked",
        lock(at(replica.port(), "").lazy()),
        &["READONLY", "a replica", "URL of its master"],
    );
    let sentinel = Server::start_with(&[SENTINEL]);
    let to_use = format!("use redis+sentinel://{}/", sentinel.addr());
    wrong_url(
        "a sentinel as a server",
        &sentinel.url(),
        &["is a Sentinel", &to_use],
    );
    let plain = Server::start_with(&[]);
    let to_use = format!("use redis://{}/", plain.addr());
    wrong_url(
        "a server as a sentinel",
        &format!("redis+sentinel://{}/orders", plain.addr()),
        &[
            &plain.addr().to_string(),
            "is not a Sentinel",
            "use redis://",
        ],
    );
    wrong_url(
        "a server as a cluster",
        &format!("redis+cluster://{}/", plain.addr()),
        &["not a node of a cluster", &to_use],
    );
    // Without the right to ask what it is, a client may connect all the same.
    plain.cli(&["ACL", "SETUSER", "default", "-role", "-hello"]);
    lock(config(&plain.url())).unwrap();
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    scoped(|scope| {
        scope.spawn(|| {
            let (mut client, _) = listener.accept().unwrap();
            client
                .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                .unwrap();
        });
        explained(
            "the port of a web server",
            lock(at(port, "")),
            &["does not speak the protocol of redis", "the port"],
        );
    });
    explained(
        "a Unix socket that is missing",
        lock(config("unix:///nowhere/redis.sock")),
        &["/nowhere/redis.sock", "check the path in the URL"],
    );
    explained(
        "a host that does not exist",
        lock(config("redis://nowhere.invalid/").connect_timeout(ms(3_000))),
        &["nowhere.invalid", "the host", "check"],
    );
    for (mistake, url, part) in [
        (
            "an unknown parameter",
            "redis://h?db=3",
            "redis://host:6379/3",
        ),
        ("an unescaped password", "redis://:sec/ret@h", "%2F"),
        ("a port out of range", "redis://h:99999", "1 to 65535"),
        (
            "a port that is none",
            "redis://h:abc/",
            "redis://host:6379/",
        ),
        (
            "a name for a database",
            "redis://h/abc",
            "redis://host:6379/3",
        ),
        (
            "IPv6 without brackets",
            "redis://::1/",
            "redis://[::1]:6379/",
        ),
    ] {
        let err = explained(mistake, Client::open(url), &["url: ", part]);
        assert!(matches!(err, Error::InvalidSetting { .. }), "{err:?}");
    }
    {
        let cluster = crate::support::cluster::Cluster::shared();
        let node = &cluster.nodes[0];
        let to_use = format!("use redis+cluster://{}/", node.addr());
        let said = ["is a node of a cluster", &to_use];
        wrong_url("a node of a cluster as a server", &node.url(), &said);
    }
}

#[cfg(feature = "tls")]
timed!(mistakes_about_tls_are_explained);
#[cfg(feature = "tls")]
fn mistakes_about_tls_are_explained() {
    let plain = Server::start_with(&[]);
    let url = format!("rediss://{}/", plain.addr());
    explained(
        "TLS to a server without it",
        lock(config(&url).tls(crate::support::trusting())),
        &["does not speak TLS", "use redis://"],
    );
    let identity = crate::support::authority().issue(&["127.0.0.1"]);
    let secure = Server::start_tls(&identity, &[]);
    explained(
        "no TLS to a server that wants it",
        lock(config(&format!("redis://{}/", secure.client_addr()))),
        &["if it speaks TLS, use rediss://"],
    );
}

timed!(what_a_key_holds_instead_is_said);
fn what_a_key_holds_instead_is_said() {
    let server = Server::start_with(&[]);
    let client = Client::open(config(&server.url()).key_prefix("app:")).unwrap();
    server.cli(&["RPUSH", "app:orders", "x"]);
    let list = "the key `app:orders` holds a list";
    let orders = client.mutex("orders");
    for result in [
        orders.lock().map(drop),
        orders.try_lock().map(drop),
        orders.try_lock_for(ms(1_000)).map(drop),
        orders.force_unlock().map(drop),
        client.fair_lock("orders").lock().map(drop),
        client.rw_lock("orders").read().map(drop),
        client.semaphore("orders").try_acquire().map(drop),
        client.expirable_semaphore("orders").try_acquire().map(drop),
        client.latch("orders").count().map(drop),
        client.multi_lock(["orders"]).lock().map(drop),
    ] {
        let err = explained(
            "a list",
            result,
            &[list, "choose another name", "try again later"],
        );
        assert!(matches!(err, Error::WrongType { found: Some(_), .. }));
    }
    // A lock's second key may hold something else as well.
    server.cli(&["SET", "redisson_lock_queue:{app:fair}", "x"]);
    let fair = client.fair_lock("fair").lock().map(drop);
    explained(
        "a string for a queue",
        fair,
        &["`redisson_lock_queue:{app:fair}` holds a string"],
    );
    // The reason that a script itself returns.
    let _reader = client.rw_lock("rw").read().unwrap();
    explained(
        "another lock",
        client.mutex("rw").try_lock(),
        &["the key holds a read-write lock"],
    );
    // To another process a mutex is a lock of another kind.
    let held = crate::support::client(&server.url());
    let _mutex = held.mutex("app:held").lock().unwrap();
    for result in [
        client.rw_lock("held").read().map(drop),
        client.rw_lock("held").try_write().map(drop),
    ] {
        explained("a mutex", result, &["the key holds a lock of another kind"]);
    }
    // The user may not ask for the type of the key.
    let acl = ["ACL", "SETUSER", "default", "-type"];
    server.cli(&acl);
    let err = explained(
        "a list",
        orders.lock(),
        &["`orders`", "its key holds something else"],
    );
    assert!(matches!(err, Error::WrongType { found: None, .. }));
}

timed!(what_may_have_counted_is_not_to_be_repeated);
fn what_may_have_counted_is_not_to_be_repeated() {
    let server = Server::start_with(&[]);
    let proxy = Proxy::start(server.addr());
    let hasty = config(&proxy.url()).command_timeout(ms(150));
    let client = Client::open(hasty).unwrap();
    let (slots, permits) = (
        client.semaphore("slots"),
        client.expirable_semaphore("permits"),
    );
    slots.try_set_permits(9).unwrap();
    let calls: [(&str, &dyn Fn() -> Result<()>); 6] = [
        ("count_down", &|| {
            client.latch("latch").count_down().map(drop)
        }),
        ("add_permits", &|| slots.add_permits(1)),
        ("add_permits_if_exists", &|| {
            slots.add_permits_if_exists(1).map(drop)
        }),
        ("drain_permits", &|| slots.drain_permits().map(drop)),
        ("add_permits, expirable", &|| permits.add_permits(1)),
        ("force_unlock", &|| {
            client.mutex("orders").force_unlock().map(drop)
        }),
    ];
    let connected = || {
        proxy.pass();
        let asks = || slots.available_permits().is_ok();
        eventually("it is connected", asks);
    };
    for (verb, call) in calls {
        connected();
        proxy.set(Target::Link, Mode::SwallowReplies);
        let err = explained(verb, call(), &["the command may have run: check the data"]);
        assert!(err.may_have_run() && !err.is_retryable(), "{verb}: {err:?}");
    }
    connected();
    proxy.set(Target::Link, Mode::SwallowReplies);
    let asked = client.mutex("orders").is_locked().unwrap_err();
    assert!(!asked.may_have_run() && asked.is_retryable(), "{asked:?}");
    // Nothing was sent.
    proxy.set(Target::All, Mode::Refuse);
    proxy.cut(Target::All);
    for (verb, call) in calls {
        let err = call().expect_err(verb);
        assert!(!err.may_have_run() && err.is_retryable(), "{verb}: {err:?}");
    }
}

timed!(an_error_of_a_downgrade_names_it_and_is_no_reason_to_repeat_the_work);
fn an_error_of_a_downgrade_names_it_and_is_no_reason_to_repeat_the_work() {
    let server = Server::start_with(&[]);
    let proxy = Proxy::start(server.addr());
    let hasty = config(&proxy.url()).command_timeout(ms(150));
    let prices = Client::open(hasty).unwrap().rw_lock("prices");
    let (one, other) = (prices.write().unwrap(), prices.clone());
    proxy.set(Target::Link, Mode::SwallowReplies);
    let said = ["downgrading the lock failed for `prices`"];
    let follows_work = |err: Error| {
        let is_marked = matches!(
            err,
            Error::Redis {
                after_work: true,
                ..
            }
        );
        assert!(is_marked && !err.is_retryable(), "{err:?}");
    };
    let err = explained("a downgrade", one.downgrade(), &said);
    follows_work(err);
    proxy.pass();
    proxy.cut(Target::All);
    let mut guard = None;
    eventually("it is free again", || {
        guard = other.write().ok();
        guard.is_some()
    });
    proxy.set(Target::Link, Mode::SwallowReplies);
    let err = explained(
        "a release",
        guard.unwrap().unlock(),
        &["releasing the lock failed"],
    );
    follows_work(err);
}

timed!(a_server_that_does_not_say_what_a_key_holds_is_not_waited_for);
fn a_server_that_does_not_say_what_a_key_holds_is_not_waited_for() {
    let server = Server::start_with(&[]);
    let proxy = Proxy::start(server.addr());
    let client = client(&proxy.url());
    server.cli(&["RPUSH", "orders", "x"]);
    let swallowed = proxy.black_hole_request("\r\nTYPE\r\n");
    let asked = in_time("giving up", RESPONSE, || client.mutex("orders").lock());
    assert!(swallowed.fired());
    assert!(
        matches!(asked, Err(Error::WrongType { found: None, .. })),
        "{asked:?}"
    );
}

timed!(what_a_client_is_asked_for_in_vain_is_said);
fn what_a_client_is_asked_for_in_vain_is_said() {
    let server = Server::start();
    let (client, name) = (crate::support::open(&server), unique("vain"));
    explained("an empty name", client.mutex("").lock(), &["empty"]);
    let short = client.mutex(&name).fixed_lease(ms(1));
    explained(
        "a lease that is too short",
        short.lock(),
        &["lease", "10 ms"],
    );
    explained(
        "a lease without end",
        client.mutex(&name).fixed_lease(Duration::MAX).lock(),
        &["lease Duration::MAX is not between 10 ms and 100 years"],
    );
    let cancelled = CancelToken::new();
    cancelled.cancel();
    let waits = client.mutex(&name).cancel_on(&cancelled);
    explained("a cancelled wait", waits.lock(), &["cancelled"]);

    let deadlock = |mistake, result: Result<()>, expected, part: &str| {
        let err = explained(mistake, result, &[&name, "would wait for itself", part]);
        let is = matches!(&err, Error::WouldDeadlock { reason, .. } if *reason == expected);
        assert!(is, "{err:?}");
    };
    let mutex = client.mutex(&name);
    let guard = mutex.lock().unwrap();
    deadlock(
        "locking twice",
        mutex.lock().map(drop),
        DeadlockReason::NotReentrant,
        "or a reentrant lock",
    );
    deadlock(
        "locking as another kind",
        client.fair_lock(&name).lock().map(drop),
        DeadlockReason::OtherKind,
        "another kind",
    );
    guard.unlock().unwrap();
    let rw = client.rw_lock(&name);
    let reader = rw.read().unwrap();
    deadlock(
        "writing while reading",
        rw.write().map(drop),
        DeadlockReason::Reading,
        "drop the read guard",
    );
    reader.unlock().unwrap();
    client.close(RESPONSE).unwrap();
    let err = explained(
        "a closed client",
        mutex.lock(),
        &["closed", "open a new client"],
    );
    assert!(!err.is_retryable());
}
