//! Several plain locks of one server, taken together by one script.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, LossReason, Result};
use crate::local::lock::Mode;
use crate::protocol::keys;
use crate::protocol::kind::{
    ACQUIRING, AcquireArgs, FORCING, Id, Keyspace, Kind, Protocol, RELEASING, RENEWING,
};
use crate::protocol::script::{self, Request, lease_ms};
use crate::protocol::text::Digits;

pub(crate) static KIND: Kind = Kind {
    has_plain_keys: true,
    id: Id::Names,
    ..Kind::plain("multi", protocol)
};

/// How many names can be taken as one.
const MOST_NAMES: usize = 256;

fn protocol(keyspace: Keyspace<'_>, id: &Arc<str>) -> Result<Box<dyn Protocol>> {
    let names = keys::names(id);
    if names.len() > MOST_NAMES {
        return Err(Error::Config(format!(
            "a multi-lock of {} names; {MOST_NAMES} are possible",
            names.len()
        )));
    }
    if names.is_empty() {
        return Err(Error::Config("a multi-lock of no names".into()));
    }
    let member = |name: &str| {
        let key = keyspace.key(&name.into())?;
        let channel = keys::lock_channel(&key).concat().into();
        Ok(Member { key, channel })
    };
    let members = names.into_iter().map(member).collect::<Result<_>>()?;
    let name = KIND.shown(id);
    Ok(Box::new(Multi { name, members }))
}

struct Multi {
    /// All names, joined.
    name: Arc<str>,
    /// At least one.
    members: Vec<Member>,
}

/// One of several locks.
struct Member {
    key: Arc<str>,
    channel: Arc<str>,
}

impl Multi {
    fn locks_and_channels(&self) -> Vec<&str> {
        let channels = self.members.iter().map(|member| &*member.channel);
        self.locks().into_iter().chain(channels).collect()
    }

    /// The time that one of them has left, or -2 if all are free.
    fn ask(&self, doing: &'static str) -> Request {
        Request::script(doing, &script::MULTI_STATE, &self.locks(), &[])
    }
}

impl Protocol for Multi {
    fn kind(&self) -> &'static Kind {
        &KIND
    }

    fn shown(&self) -> Option<&Arc<str>> {
        Some(&self.name)
    }

    fn key(&self) -> &str {
        &self.members[0].key
    }

    fn channel(&self) -> Arc<str> {
        self.channel_at(0)
    }

    fn channel_at(&self, at: usize) -> Arc<str> {
        let member = self.members.get(at).unwrap_or(&self.members[0]);
        Arc::clone(&member.channel)
    }

    fn locks(&self) -> Vec<&str> {
        self.members.iter().map(|member| &*member.key).collect()
    }

    fn acquire(&self, args: &AcquireArgs<'_>) -> Request {
        Request::script(
            ACQUIRING,
            &script::MULTI_ACQUIRE,
            &self.locks(),
            &[args.owner, &Digits::of_number(lease_ms(args.lease))],
        )
    }

    fn release(&self, _mode: Mode, owner: &str) -> Request {
        Request::script(
            RELEASING,
            &script::MULTI_RELEASE,
            &self.locks_and_channels(),
            &[owner],
        )
    }

    fn renew(&self, _mode: Mode, owner: &str, lease: Duration, count: u32) -> Request {
        Request::script(
            RENEWING,
            &script::MULTI_RENEW,
            &self.locks(),
            &[
                owner,
                &Digits::of_number(lease_ms(lease)),
                &Digits::of(count),
            ],
        )
    }

    fn force(&self, request: &str, keep_ms: &str) -> Request {
        let mut keys = self.locks_and_channels();
        keys.push(request);
        Request::script(FORCING, &script::MULTI_FORCE, &keys, &[keep_ms])
    }

    fn state(&self) -> Request {
        self.ask("asking for the lock")
    }

    fn is_locked(&self, _mode: Mode, state: i64) -> bool {
        state != -2
    }

    fn remaining(&self) -> Request {
        self.ask("asking for the lease")
    }

    /// The other names may still be held.
    fn is_given_back_when_lost(&self, _mode: Mode, reason: LossReason) -> bool {
        matches!(reason, LossReason::Forced | LossReason::TakenOver)
    }
}
