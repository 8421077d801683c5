//! The reentrant lock and the mutex: a hash of one owner with its count, and a channel for releases.

use std::sync::Arc;

use crate::error::Result;
use crate::protocol::kind::{Keyspace, Kind, Protocol};

pub(crate) static KIND: Kind = Kind {
    has_plain_keys: true,
    ..Kind::plain("reentrant", protocol)
};

fn protocol(keyspace: Keyspace<'_>, name: &Arc<str>) -> Result<Box<dyn Protocol>> {
    let key = keyspace.key(name)?;
    Ok(Box::new(Reentrant { key }))
}

struct Reentrant {
    key: Arc<str>,
}

impl Protocol for Reentrant {
    fn kind(&self) -> &'static Kind {
        &KIND
    }

    fn key(&self) -> &str {
        &self.key
    }
}
