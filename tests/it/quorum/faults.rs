//! The red lock on five independent masters when some of them are killed, freeze, lose their data, or are unreachable.
//!
//! Leases are long wherever a test checks that nothing is left behind: an expired key would hide a missing release.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};
use redlatch::{Client, Config, Error, Loss, LossReason, Observer, RedLockGuard};

use crate::support::quorum::{
    LEASE, TAKE_OVER, all_keep, confirmed_by_all, keepers, masters, nothing_is_left, open,
    open_with, red, take, take_from_all,
};
use crate::support::{
    Crew, LONG, Mode, Proxy, STRANGER, Server, Target, Trap, eventually, loosely, ms, scoped,
    timed, unique, within,
};

/// A lease that no test waits for.
const FOR_LONG: Duration = ms(60_000);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Death {
    Killed,
    Frozen,
    BlackHoled,
}

const DEATHS: [Death; 3] = [Death::Killed, Death::Frozen, Death::BlackHoled];

/// Five servers that fail in the given way.
struct Site {
    servers: Vec<Server>,
    /// A proxy in front of each server, if the network fails.
    proxies: Vec<Proxy>,
    death: Death,
}

impl Site {
    fn start(death: Death) -> Self {
        let servers = masters(5);
        let proxies = match death {
            Death::BlackHoled => servers
                .iter()
                .map(|server| Proxy::start(server.addr()))
                .collect(),
            _ => Vec::new(),
        };
        Self {
            servers,
            proxies,
            death,
        }
    }

    fn clients(&self, set: impl Fn(Config) -> Config) -> Vec<Client> {
        if self.proxies.is_empty() {
            return open_with(&self.servers, set);
        }
        open_through(&self.proxies, set)
    }

    fn fails(&mut self, node: usize) {
        match self.death {
            Death::Killed => self.servers[node].kill(),
            Death::Frozen => self.servers[node].freeze(),
            Death::BlackHoled => self.proxies[node].set(Target::All, Mode::BlackHole),
        }
    }

    fn returns(&mut self, node: usize) {
        match self.death {
            Death::Killed => self.servers[node].restart(),
            Death::Frozen => self.servers[node].thaw(),
            Death::BlackHoled => self.proxies[node].pass(),
        }
    }
}

fn open_through(proxies: &[Proxy], set: impl Fn(Config) -> Config) -> Vec<Client> {
    let urls = proxies.iter().map(Proxy::url);
    urls.map(|url| Client::open(set(Config::new(url))).unwrap())
        .collect()
}

/// Five servers behind proxies.
fn proxied() -> (Vec<Server>, Vec<Proxy>) {
    let servers = masters(5);
    let proxies = servers
        .iter()
        .map(|server| Proxy::start(server.addr()))
        .collect();
    (servers, proxies)
}

/// The positions of the masters that failed; the error must be a missing majority.
#[track_caller]
fn failed_at<T>(result: Result<T, Error>) -> Vec<usize> {
    match result {
        Err(Error::NoQuorum {
            needed: 3,
            agreed,
            failures,
            ..
        }) => {
            assert!(agreed < 3);
            assert!(
                failures
                    .iter()
                    .all(|(_, err)| matches!(err, Error::Redis { .. }))
            );
            failures.into_iter().map(|(node, _)| node).collect()
        }
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("a majority without three"),
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// A minority
// ---------------------------------------------------------------------------------------------------------------------

fn a_minority_that_is_gone_costs_next_to_nothing(death: Death) {
    const TURNS: usize = 40;
    let mut site = Site::start(death);
    let set = |config: Config| config.connect_timeout(ms(700)).command_timeout(ms(1500));
    let clients = site.clients(|config| set(config).lease(FOR_LONG));
    let name = unique("minority");
    let lock = red(&clients, &name);
    drop(take(&lock));
    for (dead, node) in [(1, 0), (2, 3)] {
        site.fails(node);
        let mut times: Vec<Duration> = (0..TURNS)
            .map(|turn| {
                let asked = Instant::now();
                let guard = lock.lock().unwrap();
                let took = asked.elapsed();
                assert!(guard.nodes_held() >= 3);
                match turn % 2 {
                    0 => guard.unlock().unwrap(),
                    _ => drop(guard),
                }
                took
            })
            .collect();
        times.sort_unstable();
        let median = times[TURNS / 2];
        assert!(median < loosely(ms(20)), "{dead} {death:?}: {times:?}");
    }
    // The hold does not extend to the masters that return; the next hold does.
    let guard = take(&lock);
    for node in [0, 3] {
        site.returns(node);
    }
    drop(take(&red(&clients, &unique("other"))));
    assert_eq!(guard.nodes_held(), 3);
    drop(guard);
    let guard = take_from_all(&lock, 5);
    assert_eq!(keepers(&site.servers, &name, guard.owner()).len(), 5);
    drop(guard);
    nothing_is_left(&site.servers);
}

timed!(two_dead_servers_cost_next_to_nothing);
fn two_dead_servers_cost_next_to_nothing() {
    a_minority_that_is_gone_costs_next_to_nothing(Death::Killed);
}

timed!(two_frozen_servers_cost_next_to_nothing);
fn two_frozen_servers_cost_next_to_nothing() {
    a_minority_that_is_gone_costs_next_to_nothing(Death::Frozen);
}

timed!(two_servers_out_of_reach_cost_next_to_nothing);
fn two_servers_out_of_reach_cost_next_to_nothing() {
    a_minority_that_is_gone_costs_next_to_nothing(Death::BlackHoled);
}

// The first attempt finds two masters dead, and the other three suffice.
timed!(a_first_attempt_with_two_servers_dead_succeeds);
fn a_first_attempt_with_two_servers_dead_succeeds() {
    for death in DEATHS {
        let mut site = Site::start(death);
        let clients = site.clients(|config| config.lease(FOR_LONG));
        for name in [unique("first"), unique("second")] {
            let locks = [
                red(&clients, &name),
                red(&clients, &name).fixed_lease(FOR_LONG),
            ];
            for node in [1, 4] {
                site.fails(node);
            }
            for lock in &locks {
                let guard = lock.try_lock().unwrap().expect("it is free");
                assert_eq!(guard.nodes_held(), 3);
                guard.unlock().unwrap();
            }
            for node in [1, 4] {
                site.returns(node);
            }
            nothing_is_left(&site.servers);
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Too few
// ---------------------------------------------------------------------------------------------------------------------

fn without_a_majority_nobody_gets_it_and_nothing_stays(death: Death) {
    const TIMEOUT: Duration = ms(800);
    const SLACK: Duration = ms(1500);
    let mut site = Site::start(death);
    let set = |config: Config| config.lease(FOR_LONG).command_timeout(TIMEOUT);
    let clients = site.clients(set);
    let name = unique("few");
    let lock = red(&clients, &name);
    for fixed in [false, true] {
        let lock = if fixed {
            lock.clone().fixed_lease(FOR_LONG)
        } else {
            lock.clone()
        };
        for node in [1, 2, 4] {
            site.fails(node);
        }
        let asked = Instant::now();
        match lock.try_lock_for(ms(300)) {
            // A server that has been silent for 300 ms does not count as unreachable yet.
            Ok(None) if !matches!(death, Death::Killed) => {}
            other => assert_eq!(failed_at(other), [1, 2, 4]),
        }
        assert!(
            asked.elapsed() < ms(300) + loosely(SLACK),
            "{:?}",
            asked.elapsed()
        );
        let asked = Instant::now();
        assert_eq!(failed_at(lock.try_lock()), [1, 2, 4]);
        assert!(
            asked.elapsed() < TIMEOUT + loosely(SLACK),
            "{:?}",
            asked.elapsed()
        );
        // Threads queued behind the first need not wait for the silent servers again.
        let asked = Instant::now();
        scoped(|scope| {
            for _ in 0..4 {
                scope.spawn(|| assert_eq!(failed_at(lock.lock()), [1, 2, 4]));
            }
        });
        assert!(
            asked.elapsed() < 2 * TIMEOUT + loosely(SLACK),
            "{:?}",
            asked.elapsed()
        );
        for node in [0, 3] {
            eventually("the others keep nothing", || {
                site.servers[node].dbsize() == 0
            });
        }
        for node in [1, 2, 4] {
            site.returns(node);
        }
        nothing_is_left(&site.servers);
        eventually("it can be had again", || {
            matches!(lock.try_lock(), Ok(Some(_)))
        });
        drop(take_from_all(&lock, 5));
        nothing_is_left(&site.servers);
    }
}

timed!(with_three_dead_nobody_gets_it_and_nothing_stays);
fn with_three_dead_nobody_gets_it_and_nothing_stays() {
    without_a_majority_nobody_gets_it_and_nothing_stays(Death::Killed);
}

// A frozen server executes the acquire once it thaws, and the client undoes it.
timed!(with_three_frozen_nobody_gets_it_and_nothing_stays);
fn with_three_frozen_nobody_gets_it_and_nothing_stays() {
    without_a_majority_nobody_gets_it_and_nothing_stays(Death::Frozen);
}

timed!(with_three_out_of_reach_nobody_gets_it_and_nothing_stays);
fn with_three_out_of_reach_nobody_gets_it_and_nothing_stays() {
    without_a_majority_nobody_gets_it_and_nothing_stays(Death::BlackHoled);
}

// The error lists the reason of each master, by position.
timed!(each_server_is_told_apart_by_its_position);
fn each_server_is_told_apart_by_its_position() {
    let mut servers = masters(5);
    let clients = open_with(&servers, |config| {
        config.lease(LEASE).command_timeout(ms(500))
    });
    let name = unique("reasons");
    let lock = red(&clients, &name);
    servers[0].cli(&["SET", &name, "no lock"]);
    servers[2].cli(&["HSET", &name, STRANGER, "1"]);
    servers[3].kill();
    servers[4].freeze();
    match lock.lock() {
        Err(Error::NoQuorum {
            name: named,
            nodes: 5,
            needed: 3,
            agreed: 1,
            failures,
            ..
        }) => {
            assert_eq!(named, name);
            let [(0, wrong), (3, dead), (4, frozen)] = &failures[..] else {
                panic!("{failures:?}")
            };
            assert!(matches!(wrong, Error::WrongType { .. }), "{wrong:?}");
            assert!(
                matches!(dead, Error::Redis { .. }) && dead.is_retryable(),
                "{dead:?}"
            );
            assert!(
                matches!(frozen, Error::Redis { .. }) && frozen.is_retryable(),
                "{frozen:?}"
            );
        }
        other => panic!("{other:?}"),
    }
    servers[4].thaw();
    servers[3].restart();
    for node in [1, 3, 4] {
        eventually("nothing is left", || servers[node].dbsize() == 0);
    }
    // A key of another type on a minority costs those masters; on a majority the error is `WrongType`.
    let guard = take(&lock);
    all_keep(&guard, 3);
    drop(guard);
    for node in [3, 4] {
        servers[node].cli(&["SET", &name, "no lock"]);
    }
    let wrong = lock.lock();
    assert!(
        matches!(&wrong, Err(Error::WrongType { name: named, .. }) if *named == name),
        "{wrong:?}"
    );
    for node in [0, 3, 4] {
        assert_eq!(servers[node].ask::<String>(&["GET", &name]), "no lock");
    }
    assert_eq!(
        servers[2].hgetall(&name),
        [(STRANGER.to_owned(), "1".to_owned())]
    );
}

// Connections that the servers have closed are replaced without an error.
timed!(connections_that_have_gone_stale_are_made_again);
fn connections_that_have_gone_stale_are_made_again() {
    let servers = masters(5);
    let name = unique("stale");
    let clients = open_with(&servers, |config| config.lease(FOR_LONG));
    let lock = red(&clients, &name);
    let stale = || {
        for server in &servers {
            server.kill_clients_named("link");
        }
    };
    stale();
    drop(lock.try_lock().unwrap().expect("it is free"));
    stale();
    let guard = lock.lock().unwrap();
    stale();
    assert!(lock.is_locked().unwrap());
    stale();
    assert!(lock.remaining_lease().unwrap().is_some());
    stale();
    guard.unlock().unwrap();
    let fixed = lock.clone().fixed_lease(LONG);
    let one = fixed.lock().unwrap();
    stale();
    let two = fixed.lock().unwrap();
    stale();
    assert!(lock.force_unlock().unwrap());
    drop((one, two));
    nothing_is_left(&servers);
}

/// While `work` runs, requests about `name` to these nodes are lost, and then their connections.
fn while_connections_break<T>(proxies: &[Proxy], name: &str, work: impl FnOnce() -> T) -> T {
    let lost: Vec<_> = proxies
        .iter()
        .map(|proxy| proxy.black_hole_request(name))
        .collect();
    scoped(|scope| {
        scope.spawn(|| {
            eventually("they are asked", || lost.iter().all(Trap::fired));
            for proxy in proxies {
                proxy.cut(Target::Link);
            }
        });
        work()
    })
}

timed!(what_a_minority_says_before_other_connections_break_still_counts);
fn what_a_minority_says_before_other_connections_break_still_counts() {
    let (servers, proxies) = proxied();
    let clients = open_through(&proxies, |config| config.lease(FOR_LONG));
    // Only three masters keep the hold.
    let name = unique("again");
    let lock = red(&clients, &name).fixed_lease(FOR_LONG);
    let one = take(&lock);
    all_keep(&one, 5);
    for server in &servers[..2] {
        server.cli(&["DEL", &name]);
    }
    let two = while_connections_break(&proxies[4..], &name, || lock.lock());
    drop((one, two.unwrap()));
    nothing_is_left(&servers);

    // A single master has a stranger's hold, and deletes it at the first request.
    let name = unique("forced");
    servers[0].cli(&["HSET", &name, STRANGER, "1"]);
    let lock = red(&clients, &name);
    let forced = while_connections_break(&proxies[2..], &name, || lock.force_unlock());
    assert!(forced.unwrap(), "it was held by one");
    nothing_is_left(&servers);
}

// ---------------------------------------------------------------------------------------------------------------------
// Forgetful servers
// ---------------------------------------------------------------------------------------------------------------------

/// Runs `work` while another process tries to acquire the lock all the time, which must never succeed.
fn contended(
    attempt: impl Fn() -> redlatch::Result<Option<RedLockGuard>> + Sync,
    work: impl FnOnce(),
) {
    let done = AtomicBool::new(false);
    let tries = AtomicU64::new(0);
    scoped(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                let got = attempt().unwrap().is_some();
                assert!(!got, "somebody else got it");
                tries.fetch_add(1, Ordering::SeqCst);
            }
        });
        let worked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        done.store(true, Ordering::SeqCst);
        if let Err(panic) = worked {
            std::panic::resume_unwind(panic);
        }
    });
    assert!(tries.into_inner() > 2);
}

/// Waits until each of these servers has had two renewals.
fn renewed_twice(servers: &[Server], nodes: &[usize]) {
    let calls_before: Vec<_> = nodes.iter().map(|n| servers[*n].calls("hget")).collect();
    eventually("they are renewed twice", || {
        let mut both = nodes.iter().zip(&calls_before);
        both.all(|(node, node_calls)| servers[*node].calls("hget") >= node_calls + 2)
    });
}

// A master that lost its part never counts again for that hold, so losses at different times add up.
#[test]
fn a_part_that_is_lost_never_counts_again_and_with_a_majority_of_them_it_is_lost_at_once() {
    let mut servers = masters(5);
    let name = unique("forget");
    let (ours, theirs) = (open(&servers), open(&servers));
    let guard = red(&ours, &name).lock().unwrap();
    confirmed_by_all(&guard, &servers);
    let other = red(&theirs, &name);
    contended(
        || other.try_lock(),
        || {
            servers[4].cli(&["FLUSHALL"]);
            eventually("four keep it", || guard.nodes_held() == 4);
            servers[1].kill();
            eventually("three keep it", || guard.nodes_held() == 3);
            servers[1].restart();
            // The restarted servers reply again, but have no part of the hold.
            drop(take_from_all(&red(&ours, &unique("other")), 5));
            renewed_twice(&servers, &[0, 2, 3]);
            assert_eq!(guard.nodes_held(), 3);
            assert_eq!(keepers(&servers, &name, guard.owner()), [0, 2, 3]);
            assert!(guard.is_valid() && guard.lost().try_recv().is_err());
        },
    );
    // The first client's master is no exception.
    servers[0].cli(&["DEL", &name]);
    received(&guard, LossReason::Forced);
    eventually("what the others keep is given back", || {
        keepers(&servers, &name, guard.owner()).is_empty()
    });
    let next = take_from_all(&red(&ours, &name), 5);
    assert!(!guard.is_valid());
    assert!(matches!(guard.unlock(), Err(Error::Lost { .. })));
    assert!(next.is_valid());
    drop(next);
    nothing_is_left(&servers);
}

timed!(a_part_that_was_out_of_reach_until_it_ran_out_does_not_count_again);
fn a_part_that_was_out_of_reach_until_it_ran_out_does_not_count_again() {
    let mut site = Site::start(Death::Frozen);
    let clients = site.clients(|config| config.lease(LEASE));
    let name = unique("froze");
    let guard = red(&clients, &name).lock().unwrap();
    all_keep(&guard, 5);
    for node in [1, 2] {
        site.fails(node);
    }
    eventually("three keep it", || guard.nodes_held() == 3);
    for node in [1, 2] {
        site.returns(node);
    }
    drop(take_from_all(&red(&clients, &unique("other")), 5));
    renewed_twice(&site.servers, &[0, 3, 4]);
    assert_eq!(guard.nodes_held(), 3);
    guard.unlock().unwrap();
    nothing_is_left(&site.servers);
}

timed!(a_restarted_server_is_kept_out_for_as_long_as_somebody_wants);
fn a_restarted_server_is_kept_out_for_as_long_as_somebody_wants() {
    const LONGEST: Duration = ms(2000);
    // All servers have just started.
    let mut servers: Vec<_> = (0..5).map(|_| Server::start_with(&[])).collect();
    let name = unique("restarted");
    let (ours, theirs) = (open(&servers), open(&servers));
    let up = |server: &Server| {
        let info: String = server.ask(&["INFO", "server"]);
        let line = info
            .lines()
            .find_map(|line| line.strip_prefix("uptime_in_seconds:"));
        line.unwrap().parse::<u64>().unwrap()
    };
    let lock = red(&ours, &name).min_uptime(LONGEST);
    match lock.try_lock() {
        Err(err @ Error::NoQuorum { .. }) => {
            assert_eq!(err.to_string().matches("RESTARTED").count(), 5, "{err}");
        }
        other => panic!("{other:?}"),
    }
    nothing_is_left(&servers);
    // Clients without `min_uptime` use such servers at once.
    let guard = red(&ours, &name).lock().unwrap();
    all_keep(&guard, 5);
    guard.unlock().unwrap();
    eventually("they are old enough", || {
        servers.iter().all(|server| up(server) >= 3)
    });
    let guard = lock.try_lock().unwrap().expect("it is free");
    all_keep(&guard, 5);

    // The uptime is in whole seconds: more than 2 is at least two seconds.
    for node in [0, 3] {
        servers[node].restart();
    }
    eventually("the others keep it", || guard.nodes_held() == 3);
    assert!(guard.is_valid() && guard.lost().try_recv().is_err());
    guard.unlock().unwrap();
    nothing_is_left(&servers);

    // Two young masters are left out; with three there is no majority.
    for node in [0, 3] {
        servers[node].restart();
    }
    let other = red(&theirs, &name).min_uptime(LONGEST);
    let guard = other.try_lock().unwrap().expect("it is free");
    assert_eq!(keepers(&servers, &name, guard.owner()), [1, 2, 4]);
    drop(guard);
    servers[4].restart();
    eventually("it is refused by three", || match other.try_lock() {
        Err(Error::NoQuorum {
            agreed: 2,
            failures,
            ..
        }) => {
            let restarted = |err: &Error| match err {
                Error::Redis { source, .. } => source.to_string().contains("RESTARTED"),
                _ => false,
            };
            failures.len() == 3 && failures.iter().all(|(_, err)| restarted(err))
        }
        Ok(Some(_)) => panic!("too early"),
        _ => false,
    });
    eventually("it counts again", || match other.try_lock() {
        Ok(Some(guard)) => {
            let counts = keepers(&servers, &name, guard.owner());
            assert!(!counts.into_iter().any(|node| up(&servers[node]) <= 2));
            true
        }
        _ => false,
    });
    nothing_is_left(&servers);

    // A client that finds another server at an address than before cannot know how long that has been a master.
    eventually("all count", || {
        [0, 3, 4].iter().all(|node| up(&servers[*node]) > 2)
    });
    match lock.try_lock() {
        Err(err @ Error::NoQuorum { agreed: 2, .. }) => {
            assert_eq!(err.to_string().matches("RESTARTED as ").count(), 3, "{err}");
        }
        other => panic!("{other:?}"),
    }
    nothing_is_left(&servers);
}

// ---------------------------------------------------------------------------------------------------------------------
// The majority gone
// ---------------------------------------------------------------------------------------------------------------------

#[track_caller]
fn received(guard: &RedLockGuard, reason: LossReason) {
    let loss = guard.lost().recv_timeout(LONG).expect("told of the loss");
    assert_eq!(loss.reason, reason);
    assert_eq!((&*loss.name, &*loss.owner), (guard.name(), guard.owner()));
    assert!(!guard.is_valid());
    assert_eq!((guard.hold_count(), guard.nodes_held()), (0, 0));
}

timed!(a_majority_out_of_reach_is_told_in_time);
fn a_majority_out_of_reach_is_told_in_time() {
    let out_of_reach = |death: Death| {
        let mut site = Site::start(death);
        let clients = site.clients(|config| config.lease(LEASE));
        let name = unique("reach");
        let lock = red(&clients, &name);
        let guard = lock.lock().unwrap();
        all_keep(&guard, 5);
        for node in [0, 2, 3] {
            site.fails(node);
        }
        received(&guard, LossReason::Unreachable);
        let late = Instant::now().saturating_duration_since(guard.valid_until());
        assert!(late < loosely(ms(400)), "{death:?}: {late:?}");
        // The loss is never reported before the hold has expired, since it may be renewed until then.
        assert!(Instant::now() >= guard.valid_until());
        let lost = guard.unlock();
        assert!(
            matches!(
                &lost,
                Err(Error::Lost {
                    reason: LossReason::Unreachable,
                    ..
                })
            ),
            "{lost:?}"
        );
        for node in [0, 2, 3] {
            site.returns(node);
        }
        nothing_is_left(&site.servers);
        drop(take(&lock));
    };
    scoped(|scope| {
        for death in DEATHS {
            scope.spawn(move || out_of_reach(death));
        }
    });
}

// When the loss is known, the client releases what the other masters still keep, without waiting for the guard's end.
timed!(a_majority_that_has_forgotten_or_gone_to_others_is_told_and_the_rest_is_given_back);
fn a_majority_that_has_forgotten_or_gone_to_others_is_told_and_the_rest_is_given_back() {
    const LEASE: Duration = ms(6000);
    let servers = masters(5);
    for gone in [[0, 1, 2], [2, 3, 4]] {
        let clients = open_with(&servers, |config| config.lease(LEASE));
        let [wiped, taken] = [unique("wiped"), unique("taken")];
        let [wiped, taken] =
            [red(&clients, &wiped), red(&clients, &taken)].map(|lock| lock.lock().unwrap());
        for guard in [&wiped, &taken] {
            all_keep(guard, 5);
        }
        for node in gone {
            servers[node].cli(&["DEL", wiped.name()]);
            servers[node].cli(&["EVAL", TAKE_OVER, "1", taken.name(), STRANGER]);
        }
        received(&wiped, LossReason::Forced);
        received(&taken, LossReason::TakenOver);
        for guard in [&wiped, &taken] {
            // The leases of the other masters have two thirds left.
            let given_back = within(LEASE / 2, || {
                keepers(&servers, guard.name(), guard.owner()).is_empty()
            });
            assert!(
                given_back,
                "{:?}",
                keepers(&servers, guard.name(), guard.owner())
            );
        }
        for node in gone {
            let kept = servers[node].hgetall(taken.name());
            assert_eq!(kept, [(STRANGER.to_owned(), "1".to_owned())]);
            servers[node].cli(&["DEL", taken.name()]);
        }
        drop((wiped, taken));
        nothing_is_left(&servers);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Races and torn connections
// ---------------------------------------------------------------------------------------------------------------------

// The acquire lies unread in the frozen server's socket, on a connection that the client has abandoned.
timed!(a_part_that_a_frozen_server_takes_late_leaves_nothing_behind);
fn a_part_that_a_frozen_server_takes_late_leaves_nothing_behind() {
    const LEASE: Duration = ms(8000);
    let servers = masters(3);
    let proxy = Proxy::start(servers[2].addr());
    let urls = [servers[0].url(), servers[1].url(), proxy.url()];
    let clients = urls.map(|url| {
        let config = Config::new(url).lease(LEASE);
        Client::open(config.command_timeout(ms(1000))).unwrap()
    });
    let name = unique("late");
    servers[2].cli(&["HSET", &name, STRANGER, "1"]);
    let lock = red(&clients, &name);
    drop(lock.lock().unwrap());
    servers[2].cli(&["DEL", &name]);
    drop(take_from_all(&lock, 3));
    nothing_is_left(&servers);

    servers[2].freeze();
    let guard = lock.lock().unwrap();
    let opened = proxy.opened(Target::Link);
    eventually("a connection is given up", || {
        assert!(lock.is_locked().unwrap());
        proxy.opened(Target::Link) > opened
    });
    drop(guard);
    // The release is sent before the server thaws.
    thread::sleep(ms(50));
    servers[2].thaw();
    let gone = within(LEASE / 2, || servers[2].dbsize() == 0) && {
        // The late acquire may not have run until now.
        thread::sleep(ms(300));
        within(LEASE / 4, || servers[2].dbsize() == 0)
    };
    assert!(gone, "{:?}", servers[2].keys());
}

// The command is executed and its reply is lost.
timed!(lost_replies_leave_nothing_behind);
fn lost_replies_leave_nothing_behind() {
    let (servers, proxies) = proxied();
    let set = |config: Config| config.lease(FOR_LONG).command_timeout(ms(1500));
    let clients = open_through(&proxies, set);
    for lost in 1..=3 {
        for fixed in [false, true] {
            // Make sure that every node is connected and asked again.
            drop(take_from_all(&red(&clients, &unique("healthy")), 5));
            let name = unique("swallow");
            let lock = red(&clients, &name);
            let lock = if fixed {
                lock.fixed_lease(FOR_LONG)
            } else {
                lock
            };
            let traps = |skip: usize| -> Vec<_> {
                let proxies = proxies.iter().skip(skip).take(lost);
                proxies.map(|proxy| proxy.swallow_reply_to(&name)).collect()
            };
            let acquires = traps(0);
            match lock.lock() {
                Ok(guard) => {
                    let keep = keepers(&servers, &name, guard.owner()).len();
                    assert!(keep >= 3, "a guard with {keep} of 5");
                    guard.unlock().unwrap();
                }
                Err(Error::NoQuorum { .. }) if lost == 3 => {}
                Err(err) => panic!("{lost} lost: {err:?}"),
            }
            assert!(acquires.iter().all(|trap| trap.fired()));
            nothing_is_left(&servers);

            let guard = take(&lock);
            // A master whose connection was just replaced may have no part.
            let keep: Vec<_> = servers.iter().map(|server| server.exists(&name)).collect();
            let releases = traps(2);
            guard.unlock().unwrap();
            nothing_is_left(&servers);
            for (release, keeps) in releases.iter().zip(&keep[2..]) {
                assert!(release.fired() || !keeps);
            }
            drop(take(&lock));
            nothing_is_left(&servers);
        }
    }
}

// A majority's replies are lost, and another process acquires the lock before the command is repeated.
timed!(a_force_that_is_sent_twice_counts_once);
fn a_force_that_is_sent_twice_counts_once() {
    let (servers, proxies) = proxied();
    let set = |config: Config| config.lease(FOR_LONG).command_timeout(LONG);
    let clients = open_through(&proxies, set);
    let others = open_with(&servers, set);
    // Every node knows the script and has a connection.
    let healthy = red(&clients, &unique("healthy"));
    let guard = take(&healthy);
    all_keep(&guard, 5);
    drop(guard);
    assert!(!healthy.force_unlock().unwrap());
    // A silent node is abandoned soon; if that happens before its connection is cut, try again.
    for attempt in 1.. {
        let name = unique("twice");
        let traps: Vec<_> = proxies[..3]
            .iter()
            .map(|proxy| proxy.swallow_reply_to(&name))
            .collect();
        for server in &servers {
            server.cli(&["HSET", &name, STRANGER, "1"]);
        }
        let lock = red(&clients, &name);
        let mut crew = Crew::new();
        let (sender, received) = bounded(1);
        crew.spawn(move || sender.send(lock.force_unlock()).unwrap());
        eventually("all have executed it", || {
            servers.iter().all(|server| !server.exists(&name))
        });
        let guard = take(&red(&others, &name));
        all_keep(&guard, 5);
        for proxy in &proxies[..3] {
            proxy.cut(Target::Link);
        }
        let forced = received.recv_timeout(LONG).unwrap();
        crew.join();
        assert_eq!(keepers(&servers, &name, guard.owner()).len(), 5);
        assert!(traps.iter().all(|trap| trap.fired()));
        guard.unlock().unwrap();
        match forced {
            Ok(forced) => return assert!(forced),
            Err(Error::NoQuorum { .. }) if attempt < 20 => {}
            Err(err) => panic!("{err:?}"),
        }
    }
}

timed!(torn_connections_leave_nothing_behind_and_never_make_a_guard_without_a_majority);
fn torn_connections_leave_nothing_behind_and_never_make_a_guard_without_a_majority() {
    torn(ms(2500));
}

#[test]
#[ignore = "takes a minute"]
fn torn_connections_leave_nothing_behind_for_long() {
    torn(ms(60_000));
}

fn torn(time: Duration) {
    let (servers, proxies) = proxied();
    let set = |config: Config| config.lease(FOR_LONG).command_timeout(ms(1500));
    let sets = [(); 2].map(|()| open_through(&proxies, set));
    let done = AtomicBool::new(false);
    let (granted, names) = (AtomicU64::new(0), [unique("torn"), unique("torn")]);
    scoped(|scope| {
        for (clients, own_name) in sets.iter().zip(&names) {
            // Both processes contend for the first name; the second is used by its own process only.
            for name in [own_name, &names[0]] {
                let (servers, done, granted) = (&servers, &done, &granted);
                scope.spawn(move || {
                    let lock = red(clients, name);
                    while !done.load(Ordering::SeqCst) {
                        match lock.try_lock_for(ms(300)) {
                            Ok(Some(guard)) => {
                                let keep = keepers(servers, name, guard.owner()).len();
                                assert!(keep >= 3, "a guard with {keep} of 5");
                                assert!(guard.is_valid());
                                granted.fetch_add(1, Ordering::SeqCst);
                                drop(guard);
                            }
                            Ok(None) | Err(Error::NoQuorum { .. }) => {}
                            Err(err) => panic!("{err:?}"),
                        }
                    }
                });
            }
        }
        let until = Instant::now() + time;
        let mut turn = 0_u64;
        while Instant::now() < until {
            turn += 1;
            // Cut one, two or three connections, at various moments.
            for n in 0..=turn % 3 {
                let proxy = &proxies[usize::try_from((turn + 2 * n) % 5).unwrap()];
                proxy.cut(Target::All);
            }
            thread::sleep(Duration::from_micros(turn * 7919 % 40_000));
        }
        done.store(true, Ordering::SeqCst);
    });
    assert!(granted.into_inner() > 10);
    nothing_is_left(&servers);
}

// Slow replies shorten the remaining lease, and a guard must report what is left.
timed!(slow_answers_shorten_the_lease_and_never_make_a_guard_without_one);
fn slow_answers_shorten_the_lease_and_never_make_a_guard_without_one() {
    let (servers, proxies) = proxied();
    let clients = open_through(&proxies, |config| config);
    let (mut granted, mut refused) = (0, 0);
    for lease in [60, 100, 300, 2000] {
        for delay in [2, 8, 14, 19, 24, 60, 290] {
            let (lease, delay) = (ms(lease), ms(delay));
            let name = unique("slow");
            let lock = red(&clients, &name).fixed_lease(lease);
            for proxy in &proxies {
                proxy.set(Target::Link, Mode::Delay(delay));
            }
            let started_at = Instant::now();
            match lock.try_lock_for(ms(400)) {
                Ok(Some(guard)) => {
                    let now = Instant::now();
                    let latest = now + lease - lease / 100 - ms(2) - delay;
                    assert!(guard.valid_until() <= latest, "{lease:?} {delay:?}");
                    assert!(guard.valid_until() > started_at);
                    granted += 1;
                }
                Ok(None)
                | Err(
                    Error::NoQuorum { .. }
                    | Error::Lost {
                        reason: LossReason::Expired,
                        ..
                    },
                ) => {
                    refused += 1;
                }
                Err(err) => panic!("{lease:?} {delay:?}: {err:?}"),
            }
            for proxy in &proxies {
                proxy.pass();
            }
        }
    }
    assert!(granted > 3 && refused > 3, "{granted} {refused}");
    nothing_is_left(&servers);
    drop(take(&red(&clients, &unique("slow"))));
    nothing_is_left(&servers);
}

timed!(silent_nodes_do_not_make_an_unlock_last_longer_than_its_time);
fn silent_nodes_do_not_make_an_unlock_last_longer_than_its_time() {
    const TIME: Duration = ms(60);
    let servers = masters(7);
    // Only the first client has the short timeout; the others do not abandon a connection that is silent for so short a
    // time.
    let mut clients = open(&servers);
    let config = Config::new(servers[0].url()).lease(FOR_LONG);
    clients[0] = Client::open(config.command_timeout(TIME)).unwrap();
    let lock = red(&clients, &unique("silent"));
    let in_time = |_| {
        let guard = take_from_all(&lock, 7);
        servers[1..].iter().for_each(Server::freeze);
        let began = Instant::now();
        let unlocked = guard.unlock();
        let took = began.elapsed();
        servers[1..].iter().for_each(Server::thaw);
        assert!(
            matches!(unlocked, Err(Error::NoQuorum { .. })),
            "{unlocked:?}"
        );
        nothing_is_left(&servers);
        took < TIME + ms(12)
    };
    // Each of the six others takes a millisecond to be found silent, one after the other. On a busy machine the last of
    // these ends with the second tick of the clock, 4 ms each.
    assert!((0..16).any(in_time));
}

/// Keeps the thread that reports the loss of the lock `blocks`, once it has said so, until the sender of the gate is dropped.
struct Blocks {
    entered: Sender<()>,
    gate: Receiver<()>,
}

impl Observer for Blocks {
    fn lost(&self, loss: &Loss) {
        if loss.name == "blocks" {
            self.entered.send(()).unwrap();
            _ = self.gate.recv();
        }
    }
}

#[test]
fn a_lease_that_ends_while_it_is_renewed_has_expired() {
    let servers = masters(3);
    let ((gate, gates), (entered, blocked)) = (bounded::<()>(0), bounded(3));
    let clients = open_with(&servers, |config| {
        let (entered, gate) = (entered.clone(), gates.clone());
        config.lease(LEASE).observer(Blocks { entered, gate })
    });
    let lock = red(&clients, &unique("late")).fixed_lease(ms(1000));
    let guard = take_from_all(&lock, 3);
    // No watchdog reports the loss first, as after a suspension of the process.
    for client in &clients {
        let _blocking = client.mutex("blocks").fixed_lease(ms(50)).lock().unwrap();
        blocked.recv_timeout(LONG).unwrap();
    }
    servers.iter().for_each(Server::freeze);
    let time_left = guard
        .valid_until()
        .saturating_duration_since(Instant::now());
    thread::sleep(time_left.saturating_sub(ms(20)));
    // Each master has 50 ms to reply.
    let again = lock.try_lock_for(ms(300));
    servers.iter().for_each(Server::thaw);
    assert!(!matches!(again, Ok(Some(_))), "{again:?}");
    let loss = guard.lost().recv_timeout(LONG).unwrap();
    assert_eq!(loss.reason, LossReason::Expired);
    drop(gate);
}

#[test]
fn a_loss_that_only_unlock_finds_is_reported_as_any_other() {
    let servers = masters(3);
    let name = unique("found");
    let (sender, losses) = bounded(9);
    let clients = open_with(&servers, |config| {
        let sender = sender.clone();
        config.on_lost(move |loss| sender.send(loss.clone()).unwrap_or_default())
    });
    // Not renewed, so that no renewal finds the loss first.
    let guard = take_from_all(&red(&clients, &name).fixed_lease(FOR_LONG), 3);
    servers
        .iter()
        .for_each(|server| _ = server.cli(&["DEL", &name]));
    let owner = guard.owner().to_owned();
    let found = guard.unlock();
    let Err(Error::Lost { reason, .. }) = found else {
        panic!("{found:?}");
    };
    let loss = losses.recv_timeout(LONG).unwrap();
    assert_eq!((loss.name, loss.owner, loss.reason), (name, owner, reason));
    assert_eq!((reason, clients[0].stats().lost), (LossReason::Forced, 1));
    // The parts are not reported as well.
    drop(clients);
    assert!(losses.try_recv().is_err());
}
