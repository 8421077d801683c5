//! Faults and their times, and the spans in which threads could not run.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::event::{Divides, Edge, Nanos};
use super::setup::Setup;
use super::turns::FORCED;

/// Something was broken from `begin` to `end`.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) name: Arc<str>,
    pub(crate) begin: Nanos,
    /// [`Nanos::MAX`] if the fault was never repaired.
    pub(crate) end: Nanos,
    /// The only client that the fault concerns.
    pub(crate) client: Option<i64>,
    /// The only lock that the fault concerns.
    pub(crate) lock: Option<Arc<str>>,
    /// Which holders may have the same name at the same time.
    pub(crate) divides: Divides,
}

impl Fault {
    pub(crate) fn concerns(&self, client: i64, lock: Option<&str>) -> bool {
        let is_other = |only: &Arc<str>| lock.is_some_and(|lock| lock != &**only);
        self.client.is_none_or(|only| only == client) && !self.lock.as_ref().is_some_and(is_other)
    }

    /// Whether the fault is a worker that was killed or stopped, while the servers and the other workers go on.
    pub(crate) fn is_of_a_worker(&self) -> bool {
        matches!(&*self.name, "kill-worker" | "stop-worker")
    }

    /// Whether servers and workers keep all their data through the fault, so that unwanted holds can be released as
    /// soon as it is over.
    pub(crate) fn lets_everybody_live(&self) -> bool {
        matches!(
            &*self.name,
            "proxy-cut" | "proxy-delay" | "proxy-swallow" | "client-kill" | "script-flush" | FORCED
        )
    }

    /// Whether every hold that was granted before the fault is gone from Redis afterwards.
    pub(crate) fn ends_holds(&self, setup: &Setup) -> bool {
        match &*self.name {
            FORCED => true,
            "lose-data" => setup.deployment == "one",
            _ => false,
        }
    }

    /// Whether the fault makes the servers unreachable.
    pub(crate) fn is_an_outage(&self) -> bool {
        matches!(&*self.name, "kill-server" | "stop-server")
    }
}

/// Which holders may have the same name at the same time after the fault, unless the log says otherwise.
fn divides(fault: &str, setup: &Setup) -> Divides {
    match fault {
        // A fault reaches only a minority of a RedLock's masters at a time.
        _ if setup.deployment == "five masters" => Divides::Nobody,
        "lose-data" | "sentinel-failover" | "cluster-failover" => Divides::All,
        "kill-server" if !setup.is_durable => Divides::All,
        _ => Divides::Nobody,
    }
}

/// Spans in which a thread could not run, sorted and disjoint.
#[derive(Clone, Debug, Default)]
struct Gaps(Vec<(Nanos, Nanos)>);

impl Gaps {
    fn of(mut spans: Vec<(Nanos, Nanos)>) -> Self {
        spans.sort_unstable();
        let mut apart: Vec<(Nanos, Nanos)> = Vec::new();
        for (begin, end) in spans {
            match apart.last_mut() {
                Some(last) if begin <= last.1 => last.1 = last.1.max(end),
                _ => apart.push((begin, end)),
            }
        }
        Self(apart)
    }

    /// The moment at which a thread has run for `span` since `from`.
    fn extend(&self, from: Nanos, span: Nanos) -> Nanos {
        let first = self.0.partition_point(|&(_, end)| end <= from);
        let mut until = from.saturating_add(span);
        for &(begin, end) in &self.0[first..] {
            if begin > until {
                break;
            }
            until = until.saturating_add(end - begin.max(from));
        }
        until
    }
}

/// All faults of a run.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// Sorted by their beginnings.
    pub(crate) all: Vec<Fault>,
    killed: HashMap<i64, Nanos>,
    stopped: HashMap<i64, Gaps>,
    /// The gaps of each worker that was stopped, including those of the whole machine.
    gaps: HashMap<i64, Gaps>,
    everybody: Gaps,
    /// The gaps of the whole machine that are long enough to lose a lease or to time out a command.
    long_gaps: Vec<(Nanos, Nanos)>,
}

impl Faults {
    /// `late` contains each moment at which the machine was found to be late, and by how much.
    pub(crate) fn new(edges: &[(Nanos, Edge)], late: &[(Nanos, Nanos)], setup: &Setup) -> Self {
        let mut all: Vec<Fault> = Vec::new();
        let mut open: BTreeMap<(Arc<str>, Option<u64>), Vec<usize>> = BTreeMap::new();
        for (time, edge) in edges {
            let key = (Arc::clone(&edge.fault), edge.number);
            let begun = open.entry(key).or_default();
            if edge.is_end {
                if let Some(fault) = begun.pop().and_then(|at| all.get_mut(at)) {
                    fault.end = *time;
                    fault.divides = edge.divides.unwrap_or(fault.divides);
                }
                continue;
            }
            begun.push(all.len());
            all.push(Fault {
                name: Arc::clone(&edge.fault),
                begin: *time,
                end: Nanos::MAX,
                client: edge.client,
                lock: edge.name.clone(),
                divides: edge.divides.unwrap_or_else(|| divides(&edge.fault, setup)),
            });
        }
        let late: Vec<_> = late
            .iter()
            .map(|&(at, span)| (at.saturating_sub(span), at))
            .collect();
        let is_long = setup.lease.min(setup.command_timeout) / 4;
        let long_gaps = late.iter().filter(|&&(begin, end)| end - begin >= is_long);
        let mut faults = Self {
            long_gaps: long_gaps.copied().collect(),
            ..Self::default()
        };
        let mut stopped: HashMap<i64, Vec<(Nanos, Nanos)>> = HashMap::new();
        for fault in &all {
            let Some(client) = fault.client else { continue };
            match &*fault.name {
                "kill-worker" => {
                    let killed = faults.killed.entry(client).or_insert(fault.begin);
                    *killed = fault.begin.min(*killed);
                }
                "stop-worker" => stopped
                    .entry(client)
                    .or_default()
                    .push((fault.begin, fault.end)),
                _ => {}
            }
        }
        for (client, spans) in stopped {
            let both = [&spans[..], &late].concat();
            faults.gaps.insert(client, Gaps::of(both));
            faults.stopped.insert(client, Gaps::of(spans));
        }
        faults.everybody = Gaps::of(late);
        faults.all = all;
        faults
    }

    pub(crate) fn killed_at(&self, client: i64) -> Option<Nanos> {
        self.killed.get(&client).copied()
    }

    /// The deadline of a worker that has `span` from `from` on, extended by the time during which it could not run.
    pub(crate) fn extend(&self, client: i64, from: Nanos, span: Nanos) -> Nanos {
        let gaps = self.gaps.get(&client).unwrap_or(&self.everybody);
        gaps.extend(from, span)
    }

    /// The spans in which the worker was stopped, sorted.
    pub(crate) fn stops(&self, client: i64) -> &[(Nanos, Nanos)] {
        self.stopped.get(&client).map_or(&[], |gaps| &gaps.0)
    }

    /// Whether a fault explains an error or a loss between these moments: a fault was active then, or ended less than
    /// `recovery` before.
    pub(crate) fn explain(
        &self,
        client: i64,
        lock: Option<&str>,
        (from, until): (Nanos, Nanos),
        recovery: Nanos,
    ) -> bool {
        let covers =
            |begin: Nanos, end: Nanos| begin <= until && end.saturating_add(recovery) >= from;
        let faults = self.all[..self.begun_by(until)].iter();
        faults
            .filter(|fault| fault.concerns(client, lock))
            .any(|fault| covers(fault.begin, fault.end))
            || self
                .long_gaps
                .iter()
                .any(|&(begin, end)| covers(begin, end))
    }

    /// The number of faults that have begun by `moment`.
    pub(crate) fn begun_by(&self, moment: Nanos) -> usize {
        self.all.partition_point(|fault| fault.begin <= moment)
    }

    /// The faults that allow two holders of `lock` at the same time.
    pub(crate) fn dividing<'a>(&'a self, lock: &'a str) -> impl Iterator<Item = &'a Fault> {
        let all = self.all.iter();
        all.filter(move |fault| {
            fault.divides != Divides::Nobody
                && fault.lock.as_ref().is_none_or(|only| &**only == lock)
        })
    }

    /// Whether there were two servers at that moment, so that two clients may have asked different ones.
    pub(crate) fn divide_clients(&self, lock: &str, at: Nanos) -> bool {
        let mut dividing = self.dividing(lock);
        dividing.any(|fault| {
            fault.divides == Divides::Clients && (fault.begin..=fault.end).contains(&at)
        })
    }
}
