//! One connection: made within a deadline, read in slices, so that no thread blocks in it for long.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
#[cfg(unix)]
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, TryRecvError};
use parking_lot::Mutex;
use redis::io::tcp::socket2::{Domain, Protocol, SockRef, Socket as RawSocket, Type};
use redis::{ErrorKind, RedisError, RedisResult, ServerErrorKind, Value};

use crate::config::server::{Address, Deployment, Server};
use crate::error::{is_crowded, is_transient};
use crate::net::request::Request;
use crate::report::report;

/// How long [`Socket::write_all`] may make no progress at all before the connection is given up.
///
/// The commands of this crate are small; a socket that takes none of them has a peer that reads nothing.
const WRITE_STALL: Duration = Duration::from_millis(100);

/// How long one write waits for space in the socket's buffer. The system rounds it up to a few milliseconds.
const WRITE_SLICE: Duration = Duration::from_millis(1);

/// How long [`Socket::write_some`] goes on while the socket takes bytes.
const WRITE_TURN: Duration = Duration::from_millis(5);

/// How many bytes are handed to the socket at once.
const CHUNK: usize = 64 * 1024;

/// How long a thread that makes a connection may neglect its other duties.
const CONNECT_SLICE: Duration = Duration::from_millis(5);

/// How old a connection in the making is when those that have time for it begin another.
const STALE: Duration = Duration::from_millis(250);

/// How long a server that is not ready is left alone before it is greeted again, over the same connection.
const GREET_AGAIN: Duration = Duration::from_millis(50);

/// How old the answer to a look-up may be that nobody has waited for.
const LOOKUP_AGE: Duration = Duration::from_secs(1);

/// One server, for all connections of a client.
#[derive(Clone)]
pub(crate) struct Endpoint {
    pub(crate) server: Arc<Server>,
    lookups: Lookups,
}

impl Endpoint {
    pub(crate) fn new(server: Server) -> Self {
        Self {
            server: Arc::new(server),
            lookups: Arc::default(),
        }
    }

    /// Where to connect to.
    fn address(&self) -> io::Result<&Address> {
        match &self.server.deployment {
            Deployment::Single(address) if !self.server.tls => Ok(address),
            other => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                format!("no connection to {other}"),
            )),
        }
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.server.fmt(f)
    }
}

impl fmt::Display for Endpoint {
    /// The address, as errors say it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.server.deployment.fmt(f)
    }
}

/// What a thread does while it waits in small slices: its other duties. `false` ends the wait.
pub(crate) type Meanwhile<'a> = &'a mut dyn FnMut() -> bool;

/// A TCP or Unix socket.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpStream),
    #[cfg(unix)]
    Unix(UnixStream),
}

impl Socket {
    fn set_read_timeout(&self, timeout: Duration) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.set_read_timeout(Some(timeout)),
            #[cfg(unix)]
            Self::Unix(stream) => stream.set_read_timeout(Some(timeout)),
        }
    }

    fn set_write_timeout(&self, timeout: Duration) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.set_write_timeout(Some(timeout)),
            #[cfg(unix)]
            Self::Unix(stream) => stream.set_write_timeout(Some(timeout)),
        }
    }

    /// Ends both directions, also for a thread that is reading; what was written before still arrives.
    pub(crate) fn shut_down(&self) {
        let ended = match self {
            Self::Tcp(stream) => stream.shutdown(std::net::Shutdown::Both),
            #[cfg(unix)]
            Self::Unix(stream) => stream.shutdown(std::net::Shutdown::Both),
        };
        if let Err(err) = ended {
            report!(Trace, "shutting a connection down: {err}");
        }
    }

    /// Writes all of `bytes`, waiting at most [`WRITE_STALL`] for any progress.
    pub(crate) fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        let mut stalls_until = None;
        while !bytes.is_empty() {
            let written = self.write_some(bytes)?;
            bytes = &bytes[written..];
            if written > 0 {
                stalls_until = None;
            } else if *stalls_until.get_or_insert_with(|| Instant::now() + WRITE_STALL)
                <= Instant::now()
            {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        Ok(())
    }

    /// Writes what the socket takes now, for a few milliseconds at most, and says how many bytes that was.
    pub(crate) fn write_some(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut written = 0;
        let mut turn_ends = None;
        while written < bytes.len() {
            let chunk = &bytes[written..bytes.len().min(written + CHUNK)];
            match self.write(chunk) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => {
                    written += n;
                    if n < chunk.len() {
                        break;
                    }
                    // The clock is looked at only when one write was not enough.
                    if written < bytes.len() {
                        let now = Instant::now();
                        if now >= *turn_ends.get_or_insert(now + WRITE_TURN) {
                            break;
                        }
                    }
                }
                Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
                Err(err)
                    if matches!(
                        err.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                    ) =>
                {
                    break;
                }
                Err(err) => return Err(err),
            }
        }
        Ok(written)
    }

    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => (&*stream).write(bytes),
            #[cfg(unix)]
            Self::Unix(stream) => (&*stream).write(bytes),
        }
    }

    /// Whether the peer has closed the connection, or has said what nobody asked for. Never waits.
    ///
    /// For a moment the socket is one that blocks nobody, so no other thread may be reading or writing.
    fn has_ended(&self) -> bool {
        let socket = match self {
            Self::Tcp(stream) => SockRef::from(stream),
            #[cfg(unix)]
            Self::Unix(stream) => SockRef::from(stream),
        };
        let looked = socket
            .set_nonblocking(true)
            .and_then(|()| socket.peek(&mut [MaybeUninit::uninit()]));
        let quiet = matches!(looked, Err(err) if err.kind() == io::ErrorKind::WouldBlock);
        socket.set_nonblocking(false).is_err() || !quiet
    }

    fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => (&*stream).read(buf),
            #[cfg(unix)]
            Self::Unix(stream) => (&*stream).read(buf),
        }
    }
}

/// The reading half of a connection.
pub(crate) struct Reader {
    stream: Arc<Socket>,
    parser: redis::Parser,
    timeout: Duration,
}

impl Reader {
    /// Whether the server has closed the connection. Never waits; nobody may be writing.
    pub(crate) fn has_ended(&self) -> bool {
        self.stream.has_ended()
    }

    /// Reads one reply, or returns `None` if it was not complete after about `slice`.
    ///
    /// `before_read` runs before the thread may block. An incomplete reply goes on where it stopped.
    pub(crate) fn read(
        &mut self,
        slice: Duration,
        before_read: &mut dyn FnMut(),
    ) -> RedisResult<Option<Value>> {
        let slice = slice.max(Duration::from_millis(1));
        // The socket's own timeout is changed only when it is far off, since that costs a system call.
        if self.timeout > slice || self.timeout * 8 < slice {
            self.stream.set_read_timeout(slice)?;
            self.timeout = slice;
        }
        let mut source = Sliced {
            stream: &self.stream,
            until: None,
            slice,
            before_read,
        };
        match self.parser.parse_value(&mut source) {
            Ok(value) => Ok(Some(value)),
            Err(err) if err.is_timeout() => Ok(None),
            Err(err) => Err(err),
        }
    }
}

/// A source that stops for good once its slice is over, however slowly the bytes trickle in.
struct Sliced<'a> {
    stream: &'a Socket,
    until: Option<Instant>,
    slice: Duration,
    before_read: &'a mut dyn FnMut(),
}

impl Read for Sliced<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        (self.before_read)();
        match self.until {
            // The clock is looked at only when one read was not enough.
            None => self.until = Some(Instant::now() + self.slice),
            Some(until) if Instant::now() >= until => return Err(io::ErrorKind::WouldBlock.into()),
            Some(_) => {}
        }
        loop {
            match self.stream.read(buf) {
                Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
                read => return read,
            }
        }
    }
}

/// A connection that has been greeted: both halves, for two threads.
pub(crate) struct Duplex {
    pub(crate) writer: Arc<Socket>,
    pub(crate) reader: Reader,
}

/// Connects, authenticates, selects the database, says who this is and waits for PONG, all by `deadline`.
///
/// `role` is the connection's name in `CLIENT LIST`; `meanwhile` is called every few milliseconds.
pub(crate) fn connect(
    endpoint: &Endpoint,
    role: &'static str,
    deadline: Instant,
    meanwhile: Meanwhile<'_>,
) -> RedisResult<Duplex> {
    match Dial::new(role, deadline).advance(endpoint, deadline, meanwhile)? {
        Dialled::Made(connection) => Ok(connection),
        Dialled::Unfinished(why) => Err(why),
    }
}

/// A connection in the making. What one thread has no time to finish the next goes on with, so that callers in a hurry
/// do not make a connection each while the server is slow.
pub(crate) struct Dial {
    role: &'static str,
    /// When it has taken so long that it has failed.
    ends: Instant,
    began: Instant,
    stage: Stage,
}

enum Stage {
    Resolving,
    Opening(Opening),
    Greeting(Box<Greeting>),
}

/// How far a connection has got.
pub(crate) enum Dialled {
    Made(Duplex),
    /// Not done by then; what it still waits for.
    Unfinished(RedisError),
}

impl Dial {
    pub(crate) fn new(role: &'static str, ends: Instant) -> Self {
        Self {
            role,
            ends,
            began: Instant::now(),
            stage: Stage::Resolving,
        }
    }

    /// Whether a caller with this deadline should begin a new connection: the server may have been away when this one was
    /// begun. Callers without time for that go on with this one, so that there are never many.
    pub(crate) fn is_stale(&self, until: Instant) -> bool {
        self.began.elapsed() >= STALE && until.saturating_duration_since(Instant::now()) >= STALE
    }

    /// Goes on until there is a connection, `until`, or `meanwhile` says to stop. An error is final.
    pub(crate) fn advance(
        &mut self,
        endpoint: &Endpoint,
        until: Instant,
        meanwhile: Meanwhile<'_>,
    ) -> RedisResult<Dialled> {
        let by = until.min(self.ends);
        loop {
            let waits_for = match &mut self.stage {
                Stage::Resolving => match endpoint.address()? {
                    Address::Tcp(host, port) => {
                        if let Some(addrs) = resolve(endpoint, host, *port, by, meanwhile)? {
                            self.stage = Stage::Opening(Opening {
                                addrs: addrs.into(),
                                socket: None,
                                failure: None,
                            });
                            continue;
                        }
                        timed_out("looking up the host took too long")
                    }
                    #[cfg(unix)]
                    Address::Unix(path) => {
                        if let Some(stream) = open_unix(path, by, meanwhile)? {
                            self.greet(endpoint, Socket::Unix(stream))?;
                            continue;
                        }
                        timed_out("connecting took too long")
                    }
                    #[cfg(not(unix))]
                    Address::Unix(_) => {
                        return Err(io::Error::from(io::ErrorKind::Unsupported).into());
                    }
                },
                Stage::Opening(opening) => {
                    if let Some(stream) = opening.advance(self.ends, by, meanwhile)? {
                        self.greet(endpoint, Socket::Tcp(stream))?;
                        continue;
                    }
                    timed_out("connecting took too long")
                }
                Stage::Greeting(greeting) => {
                    if greeting.advance(by, meanwhile)? {
                        let done = std::mem::replace(&mut self.stage, Stage::Resolving);
                        let Stage::Greeting(greeting) = done else {
                            continue;
                        };
                        return Ok(Dialled::Made(greeting.connection));
                    }
                    let why = greeting.why.clone();
                    why.unwrap_or_else(|| timed_out("redis did not answer the greeting in time"))
                }
            };
            return if Instant::now() < self.ends {
                Ok(Dialled::Unfinished(waits_for))
            } else {
                Err(waits_for)
            };
        }
    }

    fn greet(&mut self, endpoint: &Endpoint, stream: Socket) -> RedisResult<()> {
        let greeting = Greeting::new(endpoint, self.role, stream)?;
        self.stage = Stage::Greeting(Box::new(greeting));
        Ok(())
    }
}

/// One command of the greeting.
struct Step {
    what: &'static str,
    request: Request,
}

/// A connection whose first commands have been sent.
struct Greeting {
    connection: Duplex,
    /// What has not been answered.
    due: VecDeque<Step>,
    /// What the server was not ready for, to be sent again.
    postponed: VecDeque<Step>,
    greet_again_at: Instant,
    why: Option<RedisError>,
}

impl Greeting {
    fn new(endpoint: &Endpoint, role: &str, stream: Socket) -> RedisResult<Self> {
        stream.set_write_timeout(WRITE_SLICE)?;
        let writer = Arc::new(stream);
        let reader = Reader {
            stream: Arc::clone(&writer),
            parser: redis::Parser::new(),
            timeout: Duration::MAX,
        };
        let db = endpoint.server.db.to_string();
        let mut name = format!("redlatch-{role}");
        if !endpoint.server.label.is_empty() {
            name = format!("{name}:{}", endpoint.server.label);
        }
        let mut steps: Vec<Vec<&str>> = Vec::new();
        if let Some(password) = &endpoint.server.login.password {
            let mut auth = vec!["AUTH"];
            auth.extend(endpoint.server.login.username.as_deref());
            auth.push(password);
            steps.push(auth);
        }
        if endpoint.server.db != 0 {
            steps.push(vec!["SELECT", &db]);
        }
        steps.push(vec!["CLIENT", "SETNAME", &name]);
        steps.push(vec!["PING"]);
        let whats = ["AUTH", "SELECT", "CLIENT", "PING"];
        let step = |parts: &Vec<&str>| Step {
            what: whats
                .into_iter()
                .find(|what| *what == parts[0])
                .unwrap_or_default(),
            request: Request::command("greeting redis", parts),
        };
        let mut greeting = Self {
            connection: Duplex { writer, reader },
            due: VecDeque::new(),
            postponed: steps.iter().map(step).collect(),
            greet_again_at: Instant::now(),
            why: None,
        };
        greeting.send()?;
        Ok(greeting)
    }

    fn send(&mut self) -> io::Result<()> {
        let mut bytes = Vec::new();
        for step in &self.postponed {
            step.request.write(&mut bytes, false);
        }
        self.due.append(&mut self.postponed);
        self.connection.writer.write_all(&bytes)
    }

    /// Reads answers; whether all have come.
    fn advance(&mut self, by: Instant, meanwhile: Meanwhile<'_>) -> RedisResult<bool> {
        loop {
            let now = Instant::now();
            if self.due.is_empty() {
                if self.postponed.is_empty() {
                    return Ok(true);
                }
                if now >= self.greet_again_at {
                    self.send()?;
                }
            }
            let left = by.saturating_duration_since(now);
            if left.is_zero() || !meanwhile() {
                return Ok(false);
            }
            let slice = left.min(CONNECT_SLICE);
            if self.due.is_empty() {
                std::thread::sleep(slice);
                continue;
            }
            let Some(reply) = self.connection.reader.read(slice, &mut || {})? else {
                continue;
            };
            let Some(step) = self.due.pop_front() else {
                continue;
            };
            let Err(err) = reply.extract_error() else {
                continue;
            };
            match step.what {
                _ if is_crowded(&err) => return Err(err),
                // The name is a service to operators; a user that may not set it can still lock.
                "CLIENT" => report!(Debug, "naming a connection: {err}"),
                // The connection is usable all the same: a user without PING, a server that cannot write to its disk.
                "PING" if !keeps_out(&err) => {}
                // A server that is not ready yet needs time, and no other connection.
                _ if is_transient(&err) => {
                    self.greet_again_at = Instant::now() + GREET_AGAIN;
                    self.postponed.push_back(step);
                    self.why = Some(err);
                }
                _ => return Err(err),
            }
        }
    }
}

/// Whether a server that answers so would refuse everything else as well.
fn keeps_out(err: &RedisError) -> bool {
    let starting = matches!(
        err.kind(),
        ErrorKind::Server(ServerErrorKind::BusyLoading | ServerErrorKind::MasterDown)
    );
    starting || err.code() == Some("NOAUTH") || err.kind() == ErrorKind::AuthenticationFailed
}

pub(crate) fn timed_out(what: &'static str) -> RedisError {
    io::Error::new(io::ErrorKind::TimedOut, what).into()
}

/// A look-up of the host, and when its answer came.
type Lookup = Receiver<(Instant, io::Result<Vec<SocketAddr>>)>;

/// Look-ups that nobody waited to the end for; whoever connects next goes on with them.
type Lookups = Arc<Mutex<Vec<Lookup>>>;

/// The addresses of a host, if they are known by then. A name is looked up on a thread of its own, since nothing bounds
/// the system's resolver.
fn resolve(
    endpoint: &Endpoint,
    host: &str,
    port: u16,
    by: Instant,
    meanwhile: Meanwhile<'_>,
) -> io::Result<Option<Vec<SocketAddr>>> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(Some(vec![SocketAddr::new(ip, port)]));
    }
    let lookup = loop {
        let under_way = endpoint.lookups.lock().pop();
        let Some(lookup) = under_way else {
            break look_up(host, port)?;
        };
        match lookup.try_recv() {
            // By now the host may be elsewhere.
            Ok((at, _)) if at.elapsed() >= LOOKUP_AGE => {}
            Ok((_, found)) => return found.map(Some),
            Err(TryRecvError::Empty) => break lookup,
            Err(TryRecvError::Disconnected) => {}
        }
    };
    loop {
        match lookup.recv_timeout(CONNECT_SLICE) {
            Ok((_, found)) => return found.map(Some),
            Err(RecvTimeoutError::Disconnected) => {
                return Err(io::Error::other("looking up the host failed"));
            }
            Err(RecvTimeoutError::Timeout) if Instant::now() < by && meanwhile() => {}
            Err(RecvTimeoutError::Timeout) => {
                endpoint.lookups.lock().push(lookup);
                return Ok(None);
            }
        }
    }
}

fn look_up(host: &str, port: u16) -> io::Result<Lookup> {
    let (answer, lookup) = crossbeam_channel::bounded(1);
    let host = host.to_owned();
    std::thread::Builder::new()
        .name("redlatch-resolve".into())
        .spawn(move || {
            let found = (host.as_str(), port)
                .to_socket_addrs()
                .map(Iterator::collect);
            // Nobody listens any more once the client is gone.
            answer.send((Instant::now(), found)).unwrap_or_default();
        })?;
    Ok(lookup)
}

/// A TCP connection in the making, to one address after the other.
struct Opening {
    addrs: VecDeque<SocketAddr>,
    /// The one that is tried, and until when.
    socket: Option<(RawSocket, Instant)>,
    failure: Option<io::Error>,
}

impl Opening {
    /// Connects without blocking, so that the thread can go on with its duties; `None` if that takes longer than `by`.
    fn advance(
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
fn open_unix(
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
    fn an_answer_about_a_host_grows_old() {
        let server = Server::of("redis://localhost:7", String::new());
        let endpoint = Endpoint::new(server.expect("a good URL"));
        let elsewhere = vec![SocketAddr::from(([127, 9, 9, 9], 7))];
        let resolved = |answered_at| {
            let (answer, lookup) = crossbeam_channel::bounded(1);
            answer
                .send((answered_at, Ok(elsewhere.clone())))
                .expect("a free slot");
            endpoint.lookups.lock().push(lookup);
            let by = Instant::now() + Duration::from_secs(10);
            resolve(&endpoint, "localhost", 7, by, &mut || true)
                .expect("an answer")
                .expect("in time")
        };
        let now = Instant::now();
        assert_eq!(resolved(now), elsewhere);
        let before = now.checked_sub(2 * LOOKUP_AGE).expect("a clock that ran");
        let addrs = resolved(before);
        assert!(addrs.iter().all(|addr| addr.ip().is_loopback()));
        assert!(!addrs.contains(&elsewhere[0]), "{addrs:?}");
    }

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
            let mut opening = Opening {
                addrs: [addr].into(),
                socket: None,
                failure: None,
            };
            opening.advance(far, far, &mut || true)
        };
        assert!(matches!(open(), Ok(Some(_))));
        drop(listener);
        let refused = open().map(|_| ()).map_err(|err| err.kind());
        assert_eq!(refused, Err(io::ErrorKind::ConnectionRefused));
    }
}
