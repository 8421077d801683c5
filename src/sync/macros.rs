//! What all exclusive locks have in common: methods, guards, and their documentation.

/// An example of a method, for whatever makes the lock or the guard; each literal is a line of it.
macro_rules! example {
    (lock $maker:literal => $($line:literal)+) => {
        $crate::sync::macros::example!("let lock = ", $maker, ";\n" $(, $line, "\n")+)
    };
    (guard $($maker:literal),+ => $($line:literal)+) => {
        $crate::sync::macros::example!("let guard = ", $($maker,)+ "?;\n" $(, $line, "\n")+)
    };
    ($($code:literal),+) => {
        concat!(
            "```no_run\n",
            "# let client = redlatch::Client::open(\"redis://127.0.0.1/\")?;\n",
            "# let other = client.clone();\n",
            $($code,)+
            "# Ok::<(), redlatch::Error>(())\n```",
        )
    };
}

/// Declares a handle and its guard, with the methods that all exclusive locks have.
///
/// `$maker` is an expression that makes the handle, for the examples; `client` and `other` are clients there.
macro_rules! exclusive_lock {
    (
        $(#[$lock_doc:meta])* $lock:ident,
        $(#[$guard_doc:meta])* $guard:ident,
        made by $maker:literal
    ) => {
        $crate::sync::macros::exclusive_lock! {
            $(#[$lock_doc])* $lock,
            $(#[$guard_doc])* $guard,
            made by $maker,
            through $crate::acquire::spec::LockSpec, holding $crate::acquire::guard::GuardInner
        }
    };
    (
        $(#[$lock_doc:meta])* $lock:ident,
        $(#[$guard_doc:meta])* $guard:ident,
        made by $maker:literal,
        through $inner:path, holding $held:path
    ) => {
        $(#[$lock_doc])*
        #[derive(Clone)]
        pub struct $lock {
            pub(crate) inner: $inner,
        }

        $crate::sync::macros::guard! {
            $(#[$guard_doc])*
            $guard,
            made by $maker, ".lock()",
            checked by NotSend,
            holding $held
        }

        impl $lock {
            pub(crate) fn of(inner: $inner) -> Self {
                Self { inner }
            }


            fn acquire(&self, wait: $crate::acquire::wait_mode::WaitMode) -> $crate::error::Result<Option<$guard>> {
                let held = self.inner.take(wait)?;
                Ok(held.map($guard::new))
            }

            /// Returns a handle that takes the lock for a fixed time instead of renewing it: Redisson's `leaseTime`.
            ///
            /// A hold ends `lease` after it was granted, whether it was released or not, and its guard is notified.
            /// Locking again in the same thread renews the lease and costs a round trip. A hold handed over by another
            /// thread of this process may have less left: at most a tenth of the lease, and at most the client's
            /// tenure. From 10 ms ([`MIN_LEASE`](crate::MIN_LEASE)) to 100 years ([`MAX_LEASE`](crate::MAX_LEASE)); for
            /// anything else the methods that lock return [`Error::Config`](crate::Error::Config).
            ///
            #[doc = $crate::sync::macros::example!(lock $maker =>
                "let lock = lock.lease(std::time::Duration::from_secs(5));"
                "let _guard = lock.lock()?; // for five seconds at most"
            )]
            #[must_use]
            pub fn lease(self, lease: std::time::Duration) -> Self {
                Self { inner: self.inner.lease(lease) }
            }

            /// Returns a handle whose holds are renewed for at most `max_hold` after they were granted.
            ///
            /// Against a job that hangs and a guard that is leaked: renewal stops, the guard is notified with
            /// [`LossReason::MaxHold`](crate::LossReason::MaxHold), and the lock becomes free within one lease of the
            /// client. `Duration::MAX` means no limit. For zero, and together with a fixed lease, the methods that lock
            /// return [`Error::Config`](crate::Error::Config).
            ///
            #[doc = $crate::sync::macros::example!(lock $maker =>
                "let lock = lock.max_hold(std::time::Duration::from_secs(3600));"
                "let _guard = lock.lock()?; // renewed for an hour at most"
            )]
            #[must_use]
            pub fn max_hold(self, max_hold: std::time::Duration) -> Self {
                Self { inner: self.inner.max_hold(max_hold) }
            }

            /// Returns a handle whose holds keep the name for at least `span` after they were granted, even if they are
            /// released before.
            ///
            /// So "once per minute, on whichever host" is `try_lock` with 55 s and a job that ends sooner: hosts whose
            /// clocks differ by less than what is left of the minute find it taken. Releasing sets what is left as the
            /// key's time to live and notifies nobody: whoever waits looks after 5 s at the latest. Not handed over to
            /// threads of this process meanwhile. If the process dies, its lease ends the hold as usual.
            ///
            /// From 10 ms to 100 years; for anything else, and for more than a fixed lease or `max_hold`, the methods that
            /// lock return [`Error::Config`](crate::Error::Config). The same as `ShedLock`'s `lockAtLeastFor`.
            ///
            #[doc = $crate::sync::macros::example!(lock $maker =>
                "let lock = lock.at_least(std::time::Duration::from_secs(55));"
                "if let Some(_guard) = lock.try_lock()? {"
                "    println!(\"this host writes the report\");"
                "}"
            )]
            #[must_use]
            pub fn at_least(self, span: std::time::Duration) -> Self {
                Self { inner: self.inner.at_least(span) }
            }

            /// Returns a handle whose waits end with [`Error::Cancelled`](crate::Error::Cancelled) when `token` is
            /// cancelled.
            ///
            #[doc = $crate::sync::macros::example!(lock $maker =>
                "let token = redlatch::CancelToken::new();"
                "let lock = lock.cancel_on(&token);"
                "token.cancel(); // normally by another thread, while this one waits"
                "assert!(matches!(lock.lock(), Err(redlatch::Error::Cancelled)));"
            )]
            #[must_use]
            pub fn cancel_on(self, token: &$crate::local::waiter::CancelToken) -> Self {
                Self { inner: self.inner.cancel_on(token) }
            }

            /// Returns a handle whose waits with a limit tell *late* from *busy*: [`Error::Late`](crate::Error::Late) if
            /// Redis was too slow to say whether anybody has the lock, `Ok(None)` only if somebody had it.
            ///
            /// Most callers do the same in both cases, which `if let Some(guard)` says; who wants to know asks for it here.
            ///
            #[doc = $crate::sync::macros::example!(lock $maker =>
                "let wait = std::time::Duration::from_millis(50);"
                "match lock.late_is_error().try_lock_for(wait) {"
                "    Ok(Some(_guard)) => println!(\"we have it\"),"
                "    Ok(None) => println!(\"somebody else has it\"),"
                "    Err(redlatch::Error::Late { .. }) => println!(\"redis is slow\"),"
                "    Err(err) => return Err(err),"
                "}"
            )]
            #[must_use]
            pub fn late_is_error(self) -> Self {
                Self { inner: self.inner.late_is_error() }
            }

            /// Waits until the calling thread holds the lock.
            ///
            /// Blocks without limit while others hold it, and at most for the client's response timeout (3 s unless
            /// set) while Redis does not answer.
            ///
            #[doc = $crate::sync::macros::example!(lock $maker =>
                "let guard = lock.lock()?;"
                "// nobody else holds the lock, in any process"
                "drop(guard);"
            )]
            ///
            /// # Errors
            ///
            /// - [`Error::Redis`](crate::Error::Redis): Redis did not answer within the response timeout, or refused.
            ///   With several servers [`Error::NoQuorum`](crate::Error::NoQuorum), with several members
            ///   [`Error::Members`](crate::Error::Members).
            /// - [`Error::WrongType`](crate::Error::WrongType): the key holds something else, such as a lock of another
            ///   kind or of a program that locks by `SET NX`.
            /// - [`Error::WouldDeadlock`](crate::Error::WouldDeadlock): the thread holds the lock already and it is not
            ///   reentrant, or holds it as another kind.
            /// - [`Error::Lost`](crate::Error::Lost): the grant arrived when its lease was over.
            /// - [`Error::Cancelled`](crate::Error::Cancelled) by the handle's token,
            ///   [`Error::Closed`](crate::Error::Closed) once the client is closed.
            /// - [`Error::Thread`](crate::Error::Thread): the system did not start a thread of the client.
            /// - [`Error::InvalidName`](crate::Error::InvalidName) and [`Error::Config`](crate::Error::Config), before
            ///   anything is sent.
            pub fn lock(&self) -> $crate::error::Result<$guard> {
                use $crate::acquire::wait_mode::WaitMode;
                self.acquire(WaitMode::Until($crate::time::Deadline::NEVER))?.ok_or($crate::error::Error::Closed)
            }

            /// Tries once; `Ok(None)` if somebody has the lock, or a thread of this process is waiting for it.
            ///
            /// Blocks for one round trip, or none if this process has the lock; at most for the response timeout. If
            /// this process has just had the lock for a whole tenure ([`Config::tenure`](crate::Config::tenure)), the call
            /// first waits for the reply to the last release, which says whether other processes were notified. If so, the
            /// call lets them ask first, for 1 ms ([`RedLock`](crate::RedLock): up to 50 ms). A
            /// [`SpinLock`](crate::SpinLock), which notifies nobody, always does.
            ///
            #[doc = $crate::sync::macros::example!(lock $maker =>
                "match lock.try_lock()? {"
                "    Some(_guard) => println!(\"we have it\"),"
                "    None => println!(\"somebody else does\"),"
                "}"
            )]
            ///
            /// # Errors
            ///
            /// As [`lock`](Self::lock), except `Cancelled`.
            pub fn try_lock(&self) -> $crate::error::Result<Option<$guard>> {
                self.acquire($crate::acquire::wait_mode::WaitMode::Once)
            }

            /// Waits up to `wait` for the lock; `Ok(None)` if that was not long enough.
            ///
            /// `wait` is the whole budget, including connecting and round trips. Zero is one attempt; a span beyond
            /// what the clock can represent is no limit. `Ok(None)` means that somebody else had the lock, or that
            /// Redis was too slow: a later answer is not waited for, and what it may have granted is released.
            ///
            #[doc = $crate::sync::macros::example!(lock $maker =>
                "let wait = std::time::Duration::from_millis(500);"
                "if let Some(_guard) = lock.try_lock_for(wait)? {"
                "    println!(\"we have it\");"
                "}"
            )]
            ///
            /// # Errors
            ///
            /// As [`lock`](Self::lock). [`Error::Redis`](crate::Error::Redis) also as soon as the time is over, if
            /// Redis is known to be unreachable then: there is no connection to it, or nothing has arrived for half the
            /// response timeout although an answer was due. Whatever may have been taken is released.
            pub fn try_lock_for(&self, wait: std::time::Duration) -> $crate::error::Result<Option<$guard>> {
                self.acquire($crate::acquire::wait_mode::WaitMode::span(wait))
            }

            /// Waits until `instant` for the lock; otherwise as [`try_lock_for`](Self::try_lock_for).
            ///
            /// An instant in the past is one attempt.
            ///
            #[doc = $crate::sync::macros::example!(lock $maker =>
                "let deadline = std::time::Instant::now() + std::time::Duration::from_secs(1);"
                "let Some(_guard) = lock.try_lock_until(deadline)? else {"
                "    return Ok(()); // no time left"
                "};"
            )]
            ///
            /// # Errors
            ///
            /// As [`try_lock_for`](Self::try_lock_for).
            pub fn try_lock_until(&self, instant: std::time::Instant) -> $crate::error::Result<Option<$guard>> {
                self.acquire($crate::acquire::wait_mode::WaitMode::moment(instant))
            }

            /// Runs `work` while holding the lock, and waits for its release.
            ///
            #[doc = $crate::sync::macros::example!(lock $maker =>
                "let sum = lock.with(|_guard| 20 + 22)?;"
                "assert_eq!(sum, 42);"
            )]
            ///
            /// # Errors
            ///
            /// Those of [`lock`](Self::lock), and after `work` those of the guard's `unlock`: if the lock was lost
            /// meanwhile it is [`Error::Lost`](crate::Error::Lost), since the work was not protected until its end. The
            /// result of `work` is dropped then; where both matter, take the guard with [`lock`](Self::lock).
            pub fn with<T>(&self, work: impl FnOnce(&$guard) -> T) -> $crate::error::Result<T> {
                let guard = self.lock()?;
                let done = work(&guard);
                guard.unlock()?;
                Ok(done)
            }

            /// Returns whether anybody holds the lock, in any process. One round trip, at most the response timeout.
            ///
            #[doc = $crate::sync::macros::example!(lock $maker =>
                "println!(\"locked: {}\", lock.is_locked()?); // a moment ago"
            )]
            ///
            /// # Errors
            ///
            /// [`Error::Redis`](crate::Error::Redis), [`Error::WrongType`](crate::Error::WrongType),
            /// [`Error::Closed`](crate::Error::Closed), [`Error::InvalidName`](crate::Error::InvalidName).
            pub fn is_locked(&self) -> $crate::error::Result<bool> {
                self.inner.is_locked()
            }

            /// Returns whether the calling thread holds the lock and its hold is valid. No I/O.
            ///
            #[doc = $crate::sync::macros::example!(lock $maker =>
                "let _guard = lock.lock()?;"
                "assert!(lock.is_owned_by_current_thread());"
            )]
            #[must_use]
            pub fn is_owned_by_current_thread(&self) -> bool {
                self.inner.hold_count() > 0
            }

            /// Returns how many holds the calling thread has; zero if they are no longer valid. No I/O.
            ///
            #[doc = $crate::sync::macros::example!(lock $maker =>
                "assert_eq!(lock.hold_count(), 0);"
                "let _guard = lock.lock()?;"
                "assert_eq!(lock.hold_count(), 1);"
            )]
            #[must_use]
            pub fn hold_count(&self) -> u32 {
                self.inner.hold_count()
            }

            /// Returns how long Redis keeps the lock if nobody renews it; `None` if nobody holds it. One round trip, at
            /// most the response timeout.
            ///
            /// `Duration::MAX` for a key without a time to live, which this crate never leaves behind.
            ///
            #[doc = $crate::sync::macros::example!(lock $maker =>
                "if let Some(left) = lock.remaining()? {"
                "    println!(\"free in {left:?}, unless it is renewed\");"
                "}"
            )]
            ///
            /// # Errors
            ///
            /// [`Error::Redis`](crate::Error::Redis), [`Error::Closed`](crate::Error::Closed),
            /// [`Error::InvalidName`](crate::Error::InvalidName).
            pub fn remaining(&self) -> $crate::error::Result<Option<std::time::Duration>> {
                self.inner.remaining()
            }

            /// Takes the lock away from whoever holds it; `false` if nobody did. One round trip, at most the response
            /// timeout.
            ///
            /// Waiting threads are notified as by a release: everywhere for most locks, only the first in the queue of
            /// a fair lock, nobody for a spin lock. A holder in this process is notified of its loss at once
            /// ([`LossReason::Forced`](crate::LossReason::Forced)), one in another process at its next renewal. Sent again
            /// after a lost reply it counts once, and takes nothing from whoever has the lock by then.
            ///
            #[doc = $crate::sync::macros::example!(lock $maker =>
                "if lock.force_unlock()? {"
                "    println!(\"somebody held it, and no longer does\");"
                "}"
            )]
            ///
            /// # Errors
            ///
            /// [`Error::Redis`](crate::Error::Redis), [`Error::Closed`](crate::Error::Closed),
            /// [`Error::InvalidName`](crate::Error::InvalidName), and [`Error::WrongType`](crate::Error::WrongType) for
            /// a key that holds something else, which is left as it is.
            pub fn force_unlock(&self) -> $crate::error::Result<bool> {
                self.inner.force_unlock()
            }

            /// Returns the name, as given to the client.
            ///
            #[doc = $crate::sync::macros::example!(lock $maker =>
                "println!(\"waiting for {}\", lock.name());"
            )]
            #[must_use]
            pub fn name(&self) -> &str {
                &self.inner.name
            }
        }

        impl std::fmt::Debug for $lock {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($lock)).field("name", &self.name()).finish_non_exhaustive()
            }
        }

        $crate::sync::traits::lock!($lock, $guard);
    };
}

/// Declares a guard, with the methods that all guards have: one that stays on its thread, or one that `may move`.
macro_rules! guard {
    (
        $(#[$guard_doc:meta])* $guard:ident,
        made by $($maker:literal),+,
        checked by $check:ident,
        holding $held:path
    ) => {
        $crate::sync::macros::guard! {
            $(#[$guard_doc])* $guard,
            made by $($maker),+,
            holding $held, $crate::hold::Counted
        }

        #[doc = concat!(
            "```compile_fail,E0277\nfn send<T: Send>(_: T) {}\n",
            "let client = redlatch::Client::open(\"redis://127.0.0.1/\")?;\nlet other = client.clone();\nsend(",
            $($maker,)+
            "?);\n# Ok::<(), redlatch::Error>(())\n```",
        )]
        #[cfg(doctest)]
        struct $check;
    };
    (
        $(#[$guard_doc:meta])* $guard:ident,
        made by $($maker:literal),+,
        holding $held:path, $stays:ty
    ) => {
        $(#[$guard_doc])*
        #[must_use = "if unused the lock is released immediately; bind it, `let _guard = …`, since `let _ = …` releases it at once"]
        pub struct $guard {
            held: $held,
            _stays: $stays,
        }

        impl $guard {
            pub(crate) fn new(held: $held) -> Self {
                Self {
                    held,
                    _stays: Default::default(),
                }
            }

            /// Releases the hold and waits for Redis to confirm it.
            ///
            /// Dropping the guard releases it too, but does not wait. Blocks for one round trip, at most for the
            /// response timeout; not at all if the thread has further holds, or another thread of this process takes
            /// over.
            ///
            #[doc = $crate::sync::macros::example!(guard $($maker),+ =>
                "if let Err(redlatch::Error::Lost { reason, .. }) = guard.unlock() {"
                "    println!(\"the work was not protected until its end: {reason}\");"
                "}"
            )]
            ///
            /// # Errors
            ///
            /// [`Error::Lost`](crate::Error::Lost) if the lock was no longer ours.
            /// [`Error::Redis`](crate::Error::Redis) if Redis did not confirm: the release is sent again until it does,
            /// and the lease ends the hold at the latest.
            pub fn unlock(self) -> $crate::error::Result<()> {
                self.held.unlock()
            }

            /// Returns whether the lock is certainly still ours by the clock of this process. No I/O.
            ///
            /// On Linux the monotonic clock stops while the machine is suspended, and so does the aging of this answer; the
            /// first renewal afterwards finds out. Nothing keeps the answer true for longer than this call: where a
            /// late write would do harm, let the resource check a fencing token as well.
            ///
            #[doc = $crate::sync::macros::example!(guard $($maker),+ =>
                "while guard.is_valid() {"
                "    // the next piece of the work"
                "}"
            )]
            #[must_use]
            pub fn is_valid(&self) -> bool {
                self.held.is_valid()
            }

            /// Returns until when the hold is certainly ours unless it is renewed. No I/O.
            ///
            /// On the monotonic clock: from before the last confirmed acquire or renewal was sent, for the lease less a
            /// hundredth of it and 2 ms, for clocks that drift apart.
            ///
            #[doc = $crate::sync::macros::example!(guard $($maker),+ =>
                "let left = guard.valid_until().saturating_duration_since(std::time::Instant::now());"
                "println!(\"certain for {left:?}\");"
            )]
            #[must_use]
            pub fn valid_until(&self) -> std::time::Instant {
                self.held.valid_until()
            }

            /// Returns the channel that reports the loss of this hold, at the latest at
            /// [`valid_until`](Self::valid_until). No I/O.
            ///
            /// It receives at most one [`Loss`](crate::Loss), and nothing when the hold is released. It can be used in
            /// `crossbeam_channel::select!`.
            ///
            #[doc = $crate::sync::macros::example!(guard $($maker),+ =>
                "if let Ok(loss) = guard.lost().try_recv() {"
                "    println!(\"{} is lost: {}\", loss.name, loss.reason);"
                "}"
            )]
            #[must_use]
            pub fn lost(&self) -> &crossbeam_channel::Receiver<$crate::error::Loss> {
                self.held.lost()
            }

            /// Returns the name, as given to the client.
            ///
            #[doc = $crate::sync::macros::example!(guard $($maker),+ =>
                "println!(\"holding {}\", guard.name());"
            )]
            #[must_use]
            pub fn name(&self) -> &str {
                self.held.name()
            }

            /// Returns the owner in Redis, `<client uuid>:<number>`. Holds handed over inside a process share it.
            ///
            #[doc = $crate::sync::macros::example!(guard $($maker),+ =>
                "println!(\"held as {}\", guard.owner());"
            )]
            #[must_use]
            pub fn owner(&self) -> &str {
                self.held.owner()
            }

            /// Returns how many holds the thread has, including this one; zero once they are lost. No I/O.
            ///
            #[doc = $crate::sync::macros::example!(guard $($maker),+ =>
                "println!(\"{} holds\", guard.hold_count());"
            )]
            #[must_use]
            pub fn hold_count(&self) -> u32 {
                self.held.hold_count()
            }
        }

        impl std::fmt::Debug for $guard {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($guard))
                    .field("name", &self.name())
                    .field("owner", &self.owner())
                    .field("valid", &self.is_valid())
                    .finish_non_exhaustive()
            }
        }

        $crate::sync::traits::hold!($guard);
    };
}

pub(crate) use {example, exclusive_lock, guard};
