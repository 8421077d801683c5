//! Random calls of several clients, one of them Java's, compared with a model of what may be true.

use std::thread;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config as Runs, TestCaseError, TestRunner};
use redis::Connection;
use redlatch::{Client, ExpirablePermit, ExpirableSemaphore};

use crate::support::permits::{NEVER, channel, hex, timeouts};
use crate::support::{Server, eventually, ms, open_with_lease, scoped, timed, unique};

/// A third of this is the interval of renewals.
const LEASE: Duration = ms(900);

/// The commands of a Java client, which uses its own clock and returns a single expired permit at most.
const JAVA_ACQUIRE: &str = "
local due = redis.call('zrangebyscore', KEYS[2], 0, ARGV[1], 'limit', 0, 1)
if #due > 0 then
  redis.call('zrem', KEYS[2], due[1])
  local available = redis.call('incrby', KEYS[1], 1)
  if available > 0 then redis.call('publish', KEYS[3], available) end
end
local available = redis.call('get', KEYS[1])
if available and tonumber(available) >= 1 then
  redis.call('decrby', KEYS[1], 1)
  redis.call('zadd', KEYS[2], ARGV[2], ARGV[3])
  return 1
end
return 0";

const JAVA_RELEASE: &str = "
local score = redis.call('zscore', KEYS[2], ARGV[2])
if redis.call('zrem', KEYS[2], ARGV[2]) == 0 then return 0 end
redis.call('publish', KEYS[3], redis.call('incrby', KEYS[1], 1))
return tonumber(score) > tonumber(ARGV[1]) and 1 or 0";

#[derive(Clone, Debug)]
enum Verb {
    /// The client, the number of permits, and the lease in ms; with 0 the permits are renewed.
    Take(usize, u32, u64),
    JavaTake(Option<u64>),
    /// The index among all permits that were ever acquired.
    Release(usize),
    Drop(usize),
    ReleaseIds(usize, Vec<usize>),
    JavaRelease(usize),
    Update(usize, u64),
    LeaseOf(usize),
    Set(u32),
    TrySet(u32),
    Add(i64),
    Count(usize),
    Sleep(u64),
}

fn verbs() -> impl Strategy<Value = Vec<Verb>> {
    let span = || prop_oneof![Just(120_u64), Just(300), Just(5_000)];
    let lease = prop_oneof![Just(0_u64), span()];
    let verb = prop_oneof![
        6 => (0..2_usize, 1..4_u32, lease).prop_map(|(by, n, ms)| Verb::Take(by, n, ms)),
        2 => proptest::option::of(span()).prop_map(Verb::JavaTake),
        2 => (0..64_usize).prop_map(Verb::Release),
        1 => (0..64_usize).prop_map(Verb::Drop),
        2 => (0..2_usize, proptest::collection::vec(0..64_usize, 1..5))
            .prop_map(|(by, which)| Verb::ReleaseIds(by, which)),
        1 => (0..64_usize).prop_map(Verb::JavaRelease),
        2 => ((0..64_usize), span()).prop_map(|(which, ms)| Verb::Update(which, ms)),
        1 => (0..64_usize).prop_map(Verb::LeaseOf),
        1 => (0..9_u32).prop_map(Verb::Set),
        1 => (0..9_u32).prop_map(Verb::TrySet),
        1 => (-2..3_i64).prop_map(Verb::Add),
        2 => (0..2_usize).prop_map(Verb::Count),
        2 => (20..90_u64).prop_map(Verb::Sleep),
    ];
    proptest::collection::vec(verb, 40..60)
}

/// A permit. `ends` is the interval of the server's clock in which it expires, or `None` if it is renewed.
struct Known {
    id: String,
    guard: Option<ExpirablePermit>,
    ends: Option<(i64, i64)>,
    /// Whether it was released, as far as the test knows.
    back: bool,
}

impl Known {
    fn is_certainly_out(&self, after: i64) -> bool {
        !self.back && self.ends.is_none_or(|(earliest, _)| after < earliest)
    }

    fn may_be_out(&self, asked_at: i64) -> bool {
        !self.back && self.ends.is_none_or(|(_, latest)| asked_at < latest)
    }
}

struct Model<'a> {
    con: Connection,
    sems: [ExpirableSemaphore; 2],
    name: &'a str,
    total: i64,
    known: Vec<Known>,
    drawn: u8,
}

impl Model<'_> {
    fn now(&mut self) -> i64 {
        let (s, us): (i64, i64) = redis::cmd("TIME").query(&mut self.con).unwrap();
        s * 1000 + us / 1000
    }

    fn java(&mut self, script: &str, args: &[&[u8]]) -> i64 {
        redis::cmd("EVAL")
            .arg(script)
            .arg(3)
            .arg(self.name)
            .arg(timeouts(self.name))
            .arg(channel(self.name))
            .arg(args)
            .query(&mut self.con)
            .unwrap()
    }

    fn certainly_out(&self, after: i64) -> i64 {
        let out = self
            .known
            .iter()
            .filter(|known| known.is_certainly_out(after));
        i64::try_from(out.count()).unwrap()
    }

    fn maybe_out(&self, asked_at: i64) -> i64 {
        let out = self.known.iter().filter(|known| known.may_be_out(asked_at));
        i64::try_from(out.count()).unwrap()
    }

    fn at(&self, which: usize) -> Option<usize> {
        (!self.known.is_empty()).then(|| which % self.known.len())
    }

    /// Checks whether a reply that a permit is held, or is not, can be true.
    fn check_out(
        &self,
        at: usize,
        said: bool,
        asked_at: i64,
        after: i64,
    ) -> Result<(), TestCaseError> {
        if said {
            prop_assert!(self.known[at].may_be_out(asked_at), "{at} is out");
        } else {
            prop_assert!(!self.known[at].is_certainly_out(after), "{at} is not out");
        }
        Ok(())
    }

    /// Checks a loss that the holder was told: the permit must have expired in Redis, or be about to.
    fn check_lost(&mut self, at: usize) -> Result<(), TestCaseError> {
        // The replies to these follow all earlier requests of both clients.
        self.sems[0].permits().unwrap();
        self.sems[1].permits().unwrap();
        let after = self.now();
        if self.known[at].is_certainly_out(after) {
            let ends = self.known[at].ends;
            prop_assert!(
                ends.is_some_and(|(earliest, _)| earliest < after + 100),
                "{at} is not lost"
            );
        }
        Ok(())
    }

    fn run(&mut self, verb: &Verb) -> Result<(), TestCaseError> {
        let asked_at = self.now();
        match verb {
            Verb::Take(by, n, lease) => {
                let sem = self.sems[*by].clone();
                let sem = if *lease > 0 {
                    sem.fixed_lease(ms(*lease))
                } else {
                    sem
                };
                let taken = sem.try_acquire_many(*n).unwrap();
                let after = self.now();
                let n = i64::from(*n);
                match taken {
                    Some(permits) => {
                        prop_assert!(self.total - self.certainly_out(after) >= n);
                        let lease = i64::try_from(*lease).unwrap();
                        let ends = (lease > 0).then_some((asked_at + lease, after + lease));
                        self.known.extend(permits.into_iter().map(|permit| Known {
                            id: permit.id().to_owned(),
                            guard: Some(permit),
                            ends,
                            back: false,
                        }));
                    }
                    None => prop_assert!(self.total - self.maybe_out(asked_at) < n),
                }
            }
            Verb::JavaTake(lease) => {
                self.drawn += 1;
                let raw = [self.drawn; 16];
                let until = lease.map_or(NEVER, |ms| asked_at + i64::try_from(ms).unwrap());
                let (now, score) = (asked_at.to_string(), until.to_string());
                if self.java(JAVA_ACQUIRE, &[now.as_bytes(), score.as_bytes(), &raw]) == 1 {
                    let after = self.now();
                    prop_assert!(self.total - self.certainly_out(after) >= 1);
                    self.known.push(Known {
                        id: hex(&raw),
                        guard: None,
                        ends: lease.map(|_| (until, until)),
                        back: false,
                    });
                }
            }
            Verb::Release(which) => {
                let Some(at) = self.at(*which) else {
                    return Ok(());
                };
                if let Some(permit) = self.known[at].guard.take() {
                    if permit.release().is_ok() {
                        let after = self.now();
                        self.check_out(at, true, asked_at, after)?;
                    } else {
                        self.check_lost(at)?;
                    }
                    self.known[at].back = true;
                }
            }
            Verb::Drop(which) => {
                let Some(at) = self.at(*which) else {
                    return Ok(());
                };
                if self.known[at].guard.take().is_some() {
                    // The release was only sent; the replies to these questions follow it.
                    self.sems[0].permits().unwrap();
                    self.sems[1].permits().unwrap();
                    self.known[at].back = true;
                }
            }
            Verb::ReleaseIds(by, which) => {
                let mut places: Vec<_> = which.iter().filter_map(|which| self.at(*which)).collect();
                places.sort_unstable();
                places.dedup();
                let ids: Vec<_> = places.iter().map(|at| self.known[*at].id.clone()).collect();
                let released = self.sems[*by].release_ids(&ids).unwrap();
                prop_assert_eq!(released.len(), ids.len());
                let after = self.now();
                for (at, released) in std::iter::zip(places, released) {
                    self.check_out(at, released, asked_at, after)?;
                    self.known[at].back = true;
                }
            }
            Verb::JavaRelease(which) => {
                let Some(at) = self.at(*which) else {
                    return Ok(());
                };
                let id = u128::from_str_radix(&self.known[at].id, 16).unwrap();
                let now = asked_at.to_string();
                let done = self.java(JAVA_RELEASE, &[now.as_bytes(), &id.to_be_bytes()]);
                let after = self.now();
                self.check_out(at, done == 1, asked_at, after)?;
                self.known[at].back = true;
            }
            Verb::Update(which, lease) => {
                let Some(at) = self.at(*which) else {
                    return Ok(());
                };
                let Some(permit) = &self.known[at].guard else {
                    return Ok(());
                };
                let updated = permit.update_lease(ms(*lease)).is_ok();
                let valid = permit.is_valid();
                let after = self.now();
                if updated {
                    self.check_out(at, true, asked_at, after)?;
                    let lease = i64::try_from(*lease).unwrap();
                    self.known[at].ends = Some((asked_at + lease, after + lease));
                } else {
                    prop_assert!(!valid);
                    self.known[at].guard = None;
                    self.check_lost(at)?;
                    self.known[at].back = true;
                }
            }
            Verb::LeaseOf(which) => {
                let Some(at) = self.at(*which) else {
                    return Ok(());
                };
                let lease = self.sems[0].remaining_lease_of(&self.known[at].id).unwrap();
                let after = self.now();
                self.check_out(at, lease.is_some(), asked_at, after)?;
                if let (Some(lease), Some((earliest, latest))) = (lease, self.known[at].ends) {
                    let lease = i64::try_from(lease.as_millis()).unwrap();
                    prop_assert!((earliest - after..=latest - asked_at).contains(&lease));
                }
            }
            Verb::Set(n) => {
                self.sems[0].set_permits(*n).unwrap();
                self.total = i64::from(*n);
            }
            Verb::TrySet(n) => prop_assert!(!self.sems[1].try_set_permits(*n).unwrap()),
            Verb::Add(more) => {
                self.sems[1].add_permits(*more).unwrap();
                self.total += more;
            }
            Verb::Count(by) => {
                prop_assert_eq!(self.sems[*by].permits().unwrap(), self.total);
                let acquired = self.sems[*by].acquired_permits().unwrap();
                let after = self.now();
                let acquired = i64::try_from(acquired).unwrap();
                prop_assert!(acquired >= self.certainly_out(after));
                prop_assert!(acquired <= self.maybe_out(asked_at));
            }
            Verb::Sleep(span) => thread::sleep(ms(*span)),
        }
        // A permit that its guard takes for valid exists in Redis.
        for known in &self.known {
            if let Some(permit) = &known.guard
                && permit.is_valid()
                && !known.back
            {
                let at: Option<f64> = redis::cmd("ZSCORE")
                    .arg(timeouts(self.name))
                    .arg(&u128::from_str_radix(&known.id, 16).unwrap().to_be_bytes())
                    .query(&mut self.con)
                    .unwrap();
                prop_assert!(at.is_some() || !permit.is_valid(), "{} is valid", known.id);
            }
        }
        let all = "return redis.call('get', KEYS[1]) + redis.call('zcard', KEYS[2])";
        prop_assert_eq!(self.java(all, &[]), self.total);
        Ok(())
    }
}

timed!(whatever_is_done_the_permits_add_up_and_answers_are_true);
fn whatever_is_done_the_permits_add_up_and_answers_are_true() {
    let server = Server::start();
    let clients = [(); 2].map(|()| open_with_lease(&server, LEASE));
    scoped(|scope| {
        for _ in 0..4 {
            let (server, clients) = (&server, &clients);
            scope.spawn(move || {
                let mut runner = TestRunner::new(Runs {
                    cases: 3,
                    failure_persistence: None,
                    max_shrink_iters: 20,
                    ..Runs::default()
                });
                runner
                    .run(&verbs(), |verbs| one_life(server, clients, &verbs))
                    .unwrap_or_else(|err| panic!("{err}"));
            });
        }
    });
}

fn one_life(server: &Server, clients: &[Client; 2], verbs: &[Verb]) -> Result<(), TestCaseError> {
    let name = unique("model");
    let sems = [0, 1].map(|i: usize| clients[i].expirable_semaphore(&name));
    prop_assert!(sems[0].try_set_permits(5).unwrap());
    let mut model = Model {
        con: server.connection(),
        sems: sems.clone(),
        name: &name,
        total: 5,
        known: Vec::new(),
        drawn: 0,
    };
    for verb in verbs {
        model.run(verb)?;
    }
    let total = model.total;
    let java: Vec<_> = model
        .known
        .iter()
        .filter(|known| known.guard.is_none())
        .map(|known| known.id.clone())
        .collect();
    drop(model);
    sems[0].release_ids(&java).unwrap();
    // The remaining permits expire in time.
    for known in sems {
        eventually("all are back", || {
            known.available_permits().unwrap() == total
        });
        prop_assert_eq!(known.acquired_permits().unwrap(), 0);
    }
    Ok(())
}
