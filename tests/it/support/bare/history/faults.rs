//! What was broken when, and which threads could not run.

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
    /// [`Nanos::MAX`] if nobody has mended it.
    pub(crate) end: Nanos,
    /// The only worker that it concerns.
    pub(crate) client: Option<i64>,
    /// The only lock that it concerns.
    pub(crate) lock: Option<Arc<str>>,
    /// Who may have the same at the same time.
    pub(crate) divides: Divides,
}

impl Fault {
    pub(crate) fn concerns(&self, client: i64, lock: Option<&str>) -> bool {
        let is_other = |only: &Arc<str>| lock.is_some_and(|lock| lock != &**only);
        self.client.is_none_or(|only| only == client) && !self.lock.as_ref().is_some_and(is_other)
    }

    /// Whether a worker is what is broken: others go on without it.
    pub(crate) fn is_of_a_worker(&self) -> bool {
        matches!(&*self.name, "kill-worker" | "stop-worker")
    }

    /// Whether all that is known stays known, and everybody can return what nobody wants as soon as it is over.
    pub(crate) fn lets_everybody_live(&self) -> bool {
        matches!(
            &*self.name,
            "proxy-cut" | "proxy-delay" | "proxy-swallow" | "client-kill" | "script-flush" | FORCED
        )
    }

    /// Whether whatever was granted before it is over in Redis.
    pub(crate) fn ends_holds(&self, setup: &Setup) -> bool {
        match &*self.name {
            FORCED => true,
            "lose-data" => setup.deployment == "one",
            _ => false,
        }
    }

    /// Whether the servers are away.
    pub(crate) fn is_an_outage(&self) -> bool {
        matches!(&*self.name, "kill-server" | "stop-server")
    }
}

/// Whether two may have the same when that has happened, unless the log says otherwise.
fn divides(fault: &str, setup: &Setup) -> Divides {
    match fault {
        // Of the masters of a RedLock, a minority at a time.
        _ if setup.deployment == "five masters" => Divides::Nobody,
        "lose-data" | "sentinel-failover" | "cluster-failover" => Divides::All,
        "kill-server" if !setup.is_durable => Divides::All,
        _ => Divides::Nobody,
    }
}

/// Spans in which a thread could not run: sorted, and apart from each other.
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

    /// When somebody has run for `span` since `from`.
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

/// All that was broken in a run.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// By their beginnings.
    pub(crate) all: Vec<Fault>,
    killed: HashMap<i64, Nanos>,
    stopped: HashMap<i64, Gaps>,
    /// The gaps of a worker that was stopped, and those of everybody.
    gaps: HashMap<i64, Gaps>,
    everybody: Gaps,
    /// The same as they were measured, and long enough to cost a lease or an answer.
    long_gaps: Vec<(Nanos, Nanos)>,
}

impl Faults {
    /// `late` are the moments when the machine was late, and by how much.
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

    /// When a worker that has `span` from `from` on is late, if it is not given the time that it could not run.
    pub(crate) fn extend(&self, client: i64, from: Nanos, span: Nanos) -> Nanos {
        let gaps = self.gaps.get(&client).unwrap_or(&self.everybody);
        gaps.extend(from, span)
    }

    /// When that worker was stopped: sorted.
    pub(crate) fn stops(&self, client: i64) -> &[(Nanos, Nanos)] {
        self.stopped.get(&client).map_or(&[], |gaps| &gaps.0)
    }

    /// Whether there is a reason for an error or a loss between these moments: something was broken then, or less than
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

    /// How many faults have begun by then.
    pub(crate) fn begun_by(&self, moment: Nanos) -> usize {
        self.all.partition_point(|fault| fault.begin <= moment)
    }

    /// Those that may have divided the holders of a lock.
    pub(crate) fn dividing<'a>(&'a self, lock: &'a str) -> impl Iterator<Item = &'a Fault> {
        let all = self.all.iter();
        all.filter(move |fault| {
            fault.divides != Divides::Nobody
                && fault.lock.as_ref().is_none_or(|only| &**only == lock)
        })
    }

    /// Whether there were two servers at that moment, and different clients may have asked different ones.
    pub(crate) fn divide_clients(&self, lock: &str, at: Nanos) -> bool {
        let mut dividing = self.dividing(lock);
        dividing.any(|fault| {
            fault.divides == Divides::Clients && (fault.begin..=fault.end).contains(&at)
        })
    }
}
