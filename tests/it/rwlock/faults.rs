//! Bad days of the read-write lock: lost replies, cut and silent connections, a server that stops or forgets.

use std::thread;
use std::time::Instant;

use redlatch::{Client, Config, Error, LossReason};

use crate::support::rwlock::{Actor, Desk, assert_lost, hash, hold_key};
use crate::support::scripts::sha;
use crate::support::{
    BY_MESSAGE, Crew, Data, LEASE, LONG, Losses, Mode, Proxy, RESPONSE, Server, Target, client,
    config, elsewhere, eventually, fails, gets_nothing, in_time, loosely, lua, ms, open, timed,
    unique,
};

/// The hash of the script that takes the lock.
fn acquire(writes: bool) -> String {
    sha(if writes {
        lua::RW_WRITE_ACQUIRE
    } else {
        lua::RW_READ_ACQUIRE
    })
}

/// The hash of the script that gives it back.
fn release(writes: bool) -> String {
    sha(if writes {
        lua::RW_WRITE_RELEASE
    } else {
        lua::RW_READ_RELEASE
    })
}

/// One hold, with what Redis keeps of it.
fn take(desk: &mut Desk, writes: bool) -> (Vec<(String, String)>, usize) {
    if writes {
        let field = format!("{}:write", desk.write().owner());
        (hash("write", &[&field]), 1)
    } else {
        (hash("read", &[desk.read().owner()]), 2)
    }
}

/// From now on its connection says the release by its hash alone.
fn knows_release(actor: &Actor, writes: bool) {
    actor.does(move |desk| take(desk, writes));
    actor.leaves();
}

/// A client that has half of its response timeout left when it gives up a silent connection, and needs little of it.
fn patient(url: &str) -> Client {
    Client::open(
        config(url)
            .response_timeout(ms(1_200))
            .connect_timeout(ms(600)),
    )
    .unwrap()
}

fn is_free(server: &Server) {
    eventually("nothing is left", || server.keys_but_requests().is_empty());
}

// ---------------------------------------------------------------------------------------------------------------------
// Lost replies
// ---------------------------------------------------------------------------------------------------------------------

// D1, D2: the first grant is taken back, whoever was granted the second.
timed!(an_acquire_without_a_reply_is_made_once);
fn an_acquire_without_a_reply_is_made_once() {
    let acquired = |writes: bool, below: bool| {
        let server = Server::start();
        let proxy = Proxy::start(server.addr());
        let ours = patient(&proxy.url());
        let name = unique("acquire");
        let actor = Actor::new(ours.rwlock(&name));
        // The script is known, or it would go whole and not be seen.
        knows_release(&actor, writes);
        let above = below.then(|| format!("{}:write", actor.writes()));
        // Silent, the connection still carries the command that takes it back; cut, it does not.
        for cut in [false, true] {
            let reconnects = ours.stats().reconnects;
            let trap = proxy.swallow_reply_to(acquire(writes));
            let taken = actor.begins(move |desk| take(desk, writes));
            eventually("it came by", || trap.fired());
            if cut {
                eventually("it was granted", || {
                    server.hgetall(&name).len() == 2 + usize::from(below)
                });
                proxy.cut(Target::Link);
            }
            let (mut fields, mut keys) = taken.recv_timeout(LONG).unwrap();
            if let Some(above) = &above {
                fields = hash("write", &[above, &fields[0].0]);
                keys = 2;
            }
            eventually("one hold", || server.hgetall(&name) == fields);
            eventually("no key besides", || server.keys().len() == keys);
            assert_eq!(ours.stats().reconnects, reconnects + 1);
            actor.does(move |desk| {
                let reads = desk.reads.drain(..).map(|guard| guard.unlock());
                let writes = desk.writes.drain(usize::from(below)..);
                let released = reads.chain(writes.map(|guard| guard.unlock()));
                released.for_each(|released| released.unwrap());
            });
        }
        // Whoever has no time for a second sending leaves nothing behind.
        let kept = server.hgetall(&name);
        let trap = proxy.swallow_reply_to(acquire(writes));
        actor.does(move |desk| {
            gets_nothing("too short", ms(100), || {
                if writes {
                    desk.lock.try_write_for(ms(100)).map(|got| got.map(drop))
                } else {
                    desk.lock.try_read_for(ms(100)).map(|got| got.map(drop))
                }
            });
        });
        assert!(trap.fired());
        eventually("what was there is there", || {
            server.hgetall(&name) == kept && server.keys().len() == usize::from(below)
        });
        actor.leaves();
        is_free(&server);
        assert_eq!(ours.stats().holds, 0);
    };
    thread::scope(|scope| {
        for (writes, below) in [(false, false), (false, true), (true, false)] {
            scope.spawn(move || acquired(writes, below));
        }
    });
}

// O1, L8: it is given back once, whatever others did with the lock meanwhile.
timed!(a_release_without_a_reply_is_made_once);
fn a_release_without_a_reply_is_made_once() {
    let released = |writes: bool, theirs: &str| {
        let server = Server::start();
        let proxy = Proxy::start(server.addr());
        let (ours, others) = (patient(&proxy.url()), open(&server));
        let name = unique("release");
        let (actor, they) = (
            Actor::new(ours.rwlock(&name)),
            Actor::new(others.rwlock(&name)),
        );
        for waits in [true, false] {
            knows_release(&actor, writes);
            actor.does(move |desk| take(desk, writes));
            let next = match theirs {
                "" => None,
                "read" => Some(they.begins(|desk| {
                    desk.read();
                })),
                _ => Some(they.begins(|desk| {
                    desk.write();
                })),
            };
            let trap = proxy.swallow_reply_to(release(writes));
            actor.does(move |desk| {
                let reads = desk.reads.pop().map(|guard| move || guard.unlock());
                let writes = desk.writes.pop().map(|guard| move || guard.unlock());
                let unlock = || {
                    reads
                        .map_or(Ok(()), |r| r())
                        .and(writes.map_or(Ok(()), |w| w()))
                };
                if waits {
                    unlock().unwrap();
                } else {
                    in_time("dropping", ms(0), || drop(unlock));
                }
            });
            eventually("it came by", || trap.fired());
            if let Some(next) = next {
                next.recv_timeout(LONG).unwrap();
                // The second sending touches nobody's.
                eventually("it was sent again", || ours.stats().reconnects > 0);
                they.does(|desk| {
                    assert!(desk.reads.iter().all(|guard| guard.is_valid()));
                });
                assert_eq!(server.hgetall(&name).len(), 2, "{theirs}");
                they.leaves();
            }
            is_free(&server);
        }
        eventually("both are settled", || ours.stats().reconnects == 2);
        assert_eq!(others.stats().lost + ours.stats().lost, 0);
        assert_eq!(ours.stats().releases_failed, 0);
    };
    thread::scope(|scope| {
        for writes in [false, true] {
            for theirs in ["", "read", "written"] {
                scope.spawn(move || released(writes, theirs));
            }
        }
    });
}

// A release that never arrived is sent again, and then says so to those who wait.
timed!(a_release_that_got_lost_is_sent_again);
fn a_release_that_got_lost_is_sent_again() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    for writes in [false, true] {
        let (ours, others) = (patient(&proxy.url()), open(&server));
        let name = unique("lost");
        let (actor, they) = (
            Actor::new(ours.rwlock(&name)),
            Actor::new(others.rwlock(&name)),
        );
        knows_release(&actor, writes);
        actor.does(move |desk| take(desk, writes));
        let waiting = they.begins(|desk| {
            desk.write();
        });
        eventually("it waits", || others.stats().subscriptions == 2);
        let trap = proxy.black_hole_request(release(writes));
        actor.does(|desk| {
            desk.reads.clear();
            desk.writes.clear();
        });
        eventually("it came by", || trap.fired());
        waiting.recv_timeout(LONG).unwrap();
        they.leaves();
        is_free(&server);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Lost connections
// ---------------------------------------------------------------------------------------------------------------------

// L1: what is said while nobody can listen is made up for.
timed!(waiters_outlive_cut_connections);
fn waiters_outlive_cut_connections() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let (ours, others) = (Client::open(proxy.url()).unwrap(), open(&server));
    for target in [Target::Subscriber, Target::Link, Target::All] {
        for writes in [false, true] {
            let name = unique("cut");
            let (actor, holder) = (
                Actor::new(ours.rwlock(&name)),
                Actor::new(others.rwlock(&name)),
            );
            holder.writes();
            let waiting = actor.begins(move |desk| {
                take(desk, writes);
                Instant::now()
            });
            eventually("it listens", || {
                ours.stats().subscriptions == if writes { 2 } else { 1 }
            });
            for _ in 0..2 {
                proxy.cut(target);
            }
            proxy.set(target, Mode::Refuse);
            let begun = Instant::now();
            holder.leaves();
            thread::sleep(ms(50));
            proxy.pass();
            let took = waiting.recv_timeout(LONG).unwrap() - begun;
            assert!(took < loosely(ms(1_500)), "{target:?}: {took:?}");
            // It is renewed, and nobody took it for lost.
            actor.does(|desk| {
                assert!(desk.reads.iter().all(|guard| guard.is_valid()));
                assert!(desk.writes.iter().all(|guard| guard.is_valid()));
            });
            actor.leaves();
            is_free(&server);
        }
    }
}

// W1: shared and nested holds are renewed over a new connection.
timed!(renewal_goes_on_over_a_new_connection);
fn renewal_goes_on_over_a_new_connection() {
    const SHORT: std::time::Duration = ms(900);
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let received = Losses::default();
    let ours = Client::open(
        config(&proxy.url())
            .lease(SHORT)
            .on_lost(received.listener()),
    )
    .unwrap();
    let (read, written) = (unique("read"), unique("written"));
    let crew: Vec<_> = (0..3).map(|_| Actor::new(ours.rwlock(&read))).collect();
    crew.iter().for_each(|actor| {
        actor.reads();
    });
    let writer = Actor::new(ours.rwlock(&written));
    writer.writes();
    writer.reads();
    for mode in [Mode::Pass, Mode::BlackHole, Mode::SwallowReplies] {
        proxy.set(Target::Watchdog, mode);
        thread::sleep(SHORT / 3);
        proxy.cut(Target::Watchdog);
        proxy.pass();
        let renewals = ours.stats().renewals;
        eventually("all three are renewed", || {
            ours.stats().renewals >= renewals + 6
        });
        if mode == Mode::Pass {
            server.cli(&["SCRIPT", "FLUSH"]);
        }
    }
    assert_eq!((ours.stats().lost, ours.stats().holds), (0, 3));
    crew.iter().for_each(Actor::leaves);
    writer.leaves();
    is_free(&server);
    assert!(received.reasons(&read).is_empty() && received.reasons(&written).is_empty());
}

// ---------------------------------------------------------------------------------------------------------------------
// A bad day
// ---------------------------------------------------------------------------------------------------------------------

/// Asks for everything while `fault` lasts: every verb fails in time, or does without Redis (I4); after `heal` the
/// same client works, and what is held is held still, or reported lost.
fn bad_day(
    mut server: Server,
    fault: impl FnOnce(&mut Server, &Proxy),
    heal: impl FnOnce(&mut Server, &Proxy),
    data: Data,
) {
    let proxy = Proxy::start(server.addr());
    let received = Losses::default();
    let ours = Client::open(config(&proxy.url()).on_lost(received.listener())).unwrap();
    let name = |what: &str| unique(&format!("day:{what}"));
    let (read, written) = (name("read"), name("written"));
    let [one, other, writer] = [&read, &read, &written].map(|name| Actor::new(ours.rwlock(name)));
    one.reads();
    other.reads();
    writer.writes();
    writer.reads();
    let [to_drop, to_unlock] = [name("drop"), name("unlock")].map(|name| ours.rwlock(name));
    let (dropped, unlocked) = (to_drop.read().unwrap(), to_unlock.write().unwrap());
    let below = to_unlock.read().unwrap();
    fault(&mut server, &proxy);
    thread::scope(|scope| {
        for what in [
            "read",
            "write",
            "try_read",
            "for",
            "is",
            "force",
            "downgrade",
        ] {
            let lock = ours.rwlock(name(what));
            scope.spawn(move || match what {
                "read" => fails(what, RESPONSE, || lock.read()),
                "write" => fails(what, RESPONSE, || lock.write()),
                "try_read" => fails(what, RESPONSE, || lock.try_read()),
                "for" => gets_nothing(what, ms(80), || lock.try_write_for(ms(80))),
                "is" => fails(what, RESPONSE, || lock.is_read_locked()),
                _ => fails(what, RESPONSE, || lock.force_unlock()),
            });
        }
        // What is known here is done here.
        scope.spawn(|| {
            let lock = ours.rwlock(&read);
            let joined = in_time("joining", ms(0), || lock.read().unwrap());
            let write = in_time("upgrading", ms(0), || lock.try_write_for(LONG));
            assert!(matches!(write, Err(Error::WouldDeadlock { .. })));
            in_time("leaving", ms(0), || joined.unlock().unwrap());
            assert!(in_time("asking", ms(0), || lock
                .try_write()
                .unwrap()
                .is_none()));
            let waited = in_time("waiting", ms(80), || lock.try_write_for(ms(80)));
            assert!(matches!(waited, Ok(None)), "{waited:?}");
        });
        in_time("dropping", ms(0), || drop(dropped));
        // A read below a write hold asks, and so does giving it back.
        fails("unlocking", RESPONSE, || below.unlock());
        fails("downgrading", RESPONSE, || unlocked.downgrade());
    });
    heal(&mut server, &proxy);
    eventually("it works again", || {
        let lock = ours.rwlock(name("again"));
        let written = lock.write().and_then(redlatch::RwLockWriteGuard::downgrade);
        written.is_ok_and(|read| read.unlock().is_ok())
    });
    match data {
        Data::Kept => {
            let owner = one.does(|desk| desk.reads[0].owner().to_owned());
            let mut kept = vec![read.clone(), hold_key(&read, &owner), written.clone()];
            kept.push(hold_key(
                &written,
                &writer.does(|desk| desk.reads[0].owner().to_owned()),
            ));
            kept.sort();
            eventually("only what is held is there", || {
                server.keys_but_requests() == kept
            });
            let renewals = ours.stats().renewals;
            eventually("it is renewed", || ours.stats().renewals >= renewals + 6);
            for actor in [&one, &other, &writer] {
                actor.does(|desk| assert!(desk.reads[0].is_valid()));
                actor.leaves();
            }
            assert!(received.reasons(&read).is_empty() && received.reasons(&written).is_empty());
        }
        Data::Gone => {
            for actor in [&one, &other, &writer] {
                actor.does(|desk| {
                    let loss = desk.reads[0].lost().recv_timeout(LEASE).unwrap();
                    assert_eq!(loss.reason, LossReason::Forced);
                    for guard in desk.reads.drain(..) {
                        assert_lost(guard.unlock(), &[LossReason::Forced]);
                    }
                    for guard in desk.writes.drain(..) {
                        let reasons = [LossReason::Forced, LossReason::TakenOver];
                        guard.lost().recv_timeout(LEASE).unwrap();
                        assert_lost(guard.unlock(), &reasons);
                    }
                });
            }
            eventually("each hold is told once", || {
                received.reasons(&read).len() == 1 && received.reasons(&written).len() == 2
            });
        }
    }
    is_free(&server);
    assert_eq!((ours.stats().releases_failed, ours.stats().holds), (0, 0));
    in_time("closing", RESPONSE, || ours.close(RESPONSE)).unwrap();
}

timed!(a_day_in_a_black_hole);
fn a_day_in_a_black_hole() {
    bad_day(
        Server::start(),
        |_, proxy| proxy.set(Target::All, Mode::BlackHole),
        |_, proxy| proxy.pass(),
        Data::Kept,
    );
}

timed!(a_day_without_replies);
fn a_day_without_replies() {
    bad_day(
        Server::start(),
        |_, proxy| proxy.set(Target::All, Mode::SwallowReplies),
        |_, proxy| proxy.pass(),
        Data::Kept,
    );
}

timed!(a_day_of_a_stopped_server);
fn a_day_of_a_stopped_server() {
    bad_day(
        Server::start(),
        |server, _| server.freeze(),
        |server, _| server.thaw(),
        Data::Kept,
    );
}

timed!(a_day_of_a_server_that_comes_back_with_its_data);
fn a_day_of_a_server_that_comes_back_with_its_data() {
    bad_day(
        Server::start_with(&["--appendonly", "yes", "--appendfsync", "always"]),
        |server, _| server.kill(),
        |server, _| server.restart(),
        Data::Kept,
    );
}

timed!(a_day_of_a_server_that_comes_back_empty);
fn a_day_of_a_server_that_comes_back_empty() {
    bad_day(
        Server::start(),
        |server, _| server.kill(),
        |server, _| server.restart(),
        Data::Gone,
    );
}

// F3: those who wait meanwhile find the lock free, and those who read are notified.
timed!(a_waiting_writer_outlives_a_server_that_forgets);
fn a_waiting_writer_outlives_a_server_that_forgets() {
    let mut server = Server::start();
    let (ours, others) = (client(&server.url()), client(&server.url()));
    let name = unique("forgets");
    let (reader, writer) = (
        Actor::new(ours.rwlock(&name)),
        Actor::new(others.rwlock(&name)),
    );
    reader.reads();
    let waiting = writer.begins(|desk| {
        loop {
            // Redis is away for longer than anybody waits for an answer.
            match desk.lock.write() {
                Ok(guard) => {
                    desk.writes.push(guard);
                    return;
                }
                Err(err) => assert!(err.is_retryable(), "{err:?}"),
            }
        }
    });
    eventually("it waits", || others.stats().subscriptions == 2);
    server.kill();
    thread::sleep(ms(100));
    server.restart();
    waiting.recv_timeout(LONG).unwrap();
    reader.does(|desk| {
        let loss = desk.reads[0].lost().recv_timeout(LEASE).unwrap();
        assert_eq!(loss.reason, LossReason::TakenOver);
        desk.reads.clear();
    });
    writer.does(|desk| assert!(desk.writes[0].is_valid()));
    writer.leaves();
    is_free(&server);
}

// F5: a script that the server has forgotten goes whole, at every point.
timed!(forgotten_scripts_are_sent_again);
fn forgotten_scripts_are_sent_again() {
    let server = Server::start();
    let (ours, others) = (open(&server), open(&server));
    let name = unique("flush");
    let (actor, they) = (
        Actor::new(ours.rwlock(&name)),
        Actor::new(others.rwlock(&name)),
    );
    let flush = || server.cli(&["SCRIPT", "FLUSH"]);
    for waits in [false, true, true] {
        for writes in [false, true] {
            flush();
            actor.does(move |desk| take(desk, writes));
            flush();
            assert!(!they.does(|desk| desk.lock.try_write().unwrap().is_some()));
            flush();
            assert_eq!(
                actor.does(|desk| desk.lock.is_write_locked().unwrap()),
                writes
            );
            let waiting = they.begins(|desk| {
                desk.write();
                Instant::now()
            });
            eventually("it waits", || others.stats().subscriptions == 2);
            let begun = Instant::now();
            flush();
            if waits {
                actor.leaves();
            } else {
                actor.does(|desk| (desk.reads.clear(), desk.writes.clear()));
            }
            let took = waiting.recv_timeout(LONG).unwrap() - begun;
            assert!(took < loosely(BY_MESSAGE), "{took:?}");
            flush();
            they.does(|desk| {
                let read = desk.writes.pop().unwrap().downgrade().unwrap();
                desk.reads.push(read);
            });
            flush();
            they.leaves();
            flush();
            assert!(!they.does(|desk| desk.lock.force_unlock().unwrap()));
            is_free(&server);
        }
    }
    assert_eq!(ours.stats().lost + others.stats().lost, 0);
}

// ---------------------------------------------------------------------------------------------------------------------
// Shutdown
// ---------------------------------------------------------------------------------------------------------------------

// C5: everybody is notified, everything is given back, and nobody of others is kept out any longer.
timed!(closing_ends_waits_and_gives_back_what_is_held);
fn closing_ends_waits_and_gives_back_what_is_held() {
    let server = Server::start();
    let others = open(&server);
    for holds in ["read", "write", "nothing"] {
        let ours = Client::open(Config::new(server.url()).label("ours")).unwrap();
        let name = unique("close");
        let lock = ours.rwlock(&name);
        let (holder, they) = (Actor::new(lock.clone()), Actor::new(others.rwlock(&name)));
        match holds {
            "read" => drop(holder.reads()),
            "write" => {
                holder.writes();
                holder.reads();
            }
            _ => drop(they.writes()),
        }
        let mut crew = Crew::new();
        // Writers first, lest a reader get in before there is one to yield to.
        for n in [0, 1, 3, 4, 5, 7, 2, 6] {
            if n == 2 {
                crew.all_parked();
            }
            let lock = lock.clone();
            crew.spawn(move || {
                let result = match n % 4 {
                    0 => lock.write().map(drop),
                    1 => lock.try_write_for(LONG).map(drop),
                    2 if holds == "read" => lock.clone().lease(ms(60_000)).read().map(drop),
                    2 => lock.read().map(drop),
                    _ => lock.try_write_until(Instant::now() + LONG).map(drop),
                };
                assert!(matches!(result, Err(Error::Closed)) || (n % 4 == 2 && result.is_ok()));
            });
        }
        crew.all_parked();
        let waiting = they.begins(move |desk| {
            // The writer that holds lets itself be joined.
            desk.read();
            Instant::now()
        });
        let begun = Instant::now();
        in_time("closing", ms(2_000), || ours.close(ms(2_000))).unwrap();
        crew.join();
        let took = waiting
            .recv_timeout(LONG)
            .unwrap()
            .saturating_duration_since(begun);
        assert!(took < loosely(ms(3_000)), "{holds}: {took:?}");
        holder.does(|desk| {
            for guard in &desk.reads {
                assert_eq!(guard.lost().recv().unwrap().reason, LossReason::Closed);
            }
            for guard in desk.writes.drain(..) {
                assert!(!guard.is_valid());
                assert_lost(guard.unlock(), &[LossReason::Closed]);
            }
            desk.reads.clear();
            assert!(matches!(desk.lock.read(), Err(Error::Closed)));
            assert!(matches!(desk.lock.try_write(), Err(Error::Closed)));
            assert!(matches!(desk.lock.is_read_locked(), Err(Error::Closed)));
            assert!(matches!(desk.lock.force_unlock(), Err(Error::Closed)));
        });
        eventually("the connections are gone, and claims with them", || {
            let connections = server.clients_named("redlatch");
            connections
                .iter()
                .all(|client| !client.name.ends_with(":ours"))
        });
        if holds != "nothing" {
            let lock = others.rwlock(&name).lease(ms(60_000));
            assert!(elsewhere(|| lock.try_read().unwrap().is_some()));
        }
        they.leaves();
        is_free(&server);
    }
}
