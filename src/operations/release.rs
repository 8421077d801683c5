//! Taking a lock from one owner, and from nobody else.

use std::sync::Arc;

use super::inspect::{HoldMode, LockKind, inspect};
use crate::acquire::spec::LockSpec;
use crate::error::Result;
use crate::local::lock::Mode;
use crate::protocol::script;
use crate::protocol::{fair, fenced, permits, reentrant, rw};
use crate::session::shared::SharedSession;
use crate::sync::expirable_semaphore::ExpirableSemaphore;

/// Ends all holds of this owner, whatever their count; `false` if it has none.
pub(crate) fn unlock_owner(shared: &Arc<SharedSession>, name: &str, owner: &str) -> Result<bool> {
    let info = inspect(shared, name)?;
    let kind = match info.kind {
        LockKind::FairLock => &fair::KIND,
        LockKind::FencedLock => &fenced::KIND,
        LockKind::RwLock => &rw::KIND,
        LockKind::ExpirableSemaphore => &permits::KIND,
        LockKind::Lock => &reentrant::KIND,
        // These have no owner.
        LockKind::Free | LockKind::Semaphore | LockKind::Latch => return Ok(false),
    };
    let spec = LockSpec::new(shared, name.into(), kind);
    let mut was_held = false;
    // There may be two: a thread of Redisson's that both writes and reads is one owner with two holds.
    for holder in info.holders.iter().filter(|holder| holder.owner == owner) {
        let mode = match holder.mode {
            HoldMode::Permit => return ExpirableSemaphore::of(spec).release_id(owner),
            HoldMode::Read => Mode::Shared,
            _ => Mode::Exclusive,
        };
        let entry = spec.unregistered_entry()?;
        let release = entry.protocol.release(mode, owner.as_bytes());
        let (answer, sendings) = spec.call(&release, spec.until());
        let released = spec.read_answer(release.doing, answer, |reply| script::released(&reply))?;
        // If the request was sent twice, the first sending may have ended the hold, and the second finds nothing. So the
        // answer is `true`, even if the hold ended by itself in between: the owner no longer has it.
        was_held |= released.is_ok() || sendings > 1;
    }
    Ok(was_held)
}
