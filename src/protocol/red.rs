//! The requests to one node of a lock that a majority of nodes keeps.

use std::time::Duration;

use crate::error::LossReason;
use crate::net::text::Digits;
use crate::protocol::kind::{ACQUIRING, AcquireArgs, Id, Kind, Protocol};
use crate::protocol::script::{self, Request, lease_ms};

pub(crate) static KIND: Kind = Kind {
    id: Id::NameAndNodes,
    acquire,
    // Undoing publishes no message. A part that has to be announced when it is given back is released instead: see
    // `quorum::ask`.
    undo: |of, _, owner| {
        let doing = "undoing an acquire";
        Request::script(doing, &script::LOCK_RELEASE, &[of.key()], &[owner])
    },
    // If the hold was lost because it was forced or taken over, too few nodes keep their parts, and the parts that are
    // left protect nothing. So they are released at once. After any other loss the guard releases them. The exception is
    // the closing of a client, which also releases them at once (`Session::give_up`, `QuorumHold::lose`).
    is_given_back_when_lost: |_, reason| {
        matches!(reason, LossReason::Forced | LossReason::TakenOver)
    },
    ..Kind::base("red")
};

/// The script also checks that the node has been up for long enough.
fn acquire(of: &Protocol, args: &AcquireArgs<'_>) -> Request {
    let [lease, up_for] = [lease_ms(args.lease), seconds(args.up_for)].map(Digits::from);
    let args = [
        args.owner,
        lease.as_bytes(),
        up_for.as_bytes(),
        args.run_id.as_bytes(),
    ];
    Request::script(ACQUIRING, &script::RED_ACQUIRE, &[of.key()], &args)
}

/// Whole seconds, never rounded down.
fn seconds(span: Duration) -> u64 {
    span.as_secs() + u64::from(span.subsec_nanos() > 0)
}
