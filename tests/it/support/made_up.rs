//! Synthetic histories, written line by line. Times are in milliseconds.

use crate::support::history::{
    Edge, Entry, Event, Mode, NEMESIS, Nanos, Phase, Setup, Wanted, What, millis,
};

/// The settings of every history here.
pub(crate) const LEASE: u64 = 1_000;
pub(crate) const TIMEOUT: u64 = 500;
pub(crate) const WAITER_LEASE: u64 = 2_000;
pub(crate) const SLACK: u64 = 100;

/// The permits of the semaphores `sem` and `permits`.
pub(crate) const PERMITS: u64 = 3;

pub(crate) fn setup() -> Setup {
    Setup {
        lease: millis(LEASE),
        command_timeout: millis(TIMEOUT),
        waiter_lease: millis(WAITER_LEASE),
        slack: millis(SLACK),
        permits: vec![("sem".into(), PERMITS), ("permits".into(), PERMITS)],
        ..Setup::default()
    }
}

/// Everything that follows a grant.
#[derive(Clone, Debug, Default)]
pub(crate) struct Had {
    pub(crate) at: u64,
    pub(crate) token: Option<u64>,
    pub(crate) id: Option<String>,
    pub(crate) valid_until: Option<u64>,
    pub(crate) lost: Option<u64>,
    pub(crate) work: Option<(u64, u64)>,
    /// Guarded writes: number, phase of the outcome, and time; `Invoke` for a write without an outcome.
    pub(crate) writes: Vec<(u64, Phase, u64)>,
    pub(crate) releases: Option<u64>,
    pub(crate) released: Option<(u64, Option<&'static str>)>,
}

/// A request and its consequences.
#[derive(Clone, Debug)]
pub(crate) struct Turn {
    pub(crate) process: i64,
    pub(crate) wanted: Wanted,
    pub(crate) asked: u64,
    pub(crate) limit: u64,
    pub(crate) had: Option<Had>,
    /// When the request was refused; with a text if it failed with an error.
    pub(crate) ended: Option<(u64, Option<&'static str>)>,
}

/// A request for the lock `name`, whose prefix gives its kind.
pub(crate) fn asks(process: i64, name: &str, asked: u64) -> Turn {
    let kind = name.split('-').next().unwrap_or(name);
    let kind = match kind {
        "sem" => "semaphore",
        "permits" => "expirable_semaphore",
        kind => kind,
    };
    let mode = match kind {
        "semaphore" | "expirable_semaphore" => Mode::Permits,
        "rwlock" => Mode::Write,
        _ => Mode::Exclusive,
    };
    Turn {
        process,
        wanted: Wanted {
            kind: kind.into(),
            names: vec![name.into()],
            mode,
            permits: 1,
            lease: None,
        },
        asked,
        limit: 5_000,
        had: None,
        ended: None,
    }
}

/// A request for a lock that is granted at the second time and released at the third.
pub(crate) fn has(process: i64, name: &str, [asked, at, released]: [u64; 3]) -> Turn {
    let mut turn = asks(process, name, asked);
    turn.had = Some(Had {
        at,
        releases: Some(released),
        released: Some((released, None)),
        ..Had::default()
    });
    turn
}

impl Turn {
    fn had(mut self, change: impl FnOnce(&mut Had)) -> Self {
        change(self.had.as_mut().expect("it had it"));
        self
    }

    pub(crate) fn refused(mut self, at: u64) -> Self {
        self.ended = Some((at, None));
        self
    }

    pub(crate) fn failed(mut self, at: u64) -> Self {
        self.ended = Some((at, Some("away")));
        self
    }

    pub(crate) fn limit(mut self, limit: u64) -> Self {
        self.limit = limit;
        self
    }

    pub(crate) fn reads(mut self) -> Self {
        self.wanted.mode = Mode::Read;
        self
    }

    pub(crate) fn permits(mut self, permits: u64) -> Self {
        self.wanted.permits = permits;
        self
    }

    pub(crate) fn lease(mut self, lease: u64) -> Self {
        self.wanted.lease = Some(millis(lease));
        self
    }

    pub(crate) fn and(mut self, name: &str) -> Self {
        self.wanted.names.push(name.into());
        self
    }

    pub(crate) fn token(self, token: u64) -> Self {
        self.had(|had| had.token = Some(token))
    }

    pub(crate) fn id(self, id: &str) -> Self {
        self.had(|had| had.id = Some(id.to_owned()))
    }

    pub(crate) fn works(self, read: u64) -> Self {
        self.had(|had| had.work = Some((read, read + 1)))
    }

    /// Adds a guarded write. The first begins at the grant, each later one when the previous one was answered.
    pub(crate) fn writes(self, number: u64, phase: Phase, answered: u64) -> Self {
        self.had(|had| had.writes.push((number, phase, answered)))
    }

    pub(crate) fn valid_until(self, at: u64) -> Self {
        self.had(|had| had.valid_until = Some(at))
    }

    /// The holder is notified of a loss, and its release reports the same.
    pub(crate) fn lost(self, at: u64) -> Self {
        self.had(|had| had.lost = Some(at)).release_fails()
    }

    pub(crate) fn release_fails(self) -> Self {
        self.had(|had| {
            if let Some((_, error)) = &mut had.released {
                *error = Some("lost");
            }
        })
    }

    pub(crate) fn released_at(self, at: u64) -> Self {
        self.had(|had| had.released = Some((at, None)))
    }

    /// The hold is never released.
    pub(crate) fn keeps(self) -> Self {
        self.had(|had| {
            had.releases = None;
            had.released = None;
        })
    }

    pub(crate) fn events(&self) -> Vec<Event> {
        let event = |phase, what, at| Event::new(self.process, phase, what, millis(at));
        let acquire = |had: Option<&Had>| What::Acquire {
            wanted: self.wanted.clone(),
            limit: Some(millis(self.limit)),
            token: had.and_then(|had| had.token),
            id: had.and_then(|had| had.id.as_deref().map(Into::into)),
        };
        let mut events = vec![event(Phase::Invoke, acquire(None), self.asked)];
        if let Some((at, error)) = self.ended {
            let phase = if error.is_some() {
                Phase::Info
            } else {
                Phase::Fail
            };
            let mut event = event(phase, acquire(None), at);
            event.error = error.map(str::to_owned);
            events.push(event);
        }
        let Some(had) = &self.had else { return events };
        events.push(event(Phase::Ok, acquire(Some(had)), had.at));
        let wanted = || self.wanted.clone();
        let id = || had.id.as_deref().map(Into::into);
        let valid_until: Option<Nanos> = had.valid_until.map(millis);
        if let Some((read, wrote)) = had.work {
            let name = self.wanted.name();
            events.push(event(Phase::Ok, What::Work { name, read, wrote }, had.at));
        }
        let mut begins = had.at;
        for &(number, phase, answered) in &had.writes {
            let write = || What::Write {
                name: self.wanted.name(),
                entry: Entry {
                    process: self.process,
                    number,
                },
            };
            events.push(event(Phase::Invoke, write(), begins));
            if phase != Phase::Invoke {
                events.push(event(phase, write(), answered));
            }
            begins = answered;
        }
        if let Some(at) = had.lost {
            let lost = What::Lost {
                wanted: wanted(),
                id: id(),
                valid_until,
            };
            events.push(event(Phase::Info, lost, at));
        }
        let release = || What::Release {
            wanted: wanted(),
            id: id(),
            valid_until,
        };
        if let Some(at) = had.releases {
            events.push(event(Phase::Invoke, release(), at));
        }
        if let Some((at, error)) = had.released {
            let phase = if error.is_some() {
                Phase::Fail
            } else {
                Phase::Ok
            };
            let mut event = event(phase, release(), at);
            event.error = error.map(str::to_owned);
            events.push(event);
        }
        events
    }
}

/// A fault between these times.
pub(crate) fn fault(name: &str, [begin, end]: [u64; 2]) -> Vec<Event> {
    fault_of(name, None, [begin, end])
}

/// A fault of one worker, or of everything if `client` is `None`.
pub(crate) fn fault_of(name: &str, client: Option<i64>, [begin, end]: [u64; 2]) -> Vec<Event> {
    let edge = |is_end, at| {
        let edge = Edge {
            fault: name.into(),
            is_end,
            client,
            ..Edge::default()
        };
        Event::new(NEMESIS, Phase::Info, What::Fault(edge), millis(at))
    };
    vec![edge(false, begin), edge(true, end)]
}

/// The server's log of guarded writes, as the last line.
pub(crate) fn written(name: &str, entries: &[(i64, u64)]) -> Vec<Event> {
    let entries = entries.iter();
    let written = What::Written {
        name: name.into(),
        entries: entries
            .map(|&(process, number)| Entry { process, number })
            .collect(),
    };
    vec![Event::new(NEMESIS, Phase::Info, written, millis(100_000))]
}

/// All events of a history, in the order of its lines.
pub(crate) fn history(turns: &[Turn], others: &[Vec<Event>]) -> Vec<Event> {
    let setup = What::Setup(Box::new(setup()));
    let mut events = vec![Event::new(NEMESIS, Phase::Info, setup, 0)];
    events.extend(others.iter().flatten().cloned());
    events.extend(turns.iter().flat_map(Turn::events));
    events
}
