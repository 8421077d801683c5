//! The addresses of a host.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, TryRecvError};
use parking_lot::Mutex;

use super::{CONNECT_SLICE, Endpoint, Meanwhile};

/// How old the answer to a look-up may be that nobody has waited for.
const LOOKUP_AGE: Duration = Duration::from_secs(1);

/// A look-up of the host, and when its answer came.
type Lookup = Receiver<(Instant, io::Result<Vec<SocketAddr>>)>;

/// Look-ups that nobody waited to the end for; whoever connects next goes on with them.
pub(super) type Lookups = Arc<Mutex<Vec<Lookup>>>;

/// The addresses of a host, if they are known by then. A name is looked up on a thread of its own, since nothing bounds
/// the system's resolver.
pub(super) fn resolve(
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::server::Server;

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
}
