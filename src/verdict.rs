//! The verdict on a reply: what to do with the request that it answers. No other file knows the error codes of Redis in
//! the table below. `RESTARTED` is a code of our own. `lua/red_acquire.lua` returns it if the server was restarted too
//! recently, or if its `run_id` is not the one that the request requires. In the second case the text contains the
//! `run_id` of the server that answers, which `KnownMaster::learn` reads.
//!
//! | code | a request that a thread waits for, but not a user's script | a user's script (a thread waits for it) | a release, an undo, a renewal |
//! | --- | --- | --- | --- |
//! | `NOSCRIPT` | `SendText`; `Never` if the script's text was sent | the same, if the error has the server's own words (`No matching script`); otherwise `Never` | as for a request that a thread waits for |
//! | `MOVED`, `ASK`, in a cluster | `Elsewhere`; `Later` after [`REDIRECTIONS`] in a row; `Never` if it names no node | as for other requests that a thread waits for, if the redirection names the slot of the script's keys; otherwise `Never` | as for a request that a thread waits for; `Later` if it names no node |
//! | `TRYAGAIN`, `CLUSTERDOWN`, `READONLY`, `LOADING`, `MASTERDOWN`, `BUSY`, `NOREPLICAS`, `RESTARTED`, too many clients | `Later` | `Never` | `Later` |
//! | `MISCONF`, `OOM` | `Never` | `Never` | `Later` |
//! | any other | `Never` | `Never` | `Never` |
//!
//! A user's script can return any code, so a code does not prove that the script has not run. `NOSCRIPT` with the server's
//! own words, or a redirection that names the slot of the script's keys, is taken as evidence that the script has not run.

use std::io;

use redis::{ErrorKind, RedisError, Value};

/// How many redirections in a row a request follows without a pause. A limit is needed since two nodes may redirect it to
/// each other.
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
    /// The request is not sent again: the server rejects it for good, or it runs a user's script and the error may come
    /// from that script.
    Never(RedisError),
}

/// A node that serves a slot, as another node names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Redirection {
    pub(crate) slot: u16,
    /// Empty or `?` if it is the host that was asked.
    pub(crate) host: String,
    pub(crate) port: u16,
    /// An `ASK`: the slot is still moving to the node, which serves the request only behind `ASKING`.
    pub(crate) is_asking: bool,
}

/// The facts about a request on which the meaning of an error depends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestFacts {
    pub(crate) kind: RequestKind,
    /// The request was sent with the script's text. (Any value will do for a request without a script.)
    pub(crate) by_text: bool,
    /// How often in a row nodes have redirected the request.
    pub(crate) redirected: u8,
    /// Redirections are followed: it is a cluster.
    pub(crate) is_clustered: bool,
}

/// Kinds of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestKind {
    /// A thread waits for the answer. It does not wait for `MISCONF` or `OOM` to pass.
    Waited,
    /// A thread waits for the answer of a user's script, whose first key, if there is any, is in this slot.
    Users(Option<u16>),
    /// A release, an undo or a renewal. A release or an undo is repeated until its `useful_until`, a renewal until the
    /// validity of the hold is over.
    Kept,
}

impl RequestFacts {
    /// The facts about a question that needs no script, or carries the script's text.
    pub(crate) fn question(is_clustered: bool) -> Self {
        Self {
            kind: RequestKind::Waited,
            by_text: true,
            redirected: 0,
            is_clustered,
        }
    }
}

/// Returns the meaning of a reply. `asked` is called only if the reply is an error.
pub(crate) fn verdict(reply: Value, asked: impl FnOnce() -> RequestFacts) -> Verdict {
    let err = match reply.extract_error() {
        Ok(value) => return Verdict::Answer(value),
        Err(err) => err,
    };
    let asked = asked();
    if !is_from_server(&err, asked.kind) {
        return Verdict::Never(err);
    }
    match Class::of(&err) {
        Class::UnknownScript if !asked.by_text => Verdict::SendText,
        Class::Redirection { .. } if !asked.is_clustered => Verdict::Never(not_followed(&err)),
        Class::Redirection { is_asking } => match Redirection::of(&err, is_asking) {
            Some(redirection) if asked.redirected < REDIRECTIONS => Verdict::Elsewhere(redirection),
            Some(_) => Verdict::Later(in_a_circle(&err)),
            None if asked.kind == RequestKind::Kept => Verdict::Later(err),
            None => Verdict::Never(err),
        },
        class if class.passes(asked.kind) => Verdict::Later(err),
        _ => Verdict::Never(err),
    }
}

/// Whether to treat the error as the server's, not as one that a user's script returned. The result is `false` for a
/// `NOSCRIPT` or a redirection that a user's script may have returned. If such an error counted as the server's, the
/// request would be sent again, and the script might run twice. A script is unlikely to return the server's words, or a
/// redirection that names the slot of the script's own keys. Other errors never lead to a second sending of a user's
/// script, so for them the result is `true`.
fn is_from_server(err: &RedisError, kind: RequestKind) -> bool {
    let RequestKind::Users(slot) = kind else {
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
    /// The keys of the request are on their way to another node. A request with only one of them may succeed.
    Keys,
    /// The slots of the request may be served by another node by now.
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
    /// The server is not ready to execute the request, but will be later.
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

    fn passes(self, kind: RequestKind) -> bool {
        match self {
            Self::Passes(_) => matches!(kind, RequestKind::Waited | RequestKind::Kept),
            Self::NoWrites => kind == RequestKind::Kept,
            _ => false,
        }
    }
}

/// Whether the server may serve a request of this kind later.
pub(crate) fn passes(err: &RedisError, kind: RequestKind) -> bool {
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

/// Whether the error is about a key of the request: the key has moved, has another type, or is in another slot than the
/// request's other keys.
pub(crate) fn is_about_the_key(err: &RedisError) -> bool {
    let codes = ["MOVED", "ASK", "TRYAGAIN", "WRONGTYPE", "CROSSSLOT"];
    codes.contains(&err.code().unwrap_or_default())
}

/// Whether the reply says that the server does not know the script (any more).
pub(crate) fn has_forgotten_scripts(reply: &Value) -> bool {
    matches!(reply, Value::ServerError(err) if err.code() == "NOSCRIPT")
}

/// The error for a redirection if the URL names a single server: says which URL to use.
fn not_followed(redirection: &RedisError) -> RedisError {
    RedisError::from((
        ErrorKind::InvalidClientConfig,
        "the server is a node of a cluster, so use a redis+cluster:// URL",
        line_of(redirection),
    ))
}

/// The reply of the server, as it was sent.
fn line_of(err: &RedisError) -> String {
    format!(
        "{} {}",
        err.code().unwrap_or_default(),
        err.detail().unwrap_or_default()
    )
}

/// The redirection of a request that was redirected too often. The nodes will agree once the slot has moved, so the error
/// that is returned counts as transient (`is_transient`). The redirection itself would not.
fn in_a_circle(redirection: &RedisError) -> RedisError {
    let text = format!(
        "the nodes of the cluster do not agree which of them has the slot: {}",
        line_of(redirection)
    );
    io::Error::other(text).into()
}

/// Returns advice about an error, where the server gives none.
pub(crate) fn advice(err: &RedisError) -> Option<&'static str> {
    Some(match err.code()? {
        _ if is_crowded(err) => "raise maxclients on the server, or use fewer clients",
        "READONLY" => {
            "this server is a replica: use the URL of its master, or let Sentinels find it with redis+sentinel://host:26379/service"
        }
        "NOREPLICAS" => "connect replicas, or lower min-replicas-to-write",
        "OOM" => "raise maxmemory, or keep locks on a server of their own",
        "MISCONF" => "free disk space on the server, and check its log",
        _ => return None,
    })
}

#[cfg(test)]
mod tests;
