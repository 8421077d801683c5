//! The public face that all exclusive locks have in common: verbs, questions, and their documentation.

/// Declares a handle and its guard: the verbs and questions that all exclusive locks have in common.
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
            made by $maker,
            checked by NotSend,
            holding $held
        }

        impl $lock {
            pub(crate) fn of(inner: $inner) -> Self {
                Self { inner }
            }


            fn acquire(&self, patience: $crate::acquire::spec::WaitMode) -> $crate::Result<Option<$guard>> {
                let held = self.inner.acquire(patience)?;
                Ok(held.map($guard::new))
            }

            /// A handle that takes the lock for a fixed time instead of renewing it: Redisson's `leaseTime`.
            ///
            /// A hold ends `lease` after it was granted, released or not, and its guard is told. Taking one more hold
            /// renews the lease and costs a round trip. A hold that was passed on by another thread of this process
            /// may have less left, by at most a tenth and at most the client's tenure. From 10 ms
            /// ([`MIN_LEASE`](crate::MIN_LEASE)) to 100 years ([`MAX_LEASE`](crate::MAX_LEASE)); anything else is
            /// answered [`Error::Config`](crate::Error::Config) by the verbs.
            #[must_use]
            pub fn lease(self, lease: std::time::Duration) -> Self {
                Self { inner: self.inner.lease(lease) }
            }

            /// A handle whose holds are renewed for at most `max_hold` after they were granted.
            ///
            /// Then renewal stops and the guard is told [`LossReason::MaxHold`](crate::LossReason::MaxHold); the lock
            /// frees itself within one lease of the client, so that a wedged job or a leaked guard does not keep it
            /// for ever. Zero, or together with a fixed lease, is answered [`Error::Config`](crate::Error::Config) by
            /// the verbs.
            #[must_use]
            pub fn max_hold(self, max_hold: std::time::Duration) -> Self {
                Self { inner: self.inner.max_hold(max_hold) }
            }

            /// A handle whose waits end with [`Error::Cancelled`](crate::Error::Cancelled) when `token` is cancelled.
            #[must_use]
            pub fn cancel_on(self, token: &$crate::CancelToken) -> Self {
                Self { inner: self.inner.cancel_on(token) }
            }

            /// Waits until the lock is held.
            ///
            /// Blocks without limit while others hold it, and at most for the client's response timeout (3 s unless
            /// set) while Redis does not answer.
            ///
            /// # Errors
            ///
            /// [`Error::Redis`](crate::Error::Redis) if Redis did not answer for the response timeout, or refused; of several
            /// servers or members [`Error::NoQuorum`](crate::Error::NoQuorum) and [`Error::Members`](crate::Error::Members);
            /// [`Error::WrongType`](crate::Error::WrongType) if the key is no lock;
            /// [`Error::Cancelled`](crate::Error::Cancelled) by the handle's token;
            /// [`Error::Closed`](crate::Error::Closed) once the client is closed;
            /// [`Error::Lost`](crate::Error::Lost) if the lease was over before its grant arrived;
            /// [`Error::Thread`](crate::Error::Thread) if the system starts no thread for us;
            /// [`Error::WouldDeadlock`](crate::Error::WouldDeadlock) if the thread holds the lock and it is not
            /// reentrant, or holds it as another kind; [`Error::InvalidName`](crate::Error::InvalidName) and
            /// [`Error::Config`](crate::Error::Config) before anything is sent.
            pub fn lock(&self) -> $crate::Result<$guard> {
                use $crate::acquire::spec::WaitMode;
                self.acquire(WaitMode::Until($crate::time::Deadline::NEVER))?.ok_or($crate::Error::Closed)
            }

            /// Tries once; `Ok(None)` if somebody has it, also a thread of this process that is waiting for it.
            ///
            /// Blocks for a round trip, or none if this process has the lock; at most for the response timeout. When this
            /// process has had the lock for a tenure ([`Config::tenure`](crate::Config::tenure)) and others have heard of its
            /// release, it first lets them have their turn for 300 µs (for 1 ms where nobody is told of a release: the
            /// [`SpinLock`](crate::SpinLock)).
            ///
            /// # Errors
            ///
            /// As [`lock`](Self::lock), without `Cancelled`.
            pub fn try_lock(&self) -> $crate::Result<Option<$guard>> {
                self.acquire($crate::acquire::spec::WaitMode::Once)
            }

            /// Waits up to `wait` for the lock; `Ok(None)` if that was not in time.
            ///
            /// Then somebody else had it, or Redis was too slow: an answer that comes later is not waited for, and what it
            /// may have granted is undone. `wait` is the whole budget, connecting and round trips included. Zero is one
            /// attempt; a span beyond what the clock can tell is no limit.
            ///
            /// # Errors
            ///
            /// As [`lock`](Self::lock), and as soon as the time is up if the server is known to be away by then: there is no
            /// connection to it, or nothing has come from it for half the response timeout although an answer was due. What
            /// may have been taken is undone.
            pub fn try_lock_for(&self, wait: std::time::Duration) -> $crate::Result<Option<$guard>> {
                self.acquire($crate::acquire::spec::WaitMode::span(wait))
            }

            /// Waits until `instant` for the lock; otherwise as [`try_lock_for`](Self::try_lock_for).
            ///
            /// A moment that has passed is one attempt.
            ///
            /// # Errors
            ///
            /// As [`try_lock_for`](Self::try_lock_for).
            pub fn try_lock_until(&self, instant: std::time::Instant) -> $crate::Result<Option<$guard>> {
                self.acquire($crate::acquire::spec::WaitMode::moment(instant))
            }

            /// Runs `work` under the lock and waits for its release.
            ///
            /// # Errors
            ///
            /// Those of [`lock`](Self::lock), and after `work` has run those of the guard's `unlock`: a lock that was
            /// lost meanwhile is [`Error::Lost`](crate::Error::Lost), since the work was not protected to its end. What
            /// `work` returned is dropped then; take the guard yourself where both matter.
            pub fn with<T>(&self, work: impl FnOnce(&$guard) -> T) -> $crate::Result<T> {
                let guard = self.lock()?;
                let done = work(&guard);
                guard.unlock()?;
                Ok(done)
            }

            /// Whether anybody holds the lock, here or elsewhere. Asks Redis: one round trip.
            ///
            /// # Errors
            ///
            /// [`Error::Redis`](crate::Error::Redis), [`Error::WrongType`](crate::Error::WrongType),
            /// [`Error::Closed`](crate::Error::Closed), [`Error::InvalidName`](crate::Error::InvalidName).
            pub fn is_locked(&self) -> $crate::Result<bool> {
                self.inner.is_locked()
            }

            /// Whether the calling thread holds the lock and its hold is valid. Does not ask Redis.
            #[must_use]
            pub fn is_owned_by_current_thread(&self) -> bool {
                self.inner.hold_count() > 0
            }

            /// How many holds the calling thread has, zero if they are not valid any more. Does not ask Redis.
            #[must_use]
            pub fn hold_count(&self) -> u32 {
                self.inner.hold_count()
            }

            /// How long Redis keeps the lock if nobody renews it; `None` if nobody holds it. One round trip.
            ///
            /// `Duration::MAX` for a key without a limit, which this crate never leaves behind.
            ///
            /// # Errors
            ///
            /// [`Error::Redis`](crate::Error::Redis), [`Error::Closed`](crate::Error::Closed),
            /// [`Error::InvalidName`](crate::Error::InvalidName).
            pub fn remaining(&self) -> $crate::Result<Option<std::time::Duration>> {
                self.inner.remaining()
            }

            /// Takes the lock away from whoever holds it; `false` if nobody did. One round trip.
            ///
            /// Whoever is told of a release is told of this: waiting threads everywhere, of a fair lock the first in line,
            /// of a spin lock nobody. A holder in this process hears at once that it lost the lock
            /// ([`LossReason::Forced`](crate::LossReason::Forced)), one in another process at its next renewal.
            ///
            /// # Errors
            ///
            /// [`Error::Redis`](crate::Error::Redis), [`Error::Closed`](crate::Error::Closed),
            /// [`Error::InvalidName`](crate::Error::InvalidName), and [`Error::WrongType`](crate::Error::WrongType) for
            /// a key that is no lock, which is left as it is.
            pub fn force_unlock(&self) -> $crate::Result<bool> {
                self.inner.force_unlock()
            }

            /// The name, as given to the client.
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
    };
}

/// Declares a guard: what all holds have in common.
macro_rules! guard {
    (
        $(#[$guard_doc:meta])* $guard:ident,
        made by $maker:literal,
        checked by $check:ident,
        holding $held:path
    ) => {
        $(#[$guard_doc])*
        #[must_use = "if unused the lock is released immediately"]
        pub struct $guard {
            held: $held,
            /// A hold belongs to its thread: `Sync`, but not `Send`.
            stays_here: std::marker::PhantomData<std::sync::MutexGuard<'static, ()>>,
        }

        impl $guard {
            pub(crate) fn new(held: $held) -> Self {
                Self { held, stays_here: std::marker::PhantomData }
            }

            /// Gives the hold back and waits for Redis to say so.
            ///
            /// Dropping the guard gives it back too, without waiting for the answer. Blocks for a round trip, at most for
            /// the response timeout; not at all if the thread has further holds or another thread of this process takes
            /// over.
            ///
            /// # Errors
            ///
            /// [`Error::Lost`](crate::Error::Lost) if it was not ours any more;
            /// [`Error::Redis`](crate::Error::Redis) if Redis did not say: the release is sent again until it does, and
            /// the lease ends the hold at the latest.
            pub fn unlock(self) -> $crate::Result<()> {
                self.held.unlock()
            }

            /// Whether the lock is certainly still ours, as far as this process's clock tells. No I/O.
            ///
            /// The monotonic clock of Linux stands still while the machine is suspended, and with it this answer; the next
            /// renewal finds out. Nothing holds the world still after the answer: where a stale write would do harm, let the resource check
            /// a fencing token as well.
            #[must_use]
            pub fn is_valid(&self) -> bool {
                self.held.is_valid()
            }

            /// Until when the hold is certainly ours unless it is renewed. No I/O.
            ///
            /// Counted on the monotonic clock from before the last successful acquire or renewal was sent, less a
            /// hundredth of the lease and 2 ms for clocks that drift apart.
            #[must_use]
            pub fn valid_until(&self) -> std::time::Instant {
                self.held.valid_until()
            }

            /// Where the loss of this hold is told, at the latest when [`valid_until`](Self::valid_until) has come.
            ///
            /// At most one [`Loss`](crate::Loss) comes; usable in `crossbeam_channel::select!`. Nothing comes when the
            /// hold is given back.
            #[must_use]
            pub fn lost(&self) -> &crossbeam_channel::Receiver<$crate::Loss> {
                self.held.lost()
            }

            /// The name, as given to the client.
            #[must_use]
            pub fn name(&self) -> &str {
                self.held.name()
            }

            /// The owner in Redis: `<client uuid>:<number>`. Holds that were passed on state a process share it.
            #[must_use]
            pub fn owner(&self) -> &str {
                self.held.owner()
            }

            /// How many holds the thread has, this one included; zero once they are lost.
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

        #[doc = concat!("```compile_fail,E0277\nfn send<T: Send>(_: T) {}\nlet client = redlatch::Client::open(\"redis://127.0.0.1/\").unwrap();\nsend(", $maker, ".unwrap());\n```")]
        #[cfg(doctest)]
        struct $check;
    };
}

pub(crate) use {exclusive_lock, guard};
