//! The rooms of a client: made when a thread comes, gone when idle.

use std::collections::hash_map::{Entry, RandomState};
use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use crate::call::{Call, Deferred, DeferredTerms};
use crate::error::Result;
use crate::hold::Hold;
use crate::keys;
use crate::room::Room;
use crate::script;
use crate::wait::{Called, Waiter};

pub(crate) type LockRoom = Room<Arc<Waiter>, Arc<Hold>, Arc<Call>>;

/// The door of one lock in this process: its names, and its room behind a mutex.
///
/// With the mutex held a thread may take a waiter's, the agenda's and the link's, in memory; it does no I/O.
pub(crate) struct Gate {
    /// As the user gave it.
    pub(crate) name: Arc<str>,
    pub(crate) key: String,
    pub(crate) channel: Arc<str>,
    inside: Mutex<Inside>,
}

pub(crate) struct Inside {
    pub(crate) room: LockRoom,
    /// How to reach the contender while it parks.
    pub(crate) contender: Option<Arc<Waiter>>,
}

impl Gate {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock()
    }

    /// The release of one owner's hold, to be sent until `useful_until`.
    pub(crate) fn release(&self, owner: &str, useful_until: Instant, undo: bool) -> Deferred {
        Deferred {
            request: script::release(&self.key, &self.channel, owner),
            terms: DeferredTerms {
                name: Arc::clone(&self.name),
                useful_until,
                undo,
            },
        }
    }

    /// Ends the local reign of a lost hold, so that others of this process may go and ask Redis.
    pub(crate) fn lost(&self, hold: &Arc<Hold>) {
        let mut inside = self.lock();
        let next = inside.room.lost(hold);
        let next = inside.call(next);
        drop(inside);
        wake(next);
    }
}

impl Inside {
    /// Tells `next` that it contends now; it has to be woken once the mutex has been let go.
    pub(crate) fn call(&mut self, next: Option<Arc<Waiter>>) -> Option<Arc<Waiter>> {
        if let Some(next) = &next {
            next.store(Called::Contend(self.room.start(Instant::now())));
        }
        next
    }
}

/// Wakes a thread that has been told something, with no mutex held.
pub(crate) fn wake(waiter: Option<Arc<Waiter>>) {
    if let Some(waiter) = waiter {
        waiter.wake();
    }
}

const SHARDS: usize = 32;

/// How long an idle room is kept: past any gap over which its tenure's age counts.
const LINGER: Duration = Duration::from_millis(20);

/// All gates of a client, by name.
pub(crate) struct Gates {
    prefix: String,
    tenure: Duration,
    hasher: RandomState,
    shards: Vec<Mutex<Shard>>,
}

#[derive(Default)]
struct Shard {
    gates: HashMap<Arc<str>, Arc<Gate>>,
    /// Every gate once, in the order in which they are looked at for being idle.
    rounds: VecDeque<(Instant, Arc<str>)>,
}

impl Gates {
    pub(crate) fn new(prefix: String, tenure: Duration) -> Self {
        Self {
            prefix,
            tenure,
            hasher: RandomState::new(),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
        }
    }

    /// The gate of a name, kept from now on until its room is idle.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidName`](crate::Error::InvalidName).
    pub(crate) fn get(&self, name: &Arc<str>) -> Result<Arc<Gate>> {
        let mut shard = self.shard(name).lock();
        if let Some(gate) = shard.gates.get(name) {
            return Ok(Arc::clone(gate));
        }
        let gate = Arc::new(self.make(name)?);
        let now = Instant::now();
        shard.sweep(now, 4);
        shard.rounds.push_back((now, Arc::clone(name)));
        shard.gates.insert(Arc::clone(name), Arc::clone(&gate));
        Ok(gate)
    }

    /// The gate of a name, or one that nobody else knows, for those who only ask.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidName`](crate::Error::InvalidName).
    pub(crate) fn look(&self, name: &Arc<str>) -> Result<Arc<Gate>> {
        let known = self.shard(name).lock().gates.get(name).cloned();
        known.map_or_else(|| self.make(name).map(Arc::new), Ok)
    }

    fn make(&self, name: &Arc<str>) -> Result<Gate> {
        let key = keys::key(&self.prefix, name)?;
        Ok(Gate {
            name: Arc::clone(name),
            channel: keys::lock_channel(&key).into(),
            key,
            inside: Mutex::new(Inside {
                room: Room::new(self.tenure),
                contender: None,
            }),
        })
    }

    fn shard(&self, name: &Arc<str>) -> &Mutex<Shard> {
        let place = usize::try_from(self.hasher.hash_one(name) % SHARDS as u64).unwrap_or(0);
        &self.shards[place]
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
            left |= shard.gates.values().any(|gate| gate.lock().room.is_free());
        }
        left
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
                    .chain(inside.contender.as_ref())
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
            let Some((_, name)) = self.rounds.pop_front() else {
                break;
            };
            if let Entry::Occupied(entry) = self.gates.entry(Arc::clone(&name)) {
                // Only the map knows it, and nobody can come to know it while this shard is locked.
                let unused = Arc::strong_count(entry.get()) == 1;
                if unused && entry.get().lock().room.is_idle(now) {
                    entry.remove();
                } else {
                    self.rounds.push_back((now, name));
                }
            }
        }
        if self.gates.is_empty() && self.gates.capacity() > 64 {
            *self = Self::default();
        }
    }
}
