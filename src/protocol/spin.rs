//! The spin lock: the reentrant lock without messages.

use std::sync::Arc;

use crate::error::Result;
use crate::local::lock::Mode;
use crate::protocol::kind::{FORCING, Keyspace, Kind, Protocol, RELEASING};
use crate::protocol::script::{self, Request};

pub(crate) static KIND: Kind = Kind {
    has_plain_keys: true,
    is_notified: false,
    ..Kind::plain("spin", protocol)
};

fn protocol(keyspace: Keyspace<'_>, name: &Arc<str>) -> Result<Box<dyn Protocol>> {
    let key = keyspace.key(name)?;
    Ok(Box::new(Spin { key }))
}

struct Spin {
    key: Arc<str>,
}

impl Protocol for Spin {
    fn kind(&self) -> &'static Kind {
        &KIND
    }

    fn key(&self) -> &str {
        &self.key
    }

    fn release(&self, _mode: Mode, owner: &str) -> Request {
        Request::script(RELEASING, &script::LOCK_RELEASE, &[&self.key], &[owner])
    }

    fn force(&self, request: &str, keep_ms: &str) -> Request {
        let keys = [&*self.key, request];
        Request::script(FORCING, &script::LOCK_FORCE, &keys, &[keep_ms])
    }
}
