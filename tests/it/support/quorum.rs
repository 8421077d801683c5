//! Several masters, and what they keep of a lock.

use std::time::Duration;

use redlatch::{Client, Config, RedLock, RedLockGuard};

use crate::support::{LONG, Server, eventually, ms, within};

/// A short lease that a busy machine can still renew in time.
pub(crate) const LEASE: Duration = ms(1500);

pub(crate) fn masters(n: usize) -> Vec<Server> {
    (0..n).map(|_| Server::start()).collect()
}

/// A client for each server, which to the lock is another process.
pub(crate) fn open(servers: &[Server]) -> Vec<Client> {
    open_with(servers, |config| config.lease(LEASE))
}

pub(crate) fn open_with(servers: &[Server], set: impl Fn(Config) -> Config) -> Vec<Client> {
    let urls = servers.iter().map(Server::url);
    urls.map(|url| Client::open(set(Config::new(url))).unwrap())
        .collect()
}

pub(crate) fn red(clients: &[Client], name: &str) -> RedLock {
    RedLock::new(clients, name).unwrap()
}

/// The servers that keep `name` for `owner`.
pub(crate) fn keepers(servers: &[Server], name: &str, owner: &str) -> Vec<usize> {
    let keeps = |node: &usize| servers[*node].ask(&["HEXISTS", name, owner]);
    (0..servers.len()).filter(keeps).collect()
}

#[track_caller]
pub(crate) fn nothing_is_left(servers: &[Server]) {
    eventually("nothing is left on any server", || {
        let mut servers = servers.iter();
        servers.all(|server| server.keys_but_requests().is_empty())
    });
}

#[track_caller]
pub(crate) fn all_keep(guard: &redlatch::RedLockGuard, n: usize) {
    eventually("all servers keep the hold", || guard.nodes_held() == n);
}

/// Acquires a lock that is free, within the time that a busy machine may need.
#[track_caller]
pub(crate) fn take(lock: &RedLock) -> redlatch::RedLockGuard {
    lock.try_lock_for(LONG).unwrap().expect("it becomes free")
}

/// Acquires a lock on all `n` servers. A server whose connection is still being opened takes no part in the attempt and
/// is not added later, so retry.
#[track_caller]
pub(crate) fn take_from_all(lock: &RedLock, n: usize) -> RedLockGuard {
    let mut all = None;
    eventually("all servers grant the lock", || {
        let guard = take(lock);
        if within(ms(200), || guard.nodes_held() == n) {
            all = Some(guard);
        }
        all.is_some()
    });
    all.unwrap()
}

/// Replaces the holder in one step, so that the lock is never free.
pub(crate) const TAKE_OVER: &str =
    "redis.call('del', KEYS[1]) redis.call('hset', KEYS[1], ARGV[1], 1)";

/// Waits until all servers keep the hold and have answered another renewal. From then on a single server may lose it.
#[track_caller]
pub(crate) fn confirmed_by_all(guard: &RedLockGuard, servers: &[Server]) {
    all_keep(guard, servers.len());
    let renewed: Vec<_> = servers.iter().map(|server| server.calls("hget")).collect();
    eventually("all servers confirm the hold", || {
        let mut both = servers.iter().zip(&renewed);
        both.all(|(server, calls_before)| server.calls("hget") > *calls_before)
    });
}
