//! Passwords that change during the life of a client.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use crossbeam_channel::unbounded;
use redlatch::{Client, Config, Error};

use crate::support::{
    Crew, LONG, Losses, RESPONSE, Server, config, elsewhere, eventually, gets_nothing, in_time,
    is_waited_for, logs, loosely, ms, scoped, subscribed, timed, unique,
};

/// A server that requires a user and a password.
fn closed_server() -> Server {
    let server = Server::start_with(&[]);
    with_users(&server);
    server
}

fn with_users(server: &Server) {
    for user in ["blue", "green"] {
        let password = format!(">{user}:1");
        server.cli(&["ACL", "SETUSER", user, "on", &password, "~*", "&*", "+@all"]);
    }
}

/// The current login, and how often it was asked for.
#[derive(Clone)]
struct Vault {
    login: Arc<Mutex<(String, String)>>,
    asked: Arc<AtomicUsize>,
}

impl Vault {
    fn of(user: &str, password: &str) -> Self {
        let vault = Self {
            login: Arc::default(),
            asked: Arc::default(),
        };
        vault.set(user, password);
        vault
    }

    fn set(&self, user: &str, password: &str) {
        *self.login.lock().unwrap() = (user.into(), password.into());
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    /// A configuration whose clients ask this vault.
    fn used_by(&self, config: Config) -> Config {
        let vault = self.clone();
        config.credentials(move || {
            vault.asked.fetch_add(1, Ordering::SeqCst);
            Ok(vault.login.lock().unwrap().clone())
        })
    }
}

/// The ids of the connections with this role and user.
fn ids(server: &Server, role: &str, user: &str) -> Vec<u64> {
    let named = server.clients_named(role);
    let user = format!(" user={user} ");
    let of_user = named.iter().filter(|client| client.line.contains(&user));
    let mut ids: Vec<_> = of_user.map(|client| client.id).collect();
    ids.sort_unstable();
    ids
}

/// Waits until the library has `n` connections, all logged in as `user`.
#[track_caller]
fn all_are(server: &Server, user: &str, n: usize) {
    eventually("all have that user", || {
        server.clients_named("").len() == n && ids(server, "", user).len() == n
    });
}

timed!(every_connection_asks_for_the_password_when_it_is_made);
fn every_connection_asks_for_the_password_when_it_is_made() {
    let server = closed_server();
    let vault = Vault::of("blue", "blue:1");
    let received = Losses::default();
    let open = || {
        let config = config(&server.url()).on_lost(received.listener());
        Client::open(vault.used_by(config)).unwrap()
    };
    let client = open();
    assert_eq!(vault.asked(), 1);
    let (kept, name) = (unique("kept"), unique("rotated"));
    let guard = client.mutex(&kept).lock().unwrap();
    let other = open();
    is_waited_for(&client, &other, &name, ms(50));
    eventually("it is renewed", || client.stats().renewals > 0);
    // Two connections for commands, one for renewals, one for messages.
    all_are(&server, "blue", 4);
    assert_eq!(vault.asked(), 4);

    // A change of the password does not affect existing connections.
    server.cli(&["ACL", "SETUSER", "blue", ">blue:2", "<blue:1"]);
    is_waited_for(&client, &other, &name, ms(50));
    assert_eq!(vault.asked(), 4);
    vault.set("blue", "blue:2");
    let renewals = client.stats().renewals;
    assert_eq!(server.kill_clients_named(""), 4);
    is_waited_for(&client, &other, &name, ms(50));
    eventually("it is renewed again", || client.stats().renewals > renewals);
    assert!(guard.is_valid() && received.of(&kept).is_empty());
    guard.unlock().unwrap();

    // An empty user means the default user.
    server.cli(&["CONFIG", "SET", "requirepass", "p@ss"]);
    let bare = config(&server.url()).credentials(|| Ok((String::new(), "p@ss".into())));
    drop(Client::open(bare).unwrap().mutex(&name).lock().unwrap());
}

timed!(what_keeps_the_password_away_is_said);
fn what_keeps_the_password_away_is_said() {
    let server = closed_server();
    let failing = || config(&server.url()).credentials(|| Err("the vault is sealed".into()));
    let err = Client::open(failing()).unwrap_err();
    assert!(matches!(&err, Error::Redis { .. }) && err.is_retryable());
    let said = err.to_string();
    let at = server.addr().to_string();
    for part in [&at, "Config::credentials", "the vault is sealed"] {
        assert!(said.contains(part), "{said}");
    }
    // A lazy client without a connection retries until its limit.
    let lazy = Client::open(failing().lazy()).unwrap();
    let refused = in_time("giving up", RESPONSE, || lazy.mutex("m").lock());
    assert!(refused.unwrap_err().to_string().contains("vault is sealed"));

    // Printing the backtrace of the panic may take a while.
    let panics = config(&server.url()).connect_timeout(LONG);
    let panics = panics.credentials(|| panic!("no vault at all"));
    let err = Client::open(panics).unwrap_err();
    assert!(err.to_string().contains("no vault at all"), "{err}");
    assert!(!err.is_retryable());
    let wrong = Vault::of("blue", "green:1").used_by(config(&server.url()));
    let err = Client::open(wrong).unwrap_err();
    assert!(err.to_string().contains("WRONGPASS"), "{err}");
    assert!(!err.is_retryable());
    assert!(server.clients_named("").is_empty());
}

timed!(a_function_that_does_not_return_delays_nobody_beyond_their_limit);
fn a_function_that_does_not_return_delays_nobody_beyond_their_limit() {
    let server = closed_server();
    let (answer, answers) = unbounded::<()>();
    let calls = Arc::new(AtomicUsize::new(0));
    let config = |calls: Arc<AtomicUsize>| {
        let answers = answers.clone();
        config(&server.url()).credentials(move || {
            calls.fetch_add(1, Ordering::SeqCst);
            answers.recv_timeout(3 * LONG)?;
            Ok(("blue".into(), "blue:1".into()))
        })
    };
    let refused = in_time("opening", RESPONSE, || Client::open(config(Arc::default())));
    let said = refused.unwrap_err().to_string();
    assert!(said.contains("did not return in time"), "{said}");
    answer.send(()).unwrap();

    answer.send(()).unwrap();
    let client = Client::open(config(Arc::clone(&calls))).unwrap();
    let name = unique("slow");
    client.mutex(&name).lock().unwrap().unlock().unwrap();
    let calls_before = calls.load(Ordering::SeqCst);
    server.kill_clients_named("");
    for _ in 0..4 {
        gets_nothing("a short wait", ms(60), || {
            client.mutex(&name).try_lock_for(ms(60))
        });
    }
    // Later connections wait for the call that is still running, instead of starting another.
    assert!(calls.load(Ordering::SeqCst) <= calls_before + 2);
    for _ in 0..8 {
        answer.send(()).unwrap();
    }
    elsewhere(|| client.mutex(&name).lock().unwrap().unlock()).unwrap();
}

/// Long enough for connections to be replaced within a quarter of it on a busy machine.
const AGE: Duration = ms(2_000);

timed!(connections_with_an_old_login_are_replaced_and_what_is_held_is_kept);
fn connections_with_an_old_login_are_replaced_and_what_is_held_is_kept() {
    let server = closed_server();
    let vault = Vault::of("blue", "blue:1");
    let received = Losses::default();
    let config = || {
        let config = config(&server.url()).lease(loosely(ms(900)));
        vault.used_by(config).reauth_after(loosely(AGE))
    };
    let client = Client::open(config().on_lost(received.listener())).unwrap();
    let other = Client::open(config()).unwrap();
    let name = unique("again");
    let guard = client.reentrant_lock(&name).lock().unwrap();
    let kept = other.mutex(unique("kept")).lock().unwrap();
    let mut crew = Crew::new();
    let lock = other.reentrant_lock(&name);
    crew.spawn(move || lock.lock().unwrap().unlock().unwrap());
    subscribed(&server, 1);
    eventually("both are renewed", || {
        client.stats().renewals > 0 && other.stats().renewals > 0
    });
    // Two connections for commands, two for renewals, one for messages.
    all_are(&server, "blue", 5);
    vault.set("green", "green:1");
    all_are(&server, "green", 5);
    // The old user can be deleted, since no connection depends on it any more.
    server.cli(&["ACL", "DELUSER", "blue"]);
    assert_eq!(server.clients_named("").len(), 5);
    let renewals = client.stats().renewals;
    eventually("it is renewed", || client.stats().renewals > renewals + 1);
    assert!(guard.is_valid() && kept.is_valid());
    subscribed(&server, 1);
    // The waiter polls when the lease would have ended, which is right after a renewal. A grant by that poll would not
    // need the message, so wait until the poll is over.
    thread::sleep(loosely(ms(900)) / 6);
    assert!(!crew.is_finished());
    guard.unlock().unwrap();
    crew.join();
    kept.unlock().unwrap();
    assert!(received.of(&name).is_empty());
    for each in [&client, &other] {
        let stats = each.stats();
        assert_eq!(
            (stats.reconnects, stats.lost, stats.missed_messages),
            (0, 0, 0)
        );
    }
    assert!(other.stats().resubscriptions >= 1);
}

timed!(a_connection_is_replaced_under_load_and_every_command_runs_once);
fn a_connection_is_replaced_under_load_and_every_command_runs_once() {
    let server = closed_server();
    let vault = Vault::of("blue", "blue:1");
    let config = vault.used_by(config(&server.url()));
    let client = Client::open(config.reauth_after(ms(1_000))).unwrap();
    // The thread that replaces connections starts with the first hold.
    let kept = client.mutex(unique("kept")).lock().unwrap();
    let (stop, asked) = (AtomicBool::new(false), AtomicUsize::new(0));
    let counter = unique("counter");
    scoped(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let lock = client.mutex(unique("load"));
                while !stop.load(Ordering::Relaxed) {
                    lock.lock().unwrap().unlock().unwrap();
                }
            });
        }
        scope.spawn(|| {
            let key = format!("{{{}}}:n", counter);
            let guard = client.mutex(&counter).lock().unwrap();
            while !stop.load(Ordering::Relaxed) {
                let n: usize = guard.query(redis::cmd("INCR").arg(&key)).unwrap();
                assert_eq!(n, asked.fetch_add(1, Ordering::Relaxed) + 1);
            }
        });
        let first = ids(&server, "", "blue");
        eventually("all were replaced", || {
            let of_blue = ids(&server, "", "blue");
            asked.load(Ordering::Relaxed) > 0 && !of_blue.iter().any(|id| first.contains(id))
        });
        eventually("and again", || vault.asked() >= 9);
        stop.store(true, Ordering::Relaxed);
    });
    let stats = client.stats();
    assert_eq!((stats.reconnects, stats.lost), (0, 0));
    kept.unlock().unwrap();
}

timed!(a_login_that_is_refused_leaves_the_connections_as_they_are);
fn a_login_that_is_refused_leaves_the_connections_as_they_are() {
    let logs = logs();
    let server = closed_server();
    let vault = Vault::of("blue", "blue:1");
    let config = config(&server.url()).lease(loosely(ms(900)));
    let client = Client::open(vault.used_by(config).reauth_after(loosely(AGE))).unwrap();
    let guard = client.mutex(unique("refused")).lock().unwrap();
    eventually("it is renewed", || client.stats().renewals > 0);
    let ids_before = ids(&server, "", "blue");
    vault.set("green", "wrong");
    let again = format!("renewing the login at redis, {}, failed", server.addr());
    eventually("both are refused twice", || {
        logs.count(log::Level::Warn, &again) >= 4
    });
    assert!(
        logs.about(&again)
            .iter()
            .all(|(_, text)| text.contains("WRONGPASS"))
    );
    assert_eq!(ids(&server, "", "blue"), ids_before);
    assert!(guard.is_valid());
    client
        .mutex(unique("other"))
        .lock()
        .unwrap()
        .unlock()
        .unwrap();
    vault.set("green", "green:1");
    all_are(&server, "green", 2);
    assert_eq!((client.stats().reconnects, client.stats().lost), (0, 0));
    guard.unlock().unwrap();
}

timed!(nodes_of_a_cluster_are_logged_in_to_like_one_server);
fn nodes_of_a_cluster_are_logged_in_to_like_one_server() {
    let server = Server::start_cluster();
    with_users(&server);
    let vault = Vault::of("blue", "blue:1");
    let url = server.url().replace("redis://", "redis+cluster://");
    let config = config(&url).lease(loosely(ms(900)));
    let client = Client::open(vault.used_by(config).reauth_after(loosely(AGE))).unwrap();
    let guard = client.mutex(unique("node")).lock().unwrap();
    eventually("it is renewed", || client.stats().renewals > 0);
    all_are(&server, "blue", 2);
    vault.set("green", "green:1");
    all_are(&server, "green", 2);
    assert!(guard.is_valid());
    assert_eq!((client.stats().reconnects, client.stats().lost), (0, 0));
    guard.unlock().unwrap();
}
