//! The reentrant lock and the mutex: a hash of one owner with its count, and a channel for releases.

use crate::protocol::kind::Kind;

pub(crate) static KIND: Kind = Kind {
    shares_plain_key: true,
    ..Kind::base("reentrant")
};
