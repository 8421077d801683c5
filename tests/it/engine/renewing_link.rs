//! The connection for renewals: when it is opened, and which connection renews holds while it cannot be opened.

use std::collections::HashSet;
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use redis::Connection;
use redlatch::{Client, Config};

use crate::support::quorum::red;
use crate::support::{
    ClientLine, Crew, Deployment, Server, beside, clients_named, config, connection_to,
    deployments, eventually, given, hold_by_stranger, in_haste, loosely, ms, open, rerun, scoped,
    settings_as, timed, unique,
};

const LEASE: Duration = ms(2_000);

#[test]
fn the_connection_for_renewals_is_made_with_the_first_hold() {
    let server = Server::start();
    let hour = Duration::from_secs(3_600);
    let client = Client::open(crate::support::settings(&server).lease(hour)).unwrap();
    let is_there = || server.clients_named("watchdog").len() == 1;
    hold_by_stranger(&server, "busy", 60_000);
    assert!(client.mutex("busy").try_lock().unwrap().is_none());
    assert!(!is_there(), "without a hold there is no connection");
    let _guard = client.mutex("held").lock().unwrap();
    eventually("it is open before a renewal is due", is_there);
}

/// Faults that prevent new connections while existing ones still work.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Crowded,
    Rotated,
}

impl Fault {
    fn begin(self, con: &mut Connection) {
        let done = match self {
            Self::Crowded => redis::cmd("CONFIG")
                .arg(&["SET", "maxclients", "1"])
                .query::<()>(con),
            Self::Rotated => redis::cmd("ACL")
                .arg(&["SETUSER", "locker", "resetpass", ">other"])
                .query(con),
        };
        done.unwrap();
    }

    fn end(self, con: &mut Connection) {
        if let Self::Crowded = self {
            let most = redis::cmd("CONFIG");
            let () = most
                .clone()
                .arg(&["SET", "maxclients", "10000"])
                .query(con)
                .unwrap();
        }
    }
}

fn user(server: &Server) {
    server.cli(&[
        "ACL", "SETUSER", "locker", "on", ">secret", "~*", "&*", "+@all",
    ]);
}

fn settings(server: &Server) -> Config {
    in_haste(settings_as(server, "locker:secret@", ""))
        .lease(loosely(LEASE))
        .waiter_lease(loosely(ms(1_500)))
}

fn renewing(con: &mut Connection) -> Vec<ClientLine> {
    let list: String = redis::cmd("CLIENT").arg("LIST").query(con).unwrap();
    clients_named(&list, "watchdog").collect()
}

/// Kills the connections for renewals.
fn kill(con: &mut Connection) {
    for client in renewing(con) {
        let kill = ["KILL", "ID", &client.id.to_string()];
        let () = redis::cmd("CLIENT").arg(&kill).query(con).unwrap();
    }
}

#[track_caller]
fn is_renewed(client: &Client, times: u64) {
    let enough = client.stats().renewals + times;
    eventually("all are renewed", || client.stats().renewals >= enough);
}

timed!(a_client_that_can_acquire_one_lock_keeps_the_others);
fn a_client_that_can_acquire_one_lock_keeps_the_others() {
    scoped(|scope| {
        for deployment in deployments() {
            for fault in [Fault::Crowded, Fault::Rotated] {
                scope.spawn(move || keeps_all(deployment, fault));
            }
        }
    });
}

fn keeps_all(deployment: Deployment, fault: Fault) {
    let server = Server::start_as(deployment);
    user(&server);
    let client = Client::open(settings(&server)).unwrap();
    let other = open(&server);
    let mut con = server.connection();

    let name = unique("linked");
    let named = |kind: &str| format!("{{{name}}}:{kind}");
    let mutex = client.mutex(named("mutex")).lock().unwrap();
    let read = client.rw_lock(named("rw")).read().unwrap();
    let fair = client.fair_mutex(named("fair")).lock().unwrap();
    let slots = client.expirable_semaphore(named("slots"));
    slots.set_permits(1).unwrap();
    let permit = slots.acquire().unwrap();
    let queue = named("queue");
    let busy = other
        .fair_lock(&queue)
        .fixed_lease(LEASE * 100)
        .lock()
        .unwrap();
    let (mut crew, waiter) = (Crew::new(), client.fair_lock(&queue));
    crew.spawn(move || waiter.lock().unwrap().unlock().unwrap());
    eventually("all are renewed", || client.stats().renewals > 4);
    fault.begin(&mut con);
    kill(&mut con);
    // The waiter's own polls extend its place a few times, so expect more changes than that.
    let mut lives = HashSet::new();
    eventually("the waiter shows signs of life", || {
        let alive: Vec<String> = redis::cmd("ZRANGE")
            .arg(beside("redisson_lock_alive", &queue))
            .arg(&["0", "-1", "WITHSCORES"])
            .query(&mut con)
            .unwrap();
        assert_eq!(
            alive.len(),
            2,
            "{deployment:?}, {fault:?}: the waiter has its place"
        );
        lives.insert(alive[1].clone());
        lives.len() > 6
    });
    is_renewed(&client, 12);
    assert_eq!(renewing(&mut con).len(), 0);
    let all = [
        mutex.is_valid(),
        read.is_valid(),
        fair.is_valid(),
        permit.is_valid(),
    ];
    assert_eq!(all, [true; 4], "{deployment:?}, {fault:?}");
    assert!(client.mutex(named("more")).try_lock().unwrap().is_some());
    assert_eq!((client.stats().lost, client.stats().reconnects), (0, 0));
    mutex.unlock().unwrap();
    read.unlock().unwrap();
    fair.unlock().unwrap();
    permit.release().unwrap();
    busy.unlock().unwrap();
    crew.join();
    fault.end(&mut con);
}

timed!(a_red_lock_is_renewed_at_masters_that_let_nobody_in);
fn a_red_lock_is_renewed_at_masters_that_let_nobody_in() {
    let servers: Vec<_> = (0..3).map(|_| Server::start()).collect();
    let mut cons: Vec<_> = servers.iter().map(Server::connection).collect();
    let open = |server| {
        user(server);
        Client::open(settings(server)).unwrap()
    };
    let clients: Vec<_> = servers.iter().map(open).collect();
    let guard = red(&clients, &unique("red")).lock().unwrap();
    eventually("all servers keep and renew the hold", || {
        guard.nodes_held() == 3 && clients.iter().all(|client| client.stats().renewals > 0)
    });
    for con in &mut cons {
        Fault::Rotated.begin(con);
        kill(con);
    }
    for client in &clients {
        is_renewed(client, 4);
    }
    assert_eq!((guard.nodes_held(), guard.is_valid()), (3, true));
    guard.unlock().unwrap();
}

#[test]
fn a_process_without_file_descriptors_keeps_its_locks() {
    let server = Server::start();
    let mut part = rerun(a_process_that_runs_out_of_them, &[&server.url()]);
    let run = part.output().unwrap();
    let said = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{said}");
}

#[test]
#[ignore = "part of a_process_without_file_descriptors_keeps_its_locks"]
fn a_process_that_runs_out_of_them() {
    let Some([url]) = given() else { return };
    let client = Client::open(config(&url).lease(loosely(LEASE))).unwrap();
    let guard = client.mutex(unique("out")).lock().unwrap();
    is_renewed(&client, 1);
    let mut con = connection_to(&url);
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, 3, most).unwrap();
    kill(&mut con);
    is_renewed(&client, 4);
    assert!(guard.is_valid() && renewing(&mut con).is_empty());
    guard.unlock().unwrap();
}
