//! Inspecting locks that Java holds.

use redlatch::Client;
use redlatch::ops::{HoldMode, LockKind};

use crate::support::java::Java;
use crate::support::{Server, eventually, timed, unique};

timed!(holders_and_waiters_of_java_are_shown_by_id_and_thread);
fn holders_and_waiters_of_java_are_shown_by_id_and_thread() {
    let Some(java) = Java::shared() else {
        return;
    };
    let server = Server::start();
    let client = Client::open(server.url()).unwrap();
    let [one, two] = [java.open(&server.url()), java.open(&server.url())];
    let mut ids = Vec::new();
    for (kind, shown, mode) in [
        ("lock", LockKind::Lock, HoldMode::Exclusive),
        ("fair", LockKind::FairLock, HoldMode::Exclusive),
        ("fenced", LockKind::FencedLock, HoldMode::Exclusive),
        ("write", LockKind::RwLock, HoldMode::Write),
        ("read", LockKind::RwLock, HoldMode::Read),
    ] {
        let name = unique(kind);
        java.does(&one, &format!("take {one} {kind} {name} -1 -1"));
        let waits =
            (kind == "fair").then(|| java.order(&two, &format!("take {two} {kind} {name} -1 -1")));
        if waits.is_some() {
            eventually("it waits", || client.inspect(&name).unwrap().waiting == 1);
        }
        let info = client.inspect(&name).unwrap();
        assert_eq!((info.kind, info.held), (shown, 1), "{info}");
        let holder = &info.holders[0];
        assert_eq!(
            (holder.mode, holder.count, &holder.process),
            (mode, 1, &None),
            "{info}"
        );
        assert!(
            holder
                .remaining_lease
                .is_some_and(|lease_left| lease_left.as_secs() <= 30),
            "{info}"
        );
        let (id, thread) = holder.owner.rsplit_once(':').unwrap();
        assert!(thread.parse::<u64>().is_ok(), "{info}");
        ids.push(id.to_owned());
        for waiter in &info.queue {
            assert!(
                waiter.owner.contains(':') && waiter.process.is_none(),
                "{info}"
            );
        }
        let listed: Vec<_> = client.locks(&name).map(|lock| lock.unwrap().kind).collect();
        assert_eq!(listed, [shown], "{kind}");
        if kind == "fair" {
            // The Java waiter gets the lock that is forced open here.
            let owner = info.holders[0].owner.clone();
            assert!(client.force_unlock_owner(&name, owner).unwrap());
            waits.unwrap().ok();
        }
    }
    ids.dedup();
    assert_eq!(ids.len(), 1, "of one client");
}
