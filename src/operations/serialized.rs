//! How `serde` writes spans of time: in whole milliseconds, or in whole seconds where Redis reports only those.

use std::time::Duration;

use serde::{Serialize, Serializer};

pub(super) fn ms<S: Serializer>(
    span: &(impl Into<Option<Duration>> + Copy),
    serializer: S,
) -> std::result::Result<S::Ok, S::Error> {
    let ms = (*span)
        .into()
        .map(|span| u64::try_from(span.as_millis()).unwrap_or(u64::MAX));
    ms.serialize(serializer)
}

pub(super) fn s<S: Serializer>(
    span: &Duration,
    serializer: S,
) -> std::result::Result<S::Ok, S::Error> {
    serializer.serialize_u64(span.as_secs())
}
