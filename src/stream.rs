//! One connection: made within a deadline, read in slices, so that no thread is ever lost in a socket.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
#[cfg(unix)]
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};
use parking_lot::Mutex;
use redis::io::tcp::socket2::{Domain, Protocol, Socket, Type};
use redis::{ConnectionAddr, ErrorKind, RedisError, RedisResult, ServerErrorKind, Value};

use crate::report::report;
use crate::script::Request;

/// How long a write may make no progress at all before the connection is given up.
///
/// The commands of this crate are small; a socket that takes none of them has a peer that reads nothing.
const WRITE_STALL: Duration = Duration::from_millis(100);

/// How long a thread that makes a connection may go without looking at anything else.
const CONNECT_SLICE: Duration = Duration::from_millis(5);

/// Where Redis is, and what it is told first.
#[derive(Clone)]
pub(crate) struct Endpoint {
    pub(crate) addr: ConnectionAddr,
    pub(crate) username: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) db: i64,
    pub(crate) label: String,
    pub(crate) lookups: Lookups,
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.addr, self.db)
    }
}

/// What a thread does while it waits in small slices: its other duties. `false` ends the wait.
pub(crate) type Meanwhile<'a> = &'a mut dyn FnMut() -> bool;

/// A TCP or Unix socket.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    #[cfg(unix)]
    Unix(UnixStream),
}

impl Stream {
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
    pub(crate) fn write_all(&self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => (&*stream).write_all(bytes),
            #[cfg(unix)]
            Self::Unix(stream) => (&*stream).write_all(bytes),
        }
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
    stream: Arc<Stream>,
    parser: redis::Parser,
    timeout: Duration,
}

impl Reader {
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
    stream: &'a Stream,
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
pub(crate) struct Connection {
    pub(crate) writer: Arc<Stream>,
    pub(crate) reader: Reader,
}

/// Connects, authenticates, selects the database, says who this is and waits for PONG, all by `deadline`.
///
/// `role` is the connection's name in `CLIENT LIST`; `meanwhile` is called every few milliseconds.
pub(crate) fn connect(
    endpoint: &Endpoint,
    role: &str,
    deadline: Instant,
    meanwhile: Meanwhile<'_>,
) -> RedisResult<Connection> {
    let writer = Arc::new(open(endpoint, deadline, meanwhile)?);
    writer.set_write_timeout(WRITE_STALL)?;
    let mut reader = Reader {
        stream: Arc::clone(&writer),
        parser: redis::Parser::new(),
        timeout: Duration::MAX,
    };

    let mut greeting = Vec::new();
    let db = endpoint.db.to_string();
    let mut name = format!("redlatch-{role}");
    if !endpoint.label.is_empty() {
        name = format!("{name}:{}", endpoint.label);
    }
    let mut steps: Vec<(&str, Vec<&str>)> = Vec::new();
    if let Some(password) = &endpoint.password {
        let mut auth = vec!["AUTH"];
        auth.extend(endpoint.username.as_deref());
        auth.push(password);
        steps.push(("AUTH", auth));
    }
    if endpoint.db != 0 {
        steps.push(("SELECT", vec!["SELECT", &db]));
    }
    steps.push(("CLIENT", vec!["CLIENT", "SETNAME", &name]));
    steps.push(("PING", vec!["PING"]));
    for (_, parts) in &steps {
        Request::command("greeting redis", parts).write(&mut greeting, false);
    }
    writer.write_all(&greeting)?;
    for (step, _) in &steps {
        let reply = loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || !meanwhile() {
                return Err(timed_out("redis did not answer the greeting in time"));
            }
            if let Some(reply) = reader.read(left.min(CONNECT_SLICE), &mut || {})? {
                break reply;
            }
        };
        match reply.extract_error() {
            Ok(_) => {}
            // The name is a service to operators; a user that may not set it can still lock.
            Err(err) if *step == "CLIENT" => report!(Debug, "naming a connection: {err}"),
            // It has been let in all the same: a user without PING, a server that cannot write to its disk.
            Err(err) if *step == "PING" && !keeps_out(&err) => {}
            Err(err) => return Err(err),
        }
    }
    Ok(Connection { writer, reader })
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

fn open(endpoint: &Endpoint, deadline: Instant, meanwhile: Meanwhile<'_>) -> RedisResult<Stream> {
    match &endpoint.addr {
        ConnectionAddr::Tcp(host, port) => {
            let mut last = None;
            let addrs = resolve(endpoint, host, *port, deadline, meanwhile)?;
            for (tried, addr) in addrs.iter().enumerate() {
                // An address that swallows everything must leave time for the others.
                let now = Instant::now();
                let left = u32::try_from(addrs.len() - tried).unwrap_or(u32::MAX);
                let its_deadline = now + deadline.saturating_duration_since(now) / left;
                match open_tcp(*addr, its_deadline, meanwhile) {
                    Ok(stream) => return Ok(Stream::Tcp(stream)),
                    Err(err) => last = Some(err),
                }
            }
            Err(last
                .unwrap_or_else(|| {
                    io::Error::new(io::ErrorKind::NotFound, "the host has no address")
                })
                .into())
        }
        #[cfg(unix)]
        ConnectionAddr::Unix(path) => Ok(Stream::Unix(open_unix(path, deadline, meanwhile)?)),
        other => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            format!("no connection to {other}"),
        )
        .into()),
    }
}

/// Look-ups of the host that nobody waited to the end for; whoever connects next goes on with them.
type Lookups = Arc<Mutex<Vec<Receiver<io::Result<Vec<SocketAddr>>>>>>;

/// The addresses of a host. A name is looked up on a thread of its own, since nothing bounds the system's resolver.
fn resolve(
    endpoint: &Endpoint,
    host: &str,
    port: u16,
    deadline: Instant,
    meanwhile: Meanwhile<'_>,
) -> io::Result<Vec<SocketAddr>> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let under_way = endpoint.lookups.lock().pop();
    let told = match under_way {
        Some(told) => told,
        None => {
            let (tell, told) = crossbeam_channel::bounded(1);
            let host = host.to_owned();
            std::thread::Builder::new()
                .name("redlatch-resolve".into())
                .spawn(move || {
                    let found = (host.as_str(), port)
                        .to_socket_addrs()
                        .map(Iterator::collect);
                    // Nobody listens any more once the client is gone.
                    tell.send(found).unwrap_or_default();
                })?;
            told
        }
    };
    loop {
        match told.recv_timeout(CONNECT_SLICE) {
            Ok(found) => return found,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(io::Error::other("looking up the host failed"));
            }
            Err(_) if Instant::now() < deadline && meanwhile() => {}
            Err(_) => {
                endpoint.lookups.lock().push(told);
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "looking up the host took too long",
                ));
            }
        }
    }
}

/// Connects without blocking, so that the thread can go on with its duties.
fn open_tcp(
    addr: SocketAddr,
    deadline: Instant,
    meanwhile: Meanwhile<'_>,
) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    // Before the first byte: on a real network every second small write would wait for an acknowledgement.
    socket.set_tcp_nodelay(true)?;
    if let Err(err) = socket.connect(&addr.into()) {
        let under_way =
            err.kind() == io::ErrorKind::WouldBlock || err.raw_os_error() == Some(EINPROGRESS);
        if !under_way {
            return Err(err);
        }
        let mut nap = Duration::from_micros(50);
        while socket.peer_addr().is_err() {
            if let Some(err) = socket.take_error()? {
                return Err(err);
            }
            if Instant::now() >= deadline || !meanwhile() {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "connecting took too long",
                ));
            }
            std::thread::sleep(nap);
            nap = (nap * 2).min(CONNECT_SLICE);
        }
    }
    socket.set_nonblocking(false)?;
    Ok(socket.into())
}

/// `EINPROGRESS`, which std has no stable name for: the answer of Linux (115) and of the BSDs and macOS (36).
const EINPROGRESS: i32 = if cfg!(any(target_os = "linux", target_os = "android")) {
    115
} else {
    36
};

/// A local socket connects at once, or its queue is full: then it is tried again until the deadline.
#[cfg(unix)]
fn open_unix(
    path: &std::path::Path,
    deadline: Instant,
    meanwhile: Meanwhile<'_>,
) -> io::Result<UnixStream> {
    use redis::io::tcp::socket2::SockAddr;
    let addr = SockAddr::unix(path)?;
    loop {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        match socket.connect(&addr) {
            Ok(()) => {
                socket.set_nonblocking(false)?;
                return Ok(socket.into());
            }
            Err(err) if err.kind() == io::ErrorKind::WouldBlock => {
                if Instant::now() >= deadline || !meanwhile() {
                    return Err(io::Error::new(
                        io::ErrorKind::TimedOut,
                        "connecting took too long",
                    ));
                }
                std::thread::sleep(CONNECT_SLICE);
            }
            Err(err) => return Err(err),
        }
    }
}
