//! Threads of this process that each repeat an operation.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use redlatch::Client;

/// How often each thread ran its operation, and in what time.
pub(crate) struct Counts {
    pub(crate) each: Vec<u32>,
    pub(crate) taken: Duration,
}

impl Counts {
    pub(crate) fn total(&self) -> u32 {
        self.each.iter().sum()
    }

    pub(crate) fn rate(&self) -> f64 {
        f64::from(self.total()) / self.taken.as_secs_f64()
    }

    /// The smallest count of a thread, divided by the greatest.
    pub(crate) fn fairness(&self) -> f64 {
        let (least, most) = (self.each.iter().min(), self.each.iter().max());
        f64::from(*least.unwrap_or(&0)) / f64::from(*most.unwrap_or(&1)).max(1.0)
    }
}

/// When the threads stop.
#[derive(Clone, Copy)]
pub(crate) enum Enough {
    After(Duration),
    Each(u32),
}

/// Runs each operation on its own thread, again and again.
pub(crate) fn together<O: FnMut() + Send>(operations: &mut [O], enough: Enough) -> Counts {
    let stop = AtomicBool::new(false);
    let ready = Barrier::new(operations.len() + 1);
    let quota = match enough {
        Enough::After(_) => u32::MAX,
        Enough::Each(n) => n,
    };
    thread::scope(|scope| {
        let threads: Vec<_> = operations
            .iter_mut()
            .map(|operation| {
                let (stop, ready) = (&stop, &ready);
                scope.spawn(move || {
                    ready.wait();
                    let mut done = 0;
                    while done < quota && !stop.load(Ordering::Relaxed) {
                        operation();
                        done += 1;
                    }
                    done
                })
            })
            .collect();
        ready.wait();
        let start = Instant::now();
        if let Enough::After(span) = enough {
            thread::sleep(span);
            stop.store(true, Ordering::Relaxed);
        }
        let each = threads
            .into_iter()
            .map(|thread| thread.join().expect("no operation panics"))
            .collect();
        Counts {
            each,
            taken: start.elapsed(),
        }
    })
}

/// One operation per thread, which locks and releases a name of its own.
pub(crate) fn spread(
    client: &Client,
    names: &str,
    threads: usize,
) -> Vec<impl FnMut() + Send + use<>> {
    (0..threads)
        .map(|n| {
            let lock = client.reentrant_lock(format!("{names}:{n}"));
            move || drop(lock.lock().expect("a grant"))
        })
        .collect()
}
