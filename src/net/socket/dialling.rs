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

use super::connecting::connect_to;
use super::dial::{Dial, Progress};
use super::{Duplex, Endpoint, sentinel};
use crate::config::server::Deployment;
use crate::error::{lasting, named, not_started};
use crate::report::report;

/// The name of the threads.
const THREAD: &str = "redlatch-connect";

/// Makes a connection on a thread of its own, and hands it, or why there is none, to `done` on that thread.
///
/// `role` is the connection's name in `CLIENT LIST`. It takes `timeout` at most, not counting the look-up of a host and the
/// user's own function for logging in, which nothing bounds.
pub(crate) fn start(
    endpoint: &Endpoint,
    role: &'static str,
    timeout: Duration,
    done: impl FnOnce(RedisResult<Duplex>, &Arc<Progress>) + Send + 'static,
) -> RedisResult<Arc<Progress>> {
    let progress = Progress::new();
    let (endpoint, its) = (endpoint.clone(), Arc::clone(&progress));
    std::thread::Builder::new()
        .name(THREAD.into())
        .spawn(move || {
            let mut dial = Dial::new(role, timeout, Arc::clone(&its));
            let made = std::panic::catch_unwind(AssertUnwindSafe(|| connect(&mut dial, &endpoint)));
            let made = made.unwrap_or_else(|_| Err(lasting("connecting panicked".into())));
            let failure = made.as_ref().err().cloned();
            done(made, &its);
            // After that: the logger may need the connection.
            if !its.is_given_up() {
                endpoint.log(role, failure.as_ref());
            }
        })
        .map_err(|err| not_started(THREAD, &err))?;
    Ok(progress)
}

impl Endpoint {
    /// Logs the outcome of an attempt to connect at debug level. That a server became unreachable, or reachable again, is
    /// logged and told to the observer once for all connections of a client.
    fn log(&self, role: &str, failure: Option<&RedisError>) {
        let server = self.to_string();
        let before = (self.was_there.lock()).insert(server.clone(), failure.is_none());
        let Some(why) = failure else {
            if before == Some(false) {
                report!(Info, "connected to redis, {self}, again");
            }
            if before != Some(true) {
                self.observer.tell(|observer| observer.server_up(&server));
            }
            return;
        };
        report!(Debug, "connecting to {self:?} ({role}): {why}");
        if before == Some(true) {
            report!(Warn, "no connection to redis, {self}, any more: {why}");
        }
        if before != Some(false) {
            let why = why.to_string();
            self.observer
                .tell(|observer| observer.server_down(&server, &why));
        }
    }
}

/// The same for a thread that looks now and then whether there is a connection.
pub(crate) struct Dialling {
    made: Receiver<RedisResult<Duplex>>,
    progress: Arc<Progress>,
}

impl Dialling {
    pub(crate) fn start(
        endpoint: &Endpoint,
        role: &'static str,
        timeout: Duration,
    ) -> RedisResult<Self> {
        let (done, made) = bounded(1);
        let progress = start(endpoint, role, timeout, move |made, _| {
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

fn connect(dial: &mut Dial, endpoint: &Endpoint) -> RedisResult<Duplex> {
    let Deployment::Sentinel { .. } = &endpoint.server.deployment else {
        return connect_to(dial, endpoint);
    };
    let found = sentinel::find(endpoint, dial)?;
    let master = endpoint.master(found.address);
    // It may be one that is gone, and has a successor before the time is up.
    let mut dial = dial.part(dial.role, dial.left()? / 2);
    match connect_to(&mut dial, &master) {
        Ok(connection) => {
            endpoint.made(found.epoch, &connection);
            Ok(connection)
        }
        Err(err) => {
            // The sentinel may be cut off from the others, and not know.
            endpoint.asks_first(found.by + 1);
            Err(named(&master, err))
        }
    }
}
