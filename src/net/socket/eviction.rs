//! Whether the server deletes keys when its memory is full: a lock whose key is deleted is free.
//!
//! The greeting of the first connection for commands ends with `INFO`, so the question costs no round trip of its own.
//! `CONFIG` would say the same, but managed services refuse it.

use std::borrow::Cow;
use std::sync::atomic::Ordering;

use redis::Value;

use super::Endpoint;
use crate::error::excerpt;
use crate::report::report;

impl Endpoint {
    /// Whether a connection of this role has to ask: only those for commands do, until the client has an answer.
    pub(super) fn asks_about_eviction(&self, role: &str) -> bool {
        role == super::COMMANDS && !self.knows_eviction.load(Ordering::Relaxed)
    }

    /// Records the answer (`None` if the server refused). Warns once if locks may be evicted.
    pub(super) fn record_eviction(&self, info: Option<&Value>) {
        if self.knows_eviction.swap(true, Ordering::Relaxed) {
            return;
        }
        let text = info.and_then(|info| redis::from_redis_value_ref::<String>(info).ok());
        if let Some(policy) = text.as_deref().and_then(evicting) {
            report!(
                Warn,
                "redis, {self}, deletes keys when its memory is full (maxmemory-policy {policy}), which frees locks that are held; set maxmemory-policy to `noeviction`"
            );
        }
    }
}

/// The policy by which the server evicts keys with a time to live, such as locks; `None` if it evicts none.
fn evicting(info: &str) -> Option<Cow<'_, str>> {
    let field = |name: &str| {
        let mut lines = info.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
    };
    let policy = field("maxmemory_policy")?.trim();
    let is_limited = field("maxmemory")?.trim() != "0";
    (is_limited && policy != "noeviction").then(|| excerpt(policy))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_limit_and_a_policy_together_delete_keys() {
        let info = |limit, policy| {
            format!(
                "# Memory\r\nmaxmemory:{limit}\r\nmaxmemory_human:1B\r\nmaxmemory_policy:{policy}\r\n"
            )
        };
        let ttl = evicting(&info(1, "volatile-ttl")).map(Cow::into_owned);
        assert_eq!(ttl.as_deref(), Some("volatile-ttl"));
        let odd = evicting(&info(1, "a\x1b[2J")).map(Cow::into_owned);
        assert_eq!(odd.as_deref(), Some("a\u{fffd}[2J"));
        assert_eq!(evicting(&info(0, "allkeys-lru")), None);
        assert_eq!(evicting(&info(1, "noeviction")), None);
        assert_eq!(evicting("# Memory\r\nused_memory:1\r\n"), None);
    }
}
