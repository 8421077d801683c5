//! The settings of a client, their defaults and their limits.

pub(crate) mod credentials;
pub(crate) mod replicas;
pub(crate) mod server;
#[cfg(feature = "tls")]
pub(crate) mod tls;

use std::fmt;
use std::ops::RangeInclusive;
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
use crate::time;

/// The shortest lease of a client or of a handle: 10 ms.
///
/// A delayed thread and the margin for clock drift would use up a shorter lease.
pub const MIN_LEASE: Duration = Duration::from_millis(10);

/// The longest lease of a client or of a handle: 100 years of 365 days.
pub const MAX_LEASE: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

pub(crate) type OnLost = Arc<dyn Fn(&Loss) + Send + Sync>;

/// The settings of a client: how to reach Redis, and how the client behaves.
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
///
/// A `Config` is made from a URL or from a
/// [`redis::ConnectionInfo`](https://docs.rs/redis/1/redis/struct.ConnectionInfo.html), and refined by the methods
/// below. [`Client::open`](crate::Client::open) checks it, and reports the first setting that cannot work as
/// [`Error::InvalidSetting`].
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
    pub(crate) on_lost: Option<OnLost>,
    pub(crate) observer: Observers,
    #[cfg(feature = "tls")]
    tls: Option<TlsConfig>,
}

impl Config {
    /// Returns the settings for the server at `url`, with defaults for all others.
    ///
    /// | the URL | leads to |
    /// | --- | --- |
    /// | `redis://[[user]:password@]host[:port][/db]` | one server over TCP |
    /// | `rediss://[[user]:password@]host[:port][/db]` | the same, encrypted with TLS (feature `tls`) |
    /// | `redis+unix:///path[?db=0&user=..&pass=..]` | one server over a Unix socket |
    /// | `redis+sentinel://[[user]:password@]host[:port],…/service[/db]` | the master that these Sentinels name |
    /// | `redis+cluster://[[user]:password@]host[:port],…[/db]` | the masters of the cluster that these nodes belong to |
    ///
    /// ```
    /// let config = redlatch::Config::new("redis+unix:///run/redis.sock?db=1");
    /// # let _ = config;
    /// ```
    ///
    /// `valkey` may stand for `redis`. `rediss+sentinel` and `rediss+cluster` encrypt. Users, passwords and the
    /// service are percent-decoded. The Sentinels' own user and password are
    /// `?sentinel_user=..&sentinel_password=..`; their port is 26379 unless given.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self::from_source(Source::Url(url.into()))
    }

    /// Returns the settings for one server, given in a form that the `redis` crate (version 1) takes: `(host, port)`,
    /// a `redis::ConnectionAddr` or a `redis::ConnectionInfo`.
    ///
    /// All other settings are at their defaults. [`Client::open`](crate::Client::open) also takes a
    /// `redis::ConnectionInfo` directly. For a URL use [`Config::new`]: it also takes Sentinels, clusters and TLS, and needs
    /// no feature of the `redis` crate.
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
    /// | part of a `ConnectionInfo` | effect |
    /// | --- | --- |
    /// | host and port, or the path of a Unix socket | used |
    /// | user, password, database | used; without user and password, [`Config::credentials`] may provide them |
    /// | protocol | must be RESP2 |
    /// | `ConnectionAddr::TcpTls` | encrypted with TLS, like `rediss://` (feature `tls`) |
    /// | its `insecure` | must be false, since certificates are always checked |
    /// | its `tls_params` | readable only by the `redis` crate; repeat these settings with `Config::tls` |
    /// | TCP settings | ignored: sockets have `TCP_NODELAY`, keepalive, and the timeouts of this `Config` |
    /// | name and version of the library | ignored, never sent; see [`Config::label`] |
    ///
    /// Settings that cannot be used make [`Client::open`](crate::Client::open) return [`Error::InvalidSetting`], as in a URL.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidSetting`] if the `redis` crate cannot make a `redis::ConnectionInfo` of `info`. Nothing is sent.
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

    /// Sets how long Redis keeps a hold or a permit that is not renewed. The client renews it every third of this time (a
    /// read hold at least every 10 s), unless its handle has a fixed lease.
    ///
    /// The lease is how long others wait after a holder's process has died; the work may take longer
    /// ([which lease to choose](crate::guide::recipes#which-lease-to-choose)).
    /// From 10 ms ([`MIN_LEASE`]) to 100 years ([`MAX_LEASE`]). Default: 30 s.
    ///
    /// ```
    /// let config = redlatch::Config::new("redis://127.0.0.1/").lease(std::time::Duration::from_secs(10));
    /// # let _ = config;
    /// ```
    ///
    /// Redisson calls this `lockWatchdogTimeout`.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Sets how long a call waits for Redis to answer, reconnecting included, before it returns [`Error::Redis`].
    ///
    /// If no reply arrives from the server for half of this time, in some cases sooner, the client replaces the connection
    /// and sends the command again, in such a way that it takes effect once. [Guarded commands](crate::MutexGuard::query)
    /// are not sent again. From 10 ms to an hour. Default: 3 s.
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

    /// Sets how long connecting may take: name resolution, TCP and the handshake with Redis together.
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

    /// Sets the tenure: how long threads of this process may pass a lock among themselves before other processes get
    /// their turn.
    ///
    /// A tenure begins when Redis grants the lock to this process, and goes on while its threads take the lock again and
    /// again. It ends after the time set here: the next thread that asks then lets other processes go first. It also ends
    /// when another process gets the lock, or when this process leaves it alone for a while (5 ms, or the time set here if
    /// that is longer).
    ///
    /// Zero offers the lock to other processes at every release. Fair locks are never passed on within a process. At most 1 s.
    /// Default: 5 ms.
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

    /// Sets how long a waiter of a fair lock keeps its place in the queue after its process has died.
    ///
    /// A living client confirms its places every third of this time, and removes dead waiters. So dead waiters delay
    /// living ones by at most four thirds of this time. A process that was stopped for longer may lose its places; its
    /// waiting threads then join the queue at its end. All clients of a name need the same value. From 100 ms to 60 s.
    /// Default: 3 s.
    ///
    /// ```
    /// let config = redlatch::Config::new("redis://127.0.0.1/").waiter_lease(std::time::Duration::from_secs(2));
    /// # let _ = config;
    /// ```
    ///
    /// In a read-write lock, Redis forgets a waiter whose last request is older than this. For how long a waiter has
    /// precedence, see [`RwLock`](crate::RwLock). Redisson's fair waiters stay for 300 s times their position.
    #[must_use]
    pub fn waiter_lease(mut self, lease: Duration) -> Self {
        self.waiter_lease = lease;
        self
    }

    /// Sets how long a thread waits before its wait is logged, at *info*.
    ///
    /// The record says which lock the thread waits for, and how much of the holder's lease is left if that is known.
    /// The wait is logged again whenever it has lasted twice as long: with 10 s, after 10, 20, 40 and 80 s. A record
    /// may come late, by up to a quarter of `after`. Zero turns this off. Default: 10 s.
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

    /// Sets a prefix for the Redis keys of all names, like Redisson's `NameMapper`.
    ///
    /// At most 1 KiB. Default: empty.
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

    /// Sets a label that operators see in the names of this client's connections.
    ///
    /// `CLIENT LIST` shows a connection as `redlatch:<id>:<host>:<pid>:<label>:<role>`, where the id is
    /// [`Client::id`](crate::Client::id). Printable ASCII without spaces, at most 64 bytes. Default: empty.
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

    /// Sets how many replicas must acknowledge an acquire, of a lock or of permits, before it succeeds.
    ///
    /// If too few acknowledge within at most a quarter of the command timeout, the lock or the permits are released and the
    /// call returns [`Error::NotReplicated`]. Default: [`ReplicaAck::None`].
    ///
    /// ```
    /// use redlatch::{Config, ReplicaAck};
    ///
    /// let config = Config::new("redis://127.0.0.1/").replica_ack(ReplicaAck::AtLeast(1));
    /// # let _ = config;
    /// ```
    ///
    /// The client's other commands wait too, since they share the connection. To limit that, not every acquire waits so
    /// long: once one was not acknowledged in time, each further acquire fails after 20 ms, until one is acknowledged. So
    /// do not use this setting with replicas that need 20 ms or more.
    ///
    /// [`Client::open`](crate::Client::open) rejects a server that does not know `WAIT`, and a user without the right to call
    /// it (`+wait`, with `Majority` also `+role`). Clients of a [`RedLock`](crate::RedLock) cannot use this setting.
    #[must_use]
    pub fn replica_ack(mut self, replicas: ReplicaAck) -> Self {
        self.replica_ack = replicas;
        self
    }

    /// Sets a function that returns user and password for each new connection, for passwords that change.
    ///
    /// The URL must then have no password. An empty user logs in with the password alone. Return quickly,
    /// best from a cache: the call is part of connecting, so callers wait for it until the connect timeout, the command
    /// timeout or their time limit is over, whichever is first.
    ///
    /// ```
    /// let config = redlatch::Config::new("redis://127.0.0.1/").credentials(|| {
    ///     let password = std::fs::read_to_string("/run/secrets/redis")?;
    ///     Ok(("locker".into(), password.trim_end().into()))
    /// });
    /// # let _ = config;
    /// ```
    ///
    /// The function is called for every connection, including those for renewals and messages and those to the nodes of
    /// a cluster, but not for Sentinels, whose login is in the URL. The function runs on a thread of its own, perhaps
    /// several times at once, while the client holds no internal mutex. If it returns too late for a `lock`, that `lock`
    /// fails. Connecting goes on, and a later `lock` can use the connection.
    ///
    /// If the function returns an error, the attempt to connect fails with [`Error::Redis`] and is retried, as if the
    /// server were unreachable. If the function panics, the calls that wait for the connection fail with an error that is not
    /// [retryable](Error::is_retryable). Default: the URL's user and password.
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
    /// After three quarters of this time, the client calls [`Config::credentials`], which has to be set too, and makes a new
    /// connection. From 1 s to a year. Default: never.
    ///
    /// ```
    /// # use std::time::Duration;
    /// let config = redlatch::Config::new("redis://127.0.0.1/")
    ///     .credentials(|| Ok(("locker".into(), "secret".into())))
    ///     .reauth_after(Duration::from_secs(11 * 3600));
    /// # let _ = config;
    /// ```
    ///
    /// The new connection takes over once all replies on the old one have arrived, so no call fails or is repeated, and
    /// all holds are kept. A failed login is logged and retried, at least once a minute; the old connection is used while
    /// the server serves it. A client that has never locked anything has no thread for this, and does not reconnect.
    #[must_use]
    pub fn reauth_after(mut self, age: Duration) -> Self {
        self.reauth_after = Some(age);
        self
    }

    /// Lets [`Client::open`](crate::Client::open) check the settings without connecting, so the server may be down.
    ///
    /// The first call connects, as after a lost connection. If that fails, the call returns the reason as its error,
    /// for a wrong password as well as for a closed port. So a process can start while one of the masters of a
    /// [`RedLock`](crate::RedLock) is down. Default: `open` connects.
    ///
    /// ```
    /// let client = redlatch::Client::open(redlatch::Config::new("redis://127.0.0.1:1/").lazy())?;
    /// assert!(client.mutex("report").try_lock().is_err());
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// Two settings exclude this one: a cluster, whose nodes must first say which slots they serve, and
    /// [`ReplicaAck::Majority`], which must first count the replicas. For a cluster, name several nodes in the URL: then one
    /// of them may be down.
    #[must_use]
    pub fn lazy(mut self) -> Self {
        self.lazy = true;
        self
    }

    /// Sets a listener that is called once for each lock that a thread loses, however often the thread has locked it.
    /// Threads that share a read hold count as one.
    ///
    /// When the listener is called, the name may be held again; [`Loss::owner`](crate::Loss::owner) says whose hold was
    /// lost. Most losses that only the release finds are reported too, but never those of the permits of a `Semaphore`, or
    /// of a [`RedLock`](crate::RedLock) whose guard is dropped.
    ///
    /// Calls come one after another, in order, on a thread that exists only while there is something to report. A
    /// listener that panics or blocks delays later calls and nothing else. A second call of this method replaces the first
    /// listener. Default: no listener.
    ///
    /// ```
    /// let config = redlatch::Config::new("redis://127.0.0.1/")
    ///     .on_lost(|loss| eprintln!("{loss}"));
    /// # let _ = config;
    /// ```
    ///
    /// The listener must not own a clone of its client: that client would never be dropped.
    #[must_use]
    pub fn on_lost(mut self, listener: impl Fn(&Loss) + Send + Sync + 'static) -> Self {
        self.on_lost = Some(Arc::new(listener));
        self
    }

    /// Sets an [`Observer`] of this client's locks and servers: for metrics, traces and tests.
    ///
    /// A second call of this method replaces the first observer. Default: no observer, at no cost.
    ///
    /// ```
    /// struct Losses;
    ///
    /// impl redlatch::Observer for Losses {
    ///     fn lost(&self, loss: &redlatch::Loss) {
    ///         eprintln!("{loss}");
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

    /// Sets how connections are encrypted, for a URL with `rediss://` (feature `tls`).
    ///
    /// Default: the server's certificate must be for the host in the URL, and issued by a CA that the system trusts.
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
    /// [`Error::InvalidSetting`], naming the setting.
    pub(crate) fn check(&self) -> Result<Server> {
        check_lease("lease", self.lease)?;
        check_timeout("command_timeout", self.command_timeout)?;
        check_timeout("connect_timeout", self.connect_timeout)?;
        if self.tenure > Duration::from_secs(1) {
            return Err(Error::setting(format!(
                "tenure {} is longer than a second",
                time::shown(self.tenure)
            )));
        }
        if !(Duration::from_millis(100)..=Duration::from_secs(60)).contains(&self.waiter_lease) {
            return Err(Error::setting(format!(
                "waiter_lease {} is not between 100 ms and 60 s",
                time::shown(self.waiter_lease)
            )));
        }
        if self.key_prefix.len() > 1024 {
            return Err(Error::setting("key_prefix is longer than 1 KiB".into()));
        }
        if self.label.len() > 64 || !self.label.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(Error::setting(
                "label has to be at most 64 bytes of printable ASCII without spaces".into(),
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
                let source = self.source.name();
                return Err(Error::setting(format!(
                    "credentials: {source} has a password already; remove it from {source}"
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
                "a client of a cluster has to ask which node has which slot first; name several nodes in the URL, since some may be unreachable"
            }
            _ if self.replica_ack == ReplicaAck::Majority => {
                "ReplicaAck::Majority has to count the replicas first; use ReplicaAck::AtLeast"
            }
            _ => return Ok(()),
        };
        Err(Error::setting(format!("lazy: {why}")))
    }

    #[cfg(feature = "tls")]
    fn secure(&self, mut server: Server) -> Result<Server> {
        let reason = match &self.tls {
            Some(_) if !server.is_encrypted => {
                format!("{}, so nothing would be encrypted", self.source.is_plain())
            }
            None if self.source.has_sealed_tls() => {
                "only the redis crate can read the `tls_params` of the ConnectionInfo; set their CA and client certificate with Config::tls".into()
            }
            tls if server.is_encrypted => {
                server.tls = Some(tls.clone().unwrap_or_default().build()?);
                return Ok(server);
            }
            _ => return Ok(server),
        };
        Err(Error::setting(format!("tls: {reason}")))
    }
}

/// The range of the command and connect timeouts.
pub(crate) const TIMEOUTS: RangeInclusive<Duration> =
    Duration::from_millis(10)..=Duration::from_secs(3600);

/// Checks a timeout against [`TIMEOUTS`].
pub(crate) fn check_timeout(setting: &str, timeout: Duration) -> Result<()> {
    if !TIMEOUTS.contains(&timeout) {
        return Err(Error::setting(format!(
            "{setting} {} is not between 10 ms and an hour",
            time::shown(timeout)
        )));
    }
    Ok(())
}

/// Checks a lease against [`MIN_LEASE`] and [`MAX_LEASE`].
pub(crate) fn check_lease(setting: &str, lease: Duration) -> Result<()> {
    if lease < MIN_LEASE || lease > MAX_LEASE {
        return Err(Error::setting(format!(
            "{setting} {} is not between 10 ms and 100 years",
            time::shown(lease)
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
    /// [`Config::from_connection_info`] lists the effect of each part.
    fn from(info: ConnectionInfo) -> Self {
        Self::from_source(Source::Info(Box::new(info)))
    }
}

impl fmt::Debug for Config {
    /// Omits the servers, since a URL may contain a password.
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
mod tests;
