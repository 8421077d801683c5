//! Threads of several clients that take some locks in turn while a test breaks what is below them, and what they saw.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use redlatch::Client;

use crate::support::history::{History, Hold, Turn};
use crate::support::{Crew, GENEROUS, LONG, SLACK, eventually, locked, loosely, ms, within};

/// How often each thread has to have a lock until the load is said to go on.
const MORE: usize = 3;

/// How often each lock has to be had.
const OFTEN: usize = 20;

pub(crate) struct Load {
    clients: Vec<Client>,
    shared: Arc<Shared>,
    /// There until the end.
    crew: Option<Crew>,
    broken: Vec<(Duration, Duration)>,
    divided: Mutex<Vec<(Duration, Duration)>>,
}

struct Shared {
    begun: Instant,
    clients: usize,
    names: Vec<String>,
    /// What each lock protects.
    numbers: Vec<AtomicU64>,
    /// How often each lock was had.
    turns: Vec<AtomicUsize>,
    workers: Vec<Worker>,
    done: AtomicBool,
}

/// What one thread does.
struct Worker {
    lock: usize,
    turns: AtomicUsize,
    history: Mutex<Vec<Turn>>,
}

impl Load {
    /// So many threads of each client for each name; returns when all of them work.
    pub(crate) fn start(clients: &[Client], names: Vec<String>, threads: usize) -> Self {
        let many = threads * clients.len();
        let worker = |lock| Worker {
            lock,
            turns: AtomicUsize::new(0),
            history: Mutex::default(),
        };
        let shared = Arc::new(Shared {
            begun: Instant::now(),
            clients: clients.len(),
            numbers: names.iter().map(|_| AtomicU64::new(0)).collect(),
            turns: names.iter().map(|_| AtomicUsize::new(0)).collect(),
            workers: (0..many * names.len()).map(|n| worker(n / many)).collect(),
            names,
            done: AtomicBool::new(false),
        });
        let mut crew = Crew::new();
        for thread in 0..shared.workers.len() {
            let (shared, client) = (Arc::clone(&shared), clients[thread % clients.len()].clone());
            crew.spawn(move || shared.work(thread, &client));
        }
        let load = Self {
            clients: clients.to_vec(),
            shared,
            crew: Some(crew),
            broken: Vec::new(),
            divided: Mutex::default(),
        };
        load.goes_on("they work");
        load
    }

    /// Waits until every thread and every lock has had some turns more.
    pub(crate) fn goes_on(&self, what: &str) {
        let count = |turns: &AtomicUsize| turns.load(Ordering::SeqCst);
        let of_threads = || self.shared.workers.iter().map(|its| count(&its.turns));
        let of_locks = || self.shared.turns.iter().map(count);
        let threads: Vec<_> = of_threads().map(|turns| turns + MORE).collect();
        let locks: Vec<_> = of_locks().map(|turns| turns + OFTEN).collect();
        eventually(what, || {
            of_threads().zip(&threads).all(|(now, then)| now >= *then)
                && of_locks().zip(&locks).all(|(now, then)| now >= *then)
        });
    }

    /// `fault` breaks something under the load; returns how soon after that everybody works again.
    pub(crate) fn during(&mut self, fault: impl FnOnce(&Self)) -> Duration {
        let from = self.shared.begun.elapsed();
        fault(self);
        let begun = Instant::now();
        self.goes_on("they work again");
        self.broken.push((from, self.shared.begun.elapsed()));
        begun.elapsed()
    }

    /// Until `ended` returns, there are two servers that grant locks, and different clients may ask different ones.
    #[cfg(feature = "sentinel")]
    pub(crate) fn divided(&self, ended: impl FnOnce()) {
        let from = self.shared.begun.elapsed();
        ended();
        // The last client may hand its last grant on in memory for as long as a tenure.
        let until = self.shared.begun.elapsed() + loosely(ms(50));
        locked(&self.divided).push((from, until));
    }

    /// They work on for a while with nothing broken, end, and nothing that they saw is wrong.
    #[track_caller]
    pub(crate) fn ends(mut self) {
        self.goes_on("they work with nothing broken");
        self.shared.done.store(true, Ordering::SeqCst);
        let crew = self.crew.take().expect("it ends once");
        // The longest wait, and the longest release.
        let ended = within(2 * LONG + loosely(GENEROUS), || crew.is_finished());
        let histories = self.shared.workers.iter();
        let numbers = self.shared.numbers.iter();
        let history = History {
            turns: histories
                .flat_map(|its| locked(&its.history).clone())
                .collect(),
            counted: numbers.map(|n| n.load(Ordering::SeqCst)).collect(),
            broken: self.broken.clone(),
            divided: locked(&self.divided).clone(),
            slack: loosely(SLACK),
        };
        let wrong = history.wrong();
        assert!(wrong.is_empty(), "{wrong:#?}");
        assert!(ended, "somebody works still");
        crew.join();
        for client in &self.clients {
            let stats = client.stats();
            assert_eq!(stats.releases_failed, 0, "{stats:?}");
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.shared.done.store(true, Ordering::SeqCst);
    }
}

impl Shared {
    fn work(&self, thread: usize, client: &Client) {
        let worker = &self.workers[thread];
        let lock = client.mutex(&self.names[worker.lock]);
        let note = |change: &dyn Fn(&mut Turn, Duration)| {
            let mut history = locked(&worker.history);
            let now = self.begun.elapsed();
            change(history.last_mut().expect("it has asked"), now);
        };
        while !self.done.load(Ordering::SeqCst) {
            locked(&worker.history).push(Turn {
                thread,
                client: thread % self.clients,
                lock: worker.lock,
                asked: self.begun.elapsed(),
                limit: LONG,
                ..Turn::default()
            });
            let guard = match lock.try_lock_for(LONG) {
                Ok(Some(guard)) => guard,
                Ok(None) => {
                    note(&|turn, now| turn.answered = Some(now));
                    continue;
                }
                Err(err) => {
                    note(&|turn, now| {
                        turn.answered = Some(now);
                        turn.error = Some(err.to_string());
                    });
                    continue;
                }
            };
            note(&|turn, now| {
                turn.answered = Some(now);
                turn.hold = Some(Hold {
                    until: Duration::MAX,
                    ..Hold::default()
                });
            });
            let number = &self.numbers[worker.lock];
            let read = number.load(Ordering::SeqCst);
            thread::sleep(ms(1));
            number.store(read + 1, Ordering::SeqCst);
            let told = (!guard.is_valid()).then(|| "it is not valid any more".to_owned());
            note(&|turn, now| hold_of(turn).until = now);
            let released = guard.unlock().err().map(|err| err.to_string());
            note(&|turn, now| {
                let hold = hold_of(turn);
                hold.released = Some(now);
                hold.told = told.clone().or(released.clone());
            });
            worker.turns.fetch_add(1, Ordering::SeqCst);
            self.turns[worker.lock].fetch_add(1, Ordering::SeqCst);
        }
    }
}

fn hold_of(turn: &mut Turn) -> &mut Hold {
    turn.hold.as_mut().expect("it has the lock")
}
