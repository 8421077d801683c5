//! A Redis server that one test at a time uses.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{LazyLock, Mutex};
use std::time::{Duration, Instant};
use std::{env, fmt, fs, io, thread};

use nix::sys::signal;
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use redis::{Connection, FromRedisValue, RedisResult, Value};

use super::deployment::{Deployment, Services, deployment};
use super::pool::{self, Process};
use super::process::free_port;
use super::proxy::{Proxy, contains, spawn};
use super::wait::{GENEROUS, eventually, ms};

/// The timeout of commands that the helpers here send.
pub(crate) const ANSWER: Duration = Duration::from_secs(5);

/// The server under test: `REDIS_SERVER`, or the `redis-server` in the path.
static BINARY: LazyLock<String> =
    LazyLock::new(|| env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned()));

/// The version of the server, for instance `7.0.15`.
static VERSION: LazyLock<String> = LazyLock::new(|| {
    let said = Command::new(&*BINARY).arg("--version").output();
    let said = said.unwrap_or_else(|err| panic!("{}: {err}", *BINARY));
    let said = String::from_utf8_lossy(&said.stdout);
    let version = said.split(' ').find_map(|word| word.strip_prefix("v="));
    version.expect("a version").to_owned()
});

/// Whether the server lacks features of Redis 7.0 that tests use: settings, ACL selectors, statistics of subcommands.
pub(crate) fn is_redis_6() -> bool {
    VERSION.starts_with("6.")
}

/// Whether a shard has a name in `nodes.conf`, as of Redis 7.2.
pub(crate) fn names_shards() -> bool {
    !is_redis_6() && !VERSION.starts_with("7.0.")
}

/// Reports on stderr that a test, or a part of it, does not run against this server. The harness does not capture this
/// line.
pub(crate) fn skipped(what: &str, why: &str) {
    writeln!(io::stderr(), "skipped: {what}: {why}").expect("stderr");
}

/// The arguments of a cluster node.
const NODE: [&str; 2] = ["--cluster-enabled", "yes"];

/// The arguments that set the announced port of a replica and of a cluster node.
pub(super) const ANNOUNCED: [&str; 2] = ["--replica-announce-port", "--cluster-announce-port"];

/// The first argument of a Sentinel.
pub(crate) const SENTINEL: &str = "--sentinel";

/// A line of `CLIENT LIST`, with the fields that tests use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClientLine {
    pub(crate) id: u64,
    pub(crate) name: String,
    pub(crate) flags: String,
    /// The number of subscriptions, including sharded ones.
    pub(crate) subscriptions: u64,
    /// The last command, for instance `client|list`.
    pub(crate) cmd: String,
    /// The whole line.
    pub(crate) line: String,
}

impl ClientLine {
    fn parse(line: &str) -> Self {
        let field = |wanted: &str| {
            line.split(' ')
                .filter_map(|pair| pair.split_once('='))
                .find_map(|(name, value)| (name == wanted).then(|| value.to_owned()))
                .unwrap_or_default()
        };
        Self {
            id: field("id").parse().expect("a client has an id"),
            name: field("name"),
            flags: field("flags"),
            subscriptions: ["sub", "ssub"]
                .map(|kind| field(kind).parse().unwrap_or(0))
                .iter()
                .sum(),
            cmd: field("cmd"),
            line: line.to_owned(),
        }
    }
}

/// The library's connections in `list` that have this role, or all of the library's if `role` is empty.
pub(crate) fn clients_named(list: &str, role: &str) -> impl Iterator<Item = ClientLine> {
    list.lines()
        .filter(|line| !line.is_empty())
        .map(ClientLine::parse)
        .filter(move |client| match client.name.strip_prefix("redlatch:") {
            Some(rest) => role.is_empty() || rest.rsplit(':').next() == Some(role),
            None => false,
        })
}

/// A private `redis-server` on a loopback port and a Unix socket. Dropping it kills the process or leaves it to another
/// test.
///
/// If the test panics, the server's log goes to stderr. Helpers that send commands keep one connection, since many tests
/// ask every few milliseconds, and open another once that is closed, so that they work across [`restart`](Self::restart).
pub(crate) struct Server {
    /// `None` only during the drop.
    process: Option<Process>,
    alive: bool,
    /// Whether the server returns to the pool afterwards.
    lasts: AtomicBool,
    /// How clients reach the server.
    deployment: Deployment,
    services: Services,
    /// The connection of the helpers, while none uses it.
    kept: Mutex<Option<Connection>>,
}

impl Server {
    /// An empty server that accepts commands, from the pool or new. Clients reach it as `REDIS_DEPLOYMENT` says.
    pub(crate) fn start() -> Self {
        Self::start_as(deployment())
    }

    /// An empty server with this deployment, whatever `REDIS_DEPLOYMENT` says.
    pub(crate) fn start_as(deployment: Deployment) -> Self {
        let start = || match deployment {
            #[cfg(feature = "tls")]
            Deployment::Tls => Self::start_tls(&super::authority().issue(&["127.0.0.1"]), &[]),
            Deployment::Cluster => Self::start_cluster(),
            _ => Self::start_with(&[]),
        };
        let mut server = pool::take(deployment).map_or_else(start, Self::of);
        server.deployment = deployment;
        // Redis 6 has no statistics of subcommands, so the pool cannot tell which settings a test changed.
        server.lasts.store(!is_redis_6(), Ordering::Relaxed);
        server
    }

    /// A new server with additional arguments, which no other test uses.
    pub(crate) fn start_with(args: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a directory for the server");
        Self::start_in(dir, args, false)
    }

    /// A new server that also accepts TLS connections, on a second port, with `identity` as its certificate.
    #[cfg(feature = "tls")]
    pub(crate) fn start_tls(identity: &super::Identity, args: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a directory for the server");
        let mut all = args.to_vec();
        let tls = tls_args(dir.path(), identity);
        all.extend(tls.iter().map(String::as_str));
        if !args.contains(&"--tls-auth-clients") {
            all.extend(["--tls-auth-clients", "no"]);
        }
        Self::start_in(dir, &all, true)
    }

    fn start_in(mut dir: tempfile::TempDir, args: &[&str], tls: bool) -> Self {
        let until = Instant::now() + GENEROUS;
        loop {
            match Self::start_at(dir, free_port(), tls.then(free_port), args) {
                Ok(server) => return server,
                Err((err, back)) => {
                    assert!(Instant::now() < until, "redis-server: {err}");
                    dir = back;
                }
            }
        }
    }

    /// Starts a server in `dir`, which may contain files for it, on the given ports. If the server does not answer, for
    /// instance because another process took a port, the error returns the folder.
    pub(crate) fn start_at(
        dir: tempfile::TempDir,
        port: u16,
        tls_port: Option<u16>,
        args: &[&str],
    ) -> Result<Self, (io::Error, tempfile::TempDir)> {
        let mut args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
        if let Some(port) = tls_port {
            args.extend(["--tls-port".to_owned(), port.to_string()]);
        }
        let child = match launch(dir.path(), port, &args) {
            Ok(child) => child,
            Err(err) => return Err((err, dir)),
        };
        pool::watch(child.id(), dir.path()).expect("a keeper");
        let mut server = Self::of(Process {
            child,
            dir,
            port,
            tls_port,
            args,
        });
        if tls_port.is_some() {
            server.deployment = Deployment::Tls;
        }
        Ok(server)
    }

    /// A new server that announces the port of a proxy in front of it.
    pub(crate) fn start_behind_proxy(args: &[&str]) -> (Self, Proxy) {
        let until = Instant::now() + GENEROUS;
        loop {
            let dir = tempfile::tempdir().expect("a directory for the server");
            let port = free_port();
            let proxy = Proxy::start(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
            let announced = proxy.port().to_string();
            let args = [args, &[ANNOUNCED[0], &announced]].concat();
            match Self::start_at(dir, port, None, &args) {
                Ok(server) => return (server, proxy),
                Err((err, _)) => assert!(Instant::now() < until, "redis-server: {err}"),
            }
        }
    }

    /// A cluster of one node, which owns every slot.
    pub(crate) fn start_cluster() -> Self {
        let server = Self::start_with(&NODE);
        let slots = (0..16_384).map(|slot| slot.to_string());
        let command: Vec<_> = ["CLUSTER".to_owned(), "ADDSLOTS".to_owned()]
            .into_iter()
            .chain(slots)
            .collect();
        server.cli(&command.iter().map(String::as_str).collect::<Vec<_>>());
        eventually("the cluster is up", || {
            server.try_ask::<u64>(&["DEL", "a"]).is_ok()
        });
        server.cli(&["CONFIG", "RESETSTAT"]);
        server
    }

    fn of(process: Process) -> Self {
        Self {
            process: Some(process),
            alive: true,
            lasts: AtomicBool::new(false),
            deployment: Deployment::Single,
            services: Services::default(),
            kept: Mutex::default(),
        }
    }

    fn process(&self) -> &Process {
        self.process.as_ref().expect("a server until its end")
    }

    fn dir(&self) -> &Path {
        self.process().dir.path()
    }

    pub(crate) fn port(&self) -> u16 {
        self.process().port
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port()))
    }

    pub(crate) fn deployment(&self) -> Deployment {
        self.deployment
    }

    pub(crate) fn is_tls(&self) -> bool {
        self.deployment == Deployment::Tls
    }

    /// The address to which clients connect: the TLS port if there is one.
    pub(crate) fn client_addr(&self) -> SocketAddr {
        SocketAddr::from((
            Ipv4Addr::LOCALHOST,
            self.process().tls_port.unwrap_or(self.port()),
        ))
    }

    /// The port of the proxy that the server announces, if there is one.
    pub(crate) fn announced_port(&self) -> Option<u16> {
        let args = &self.process().args;
        let announced = args.windows(2).find(|two| ANNOUNCED.contains(&&*two[0]))?;
        Some(announced[1].parse().expect("a port"))
    }

    /// The URL for clients that reach the server at `addr`, directly or through a proxy.
    pub(crate) fn client_url_at(&self, addr: SocketAddr) -> String {
        match self.deployment {
            Deployment::Single => format!("redis://{addr}/"),
            Deployment::Tls => format!("rediss://{addr}/"),
            Deployment::Sentinel => self.services.url(self, addr),
            Deployment::Cluster => format!("redis+cluster://{addr}/"),
        }
    }

    pub(crate) fn client_url(&self) -> String {
        self.client_url_at(self.client_addr())
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port())
    }

    /// The URL of the server's Unix socket.
    pub(crate) fn unix_url(&self) -> String {
        format!("redis+unix://{}", socket_path(self.dir()).display())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process().child.id()
    }

    /// The contents of the server's log.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(log_path(self.dir())).unwrap_or_default()
    }

    /// Replaces the server's certificate, as of the next [`restart`](Self::restart).
    #[cfg(feature = "tls")]
    pub(crate) fn become_known_as(&self, identity: &super::Identity) {
        identity.write_to(self.dir(), &super::authority().pem());
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.alive
    }

    /// Sends SIGKILL; returns once the process is gone and its port closed.
    pub(crate) fn kill(&mut self) {
        if self.alive {
            self.lasts.store(false, Ordering::Relaxed);
            pool::unwatch(self.pid(), self.dir()).expect("the keeper listens");
            let child = &mut self.process.as_mut().expect("a server until its end").child;
            child.kill().expect("SIGKILL");
            child.wait().expect("a killed child ends");
            self.alive = false;
        }
    }

    /// Kills the server and starts it again on the same port with the same arguments. Without persistence the new
    /// process is empty.
    pub(crate) fn restart(&mut self) {
        self.kill();
        let until = Instant::now() + GENEROUS;
        loop {
            match launch(self.dir(), self.port(), &self.process().args) {
                Ok(child) => {
                    pool::watch(child.id(), self.dir()).expect("a keeper");
                    self.process.as_mut().expect("a server until its end").child = child;
                    self.alive = true;
                    return;
                }
                Err(err) => assert!(Instant::now() < until, "redis-server again: {err}"),
            }
            thread::sleep(ms(20));
        }
    }

    /// Removes the saved data of a killed server, so that it starts empty.
    pub(crate) fn lose_data(&self) {
        assert!(!self.alive, "a running server would save the data again");
        fs::remove_dir_all(self.dir().join("appendonlydir")).ok();
        for file in ["appendonly.aof", "dump.rdb"] {
            fs::remove_file(self.dir().join(file)).ok();
        }
    }

    /// Sends SIGSTOP. Connections stay open and the kernel still accepts new ones, but nothing is answered.
    pub(crate) fn freeze(&self) {
        self.lasts.store(false, Ordering::Relaxed);
        self.signal(Signal::SIGSTOP);
        // The signal is asynchronous: wait until `/proc` shows the process as stopped.
        let stat = format!("/proc/{}/stat", self.pid());
        if Path::new(&stat).exists() {
            eventually("the server is stopped", || {
                fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") T "))
            });
        }
    }

    /// Sends SIGCONT, after [`freeze`](Self::freeze).
    pub(crate) fn thaw(&self) {
        self.signal(Signal::SIGCONT);
    }

    fn signal(&self, signal: Signal) {
        assert!(self.alive, "no server to signal");
        let pid = i32::try_from(self.pid()).expect("a pid is an i32");
        signal::kill(Pid::from_raw(pid), signal).expect("our child takes our signals");
    }

    /// A new connection with timeouts of 5 s.
    pub(crate) fn connection(&self) -> Connection {
        connection_to(&self.url())
    }

    /// Sends one command.
    ///
    /// # Panics
    ///
    /// If the server is unreachable or rejects the command.
    #[track_caller]
    pub(crate) fn cli(&self, command: &[&str]) -> Value {
        self.ask(command)
    }

    /// Sends one command; returns the reply as the type that the caller chooses.
    #[track_caller]
    pub(crate) fn ask<T: FromRedisValue>(&self, command: &[&str]) -> T {
        match self.try_ask(command) {
            Ok(reply) => reply,
            Err(err) => panic!("{command:?}: {err}"),
        }
    }

    /// [`ask`](Self::ask) that returns a rejection as an error.
    pub(crate) fn try_ask<T: FromRedisValue>(&self, command: &[&str]) -> RedisResult<T> {
        let mut cmd = redis::cmd(command[0]);
        cmd.arg(&command[1..]);
        let kept = self.kept.lock().expect("a kept connection").take();
        let ask = |mut con: Connection| {
            let reply = cmd.query(&mut con);
            // After a timeout the reply may still come.
            if !matches!(&reply, Err(err) if err.is_io_error()) {
                *self.kept.lock().expect("a kept connection") = Some(con);
            }
            reply
        };
        if let Some(con) = kept {
            match ask(con) {
                Err(err) if err.is_connection_dropped() => {}
                reply => return reply,
            }
        }
        ask(try_connection_to(&self.url())?)
    }

    /// The integer stored under `key`; 0 if the key does not exist.
    #[track_caller]
    pub(crate) fn get_int(&self, key: &str) -> i64 {
        self.ask::<Option<i64>>(&["GET", key]).unwrap_or(0)
    }

    #[track_caller]
    pub(crate) fn exists(&self, key: &str) -> bool {
        self.ask(&["EXISTS", key])
    }

    /// The remaining milliseconds of `key`; -1 without a TTL, -2 if the key does not exist.
    #[track_caller]
    pub(crate) fn pttl(&self, key: &str) -> i64 {
        self.ask(&["PTTL", key])
    }

    /// The fields and values of a hash, sorted.
    #[track_caller]
    pub(crate) fn hgetall(&self, key: &str) -> Vec<(String, String)> {
        let mut fields: Vec<(String, String)> = self.ask(&["HGETALL", key]);
        fields.sort();
        fields
    }

    #[track_caller]
    pub(crate) fn dbsize(&self) -> u64 {
        self.ask(&["DBSIZE"])
    }

    /// All keys, sorted.
    #[track_caller]
    pub(crate) fn keys(&self) -> Vec<String> {
        let mut keys: Vec<String> = self.ask(&["KEYS", "*"]);
        keys.sort();
        keys
    }

    /// All keys except those that make a request such as `force_unlock` count once, which expire by themselves.
    #[track_caller]
    pub(crate) fn keys_but_requests(&self) -> Vec<String> {
        let mut keys = self.keys();
        keys.retain(|key| !key.contains(":request:"));
        keys
    }

    /// Channels with subscribers, including sharded ones, except that of the Sentinel.
    #[track_caller]
    pub(crate) fn channels(&self) -> Vec<String> {
        let mut channels: Vec<String> = self.ask(&["PUBSUB", "CHANNELS"]);
        channels.retain(|channel| channel != "__sentinel__:hello");
        if self.deployment == Deployment::Cluster && !is_redis_6() {
            channels.extend(self.ask::<Vec<String>>(&["PUBSUB", "SHARDCHANNELS"]));
        }
        channels
    }

    /// The connections with this role, or all of the library's if `role` is empty.
    #[track_caller]
    pub(crate) fn clients_named(&self, role: &str) -> Vec<ClientLine> {
        let list: String = self.ask(&["CLIENT", "LIST"]);
        clients_named(&list, role).collect()
    }

    /// Sends `CLIENT KILL` for the connections with this role; returns how many there were.
    #[track_caller]
    pub(crate) fn kill_clients_named(&self, role: &str) -> usize {
        let mut con = self.connection();
        self.clients_named(role)
            .into_iter()
            .filter(|client| {
                let killed: u64 = redis::cmd("CLIENT")
                    .arg("KILL")
                    .arg("ID")
                    .arg(client.id)
                    .query(&mut con)
                    .expect("CLIENT KILL");
                killed == 1
            })
            .count()
    }

    /// Waits until `n` replicas acknowledge a write to `key`, which is deleted again.
    ///
    /// A replica that is reported as online has the data, but acknowledges up to a second late until its command stream
    /// has begun.
    pub(crate) fn is_acknowledged_by(&self, n: usize, key: &str) {
        eventually("replicas acknowledge", || {
            let acked: RedisResult<(usize,)> = redis::pipe()
                .cmd("INCR")
                .arg(key)
                .ignore()
                .cmd("DEL")
                .arg(key)
                .ignore()
                .cmd("WAIT")
                .arg(n)
                .arg(1000)
                .query(&mut self.connection());
            acked.is_ok_and(|(acked,)| acked == n)
        });
    }

    /// How often the server ran `command` since it started, including calls by scripts; `client|list` names a
    /// subcommand.
    ///
    /// `evalsha` counts scripts, whether they were sent by `EVAL` or `EVALSHA`.
    #[track_caller]
    pub(crate) fn calls(&self, command: &str) -> u64 {
        let wanted = command.to_lowercase();
        self.command_stats()
            .into_iter()
            .filter(|(name, _)| *name == wanted || wanted == "evalsha" && name == "eval")
            .map(|(_, calls)| calls)
            .sum()
    }

    /// How many commands the server ran, including calls by scripts. Commands that open a connection, test it or inspect
    /// the server are left out: the connection for messages opens in the background, at a time of its own.
    #[track_caller]
    pub(crate) fn command_total(&self) -> u64 {
        const ASIDE: [&str; 11] = [
            "acl", "auth", "client", "cluster", "command", "config", "hello", "info", "latency",
            "ping", "select",
        ];
        self.command_stats()
            .into_iter()
            .filter(|(name, _)| {
                let command = name.split('|').next().unwrap_or_default();
                !ASIDE.contains(&command)
            })
            .map(|(_, calls)| calls)
            .sum()
    }

    fn command_stats(&self) -> Vec<(String, u64)> {
        let stats: String = self.ask(&["INFO", "commandstats"]);
        stats
            .lines()
            .filter_map(|line| {
                let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
                let (calls, _) = rest.split_once(',')?;
                Some((name.to_owned(), calls.parse().ok()?))
            })
            .collect()
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Server({}, pid {})", self.url(), self.pid())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.services.forget();
        self.kept.lock().expect("a kept connection").take();
        let lasts = self.alive && self.lasts.load(Ordering::Relaxed) && !thread::panicking();
        if lasts && pool::clean(&self.unix_url()) {
            let process = self.process.take();
            self.process = process.and_then(|process| pool::give(self.deployment, process));
            if self.process.is_none() {
                return;
            }
        }
        if self.alive {
            self.thaw();
            self.kill();
        }
        if thread::panicking() {
            eprintln!("--- log of {self:?}\n{}---", self.log());
        }
    }
}

/// A connection to `url` with timeouts of 5 s.
#[track_caller]
pub(crate) fn connection_to(url: &str) -> Connection {
    match try_connection_to(url) {
        Ok(con) => con,
        Err(err) => panic!("connecting to {url}: {err}"),
    }
}

/// [`connection_to`] that returns a failure as an error.
pub(crate) fn try_connection_to(url: &str) -> RedisResult<Connection> {
    let con = redis::Client::open(url)?.get_connection_with_timeout(ANSWER)?;
    con.set_read_timeout(Some(ANSWER))?;
    con.set_write_timeout(Some(ANSWER))?;
    Ok(con)
}

/// Writes the certificate and key of `identity` into the server's folder; returns the arguments that name the files.
#[cfg(feature = "tls")]
pub(crate) fn tls_args(dir: &Path, identity: &super::Identity) -> [String; 6] {
    let files = identity.write_to(dir, &super::authority().pem());
    let [ca, certificate, key] =
        [files.ca, files.certificate, files.key].map(|path| path.display().to_string());
    [
        "--tls-ca-cert-file".to_owned(),
        ca,
        "--tls-cert-file".to_owned(),
        certificate,
        "--tls-key-file".to_owned(),
        key,
    ]
}

fn log_path(dir: &Path) -> PathBuf {
    dir.join("log")
}

fn socket_path(dir: &Path) -> PathBuf {
    dir.join("sock")
}

/// Starts the process and waits until it answers on its Unix socket, which no other server can own.
fn launch(dir: &Path, port: u16, args: &[String]) -> io::Result<Child> {
    let socket = socket_path(dir);
    if socket.exists() {
        fs::remove_file(&socket)?;
    }
    // Redis 6 always allows `DEBUG`.
    let allow_debug: &[&str] = if is_redis_6() {
        &[]
    } else {
        &["--enable-debug-command", "local"]
    };
    let mut command = Command::new(&*BINARY);
    if args.first().is_some_and(|first| first == SENTINEL) {
        // A Sentinel saves its state in this file.
        let config = dir.join("sentinel.conf");
        fs::write(&config, "")?;
        command.arg(config);
    }
    let mut child = command
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
        .args(["--save", "", "--appendonly", "no"])
        .args(allow_debug)
        .arg("--dir")
        .arg(dir)
        .arg("--logfile")
        .arg(log_path(dir))
        .arg("--unixsocket")
        .arg(&socket)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let until = Instant::now() + GENEROUS;
    loop {
        if answers_ping(&socket) {
            return Ok(child);
        }
        if let Some(status) = child.try_wait()? {
            let log = fs::read_to_string(log_path(dir)).unwrap_or_default();
            return Err(io::Error::other(format!("{status}, having logged\n{log}")));
        }
        if Instant::now() >= until {
            child.kill()?;
            child.wait()?;
            return Err(io::ErrorKind::TimedOut.into());
        }
        thread::sleep(ms(3));
    }
}

/// Any reply counts: a server that is loading or requires a password is also up.
fn answers_ping(socket: &Path) -> bool {
    let ask = || -> io::Result<bool> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(ANSWER))?;
        stream.write_all(b"PING\r\n")?;
        let mut first = [0];
        stream.read_exact(&mut first)?;
        Ok(matches!(first[0], b'+' | b'-'))
    };
    ask().unwrap_or(false)
}

/// Waits until the server has no keys.
#[track_caller]
pub(crate) fn nothing_is_left(server: &Server) {
    eventually("nothing is left", || server.keys().is_empty());
}
