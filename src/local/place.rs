//! The place of one thread in the queue of a semaphore.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

use crate::local::waiter::{MakeError, Waiter};
use crate::net::call::Call;

/// What a thread in the queue is notified of.
pub(crate) enum News {
    /// It is the first: it asks Redis, now or again.
    First,
    /// It has its permits; Redis granted them to this process then.
    Given { since: Instant },
    /// Redis could not be asked, and not for want of time.
    Failed(MakeError),
}

/// A place in the queue of a [`LocalSemaphore`](crate::local::semaphore::LocalSemaphore).
pub(crate) struct Place<W> {
    pub(crate) waiter: Arc<Waiter<W>>,
    /// Stored under the entry's mutex, so that leaving the queue and being called out of it exclude each other.
    news: Mutex<Option<News>>,
}

impl<W> Place<W> {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            waiter: Waiter::new(),
            news: Mutex::new(None),
        })
    }

    /// Stores what its thread is notified of; the waiter is to be woken after that.
    pub(crate) fn store(&self, news: News) {
        *self.news.lock() = Some(news);
    }

    pub(crate) fn take_news(&self) -> Option<News> {
        self.news.lock().take()
    }

    pub(crate) fn has_news(&self) -> bool {
        self.news.lock().is_some()
    }

    pub(crate) fn is_given(&self) -> bool {
        matches!(*self.news.lock(), Some(News::Given { .. }))
    }
}

/// A release that others may have heard.
#[derive(Clone)]
pub(crate) struct YieldAfter {
    pub(crate) call: Arc<Call>,
    /// This process was among those that heard it.
    pub(crate) we_listened: bool,
}

/// How many keys of answered requests one request has Redis forget, as soon as there are so many: one at a time costs
/// more.
pub(crate) const FORGET: usize = 4;
