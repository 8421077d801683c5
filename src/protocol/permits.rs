//! The semaphore whose permits have an id and a lease each: a number, and a sorted set of the taken permits.

use std::time::Duration;

use redis::Value;

use crate::error::{LossReason, RELEASING_PERMIT as RELEASING};
use crate::net::text::Digits;
use crate::protocol::adopt::ADOPTING;
use crate::protocol::idempotency::RequestKeys;
use crate::protocol::keys;
use crate::protocol::kind::{Evidence, Kind, Protocol, RenewalArgs};
use crate::protocol::owner::PermitId;
use crate::protocol::script::{self, Request, Script, Unexpected, lease_ms};

/// Here the owner of a hold is the permit's id, in hexadecimal digits.
pub(crate) static KIND: Kind = Kind {
    channel: keys::semaphore_channel,
    release: |of, _, owner| {
        let args: [&[u8]; 1] = [&packed(owner)];
        request(of, RELEASING, &script::PERMIT_RELEASE, None, &args)
    },
    renew,
    evidence: |of, _, owner| Evidence {
        lock: keys::permit_timeouts(of.key()),
        life: None,
        hold: packed(owner),
        is_permit: true,
    },
    renewed: |reply, ends_at| match script::integer(reply)? {
        0 => Ok(Some(Err(LossReason::Forced))),
        found => {
            *ends_at = found.saturating_abs();
            Ok((found > 0).then_some(Ok(())))
        }
    },
    ..Kind::base("permits")
};

fn renew(of: &Protocol, renewal: &RenewalArgs<'_>) -> Request {
    let (lease, ends_at) = (
        Digits::from(lease_ms(renewal.lease)),
        Digits::of(renewal.ends_at),
    );
    Request::script(
        "renewing a permit",
        &script::PERMIT_RENEW,
        &[&keys::permit_timeouts(of.key())],
        &[
            &*packed(renewal.owner),
            lease.as_bytes(),
            ends_at.as_bytes(),
        ],
    )
}

/// The id of a permit as 16 bytes, for scripts.
fn packed(owner: &[u8]) -> Vec<u8> {
    let id = std::str::from_utf8(owner).ok().and_then(PermitId::parse);
    id.map_or_else(Vec::new, |id| id.0.to_vec())
}

/// Ids for scripts: 16 bytes each, one after another.
fn all(ids: &[PermitId]) -> Vec<u8> {
    ids.iter().flat_map(|id| id.0).collect()
}

/// A request with a script about permits; `request` has the key that remembers its result.
fn request(
    of: &Protocol,
    doing: &'static str,
    script: &'static Script,
    request: Option<&RequestKeys>,
    args: &[&[u8]],
) -> Request {
    let timeouts = keys::permit_timeouts(of.key());
    let channel = of.channel();
    let keys = [of.key(), &timeouts, &channel];
    let keys = request.map_or_else(|| keys.to_vec(), |request| request.after(&keys));
    Request::script(doing, script, &keys, args)
}

/// Acquires permits with these ids, all or none.
pub(crate) fn acquire(of: &Protocol, ids: &[PermitId], lease: Duration) -> Request {
    let lease = Digits::from(lease_ms(lease));
    let args = [lease.as_bytes(), &all(ids)];
    request(
        of,
        "acquiring permits",
        &script::PERMIT_ACQUIRE,
        None,
        &args,
    )
}

/// Releases permits. The reply does not say which of them were taken.
pub(crate) fn release(of: &Protocol, ids: &[PermitId]) -> Request {
    request(of, RELEASING, &script::PERMIT_RELEASE, None, &[&all(ids)])
}

/// Releases permits of any process. The reply says for each whether it was released. With `all_or_none`, permits are
/// released only if all are taken.
pub(crate) fn release_ids(
    of: &Protocol,
    keys: &RequestKeys,
    ids: &[PermitId],
    all_or_none: bool,
) -> Request {
    let all_or_none: &[u8] = if all_or_none { b"1" } else { b"0" };
    let args = [&*all(ids), keys.keep_ms.as_bytes(), all_or_none];
    let script = &script::PERMIT_RELEASE_IDS;
    request(of, RELEASING, script, Some(keys), &args)
}

/// Reads the reply to [`release_ids`] with `count` ids: whether each was released.
pub(crate) fn read_released(reply: Value, count: usize) -> Result<Vec<bool>, Unexpected> {
    match reply {
        Value::BulkString(letters) if letters.len() == count => {
            Ok(letters.iter().map(|letter| *letter == b'1').collect())
        }
        other => Err(Unexpected(other)),
    }
}

/// Lets a permit end `lease` from now.
pub(crate) fn update(of: &Protocol, keys: &RequestKeys, id: PermitId, lease: Duration) -> Request {
    let lease = Digits::from(lease_ms(lease));
    let args = [&id.0, lease.as_bytes(), keys.keep_ms.as_bytes()];
    let doing = "changing the lease of a permit";
    request(of, doing, &script::PERMIT_UPDATE, Some(keys), &args)
}

/// Gives the permit `from` another id, and a lease from now on. Read by [`script::permits_acquired`].
pub(crate) fn adopt(of: &Protocol, from: PermitId, id: PermitId, lease: Duration) -> Request {
    let lease = Digits::from(lease_ms(lease));
    let args = [&from.0, &id.0, lease.as_bytes()];
    request(of, ADOPTING, &script::PERMIT_ADOPT, None, &args)
}

/// Asks how much of a permit's lease is left.
pub(crate) fn lease_of(of: &Protocol, id: PermitId) -> Request {
    let doing = "asking for the lease of a permit";
    request(of, doing, &script::PERMIT_LEASE, None, &[&id.0])
}

/// Asks how many permits are available, taken, and both together.
pub(crate) fn state(of: &Protocol) -> Request {
    request(of, "asking for permits", &script::PERMIT_STATE, None, &[])
}

/// Reads the reply to [`state`].
pub(crate) fn read_state(reply: Value) -> Result<[i64; 3], Unexpected> {
    if let Value::Array(parts) = &reply
        && let [Value::Int(available), Value::Int(taken), Value::Int(both)] = parts[..]
    {
        return Ok([available, taken, both]);
    }
    Err(Unexpected(reply))
}

/// A change of the number of permits.
#[derive(Debug, Clone, Copy)]
pub(crate) enum PermitChange {
    /// Sets the number, unless one is set.
    TrySet(u32),
    Set(u32),
    Add(i64),
    /// Deletes the number, and the permits that are taken.
    Delete,
}

/// Changes how many permits there are.
pub(crate) fn change(of: &Protocol, keys: &RequestKeys, change: PermitChange) -> Request {
    let setting = "setting the number of permits";
    let (doing, script, by) = match change {
        PermitChange::TrySet(n) => (setting, &script::PERMIT_TRY_SET, Digits::of(n)),
        PermitChange::Set(n) => (setting, &script::PERMIT_SET, Digits::of(n)),
        PermitChange::Add(n) => ("adding permits", &script::PERMIT_ADD, Digits::of(n)),
        PermitChange::Delete => {
            let (doing, script) = ("deleting a semaphore", &script::PERMIT_DELETE);
            return request(of, doing, script, Some(keys), &[keys.keep_ms.as_bytes()]);
        }
    };
    let args = [by.as_bytes(), keys.keep_ms.as_bytes()];
    request(of, doing, script, Some(keys), &args)
}
