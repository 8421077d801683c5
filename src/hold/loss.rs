//! The notification that a hold is lost: to its guards, by a channel each, and to the client's listener.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::callback::Callback;
use crate::config::Listener;
use crate::error::Loss;
use crate::report::report;

/// The channel on which a guard reports the first loss of any of its holds. Made when the user asks for it.
#[derive(Debug, Default)]
pub(crate) struct LossChannel(OnceLock<(Receiver<Loss>, Arc<AtomicBool>)>);

impl LossChannel {
    /// The channel. The first call makes it and runs `listen`, which adds a listener to each of the guard's holds.
    pub(crate) fn of(&self, listen: impl FnOnce(&dyn Fn() -> LossListener)) -> &Receiver<Loss> {
        let (receiver, _) = self.0.get_or_init(|| {
            // Room for one loss is enough, since `notified` lets only the first pass.
            let (sender, receiver) = bounded(1);
            let notified = Arc::new(AtomicBool::new(false));
            listen(&|| LossListener {
                sender: sender.clone(),
                notified: Arc::downgrade(&notified),
            });
            (receiver, notified)
        });
        receiver
    }
}

/// Notifies a guard, for as long as the guard lives.
pub(crate) struct LossListener {
    sender: Sender<Loss>,
    /// Whether the guard has been notified of a loss.
    notified: Weak<AtomicBool>,
}

impl LossListener {
    /// Notifies the guard, unless another of its holds was lost before.
    pub(crate) fn notify(&self, loss: &Loss) {
        if let Some(notified) = self.notified.upgrade()
            // The holds of one guard may be lost on several threads at the same time; the swap lets one of them report.
            && !notified.swap(true, Ordering::Relaxed)
        {
            self.sender.try_send(loss.clone()).unwrap_or_default();
        }
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.notified.strong_count() > 0
    }
}

/// Calls the client's listener with one loss after another.
pub(crate) struct Notices(Option<Arc<Callback<Loss>>>);

impl Notices {
    pub(crate) fn new(listener: Option<Listener>) -> Self {
        let panicked = |loss: &Loss| {
            report!(
                Error,
                "the listener for losses panicked over `{}`",
                loss.name
            );
        };
        Self(listener.map(|listener| {
            Callback::new(
                "redlatch-listener",
                move |loss: &Loss| listener(loss),
                panicked,
            )
        }))
    }

    pub(crate) fn notify(&self, loss: Loss) {
        if let Some(callback) = &self.0
            && let Err(err) = callback.give(loss)
        {
            report!(Warn, "cannot start the thread that reports losses: {err}");
        }
    }
}
