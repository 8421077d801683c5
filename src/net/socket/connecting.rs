//! The steps of connecting to one address. They block; all but the look-up and the user's function end with the attempt's
//! time.

#[cfg(not(unix))]
use std::io;

use redis::RedisResult;

use super::dial::Dial;
use super::greeting::greet;
use super::opening::open;
use super::{Duplex, Endpoint, Socket, timed_out};
use crate::config::server::Address;

/// Connects to one address and greets the server.
pub(in crate::net) fn connect_to(dial: &mut Dial, endpoint: &Endpoint) -> RedisResult<Duplex> {
    let socket = open_socket(dial, endpoint)?;
    dial.set_reason(timed_out(
        "the function given to Config::credentials did not return in time",
    ));
    let login = dial.unbounded(|| endpoint.login())?;
    dial.set_reason(timed_out("redis did not answer the greeting in time"));
    greet(endpoint, dial, &login, socket)
}

fn open_socket(dial: &mut Dial, endpoint: &Endpoint) -> RedisResult<Socket> {
    match endpoint.address()? {
        Address::Tcp(host, port) => {
            let stream = open(host, *port, dial)?;
            #[cfg(feature = "tls")]
            if let Some(settings) = &endpoint.server.tls {
                let stream = super::tls::secure(settings, host, stream, dial)?;
                return Ok(Socket::Tls(Box::new(stream)));
            }
            Ok(Socket::Plain(stream))
        }
        #[cfg(unix)]
        Address::Unix(path) => Ok(Socket::Plain(super::opening::open_unix(path, dial)?)),
        #[cfg(not(unix))]
        Address::Unix(_) => Err(io::Error::from(io::ErrorKind::Unsupported).into()),
    }
}
