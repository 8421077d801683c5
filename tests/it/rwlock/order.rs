//! The read-write lock with many who want it: who comes in when, and who cannot keep others out.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::thread::Scope;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use redlatch::{CancelToken, Client, Config, RwLock};

use crate::support::rwlock::{Actor, hash, hold_key};
use crate::support::{
    BY_MESSAGE, LONG, Mode, Part, Proxy, SLACK, STRANGER, Server, Stops, Target, elsewhere,
    eventually, given, loosely, ms, open, open_with_lease, say, settings, timed, unique, within,
};

/// How many connections are subscribed to the channel of `name`, and to that of its waiting writers.
fn listeners(server: &Server, name: &str) -> (u64, u64) {
    let channel = format!("redisson_rwlock:{{{name}}}");
    let (_, all, _, writers): (String, u64, String, u64) = server.ask(&[
        "PUBSUB",
        "NUMSUB",
        &channel,
        &format!("{channel}:writers:0"),
    ]);
    (all, writers)
}

/// Waits until a writer of another process would be let go first.
#[track_caller]
fn a_writer_waits(server: &Server, name: &str) {
    eventually("a writer waits", || listeners(server, name).1 > 0);
}

// ---------------------------------------------------------------------------------------------------------------------
// In a process of their own
// ---------------------------------------------------------------------------------------------------------------------

/// A part that has begun with what it does to the lock `name`.
fn started(part: impl Fn(), server: &Server, name: &str) -> Part {
    let mut part = Part::start(part, &[&server.url(), name]);
    part.says("begun");
    part
}

/// The lock that this part was given.
fn its_lock(lease: Duration) -> Option<RwLock> {
    let [url, name] = given()?;
    let client = Client::open(Config::new(url).lease(lease)).unwrap();
    Some(client.rwlock(name))
}

#[test]
#[ignore = "part of tests below"]
fn part_that_waits_to_write() {
    let Some(lock) = its_lock(ms(30_000)) else {
        return;
    };
    say("begun");
    assert!(lock.try_write_for(LONG * 3).unwrap().is_none());
}

/// The lease of a process that reads until it is killed.
const DYING: Duration = ms(1_500);

#[test]
#[ignore = "part of tests below"]
fn part_that_reads() {
    let Some(lock) = its_lock(DYING) else { return };
    let guard = lock.read().unwrap();
    say("begun");
    within(LONG * 3, || !guard.is_valid());
}

// ---------------------------------------------------------------------------------------------------------------------
// All readers at once
// ---------------------------------------------------------------------------------------------------------------------

// RW7, P4
timed!(readers_behind_a_writer_all_come_in_together);
fn readers_behind_a_writer_all_come_in_together() {
    const READERS: usize = 50;
    const CLIENTS: usize = 3;
    let server = Server::start();
    let name = unique("together");
    let clients = [(); CLIENTS].map(|()| open(&server));
    let owner = open(&server);
    let writer = Actor::new(owner.rwlock(&name));
    for _ in 0..3 {
        writer.writes();
        let inside = Arc::new(AtomicUsize::new(0));
        let readers: Vec<_> = (0..READERS)
            .map(|n| Actor::new(clients[n % CLIENTS].rwlock(&name)))
            .collect();
        let waiting: Vec<_> = readers
            .iter()
            .map(|reader| {
                let inside = Arc::clone(&inside);
                reader.begins(move |desk| {
                    desk.read();
                    inside.fetch_add(1, Ordering::SeqCst);
                })
            })
            .collect();
        eventually("one of each client listens", || {
            listeners(&server, &name).0 == CLIENTS as u64
        });
        eventually("they have asked again and are parked", || {
            let asked = server.calls("evalsha");
            !within(ms(50), || server.calls("evalsha") > asked)
        });
        let (before, acquired) = (
            server.calls("evalsha"),
            clients.each_ref().map(|client| client.stats().acquired),
        );
        let begun = Instant::now();
        writer.leaves();
        // Nobody leaves before all are here.
        eventually("all are inside", || {
            inside.load(Ordering::SeqCst) == READERS
        });
        let took = begun.elapsed();
        assert!(took < loosely(BY_MESSAGE), "{took:?}");
        // The release, and one question of each client; another if it was woken by both.
        let asked = server.calls("evalsha") - before;
        assert!(asked <= 1 + 2 * CLIENTS as u64, "{asked} questions");
        for (client, acquired) in clients.iter().zip(acquired) {
            assert_eq!(client.stats().acquired, acquired + 1);
        }
        assert_eq!(server.hgetall(&name).len(), 1 + CLIENTS);
        for done in waiting {
            done.recv_timeout(LONG).unwrap();
        }
    }
    for client in &clients {
        assert_eq!(client.stats().poll_rescues, 0);
    }
    eventually("nothing is left", || server.keys().is_empty());
}

// ---------------------------------------------------------------------------------------------------------------------
// Writers do not starve
// ---------------------------------------------------------------------------------------------------------------------

/// Readers that overlap for as long as they run.
struct Crowd {
    stop: AtomicBool,
    /// How many read now, and how many ever came in.
    inside: AtomicUsize,
    grants: AtomicU64,
}

impl Crowd {
    const SECTION: Duration = ms(60);

    fn new() -> Self {
        Self {
            stop: AtomicBool::new(false),
            inside: AtomicUsize::new(0),
            grants: AtomicU64::new(0),
        }
    }

    fn read<'s>(&'s self, scope: &'s Scope<'s, '_>, lock: &RwLock, threads: u32) {
        for n in 0..threads {
            let lock = lock.clone();
            scope.spawn(move || {
                thread::sleep(Self::SECTION / threads * n);
                while !self.stop.load(Ordering::SeqCst) {
                    let guard = lock.read().unwrap();
                    self.inside.fetch_add(1, Ordering::SeqCst);
                    self.grants.fetch_add(1, Ordering::SeqCst);
                    thread::sleep(Self::SECTION);
                    self.inside.fetch_sub(1, Ordering::SeqCst);
                    drop(guard);
                }
            });
        }
    }

    fn has_begun(&self) {
        eventually("they overlap", || {
            self.inside.load(Ordering::SeqCst) > 2 && self.grants.load(Ordering::SeqCst) > 8
        });
    }
}

// RW6: inside a process the queue decides.
timed!(a_writer_passes_overlapping_readers_of_its_process);
fn a_writer_passes_overlapping_readers_of_its_process() {
    let server = Server::start();
    let (name, client) = (unique("local"), open(&server));
    let (lock, crowd) = (client.rwlock(&name), Crowd::new());
    thread::scope(|scope| {
        let _stops = Stops(&crowd.stop);
        crowd.read(scope, &lock, 5);
        crowd.has_begun();
        for _ in 0..5 {
            let writer = Actor::new(lock.clone());
            let grants = Mutex::new(0);
            let waiting = writer.begins(|desk| {
                desk.write();
                Instant::now()
            });
            eventually("it is in line or has been", || {
                *grants.lock().unwrap() = crowd.grants.load(Ordering::SeqCst);
                elsewhere(|| lock.try_read().unwrap().is_none())
            });
            let begun = Instant::now();
            let entered = waiting.recv_timeout(LONG).unwrap();
            assert_eq!(crowd.inside.load(Ordering::SeqCst), 0, "alone");
            let after = crowd.grants.load(Ordering::SeqCst) - *grants.lock().unwrap();
            // Those that had passed the door when it came.
            assert!(after <= 5, "{after} readers went first");
            let took = entered.saturating_duration_since(begun);
            assert!(took < Crowd::SECTION * 2 + loosely(ms(300)), "{took:?}");
            writer.leaves();
        }
    });
    assert!(server.keys().is_empty());
}

// RW6: among processes, readers look for those who wait to write.
timed!(a_writer_passes_overlapping_readers_of_other_processes);
fn a_writer_passes_overlapping_readers_of_other_processes() {
    let server = Server::start();
    let name = unique("across");
    let clients = [(); 3].map(|()| open(&server));
    let other = open(&server);
    for readers_first in [true, false] {
        let crowd = Crowd::new();
        thread::scope(|scope| {
            let _stops = Stops(&crowd.stop);
            for client in &clients {
                let mut lock = client.rwlock(&name);
                if readers_first {
                    lock = lock.readers_first();
                }
                crowd.read(scope, &lock, 3);
            }
            crowd.has_begun();
            let lock = other.rwlock(&name);
            if readers_first {
                // Redisson's rule: for as long as they like.
                assert!(lock.try_write_for(ms(1_500)).unwrap().is_none());
            } else {
                for _ in 0..4 {
                    let begun = Instant::now();
                    let guard = lock.try_write_for(LONG).unwrap().expect("a turn");
                    let took = begun.elapsed();
                    assert_eq!(crowd.inside.load(Ordering::SeqCst), 0, "alone");
                    // A look or two of a tenth of a second each, and a section.
                    assert!(took < loosely(ms(1_000)), "{took:?}");
                    let grants = crowd.grants.load(Ordering::SeqCst);
                    guard.unlock().unwrap();
                    eventually("they overlap again", || {
                        crowd.grants.load(Ordering::SeqCst) > grants + 9
                    });
                }
            }
        });
    }
    eventually("nothing is left", || server.keys().is_empty());
}

// Also where a single writer would never see the lock free, since readers of its own process share all the time.
timed!(a_waiting_writer_is_let_go_first_by_single_attempts_too);
fn a_waiting_writer_is_let_go_first_by_single_attempts_too() {
    let server = Server::start();
    let name = unique("first");
    let [reads, writes, wants] = [(); 3].map(|()| open(&server));
    let reader = Actor::new(reads.rwlock(&name));
    reader.reads();
    let writer = Actor::new(writes.rwlock(&name));
    let waiting = writer.begins(|desk| {
        desk.write();
    });
    a_writer_waits(&server, &name);
    let lock = wants.rwlock(&name);
    assert!(lock.try_read().unwrap().is_none());
    assert!(lock.try_read_for(ms(200)).unwrap().is_none());
    assert!(lock.clone().readers_first().try_read().unwrap().is_some());
    // Whoever reads already may read again.
    reader.does(|desk| assert!(desk.lock.try_read().unwrap().is_some()));
    reader.leaves();
    waiting.recv_timeout(loosely(BY_MESSAGE)).unwrap();
    writer.leaves();
    assert_eq!(
        listeners(&server, &name).1,
        0,
        "no claim outlives its grant"
    );
    assert!(lock.try_read().unwrap().is_some());
}

// RW6: a claim lasts for as long as its writer is connected.
timed!(a_killed_writer_keeps_no_reader_out);
fn a_killed_writer_keeps_no_reader_out() {
    let server = Server::start();
    let (ours, theirs) = (open(&server), open(&server));
    for how in ["process", "connection"] {
        let name = unique(how);
        let keeper = Actor::new(ours.rwlock(&name));
        keeper.reads();
        let lock = theirs.rwlock(&name);
        let proxy = Proxy::start(server.addr());
        let mut process = None;
        let mut thread = None;
        if how == "process" {
            process = Some(started(part_that_waits_to_write, &server, &name));
        } else {
            let config = Config::new(proxy.url()).label("gone");
            let writer = Actor::new(Client::open(config).unwrap().rwlock(&name));
            thread = Some((
                writer.begins(|desk| {
                    desk.write();
                }),
                writer,
            ));
        }
        a_writer_waits(&server, &name);
        assert!(lock.try_read().unwrap().is_none());
        let reader = Actor::new(lock.clone());
        let waiting = reader.begins(|desk| {
            desk.read();
            Instant::now()
        });
        eventually("it stands aside", || listeners(&server, &name).0 == 2);
        assert!(waiting.recv_timeout(ms(300)).is_err());
        let begun = Instant::now();
        match process {
            Some(mut process) => process.kill(),
            None => {
                proxy.set(Target::Subscriber, Mode::Refuse);
                assert_eq!(server.kill_clients_named("redlatch-subscriber:gone"), 1);
            }
        }
        let took = waiting.recv_timeout(LONG).unwrap() - begun;
        assert!(took < loosely(BY_MESSAGE), "{how}: {took:?}");
        if let Some((waiting, writer)) = thread {
            // It makes its claim again as soon as it can.
            proxy.pass();
            a_writer_waits(&server, &name);
            assert!(elsewhere(|| open(&server)
                .rwlock(&name)
                .try_read()
                .unwrap()
                .is_none()));
            reader.leaves();
            keeper.leaves();
            waiting.recv_timeout(LONG).unwrap();
            writer.leaves();
        }
    }
    eventually("nothing is left", || server.keys().is_empty());
}

// RW6: connected, and yet of no use.
timed!(a_stopped_writer_keeps_readers_out_for_a_waiter_lease_at_most);
fn a_stopped_writer_keeps_readers_out_for_a_waiter_lease_at_most() {
    const WAITER_LEASE: Duration = ms(800);
    let server = Server::start();
    let name = unique("stopped");
    let config = || Config::new(server.url()).waiter_lease(WAITER_LEASE);
    let [ours, theirs] = [(); 2].map(|()| Client::open(config()).unwrap());
    let keeper = Actor::new(ours.rwlock(&name));
    keeper.reads();
    let process = started(part_that_waits_to_write, &server, &name);
    a_writer_waits(&server, &name);
    process.signal(Signal::SIGSTOP);
    let lock = theirs.rwlock(&name);
    let begun = Instant::now();
    let guard = lock.try_read_for(LONG).unwrap().expect("a turn");
    let took = begun.elapsed();
    assert!(took >= WAITER_LEASE, "{took:?}");
    assert!(took < WAITER_LEASE + loosely(ms(700)), "{took:?}");
    guard.unlock().unwrap();
    // On a free lock it is waited for even less.
    keeper.leaves();
    let begun = Instant::now();
    let guard = lock.try_read_for(LONG).unwrap().expect("a turn");
    assert!(
        begun.elapsed() < loosely(WAITER_LEASE / 2),
        "{:?}",
        begun.elapsed()
    );
    guard.unlock().unwrap();
    // Back again, it gets what it waits for.
    keeper.reads();
    process.signal(Signal::SIGCONT);
    a_writer_waits(&server, &name);
    let others = Client::open(config()).unwrap().rwlock(&name);
    assert!(others.try_read().unwrap().is_none());
    drop(process);
    eventually("it is forgotten", || others.try_read().unwrap().is_some());
    keeper.leaves();
    eventually("nothing is left", || server.keys().is_empty());
}

// RW6: however long the first answer takes, what follows from it counts from then.
timed!(after_a_slow_answer_too_a_stopped_writer_is_waited_for_once);
fn after_a_slow_answer_too_a_stopped_writer_is_waited_for_once() {
    const WAITER_LEASE: Duration = ms(1_000);
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let name = unique("slow");
    server.cli(&["HSET", &name, "mode", "read", STRANGER, "1"]);
    server.cli(&["SET", &hold_key(&name, STRANGER), "1", "PX", "600000"]);
    server.cli(&["PEXPIRE", &name, "600000"]);
    let process = started(part_that_waits_to_write, &server, &name);
    a_writer_waits(&server, &name);
    process.signal(Signal::SIGSTOP);
    let client = Client::open(Config::new(proxy.url()).waiter_lease(WAITER_LEASE)).unwrap();
    let knows = client.rwlock(unique("knows")).read().unwrap();
    knows.unlock().unwrap();
    let lock = client.rwlock(&name);
    proxy.set(Target::Link, Mode::Delay(WAITER_LEASE / 2));
    let asked = server.calls("evalsha");
    thread::scope(|scope| {
        let reads = scope.spawn(|| lock.read().unwrap().unlock().unwrap());
        eventually("it has asked", || server.calls("evalsha") > asked);
        eventually("the answer is on its way", || proxy.held() > 0);
        eventually("it is there", || proxy.held() == 0);
        proxy.pass();
        reads.join().unwrap();
    });
    let begun = Instant::now();
    lock.read().unwrap().unlock().unwrap();
    let took = begun.elapsed();
    assert!(took < loosely(WAITER_LEASE / 2), "{took:?}");
}

// RW6: a process does not wait again for a writer for which it has waited in vain.
timed!(a_stopped_writer_is_waited_for_once);
fn a_stopped_writer_is_waited_for_once() {
    const WAITER_LEASE: Duration = ms(800);
    const SHORT: Duration = ms(150);
    let server = Server::start();
    let name = unique("once");
    let client =
        |waiter_lease| Client::open(Config::new(server.url()).waiter_lease(waiter_lease)).unwrap();
    // Somebody who asks nothing meanwhile.
    let hold = hold_key(&name, STRANGER);
    server.cli(&["HSET", &name, "mode", "read", STRANGER, "1"]);
    server.cli(&["SET", &hold, "1", "PX", "600000"]);
    server.cli(&["PEXPIRE", &name, "600000"]);
    let process = started(part_that_waits_to_write, &server, &name);
    a_writer_waits(&server, &name);
    process.signal(Signal::SIGSTOP);
    let asked = || server.calls("evalsha");
    let mut tries = 0;
    let lock = loop {
        let lock = client(WAITER_LEASE).rwlock(&name);
        let begun = Instant::now();
        lock.read().unwrap().unlock().unwrap();
        assert!(begun.elapsed() >= WAITER_LEASE, "{:?}", begun.elapsed());
        // From now on a read is one question.
        let before = asked();
        for _ in 0..3 {
            lock.read().unwrap().unlock().unwrap();
        }
        let alone = asked() - before;
        // And readers of the process join one another, whatever they find when they look for writers.
        let reader = Actor::new(lock.clone());
        reader.reads();
        assert!(lock.is_read_locked().unwrap());
        let before = asked();
        elsewhere(|| {
            for _ in 0..4 {
                drop(lock.read().unwrap());
                // Whoever waits for an answer brings that one too.
                assert!(lock.is_read_locked().unwrap());
                thread::sleep(ms(7));
            }
        });
        let together = asked() - before;
        reader.leaves();
        // On a machine that stands still it may have been forgotten meanwhile.
        if begun.elapsed() < WAITER_LEASE * 6 {
            assert_eq!((alone, together), (6, 4));
            break lock;
        }
        tries += 1;
        assert!(tries < 3, "{:?}", begun.elapsed());
    };

    // One more that waits is let go first, and when it has left nobody waits for the first one again.
    let token = CancelToken::new();
    let other = Actor::new(client(WAITER_LEASE).rwlock(&name).cancel_on(&token));
    let gives_up = other.begins(|desk| desk.lock.write().is_err());
    eventually("two wait", || listeners(&server, &name).1 == 2);
    assert!(lock.try_read().unwrap().is_none());
    token.cancel();
    assert!(gives_up.recv_timeout(LONG).unwrap());
    eventually("one has left", || listeners(&server, &name).1 == 1);
    eventually("readers come in", || lock.try_read().unwrap().is_some());

    // One that comes when the first is gone is not taken for it.
    drop(process);
    eventually("none waits", || listeners(&server, &name).1 == 0);
    assert!(lock.try_read().unwrap().is_some());
    let writer = Actor::new(client(WAITER_LEASE).rwlock(&name));
    let waiting = writer.begins(|desk| {
        desk.write();
    });
    a_writer_waits(&server, &name);
    assert!(lock.try_read().unwrap().is_none());

    // Nor is one that does not come passed over for ever.
    let lock = client(SHORT).rwlock(&name);
    let begun = Instant::now();
    lock.read().unwrap().unlock().unwrap();
    eventually("it is let go first again", || {
        lock.try_read().unwrap().is_none()
    });
    let took = begun.elapsed();
    assert!(took >= SHORT * 7, "{took:?}");
    server.cli(&["DEL", &name, &hold]);
    let channel = format!("redisson_rwlock:{{{name}}}");
    server.cli(&["PUBLISH", &channel, "0"]);
    waiting.recv_timeout(LONG).unwrap();
    writer.leaves();
    eventually("nothing is left", || server.keys().is_empty());
}

// RW6, the other way round: writers that come all the time leave room for a reader.
timed!(readers_do_not_starve_among_steady_writers);
fn readers_do_not_starve_among_steady_writers() {
    let server = Server::start();
    let name = unique("writers");
    let clients = [(); 2].map(|()| open(&server));
    let reader = open(&server).rwlock(&name);
    let (stop, writes) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let _stops = Stops(&stop);
        for client in &clients {
            for _ in 0..2 {
                let (lock, stop, writes) = (client.rwlock(&name), &stop, &writes);
                scope.spawn(move || {
                    while !stop.load(Ordering::SeqCst) {
                        let _guard = lock.write().unwrap();
                        writes.fetch_add(1, Ordering::SeqCst);
                        thread::sleep(ms(2));
                    }
                });
            }
        }
        for round in 1..=5 {
            let before = writes.load(Ordering::SeqCst);
            eventually("they write", || writes.load(Ordering::SeqCst) > before + 10);
            let begun = Instant::now();
            let guard = reader.try_read_for(LONG).unwrap().expect("a turn");
            let took = begun.elapsed();
            assert!(took < loosely(ms(2_500)), "round {round}: {took:?}");
            guard.unlock().unwrap();
        }
    });
    eventually("nothing is left", || server.keys().is_empty());
}

// ---------------------------------------------------------------------------------------------------------------------
// Leases
// ---------------------------------------------------------------------------------------------------------------------

// RW1: some share a hold, some have one each, and all are renewed.
timed!(no_writer_comes_in_while_readers_outlive_their_leases);
fn no_writer_comes_in_while_readers_outlive_their_leases() {
    const LEASE: Duration = ms(500);
    const READERS: usize = 40;
    let server = Server::start();
    let name = unique("outlive");
    let clients = [(); 3].map(|()| open_with_lease(&server, LEASE));
    let readers: Vec<_> = (0..READERS)
        .map(|n| {
            let lock = clients[n % 3].rwlock(&name);
            Actor::new(if n < READERS / 2 {
                lock
            } else {
                lock.max_hold(LONG * 6)
            })
        })
        .collect();
    for reader in &readers {
        reader.reads();
    }
    assert_eq!(server.hgetall(&name).len(), 1 + 3 + READERS / 2);
    let writer = Actor::new(open_with_lease(&server, LEASE).rwlock(&name));
    let waiting = writer.begins(|desk| {
        desk.write();
        Instant::now()
    });
    a_writer_waits(&server, &name);
    let until = Instant::now() + LEASE * 7 / 2;
    while Instant::now() < until {
        assert!(waiting.try_recv().is_err(), "a writer among readers");
        assert_eq!(server.ask::<String>(&["HGET", &name, "mode"]), "read");
        thread::sleep(ms(20));
    }
    for reader in &readers {
        reader.does(|desk| assert!(desk.reads[0].is_valid() && desk.reads[0].lost().is_empty()));
    }
    // The last one out lets it in.
    for reader in &readers[1..] {
        reader.leaves();
    }
    assert!(waiting.try_recv().is_err());
    let begun = Instant::now();
    readers[0].leaves();
    assert!(waiting.recv_timeout(LONG).unwrap() - begun < loosely(BY_MESSAGE));
    writer.leaves();
    assert!(server.keys().is_empty());
    assert!(clients.iter().all(|client| client.stats().lost == 0));
}

// RW2, R24: nobody renews the hold of the dead.
timed!(a_dead_reader_ends_with_its_lease_whatever_others_renew);
fn a_dead_reader_ends_with_its_lease_whatever_others_renew() {
    let server = Server::start();
    let name = unique("dead");
    let ours = open_with_lease(&server, DYING);
    let alive = Actor::new(ours.rwlock(&name));
    let owner = alive.reads();
    let mut process = started(part_that_reads, &server, &name);
    let fields = server.hgetall(&name);
    let dead = fields
        .iter()
        .map(|(field, _)| field)
        .find(|field| **field != "mode" && **field != owner)
        .unwrap();
    let writer = Actor::new(open(&server).rwlock(&name));
    let waiting = writer.begins(|desk| {
        desk.write();
        Instant::now()
    });
    a_writer_waits(&server, &name);
    let killed = Instant::now();
    process.kill();
    eventually("its hold is over", || {
        !server.exists(&hold_key(&name, dead))
    });
    let took = killed.elapsed();
    assert!(
        took >= DYING / 2 && took < DYING + loosely(ms(700)),
        "{took:?}"
    );
    let left = server.pttl(&name);
    assert!(left > 500, "ours goes on: {left}");
    assert!(waiting.try_recv().is_err());
    let begun = Instant::now();
    alive.leaves();
    assert!(waiting.recv_timeout(LONG).unwrap() - begun < loosely(BY_MESSAGE));
    assert_eq!(server.hgetall(&name).len(), 2);
    writer.leaves();
    // With nobody else: after its own lease, without a message.
    let mut process = started(part_that_reads, &server, &name);
    let waiting = writer.begins(|desk| {
        desk.write();
        Instant::now()
    });
    a_writer_waits(&server, &name);
    let killed = Instant::now();
    process.kill();
    let took = waiting.recv_timeout(LONG).unwrap() - killed;
    assert!(
        took >= DYING / 2 && took < DYING + loosely(ms(700)),
        "{took:?}"
    );
    writer.leaves();
    eventually("nothing is left", || server.keys().is_empty());
}

// RW2, R24: the living leave first, so that nobody says anything when the dead one's lease ends.
timed!(a_writer_comes_in_as_soon_as_the_last_dead_reader_is_over);
fn a_writer_comes_in_as_soon_as_the_last_dead_reader_is_over() {
    const DEAD: Duration = ms(1_700);
    let server = Server::start();
    let (name, client) = (unique("silent"), open(&server));
    let alive = Actor::new(client.rwlock(&name));
    alive.reads();
    let lease = DEAD.as_millis().to_string();
    let begun = Instant::now();
    server.cli(&["HSET", &name, STRANGER, "2"]);
    for n in 1..=2 {
        let hold = format!("{{{name}}}:{STRANGER}:rwlock_timeout:{n}");
        server.cli(&["SET", &hold, "1", "PX", &lease]);
    }
    let dies = Instant::now() + DEAD;
    let writer = Actor::new(open(&server).rwlock(&name));
    let waiting = writer.begins(|desk| {
        desk.write();
        Instant::now()
    });
    a_writer_waits(&server, &name);
    // After its second question, whose answer knows of the living one.
    eventually("it parks for a second time", || begun.elapsed() > ms(1_200));
    alive.leaves();
    assert!(waiting.try_recv().is_err());
    let entered = waiting.recv_timeout(LONG).unwrap();
    assert!(entered >= begun + DEAD);
    let late = entered.saturating_duration_since(dies);
    assert!(late < loosely(ms(400)), "{late:?} late");
    assert_eq!(
        server.hgetall(&name).len(),
        hash("write", &["x"]).len(),
        "nothing of the dead"
    );
    writer.leaves();
    assert!(server.keys().is_empty());
}

// ---------------------------------------------------------------------------------------------------------------------
// No message is missed
// ---------------------------------------------------------------------------------------------------------------------

// R1: the message is there before the answer that somebody has the lock.
timed!(a_release_told_before_the_refusal_arrives_is_not_missed);
fn a_release_told_before_the_refusal_arrives_is_not_missed() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let [ours, theirs] = [&proxy.url(), &server.url()].map(|url| Client::open(&**url).unwrap());
    for round in 0..8 {
        let name = unique("early");
        let (waiter, holder) = (
            Actor::new(ours.rwlock(&name)),
            Actor::new(theirs.rwlock(&name)),
        );
        if round % 4 == 0 {
            holder.reads();
        } else {
            holder.writes();
        }
        proxy.set(Target::Link, Mode::Delay(ms(60)));
        let asked = server.calls("evalsha");
        let waiting = waiter.begins(move |desk| {
            if round % 2 == 0 {
                desk.write();
            } else {
                desk.read();
            }
            Instant::now()
        });
        // The second question comes when it listens; its answer is under way for a while.
        eventually("it has asked twice", || {
            server.calls("evalsha") >= asked + 2
        });
        let begun = Instant::now();
        holder.leaves();
        let took = waiting.recv_timeout(LONG).unwrap() - begun;
        assert!(took < loosely(BY_MESSAGE), "round {round}: {took:?}");
        proxy.pass();
        waiter.leaves();
    }
    assert_eq!(ours.stats().poll_rescues, 0);
}

// R1: between "somebody has it" and going to sleep, a release must not be missed.
timed!(three_hundred_hand_overs_lose_no_message);
fn three_hundred_hand_overs_lose_no_message() {
    const ROUNDS: u64 = 300;
    let server = Server::start();
    let name = unique("handover");
    let [ours, theirs] = [(); 2].map(|()| open(&server));
    let (holder, waiter) = (
        Actor::new(ours.rwlock(&name)),
        Actor::new(theirs.rwlock(&name)),
    );
    let mut slowest = Duration::ZERO;
    for round in 0..ROUNDS {
        let (reads, now_reads) = (round % 3 == 0, round % 3 == 1);
        holder.does(move |desk| {
            if reads {
                desk.read();
            } else {
                desk.write();
            }
        });
        let waiting = waiter.begins(move |desk| {
            if now_reads {
                desk.read();
            } else {
                desk.write();
            }
            Instant::now()
        });
        // The release falls into any part of the way from asking to parking.
        let pause = Duration::from_micros(round * 7919 % 3_000);
        let begun = Instant::now();
        while begun.elapsed() < pause {
            thread::yield_now();
        }
        let begun = Instant::now();
        holder.leaves();
        let took = waiting
            .recv_timeout(LONG)
            .unwrap()
            .saturating_duration_since(begun);
        slowest = slowest.max(took);
        waiter.leaves();
    }
    assert!(slowest < loosely(BY_MESSAGE), "{slowest:?}");
    let rescued: u64 = [&ours, &theirs]
        .map(|c| c.stats().poll_rescues)
        .iter()
        .sum();
    assert_eq!(rescued, 0);
    assert!(server.keys().is_empty());
}

// RW6: nor does it keep out those who ask again and again instead of waiting.
timed!(a_stopped_writer_does_not_keep_single_attempts_out_for_ever);
fn a_stopped_writer_does_not_keep_single_attempts_out_for_ever() {
    const WAITER_LEASE: Duration = ms(800);
    let server = Server::start();
    let name = unique("attempts");
    let config = || Config::new(server.url()).waiter_lease(WAITER_LEASE);
    let [ours, theirs] = [(); 2].map(|()| Client::open(config()).unwrap());
    let keeper = Actor::new(ours.rwlock(&name));
    keeper.reads();
    let process = started(part_that_waits_to_write, &server, &name);
    a_writer_waits(&server, &name);
    process.signal(Signal::SIGSTOP);
    let lock = theirs.rwlock(&name);
    for wait in [ms(0), ms(150), WAITER_LEASE / 2] {
        let begun = Instant::now();
        eventually("it comes in", || {
            // An answer may come too late on a busy machine.
            lock.try_read_for(wait).is_ok_and(|guard| guard.is_some())
        });
        let took = begun.elapsed();
        assert!(took < WAITER_LEASE * 2 + loosely(ms(700)), "{took:?}");
    }
    keeper.leaves();
    eventually("free, it comes in", || lock.try_read().unwrap().is_some());
}

// A claim that has ended is in nobody's way, least of all in that of the next in the queue.
timed!(readers_behind_a_writer_that_gives_up_come_in_at_once);
fn readers_behind_a_writer_that_gives_up_come_in_at_once() {
    let server = Server::start();
    let name = unique("gave_up");
    let [ours, theirs] = [(); 2].map(|()| open(&server));
    let keeper = Actor::new(theirs.rwlock(&name));
    keeper.reads();
    let [writer, reader] = [(); 2].map(|()| Actor::new(ours.rwlock(&name)));
    for _ in 0..4 {
        let gives_up = writer.begins(|desk| {
            assert!(desk.lock.try_write_for(ms(300)).unwrap().is_none());
            Instant::now()
        });
        a_writer_waits(&server, &name);
        let waiting = reader.begins(|desk| {
            desk.read();
            Instant::now()
        });
        let gave_up = gives_up.recv_timeout(LONG).unwrap();
        let took = waiting
            .recv_timeout(LONG)
            .unwrap()
            .saturating_duration_since(gave_up);
        assert!(took < loosely(BY_MESSAGE), "{took:?}");
        reader.leaves();
    }
    keeper.leaves();
    assert!(server.keys().is_empty());
}

/// Two threads of a Redisson client, one of which always reads: each comes when the other is to leave.
fn redisson_reads(server: &Server, name: &str, stop: &AtomicBool) {
    let mut con = server.connection();
    let client = STRANGER.rsplit_once(':').unwrap().0;
    let owners = [1, 2].map(|thread| format!("{client}:{thread}"));
    for turn in 0.. {
        let [comes, leaves] = [&owners[turn % 2], &owners[(turn + 1) % 2]];
        let mut pipe = redis::pipe();
        pipe.atomic()
            .hset(name, "mode", "read")
            .hset(name, comes, 1)
            .pset_ex(hold_key(name, comes), 1, 30_000)
            .pexpire(name, 30_000);
        let () = pipe.query(&mut con).unwrap();
        thread::sleep(ms(5));
        let mut pipe = redis::pipe();
        pipe.atomic().hdel(name, leaves).del(hold_key(name, leaves));
        let () = pipe.query(&mut con).unwrap();
        if stop.load(Ordering::SeqCst) {
            let mut pipe = redis::pipe();
            pipe.atomic()
                .hdel(name, comes)
                .del(hold_key(name, comes))
                .publish(format!("redisson_rwlock:{{{name}}}"), 0);
            let () = pipe.query(&mut con).unwrap();
            return;
        }
        thread::sleep(ms(5));
    }
}

// Redisson's readers do not let writers go first, so where they never pause a writer waits. Our readers need not.
timed!(readers_pass_a_writer_that_redissons_readers_pass);
fn readers_pass_a_writer_that_redissons_readers_pass() {
    let server = Server::start();
    let name = unique("passed");
    // With the default waiter lease of 10 s.
    let [here, there] = [(); 2].map(|()| Client::open(settings(&server)).unwrap());
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let stops = Stops(&stop);
        scope.spawn(|| redisson_reads(&server, &name, &stop));
        eventually("they read", || server.exists(&name));
        let writer = Actor::new(here.rwlock(&name));
        let waiting = writer.begins(|desk| {
            desk.write();
        });
        a_writer_waits(&server, &name);
        for client in [&here, &there, &here, &there] {
            let begun = Instant::now();
            drop(client.rwlock(&name).read().unwrap());
            let took = begun.elapsed();
            // Otherwise it is the waiter lease.
            assert!(took < loosely(ms(4_000)), "{took:?}");
            assert!(waiting.try_recv().is_err(), "it writes beside readers");
        }
        drop(stops);
        waiting.recv_timeout(loosely(LONG)).unwrap();
        // They do not pass one that has it, and wait for no longer than they want.
        let begun = Instant::now();
        let read = here.rwlock(&name).try_read_for(ms(100)).unwrap();
        let took = begun.elapsed();
        assert!(read.is_none() && took >= ms(100));
        assert!(took < ms(100) + loosely(SLACK), "{took:?}");
        writer.leaves();
    });
    eventually("nothing is left", || server.keys().is_empty());
}
