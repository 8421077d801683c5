//! The fair lock: Redis keeps the queue of those that wait, and each has a channel of its own.

use std::sync::Arc;
use std::time::Duration;

use crate::error::Result;
use crate::local::lock::{Mode, Order};
use crate::protocol::keys;
use crate::protocol::kind::{
    ACQUIRING, AcquireArgs, FORCING, Keyspace, Kind, PlaceState, Protocol, RELEASING,
};
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

    fn keys(&self) -> [&str; 4] {
        [&self.key, &self.queue, &self.timeouts, &self.channel]
    }
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
        Request::script(
            ACQUIRING,
            &script::FAIR_ACQUIRE,
            &self.keys(),
            &[
                args.owner,
                &Digits::of_number(lease_ms(args.lease)),
                args.place.ticket,
                &Digits::of_number(lease_ms(args.place.keep)),
                match args.place.state {
                    PlaceState::Unknown => "0",
                    PlaceState::Kept => "1",
                    PlaceState::Lost => "2",
                },
                &self.grace_ms(),
            ],
        )
        .without_grace_while_young(5)
    }

    fn release(&self, _mode: Mode, owner: &str) -> Request {
        Request::script(
            RELEASING,
            &script::FAIR_RELEASE,
            &self.keys(),
            &[owner, &self.grace_ms()],
        )
        .without_grace_while_young(1)
    }

    fn leave(&self, ticket: &str) -> Option<Request> {
        let request = Request::script(
            "leaving the queue",
            &script::FAIR_LEAVE,
            &self.keys(),
            &[ticket, &self.grace_ms()],
        );
        Some(request.without_grace_while_young(1))
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
}
