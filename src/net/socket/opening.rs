//! A socket to one of the addresses of a host, or to a local one.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use redis::RedisResult;
use redis::io::tcp::socket2::{SockRef, TcpKeepalive};

#[cfg(any(target_os = "android", target_os = "linux"))]
use super::REPLAY;
use super::dial::{Dial, SHARE};
use super::timed_out;

/// After this long without traffic, the system sends a keepalive packet. Without these packets, many firewalls forget a
/// connection that is idle for a minute or more.
const ALIVE: Duration = Duration::from_secs(15);

/// Looks a host up and connects to the first of its addresses that answers.
pub(super) fn open(host: &str, port: u16, dial: &mut Dial) -> RedisResult<TcpStream> {
    dial.set_reason(timed_out("looking up the host took too long"));
    let addrs = look_up(host, port, dial, || {
        Ok((host, port).to_socket_addrs()?.collect())
    })?;
    dial.set_reason(timed_out("connecting took too long"));
    open_one(&addrs, dial)
}

/// How many threads of a process look up the same host and port. Nothing ends a look-up before the resolver gives up, so
/// without a limit a program that opens client after client would collect threads.
const LOOK_UPS: usize = 4;

/// The look-ups under way. The key has the process id, since a fork copies the map but not the threads that it counts.
static LOOKED_UP: Mutex<BTreeMap<(u32, String, u16), LookUp>> = Mutex::new(BTreeMap::new());

#[derive(Default)]
struct LookUp {
    threads: usize,
    /// Receives the next answer, for the threads that wait. Every answer replaces this by a new, empty one.
    next: Arc<(Mutex<Option<Found>>, Condvar)>,
}

type Found = Result<Vec<SocketAddr>, (io::ErrorKind, String)>;

/// Asks the `resolver`; if [`LOOK_UPS`] threads already look up the same host and port, waits for the next answer instead.
/// The `resolver` must not panic: its thread would stay counted.
fn look_up(
    host: &str,
    port: u16,
    dial: &mut Dial,
    resolver: impl FnOnce() -> io::Result<Vec<SocketAddr>>,
) -> RedisResult<Vec<SocketAddr>> {
    let key = (std::process::id(), host.to_owned(), port);
    let mut all = LOOKED_UP.lock();
    let look_up = all.entry(key.clone()).or_default();
    let found = if look_up.threads < LOOK_UPS {
        look_up.threads += 1;
        drop(all);
        let found = dial.unbounded(resolver).map_err(|err| {
            let why = format!("the host was not found: {err}; check its name");
            (err.kind(), why)
        });
        let mut all = LOOKED_UP.lock();
        // Still the same entry: only the last counted thread removes it, and this one is counted.
        if let Entry::Occupied(mut entry) = all.entry(key) {
            entry.get_mut().threads -= 1;
            // All that wait now get this answer. Threads that come later wait for the next one.
            let told = std::mem::take(&mut entry.get_mut().next);
            if entry.get().threads == 0 {
                entry.remove();
            }
            *told.0.lock() = Some(found.clone());
            told.1.notify_all();
        }
        found
    } else {
        let next = Arc::clone(&look_up.next);
        drop(all);
        let mut found = next.0.lock();
        loop {
            // The answer is stored under this mutex, so either this thread finds it here, or it is notified later. Giving
            // an attempt up notifies nobody, so `left` is checked from time to time.
            if let Some(found) = &*found {
                break found.clone();
            }
            next.1.wait_for(&mut found, dial.left()?.min(SHARE));
        }
    };
    found.map_err(|(kind, why)| io::Error::new(kind, why).into())
}

fn open_one(addrs: &[SocketAddr], dial: &Dial) -> RedisResult<TcpStream> {
    let mut failure = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    for (n, addr) in addrs.iter().enumerate() {
        // An address that never answers must leave time for the others.
        let others = u32::try_from(addrs.len() - n).unwrap_or(u32::MAX);
        match connect(addr, dial.left()? / others) {
            Ok(stream) => return Ok(stream),
            Err(err) => failure = err,
        }
    }
    if failure.kind() == io::ErrorKind::TimedOut {
        return Err(timed_out("connecting took too long"));
    }
    Err(failure.into())
}

fn connect(addr: &SocketAddr, timeout: Duration) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(addr, timeout)?;
    prepare(&SockRef::from(&stream))?;
    Ok(stream)
}

/// Makes a socket that is connected ready for use.
fn prepare(socket: &SockRef<'_>) -> io::Result<()> {
    // If nobody listens at a local port, the system may give a socket that very port as its own, and connect it to itself.
    if socket.local_addr()?.as_socket() == socket.peer_addr()?.as_socket() {
        // Makes closing send a reset; otherwise the port would stay taken for a while.
        socket.set_linger(Some(Duration::ZERO))?;
        let reason = "no server listens there, and the socket was connected to itself";
        return Err(io::Error::new(io::ErrorKind::ConnectionRefused, reason));
    }
    // Without this option, a small write would wait on a real network until the one before is acknowledged.
    socket.set_tcp_nodelay(true)?;
    // Without this timeout Linux retransmits for some 15 minutes what a firewall drops. Other systems have no such option.
    #[cfg(any(target_os = "android", target_os = "linux"))]
    socket.set_tcp_user_timeout(Some(REPLAY)).ok();
    socket.set_tcp_keepalive(
        &TcpKeepalive::new()
            .with_time(ALIVE)
            .with_interval(ALIVE / 3),
    )
}

/// Connects to a local socket. This succeeds at once unless the server's queue is full; then it is tried again while there
/// is time.
#[cfg(unix)]
pub(super) fn open_unix(path: &std::path::Path, dial: &Dial) -> RedisResult<TcpStream> {
    use crate::net::back_off::BackOff;
    use redis::io::tcp::socket2::{Domain, SockAddr, Socket, Type};
    dial.set_reason(timed_out("connecting took too long"));
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    while let Err(err) = socket.connect(&SockAddr::unix(path)?) {
        if err.kind() != io::ErrorKind::WouldBlock {
            return Err(err.into());
        }
        std::thread::sleep(dial.left()?.min(BackOff::SERVER.first));
    }
    socket.set_nonblocking(false)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests;
