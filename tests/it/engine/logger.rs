//! The logger is the user's code: it may block, panic, or use the client whose records it gets.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{bounded, unbounded};
use redlatch::{Client, LossReason};

use crate::support::quorum::{all_keep, confirmed_by_all, masters, open, red};
use crate::support::sentinel::{Deployment, ask};
use crate::support::{
    Logs, Losses, Mode, Proxy, STRANGER, Server, Target, config, eventually, free_port, logs, ms,
    timed, unique,
};

/// A limit that only a deadlock exceeds.
const LONG: Duration = Duration::from_secs(20);

/// The logger's hooks for some fragments, which are removed even if the test fails.
struct Hooked(&'static Logs, Vec<String>);

impl Drop for Hooked {
    fn drop(&mut self) {
        for fragment in &self.1 {
            self.0.unhook(fragment);
        }
    }
}

/// Runs `work` on a new thread and fails if it does not return, since the faults tested here would block it forever.
#[track_caller]
fn returns(what: &str, work: impl FnOnce() + Send + 'static) {
    let (sender, received) = bounded(1);
    let thread = thread::spawn(move || {
        let done = std::panic::catch_unwind(AssertUnwindSafe(work));
        sender.send(done.is_ok()).unwrap();
    });
    assert_eq!(received.recv_timeout(LONG), Ok(true), "{what}");
    thread.join().unwrap();
}

timed!(a_logger_may_use_the_client_that_it_hears_of);
fn a_logger_may_use_the_client_that_it_hears_of() {
    let logs = logs();
    let server = Arc::new(Server::start());
    returns("nothing deadlocks on the logger", move || {
        let proxy = Proxy::start(server.addr());
        let client = Client::open(config(&proxy.url()).lease(ms(900))).unwrap();
        let (name, log_file) = (unique("logged"), unique("file"));
        let away = format!("connecting to {}", proxy.addr());
        let (sender, received) = unbounded();
        let _hooked = Hooked(logs, vec![name.clone(), away.clone()]);
        for fragment in [&name, &away] {
            // The hook locks, as a logger would if only one process at a time may write to the file.
            let (client, log_file, sender) = (client.clone(), log_file.clone(), sender.clone());
            logs.hook(fragment, move |_, text| {
                let locked = client.mutex(&log_file).try_lock_for(LONG);
                let locked = locked.map(|guard| guard.is_some());
                sender.send((text.to_owned(), locked)).unwrap();
            });
        }
        let hears = |fragment: &str| {
            let mut heard = received.iter();
            heard.find(|(text, _)| text.contains(fragment)).unwrap()
        };
        let hears_and_locks = |fragment: &str| {
            let (text, locked) = hears(fragment);
            assert!(matches!(locked, Ok(true)), "{text}: {locked:?}");
        };
        let other = client.mutex(unique("other"));

        let guard = client.mutex(&name).lock().unwrap();
        assert_eq!(server.ask::<i64>(&["DEL", &name]), 1);
        drop(guard);
        other.lock().unwrap().unlock().unwrap();
        hears_and_locks("came too late");

        let _lost = client.mutex(&name).lock().unwrap();
        assert_eq!(server.ask::<i64>(&["DEL", &name]), 1);
        hears_and_locks("is no longer held");

        // The release fails because Redis is unreachable until the lease is over.
        let guard = client.mutex(format!("{name}:late")).fixed_lease(ms(400));
        let guard = guard.lock().unwrap();
        let until = guard.valid_until() + ms(400);
        proxy.set(Target::Link, Mode::Refuse);
        proxy.cut(Target::Link);
        drop(guard);
        assert!(other.lock().is_err());
        // Redis is unreachable for the logger as well.
        assert!(hears(&away).1.is_err());
        logs.unhook(&away);
        let (_, locked) = hears("it expires with its lease");
        assert!(locked.is_err(), "{locked:?}");
        assert!(Instant::now() > until);
        proxy.pass();
        other.lock().unwrap().unlock().unwrap();
    });
}

timed!(a_logger_that_blocks_over_a_sentinel_delays_nobody_who_needs_the_master);
fn a_logger_that_blocks_over_a_sentinel_delays_nobody_who_needs_the_master() {
    let logs = logs();
    let deployment = Deployment::start();
    let closed = free_port();
    let asked = format!("asking 127.0.0.1:{closed} for the masters");
    let (goes_on, blocks) = unbounded::<()>();
    let (sender, received) = unbounded();
    let _hooked = Hooked(logs, vec![asked.clone()]);
    logs.hook(&asked, move |_, _| {
        sender.send(()).unwrap();
        blocks.recv_timeout(3 * LONG).unwrap_err();
    });
    let url = Deployment::url_of(&[closed, deployment.sentinels[0].port()]);
    returns("the master is found", move || {
        let client = Client::open(url.as_str()).unwrap();
        received.recv_timeout(LONG).unwrap();
        // The thread that found the master is blocked in the logger.
        let master = &deployment.servers[deployment.named()];
        for _ in 0..3 {
            let killed: u64 = ask(master, &["CLIENT", "KILL", "TYPE", "normal"]);
            assert!(killed > 0);
            let lock = client.mutex(unique("again"));
            lock.try_lock_for(LONG).unwrap().unwrap().unlock().unwrap();
        }
    });
    drop(goes_on);
}

timed!(a_logger_that_panics_ends_no_thread);
fn a_logger_that_panics_ends_no_thread() {
    let logs = logs();
    let server = Server::start();
    let received = Losses::default();
    let config = config(&server.url()).lease(ms(900));
    let client = Client::open(config.on_lost(received.listener())).unwrap();
    let name = unique("panics");
    let _hooked = Hooked(logs, vec![name.clone()]);
    logs.hook(&name, |_, text| panic!("no room to write {text:?}"));
    let kept = client.mutex(unique("kept")).lock().unwrap();
    for n in 1..=2 {
        let guard = client.mutex(&name).lock().unwrap();
        assert_eq!(server.ask::<i64>(&["DEL", &name]), 1);
        let loss = guard.lost().recv_timeout(LONG).unwrap();
        assert_eq!(loss.reason, LossReason::Forced);
        eventually("the listener is called", || {
            received.reasons(&name).len() == n
        });
        eventually("the logger is called", || {
            logs.count(log::Level::Warn, &name) == n
        });
        let renewals = client.stats().renewals;
        eventually("the other hold is renewed", || {
            client.stats().renewals >= renewals + 2
        });
    }
    assert!(kept.is_valid());
    kept.unlock().unwrap();
}

timed!(a_logger_that_blocks_delays_its_own_thread_alone);
fn a_logger_that_blocks_delays_its_own_thread_alone() {
    let logs = logs();
    let server = Server::start();
    let received = Losses::default();
    let config = config(&server.url()).lease(ms(900));
    let client = Client::open(config.on_lost(received.listener())).unwrap();
    let name = unique("blocks");
    let (release, released) = bounded::<()>(0);
    let (began, begun) = unbounded();
    let _hooked = Hooked(logs, vec![name.clone()]);
    logs.hook(&name, move |_, _| {
        let thread = thread::current().name().map(str::to_owned);
        began.send(thread).unwrap();
        released.recv_timeout(LONG * 2).unwrap_or_default();
    });
    let guard = client.mutex(&name).lock().unwrap();
    assert_eq!(server.ask::<i64>(&["DEL", &name]), 1);
    // The thread that finds the hold lost calls the logger.
    let thread = begun.recv_timeout(LONG).unwrap();
    assert_eq!(thread.as_deref(), Some("redlatch-watchdog"));
    // The logger has the record and does not return.
    assert_eq!(guard.lost().try_recv().unwrap().reason, LossReason::Forced);
    eventually("the listener is called", || {
        received.reasons(&name).len() == 1
    });
    let other = client.mutex(unique("other"));
    other.lock().unwrap().unlock().unwrap();
    let other = other.lock().unwrap();
    drop(release);
    let renewals = client.stats().renewals;
    eventually("the other hold is renewed", || {
        client.stats().renewals >= renewals + 2
    });
    drop(other);
}

#[test]
fn a_logger_that_blocks_over_one_master_delays_no_renewal_on_the_others() {
    let logs = logs();
    let servers = masters(3);
    let clients = open(&servers);
    let name = unique("masters");
    let (release, released) = bounded::<()>(0);
    let (began, begun) = unbounded();
    let forgotten = format!("no longer keeps `{name}`");
    let _hooked = Hooked(logs, vec![forgotten.clone()]);
    logs.hook(&forgotten, move |_, _| {
        began.send(()).unwrap();
        released.recv_timeout(LONG * 2).unwrap_or_default();
    });
    let guard = red(&clients, &name).lock().unwrap();
    confirmed_by_all(&guard, &servers);
    assert_eq!(servers[1].ask::<i64>(&["DEL", &name]), 1);
    begun.recv_timeout(LONG).unwrap();
    // The logger has the record and does not return.
    all_keep(&guard, 2);
    for _ in 0..2 {
        let until = guard.valid_until();
        eventually("the hold is renewed", || guard.valid_until() > until);
    }
    drop(release);
    guard.unlock().unwrap();
}

#[test]
fn a_logger_that_causes_what_it_logs_is_not_called_for_ever() {
    let logs = logs();
    let server = Server::start();
    let client = Client::open(config(&server.url()).log_long_waits(ms(50))).unwrap();
    let name = unique("again");
    let _hooked = Hooked(logs, vec![name.clone()]);
    server.cli(&["HSET", &name, STRANGER, "1"]);
    let (client_there, own_name) = (client.clone(), name.clone());
    logs.hook(&name, move |_, _| {
        // The wait is long enough to be logged itself.
        let granted = client_there.mutex(&own_name).try_lock_for(ms(200)).unwrap();
        assert!(granted.is_none());
    });
    assert!(client.mutex(&name).try_lock_for(ms(70)).unwrap().is_none());
    assert_eq!(logs.count(log::Level::Info, &name), 1);
}
