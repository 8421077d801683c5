//! The order of readers and writers: who enters when, and that neither side starves the other.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use nix::sys::signal::Signal;
use redlatch::{CancelToken, Client, Config, RwLock};

use crate::support::rw_scripts::{READ_ACQUIRE, WRITE_ACQUIRE};
use crate::support::rwlock::{Actor, hash, hold_key};
use crate::support::scripts::sha;
use crate::support::{
    BY_MESSAGE, LONG, Mode, Part, Proxy, SLACK, STRANGER, Scope, Server, Stops, Target, elsewhere,
    eventually, given, loosely, ms, open, open_with_lease, say, scoped, settings, timed, unique,
    within,
};

/// Whether Redis has a note that a waiter of this side waits.
fn is_noted(server: &Server, name: &str, side: &str) -> bool {
    server.exists(&format!("redisson_rwlock:{{{name}}}:{side}"))
}

/// Waits until a writer is noted, whom readers let go first.
#[track_caller]
fn a_writer_waits(server: &Server, name: &str) {
    eventually("a writer waits", || is_noted(server, name, "writer"));
}

/// How long the note of a waiter lasts after its last request, in the processes that tests start.
const WAITER_LEASE: Duration = ms(800);

// ---------------------------------------------------------------------------------------------------------------------
// In a process of their own
// ---------------------------------------------------------------------------------------------------------------------

/// Starts a process, and waits until it has begun to use the lock `name`.
fn started(part: impl Fn(), server: &Server, name: &str) -> Part {
    let mut part = Part::start(part, &[&server.url(), name]);
    part.says("begun");
    part
}

/// The lock of a process that a test has started.
fn its_lock(lease: Duration) -> Option<RwLock> {
    let [url, name] = given()?;
    let config = Config::new(url).lease(lease).waiter_lease(WAITER_LEASE);
    let client = Client::open(config).unwrap();
    Some(client.rw_lock(name))
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
// Writers do not starve
// ---------------------------------------------------------------------------------------------------------------------

/// Readers whose holds overlap, so that the lock is never free.
struct Crowd {
    stop: AtomicBool,
    /// `inside` counts the readers that hold the lock now, `grants` all acquires so far.
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

    fn read<'s>(&'s self, scope: Scope<'s, '_>, lock: &RwLock, threads: u32) {
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

// Within a process the order of the queue decides.
timed!(a_writer_passes_overlapping_readers_of_its_process);
fn a_writer_passes_overlapping_readers_of_its_process() {
    let server = Server::start();
    let (name, client) = (unique("local"), open(&server));
    let (lock, crowd) = (client.rw_lock(&name), Crowd::new());
    scoped(|scope| {
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
            // These readers had passed the queue before the writer came.
            assert!(after <= 5, "{after} readers went first");
            let took = entered.saturating_duration_since(begun);
            assert!(took < Crowd::SECTION * 2 + loosely(ms(300)), "{took:?}");
            writer.leaves();
        }
    });
    assert!(server.keys().is_empty());
}

// Among processes, readers look for a note of a waiting writer.
timed!(a_writer_passes_overlapping_readers_of_other_processes);
fn a_writer_passes_overlapping_readers_of_other_processes() {
    let server = Server::start();
    let name = unique("across");
    let clients = [(); 3].map(|()| open(&server));
    let other = open(&server);
    for readers_first in [true, false] {
        let crowd = Crowd::new();
        scoped(|scope| {
            let _stops = Stops(&crowd.stop);
            for client in &clients {
                let mut lock = client.rw_lock(&name);
                if readers_first {
                    lock = lock.readers_first();
                }
                crowd.read(scope, &lock, 3);
            }
            crowd.has_begun();
            let lock = other.rw_lock(&name);
            if readers_first {
                // Redisson's rule: readers may keep a writer out without limit.
                assert!(lock.try_write_for(ms(1_500)).unwrap().is_none());
            } else {
                for _ in 0..4 {
                    let begun = Instant::now();
                    let guard = lock.try_write_for(LONG).unwrap().expect("a turn");
                    let took = begun.elapsed();
                    assert_eq!(crowd.inside.load(Ordering::SeqCst), 0, "alone");
                    // At most two polls, 0.1 s each, and a reader's section.
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

// A single attempt to read also gives way to a waiting writer, which otherwise never finds the lock free while readers
// of a process share a hold.
timed!(a_waiting_writer_is_let_go_first_by_single_attempts_too);
fn a_waiting_writer_is_let_go_first_by_single_attempts_too() {
    let server = Server::start();
    let name = unique("first");
    let [reads, writes, wants] = [(); 3].map(|()| open(&server));
    let reader = Actor::new(reads.rw_lock(&name));
    reader.reads();
    let writer = Actor::new(writes.rw_lock(&name));
    let waiting = writer.begins(|desk| {
        desk.write();
    });
    a_writer_waits(&server, &name);
    let lock = wants.rw_lock(&name);
    assert!(lock.try_read().unwrap().is_none());
    assert!(lock.try_read_for(ms(200)).unwrap().is_none());
    assert!(lock.clone().readers_first().try_read().unwrap().is_some());
    // A thread that reads already may read again.
    reader.does(|desk| assert!(desk.lock.try_read().unwrap().is_some()));
    reader.leaves();
    waiting.recv_timeout(loosely(BY_MESSAGE)).unwrap();
    writer.leaves();
    assert!(
        !is_noted(&server, &name, "writer"),
        "no note outlives its grant"
    );
    assert!(lock.try_read().unwrap().is_some());
}

// A writer that is killed or stopped keeps readers out for one waiter lease.
timed!(a_writer_that_is_gone_keeps_readers_out_for_a_waiter_lease_at_most);
fn a_writer_that_is_gone_keeps_readers_out_for_a_waiter_lease_at_most() {
    let server = Server::start();
    for signal in [Signal::SIGKILL, Signal::SIGSTOP] {
        let name = unique("gone");
        let [ours, theirs] = [(); 2].map(|()| open(&server));
        let keeper = Actor::new(ours.rw_lock(&name));
        keeper.reads();
        let process = started(part_that_waits_to_write, &server, &name);
        a_writer_waits(&server, &name);
        let lock = theirs.rw_lock(&name);
        assert!(lock.try_read().unwrap().is_none());
        let begun = Instant::now();
        process.signal(signal);
        let guard = lock.try_read_for(LONG).unwrap().expect("a turn");
        let took = begun.elapsed();
        assert!(took >= WAITER_LEASE / 3, "{took:?}");
        assert!(took < WAITER_LEASE + loosely(ms(700)), "{took:?}");
        assert!(!is_noted(&server, &name, "writer"));
        guard.unlock().unwrap();
        // The note has no effect later, nor on a free lock.
        keeper.leaves();
        assert!(lock.try_read().unwrap().is_some());
        if signal == Signal::SIGSTOP {
            // When the writer continues, readers let it go first again.
            keeper.reads();
            process.signal(Signal::SIGCONT);
            a_writer_waits(&server, &name);
            let others = open(&server).rw_lock(&name);
            assert!(others.try_read().unwrap().is_none());
            drop(process);
            eventually("it is forgotten", || others.try_read().unwrap().is_some());
            keeper.leaves();
        }
    }
    eventually("nothing is left", || server.keys().is_empty());
}

// Conversely, steady writers leave room for readers.
timed!(readers_do_not_starve_among_steady_writers);
fn readers_do_not_starve_among_steady_writers() {
    let server = Server::start();
    let name = unique("writers");
    let writers = [(); 4].map(|()| open(&server));
    let readers = [(); 3].map(|()| open(&server));
    let (stop, writes) = (AtomicBool::new(false), AtomicU64::new(0));
    scoped(|scope| {
        let _stops = Stops(&stop);
        for client in writers.iter().chain(&writers) {
            let (lock, stop, writes) = (client.rw_lock(&name), &stop, &writes);
            scope.spawn(move || {
                while !stop.load(Ordering::SeqCst) {
                    let _guard = lock.write().unwrap();
                    writes.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        eventually("they write", || writes.load(Ordering::SeqCst) > 100);
        let reads = readers.each_ref().map(|client| {
            let (lock, writes) = (client.rw_lock(&name), &writes);
            scope.spawn(move || {
                let mut longest = Duration::ZERO;
                for _ in 0..30 {
                    let writes_before = writes.load(Ordering::SeqCst);
                    let begun = Instant::now();
                    let guard = lock.try_read_for(LONG).unwrap().expect("a turn");
                    longest = longest.max(begun.elapsed());
                    guard.unlock().unwrap();
                    eventually("they go on", || {
                        writes.load(Ordering::SeqCst) > writes_before + 3
                    });
                }
                longest
            })
        });
        for longest in reads.map(|reads| reads.join().unwrap()) {
            assert!(longest < loosely(ms(300)), "{longest:?}");
        }
    });
    eventually("nothing is left", || server.keys().is_empty());
}

// ---------------------------------------------------------------------------------------------------------------------
// Leases
// ---------------------------------------------------------------------------------------------------------------------

// The hold of a dead reader is not renewed by the other readers.
timed!(a_dead_reader_ends_with_its_lease_whatever_others_renew);
fn a_dead_reader_ends_with_its_lease_whatever_others_renew() {
    let server = Server::start();
    let name = unique("dead");
    let ours = open_with_lease(&server, DYING);
    let alive = Actor::new(ours.rw_lock(&name));
    let owner = alive.reads();
    let mut process = started(part_that_reads, &server, &name);
    let fields = server.hgetall(&name);
    let dead = fields
        .iter()
        .map(|(field, _)| field)
        .find(|field| **field != "mode" && **field != owner)
        .unwrap();
    let writer = Actor::new(open(&server).rw_lock(&name));
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
    let ttl_left = server.pttl(&name);
    assert!(ttl_left > 500, "ours goes on: {ttl_left}");
    assert!(waiting.try_recv().is_err());
    let begun = Instant::now();
    alive.leaves();
    assert!(waiting.recv_timeout(LONG).unwrap() - begun < loosely(BY_MESSAGE));
    assert_eq!(server.hgetall(&name).len(), 2);
    writer.leaves();
    // The dead reader is the only one: the writer enters when its lease expires, without a message.
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

// The living reader leaves first, so no message is sent when the dead reader's lease expires.
timed!(a_writer_comes_in_as_soon_as_the_last_dead_reader_is_over);
fn a_writer_comes_in_as_soon_as_the_last_dead_reader_is_over() {
    const DEAD: Duration = ms(1_700);
    let server = Server::start();
    let (name, client) = (unique("silent"), open(&server));
    let alive = Actor::new(client.rw_lock(&name));
    alive.reads();
    let lease = DEAD.as_millis().to_string();
    let begun = Instant::now();
    server.cli(&["HSET", &name, STRANGER, "2"]);
    for n in 1..=2 {
        let hold = format!("{{{name}}}:{STRANGER}:rwlock_timeout:{n}");
        server.cli(&["SET", &hold, "1", "PX", &lease]);
    }
    let dies = Instant::now() + DEAD;
    let writer = Actor::new(open(&server).rw_lock(&name));
    let waiting = writer.begins(|desk| {
        desk.write();
        Instant::now()
    });
    a_writer_waits(&server, &name);
    // The second reply still tells the writer of the living reader.
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

// The release is published before the refusal reaches the waiter.
timed!(a_release_told_before_the_refusal_arrives_is_not_missed);
fn a_release_told_before_the_refusal_arrives_is_not_missed() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let [ours, theirs] = [&proxy.url(), &server.url()].map(|url| Client::open(&**url).unwrap());
    for round in 0..8 {
        let name = unique("early");
        let (waiter, holder) = (
            Actor::new(ours.rw_lock(&name)),
            Actor::new(theirs.rw_lock(&name)),
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
        // The second request is sent once the waiter has subscribed; its reply is under way for 60 ms.
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
    assert_eq!(ours.stats().missed_messages, 0);
}

// The note of a writer that has given up must not delay readers, of its own process or of another.
timed!(readers_behind_a_writer_that_gives_up_come_in_at_once);
fn readers_behind_a_writer_that_gives_up_come_in_at_once() {
    let server = Server::start();
    let name = unique("gave_up");
    let [ours, theirs, others] = [(); 3].map(|()| open(&server));
    let keeper = Actor::new(theirs.rw_lock(&name));
    keeper.reads();
    let reads = |reader: &Actor| {
        reader.begins(|desk| {
            desk.read();
            Instant::now()
        })
    };
    let readers = [&ours, &others].map(|client| Actor::new(client.rw_lock(&name)));
    for is_cancelled in [false, true, false, true] {
        let token = CancelToken::new();
        let writer = Actor::new(ours.rw_lock(&name).cancel_on(&token));
        let gives_up = writer.begins(move |desk| {
            let wait = if is_cancelled { LONG } else { ms(300) };
            assert!(
                !desk
                    .lock
                    .try_write_for(wait)
                    .is_ok_and(|guard| guard.is_some())
            );
            Instant::now()
        });
        a_writer_waits(&server, &name);
        let waiting = readers.each_ref().map(reads);
        if is_cancelled {
            eventually("they wait", || is_noted(&server, &name, "reader"));
            token.cancel();
        }
        let gave_up = gives_up.recv_timeout(LONG).unwrap();
        for (reader, waiting) in readers.iter().zip(waiting) {
            let came = waiting.recv_timeout(LONG).unwrap();
            let took = came.saturating_duration_since(gave_up);
            assert!(took < loosely(BY_MESSAGE), "{is_cancelled}: {took:?}");
            reader.leaves();
        }
    }
    keeper.leaves();
    eventually("nothing is left", || server.keys().is_empty());
}

/// Makes the server execute the actor's next request at once, instead of asking for the script's text.
fn knows_the_scripts(actor: &Actor) {
    actor.reads();
    actor.leaves();
    actor.writes();
    actor.leaves();
}

/// Makes `actor` wait for the lock, until it has asked twice; the second request follows its subscription.
fn waits(server: &Server, actor: &Actor, writes: bool) -> Receiver<Instant> {
    let asked = server.calls("evalsha");
    let waiting = actor.begins(move |desk| {
        match writes {
            true => {
                desk.write();
            }
            false => {
                desk.read();
            }
        }
        Instant::now()
    });
    eventually("it has asked twice", || {
        server.calls("evalsha") >= asked + 2
    });
    waiting
}

// A reader whose reply is lost asks again, and is then behind the writer that came after its first request. The writer
// in turn waits behind the reader's first number, whose note was removed by the grant of another reader.
timed!(a_reader_whose_reply_was_lost_and_a_writer_do_not_wait_for_each_other);
fn a_reader_whose_reply_was_lost_and_a_writer_do_not_wait_for_each_other() {
    let server = Server::start();
    let name = unique("lost_reply");
    let [lost, late] = [(); 2].map(|()| Proxy::start(server.addr()));
    let urls = [server.url(), lost.url(), late.url(), server.url()];
    // Notes last longer than the test, and the client does not notice the silent connection.
    let config = |url| {
        Config::new(url)
            .waiter_lease(LONG)
            .command_timeout(3 * LONG)
    };
    let clients = urls.map(|url| Client::open(config(url)).unwrap());
    let [holder, reader, other, writer] = clients.map(|client| Actor::new(client.rw_lock(&name)));
    knows_the_scripts(&other);
    holder.writes();
    let trap = lost.swallow_reply_on(Target::Link, sha(READ_ACQUIRE));
    let reads = reader.begins(|desk| {
        desk.read();
    });
    eventually("the reader is noted", || {
        trap.fired() && is_noted(&server, &name, "reader")
    });
    let other_reads = waits(&server, &other, false);
    late.set(Target::Subscriber, Mode::Stall);
    let writes = waits(&server, &writer, true);
    // The writer asks first; the other reader gets the message of the release later.
    let asked = server.calls("evalsha");
    holder.leaves();
    eventually("the writer has asked again", || {
        server.calls("evalsha") >= asked + 2
    });
    late.pass();
    other_reads.recv_timeout(LONG).unwrap();
    assert!(!is_noted(&server, &name, "reader"));
    lost.cut(Target::Link);
    eventually("the reader is noted again", || {
        is_noted(&server, &name, "reader")
    });
    let free_since = Instant::now();
    other.leaves();
    let took = writes.recv_timeout(LONG).unwrap() - free_since;
    assert!(took < loosely(BY_MESSAGE), "{took:?}");
    writer.leaves();
    reads.recv_timeout(LONG).unwrap();
    reader.leaves();
    eventually("nothing is left", || server.keys().is_empty());
}

// A waiter without a reply may be noted as well.
timed!(who_gives_up_before_the_first_answer_is_in_nobodys_way);
fn who_gives_up_before_the_first_answer_is_in_nobodys_way() {
    for writes in [false, true] {
        let server = Server::start();
        let name = unique("no_answer");
        let proxy = Proxy::start(server.addr());
        let [holder, next] = [(); 2].map(|()| Actor::new(open(&server).rw_lock(&name)));
        let client = Client::open(Config::new(proxy.url()).waiter_lease(LONG)).unwrap();
        let token = CancelToken::new();
        let gone = Actor::new(client.rw_lock(&name).cancel_on(&token));
        let (acquire, side) = match writes {
            true => (WRITE_ACQUIRE, "writer"),
            false => (READ_ACQUIRE, "reader"),
        };
        knows_the_scripts(&holder);
        let trap = proxy.swallow_reply_on(Target::Link, sha(acquire));
        // Behind a reader the next reader is only kept out by the note; behind a writer it has to wait for the release.
        match writes {
            true => holder.reads(),
            false => holder.writes(),
        };
        let gives_up = gone.begins(move |desk| match writes {
            true => desk.lock.write().map(drop),
            false => desk.lock.read().map(drop),
        });
        eventually("it is noted", || {
            trap.fired() && is_noted(&server, &name, side)
        });
        let waiting = waits(&server, &next, !writes);
        token.cancel();
        assert!(gives_up.recv_timeout(LONG).unwrap().is_err());
        let mut free_since = Instant::now();
        if !writes {
            holder.leaves();
            free_since = Instant::now();
        }
        let came = waiting.recv_timeout(LONG).unwrap();
        let took = came.saturating_duration_since(free_since);
        assert!(took < loosely(BY_MESSAGE), "{side}: {took:?}");
    }
}

/// Two threads of a Redisson client whose read holds overlap all the time.
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
                .del(name)
                .del(hold_key(name, comes))
                .publish(format!("redisson_rwlock:{{{name}}}"), 0);
            let () = pipe.query(&mut con).unwrap();
            return;
        }
        thread::sleep(ms(5));
    }
}

// Redisson's readers never let a writer go first. Our readers wait for such a writer for 10 s at most.
timed!(a_writer_that_redissons_readers_pass_is_let_go_first_for_ten_seconds);
fn a_writer_that_redissons_readers_pass_is_let_go_first_for_ten_seconds() {
    const PRECEDENCE: Duration = ms(10_000);
    let server = Server::start();
    let name = unique("passed");
    let [here, there] = [(); 2].map(|()| Client::open(settings(&server)).unwrap());
    let stop = AtomicBool::new(false);
    scoped(|scope| {
        let stops = Stops(&stop);
        scope.spawn(|| redisson_reads(&server, &name, &stop));
        eventually("they read", || server.exists(&name));
        let writer = Actor::new(here.rw_lock(&name));
        let begun = Instant::now();
        let waiting = writer.begins(|desk| {
            desk.write();
        });
        a_writer_waits(&server, &name);
        let lock = there.rw_lock(&name);
        drop(lock.read().unwrap());
        let took = begun.elapsed();
        assert!(took >= PRECEDENCE - SLACK, "{took:?}");
        assert!(took < PRECEDENCE + loosely(SLACK * 2), "{took:?}");
        for _ in 0..3 {
            assert!(lock.try_read().unwrap().is_some());
            assert!(waiting.try_recv().is_err(), "it writes beside readers");
        }
        drop(stops);
        waiting.recv_timeout(loosely(LONG)).unwrap();
        writer.leaves();
    });
    eventually("nothing is left", || server.keys().is_empty());
}
