//! Expirable semaphores: scripts, keys, and counts.

use redlatch::{Client, Error, ExpirableSemaphore, LossReason, Result};

use crate::support::{Server, beside, eventually, lua, unique};

pub(crate) const ACQUIRE: &str = lua::PERMIT_ACQUIRE;

pub(crate) const RELEASE: &str = lua::PERMIT_RELEASE;

pub(crate) const RELEASE_IDS: &str = lua::PERMIT_RELEASE_IDS;

pub(crate) const RENEW: &str = lua::PERMIT_RENEW;

pub(crate) const UPDATE: &str = lua::PERMIT_UPDATE;

pub(crate) const STATE: &str = lua::PERMIT_STATE;

pub(crate) const TRY_SET: &str = lua::PERMIT_TRY_SET;

pub(crate) const SET: &str = lua::PERMIT_SET;

pub(crate) const ADD: &str = lua::PERMIT_ADD;

/// The score of a permit that never expires.
pub(crate) const NEVER: i64 = 922_337_203_685_477;

/// A permit id that no client generates.
pub(crate) fn id(n: u8) -> Vec<u8> {
    vec![n; 16]
}

pub(crate) fn timeouts(name: &str) -> String {
    suffixed(name, "timeout")
}

pub(crate) fn suffixed(name: &str, suffix: &str) -> String {
    if name.contains('{') {
        format!("{name}:{suffix}")
    } else {
        format!("{{{name}}}:{suffix}")
    }
}

pub(crate) fn channel(name: &str) -> String {
    beside("redisson_sc", name)
}

/// The server's clock in milliseconds.
pub(crate) fn now(server: &Server) -> i64 {
    let (s, us): (i64, i64) = server.ask(&["TIME"]);
    s * 1000 + us / 1000
}

/// The ids of all acquired permits and the ends of their leases.
pub(crate) fn out(server: &Server, name: &str) -> Vec<(Vec<u8>, i64)> {
    let mut out: Vec<(Vec<u8>, i64)> =
        server.ask(&["ZRANGE", &timeouts(name), "0", "-1", "WITHSCORES"]);
    out.sort();
    out
}

/// Adds a permit as Redisson does.
pub(crate) fn as_redisson(server: &Server, name: &str, id: &[u8], until: i64) {
    let added: i64 = redis::cmd("ZADD")
        .arg(timeouts(name))
        .arg(until)
        .arg(id)
        .query(&mut server.connection())
        .unwrap();
    assert_eq!(added, 1);
}

pub(crate) fn with_permits(client: &Client, n: u32) -> ExpirableSemaphore {
    let sem = client.expirable_semaphore(unique("xsem"));
    assert!(sem.try_set_permits(n).unwrap());
    sem
}

/// Available, acquired and total permits. The three requests are repeated until they are consistent, since a permit may
/// expire between them.
#[track_caller]
pub(crate) fn counts(sem: &ExpirableSemaphore) -> (i64, u64, i64) {
    let mut counts = (0, 0, 0);
    eventually("the three counts are consistent", || {
        counts = (
            sem.available_permits().unwrap(),
            sem.acquired_permits().unwrap(),
            sem.permits().unwrap(),
        );
        i64::try_from(counts.1).is_ok_and(|acquired| counts.0 + acquired == counts.2)
    });
    counts
}

#[track_caller]
pub(crate) fn lost_by<T: std::fmt::Debug>(result: Result<T>, reason: LossReason) {
    match result {
        Err(Error::Lost { reason: found, .. }) => assert_eq!(found, reason),
        other => panic!("{other:?}"),
    }
}

pub(crate) fn hex(raw: &[u8]) -> String {
    raw.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn ids(server: &Server, name: &str) -> Vec<String> {
    out(server, name).iter().map(|(id, _)| hex(id)).collect()
}
