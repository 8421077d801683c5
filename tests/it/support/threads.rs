//! Threads that can be watched, and threads that wait for a lock.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{JoinHandle, ScopedJoinHandle};
use std::time::{Duration, Instant};
use std::{fs, thread};

use redlatch::Client;

use crate::support::{SLACK, eventually, loosely, ms};

/// Threads with a common name, by which `/proc` finds them.
pub(crate) struct Crew {
    tag: String,
    threads: Vec<JoinHandle<()>>,
}

impl Crew {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self {
            tag: format!("crew-{:x}", NEXT.fetch_add(1, Ordering::Relaxed)),
            threads: Vec::new(),
        }
    }

    pub(crate) fn spawn(&mut self, work: impl FnOnce() + Send + 'static) {
        self.add(Box::new(work));
    }

    fn add(&mut self, work: Box<dyn FnOnce() + Send>) {
        let thread = thread::Builder::new()
            .name(self.tag.clone())
            .stack_size(256 * 1024)
            .spawn(work)
            .expect("a thread");
        self.threads.push(thread);
    }

    /// Waits until every thread of the crew sleeps, in several looks one after another.
    pub(crate) fn all_parked(&self) {
        let mut looks = 0;
        eventually("all threads are parked", || {
            if self.asleep() == self.threads.len() {
                looks += 1;
            } else {
                looks = 0;
            }
            looks > 4
        });
    }

    fn asleep(&self) -> usize {
        let Ok(tasks) = fs::read_dir("/proc/self/task") else {
            return 0;
        };
        let name = format!("({}) S ", self.tag);
        tasks
            .flatten()
            .filter_map(|task| fs::read_to_string(task.path().join("stat")).ok())
            .filter(|stat| stat.contains(&name))
            .count()
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    pub(crate) fn join(self) {
        eventually("all threads have ended", || self.is_finished());
        for thread in self.threads {
            thread.join().expect("a thread of the crew");
        }
    }
}

/// [`thread::scope`], compiled once for all tests.
pub(crate) fn scoped<'env, T>(work: impl for<'scope> FnOnce(Scope<'scope, 'env>) -> T) -> T {
    fn run<'env>(work: &mut dyn for<'scope> FnMut(Scope<'scope, 'env>)) {
        thread::scope(|scope| work(Scope(scope)));
    }
    let (mut work, mut result) = (Some(work), None);
    run(&mut |scope| result = work.take().map(|work| work(scope)));
    result.expect("a result")
}

#[derive(Clone, Copy)]
pub(crate) struct Scope<'scope, 'env>(&'scope thread::Scope<'scope, 'env>);

impl<'scope> Scope<'scope, '_> {
    pub(crate) fn spawn<T: Send + 'scope>(
        self,
        work: impl FnOnce() -> T + Send + 'scope,
    ) -> ScopedJoinHandle<'scope, T> {
        let work: Box<dyn FnOnce() -> T + Send + 'scope> = Box::new(work);
        self.0.spawn(work)
    }
}

/// Runs `work` on a new thread, which holds no lock.
pub(crate) fn elsewhere<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    scoped(|scope| scope.spawn(work).join().expect("a thread"))
}

/// Sets the flag on drop, so that threads of a scope stop even when the test fails; otherwise the scope would wait for
/// them without end.
pub(crate) struct Stops<'a>(pub(crate) &'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// `waiter` waits for a lock that `holder` holds for `held`, is granted it soon after the release, and releases it.
pub(crate) fn is_waited_for(holder: &Client, waiter: &Client, name: &str, held: Duration) {
    let guard = holder.mutex(name).lock().unwrap();
    let commands = waiter.stats().commands;
    scoped(|scope| {
        let waiting = scope.spawn(|| {
            let got = waiter.mutex(name).lock().unwrap();
            let at = Instant::now();
            assert!(got.is_valid());
            got.unlock().unwrap();
            at
        });
        eventually("the waiter has asked Redis", || {
            waiter.stats().commands > commands
        });
        thread::sleep(held);
        assert!(!waiting.is_finished());
        let freed = Instant::now();
        guard.unlock().unwrap();
        let got = waiting.join().unwrap();
        assert!(got.saturating_duration_since(freed) < loosely(ms(1_000) + SLACK));
    });
}
