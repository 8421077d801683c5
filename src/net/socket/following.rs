//! Whether another server is the master by now than the one that working connections lead to.
//!
//! A master that is replaced as planned stays a master until a Sentinel has it follow the new one, about ten seconds later.
//! So connections to it work on, and locks granted there are lost. From the first connection on, a thread listens to one
//! Sentinel:
//!
//! ```text
//!         gone, or silent
//!    ┌───────────────────────────────────────────────────────┐
//!    ▼                                                       │
//!    the next one ──► asking who is the master ────────► listening
//!                        ▲     │ after a later failover      │
//!                        │     ▼                             │ something has happened
//!                        │   ROLE says so, too: connections  │
//!                        │   to earlier masters are cut      │
//!                        └───────────────────────────────────┘
//! ```
//!
//! Failovers are numbered, and the highest *epoch* counts. So one that lags behind, since it is cut off from the others, leads
//! nobody back. A connection that is cut ends like any that is lost, so whoever uses it needs to know nothing of this.
//!
//! The mutex is not held during I/O.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::{Condvar, Mutex};
use redis::{RedisResult, Value};

use super::connecting::connect_to;
use super::dial::{Dial, SHARE};
use super::sentinel::{self, ROLE};
use super::{Duplex, Endpoint, Socket, timed_out};
use crate::config::server::Deployment;
use crate::report::report;

/// What Sentinels say once there is another master: in the end each of them, and at once the one that has seen to it.
const CHANNELS: [&str; 2] = ["+switch-master", "+promoted-slave"];

/// What a client knows of its master and of its connections.
#[derive(Default)]
pub(super) struct Following {
    /// Which of the Sentinels is asked first.
    first: AtomicUsize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// By which failover the master is one.
    epoch: u64,
    /// The connections to masters, and by which failover each was one.
    made: Vec<(u64, Weak<Socket>)>,
    /// There is a thread that listens.
    is_followed: bool,
    /// To whom.
    sentinel: Weak<Socket>,
    /// The client is closed.
    is_closed: bool,
}

impl State {
    /// A connection was made to the master of this epoch; returns those to earlier ones.
    fn made(&mut self, epoch: u64, socket: &Arc<Socket>) -> Vec<Arc<Socket>> {
        self.epoch = self.epoch.max(epoch);
        self.made.push((epoch, Arc::downgrade(socket)));
        let latest = self.epoch;
        let earlier = self.made.extract_if(.., |(epoch, _)| *epoch < latest);
        let earlier = earlier.filter_map(|(_, socket)| socket.upgrade()).collect();
        self.made.retain(|(_, socket)| socket.strong_count() > 0);
        earlier
    }
}

impl Following {
    pub(super) fn of(deployment: &Deployment) -> Option<Arc<Self>> {
        matches!(deployment, Deployment::Sentinel { .. }).then(Arc::default)
    }

    pub(super) fn epoch(&self) -> u64 {
        self.state.lock().epoch
    }

    /// None of the Sentinels knows of the last failover: they were set up anew.
    pub(super) fn begin_again(&self, epoch: u64) {
        self.state.lock().epoch = epoch;
    }

    /// Which of the Sentinels is asked first: the one that was last of use.
    pub(super) fn first(&self) -> usize {
        self.first.load(Ordering::Relaxed)
    }

    fn is_closed(&self) -> bool {
        self.state.lock().is_closed
    }

    /// A thread listens to this one; `None` once it listens no more.
    fn listens_to(&self, sentinel: Option<&Duplex>) {
        let writer = sentinel.map(|sentinel| Arc::downgrade(&sentinel.writer));
        self.state.lock().sentinel = writer.unwrap_or_default();
    }
}

impl Endpoint {
    /// A connection was made to the master of this epoch: cuts those to earlier ones, and has somebody listen.
    pub(super) fn made(&self, epoch: u64, connection: &Duplex) {
        let Some(following) = &self.following else {
            return;
        };
        let mut state = following.state.lock();
        let earlier = state.made(epoch, &connection.writer);
        let listens = !state.is_closed && !std::mem::replace(&mut state.is_followed, true);
        drop(state);
        for socket in earlier {
            report!(Debug, "a connection to a master that was replaced is cut");
            socket.shut_down();
        }
        if listens {
            let (endpoint, its) = (self.clone(), Arc::clone(following));
            let thread = std::thread::Builder::new().name("redlatch-sentinel".into());
            if let Err(err) = thread.spawn(move || endpoint.follow(&its)) {
                report!(Warn, "no thread to listen to a sentinel: {err}");
                following.state.lock().is_followed = false;
            }
        }
    }

    pub(super) fn asks_first(&self, sentinel: usize) {
        if let Some(following) = &self.following {
            following.first.store(sentinel, Ordering::Relaxed);
        }
    }

    /// The client is closed: nobody listens any more.
    pub(crate) fn stop_following(&self) {
        let Some(following) = &self.following else {
            return;
        };
        let mut state = following.state.lock();
        state.is_closed = true;
        let sentinel = state.sentinel.upgrade();
        drop(state);
        following.changed.notify_all();
        if let Some(sentinel) = sentinel {
            sentinel.shut_down();
        }
    }

    /// What the thread does.
    fn follow(&self, following: &Following) {
        let Deployment::Sentinel { sentinels, .. } = &self.server.deployment else {
            return;
        };
        let (mut by, mut failures) = (following.first() % sentinels.len(), 0);
        while !following.is_closed() {
            let Err(err) = self.listen(by, following) else {
                failures = 0;
                continue;
            };
            following.listens_to(None);
            report!(Debug, "listening to {}: {err}", sentinels[by]);
            (by, failures) = ((by + 1) % sentinels.len(), failures + 1);
            let mut state = following.state.lock();
            if failures % sentinels.len() == 0 && !state.is_closed {
                following.changed.wait_for(&mut state, 2 * SHARE);
            }
        }
    }

    /// Looks who is the master, and listens to one of the Sentinels until something happens.
    fn listen(&self, by: usize, following: &Following) -> RedisResult<()> {
        let dial = Dial::by_itself(ROLE, SHARE);
        let (named, mut sentinel) = sentinel::ask(self, by, dial, &CHANNELS)?;
        following.listens_to(Some(&sentinel));
        if let Some(named) = named
            && named.epoch > following.epoch()
        {
            let master = self.master(named.address);
            let master = connect_to(&mut Dial::by_itself(ROLE, SHARE), &master)?;
            // Whoever connects next begins with one that knows.
            self.asks_first(by);
            self.made(named.epoch, &master);
            master.writer.shut_down();
        }
        let (mut is_asked, mut hears) = (false, true);
        while !following.is_closed() {
            let slice = if is_asked { SHARE } else { 2 * SHARE };
            match sentinel.reader.read(slice)? {
                // This user may not subscribe.
                None if !hears => return Ok(()),
                None if is_asked => return Err(timed_out("it is silent")),
                None => {
                    sentinel.write("looking around", &[&["PING"]])?;
                    is_asked = true;
                    continue;
                }
                Some(Value::Array(parts)) if is_message(&parts) => return Ok(()),
                Some(Value::ServerError(_)) if !is_asked => hears = false,
                Some(_) => {}
            }
            is_asked = false;
        }
        Err(timed_out("the client is closed"))
    }
}

fn is_message(parts: &[Value]) -> bool {
    matches!(parts.first(), Some(Value::BulkString(kind)) if kind == b"message")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_to_masters_of_earlier_failovers_are_cut() {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let to = listener.local_addr().expect("it is bound");
        let connect = || std::net::TcpStream::connect(to).expect("it listens");
        let [first, second, late, gone] = [(); 4].map(|()| Arc::new(Socket::Tcp(connect())));
        let mut state = State::default();
        assert!(state.made(1, &gone).is_empty() && state.made(1, &first).is_empty());
        drop(gone);
        let is = |cut: &[Arc<Socket>], socket| matches!(cut, [its] if Arc::ptr_eq(its, socket));
        assert!(is(&state.made(2, &second), &first));
        // By a Sentinel that lags behind.
        assert!(is(&state.made(1, &late), &late));
        assert_eq!((state.epoch, state.made.len()), (2, 1));
    }
}
