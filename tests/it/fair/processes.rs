//! The fair lock between processes: many waiters, and processes that are killed or stopped.

use std::collections::HashSet;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::bounded;
use nix::sys::signal::Signal;
use redlatch::{Client, Config};

use crate::support::fair::{Line, nothing_left, queue, queued, with_waiter_lease};
use crate::support::{
    BY_MESSAGE, LONG, Part, Server, connection_to, eventually, given, loosely, ms, open, say,
    timed, unique, within,
};

/// How long Redis keeps the place of a killed waiter.
const WAITER_LEASE: Duration = ms(1_000);

/// A list to which processes append `+owner` when they acquire the lock, and `-owner` before they release it.
const LOG: &str = "log";

// ---------------------------------------------------------------------------------------------------------------------
// Processes
// ---------------------------------------------------------------------------------------------------------------------

/// The task of a process: each of its threads acquires the lock once and holds it for `keeps`.
#[derive(Clone, Copy)]
struct Job {
    threads: usize,
    waiter_lease: Duration,
    lease: Duration,
    keeps: Duration,
}

const JOB: Job = Job {
    threads: 1,
    waiter_lease: WAITER_LEASE,
    lease: ms(1_500),
    keeps: Duration::ZERO,
};

/// A process that does its job; `client` is the beginning of its owners.
struct Process {
    part: Part,
    client: String,
}

impl Process {
    fn start(server: &Server, name: &str, job: Job) -> Self {
        let threads = job.threads.to_string();
        let times = [job.waiter_lease, job.lease, job.keeps];
        let [waiter_lease, lease, keeps] = times.map(|time| time.as_millis().to_string());
        let url = server.url();
        let given = [&*url, name, &threads, &waiter_lease, &lease, &keeps];
        let mut part = Part::start(part_that_waits, &given);
        let client = part.says("this is");
        Self { part, client }
    }

    fn has(&self, owner: &str) -> bool {
        owner.rsplit_once(':').unwrap().0 == self.client
    }
}

#[test]
#[ignore = "part of other tests"]
fn part_that_waits() {
    let Some([url, name, threads, times @ ..]) = given::<6>() else {
        return;
    };
    let [waiter_lease, lease, keeps] = times.map(|time| ms(time.parse().unwrap()));
    let config = Config::new(&*url).waiter_lease(waiter_lease).lease(lease);
    let client = Client::open(config).unwrap();
    let own_guard = client.mutex(unique("own")).lock().unwrap();
    let (own_client, _) = own_guard.owner().rsplit_once(':').unwrap();
    say(&format!("this is {own_client}"));
    own_guard.unlock().unwrap();
    let log = std::sync::Mutex::new(connection_to(&url));
    let write = |entry: String| {
        let mut log = log.lock().unwrap();
        let () = redis::cmd("RPUSH")
            .arg(LOG)
            .arg(entry)
            .query(&mut log)
            .unwrap();
    };
    thread::scope(|scope| {
        for _ in 0..threads.parse().unwrap() {
            let stand = || {
                let guard = client.fair_lock(&name).lock().unwrap();
                write(format!("+{}", guard.owner()));
                thread::sleep(keeps);
                write(format!("-{}", guard.owner()));
                guard.unlock().unwrap();
            };
            let thread = thread::Builder::new().stack_size(256 * 1024);
            thread.spawn_scoped(scope, stand).unwrap();
        }
    });
}

/// The owners in the order of their holds. Holds must not overlap, except with that of a killed process.
#[track_caller]
fn served(server: &Server, killed: impl Fn(&str) -> bool) -> Vec<String> {
    let log: Vec<String> = server.ask(&["LRANGE", LOG, "0", "-1"]);
    let (mut served, mut inside) = (Vec::new(), None::<String>);
    for entry in log {
        let (way, owner) = entry.split_at(1);
        if way == "+" {
            if let Some(owner_before) = inside.replace(owner.to_owned()) {
                assert!(
                    killed(&owner_before),
                    "{owner_before} and {owner} are inside"
                );
            }
            served.push(owner.to_owned());
        } else {
            assert_eq!(inside.take().as_deref(), Some(owner));
        }
    }
    served
}

fn entries(server: &Server) -> usize {
    server.ask(&["LLEN", LOG])
}

// ---------------------------------------------------------------------------------------------------------------------
// Many
// ---------------------------------------------------------------------------------------------------------------------

timed!(five_hundred_waiters_of_four_processes_are_served_in_the_order_of_the_queue);
fn five_hundred_waiters_of_four_processes_are_served_in_the_order_of_the_queue() {
    const PROCESSES: usize = 4;
    const WAITERS: usize = 500;
    let server = Server::start();
    let name = unique("crowd");
    let client = open(&server);
    let guard = client.fair_lock(&name).lock().unwrap();
    let job = Job {
        threads: WAITERS / PROCESSES,
        waiter_lease: LONG,
        lease: ms(30_000),
        ..JOB
    };
    let mut processes: Vec<_> = (0..PROCESSES)
        .map(|_| Process::start(&server, &name, job))
        .collect();
    queued(&server, &name, WAITERS);
    let line = queue(&server, &name);
    assert_eq!(line.iter().collect::<HashSet<_>>().len(), WAITERS);
    for process in &processes {
        let granted = line.iter().filter(|owner| process.has(owner)).count();
        assert_eq!(granted, job.threads);
    }
    assert_eq!(entries(&server), 0);
    let begun = Instant::now();
    guard.unlock().unwrap();
    for process in &mut processes {
        process.part.ends();
    }
    let took = begun.elapsed();
    assert_eq!(served(&server, |_| false), line);
    // If a message were lost at each hand-over, the next in the queue would look a second later, and this take minutes.
    assert!(took < loosely(2 * LONG), "{took:?}");
    server.cli(&["DEL", LOG]);
    nothing_left(&server);
}

// ---------------------------------------------------------------------------------------------------------------------
// Ends
// ---------------------------------------------------------------------------------------------------------------------

// Dead waiters at the head of the queue and behind it cost one waiter lease in total, also while subscribers reconnect.
timed!(the_dead_hold_the_queue_up_for_one_waiter_lease);
fn the_dead_hold_the_queue_up_for_one_waiter_lease() {
    const DEAD: usize = 60;
    let server = Server::start();
    let name = unique("dead");
    let client = with_waiter_lease(&server.url(), WAITER_LEASE);
    let guard = client.fair_lock(&name).lock().unwrap();
    let job = Job {
        threads: DEAD,
        ..JOB
    };
    let mut doomed = vec![Process::start(&server, &name, job)];
    queued(&server, &name, DEAD);
    let mut line = Line::new(&server, &name);
    line.join_with(client.fair_lock(&name));
    doomed.push(Process::start(&server, &name, job));
    queued(&server, &name, 2 * DEAD + 1);
    for _ in 0..2 {
        line.join_with(client.fair_lock(&name));
    }
    line.all_parked();
    for process in &mut doomed {
        process.part.kill();
    }
    let (killed, asked) = (Instant::now(), server.calls("evalsha"));
    server.kill_clients_named("subscriber");
    drop(guard);
    assert_eq!(line.received.recv_timeout(LONG), Ok(0));
    let (took, asked) = (killed.elapsed(), server.calls("evalsha") - asked);
    assert!(took >= WAITER_LEASE / 2, "{took:?}");
    assert!(took < WAITER_LEASE * 4 / 3 + loosely(ms(800)), "{took:?}");
    // The living waiters polled now and then, although the lock was free.
    assert!(asked < 50, "{asked} questions");
    assert_eq!(line.received.recv_timeout(loosely(BY_MESSAGE)), Ok(1));
    assert_eq!(line.received.recv_timeout(loosely(BY_MESSAGE)), Ok(2));
    line.crew.join();
    nothing_left(&server);

    // A queue of dead waiters only costs one waiter lease more.
    let guard = client.fair_lock(&name).lock().unwrap();
    let mut doomed = Process::start(&server, &name, job);
    queued(&server, &name, DEAD);
    doomed.part.kill();
    let killed = Instant::now();
    guard.unlock().unwrap();
    drop(client.fair_lock(&name).lock().unwrap());
    let took = killed.elapsed();
    assert!(took < WAITER_LEASE * 7 / 3 + loosely(ms(800)), "{took:?}");
    assert_eq!(entries(&server), 0, "the dead do nothing");
    nothing_left(&server);
}

timed!(the_queue_outlives_a_killed_holder_and_keeps_its_order);
fn the_queue_outlives_a_killed_holder_and_keeps_its_order() {
    let server = Server::start();
    let name = unique("killed");
    let job = Job { keeps: LONG, ..JOB };
    let mut holder = Process::start(&server, &name, job);
    eventually("it has the lock", || entries(&server) == 1);
    let clients = [(); 2].map(|()| with_waiter_lease(&server.url(), WAITER_LEASE));
    let mut line = Line::new(&server, &name);
    for i in 0..6 {
        line.join_with(clients[i % 2].fair_lock(&name));
    }
    // The watchdog renews the lease.
    assert!(!within(JOB.lease + ms(200), || !line.received.is_empty()));
    holder.part.kill();
    let killed = Instant::now();
    assert_eq!(line.received.recv_timeout(LONG), Ok(0));
    let took = killed.elapsed();
    assert!(took > JOB.lease / 2, "{took:?}");
    assert!(took < JOB.lease + loosely(ms(1_000)), "{took:?}");
    for i in 1..6 {
        assert_eq!(line.received.recv_timeout(loosely(BY_MESSAGE)), Ok(i));
    }
    line.crew.join();
    server.cli(&["DEL", LOG]);
    nothing_left(&server);
}

// Surviving waiters keep their order, whichever processes are killed, the holder included.
timed!(processes_killed_while_the_queue_moves_take_nobodys_turn);
fn processes_killed_while_the_queue_moves_take_nobodys_turn() {
    const PROCESSES: usize = 5;
    const THREADS: usize = 12;
    let server = Server::start();
    let name = unique("moves");
    let client = with_waiter_lease(&server.url(), WAITER_LEASE);
    let guard = client.fair_lock(&name).lock().unwrap();
    let job = Job {
        threads: THREADS,
        keeps: ms(10),
        ..JOB
    };
    let mut processes: Vec<_> = (0..PROCESSES)
        .map(|_| Process::start(&server, &name, job))
        .collect();
    queued(&server, &name, PROCESSES * THREADS);
    let line = queue(&server, &name);
    drop(guard);
    let mut killed: Vec<Process> = Vec::new();
    for turns in [4, 14, 24] {
        eventually("the line moves", || entries(&server) >= 2 * turns);
        let mut next = processes.remove(0);
        next.part.kill();
        killed.push(next);
    }
    for process in &mut processes {
        process.part.ends();
    }
    let dead = |owner: &str| killed.iter().any(|process| process.has(owner));
    let served = served(&server, dead);
    // Holders follow the order of the queue, without the killed ones.
    let place = |owner: &String| line.iter().position(|other| other == owner).unwrap();
    let places: Vec<_> = served.iter().map(place).collect();
    assert!(places.is_sorted_by(|one, next| one < next), "{places:?}");
    let missed = line.iter().filter(|owner| !served.contains(owner));
    assert_eq!(missed.filter(|owner| !dead(owner)).count(), 0);
    assert!(served.len() >= (PROCESSES - killed.len()) * THREADS);
    server.cli(&["DEL", LOG]);
    // The end of the queue may be places of killed waiters, which the next acquire removes.
    let begun = Instant::now();
    drop(client.fair_lock(&name).lock().unwrap());
    assert!(begun.elapsed() < 2 * WAITER_LEASE + JOB.lease + loosely(ms(800)));
    nothing_left(&server);
}

// A waiter that was stopped for longer than a waiter lease loses its place and queues again at the end.
timed!(a_process_that_was_stopped_in_line_comes_back_to_its_end);
fn a_process_that_was_stopped_in_line_comes_back_to_its_end() {
    let server = Server::start();
    let name = unique("stopped");
    let client = with_waiter_lease(&server.url(), WAITER_LEASE);
    let guard = client.fair_lock(&name).lock().unwrap();
    let mut sleeper = Process::start(&server, &name, JOB);
    queued(&server, &name, 1);
    let ticket = queue(&server, &name).remove(0);
    let mut line = Line::new(&server, &name);
    line.join_with(client.fair_lock(&name));
    sleeper.part.stop();
    thread::sleep(2 * WAITER_LEASE);
    // An attempt to acquire removes expired places.
    let other = with_waiter_lease(&server.url(), WAITER_LEASE).fair_lock(&name);
    eventually("its place is over", || {
        assert!(other.try_lock().unwrap().is_none());
        !queue(&server, &name).contains(&ticket)
    });
    line.join_with(client.fair_lock(&name));
    sleeper.part.signal(Signal::SIGCONT);
    queued(&server, &name, 3);
    let again = queue(&server, &name).remove(2);
    assert!(sleeper.has(&again) && again != ticket);
    drop(guard);
    sleeper.part.ends();
    line.served_in_order();
    assert_eq!(served(&server, |_| false), [again]);
    server.cli(&["DEL", LOG]);
    nothing_left(&server);
}

// A process stopped at its turn holds the queue up for one waiter lease, then queues again.
timed!(a_process_that_is_stopped_when_it_is_its_turn_is_passed_by);
fn a_process_that_is_stopped_when_it_is_its_turn_is_passed_by() {
    let server = Server::start();
    let name = unique("passed");
    let client = with_waiter_lease(&server.url(), WAITER_LEASE);
    let guard = client.fair_lock(&name).lock().unwrap();
    let mut sleeper = Process::start(&server, &name, JOB);
    queued(&server, &name, 1);
    let ticket = queue(&server, &name).remove(0);
    let (go, turn) = bounded::<()>(0);
    let mut line = Line::new(&server, &name);
    let lock = client.fair_lock(&name);
    line.join(move |here| {
        let _guard = lock.lock().unwrap();
        here();
        turn.recv().unwrap();
    });
    line.join_with(client.fair_lock(&name));
    line.all_parked();
    sleeper.part.stop();
    let stopped = Instant::now();
    drop(guard);
    assert_eq!(line.received.recv_timeout(LONG), Ok(0));
    let took = stopped.elapsed();
    assert!(took > WAITER_LEASE / 4, "{took:?}");
    assert!(took < WAITER_LEASE * 4 / 3 + loosely(ms(800)), "{took:?}");
    assert!(!queue(&server, &name).contains(&ticket));
    sleeper.part.signal(Signal::SIGCONT);
    queued(&server, &name, 2);
    let again = queue(&server, &name).remove(1);
    go.send(()).unwrap();
    assert_eq!(line.received.recv_timeout(LONG), Ok(1));
    sleeper.part.ends();
    line.crew.join();
    assert_eq!(served(&server, |_| false), [again]);
    server.cli(&["DEL", LOG]);
    nothing_left(&server);
}
