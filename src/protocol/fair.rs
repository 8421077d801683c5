//! The fair lock: Redis keeps the queue of those that wait, and each has a channel of its own.

use std::sync::Arc;
use std::time::Duration;

use crate::error::Result;
use crate::local::lock::{Mode, Order};
use crate::protocol::keys;
use crate::protocol::kind::{
    ACQUIRING, AcquireArgs, FORCING, Keyspace, Kind, PlaceState, Protocol, RELEASING,
};
use crate::protocol::owner::OwnerId;
use crate::protocol::script::{self, Request, lease_ms};
use crate::protocol::text::Digits;

pub(crate) static KIND: Kind = Kind {
    has_plain_keys: true,
    order: Order::Server,
    ..Kind::plain("fair", protocol)
};

/// How long a place in the queue lives on whose waiter was notified and did not listen.
///
/// For one that has a place and is about to subscribe, or to subscribe again.
pub(crate) const GRACE: Duration = Duration::from_millis(500);

fn protocol(keyspace: Keyspace<'_>, name: &Arc<str>) -> Result<Box<dyn Protocol>> {
    let key = keyspace.key(name)?;
    Ok(Box::new(Fair {
        queue: keys::fair_queue(&key),
        timeouts: keys::fair_timeouts(&key),
        channel: keys::lock_channel(&key).concat().into(),
        key,
        grace: match keyspace.is_cluster {
            true => Duration::ZERO,
            false => GRACE,
        },
    }))
}

struct Fair {
    key: Arc<str>,
    queue: String,
    timeouts: String,
    channel: Arc<str>,
    /// Zero in a cluster, where the node that counts the listeners does not know those of others.
    grace: Duration,
}

impl Fair {
    fn grace_ms(&self) -> Digits {
        Digits::of(lease_ms(self.grace))
    }

    /// A request with the grace as its second argument. There is none if the next is of this process and asks at once, since
    /// it need not listen.
    fn graced(&self, next_asks: bool, make: impl FnOnce(&str) -> Request) -> Request {
        match next_asks {
            true => make("0"),
            false => make(&self.grace_ms()).without_grace_while_young(1),
        }
    }

    fn leaving(&self, ticket: &str, more: &[OwnerId], next_asks: bool) -> Request {
        self.graced(next_asks, |grace| {
            with_served([ticket, grace], more, |args| {
                Request::script("leaving the queue", &script::FAIR_LEAVE, &self.keys(), args)
            })
        })
    }

    fn keys(&self) -> [&str; 4] {
        [&self.key, &self.queue, &self.timeouts, &self.channel]
    }
}

/// A request with some arguments of its own, and after them the places to be removed.
fn with_served<const N: usize>(
    own: [&str; N],
    served: &[OwnerId],
    make: impl FnOnce(&[&str]) -> Request,
) -> Request {
    if served.is_empty() {
        return make(&own);
    }
    let served = served.iter().map(|id| &**id);
    make(&own.into_iter().chain(served).collect::<Vec<_>>())
}

impl Protocol for Fair {
    fn kind(&self) -> &'static Kind {
        &KIND
    }

    fn key(&self) -> &str {
        &self.key
    }

    fn channel(&self) -> Arc<str> {
        Arc::clone(&self.channel)
    }

    fn acquire(&self, args: &AcquireArgs<'_>) -> Request {
        let state = match args.place.state {
            PlaceState::Unknown => "0",
            PlaceState::Kept => "1",
            PlaceState::Lost => "2",
        };
        let own = [
            args.owner,
            &Digits::of_number(lease_ms(args.lease)),
            args.place.ticket,
            &Digits::of_number(lease_ms(args.place.keep)),
            state,
            &self.grace_ms(),
        ];
        with_served(own, args.place.served, |args| {
            Request::script(ACQUIRING, &script::FAIR_ACQUIRE, &self.keys(), args)
        })
        .without_grace_while_young(5)
    }

    fn release(&self, _mode: Mode, owner: &str) -> Request {
        self.release_in_turn(owner, &[], false)
    }

    fn release_in_turn(&self, owner: &str, served: &[OwnerId], next_asks: bool) -> Request {
        self.graced(next_asks, |grace| {
            with_served([owner, grace], served, |args| {
                Request::script(RELEASING, &script::FAIR_RELEASE, &self.keys(), args)
            })
        })
    }

    fn leave(&self, ticket: &str) -> Option<Request> {
        Some(self.leaving(ticket, &[], false))
    }

    fn leave_served(&self, served: &[OwnerId], next_asks: bool) -> Option<Request> {
        let (first, more) = served.split_first()?;
        Some(self.leaving(first, more, next_asks))
    }

    fn force(&self, request: &str, keep_ms: &str) -> Request {
        let [lock, queue, timeouts, channel] = self.keys();
        let keys = [lock, queue, timeouts, channel, request];
        Request::script(
            FORCING,
            &script::FAIR_FORCE,
            &keys,
            &[keep_ms, &self.grace_ms()],
        )
        .without_grace_while_young(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_a_cluster_nobody_gets_a_grace() {
        for (is_cluster, grace) in [(false, "500"), (true, "0")] {
            let keyspace = Keyspace {
                prefix: "",
                db: 0,
                is_cluster,
            };
            let fair = protocol(keyspace, &"a".into()).expect("a name");
            let release = fair.release(Mode::Exclusive, "u:1");
            let mut packed = Vec::new();
            release.write(&mut packed, false);
            let end = format!("${}\r\n{grace}\r\n", grace.len());
            assert!(
                packed.ends_with(end.as_bytes()),
                "{}",
                packed.escape_ascii()
            );
        }
    }
    #[test]
    fn a_release_removes_those_who_were_served() {
        let keyspace = Keyspace {
            prefix: "",
            db: 0,
            is_cluster: false,
        };
        let fair = protocol(keyspace, &"a".into()).expect("a name");
        let owners = crate::protocol::owner::Owners::of("u");
        let served = [2, 3].map(|n| owners.id(crate::protocol::owner::OwnerNumber(n)));
        for (next_asks, grace) in [(false, "$3\r\n500"), (true, "$1\r\n0")] {
            let release = fair.release_in_turn("u:1", &served, next_asks);
            let mut packed = Vec::new();
            release.write(&mut packed, false);
            let end = format!("$3\r\nu:1\r\n{grace}\r\n$3\r\nu:2\r\n$3\r\nu:3\r\n");
            assert!(
                packed.ends_with(end.as_bytes()),
                "{}",
                packed.escape_ascii()
            );
        }
    }
}
