//! Requests that describe a name, for people, and change nothing.

use redis::Value;

use crate::protocol::keys;
use crate::protocol::script::{self, Request};

/// The largest number of holders, waiters and permits in one reply.
pub(crate) const MOST: usize = 1000;

/// Asks for everything about a key. [`texts`] reads the reply.
pub(crate) fn everything(key: &str) -> Request {
    let (queue, timeouts) = (keys::fair_queue(key), keys::fair_timeouts(key));
    let (alive, token) = (keys::fair_alive(key), keys::fenced_token(key));
    let (permits, round) = (keys::permit_timeouts(key), keys::latch_round(key));
    let keys = [key, &queue, &timeouts, &alive, &token, &permits, &round];
    let args = [&*keys::rw_holds(key), &MOST.to_string()];
    Request::script("inspecting a name", &script::INSPECT, &keys, &args)
}

/// The channels on which changes of this key may be announced, without those of a fair lock's waiters.
pub(crate) fn channels(key: &str) -> [String; 4] {
    [
        keys::lock_channel(key).concat(),
        keys::rw_channel(key),
        keys::semaphore_channel(key),
        keys::latch_channel(key),
    ]
}

/// Asks for a line about a key, if it belongs to a lock.
pub(crate) fn summary(key: &str) -> Request {
    let (queue, token) = (keys::fair_queue(key), keys::fenced_token(key));
    let keys = [key, &queue, &token];
    Request::script::<&str>("listing locks", &script::SUMMARY, &keys, &[])
}

/// Reads the texts that a script has concatenated.
pub(crate) fn texts(reply: &Value) -> Option<Vec<String>> {
    let Value::BulkString(bytes) = reply else {
        return None;
    };
    let (mut texts, mut rest) = (Vec::new(), &**bytes);
    while !rest.is_empty() {
        let colon = rest.iter().position(|byte| *byte == b':')?;
        let len: usize = std::str::from_utf8(&rest[..colon]).ok()?.parse().ok()?;
        let (text, tail) = rest[colon + 1..].split_at_checked(len)?;
        texts.push(String::from_utf8_lossy(text).into_owned());
        rest = tail;
    }
    Some(texts)
}

#[cfg(test)]
mod tests {
    use super::*;

    use proptest::prelude::*;

    use crate::net::strange;

    proptest! {
        #![proptest_config(strange::cases(512))]

        #[test]
        fn texts_come_back_as_they_were_put_in_a_row(all in prop::collection::vec(any::<String>(), 0..9)) {
            let row: String = all.iter().map(|text| format!("{}:{text}", text.len())).collect();
            prop_assert_eq!(texts(&Value::BulkString(row.into_bytes())), Some(all));
        }

        #[test]
        fn whatever_a_server_answers_does_not_panic(reply in strange::value()) {
            drop(texts(&reply));
        }
    }
}
