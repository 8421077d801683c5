//! Threads of several clients that take locks in turn while a test injects faults, and a check of their history.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use redlatch::{Client, Error};

use crate::support::history::{
    Divides, Edge, Event, NEMESIS, Nanos, Phase, Setup, Wanted, What, check, nanos,
};
use crate::support::{Crew, GENEROUS, LONG, SLACK, eventually, locked, loosely, ms, within};

/// How many more turns each thread needs for [`Load::goes_on`].
const MORE: usize = 3;

/// How many more turns each lock needs.
const OFTEN: usize = 20;

pub(crate) struct Load {
    clients: Vec<Client>,
    shared: Arc<Shared>,
    /// `None` only once the load has ended.
    crew: Option<Crew>,
    /// The faults so far, as events.
    faults: Mutex<Vec<Event>>,
}

struct Shared {
    begun: Instant,
    clients: usize,
    names: Vec<String>,
    /// The number that each lock protects.
    numbers: Vec<AtomicU64>,
    /// How often each lock was held.
    turns: Vec<AtomicUsize>,
    workers: Vec<Worker>,
    done: AtomicBool,
}

/// A thread: its lock, its turns, and what it saw.
struct Worker {
    lock: usize,
    turns: AtomicUsize,
    history: Mutex<Vec<Event>>,
}

impl Load {
    /// Starts `threads` threads of each client for each name; returns when all of them have had the lock.
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
            faults: Mutex::default(),
        };
        load.goes_on("all threads have had turns");
        load
    }

    /// Waits until every thread and every lock has had some more turns.
    pub(crate) fn goes_on(&self, what: &str) {
        let count = |turns: &AtomicUsize| turns.load(Ordering::SeqCst);
        let of_threads = || {
            self.shared
                .workers
                .iter()
                .map(|worker| count(&worker.turns))
        };
        let of_locks = || self.shared.turns.iter().map(count);
        let threads: Vec<_> = of_threads().map(|turns| turns + MORE).collect();
        let locks: Vec<_> = of_locks().map(|turns| turns + OFTEN).collect();
        eventually(what, || {
            of_threads().zip(&threads).all(|(now, then)| now >= *then)
                && of_locks().zip(&locks).all(|(now, then)| now >= *then)
        });
    }

    /// Injects `fault` under the load; returns how long it took until all threads worked again.
    pub(crate) fn during(&mut self, fault: impl FnOnce(&Self)) -> Duration {
        let from = self.shared.now();
        fault(self);
        let begun = Instant::now();
        self.goes_on("all threads have turns again");
        let until = self.shared.now();
        self.was_broken("fault", Divides::Nobody, [from, until]);
        begun.elapsed()
    }

    /// Records that, until `ended` returns, two servers grant locks and different clients may ask different ones.
    pub(crate) fn divided(&self, ended: impl FnOnce()) {
        let from = self.shared.now();
        ended();
        // The last client may pass its last grant on among its threads for as long as a tenure.
        let until = self.shared.now() + nanos(loosely(ms(50)));
        self.was_broken("two servers", Divides::Clients, [from, until]);
    }

    fn was_broken(&self, fault: &str, divides: Divides, [from, until]: [Nanos; 2]) {
        let mut faults = locked(&self.faults);
        let number = Some(faults.len() as u64);
        for (is_end, time) in [(false, from), (true, until)] {
            let edge = Edge {
                fault: fault.into(),
                number,
                is_end,
                divides: Some(divides),
                ..Edge::default()
            };
            faults.push(Event::new(NEMESIS, Phase::Info, What::Fault(edge), time));
        }
    }

    /// Lets the load work for a while without faults, ends it, and asserts that its history satisfies all rules.
    #[track_caller]
    pub(crate) fn ends(mut self) {
        self.goes_on("all threads have turns without faults");
        self.shared.done.store(true, Ordering::SeqCst);
        let crew = self.crew.take().expect("it ends once");
        // The limit covers the longest wait and the longest release.
        let ended = within(2 * LONG + loosely(GENEROUS), || crew.is_finished());
        let report = check(self.history());
        assert!(report.is_fine(), "{report}");
        assert!(ended, "a thread has not ended");
        crew.join();
        for client in &self.clients {
            let stats = client.stats();
            assert_eq!(stats.releases_failed, 0, "{stats:?}");
        }
    }

    fn history(&self) -> Vec<Event> {
        let setup = Setup {
            slack: nanos(loosely(SLACK)),
            // A fault lasts until all threads work again. After it, a waiter that missed its message asks again within
            // a second.
            recovery: Some(nanos(ms(1_000))),
            ..Setup::default()
        };
        let setup = What::Setup(Box::new(setup));
        let mut events = vec![Event::new(NEMESIS, Phase::Info, setup, 0)];
        events.extend(locked(&self.faults).iter().cloned());
        for worker in &self.shared.workers {
            events.extend(locked(&worker.history).iter().cloned());
        }
        // A final hold of each lock reads its number, so that a lost increment at the very end is found too.
        let numbers = self.shared.numbers.iter();
        for (lock, number) in numbers.enumerate() {
            let (at, number) = (self.shared.now(), number.load(Ordering::SeqCst));
            let (process, wanted) = (-1_000, || self.shared.wanted(lock));
            let acquire = || What::Acquire {
                wanted: wanted(),
                limit: None,
                token: None,
                id: None,
            };
            let release = || What::Release {
                wanted: wanted(),
                id: None,
                valid_until: None,
            };
            let work = What::Work {
                name: wanted().name(),
                read: number,
                wrote: number + 1,
            };
            let last = [
                (Phase::Invoke, acquire()),
                (Phase::Ok, acquire()),
                (Phase::Ok, work),
                (Phase::Invoke, release()),
                (Phase::Ok, release()),
            ];
            events.extend(last.map(|(phase, what)| Event::new(process, phase, what, at)));
        }
        events
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.shared.done.store(true, Ordering::SeqCst);
    }
}

impl Shared {
    fn now(&self) -> Nanos {
        nanos(self.begun.elapsed())
    }

    fn wanted(&self, lock: usize) -> Wanted {
        Wanted {
            kind: "mutex".into(),
            names: vec![self.names[lock].as_str().into()],
            permits: 1,
            ..Wanted::default()
        }
    }

    fn work(&self, thread: usize, client: &Client) {
        let worker = &self.workers[thread];
        let lock = client.mutex(&self.names[worker.lock]);
        let process = (thread % self.clients) * 1000 + thread;
        let process = i64::try_from(process).expect("a few");
        let wanted = self.wanted(worker.lock);
        let note = |phase, what, error: Option<&Error>| {
            let mut history = locked(&worker.history);
            let event = Event::new(process, phase, what, self.now());
            history.push(Event {
                error: error.map(ToString::to_string),
                ..event
            });
        };
        let acquire = || What::Acquire {
            wanted: wanted.clone(),
            limit: Some(nanos(LONG)),
            token: None,
            id: None,
        };
        let release = || What::Release {
            wanted: wanted.clone(),
            id: None,
            valid_until: None,
        };
        while !self.done.load(Ordering::SeqCst) {
            note(Phase::Invoke, acquire(), None);
            let guard = match lock.try_lock_for(LONG) {
                Ok(Some(guard)) => guard,
                Ok(None) => {
                    note(Phase::Fail, acquire(), None);
                    continue;
                }
                Err(err) => {
                    note(Phase::Info, acquire(), Some(&err));
                    continue;
                }
            };
            note(Phase::Ok, acquire(), None);
            let number = &self.numbers[worker.lock];
            let read = number.load(Ordering::SeqCst);
            thread::sleep(ms(1));
            number.store(read + 1, Ordering::SeqCst);
            let work = What::Work {
                name: wanted.name(),
                read,
                wrote: read + 1,
            };
            note(Phase::Ok, work, None);
            if !guard.is_valid() {
                let lost = What::Lost {
                    wanted: wanted.clone(),
                    id: None,
                    valid_until: None,
                };
                note(Phase::Info, lost, None);
            }
            note(Phase::Invoke, release(), None);
            match guard.unlock() {
                Ok(()) => note(Phase::Ok, release(), None),
                Err(err) => note(Phase::Fail, release(), Some(&err)),
            }
            worker.turns.fetch_add(1, Ordering::SeqCst);
            self.turns[worker.lock].fetch_add(1, Ordering::SeqCst);
        }
    }
}
