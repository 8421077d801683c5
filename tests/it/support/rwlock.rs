//! Threads that hold a read-write lock, and what Redis keeps of it.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::thread;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, unbounded};
use redlatch::{Error, LossReason, Result, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::support::LONG;

pub(crate) type Work = Box<dyn FnOnce(&mut Desk) + Send>;

/// A thread that keeps guards, which cannot leave it, and executes the work that it is sent.
pub(crate) struct Actor {
    orders: Option<Sender<Work>>,
    thread: Option<JoinHandle<()>>,
}

/// The lock and guards of an actor; the most recent guard is dropped first.
pub(crate) struct Desk {
    pub(crate) lock: RwLock,
    pub(crate) reads: Vec<RwLockReadGuard>,
    pub(crate) writes: Vec<RwLockWriteGuard>,
}

impl Desk {
    pub(crate) fn counts(&self) -> (u32, u32) {
        (self.lock.read_hold_count(), self.lock.write_hold_count())
    }

    pub(crate) fn read(&mut self) -> &RwLockReadGuard {
        self.reads.push(self.lock.read().unwrap());
        &self.reads[self.reads.len() - 1]
    }

    pub(crate) fn write(&mut self) -> &RwLockWriteGuard {
        self.writes.push(self.lock.write().unwrap());
        &self.writes[self.writes.len() - 1]
    }
}

impl Actor {
    pub(crate) fn new(lock: RwLock) -> Self {
        let (orders, inbox) = unbounded::<Work>();
        let thread = thread::spawn(move || {
            let mut desk = Desk {
                lock,
                reads: Vec::new(),
                writes: Vec::new(),
            };
            for work in inbox {
                work(&mut desk);
            }
        });
        Self {
            orders: Some(orders),
            thread: Some(thread),
        }
    }

    /// Sends `work` to the actor; its result arrives on the returned channel.
    pub(crate) fn begins<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Desk) -> T + Send + 'static,
    ) -> Receiver<T> {
        let (done, result) = unbounded();
        let work: Work = Box::new(move |desk| drop(done.send(work(desk))));
        self.orders.as_ref().unwrap().send(work).unwrap();
        result
    }

    #[track_caller]
    pub(crate) fn does<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Desk) -> T + Send + 'static,
    ) -> T {
        let result = Arc::new(Mutex::new(None));
        let place = Arc::clone(&result);
        let done = self.begins(move |desk| *place.lock().unwrap() = Some(work(desk)));
        done.recv_timeout(LONG).expect("an actor that is done");
        let mut result = result.lock().unwrap();
        result.take().expect("a result")
    }

    /// Takes one read hold; returns its owner.
    #[track_caller]
    pub(crate) fn reads(&self) -> String {
        self.does(|desk| desk.read().owner().to_owned())
    }

    /// Takes one write hold; returns its owner.
    #[track_caller]
    pub(crate) fn writes(&self) -> String {
        self.does(|desk| desk.write().owner().to_owned())
    }

    /// Releases all holds and waits for the replies.
    #[track_caller]
    pub(crate) fn leaves(&self) {
        self.does(|desk| {
            desk.reads
                .drain(..)
                .for_each(|guard| guard.unlock().unwrap());
            desk.writes
                .drain(..)
                .for_each(|guard| guard.unlock().unwrap());
        });
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        drop(self.orders.take());
        if let Some(thread) = self.thread.take()
            && !thread::panicking()
        {
            thread.join().expect("an actor");
        }
    }
}

/// The key that lives as long as the first read hold of `owner`.
pub(crate) fn hold_key(name: &str, owner: &str) -> String {
    if name.contains('{') {
        format!("{name}:{owner}:rwlock_timeout:1")
    } else {
        format!("{{{name}}}:{owner}:rwlock_timeout:1")
    }
}

/// The hash of a lock that each of `owners` reads or writes once.
pub(crate) fn hash(mode: &str, owners: &[&str]) -> Vec<(String, String)> {
    let mut fields: BTreeMap<_, _> = owners
        .iter()
        .map(|&owner| (owner.to_owned(), "1".to_owned()))
        .collect();
    fields.insert("mode".into(), mode.into());
    fields.into_iter().collect()
}

#[track_caller]
pub(crate) fn assert_lost<T: Debug>(result: Result<T>, reasons: &[LossReason]) {
    match result {
        Err(Error::Lost { reason, .. }) if reasons.contains(&reason) => {}
        other => panic!("not lost by {reasons:?}: {other:?}"),
    }
}
