//! A hold that changes hands: one client leaves it in Redis, and another makes it its own in one step.
//!
//! ```text
//!   held ──detach──► kept for a while ──adopt──► held by the adopter, under a number of its own
//!                      │     │    └── a later adopt, by anybody: taken
//!                      │     └─ force_unlock, a delete, a failover without it: gone
//!                      └─ its time is over: gone, or taken by the next owner
//! ```
//!
//! Once the hold is adopted, Redis no longer has the old number, so renewals, releases and guarded commands that the
//! former holder still sends find nothing.

use crate::net::text::Digits;
use crate::protocol::keys;
use crate::protocol::kind::{AcquireArgs, Protocol};
use crate::protocol::script::{self, Request, lease_ms};

pub(crate) const ADOPTING: &str = "adopting a hold";

/// Gives the hold of `from` to the owner in `args`. [`script::adopted`] reads the reply.
pub(crate) fn adopt(of: &Protocol, from: &str, args: &AcquireArgs<'_>) -> Request {
    let counter = of.kind().has_tokens.then(|| keys::fenced_token(of.key()));
    let keys: Vec<_> = [of.key()].into_iter().chain(counter.as_deref()).collect();
    let [lease, token_ttl] = [args.lease, args.token_ttl].map(|span| Digits::from(lease_ms(span)));
    let args = [
        from.as_bytes(),
        args.owner,
        lease.as_bytes(),
        token_ttl.as_bytes(),
    ];
    Request::script(ADOPTING, &script::LOCK_ADOPT, &keys, &args)
}
