//! The count-down latch: a number, and a mark of the round it is in.

use std::sync::Arc;

use crate::error::Result;
use crate::protocol::keys;
use crate::protocol::kind::{Keyspace, Kind, Protocol};

pub(crate) static KIND: Kind = Kind::plain("latch", protocol);

fn protocol(keyspace: Keyspace<'_>, name: &Arc<str>) -> Result<Box<dyn Protocol>> {
    let key = keyspace.key(name)?;
    Ok(Box::new(Latch {
        channel: keys::latch_channel(&key).into(),
        key,
    }))
}

struct Latch {
    key: String,
    channel: Arc<str>,
}

impl Protocol for Latch {
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
