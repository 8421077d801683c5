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

use super::dial::{Dial, SHARE};
use super::timed_out;

/// How often the system shows a firewall on the way that an idle connection is in use. Many forget one after a minute or more.
const ALIVE: Duration = Duration::from_secs(15);

/// Looks a host up and connects to the first of its addresses that answers.
pub(super) fn open(host: &str, port: u16, dial: &mut Dial) -> RedisResult<TcpStream> {
    dial.waits_for(timed_out("looking up the host took too long"));
    let addrs = look_up(host, port, dial, || {
        Ok((host, port).to_socket_addrs()?.collect())
    })?;
    dial.waits_for(timed_out("connecting took too long"));
    open_one(&addrs, dial)
}

/// How many threads of a process look the same host up. Nothing ends a look-up before the resolver gives up, so without a limit
/// a program that opens client after client would collect threads.
const LOOK_UPS: usize = 4;

/// The hosts that are looked up now, with the process, since a fork copies the map and not the threads.
static LOOKED_UP: Mutex<BTreeMap<(u32, String, u16), LookUp>> = Mutex::new(BTreeMap::new());

#[derive(Default)]
struct LookUp {
    threads: usize,
    /// The first answer that a thread gets, for the threads that wait.
    next: Arc<(Mutex<Option<Found>>, Condvar)>,
}

type Found = Result<Vec<SocketAddr>, (io::ErrorKind, String)>;

/// Asks the `resolver`, or waits for the answer to another thread if enough of them ask for the same host.
fn look_up(
    host: &str,
    port: u16,
    dial: &mut Dial,
    resolver: impl FnOnce() -> io::Result<Vec<SocketAddr>>,
) -> RedisResult<Vec<SocketAddr>> {
    let key = (std::process::id(), host.to_owned(), port);
    let mut all = LOOKED_UP.lock();
    let its = all.entry(key.clone()).or_default();
    let found = if its.threads < LOOK_UPS {
        its.threads += 1;
        drop(all);
        let found = dial.unbounded(resolver).map_err(|err| {
            let why = format!("the host was not found: {err}; check its name");
            (err.kind(), why)
        });
        let mut all = LOOKED_UP.lock();
        // Still the same entry: the last thread that it counts removes it, and it counts this one.
        if let Entry::Occupied(mut its) = all.entry(key) {
            its.get_mut().threads -= 1;
            // All that wait now get this answer. Threads that come later wait for the next one.
            let told = std::mem::take(&mut its.get_mut().next);
            if its.get().threads == 0 {
                its.remove();
            }
            *told.0.lock() = Some(found.clone());
            told.1.notify_all();
        }
        found
    } else {
        let next = Arc::clone(&its.next);
        drop(all);
        let mut found = next.0.lock();
        loop {
            // The answer is stored under this mutex, so it is found here or notifies this thread. An attempt that is given
            // up is notified by none, so `left` is asked from time to time.
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
    // Where nobody listens, a socket that is given the very port it connects to finds itself.
    if socket.local_addr()?.as_socket() == socket.peer_addr()?.as_socket() {
        // Without a trace, or the port stays taken for a while.
        socket.set_linger(Some(Duration::ZERO))?;
        let what = "no server listens there, and the socket was connected to itself";
        return Err(io::Error::new(io::ErrorKind::ConnectionRefused, what));
    }
    // On a real network every second small write would wait for an acknowledgement.
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_keepalive(
        &TcpKeepalive::new()
            .with_time(ALIVE)
            .with_interval(ALIVE / 3),
    )
}

/// A local socket connects at once, or its queue is full: then it is tried again while there is time.
#[cfg(unix)]
pub(super) fn open_unix(path: &std::path::Path, dial: &Dial) -> RedisResult<TcpStream> {
    use crate::net::back_off::BackOff;
    use redis::io::tcp::socket2::{Domain, SockAddr, Socket, Type};
    dial.waits_for(timed_out("connecting took too long"));
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
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_is_connected_to_itself_found_nobody_and_leaves_the_port() {
        use redis::io::tcp::socket2::{Domain, Socket, Type};
        let own = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        own.bind(&any.into()).expect("a port");
        let addr = own.local_addr().expect("it is bound");
        own.connect(&addr).expect("itself");
        let refused = prepare(&SockRef::from(&own)).map_err(|err| err.kind());
        assert_eq!(refused, Err(io::ErrorKind::ConnectionRefused));
        drop(own);
        let server = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        server.bind(&addr).expect("the port is free at once");
    }

    #[test]
    fn few_threads_look_the_same_host_up_however_many_want_to() {
        use std::sync::atomic::{AtomicUsize, Ordering};
        let (answer, answers) = crossbeam_channel::unbounded::<()>();
        let asked = AtomicUsize::new(0);
        let addr = SocketAddr::from(([127, 0, 0, 1], 1));
        let ask = |host, timeout| {
            look_up(host, 1, &mut Dial::by_itself("test", timeout), || {
                asked.fetch_add(1, Ordering::SeqCst);
                let generous = Duration::from_secs(60);
                answers.recv_timeout(generous).map_err(io::Error::other)?;
                Ok(vec![addr])
            })
        };
        let is_asked = |times| {
            while asked.load(Ordering::SeqCst) < times {
                std::thread::yield_now();
            }
        };
        let generous = Duration::from_secs(60);
        std::thread::scope(|scope| {
            let ask = &ask;
            let many: Vec<_> = (0..LOOK_UPS)
                .map(|_| scope.spawn(move || ask("slow.test", generous)))
                .collect();
            is_asked(LOOK_UPS);
            let late = ask("slow.test", Duration::from_millis(10)).expect_err("no answer yet");
            assert!(late.is_timeout(), "{late}");
            let waits = scope.spawn(move || ask("slow.test", generous));
            let is_waited_for = |its: &LookUp| Arc::strong_count(&its.next) > 1;
            while !LOOKED_UP.lock().values().any(is_waited_for) {
                std::thread::yield_now();
            }
            scope.spawn(move || ask("other.test", generous));
            is_asked(LOOK_UPS + 1);
            // The threads take the answers in any order, so all of them get one.
            for _ in 0..=LOOK_UPS {
                answer.send(()).expect("they wait");
            }
            for asked in many.into_iter().chain([waits]) {
                let found = asked.join().expect("it does not panic");
                assert_eq!(found.expect("the answer to one of them"), [addr]);
            }
            assert_eq!(asked.load(Ordering::SeqCst), LOOK_UPS + 1);
        });
        assert!(
            LOOKED_UP
                .lock()
                .keys()
                .all(|(_, host, _)| host != "slow.test")
        );
    }

    #[test]
    fn an_idle_connection_is_kept_alive() {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let dial = Dial::by_itself("test", Duration::from_secs(10));
        let addr = listener.local_addr().expect("it is bound");
        let stream = open_one(&[addr], &dial).expect("it listens");
        let socket = SockRef::from(&stream);
        assert!(socket.keepalive().expect("a socket") && stream.nodelay().expect("a socket"));
    }

    #[test]
    fn whichever_address_of_a_name_answers_is_used() {
        use std::net::TcpListener;
        let dial = Dial::by_itself("test", Duration::from_secs(10));
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
                let stream = open_one(&addrs, &dial).expect("one answers");
                assert_eq!(stream.peer_addr().expect("it is connected"), addr);
            }
        }
    }
}
