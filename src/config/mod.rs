//! The settings of a client, and what they may be.

pub(crate) mod credentials;
pub(crate) mod replicas;
pub(crate) mod server;
#[cfg(feature = "tls")]
pub(crate) mod tls;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::{ConnectionInfo, IntoConnectionInfo};

use crate::config::credentials::{Ask, Credentials};
use crate::config::replicas::ReplicaAck;
use crate::config::server::{Deployment, Server, Source, info_of};
#[cfg(feature = "tls")]
use crate::config::tls::TlsConfig;
use crate::error::Loss;
use crate::error::{Error, Result};
use crate::observer::{Observer, Observers};

/// The shortest lease of a client or of a handle: 10 ms.
///
/// With a shorter one, the margin for clock drift and one late scheduling of a thread would use up the lease.
pub const MIN_LEASE: Duration = Duration::from_millis(10);

/// The longest lease, of a client or of a handle: a hundred years of 365 days.
pub const MAX_LEASE: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

pub(crate) type Listener = Arc<dyn Fn(&Loss) + Send + Sync>;

/// How to reach Redis, and how the client behaves.
///
/// Made from a URL, or from a [`redis::ConnectionInfo`], and refined by setters; checked once, by
/// [`Client::open`](crate::Client::open).
///
/// ```
/// use std::time::Duration;
///
/// let config = redlatch::Config::new("redis://127.0.0.1/")
///     .lease(Duration::from_secs(10))
///     .key_prefix("shop:")
///     .label("worker-7");
/// # let _ = config;
/// ```
#[derive(Clone)]
pub struct Config {
    source: Source,
    pub(crate) lease: Duration,
    pub(crate) command_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) tenure: Duration,
    pub(crate) waiter_lease: Duration,
    pub(crate) log_long_waits: Duration,
    pub(crate) key_prefix: String,
    pub(crate) label: String,
    replica_ack: ReplicaAck,
    credentials: Option<Arc<Ask>>,
    reauth_after: Option<Duration>,
    pub(crate) lazy: bool,
    pub(crate) on_lost: Option<Listener>,
    pub(crate) observer: Observers,
    #[cfg(feature = "tls")]
    tls: Option<TlsConfig>,
}

impl Config {
    /// Returns the settings for the server at `url`, all others at their defaults.
    ///
    /// | the URL | leads to |
    /// | --- | --- |
    /// | `redis://[[user]:password@]host[:port][/db]` | one server over TCP |
    /// | `rediss://[[user]:password@]host[:port][/db]` | the same, encrypted with TLS (feature `tls`) |
    /// | `redis+unix:///path[?db=0&user=..&pass=..]` | one server over a Unix socket |
    /// | `redis+sentinel://[[user]:password@]host[:port],…/service[/db]` | the master that these Sentinels name |
    /// | `redis+cluster://[[user]:password@]host[:port],…[/db]` | the masters of the cluster that these nodes belong to |
    ///
    /// `valkey` may stand for `redis`, and `rediss` encrypts in front of `+sentinel` and `+cluster` as well. Users, passwords and the
    /// service are percent-decoded. The user and the password of the Sentinels themselves are
    /// `?sentinel_user=..&sentinel_password=..`; their port is 26379 unless it is given.
    ///
    /// ```
    /// let config = redlatch::Config::new("redis+unix:///run/redis.sock?db=1");
    /// # let _ = config;
    /// ```
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self::from_source(Source::Url(url.into()))
    }

    /// Returns the settings for one server, named as the `redis` crate (version 1) takes it: by `(host, port)`, a
    /// [`redis::ConnectionAddr`] or a [`redis::ConnectionInfo`]. All others are at their defaults.
    ///
    /// [`Client::open`](crate::Client::open) takes a [`redis::ConnectionInfo`] as it is. A URL is better given to
    /// [`Config::new`], which knows Sentinels and clusters, and TLS without features of the `redis` crate.
    ///
    /// | of a `ConnectionInfo` | what becomes of it |
    /// | --- | --- |
    /// | host and port, or the path of a Unix socket | used |
    /// | user, password, database | used; if it has neither user nor password, [`Config::credentials`] may give them |
    /// | protocol | has to be RESP2 |
    /// | `ConnectionAddr::TcpTls` | encrypted with TLS, like `rediss://` (feature `tls`) |
    /// | its `insecure` | has to be false, since certificates are always checked |
    /// | its `tls_params` | cannot be read outside of the `redis` crate; `Config::tls` has to say them again |
    /// | TCP settings | ignored: sockets have `TCP_NODELAY` and keepalive anyway, and the timeouts of the `Config` |
    /// | name and version of the library | ignored: nothing sends them. See [`Config::label`] |
    ///
    /// What cannot be used is an [`Error::Config`] of [`Client::open`](crate::Client::open), as it is in a URL.
    ///
    /// ```no_run
    /// use redlatch::{Client, Config};
    ///
    /// let config = Config::from_connection_info(("127.0.0.1", 6379))?.key_prefix("shop:");
    ///
    /// // A program that has a client of the `redis` crate already.
    /// let redis = redis::Client::open("redis://locker:secret@127.0.0.1/1")?;
    /// let client = Client::open(redis.get_connection_info().clone())?;
    /// # let _ = (config, client);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Config`] if the `redis` crate makes no [`redis::ConnectionInfo`] of it. Nothing was sent.
    pub fn from_connection_info(info: impl IntoConnectionInfo) -> Result<Self> {
        info_of(info).map(Self::from)
    }

    fn from_source(source: Source) -> Self {
        Self {
            source,
            lease: Duration::from_secs(30),
            command_timeout: Duration::from_secs(3),
            connect_timeout: Duration::from_secs(3),
            tenure: Duration::from_millis(5),
            waiter_lease: Duration::from_secs(3),
            log_long_waits: Duration::from_secs(10),
            key_prefix: String::new(),
            label: String::new(),
            replica_ack: ReplicaAck::None,
            credentials: None,
            reauth_after: None,
            lazy: false,
            on_lost: None,
            observer: Observers::default(),
            #[cfg(feature = "tls")]
            tls: None,
        }
    }

    /// Sets how long Redis keeps a hold that is not renewed; the watchdog renews every third of it.
    ///
    /// From 10 ms ([`MIN_LEASE`]) to a hundred years ([`MAX_LEASE`]). Default: 30 s.
    ///
    /// ```
    /// let config = redlatch::Config::new("redis://127.0.0.1/").lease(std::time::Duration::from_secs(10));
    /// # let _ = config;
    /// ```
    ///
    /// Source: Redisson's `lockWatchdogTimeout` and its period of a third.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Sets how long one call waits for Redis to answer, reconnecting included, before it fails.
    ///
    /// After half of it without a byte from the server, the connection is replaced and the command sent again on a new
    /// one, under a new owner. From 10 ms to an hour. Default: 3 s.
    ///
    /// ```
    /// let config = redlatch::Config::new("redis://127.0.0.1/").command_timeout(std::time::Duration::from_secs(1));
    /// # let _ = config;
    /// ```
    #[must_use]
    pub fn command_timeout(mut self, timeout: Duration) -> Self {
        self.command_timeout = timeout;
        self
    }

    /// Sets how long making a connection may take: name resolution, TCP and the handshake with Redis together.
    ///
    /// From 10 ms to an hour. Default: 3 s.
    ///
    /// ```
    /// let config = redlatch::Config::new("redis://127.0.0.1/").connect_timeout(std::time::Duration::from_secs(1));
    /// # let _ = config;
    /// ```
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Sets how long threads of this process may hand a lock over among themselves before it is offered to other
    /// processes.
    ///
    /// Zero offers it at every release. At most a second. Default: 5 ms.
    ///
    /// ```
    /// let config = redlatch::Config::new("redis://127.0.0.1/").tenure(std::time::Duration::from_millis(1));
    /// # let _ = config;
    /// ```
    #[must_use]
    pub fn tenure(mut self, tenure: Duration) -> Self {
        self.tenure = tenure;
        self
    }

    /// Sets how long a waiter of a fair lock keeps its place in the queue without a sign of life.
    ///
    /// The client shows a sign of life for all that wait, every third of it. So waiters that died delay those behind them by
    /// at most this long and a third; if all have died, by as long again. One that was away for longer joins the queue at
    /// its end. All clients of a name need the same. It is also how long a waiter of a read-write lock is noted after
    /// it has asked. From 100 ms to 60 s. Default: 3 s.
    ///
    /// ```
    /// let config = redlatch::Config::new("redis://127.0.0.1/").waiter_lease(std::time::Duration::from_secs(2));
    /// # let _ = config;
    /// ```
    ///
    /// Redisson's waiters stay for 300 s times their position.
    #[must_use]
    pub fn waiter_lease(mut self, lease: Duration) -> Self {
        self.waiter_lease = lease;
        self
    }

    /// Sets after how long a wait is logged, at *info*: what the thread waits for, and how long the holder's lease still
    /// lasts if that is known. Logged again after pauses that double: with 10 s, after 10, 20, 40 and 80 s,
    /// each up to a quarter of `after` late.
    ///
    /// Zero turns it off. Default: 10 s.
    ///
    /// ```
    /// let config = redlatch::Config::new("redis://127.0.0.1/").log_long_waits(std::time::Duration::from_secs(60));
    /// # let _ = config;
    /// ```
    #[must_use]
    pub fn log_long_waits(mut self, after: Duration) -> Self {
        self.log_long_waits = after;
        self
    }

    /// Sets what is put before every name to make its key: Redisson's `NameMapper` for the usual case.
    ///
    /// At most 1 KiB. Default: nothing.
    ///
    /// ```
    /// let config = redlatch::Config::new("redis://127.0.0.1/").key_prefix("shop:");
    /// # let _ = config;
    /// ```
    #[must_use]
    pub fn key_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.key_prefix = prefix.into();
        self
    }

    /// Sets what operators see in the names of this client's connections, beside its id, host and process.
    ///
    /// `CLIENT LIST` shows a connection as `redlatch:<id>:<host>:<pid>:<label>:<role>`, where the id is that of
    /// [`Client::id`](crate::Client::id). Printable ASCII without spaces, at most 64 bytes. Default: nothing.
    ///
    /// ```
    /// let config = redlatch::Config::new("redis://127.0.0.1/").label("worker-7");
    /// # let _ = config;
    /// ```
    #[must_use]
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = label.into();
        self
    }

    /// Sets how many replicas have to acknowledge an acquire, of a lock or of permits, before it succeeds.
    ///
    /// With too few within a quarter of the command timeout, what was taken is given back and the error is
    /// [`Error::NotReplicated`]. Other commands of the client wait meanwhile, since they share the connection, so of
    /// several acquires at the same time only one gets so long, the others an eighth of it, and 20 ms while the replicas
    /// are known to be away. [`Client::open`](crate::Client::open) refuses a server that does
    /// not know `WAIT`, and a user who may not call it (`+wait`, with `Majority` also `+role`). Not for the clients of a
    /// [`RedLock`](crate::RedLock). Default: [`ReplicaAck::None`].
    ///
    /// ```
    /// use redlatch::{Config, ReplicaAck};
    ///
    /// let config = Config::new("redis://127.0.0.1/").replica_ack(ReplicaAck::AtLeast(1));
    /// # let _ = config;
    /// ```
    #[must_use]
    pub fn replica_ack(mut self, replicas: ReplicaAck) -> Self {
        self.replica_ack = replicas;
        self
    }

    /// Sets the function that gives the user and the password, instead of the URL: for passwords that change.
    ///
    /// Called for every connection that is made, those of renewals and messages and to the nodes of a cluster included,
    /// on a thread of its own and with no lock held; several calls may run at the same time. Sentinels have the login
    /// that the URL gives them. An empty user logs in with the password alone. Return quickly, best from a cache: the
    /// call counts as part of connecting, so callers wait for it until the connect timeout or their own limit is over.
    /// What it returns later than that is used by the next attempt, which waits for it rather than call it again.
    ///
    /// An error makes the attempt to connect fail with [`Error::Redis`], is worth a retry like a server that is away,
    /// and is tried again as that is; a panic is not. Default: what the URL says.
    ///
    /// ```
    /// let config = redlatch::Config::new("redis://127.0.0.1/").credentials(|| {
    ///     let password = std::fs::read_to_string("/run/secrets/redis")?;
    ///     Ok(("locker".into(), password.trim_end().into()))
    /// });
    /// # let _ = config;
    /// ```
    #[must_use]
    pub fn credentials(
        mut self,
        ask: impl Fn()
            -> std::result::Result<(String, String), Box<dyn std::error::Error + Send + Sync>>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        self.credentials = Some(Arc::new(ask));
        self
    }

    /// Sets how old the login of a connection may become, for services that end connections after some time.
    ///
    /// After three quarters of it, [`Config::credentials`] are asked again for a new connection, which takes over once
    /// the replies over the old one have come. No call fails or is repeated, and what is held is kept. A failure is
    /// logged and tried again a few times; the old connection is used for as long as the server serves it. A client
    /// that has never locked anything has no thread that would do so.
    ///
    /// From a second to a year. Default: never.
    ///
    /// ```
    /// # use std::time::Duration;
    /// let config = redlatch::Config::new("redis://127.0.0.1/")
    ///     .credentials(|| Ok(("locker".into(), "secret".into())))
    ///     .reauth_after(Duration::from_secs(11 * 3600));
    /// # let _ = config;
    /// ```
    #[must_use]
    pub fn reauth_after(mut self, age: Duration) -> Self {
        self.reauth_after = Some(age);
        self
    }

    /// Has [`Client::open`](crate::Client::open) check the settings and not connect: the server may be away.
    ///
    /// The first call connects, as after a lost connection, and what keeps it from that is its error: a wrong password
    /// as well as a closed port. So a process can start while one of the masters of a [`RedLock`](crate::RedLock) is
    /// down. Not for a cluster, which says first who has what (name several of its nodes), nor with
    /// [`ReplicaAck::Majority`], which counts the replicas first. Default: `open` connects.
    ///
    /// ```
    /// let client = redlatch::Client::open(redlatch::Config::new("redis://127.0.0.1:1/").lazy())?;
    /// assert!(client.mutex("report").try_lock().is_err());
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn lazy(mut self) -> Self {
        self.lazy = true;
        self
    }

    /// Sets a listener that is called for every hold of this client that is lost.
    ///
    /// Calls come one after another, in order, on a thread that exists only while there is something to report; a
    /// listener that panics or blocks delays its later calls and nothing else. It must not own a handle of the client
    /// it listens to, or that client would never be dropped. Default: no listener.
    ///
    /// ```
    /// let config = redlatch::Config::new("redis://127.0.0.1/")
    ///     .on_lost(|loss| eprintln!("lost {}: {}", loss.name, loss.reason));
    /// # let _ = config;
    /// ```
    #[must_use]
    pub fn on_lost(mut self, listener: impl Fn(&Loss) + Send + Sync + 'static) -> Self {
        self.on_lost = Some(Arc::new(listener));
        self
    }

    /// Sets who hears what becomes of this client's locks, and of its servers: for metrics, traces and tests. See
    /// [`Observer`]. Default: nobody, which costs nothing.
    ///
    /// ```
    /// struct Losses;
    ///
    /// impl redlatch::Observer for Losses {
    ///     fn lost(&self, loss: &redlatch::Loss) {
    ///         eprintln!("lost {}: {}", loss.name, loss.reason);
    ///     }
    /// }
    ///
    /// let config = redlatch::Config::new("redis://127.0.0.1/").observer(Losses);
    /// # let _ = config;
    /// ```
    #[must_use]
    pub fn observer(mut self, observer: impl Observer + 'static) -> Self {
        self.observer = Observers::of(observer);
        self
    }

    /// Sets how connections are encrypted, for a URL with `rediss://`. With the feature `tls` only.
    ///
    /// Default: the server's certificate has to be for the host in the URL, by a CA that the system trusts.
    ///
    /// ```
    /// let tls = redlatch::TlsConfig::new().ca_file("/etc/redis/ca.pem");
    /// let config = redlatch::Config::new("rediss://redis.example:6380/").tls(tls);
    /// # let _ = config;
    /// ```
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls(mut self, tls: TlsConfig) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Checks every setting.
    ///
    /// # Errors
    ///
    /// [`Error::Config`], naming the setting.
    pub(crate) fn check(&self) -> Result<Server> {
        check_lease("lease", self.lease)?;
        for (setting, value) in [
            ("command_timeout", self.command_timeout),
            ("connect_timeout", self.connect_timeout),
        ] {
            if !(Duration::from_millis(10)..=Duration::from_secs(3600)).contains(&value) {
                return Err(Error::config(format!(
                    "{setting} {value:?} is not between 10 ms and an hour"
                )));
            }
        }
        if self.tenure > Duration::from_secs(1) {
            return Err(Error::config(format!(
                "tenure {:?} is longer than a second",
                self.tenure
            )));
        }
        if !(Duration::from_millis(100)..=Duration::from_secs(60)).contains(&self.waiter_lease) {
            return Err(Error::config(format!(
                "waiter_lease {:?} is not between 100 ms and 60 s",
                self.waiter_lease
            )));
        }
        if self.key_prefix.len() > 1024 {
            return Err(Error::config("key_prefix is longer than 1 KiB".into()));
        }
        if self.label.len() > 64 || !self.label.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(Error::config(
                "label is not printable ASCII without spaces of at most 64 bytes".into(),
            ));
        }
        let mut server = self.source.server()?;
        let is_cluster = matches!(server.deployment, Deployment::Cluster { .. });
        self.replica_ack.check(is_cluster)?;
        server.replica_ack = self.replica_ack;
        self.check_lazy(&server)?;
        let credentials = Credentials::of(self.credentials.as_ref(), self.reauth_after)?;
        if credentials.is_some() {
            if server.login.password.is_some() {
                let its = self.source.name();
                return Err(Error::config(format!(
                    "credentials: {its} has a password already; take it out of {its}"
                )));
            }
            server.login.asked = credentials;
        }
        #[cfg(feature = "tls")]
        let server = self.secure(server)?;
        Ok(server)
    }

    fn check_lazy(&self, server: &Server) -> Result<()> {
        let why = match &server.deployment {
            _ if !self.lazy => return Ok(()),
            Deployment::Cluster { .. } => {
                "a cluster says first who has what; several of its nodes in the URL make up for those that are away"
            }
            _ if self.replica_ack == ReplicaAck::Majority => {
                "ReplicaAck::Majority counts the replicas first; ReplicaAck::AtLeast does not"
            }
            _ => return Ok(()),
        };
        Err(Error::config(format!("lazy: {why}")))
    }

    #[cfg(feature = "tls")]
    fn secure(&self, mut server: Server) -> Result<Server> {
        let what = match &self.tls {
            Some(_) if !server.is_encrypted => {
                format!("{}, so nothing would be encrypted", self.source.is_plain())
            }
            None if self.source.has_sealed_tls() => {
                "the `tls_params` of the ConnectionInfo cannot be read outside of the redis crate; say with Config::tls which CA and which client certificate they have".into()
            }
            tls if server.is_encrypted => {
                server.tls = Some(tls.clone().unwrap_or_default().build()?);
                return Ok(server);
            }
            _ => return Ok(server),
        };
        Err(Error::config(format!("tls: {what}")))
    }
}

/// Checks a lease against [`MIN_LEASE`] and [`MAX_LEASE`].
pub(crate) fn check_lease(setting: &str, lease: Duration) -> Result<()> {
    if lease < MIN_LEASE || lease > MAX_LEASE {
        return Err(Error::config(format!(
            "{setting} {lease:?} is not between 10 ms and 100 years"
        )));
    }
    Ok(())
}

impl From<&str> for Config {
    fn from(url: &str) -> Self {
        Self::new(url)
    }
}

impl From<String> for Config {
    fn from(url: String) -> Self {
        Self::new(url)
    }
}

impl From<&String> for Config {
    fn from(url: &String) -> Self {
        Self::new(url.as_str())
    }
}

impl From<ConnectionInfo> for Config {
    /// [`Config::from_connection_info`] says what becomes of each part of it.
    fn from(info: ConnectionInfo) -> Self {
        Self::from_source(Source::Info(Box::new(info)))
    }
}

impl fmt::Debug for Config {
    /// Everything but where the servers are, which may carry a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("lease", &self.lease)
            .field("command_timeout", &self.command_timeout)
            .field("connect_timeout", &self.connect_timeout)
            .field("tenure", &self.tenure)
            .field("waiter_lease", &self.waiter_lease)
            .field("log_long_waits", &self.log_long_waits)
            .field("key_prefix", &self.key_prefix)
            .field("label", &self.label)
            .field("replica_ack", &self.replica_ack)
            .field("reauth_after", &self.reauth_after)
            .field("lazy", &self.lazy)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use proptest::prelude::*;
    use redis::RedisConnectionInfo;

    use crate::net::strange;

    /// What a program has for the client crate.
    fn known(settings: RedisConnectionInfo) -> Config {
        let info = ("127.0.0.1", 7000).into_connection_info();
        Config::from(info.expect("an address").set_redis_settings(settings))
    }

    fn span() -> impl Strategy<Value = Duration> {
        prop_oneof![
            (any::<u64>(), 0..1_000_000_000_u32)
                .prop_map(|(secs, nanos)| Duration::new(secs, nanos)),
            any::<u64>().prop_map(Duration::from_nanos),
            (0..100_000_u64).prop_map(Duration::from_millis),
            prop::sample::select(vec![Duration::ZERO, Duration::MAX, MIN_LEASE, MAX_LEASE]),
        ]
    }

    proptest! {
        #![proptest_config(strange::cases(512))]

        #[test]
        fn whatever_the_settings_are_they_are_accepted_or_one_of_them_is_named(
            (lease, response, connect, tenure, waiter, reauth) in (span(), span(), span(), span(), span(), prop::option::of(span())),
            prefix in any::<String>(),
            label in prop_oneof!["[!-~]{0,70}", any::<String>()],
            replicas in any::<u32>(),
        ) {
            const NAMES: [&str; 9] = [
                "lease", "command_timeout", "connect_timeout", "tenure", "waiter_lease", "key_prefix", "label",
                "reauth_after", "replica_ack",
            ];
            let mut config = Config::new("redis://127.0.0.1/")
                .lease(lease)
                .command_timeout(response)
                .connect_timeout(connect)
                .tenure(tenure)
                .waiter_lease(waiter)
                .key_prefix(prefix)
                .label(label)
                .replica_ack(ReplicaAck::AtLeast(replicas));
            if let Some(age) = reauth {
                config = config.credentials(|| Ok(("u".into(), "p".into()))).reauth_after(age);
            }
            match config.check() {
                Ok(_) => prop_assert!((MIN_LEASE..=MAX_LEASE).contains(&lease)),
                Err(Error::Config { what, .. }) => prop_assert!(NAMES.iter().any(|name| what.starts_with(name)), "{what}"),
                Err(other) => prop_assert!(false, "{other:?}"),
            }
        }
    }

    #[test]
    fn every_bad_setting_is_named() {
        let ok = || Config::new("redis://127.0.0.1/");
        let asking = |config: Config| config.credentials(|| Ok(("u".into(), "p".into())));
        let (zero, ms) = (Duration::ZERO, Duration::from_millis);
        for (config, named) in [
            (ok().lease(zero), "lease"),
            (ok().lease(Duration::MAX), "lease"),
            (ok().lease(Duration::from_micros(9_999)), "lease"),
            (ok().command_timeout(zero), "command_timeout"),
            (ok().connect_timeout(Duration::MAX), "connect_timeout"),
            (ok().tenure(Duration::from_secs(2)), "tenure"),
            (ok().waiter_lease(Duration::from_millis(99)), "waiter_lease"),
            (ok().waiter_lease(Duration::from_secs(61)), "waiter_lease"),
            (ok().label("a b"), "label"),
            (ok().replica_ack(ReplicaAck::AtLeast(0)), "replica_ack"),
            (ok().label("é"), "label"),
            (ok().key_prefix("x".repeat(2000)), "key_prefix"),
            (Config::new("http://127.0.0.1/"), "url"),
            (ok().reauth_after(ms(2000)), "reauth_after"),
            (asking(ok()).reauth_after(ms(999)), "reauth_after"),
            (asking(ok()).reauth_after(Duration::MAX), "reauth_after"),
            (
                asking(Config::new("redis://:secret@127.0.0.1/")),
                "credentials",
            ),
            (ok().replica_ack(ReplicaAck::Majority).lazy(), "lazy"),
            (Config::new("redis+cluster://127.0.0.1/").lazy(), "lazy"),
            #[cfg(feature = "tls")]
            (ok().tls(TlsConfig::new()), "tls: the URL"),
            #[cfg(feature = "tls")]
            (
                known(RedisConnectionInfo::default()).tls(TlsConfig::new()),
                "tls: the address",
            ),
            (
                known(RedisConnectionInfo::default().set_db(-1)),
                "connection_info",
            ),
            (
                asking(known(RedisConnectionInfo::default().set_password("p"))),
                "credentials: the ConnectionInfo",
            ),
        ] {
            match config.check() {
                Err(Error::Config { what, .. }) => assert!(what.starts_with(named), "{what}"),
                other => panic!("{named}: {:?}", other.map(|_| ())),
            }
        }
    }

    #[test]
    fn good_settings_are_accepted_and_passwords_never_shown() {
        let login = RedisConnectionInfo::default()
            .set_username("alice")
            .set_password("s ecret");
        for config in [
            Config::new("redis://alice:s%20ecret@[::1]:7000/3"),
            known(login),
        ] {
            let config = config.lease(MIN_LEASE).tenure(Duration::ZERO);
            assert!(config.check().is_ok());
            assert!(!format!("{config:?}").contains("ecret"));
        }
        let asking = known(RedisConnectionInfo::default());
        let asking = asking.credentials(|| Ok(("u".into(), "p".into())));
        assert!(asking.check().is_ok());
    }
}
