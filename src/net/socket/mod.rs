//! A socket with deadlines: made in time, and read and written in slices, so that no thread blocks in it for long.

mod aside;
mod connecting;
mod dial;
mod eviction;
mod greeting;
mod login;
mod opening;
mod reply;
mod resolve;
mod sentinel;
mod succession;
mod successor;
#[cfg(feature = "tls")]
mod tls;

use std::fmt;
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpStream};
#[cfg(unix)]
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use redis::io::tcp::socket2::SockRef;
use redis::{RedisError, RedisResult, Value};

use self::aside::Aside;
pub(crate) use self::connecting::{Connecting, connect};
pub(crate) use self::dial::Dialled;
use self::login::Logins;
#[cfg(feature = "cluster")]
pub(crate) use self::reply::LARGEST_MAP;
use self::resolve::Lookup;
use self::succession::Succession;
pub(crate) use self::successor::Successor;
#[cfg(feature = "tls")]
use self::tls::TlsStream;
use crate::config::replicas::ReplicaAck;
use crate::config::server::{Address, Deployment, Login, Server};
use crate::net::script_error;
use crate::report::report;

/// The name of connections for commands.
pub(crate) const COMMANDS: &str = "link";

/// How long [`Socket::write_all`] waits for any progress before it fails.
///
/// The commands of this crate are small. If a socket takes no bytes, the server does not read.
const WRITE_STALL: Duration = Duration::from_millis(100);

/// How long one write waits for space in the socket's buffer. The system rounds it up to a few milliseconds.
const WRITE_SLICE: Duration = Duration::from_millis(1);

/// How long [`Socket::write_some`] goes on while the socket takes bytes.
const WRITE_TURN: Duration = Duration::from_millis(5);

/// How many bytes are handed to the socket at once.
const CHUNK: usize = 64 * 1024;

/// How long a thread that makes a connection may block before it does its other work.
const CONNECT_SLICE: Duration = Duration::from_millis(5);

/// After how long without a sign of life a server that Sentinels have named is looked for again.
const FOUND_AGAIN: Duration = Duration::from_secs(5);

/// One server, for all connections of a client.
#[derive(Clone)]
pub(crate) struct Endpoint {
    pub(crate) server: Arc<Server>,
    /// Also of the other servers that are found through this one.
    lookups: Aside<Lookup>,
    logins: Logins,
    eviction: eviction::Answered,
    first_sentinel: Arc<sentinel::First>,
    /// Only with Sentinels.
    succession: Option<Arc<Succession>>,
    /// The most replicas that a connection has found a server to have.
    replicas: Arc<AtomicU32>,
    /// Whether it was found by asking, and has to say itself that it is a master.
    proves_master: bool,
}

impl Endpoint {
    pub(crate) fn new(server: Server) -> Self {
        Self {
            succession: Succession::of(&server.deployment),
            server: Arc::new(server),
            lookups: Aside::default(),
            logins: Logins::default(),
            eviction: eviction::Answered::default(),
            first_sentinel: Arc::default(),
            replicas: Arc::default(),
            proves_master: false,
        }
    }

    /// How many replicas have to acknowledge an acquire.
    pub(crate) fn replicas_needed(&self) -> u32 {
        self.server
            .replica_ack
            .needed(self.replicas.load(Ordering::Relaxed))
    }

    /// One node of a cluster, reached in the same way as the others.
    #[cfg(feature = "cluster")]
    pub(crate) fn node(&self, address: Address) -> Self {
        self.like(address)
    }

    /// One node of a cluster, to be asked about the others: it may be a replica.
    #[cfg(feature = "cluster")]
    pub(crate) fn witness(&self, address: Address) -> Self {
        let server = &self.server;
        self.other(address, server.login.clone(), server.db, ReplicaAck::None)
    }

    /// Another server of the same settings.
    fn like(&self, address: Address) -> Self {
        let server = &self.server;
        self.other(address, server.login.clone(), server.db, server.replica_ack)
    }

    /// Another server, reached and greeted in the same way.
    fn other(&self, address: Address, login: Login, db: i64, replica_ack: ReplicaAck) -> Self {
        Self {
            server: Arc::new(Server {
                deployment: Deployment::Single(address),
                is_encrypted: self.server.is_encrypted,
                #[cfg(feature = "tls")]
                tls: self.server.tls.clone(),
                login,
                db,
                label: self.server.label.clone(),
                replica_ack,
            }),
            succession: None,
            proves_master: false,
            ..self.clone()
        }
    }

    /// The server that was named as the master.
    fn master(&self, address: Address) -> Self {
        Self {
            proves_master: true,
            ..self.like(address)
        }
    }

    /// Whether a connection on which nothing was heard for so long is not to be trusted: the server was found by asking who
    /// is master. It may have been frozen, have a successor, and not know.
    pub(crate) fn is_to_be_found_again(&self, silent_for: Duration) -> bool {
        matches!(self.server.deployment, Deployment::Sentinel { .. }) && silent_for >= FOUND_AGAIN
    }

    /// Where to connect to.
    fn address(&self) -> io::Result<&Address> {
        match &self.server.deployment {
            Deployment::Single(address) if !self.server.is_encrypted || self.can_encrypt() => {
                Ok(address)
            }
            other => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                format!("no connection to {other}"),
            )),
        }
    }
}

impl Endpoint {
    #[cfg(feature = "tls")]
    fn can_encrypt(&self) -> bool {
        self.server.tls.is_some()
    }

    #[cfg(not(feature = "tls"))]
    fn can_encrypt(&self) -> bool {
        false
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

/// Called again and again while a thread waits in small slices, to do its other work. `false` ends the wait.
pub(crate) type Meanwhile<'a> = &'a mut dyn FnMut() -> bool;

/// A TCP or Unix socket, or an encrypted connection.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpStream),
    #[cfg(feature = "tls")]
    Tls(Box<TlsStream>),
    #[cfg(unix)]
    Unix(UnixStream),
}

impl Socket {
    fn set_read_timeout(&self, timeout: Duration) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.set_read_timeout(Some(timeout)),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.socket().set_read_timeout(Some(timeout)),
            #[cfg(unix)]
            Self::Unix(stream) => stream.set_read_timeout(Some(timeout)),
        }
    }

    fn set_write_timeout(&self, timeout: Duration) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.set_write_timeout(Some(timeout)),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.socket().set_write_timeout(Some(timeout)),
            #[cfg(unix)]
            Self::Unix(stream) => stream.set_write_timeout(Some(timeout)),
        }
    }

    /// Ends both directions, also for a thread that is reading; what was written before still arrives.
    pub(crate) fn shut_down(&self) {
        let ended = match self {
            Self::Tcp(stream) => stream.shutdown(std::net::Shutdown::Both),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => {
                stream.say_goodbye();
                stream.socket().shutdown(std::net::Shutdown::Both)
            }
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

    /// Writes what nothing follows, as far as the socket takes it now.
    pub(crate) fn write_last(&self, bytes: &[u8]) -> io::Result<()> {
        #[cfg(feature = "tls")]
        if let Self::Tls(stream) = self {
            return stream.write_last(bytes);
        }
        self.write_some(bytes).map(|_| ())
    }

    /// Writes what the socket takes now, for a few milliseconds at most, and says how many bytes that was. The others
    /// have to be offered again before any others are.
    pub(crate) fn write_some(&self, bytes: &[u8]) -> io::Result<usize> {
        #[cfg(feature = "tls")]
        if let Self::Tls(stream) = self {
            return stream.write_some(bytes);
        }
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
                    // Reads the clock only if one write was not enough.
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
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.write_some(bytes),
            #[cfg(unix)]
            Self::Unix(stream) => (&*stream).write(bytes),
        }
    }

    /// Whether the server has closed the connection, or sent something that nobody asked for. Never waits.
    ///
    /// Makes the socket non-blocking for a moment, so no other thread may be reading or writing.
    fn has_ended(&self) -> bool {
        let socket = match self {
            Self::Tcp(stream) => SockRef::from(stream),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => SockRef::from(stream.socket()),
            #[cfg(unix)]
            Self::Unix(stream) => SockRef::from(stream),
        };
        if socket.set_nonblocking(true).is_err() {
            return true;
        }
        let ended = match self {
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.has_ended(),
            _ => {
                let looked = socket.peek(&mut [MaybeUninit::uninit()]);
                !matches!(looked, Err(err) if err.kind() == io::ErrorKind::WouldBlock)
            }
        };
        socket.set_nonblocking(false).is_err() || ended
    }

    fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => (&*stream).read(buf),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.read(buf),
            #[cfg(unix)]
            Self::Unix(stream) => (&*stream).read(buf),
        }
    }

    /// The other end, of TCP.
    fn peer(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(stream) => stream.peer_addr().ok(),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.socket().peer_addr().ok(),
            #[cfg(unix)]
            Self::Unix(_) => None,
        }
    }

    #[cfg(feature = "tls")]
    fn is_encrypted(&self) -> bool {
        matches!(self, Self::Tls(_))
    }

    #[cfg(not(feature = "tls"))]
    fn is_encrypted(&self) -> bool {
        false
    }

    /// Why nothing more can be read, where that is known better than by the error of the read.
    #[cfg(feature = "tls")]
    fn failure(&self) -> Option<RedisError> {
        match self {
            Self::Tls(stream) => stream.failure(),
            _ => None,
        }
    }

    #[cfg(not(feature = "tls"))]
    fn failure(&self) -> Option<RedisError> {
        None
    }
}

/// The reading half of a connection.
pub(crate) struct Reader {
    stream: Arc<Socket>,
    replies: reply::Parser,
    timeout: Duration,
}

impl Reader {
    fn new(stream: Arc<Socket>) -> Self {
        Self {
            stream,
            replies: reply::Parser::default(),
            timeout: Duration::MAX,
        }
    }

    /// Whether the server has closed the connection. Never waits; nobody may be writing.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_unread() || self.stream.has_ended()
    }

    /// Whether more has come than was returned. If no reply is due, nobody has asked for it.
    pub(crate) fn has_unread(&self) -> bool {
        self.replies.has_unread()
    }

    /// Sets how much memory a reply may take.
    #[cfg(feature = "cluster")]
    pub(crate) fn limit(&mut self, limit: usize) {
        self.replies.limit(limit);
    }

    /// Reads one reply, or returns `None` if it was not complete after about `slice`.
    ///
    /// Reading an incomplete reply is continued by the next call. After an error the connection is of no use.
    pub(crate) fn read(&mut self, slice: Duration) -> RedisResult<Option<Value>> {
        self.read_from(Instant::now(), slice, &mut || {})
    }

    /// The same from `now` on. `before_read` runs before the thread may block.
    pub(crate) fn read_from(
        &mut self,
        now: Instant,
        slice: Duration,
        before_read: &mut dyn FnMut(),
    ) -> RedisResult<Option<Value>> {
        let slice = slice.max(Duration::from_millis(1));
        // The socket's timeout is changed only if it is far off, since that costs a system call.
        if self.timeout > slice || self.timeout * 8 < slice {
            self.stream.set_read_timeout(slice)?;
            self.timeout = slice;
        }
        let mut source = Sliced {
            stream: &self.stream,
            until: now + slice,
            has_read: false,
            before_read,
        };
        match self.replies.next(&mut source) {
            Ok(value) => Ok(Some(plain(value))),
            Err(err) if err.is_timeout() => Ok(None),
            Err(err) => Err(self.stream.failure().unwrap_or(err)),
        }
    }

    /// The next reply, if all of it has been read together with the one before.
    pub(crate) fn next_unread(&mut self) -> RedisResult<Option<Value>> {
        Ok(self.replies.take()?.map(plain))
    }
}

fn plain(value: Value) -> Value {
    match value {
        Value::ServerError(err) => Value::ServerError(script_error::plain(err)),
        value => value,
    }
}

/// Reads until its slice is over, however slowly the bytes come.
struct Sliced<'a> {
    stream: &'a Socket,
    until: Instant,
    has_read: bool,
    before_read: &'a mut dyn FnMut(),
}

impl Read for Sliced<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            (self.before_read)();
            // Reads the clock only if one read was not enough.
            if std::mem::replace(&mut self.has_read, true) && Instant::now() >= self.until {
                return Err(io::ErrorKind::WouldBlock.into());
            }
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
    /// When it logged in.
    pub(crate) since: Instant,
}

/// One reply of these bytes.
#[cfg(all(test, feature = "cluster"))]
pub(crate) fn parsed(mut bytes: &[u8], limit: usize) -> RedisResult<Value> {
    let mut parser = reply::Parser::default();
    parser.limit(limit);
    parser.next(&mut bytes)
}

pub(crate) fn timed_out(what: &'static str) -> RedisError {
    io::Error::new(io::ErrorKind::TimedOut, what).into()
}

/// There are more replies than commands, so none of those to come can be trusted.
pub(crate) fn unasked() -> RedisError {
    io::Error::new(io::ErrorKind::InvalidData, "a reply that nobody asked for").into()
}
