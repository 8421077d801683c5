//! A connection in the making: a short-lived thread, which blocks in each step for as long as there is time.
//!
//! ```text
//!    one server:                         looking up ──► TCP ──► TLS ──► logging in, greeting ──► made
//!
//!    Sentinels: one names the master ──► the same steps, ROLE must say master ──► made
//! ```
//!
//! Callers that need the connection do no part of this work: they wait for it, each within its own time. The thread goes on
//! after they have given up, so callers with little time get a connection in the end as well.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, bounded};
use redis::{RedisError, RedisResult};

use crate::error::{lasting, not_started};
use crate::net::masters::Masters;
use crate::net::socket::dial::{Dial, DialProgress};
use crate::net::socket::{Duplex, Endpoint};

/// The name of the threads.
const THREAD: &str = "redlatch-connect";

/// Makes a connection on a new thread, and calls `done` there with the connection or the reason why there is none.
///
/// `role` is the connection's name in `CLIENT LIST`. The attempt takes `timeout` at most, not counting the steps without a
/// time limit: the look-up of a host, once it has begun, and the user's own function for logging in.
pub(crate) fn start(
    masters: &Arc<Masters>,
    node: usize,
    role: &'static str,
    timeout: Duration,
    done: impl FnOnce(RedisResult<Duplex>, &Arc<DialProgress>) + Send + 'static,
) -> RedisResult<Arc<DialProgress>> {
    let progress = DialProgress::new();
    let (masters, dial_progress) = (Arc::clone(masters), Arc::clone(&progress));
    std::thread::Builder::new()
        .name(THREAD.into())
        .spawn(move || {
            let mut dial = Dial::new(role, timeout, Arc::clone(&dial_progress));
            let made =
                std::panic::catch_unwind(AssertUnwindSafe(|| masters.connect(node, &mut dial)));
            let made = made.unwrap_or_else(|_| Err(lasting("connecting panicked".into())));
            let failure = made.as_ref().err().cloned();
            done(made, &dial_progress);
            // Logged only after `done`: the logger is user code, and may itself wait for this connection.
            if !dial_progress.is_given_up() {
                masters.endpoint(node).log(role, failure.as_ref());
            }
        })
        .map_err(|err| not_started(THREAD, &err))?;
    Ok(progress)
}

/// An attempt whose outcome is fetched by another thread. Dropping this gives the attempt up: its thread ends at the next step,
/// and a connection that it has made is dropped.
pub(crate) struct Dialling {
    made: Receiver<RedisResult<Duplex>>,
    progress: Arc<DialProgress>,
}

impl Dialling {
    pub(crate) fn start(
        masters: &Arc<Masters>,
        node: usize,
        role: &'static str,
        timeout: Duration,
        is_successor: bool,
    ) -> RedisResult<Self> {
        let (done, made) = bounded(1);
        let progress = start(masters, node, role, timeout, move |made, attempt| {
            // A successor's failure does not mean that the server is gone, since the old connection works: `give_up` keeps
            // the failure from the log and the observer.
            if is_successor {
                attempt.give_up();
            }
            // The receiver is gone if the attempt was given up.
            done.send(made).unwrap_or_default();
        })?;
        Ok(Self { made, progress })
    }

    /// Waits for the outcome for at most `slice`; `None` if it is not known by then.
    pub(crate) fn wait(&self, slice: Duration) -> Option<RedisResult<Duplex>> {
        self.made.recv_timeout(slice).ok()
    }

    /// See [`DialProgress::reason`].
    pub(crate) fn reason(&self) -> RedisError {
        self.progress.reason()
    }
}

impl Drop for Dialling {
    fn drop(&mut self) {
        self.progress.give_up();
    }
}

/// Replaces a connection before its login is too old.
#[derive(Default)]
pub(crate) struct Succession {
    /// When to begin making the successor, if ever.
    pub(crate) at: Option<Instant>,
    pub(crate) under_way: Option<Dialling>,
}

impl Succession {
    pub(crate) fn of(connection: &Duplex, endpoint: &Endpoint) -> Self {
        Self {
            at: endpoint.replace_at(connection.since),
            under_way: None,
        }
    }

    /// Called again and again: starts making the successor once it is time, and returns the outcome once it is known. If
    /// the attempt has failed, `advance` starts another one later.
    pub(crate) fn advance(
        &mut self,
        masters: &Arc<Masters>,
        node: usize,
        role: &'static str,
        timeout: Duration,
    ) -> Option<RedisResult<Duplex>> {
        self.at.filter(|at| *at <= Instant::now())?;
        let made = match &self.under_way {
            Some(dialling) => dialling.wait(Duration::ZERO)?,
            None => match Dialling::start(masters, node, role, timeout, true) {
                Ok(dialling) => {
                    self.under_way = Some(dialling);
                    return None;
                }
                Err(err) => Err(err),
            },
        };
        let later = || Some(Instant::now() + masters.endpoint(node).log_in_period()?);
        self.at = made.is_err().then(later).flatten();
        self.under_way = None;
        Some(made)
    }
}
