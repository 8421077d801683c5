//! Waiting for what a message may tell of: asking, listening, asking again, parking.
//!
//! ```text
//!   ask ──► subscribe ─► confirmed ─► ask again ─► park ─► ask again …   parked until a message, what the answer said, the poll cap, the deadline
//! ```
//!
//! A message is a hint and never an answer. Locks have a lock besides, and their contenders do the same themselves.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::Result;
use crate::local::waiter::{CancelToken, Heard, Waiter};
use crate::net::subscriber::Subscription;
use crate::session::Session;
use crate::time;
use crate::time::Deadline;

/// One thread that waits for something told on one channel.
pub(crate) struct Watch<'a> {
    session: &'a Arc<Session>,
    channel: Arc<str>,
    waiter: Arc<Waiter>,
    subscription: Option<Subscription>,
    parked: u32,
}

impl<'a> Watch<'a> {
    /// Nothing is subscribed to before the first [`park`](Self::park). `waiter` is whom messages wake.
    pub(crate) fn new(session: &'a Arc<Session>, channel: &Arc<str>, waiter: Arc<Waiter>) -> Self {
        Self {
            session,
            channel: Arc::clone(channel),
            waiter,
            subscription: None,
            parked: 0,
        }
    }

    /// What has been heard so far; to be taken before a question whose answer leads to [`park`](Self::park).
    pub(crate) fn heard(&self) -> Heard {
        self.waiter.heard()
    }

    /// Waits until it is worth asking again: something was told since `before`, `left` is over, the poll cap, the
    /// deadline, or `stop`. The first time it begins to listen, and returns once the server has confirmed that.
    pub(crate) fn park(
        &mut self,
        before: Heard,
        left: Option<Duration>,
        deadline: Deadline,
        cancel: Option<&CancelToken>,
        stop: &dyn Fn() -> bool,
    ) -> Result<()> {
        let subscriber = &self.session.subscriber;
        let first = self.subscription.is_none();
        if first {
            self.session.start_subscriber()?;
            self.session.closing.watch(&self.waiter);
            if let Some(token) = cancel {
                token.watch(&self.waiter);
            }
        }
        let subscription = self
            .subscription
            .get_or_insert_with(|| subscriber.subscribe(&self.channel, &self.waiter));
        let seen = if first { self.waiter.heard() } else { before };
        if first && seen.listening && !subscription.is_refused() {
            return Ok(());
        }
        let mut park = time::jittered(subscription.poll_cap(self.parked));
        self.parked += 1;
        if let Some(left) = left {
            // A key lives for the whole of its last millisecond.
            park = park.min(left + Duration::from_millis(1));
        }
        let until = deadline.or(Instant::now() + park);
        self.waiter.wait_to_hear(seen, until, stop);
        if self.waiter.heard().messages != seen.messages {
            self.session.counters.wakes.add(1);
        }
        Ok(())
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        // Whoever goes on with what it waited for need not write UNSUBSCRIBE first.
        if let Some(subscription) = self.subscription.take() {
            subscription.leave();
        }
    }
}
