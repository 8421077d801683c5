//! A child of `fork()` inherits no locks and must not touch those of its parent. Each test runs in a process of its
//! own, because a child has only the thread that forked, while mutexes that other threads had locked stay locked.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use fork::Fork;
use nix::sys::signal;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use redlatch::{Client, Config, Error, ExpirablePermit, MultiLock, OwnedMutexGuard, ReentrantLock};

use crate::support::{Server, connection_to, eventually, given, ms, rerun, scoped, unique, within};

#[test]
fn a_forked_child_leaves_the_locks_of_its_parent_alone() {
    let server = Server::start();
    let mut part = rerun(a_process_that_forks, &[&server.url()]);
    let run = part.output().unwrap();
    let said = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{said}");
}

#[test]
#[ignore = "part of a_forked_child_leaves_the_locks_of_its_parent_alone"]
fn a_process_that_forks() {
    let Some([url]) = given() else { return };
    // A tenure that is long enough for a dropped guard to pass the lock on.
    let client = Client::open(Config::new(&url).tenure(ms(1_000))).unwrap();
    let wanted = client.reentrant_lock(unique("wanted"));
    let done = AtomicBool::new(false);
    scoped(|scope| {
        // These threads make it likely that mutexes of the client are locked at the moment of the fork.
        for _ in 0..2 {
            let (busy, done) = (client.reentrant_lock(unique("busy")), &done);
            scope.spawn(move || {
                while !done.load(Ordering::SeqCst) {
                    drop(busy.lock().unwrap());
                }
            });
            let wanted = &wanted;
            scope.spawn(move || {
                while !done.load(Ordering::SeqCst) {
                    drop(wanted.lock().unwrap());
                }
            });
        }
        let _done = SetOnDrop(&done);
        for _ in 0..10 {
            fork_while_held(&client, &url, &wanted);
        }
    });
    client.close(ms(5_000)).unwrap();
}

/// Stops the other threads, even when this one panics.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Holds every kind of lock, including one that other threads wait for. The child drops its copies, and the parent
/// still holds everything.
fn fork_while_held(client: &Client, url: &str, wanted: &ReentrantLock) {
    let waited_for = wanted.lock().unwrap();
    let name = unique("forked");
    let named = |kind: &str| format!("{name}:{kind}");
    let (lock, rwlock) = (
        client.reentrant_lock(named("lock")),
        client.rw_lock(named("rw")),
    );
    let semaphore = client.semaphore(named("semaphore"));
    let leased = client.expirable_semaphore(named("leased"));
    let latch = client.latch(named("latch"));
    assert!(semaphore.try_set_permits(3).unwrap() && leased.try_set_permits(3).unwrap());
    assert!(latch.try_set_count(1).unwrap());

    let (outer, inner) = (lock.lock().unwrap(), lock.lock().unwrap());
    let owned = client.mutex(named("owned")).lock_owned().unwrap();
    let detached = client.mutex(named("detached")).lock_owned().unwrap();
    let ticket = detached.detach(ms(60_000)).unwrap();
    let detached = leased.acquire().unwrap();
    let permit_ticket = detached.detach(ms(60_000)).unwrap();
    let fair = client.fair_lock(named("fair")).lock().unwrap();
    let fenced = client.fenced_lock(named("fenced")).lock().unwrap();
    let several = client.multi_lock([named("a"), named("b")]).lock().unwrap();
    let members = MultiLock::new(vec![
        Box::new(client.mutex(named("c"))),
        Box::new(client.spin_lock(named("d"))),
    ]);
    let members = members.lock().unwrap();
    let (write, read) = (rwlock.write().unwrap(), rwlock.read().unwrap());
    let (permit, kept) = (semaphore.acquire().unwrap(), semaphore.acquire().unwrap());
    let (leased_permit, other_leased) = (leased.acquire().unwrap(), leased.acquire().unwrap());

    // The first step keeps its connection for the next one.
    let mut listed = client.locks(format!("{name}*"));
    listed.next().expect("a lock").unwrap();

    match fork::fork().unwrap() {
        Fork::Child => {
            let refused = |result: Result<(), Error>| {
                expect(matches!(result, Err(Error::Closed)), "refused as closed");
                let said = result.map_or_else(|err| err.to_string(), |()| String::new());
                expect(said.contains("forked process"), "it says why");
            };
            expect(!outer.is_valid() && !read.is_valid(), "no guard is valid");
            expect(!leased_permit.is_valid(), "no permit is valid");
            expect(
                outer.hold_count() == 0 && lock.hold_count() == 0,
                "no holds",
            );
            expect(!lock.is_owned_by_current_thread(), "not the owner");
            expect(
                outer.lost().try_recv().is_err() && members.lost().try_recv().is_err(),
                "nothing lost",
            );
            refused(outer.query(&redis::cmd("PING")));
            refused(owned.query(&redis::cmd("PING")));
            refused(leased_permit.query(&redis::cmd("PING")));
            refused(lock.lock().map(drop));
            refused(lock.try_lock_for(ms(50)).map(drop));
            refused(wanted.try_lock_for(ms(50)).map(drop));
            drop(waited_for);
            refused(rwlock.try_read().map(drop));
            refused(lock.is_locked().map(drop));
            refused(lock.force_unlock().map(drop));
            refused(semaphore.acquire().map(drop));
            refused(semaphore.add_permits(1));
            refused(leased.acquire().map(drop));
            refused(leased.release_id(other_leased.id()).map(drop));
            refused(leased_permit.update_lease(ms(50)));
            refused(latch.count_down());
            refused(latch.wait());
            refused(client.adopt::<OwnedMutexGuard>(&ticket).map(drop));
            refused(client.adopt::<ExpirablePermit>(&permit_ticket).map(drop));
            refused(client.election(named("leads")).try_campaign().map(drop));
            refused(client.inspect(named("lock")).map(drop));
            refused(client.check().map(drop));
            refused(client.locks("*").next().unwrap().map(drop));
            refused(listed.last().unwrap().map(drop));
            refused(inner.unlock());
            refused(write.downgrade().map(drop));
            refused(permit.release());
            refused(leased_permit.release());
            kept.forget();
            expect(client.close(ms(50)).is_ok(), "nothing to close");
            expect(client.stats().holds == 0, "no holds counted");
            drop((
                outer,
                owned,
                fair,
                fenced,
                several,
                members,
                read,
                other_leased,
            ));
            drop((lock, rwlock, semaphore, leased, latch));
            // The signal ends the child before any other copied state can run.
            signal::kill(Pid::this(), Signal::SIGKILL).unwrap();
            unreachable!("killed");
        }
        Fork::Parent(child) => {
            let child = Pid::from_raw(child);
            let mut status = WaitStatus::StillAlive;
            let ended = within(ms(20_000), || {
                status = waitpid(child, Some(WaitPidFlag::WNOHANG)).unwrap();
                status != WaitStatus::StillAlive
            });
            if !ended {
                signal::kill(child, Signal::SIGKILL).unwrap();
                waitpid(child, None).unwrap();
            }
            assert!(ended, "the child hangs");
            assert!(
                matches!(status, WaitStatus::Signaled(_, Signal::SIGKILL, _)),
                "{status:?}"
            );
        }
    }

    assert!(listed.all(|found| found.is_ok()));
    let mut con = connection_to(url);
    for kind in ["lock", "owned", "fair", "fenced", "a", "b", "c", "d", "rw"] {
        let held: bool = redis::cmd("EXISTS")
            .arg(named(kind))
            .query(&mut con)
            .unwrap();
        assert!(held, "{kind}");
    }
    let held: bool = redis::cmd("EXISTS")
        .arg(wanted.name())
        .query(&mut con)
        .unwrap();
    assert!(held && waited_for.is_valid() && waited_for.hold_count() == 1);
    drop(waited_for);
    assert!(outer.is_valid() && fair.is_valid() && members.is_valid());
    assert!(outer.valid_until() > Instant::now());
    inner.unlock().unwrap();
    outer.unlock().unwrap();
    owned.unlock().unwrap();
    fair.unlock().unwrap();
    fenced.unlock().unwrap();
    several.unlock().unwrap();
    members.unlock().unwrap();
    read.unlock().unwrap();
    write.unlock().unwrap();
    permit.release().unwrap();
    kept.release().unwrap();
    leased_permit.release().unwrap();
    other_leased.release().unwrap();
    drop(client.adopt::<OwnedMutexGuard>(&ticket).unwrap());
    let adopted = client.adopt::<ExpirablePermit>(&permit_ticket).unwrap();
    adopted.release().unwrap();
    eventually("all permits are back", || {
        semaphore.available_permits().unwrap() == 3 && leased.available_permits().unwrap() == 3
    });
    assert_eq!(latch.count().unwrap(), 1);
}

/// Asserts in the child, where a panic would not be reported.
fn expect(truth: bool, what: &str) {
    if !truth {
        eprintln!("in the child: {what}");
        std::process::abort();
    }
}
