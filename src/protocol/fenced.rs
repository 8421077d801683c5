//! The fenced lock: a reentrant lock whose holds have tokens.

use std::sync::Arc;

use crate::error::Result;
use crate::protocol::keys;
use crate::protocol::kind::{ACQUIRING, AcquireArgs, Keyspace, Kind, Protocol};
use crate::protocol::script::{self, Request, lease_ms};
use crate::protocol::text::Digits;

pub(crate) static KIND: Kind = Kind {
    has_plain_keys: true,
    has_tokens: true,
    ..Kind::plain("fenced", protocol)
};

fn protocol(keyspace: Keyspace<'_>, name: &Arc<str>) -> Result<Box<dyn Protocol>> {
    let key = keyspace.key(name)?;
    Ok(Box::new(Fenced {
        token: keys::fenced_token(&key),
        key,
    }))
}

struct Fenced {
    key: Arc<str>,
    /// The counter that tokens are drawn from.
    token: String,
}

impl Protocol for Fenced {
    fn kind(&self) -> &'static Kind {
        &KIND
    }

    fn key(&self) -> &str {
        &self.key
    }

    fn acquire(&self, args: &AcquireArgs<'_>) -> Request {
        Request::script(
            ACQUIRING,
            &script::FENCED_ACQUIRE,
            &[&self.key, &self.token],
            &[
                args.owner,
                &Digits::of_number(lease_ms(args.lease)),
                &Digits::of_number(args.tokens),
                &Digits::of_number(lease_ms(args.token_ttl)),
            ],
        )
    }
}
