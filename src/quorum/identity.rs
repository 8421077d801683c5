//! Which servers clients are connected to. Two addresses may lead to one server, and a master may become a replica.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use redis::Value;

use crate::error::{Error, Result};
use crate::net::call::Call;
use crate::protocol::script::Request;
use crate::report::report;
use crate::session::Session;
use crate::time;

/// How long connecting again to unreachable masters may take, for all of them together.
const RECONNECT: Duration = Duration::from_millis(500);

/// The shortest time between two attempts to ask masters that have not answered yet, and the longest wait for their replies.
const PROBE_AGAIN: Duration = Duration::from_millis(500);

const DOING: &str = "asking a server who it is";

/// What is known of one server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Identity {
    /// A master, and its `run_id`, which is unique.
    Master(Arc<str>),
    /// Not a master; its role.
    NoMaster(String),
    /// It has not answered, or may not be asked.
    Unknown,
}

/// The requests under way to one server.
struct Question<'a> {
    session: &'a Session,
    generation: u64,
    role: Arc<Call>,
    info: Arc<Call>,
}

impl<'a> Question<'a> {
    fn send(session: &'a Session) -> Option<Self> {
        let question = |parts: &[&str]| Call::question(Request::command(DOING, parts));
        let (role, info) = (question(&["ROLE"]), question(&["INFO", "server"]));
        let generation = session.connection.submit(&role)?;
        let both = session.connection.submit(&info) == Some(generation);
        session.connection.flush(false);
        both.then_some(Self {
            session,
            generation,
            role,
            info,
        })
    }

    fn answer(&self, until: Instant, stop: &dyn Fn() -> bool) -> Identity {
        let stop = || self.session.is_closed() || stop();
        let wait = |call| match self.session.connection.wait(call, until, &stop) {
            Ok((value, _)) => value.extract_error().ok(),
            Err(_) => None,
        };
        let role = match wait(&self.role) {
            Some(Value::Array(parts)) => parts.first().map(text).unwrap_or_default(),
            _ => return Identity::Unknown,
        };
        if role != "master" {
            return Identity::NoMaster(role);
        }
        let info = wait(&self.info).map(|info| text(&info));
        let run_id = info.as_deref().and_then(|info| {
            let mut lines = info.lines();
            lines.find_map(|line| line.strip_prefix("run_id:"))
        });
        let Some(run_id) = run_id.map(|run_id| Arc::from(run_id.trim())) else {
            return Identity::Unknown;
        };
        let server = &self.session.server;
        server.is(self.generation, &run_id);
        server.seniority.met(&run_id, Instant::now());
        Identity::Master(run_id)
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        _ => String::new(),
    }
}

/// Returns which servers these are. Asks those not known yet, all at the same time, if there is a connection, and waits
/// for their replies until `until` or `stop`.
pub(crate) fn of<'a>(
    sessions: impl IntoIterator<Item = &'a Arc<Session>>,
    until: Instant,
    stop: &dyn Fn() -> bool,
) -> Vec<Identity> {
    let begin = |session: &'a Arc<Session>| {
        let generation = session.connection.generation();
        match generation.and_then(|generation| session.server.run_id(generation)) {
            Some(run_id) => Err(Identity::Master(run_id)),
            None => Question::send(session).ok_or(Identity::Unknown),
        }
    };
    // All are sent before the first reply is waited for.
    let asked: Vec<_> = sessions.into_iter().map(begin).collect();
    let answer = |asked: std::result::Result<Question<'_>, Identity>| match asked {
        Ok(asked) => asked.answer(until, stop),
        Err(known) => known,
    };
    asked.into_iter().map(answer).collect()
}

/// The servers of a lock that a majority keeps. They have to be different masters.
pub(crate) struct Masters {
    sessions: Vec<Arc<Session>>,
    run_ids: Mutex<Vec<Option<Arc<str>>>>,
    all_known: AtomicBool,
    /// When to ask those not known yet again, as `time::nanos`.
    look_at: AtomicU64,
    /// Why they can never be used together.
    fault: OnceLock<String>,
}

impl Masters {
    /// Asks them all, and connects again where a connection is lost. Those that cannot be reached are asked later.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for two of one server, and for one that is no master.
    pub(crate) fn new(sessions: Vec<Arc<Session>>, response_timeout: Duration) -> Result<Self> {
        let masters = Self {
            run_ids: Mutex::new(vec![None; sessions.len()]),
            sessions,
            all_known: AtomicBool::new(false),
            look_at: AtomicU64::new(0),
            fault: OnceLock::new(),
        };
        let until = Instant::now() + response_timeout;
        let is_up = |session: &&Arc<Session>| session.connection.generation().is_some();
        let were_up: Vec<_> = masters.sessions.iter().filter(is_up).collect();
        masters.learn(&of(&masters.sessions, until, &|| false))?;
        // A connection lost just now may only have been idle for too long, so it is worth connecting again.
        let lost: Vec<_> = were_up
            .into_iter()
            .filter(|session| !is_up(session))
            .collect();
        if !lost.is_empty() {
            reconnect(&lost, until.min(Instant::now() + RECONNECT));
            masters.learn(&of(&masters.sessions, until, &|| false))?;
        }
        let later = time::nanos(Instant::now() + PROBE_AGAIN);
        masters.look_at.store(later, Ordering::Relaxed);
        Ok(masters)
    }

    /// Records the replies; an error if these servers cannot be used together.
    fn learn(&self, identities: &[Identity]) -> Result<()> {
        let mut run_ids = self.run_ids.lock();
        for (node, identity) in identities.iter().enumerate() {
            match identity {
                Identity::Master(run_id) => run_ids[node] = Some(Arc::clone(run_id)),
                Identity::NoMaster(role) => {
                    return Err(Error::Config(format!(
                        "{:?} is no master, but a {role}",
                        self.sessions[node].endpoint
                    )));
                }
                Identity::Unknown => {}
            }
        }
        for (node, run_id) in run_ids.iter().enumerate() {
            let twin = run_ids[..node].iter().position(|other| other == run_id);
            if let (Some(twin), Some(_)) = (twin, run_id) {
                let fault = format!(
                    "clients {twin} and {node} of a RedLock are those of one server, {:?}",
                    self.sessions[node].endpoint
                );
                return Err(Error::Config(self.fault.get_or_init(|| fault).clone()));
            }
        }
        if run_ids.iter().all(Option::is_some) {
            self.all_known.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Asks those that did not answer before and respond now, for at most [`PROBE_AGAIN`], or until `stop`.
    ///
    /// Does not look for masters that have become replicas: a replica refuses to grant anything.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] once two are known to be one server.
    pub(crate) fn check(&self, until: Instant, stop: &dyn Fn() -> bool) -> Result<()> {
        if let Some(fault) = self.fault.get() {
            return Err(Error::Config(fault.clone()));
        }
        if self.all_known.load(Ordering::Acquire) {
            return Ok(());
        }
        let (now, look_at) = (Instant::now(), self.look_at.load(Ordering::Relaxed));
        let later = time::nanos(now + PROBE_AGAIN);
        let mine = time::nanos(now) >= look_at
            && self
                .look_at
                .compare_exchange(look_at, later, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        if !mine {
            return Ok(());
        }
        // Asks the known ones as well, since they may have been restarted.
        let nodes = self.sessions.iter().enumerate();
        let (nodes, asked): (Vec<_>, Vec<_>) = nodes
            .filter(|(_, session)| {
                let responds = session.connection.responds(PROBE_AGAIN);
                if !responds {
                    session.connection.want();
                }
                responds
            })
            .unzip();
        let mut identities = vec![Identity::Unknown; self.sessions.len()];
        for (node, answer) in nodes
            .into_iter()
            .zip(of(asked, until.min(now + PROBE_AGAIN), stop))
        {
            if matches!(answer, Identity::Master(_)) {
                identities[node] = answer;
            }
        }
        self.learn(&identities)
    }
}

/// Connects again, sharing the time among the sessions.
fn reconnect(sessions: &[&Arc<Session>], until: Instant) {
    for (index, session) in sessions.iter().enumerate() {
        let left = until.saturating_duration_since(Instant::now());
        let share = left / u32::try_from(sessions.len() - index).unwrap_or(1);
        let up = session
            .connection
            .up(Instant::now() + share, &mut || !session.is_closed());
        if let Err(fault) = up {
            report!(Debug, "{DOING}: {:?}: {fault:?}", session.endpoint);
            session.connection.want();
        }
    }
}
