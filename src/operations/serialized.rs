//! How what people ask for is written by `serde`: spans in whole milliseconds or seconds, kinds by the words that they are
//! displayed as.

use std::time::Duration;

use serde::{Serialize, Serializer};

pub(super) fn ms<S: Serializer>(
    span: &Option<Duration>,
    to: S,
) -> std::result::Result<S::Ok, S::Error> {
    let ms = span.map(|span| u64::try_from(span.as_millis()).unwrap_or(u64::MAX));
    ms.serialize(to)
}

pub(super) fn s<S: Serializer>(span: &Duration, to: S) -> std::result::Result<S::Ok, S::Error> {
    to.serialize_u64(span.as_secs())
}

/// Serializes a kind as the word that it is displayed as.
macro_rules! displayed {
    ($($kind:ident),+) => {
        $(impl serde::Serialize for $kind {
            fn serialize<S: serde::Serializer>(
                &self,
                to: S,
            ) -> std::result::Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        })+
    };
}

pub(super) use displayed;
