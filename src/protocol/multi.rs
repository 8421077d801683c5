//! Several plain locks of one server, taken together by one script.

use crate::error::LossReason;
use crate::net::text::Digits;
use crate::protocol::keys;
use crate::protocol::kind::{ACQUIRING, FORCING, Id, Kind, Protocol, RELEASING, RENEWING};
use crate::protocol::script::{self, Request, lease_ms};

pub(crate) static KIND: Kind = Kind {
    has_plain_keys: true,
    id: Id::Names,
    acquire: |of, args| {
        let args = [args.owner, &Digits::of(lease_ms(args.lease))];
        Request::script(ACQUIRING, &script::MULTI_ACQUIRE, &of.locks(), &args)
    },
    release: |of, _, owner| {
        let channels = channels(of);
        let keys = locks_and(of, &channels);
        Request::script(RELEASING, &script::MULTI_RELEASE, &keys, &[owner])
    },
    renew: |of, its| {
        let [lease, count] = [lease_ms(its.lease), its.count.into()].map(Digits::of);
        let args = [its.owner, &lease, &count];
        Request::script(RENEWING, &script::MULTI_RENEW, &of.locks(), &args)
    },
    force: |of, request, keep_ms| {
        let channels = channels(of);
        let mut keys = locks_and(of, &channels);
        keys.push(request);
        Request::script(FORCING, &script::MULTI_FORCE, &keys, &[keep_ms])
    },
    state: |of| ask(of, "asking for the lock"),
    is_locked: |_, state| state != -2,
    remaining: |of| ask(of, "asking for the lease"),
    // The other names may still be held.
    is_given_back_when_lost: |_, reason| {
        matches!(reason, LossReason::Forced | LossReason::TakenOver)
    },
    ..Kind::plain("multi")
};

fn channels(of: &Protocol) -> Vec<String> {
    let locks = of.locks().into_iter();
    locks.map(|key| keys::lock_channel(key).concat()).collect()
}

fn locks_and<'a>(of: &'a Protocol, channels: &'a [String]) -> Vec<&'a str> {
    let channels = channels.iter().map(String::as_str);
    of.locks().into_iter().chain(channels).collect()
}

/// The time that one of them has left, or -2 if all are free.
fn ask(of: &Protocol, doing: &'static str) -> Request {
    Request::script(doing, &script::MULTI_STATE, &of.locks(), &[])
}
