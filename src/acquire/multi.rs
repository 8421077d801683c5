//! Several locks taken as one: the rule by which members are requested, and the loop that follows it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::acquire::enter::Pending;
use crate::acquire::guard::{GuardInner, Unlocking};
use crate::acquire::observed::refusal;
use crate::acquire::pacer::{PAUSE, Pacer};
use crate::acquire::spec::{InTheWay, LockSpec};
use crate::acquire::target::{HeldTarget, Target};
use crate::acquire::wait_mode::WaitMode;
use crate::acquire::{Busy, Outcome};
use crate::error::{Error, Result};
use crate::hold::loss::{LossChannel, LossReceiver};
use crate::quorum::identity::{self, Identity};
use crate::report::report;
use crate::time::{self, Deadline};

/// A call that does not wait asks again for a refused member for this long, or for four round trips if that is longer. The
/// call does so only if the member is not the first, the call holds all earlier members, and somebody else has only just
/// taken the refused one.
///
/// The thread that took the refused member may have asked for all its members at once. If that thread is then refused a
/// member that precedes this one in the order, it releases this one.
const UNDECIDED: Duration = Duration::from_millis(250);

/// Pauses of up to 4 ms: between requests for a member that may soon be given back (see [`UNDECIDED`]), and before waiting
/// for a member after a further refusal.
fn pacer() -> Pacer {
    Pacer::new((PAUSE / 8, PAUSE / 4), 4)
}

/// The errors of members, by index.
type Failures = Vec<(usize, Error)>;

/// The members of a multi-lock, each once, in the same order in every process.
#[derive(Clone, Debug)]
pub struct Members {
    name: Arc<str>,
    parts: Vec<LockSpec>,
    /// The indices of members with the same key, which must have different servers. Different addresses are no proof of
    /// that.
    same_key: Arc<[Vec<usize>]>,
    /// Whether a member was held by others at the last attempt.
    contended: Arc<AtomicBool>,
    /// Why the members cannot be taken together, if so.
    fault: Option<Arc<str>>,
}

impl Target for Members {
    type Held = MultiGuardInner;

    fn name(&self) -> &str {
        &self.name
    }

    fn parts(&self) -> &[LockSpec] {
        &self.parts
    }

    fn parts_mut(&mut self) -> &mut [LockSpec] {
        &mut self.parts
    }

    fn checked(&self) -> Result<&[LockSpec]> {
        self.check()?;
        for part in &self.parts {
            part.look()?;
        }
        Ok(&self.parts)
    }

    fn take(&self, wait: WaitMode) -> Result<Option<MultiGuardInner>> {
        let began = Instant::now();
        let outcome = self.acquire(wait);
        if let Some(why) = refusal(&outcome) {
            let parts = self.parts.iter();
            parts.for_each(|part| part.record_refusal(Some(began), why));
        }
        let late_is_error = self.parts.iter().any(|part| part.late_is_error);
        let mut granted = outcome?.settled(&self.name, late_is_error)?;
        let held = granted.iter_mut().flat_map(|all| &mut all.held.0).flatten();
        for (part, held) in self.parts.iter().zip(held) {
            held.keep_for(part.min_hold);
            if part.session().observer.is_some() {
                part.observe(held, began);
            }
        }
        Ok(granted)
    }
}

impl Members {
    pub(crate) fn new(mut parts: Vec<LockSpec>) -> Self {
        let mut fault = None;
        parts.sort_by_cached_key(LockSpec::key_and_server);
        parts.dedup_by(|other, kept| {
            let has_same_key = other.key_and_server() == kept.key_and_server();
            if has_same_key && !kept.is_same(other) {
                fault = Some(Arc::from(format!(
                    "two members of the multi-lock have the key `{}`, and differ in their kinds, clients or settings",
                    kept.name
                )));
            }
            has_same_key
        });
        if parts.iter().any(|part| part.quorum.is_some()) {
            fault = Some("a RedLock cannot be a member of a multi-lock".into());
        }
        if parts.is_empty() {
            fault = Some("a multi-lock needs a member".into());
        }
        let names: Vec<&str> = parts.iter().map(|part| &*part.name).collect();
        let mut of_key: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (index, part) in parts.iter().enumerate() {
            let key = (part.key_and_server().0, part.session().endpoint.server.db);
            of_key.entry(key).or_default().push(index);
        }
        of_key.retain(|_, indices| indices.len() > 1);
        Self {
            name: names.join(", ").into(),
            same_key: of_key.into_values().collect(),
            contended: Arc::default(),
            parts,
            fault,
        }
    }

    /// A multi-lock whose members cannot be taken together: every attempt fails with `why`.
    pub(crate) fn impossible(why: &str) -> Self {
        Self {
            fault: Some(why.into()),
            ..Self::new(Vec::new())
        }
    }

    fn check(&self) -> Result<()> {
        match &self.fault {
            Some(fault) => Err(Error::setting(fault.to_string())),
            None => Ok(()),
        }
    }

    fn acquire(&self, wait: WaitMode) -> Result<Outcome<MultiGuardInner>> {
        self.check()?;
        if let [alone] = &*self.parts {
            let outcome = alone.acquire(wait)?;
            return Ok(outcome.map(|held| self.all(HeldMembers(vec![Some(held)]))));
        }
        for part in &self.parts {
            part.check()?;
        }
        let mut waited_for = None;
        let mut refusals = 0_u32;
        let mut pauses = pacer();
        // The time for the first round includes identifying the members' servers.
        let mut round = self.round(wait);
        self.check_servers(round)?;
        loop {
            let busy = Outcome::Busy(Busy::default());
            let index = match self.gather(waited_for, wait, round)? {
                Gathering::All(held) => {
                    // The lease of the first member may be over before the last member is granted.
                    let is_over = |held: &Option<GuardInner>| {
                        held.as_ref().is_some_and(|held| !held.is_valid())
                    };
                    let Some(late) = held.0.iter().position(is_over) else {
                        return Ok(Outcome::Granted(self.all(held)));
                    };
                    let part = &self.parts[late];
                    part.session().check_open()?;
                    return Err(part.granted_too_late());
                }
                Gathering::Busy(index) => index,
                Gathering::TooLate => return self.end(Outcome::TooLate),
            };
            let WaitMode::Until(deadline) = wait else {
                return Ok(busy);
            };
            refusals += 1;
            if refusals > 1 {
                // Two threads could otherwise take members from each other again and again.
                self.pause_until(deadline.earliest(Instant::now() + pauses.next_pause()))?;
            }
            if deadline.has_passed(Instant::now()) {
                return self.end(busy);
            }
            // Checked again: a server that was unreachable may answer by now.
            self.check_servers(self.round(wait))?;
            // Nothing is held here: a thread that waits for one member must not keep others from taking the rest.
            waited_for = match self.parts[index].acquire(wait) {
                Ok(Outcome::Granted(held)) => Some((index, held)),
                Ok(Outcome::TooLate | Outcome::Busy(_)) => return self.end(busy),
                Err(err) => return Err(self.failed(vec![(index, err)])),
            };
            round = self.round(wait);
        }
    }

    /// A member whose token, or whose client, ends the wait.
    fn stopped_part(&self) -> Option<&LockSpec> {
        self.parts.iter().find(|part| part.must_stop())
    }

    /// Sleeps until then, or until the call has to stop.
    fn pause_until(&self, until: Instant) -> Result<()> {
        let span = until.saturating_duration_since(Instant::now());
        time::sleep_unless(span, &|| self.stopped_part().is_some());
        self.check_going()
    }

    fn check_going(&self) -> Result<()> {
        match self.stopped_part() {
            Some(part) => Err(part.stopped()),
            None => Ok(()),
        }
    }

    /// Ends the wait with `outcome`, unless the call has to stop.
    fn end<G>(&self, outcome: Outcome<G>) -> Result<Outcome<G>> {
        self.check_going().map(|()| outcome)
    }

    /// When half of the time that is left of `round` is over. The requests of the round have the other half.
    fn half_of(&self, round: WaitMode) -> Instant {
        let now = Instant::now();
        round.budget(now, self.command_timeout()).half_from(now)
    }

    /// Checks that members with the same key are on different servers, as far as these answer within half of the time that
    /// is left of `round`.
    fn check_servers(&self, round: WaitMode) -> Result<()> {
        let until = self.half_of(round);
        let stop = || self.stopped_part().is_some();
        for indices in &*self.same_key {
            let sessions = indices.iter().map(|index| self.parts[*index].session());
            let servers = identity::of(sessions, until, &stop);
            for (at, server) in servers.iter().enumerate() {
                if matches!(server, Identity::Master(_)) && servers[..at].contains(server) {
                    let part = &self.parts[indices[at]];
                    return Err(Error::setting(format!(
                        "two members of the multi-lock are the lock `{}` of one server, {:?}, by two clients",
                        part.name,
                        part.session().endpoint
                    )));
                }
            }
        }
        self.check_going()
    }

    /// Asks at once for all members that the thread lacks. If somebody else held a member lately and the thread has not
    /// waited for one, it first asks for the first member alone. Asks again for a member that may soon be free.
    ///
    /// If all members are free, one of several threads that try at the same time gets them all: see [`asks_again`].
    fn gather(
        &self,
        waited_for: Option<(usize, GuardInner)>,
        wait: WaitMode,
        round: WaitMode,
    ) -> Result<Gathering> {
        let all = 0..self.parts.len();
        let is_contended = waited_for.is_none() && self.contended.load(Ordering::Relaxed);
        // Each pass asks for all members that this thread lacks, or for one of them. Once that one is granted, the next
        // pass asks for all that are missing. If somebody else held a member lately, the first pass asks for the first
        // member alone: the rest, if granted, might have to be released again.
        let mut asked = match is_contended {
            true => 0..1,
            false => all.clone(),
        };
        // Unless `held` is returned in `Gathering::All`, it is dropped, and that releases its members.
        let mut held = HeldMembers(all.clone().map(|_| None).collect());
        // A thread that has waited was refused before.
        let mut was_refused = waited_for.is_some();
        if let Some((index, guard)) = waited_for {
            // Its lease runs, or is renewed, during the other questions; `acquire` checks at the end whether it is still valid.
            held.0[index] = Some(guard);
        }
        let (mut goes_on_until, mut pauses) = (None, pacer());
        loop {
            let began = Instant::now();
            let answers = self.ask_for(asked.clone(), &mut held.0, round.rest_from(began));
            let (refused, by) = match answers {
                Ok(Answers::Granted) if asked != all => {
                    asked = all.clone();
                    continue;
                }
                Ok(Answers::Granted) => {
                    if !was_refused {
                        self.contended.store(false, Ordering::Relaxed);
                    }
                    return Ok(Gathering::All(held));
                }
                Ok(Answers::Refused(index, by)) => (index, by),
                // Once a member was refused, the outcome is `Busy`, not `TooLate`.
                Ok(Answers::TooLate) if was_refused => return Ok(Gathering::Busy(asked.start)),
                Ok(Answers::TooLate) => return Ok(Gathering::TooLate),
                Err(failures) => {
                    drop(held);
                    return Err(self.failed(failures));
                }
            };
            was_refused = true;
            self.contended.store(true, Ordering::Relaxed);
            if !asks_again(refused) {
                return Ok(Gathering::Busy(refused));
            }
            // Members behind the refused one are released: two threads could otherwise each hold the member for which
            // the other asks again.
            held.drop_from(refused);
            let now = Instant::now();
            let round_trip = now - began;
            let span = match wait {
                // Afterwards the thread waits for the member with a subscription, which is as fast as asking again.
                WaitMode::Until(_) => 2 * round_trip,
                _ => UNDECIDED.max(4 * round_trip),
            };
            let goes_on_until = *goes_on_until.get_or_insert(now + span);
            let ends = round.deadline().earliest(goes_on_until);
            if now >= ends || !self.parts[refused].may_be_given_back(by, span) {
                return Ok(Gathering::Busy(refused));
            }
            self.pause_until(ends.min(now + pauses.next_pause()))?;
            asked = refused..refused + 1;
        }
    }

    /// Asks once for these members, as far as they are not held, and adds the granted ones to `held`. Members behind a
    /// refused one are added as well; the caller releases them.
    fn ask_for(
        &self,
        asked: Range<usize>,
        held: &mut [Option<GuardInner>],
        round: WaitMode,
    ) -> std::result::Result<Answers, Failures> {
        let mut refused: Option<(usize, InTheWay)> = None;
        let mut pending = Vec::new();
        for index in asked.filter(|index| held[*index].is_none()) {
            match self.parts[index].enter(round) {
                Ok(Pending::Busy) => {
                    // A thread of this process is ahead, so members behind this one are not requested.
                    refused = Some((index, InTheWay::Here));
                    break;
                }
                Ok(attempt) => pending.push((index, attempt)),
                Err(err) => return Err(vec![(index, err)]),
            }
        }
        // If this fails, nothing has been sent, and dropping the contenders lets other threads of the process ask.
        if let Err(failure) = self.ask_ahead(&mut pending, round) {
            return Err(vec![failure]);
        }
        let (mut failures, mut too_late) = (Vec::new(), false);
        // Every attempt is finished, even after a refusal: its reply may be a grant, which has to be kept or released.
        for (index, attempt) in pending {
            match self.parts[index].finish(Ok(attempt)) {
                Ok(Outcome::Granted(guard)) => held[index] = Some(guard),
                Ok(Outcome::Busy(busy)) => {
                    let retry_after = busy.retry_after;
                    if refused.is_none_or(|(first, _)| index < first) {
                        refused = Some((index, InTheWay::Elsewhere { retry_after }));
                    }
                }
                Ok(Outcome::TooLate) => too_late = true,
                Err(err) => failures.push((index, err)),
            }
        }
        match refused {
            _ if !failures.is_empty() => Err(failures),
            Some((index, by)) => Ok(Answers::Refused(index, by)),
            None if too_late => Ok(Answers::TooLate),
            None => Ok(Answers::Granted),
        }
    }

    /// Sends all requests before the first reply is awaited; those for one server in one write.
    fn ask_ahead(
        &self,
        pending: &mut [(usize, Pending<'_>)],
        round: WaitMode,
    ) -> std::result::Result<(), (usize, Error)> {
        let contenders = pending
            .iter_mut()
            .filter_map(|(index, attempt)| match attempt {
                Pending::Contends(contender) => Some((*index, contender)),
                _ => None,
            });
        let mut asking: Vec<_> = contenders.collect();
        let asks_by = self.half_of(round);
        for (index, contender) in &mut asking {
            // The result says whether to call this again or to stop. Neither matters here: one pause for each member is
            // enough, and [`Contender::ask_ahead`] checks whether to stop.
            (contender.yield_to_others(asks_by)).map_err(|err| (*index, err))?;
        }
        // All are queued before the first is written, so that requests for one server share a write.
        asking
            .iter_mut()
            .for_each(|(_, contender)| contender.ask_ahead());
        asking
            .iter()
            .for_each(|(_, contender)| contender.send_ahead());
        Ok(())
    }

    /// The wait mode of one attempt at every member; all attempts end together.
    fn round(&self, wait: WaitMode) -> WaitMode {
        let deadline = match wait {
            WaitMode::Until(deadline) => deadline,
            _ => Deadline::NEVER,
        };
        WaitMode::OnceWithin(deadline.budget(Instant::now(), self.command_timeout()))
    }

    /// The longest command timeout of all members.
    fn command_timeout(&self) -> Duration {
        let timeouts = self.parts.iter().map(|part| part.command_timeout);
        timeouts.max().unwrap_or_default()
    }

    /// The error made of the errors of members, each with its name. An error that concerns the whole call is returned
    /// as it is.
    fn failed(&self, failures: Failures) -> Error {
        let mut named = Vec::new();
        for (index, err) in failures {
            match err {
                Error::Cancelled | Error::Closed | Error::WouldDeadlock { .. } => return err,
                err => named.push((self.parts[index].name.to_string(), err)),
            }
        }
        Error::Members { failures: named }
    }

    fn all(&self, held: HeldMembers) -> MultiGuardInner {
        let owners: Vec<&str> = held.all().map(GuardInner::owner).collect();
        MultiGuardInner {
            name: Arc::clone(&self.name),
            owner: owners.join(", "),
            held,
            lost: LossChannel::default(),
            command_timeout: self.command_timeout(),
        }
    }
}

/// The outcome of asking once.
enum Answers {
    Granted,
    /// The first member that was not granted, and who is in the way.
    Refused(usize, InTheWay),
    /// The caller's time was up before all had answered.
    TooLate,
}

/// The outcome of asking for all members.
enum Gathering {
    All(HeldMembers),
    /// The member to wait for: as a rule, the first that somebody else has. All that were held are released.
    Busy(usize),
    /// The caller's time was up before all had answered.
    TooLate,
}

/// Whether a thread asks again for the member with this index, which it was refused. If so, the thread keeps the members
/// before it and releases those behind it; otherwise it releases all. The members of every multi-lock are in the same
/// order, and a thread that asks again for a member holds only earlier members. So threads never wait for each other in a
/// circle. If the members are free at first, one of several threads that try at the same time gets all its members, unless
/// it stops asking too early. The tests of this module search all states of small cases for a counter-example.
fn asks_again(refused: usize) -> bool {
    refused > 0
}

/// Holds of members, by index, whose releases are written together.
#[derive(Debug)]
struct HeldMembers(Vec<Option<GuardInner>>);

impl HeldMembers {
    fn all(&self) -> impl Iterator<Item = &GuardInner> {
        self.0.iter().flatten()
    }

    /// Sends the releases of the holds from `first` on; returns them with the names of their members.
    fn unlock_from(&mut self, first: usize) -> Vec<(String, Result<Unlocking>)> {
        let late = self.0[first..].iter_mut().filter_map(Option::take);
        let unlocking: Vec<_> = late
            .map(|held| (held.name().to_owned(), held.queue_unlock()))
            .collect();
        let queued = unlocking
            .iter()
            .filter_map(|(_, result)| result.as_ref().ok());
        queued.for_each(Unlocking::send);
        unlocking
    }

    fn drop_from(&mut self, first: usize) {
        for (_, unlocking) in self.unlock_from(first) {
            if let Err(err) = unlocking {
                report!(Debug, "dropping a guard: {err}");
            }
        }
    }
}

impl Drop for HeldMembers {
    fn drop(&mut self) {
        // After a fork the holds belong to the parent process, so a guard in the child does nothing when it is dropped.
        if self.all().all(|held| !held.is_copy()) {
            self.drop_from(0);
        }
    }
}

/// All holds of one guard.
#[derive(Debug)]
pub struct MultiGuardInner {
    name: Arc<str>,
    owner: String,
    held: HeldMembers,
    lost: LossChannel,
    command_timeout: Duration,
}

impl HeldTarget for MultiGuardInner {
    fn unlock(mut self) -> Result<()> {
        let mut failures = Vec::new();
        let until = Instant::now() + self.command_timeout;
        // All releases are sent before the first reply is awaited.
        for (name, unlocking) in self.held.unlock_from(0) {
            if let Err(err) = unlocking.and_then(|unlocking| unlocking.finish(until)) {
                failures.push((name, err));
            }
        }
        match failures.len() {
            0 => Ok(()),
            1 => Err(failures.remove(0).1),
            _ => Err(Error::Members { failures }),
        }
    }

    fn is_valid(&self) -> bool {
        self.held.all().all(GuardInner::is_valid)
    }

    fn valid_until(&self) -> Instant {
        let untils = self.held.all().map(GuardInner::valid_until);
        untils.min().unwrap_or_else(Instant::now)
    }

    fn lost(&self) -> &LossReceiver {
        let held = self.held.all();
        (self.lost).of(|listener| held.for_each(|held| held.listen(listener())))
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn owner(&self) -> &str {
        &self.owner
    }

    fn hold_count(&self) -> u32 {
        let counts = self.held.all().map(GuardInner::hold_count);
        counts.min().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests;
