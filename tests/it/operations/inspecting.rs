//! `inspect`: who holds a lock, and who waits for it.

use std::thread;
use std::time::Duration;

use redlatch::ops::{HoldMode, LockInfo, LockKind};
use redlatch::{Client, Hold, Lock, RedLock};

use crate::support::{
    Crew, GENEROUS, Proxy, Server, Target, deployment, eventually, ms, open, settings, settings_by,
    subscribed, timed, unique,
};

/// Inspects a name.
#[track_caller]
fn look(client: &Client, name: &str) -> LockInfo {
    let info = client.inspect(name).unwrap();
    assert_eq!(info.name, name);
    assert_eq!(info.unknown, [] as [String; 0]);
    info
}

/// Checks that `owner` has the only hold.
#[track_caller]
fn held_by(info: &LockInfo, kind: LockKind, owner: &str) {
    assert_eq!(info.kind, kind, "{info}");
    assert_eq!((info.holders.len(), info.held), (1, 1), "{info}");
    let holder = &info.holders[0];
    assert_eq!((&*holder.owner, holder.count), (owner, 1), "{info}");
    let lease_left = holder.remaining_lease.unwrap();
    assert!(
        lease_left > Duration::ZERO && lease_left <= Duration::from_secs(30),
        "{lease_left:?}"
    );
    assert!(info.ends_in.is_some());
}

#[test]
fn a_hold_that_only_keeps_the_name_has_a_count_of_zero() {
    let server = Server::start();
    let client = open(&server);
    let name = unique("kept");
    for lock in [
        &client.mutex(&name).min_hold(GENEROUS) as &dyn Lock,
        &client.rw_lock(&name).min_hold(GENEROUS).write_side(),
        &client.rw_lock(&name).min_hold(GENEROUS).read_side(),
    ] {
        lock.lock().unwrap().unlock().unwrap();
        let info = look(&client, &name);
        assert_eq!(
            (info.holders.len(), info.holders[0].count),
            (1, 0),
            "{info}"
        );
        assert!(info.to_string().contains("min_hold"), "{info}");
        server.cli(&["FLUSHALL"]);
    }
}

timed!(each_kind_of_lock_says_who_holds_it_and_in_which_process);
fn each_kind_of_lock_says_who_holds_it_and_in_which_process() {
    let server = Server::start();
    let client = Client::open(settings(&server).label("shop:till")).unwrap();
    let other = open(&server);
    let name = unique("who");
    let free = look(&other, &name);
    assert_eq!(
        (free.kind, free.held, free.token),
        (LockKind::Free, 0, None)
    );

    let guard = client.mutex(&name).lock().unwrap();
    let info = look(&other, &name);
    held_by(&info, LockKind::Lock, guard.owner());
    assert_eq!(info.holders[0].mode, HoldMode::Exclusive);
    assert!(guard.owner().starts_with(client.id()));
    let process = info.holders[0].process.as_ref().unwrap();
    assert_eq!(
        (process.pid, &*process.label),
        (std::process::id(), "shop:till")
    );
    assert!(!process.host.is_empty() && !process.host.contains(' '));
    assert!(process.address.contains(':') && process.idle < Duration::from_secs(60));
    let shown = info.to_string();
    for part in [
        &name,
        guard.owner(),
        "shop:till",
        "held by",
        &format!("pid {}", process.pid),
    ] {
        assert!(shown.contains(part), "{part} is missing: {shown}");
    }
    drop(guard);

    let reentrant = client.reentrant_lock(&name);
    let (_one, _two) = (reentrant.lock().unwrap(), reentrant.lock().unwrap());
    eventually("the count is there", || {
        // The next renewal writes the count.
        look(&other, &name).holders[0].count >= 1
    });
    drop((_one, _two));

    let fenced = unique("fenced");
    let guard = client.fenced_lock(&fenced).lock().unwrap();
    let info = look(&other, &fenced);
    held_by(&info, LockKind::FencedLock, guard.owner());
    assert!(info.token.unwrap() >= guard.token());

    let prices = unique("prices");
    let (read, write) = (client.rw_lock(&prices), other.rw_lock(&prices));
    let (one, two) = (read.read().unwrap(), write.read().unwrap());
    let info = look(&client, &prices);
    assert_eq!((info.kind, info.held), (LockKind::RwLock, 2), "{info}");
    for owner in [one.owner(), two.owner()] {
        let holder = info
            .holders
            .iter()
            .find(|holder| holder.owner == owner)
            .unwrap();
        assert_eq!(holder.mode, HoldMode::Read);
        assert!(holder.process.is_some() && holder.remaining_lease.is_some());
    }
    drop((one, two));
    let guard = write.write().unwrap();
    let info = look(&client, &prices);
    held_by(&info, LockKind::RwLock, guard.owner());
    assert_eq!(info.holders[0].mode, HoldMode::Write);
}

timed!(numbers_say_what_is_free_and_what_is_taken);
fn numbers_say_what_is_free_and_what_is_taken() {
    let server = Server::start();
    let client = open(&server);
    let [uploads, slots, loaded] = ["uploads", "slots", "loaded"].map(unique);
    let semaphore = client.semaphore(&uploads);
    semaphore.try_set_permits(5).unwrap();
    let _permit = semaphore.acquire_many(2).unwrap();
    let info = look(&client, &uploads);
    assert_eq!(
        (info.kind, info.free, info.held),
        (LockKind::Semaphore, Some(3), 0)
    );

    let semaphore = client.expirable_semaphore(&slots);
    semaphore.try_set_permits(3).unwrap();
    let permit = semaphore.acquire().unwrap();
    let info = look(&client, &slots);
    assert_eq!(
        (info.kind, info.free, info.held),
        (LockKind::ExpirableSemaphore, Some(2), 1)
    );
    assert_eq!(info.holders[0].owner, permit.id());
    assert_eq!(info.holders[0].mode, HoldMode::Permit);
    assert!(info.holders[0].remaining_lease.unwrap() <= Duration::from_secs(30));

    // More than are listed, and one that has expired.
    let taken = format!("{{{slots}}}:timeout");
    let add = "for n = 1, 1500 do redis.call('zadd', KEYS[1], 4e12 + n, string.format('%016d', n)) end \
        redis.call('zadd', KEYS[1], 1, ('x'):rep(16))";
    server.cli(&["EVAL", add, "1", &taken]);
    let info = look(&client, &slots);
    assert_eq!((info.held, info.holders.len()), (1_501, 1_000));
    assert_eq!(info.holders[0].owner, permit.id());

    client.latch(&loaded).try_set_count(2).unwrap();
    let info = look(&client, &loaded);
    assert_eq!(info.free, Some(2));
    assert!(info.to_string().contains(&loaded));
}

timed!(those_who_wait_for_a_fair_lock_are_listed_in_order);
fn those_who_wait_for_a_fair_lock_are_listed_in_order() {
    let server = Server::start();
    let clients = [(); 3].map(|()| open(&server));
    let name = unique("queue");
    let guard = clients[0].fair_lock(&name).lock().unwrap();
    let mut crew = Crew::new();
    for (n, client) in clients.iter().enumerate().skip(1) {
        let lock = client.fair_lock(&name);
        crew.spawn(move || lock.lock().unwrap().unlock().unwrap());
        eventually("it is in the queue", || {
            look(client, &name).waiting == n as u64
        });
    }
    let info = look(&clients[0], &name);
    assert_eq!(info.kind, LockKind::FairLock);
    let ids: Vec<_> = info
        .queue
        .iter()
        .map(|holder| holder.owner.rsplit_once(':').unwrap().0)
        .collect();
    assert_eq!(ids, [clients[1].id(), clients[2].id()]);
    for waiter in &info.queue {
        assert!(waiter.lives_for.unwrap() <= Duration::from_secs(3));
        assert_eq!(waiter.process.as_ref().unwrap().pid, std::process::id());
    }
    assert!(info.to_string().contains("waiting 2. "), "{info}");
    guard.unlock().unwrap();
    crew.join();
}

timed!(processes_that_listen_are_counted);
fn processes_that_listen_are_counted() {
    let server = Server::start();
    let [holder, waiter] = [open(&server), open(&server)];
    let name = unique("heard");
    let guard = holder.mutex(&name).lock().unwrap();
    assert_eq!(look(&holder, &name).listening, Some(0));
    let mut crew = Crew::new();
    let lock = waiter.mutex(&name);
    crew.spawn(move || lock.lock().unwrap().unlock().unwrap());
    subscribed(&server, 1);
    let info = look(&holder, &name);
    assert_eq!(info.listening, Some(1));
    assert!(info.to_string().contains("1 process listens"), "{info}");
    guard.unlock().unwrap();
    crew.join();
}

timed!(owners_of_others_are_shown_as_they_are);
fn owners_of_others_are_shown_as_they_are() {
    let server = Server::start();
    let client = open(&server);
    // The fields that Redisson writes for a thread with two holds.
    let (name, java) = (unique("java"), "a7b6e3c2-1111-4222-8333-444455556666:37");
    server.cli(&["HSET", &name, java, "2"]);
    server.cli(&["PEXPIRE", &name, "30000"]);
    let info = look(&client, &name);
    assert_eq!((info.kind, info.held), (LockKind::Lock, 1));
    let holder = &info.holders[0];
    assert_eq!(
        (&*holder.owner, holder.count, &holder.process),
        (java, 2, &None)
    );
    // A lock without an expiry has no remaining lease.
    server.cli(&["PERSIST", &name]);
    assert_eq!(look(&client, &name).holders[0].remaining_lease, None);
    for (name, command) in [
        ("list", vec!["RPUSH", "list", "1"]),
        ("text", vec!["SET", "text", "hello"]),
        ("hash", vec!["HSET", "hash", "a", "1", "b", "2"]),
        ("zset", vec!["ZADD", "zset", "1", "a"]),
    ] {
        server.cli(&command);
        let wrong = client.inspect(name).unwrap_err();
        let said = format!("the key `{name}` holds a ");
        assert!(
            matches!(&wrong, redlatch::Error::WrongType { .. })
                && wrong.to_string().contains(&said),
            "{wrong}"
        );
    }
    // `inspect` has changed nothing.
    assert_eq!(server.dbsize(), 5);
}

timed!(a_user_without_the_rights_is_told_which);
fn a_user_without_the_rights_is_told_which() {
    let server = Server::start();
    server.cli(&[
        "ACL",
        "SETUSER",
        "guest",
        "on",
        ">secret",
        "~*",
        "&*",
        "+@all",
        "-client",
        "+client|setname",
        "-pubsub",
    ]);
    let client = Client::open(crate::support::settings_as(&server, "guest:secret@", "")).unwrap();
    let name = unique("guest");
    let guard = client.mutex(&name).lock().unwrap();
    let info = client.inspect(&name).unwrap();
    assert_eq!(info.holders[0].owner, guard.owner());
    assert_eq!((&info.holders[0].process, info.listening), (&None, None));
    let unknown = info.unknown.join(", ");
    assert!(
        unknown.contains("+client|list") && unknown.contains("+pubsub"),
        "{unknown}"
    );
    assert!(info.to_string().contains("unknown: processes"), "{info}");
}

timed!(a_server_that_is_away_is_an_error_in_time);
fn a_server_that_is_away_is_an_error_in_time() {
    let mut server = Server::start();
    let client = Client::open(settings(&server).command_timeout(ms(500))).unwrap();
    server.kill();
    let begun = std::time::Instant::now();
    let err = client.inspect("any").unwrap_err();
    assert!(err.is_retryable(), "{err}");
    if deployment() == crate::support::Deployment::Single {
        let address = server.addr().to_string();
        assert_eq!(err.to_string().matches(&address).count(), 1, "{err}");
    }
    let mut listed = client.locks("*");
    assert!(listed.next().unwrap().is_err());
    assert!(listed.next().is_none(), "it ends");
    let report = client.check().unwrap();
    assert!(!report.is_fit(), "{report}");
    assert!(begun.elapsed() < crate::support::loosely(ms(4_000)));
    assert!(matches!(
        client.inspect(""),
        Err(redlatch::Error::InvalidName { .. })
    ));
    client.close(ms(100)).ok();
    assert!(matches!(
        client.inspect("any"),
        Err(redlatch::Error::Closed)
    ));
}

timed!(each_master_of_a_red_lock_is_asked);
fn each_master_of_a_red_lock_is_asked() {
    if deployment() != crate::support::Deployment::Single {
        return;
    }
    let mut servers = [(); 3].map(|()| Server::start());
    let clients =
        [0, 1, 2].map(|n| Client::open(settings(&servers[n]).command_timeout(ms(1_000))).unwrap());
    let name = unique("red");
    let lock = RedLock::new(&clients, &name).unwrap();
    let guard = lock.lock().unwrap();
    eventually("all have it", || guard.nodes_held() == 3);
    servers[2].kill();
    let looked = lock.inspect();
    assert_eq!(looked.len(), 3);
    for (server, (at, info)) in servers.iter().zip(&looked).take(2) {
        assert!(at.ends_with(&server.port().to_string()), "{at}");
        let info = info.as_ref().unwrap();
        held_by(info, LockKind::Lock, guard.owner());
        // This process is connected to each of the masters.
        assert_eq!(
            info.holders[0].process.as_ref().unwrap().pid,
            std::process::id()
        );
    }
    assert!(looked[2].1.is_err());
    // While a majority is fit, the lock works.
    let is_fit = || {
        let report = lock.check();
        assert!(
            report.to_string().contains("it cannot be checked"),
            "{report}"
        );
        report.is_fit()
    };
    assert!(is_fit());
    servers[1].kill();
    assert!(!is_fit());
}

timed!(all_holds_of_an_owner_are_taken_and_nobody_elses);
fn all_holds_of_an_owner_are_taken_and_nobody_elses() {
    let server = Server::start();
    let [client, other] = [open(&server), open(&server)];
    let name = unique("both");
    // A Redisson thread that writes and reads has the same owner for both holds.
    let (owner, lock) = (
        "a7b6e3c2-1111-4222-8333-444455556666:37",
        client.rw_lock(&name),
    );
    let written = format!("{owner}:write");
    server.cli(&["HSET", &name, "mode", "write", &written, "2", owner, "1"]);
    server.cli(&["PEXPIRE", &name, "30000"]);
    let hold = format!("{{{name}}}:{owner}:rwlock_timeout:1");
    server.cli(&["SET", &hold, "1", "PX", "30000"]);
    assert_eq!(look(&other, &name).held, 2);
    assert!(other.force_unlock_owner(&name, owner).unwrap());
    assert_eq!(look(&other, &name).kind, LockKind::Free);
    assert!(!other.force_unlock_owner(&name, owner).unwrap());
    assert_eq!(server.dbsize(), 0);

    let theirs = other.rw_lock(&name);
    let (ours, theirs) = (lock.read().unwrap(), theirs.read().unwrap());
    assert!(other.force_unlock_owner(&name, ours.owner()).unwrap());
    let info = look(&other, &name);
    held_by(&info, LockKind::RwLock, theirs.owner());
}

#[test]
fn a_hold_that_was_taken_away_without_a_reply_was_taken_away() {
    let server = Server::start();
    let proxy = Proxy::before(&server);
    let config = settings_by(&server, proxy.addr()).command_timeout(GENEROUS);
    let client = Client::open(config).unwrap();
    let other = open(&server);
    macro_rules! each {
        ($($lock:ident $take:ident;)+) => {$(
            let name = unique(stringify!($lock));
            // The script is loaded, so that the first sending runs it.
            client.$lock(&name).$take().unwrap().unlock().unwrap();
            let stuck = other.$lock(&name).$take().unwrap();
            let owner = stuck.owner().to_owned();
            let trap = proxy.swallow_reply_on(Target::Link, &owner);
            let is_taken = thread::scope(|scope| {
                let takes = scope.spawn(|| client.force_unlock_owner(&name, &owner));
                eventually("it is free", || trap.fired() && !server.exists(&name));
                // The request is sent again over the next connection.
                proxy.cut(Target::Link);
                takes.join().unwrap()
            });
            assert!(is_taken.unwrap(), "{} {}", stringify!($lock), stringify!($take));
        )+};
    }
    each! {
        mutex lock;
        fair_lock lock;
        fenced_lock lock;
        rw_lock write;
        rw_lock read;
    }
}

timed!(a_name_in_a_text_for_people_stays_on_its_line);
fn a_name_in_a_text_for_people_stays_on_its_line() {
    let server = Server::start();
    let client = open(&server);
    let name = format!("{}\x1b[2J\r\nfree", unique("odd"));
    let shown = name.replace('\x1b', r"\u{1b}").replace("\r\n", r"\r\n");
    let is_shown = |text: &str| {
        assert!(text.contains(&shown), "{text:?}");
        let printed = |c: char| !c.is_control() || c == '\n';
        assert!(
            text.chars().all(printed) && !text.contains("\nfree"),
            "{text:?}"
        );
    };
    let guard = client.fair_lock(&name).lock().unwrap();
    is_shown(&look(&client, &name).to_string());
    let listed: Vec<_> = client.locks("*").map(Result::unwrap).collect();
    assert_eq!(listed[0].name, name);
    is_shown(&listed[0].to_string());
    server.cli(&["DEL", &name]);
    is_shown(&guard.unlock().unwrap_err().to_string());
    server.cli(&["SET", &name, "x"]);
    is_shown(&client.inspect(&name).unwrap_err().to_string());
}
