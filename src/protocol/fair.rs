//! The fair lock: Redis keeps the queue of waiters, and each waiter has a channel of its own.

use crate::local::lock::Order;
use crate::net::text::Digits;
use crate::protocol::keys;
use crate::protocol::kind::{
    ACQUIRING, AcquireArgs, FORCING, Kind, Place, Protocol, RELEASING, keep_field,
};
use crate::protocol::owner::OwnerId;
use crate::protocol::script::{self, Request, Script, lease_ms};

pub(crate) static KIND: Kind = Kind {
    shares_plain_key: true,
    order: Order::Server,
    acquire,
    release: |of, _, owner| request(of, RELEASING, &script::FAIR_RELEASE, None, &[owner]),
    keep: |of, _, owner, span| {
        let queue = keys::fair_queue(of.key());
        keep_field(of, "fair", Some(&queue), owner, span)
    },
    refresh: Some(|of, tickets| {
        let doing = "keeping places in the queue";
        let tickets: Vec<_> = tickets.iter().map(OwnerId::as_bytes).collect();
        request(of, doing, &script::FAIR_REFRESH, None, &tickets)
    }),
    force: |of, key, keep_ms| {
        let args = [keep_ms.as_bytes()];
        request(of, FORCING, &script::FAIR_FORCE, Some(key), &args)
    },
    ..Kind::base("fair")
};

fn acquire(of: &Protocol, args: &AcquireArgs<'_>) -> Request {
    let place = match args.place {
        Place::New => "new",
        Place::Has => "has",
        Place::Last => "last",
        Place::None => "none",
    };
    let lease = Digits::from(lease_ms(args.lease));
    let args = [args.owner, lease.as_bytes(), place.as_bytes()];
    request(of, ACQUIRING, &script::FAIR_ACQUIRE, None, &args)
}

/// A request with a script about the lock and its queue; `more` is a further key.
fn request(
    of: &Protocol,
    doing: &'static str,
    script: &'static Script,
    more: Option<&str>,
    args: &[&[u8]],
) -> Request {
    let key = of.key();
    let (queue, timeouts) = (keys::fair_queue(key), keys::fair_timeouts(key));
    let (alive, channel) = (keys::fair_alive(key), of.channel());
    let keys = [key, &queue, &timeouts, &alive, &channel];
    let keys: Vec<_> = keys.into_iter().chain(more).collect();
    let waiter_ms = Digits::from(lease_ms(of.waiter_lease()));
    let args = [&[waiter_ms.as_bytes()], args].concat();
    Request::script(doing, script, &keys, &args)
}
