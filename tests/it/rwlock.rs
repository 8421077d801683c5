//! The read-write lock, as users meet it.

use std::thread;
use std::time::{Duration, Instant};

use redlatch::{Client, Error};

use crate::support::{Server, ms, unique};

#[test]
fn readers_share_and_writers_do_not() {
    let server = Server::start();
    let name = unique("rw");
    let (ours, theirs) = (
        Client::open(server.url()).unwrap(),
        Client::open(server.url()).unwrap(),
    );
    let (our, their) = (ours.rwlock(&name), theirs.rwlock(&name));
    let reads = our.read().unwrap();
    let also = their.try_read().unwrap().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| assert!(their.try_write().unwrap().is_none()));
    });
    assert!(matches!(our.write(), Err(Error::WouldDeadlock { .. })));
    thread::scope(|scope| {
        scope.spawn(|| {
            let before = server.calls("evalsha");
            let shared = our.read().unwrap();
            assert_eq!(server.calls("evalsha"), before);
            assert_eq!(shared.owner(), reads.owner());
        });
    });
    let begun = Instant::now();
    let waiter = thread::spawn({
        let their = theirs.rwlock(&name);
        move || their.write().unwrap().unlock().unwrap()
    });
    thread::sleep(ms(200));
    drop(also);
    drop(reads);
    waiter.join().unwrap();
    assert!(begun.elapsed() < Duration::from_millis(700));
    let writes = our.write().unwrap();
    let below = our.read().unwrap();
    assert_eq!(server.hgetall(&name).len(), 3);
    drop(below);
    assert!(their.try_read().unwrap().is_none());
    let read = writes.downgrade().unwrap();
    assert!(their.try_read().unwrap().is_some());
    assert_eq!((our.read_hold_count(), our.write_hold_count()), (1, 0));
    read.unlock().unwrap();
    assert!(!server.exists(&name));
    assert_eq!(server.keys(), Vec::<String>::new());
}
