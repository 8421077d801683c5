//! The rooms of a client: made when a thread comes, gone when idle.

use std::collections::hash_map::{Entry, RandomState};
use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use redis::Value;

use crate::call::{Call, Deferred, DeferredTerms, Fault};
use crate::desk::Desk;
use crate::error::Result;
use crate::hold::Hold;
use crate::room::{Calls, Mode, Room};
use crate::semaphore::{Offer, Place, Slips};
use crate::wait::{Called, Waiter};
use crate::wire::{Family, Wire};

pub(crate) type LockRoom = Room<Arc<Waiter>, Arc<Hold>, Arc<Call>>;

/// The door of one lock in this process: its names, and its room behind a mutex.
///
/// With the mutex held a thread may take a waiter's, the agenda's and the link's, in memory; it does no I/O.
pub(crate) struct Gate {
    /// As the user gave it; several names joined.
    pub(crate) name: Arc<str>,
    pub(crate) wire: Wire,
    inside: Mutex<Inside>,
}

pub(crate) struct Inside {
    pub(crate) room: LockRoom,
    /// The line of a semaphore, which has no use for the room.
    pub(crate) desk: Desk<Arc<Place>, Offer>,
    pub(crate) slips: Slips,
    /// How to reach the contenders while they park.
    pub(crate) contenders: Vec<Arc<Waiter>>,
    /// The last look for writers of other processes, while readers of this one come and go.
    lookout: Option<Lookout>,
    /// Readers of this process that were refused, and have not read since.
    kept_out: Option<KeptOut>,
    /// Writers elsewhere that were let go first, and did not come.
    no_shows: Option<NoShows>,
}

struct KeptOut {
    since: Instant,
    forgotten_at: Instant,
    /// How many writers waited at the least, all the time; none if one was seen to write.
    writers: u64,
}

struct NoShows {
    count: u64,
    forgotten_at: Instant,
}

struct Lookout {
    since: Instant,
    call: Arc<Call>,
}

/// How often at most readers that join a hold of this process look whether others wait to write.
///
/// The answer is read by whoever uses the link next, or by the watchdog, which on a quiet link comes by after 100 ms.
const LOOK_OUT: Duration = Duration::from_millis(5);

/// For how many times as long as they were waited for writers that did not come are passed over.
const PASSED_OVER: u32 = 6;

/// When a look of which nothing was heard is given up.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

type LockCalls = Calls<Arc<Waiter>, Arc<Hold>>;

impl Gate {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock()
    }

    /// The release of one owner's hold, to be sent until `useful_until`.
    pub(crate) fn release(
        &self,
        mode: Mode,
        owner: &str,
        useful_until: Instant,
        undo: bool,
    ) -> Deferred {
        Deferred {
            request: self.wire.release(mode, owner),
            terms: DeferredTerms {
                name: Arc::clone(&self.name),
                useful_until,
                undo,
                for_good: false,
            },
        }
    }

    /// Redis was out of reach for the whole response timeout: nobody in line needs to find that out again.
    pub(crate) fn dismiss(&self, fault: &Fault) {
        let mut inside = self.lock();
        let waiters = inside.room.dismiss();
        for waiter in &waiters {
            waiter.store(Called::Failed(fault.clone()));
        }
        drop(inside);
        for waiter in waiters {
            waiter.wake();
        }
    }

    /// Ends the local reign of a lost hold, so that others of this process may go and ask Redis.
    pub(crate) fn lost(&self, hold: &Arc<Hold>) {
        let mut inside = self.lock();
        let next = inside.room.lost(hold, Instant::now());
        inside.tell(&next);
        drop(inside);
        wake(next);
    }
}

impl Inside {
    /// Tells those whose turn it is; they have to be woken once the mutex has been let go.
    pub(crate) fn tell(&mut self, calls: &LockCalls) {
        for (waiter, hold) in &calls.joined {
            waiter.store(Called::Granted(Arc::clone(hold)));
        }
        if let Some(next) = &calls.contend {
            next.store(Called::Contend(self.room.start(Instant::now())));
        }
    }

    pub(crate) fn forget_contender(&mut self, waiter: Option<&Arc<Waiter>>) {
        if let Some(waiter) = waiter {
            self.contenders.retain(|other| !Arc::ptr_eq(other, waiter));
        }
    }

    /// Since when readers of this process have been refused. Asking once again and again is a wait like any other, so
    /// a writer that is let go first is let go first for no longer than by one who waits.
    pub(crate) fn kept_out_since(&self, now: Instant) -> Instant {
        match &self.kept_out {
            Some(kept_out) if now < kept_out.forgotten_at => kept_out.since,
            _ => now,
        }
    }

    /// A reader was refused, because that many `writers` wait or because somebody writes; who comes within `memory` is
    /// kept out since then.
    pub(crate) fn keep_out(&mut self, now: Instant, memory: Duration, writers: Option<u64>) {
        let before = self.kept_out.as_ref();
        let least = before
            .filter(|kept_out| now < kept_out.forgotten_at)
            .map_or(u64::MAX, |kept_out| kept_out.writers);
        self.kept_out = Some(KeptOut {
            since: self.kept_out_since(now),
            forgotten_at: now + memory,
            writers: least.min(writers.unwrap_or(0)),
        });
    }

    /// A reader came in. If writers were let go first for as long as they may be, `patience`, they are passed over from
    /// now on: one that was stopped would cost every reader that long.
    pub(crate) fn let_in(&mut self, now: Instant, patience: Duration) {
        if let Some(kept_out) = self.kept_out.take()
            && kept_out.writers > 0
            && now >= kept_out.since + patience
        {
            self.no_shows = Some(NoShows {
                count: kept_out.writers,
                forgotten_at: now + patience * PASSED_OVER,
            });
            // It may be of a time before they came.
            self.lookout = None;
        }
    }

    /// How many of the writers that wait elsewhere are not let go first.
    pub(crate) fn no_shows(&self, now: Instant) -> u64 {
        self.no_shows
            .as_ref()
            .filter(|no_shows| now < no_shows.forgotten_at)
            .map_or(0, |no_shows| no_shows.count)
    }

    /// That many writers wait. The next to come is not among those that did not.
    pub(crate) fn count_writers(&mut self, writers: u64) {
        if let Some(no_shows) = &mut self.no_shows {
            no_shows.count = no_shows.count.min(writers);
        }
    }

    fn is_idle(&self, now: Instant) -> bool {
        let kept_out = self.kept_out.as_ref();
        self.room.is_idle(now)
            && self.desk.is_free()
            && kept_out.is_none_or(|kept_out| now >= kept_out.forgotten_at)
            && self.no_shows(now) == 0
    }

    /// Has the shared holds of this process take no more threads once somebody elsewhere is seen to wait to write.
    ///
    /// Nobody waits for the answer: it is looked at by whoever comes next. `submit` sends the question, in memory only;
    /// `true` if it has to be flushed.
    pub(crate) fn look_out(
        &mut self,
        now: Instant,
        submit: impl FnOnce() -> Option<Arc<Call>>,
    ) -> bool {
        if let Some(lookout) = &self.lookout {
            let age = now.saturating_duration_since(lookout.since);
            let outcome = lookout.call.outcome();
            if let Some(Ok(reply)) = &outcome
                && let Some(writers) = writers_found(&reply.value)
            {
                if writers > self.no_shows(now) {
                    self.lookout = None;
                    self.room.close_shared();
                    return false;
                }
                self.count_writers(writers);
            }
            match outcome {
                Some(_) if age < LOOK_OUT => return false,
                None if age < LOOK_AGAIN => return false,
                _ => {}
            }
        }
        self.lookout = submit().map(|call| Lookout { since: now, call });
        self.lookout.is_some()
    }
}

/// How many `PUBSUB NUMSUB` has found.
fn writers_found(reply: &Value) -> Option<u64> {
    match reply {
        Value::Array(parts) => match parts.as_slice() {
            [_, Value::Int(n)] => u64::try_from(*n).ok(),
            _ => None,
        },
        _ => None,
    }
}

/// Wakes those who have been told something, with no mutex held.
pub(crate) fn wake(calls: LockCalls) {
    for (waiter, _) in calls.joined {
        waiter.wake();
    }
    if let Some(waiter) = calls.contend {
        waiter.wake();
    }
}

/// Those of several names are in one more shard, to be found quickly.
const SHARDS: usize = 32;

/// How long an idle room is kept: past any gap over which its tenure's age counts.
const LINGER: Duration = Duration::from_millis(20);

/// All gates of a client, by family and id: the name, or a list of them.
pub(crate) struct Gates {
    prefix: String,
    db: i64,
    tenure: Duration,
    hasher: RandomState,
    shards: Vec<Mutex<Shard>>,
}

type GateKey = (Family, Arc<str>);

#[derive(Default)]
struct Shard {
    gates: HashMap<GateKey, Arc<Gate>>,
    /// Every gate once, in the order in which they are looked at for being idle.
    rounds: VecDeque<(Instant, GateKey)>,
}

impl Gates {
    pub(crate) fn new(prefix: String, db: i64, tenure: Duration) -> Self {
        Self {
            prefix,
            db,
            tenure,
            hasher: RandomState::new(),
            shards: (0..=SHARDS).map(|_| Mutex::default()).collect(),
        }
    }

    /// The gate of a name, or a list of names, kept from now on until its room is idle.
    ///
    /// # Errors
    ///
    /// Those of [`Wire::new`].
    pub(crate) fn get(&self, family: Family, id: &Arc<str>) -> Result<Arc<Gate>> {
        let key = (family, Arc::clone(id));
        let mut shard = self.shard(&key).lock();
        if let Some(gate) = shard.gates.get(&key) {
            return Ok(Arc::clone(gate));
        }
        let gate = Arc::new(self.make(family, id)?);
        let now = Instant::now();
        shard.sweep(now, 4);
        shard.rounds.push_back((now, key.clone()));
        shard.gates.insert(key, Arc::clone(&gate));
        Ok(gate)
    }

    /// The gate of a name, or one that nobody else knows, for those who only ask.
    ///
    /// # Errors
    ///
    /// Those of [`Wire::new`].
    pub(crate) fn look(&self, family: Family, id: &Arc<str>) -> Result<Arc<Gate>> {
        let known = self.known(family, id);
        known.map_or_else(|| self.apart(family, id), Ok)
    }

    /// A gate of a name for its wire alone.
    ///
    /// # Errors
    ///
    /// Those of [`Wire::new`].
    pub(crate) fn apart(&self, family: Family, id: &Arc<str>) -> Result<Arc<Gate>> {
        self.make(family, id).map(Arc::new)
    }

    /// The gate of a name, if a thread of this client has come to it lately.
    pub(crate) fn known(&self, family: Family, id: &Arc<str>) -> Option<Arc<Gate>> {
        let key = (family, Arc::clone(id));
        self.shard(&key).lock().gates.get(&key).cloned()
    }

    fn make(&self, family: Family, id: &Arc<str>) -> Result<Gate> {
        Ok(Gate {
            name: family.shown(id),
            wire: Wire::new(family, &self.prefix, self.db, id)?,
            inside: Mutex::new(Inside {
                room: Room::new(family.order(), self.tenure),
                desk: Desk::new(self.tenure),
                slips: Slips::default(),
                contenders: Vec::new(),
                lookout: None,
                kept_out: None,
                no_shows: None,
            }),
        })
    }

    fn shard(&self, key: &GateKey) -> &Mutex<Shard> {
        let place = match key.0 {
            Family::Several => SHARDS,
            _ => usize::try_from(self.hasher.hash_one(key) % SHARDS as u64).unwrap_or(0),
        };
        &self.shards[place]
    }

    /// The gates of several names each, of which there are few.
    pub(crate) fn sets(&self) -> Vec<Arc<Gate>> {
        let sets = self.shards[SHARDS].lock();
        sets.gates.values().cloned().collect()
    }

    /// Drops the rooms that have been idle for a while; says whether there are any to come back for.
    pub(crate) fn sweep(&self) -> bool {
        let now = Instant::now();
        let mut left = false;
        for shard in &self.shards {
            let mut shard = shard.lock();
            let rooms = shard.rounds.len();
            shard.sweep(now, rooms);
            // Whoever leaves a room that is in use says so.
            left |= shard.gates.values().any(|gate| {
                let inside = gate.lock();
                inside.room.is_free() && inside.desk.is_free()
            });
        }
        left
    }

    /// All gates of a family.
    pub(crate) fn of(&self, family: Family) -> Vec<Arc<Gate>> {
        let mut gates = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            let its = shard.gates.values();
            gates.extend(its.filter(|gate| gate.wire.family == family).cloned());
        }
        gates
    }

    pub(crate) fn len(&self) -> usize {
        self.shards
            .iter()
            .map(|shard| shard.lock().gates.len())
            .sum()
    }

    /// Wakes everybody who waits in any room, to look at the client's state.
    pub(crate) fn wake_all(&self) {
        for shard in &self.shards {
            let gates: Vec<_> = shard.lock().gates.values().cloned().collect();
            for gate in gates {
                let inside = gate.lock();
                let waiters: Vec<_> = inside
                    .room
                    .waiters()
                    .chain(&inside.contenders)
                    .cloned()
                    .collect();
                drop(inside);
                for waiter in waiters {
                    waiter.wake();
                }
            }
        }
    }
}

impl Shard {
    /// Looks at the `most` gates that have not been looked at for longest.
    fn sweep(&mut self, now: Instant, most: usize) {
        for _ in 0..most {
            match self.rounds.front() {
                Some((seen_at, _)) if now.saturating_duration_since(*seen_at) >= LINGER => {}
                _ => break,
            }
            let Some((_, key)) = self.rounds.pop_front() else {
                break;
            };
            if let Entry::Occupied(entry) = self.gates.entry(key.clone()) {
                // Only the map knows it, and nobody can come to know it while this shard is locked.
                let unused = Arc::strong_count(entry.get()) == 1;
                if unused && entry.get().lock().is_idle(now) {
                    entry.remove();
                } else {
                    self.rounds.push_back((now, key));
                }
            }
        }
        if self.gates.is_empty() && self.gates.capacity() > 64 {
            *self = Self::default();
        }
    }
}
