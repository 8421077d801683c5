//! Bad days: what every verb says and does while Redis is out of reach, and that all is well afterwards.
//!
//! The neighbours `server`, `network` and `engine::loss` borrow the small things from here.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redlatch::{Client, Config, Error, FairLock, FencedLock, Loss, LossReason, ReentrantLock};

use crate::contract::read::Reading;
use crate::contract::{Guard, Line, Lock, Writing, keys_of, nothing_is_left};
use crate::support::{Mode, Proxy, Server, Target, eventually, ms, unique, within};

/// The response and connect timeouts of clients here.
pub(crate) const RESPONSE: Duration = ms(400);

/// What a busy machine may add to a deadline.
pub(crate) const SLACK: Duration = ms(300);

/// The lease of clients here, long enough to survive one bad day.
pub(crate) const LEASE: Duration = ms(3_000);

/// How long a place in line lives here that nobody asks for.
pub(crate) const WAITER_LEASE: Duration = ms(1_000);

pub(crate) fn config(url: &str) -> Config {
    Config::new(url)
        .response_timeout(RESPONSE)
        .connect_timeout(RESPONSE)
        .lease(LEASE)
        .waiter_lease(WAITER_LEASE)
}

pub(crate) fn client(url: &str) -> Client {
    Client::open(config(url)).unwrap()
}

/// The hash of a script, as requests for it contain it.
pub(crate) fn sha(script: &str) -> String {
    redis::Script::new(script).get_hash().to_owned()
}

pub(crate) fn acquire_sha() -> String {
    sha(include_str!("../../../lua/lock_acquire.lua"))
}

pub(crate) fn renew_sha() -> String {
    sha(include_str!("../../../lua/lock_renew.lua"))
}

/// Runs `work` and fails if it took longer than `limit` and [`SLACK`].
#[track_caller]
pub(crate) fn in_time<T>(what: &str, limit: Duration, work: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let done = work();
    let took = begun.elapsed();
    assert!(
        took <= limit + SLACK,
        "{what} took {took:?} instead of {limit:?}"
    );
    done
}

/// Runs `work` and expects to hear, within `limit`, that Redis could not do it.
#[track_caller]
pub(crate) fn fails<T: Debug>(
    what: &str,
    limit: Duration,
    work: impl FnOnce() -> redlatch::Result<T>,
) {
    let result = in_time(what, limit, work);
    assert!(
        matches!(result, Err(Error::Redis { .. })),
        "{what}: {result:?}"
    );
}

/// Runs `work`, which has a limit of its own, and expects to hear within it that there was nothing to be had: the time was
/// too short or, as soon as that is known, Redis is away.
#[track_caller]
pub(crate) fn gets_nothing<T: Debug>(
    what: &str,
    limit: Duration,
    work: impl FnOnce() -> redlatch::Result<Option<T>>,
) {
    let result = in_time(what, limit, work);
    assert!(
        matches!(result, Ok(None) | Err(Error::Redis { .. })),
        "{what}: {result:?}"
    );
}

/// The losses a client was told of, and when.
#[derive(Clone, Default)]
pub(crate) struct Told(Arc<Mutex<Vec<(Instant, Loss)>>>);

impl Told {
    pub(crate) fn listener(&self) -> impl Fn(&Loss) + Send + Sync + 'static {
        let told = self.clone();
        move |loss| told.0.lock().unwrap().push((Instant::now(), loss.clone()))
    }

    pub(crate) fn of(&self, name: &str) -> Vec<(Instant, LossReason)> {
        let told = self.0.lock().unwrap();
        told.iter()
            .filter(|(_, loss)| loss.name == name)
            .map(|(at, loss)| (*at, loss.reason))
            .collect()
    }

    pub(crate) fn reasons(&self, name: &str) -> Vec<LossReason> {
        self.of(name)
            .into_iter()
            .map(|(_, reason)| reason)
            .collect()
    }
}

/// Whether what Redis held before the bad day is still there after it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Data {
    Kept,
    Gone,
}

/// Asks for everything while `fault` lasts: every verb fails in time (I4, L5, C1); after `heal` the same client works,
/// what was let go is gone (L8), what timed out left nothing behind (D1), and what is held is held still, or told lost.
pub(crate) fn bad_day<L: Lock, S>(
    mut server: Server,
    proxy: &Proxy,
    fault: impl FnOnce(&mut Server, &Proxy) -> S,
    heal: impl FnOnce(&mut Server, &Proxy, S),
    data: Data,
) {
    let told = Told::default();
    let client = Client::open(config(&proxy.url()).on_lost(told.listener())).unwrap();
    let name = |what: &str| unique(&format!("day:{what}"));
    let (kept, unlocked, dropped) = (name("kept"), name("unlocked"), name("dropped"));
    let keeper = L::of(&client, &kept).lock().unwrap();
    let to_unlock = L::of(&client, &unlocked).lock().unwrap();
    let to_drop = L::of(&client, &dropped).lock().unwrap();
    let asked: Vec<_> = ["lock", "try", "for", "is", "left", "force"]
        .into_iter()
        .map(|what| (what, name(what)))
        .collect();
    let state = fault(&mut server, proxy);
    std::thread::scope(|scope| {
        for (what, name) in &asked {
            let lock = L::of(&client, name);
            scope.spawn(move || match *what {
                "lock" => fails(what, RESPONSE, || lock.lock()),
                "try" => fails(what, RESPONSE, || lock.try_lock()),
                "for" => {
                    for wait in [ms(50), ms(0), ms(120)] {
                        if wait.is_zero() {
                            fails(what, RESPONSE, || lock.try_lock_for(wait));
                        } else {
                            gets_nothing(what, wait, || lock.try_lock_for(wait));
                        }
                    }
                }
                "is" => fails(what, RESPONSE, || lock.is_locked()),
                "left" => fails(what, RESPONSE, || lock.remaining()),
                _ => fails(what, RESPONSE, || lock.force_unlock()),
            });
        }
        scope.spawn(|| {
            let lock = L::Foe::of(&client, &kept);
            if L::LINE == Line::Redis {
                // There is no line but that of Redis.
                gets_nothing("waiting", ms(100), || lock.try_lock_for(ms(100)));
                return;
            }
            // That it is held here is known without Redis.
            let held = in_time("waiting", ms(100), || lock.try_lock_for(ms(100)));
            assert!(matches!(held, Ok(None)), "{held:?}");
        });
        in_time("dropping", ms(0), || drop(to_drop));
        fails("unlocking", RESPONSE, || to_unlock.unlock());
    });
    heal(&mut server, proxy, state);
    let limit = if L::LINE == Line::Redis {
        RESPONSE + WAITER_LEASE
    } else {
        RESPONSE
    };
    for (_, name) in &asked {
        let guard = in_time("locking again", limit, || {
            let mut taken = None;
            // Right after the fault the first attempts may still meet its last effects.
            within(ms(2_000), || {
                taken = L::of(&client, name).lock().ok();
                taken.is_some()
            });
            taken
        });
        let guard = guard.unwrap_or_else(|| panic!("{name} cannot be locked again"));
        assert!(guard.is_valid());
        guard.unlock().unwrap();
    }
    match data {
        Data::Kept => {
            let locks = |mut keys: Vec<String>| {
                keys.retain(|key| !L::stays(key));
                keys
            };
            let held = locks(keys_of::<L>(&kept, keeper.owner()));
            eventually("only what is held is there", || {
                if L::LINE == Line::Redis {
                    // F1: a place that a late question took dies with its waiter lease, and whoever asks clears it away.
                    for (_, name) in &asked {
                        drop(L::of(&client, name).try_lock());
                    }
                }
                locks(server.keys()) == held
            });
            assert_eq!(server.hgetall(&kept), L::fields(keeper.owner(), 1));
            let renewals = client.stats().renewals;
            eventually("it is renewed", || client.stats().renewals > renewals + 1);
            assert!(keeper.is_valid() && keeper.lost().is_empty());
            keeper.unlock().unwrap();
        }
        Data::Gone => {
            let loss = keeper.lost().recv_timeout(LEASE).unwrap();
            assert_eq!(loss.reason, LossReason::Forced);
            assert!(!keeper.is_valid());
            // O6: nothing is asked about what is known to be lost.
            let unlocked = in_time("unlocking the lost", ms(0), || keeper.unlock());
            assert!(
                matches!(unlocked, Err(Error::Lost { reason, .. }) if reason == LossReason::Forced),
                "{unlocked:?}"
            );
            eventually("it is told once", || {
                told.reasons(&kept) == [LossReason::Forced]
            });
        }
    }
    let again = L::of(&client, &kept).lock().unwrap();
    assert_eq!(server.hgetall(&kept), L::fields(again.owner(), 1));
    drop(again);
    eventually("nothing is left", || nothing_is_left::<L>(&server));
    assert_eq!(client.stats().releases_failed, 0);
    in_time("closing", RESPONSE, || client.close(RESPONSE)).unwrap();
}

fn network_day<L: Lock>(mode: Mode, target: Target) {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    bad_day::<L, _>(
        server,
        &proxy,
        |_, proxy| {
            proxy.set(target, mode);
            if mode == Mode::Refuse {
                proxy.cut(target);
            }
        },
        |_, proxy, ()| proxy.pass(),
        Data::Kept,
    );
}

#[test]
fn a_day_in_a_black_hole() {
    network_day::<ReentrantLock>(Mode::BlackHole, Target::All); // L5, C1
}

#[test]
fn a_day_on_which_everything_stalls() {
    network_day::<ReentrantLock>(Mode::Stall, Target::All); // D1
}

#[test]
fn a_day_without_replies() {
    network_day::<ReentrantLock>(Mode::SwallowReplies, Target::All); // L8, O1
}

#[test]
fn a_day_of_refused_connections() {
    network_day::<ReentrantLock>(Mode::Refuse, Target::All); // C1
}

#[test]
fn a_day_of_replies_later_than_anybody_waits() {
    network_day::<ReentrantLock>(Mode::Delay(RESPONSE * 3), Target::All); // C1, D1
}

#[test]
fn a_day_without_the_link_alone() {
    network_day::<ReentrantLock>(Mode::BlackHole, Target::Link); // C1
}

fn day_of_a_kill<L: Lock>() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    bad_day::<L, _>(
        server,
        &proxy,
        |server, _| server.kill(),
        |server, _, ()| server.restart(),
        Data::Gone,
    );
}

#[test]
fn a_day_on_which_the_server_is_killed_and_comes_back_empty() {
    day_of_a_kill::<ReentrantLock>();
}

#[test]
fn a_day_on_which_the_server_is_frozen() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    bad_day::<ReentrantLock, _>(
        server,
        &proxy,
        |server, _| server.freeze(),
        |server, _, ()| server.thaw(),
        Data::Kept,
    );
}

#[test]
fn a_day_on_which_the_server_answers_nobody_for_a_while() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    bad_day::<ReentrantLock, _>(
        server,
        &proxy,
        |server, _| {
            let paused = server.connection();
            let () = server.ask(&["CLIENT", "PAUSE", "1200", "ALL"]);
            paused
        },
        |server, _, paused| {
            drop(paused);
            assert_eq!(server.ask::<String>(&["PING"]), "PONG"); // after the pause
        },
        Data::Kept,
    );
}

/// The worst of those days for a kind with scripts of its own.
macro_rules! worst_days {
    ($($kind:ident: $lock:ty),+) => {
        $(mod $kind {
            use super::*;

            #[test]
            fn a_day_without_replies() {
                network_day::<$lock>(Mode::SwallowReplies, Target::All); // L8, O1
            }

            #[test]
            fn a_day_on_which_everything_stalls() {
                network_day::<$lock>(Mode::Stall, Target::All); // D1, F4
            }

            #[test]
            fn a_day_on_which_the_server_is_killed_and_comes_back_empty() {
                day_of_a_kill::<$lock>();
            }
        })+
    };
}

worst_days!(
    fair_lock: FairLock,
    fenced_lock: FencedLock,
    writing: Writing,
    reading: Reading
);

#[test]
fn a_day_as_a_read_only_replica() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    // Answers questions, so that this is not a day like the others.
    let told = Told::default();
    let client = Client::open(config(&proxy.url()).on_lost(told.listener())).unwrap();
    let (kept, other) = (unique("replica"), unique("replica"));
    let keeper = client.mutex(&kept).lock().unwrap();
    let dropped = client.mutex(&other).lock().unwrap();
    let dead = crate::support::free_port().to_string();
    let () = server.ask(&["REPLICAOF", "127.0.0.1", &dead]);
    let lock = client.mutex(unique("replica"));
    fails("lock", RESPONSE, || lock.lock());
    fails("try_lock", RESPONSE, || lock.try_lock());
    fails("try_lock_for", ms(50), || lock.try_lock_for(ms(50)));
    fails("force_unlock", RESPONSE, || {
        client.mutex(&kept).force_unlock()
    });
    assert!(client.mutex(&kept).is_locked().unwrap());
    assert!(client.mutex(&kept).remaining().unwrap().is_some());
    in_time("dropping", ms(0), || drop(dropped));
    let () = server.ask(&["REPLICAOF", "NO", "ONE"]);
    in_time("lock", RESPONSE, || lock.lock())
        .unwrap()
        .unlock()
        .unwrap();
    eventually("what was dropped is gone", || server.keys() == [&*kept]);
    let renewals = client.stats().renewals;
    eventually("it is renewed", || client.stats().renewals > renewals);
    keeper.unlock().unwrap();
    assert!(told.reasons(&kept).is_empty());
}
