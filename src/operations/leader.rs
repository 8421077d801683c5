//! The leader of an election, and where it is: the names of connections say so.

use std::fmt;
use std::time::{Duration, Instant};

use super::inspect::{inspect, look};
use super::processes::Process;
#[cfg(feature = "serde")]
use super::serialized;
use crate::error::{Error, Result};
use crate::shown::Shown;
use crate::sync::election::Election;

/// How often `Leaders` asks who leads; ten times as often while nobody leads.
const EVERY: Duration = Duration::from_secs(1);

/// The leader of an election: see [`Election::leader`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Leader {
    /// The term, as the leader knows it by [`Leadership::term`](crate::Leadership::term).
    pub term: u64,
    /// The owner in Redis: `<client id>:<number>`, as [`Guard::owner`](crate::Guard::owner).
    pub owner: String,
    /// How long the leadership lasts unless the lease is renewed; `None` if the lease has no end.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "remaining_lease_ms", serialize_with = "serialized::ms")
    )]
    pub remaining_lease: Option<Duration>,
    /// The leader's process. `None` for a client of Redisson or without a connection, and if the Redis user may not
    /// ask.
    pub process: Option<Process>,
}

impl fmt::Display for Leader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in term {}", Shown(&self.owner), self.term)?;
        match &self.process {
            Some(process) => write!(f, ", {process}"),
            None => Ok(()),
        }
    }
}

impl Election {
    /// Returns who leads now; `None` if nobody does.
    ///
    /// Asks over a connection of its own; blocks at most for the command timeout. Host, process id and label are in the
    /// names of the leader's connections. Redis lists these names and the address (`CLIENT LIST`) only if the user has
    /// [some more rights](crate::guide::operations#acl-rights).
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// if let Some(leader) = client.election("scheduler").leader()? {
    ///     println!("{leader}");
    /// }
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Client::inspect`](crate::Client::inspect).
    pub fn leader(&self) -> Result<Option<Leader>> {
        let mut info = inspect(&self.spec().shared, self.name())?;
        let Some(holder) = info.holders.pop() else {
            return Ok(None);
        };
        Ok(Some(Leader {
            term: info.token.unwrap_or(0),
            owner: holder.owner,
            remaining_lease: holder.remaining_lease,
            process: holder.process,
        }))
    }

    /// Returns whether no connection to the server belongs to this `client`; `false` if that cannot be found out.
    pub(crate) fn is_disconnected(&self, client: &str, until: Instant) -> bool {
        let looked = look(&self.spec().shared, self.name(), until);
        looked.is_ok_and(|(info, processes)| {
            info.unknown.is_empty() && !processes.contains_key(client)
        })
    }

    /// Iterates over the changes of leader: first who leads now, then each change. An item is `Ok(None)` while nobody leads;
    /// the iteration goes on.
    ///
    /// Each step blocks until there is a change. The iterator asks once a second, or every 0.1 s while nobody leads. A
    /// leader that leads for a shorter time may be missed. After an error of Redis the next step asks again. A cancelled
    /// token or a closed client is an error too, and ends the iteration.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// for change in client.election("scheduler").observe() {
    ///     match change? {
    ///         Some(leader) => println!("{leader} leads"),
    ///         None => println!("nobody leads"),
    ///     }
    /// }
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    pub fn observe(&self) -> Leaders {
        Leaders {
            election: self.clone(),
            known: None,
            pause: Duration::ZERO,
            is_over: false,
        }
    }
}

/// The changes of leader: see [`Election::observe`].
#[derive(Debug)]
#[must_use = "iterators are lazy and do nothing unless consumed"]
pub struct Leaders {
    election: Election,
    /// What the last step returned: owner and term, or `Some(None)` if nobody led. `None` before the first step.
    known: Option<Option<(String, u64)>>,
    /// How long to wait before the next question.
    pause: Duration,
    is_over: bool,
}

impl Leaders {
    /// The leader, if that is another than at the last step.
    fn change(&mut self) -> Result<Option<Option<Leader>>> {
        self.election
            .pause(std::mem::replace(&mut self.pause, EVERY))?;
        let until = self.election.spec().until();
        let holder = self.election.holder(until)?;
        let holder = holder.map(|holder| (holder.owner, holder.token));
        if holder.is_none() {
            self.pause = EVERY / 10;
        }
        if self.known.as_ref() == Some(&holder) {
            return Ok(None);
        }
        // The leader may have changed again since the question above, so the answer is compared once more.
        let leader = self.election.leader()?;
        let holder = leader
            .as_ref()
            .map(|leader| (leader.owner.clone(), leader.term));
        let is_change = self.known.as_ref() != Some(&holder);
        self.known = Some(holder);
        Ok(is_change.then_some(leader))
    }
}

impl Iterator for Leaders {
    type Item = Result<Option<Leader>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_over {
            return None;
        }
        loop {
            match self.change() {
                Ok(None) => {}
                Ok(Some(leader)) => return Some(Ok(leader)),
                Err(err) => {
                    self.is_over = matches!(err, Error::Cancelled | Error::Closed);
                    return Some(Err(err));
                }
            }
        }
    }
}
