//! What is locked, and by which names.

use crate::journal::now;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Reentrant,
    Mutex,
    Fair,
    FairMutex,
    Fenced,
    Spin,
    RwLock,
    Multi,
    Red,
    Semaphore,
    ExpirableSemaphore,
    Latch,
}

/// As the command line and the history have them.
pub(crate) const NAMES: [(Kind, &str); 12] = [
    (Kind::Reentrant, "reentrant"),
    (Kind::Mutex, "mutex"),
    (Kind::Fair, "fair"),
    (Kind::FairMutex, "fair_mutex"),
    (Kind::Fenced, "fenced"),
    (Kind::Spin, "spin"),
    (Kind::RwLock, "rwlock"),
    (Kind::Multi, "multi"),
    (Kind::Red, "red"),
    (Kind::Semaphore, "semaphore"),
    (Kind::ExpirableSemaphore, "expirable_semaphore"),
    (Kind::Latch, "latch"),
];

/// How many names multi-locks take two of.
pub(crate) const MEMBERS: usize = 3;

/// How many permits each semaphore has.
pub(crate) const PERMITS: u32 = 3;

/// How many have to come to a latch.
pub(crate) const COUNT: u64 = 3;

/// How long one semaphore is used: permits do not come back from a process that was killed, nor from a server that has lost
/// its data.
const EPOCH: u64 = 15_000_000_000;

/// How long one latch is used.
const ROUND: u64 = 2_000_000_000;

impl Kind {
    /// Those that one server has.
    pub(crate) fn of_one_server() -> Vec<Self> {
        let all = NAMES.iter().map(|(kind, _)| *kind);
        all.filter(|kind| *kind != Self::Red).collect()
    }

    pub(crate) fn name(self) -> &'static str {
        let its = NAMES.iter().find(|(kind, _)| *kind == self);
        its.map_or("", |(_, name)| name)
    }

    /// Whether somebody else can release it.
    pub(crate) fn can_be_forced(self) -> bool {
        !matches!(
            self,
            Self::Semaphore | Self::ExpirableSemaphore | Self::Latch
        )
    }

    /// Whether commands can be guarded by its holds.
    pub(crate) fn guards_commands(self) -> bool {
        !matches!(
            self,
            Self::Multi | Self::Red | Self::Semaphore | Self::Latch
        )
    }

    /// Whether that script is about locks of this kind.
    pub(crate) fn uses(self, script: &str) -> bool {
        let (family, _) = script.split_once('_').unwrap_or((script, ""));
        if family == "guarded" {
            return self.guards_commands();
        }
        match self {
            Self::Reentrant | Self::Mutex | Self::Spin => family == "lock",
            Self::Fair | Self::FairMutex => family == "fair" || script == "lock_renew",
            Self::Fenced => matches!(family, "fenced" | "lock"),
            Self::RwLock => family == "rw",
            Self::Multi => family == "multi",
            Self::Red => matches!(family, "red" | "lock"),
            Self::Semaphore => family == "semaphore",
            Self::ExpirableSemaphore => family == "permit",
            Self::Latch => false,
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        let its = NAMES.iter().find(|(_, known)| *known == name)?;
        Some(its.0)
    }

    /// The name of the `n`th lock of this kind. Kinds that are one lock in Redis share them.
    pub(crate) fn name_of(self, n: u64) -> String {
        match self {
            Self::Reentrant | Self::Mutex => format!("plain-{n}"),
            Self::Fair | Self::FairMutex => format!("fair-{n}"),
            // In one slot of a cluster.
            Self::Multi => format!("{{multi}}-{n}"),
            Self::Semaphore => format!("sem-{n}"),
            Self::ExpirableSemaphore => format!("permits-{n}"),
            its => format!("{}-{n}", its.name()),
        }
    }
}

/// How the keys of logs end that servers keep.
pub(crate) const LOG: &str = ":log";

/// The key of the log for the holders of that name, in its slot.
pub(crate) fn log_of(name: &str) -> String {
    match name.starts_with('{') {
        true => format!("{name}{LOG}"),
        false => format!("{{{name}}}{LOG}"),
    }
}

/// Whose log that is, if it is one.
pub(crate) fn name_of_log(key: &str) -> Option<&str> {
    let name = key.strip_suffix(LOG)?;
    let inner = name.strip_prefix('{').and_then(|its| its.strip_suffix('}'));
    Some(inner.unwrap_or(name))
}

/// Which semaphore is used now, in a run that began then.
pub(crate) fn epoch(began: u64) -> u64 {
    (now() - began) / EPOCH
}

/// How many semaphores a run of this many nanoseconds needs.
pub(crate) fn epochs(nanos: u64) -> u64 {
    nanos / EPOCH + 1
}

/// The latch that is used now.
pub(crate) fn latch_of(began: u64) -> String {
    Kind::Latch.name_of((now() - began) / ROUND)
}

/// All that a run of this many nanoseconds needs.
pub(crate) fn latches(nanos: u64) -> impl Iterator<Item = String> {
    (0..=nanos / ROUND).map(|n| Kind::Latch.name_of(n))
}
