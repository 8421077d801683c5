//! Servers that are used again, one test after another: to start one costs more than most tests.
//!
//! A test has its server for itself. What it did is undone afterwards, and a server to which more was done than can be
//! undone, or that somebody is still connected to, is not used again.

use std::io::{self, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Mutex;

use redis::{Connection, RedisResult};

use super::deployment::Deployment;
use super::process::locked;
use super::server::try_connection_to;
use super::wait::{ms, within};

/// The process and folder of a server.
pub(crate) struct Process {
    pub(crate) child: Child,
    pub(crate) dir: tempfile::TempDir,
    pub(crate) port: u16,
    /// Where it listens for encrypted connections, if it does.
    pub(crate) tls_port: Option<u16>,
    /// What it was started with.
    pub(crate) args: Vec<String>,
}

/// More than any one test uses.
const MOST: usize = 24;

static IDLE: Mutex<Vec<(Deployment, Process)>> = Mutex::new(Vec::new());

/// The server itself does not know whether a Sentinel names it.
fn kind(deployment: Deployment) -> Deployment {
    match deployment {
        Deployment::Sentinel => Deployment::Single,
        its => its,
    }
}

/// A server as good as new, if there is one.
pub(crate) fn take(deployment: Deployment) -> Option<Process> {
    let mut all = locked(&IDLE);
    let at = all.iter().position(|(its, _)| *its == kind(deployment))?;
    Some(all.swap_remove(at).1)
}

/// Keeps a server for the next test, or returns it if there are enough.
pub(crate) fn give(deployment: Deployment, server: Process) -> Option<Process> {
    let mut all = locked(&IDLE);
    if all.len() >= MOST {
        return Some(server);
    }
    all.push((kind(deployment), server));
    None
}

/// Makes a server forget everything, and says whether it could.
pub(crate) fn clean(url: &str) -> bool {
    let Ok(mut con) = try_connection_to(url) else {
        return false;
    };
    is_unchanged(&mut con).unwrap_or(false)
        && within(ms(300), || is_alone(&mut con).unwrap_or(false))
        && forget(&mut con).is_ok()
}

/// Whether nothing was done to it but what [`forget`] undoes: it counts its commands.
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
            // Once by [`forget`].
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

/// A process that ends all servers when this one has ended, however that came about: nothing else would end those that
/// wait for another test, and no destructor runs then.
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

/// Has a server ended with this process.
pub(crate) fn watch(pid: u32, dir: &Path) -> io::Result<()> {
    order("+", pid, dir)
}

/// Has it left alone; to be called before its process id can be that of another process.
pub(crate) fn unwatch(pid: u32, dir: &Path) -> io::Result<()> {
    order("-", pid, dir)
}

fn order(what: &str, pid: u32, dir: &Path) -> io::Result<()> {
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
        Some(orders) => writeln!(orders, "{what} {pid}:{}", dir.display()),
        None => Ok(()),
    }
}
