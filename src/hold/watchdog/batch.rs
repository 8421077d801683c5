//! Renewals that are sent before their replies are read, those of several locks as one request, and what a reply to it
//! says of each.

use std::collections::VecDeque;

use redis::{ErrorKind, RedisError, RedisResult, ServerErrorKind, Value};

use crate::error::{is_transient, is_unknown_script};
use crate::net::request::Request;
use crate::protocol::script;
use crate::report::report;

/// The most renewals, and about the most bytes, that are sent before their replies are read. The socket takes that much at
/// once even if the server reads nothing, so that the thread does not block.
pub(super) const BATCH: (usize, usize) = (256, 48 * 1024);

/// The most renewals that one script does. A server does nothing else meanwhile: some 0.3 ms.
pub(super) const TOGETHER: usize = 100;

/// The renewals of one batch.
pub(super) struct Batch {
    bytes: Vec<u8>,
    /// How many renewals each request is for.
    requests: VecDeque<usize>,
    /// What the last request is for, which is not written yet.
    together: Vec<Request>,
    /// The most renewals that a request may be for.
    most: usize,
    by_text: bool,
    renewals: usize,
    size: usize,
}

impl Batch {
    pub(super) fn new(most: usize, by_text: bool) -> Self {
        Self {
            bytes: Vec::with_capacity(BATCH.1),
            requests: VecDeque::new(),
            together: Vec::new(),
            most,
            by_text,
            renewals: 0,
            size: 0,
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.renewals >= BATCH.0 || self.size >= BATCH.1
    }

    pub(super) fn push(&mut self, request: Request) {
        let first = self.together.first();
        let joins = self.together.len() < self.most
            && first.is_some_and(|first| first.goes_with(&request, &script::LOCK_RENEW));
        if !joins {
            self.close();
        }
        self.renewals += 1;
        self.size += match joins {
            true => request.joined_len(),
            false => request.len(self.by_text),
        };
        self.together.push(request);
    }

    fn close(&mut self) {
        if !self.together.is_empty() {
            Request::write_together(&self.together, &mut self.bytes, self.by_text);
            self.requests.push_back(self.together.len());
            self.together.clear();
        }
    }

    /// What to send, and how many renewals each request is for.
    pub(super) fn finish(mut self) -> (Vec<u8>, VecDeque<usize>) {
        self.close();
        (self.bytes, self.requests)
    }
}

/// Whether a refusal says nothing of a single lock: the server would refuse to renew any other as well. Not so a node that
/// is losing the slot of several keys, which still serves each that it has.
fn concerns_all(refusal: &RedisError) -> bool {
    let at_once = ErrorKind::Server(ServerErrorKind::TryAgain);
    is_unknown_script(refusal) || is_transient(refusal) && refusal.kind() != at_once
}

/// The reply for each of `count` renewals that one request was for; `None` if each may fare better by itself.
pub(super) fn answers(reply: Value, count: usize) -> Vec<Option<RedisResult<Value>>> {
    match reply {
        reply if count == 1 => vec![Some(reply.extract_error())],
        Value::Array(replies) if replies.len() == count => {
            let replies = replies.into_iter();
            replies.map(|reply| Some(reply.extract_error())).collect()
        }
        reply => match reply.extract_error() {
            Err(refusal) if concerns_all(&refusal) => vec![Some(Err(refusal)); count],
            other => {
                report!(Debug, "renewing {count} locks together: {other:?}");
                vec![None; count]
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn renewals(n: usize) -> impl Iterator<Item = Request> {
        let args = ["8ee1eba6-3dd8-4b9c-8e6e-4d1c9e0f3a4d:1", "30000", "1"];
        (0..n).map(move |n| {
            let key = format!("a lock with a name:{n}");
            Request::script("renewing", &script::LOCK_RENEW, &[&key], &args)
        })
    }

    #[test]
    fn a_batch_is_full_before_its_bytes_may_block_also_if_it_has_the_text_of_scripts() {
        for (most, by_text) in [(1, false), (1, true), (2, true), (TOGETHER, true)] {
            let mut batch = Batch::new(most, by_text);
            let mut one = 0;
            for request in renewals(BATCH.0) {
                if !batch.is_full() {
                    one = request.len(by_text);
                    batch.push(request);
                }
            }
            assert!(batch.is_full());
            let (bytes, requests) = batch.finish();
            assert!(bytes.len() <= BATCH.1 + one, "{most} {}", bytes.len());
            // Nor is it full too soon.
            let renewals: usize = requests.iter().sum();
            assert!(
                renewals == BATCH.0 || bytes.len() >= BATCH.1 * 9 / 10,
                "{renewals}"
            );
            assert!(requests.iter().all(|its| (1..=most).contains(its)));
        }
    }

    #[test]
    fn a_refusal_that_any_lock_would_meet_is_the_answer_for_each_of_several() {
        let answered = |reply: &str| {
            let reply = redis::parse_redis_value(format!("{reply}\r\n").as_bytes());
            answers(reply.expect("a reply"), 3)
        };
        for refusal in ["NOSCRIPT", "READONLY", "BUSY", "LOADING", "MASTERDOWN"] {
            let all = answered(&format!("-{refusal} for now"));
            assert_eq!(all.len(), 3);
            let refused = |its: &Option<RedisResult<Value>>| matches!(its, Some(Err(err)) if err.code() == Some(refusal));
            assert!(all.iter().all(refused), "{refusal} {all:?}");
        }
        for odd in [
            "-NOPERM one of the keys",
            "-CROSSSLOT keys",
            "-TRYAGAIN some of the keys",
            ":1",
            "*1\r\n:1",
        ] {
            let all = answered(odd);
            assert_eq!(all.len(), 3);
            assert!(all.iter().all(Option::is_none), "{odd} {all:?}");
        }
        let each = answered("*3\r\n:1\r\n-WRONGTYPE a value\r\n:0");
        let shown: Vec<_> = each.into_iter().flatten().map(|its| its.ok()).collect();
        let [yes, no] = [1, 0].map(|n| Some(Value::Int(n)));
        assert_eq!(shown, [yes, None, no]);
    }
}
