//! Whether the server is what the URL says, a single master. A replica, a node of a cluster and a Sentinel greet in the same
//! way, and would reject most locks later.
//!
//! Asked behind the login of the first connection for commands. A user without the right to ask may connect all the same.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redis::{RedisError, RedisResult, Value};

use super::Endpoint;
use crate::config::server::{Address, Deployment};
use crate::error::{excerpt, wrong_url};

impl Endpoint {
    /// The same, of a client whose URL names it.
    pub(crate) fn named_by_url(self) -> Self {
        let is_one = matches!(self.server.deployment, Deployment::Single(_));
        Self {
            is_as_meant: is_one.then(Arc::<AtomicBool>::default),
            ..self
        }
    }

    /// Whether connections of this role ask, and none of the client knows the answer.
    pub(super) fn asks_what_it_is(&self, role: &str) -> bool {
        let is_known = |known: &Arc<AtomicBool>| known.load(Ordering::Relaxed);
        role == super::COMMANDS
            && self
                .is_as_meant
                .as_ref()
                .is_some_and(|known| !is_known(known))
    }

    /// The server has answered `ROLE`.
    pub(super) fn answers_role(&self, role: &Value) -> RedisResult<()> {
        match (&self.is_as_meant, role) {
            (Some(_), Value::Array(parts)) => self.judge(Sort::by_role(parts)),
            _ => Ok(()),
        }
    }

    /// The server has answered `HELLO`, or refused it; that is asked behind `ROLE`.
    pub(super) fn answers_hello(&self, hello: Option<&Value>) -> RedisResult<()> {
        if let Some(Value::Array(parts)) = hello {
            self.judge(Sort::by_hello(parts))?;
        }
        if let Some(known) = &self.is_as_meant {
            known.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    fn judge(&self, sort: Sort) -> RedisResult<()> {
        let scheme = match self.server.is_encrypted {
            true => "rediss",
            false => "redis",
        };
        // No URL leads to a cluster or a Sentinel by a Unix socket.
        let here = match &self.server.deployment {
            Deployment::Single(address @ Address::Tcp(..)) => address.to_string(),
            _ => "host:port".into(),
        };
        Err(match sort {
            Sort::Master => return Ok(()),
            Sort::Replica(master) => replica(scheme, master),
            Sort::Node => wrong_url(format!(
                "{self} is a node of a cluster and serves only some of the names: use {scheme}+cluster://{here}/"
            )),
            Sort::Sentinel(service) => {
                let service = service.as_deref().unwrap_or("service");
                wrong_url(format!(
                    "{self} is a sentinel, which keeps no locks: use {scheme}+sentinel://{here}/{service}"
                ))
            }
        })
    }
}

/// May pass: replicas are promoted.
fn replica(scheme: &str, master: Option<Address>) -> RedisError {
    let (of, url) = match master {
        Some(master) => (format!(" of {master}"), format!("{scheme}://{master}/")),
        None => (
            String::new(),
            format!("{scheme}://host:port/ of its master"),
        ),
    };
    io::Error::other(format!(
        "it is a replica{of}, and only a master grants locks: use {url}, or let sentinels find the master with {scheme}+sentinel://host:26379/service"
    ))
    .into()
}

/// Sorts of servers, with what they say of others.
#[derive(Debug, PartialEq, Eq)]
enum Sort {
    Master,
    /// With the address of its master.
    Replica(Option<Address>),
    /// A node of a cluster.
    Node,
    /// With the name of a service, if that can stand in a URL as it is.
    Sentinel(Option<String>),
}

impl Sort {
    /// `["slave", host, port, …]`, `["sentinel", [service, …]]`, `["master", …]`
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
mod tests {
    use super::*;

    use proptest::prelude::*;

    use crate::config::server::Server;
    use crate::error::{Error, is_transient};
    use crate::net::strange;

    fn reply(line: &str) -> Value {
        redis::parse_redis_value(line.as_bytes()).expect("a reply")
    }

    /// What an endpoint says of two replies, and whether another attempt may help.
    fn said(url: &str, role: &str, hello: &str) -> (String, bool) {
        let server = Server::of(url).expect("a good URL");
        let endpoint = Endpoint::new(server).named_by_url();
        assert!(endpoint.asks_what_it_is(super::super::COMMANDS));
        let by_role = endpoint.answers_role(&reply(role));
        let said = by_role.and_then(|()| endpoint.answers_hello(Some(&reply(hello))));
        match said {
            Ok(()) => {
                assert!(!endpoint.asks_what_it_is(super::super::COMMANDS));
                ("fine".into(), true)
            }
            Err(err) => {
                assert!(endpoint.asks_what_it_is(super::super::COMMANDS));
                let may_pass = is_transient(&err);
                (
                    Error::redis("connecting", err).at(&endpoint).to_string(),
                    may_pass,
                )
            }
        }
    }

    #[test]
    fn a_server_of_another_sort_is_named_with_the_url_to_use() {
        const MASTER: &str = "*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n";
        const REPLICA: &str =
            "*5\r\n$5\r\nslave\r\n$8\r\n10.0.0.1\r\n:6379\r\n$9\r\nconnected\r\n:9\r\n";
        const SENTINEL: &str = "*2\r\n$8\r\nsentinel\r\n*1\r\n$6\r\norders\r\n";
        const ODD: &str = "*2\r\n$8\r\nsentinel\r\n*1\r\n$3\r\na/b\r\n";
        const ALONE: &str =
            "*4\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n$4\r\nrole\r\n$6\r\nmaster\r\n";
        const CLUSTER: &str = "*4\r\n$4\r\nmode\r\n$7\r\ncluster\r\n$4\r\nrole\r\n$6\r\nmaster\r\n";
        const FOLLOWS: &str =
            "*4\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n$4\r\nrole\r\n$7\r\nreplica\r\n";
        const WATCHES: &str = "*2\r\n$4\r\nmode\r\n$8\r\nsentinel\r\n";
        for (url, role, hello, text, may_pass) in [
            ("redis://h:1/", MASTER, ALONE, "fine", true),
            (
                "redis://h:1/",
                MASTER,
                CLUSTER,
                "invalid setting: url: h:1 is a node of a cluster and serves only some of the names: use redis+cluster://h:1/",
                false,
            ),
            (
                "unix:///r.sock",
                MASTER,
                CLUSTER,
                "invalid setting: url: /r.sock is a node of a cluster and serves only some of the names: use redis+cluster://host:port/",
                false,
            ),
            (
                "redis://[::1]:7/",
                SENTINEL,
                ALONE,
                "invalid setting: url: [::1]:7 is a sentinel, which keeps no locks: use redis+sentinel://[::1]:7/orders",
                false,
            ),
            (
                "redis://h:1/",
                ODD,
                ALONE,
                "invalid setting: url: h:1 is a sentinel, which keeps no locks: use redis+sentinel://h:1/service",
                false,
            ),
            (
                "redis://h:1/",
                MASTER,
                WATCHES,
                "invalid setting: url: h:1 is a sentinel, which keeps no locks: use redis+sentinel://h:1/service",
                false,
            ),
            (
                "redis://h:1/",
                REPLICA,
                FOLLOWS,
                "cannot connect to redis at h:1: it is a replica of 10.0.0.1:6379, and only a master grants locks: use redis://10.0.0.1:6379/, or let sentinels find the master with redis+sentinel://host:26379/service",
                true,
            ),
            (
                "redis://h:1/",
                MASTER,
                FOLLOWS,
                "cannot connect to redis at h:1: it is a replica, and only a master grants locks: use redis://host:port/ of its master, or let sentinels find the master with redis+sentinel://host:26379/service",
                true,
            ),
        ] {
            assert_eq!(said(url, role, hello), (text.into(), may_pass));
        }
    }

    #[test]
    fn only_servers_that_the_url_names_are_asked_and_only_once() {
        for url in ["redis+sentinel://h:1/x", "redis+cluster://h:1/"] {
            let server = Server::of(url).expect("a good URL");
            let endpoint = Endpoint::new(server).named_by_url();
            assert!(!endpoint.asks_what_it_is(super::super::COMMANDS));
        }
        let server = Server::of("redis://h:1/").expect("a good URL");
        let endpoint = Endpoint::new(server).named_by_url();
        let other = endpoint.node(Address::Tcp("h".into(), 2));
        assert!(!other.asks_what_it_is(super::super::COMMANDS));
        assert!(!endpoint.asks_what_it_is("subscriber"));
        // A user without the right to ask.
        endpoint.answers_hello(None).expect("it may be used");
        assert!(!endpoint.asks_what_it_is(super::super::COMMANDS));
    }

    proptest! {
        #![proptest_config(strange::cases(256))]

        #[test]
        fn whatever_is_answered_is_judged(reply in strange::value()) {
            let server = Server::of("redis://h:1/").expect("a good URL");
            let endpoint = Endpoint::new(server).named_by_url();
            for judged in [endpoint.answers_role(&reply), endpoint.answers_hello(Some(&reply))] {
                if let Err(err) = judged {
                    prop_assert!(err.to_string().len() < 1000);
                }
            }
        }
    }
}
