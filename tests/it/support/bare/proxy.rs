//! A proxy that disturbs the network in front of a server.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use std::{fmt, io, thread};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use redis::io::tcp::socket2::SockRef;

use super::deployment::{Deployment, deployment};
use super::lua;
use super::process::locked;
use super::server::{ANSWER, Server, try_connection_to};
use super::wait::{GENEROUS, ms};

/// How often a connection that holds bytes back checks the mode.
const LOOK: Duration = ms(1);

/// The connections that a fault applies to, identified by the names that they set in their handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// Every connection, named or not.
    All,
    /// Every connection of a client that has a name, so none of a replica.
    Named,
    /// `link`: commands.
    Link,
    /// `watchdog`: renewals.
    Watchdog,
    /// `subscriber`: pub/sub.
    Subscriber,
    /// `guarded`: guarded commands.
    Guarded,
}

impl Target {
    const NAMES: [(&'static [u8], usize); 4] = [
        (b":link", 1),
        (b":watchdog", 2),
        (b":subscriber", 3),
        (b":guarded", 4),
    ];

    /// The slot of the connection whose complete name occurs in `bytes`.
    fn slot_in(bytes: &[u8]) -> Option<usize> {
        const NAME: &[u8] = b"redlatch:";
        let begin = bytes
            .windows(NAME.len())
            .position(|window| window == NAME)?;
        let name = &bytes[begin..];
        let end = name.iter().position(|byte| b" \r".contains(byte))?;
        let name = &name[..end];
        let known = Self::NAMES.iter().find(|(role, _)| name.ends_with(role));
        known.map(|(_, slot)| *slot)
    }

    /// The slots of this target; slot 0 belongs to connections without a known name.
    fn slots(self) -> std::ops::Range<usize> {
        match self {
            Self::All => 0..5,
            Self::Named => 1..5,
            Self::Link => 1..2,
            Self::Watchdog => 2..3,
            Self::Subscriber => 3..4,
            Self::Guarded => 4..5,
        }
    }
}

/// How the proxy treats the bytes that pass through.
///
/// A stream cannot skip bytes, so a connection that lost bytes stays silent in that direction, whatever the mode is
/// later, until the client closes it. A connection that lost requests also loses their replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Delivers everything.
    Pass,
    /// Drops both directions. Connections stay open and new ones are accepted, even when the server is down.
    BlackHole,
    /// Holds both directions, including the end of a stream, and delivers in order once the mode changes.
    Stall,
    /// Delivers requests and drops replies.
    SwallowReplies,
    /// Delivers replies after this delay.
    Delay(Duration),
    /// Delivers requests and replies each after this delay.
    DelayBoth(Duration),
    /// Reads requests piece by piece with this pause after each, so that the client's socket buffers fill up.
    Slow(Duration),
    /// Closes new connections at once (those of a named target when they send their name); existing ones pass.
    Refuse,
}

/// A fault that waits for a certain request; see [`Proxy::swallow_reply_to`].
#[derive(Clone, Debug)]
pub(crate) struct Trap {
    /// The connections on which any request triggers the trap, if requests are encrypted.
    target: Option<Target>,
    needles: Arc<[Vec<u8>]>,
    delivers: bool,
    fired: Arc<AtomicBool>,
}

impl Trap {
    /// Whether the request has passed through.
    pub(crate) fn fired(&self) -> bool {
        self.fired.load(Ordering::SeqCst)
    }
}

/// A TCP proxy in threads of this process whose behaviour can change at any time.
pub(crate) struct Proxy {
    shared: Arc<Shared>,
    addr: SocketAddr,
    acceptor: Option<JoinHandle<()>>,
}

struct Shared {
    server: SocketAddr,
    /// The address at which the server lists its connections by name, if the traffic is encrypted.
    list_at: Option<SocketAddr>,
    closing: AtomicBool,
    modes: Mutex<[Mode; 5]>,
    traps: Mutex<Vec<Trap>>,
    rewriting: Mutex<Option<(Target, Arc<Rewrite>)>>,
    conns: Mutex<Vec<Arc<Conn>>>,
    /// Connections that are stalled individually, whatever the mode.
    stalled: Mutex<Vec<Arc<Conn>>>,
    pumps: Mutex<Vec<JoinHandle<()>>>,
    opened: [AtomicUsize; 5],
    dropped: AtomicU64,
    held: AtomicU64,
}

/// Replaces the bytes of replies.
type Rewrite = dyn Fn(&[u8]) -> Vec<u8> + Send + Sync;

struct Conn {
    shared: Weak<Shared>,
    client: TcpStream,
    /// Connected when the first bytes are delivered, so that a black hole needs no server.
    server: OnceLock<TcpStream>,
    slot: AtomicUsize,
    requests_lost: AtomicBool,
    replies_lost: AtomicBool,
    cut: AtomicBool,
    requests_stalled: AtomicBool,
    replies_stalled: AtomicBool,
}

/// The decision about a chunk, or to the end of a stream.
enum Fate {
    Deliver,
    Hold,
    Drop,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Requests,
    Replies,
}

impl Proxy {
    /// Listens on a free loopback port and forwards everything to `server`, which need not be running.
    pub(crate) fn start(server: SocketAddr) -> Self {
        Self::with(server, None)
    }

    /// Starts a proxy at the address where clients connect to `server`. The server tells the names of
    /// encrypted connections.
    pub(crate) fn before(server: &Server) -> Self {
        let list_at = server.is_tls().then(|| server.addr());
        Self::with(server.client_addr(), list_at)
    }

    fn with(server: SocketAddr, list_at: Option<SocketAddr>) -> Self {
        let listener = listen(server).expect("a free loopback port");
        let addr = listener.local_addr().expect("it is bound");
        let shared = Arc::new(Shared {
            server,
            list_at,
            closing: AtomicBool::new(false),
            modes: Mutex::new([Mode::Pass; 5]),
            traps: Mutex::default(),
            rewriting: Mutex::default(),
            conns: Mutex::default(),
            stalled: Mutex::default(),
            pumps: Mutex::default(),
            opened: Default::default(),
            dropped: AtomicU64::new(0),
            held: AtomicU64::new(0),
        });
        let acceptor = spawn({
            let shared = Arc::clone(&shared);
            move || accept(&shared, &listener)
        });
        Self {
            shared,
            addr,
            acceptor: Some(acceptor),
        }
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub(crate) fn port(&self) -> u16 {
        self.addr.port()
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}/", self.addr)
    }

    /// Sets the mode of `target`, for existing and new connections.
    pub(crate) fn set(&self, target: Target, mode: Mode) {
        locked(&self.shared.modes)[target.slots()].fill(mode);
    }

    /// From now on `rewrite` replaces each piece of the replies on connections of `target`.
    pub(crate) fn rewrite_replies(
        &self,
        target: Target,
        rewrite: impl Fn(&[u8]) -> Vec<u8> + Send + Sync + 'static,
    ) {
        *locked(&self.shared.rewriting) = Some((target, Arc::new(rewrite)));
    }

    /// Resets all modes and traps, so that everything passes. Connections that lost bytes stay silent.
    pub(crate) fn pass(&self) {
        self.set(Target::All, Mode::Pass);
        locked(&self.shared.traps).clear();
        *locked(&self.shared.rewriting) = None;
        for conn in locked(&self.shared.stalled).drain(..) {
            conn.requests_stalled.store(false, Ordering::SeqCst);
            conn.replies_stalled.store(false, Ordering::SeqCst);
        }
    }

    /// Stalls the existing connections of `target` until [`pass`](Self::pass), even after the client closes them; the
    /// mode applies to new ones.
    pub(crate) fn stall_present(&self, target: Target) {
        self.stall(target, true);
    }

    /// Stalls only the requests on the existing connections of `target`. Replies pass, so a request without a reply has
    /// not reached the server.
    pub(crate) fn stall_present_requests(&self, target: Target) {
        self.stall(target, false);
    }

    fn stall(&self, target: Target, replies: bool) {
        for conn in locked(&self.shared.conns).iter() {
            if target.slots().contains(&conn.slot()) {
                conn.requests_stalled.store(true, Ordering::SeqCst);
                conn.replies_stalled.store(replies, Ordering::SeqCst);
                locked(&self.shared.stalled).push(Arc::clone(conn));
            }
        }
    }

    /// Drops all replies on the existing connections of `target`; the mode applies to new ones.
    pub(crate) fn swallow_present(&self, target: Target) {
        self.lose_present(target, Way::Replies);
    }

    /// Drops all requests, and their replies, on the existing connections of `target`.
    pub(crate) fn black_hole_present(&self, target: Target) {
        self.lose_present(target, Way::Requests);
    }

    fn lose_present(&self, target: Target, way: Way) {
        for conn in locked(&self.shared.conns).iter() {
            if target.slots().contains(&conn.slot()) {
                conn.lose(way);
            }
        }
    }

    /// Resets the existing connections of `target` on both sides; returns how many there were.
    pub(crate) fn cut(&self, target: Target) -> usize {
        let mut cut = 0;
        locked(&self.shared.conns).retain(|conn| {
            let spared = !target.slots().contains(&conn.slot());
            if !spared {
                conn.cut();
                cut += 1;
            }
            spared
        });
        cut
    }

    /// Delivers the next request that contains `needle`, then drops all replies on its connection. The hash of a script
    /// also matches the text of the script.
    pub(crate) fn swallow_reply_to(&self, needle: impl AsRef<[u8]>) -> Trap {
        self.arm(None, needle.as_ref(), true)
    }

    /// Drops the next request that contains `needle`, together with what was sent with it and everything that follows
    /// on its connection.
    pub(crate) fn black_hole_request(&self, needle: impl AsRef<[u8]>) -> Trap {
        self.arm(None, needle.as_ref(), false)
    }

    /// [`swallow_reply_to`](Self::swallow_reply_to) for encrypted traffic, where the next request of `target` triggers
    /// the trap.
    pub(crate) fn swallow_reply_on(&self, target: Target, needle: impl AsRef<[u8]>) -> Trap {
        self.arm(Some(target), needle.as_ref(), true)
    }

    pub(crate) fn black_hole_on(&self, target: Target, needle: impl AsRef<[u8]>) -> Trap {
        self.arm(Some(target), needle.as_ref(), false)
    }

    fn arm(&self, target: Option<Target>, needle: &[u8], delivers: bool) -> Trap {
        assert!(!needle.is_empty(), "every request contains nothing");
        let needles = [needle.to_vec()].into_iter().chain(script_of(needle));
        let trap = Trap {
            target: target.filter(|_| self.shared.list_at.is_some()),
            needles: needles.collect(),
            delivers,
            fired: Arc::default(),
        };
        locked(&self.shared.traps).push(trap.clone());
        trap
    }

    /// The connections of `target` that the client has not closed.
    pub(crate) fn connections(&self, target: Target) -> usize {
        locked(&self.shared.conns)
            .iter()
            .filter(|conn| target.slots().contains(&conn.slot()))
            .count()
    }

    /// The number of connections of `target` ever opened, including refused ones. An increase means a reconnect.
    pub(crate) fn opened(&self, target: Target) -> usize {
        self.shared.opened[target.slots()]
            .iter()
            .map(|opened| opened.load(Ordering::SeqCst))
            .sum()
    }

    /// The bytes dropped so far, in both directions.
    pub(crate) fn dropped(&self) -> u64 {
        self.shared.dropped.load(Ordering::SeqCst)
    }

    /// The bytes that a stall or a delay holds back now, in both directions.
    pub(crate) fn held(&self) -> u64 {
        self.shared.held.load(Ordering::SeqCst)
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Proxy({} -> {})", self.addr, self.shared.server)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::SeqCst);
        // A connection of our own ends the wait in `accept`.
        let woken = TcpStream::connect(self.addr);
        if let Some(acceptor) = self.acceptor.take().filter(|_| woken.is_ok()) {
            acceptor.join().ok();
        }
        self.cut(Target::All);
        for conn in locked(&self.shared.stalled).drain(..) {
            conn.cut();
        }
        // A connection that the client closed during a stall is no longer listed, but its pumps still wait for the
        // stall to end.
        self.set(Target::All, Mode::Pass);
        // No connection is accepted any more. A pump of requests may still add a pump of replies, but is itself joined
        // here.
        while let Some(pump) = { locked(&self.shared.pumps).pop() } {
            pump.join().ok();
        }
    }
}

impl Shared {
    fn mode(&self, slot: usize) -> Mode {
        locked(&self.modes)[slot]
    }

    /// Keeps the handle of a pump to join it on drop, and removes those that have ended.
    fn pump(&self, work: impl FnOnce() + Send + 'static) {
        let mut pumps = locked(&self.pumps);
        pumps.retain(|pump| !pump.is_finished());
        pumps.push(spawn(work));
    }

    /// The bytes that replace `replies`, if a rewrite applies.
    fn rewritten(&self, slot: usize, replies: &[u8]) -> Option<Vec<u8>> {
        let rewrite = match &*locked(&self.rewriting) {
            Some((target, rewrite)) if target.slots().contains(&slot) => Arc::clone(rewrite),
            _ => return None,
        };
        Some(rewrite(replies))
    }

    fn forget(&self, conn: &Arc<Conn>) {
        locked(&self.conns).retain(|known| !Arc::ptr_eq(known, conn));
    }
}

/// A cluster node announces its own port, so the proxy listens on the same port at another loopback address. Clients
/// that connect through the proxy then stay with it.
fn listen(server: SocketAddr) -> io::Result<TcpListener> {
    if deployment() == Deployment::Cluster {
        let hosts = (2..u8::MAX).map(|n| Ipv4Addr::new(127, 0, 0, n));
        let mut listeners = hosts.map(|host| TcpListener::bind((host, server.port())));
        if let Some(listener) = listeners.find_map(Result::ok) {
            return Ok(listener);
        }
    }
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
}

pub(crate) fn spawn(work: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    thread::Builder::new()
        .name("proxy".to_owned())
        .spawn(work)
        .expect("a thread")
}

fn accept(shared: &Arc<Shared>, listener: &TcpListener) {
    for client in listener.incoming() {
        if shared.closing.load(Ordering::SeqCst) {
            return;
        }
        let Ok(client) = client else { continue };
        shared.opened[0].fetch_add(1, Ordering::SeqCst);
        if shared.mode(0) == Mode::Refuse {
            continue; // dropping the client closes the connection
        }
        if prepare(&client).is_err() {
            continue;
        }
        let conn = Arc::new(Conn {
            shared: Arc::downgrade(shared),
            client,
            server: OnceLock::new(),
            slot: AtomicUsize::new(0),
            requests_lost: AtomicBool::new(false),
            replies_lost: AtomicBool::new(false),
            cut: AtomicBool::new(false),
            requests_stalled: AtomicBool::new(false),
            replies_stalled: AtomicBool::new(false),
        });
        locked(&shared.conns).push(Arc::clone(&conn));
        shared.pump(move || pump(&conn, Way::Requests));
    }
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(GENEROUS))
}

impl Conn {
    fn slot(&self) -> usize {
        self.slot.load(Ordering::SeqCst)
    }

    fn is_cut(&self) -> bool {
        self.cut.load(Ordering::SeqCst)
    }

    /// Ends both pumps. The sockets close with a reset for both peers.
    fn cut(&self) {
        self.cut.store(true, Ordering::SeqCst);
        for stream in [Some(&self.client), self.server.get()]
            .into_iter()
            .flatten()
        {
            SockRef::from(stream).set_linger(Some(Duration::ZERO)).ok();
            stream.shutdown(Shutdown::Read).ok(); // ends our own read without telling the peer
        }
    }

    /// The connection to the server, opened on first use.
    fn server(self: &Arc<Self>, shared: &Shared) -> io::Result<&TcpStream> {
        if let Some(server) = self.server.get() {
            return Ok(server);
        }
        let stream = TcpStream::connect_timeout(&shared.server, ANSWER)?;
        prepare(&stream)?;
        let server = self.server.get_or_init(|| stream);
        if self.is_cut() {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        let conn = Arc::clone(self);
        shared.pump(move || pump(&conn, Way::Replies));
        Ok(server)
    }

    /// Decides what happens to a chunk that arrived at `at`.
    fn fate(&self, shared: &Shared, way: Way, at: Instant) -> Fate {
        let (lost, stalled) = match way {
            Way::Requests => (&self.requests_lost, &self.requests_stalled),
            Way::Replies => (&self.replies_lost, &self.replies_stalled),
        };
        if lost.load(Ordering::SeqCst) {
            return Fate::Drop;
        }
        if stalled.load(Ordering::SeqCst) {
            return Fate::Hold;
        }
        let later = |by: Duration| {
            if at.elapsed() < by {
                Fate::Hold
            } else {
                Fate::Deliver
            }
        };
        match (shared.mode(self.slot()), way) {
            (Mode::BlackHole, _) | (Mode::SwallowReplies, Way::Replies) => Fate::Drop,
            (Mode::Stall, _) => Fate::Hold,
            (Mode::Delay(by), Way::Replies) | (Mode::DelayBoth(by), _) => later(by),
            (Mode::Pass | Mode::Refuse | Mode::Slow(_), _)
            | (Mode::SwallowReplies | Mode::Delay(_), Way::Requests) => Fate::Deliver,
        }
    }

    /// When to check a chunk again: when its delay is over, or soon.
    fn looks_again(&self, shared: &Shared, way: Way, at: Instant) -> Duration {
        match (shared.mode(self.slot()), way) {
            (Mode::Delay(by), Way::Replies) | (Mode::DelayBoth(by), _) => {
                by.saturating_sub(at.elapsed()).min(LOOK)
            }
            _ => LOOK,
        }
    }

    /// Moves the connection to `slot`. False if that slot refuses connections.
    fn is_known_as(&self, shared: &Shared, slot: usize) -> bool {
        self.slot.store(slot, Ordering::SeqCst);
        shared.opened[0].fetch_sub(1, Ordering::SeqCst);
        shared.opened[slot].fetch_add(1, Ordering::SeqCst);
        shared.mode(slot) != Mode::Refuse
    }

    /// Asks the server for the name of an encrypted connection before its first reply is delivered. False if the
    /// connection is refused.
    fn is_let_in(&self, shared: &Shared) -> bool {
        let (Some(list_at), 0) = (shared.list_at, self.slot()) else {
            return true;
        };
        let our_addr = self
            .server
            .get()
            .and_then(|stream| stream.local_addr().ok());
        let line = our_addr.and_then(|our_addr| line_of(list_at, our_addr));
        let line = line.unwrap_or_default();
        let slot = Target::slot_in(line.as_bytes());
        slot.is_none_or(|slot| self.is_known_as(shared, slot))
    }

    fn lose(&self, way: Way) {
        if way == Way::Requests {
            self.requests_lost.store(true, Ordering::SeqCst);
        }
        self.replies_lost.store(true, Ordering::SeqCst);
    }
}

/// Searches a client's requests for the connection name and for the needles of traps, across chunk boundaries.
#[derive(Default)]
struct Messages {
    handshake: Vec<u8>,
    named: bool,
    tail: Vec<u8>,
}

impl Messages {
    /// The name occurs within this many bytes.
    const HANDSHAKE: usize = 4096;

    /// Searches `chunk`. False if the connection is refused.
    fn hear(&mut self, shared: &Shared, conn: &Conn, chunk: &[u8]) -> bool {
        if !self.named {
            self.handshake.extend_from_slice(chunk);
            let slot = Target::slot_in(&self.handshake);
            if let Some(slot) = slot
                && !conn.is_known_as(shared, slot)
            {
                return false;
            }
            self.named = slot.is_some() || self.handshake.len() > Self::HANDSHAKE;
        }
        self.tail.extend_from_slice(chunk);
        let mut traps = locked(&shared.traps);
        let sprung = traps.iter().position(|trap| {
            let is_next = trap
                .target
                .is_some_and(|node| node.slots().contains(&conn.slot()));
            is_next || trap.needles.iter().any(|n| contains(&self.tail, n))
        });
        if let Some(sprung) = sprung {
            let trap = traps.remove(sprung);
            conn.lose(if trap.delivers {
                Way::Replies
            } else {
                Way::Requests
            });
            trap.fired.store(true, Ordering::SeqCst);
            self.tail.clear();
        } else {
            let needles = traps.iter().flat_map(|trap| trap.needles.iter());
            let longest = needles.map(Vec::len).max();
            let keep = longest.unwrap_or(0).saturating_sub(1);
            let excess = self.tail.len().saturating_sub(keep);
            self.tail.drain(..excess);
        }
        true
    }
}

/// The text of the script with this hash, since a client may send either.
fn script_of(hash: &[u8]) -> Option<Vec<u8>> {
    if hash.len() != 40 || !hash.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    lua::ALL
        .iter()
        .find(|(_, text)| redis::Script::new(text).get_hash().as_bytes() == hash)
        .map(|(_, text)| text.as_bytes().to_vec())
}

pub(crate) fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack
        .windows(needle.len())
        .any(|window| window == needle)
}

/// The line of `CLIENT LIST` at `list_at` about the connection from `addr`.
fn line_of(list_at: SocketAddr, addr: SocketAddr) -> Option<String> {
    let mut con = try_connection_to(&format!("redis://{list_at}/")).ok()?;
    let list: String = redis::cmd("CLIENT").arg("LIST").query(&mut con).ok()?;
    let address = format!(" addr={addr} ");
    let line = list.lines().find(|line| line.contains(&address));
    line.map(str::to_owned)
}

/// Forwards one direction of a connection until its end.
fn pump(conn: &Arc<Conn>, way: Way) {
    let Some(shared) = conn.shared.upgrade() else {
        return;
    };
    let mut queue = VecDeque::new();
    if carry(&shared, conn, way, &mut queue).is_err() && !conn.is_cut() {
        conn.cut();
    }
    let bytes_left: usize = queue
        .iter()
        .map(|(_, chunk): &(_, Vec<u8>)| chunk.len())
        .sum();
    shared.held.fetch_sub(bytes_left as u64, Ordering::SeqCst);
    if way == Way::Requests {
        shared.forget(conn);
    }
}

/// Forwards until the end of the stream. An error resets the connection.
fn carry(
    shared: &Shared,
    conn: &Arc<Conn>,
    way: Way,
    queue: &mut VecDeque<(Instant, Vec<u8>)>,
) -> io::Result<()> {
    let mut from = match way {
        Way::Requests => &conn.client,
        Way::Replies => conn.server(shared)?,
    };
    let mut pubsub = Messages::default();
    let mut buf = vec![0; 64 * 1024];
    let mut ended = false;
    loop {
        // While the queue is not empty, check the mode and the clock again soon.
        let soon = queue
            .front()
            .map(|(at, _)| conn.looks_again(shared, way, *at));
        if ended {
            thread::sleep(soon.unwrap_or(LOOK));
        } else {
            let chunk = match is_readable(from, soon)? {
                false => None,
                true => Some(match from.read(&mut buf) {
                    Ok(n) => &buf[..n],
                    Err(_) => &buf[..0], // a reset also ends the stream
                }),
            };
            if let Some(chunk) = chunk {
                ended = chunk.is_empty();
                if way == Way::Requests {
                    if ended {
                        shared.forget(conn);
                    } else if !pubsub.hear(shared, conn, chunk) {
                        return Err(io::ErrorKind::ConnectionRefused.into());
                    }
                } else if !ended && !conn.is_let_in(shared) {
                    return Err(io::ErrorKind::ConnectionRefused.into());
                }
                shared.held.fetch_add(chunk.len() as u64, Ordering::SeqCst);
                queue.push_back((Instant::now(), chunk.to_vec()));
                if let (Mode::Slow(pause), Way::Requests) = (shared.mode(conn.slot()), way) {
                    thread::sleep(pause);
                }
            }
        }
        if conn.is_cut() {
            return Ok(());
        }
        while let Some((at, chunk)) = queue.front() {
            let end = chunk.is_empty();
            match conn.fate(shared, way, *at) {
                Fate::Hold => break,
                // A stream that the client closed is closed at the server whatever was lost before, while the end of
                // the server's stream may itself be lost. Replies still pass until the server closes too, as on any
                // network.
                _ if end && way == Way::Requests => {
                    if let Some(server) = conn.server.get() {
                        server.shutdown(Shutdown::Write).ok();
                    }
                    return Ok(());
                }
                Fate::Deliver if end => {
                    conn.client.shutdown(Shutdown::Both).ok();
                    return Ok(());
                }
                Fate::Drop if end => {
                    conn.lose(way);
                    return Ok(());
                }
                Fate::Deliver => {
                    let mut target = match way {
                        Way::Requests => conn.server(shared)?,
                        Way::Replies => &conn.client,
                    };
                    let rewritten = match way {
                        Way::Requests => None,
                        Way::Replies => shared.rewritten(conn.slot(), chunk),
                    };
                    target.write_all(rewritten.as_ref().unwrap_or(chunk))?;
                }
                Fate::Drop => {
                    conn.lose(way);
                    shared
                        .dropped
                        .fetch_add(chunk.len() as u64, Ordering::SeqCst);
                }
            }
            if let Some((_, done)) = queue.pop_front() {
                shared.held.fetch_sub(done.len() as u64, Ordering::SeqCst);
            }
        }
    }
}

/// Whether there is something to read, or the end of the stream, within this time. A read timeout would be rounded up
/// by several milliseconds.
fn is_readable(stream: &TcpStream, within: Option<Duration>) -> io::Result<bool> {
    let mut streams = [PollFd::new(stream.as_fd(), PollFlags::POLLIN)];
    match ppoll(&mut streams, within.map(TimeSpec::from_duration), None) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::EINTR) => Ok(false),
        Err(err) => Err(err.into()),
    }
}
