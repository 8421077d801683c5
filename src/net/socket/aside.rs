//! Questions whose answers nothing bounds in time: each is asked on a thread of its own.
//!
//! ```text
//!             a connection needs the answer              it comes
//!    unasked ──────────────────────────────► under way ──────────► taken
//!                                              ▲   │
//!              another connection needs it     │   │  no time left
//!                                              └─ left behind ──it came long ago──► dropped
//! ```

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, TryRecvError};
use parking_lot::Mutex;

use super::{CONNECT_SLICE, Meanwhile};

/// How old an answer may be that nobody has waited for.
pub(super) const AGE: Duration = Duration::from_secs(1);

/// How many questions are left behind at most; the oldest is forgotten for another.
const MOST: usize = 64;

/// A question under way, and when its answer came.
pub(super) type UnderWay<T> = Receiver<(Instant, T)>;

/// Where questions were asked and nobody waited to the end, by what they are about; whoever asks the same next goes on with
/// that. So there is never more than one under way for each that asks at the same time.
pub(super) struct Aside<T>(Arc<Mutex<LeftBehind<T>>>);

type LeftBehind<T> = Vec<(String, UnderWay<T>)>;

impl<T> Default for Aside<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T> Clone for Aside<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: Send + 'static> Aside<T> {
    /// The answer, if it comes by then. If no such question is under way that nobody waits for, it is asked on a thread of
    /// this name.
    pub(super) fn ask(
        &self,
        about: &str,
        thread: &str,
        question: impl FnOnce() -> T + Send + 'static,
        by: Instant,
        meanwhile: Meanwhile<'_>,
    ) -> io::Result<Option<T>> {
        let under_way = loop {
            let left_behind = self.take(about);
            let Some(under_way) = left_behind else {
                break begin(thread, question)?;
            };
            match under_way.try_recv() {
                // By now it may be another.
                Ok((at, _)) if at.elapsed() >= AGE => {}
                Ok((_, answer)) => return Ok(Some(answer)),
                Err(TryRecvError::Empty) => break under_way,
                Err(TryRecvError::Disconnected) => {}
            }
        };
        loop {
            match under_way.recv_timeout(CONNECT_SLICE) {
                Ok((_, answer)) => return Ok(Some(answer)),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(io::Error::other(format!(
                        "{thread} ended without an answer"
                    )));
                }
                Err(RecvTimeoutError::Timeout) if Instant::now() < by && meanwhile() => {}
                Err(RecvTimeoutError::Timeout) => {
                    self.leave_behind(about, under_way);
                    return Ok(None);
                }
            }
        }
    }

    fn take(&self, about: &str) -> Option<UnderWay<T>> {
        let mut left_behind = self.0.lock();
        let at = left_behind.iter().rposition(|(its, _)| its == about)?;
        Some(left_behind.remove(at).1)
    }

    pub(super) fn leave_behind(&self, about: &str, under_way: UnderWay<T>) {
        let mut left_behind = self.0.lock();
        // Those that Sentinels or a cluster named once may never be asked for again.
        if left_behind.len() == MOST {
            left_behind.remove(0);
        }
        left_behind.push((about.to_owned(), under_way));
    }
}

fn begin<T: Send + 'static>(
    thread: &str,
    question: impl FnOnce() -> T + Send + 'static,
) -> io::Result<UnderWay<T>> {
    let (answer, under_way) = crossbeam_channel::bounded(1);
    std::thread::Builder::new()
        .name(thread.into())
        .spawn(move || {
            let found = question();
            // Nobody listens any more once the client is gone.
            answer.send((Instant::now(), found)).unwrap_or_default();
        })?;
    Ok(under_way)
}
