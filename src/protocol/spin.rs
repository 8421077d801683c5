//! The spin lock: the reentrant lock without messages.

use crate::protocol::kind::{FORCING, Kind, RELEASING};
use crate::protocol::script::{self, Request};

pub(crate) static KIND: Kind = Kind {
    shares_plain_key: true,
    is_notified: false,
    release: |of, _, owner| {
        Request::script(RELEASING, &script::LOCK_RELEASE, &[of.key()], &[owner])
    },
    force: |of, request, keep_ms| {
        let keys = [of.key(), request];
        Request::script(FORCING, &script::LOCK_FORCE, &keys, &[keep_ms])
    },
    ..Kind::base("spin")
};
