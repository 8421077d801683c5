//! The read-write lock, compared with a model after each of many random steps.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::time::Duration;

use LossReasonOrd::{Forced, TakenOver};
use redis::Connection;
use redlatch::{Client, Config, Error, LossReason, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::support::rwlock::{Actor, Desk, hold_key};
use crate::support::{Server, ms, unique};

/// Pseudo-random numbers, the same in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).unwrap() % sides
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// A model
// ---------------------------------------------------------------------------------------------------------------------

/// A lease longer than the test, so that renewals and clocks have no influence.
const FOR_EVER: Duration = ms(3_600_000);

/// A fixed lease, as long.
const FIXED: Duration = ms(3_600_001);

type Id = usize;

/// The result of a call.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Came {
    /// Acquired, with this hold.
    In(Id),
    Busy,
    Deadlock,
    Lost(LossReasonOrd),
    Done(bool),
}

/// The reasons for a loss that occur here, in an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum LossReasonOrd {
    Forced,
    TakenOver,
}

/// A hold in Redis.
#[derive(Debug, Clone)]
struct Hold {
    client: usize,
    writes: bool,
    fixed: bool,
    /// The loss, if the process knows of it.
    lost: Option<LossReasonOrd>,
    /// How many guards each actor has of this hold, lost or not.
    guards: BTreeMap<usize, u32>,
}

/// The lock in Redis: the writer with its count, and the readers, each with whether its own key still exists.
#[derive(Debug, Clone, Default)]
struct Hash {
    writer: Option<(Id, u32)>,
    readers: BTreeMap<Id, bool>,
}

impl Hash {
    fn is_empty(&self) -> bool {
        self.writer.is_none() && self.readers.is_empty()
    }
}

#[derive(Debug, Default)]
struct Model {
    holds: Vec<Hold>,
    redis: Hash,
}

impl Model {
    /// Actors 0 and 1 belong to the first client, 2 and 3 to the second.
    fn client_of(actor: usize) -> usize {
        actor / 2
    }

    fn valid(&self, client: usize, writes: bool) -> impl Iterator<Item = Id> + '_ {
        self.holds
            .iter()
            .enumerate()
            .filter(move |(_, hold)| {
                hold.client == client
                    && hold.writes == writes
                    && hold.lost.is_none()
                    && !hold.guards.is_empty()
            })
            .map(|(id, _)| id)
    }

    /// The actor's hold that its process takes for valid.
    fn mine(&self, actor: usize, writes: bool) -> Option<Id> {
        self.valid(Self::client_of(actor), writes)
            .find(|id| self.holds[*id].guards.contains_key(&actor))
    }

    fn count(&self, actor: usize, writes: bool) -> u32 {
        self.mine(actor, writes)
            .map_or(0, |id| self.holds[id].guards[&actor])
    }

    fn granted(&mut self, actor: usize, writes: bool, fixed: bool) -> Id {
        self.holds.push(Hold {
            client: Self::client_of(actor),
            writes,
            fixed,
            lost: None,
            guards: BTreeMap::from([(actor, 1)]),
        });
        self.holds.len() - 1
    }

    /// Adds a guard to a hold of the actor; `None` if that turns out to be lost.
    fn again(&mut self, actor: usize, id: Id, fixed: bool) -> Option<Id> {
        let count = self.holds[id].guards[&actor] + 1;
        if self.holds[id].fixed {
            // A fixed lease is renewed in Redis, which reveals a loss.
            if let Err(reason) = self.renew(id, count) {
                self.holds[id].lost = Some(reason);
                return None;
            }
            self.holds[id].fixed = fixed;
        }
        self.holds[id].guards.insert(actor, count);
        Some(id)
    }

    fn renew(&mut self, id: Id, count: u32) -> Result<(), LossReasonOrd> {
        let redis = &mut self.redis;
        if self.holds[id].writes {
            return match redis.writer {
                Some((writer, _)) if writer == id => {
                    redis.writer = Some((id, count));
                    Ok(())
                }
                _ if redis.is_empty() => Err(Forced),
                _ => Err(TakenOver),
            };
        }
        match redis.readers.get(&id) {
            Some(true) => Ok(()),
            _ => {
                redis.readers.remove(&id);
                Err(if redis.writer.is_some() {
                    TakenOver
                } else {
                    Forced
                })
            }
        }
    }

    /// With `joins` the actor may share a hold of its process, which is possible during a tenure.
    fn read(&mut self, actor: usize, fixed: bool, joins: bool) -> Came {
        if let Some(id) = self.mine(actor, false)
            && let Some(id) = self.again(actor, id, fixed)
        {
            return Came::In(id);
        }
        let client = Self::client_of(actor);
        let above = self.mine(actor, true);
        if above.is_none() {
            if self.valid(client, true).next().is_some() {
                return Came::Busy;
            }
            let shared = self
                .valid(client, false)
                .find(|id| joins && !fixed && !self.holds[*id].fixed);
            if let Some(id) = shared {
                self.holds[id].guards.insert(actor, 1);
                return Came::In(id);
            }
        }
        match self.redis.writer {
            Some((writer, _)) if Some(writer) != above => Came::Busy,
            _ => {
                let id = self.granted(actor, false, fixed);
                self.redis.readers.insert(id, true);
                Came::In(id)
            }
        }
    }

    fn write(&mut self, actor: usize, fixed: bool) -> Came {
        if let Some(id) = self.mine(actor, true)
            && let Some(id) = self.again(actor, id, fixed)
        {
            return Came::In(id);
        }
        if self.mine(actor, false).is_some() {
            return Came::Deadlock;
        }
        let client = Self::client_of(actor);
        if [true, false]
            .into_iter()
            .any(|writes| self.valid(client, writes).next().is_some())
        {
            return Came::Busy;
        }
        // A reader whose key has expired excludes a writer until another reader leaves and removes it.
        if !self.redis.is_empty() {
            return Came::Busy;
        }
        let id = self.granted(actor, true, fixed);
        self.redis.writer = Some((id, 1));
        Came::In(id)
    }

    /// Removes a guard; returns the result of `unlock`.
    fn unlock(&mut self, actor: usize, id: Id) -> Came {
        let hold = &mut self.holds[id];
        let guards_left = hold.guards[&actor] - 1;
        if guards_left == 0 {
            hold.guards.remove(&actor);
        } else {
            hold.guards.insert(actor, guards_left);
        }
        if let Some(reason) = hold.lost {
            return Came::Lost(reason);
        }
        if !hold.guards.is_empty() {
            return Came::Done(true);
        }
        let redis = &mut self.redis;
        let (released, others) = if hold.writes {
            let released = redis.writer.is_some_and(|(writer, _)| writer == id);
            if released {
                redis.writer = None;
            }
            (released, !redis.is_empty())
        } else {
            let released = redis.readers.remove(&id).is_some();
            if !released {
                // Nothing of others is removed.
            } else if redis.writer.is_none() && !redis.readers.values().any(|alive| *alive) {
                redis.readers.clear();
            } else if redis.writer.is_none() {
                redis.readers.retain(|_, alive| *alive);
            }
            (released, redis.writer.is_some())
        };
        match (released, others) {
            (true, _) => Came::Done(true),
            (false, true) => Came::Lost(TakenOver),
            (false, false) => Came::Lost(Forced),
        }
    }

    fn downgrade(&mut self, actor: usize, id: Id) -> Came {
        let fixed = self.holds[id].fixed;
        let read = self.read(actor, fixed, true);
        let unlocked = self.unlock(actor, id);
        match (read, unlocked) {
            (Came::In(read), Came::Done(_)) => Came::In(read),
            (Came::In(read), lost) => {
                self.unlock(actor, read);
                lost
            }
            _ => Came::Lost(self.holds[id].lost.unwrap_or(TakenOver)),
        }
    }

    /// A client, or a stranger, forces the lock open.
    fn force(&mut self, client: Option<usize>) -> Came {
        let was_held = !mem::take(&mut self.redis).is_empty();
        for hold in &mut self.holds {
            if was_held && client == Some(hold.client) && !hold.guards.is_empty() {
                hold.lost.get_or_insert(Forced);
            }
        }
        Came::Done(was_held)
    }

    /// The key of a read hold expires.
    fn expire(&mut self, id: Id) {
        if let Some(alive) = self.redis.readers.get_mut(&id) {
            *alive = false;
        }
    }
}

/// The real lock, with the same calls.
struct Real {
    actors: Vec<Actor>,
    raw: Connection,
    name: String,
    /// The hold of each owner.
    owners: BTreeMap<String, Id>,
}

fn reason(error: Error) -> Came {
    match error {
        Error::WouldDeadlock { .. } => Came::Deadlock,
        Error::Lost {
            reason: LossReason::Forced,
            ..
        } => Came::Lost(Forced),
        Error::Lost {
            reason: LossReason::TakenOver,
            ..
        } => Came::Lost(TakenOver),
        other => panic!("{other:?}"),
    }
}

impl Real {
    /// An owner that is not known yet has the newest hold of the model.
    fn came_in(&mut self, owner: &str, model: &Model) -> Came {
        let next = model.holds.len() - 1;
        Came::In(*self.owners.entry(owner.to_owned()).or_insert(next))
    }

    /// Returns the owner of the hold, if the lock was acquired.
    fn takes(&mut self, actor: usize, writes: bool, fixed: bool) -> Result<Option<String>, Came> {
        self.actors[actor].does(move |desk| {
            let lock = if fixed {
                desk.lock.clone().fixed_lease(FIXED)
            } else {
                desk.lock.clone()
            };
            if writes {
                let guard = lock.try_write().map_err(reason)?;
                Ok(guard.map(|guard| {
                    desk.writes.push(guard);
                    desk.writes[desk.writes.len() - 1].owner().to_owned()
                }))
            } else {
                let guard = lock.try_read().map_err(reason)?;
                Ok(guard.map(|guard| {
                    desk.reads.push(guard);
                    desk.reads[desk.reads.len() - 1].owner().to_owned()
                }))
            }
        })
    }

    /// Releases a guard: with `waits` by `unlock`, otherwise by a drop, whose release precedes the next question.
    fn leaves(&mut self, actor: usize, writes: bool, at: usize, waits: bool) -> Came {
        self.actors[actor].does(move |desk| {
            let result = match (writes, waits) {
                (true, true) => desk.writes.remove(at).unlock(),
                (false, true) => desk.reads.remove(at).unlock(),
                (true, false) => {
                    drop(desk.writes.remove(at));
                    Ok(())
                }
                (false, false) => {
                    drop(desk.reads.remove(at));
                    Ok(())
                }
            };
            result.map_or_else(reason, |()| Came::Done(true))
        })
    }

    fn downgrades(&mut self, actor: usize, at: usize, model: &Model) -> Came {
        let read = self.actors[actor].does(move |desk| {
            let guard = desk.writes.remove(at).downgrade().map_err(reason)?;
            let owner = guard.owner().to_owned();
            desk.reads.push(guard);
            Ok(owner)
        });
        read.map_or_else(|came| came, |owner| self.came_in(&owner, model))
    }

    fn owner(&self, id: Id) -> &str {
        let found = self.owners.iter().find(|(_, known)| **known == id);
        found.unwrap().0
    }

    /// Checks that everything visible matches the model.
    fn looks_like(&mut self, model: &Model, guards: &[[Vec<Id>; 2]], after: &str) {
        // The reply to a question follows the releases that were sent before it.
        for of_client in self.actors.chunks(2) {
            of_client[0].does(|desk| desk.lock.is_read_locked().unwrap());
        }
        for (actor, theirs) in guards.iter().enumerate() {
            let visible = self.actors[actor].does(|desk| {
                let valid = |guards: Vec<bool>| guards;
                (
                    desk.counts(),
                    desk.lock.is_read_locked().unwrap(),
                    desk.lock.is_write_locked().unwrap(),
                    desk.lock.is_owned_by_current_thread(),
                    valid(desk.reads.iter().map(RwLockReadGuard::is_valid).collect()),
                    valid(desk.writes.iter().map(RwLockWriteGuard::is_valid).collect()),
                )
            });
            let counts = (model.count(actor, false), model.count(actor, true));
            let valid = |ids: &[Id]| -> Vec<bool> {
                ids.iter()
                    .map(|id| model.holds[*id].lost.is_none())
                    .collect()
            };
            assert_eq!(
                visible,
                (
                    counts,
                    !model.redis.readers.is_empty(),
                    model.redis.writer.is_some(),
                    counts != (0, 0),
                    valid(&theirs[0]),
                    valid(&theirs[1]),
                ),
                "actor {actor} after {after}, {model:#?}"
            );
        }
        let (found, ttl_left): (BTreeMap<String, String>, i64) = redis::pipe()
            .hgetall(&self.name)
            .pttl(&self.name)
            .query(&mut self.raw)
            .unwrap();
        let mut expected = BTreeMap::new();
        for id in model.redis.readers.keys() {
            expected.insert(self.owner(*id).to_owned(), "1".to_owned());
        }
        if let Some((id, count)) = model.redis.writer {
            expected.insert(format!("{}:write", self.owner(id)), count.to_string());
        }
        if !expected.is_empty() {
            let mode = if model.redis.writer.is_some() {
                "write"
            } else {
                "read"
            };
            expected.insert("mode".to_owned(), mode.to_owned());
        }
        assert_eq!(found, expected, "after {after}");
        assert_eq!(
            ttl_left > 0,
            !expected.is_empty(),
            "{ttl_left} after {after}"
        );
    }
}

// Thousands of random steps, each compared with the model in its result and in everything visible.
#[test]
fn random_verbs_do_what_the_model_says() {
    const STEPS: usize = 3_000;
    const ACTORS: usize = 4;
    let server = Server::start();
    let name = unique("model");
    let clients = [(); 3].map(|()| {
        let config = Config::new(server.url()).lease(FOR_EVER).tenure(ms(1_000));
        Client::open(config).unwrap()
    });
    let mut real = Real {
        actors: (0..ACTORS)
            .map(|actor| Actor::new(clients[Model::client_of(actor)].rw_lock(&name)))
            .collect(),
        raw: server.connection(),
        name: name.clone(),
        owners: BTreeMap::new(),
    };
    let third = clients[2].rw_lock(&name);
    let mut model = Model::default();
    // Each actor's guards, in the order of its desk: readers and writers.
    let mut guards: [[Vec<Id>; 2]; ACTORS] = Default::default();
    let (mut dice, mut kind_counts) = (Dice(0x5EED_0042), BTreeMap::<String, u32>::new());
    for step in 0..STEPS {
        let actor = dice.roll(ACTORS);
        let (mut verb, fixed) = (dice.roll(100), dice.roll(2) == 0);
        let held = guards[actor].each_ref().map(Vec::len);
        if verb < 40 && held[0] + held[1] > dice.roll(4) {
            verb += 40; // the more guards an actor has, the more it releases
        }
        let (verb_name, expected, came) = match verb {
            0..40 => {
                let writes = verb % 2 == 0;
                let taken = real.takes(actor, writes, fixed);
                let is_known = |owner: &String| real.owners.contains_key(owner);
                // On a busy machine a hold may be older than a tenure. Then readers ask Redis, which may refuse them.
                let joins = matches!(&taken, Ok(Some(owner)) if is_known(owner));
                let expected = if writes {
                    model.write(actor, fixed)
                } else {
                    model.read(actor, fixed, joins)
                };
                let came = match taken {
                    Ok(Some(owner)) => real.came_in(&owner, &model),
                    Ok(None) => Came::Busy,
                    Err(came) => came,
                };
                if let Came::In(id) = expected {
                    guards[actor][usize::from(writes)].push(id);
                }
                (if writes { "write" } else { "read" }, expected, came)
            }
            40..84 if held != [0, 0] => {
                let writes = dice.roll(held[0] + held[1]) >= held[0];
                let at = dice.roll(held[usize::from(writes)]);
                let id = guards[actor][usize::from(writes)].remove(at);
                let expected = model.unlock(actor, id);
                let waits = verb % 4 != 0;
                let came = real.leaves(actor, writes, at, waits);
                (
                    if waits { "unlock" } else { "drop" },
                    if waits { expected } else { Came::Done(true) },
                    came,
                )
            }
            84..92 if held[1] > 0 => {
                let at = dice.roll(held[1]);
                let id = guards[actor][1].remove(at);
                let expected = model.downgrade(actor, id);
                let came = real.downgrades(actor, at, &model);
                if let Came::In(id) = expected {
                    guards[actor][0].push(id);
                }
                ("downgrade", expected, came)
            }
            92..94 => {
                let expected = model.force(None);
                let came = Came::Done(third.force_unlock().unwrap());
                ("forced by a third", expected, came)
            }
            94..95 => {
                let expected = model.force(Some(Model::client_of(actor)));
                let came = real.actors[actor]
                    .does(|desk: &mut Desk| Came::Done(desk.lock.force_unlock().unwrap()));
                ("forced", expected, came)
            }
            95..98 if !model.redis.readers.is_empty() => {
                let ids: Vec<_> = model.redis.readers.keys().copied().collect();
                let id = ids[dice.roll(ids.len())];
                let key = hold_key(&name, real.owner(id));
                let there = model.redis.readers[&id];
                model.expire(id);
                let mut how = redis::cmd(if verb % 2 == 0 { "DEL" } else { "PEXPIRE" });
                how.arg(&key);
                if verb % 2 != 0 {
                    how.arg(0);
                }
                let gone: bool = how.query(&mut real.raw).unwrap();
                ("a read hold ends", Came::Done(there), Came::Done(gone))
            }
            98.. => {
                let expected = model.force(None);
                let gone: bool = redis::cmd("PEXPIRE")
                    .arg(&name)
                    .arg(0)
                    .query(&mut real.raw)
                    .unwrap();
                ("all ends", expected, Came::Done(gone))
            }
            _ => continue,
        };
        assert_eq!(
            came, expected,
            "step {step}: {verb_name} by {actor}, {model:#?}"
        );
        let kind = match &came {
            Came::In(id) if held[usize::from(verb_name == "write")] > 0 => {
                format!("{verb_name}: again {}", model.holds[*id].fixed)
            }
            Came::In(id) if model.holds[*id].guards.len() > 1 => format!("{verb_name}: shares"),
            Came::In(_) => format!("{verb_name}: in"),
            other => format!("{verb_name}: {other:?}"),
        };
        *kind_counts.entry(kind).or_default() += 1;
        real.looks_like(
            &model,
            &guards,
            &format!("step {step}: {verb_name} by {actor}"),
        );
    }
    for (kind, times) in [
        ("read: in", 33),
        ("read: shares", 16),
        ("read: Busy", 33),
        ("read: again true", 3),
        ("read: again false", 16),
        ("write: in", 16),
        ("write: Busy", 33),
        ("write: Deadlock", 16),
        ("write: again true", 1),
        ("write: again false", 3),
        ("unlock: Done(true)", 33),
        ("unlock: Lost(Forced)", 6),
        ("unlock: Lost(TakenOver)", 6),
        ("downgrade: Lost(TakenOver)", 1),
        ("forced: Done(true)", 1),
        ("a read hold ends: Done(true)", 3),
    ] {
        let found = kind_counts.get(kind).copied().unwrap_or(0);
        assert!(found >= times, "{kind} {found} times: {kind_counts:#?}");
    }
    // At the end all guards are dropped. The keys that may remain belong to holds that were forced away.
    for actor in &real.actors {
        actor.does(|desk| {
            desk.reads.clear();
            desk.writes.clear();
        });
    }
    let lock: RwLock = clients[0].rw_lock(&name);
    drop(lock.try_write().unwrap());
    let orphans: BTreeSet<_> = real
        .owners
        .keys()
        .map(|owner| hold_key(&name, owner))
        .collect();
    drop(lock);
    for client in &clients {
        client.close(ms(5_000)).unwrap();
    }
    let keys = server.keys_but_requests();
    assert!(keys.iter().all(|key| orphans.contains(key)));
}
