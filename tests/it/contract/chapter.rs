//! Methods that only one kind has: a semaphore that ends, permits by their ids, a spin lock with other pauses, one side of a
//! read-write lock as a member, the last token, and the timeout of a handle.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redlatch::{Client, Error, LossReason, MultiLock, RedLock, ReplicaAck};

use crate::support::{
    Crew, Deployment, LONG, Server, deployment, elsewhere, eventually, fails, loosely, ms, open,
    scoped, settings, timed, unique,
};

timed!(a_semaphore_ends_when_it_is_deleted_or_with_its_time);
fn a_semaphore_ends_when_it_is_deleted_or_with_its_time() {
    let server = Server::start();
    let (client, name) = (open(&server), unique("ends"));
    let uploads = client.semaphore(&name);
    assert!(!uploads.add_permits_if_exists(1).unwrap());
    assert!(!uploads.delete().unwrap() && !server.exists(&name));
    assert!(uploads.try_set_permits(2).unwrap());
    let permit = uploads.acquire().unwrap();
    assert!(uploads.add_permits_if_exists(3).unwrap());
    assert_eq!(uploads.available_permits().unwrap(), 4);
    assert!(uploads.delete().unwrap());
    // A permit that comes back does not create the semaphore.
    drop(permit);
    assert!(uploads.try_acquire().unwrap().is_none());
    assert!(!server.exists(&name));

    let set = uploads.try_set_permits_with_ttl(1, ms(1));
    assert!(matches!(set, Err(Error::InvalidSetting { .. })), "{set:?}");
    assert!(uploads.try_set_permits_with_ttl(1, ms(60_000)).unwrap());
    assert!(!uploads.try_set_permits_with_ttl(2, ms(90_000)).unwrap());
    assert_eq!(server.get_int(&name), 1);
    let ttl_left = server.pttl(&name);
    assert!(ttl_left > 50_000 && ttl_left <= 60_000, "{ttl_left}");
    assert!(uploads.delete().unwrap());

    // Threads wait until a process creates it again.
    assert!(uploads.try_set_permits_with_ttl(1, ms(300)).unwrap());
    uploads.acquire().unwrap().forget();
    let mut crew = Crew::new();
    let waiting = uploads.clone();
    crew.spawn(move || waiting.acquire().unwrap().forget());
    crew.all_parked();
    eventually("its time is over", || !server.exists(&name));
    assert!(uploads.try_set_permits_with_ttl(1, LONG).unwrap());
    crew.join();

    for odd in [0, u32::MAX] {
        let released = uploads.add_permits_if_exists(odd);
        assert!(
            matches!(released, Err(Error::InvalidSetting { .. })),
            "{odd}"
        );
    }
    server.cli(&["SET", &name, "x"]);
    let deleted = uploads.delete();
    assert!(matches!(deleted, Err(Error::WrongType { .. })));
    assert!(server.exists(&name));
}

timed!(permits_are_kept_changed_and_released_by_their_ids);
fn permits_are_kept_changed_and_released_by_their_ids() {
    let server = Server::start();
    let name = unique("ids");
    let (client, other) = (open(&server), open(&server));
    let [slots, others] = [&client, &other].map(|client| client.expirable_semaphore(&name));
    assert!(slots.try_set_permits(4).unwrap());
    // An id outlives its permit, and the client.
    let kept = slots.acquire().unwrap().detach_as_id(ms(60_000)).unwrap();
    client.close(LONG).unwrap();
    assert_eq!(others.acquired_permits().unwrap(), 1);
    let lease = || others.remaining_lease_of(&kept).unwrap().unwrap();
    assert!(lease() > ms(50_000) && lease() <= ms(60_000));
    assert!(others.update_lease_of(&kept, ms(120_000)).unwrap());
    assert!(lease() > ms(110_000) && lease() <= ms(120_000));

    let permits = others.acquire_many(2).unwrap();
    let mut ids: Vec<_> = permits
        .iter()
        .map(|permit| permit.id().to_owned())
        .collect();
    ids.push(kept.clone());
    let gone = "0".repeat(32);
    for odd in [&gone, "malformed"] {
        let with_odd = [&ids[..], &[odd.to_owned()]].concat();
        assert!(!others.release_ids_or_none(&with_odd).unwrap());
        assert!(!others.release_ids_or_none(&[odd]).unwrap());
        assert!(!others.update_lease_of(odd, LONG).unwrap());
    }
    assert_eq!(others.acquired_permits().unwrap(), 3);
    assert!(permits.iter().all(|permit| permit.is_valid()));
    assert!(others.release_ids_or_none(&ids).unwrap());
    assert_eq!(others.available_permits().unwrap(), 4);
    for permit in &permits {
        let loss = permit.lost().recv_timeout(LONG).unwrap();
        assert_eq!(loss.reason, LossReason::Forced);
    }
    assert!(!others.release_ids_or_none(&ids).unwrap());
    assert!(others.release_ids_or_none(&[] as &[&str]).unwrap());
    assert!(!others.update_lease_of(&kept, LONG).unwrap());
    let many = others.release_ids_or_none(&vec![gone; 1_001]);
    assert!(
        matches!(many, Err(Error::InvalidSetting { .. })),
        "{many:?}"
    );
    let short = others.update_lease_of(&kept, ms(1));
    assert!(
        matches!(short, Err(Error::InvalidSetting { .. })),
        "{short:?}"
    );

    // A permit whose lease ends soon comes back by itself.
    let soon = others.acquire().unwrap().detach_as_id(ms(60_000)).unwrap();
    assert!(others.update_lease_of(&soon, ms(20)).unwrap());
    eventually("it is back", || others.available_permits().unwrap() == 4);
}

timed!(a_spin_lock_pauses_as_its_handle_says);
fn a_spin_lock_pauses_as_its_handle_says() {
    let server = Server::start();
    let (client, other) = (open(&server), open(&server));
    let name = unique("pauses");
    let guard = other.spin_lock(&name).lock().unwrap();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let asks = Arc::clone(&asked);
    let steady = client.spin_lock(&name).back_off(move |attempt| {
        asks.lock().unwrap().push(attempt);
        ms(20)
    });
    let commands_before = client.stats().commands;
    assert!(steady.try_lock_for(ms(300)).unwrap().is_none());
    let commands = client.stats().commands - commands_before;
    assert!((3..=17).contains(&commands), "{commands} in 300 ms");
    let attempts = asked.lock().unwrap().clone();
    let expected: Vec<u32> = (1..).take(attempts.len()).collect();
    assert_eq!(attempts, expected);
    // No pause counts as 1 ms.
    let hasty = client.spin_lock(&name).back_off(|_| Duration::ZERO);
    let commands_before = client.stats().commands;
    assert!(hasty.try_lock_for(ms(100)).unwrap().is_none());
    assert!(client.stats().commands - commands_before <= 110);
    let endless = client.spin_lock(&name).back_off(|_| Duration::MAX);
    assert!(endless.try_lock_for(ms(20)).unwrap().is_none());
    drop(guard);
    steady.lock().unwrap().unlock().unwrap();
}

timed!(either_side_of_a_read_write_lock_is_a_member_of_a_multi_lock);
fn either_side_of_a_read_write_lock_is_a_member_of_a_multi_lock() {
    let server = Server::start();
    let clients = [open(&server), open(&server)];
    let [prices, order] = ["prices", "order"].map(unique);
    let reading = |client: &Client, order: &str| {
        let side = client.rw_lock(&prices).read_side();
        MultiLock::new(vec![Box::new(side), Box::new(client.reentrant_lock(order))])
    };
    let writing = |client: &Client| {
        let side = client.rw_lock(&prices).write_side();
        MultiLock::new(vec![Box::new(client.mutex(&order)), Box::new(side)])
    };
    let (one, two) = (unique("one"), unique("two"));
    let first = reading(&clients[0], &one).lock().unwrap();
    let second = reading(&clients[1], &two).try_lock().unwrap();
    let second = second.expect("both read");
    assert!(clients[1].rw_lock(&prices).is_read_locked().unwrap());
    elsewhere(|| {
        assert!(
            writing(&clients[1])
                .try_lock_for(ms(100))
                .unwrap()
                .is_none()
        );
    });
    assert!(!server.exists(&order), "all members or none");
    scoped(|scope| {
        let writer = scope.spawn(|| {
            let guard = writing(&clients[1]).lock().unwrap();
            assert!(clients[0].rw_lock(&prices).is_write_locked().unwrap());
            assert!(reading(&clients[0], &two).try_lock().unwrap().is_none());
            guard.unlock().unwrap();
        });
        eventually("it waits", || clients[1].stats().waiting == 1);
        drop(first);
        second.unlock().unwrap();
        writer.join().unwrap();
    });
    // Both sides of one lock exclude each other.
    let rw = clients[0].rw_lock(&prices);
    let both = MultiLock::new(vec![Box::new(rw.read_side()), Box::new(rw.write_side())]);
    assert!(matches!(both.lock(), Err(Error::InvalidSetting { .. })));
    // Sets that overlap never deadlock.
    scoped(|scope| {
        for thread in 0..4 {
            let (clients, reading, writing, order) = (&clients, &reading, &writing, &order);
            scope.spawn(move || {
                for round in 0..10 {
                    let lock = match (thread + round) % 2 {
                        0 => reading(&clients[thread % 2], order),
                        _ => writing(&clients[thread % 2]),
                    };
                    let guard = lock.try_lock_for(LONG).unwrap();
                    guard.expect("in time").unlock().unwrap();
                }
            });
        }
    });
    eventually("nothing is held", || server.keys().is_empty());
}

timed!(the_last_token_is_known_without_holding_the_lock);
fn the_last_token_is_known_without_holding_the_lock() {
    let server = Server::start();
    let (client, name) = (open(&server), unique("token"));
    let lock = client.fenced_lock(&name);
    assert_eq!(lock.last_token().unwrap(), None);
    let token = lock.with(|guard| guard.token()).unwrap();
    let theirs = open(&server).fenced_lock(&name);
    assert_eq!(theirs.last_token().unwrap(), Some(token));
    let counter = format!("redisson_lock_token:{{{name}}}");
    server.cli(&["SET", &counter, "41"]);
    assert_eq!(lock.last_token().unwrap(), Some(41));
    server.cli(&["SET", &counter, "x"]);
    assert!(matches!(lock.last_token(), Err(Error::WrongType { .. })));
    server.cli(&["DEL", &counter]);
    server.cli(&["RPUSH", &counter, "7"]);
    assert!(matches!(lock.last_token(), Err(Error::WrongType { .. })));
}

type Call<'a> = Box<dyn FnOnce() -> redlatch::Result<()> + Send + 'a>;

timed!(a_handle_has_a_timeout_of_its_own);
fn a_handle_has_a_timeout_of_its_own() {
    let server = Server::start();
    let client = Client::open(settings(&server).command_timeout(2 * LONG)).unwrap();
    let timeout = ms(200);
    let mutex = |name: &str| client.mutex(unique(name)).command_timeout(timeout);
    let [held, updated] = [(); 2].map(|()| mutex("held").lock().unwrap());
    let second = Server::start();
    // A RedLock takes no client of a cluster.
    let red = (deployment() != Deployment::Cluster)
        .then(|| RedLock::new([&client, &open(&second)], "wrong").unwrap());
    for wrong in [Duration::ZERO, ms(9), Duration::MAX] {
        let sent = client.stats().commands;
        let said = [
            mutex("wrong").command_timeout(wrong).lock().map(drop),
            mutex("wrong").command_timeout(wrong).is_locked().map(drop),
            (client.latch("wrong").command_timeout(wrong)).wait(),
            (client.election("wrong").command_timeout(wrong))
                .campaign()
                .map(drop),
            (client.semaphore("wrong").command_timeout(wrong))
                .acquire()
                .map(drop),
            (client.expirable_semaphore("wrong").command_timeout(wrong))
                .try_set_permits(1)
                .map(drop),
        ];
        let red = red
            .clone()
            .map(|red| red.command_timeout(wrong).is_locked().map(drop));
        for said in said.into_iter().chain(red) {
            let said = said.unwrap_err();
            assert!(matches!(said, Error::InvalidSetting { .. }), "{said}");
            assert!(said.to_string().contains("command_timeout"), "{said}");
        }
        assert_eq!(client.stats().commands, sent);
    }
    let slots = client.expirable_semaphore(unique("slots"));
    assert!(slots.try_set_permits(2).unwrap());
    let slots = slots.command_timeout(timeout);
    let [permit, released] = [(); 2].map(|()| slots.acquire().unwrap());
    let uploads = client.semaphore(unique("uploads"));
    assert!(uploads.try_set_permits(1).unwrap());
    let uploads = uploads.command_timeout(timeout);
    let upload = uploads.acquire().unwrap();
    let key = format!("{{{}}}:x", updated.name());
    let get = redis::cmd("GET").arg(key).to_owned();
    let rw = client.rw_lock(unique("rw")).command_timeout(timeout);
    let written = client.rw_lock(unique("written")).command_timeout(timeout);
    let written = written.write().unwrap();
    let latch = client.latch(unique("latch")).command_timeout(timeout);
    let election = client.election(unique("election")).command_timeout(timeout);
    server.freeze();
    scoped(|scope| {
        let calls: [(&str, Call<'_>); 10] = [
            ("lock", Box::new(|| mutex("a").lock().map(drop))),
            ("is_locked", Box::new(|| mutex("b").is_locked().map(drop))),
            ("read", Box::new(|| rw.read().map(drop))),
            ("delete", Box::new(|| uploads.delete().map(drop))),
            ("count", Box::new(|| latch.count().map(drop))),
            ("campaign", Box::new(|| election.campaign().map(drop))),
            (
                "query",
                Box::new(|| updated.query::<Option<i64>>(&get).map(drop)),
            ),
            ("update", Box::new(|| permit.update_lease(LONG))),
            ("release", Box::new(|| released.release())),
            ("release", Box::new(|| upload.release())),
        ];
        for (verb, call) in calls {
            scope.spawn(move || fails(verb, 3 * timeout, call));
        }
    });
    // The connection is in doubt by now, and not yet known to be broken.
    fails("unlock", 3 * timeout, || held.unlock());
    fails("downgrade", 3 * timeout, || written.downgrade().map(drop));
    server.thaw();
}

timed!(a_request_that_counts_is_remembered_for_as_long_as_its_handle_may_repeat_it);
fn a_request_that_counts_is_remembered_for_as_long_as_its_handle_may_repeat_it() {
    const HOUR: Duration = ms(3_600_000);
    let server = Server::start();
    let client = open(&server);
    let name = unique("counted");
    let uploads = client.semaphore(&name).command_timeout(HOUR);
    assert!(uploads.try_set_permits(1).unwrap());
    let mutex = client.mutex(unique("forced")).command_timeout(HOUR);
    let guard = mutex.lock().unwrap();
    assert!(mutex.force_unlock().unwrap());
    let known = server.keys().into_iter().filter(|key| *key != name);
    let lives: Vec<i64> = known.map(|key| server.ask(&["PTTL", &key])).collect();
    let longer = |ms: &i64| Duration::from_millis(u64::try_from(*ms).unwrap()) > HOUR;
    assert!(lives.len() == 2 && lives.iter().all(longer), "{lives:?}");
    drop(guard);
}

timed!(replicas_are_waited_for_within_the_timeout_of_the_handle);
fn replicas_are_waited_for_within_the_timeout_of_the_handle() {
    let server = Server::start();
    let config = settings(&server).command_timeout(2 * LONG);
    let client = Client::open(config.replica_ack(ReplicaAck::AtLeast(1))).unwrap();
    let mutex = client.mutex(unique("alone")).command_timeout(ms(400));
    let said = mutex.lock().map(drop);
    assert!(
        matches!(said, Err(Error::NotReplicated { acked: 0, .. })),
        "{said:?}"
    );
}

timed!(threads_that_wait_fail_by_their_own_timeouts);
fn threads_that_wait_fail_by_their_own_timeouts() {
    const HASTY: usize = 8;
    let server = Server::start();
    let client = Client::open(settings(&server).command_timeout(2 * LONG)).unwrap();
    let uploads = client.semaphore(unique("uploads"));
    assert!(uploads.try_set_permits(1).unwrap());
    let mutex = client.mutex(unique("queue"));
    let timeout = loosely(ms(400));
    let hasty_mutex = mutex.clone().command_timeout(timeout);
    let hasty_uploads = uploads.clone().command_timeout(timeout);
    server.freeze();
    let (begun, names) = (Instant::now(), client.stats().names);
    scoped(|scope| {
        // The first of each asks Redis; the others queue behind it.
        let lock = || fails("lock", 3 * timeout, || hasty_mutex.lock());
        let acquire = || fails("acquire", 3 * timeout, || hasty_uploads.acquire());
        scope.spawn(lock);
        scope.spawn(acquire);
        eventually("they ask", || client.stats().names >= names + 2);
        let patient = scope.spawn(|| mutex.try_lock_for(LONG).unwrap().is_some());
        let waits = scope.spawn(|| uploads.try_acquire_for(LONG).unwrap().is_some());
        let others: Vec<_> = (1..HASTY)
            .flat_map(|_| [scope.spawn(lock), scope.spawn(acquire)])
            .collect();
        others.into_iter().for_each(|hasty| hasty.join().unwrap());
        assert!(begun.elapsed() < 6 * timeout, "{:?}", begun.elapsed());
        server.thaw();
        assert!(patient.join().unwrap() && waits.join().unwrap());
    });
}
