//! The settings of a handle, queries, and the errors that its methods return.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::Value;

use crate::acquire::spinning::BackOff;
use crate::config::{self, TIMEOUTS};
use crate::error::{DeadlockReason, Error, LossReason, Result};
use crate::hold::entry::EntryKey;
use crate::hold::{Bound, Entry, Hold};
use crate::local::lock::{LeasePolicy, Mode};
use crate::local::waiter::{CancelToken, MakeError};
use crate::net::call::{Answer, Attempt, Fault};
use crate::net::socket;
use crate::protocol::idempotency::RequestKeys;
use crate::protocol::kind::{ACQUIRING, FORCING, Kind, Protocol};
use crate::protocol::owner;
use crate::protocol::script::{self, Request, Unexpected};
use crate::protocol::{KINDS, red};
use crate::quorum::ask::Quorum;
use crate::quorum::failure::{Failure, Short};
use crate::session::Session;
use crate::session::shared::SharedSession;

/// A handle's settings: which lock, and how to take it.
#[derive(Clone)]
pub struct LockSpec {
    pub(crate) shared: Arc<SharedSession>,
    /// The name as the user gave it.
    pub(crate) name: Arc<str>,
    /// The key of the entry: the kind, the name, and for a quorum the ids of its clients.
    pub(crate) key: EntryKey,
    /// The servers whose majority has to grant the lock; `shared` is the client of one of them.
    pub(crate) quorum: Option<Arc<Quorum>>,
    /// How long a server must have been running before it counts for a majority.
    pub(crate) up_for: Duration,
    pub(crate) mode: Mode,
    pub(crate) is_reentrant: bool,
    /// The kind, as it is reported to an observer.
    pub(crate) reported_as: &'static str,
    /// The thread number under which the local lock keeps the holds; `None`: that of the calling thread.
    pub(crate) as_thread: Option<u64>,
    /// A wait that ends before there is any reply is an error.
    pub(crate) late_is_error: bool,
    pub(crate) lease: Option<Duration>,
    pub(crate) max_hold: Option<Duration>,
    /// For how long after the grant the name stays taken, even if the lock is released earlier.
    pub(crate) min_hold: Option<Duration>,
    pub(crate) cancel: Option<CancelToken>,
    /// A reader does not wait behind writers of other processes.
    pub(crate) readers_first: bool,
    /// How long a token counter outlives its last use; without end if zero.
    pub(crate) token_ttl: Duration,
    /// The pauses of a spin lock, unless they are the usual ones.
    pub(crate) back_off: Option<BackOff>,
    /// How long Redis may take to answer.
    pub(crate) command_timeout: Duration,
    /// A command timeout that is not possible; the calls report it.
    wrong_timeout: Option<Duration>,
    /// The hold is never passed among threads, and only one token is drawn for it, so that each term of a leader has a
    /// token of its own.
    pub(crate) is_election: bool,
}

impl LockSpec {
    pub(crate) fn new(shared: &Arc<SharedSession>, id: Arc<str>, kind: &'static Kind) -> Self {
        Self {
            shared: Arc::clone(shared),
            name: kind.shown(&id),
            key: EntryKey { kind, id },
            quorum: None,
            up_for: Duration::ZERO,
            mode: Mode::Exclusive,
            is_reentrant: true,
            reported_as: kind.name,
            as_thread: None,
            late_is_error: false,
            lease: None,
            max_hold: None,
            min_hold: None,
            cancel: None,
            readers_first: false,
            token_ttl: Duration::ZERO,
            back_off: None,
            command_timeout: shared.session.command_timeout,
            wrong_timeout: None,
            is_election: false,
        }
    }

    /// The default settings for the lock of `hold`, with the lease of that hold.
    pub(crate) fn like(shared: &Arc<SharedSession>, hold: &Hold) -> Self {
        let name = Arc::clone(hold.entry().name());
        let mut handle = Self::new(shared, name, hold.entry().protocol.kind());
        match hold.with_lease(|lease| lease.policy()) {
            LeasePolicy::Renewed { max_hold } => handle.max_hold = max_hold,
            LeasePolicy::Fixed(lease) => handle.lease = Some(lease),
        }
        handle
    }

    /// The settings for locks that a majority of servers keeps.
    pub(crate) fn of_quorum(quorum: Arc<Quorum>, id: Arc<str>) -> Self {
        let handle = Self::new(quorum.home(), id, &red::KIND);
        Self {
            quorum: Some(quorum),
            ..handle
        }
    }

    /// Makes these the settings of a shared hold of the same lock.
    pub(crate) fn sharing(mut self) -> Self {
        self.mode = Mode::Shared;
        self
    }

    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.shared.session
    }

    pub(crate) fn set_command_timeout(&mut self, timeout: Duration) {
        // Clamped, since deadlines are computed before any call checks the setting.
        self.command_timeout = timeout.clamp(*TIMEOUTS.start(), *TIMEOUTS.end());
        self.wrong_timeout = (self.command_timeout != timeout).then_some(timeout);
    }

    fn check_timeout(&self) -> Result<()> {
        let wrong = self.wrong_timeout;
        wrong.map_or(Ok(()), |timeout| {
            config::check_timeout("command_timeout", timeout)
        })
    }

    /// The lease of this handle's holds, after a check of the settings.
    pub(crate) fn lease_policy(&self) -> Result<(LeasePolicy, Duration)> {
        self.check_timeout()?;
        let check = |setting, span: Duration| match span.is_zero() {
            true => Ok(()),
            false => config::check_lease(setting, span),
        };
        check("token_ttl", self.token_ttl)?;
        check("min_uptime", self.up_for)?;
        if let Some(span) = self.min_hold {
            config::check_lease("min_hold", span)?;
        }
        let ends = self.lease.or(self.max_hold);
        if ends
            .zip(self.min_hold)
            .is_some_and(|(ends, least)| least > ends)
        {
            return Err(Error::setting(
                "min_hold is longer than the fixed lease or max_hold, which ends the hold earlier"
                    .into(),
            ));
        }
        match (self.lease, self.max_hold) {
            (Some(_), Some(_)) => Err(Error::setting(
                "max_hold limits a renewed lease; a fixed lease is its own limit".into(),
            )),
            (Some(lease), None) => {
                config::check_lease("lease", lease)?;
                Ok((LeasePolicy::Fixed(lease), lease))
            }
            (None, max_hold) => {
                if max_hold.is_some_and(|max| max.is_zero()) {
                    return Err(Error::setting("max_hold is zero".into()));
                }
                Ok((LeasePolicy::Renewed { max_hold }, self.session().lease))
            }
        }
    }

    fn is_cancelled(&self) -> bool {
        self.cancel.as_ref().is_some_and(CancelToken::is_cancelled)
    }

    /// Whether calls have to stop without waiting for a reply.
    pub(crate) fn must_stop(&self) -> bool {
        self.session().is_closed() || self.is_cancelled()
    }

    /// Why a call has to stop.
    pub(crate) fn stopped(&self) -> Error {
        if self.session().is_closed() {
            Error::Closed
        } else {
            Error::Cancelled
        }
    }

    pub(crate) fn error(&self, doing: &'static str, failure: impl Into<Failure>) -> Error {
        match failure.into() {
            Failure::One(Fault::Stopped) => self.stopped(),
            failure => {
                let error = failure.into_error(doing, &self.name);
                error.at(&self.session().endpoint)
            }
        }
    }

    /// Makes the same error for each of several threads.
    pub(crate) fn make_error(&self, doing: &'static str, failure: Failure) -> MakeError {
        let (name, endpoint) = (Arc::clone(&self.name), self.session().endpoint.clone());
        Arc::new(move || failure.clone().into_error(doing, &name).at(&endpoint))
    }

    /// The error of an acquire whose grant arrived after its lease was over, when others may have had the lock.
    pub(crate) fn granted_too_late(&self) -> Error {
        let why = socket::timed_out("the lease expired before the grant arrived");
        self.error(ACQUIRING, Fault::Unreachable(why))
    }

    /// Whether the holder may soon give the lock back. A holder that took the lock within the last `span` may be taking
    /// several locks; if it is refused another of these, it gives this one back. The result is `false` if the calling
    /// thread itself has the lock.
    ///
    /// The age of a hold outside this client is its lease minus what is left of the lease. The lease is not known, so that
    /// of this handle and that of the client are tried. If the hold has another lease, the result may be wrong.
    pub(crate) fn may_be_given_back(&self, by: InTheWay, span: Duration) -> bool {
        let session = self.session();
        let (Ok(entry), Ok((_, lease))) = (self.look(), self.lease_policy()) else {
            return false;
        };
        // The calling thread itself is in the way, and will not release while it asks.
        if self.has_it_otherwise().is_some() {
            return false;
        }
        match by {
            InTheWay::Here => {
                let (state, now) = (entry.lock(), Instant::now());
                let is_young =
                    |hold: &Arc<Hold>| now.saturating_duration_since(hold.asked_at()) < span;
                // If threads wait already, most likely the holder is not that new.
                !state.is_waited_for() && state.lock.holds().all(is_young)
            }
            InTheWay::Elsewhere { retry_after } => retry_after.is_some_and(|lease_left| {
                // Redis counts in whole milliseconds.
                let ms = Duration::from_millis(1);
                [lease, session.lease]
                    .into_iter()
                    .any(|lease| lease_left <= lease + ms && lease <= lease_left + span + ms)
            }),
        }
    }

    /// Checks, before anything is sent, that the lock can be requested at all.
    pub(crate) fn check(&self) -> Result<()> {
        self.lease_policy()?;
        self.look()?;
        self.check_going()
    }

    pub(crate) fn check_going(&self) -> Result<()> {
        self.session().check_open()?;
        if self.is_cancelled() {
            return Err(Error::Cancelled);
        }
        Ok(())
    }

    /// The entry of the name, kept until its lock is idle.
    pub(crate) fn entry(&self) -> Result<Arc<Entry>> {
        self.usable()?.registry.get(&self.key)
    }

    /// The session, if the client is open and the setting that every call needs is possible.
    fn usable(&self) -> Result<&Arc<Session>> {
        self.session().check_open()?;
        self.check_timeout()?;
        Ok(self.session())
    }

    /// The entry of the name, if a thread has used it lately.
    pub(crate) fn known_entry(&self) -> Option<Arc<Entry>> {
        self.session().registry.known(&self.key)
    }

    /// An unregistered entry, for its protocol alone.
    pub(crate) fn unregistered_entry(&self) -> Result<Arc<Entry>> {
        self.usable()?.registry.unregistered(&self.key)
    }

    /// The entry of the name if it is registered, otherwise an unregistered one: a query must not create state.
    pub(crate) fn look(&self) -> Result<Arc<Entry>> {
        self.usable()?.registry.look(&self.key)
    }

    /// The key of the lock, and its server.
    pub(crate) fn key_and_server(&self) -> (String, String) {
        let entry = self.look();
        let key = entry.map_or_else(
            |_| self.key.id.to_string(),
            |entry| entry.protocol.key().to_owned(),
        );
        (key, format!("{:?}", self.session().endpoint))
    }

    /// Whether both take the same lock in the same way. The pauses of a spin lock are not compared.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let settings = |handle: &Self| {
            (
                handle.is_reentrant,
                handle.lease,
                handle.max_hold,
                handle.min_hold,
                handle.mode,
                handle.late_is_error,
                handle.readers_first,
                handle.token_ttl,
                (handle.command_timeout, handle.wrong_timeout),
                handle.cancel.as_ref().map(CancelToken::address),
            )
        };
        Arc::ptr_eq(self.session(), other.session())
            && self.key == other.key
            && settings(self) == settings(other)
    }

    /// Why the calling thread would wait for itself, if it would: it holds the name as a lock of another kind, or it wants
    /// an owned hold and has one that is bound to the thread. Checked before a wait.
    pub(crate) fn has_it_otherwise(&self) -> Option<DeadlockReason> {
        // Most threads that wait hold nothing, and need not look for other kinds.
        if !Bound::has_some() {
            return None;
        }
        let (registry, thread) = (&self.session().registry, owner::this_thread());
        let has = |key: &EntryKey, mode| {
            let is_mine = |entry: Arc<Entry>| {
                let state = entry.lock();
                let own_hold = state.lock.count(thread, mode);
                own_hold.is_some_and(|(hold, _)| hold.is_valid(Instant::now()))
            };
            registry.known(key).is_some_and(is_mine)
        };
        if self.as_thread.is_some() {
            if has(&self.key, Mode::Exclusive) {
                return Some(DeadlockReason::NotReentrant);
            }
            if has(&self.key, Mode::Shared) {
                return Some(match self.mode {
                    Mode::Exclusive => DeadlockReason::Reading,
                    // A writer may wait for this thread to stop reading. A new reader waits behind that writer, so this
                    // thread would wait for itself.
                    Mode::Shared => DeadlockReason::NotReentrant,
                });
            }
        }
        let is_other = |kind: &&'static Kind| kind.shares_plain_key && *kind != self.key.kind;
        let mut others = KINDS.into_iter().filter(is_other);
        let id = &self.name;
        let has_other = |kind| {
            has(
                &EntryKey {
                    kind,
                    id: Arc::clone(id),
                },
                Mode::Exclusive,
            )
        };
        (self.key.kind.shares_plain_key && others.any(has_other))
            .then_some(DeadlockReason::OtherKind)
    }

    pub(crate) fn would_deadlock(&self, reason: DeadlockReason) -> Error {
        Error::WouldDeadlock {
            name: self.name.to_string(),
            reason,
        }
    }

    pub(crate) fn is_locked(&self, until: Instant) -> Result<bool> {
        if let Some(quorum) = &self.quorum {
            return self.by_majority("asking for the lock", || quorum.is_locked(until));
        }
        let entry = self.look()?;
        let kind = self.key.kind;
        let request = (kind.state)(&entry.protocol);
        let state = self.ask_until(request, until, script::integer)?;
        Ok((kind.is_locked)(self.mode, state))
    }

    pub(crate) fn remaining(&self, until: Instant) -> Result<Option<Duration>> {
        let ms = match &self.quorum {
            Some(quorum) => self.by_majority("asking for the lease", || quorum.remaining(until))?,
            None => {
                let entry = self.look()?;
                let request = (self.key.kind.remaining)(&entry.protocol);
                self.ask_until(request, until, script::integer)?
            }
        };
        Ok(match ms {
            -1 => Some(Duration::MAX),
            ms => u64::try_from(ms).ok().map(Duration::from_millis),
        })
    }

    /// The answer of a majority of the servers of a quorum.
    fn by_majority<T>(
        &self,
        doing: &'static str,
        ask: impl FnOnce() -> std::result::Result<T, Short>,
    ) -> Result<T> {
        self.usable()?;
        ask().map_err(|short| short.into_error(doing, &self.name))
    }

    /// Sends a request that may be repeated, and waits for its reply for at most the command timeout.
    pub(crate) fn ask<T>(
        &self,
        request: Request,
        read: impl FnOnce(Value) -> std::result::Result<T, Unexpected>,
    ) -> Result<T> {
        self.ask_until(request, self.until(), read)
    }

    /// When a request that is sent now must be answered.
    pub(crate) fn until(&self) -> Instant {
        Instant::now() + self.command_timeout
    }

    /// Asks as [`ask`](Self::ask), until `until` at most.
    pub(crate) fn ask_until<T>(
        &self,
        request: Request,
        until: Instant,
        read: impl FnOnce(Value) -> std::result::Result<T, Unexpected>,
    ) -> Result<T> {
        self.session().check_open()?;
        let (answer, _) = self.call(&request, until);
        self.read_answer(request.doing, answer, read)
    }

    /// Reads the answer to a request about the lock; no answer, or an odd one, is an error.
    pub(crate) fn read_answer<T>(
        &self,
        doing: &'static str,
        answer: std::result::Result<Answer, Fault>,
        read: impl FnOnce(Value) -> std::result::Result<T, Unexpected>,
    ) -> Result<T> {
        let answer = answer.map_err(|fault| self.error(doing, fault))?;
        read(answer.value).map_err(|unexpected| self.session().error(doing, &self.name, unexpected))
    }

    /// Like [`ask`](Self::ask), for a request that Redis applies once, however often it is sent. `make` makes the request
    /// from its keys. Once `forget` or more earlier requests have been answered, the request also deletes `forget` of their
    /// keys.
    pub(crate) fn ask_once<T>(
        &self,
        protocol: &Protocol,
        forget: usize,
        make: impl FnOnce(&Protocol, &RequestKeys) -> Request,
        read: impl FnOnce(Value) -> std::result::Result<T, Unexpected>,
    ) -> Result<T> {
        let (session, key) = (self.session(), protocol.key());
        session.check_open()?;
        let keys = session.request_keys(key, forget, self.command_timeout);
        let request = make(protocol, &keys);
        let answer = self.send_once(key, &keys, &request, self.until());
        self.read_answer(request.doing, answer, read)
    }

    /// Sends a request about the object at `key` until it is answered. `keys`: those that were made for this request.
    pub(crate) fn send_once(
        &self,
        key: &str,
        keys: &RequestKeys,
        request: &Request,
        until: Instant,
    ) -> std::result::Result<Answer, Fault> {
        let (answer, sendings) = self.call(request, until);
        // A request that was sent twice may still arrive once more, and then needs its key to be recognized.
        if answer.is_ok() && sendings == 1 {
            self.session().requests.answered(key, keys.number);
        }
        answer
    }

    /// Sends a request until it is answered. Also returns how often a server may have executed it at most.
    pub(crate) fn call(
        &self,
        request: &Request,
        until: Instant,
    ) -> (std::result::Result<Answer, Fault>, u32) {
        let (session, mut sendings) = (self.session(), 0);
        let mut attempt = || {
            sendings += 1;
            Attempt::without_undo(request.clone())
        };
        // A cancelled token ends waits and acquires, but not questions; closing the client ends a question too.
        let stop = || session.is_closed();
        let answer = session.connection.call(until, &stop, None, &mut attempt);
        (answer, sendings)
    }

    /// Like [`ask_once`](Self::ask_once), for a request whose reply is a number. If the reply is lost, the error says that
    /// the request may have run: a caller that repeats the call would count twice.
    pub(crate) fn count_once(
        &self,
        forget: usize,
        make: impl FnOnce(&Protocol, &RequestKeys) -> Request,
    ) -> Result<i64> {
        let entry = self.unregistered_entry()?;
        let make = |of: &_, keys: &_| make(of, keys).applied_once();
        self.ask_once(&entry.protocol, forget, make, script::integer)
    }

    pub(crate) fn force_unlock(&self, until: Instant) -> Result<bool> {
        let entry = self.look()?;
        // Read before the request: a hold granted after the request is not affected, and must not be reported as lost.
        let held: Vec<_> = entry.lock().lock.holds().cloned().collect();
        let forced = match &self.quorum {
            Some(quorum) => {
                // Some servers may have done it, and a repetition could take the lock from the next holder, so the error
                // says that the request may have run.
                let forced = self.by_majority(FORCING, || quorum.force(until));
                forced.map_err(Error::after_work)?
            }
            None => {
                let (session, protocol) = (self.session(), &entry.protocol);
                let keys = session.request_keys(protocol.key(), 0, self.command_timeout);
                // A caller that repeats the call sends a new request, which could take the lock from the next holder. So
                // if the reply is lost, the error says that the request may have run (`applied_once`).
                let force =
                    (self.key.kind.force)(protocol, keys.own(), &keys.keep_ms).applied_once();
                self.ask_until(force, until, script::integer)? == 1
            }
        };
        if forced {
            // Holders in other processes find out at their next renewals; those in this process are notified now.
            for hold in held {
                self.session().lose(&hold, LossReason::Forced);
            }
        }
        Ok(forced)
    }

    pub(crate) fn hold_count(&self) -> u32 {
        let Ok(entry) = self.look() else {
            return 0;
        };
        let state = entry.lock();
        match state.lock.count(owner::this_thread(), self.mode) {
            Some((hold, count)) if hold.is_valid(Instant::now()) => count,
            _ => 0,
        }
    }
}

impl fmt::Debug for LockSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// Who has the lock, or asks for it first.
#[derive(Debug, Clone, Copy)]
pub(crate) enum InTheWay {
    /// A thread of this client, which has the lock or asks for it.
    Here,
    /// The holder in Redis. `retry_after`: how much of the holder's lease is left. For a read-write lock it may be less:
    /// the time after which to ask again. In that case [`may_be_given_back`](LockSpec::may_be_given_back) may misjudge the
    /// age of the hold. `None` if the lease has no end, or if nothing is known about it.
    Elsewhere { retry_after: Option<Duration> },
}

/// The parameters of a requested hold: its lease, and the thread that will have it.
#[derive(Clone, Copy)]
pub(crate) struct HoldParams {
    pub(crate) lease: LeasePolicy,
    pub(crate) ttl: Duration,
    pub(crate) thread: u64,
}
