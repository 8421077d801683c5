//! Connecting without blocking, to one address after the other.

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpStream};
#[cfg(unix)]
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use redis::io::tcp::socket2::{Domain, Protocol, Socket as RawSocket, Type};

use super::{CONNECT_SLICE, Meanwhile};

/// A TCP connection in the making, to one address after the other.
pub(super) struct Opening {
    addrs: VecDeque<SocketAddr>,
    /// The one that is tried, and until when.
    socket: Option<(RawSocket, Instant)>,
    failure: Option<io::Error>,
}

impl Opening {
    pub(super) fn new(addrs: Vec<SocketAddr>) -> Self {
        Self {
            addrs: addrs.into(),
            socket: None,
            failure: None,
        }
    }

    /// Connects without blocking, so that the thread can go on with its duties; `None` if that takes longer than `by`.
    pub(super) fn advance(
        &mut self,
        ends: Instant,
        by: Instant,
        meanwhile: Meanwhile<'_>,
    ) -> io::Result<Option<TcpStream>> {
        let mut nap = Duration::from_micros(50);
        loop {
            let now = Instant::now();
            let Some((socket, its_end)) = &self.socket else {
                let Some(addr) = self.addrs.pop_front() else {
                    return Err(self.failure.take().unwrap_or_else(|| {
                        io::Error::new(io::ErrorKind::NotFound, "the host has no address")
                    }));
                };
                // An address that never answers must leave time for the others.
                let left = u32::try_from(self.addrs.len() + 1).unwrap_or(u32::MAX);
                let its_end = now + ends.saturating_duration_since(now) / left;
                match begin_connecting(addr) {
                    Ok(socket) => self.socket = Some((socket, its_end)),
                    Err(err) => self.failure = Some(err),
                }
                continue;
            };
            if socket.peer_addr().is_ok() {
                socket.set_nonblocking(false)?;
                return Ok(self.socket.take().map(|(socket, _)| socket.into()));
            }
            let failure = match socket.take_error()? {
                None if now >= *its_end => Some(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "connecting took too long",
                )),
                failure => failure,
            };
            if failure.is_some() {
                self.failure = failure;
                self.socket = None;
                continue;
            }
            if now >= by || !meanwhile() {
                return Ok(None);
            }
            std::thread::sleep(nap.min(by - now));
            nap = (nap * 2).min(CONNECT_SLICE);
        }
    }
}

fn begin_connecting(addr: SocketAddr) -> io::Result<RawSocket> {
    let socket = RawSocket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    // Before the first byte: on a real network every second small write would wait for an acknowledgement.
    socket.set_tcp_nodelay(true)?;
    match socket.connect(&addr.into()) {
        Err(err) if has_failed(&err) => Err(err),
        _ => Ok(socket),
    }
}

/// Whether connecting has failed with this. Any other error may mean that it is under way: what says so, `EINPROGRESS`,
/// has another number on every system and no stable name in std.
fn has_failed(err: &io::Error) -> bool {
    use io::ErrorKind::{
        AddrInUse, AddrNotAvailable, ConnectionAborted, ConnectionRefused, ConnectionReset,
        HostUnreachable, InvalidInput, NetworkDown, NetworkUnreachable, NotFound, OutOfMemory,
        PermissionDenied, TimedOut, Unsupported,
    };
    matches!(
        err.kind(),
        AddrInUse
            | AddrNotAvailable
            | ConnectionAborted
            | ConnectionRefused
            | ConnectionReset
            | HostUnreachable
            | InvalidInput
            | NetworkDown
            | NetworkUnreachable
            | NotFound
            | OutOfMemory
            | PermissionDenied
            | TimedOut
            | Unsupported
    )
}

/// A local socket connects at once, or its queue is full: then it is tried again until the deadline.
#[cfg(unix)]
pub(super) fn open_unix(
    path: &std::path::Path,
    by: Instant,
    meanwhile: Meanwhile<'_>,
) -> io::Result<Option<UnixStream>> {
    use redis::io::tcp::socket2::SockAddr;
    let addr = SockAddr::unix(path)?;
    loop {
        let socket = RawSocket::new(Domain::UNIX, Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        match socket.connect(&addr) {
            Ok(()) => {
                socket.set_nonblocking(false)?;
                return Ok(Some(socket.into()));
            }
            Err(err) if err.kind() == io::ErrorKind::WouldBlock => {
                if Instant::now() >= by || !meanwhile() {
                    return Ok(None);
                }
                std::thread::sleep(CONNECT_SLICE);
            }
            Err(err) => return Err(err),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_failures_end_an_attempt_to_connect() {
        // What EINPROGRESS is somewhere.
        for number in [36, 115, 119, 149, 150] {
            let err = io::Error::from_raw_os_error(number);
            assert!(!has_failed(&err), "{number}: {err}");
        }
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let addr = listener.local_addr().expect("it is bound");
        let far = Instant::now() + Duration::from_secs(10);
        let open = || {
            let mut opening = Opening::new(vec![addr]);
            opening.advance(far, far, &mut || true)
        };
        assert!(matches!(open(), Ok(Some(_))));
        drop(listener);
        let refused = open().map(|_| ()).map_err(|err| err.kind());
        assert_eq!(refused, Err(io::ErrorKind::ConnectionRefused));
    }

    #[test]
    fn whichever_address_of_a_name_answers_is_used() {
        use std::net::TcpListener;
        let far = Instant::now() + Duration::from_secs(10);
        for own in ["127.0.0.1", "[::1]"] {
            let Ok(listener) = TcpListener::bind(format!("{own}:0")) else {
                continue; // a machine without IPv6
            };
            let addr = listener.local_addr().expect("it is bound");
            let others = ["127.0.0.2", "127.0.0.1", "[::1]"].into_iter();
            let others = others.filter(|other| *other != own);
            let others = others.map(|ip| format!("{ip}:{}", addr.port()).parse().expect("both"));
            for mut addrs in [others.collect::<Vec<_>>(), Vec::new()] {
                addrs.push(addr);
                let opened = Opening::new(addrs).advance(far, far, &mut || true);
                let stream = opened.expect("one answers").expect("in time");
                assert_eq!(stream.peer_addr().expect("it is connected"), addr);
            }
        }
    }
}
