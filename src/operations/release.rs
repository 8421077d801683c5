//! Taking a lock from one owner, and from nobody else.

use std::sync::Arc;

use super::inspect::{HoldMode, LockKind, inspect};
use crate::acquire::spec::LockSpec;
use crate::error::Result;
use crate::local::lock::Mode;
use crate::protocol::script::{self, Released};
use crate::protocol::{fair, fenced, permits, reentrant, rw};
use crate::session::shared::SharedSession;
use crate::sync::expirable_semaphore::ExpirableSemaphore;

/// Ends the hold of this owner, whatever its count; `false` if it has none.
pub(crate) fn unlock_owner(shared: &Arc<SharedSession>, name: &str, owner: &str) -> Result<bool> {
    let info = inspect(shared, name)?;
    let Some(holder) = info.holders.iter().find(|holder| holder.owner == owner) else {
        return Ok(false);
    };
    let kind = match info.kind {
        LockKind::FairLock => &fair::KIND,
        LockKind::FencedLock => &fenced::KIND,
        LockKind::RwLock => &rw::KIND,
        LockKind::ExpirableSemaphore => {
            let handle = LockSpec::new(shared, name.into(), &permits::KIND);
            return ExpirableSemaphore::of(handle).release_id(owner);
        }
        _ => &reentrant::KIND,
    };
    let mode = match holder.mode {
        HoldMode::Read => Mode::Shared,
        _ => Mode::Exclusive,
    };
    let spec = LockSpec::new(shared, name.into(), kind);
    let entry = spec.unregistered_entry()?;
    // Sent again after a lost reply it finds nothing of that owner.
    let (reply, doing) = spec.ask(entry.protocol.release(mode, owner.as_bytes()))?;
    let released = script::released(&reply);
    let released = released.map_err(|err| spec.session().error(doing, name, err))?;
    Ok(matches!(released, Released::Yes { .. }))
}
