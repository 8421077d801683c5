//! The addresses of a host.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::time::Instant;

use super::{Endpoint, Meanwhile};

/// What a look-up has found.
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
    let look_up = move || {
        (name.as_str(), port)
            .to_socket_addrs()
            .map(Iterator::collect)
    };
    let found = endpoint
        .lookups
        .ask("redlatch-resolve", look_up, by, meanwhile)?;
    found.transpose()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use crate::config::server::Server;
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
            endpoint.lookups.leave_behind(lookup);
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
}
