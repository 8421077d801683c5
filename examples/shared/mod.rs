//! What every example needs: a server of its own, and processes that end with it.

use std::error::Error;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, thread};

pub(crate) type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// A process that does not outlive its owner.
pub(crate) struct Ours(pub(crate) Child);

impl Drop for Ours {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Keeps a private server and its folder for as long as it lives; nothing, if the user has given one.
pub(crate) type Keeper = Option<(Ours, tempfile::TempDir)>;

/// The server of `REDIS_URL`, or else a private one on a Unix socket in a temporary folder: no port, no file kept,
/// nobody else's keys.
pub(crate) fn redis_server() -> Result<(Keeper, String)> {
    if let Ok(url) = env::var("REDIS_URL") {
        return Ok((None, url));
    }
    let dir = tempfile::tempdir()?;
    let socket = dir.path().join("redis.sock");
    let server = Command::new("redis-server")
        .args(["--port", "0", "--save", "", "--unixsocket"])
        .arg(&socket)
        .stdout(Stdio::null())
        .spawn()
        .map_err(|err| format!("redis-server: {err}; install it, or set REDIS_URL"))?;
    let server = Ours(server);
    let url = format!("redis+unix://{}", socket.display());
    let until = Instant::now() + Duration::from_secs(10);
    while connect(&url).is_err() {
        if Instant::now() > until {
            return Err("redis-server does not answer".into());
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok((Some((server, dir)), url))
}

pub(crate) fn connect(url: &str) -> Result<redis::Connection> {
    Ok(redis::Client::open(url)?.get_connection()?)
}

pub(crate) fn check(what: &str, right: bool) -> bool {
    if !right {
        println!("WRONG, since it should be that {what}");
    }
    right
}
