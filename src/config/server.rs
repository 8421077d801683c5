//! The servers, how to reach them and how to log in, read from a URL or a `ConnectionInfo`.

use std::fmt;
use std::path::PathBuf;

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion};

use crate::config::credentials::Credentials;
use crate::config::replicas::ReplicaAck;
#[cfg(feature = "tls")]
use crate::config::tls::TlsSettings;
use crate::error::{Error, Result, printable, said};

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Address {
    Tcp(String, u16),
    Unix(PathBuf),
}

impl fmt::Display for Address {
    /// The address for errors and logs. Control characters of the host are replaced, since servers send host names too.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host, port) => {
                let host = printable(host);
                match host.contains(':') {
                    true => write!(f, "[{host}]:{port}"),
                    false => write!(f, "{host}:{port}"),
                }
            }
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

/// Which servers there are, and how the one to connect to is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Deployment {
    /// A single server, at this address.
    Single(Address),
    /// The server that the Sentinels name as the master of `service`.
    Sentinel {
        sentinels: Vec<Address>,
        service: String,
        login: Login,
    },
    /// The masters of a cluster, each for its slots. Any node lists all of them.
    Cluster { seeds: Vec<Address> },
}

impl fmt::Display for Deployment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let several = |f: &mut fmt::Formatter<'_>, addresses: &[Address]| {
            for (i, address) in addresses.iter().enumerate() {
                write!(f, "{}{address}", if i == 0 { "" } else { "," })?;
            }
            Ok(())
        };
        match self {
            Self::Single(address) => address.fmt(f),
            Self::Sentinel {
                sentinels, service, ..
            } => {
                write!(f, "the master of `{service}` by the sentinels ")?;
                several(f, sentinels)
            }
            Self::Cluster { seeds } => {
                f.write_str("the cluster of ")?;
                several(f, seeds)
            }
        }
    }
}

/// User and password, as far as they are given.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Login {
    pub(crate) username: Option<String>,
    pub(crate) password: Option<String>,
    /// The function that returns both, if there is one.
    pub(crate) asked: Option<Credentials>,
}

impl fmt::Debug for Login {
    /// Omits the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login")
            .field("username", &self.username)
            .finish_non_exhaustive()
    }
}

/// Where Redis is, and how to log in there.
#[derive(Clone)]
pub(crate) struct Server {
    pub(crate) deployment: Deployment,
    /// Whether the connections have to be encrypted.
    pub(crate) is_encrypted: bool,
    /// How the connections are encrypted, once the settings have been checked.
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<TlsSettings>,
    pub(crate) login: Login,
    pub(crate) db: i64,
    /// The start of the connections' names: see [`process::names`](crate::process::names).
    pub(crate) names: String,
    pub(crate) replica_ack: ReplicaAck,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.deployment, self.db)
    }
}

/// Whether a scheme, or the name of a parameter, may be repeated in an error: it looks like one, not like a part of a
/// password.
fn is_plausible(scheme: &str) -> bool {
    let letters = |byte: u8| byte.is_ascii_lowercase() || b"+-.".contains(&byte);
    scheme.len() <= 16 && scheme.bytes().all(letters)
}

/// The schemes, as errors list them.
const SCHEMES: &str =
    "redis, rediss, redis+unix, redis+sentinel, rediss+sentinel, redis+cluster and rediss+cluster";

/// How to enable a missing feature.
const NEEDS_TLS: &str = "needs the feature `tls` of redlatch, which is not compiled in: redlatch = { features = [\"tls\"] } in Cargo.toml";

/// Which characters of a password to encode.
const PERCENT_ENCODE: &str = "in a user or a password, percent-encode `/` as %2F, `?` as %3F, `#` as %23, `&` as %26 and `@` as %40";

const PORT_OUT_OF_RANGE: &str = "the port is out of range: 1 to 65535";

const BRACKETS: &str = "an IPv6 address needs brackets, as in redis://[::1]:6379/";

const ZONE: &str = "an IPv6 address with a zone is not supported: use one without, as in redis://[fd00::1]:6379/, or the name of the host";

/// The port of a Sentinel whose URL gives none.
const SENTINEL_PORT: u16 = 26379;

/// The port of a server whose URL gives none.
const REDIS_PORT: u16 = 6379;

/// Where the servers are, as the program gives it. Both forms may contain a password.
#[derive(Clone)]
pub(crate) enum Source {
    Url(String),
    Info(Box<ConnectionInfo>),
}

impl Source {
    pub(crate) fn server(&self) -> Result<Server> {
        match self {
            Self::Url(url) => Server::of(url),
            Self::Info(info) => Server::of_info(info),
        }
    }

    /// The source as errors call it.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Url(_) => "the URL",
            Self::Info(_) => "the ConnectionInfo",
        }
    }

    /// The reason why no encryption was requested, as errors put it.
    #[cfg(feature = "tls")]
    pub(crate) fn is_plain(&self) -> &'static str {
        match self {
            Self::Url(_) => "the URL does not begin with `rediss`",
            Self::Info(_) => "the address is no ConnectionAddr::TcpTls",
        }
    }

    /// Whether the `ConnectionInfo` has certificates or keys, which only the `redis` crate can read.
    #[cfg(feature = "tls")]
    pub(crate) fn has_sealed_tls(&self) -> bool {
        let Self::Info(info) = self else { return false };
        matches!(
            info.addr(),
            ConnectionAddr::TcpTls {
                tls_params: Some(_),
                ..
            }
        )
    }
}

impl Server {
    /// Reads a URL. Errors do not repeat it, since it may contain a password.
    pub(crate) fn of(url: &str) -> Result<Self> {
        let Some((scheme, rest)) = url.split_once("://") else {
            return Err(bad(format!(
                "it has no scheme, as in redis://host:6379/; supported are {SCHEMES}"
            )));
        };
        let lower = scheme.to_ascii_lowercase();
        let (tls, kind) = match lower.replace("valkey", "redis").as_str() {
            "redis" => (false, UrlKind::Single),
            "rediss" => (true, UrlKind::Single),
            "unix" | "redis+unix" => (false, UrlKind::Unix),
            "redis+sentinel" => (false, UrlKind::Sentinel),
            "rediss+sentinel" => (true, UrlKind::Sentinel),
            "redis+cluster" => (false, UrlKind::Cluster),
            "rediss+cluster" => (true, UrlKind::Cluster),
            _ if is_plausible(scheme) => {
                return Err(bad(format!(
                    "the scheme `{scheme}` is unknown; supported are {SCHEMES}"
                )));
            }
            // The text may be a password in the wrong place.
            _ => {
                return Err(bad(format!(
                    "its scheme is unknown; supported are {SCHEMES}"
                )));
            }
        };
        if tls && !cfg!(feature = "tls") {
            return Err(bad(format!("the scheme `{scheme}` {NEEDS_TLS}")));
        }
        if rest.contains('#') {
            return Err(bad(format!("it contains a `#`; {PERCENT_ENCODE}")));
        }
        let understood = match kind {
            UrlKind::Single => single(&format!("redis://{rest}")),
            UrlKind::Unix => single(&format!("redis+unix://{rest}")),
            UrlKind::Sentinel => sentinel(rest),
            UrlKind::Cluster => cluster(rest),
        };
        let (deployment, login, db) = understood.map_err(|err| {
            // A `/` or `?` that is not percent-encoded in a password ends the authority too early; `err` then names a
            // consequence, such as a wrong port. If an `@` comes after the first `/` or `?`, a password with such a
            // character is the likely cause. The error that is returned then says so, instead of `err`.
            let authority_ends = rest.find(['/', '?']).unwrap_or(rest.len());
            match kind != UrlKind::Unix && rest[authority_ends..].contains('@') {
                true => bad(format!(
                    "a `/` or `?` comes before the `@` of the address; {PERCENT_ENCODE}"
                )),
                false => with_example(err, kind),
            }
        })?;
        Ok(Self::new(deployment, tls, login, db))
    }

    /// Reads a `ConnectionInfo`, by the rules for URLs.
    fn of_info(info: &ConnectionInfo) -> Result<Self> {
        let (address, tls) = address_of(info).map_err(bad_info)?;
        let login = login_of(info).map_err(bad_info)?;
        let db = info.redis_settings().db();
        Ok(Self::new(Deployment::Single(address), tls, login, db))
    }

    fn new(deployment: Deployment, is_encrypted: bool, login: Login, db: i64) -> Self {
        Self {
            deployment,
            is_encrypted,
            #[cfg(feature = "tls")]
            tls: None,
            login,
            db,
            names: String::new(),
            replica_ack: ReplicaAck::None,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum UrlKind {
    Single,
    Unix,
    Sentinel,
    Cluster,
}

/// Adds a correct URL, unless the text shows one already.
fn with_example(err: Error, kind: UrlKind) -> Error {
    let example = match kind {
        UrlKind::Single => "redis://user:password@host:6379/3",
        UrlKind::Unix => "redis+unix:///run/redis.sock?db=3",
        UrlKind::Sentinel => "redis+sentinel://host:26379,host:26379/service",
        UrlKind::Cluster => "redis+cluster://host:6379,host:6379",
    };
    match err {
        Error::InvalidSetting { reason, .. } if !reason.contains("://") => {
            Error::setting(format!("{reason}; a URL looks like {example}"))
        }
        shown => shown,
    }
}

fn bad(reason: impl fmt::Display) -> Error {
    Error::setting(format!("url: {reason}"))
}

fn bad_info(reason: impl fmt::Display) -> Error {
    Error::setting(format!("connection_info: {reason}"))
}

/// Rejects the first parameter that is not among the `known` ones. The error names it only if it cannot be the rest
/// of a password.
fn check_parameters(query: &str, known: &[&str]) -> Result<()> {
    let mut names = query
        .split('&')
        .filter_map(|pair| pair.split('=').next().filter(|name| !name.is_empty()));
    let Some(unknown) = names.find(|name| !known.contains(name)) else {
        return Ok(());
    };
    let which = match is_plausible(unknown) && !query.contains("pass") {
        true => format!("the parameter `{unknown}` is unknown"),
        false => "a parameter is unknown".into(),
    };
    let there_are = match known {
        [] => "none is known here".into(),
        known => format!("known: `{}`", known.join("`, `")),
    };
    Err(bad(format!(
        "{which} ({there_are}); write the database as in redis://host:6379/3, and set timeouts with `Config`"
    )))
}

/// Converts `source` with the `redis` crate. The error repeats no part of `source`, which may be a URL with a
/// password.
pub(crate) fn info_of(source: impl IntoConnectionInfo) -> Result<ConnectionInfo> {
    source.into_connection_info().map_err(|err| {
        let said = err.to_string();
        let said = said.strip_suffix(err.detail().unwrap_or_default());
        let said = said.unwrap_or(err.category()).trim_end_matches([':', ' ']);
        bad_info(format!(
            "{said}; pass the URL to Config::new, which also reads those of Sentinels and clusters"
        ))
    })
}

/// The login that the `redis` crate would use.
fn login_of(info: &ConnectionInfo) -> std::result::Result<Login, &'static str> {
    let settings = info.redis_settings();
    if settings.protocol() != ProtocolVersion::RESP2 {
        return Err("redlatch speaks RESP2 only");
    }
    if settings.db() < 0 {
        return Err("the database number is negative");
    }
    let username = settings.username().filter(|name| !name.is_empty());
    if username.is_some() && settings.password().is_none() {
        return Err("the user is given without a password");
    }
    Ok(Login {
        username: username.map(str::to_owned),
        password: settings.password().map(str::to_owned),
        asked: None,
    })
}

/// The address that the `redis` crate would connect to, and whether by TLS.
fn address_of(info: &ConnectionInfo) -> std::result::Result<(Address, bool), String> {
    let (host, port, tls) = match info.addr() {
        ConnectionAddr::Tcp(host, port) => (host, *port, false),
        ConnectionAddr::TcpTls { .. } if !cfg!(feature = "tls") => {
            return Err(format!("ConnectionAddr::TcpTls {NEEDS_TLS}"));
        }
        ConnectionAddr::TcpTls { insecure: true, .. } => {
            return Err("`insecure` accepts any certificate, which redlatch never does: set it to false, and name the server's CA, or its name if that is not the host, with Config::tls".into());
        }
        ConnectionAddr::TcpTls { host, port, .. } => (host, *port, true),
        ConnectionAddr::Unix(path) if cfg!(unix) => {
            return Ok((Address::Unix(path.clone()), false));
        }
        ConnectionAddr::Unix(_) => return Err("this system has no Unix sockets".into()),
        other => return Err(format!("the address {other} is not supported")),
    };
    match (host.as_str(), port) {
        ("", _) => Err("the host is missing".into()),
        ("0.0.0.0" | "::", _) => {
            Err("0.0.0.0 and :: are for servers to listen at; use an address of the server".into())
        }
        (_, 0) => Err(PORT_OUT_OF_RANGE.into()),
        _ => Ok((Address::Tcp(host.clone(), port), tls)),
    }
}

/// Reads a URL of one server with the `redis` crate.
fn parse(url: &str) -> Result<(ConnectionInfo, Login)> {
    if let Some(rest) = url.strip_prefix("redis://") {
        check_parts(rest.split('?').next().unwrap_or_default()).map_err(bad)?;
    }
    // In the parameters the `redis` crate reads a `+` as a space, as forms do. Elsewhere in a URL it is a plus.
    let url = match url.split_once('?') {
        Some((base, query)) => format!("{base}?{}", query.replace('+', "%2B")),
        None => url.to_owned(),
    };
    let info = url.into_connection_info().map_err(|err| bad(said(&err)))?;
    let login = login_of(&info).map_err(bad)?;
    Ok((info, login))
}

fn single(url: &str) -> Result<(Deployment, Login, i64)> {
    let (base, query) = url.split_once('?').unwrap_or((url, ""));
    let known: &[&str] = match base.starts_with("redis://") {
        true => &["protocol"],
        false => &["db", "user", "pass", "protocol"],
    };
    check_parameters(query, known)?;
    let (info, login) = parse(url)?;
    // The flag is always false: the `redis` crate is given a scheme without TLS.
    let (address, _) = address_of(&info).map_err(bad)?;
    let db = info.redis_settings().db();
    Ok((Deployment::Single(address), login, db))
}

/// Checks host, port and db of `[[user]:password@]host[:port][/db]`, since the `redis` crate does not say which of them is
/// wrong. The errors quote no part: if the `@` is missing, what looks like the port may be the password.
fn check_parts(rest: &str) -> std::result::Result<(), &'static str> {
    let (authority, db) = rest.split_once('/').unwrap_or((rest, ""));
    let host = authority.rsplit('@').next().unwrap_or_default();
    if host.is_empty() || host.starts_with(':') && host.matches(':').count() == 1 {
        return Err("the host is missing");
    }
    if host.contains(|c: char| c.is_whitespace() || "<>\\^|".contains(c)) {
        return Err("the host contains a character that no name of a host has");
    }
    let port = match host.strip_prefix('[') {
        Some(ipv6) => {
            let (ipv6, port) = ipv6.split_once(']').ok_or(BRACKETS)?;
            if ipv6.contains('%') {
                return Err(ZONE);
            }
            port
        }
        None if host.matches(':').count() > 1 => return Err(BRACKETS),
        None => host.find(':').map_or("", |at| &host[at..]),
    };
    let port = port.strip_prefix(':').unwrap_or(port);
    if !port.is_empty() && !port.parse::<u16>().is_ok_and(|port| port > 0) {
        return Err(match port.bytes().all(|byte| byte.is_ascii_digit()) {
            true => PORT_OUT_OF_RANGE,
            false => "the port has to be a number, as in redis://host:6379/",
        });
    }
    let db = db.trim_matches('/');
    match db.is_empty() || db.parse::<i64>().is_ok() {
        true => Ok(()),
        false => Err("the database has to be a number, as in redis://host:6379/3"),
    }
}

/// `[[user]:password@]host[:port],…/service[/db][?sentinel_user=…&sentinel_password=…]`
fn sentinel(rest: &str) -> Result<(Deployment, Login, i64)> {
    let url = UrlParts::of(rest, SENTINEL_PORT)?;
    let (service, db) = url.path.split_once('/').unwrap_or((url.path, ""));
    if service.is_empty() {
        return Err(bad(
            "the name of the service is missing; write redis+sentinel://host:port,host:port/service",
        ));
    }
    check_parameters(url.query, &["sentinel_user", "sentinel_password"])?;
    let (mut user, mut password) = ("", None);
    for pair in url.query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=') {
            Some(("sentinel_user", value)) => user = value,
            Some((_, value)) => password = Some(value),
            None => return Err(bad("a parameter has no value")),
        }
    }
    let login_there = match password {
        Some(password) => parse(&format!("redis://{user}:{password}@sentinel/"))?.1,
        None if user.is_empty() => Login::default(),
        None => return Err(bad("`sentinel_user` needs a `sentinel_password`")),
    };
    let (info, login) = parse(&format!("redis://{}redis/{db}", url.userinfo))?;
    // To percent-decode the service, it is put where a URL has the user, and the crate `redis` reads that URL. A `:` would
    // begin the password there, so it is encoded first.
    let service = service.replace(':', "%3A");
    let service = parse(&format!("redis://{service}:-@sentinel/"))?.1.username;
    let deployment = Deployment::Sentinel {
        sentinels: url.addresses,
        service: service.unwrap_or_default(),
        login: login_there,
    };
    Ok((deployment, login, info.redis_settings().db()))
}

/// `[[user]:password@]host[:port],…[/db]`
fn cluster(rest: &str) -> Result<(Deployment, Login, i64)> {
    let url = UrlParts::of(rest, REDIS_PORT)?;
    check_parameters(url.query, &[])?;
    let (info, login) = parse(&format!("redis://{}redis/{}", url.userinfo, url.path))?;
    let deployment = Deployment::Cluster {
        seeds: url.addresses,
    };
    Ok((deployment, login, info.redis_settings().db()))
}

/// The parts of a URL with several addresses.
struct UrlParts<'a> {
    /// User and password with the `@` after them, or empty.
    userinfo: &'a str,
    addresses: Vec<Address>,
    path: &'a str,
    query: &'a str,
}

impl<'a> UrlParts<'a> {
    fn of(rest: &'a str, port: u16) -> Result<Self> {
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (userinfo, hosts) = authority.split_at(authority.rfind('@').map_or(0, |at| at + 1));
        let mut addresses = Vec::new();
        for host in hosts.split(',') {
            if host.is_empty() {
                return Err(bad("an address is missing; write host:port,host:port"));
            }
            let behind = host.rsplit_once(']').map_or(host, |(_, behind)| behind);
            let url = match behind.trim_end_matches(':').contains(':') {
                true => format!("redis://{host}/"),
                false => format!("redis://{}:{port}/", host.trim_end_matches(':')),
            };
            match single(&url)?.0 {
                Deployment::Single(address) if !addresses.contains(&address) => {
                    addresses.push(address);
                }
                _ => {}
            }
        }
        Ok(Self {
            userinfo,
            addresses,
            path,
            query,
        })
    }
}

#[cfg(test)]
mod tests;
