//! The count-down latch: a number, and a mark of its current round.

use std::time::Duration;

use crate::net::text::Digits;
use crate::protocol::idempotency::RequestKeys;
use crate::protocol::keys;
use crate::protocol::kind::{Kind, Protocol};
use crate::protocol::script::{self, Request, Script, lease_ms};

pub(crate) static KIND: Kind = Kind {
    channel: keys::latch_channel,
    ..Kind::base("latch")
};

/// How long the mark of a round is kept while the latch is closed.
///
/// A waiter may miss both the end of its round and the start of the next. The changed mark then shows it that its round is
/// over.
const ROUND: Duration = Duration::from_secs(24 * 3600);

/// How long the mark that was written at the opening is kept. If a Redisson client sets the next count, it writes no mark. A
/// waiter of the earlier round that asks late then finds the mark of the opening. That mark differs from the one that the
/// waiter remembers, and so shows that its round is over.
const OPEN_ROUND: Duration = Duration::from_secs(60);

/// A change of a latch. Each takes effect once, however often it is sent.
#[derive(Debug, Clone, Copy)]
pub(crate) enum LatchChange {
    /// Sets the count, unless one is set.
    Set(u64),
    CountDown,
    /// Opens the latch, whatever its count.
    Delete,
}

pub(crate) fn change(of: &Protocol, keys: &RequestKeys, change: LatchChange) -> Request {
    let (doing, script, round, count): (_, &'static Script, _, _) = match change {
        LatchChange::Set(count) => (
            "setting the latch",
            &script::LATCH_SET,
            ROUND,
            Some(Digits::of(count)),
        ),
        LatchChange::CountDown => (
            "counting a latch down",
            &script::LATCH_COUNT_DOWN,
            OPEN_ROUND,
            None,
        ),
        LatchChange::Delete => ("deleting a latch", &script::LATCH_DELETE, OPEN_ROUND, None),
    };
    let round_ms = Digits::from(lease_ms(round));
    let args = [&*keys.id, &round_ms, &keys.keep_ms];
    let args: Vec<&str> = args.into_iter().chain(count.as_deref()).collect();
    let round_key = keys::latch_round(of.key());
    let channel = of.channel();
    let keys = keys.after(&[of.key(), &round_key, &channel]);
    Request::script(doing, script, &keys, &args)
}

/// Asks for the count and the round.
pub(crate) fn state(of: &Protocol) -> Request {
    let keys = [of.key(), &keys::latch_round(of.key())];
    Request::script::<&str>("asking for a latch", &script::LATCH_STATE, &keys, &[])
}
