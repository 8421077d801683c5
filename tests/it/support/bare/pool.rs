//! Servers that one test after another uses, because starting a server takes longer than most tests.
//!
//! A test has its server to itself, and what it did is undone afterwards. A server with changes that cannot be undone,
//! or with remaining connections, is not reused.

use std::io::{self, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Mutex;

use redis::{Connection, RedisResult};

use super::deployment::Deployment;
use super::process::locked;
use super::server::try_connection_to;
use super::wait::{ms, within};

/// A server's process and folder.
pub(crate) struct Process {
    pub(crate) child: Child,
    pub(crate) dir: tempfile::TempDir,
    pub(crate) port: u16,
    /// The port for TLS connections, if there is one.
    pub(crate) tls_port: Option<u16>,
    /// The arguments with which the server was started.
    pub(crate) args: Vec<String>,
}

/// How many idle servers are kept, which is more than one test uses.
const MOST: usize = 24;

static IDLE: Mutex<Vec<(Deployment, Process)>> = Mutex::new(Vec::new());

/// A Sentinel changes nothing in the server itself, so such servers share the pool of single ones.
fn kind(deployment: Deployment) -> Deployment {
    match deployment {
        Deployment::Sentinel => Deployment::Single,
        other => other,
    }
}

/// Takes a clean server out of the pool, if there is one.
pub(crate) fn take(deployment: Deployment) -> Option<Process> {
    let mut all = locked(&IDLE);
    let at = all
        .iter()
        .position(|(known, _)| *known == kind(deployment))?;
    Some(all.swap_remove(at).1)
}

/// Keeps a server for the next test; returns it if the pool is full.
pub(crate) fn give(deployment: Deployment, server: Process) -> Option<Process> {
    let mut all = locked(&IDLE);
    if all.len() >= MOST {
        return Some(server);
    }
    all.push((kind(deployment), server));
    None
}

/// Removes all data from a server; false if that is not possible.
pub(crate) fn clean(url: &str) -> bool {
    let Ok(mut con) = try_connection_to(url) else {
        return false;
    };
    is_unchanged(&mut con).unwrap_or(false)
        && within(ms(300), || is_alone(&mut con).unwrap_or(false))
        && forget(&mut con).is_ok()
}

/// Whether the server has executed only commands whose effects [`forget`] undoes, according to its statistics.
fn is_unchanged(con: &mut Connection) -> RedisResult<bool> {
    const LASTING: [&str; 17] = [
        "acl|",
        "client|kill",
        "client|pause",
        "cluster",
        "config|rewrite",
        "config|set",
        "debug",
        "failover",
        "function|",
        "module",
        "monitor",
        "psync",
        "replconf",
        "replicaof",
        "shutdown",
        "slaveof",
        "swapdb",
    ];
    let stats: String = redis::cmd("INFO").arg("commandstats").query(con)?;
    let done = |line: &str| {
        let name = line.strip_prefix("cmdstat_").unwrap_or_default();
        LASTING.iter().any(|lasting| name.starts_with(lasting)) && !name.starts_with("cluster|slots:")
            // The first `CONFIG RESETSTAT` is that of [`forget`].
            || name.starts_with("config|resetstat") && !name.contains(":calls=1,")
    };
    Ok(!stats.lines().any(done))
}

fn is_alone(con: &mut Connection) -> RedisResult<bool> {
    let clients: String = redis::cmd("CLIENT").arg("LIST").query(con)?;
    Ok(clients.lines().count() == 1)
}

fn forget(con: &mut Connection) -> RedisResult<()> {
    redis::pipe()
        .cmd("FLUSHALL")
        .cmd("SCRIPT")
        .arg("FLUSH")
        .cmd("CONFIG")
        .arg("RESETSTAT")
        .exec(con)
}

/// A helper process that kills all servers when this process ends in any way. Statics such as the pool have no
/// destructors, so nothing else would end the idle servers.
const KEEPER: &str = r#"
all=
while read -r what server; do
  case $what in
    +) all="$all $server ";;
    -) all="${all%% "$server" *} ${all#* "$server" }";;
  esac
done
for server in $all; do
  kill -9 "${server%%:*}" && rm -rf "${server#*:}"
done 2>/dev/null
"#;

static ORDERS: Mutex<Option<ChildStdin>> = Mutex::new(None);

/// Registers a server to be killed when this process ends.
pub(crate) fn watch(pid: u32, dir: &Path) -> io::Result<()> {
    order("+", pid, dir)
}

/// Removes the registration. Call this before the server is reaped, since another process may get its id afterwards.
pub(crate) fn unwatch(pid: u32, dir: &Path) -> io::Result<()> {
    order("-", pid, dir)
}

fn order(sign: &str, pid: u32, dir: &Path) -> io::Result<()> {
    let mut orders = locked(&ORDERS);
    if orders.is_none() {
        let keeper = Command::new("sh")
            .args(["-c", KEEPER])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        *orders = keeper.stdin;
    }
    match orders.as_mut() {
        Some(orders) => writeln!(orders, "{sign} {pid}:{}", dir.display()),
        None => Ok(()),
    }
}
