//! The kinds of locks that workers use, and the names of those locks.

use super::journal::now;

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

/// The kinds by the names that the command line and the history use.
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

/// The number of names of which a multi-lock takes two.
pub(crate) const MEMBERS: usize = 3;

/// Permits of each semaphore.
pub(crate) const PERMITS: u32 = 3;

/// Count-downs that open a latch.
pub(crate) const COUNT: u64 = 3;

/// How long one semaphore is used before the next: permits do not come back from a process that was killed, nor from a
/// server that lost its data.
const EPOCH: u64 = 15_000_000_000;

/// How long one latch is used before the next.
const ROUND: u64 = 2_000_000_000;

impl Kind {
    /// The kinds that need one server only.
    pub(crate) fn of_one_server() -> Vec<Self> {
        let all = NAMES.iter().map(|(kind, _)| *kind);
        all.filter(|kind| *kind != Self::Red).collect()
    }

    pub(crate) fn name(self) -> &'static str {
        let entry = NAMES.iter().find(|(kind, _)| *kind == self);
        entry.map_or("", |(_, name)| name)
    }

    /// Whether other clients can release it by force.
    pub(crate) fn can_be_forced(self) -> bool {
        !matches!(
            self,
            Self::Semaphore | Self::ExpirableSemaphore | Self::Latch
        )
    }

    /// Whether its holds can guard commands.
    pub(crate) fn guards_commands(self) -> bool {
        !matches!(
            self,
            Self::Multi | Self::Red | Self::Semaphore | Self::Latch
        )
    }

    /// Whether `script` is one of the scripts that this kind runs.
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
        let entry = NAMES.iter().find(|(_, known)| *known == name)?;
        Some(entry.0)
    }

    /// The name of the `n`th lock of this kind. Kinds that use the same lock in Redis share their names.
    pub(crate) fn name_of(self, n: u64) -> String {
        match self {
            Self::Reentrant | Self::Mutex => format!("plain-{n}"),
            Self::Fair | Self::FairMutex => format!("fair-{n}"),
            // The hash tag keeps all members in one slot of a cluster.
            Self::Multi => format!("{{multi}}-{n}"),
            Self::Semaphore => format!("sem-{n}"),
            Self::ExpirableSemaphore => format!("permits-{n}"),
            kind => format!("{}-{n}", kind.name()),
        }
    }
}

/// The suffix of the keys of logs that servers keep.
pub(crate) const LOG: &str = ":log";

/// The key of the log that the holders of `name` write, in the same slot.
pub(crate) fn log_of(name: &str) -> String {
    match name.starts_with('{') {
        true => format!("{name}{LOG}"),
        false => format!("{{{name}}}{LOG}"),
    }
}

/// The name of the lock whose log `key` is, or `None` for other keys.
pub(crate) fn name_of_log(key: &str) -> Option<&str> {
    let name = key.strip_suffix(LOG)?;
    let inner = name
        .strip_prefix('{')
        .and_then(|rest| rest.strip_suffix('}'));
    Some(inner.unwrap_or(name))
}

/// The number of the semaphore in use now, in a run that began at `began`.
pub(crate) fn epoch(began: u64) -> u64 {
    (now() - began) / EPOCH
}

/// The number of semaphores that a run of `nanos` nanoseconds needs.
pub(crate) fn epochs(nanos: u64) -> u64 {
    nanos / EPOCH + 1
}

/// The name of the latch in use now.
pub(crate) fn latch_of(began: u64) -> String {
    Kind::Latch.name_of((now() - began) / ROUND)
}

/// The names of all latches that a run of `nanos` nanoseconds needs.
pub(crate) fn latches(nanos: u64) -> impl Iterator<Item = String> {
    (0..=nanos / ROUND).map(|n| Kind::Latch.name_of(n))
}
