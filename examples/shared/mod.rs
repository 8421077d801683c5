//! Shared by the examples: a private server, and child processes that end with the example.

#![allow(dead_code, reason = "each example uses a part")]

use std::error::Error;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, thread};

pub(crate) type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// A child process that is killed when this value is dropped.
pub(crate) struct Ours(pub(crate) Child);

impl Drop for Ours {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Ours {
    pub(crate) fn kill(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// A private server on a Unix socket in a temporary folder: it needs no port, keeps no file and touches nobody's keys.
pub(crate) struct Server {
    process: Ours,
    folder: tempfile::TempDir,
}

impl Server {
    pub(crate) fn start() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let process = spawn(&socket(&folder))?;
        let server = Self { process, folder };
        server.wait()?;
        Ok(server)
    }

    pub(crate) fn url(&self) -> String {
        format!("redis+unix://{}", socket(&self.folder).display())
    }

    pub(crate) fn kill(&mut self) {
        self.process.kill();
    }

    /// Restarts the server without its data.
    pub(crate) fn start_again(&mut self) -> Result<()> {
        self.kill();
        self.process = spawn(&socket(&self.folder))?;
        self.wait()
    }

    fn wait(&self) -> Result<()> {
        let until = Instant::now() + Duration::from_secs(10);
        while connect(&self.url()).is_err() {
            if Instant::now() > until {
                return Err("redis-server does not answer".into());
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

fn socket(folder: &tempfile::TempDir) -> PathBuf {
    folder.path().join("redis.sock")
}

fn spawn(socket: &PathBuf) -> Result<Ours> {
    let binary = env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned());
    let server = Command::new(&binary)
        .args(["--port", "0", "--save", "", "--unixsocket"])
        .arg(socket)
        .stdout(Stdio::null())
        .spawn()
        .map_err(|err| format!("{binary}: {err}; install it, or set REDIS_URL"))?;
    Ok(Ours(server))
}

/// The URL in `REDIS_URL`, or else that of a private server, which ends when the returned `Server` is dropped.
pub(crate) fn redis_server() -> Result<(Option<Server>, String)> {
    if let Ok(url) = env::var("REDIS_URL") {
        return Ok((None, url));
    }
    let server = Server::start()?;
    let url = server.url();
    Ok((Some(server), url))
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
