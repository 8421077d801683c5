//! The notification that a hold is lost: to its guards, by a channel each, and to the client's listener.

use std::collections::VecDeque;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::mpsc::{RecvError, RecvTimeoutError, TryRecvError};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use crossbeam_channel as channel;
use parking_lot::Mutex;

use crate::config::OnLost;
use crate::error::Loss;
use crate::report::report;
use crate::stats::Counters;

/// Receives the loss of a hold, once; for a multi-lock, the first loss. Returned by [`Guard::lost`](crate::Guard::lost),
/// [`ExpirablePermit::lost`](crate::ExpirablePermit::lost) and [`Leadership::lost`](crate::Leadership::lost).
///
/// A loss is received once. After that the channel is disconnected, for clones too: they are the same channel, so only one
/// of them gets the loss. The channel is also disconnected when the guard is dropped or unlocked. If the hold was lost
/// before that, the loss can still be received. Errors are those of [`std::sync::mpsc`].
///
/// ```no_run
/// let client = redlatch::Client::open("redis://127.0.0.1/")?;
/// let guard = client.mutex("report").lock()?;
/// while guard.is_valid() {
///     // the next piece of the work
/// }
/// if let Ok(loss) = guard.lost().try_recv() {
///     println!("{loss}");
/// }
/// # Ok::<(), redlatch::Error>(())
/// ```
///
/// A loop that works under the lock just checks [`is_valid`](crate::Guard::is_valid). To be told at once, wait with a
/// clone of the receiver on another thread. The wait ends when the guard does:
///
/// ```no_run
/// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
/// let guard = client.mutex("report").lock()?;
/// let lost = guard.lost().clone();
/// let watch = std::thread::spawn(move || {
///     if let Ok(loss) = lost.recv() {
///         eprintln!("{loss}");
///     }
/// });
/// # drop(guard);
/// # Ok::<(), redlatch::Error>(())
/// ```
///
/// To wait for losses and for other messages at once, send the losses of all holds into your own channel with
/// [`Config::on_lost`](crate::Config::on_lost):
///
/// ```no_run
/// use std::sync::mpsc;
///
/// let (sender, messages) = mpsc::channel();
/// let config = redlatch::Config::new("redis://127.0.0.1/")
///     .on_lost(move |loss| drop(sender.send(loss.clone())));
/// # let _ = (config, messages);
/// ```
#[derive(Clone)]
pub struct LossReceiver(channel::Receiver<Loss>);

impl LossReceiver {
    /// Waits until the hold is lost or the guard is gone. Blocks without limit; no I/O.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let guard = client.mutex("report").lock()?;
    /// if let Ok(loss) = guard.lost().recv() {
    ///     println!("{loss}");
    /// }
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`RecvError`]: the loss was received before, or the guard was dropped or unlocked without one.
    pub fn recv(&self) -> Result<Loss, RecvError> {
        self.0.recv().map_err(|_| RecvError)
    }

    /// Returns the loss if the hold is known to be lost. Does not block; no I/O.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let guard = client.mutex("report").lock()?;
    /// if let Ok(loss) = guard.lost().try_recv() {
    ///     println!("{loss}");
    /// }
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`TryRecvError::Empty`]: the hold is not known to be lost. [`TryRecvError::Disconnected`]: as for
    /// [`recv`](Self::recv).
    pub fn try_recv(&self) -> Result<Loss, TryRecvError> {
        self.0.try_recv().map_err(|err| match err {
            channel::TryRecvError::Empty => TryRecvError::Empty,
            channel::TryRecvError::Disconnected => TryRecvError::Disconnected,
        })
    }

    /// Waits until the hold is lost, for at most `timeout`. No I/O.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let guard = client.mutex("report").lock()?;
    /// if let Ok(loss) = guard.lost().recv_timeout(Duration::from_secs(1)) {
    ///     println!("{loss}");
    /// }
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`RecvTimeoutError::Timeout`]: the hold was not lost in this time. [`RecvTimeoutError::Disconnected`]: as for
    /// [`recv`](Self::recv).
    pub fn recv_timeout(&self, timeout: Duration) -> Result<Loss, RecvTimeoutError> {
        self.0.recv_timeout(timeout).map_err(|err| match err {
            channel::RecvTimeoutError::Timeout => RecvTimeoutError::Timeout,
            channel::RecvTimeoutError::Disconnected => RecvTimeoutError::Disconnected,
        })
    }
}

/// Waits for the loss as [`LossReceiver::recv`] does, so that `for loss in guard.lost()` runs its body once after a loss.
impl Iterator for &LossReceiver {
    type Item = Loss;

    fn next(&mut self) -> Option<Loss> {
        self.recv().ok()
    }
}

impl fmt::Debug for LossReceiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LossReceiver").finish_non_exhaustive()
    }
}

/// The sending side of a guard's channel: `None` once the guard has been notified of a loss.
type LossSender = Mutex<Option<channel::Sender<Loss>>>;

/// The channel on which a guard reports the first loss of any of its holds. Made when the user asks for it.
///
/// The guard alone owns the sending side, so dropping the guard disconnects every receiver, although the hold may go on in
/// other threads.
#[derive(Debug, Default)]
pub(crate) struct LossChannel(OnceLock<(LossReceiver, Arc<LossSender>)>);

impl LossChannel {
    /// The channel. The first call runs `listen`, which registers a listener at each hold.
    pub(crate) fn of(&self, listen: impl FnOnce(&dyn Fn() -> LossListener)) -> &LossReceiver {
        let (receiver, _) = self.0.get_or_init(|| {
            let (sender, receiver) = channel::bounded(1);
            let sender = Arc::new(Mutex::new(Some(sender)));
            listen(&|| LossListener(Arc::downgrade(&sender)));
            (LossReceiver(receiver), sender)
        });
        receiver
    }
}

/// Notifies a guard, for as long as the guard lives.
pub(crate) struct LossListener(Weak<LossSender>);

impl LossListener {
    /// Notifies the guard, unless another of its holds was lost before.
    pub(crate) fn notify(&self, loss: &Loss) {
        let Some(guard) = self.0.upgrade() else {
            return;
        };
        let sender = guard.lock().take();
        if let Some(sender) = sender {
            sender.try_send(loss.clone()).unwrap_or_default();
        }
    }

    fn is_alive(&self) -> bool {
        self.0.strong_count() > 0
    }
}

/// Adds a listener to a hold. Before the list grows, removes the listeners of guards that are gone, since a shared hold
/// outlives many guards.
pub(crate) fn add_listener(all: &mut Vec<LossListener>, listener: LossListener) {
    if all.len() == all.capacity() {
        all.retain(LossListener::is_alive);
    }
    all.push(listener);
}

/// Calls the client's listener with one loss after another, on a thread that exists while there are losses.
///
/// The listener may block, panic, or use this crate. So the listener runs neither on the crate's other threads nor on
/// threads that call the crate. [`notify`](Self::notify) only queues the loss and starts a thread if none runs, so it may
/// be called under any mutex.
pub(crate) struct Notices {
    counters: Arc<Counters>,
    listener: Option<OnLost>,
    state: Mutex<NoticesState>,
}

#[derive(Default)]
struct NoticesState {
    queue: VecDeque<Loss>,
    running: bool,
}

impl Notices {
    pub(crate) fn new(counters: Arc<Counters>, listener: Option<OnLost>) -> Arc<Self> {
        Arc::new(Self {
            counters,
            listener,
            state: Mutex::default(),
        })
    }

    /// Counts a loss and queues it for the listener. If no thread can be started, the loss stays queued, and the next call
    /// tries again.
    pub(crate) fn notify(self: &Arc<Self>, loss: Loss) {
        self.counters.lost.add(1);
        if self.listener.is_none() {
            return;
        }
        let mut state = self.state.lock();
        state.queue.push_back(loss);
        if std::mem::replace(&mut state.running, true) {
            return;
        }
        drop(state);
        let this = Arc::clone(self);
        let thread = std::thread::Builder::new().name("redlatch-listener".into());
        if let Err(err) = thread.spawn(move || this.run()) {
            self.state.lock().running = false;
            report!(
                Warn,
                "the thread that reports losses could not be started: {err}; the next loss tries again"
            );
        }
    }

    fn run(&self) {
        while let (Some(listener), Some(loss)) = (&self.listener, self.next()) {
            let called = std::panic::catch_unwind(AssertUnwindSafe(|| listener(&loss)));
            if called.is_err() {
                report!(
                    Error,
                    "the listener for losses (on_lost) panicked at the loss of `{}`",
                    loss.name
                );
            }
        }
    }

    fn next(&self) -> Option<Loss> {
        let mut state = self.state.lock();
        let loss = state.queue.pop_front();
        if loss.is_none() {
            state.queue = VecDeque::new();
            state.running = false;
        }
        loss
    }
}

#[cfg(test)]
mod tests;
