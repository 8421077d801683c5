//! Marker types: the kinds of locks, and whether a guard stays on its thread.

use crate::acquire::multi::Members;
use crate::acquire::spec::LockSpec;
use crate::hold::Bound;
use crate::protocol::kind::Kind;
use crate::protocol::{fair, fenced, reentrant, spin};

/// A kind of lock, the type parameter of [`Handle`](crate::Handle) and [`Guard`](crate::Guard). Sealed.
///
/// Use it for a type that keeps a guard of any kind, and for a function that changes the settings of a handle of any
/// kind. Functions that only lock and unlock take a [`Lock`](crate::Lock) or a [`Hold`](crate::Hold).
///
/// ```no_run
/// use redlatch::kinds::AnyKind;
/// use redlatch::{Guard, OwnedGuard};
///
/// /// A job, and the lock under which it runs.
/// struct Job<K: AnyKind> {
///     under: Guard<K>,
/// }
///
/// /// The same, to be sent to another thread.
/// struct Errand<K: AnyKind> {
///     under: OwnedGuard<K>,
/// }
/// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
/// # let job = Job { under: client.mutex("report").lock()? };
/// # let errand = Errand { under: client.fenced_lock("ledger").lock_owned()? };
/// # drop((job.under, errand.under));
/// # Ok::<(), redlatch::Error>(())
/// ```
pub trait AnyKind: sealed::Kind {}

impl<K: sealed::Kind> AnyKind for K {}

/// Declares the kinds, each with the name of its handle and the type that acquires it.
macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident: $name:literal, $target:ty;)+) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone)]
        pub enum $kind {}

        impl sealed::Kind for $kind {
            const NAME: &'static str = $name;

            type Target = $target;
        }
    )+};
}

kinds! {
    /// The kind of a [`ReentrantLock`](crate::ReentrantLock).
    Reentrant: "ReentrantLock", LockSpec;

    /// The kind of a [`Mutex`](crate::Mutex).
    NonReentrant: "Mutex", LockSpec;

    /// The kind of a [`FairLock`](crate::FairLock).
    Fair: "FairLock", LockSpec;

    /// The kind of a [`FairMutex`](crate::FairMutex).
    FairNonReentrant: "FairMutex", LockSpec;

    /// The kind of a [`FencedLock`](crate::FencedLock).
    Fenced: "FencedLock", LockSpec;

    /// The kind of a [`SpinLock`](crate::SpinLock).
    Spin: "SpinLock", LockSpec;

    /// The kind of the read side of an [`RwLock`](crate::RwLock).
    Read: "RwLockRead", LockSpec;

    /// The kind of the write side of an [`RwLock`](crate::RwLock).
    Write: "RwLockWrite", LockSpec;

    /// The kind of a [`MultiLock`](crate::MultiLock).
    Multi: "MultiLock", Members;

    /// The kind of a [`RedLock`](crate::RedLock).
    Red: "RedLock", LockSpec;
}

/// A kind of lock that a single server keeps, so its guards have [guarded commands](crate::Guard::query).
///
/// A guard of a `RedLock` has none, so this does not compile:
///
/// ```compile_fail,E0599
/// fn by_several(guard: &redlatch::RedLockGuard) -> redlatch::Result<i64> {
///     guard.query(redlatch::redis::cmd("GET").arg("left"))
/// }
/// ```
pub trait OneServer: AnyKind + sealed::Kind<Target = LockSpec> {}

impl OneServer for Reentrant {}
impl OneServer for NonReentrant {}
impl OneServer for Fair {}
impl OneServer for FairNonReentrant {}
impl OneServer for Fenced {}
impl OneServer for Spin {}
impl OneServer for Read {}
impl OneServer for Write {}

/// A kind of lock whose holds can go to another process: see [`Guard::detach`](crate::Guard::detach).
///
/// A guard of a `MultiLock` has no `detach`, so this does not compile:
///
/// ```compile_fail,E0599
/// fn of_several(guard: redlatch::MultiLockGuard) -> redlatch::Result<redlatch::Ticket> {
///     guard.detach(std::time::Duration::from_secs(60))
/// }
/// ```
pub trait Detachable: OneServer + sealed::SealedDetachable {}

/// Declares which kinds are detachable: the protocol, the kind that an observer hears of, and whether a thread that holds
/// the lock may take it again.
macro_rules! detachable {
    ($($kind:ident: $protocol:ident, $reported_as:literal, $is_reentrant:literal;)+) => {$(
        impl sealed::SealedDetachable for $kind {
            const PROTOCOL: &'static Kind = &$protocol::KIND;
            const REPORTED_AS: &'static str = $reported_as;
            const IS_REENTRANT: bool = $is_reentrant;
        }

        impl Detachable for $kind {}
    )+};
}

detachable! {
    Reentrant: reentrant, "reentrant", true;
    NonReentrant: reentrant, "mutex", false;
    Fair: fair, "fair", true;
    FairNonReentrant: fair, "fair", false;
    Fenced: fenced, "fenced", true;
    Spin: spin, "spin", true;
}

/// Whether a guard stays on its thread ([`Bound`]) or may move ([`Owned`]), the second type parameter of
/// [`Guard`](crate::Guard). Sealed.
///
/// ```
/// use redlatch::kinds::{Fenced, Scope};
///
/// /// The same for a `FencedLockGuard` and an `OwnedFencedLockGuard`.
/// fn stamp<S: Scope>(guard: &redlatch::Guard<Fenced, S>) -> String {
///     format!("written under token {}", guard.token())
/// }
/// ```
pub trait Scope: sealed::SealedScope {}

impl<S: sealed::SealedScope> Scope for S {}

impl sealed::SealedScope for Bound {
    const IS_OWNED: bool = false;

    fn enter() -> Self {
        Self::new()
    }
}

/// The scope of an [`OwnedGuard`](crate::OwnedGuard), which may move to other threads.
#[derive(Debug)]
pub struct Owned(());

impl sealed::SealedScope for Owned {
    const IS_OWNED: bool = true;

    fn enter() -> Self {
        Self(())
    }
}

pub(crate) mod sealed {
    use crate::acquire::spec::LockSpec;
    use crate::acquire::target::Target;
    use crate::error::Result;
    use crate::protocol::kind;

    pub trait SealedScope: Sync {
        const IS_OWNED: bool;

        fn enter() -> Self;
    }

    pub trait Kind: Clone + 'static {
        /// The name of the handle's type, for `Debug`.
        const NAME: &'static str;

        type Target: Target;
    }

    pub trait SealedDetachable {
        /// The protocol; its name is the kind in a ticket's text.
        const PROTOCOL: &'static kind::Kind;
        const REPORTED_AS: &'static str;
        const IS_REENTRANT: bool;
    }

    /// A guard that a ticket can become.
    pub trait SealedAdopt: Sized {
        const TICKET: &'static str;

        /// Adopts the hold of the owner `from`.
        fn adopt(spec: LockSpec, from: &str) -> Result<Self>;
    }
}
