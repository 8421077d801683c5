//! The semaphore whose permits have no owner: a number.

use std::sync::Arc;

use crate::error::Result;
use crate::protocol::keys;
use crate::protocol::kind::{Keyspace, Kind, Protocol};

pub(crate) static KIND: Kind = Kind::plain("semaphore", protocol);

fn protocol(keyspace: Keyspace<'_>, name: &Arc<str>) -> Result<Box<dyn Protocol>> {
    let key = keyspace.key(name)?;
    Ok(Box::new(Semaphore {
        channel: keys::semaphore_channel(&key).into(),
        key,
    }))
}

struct Semaphore {
    key: String,
    channel: Arc<str>,
}

impl Protocol for Semaphore {
    fn kind(&self) -> &'static Kind {
        &KIND
    }

    fn key(&self) -> &str {
        &self.key
    }

    fn channel(&self) -> &Arc<str> {
        &self.channel
    }
}
