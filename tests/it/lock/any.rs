//! The traits with which code is written once for all kinds of locks.

use std::time::Instant;

use redlatch::{Error, Hold, Lock, MultiLock, RedLock, Result};

use crate::support::{Deployment, LONG, Server, elsewhere, eventually, ms, open, timed, unique};

/// Uses a lock only through the trait, as a wrapper would.
fn works(lock: &dyn Lock, name: &str) {
    fn check(guard: impl Hold) -> Result<()> {
        assert!(guard.is_valid() && guard.lost().try_recv().is_err());
        assert!(guard.valid_until() > Instant::now());
        assert!(!guard.name().is_empty());
        guard.unlock()
    }
    assert_eq!(lock.name(), name);
    // A box inside of a box is a hold as well.
    check(Box::new(lock.lock().unwrap())).unwrap();
    assert_eq!(lock.lock().unwrap().name(), name);
    let owned = |guard: Box<dyn Hold + Send>| {
        assert!(lock.try_lock_owned().unwrap().is_none());
        elsewhere(move || check(guard).unwrap());
    };
    owned(lock.lock_owned().unwrap());
    owned(lock.try_lock_owned_for(LONG).unwrap().unwrap());
    owned((lock.try_lock_owned_until(Instant::now() + LONG).unwrap()).unwrap());
    check(lock.lock().unwrap()).unwrap();
    check(lock.try_lock().unwrap().unwrap()).unwrap();
    check(lock.try_lock_for(LONG).unwrap().unwrap()).unwrap();
    check(lock.try_lock_until(Instant::now() + LONG).unwrap().unwrap()).unwrap();
    let guard = lock.lock().unwrap();
    elsewhere(|| {
        assert!(lock.try_lock().unwrap().is_none());
        assert!(lock.try_lock_for(ms(20)).unwrap().is_none());
    });
    drop(guard);
}

timed!(a_wrapper_is_written_once_for_all_kinds);
fn a_wrapper_is_written_once_for_all_kinds() {
    let server = Server::start();
    let client = open(&server);
    let name = unique("any");
    works(&client.reentrant_lock(&name), &name);
    works(&client.mutex(&name), &name);
    works(&client.fair_lock(&name), &name);
    works(&client.fair_mutex(&name), &name);
    works(&client.fenced_lock(&name), &name);
    works(&client.spin_lock(&name), &name);
    works(&client.multi_lock([&name]), &name);
    // A RedLock rejects clients of a cluster.
    let others = [(); 3].map(|()| Server::start_as(Deployment::Single));
    let clients = others.each_ref().map(open);
    works(&RedLock::new(&clients, &name).unwrap(), &name);
}

timed!(a_multi_lock_among_the_members_is_its_members);
fn a_multi_lock_among_the_members_is_its_members() {
    let server = Server::start();
    let client = open(&server);
    let [a, b, c] = ["a", "b", "c"].map(unique);
    let inner = client.multi_lock([&b, &c]);
    let all = MultiLock::new(vec![
        Box::new(client.mutex(&a)) as Box<dyn Lock>,
        Box::new(inner.clone()),
    ]);
    let guard = all.lock().unwrap();
    assert_eq!(guard.owner().split(',').count(), 3);
    assert!([&a, &b, &c].iter().all(|name| server.exists(name)));
    elsewhere(|| assert!(inner.try_lock().unwrap().is_none()));
    guard.unlock().unwrap();
    eventually("all are free", || server.keys_but_requests().is_empty());
    let none = MultiLock::new(vec![]);
    let err = Lock::lock(&none).map(drop).unwrap_err();
    assert!(matches!(err, Error::InvalidSetting { .. }), "{err}");
    #[cfg(feature = "testing")]
    {
        let fake = redlatch::testing::FakeLock::new(&a);
        let mixed = MultiLock::new(vec![Box::new(client.mutex(&a)), Box::new(fake)]);
        let err = mixed.lock().unwrap_err().to_string();
        assert!(err.contains("a lock for tests"), "{err}");
    }
}
