//! A socket with deadlines: made in time, and read and written in slices, so that no thread blocks in it for long.

mod connecting;
pub(in crate::net) mod dial;
mod eviction;
mod greeting;
mod login;
mod opening;
mod reply;
mod server_kind;
#[cfg(feature = "tls")]
mod tls;

use std::collections::HashMap;
use std::fmt;
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use redis::io::tcp::socket2::SockRef;
use redis::{RedisError, RedisResult, Value};

pub(in crate::net) use self::connecting::connect_to;
pub(crate) use self::dial::DialProgress;
use self::dial::SHARE;
pub(crate) use self::reply::{LARGEST_MAP, TOO_LARGE};
#[cfg(feature = "tls")]
use self::tls::TlsStream;
use crate::config::replicas::ReplicaAck;
use crate::config::server::{Address, Deployment, Server};
use crate::net::request::Request;
use crate::net::script_error;
use crate::observer::Observers;
use crate::report::report;

/// The name of connections for commands.
pub(crate) const COMMANDS: &str = "link";

/// The name of connections for guarded commands. Their replies may be of any size: one beyond the limit is skipped, and
/// the connection is kept unless the reply is too long even to be skipped.
pub(crate) const GUARDED: &str = "guarded";

/// For this long, or for twice the command timeout if that is longer, the client may repeat a request that has an
/// idempotency key. Also the TCP user timeout: for this long the operating system retransmits what the server does not
/// acknowledge.
///
/// A connection that was given up stays open, so the system may deliver a request long after it was sent again over
/// another connection. Once Redis has forgotten that it has applied the request, the late copy would count again. The last
/// copy may be sent when the time for repeating ends, and the system may deliver it up to `REPLAY` later. So Redis
/// remembers a request for at least twice the time for repeating.
pub(crate) const REPLAY: Duration = Duration::from_secs(60);

/// How long a thread leads (reads the replies for all threads: see `connection`), or waits for a connection, before it
/// checks its deadline, its cancel token, the client's state and, in a cluster, whether another node has the slot by now.
/// A thread that follows may wait 1.5 times as long.
pub(in crate::net) const SLICE: Duration = Duration::from_millis(64);

/// The timeout of a read that only looks whether something has come, and of a write that waits for space in the buffer; no
/// timeout is shorter. The system rounds it up to a few milliseconds.
pub(in crate::net) const GLANCE: Duration = Duration::from_millis(1);

/// The flags of a write that returns at once when the socket is full: `MSG_DONTWAIT`, and on Linux also `MSG_NOSIGNAL`,
/// which the standard library passes in its own writes too. `None` on systems on which a write waits for a [`GLANCE`].
const AT_ONCE: Option<i32> = if cfg!(any(target_os = "linux", target_os = "android")) {
    Some(0x40 | 0x4000)
} else if cfg!(target_vendor = "apple") {
    Some(0x80)
} else {
    None
};

/// `MSG_PEEK`: what is read is left to be read again.
const PEEK: i32 = 0x2;

/// How to reach a server or deployment, and what the client's connections have learned about it.
#[derive(Clone)]
pub(crate) struct Endpoint {
    pub(crate) server: Arc<Server>,
    /// Whether a server of the client has said if it deletes keys, or has refused to say.
    knows_eviction: Arc<AtomicBool>,
    /// Whether the last attempt to connect succeeded, by server.
    was_there: Arc<Mutex<HashMap<String, bool>>>,
    observer: Observers,
    /// How many replicas the master had when it was last asked.
    replicas: Arc<AtomicU32>,
    /// Whether a Sentinel named this server as the master. The server then has to confirm that by `ROLE`.
    proves_master: bool,
    /// Whether the server that the URL names has said that it is a single master, or has refused to say; `None` where this
    /// need not be known: for servers that others have named, and for URLs of Sentinels and clusters.
    server_kind_is_known: Option<Arc<AtomicBool>>,
}

impl Endpoint {
    pub(crate) fn new(server: Server) -> Self {
        Self {
            server: Arc::new(server),
            knows_eviction: Arc::default(),
            was_there: Arc::default(),
            observer: Observers::default(),
            replicas: Arc::default(),
            proves_master: false,
            server_kind_is_known: None,
        }
    }

    /// Tells `observer` when a server becomes unreachable or reachable.
    pub(crate) fn observed_by(self, observer: &Observers) -> Self {
        Self {
            observer: observer.clone(),
            ..self
        }
    }

    /// Records the outcome of an attempt to connect. A failure is logged at debug level. A server that becomes unreachable
    /// is logged as a warning, and one that is reachable again at info level, once for all connections of a client. The
    /// observer is told of these changes, and of the outcome of the first attempt.
    pub(in crate::net) fn log(&self, role: &str, failure: Option<&RedisError>) {
        let server = self.to_string();
        let was_reachable = (self.was_there.lock()).insert(server.clone(), failure.is_none());
        let Some(why) = failure else {
            if was_reachable == Some(false) {
                report!(Info, "redis, {self}, is reachable again");
            }
            if was_reachable != Some(true) {
                self.observer.tell(|observer| observer.server_up(&server));
            }
            return;
        };
        report!(Debug, "connecting to {self:?} failed ({role}): {why}");
        if was_reachable == Some(true) {
            report!(Warn, "redis, {self}, is unreachable: {why}");
        }
        if was_reachable != Some(false) {
            let why = why.to_string();
            self.observer
                .tell(|observer| observer.server_down(&server, &why));
        }
    }

    /// How many replicas have to acknowledge an acquire.
    pub(crate) fn replicas_needed(&self) -> u32 {
        self.server
            .replica_ack
            .needed(self.replicas.load(Ordering::Relaxed))
    }

    /// Reads the answer to `ROLE`. Returns whether it is a master's.
    pub(crate) fn learn_role(&self, role: &Value) -> bool {
        let parts = match role {
            Value::Array(parts) => parts.as_slice(),
            _ => &[],
        };
        let is_master = matches!(parts.first(), Some(Value::BulkString(role)) if role == b"master");
        if let (true, Some(Value::Array(replicas))) = (is_master, parts.get(2)) {
            let replicas = u32::try_from(replicas.len()).unwrap_or(u32::MAX);
            self.replicas.store(replicas, Ordering::Relaxed);
        }
        is_master
    }

    /// A node of a cluster that is asked about the others. It may be a replica, which would reject `WAIT`, so
    /// `replica_ack` is off.
    pub(in crate::net) fn witness(&self, address: Address) -> Self {
        self.other(address, |server| server.replica_ack = ReplicaAck::None)
    }

    /// The endpoint of another server, reached and greeted in the same way.
    pub(in crate::net) fn node(&self, address: Address) -> Self {
        self.other(address, |_| {})
    }

    /// The endpoint of another server, with other settings.
    pub(in crate::net) fn other(&self, address: Address, change: impl FnOnce(&mut Server)) -> Self {
        let mut server = Server {
            deployment: Deployment::Single(address),
            ..Server::clone(&self.server)
        };
        change(&mut server);
        Self {
            server: Arc::new(server),
            proves_master: false,
            server_kind_is_known: None,
            ..self.clone()
        }
    }

    /// The server that was named as the master.
    pub(in crate::net) fn master(&self, address: Address) -> Self {
        Self {
            proves_master: true,
            ..self.node(address)
        }
    }

    /// Where to connect to.
    fn address(&self) -> io::Result<&Address> {
        #[cfg(feature = "tls")]
        let can_encrypt = self.server.tls.is_some();
        #[cfg(not(feature = "tls"))]
        let can_encrypt = false;
        match &self.server.deployment {
            Deployment::Single(address) if !self.server.is_encrypted || can_encrypt => Ok(address),
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

/// A plain socket, or an encrypted connection.
#[derive(Debug)]
pub(crate) enum Socket {
    /// A TCP or Unix socket. The standard library reads and writes both alike.
    Plain(TcpStream),
    #[cfg(feature = "tls")]
    Tls(Box<TlsStream>),
}

impl Socket {
    /// The socket below, whatever its kind.
    fn plain(&self) -> SockRef<'_> {
        match self {
            Self::Plain(stream) => SockRef::from(stream),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => SockRef::from(stream.socket()),
        }
    }

    /// Ends the connection, and wakes the thread that reads it.
    pub(crate) fn shut_down(&self) {
        self.shut(std::net::Shutdown::Both);
    }

    /// Ends only the writing side: the server still reads all that was written. The caller has to keep the socket open: a
    /// closed socket answers a reply of the server with a reset, at which the server may drop what it has not read.
    pub(crate) fn finish(&self) {
        self.shut(std::net::Shutdown::Write);
    }

    fn shut(&self, how: std::net::Shutdown) {
        #[cfg(feature = "tls")]
        if let Self::Tls(stream) = self {
            stream.say_goodbye();
        }
        if let Err(err) = self.plain().shutdown(how) {
            report!(Trace, "shutting a connection down failed: {err}");
        }
    }

    /// Writes all of `bytes`. Fails if the socket does not take them within [`SHARE`]: they are few, so the server is not
    /// reading.
    pub(crate) fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        let until = Instant::now() + SHARE;
        loop {
            bytes = &bytes[self.write_some(bytes)?..];
            if bytes.is_empty() {
                return Ok(());
            }
            if Instant::now() >= until {
                return Err(io::ErrorKind::TimedOut.into());
            }
            std::thread::sleep(GLANCE);
        }
    }

    /// Writes the last bytes of a connection, as far as the socket takes them now.
    pub(crate) fn write_last(&self, bytes: &[u8]) -> io::Result<()> {
        #[cfg(feature = "tls")]
        if let Self::Tls(stream) = self {
            return stream.write_last(bytes);
        }
        self.write_some(bytes).map(|_| ())
    }

    /// Writes what the socket takes now, and says how many bytes that was. The rest has to be offered again before any other
    /// bytes.
    pub(crate) fn write_some(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => written(stream, bytes),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.write_some(bytes),
        }
    }

    /// Whether the server has closed the connection, or sent something that nobody asked for. Never waits.
    ///
    /// Makes the socket non-blocking for a moment, so no other thread may be reading or writing.
    fn has_ended(&self) -> bool {
        let socket = self.plain();
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
        // If the socket cannot be made blocking again, reads would not wait, so the connection counts as ended.
        socket.set_nonblocking(false).is_err() || ended
    }

    /// Whether unread bytes have come, or the end of the connection. Never waits; `true` on systems that cannot tell.
    pub(crate) fn has_come(&self) -> bool {
        let Some(at_once) = AT_ONCE else {
            return true;
        };
        let byte = &mut [MaybeUninit::uninit()];
        let looked = self.plain().recv_with_flags(byte, at_once | PEEK);
        !matches!(looked, Err(err) if err.kind() == io::ErrorKind::WouldBlock)
    }

    fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => (&*stream).read(buf),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.read(buf),
        }
    }

    fn is_encrypted(&self) -> bool {
        match self {
            #[cfg(feature = "tls")]
            Self::Tls(_) => true,
            _ => false,
        }
    }

    /// Why reading failed, if the TLS session knows more than the socket's error says.
    fn failure(&self) -> Option<RedisError> {
        match self {
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.failure(),
            _ => None,
        }
    }
}

/// A socket that is written to without waiting for space, where the system can do that.
pub(crate) trait WriteAtOnce {
    fn write_at_once(&self, bytes: &[u8]) -> io::Result<usize>;
}

impl WriteAtOnce for TcpStream {
    fn write_at_once(&self, bytes: &[u8]) -> io::Result<usize> {
        match AT_ONCE {
            Some(flags) => SockRef::from(self).send_with_flags(bytes, flags),
            None => { self }.write(bytes),
        }
    }
}

/// Writes once. Returns how many bytes the socket has taken.
fn written(socket: &impl WriteAtOnce, bytes: &[u8]) -> io::Result<usize> {
    loop {
        match socket.write_at_once(bytes) {
            Ok(0) if !bytes.is_empty() => return Err(io::ErrorKind::WriteZero.into()),
            Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
            Err(err)
                if matches!(
                    err.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                ) =>
            {
                return Ok(0);
            }
            wrote => return wrote,
        }
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

    /// Whether the server has closed the connection, or sent something unasked. Never waits. No thread may be writing
    /// meanwhile.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_unread() || self.stream.has_ended()
    }

    /// Whether bytes were read that belong to no returned reply. If no reply is due, nobody has asked for these bytes.
    pub(crate) fn has_unread(&self) -> bool {
        self.replies.has_unread()
    }

    /// Sets how many bytes a reply may have.
    pub(crate) fn limit(&mut self, limit: usize) {
        self.replies.limit(limit);
    }

    /// Skips replies beyond a limit. Each becomes an error with the code [`TOO_LARGE`].
    pub(crate) fn skip_too_large(&mut self) {
        self.replies.skip_too_large();
    }

    /// Whether a reply is being skipped.
    pub(crate) fn is_skipping(&self) -> bool {
        self.replies.is_skipping()
    }

    /// Reads one reply, or returns `None` if it was not complete after about `slice`.
    ///
    /// The next call continues an incomplete reply. The connection has to be dropped after an error.
    pub(crate) fn read(&mut self, slice: Duration) -> RedisResult<Option<Value>> {
        self.read_from(Instant::now(), slice, &mut || Duration::MAX)
    }

    /// Like `read`, from `now` on. `before_read` runs before every read, and returns the longest time for which that read
    /// is allowed to block.
    pub(crate) fn read_from(
        &mut self,
        now: Instant,
        slice: Duration,
        before_read: &mut dyn FnMut() -> Duration,
    ) -> RedisResult<Option<Value>> {
        let slice = slice.max(GLANCE);
        let mut source = Sliced {
            stream: &self.stream,
            timeout: &mut self.timeout,
            slice,
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
    /// The timeout that the socket has now.
    timeout: &'a mut Duration,
    slice: Duration,
    until: Instant,
    has_read: bool,
    before_read: &'a mut dyn FnMut() -> Duration,
}

impl Read for Sliced<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            let slice = (self.before_read)().min(self.slice);
            // Reads the clock only if one read was not enough.
            if std::mem::replace(&mut self.has_read, true) && Instant::now() >= self.until {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            // The socket's timeout is changed only if it is too long or far too short, since that costs a system call. So
            // the read may end too early, but by `SLICE` at most.
            if *self.timeout > slice || (*self.timeout * 8).min(*self.timeout + SLICE) < slice {
                self.stream.plain().set_read_timeout(Some(slice))?;
                *self.timeout = slice;
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
    /// When the greeting began.
    pub(crate) since: Instant,
    /// How long the last round of the greeting took, without earlier rounds in which the server was not ready: a round
    /// trip at least.
    pub(crate) greeted_in: Duration,
}

impl Duplex {
    /// Both halves of a new socket.
    pub(in crate::net) fn over(stream: Socket) -> Self {
        let writer = Arc::new(stream);
        Self {
            reader: Reader::new(Arc::clone(&writer)),
            writer,
            since: Instant::now(),
            greeted_in: Duration::ZERO,
        }
    }
}

/// Methods for a thread that has the connection to itself.
impl Duplex {
    /// Sends questions.
    pub(in crate::net) fn write(
        &self,
        doing: &'static str,
        questions: &[&[&str]],
    ) -> io::Result<()> {
        let mut bytes = Vec::new();
        for question in questions {
            Request::command(doing, question).write(&mut bytes, false);
        }
        self.writer.write_all(&bytes)
    }

    pub(in crate::net) fn read(&mut self, dial: &dial::Dial) -> RedisResult<Value> {
        loop {
            if let Some(reply) = self.reader.read(dial.left()?)? {
                return Ok(reply);
            }
        }
    }
}

/// Parses a reply from these bytes.
#[cfg(test)]
pub(crate) fn parsed(mut bytes: &[u8], limit: usize) -> RedisResult<Value> {
    let mut parser = reply::Parser::default();
    parser.limit(limit);
    parser.next(&mut bytes)
}

pub(crate) fn timed_out(reason: &'static str) -> RedisError {
    io::Error::new(io::ErrorKind::TimedOut, reason).into()
}

/// There are more replies than commands, so no later reply can be trusted.
pub(crate) fn unasked() -> RedisError {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "a reply arrived that no command asked for",
    )
    .into()
}
