//! The semaphore whose permits have an id and a lease each: a number, and a sorted set of the permits that are out.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use crate::error::Result;
use crate::local::lock::Mode;
use crate::protocol::idempotency::RequestKeys;
use crate::protocol::keys;
use crate::protocol::kind::{Keyspace, Kind, Protocol};
use crate::protocol::owner::PermitId;
use crate::protocol::script::{self, Renewed, Request, Script, Unexpected, lease_ms};
use crate::protocol::text::Digits;

pub(crate) static KIND: Kind = Kind::plain("permits", protocol);

fn protocol(keyspace: Keyspace<'_>, name: &Arc<str>) -> Result<Box<dyn Protocol>> {
    let key = keyspace.key(name)?;
    Ok(Box::new(Permits {
        timeouts: keys::permit_timeouts(&key),
        channel: keys::semaphore_channel(&key).into(),
        key,
    }))
}

struct Permits {
    key: Arc<str>,
    /// Which permits are out, and until when.
    timeouts: String,
    channel: Arc<str>,
}

/// The owner of a hold is a permit's id here, as it is written for people.
impl Protocol for Permits {
    fn kind(&self) -> &'static Kind {
        &KIND
    }

    fn key(&self) -> &str {
        &self.key
    }

    fn channel(&self) -> Arc<str> {
        Arc::clone(&self.channel)
    }

    fn release(&self, _mode: Mode, owner: &str) -> Request {
        request(
            self,
            RELEASING,
            &script::PERMIT_RELEASE,
            None,
            &[&packed(owner)],
        )
    }

    fn renew_permit(&self, id: &str, lease: Duration, ends_at: i64) -> Option<Request> {
        let (lease, ends_at) = (Digits::of_number(lease_ms(lease)), Digits::of(ends_at));
        Some(Request::script_of_bytes(
            "renewing a permit",
            &script::PERMIT_RENEW,
            &[&self.timeouts],
            &[&packed(id), lease.as_bytes(), ends_at.as_bytes()],
        ))
    }

    fn renewed(
        &self,
        reply: Value,
        ends_at: &mut i64,
    ) -> std::result::Result<Option<Renewed>, Unexpected> {
        match script::integer(reply)? {
            0 => Ok(Some(Renewed::Gone)),
            found => {
                *ends_at = found.saturating_abs();
                Ok((found > 0).then_some(Renewed::Yes))
            }
        }
    }
}

/// The id of a permit as scripts want it.
fn packed(owner: &str) -> Vec<u8> {
    PermitId::parse(owner).map_or_else(Vec::new, |id| id.0.to_vec())
}

/// Ids as scripts want them: one after another.
fn all(ids: &[PermitId]) -> Vec<u8> {
    ids.iter().flat_map(|id| id.0).collect()
}

const RELEASING: &str = "releasing a permit";

/// A script about permits; `request` is the key that remembers that it was carried out.
fn request(
    of: &dyn Protocol,
    doing: &'static str,
    script: &'static Script,
    request: Option<&str>,
    args: &[&[u8]],
) -> Request {
    let timeouts = keys::permit_timeouts(of.key());
    let channel = of.channel();
    let keys: Vec<&str> = [of.key(), &timeouts, &channel]
        .into_iter()
        .chain(request)
        .collect();
    Request::script_of_bytes(doing, script, &keys, args)
}

/// Takes permits with these ids, all or none.
pub(crate) fn acquire(of: &dyn Protocol, ids: &[PermitId], lease: Duration) -> Request {
    let lease = Digits::of_number(lease_ms(lease));
    let args = [lease.as_bytes(), &all(ids)];
    request(
        of,
        "acquiring permits",
        &script::PERMIT_ACQUIRE,
        None,
        &args,
    )
}

/// Releases permits; the reply does not say which of them were out.
pub(crate) fn release(of: &dyn Protocol, ids: &[PermitId]) -> Request {
    request(of, RELEASING, &script::PERMIT_RELEASE, None, &[&all(ids)])
}

/// Gives back permits, whoever took them; the reply says of each whether it was out.
pub(crate) fn release_ids(
    of: &dyn Protocol,
    keys: &RequestKeys,
    keep_ms: &str,
    ids: &[PermitId],
) -> Request {
    let args = [&*all(ids), keep_ms.as_bytes()];
    let script = &script::PERMIT_RELEASE_IDS;
    request(of, RELEASING, script, Some(keys.own()), &args)
}

/// Has a permit end after `lease` from now.
pub(crate) fn update(of: &dyn Protocol, id: PermitId, lease: Duration) -> Request {
    let lease = Digits::of_number(lease_ms(lease));
    let args = [&id.0, lease.as_bytes()];
    let doing = "changing the lease of a permit";
    request(of, doing, &script::PERMIT_UPDATE, None, &args)
}

/// Asks how long a permit has left.
pub(crate) fn lease_of(of: &dyn Protocol, id: PermitId) -> Request {
    let doing = "asking for the lease of a permit";
    request(of, doing, &script::PERMIT_LEASE, None, &[&id.0])
}

/// Asks how many are available, acquired, and both together.
pub(crate) fn state(of: &dyn Protocol) -> Request {
    request(of, "asking for permits", &script::PERMIT_STATE, None, &[])
}

/// What becomes of the number of permits.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Change {
    /// It is set unless it has been.
    TrySet(u32),
    Set(u32),
    Add(i64),
}

/// Changes how many permits there are.
pub(crate) fn change(
    of: &dyn Protocol,
    keys: &RequestKeys,
    keep_ms: &str,
    change: Change,
) -> Request {
    let setting = "setting the number of permits";
    let (doing, script, by) = match change {
        Change::TrySet(n) => (setting, &script::PERMIT_TRY_SET, Digits::of(n)),
        Change::Set(n) => (setting, &script::PERMIT_SET, Digits::of(n)),
        Change::Add(more) => ("adding permits", &script::PERMIT_ADD, Digits::of(more)),
    };
    let args = [by.as_bytes(), keep_ms.as_bytes()];
    request(of, doing, script, Some(keys.own()), &args)
}
