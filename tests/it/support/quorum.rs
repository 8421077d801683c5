//! Several masters, and what they keep of a lock.

use std::time::Duration;

use redlatch::{Client, Config, RedLock, RedLockGuard};

use crate::support::{LONG, Server, eventually, ms, within};

/// Short, but not too short for a loaded machine to renew it.
pub(crate) const LEASE: Duration = ms(1500);

pub(crate) fn masters(n: usize) -> Vec<Server> {
    (0..n).map(|_| Server::start()).collect()
}

/// A client for each server: another process, as far as the lock can tell.
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

/// Which of the servers keep `name` for `owner`.
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
    eventually("they all keep it", || guard.nodes_held() == n);
}

/// Takes what is free within the time a loaded machine may need.
#[track_caller]
pub(crate) fn take(lock: &RedLock) -> redlatch::RedLockGuard {
    lock.try_lock_for(LONG).unwrap().expect("it becomes free")
}

/// Takes it from all of them. A server to which a connection is just being made has no part, and gets none while it is held.
#[track_caller]
pub(crate) fn take_from_all(lock: &RedLock, n: usize) -> RedLockGuard {
    let mut all = None;
    eventually("they all grant it", || {
        let guard = take(lock);
        if within(ms(200), || guard.nodes_held() == n) {
            all = Some(guard);
        }
        all.is_some()
    });
    all.unwrap()
}

/// Nobody can look between that it is gone and that it is somebody else's.
pub(crate) const TAKE_OVER: &str =
    "redis.call('del', KEYS[1]) redis.call('hset', KEYS[1], ARGV[1], 1)";

/// Waits until all keep it and have said so when they were asked after that: from then on one may forget it.
#[track_caller]
pub(crate) fn confirmed_by_all(guard: &RedLockGuard, servers: &[Server]) {
    all_keep(guard, servers.len());
    let renewed: Vec<_> = servers.iter().map(|server| server.calls("hget")).collect();
    eventually("they all confirm it", || {
        let mut both = servers.iter().zip(&renewed);
        both.all(|(server, before)| server.calls("hget") > *before)
    });
}
