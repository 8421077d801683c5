//! What one node is sent for a lock that a majority of nodes keeps.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{LossReason, Result};
use crate::local::lock::Mode;
use crate::protocol::kind::{ACQUIRING, AcquireArgs, Id, Keyspace, Kind, Protocol};
use crate::protocol::script::{self, Request, lease_ms};
use crate::protocol::text::Digits;

pub(crate) static KIND: Kind = Kind {
    id: Id::NameAndNodes,
    ..Kind::plain("red", protocol)
};

fn protocol(keyspace: Keyspace<'_>, id: &Arc<str>) -> Result<Box<dyn Protocol>> {
    let name = KIND.shown(id);
    let key = keyspace.key(&name)?;
    Ok(Box::new(Red { name, key }))
}

struct Red {
    name: Arc<str>,
    key: Arc<str>,
}

impl Protocol for Red {
    fn kind(&self) -> &'static Kind {
        &KIND
    }

    fn shown(&self) -> Option<&Arc<str>> {
        Some(&self.name)
    }

    fn key(&self) -> &str {
        &self.key
    }

    /// The script asks the node whether it has been up for long enough.
    fn acquire(&self, args: &AcquireArgs<'_>) -> Request {
        Request::script(
            ACQUIRING,
            &script::RED_ACQUIRE,
            &[&self.key],
            &[
                args.owner,
                &Digits::of_number(lease_ms(args.lease)),
                &Digits::of(seconds(args.up_for)),
                args.run_id,
            ],
        )
    }

    /// Without a message: nobody has seen a majority keep it.
    fn undo(&self, _mode: Mode, owner: &str) -> Request {
        Request::script(
            "undoing an acquire",
            &script::LOCK_RELEASE,
            &[&self.key],
            &[owner],
        )
    }

    /// Other nodes may still keep it.
    fn is_given_back_when_lost(&self, _mode: Mode, reason: LossReason) -> bool {
        matches!(reason, LossReason::Forced | LossReason::TakenOver)
    }
}

/// Whole seconds, never rounded down.
fn seconds(span: Duration) -> u64 {
    span.as_secs() + u64::from(span.subsec_nanos() > 0)
}
