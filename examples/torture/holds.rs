//! Holds of every kind behind one trait.

use std::sync::LazyLock;
use std::time::Instant;

use redlatch::{GuardedScript, LossReceiver, Result};

/// The operations that all kinds of holds have in common.
pub(crate) trait Hold {
    fn valid_until(&self) -> Option<Instant> {
        None
    }
    fn lost(&self) -> Option<&LossReceiver> {
        None
    }
    fn is_valid(&self) -> bool {
        true
    }
    fn token(&self) -> Option<u64> {
        None
    }
    fn id(&self) -> Option<&str> {
        None
    }
    /// Appends to a log on the server if the hold is in force there. Implemented by the kinds that guard commands.
    fn write(&self, _log: &str, _entry: &str, _by_script: bool) -> Result<()> {
        unreachable!("it guards no commands")
    }
    fn release(self: Box<Self>) -> Result<()>;
}

static WRITE: LazyLock<GuardedScript> =
    LazyLock::new(|| GuardedScript::new("return redis.call('rpush', KEYS[1], ARGV[1])"));

macro_rules! writes {
    () => {
        fn write(&self, log: &str, entry: &str, by_script: bool) -> Result<()> {
            match by_script {
                true => self.invoke(&WRITE, log, entry),
                false => self.query(redis::cmd("RPUSH").arg(log).arg(entry)),
            }
        }
    };
}

macro_rules! holds {
    ($($guard:ident by $release:ident $({ $($own_items:tt)* })?),+ $(,)?) => {$(
        impl Hold for redlatch::$guard {
            fn valid_until(&self) -> Option<Instant> {
                Some(redlatch::$guard::valid_until(self))
            }
            fn lost(&self) -> Option<&LossReceiver> {
                Some(redlatch::$guard::lost(self))
            }
            fn is_valid(&self) -> bool {
                redlatch::$guard::is_valid(self)
            }
            fn release(self: Box<Self>) -> Result<()> {
                redlatch::$guard::$release(*self)
            }
            $($($own_items)*)?
        }
    )+};
}

holds! {
    ReentrantLockGuard by unlock { writes!(); },
    MutexGuard by unlock { writes!(); },
    FairLockGuard by unlock { writes!(); },
    FairMutexGuard by unlock { writes!(); },
    FencedLockGuard by unlock {
        writes!();
        fn token(&self) -> Option<u64> {
            Some(redlatch::FencedLockGuard::token(self))
        }
    },
    SpinLockGuard by unlock { writes!(); },
    RwLockReadGuard by unlock { writes!(); },
    RwLockWriteGuard by unlock { writes!(); },
    MultiLockGuard by unlock,
    RedLockGuard by unlock,
    ExpirablePermit by release {
        writes!();
        fn id(&self) -> Option<&str> {
            Some(redlatch::ExpirablePermit::id(self))
        }
    },
}

impl Hold for redlatch::SemaphorePermit {
    fn release(self: Box<Self>) -> Result<()> {
        Self::release(*self)
    }
}

pub(crate) type Held = Box<dyn Hold>;

pub(crate) fn held<H: Hold + 'static>(asked: Result<Option<H>>) -> Result<Option<Held>> {
    Ok(asked?.map(|hold| Box::new(hold) as Held))
}
