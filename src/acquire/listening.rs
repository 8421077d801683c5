//! The waiter of a thread, and its subscription, or those at several servers.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::acquire::yielding;
use crate::hold::Waiter;
use crate::local::waiter::{CancelToken, Signals};
use crate::net::call::Call;
use crate::net::channels::Listener;
use crate::net::subscriber::{POLL_CAP_UNHEARD, Subscription};
use crate::quorum::announcements::Announcements;
use crate::quorum::ask::Quorum;
use crate::session::Session;

/// The waiter of one thread, made when it is needed, and its subscription to one channel at a time, or to that of a lock at
/// each of its masters.
#[derive(Default)]
pub(crate) struct Listening {
    waiter: Option<Arc<Waiter>>,
    was_queued: bool,
    /// A cancelled token wakes it.
    is_watched: bool,
    /// The index of the name that it listens to, if there are several; `None` before it listens.
    on: Option<usize>,
    /// It waits, and others know its waiter.
    has_begun: bool,
    /// The release of this process whose subscription the thread has taken over, until it waits for the first time.
    last: Option<Arc<Call>>,
    subscribed: Subscribed,
}

/// Where a thread listens.
#[derive(Default)]
enum Subscribed {
    /// Nothing is announced.
    #[default]
    Nowhere,
    At(Subscription),
    /// At each master of a quorum.
    AtEach {
        each: Vec<Subscription>,
        /// To how many of them it has to.
        needed: usize,
        announcements: Arc<Mutex<Announcements>>,
    },
}

/// The subscription of a thread at one of several masters.
struct AtNode {
    node: usize,
    announcements: Arc<Mutex<Announcements>>,
    waiter: Arc<Waiter>,
}

impl Listener for AtNode {
    fn message(&self) {
        let is_notified = self.announcements.lock().message(self.node);
        if is_notified {
            self.waiter.message();
        }
    }

    /// Others may have announced what this master has announced meanwhile. If their connections were lost one after another,
    /// no message has come, although there were enough to listen to all the time. So the waiter looks.
    fn resubscribed(&self) {
        self.waiter.message();
    }

    fn set_listening(&self, listening: bool) {
        let mut announcements = self.announcements.lock();
        announcements.listens(self.node, listening);
        // Under the mutex, so that the last change is the last one stored.
        self.waiter.set_listening(announcements.is_listening());
    }
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

    /// Whether a thread of this process has woken it.
    pub(crate) fn has_wakeup(&self) -> bool {
        self.waiter
            .as_ref()
            .is_some_and(|waiter| waiter.has_wakeup())
    }

    pub(crate) fn signals(&mut self) -> Signals {
        self.waiter().signals()
    }

    /// Whether the server has confirmed the present subscription.
    pub(crate) fn is_confirmed(&self) -> bool {
        self.known_signals()
            .is_some_and(|signals| signals.listening)
    }

    /// Whether its thread waits, and others know its waiter.
    pub(crate) fn has_begun(&self) -> bool {
        self.has_begun
    }

    pub(crate) fn begins_to_wait(&mut self) {
        self.has_begun = true;
    }

    /// Takes over the subscription that the last holder of this process has left behind, if it is still there: a request
    /// that follows it need not be repeated. `last` is the last release of this process.
    pub(crate) fn take_over(
        &mut self,
        session: &Arc<Session>,
        index: usize,
        channel: &Arc<str>,
        last: Arc<Call>,
    ) {
        let waiter = Arc::clone(self.waiter());
        if let Some(subscription) = session.subscriber.take_over(channel, &waiter, &last) {
            self.on = Some(index);
            self.last = Some(last);
            self.subscribed = Subscribed::At(subscription);
        }
    }

    /// To be called before the thread waits for messages: that of the release which it comes after is no news.
    pub(crate) fn settle_own(&mut self) {
        if let Some(last) = self.last.take()
            && let Subscribed::At(one) = &self.subscribed
        {
            one.settle_own(yielding::was_announced_to_us(&last));
        }
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
        matches!(&self.subscribed, Subscribed::At(one) if one.has_moved())
    }

    /// Listens to `channel` from now on, and no longer to another.
    pub(crate) fn begin(
        &mut self,
        session: &Arc<Session>,
        index: usize,
        channel: Option<Arc<str>>,
    ) {
        self.on = Some(index);
        // What it announced went to another channel.
        self.last = None;
        // Before the next one begins: a confirmation does not say which of two it belongs to.
        self.subscribed = Subscribed::Nowhere;
        let waiter = Arc::clone(self.waiter());
        if let Some(channel) = channel {
            self.subscribed = Subscribed::At(session.subscriber.subscribe(&channel, &waiter));
        }
    }

    /// Listens at all masters of a quorum from now on: enough of them, if some are away.
    pub(crate) fn begin_at_each(&mut self, quorum: &Quorum) {
        self.on = Some(0);
        self.subscribed = Subscribed::Nowhere;
        let waiter = Arc::clone(self.waiter());
        waiter.set_listening(false);
        let majority = quorum.majority();
        let announcements = Arc::new(Mutex::new(Announcements::new(majority)));
        let subscribe = |(node, (session, channel)): (usize, (&Arc<Session>, Arc<str>))| {
            let listener = Arc::new(AtNode {
                node,
                announcements: Arc::clone(&announcements),
                waiter: Arc::clone(&waiter),
            });
            session.subscriber.subscribe(&channel, &listener)
        };
        let each = quorum.channels().enumerate().map(subscribe).collect();
        self.subscribed = Subscribed::AtEach {
            each,
            needed: majority.blocking(),
            announcements,
        };
    }

    /// How many releases the masters of a quorum have announced.
    pub(crate) fn releases(&self) -> u64 {
        match &self.subscribed {
            Subscribed::AtEach { announcements, .. } => announcements.lock().releases(),
            _ => 0,
        }
    }

    /// See [`Announcements::hear_echoes`].
    pub(crate) fn hear_echoes(&self, hears_echoes: bool) {
        if let Subscribed::AtEach { announcements, .. } = &self.subscribed {
            announcements.lock().hear_echoes(hears_echoes);
        }
    }

    /// Whether messages can arrive: the server has not refused the subscription.
    pub(crate) fn is_notified(&self) -> bool {
        match &self.subscribed {
            Subscribed::Nowhere => false,
            Subscribed::At(one) => !one.is_refused(),
            Subscribed::AtEach { each, needed, .. } => {
                each.iter().filter(|one| !one.is_refused()).count() >= *needed
            }
        }
    }

    /// How long a thread that has `parked` so often may park at most before it asks again.
    pub(crate) fn poll_cap(&self, parked: u32) -> Duration {
        match &self.subscribed {
            Subscribed::Nowhere => POLL_CAP_UNHEARD,
            Subscribed::At(one) => one.poll_cap(parked),
            // That of the last master it needs.
            Subscribed::AtEach { each, needed, .. } => {
                let mut caps: Vec<_> = each
                    .iter()
                    .map(|one| Reverse(one.poll_cap(parked)))
                    .collect();
                caps.sort_unstable();
                caps.get(needed - 1).map_or(POLL_CAP_UNHEARD, |cap| cap.0)
            }
        }
    }

    /// Whether it waits for announcements.
    pub(crate) fn is_subscribed(&self) -> bool {
        !matches!(self.subscribed, Subscribed::Nowhere)
    }

    /// The wait is over. The subscription ends a little later, so that the thread need not write UNSUBSCRIBE now; one that was
    /// taken over without a wait ends when it would have. Returns the index of the name that it listened for.
    pub(crate) fn leave(&mut self) -> Option<usize> {
        match std::mem::take(&mut self.subscribed) {
            Subscribed::Nowhere => return None,
            Subscribed::At(one) if self.has_begun => one.leave(),
            Subscribed::At(_) => {}
            Subscribed::AtEach { each, .. } => each.into_iter().for_each(Subscription::leave),
        }
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
