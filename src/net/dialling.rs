//! A connection in the making: a short-lived thread, which blocks in each step for as long as there is time.
//!
//! ```text
//!    one server:                         looking up ──► TCP ──► TLS ──► logging in, greeting ──► made
//!
//!    Sentinels: one names the master ──► the same, and a master by ROLE ──► made
//! ```
//!
//! Nobody else connects, logs in or greets. Those who need the connection wait until it is there, each within its own time,
//! so that callers with little time get one as well: from a thread that goes on without them.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, bounded};
use redis::{RedisError, RedisResult};

use crate::error::{lasting, not_started};
use crate::net::masters::Masters;
use crate::net::socket::Duplex;
use crate::net::socket::dial::{Dial, Progress};

/// The name of the threads.
const THREAD: &str = "redlatch-connect";

/// Makes a connection on a thread of its own, and hands it, or why there is none, to `done` on that thread.
///
/// `role` is the connection's name in `CLIENT LIST`. It takes `timeout` at most, not counting the look-up of a host and the
/// user's own function for logging in, which nothing bounds.
pub(crate) fn start(
    masters: &Arc<Masters>,
    node: usize,
    role: &'static str,
    timeout: Duration,
    done: impl FnOnce(RedisResult<Duplex>, &Arc<Progress>) + Send + 'static,
) -> RedisResult<Arc<Progress>> {
    let progress = Progress::new();
    let (masters, its) = (Arc::clone(masters), Arc::clone(&progress));
    std::thread::Builder::new()
        .name(THREAD.into())
        .spawn(move || {
            let mut dial = Dial::new(role, timeout, Arc::clone(&its));
            let made =
                std::panic::catch_unwind(AssertUnwindSafe(|| masters.connect(node, &mut dial)));
            let made = made.unwrap_or_else(|_| Err(lasting("connecting panicked".into())));
            let failure = made.as_ref().err().cloned();
            done(made, &its);
            // After that: the logger may need the connection.
            if !its.is_given_up() {
                masters.endpoint(node).log(role, failure.as_ref());
            }
        })
        .map_err(|err| not_started(THREAD, &err))?;
    Ok(progress)
}

/// The same for a thread that looks now and then whether there is a connection.
pub(crate) struct Dialling {
    made: Receiver<RedisResult<Duplex>>,
    progress: Arc<Progress>,
}

impl Dialling {
    pub(crate) fn start(
        masters: &Arc<Masters>,
        node: usize,
        role: &'static str,
        timeout: Duration,
    ) -> RedisResult<Self> {
        let (done, made) = bounded(1);
        let progress = start(masters, node, role, timeout, move |made, _| {
            // Nobody listens any more if it was given up.
            done.send(made).unwrap_or_default();
        })?;
        Ok(Self { made, progress })
    }

    /// What came of it, if that is known after `slice`.
    pub(crate) fn wait(&self, slice: Duration) -> Option<RedisResult<Duplex>> {
        self.made.recv_timeout(slice).ok()
    }

    /// How far the attempt has got, for a caller whose time is up.
    pub(crate) fn waits_for(&self) -> RedisError {
        self.progress.waits_for()
    }
}

impl Drop for Dialling {
    fn drop(&mut self) {
        self.progress.give_up();
    }
}
