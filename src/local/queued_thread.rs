//! One thread in the queue of a semaphore.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

use crate::local::waiter::{MakeError, Waiter};
use crate::net::call::{Attempt, Call};
use crate::net::route::Ahead;

/// What a thread in the queue is notified of.
pub(crate) enum News {
    /// It is the first: it has to ask Redis.
    First,
    /// It has its permits, which Redis granted to this process at `since`.
    Given { since: Instant },
    /// Redis could not be asked, and not for want of time.
    Failed(MakeError),
}

/// The next request of a thread in the queue, made before it is needed, so that whoever releases permits can send it
/// together with the release: no other process can come between, however late the thread is scheduled.
pub(crate) enum Question {
    Ready(Box<Attempt>),
    /// Another thread has sent it.
    Sent(Ahead),
}

/// A thread in the queue of a [`LocalSemaphore`](crate::local::semaphore::LocalSemaphore).
pub(crate) struct QueuedThread<W> {
    pub(crate) waiter: Arc<Waiter<W>>,
    /// Stored under the entry's mutex, so that either the thread leaves the queue or it is given permits, never both.
    news: Mutex<Option<News>>,
    question: Mutex<Option<Question>>,
}

impl<W> QueuedThread<W> {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            waiter: Waiter::new(),
            news: Mutex::new(None),
            question: Mutex::new(None),
        })
    }

    /// Stores what to notify the thread of; waking its waiter has to follow.
    pub(crate) fn store(&self, news: News) {
        *self.news.lock() = Some(news);
    }

    pub(crate) fn take_news(&self) -> Option<News> {
        self.news.lock().take()
    }

    pub(crate) fn has_news(&self) -> bool {
        self.news.lock().is_some()
    }

    /// Has a question ready, which others may send.
    pub(crate) fn has_ready(&self, question: Attempt) {
        *self.question.lock() = Some(Question::Ready(Box::new(question)));
    }

    /// Sends the question of this thread, if it is ready; `submit` only queues it.
    pub(crate) fn ask_for(&self, submit: impl FnOnce(Attempt) -> Option<Ahead>) {
        let mut question = self.question.lock();
        *question = match question.take() {
            Some(Question::Ready(attempt)) => submit(*attempt).map(Question::Sent),
            sent => sent,
        };
    }

    pub(crate) fn take_question(&self) -> Option<Question> {
        self.question.lock().take()
    }

    pub(crate) fn is_asked_for(&self) -> bool {
        matches!(*self.question.lock(), Some(Question::Sent(_)))
    }

    pub(crate) fn is_given(&self) -> bool {
        matches!(*self.news.lock(), Some(News::Given { .. }))
    }
}

/// A release of which other processes may have been notified.
#[derive(Clone)]
pub(crate) struct YieldAfter {
    pub(crate) call: Arc<Call>,
    /// This process was among those notified.
    pub(crate) we_listened: bool,
}

/// How many keys of answered requests are deleted together, by the next request: deleting them one at a time costs more.
pub(crate) const FORGET: usize = 4;
