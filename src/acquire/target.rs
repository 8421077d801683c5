//! The inner parts of a handle and its guard: one lock and its hold, or several locks as one.

use std::time::Instant;

use crate::acquire::spec::LockSpec;
use crate::acquire::wait_mode::WaitMode;
use crate::error::Result;
use crate::hold::loss::LossReceiver;

/// The inner part of a handle: the locks that it takes.
pub trait Target: Clone + Send + Sync + 'static {
    type Held: HeldTarget;

    /// The name, as given to the client.
    fn name(&self) -> &str;

    /// The locks of which the target consists.
    fn parts(&self) -> &[LockSpec];

    fn parts_mut(&mut self) -> &mut [LockSpec];

    /// The parts, if each of them can be asked about.
    fn checked(&self) -> Result<&[LockSpec]> {
        Ok(self.parts())
    }

    /// Takes all parts or none, and tells the observers.
    fn take(&self, wait: WaitMode) -> Result<Option<Self::Held>>;
}

/// The inner part of a guard: the holds that it has until it is dropped.
pub trait HeldTarget: Send + Sync + 'static {
    fn name(&self) -> &str;

    fn owner(&self) -> &str;

    /// How many holds the guard's thread has, including this one; zero if they are no longer valid.
    fn hold_count(&self) -> u32;

    fn is_valid(&self) -> bool;

    fn valid_until(&self) -> Instant;

    fn lost(&self) -> &LossReceiver;

    /// Releases and waits for Redis to confirm it.
    fn unlock(self) -> Result<()>;
}
