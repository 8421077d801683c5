//! The read-write lock: one hash for the writer and all readers, and a key beside it for each read hold's lease.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{LossReason, Result};
use crate::local::lock::Mode;
use crate::protocol::keys;
use crate::protocol::kind::{
    ACQUIRING, AcquireArgs, FORCING, Keyspace, Kind, Protocol, RELEASING, RENEWING, renew_plain,
};
use crate::protocol::script::{self, Request, lease_ms};
use crate::protocol::text::Digits;

pub(crate) static KIND: Kind = Kind::plain("read-write", protocol);

fn protocol(keyspace: Keyspace<'_>, name: &Arc<str>) -> Result<Box<dyn Protocol>> {
    let key = keyspace.key(name)?;
    let channel = keys::rw_channel(&key);
    Ok(Box::new(ReadWrite {
        holds: keys::rw_holds(&key),
        // Channels, unlike keys, are shared by all databases.
        writers: format!("{channel}:writers:{}", keyspace.db).into(),
        channel: channel.into(),
        key,
    }))
}

struct ReadWrite {
    key: Arc<str>,
    channel: Arc<str>,
    /// What precedes the owner in the key of a read hold.
    holds: String,
    writers: Arc<str>,
}

impl ReadWrite {
    /// The key that lives for as long as a read hold. Each owner of ours has one read hold.
    fn hold_key(&self, owner: &str) -> String {
        format!("{}{owner}:rwlock_timeout:1", self.holds)
    }
}

/// The hash field of a write hold.
fn write_field(owner: &str) -> String {
    format!("{owner}:write")
}

impl Protocol for ReadWrite {
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
        let lease = Digits::of_number(lease_ms(args.lease));
        match args.mode {
            Mode::Exclusive => Request::script(
                ACQUIRING,
                &script::RW_WRITE_ACQUIRE,
                &[&self.key],
                &[&write_field(args.owner), &lease, &self.holds],
            ),
            Mode::Shared => Request::script(
                ACQUIRING,
                &script::RW_READ_ACQUIRE,
                &[&self.key, &self.hold_key(args.owner), &self.writers],
                &[
                    args.owner,
                    &lease,
                    &args.under.map(write_field).unwrap_or_default(),
                    &args.ignored_writers.map(Digits::of).unwrap_or_default(),
                ],
            ),
        }
    }

    fn release(&self, mode: Mode, owner: &str) -> Request {
        match mode {
            Mode::Exclusive => Request::script(
                RELEASING,
                &script::RW_WRITE_RELEASE,
                &[&self.key, &self.channel],
                &[&write_field(owner)],
            ),
            Mode::Shared => Request::script(
                RELEASING,
                &script::RW_READ_RELEASE,
                &[&self.key, &self.channel, &self.hold_key(owner)],
                &[owner, &self.holds],
            ),
        }
    }

    fn renew(&self, mode: Mode, owner: &str, lease: Duration, count: u32) -> Request {
        match mode {
            Mode::Exclusive => renew_plain(&self.key, &write_field(owner), lease, count),
            Mode::Shared => Request::script(
                RENEWING,
                &script::RW_READ_RENEW,
                &[&self.key, &self.channel, &self.hold_key(owner)],
                &[owner, &Digits::of_number(lease_ms(lease))],
            ),
        }
    }

    fn force(&self, request: &str, keep_ms: &str) -> Request {
        let keys = [&self.key, &*self.channel, request];
        Request::script(FORCING, &script::RW_FORCE, &keys, &[keep_ms])
    }

    fn state(&self) -> Request {
        Request::script("asking for the lock", &script::RW_STATE, &[&self.key], &[])
    }

    fn is_locked(&self, mode: Mode, state: i64) -> bool {
        match mode {
            Mode::Shared => state == 1 || state == 3,
            Mode::Exclusive => state >= 2,
        }
    }

    fn writers(&self) -> Option<&Arc<str>> {
        Some(&self.writers)
    }

    /// If the thread also reads, renewing its read hold keeps the key that both are in, and the lost write hold with it.
    fn is_given_back_when_lost(&self, mode: Mode, reason: LossReason) -> bool {
        mode == Mode::Exclusive && reason.may_still_be_held()
    }
}
