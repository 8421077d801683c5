//! The waiter of a thread, and its subscription.

use std::sync::Arc;
use std::time::Duration;

use crate::hold::Waiter;
use crate::local::waiter::{CancelToken, Signals};
use crate::net::channels::Listener;
use crate::net::subscriber::{POLL_CAP_UNHEARD, Subscription};
use crate::session::Session;

/// The waiter of one thread, made when it is needed, and its subscription to one channel at a time.
#[derive(Default)]
pub(crate) struct Listening {
    waiter: Option<Arc<Waiter>>,
    was_queued: bool,
    /// A cancelled token wakes it.
    is_watched: bool,
    /// The index of the name that it listens to, if there are several; `None` before it listens.
    on: Option<usize>,
    /// `None` if nothing is announced.
    subscription: Option<Subscription>,
}

/// The other subscription of a thread, by which others see that it waits. Nothing is announced there; a message says that
/// the channel belongs to another node of the cluster now, where the thread has to subscribe.
pub(crate) struct Presence(Arc<Waiter>);

impl Presence {
    pub(crate) fn of(waiter: &Arc<Waiter>) -> Self {
        Self(Arc::clone(waiter))
    }
}

impl Listener for Presence {
    fn message(&self) {
        self.0.message();
    }

    /// A confirmation says nothing of the thread's own channel.
    fn set_listening(&self, _: bool) {}
}

impl Listening {
    /// For a thread that has a waiter already.
    pub(crate) fn of(waiter: Arc<Waiter>) -> Self {
        Self {
            waiter: Some(waiter),
            ..Self::default()
        }
    }

    /// The same, for one that has waited in the queue of this process, where its token could wake it.
    pub(crate) fn queued(waiter: Arc<Waiter>) -> Self {
        Self {
            was_queued: true,
            is_watched: true,
            ..Self::of(waiter)
        }
    }

    /// Its thread has spent time in the queue of this process.
    pub(crate) fn has_queued(&mut self) {
        self.was_queued = true;
    }

    /// Whether it has.
    pub(crate) fn was_queued(&self) -> bool {
        self.was_queued
    }

    /// From now on the token wakes it, if there is one: a token forgets those that it wakes only when they are gone.
    pub(crate) fn watch(&mut self, token: Option<&CancelToken>) {
        if let Some(token) = token
            && !std::mem::replace(&mut self.is_watched, true)
        {
            token.watch(self.waiter());
        }
    }

    pub(crate) fn waiter(&mut self) -> &Arc<Waiter> {
        self.waiter.get_or_insert_with(Waiter::new)
    }

    /// The waiter, if there is one that others may know.
    pub(crate) fn known_waiter(&self) -> Option<&Arc<Waiter>> {
        self.waiter.as_ref()
    }

    /// The signals so far, if the thread has a waiter. To be read before a request whose reply may lead to a park.
    pub(crate) fn known_signals(&self) -> Option<Signals> {
        self.waiter.as_ref().map(|waiter| waiter.signals())
    }

    pub(crate) fn signals(&mut self) -> Signals {
        self.waiter().signals()
    }

    /// Whether the server has confirmed the present subscription.
    pub(crate) fn is_confirmed(&self) -> bool {
        self.known_signals()
            .is_some_and(|signals| signals.listening)
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.on.is_some()
    }

    pub(crate) fn is_on(&self, index: usize) -> bool {
        #[cfg(feature = "cluster")]
        if self.has_moved() {
            return false;
        }
        self.on == Some(index)
    }

    /// Whether its channel belongs to another node of the cluster now.
    #[cfg(feature = "cluster")]
    fn has_moved(&self) -> bool {
        let subscription = self.subscription.as_ref();
        subscription.is_some_and(Subscription::has_moved)
    }

    /// Listens to `channel` from now on, and no longer to another.
    pub(crate) fn begin(
        &mut self,
        session: &Arc<Session>,
        index: usize,
        channel: Option<Arc<str>>,
    ) {
        self.on = Some(index);
        // Before the next one begins: a confirmation does not say which of two it belongs to.
        drop(self.subscription.take());
        let waiter = Arc::clone(self.waiter());
        self.subscription = channel.map(|channel| session.subscriber.subscribe(&channel, &waiter));
    }

    /// Whether messages can arrive: the server has not refused the subscription.
    pub(crate) fn is_notified(&self) -> bool {
        let subscription = self.subscription.as_ref();
        subscription.is_some_and(|subscription| !subscription.is_refused())
    }

    /// How long a thread that has `parked` so often may park at most before it asks again.
    pub(crate) fn poll_cap(&self, parked: u32) -> Duration {
        let subscription = self.subscription.as_ref();
        subscription.map_or(POLL_CAP_UNHEARD, |its| its.poll_cap(parked))
    }

    /// Whether it waits for announcements.
    pub(crate) fn is_subscribed(&self) -> bool {
        self.subscription.is_some()
    }

    /// The wait is over. The subscription ends a little later, so that the thread need not write UNSUBSCRIBE now. Returns the index
    /// of the name that it listened for.
    pub(crate) fn leave(&mut self) -> Option<usize> {
        self.subscription.take()?.leave();
        self.on
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_knows_a_thread_once_however_often_that_waits() {
        let (token, other) = (CancelToken::new(), CancelToken::new());
        let (mut listening, mut queued) = (
            Listening::of(Waiter::new()),
            Listening::queued(Waiter::new()),
        );
        for _ in 0..3 {
            listening.watch(None);
            listening.watch(Some(&token));
            queued.watch(Some(&other));
        }
        assert_eq!((token.watched(), other.watched()), (1, 0));
    }
}
