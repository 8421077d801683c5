//! The fenced lock: a reentrant lock whose holds have tokens.

use crate::net::text::Digits;
use crate::protocol::keys;
use crate::protocol::kind::{ACQUIRING, AcquireArgs, Kind, Protocol};
use crate::protocol::script::{self, Request, lease_ms};

pub(crate) static KIND: Kind = Kind {
    shares_plain_key: true,
    has_tokens: true,
    acquire,
    ..Kind::base("fenced")
};

fn acquire(of: &Protocol, args: &AcquireArgs<'_>) -> Request {
    let token = keys::fenced_token(of.key());
    let numbers = [lease_ms(args.lease), args.tokens, lease_ms(args.token_ttl)];
    let numbers = numbers.map(Digits::from);
    let [lease, tokens, token_ttl] = numbers.each_ref().map(Digits::as_bytes);
    Request::script(
        ACQUIRING,
        &script::FENCED_ACQUIRE,
        &[of.key(), &token],
        &[args.owner, lease, tokens, token_ttl],
    )
}

/// Asks for the last token. [`script::last_token`] reads the reply.
pub(crate) fn last_token(of: &Protocol) -> Request {
    let counter = keys::fenced_token(of.key());
    Request::command("asking for the last token", &["GET", &counter])
}

/// Asks who holds the lock, and for the last token. [`script::holder`] reads the reply.
pub(crate) fn holder(of: &Protocol) -> Request {
    let token = keys::fenced_token(of.key());
    let keys = [of.key(), &token];
    Request::script::<&str>("asking who leads", &script::FENCED_HOLDER, &keys, &[])
}
