//! The addresses of a host.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::time::Instant;

use super::{Endpoint, Meanwhile};

/// What a look-up of a host has found; the ports say nothing.
pub(super) type Lookup = io::Result<Vec<SocketAddr>>;

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
    let name = host.to_owned();
    let look_up = move || (name.as_str(), 0).to_socket_addrs().map(Iterator::collect);
    let found = endpoint
        .lookups
        .ask(host, "redlatch-resolve", look_up, by, meanwhile)?;
    let mut found = found.transpose()?;
    for addr in found.iter_mut().flatten() {
        addr.set_port(port);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use crate::config::server::{Address, Server};
    use crate::net::socket::aside::AGE;

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
            endpoint.lookups.leave_behind("localhost", lookup);
            let by = Instant::now() + Duration::from_secs(10);
            resolve(&endpoint, "localhost", 7, by, &mut || true)
                .expect("an answer")
                .expect("in time")
        };
        let now = Instant::now();
        assert_eq!(resolved(now), elsewhere);
        let before = now.checked_sub(2 * AGE).expect("a clock that ran");
        let addrs = resolved(before);
        assert!(addrs.iter().all(|addr| addr.ip().is_loopback()));
        assert!(!addrs.contains(&elsewhere[0]), "{addrs:?}");
    }

    #[test]
    fn a_look_up_under_way_is_one_for_all_servers_of_a_host() {
        let server = Server::of("redis://somewhere:7", String::new());
        let endpoint = Endpoint::new(server.expect("a good URL"));
        let (answer, lookup) = crossbeam_channel::bounded(1);
        endpoint.lookups.leave_behind("localhost", lookup);
        let resolved = |host: &str, by| {
            let other = endpoint.like(Address::Tcp(host.into(), 8));
            resolve(&other, host, 8, by, &mut || true).expect("no failure")
        };
        let now = Instant::now();
        // It is waited for, whichever server asks, and left behind.
        for _ in 0..2 {
            assert_eq!(resolved("localhost", now), None);
        }
        let addr = SocketAddr::from(([127, 9, 9, 9], 0));
        answer.send((now, Ok(vec![addr]))).expect("a free slot");
        let by = now + Duration::from_secs(10);
        let others = resolved("127.0.0.1", by).expect("in time");
        assert!(!others.contains(&SocketAddr::new(addr.ip(), 8)));
        let addrs = resolved("localhost", by).expect("in time");
        assert_eq!(addrs, [SocketAddr::new(addr.ip(), 8)]);
    }
}
