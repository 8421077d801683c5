//! Whether the server is what the URL says, a single master. A replica, a node of a cluster and a Sentinel greet in the same
//! way, and would reject most locks later.
//!
//! The greeting of the first connection for commands asks this by `ROLE` and `HELLO`, right behind the login. A user without
//! the right to send these may connect all the same.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redis::{RedisError, RedisResult, Value};

use super::Endpoint;
use crate::config::server::{Address, Deployment};
use crate::error::{excerpt, wrong_url};

impl Endpoint {
    /// This endpoint for a client whose URL names the server: the greeting checks what the server is.
    pub(crate) fn named_by_url(self) -> Self {
        let is_one = matches!(self.server.deployment, Deployment::Single(_));
        Self {
            server_kind_is_known: is_one.then(Arc::<AtomicBool>::default),
            ..self
        }
    }

    /// Whether a connection of this role has to ask: only those for commands do, until the client has the answer.
    pub(super) fn asks_what_it_is(&self, role: &str) -> bool {
        let is_known = |known: &Arc<AtomicBool>| known.load(Ordering::Relaxed);
        role == super::COMMANDS
            && self
                .server_kind_is_known
                .as_ref()
                .is_some_and(|known| !is_known(known))
    }

    /// The server has answered `ROLE`. Returns an error if it is no single master.
    pub(super) fn record_role(&self, role: &Value) -> RedisResult<()> {
        match (&self.server_kind_is_known, role) {
            (Some(_), Value::Array(parts)) => self.judge(ServerKind::by_role(parts)),
            _ => Ok(()),
        }
    }

    /// `hello` is the server's answer to `HELLO`, or `None` if it refused. Returns an error if it is no single master. The
    /// answer to `ROLE` normally precedes this one, so the kind of the server is known now, or the user may not ask. No
    /// later connection asks again. If the server was not ready for `ROLE`, the greeting repeats `ROLE` over this
    /// connection.
    pub(super) fn record_hello(&self, hello: Option<&Value>) -> RedisResult<()> {
        if let Some(Value::Array(parts)) = hello {
            self.judge(ServerKind::by_hello(parts))?;
        }
        if let Some(known) = &self.server_kind_is_known {
            known.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    fn judge(&self, kind: ServerKind) -> RedisResult<()> {
        let scheme = match self.server.is_encrypted {
            true => "rediss",
            false => "redis",
        };
        // URLs of clusters and Sentinels have no Unix sockets, so the hint gets a placeholder.
        let here = match &self.server.deployment {
            Deployment::Single(address @ Address::Tcp(..)) => address.to_string(),
            _ => "host:port".into(),
        };
        Err(match kind {
            ServerKind::Master => return Ok(()),
            ServerKind::Replica(master) => replica(scheme, master),
            ServerKind::Node => wrong_url(format!(
                "{self} is a node of a cluster and serves only some of the names: use {scheme}+cluster://{here}/"
            )),
            ServerKind::Sentinel(service) => {
                let service = service.as_deref().unwrap_or("service");
                wrong_url(format!(
                    "{self} is a Sentinel, which keeps no locks: use {scheme}+sentinel://{here}/{service}"
                ))
            }
        })
    }
}

/// The error is transient, since a replica may be promoted.
fn replica(scheme: &str, master: Option<Address>) -> RedisError {
    let (of, url) = match master {
        Some(master) => (format!(" of {master}"), format!("{scheme}://{master}/")),
        None => (
            String::new(),
            format!("{scheme}://host:port/ of its master"),
        ),
    };
    io::Error::other(format!(
        "it is a replica{of}, and only a master grants locks: use {url}, or let Sentinels find the master with {scheme}+sentinel://host:26379/service"
    ))
    .into()
}

/// The kinds of servers, with what they say of others.
#[derive(Debug, PartialEq, Eq)]
enum ServerKind {
    Master,
    /// With the address of its master.
    Replica(Option<Address>),
    /// A node of a cluster.
    Node,
    /// With the name of a service that it watches, if known and plain enough for a URL.
    Sentinel(Option<String>),
}

impl ServerKind {
    /// The answer is one of `["slave", host, port, …]`, `["sentinel", [service, …]]`, `["master", …]`.
    fn by_role(parts: &[Value]) -> Self {
        match (text(parts.first()).as_deref(), parts.get(1), parts.get(2)) {
            (Some("slave"), host, Some(Value::Int(port))) => {
                let port = u16::try_from(*port).ok();
                let host = text(host).filter(|host| is_plain(host));
                Self::Replica(host.zip(port).map(|(host, port)| Address::Tcp(host, port)))
            }
            (Some("slave"), ..) => Self::Replica(None),
            (Some("sentinel"), Some(Value::Array(services)), _) => {
                Self::Sentinel(text(services.first()).filter(|service| is_plain(service)))
            }
            (Some("sentinel"), ..) => Self::Sentinel(None),
            _ => Self::Master,
        }
    }

    /// `[…, "mode", mode, "role", role, …]`; a Sentinel has no role.
    fn by_hello(parts: &[Value]) -> Self {
        let (pairs, _) = parts.as_chunks::<2>();
        let field = |name: &str| {
            let pair = pairs
                .iter()
                .find(|[key, _]| text(Some(key)).as_deref() == Some(name));
            pair.and_then(|[_, value]| text(Some(value)))
        };
        match (field("mode").as_deref(), field("role").as_deref()) {
            (Some("sentinel"), _) => Self::Sentinel(None),
            (Some("cluster"), _) => Self::Node,
            (_, Some("replica" | "slave")) => Self::Replica(None),
            _ => Self::Master,
        }
    }
}

fn text(value: Option<&Value>) -> Option<String> {
    match value? {
        Value::BulkString(bytes) => Some(excerpt(&String::from_utf8_lossy(bytes)).into_owned()),
        Value::SimpleString(text) => Some(excerpt(text).into_owned()),
        _ => None,
    }
}

/// Whether a host or a service can stand in a URL as it is.
fn is_plain(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".:-_".contains(&byte);
    !text.is_empty() && text.bytes().all(plain)
}

#[cfg(test)]
mod tests;
