//! The identity of the servers to which clients are connected. Two addresses may lead to one server, which would count
//! twice; and an address may lead to a replica.

use std::result::Result as StdResult;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use redis::Value;

use crate::error::{Error, Result};
use crate::net::call::Call;
use crate::protocol::script::Request;
use crate::quorum::nodes::{QuorumNodes, node_timeout};
use crate::session::Session;
use crate::time;

/// The identity of one server, as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Identity {
    /// A master, and its `run_id`, which is unique.
    Master(Arc<str>),
    /// Not a master, with its role.
    NoMaster(String),
    /// The server has not answered, or not named its role and `run_id`: the Redis user may lack the right to `INFO`.
    Unknown,
}

/// The request for the id and the role of a server.
fn question() -> Request {
    Request::command("asking a server who it is", &["INFO"])
}

impl Identity {
    /// Reads the answer to the question.
    fn of(info: &Value) -> Self {
        let info: String = redis::from_redis_value_ref(info).unwrap_or_default();
        let field = |name: &str| {
            let mut lines = info.lines();
            lines
                .find_map(|line| line.strip_prefix(name))
                .map(str::trim)
        };
        match (field("role:"), field("run_id:")) {
            (Some("master"), Some(run_id)) => Self::Master(run_id.into()),
            (Some("master") | None, _) => Self::Unknown,
            (Some(role), _) => Self::NoMaster(role.into()),
        }
    }
}

/// Returns the identities of these servers. Asks those that are not known yet and have a connection, all at the same time,
/// and waits for the replies until `until` or `stop`.
pub(crate) fn of<'a>(
    sessions: impl IntoIterator<Item = &'a Arc<Session>>,
    until: Instant,
    stop: &dyn Fn() -> bool,
) -> Vec<Identity> {
    let begin = |session: &'a Arc<Session>| {
        let generation = session.connection.first().generation();
        // An identity is known for one connection: after a reconnect the address may lead to another server.
        if let Some(run_id) = generation.and_then(|generation| session.server.run_id(generation)) {
            return Err(Identity::Master(run_id));
        }
        let call = Call::question(question());
        let generation = session.connection.submit(&call);
        session.connection.flush(false);
        generation
            .map(|generation| (session, generation, call))
            .ok_or(Identity::Unknown)
    };
    let answer = |asked: StdResult<(&Arc<Session>, u64, Arc<Call>), Identity>| {
        let (session, generation, call) = match asked {
            Ok(asked) => asked,
            Err(known) => return known,
        };
        let stop = || session.is_closed() || stop();
        let Ok((info, _)) = session.connection.at(&call).wait(&call, until, &stop) else {
            return Identity::Unknown;
        };
        let identity = Identity::of(&info);
        if let Identity::Master(run_id) = &identity {
            session.server.record(run_id, generation, Instant::now());
        }
        identity
    };
    // All questions are sent before the first reply is awaited.
    let asked: Vec<_> = sessions.into_iter().map(begin).collect();
    asked.into_iter().map(answer).collect()
}

/// The check that the clients of a quorum are connected to different masters.
#[derive(Default)]
pub(crate) struct MastersCheck {
    are_known: AtomicBool,
    /// When to ask the unknown masters again, in [`time::nanos`].
    look_at: AtomicU64,
}

impl MastersCheck {
    /// Asks all `nodes`, over new connections where there is none. Nodes that do not answer are asked later.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidSetting`] if two clients are connected to one server, or one to a server that is no master.
    pub(crate) fn of(nodes: &QuorumNodes, until: Instant) -> Result<Self> {
        let by = until.min(Instant::now() + node_timeout(nodes.home().lease));
        nodes
            .sessions()
            .for_each(|session| session.connection.first().want());
        for session in nodes.sessions() {
            let up = session.connection.first().up(by, &|| session.is_closed());
            up.unwrap_or_default();
        }
        let found = of(nodes.sessions(), until, &|| false);
        for (session, identity) in nodes.sessions().zip(found) {
            if let Identity::NoMaster(role) = identity {
                let endpoint = &session.endpoint;
                return Err(Error::setting(format!(
                    "{endpoint:?} is not a master but a {role}"
                )));
            }
        }
        let masters = Self::default();
        masters.compare(nodes)?;
        Ok(masters)
    }

    /// Until every node has been identified once, this asks some of the nodes from time to time: those that respond and
    /// whose present connection has not been identified yet. So a node that has reconnected is asked again.
    ///
    /// A master that has become a replica needs no check: a replica rejects every acquire.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidSetting`] once two clients are known to be connected to one server.
    pub(crate) fn check(
        &self,
        nodes: &QuorumNodes,
        until: Instant,
        stop: &dyn Fn() -> bool,
    ) -> Result<()> {
        if self.are_known.load(Ordering::Acquire) {
            return Ok(());
        }
        let (now, span) = (Instant::now(), node_timeout(nodes.home().lease));
        // Two threads may come here at the same time and ask twice, which does no harm.
        if time::nanos(now) >= self.look_at.load(Ordering::Relaxed) {
            self.look_at
                .store(time::nanos(now + span), Ordering::Relaxed);
            // Nodes that reconnected are asked as well, since they may have been restarted.
            let responds = |session: &&Arc<Session>| session.connection.first().responds(span);
            of(
                nodes.sessions().filter(responds),
                until.min(now + span),
                stop,
            );
        }
        self.compare(nodes)
    }

    /// An error if two clients are known to be connected to one server.
    fn compare(&self, nodes: &QuorumNodes) -> Result<()> {
        let known = nodes.sessions().map(|session| session.server.last_run_id());
        let known: Vec<_> = known.collect();
        for (node, run_id) in known.iter().enumerate() {
            let twin = known[..node].iter().position(|other| other == run_id);
            if let (Some(twin), Some(_)) = (twin, run_id) {
                return Err(Error::setting(format!(
                    "clients {twin} and {node} of the RedLock are connected to the same server, {:?}",
                    nodes.list[node].session.endpoint
                )));
            }
        }
        let are_known = known.iter().all(Option::is_some);
        self.are_known.store(are_known, Ordering::Release);
        Ok(())
    }
}
