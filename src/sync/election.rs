//! Electing a leader among processes.

use std::time::{Duration, Instant};

use crate::hold::loss::LossReceiver;
use redis::{Cmd, FromRedisValue, ToRedisArgs};

use crate::acquire::guard::GuardInner;
use crate::acquire::spec::LockSpec;
use crate::acquire::wait_mode::WaitMode;
use crate::error::{Error, Result};
use crate::local::waiter::CancelToken;
use crate::process;
use crate::protocol::script::FencedHolder;
use crate::protocol::{fenced, owner, script};
use crate::sync::fenced_lock::OwnedFencedLockGuard;
use crate::sync::guard::Guard;
use crate::sync::guarded::GuardedScript;
use crate::sync::handle::Handle;
use crate::sync::kind::Fenced;
use crate::time;

/// An election: one of several processes leads, until it resigns, dies or is cut off; then another one leads.
///
/// Made by [`Client::election`](crate::Client::election).
///
/// ```no_run
/// let client = redlatch::Client::open("redis://127.0.0.1/")?;
/// let leadership = client.election("scheduler").campaign()?;
/// while leadership.is_leader() {
///     // one piece of the leader's work
/// }
/// # Ok::<(), redlatch::Error>(())
/// ```
///
/// An election is a [`FencedLock`](crate::FencedLock) of that name, whose holder is the leader and whose tokens are the
/// terms. An election and a fenced lock of one name exclude each other, and a Redisson `RFencedLock` may take part.
///
/// **If a leader dies**, another process leads when the lease is over (30 s unless [`Config::lease`](crate::Config::lease)
/// is set). A service that is restarted on the dead leader's machine need not wait: a campaign that begins there after the
/// death leads at once, in a new term, if all of this is true:
///
/// - The machine runs Linux, and was not rebooted in between.
/// - The old process has ended, its parent has waited for it, and no other process has its process id. None of its connections
///   to Redis is open.
/// - The old and the new process run as the same user of the operating system, in the same container, which
///   was not restarted in between (the same PID namespace).
/// - The Redis user may run `CLIENT LIST` and `PUBSUB`.
/// - Both programs were built with the same version of Rust. With different versions, the campaign may have to wait.
///
/// A campaign that was already waiting when the leader died waits until the lease is over.
///
/// **A leader that was stopped or cut off** may go on for a moment after it was deposed. Redis rejects its
/// [guarded commands](Leadership::query); everything else should check the [term](Leadership::term).
#[derive(Debug, Clone)]
pub struct Election {
    lock: Handle<Fenced>,
}

/// The leadership of one process, until it is resigned, lost or dropped; may move to other threads.
///
/// ```
/// fn may_move<T: Send + Sync + 'static>() {}
/// may_move::<redlatch::Leadership>();
/// ```
#[derive(Debug)]
#[must_use = "if unused the leadership is resigned at once; bind it, `let leadership = …`"]
pub struct Leadership {
    guard: OwnedFencedLockGuard,
}

impl Election {
    pub(crate) fn of(mut spec: LockSpec) -> Self {
        (spec.is_election, spec.reported_as) = (true, "election");
        Self {
            lock: Handle::of(spec),
        }
    }

    pub(crate) fn spec(&self) -> &LockSpec {
        &self.lock.target
    }

    /// Waits until this process leads.
    ///
    /// Blocks without limit while anybody leads, this process included, and at most for the command timeout while Redis
    /// does not answer.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let leadership = client.election("scheduler").campaign()?;
    /// println!("leading in term {}", leadership.term());
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`FencedLock::lock_owned`](crate::Handle::lock_owned).
    pub fn campaign(&self) -> Result<Leadership> {
        self.stand(WaitMode::FOREVER)?.ok_or(Error::Closed)
    }

    /// Tries once; `Ok(None)` if somebody leads, even if that is this process by another `Leadership`.
    ///
    /// Blocks for two round trips. Taking over from a process of this machine that died needs further questions, over a
    /// connection of its own. All of them together block at most for the command timeout.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let leads = client.election("scheduler").try_campaign()?.is_some();
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`campaign`](Self::campaign).
    pub fn try_campaign(&self) -> Result<Option<Leadership>> {
        self.stand(WaitMode::Once)
    }

    /// Waits up to `wait` until this process leads; `Ok(None)` if that was not long enough.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let wait = std::time::Duration::from_secs(5);
    /// let Some(leadership) = client.election("scheduler").try_campaign_for(wait)? else {
    ///     return Ok(()); // follow
    /// };
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`campaign`](Self::campaign).
    pub fn try_campaign_for(&self, wait: Duration) -> Result<Option<Leadership>> {
        self.stand(WaitMode::span(wait))
    }

    /// Waits until `instant`; otherwise as [`try_campaign_for`](Self::try_campaign_for).
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let deadline = std::time::Instant::now() + std::time::Duration::from_secs(5);
    /// let leadership = client.election("scheduler").try_campaign_until(deadline)?;
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`campaign`](Self::campaign).
    pub fn try_campaign_until(&self, instant: Instant) -> Result<Option<Leadership>> {
        self.stand(WaitMode::moment(instant))
    }

    /// Returns a handle whose campaigns, and [`observe`](Self::observe), end with [`Error::Cancelled`] once `token` is
    /// cancelled.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let stop = redlatch::CancelToken::new();
    /// let election = client.election("scheduler").cancel_on(&stop);
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn cancel_on(self, token: &CancelToken) -> Self {
        Self {
            lock: self.lock.cancel_on(token),
        }
    }

    /// Returns a handle whose leaderships last for at most `max`, so that a leader that hangs is replaced.
    ///
    /// A leader that hangs still renews its lease. The leadership is lost after `max`
    /// ([`LossReason::MaxHold`](crate::LossReason::MaxHold)), and others can lead within one lease.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let an_hour = std::time::Duration::from_secs(3600);
    /// let leadership = client.election("scheduler").max_term(an_hour).campaign()?;
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn max_term(self, max: Duration) -> Self {
        Self {
            lock: self.lock.max_hold(max),
        }
    }

    /// Returns a handle whose calls, like those of its leaderships, wait this long for Redis to answer, instead of the
    /// client's [`command_timeout`](crate::Config::command_timeout).
    ///
    /// From 10 ms to an hour; for any other value the calls return [`Error::InvalidSetting`].
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let a_second = std::time::Duration::from_secs(1);
    /// let election = client.election("scheduler").command_timeout(a_second);
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn command_timeout(self, timeout: Duration) -> Self {
        Self {
            lock: self.lock.command_timeout(timeout),
        }
    }

    /// Returns the name, as given to the client.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// assert_eq!(client.election("scheduler").name(), "scheduler");
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn name(&self) -> &str {
        self.lock.name()
    }

    fn stand(&self, wait: WaitMode) -> Result<Option<Leadership>> {
        let spec = self.spec();
        spec.check_going()?;
        let budget = wait.budget(Instant::now(), spec.command_timeout);
        let guard = match self.leftover(budget.until) {
            Ok(Some(held)) => Some(Guard::new(held)),
            // `leftover` has used a part of the call's budget. The attempt shares this budget, so it ends when the call
            // has to end.
            Ok(None) if !wait.asks_again() => self.lock.take(WaitMode::OnceWithin(budget))?,
            Err(err) if !budget.ends_with_caller => return Err(err),
            // `take` decides whether the end of the caller's time is an error.
            _ => self.lock.take(wait)?,
        };
        Ok(guard.map(|guard| Leadership { guard }))
    }

    /// Takes over from a process of this machine that ended while it led.
    fn leftover(&self, until: Instant) -> Result<Option<GuardInner>> {
        let spec = self.spec();
        // A detached hold belongs to the process that adopts its ticket. A hold that was released but is kept by
        // `min_hold` has to last until `min_hold` ends. A campaign takes over neither.
        let Some(holder) = self.holder(until)?.filter(|holder| holder.is_in_use) else {
            return Ok(None);
        };
        let Some((client, _)) = holder.owner.rsplit_once(':') else {
            return Ok(None);
        };
        // `is_gone` can be wrong: machines that were started from one image of a running machine look like one machine, but
        // do not see each other's processes. So the leader must also have no connection: a process that still leads is connected.
        if !process::is_gone(client, spec.session().owners.client())
            || !self.is_disconnected(client, until)
        {
            return Ok(None);
        }
        let mut spec = spec.clone();
        spec.as_thread = Some(owner::draw_thread());
        // An error is ignored: the lock may have been taken since, and the attempt that follows meets any other error.
        Ok(spec.adopt(&holder.owner, until).ok())
    }

    /// The owner who leads, and the term as its token; `None` if nobody leads.
    pub(crate) fn holder(&self, until: Instant) -> Result<Option<FencedHolder>> {
        let spec = self.spec();
        let entry = spec.unregistered_entry()?;
        let (request, stop) = (fenced::holder(&entry.protocol), || spec.must_stop());
        let answer = spec.session().connection.ask(&request, until, &stop);
        spec.read_answer(request.doing, answer, script::holder)
    }

    /// Waits for `span`; an error if the client is closed or the token cancelled by then.
    pub(crate) fn pause(&self, span: Duration) -> Result<()> {
        let spec = self.spec();
        time::sleep_unless(span, &|| spec.must_stop());
        spec.check_going()
    }
}

impl Leadership {
    /// Returns the term: greater than that of every earlier leader, with the same [exceptions](crate::FencedLock) as a fencing
    /// token. No I/O.
    ///
    /// Send the term along with what the leader writes elsewhere, and let the resource reject lower ones: see
    /// [`token`](crate::FencedLockGuard::token). Terms are not 1, 2, 3: they follow the server's clock in microseconds, so they
    /// need 64 bits.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let leadership = client.election("scheduler").campaign()?;
    /// println!("leading in term {}", leadership.term());
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn term(&self) -> u64 {
        self.guard.token()
    }

    /// Returns whether the leader's lease runs and no loss is known, by the clock of this process. No I/O; see
    /// [`is_valid`](crate::Guard::is_valid).
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let leadership = client.election("scheduler").campaign()?;
    /// while leadership.is_leader() {
    ///     // one piece of the leader's work
    /// }
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.guard.is_valid()
    }

    /// Returns the channel that reports the loss of the leadership. No I/O.
    ///
    /// By the clock of this process, the loss is reported when the lease ends, or earlier. If Redis lost the key, or it was
    /// deleted, another process can lead earlier, and the next renewal reports the loss. See [`lost`](crate::Guard::lost),
    /// and for suspended machines [`is_valid`](crate::Guard::is_valid).
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let leadership = client.election("scheduler").campaign()?;
    /// if let Ok(loss) = leadership.lost().recv() {
    ///     println!("deposed: {}", loss.reason);
    /// }
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn lost(&self) -> &LossReceiver {
        self.guard.lost()
    }

    /// Resigns, so that another process can lead at once, and waits for Redis to confirm that. Dropping the leadership
    /// resigns too, but does not wait.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// client.election("scheduler").campaign()?.resign()?;
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`unlock`](crate::Guard::unlock): [`Error::Lost`] if the leadership ended earlier.
    pub fn resign(self) -> Result<()> {
        self.guard.unlock()
    }

    /// Runs a command only if this process leads, which Redis checks in the same step: see [`query`](crate::Guard::query).
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let leadership = client.election("{jobs}").campaign()?;
    /// leadership.query::<()>(redis::cmd("SET").arg("{jobs}:next").arg(7))?;
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`query`](crate::Guard::query): [`Error::Lost`] if the process no longer leads; nothing was executed.
    pub fn query<T: FromRedisValue>(&self, command: &Cmd) -> Result<T> {
        self.guard.query(command)
    }

    /// Runs a script only if this process leads: see [`invoke`](crate::Guard::invoke). `keys` and `args` may be single values,
    /// slices, arrays by reference, or tuples.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let next = redlatch::GuardedScript::new("return redis.call('incr', KEYS[1])");
    /// let leadership = client.election("{jobs}").campaign()?;
    /// let number: i64 = leadership.invoke(&next, "{jobs}:next", None::<&str>)?;
    /// # let _ = number;
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`query`](Self::query).
    pub fn invoke<T: FromRedisValue>(
        &self,
        script: &GuardedScript,
        keys: impl ToRedisArgs,
        args: impl ToRedisArgs,
    ) -> Result<T> {
        self.guard.invoke(script, keys, args)
    }
}
