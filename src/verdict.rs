//! The verdict on a reply: what to do with the request that it answers. No other file knows these error codes of
//! Redis.
//!
//! | code | a request that a thread waits for | a user's script | a release, an undo, a renewal |
//! | --- | --- | --- | --- |
//! | `NOSCRIPT` | send the text; never if the text was sent | the same, if the server says it | as the first |
//! | `MOVED`, `ASK`, in a cluster | elsewhere; after [`REDIRECTIONS`] in a row later | the same, if it names the slot of the keys | as the first, and later if it names no node |
//! | `TRYAGAIN`, `CLUSTERDOWN`, `READONLY`, `LOADING`, `MASTERDOWN`, `BUSY`, `NOREPLICAS`, `RESTARTED`, too many clients | later | never | later |
//! | `MISCONF`, `OOM` | never | never | later |
//! | any other | never | never | never |
//!
//! A user's script can return any code, so a code does not prove that the script has not run. The texts of the server
//! prove it, and the slot of a redirection.

use std::io;

use redis::{ErrorKind, RedisError, Value};

/// How often in a row a request follows where nodes send it before it rests: two nodes may send it to each other.
pub(crate) const REDIRECTIONS: u8 = 4;

/// The meaning of a reply for its request.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Verdict {
    /// The server has executed the request.
    Answer(Value),
    /// The server does not know the script by its hash: send the request again at once, with the script's text.
    SendText,
    /// The keys are served by another node: send the request there at once.
    Elsewhere(Redirection),
    /// The server has not executed the request, and may do so after a pause.
    Later(RedisError),
    /// The server rejects the request for good, or what a user's script has returned is its own error.
    Never(RedisError),
}

/// A node that serves a slot, as another node names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Redirection {
    pub(crate) slot: u16,
    /// Empty or `?` if it is the host that was asked.
    pub(crate) host: String,
    pub(crate) port: u16,
    /// The node serves these keys while their slot is on its way there, and only behind `ASKING`.
    pub(crate) is_asking: bool,
}

/// The facts about a request on which the meaning of an error depends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked {
    pub(crate) kind: Kind,
    /// The server has the script's text, or needs none.
    pub(crate) by_text: bool,
    /// How often in a row nodes have sent the request to another.
    pub(crate) redirected: u8,
    /// Redirections are followed: it is a cluster.
    pub(crate) is_clustered: bool,
}

/// Kinds of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A thread waits for the answer, and does not wait for an operator to make room.
    Waited,
    /// A thread waits for the answer of a user's script, whose first key, if there is any, is in this slot.
    Users(Option<u16>),
    /// Sent again until it is useless.
    Kept,
}

impl Asked {
    /// The facts about a question that needs no script, or carries the script's text.
    pub(crate) fn question(is_clustered: bool) -> Self {
        Self {
            kind: Kind::Waited,
            by_text: true,
            redirected: 0,
            is_clustered,
        }
    }
}

/// Returns the meaning of a reply. `asked` is called only if the reply is an error.
pub(crate) fn verdict(reply: Value, asked: impl FnOnce() -> Asked) -> Verdict {
    let err = match reply.extract_error() {
        Ok(value) => return Verdict::Answer(value),
        Err(err) => err,
    };
    let asked = asked();
    if !is_servers(&err, asked.kind) {
        return Verdict::Never(err);
    }
    match Class::of(&err) {
        Class::UnknownScript if !asked.by_text => Verdict::SendText,
        Class::Redirection { .. } if !asked.is_clustered => Verdict::Never(not_followed(&err)),
        Class::Redirection { is_asking } => match Redirection::of(&err, is_asking) {
            Some(to) if asked.redirected < REDIRECTIONS => Verdict::Elsewhere(to),
            Some(_) => Verdict::Later(in_a_circle(&err)),
            None if asked.kind == Kind::Kept => Verdict::Later(err),
            None => Verdict::Never(err),
        },
        class if class.passes(asked.kind) => Verdict::Later(err),
        _ => Verdict::Never(err),
    }
}

/// Whether the error comes from the server, and so proves that the request has not run. A user's script can return any code,
/// but is unlikely to return the server's text, or a redirection that names the slot of its own keys.
fn is_servers(err: &RedisError, kind: Kind) -> bool {
    let Kind::Users(slot) = kind else {
        return true;
    };
    let detail = err.detail().unwrap_or_default();
    let named = detail
        .split(' ')
        .next()
        .and_then(|named| named.parse().ok());
    match Class::of(err) {
        Class::UnknownScript => detail.starts_with("No matching script"),
        Class::Redirection { .. } => named.is_some() && named == slot,
        _ => true,
    }
}

impl Redirection {
    /// `<slot> <host>:<port>`
    fn of(err: &RedisError, is_asking: bool) -> Option<Self> {
        let mut parts = err.detail()?.split_ascii_whitespace();
        let slot = parts.next()?.parse().ok()?;
        let (host, port) = parts.next()?.rsplit_once(':')?;
        Some(Self {
            slot,
            host: host.trim_matches(['[', ']']).to_owned(),
            port: port.parse().ok()?,
            is_asking,
        })
    }
}

/// How far an error reaches beyond its own request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// The error concerns no other request.
    Request,
    /// These keys are on their way to another node. Each key alone may be served.
    Keys,
    /// These slots may be served by another node by now.
    Slots,
    /// The server is no master any more.
    Master,
    /// The server serves no data now, or takes no writes.
    Data,
    /// The server serves nothing now, not even `PING`.
    Everything,
}

/// Classes of errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    UnknownScript,
    Redirection {
        is_asking: bool,
    },
    /// The server is not ready to serve, and will be.
    Passes(Reach),
    /// The server takes no writes until somebody makes room.
    NoWrites,
    Lasts,
}

impl Class {
    fn of(err: &RedisError) -> Self {
        match err.code() {
            Some("NOSCRIPT") => Self::UnknownScript,
            Some("MOVED") => Self::Redirection { is_asking: false },
            Some("ASK") => Self::Redirection { is_asking: true },
            Some("TRYAGAIN") => Self::Passes(Reach::Keys),
            Some("CLUSTERDOWN") => Self::Passes(Reach::Slots),
            Some("READONLY") => Self::Passes(Reach::Master),
            Some("LOADING" | "MASTERDOWN") => Self::Passes(Reach::Everything),
            Some("BUSY" | "NOREPLICAS" | "RESTARTED") => Self::Passes(Reach::Data),
            Some("MISCONF" | "OOM") => Self::NoWrites,
            _ if is_crowded(err) => Self::Passes(Reach::Everything),
            _ => Self::Lasts,
        }
    }

    fn passes(self, kind: Kind) -> bool {
        match self {
            Self::Passes(_) => matches!(kind, Kind::Waited | Kind::Kept),
            Self::NoWrites => kind == Kind::Kept,
            _ => false,
        }
    }
}

/// Whether the server may serve a request of this kind later.
pub(crate) fn passes(err: &RedisError, kind: Kind) -> bool {
    Class::of(err).passes(kind)
}

pub(crate) fn reach(err: &RedisError) -> Reach {
    match Class::of(err) {
        Class::Passes(reach) => reach,
        Class::NoWrites => Reach::Data,
        _ => Reach::Request,
    }
}

/// Whether the server is at its limit of clients, and closes the connection.
pub(crate) fn is_crowded(err: &RedisError) -> bool {
    let detail = err.detail().unwrap_or_default();
    detail.starts_with("max number of clients")
}

/// Whether the reply says that the server has forgotten its scripts.
pub(crate) fn has_forgotten_scripts(reply: &Value) -> bool {
    matches!(reply, Value::ServerError(err) if err.code() == "NOSCRIPT")
}

/// A redirection by what is taken for a single server, with what to do about it.
fn not_followed(redirection: &RedisError) -> RedisError {
    RedisError::from((
        ErrorKind::InvalidClientConfig,
        "the server is a node of a cluster, so the URL has to begin with redis+cluster://",
        redirection.to_string(),
    ))
}

/// The redirection of a request that was redirected too often. The nodes agree again once the slot has moved, so the error is
/// transient, unlike the redirection.
fn in_a_circle(redirection: &RedisError) -> RedisError {
    let text = format!("the nodes of the cluster do not agree who has the slot: {redirection}");
    io::Error::other(text).into()
}

/// Returns advice about an error, where the server gives none.
pub(crate) fn advice(err: &RedisError) -> Option<&'static str> {
    Some(match err.code()? {
        "READONLY" => {
            "this server is a replica: give the URL of its master, or let sentinels find it with redis+sentinel://host:26379/service"
        }
        "NOREPLICAS" => "connect replicas, or lower min-replicas-to-write",
        "OOM" => "raise maxmemory, or keep locks on a server of their own",
        "MISCONF" => "make room on the disk of the server, and look at its log",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::sync::{Arc, LazyLock};

    use crate::error::is_transient;
    use crate::net::request::{Request, Script, ScriptRef};
    use crate::net::slot::slot_of;

    static OURS: LazyLock<Script> = LazyLock::new(|| Script::new("return 1"));

    /// A verdict without its contents.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Is {
        Answer,
        Text,
        Moved,
        Asking,
        Later,
        Never,
    }

    impl Is {
        fn of(verdict: &Verdict) -> Self {
            match verdict {
                Verdict::Answer(_) => Self::Answer,
                Verdict::SendText => Self::Text,
                Verdict::Elsewhere(to) if to.is_asking => Self::Asking,
                Verdict::Elsewhere(_) => Self::Moved,
                Verdict::Later(_) => Self::Later,
                Verdict::Never(_) => Self::Never,
            }
        }
    }

    /// A request that a thread waits for, a request that is sent once, a user's script, and what is kept.
    fn kinds() -> [Kind; 4] {
        let users = ScriptRef::Users(Arc::new(Script::new("return 2")));
        let keys: &[&[u8]] = &[b"k"];
        [
            Request::script("testing", &OURS, &["k"], &["o:1"]).kind(),
            Request::once("testing", ScriptRef::Ours(&OURS), keys, &[]).kind(),
            Request::once("testing", users, keys, &[]).kind(),
            Kind::Kept,
        ]
    }

    fn reply(line: &str) -> Value {
        redis::parse_redis_value(format!("{line}\r\n").as_bytes()).expect("a reply")
    }

    fn error(line: &str) -> RedisError {
        reply(line).extract_error().expect_err(line)
    }

    /// By the reply: what it means for each of the [kinds] whose script was sent by its hash, in a cluster; and what
    /// it says of others.
    #[test]
    fn every_code_means_the_same_to_everybody_who_asks() {
        use Is::{Answer, Asking, Later, Moved, Never, Text};
        let slot = slot_of(b"k");
        let other = slot + 1;
        let moved = format!("-MOVED {slot} 127.0.0.1:7001");
        let moved_other = format!("-MOVED {other} 127.0.0.1:7001");
        let ask = format!("-ASK {slot} 127.0.0.1:7001");
        let table: &[(&str, [Is; 4], Reach)] = &[
            (":1", [Answer; 4], Reach::Request),
            ("+OK", [Answer; 4], Reach::Request),
            ("$-1", [Answer; 4], Reach::Request),
            (
                "-NOSCRIPT No matching script. Please use EVAL.",
                [Text; 4],
                Reach::Request,
            ),
            ("-NOSCRIPT mine", [Text, Text, Never, Text], Reach::Request),
            (&moved, [Moved; 4], Reach::Request),
            (&moved_other, [Moved, Moved, Never, Moved], Reach::Request),
            (
                "-MOVED somewhere",
                [Never, Never, Never, Later],
                Reach::Request,
            ),
            ("-MOVED", [Never, Never, Never, Later], Reach::Request),
            (&ask, [Asking; 4], Reach::Request),
            (
                "-ASK 1 nowhere",
                [Never, Never, Never, Later],
                Reach::Request,
            ),
            (
                "-TRYAGAIN Multiple keys request",
                [Later, Later, Never, Later],
                Reach::Keys,
            ),
            (
                "-CLUSTERDOWN Hash slot not served",
                [Later, Later, Never, Later],
                Reach::Slots,
            ),
            (
                "-READONLY You can't write",
                [Later, Later, Never, Later],
                Reach::Master,
            ),
            (
                "-LOADING Redis is loading",
                [Later, Later, Never, Later],
                Reach::Everything,
            ),
            (
                "-MASTERDOWN Link is down",
                [Later, Later, Never, Later],
                Reach::Everything,
            ),
            (
                "-ERR max number of clients reached",
                [Later, Later, Never, Later],
                Reach::Everything,
            ),
            (
                "-BUSY Redis is busy",
                [Later, Later, Never, Later],
                Reach::Data,
            ),
            (
                "-NOREPLICAS Not enough",
                [Later, Later, Never, Later],
                Reach::Data,
            ),
            (
                "-RESTARTED 3 s ago",
                [Later, Later, Never, Later],
                Reach::Data,
            ),
            (
                "-MISCONF Errors writing",
                [Never, Never, Never, Later],
                Reach::Data,
            ),
            (
                "-OOM command not allowed",
                [Never, Never, Never, Later],
                Reach::Data,
            ),
            ("-WRONGTYPE Operation against", [Never; 4], Reach::Request),
            ("-NOPERM no", [Never; 4], Reach::Request),
            (
                "-NOAUTH Authentication required.",
                [Never; 4],
                Reach::Request,
            ),
            ("-CROSSSLOT Keys in request", [Never; 4], Reach::Request),
            (
                "-BUSYKEY Target key name already exists.",
                [Never; 4],
                Reach::Request,
            ),
            ("-ERR unknown command", [Never; 4], Reach::Request),
            ("-ODD", [Never; 4], Reach::Request),
        ];
        for (line, by_kind, said_of_others) in table {
            for (kind, expected) in kinds().into_iter().zip(by_kind) {
                for (by_text, is_clustered) in
                    [(false, true), (false, false), (true, true), (true, false)]
                {
                    for redirected in [0, REDIRECTIONS - 1, REDIRECTIONS] {
                        let asked = Asked {
                            kind,
                            by_text,
                            redirected,
                            is_clustered,
                        };
                        let expected = match expected {
                            Text if by_text => Never,
                            Moved | Asking if !is_clustered => Never,
                            Moved | Asking if redirected == REDIRECTIONS => Later,
                            // Only in a cluster does a kept request wait for its slot to have a node.
                            Later if !is_clustered && line.starts_with("-MOVED") => Never,
                            Later if !is_clustered && line.starts_with("-ASK") => Never,
                            expected => *expected,
                        };
                        let found = Is::of(&verdict(reply(line), || asked));
                        assert_eq!(found, expected, "{line}: {asked:?}");
                    }
                }
            }
            if line.starts_with('-') {
                assert_eq!(reach(&error(line)), *said_of_others, "{line}");
            }
        }
    }

    #[test]
    fn a_request_that_nodes_send_to_each_other_may_be_sent_again_later() {
        let asked = Asked {
            redirected: REDIRECTIONS,
            ..Asked::question(true)
        };
        for line in ["-MOVED 7 127.0.0.1:7001", "-ASK 7 127.0.0.1:7001"] {
            let Verdict::Later(err) = verdict(reply(line), || asked) else {
                panic!("{line}");
            };
            assert!(
                is_transient(&err) && err.to_string().contains("7 127.0.0.1:7001"),
                "{err}"
            );
        }
    }

    #[test]
    fn a_redirection_names_a_slot_and_a_node() {
        for (detail, expected) in [
            ("3999 127.0.0.1:6381", Some((3999, "127.0.0.1", 6381))),
            ("3999 ::1:6381", Some((3999, "::1", 6381))),
            ("3999 [::1]:6381", Some((3999, "::1", 6381))),
            ("3999 a.example:6381", Some((3999, "a.example", 6381))),
            ("3999 :6381", Some((3999, "", 6381))),
            ("65536 a:1", None),
            ("3999", None),
            ("x a:1", None),
            ("3999 a", None),
            ("3999 a:65536", None),
            ("", None),
        ] {
            let found = Redirection::of(&error(&format!("-MOVED {detail}")), false);
            let found = found.as_ref().map(|its| (its.slot, &*its.host, its.port));
            assert_eq!(found, expected, "{detail}");
        }
    }
}
