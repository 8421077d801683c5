//! Whether Sentinels name another master by now than the one that working connections lead to.
//!
//! A master that is replaced as planned stays a master until a Sentinel has it follow the new one, about ten seconds later.
//! So connections to it work on, and locks granted there are lost. While a client works, the Sentinels are asked once a
//! second, on a thread that ends after that:
//!
//! ```text
//!              in use, a second after the last time      one Sentinel names the same, or nobody answers
//!    resting ────────────────────────────────► asking one ─────────────────────────────────────────► resting
//!       ▲                                         │ another name, or some connection leads elsewhere
//!       │ no majority, or no master by ROLE       ▼
//!       ├───────────────────────────────────── asking all
//!       │                                         │ a majority names it, and it is a master by ROLE
//!       └────── connections elsewhere are cut ◄───┘
//! ```
//!
//! A connection that is cut ends like any that is lost, so whoever uses it needs to know nothing of this.
//!
//! The mutex is not held during I/O.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use redis::RedisResult;

use super::dial::{Dial, Dialled};
use super::sentinel::{self, ROLE, SHARE};
use super::{CONNECT_SLICE, Duplex, Endpoint, Meanwhile, Socket};
use crate::config::server::{Address, Deployment};
use crate::report::report;

/// How often the Sentinels are asked while a client works: about once a second, and not less often where something happens
/// every second, as renewals do with a lease of 3 s.
const PERIOD: Duration = Duration::from_millis(900);

/// How long is waited for their answer at most before a connection is used that was idle for that long, and before a renewal.
const WAIT: Duration = Duration::from_millis(50);

/// What a client knows of its master and of its connections.
pub(super) struct Succession {
    begun: Instant,
    /// When they are asked next, in milliseconds since it was begun.
    due_ms: AtomicU64,
    state: Mutex<State>,
    changed: Condvar,
    /// The client is closed.
    closed: AtomicBool,
}

#[derive(Default)]
struct State {
    asking: bool,
    /// How often they were asked: each time another one comes first, since one may be cut off from the others.
    turn: usize,
    master: Option<Master>,
    made: Vec<Made>,
}

/// A master as a Sentinel has named it, and where that led.
#[derive(Clone, Debug, PartialEq)]
struct Master {
    address: Address,
    peer: Option<SocketAddr>,
}

/// A connection that was made to a master.
struct Made {
    at: Instant,
    to: Master,
    socket: Weak<Socket>,
}

impl Master {
    /// Sentinels may name one server in several ways, and one name may have several addresses.
    fn is(&self, other: &Self) -> bool {
        self.address == other.address || self.peer.is_some() && self.peer == other.peer
    }
}

impl State {
    /// Whether some connection leads elsewhere.
    fn is_divided(&self) -> bool {
        let mut made = self.made.iter();
        self.master.as_ref().is_none_or(|master| {
            made.any(|made| made.socket.strong_count() > 0 && !made.to.is(master))
        })
    }

    /// They have named this one when asked at that time; returns the connections made before then that lead elsewhere.
    ///
    /// If it is the one that was known, a new connection may lead to its successor, of which the other Sentinels will hear in a
    /// moment.
    fn confirmed(&mut self, master: Master, asked_at: Instant) -> Vec<Arc<Socket>> {
        let is_new = self.master.as_ref().is_none_or(|known| !known.is(&master));
        let grace = if is_new { Duration::ZERO } else { PERIOD };
        let elsewhere = |made: &&Made| made.at + grace < asked_at && !made.to.is(&master);
        let elsewhere = self.made.iter().filter(elsewhere);
        let sockets = elsewhere.filter_map(|made| made.socket.upgrade()).collect();
        self.master = Some(master);
        sockets
    }
}

impl Succession {
    pub(super) fn of(deployment: &Deployment) -> Option<Arc<Self>> {
        matches!(deployment, Deployment::Sentinel { .. }).then(|| {
            Arc::new(Self {
                begun: Instant::now(),
                due_ms: AtomicU64::new(millis(PERIOD)),
                state: Mutex::default(),
                changed: Condvar::new(),
                closed: AtomicBool::new(false),
            })
        })
    }

    /// When they are to be asked next, from now on.
    fn due_in(&self) -> Duration {
        let due = Duration::from_millis(self.due_ms.load(Ordering::Relaxed));
        due.saturating_sub(self.begun.elapsed())
    }

    /// Whether it is for this caller to ask now.
    fn begins(&self) -> bool {
        let (due, now) = (
            self.due_ms.load(Ordering::Relaxed),
            millis(self.begun.elapsed()),
        );
        let next = now + millis(PERIOD);
        let relaxed = Ordering::Relaxed;
        if now < due
            || !self.is_open()
            || self
                .due_ms
                .compare_exchange(due, next, relaxed, relaxed)
                .is_err()
        {
            return false;
        }
        let mut state = self.state.lock();
        state.turn = state.turn.wrapping_add(1);
        !std::mem::replace(&mut state.asking, true)
    }

    fn is_open(&self) -> bool {
        !self.closed.load(Ordering::Relaxed)
    }

    fn asked(&self) {
        self.state.lock().asking = false;
        self.changed.notify_all();
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl Endpoint {
    /// A connection was made to the server that a Sentinel has named.
    pub(super) fn made(&self, address: &Address, connection: &Duplex) {
        let Some(succession) = &self.succession else {
            return;
        };
        let made = Made {
            at: Instant::now(),
            to: Master {
                address: address.clone(),
                peer: connection.writer.peer(),
            },
            socket: Arc::downgrade(&connection.writer),
        };
        let mut state = succession.state.lock();
        state.made.retain(|made| made.socket.strong_count() > 0);
        state.master.get_or_insert_with(|| made.to.clone());
        state.made.push(made);
    }

    /// Has the Sentinels asked in the background whether another server is the master, if it is time. Called while a
    /// connection is in use; costs nothing but with Sentinels.
    pub(crate) fn follow_master(&self) {
        let Some(succession) = &self.succession else {
            return;
        };
        if !succession.begins() {
            return;
        }
        let asking = Asking(Arc::clone(succession));
        let endpoint = self.clone();
        let spawned = std::thread::Builder::new()
            .name("redlatch-sentinel".into())
            .spawn(move || {
                let asking = asking;
                if let Err(err) = endpoint.look_for_successor(&asking.0) {
                    report!(Debug, "looking for another master: {err}");
                }
            });
        if let Err(err) = spawned {
            report!(Debug, "no thread to ask the sentinels: {err}");
        }
    }

    /// Whether the Sentinels are to be asked before a connection is used that was idle for so long.
    pub(crate) fn follows_master_after(&self, idle: Duration) -> bool {
        self.succession.is_some() && idle >= PERIOD
    }

    /// They are asked no longer: the client is closed.
    pub(crate) fn stop_following(&self) {
        if let Some(succession) = &self.succession {
            succession.closed.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn has_sentinels(&self) -> bool {
        self.succession.is_some()
    }

    /// The same as [`Self::follow_master`], and waits a moment for the answer, if one is due.
    pub(crate) fn follow_master_first(&self, until: Instant, meanwhile: Meanwhile<'_>) {
        let Some(succession) = &self.succession else {
            return;
        };
        self.follow_master();
        let until = until.min(Instant::now() + WAIT);
        let mut state = succession.state.lock();
        while state.asking && Instant::now() < until {
            let slice = until.min(Instant::now() + CONNECT_SLICE);
            succession.changed.wait_until(&mut state, slice);
            if !MutexGuard::unlocked(&mut state, &mut *meanwhile) {
                break;
            }
        }
    }

    /// How long [`Self::follow_master`] need not be called, not more than `most`.
    pub(crate) fn follows_master_for(&self, most: Duration) -> Duration {
        match &self.succession {
            None => most,
            Some(succession) => most.min(succession.due_in()),
        }
    }

    fn look_for_successor(&self, succession: &Succession) -> RedisResult<()> {
        let Deployment::Sentinel { sentinels, .. } = &self.server.deployment else {
            return Ok(());
        };
        let asked_at = Instant::now();
        let (known, divided, turn) = {
            let state = succession.state.lock();
            (state.master.clone(), state.is_divided(), state.turn)
        };
        let mut votes = Votes::new(sentinels.len());
        let mut named = None;
        for n in 0..sentinels.len() {
            let at = (turn % sentinels.len() + n) % sentinels.len();
            let asked = sentinel::ask_one(self, &sentinels[at], &mut || succession.is_open());
            let address = match asked {
                Ok(Some(address)) => address,
                Ok(None) => continue,
                Err(err) => {
                    report!(Trace, "a sentinel has not named a master: {err}");
                    continue;
                }
            };
            let is_known = known.as_ref().is_some_and(|known| known.address == address);
            if is_known && !divided && votes.are_none() {
                return Ok(());
            }
            if votes.add(&address) {
                named = Some((at, address));
                break;
            }
        }
        let Some((at, address)) = named else {
            return Ok(());
        };
        let (endpoint, until) = (self.master(address.clone()), Instant::now() + SHARE);
        let mut dial = Dial::new(ROLE, until);
        let dialled = dial.advance(&endpoint, until, &mut || succession.is_open())?;
        let Dialled::Made(connection) = dialled else {
            return Ok(());
        };
        let peer = connection.writer.peer();
        connection.writer.shut_down();
        let master = Master { address, peer };
        // Whoever connects next begins with one that knows.
        self.first_sentinel.is(at);
        let text = master.address.to_string();
        let elsewhere = succession.state.lock().confirmed(master, asked_at);
        if !elsewhere.is_empty() {
            report!(
                Debug,
                "the sentinels name {text} the master; connections elsewhere are cut"
            );
        }
        for socket in elsewhere {
            socket.shut_down();
        }
        Ok(())
    }
}

/// Ends the asking, whatever became of it.
struct Asking(Arc<Succession>);

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.asked();
    }
}

/// Which address how many of the Sentinels in the URL name.
struct Votes {
    of: usize,
    named: Vec<(Address, usize)>,
}

impl Votes {
    fn new(of: usize) -> Self {
        Self {
            of,
            named: Vec::new(),
        }
    }

    fn are_none(&self) -> bool {
        self.named.is_empty()
    }

    /// One names it; whether it has a majority now, of all and not only of those that answer: one that is cut off from the
    /// others may know the old master alone.
    fn add(&mut self, address: &Address) -> bool {
        let found = self.named.iter().position(|(its, _)| its == address);
        let at = found.unwrap_or_else(|| {
            self.named.push((address.clone(), 0));
            self.named.len() - 1
        });
        let (_, votes) = &mut self.named[at];
        *votes += 1;
        *votes * 2 > self.of
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: u16) -> Address {
        Address::Tcp("10.0.0.1".into(), port)
    }

    #[test]
    fn a_majority_of_all_sentinels_is_needed() {
        let adds = |of: usize, ports: &[u16]| -> Vec<bool> {
            let mut votes = Votes::new(of);
            let add = |port: &u16| votes.add(&address(*port));
            ports.iter().map(add).collect()
        };
        assert_eq!(adds(1, &[1]), [true]);
        assert_eq!(adds(2, &[1, 1]), [false, true]);
        assert_eq!(adds(3, &[1, 2, 2]), [false, false, true]);
        assert_eq!(adds(4, &[1, 2, 2, 1]), [false; 4]);
    }

    #[test]
    fn one_server_may_be_named_in_several_ways() {
        let master = |host: &str, peer: Option<&str>| Master {
            address: Address::Tcp(host.into(), 6379),
            peer: peer.map(|peer| peer.parse().expect("an address")),
        };
        let (v4, v6) = (Some("10.0.0.1:6379"), Some("[fe80::1]:6379"));
        assert!(master("a", v4).is(&master("a", v6)));
        assert!(master("a", v4).is(&master("10.0.0.1", v4)));
        assert!(!master("a", v4).is(&master("b", v6)));
        assert!(!master("a", None).is(&master("b", None)));
    }

    #[test]
    fn connections_elsewhere_are_cut_unless_made_meanwhile() {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let to = listener.local_addr().expect("it is bound");
        let connect = || std::net::TcpStream::connect(to).expect("it listens");
        let [old, late, new] = [(); 3].map(|()| Arc::new(Socket::Tcp(connect())));
        let asked_at = Instant::now();
        let (before, after) = (
            asked_at.checked_sub(PERIOD).expect("a time"),
            asked_at + PERIOD,
        );
        let master = |port| Master {
            address: address(port),
            peer: None,
        };
        let made = |at, port, socket: &Arc<Socket>| Made {
            at,
            to: master(port),
            socket: Arc::downgrade(socket),
        };
        let mut state = State {
            master: Some(master(1)),
            made: vec![
                made(before, 1, &old),
                made(after, 1, &late),
                made(before, 2, &new),
            ],
            ..State::default()
        };
        assert!(state.is_divided());
        let cut = state.confirmed(master(2), asked_at);
        assert!(cut.len() == 1 && Arc::ptr_eq(&cut[0], &old));
        assert!(state.is_divided(), "one was made meanwhile");
        drop((old, late, cut));
        assert!(!state.is_divided());
    }

    #[test]
    fn a_connection_to_a_successor_that_few_know_yet_is_given_time() {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let to = listener.local_addr().expect("it is bound");
        let socket = std::net::TcpStream::connect(to).expect("it listens");
        let socket = Arc::new(Socket::Tcp(socket));
        let master = |port| Master {
            address: address(port),
            peer: None,
        };
        let made_at = Instant::now();
        let mut state = State {
            master: Some(master(1)),
            made: vec![Made {
                at: made_at,
                to: master(2),
                socket: Arc::downgrade(&socket),
            }],
            ..State::default()
        };
        let ms = Duration::from_millis;
        assert!(state.confirmed(master(1), made_at + PERIOD).is_empty());
        let later = made_at + PERIOD + ms(1);
        assert_eq!(state.confirmed(master(1), later).len(), 1);
        // Not if another is new to all.
        assert_eq!(state.confirmed(master(3), made_at + ms(1)).len(), 1);
    }

    #[test]
    fn it_is_for_one_to_ask_and_once_a_second() {
        let deployment = Deployment::Sentinel {
            sentinels: vec![address(1)],
            service: "m".into(),
            login: Default::default(),
        };
        let succession = Succession::of(&deployment).expect("there are sentinels");
        assert!(!succession.begins() && succession.due_in() > Duration::ZERO);
        succession.due_ms.store(0, Ordering::Relaxed);
        assert!(succession.begins() && !succession.begins());
        // The last time takes longer than that.
        succession.due_ms.store(0, Ordering::Relaxed);
        assert!(!succession.begins());
        succession.asked();
        succession.due_ms.store(0, Ordering::Relaxed);
        assert!(succession.begins());
    }
}
