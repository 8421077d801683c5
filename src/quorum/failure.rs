//! Why one server, or too many of several, did not answer.

use crate::error::Error;
use crate::net::call::Fault;
use crate::quorum::tally::Majority;

/// Too few servers agreed.
#[derive(Debug, Clone)]
pub(crate) struct Short {
    pub(crate) majority: Majority,
    pub(crate) agreed: usize,
    /// The address of each server, by position.
    pub(crate) servers: Vec<String>,
    /// The faults, by position. A server that replied that somebody else has the lock is not among them.
    pub(crate) failures: Vec<(usize, Fault)>,
}

/// Why one server, or several, gave no answer.
#[derive(Debug, Clone)]
pub(crate) enum Failure {
    One(Fault),
    Several(Short),
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        Self::One(fault)
    }
}

impl From<Short> for Failure {
    fn from(short: Short) -> Self {
        Self::Several(short)
    }
}

impl Failure {
    pub(crate) fn into_error(self, doing: &'static str, name: &str) -> Error {
        match self {
            Self::One(fault) => fault.into_error(doing, name),
            Self::Several(short) => short.into_error(doing, name),
        }
    }

    /// Whether a majority responds, and only this reply came too late.
    pub(crate) fn is_late(&self) -> bool {
        match self {
            Self::One(fault) => fault.is_late(),
            Self::Several(short) => !short.cannot_agree(),
        }
    }

    /// Whether, given more time, a reply might have come.
    pub(crate) fn is_unanswered(&self) -> bool {
        match self {
            Self::One(fault) => fault.is_unanswered(),
            Self::Several(short) => !short.is_final(),
        }
    }
}

impl Short {
    pub(crate) fn into_error(self, doing: &'static str, name: &str) -> Error {
        let wrong_type = |fault: &Fault| match fault {
            Fault::Refused(err) => Error::wrong_type(err, name),
            _ => None,
        };
        if self.too_many(|fault| wrong_type(fault).is_some())
            && let Some(err) = self
                .failures
                .iter()
                .find_map(|(_, fault)| wrong_type(fault))
        {
            return err;
        }
        let servers = self.servers;
        let failures = self.failures.into_iter().map(|(node, fault)| {
            let err = fault.into_error(doing, name);
            match servers.get(node) {
                Some(server) => (node, err.at(server)),
                None => (node, err),
            }
        });
        Error::NoQuorum {
            name: name.into(),
            nodes: self.majority.nodes(),
            needed: self.majority.needed(),
            agreed: self.agreed,
            failures: failures.collect(),
        }
    }

    /// Whether so many servers have rejected the request for good that asking again is useless.
    pub(crate) fn is_final(&self) -> bool {
        self.too_many(|fault| !matches!(fault, Fault::Unreachable(_) | Fault::Late(_)))
    }

    /// Whether so many servers are unreachable, or reject the request, that there can be no majority.
    pub(crate) fn cannot_agree(&self) -> bool {
        self.too_many(|fault| !matches!(fault, Fault::Late(_)))
    }

    /// Returns the failure that explains better why there is no majority: `self`, or that of the `previous` round.
    /// Normally that means `self`. If this one was cut short and its servers could still agree, the `previous` one
    /// explains more.
    pub(crate) fn unless_cut_short(self, is_cut_short: bool, previous: Option<Self>) -> Self {
        match previous {
            Some(previous) if is_cut_short && !self.cannot_agree() => previous,
            _ => self,
        }
    }

    fn too_many(&self, counts: impl Fn(&Fault) -> bool) -> bool {
        let failures = self.failures.iter();
        let out = failures.filter(|(_, fault)| counts(fault)).count();
        out >= self.majority.blocking()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::net::socket::timed_out;

    /// A round in which one of three servers agreed, and the others failed in this way.
    fn round(fault: fn(redis::RedisError) -> Fault) -> Short {
        Short {
            majority: Majority::of(3),
            agreed: 1,
            servers: vec![String::new(); 3],
            failures: (1..3).map(|node| (node, fault(timed_out("")))).collect(),
        }
    }

    #[test]
    fn a_majority_that_rejects_for_good_would_not_answer_later() {
        let failures: [fn(_) -> Fault; 3] = [Fault::Late, Fault::Unreachable, Fault::Refused];
        let several = failures.map(|fault| Failure::from(round(fault)));
        let one = failures.map(|fault| Failure::from(fault(timed_out(""))));
        assert_eq!(
            several.each_ref().map(Failure::is_unanswered),
            [true, true, false]
        );
        assert_eq!(
            one.each_ref().map(Failure::is_unanswered),
            [true, true, false]
        );
        assert_eq!(
            several.map(|failure| failure.is_late()),
            [true, false, false]
        );
        assert_eq!(one.map(|failure| failure.is_late()), [true, false, false]);
    }

    #[test]
    fn the_last_round_counts_unless_it_was_cut_short_after_one_with_servers_away() {
        let (late, away) = (|| round(Fault::Late), || round(Fault::Unreachable));
        let reported = |last: Short, is_cut_short, previous| {
            last.unless_cut_short(is_cut_short, previous).cannot_agree()
        };
        assert!(!reported(late(), false, Some(away())));
        assert!(reported(late(), true, Some(away())));
        assert!(!reported(late(), true, None));
        for is_cut_short in [false, true] {
            assert!(reported(away(), is_cut_short, None));
        }
    }
}
