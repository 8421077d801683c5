//! The TLS handshake of a connection in the making.

use std::io;
use std::net::TcpStream;
use std::sync::Arc;

use redis::{RedisError, RedisResult};
use rustls::ClientConnection;
use rustls::pki_types::ServerName;

use super::TlsStream;
use crate::config::tls::TlsSettings;
use crate::error::lasting;
use crate::net::socket::dial::Dial;
use crate::net::socket::{GLANCE, timed_out};

/// The reason of a timeout before the server has sent anything. A server without TLS takes the handshake for an unfinished
/// command, and waits for more.
const BEGINNING: &str =
    "the server did not answer the TLS handshake in time; if it does not speak TLS, use redis://";
const REST: &str = "the server did not finish the TLS handshake in time";

/// Makes the TLS handshake over `socket`. The server has to prove by its certificate that it is `host`, or the name in the
/// settings if one is set there.
pub(in crate::net::socket) fn secure(
    settings: &TlsSettings,
    host: &str,
    socket: TcpStream,
    dial: &Dial,
) -> RedisResult<TlsStream> {
    let name = match &settings.name {
        Some(name) => name.clone(),
        None => ServerName::try_from(host.to_owned()).map_err(|_| {
            lasting(format!(
                "no certificate can be for `{host}`; set a name of the server with `TlsConfig::server_name`"
            ))
        })?,
    };
    let context = settings.context;
    let mut tls = ClientConnection::new(Arc::clone(&settings.rustls), name)
        .map_err(|err| context.explain(&err))?;
    dial.set_reason(timed_out(BEGINNING));
    while tls.is_handshaking() || tls.wants_write() {
        let time_left = Some(dial.left()?);
        if tls.wants_write() {
            socket.set_write_timeout(time_left)?;
            done(tls.write_tls(&mut &socket))?;
            continue;
        }
        socket.set_read_timeout(time_left)?;
        match done(tls.read_tls(&mut &socket))? {
            None => continue,
            Some(0) => return Err(closed(io::ErrorKind::UnexpectedEof)),
            Some(_) => dial.set_reason(timed_out(REST)),
        }
        if let Err(err) = tls.process_new_packets() {
            // Tries to send the alert that tells the server the reason. The caller gets the reason in any case.
            tls.write_tls(&mut &socket).unwrap_or_default();
            return Err(context.explain(&err));
        }
    }
    socket.set_write_timeout(Some(GLANCE))?;
    Ok(TlsStream::new(socket, tls, context))
}

/// How many bytes were read or written; `None` if the time was over or a signal came.
fn done(io: io::Result<usize>) -> RedisResult<Option<usize>> {
    match io {
        Ok(n) => Ok(Some(n)),
        Err(err) if is_pause(&err) => Ok(None),
        Err(err) => Err(closed(err.kind())),
    }
}

fn is_pause(err: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(err.kind(), Interrupted | TimedOut | WouldBlock)
}

fn closed(kind: io::ErrorKind) -> RedisError {
    let reason = "the server closed the connection during the TLS handshake; does it speak TLS on this port?";
    io::Error::new(kind, reason).into()
}
