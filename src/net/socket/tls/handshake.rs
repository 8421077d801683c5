//! The TLS handshake of a connection in the making.

use std::io;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{RedisError, RedisResult};
use rustls::ClientConnection;
use rustls::pki_types::ServerName;

use super::TlsStream;
use super::failure::Context;
use crate::config::tls::TlsSettings;
use crate::error::lasting;
use crate::net::socket::{CONNECT_SLICE, Meanwhile, WRITE_SLICE, timed_out};

/// A connection that agrees on its keys.
pub(in crate::net::socket) struct Securing {
    socket: TcpStream,
    tls: ClientConnection,
    context: Context,
    /// The read timeout of the socket.
    timeout: Duration,
    /// The server has said something.
    heard: bool,
}

impl Securing {
    /// `host` is where the connection leads to, which is who the server has to be unless the settings say otherwise.
    pub(in crate::net::socket) fn new(
        settings: &TlsSettings,
        host: &str,
        socket: TcpStream,
    ) -> RedisResult<Self> {
        let name = match &settings.name {
            Some(name) => name.clone(),
            None => ServerName::try_from(host.to_owned()).map_err(|_| {
                lasting(format!(
                    "no certificate is for `{host}`; say who the server is with `TlsConfig::server_name`"
                ))
            })?,
        };
        let context = Context::of(settings);
        let tls = ClientConnection::new(Arc::clone(&settings.rustls), name)
            .map_err(|err| context.explain(&err))?;
        socket.set_write_timeout(Some(WRITE_SLICE))?;
        Ok(Self {
            socket,
            tls,
            context,
            timeout: Duration::ZERO,
            heard: false,
        })
    }

    /// Goes on; whether the keys are agreed on.
    pub(in crate::net::socket) fn advance(
        &mut self,
        by: Instant,
        meanwhile: Meanwhile<'_>,
    ) -> RedisResult<bool> {
        loop {
            self.write()?;
            if !self.tls.is_handshaking() && !self.tls.wants_write() {
                return Ok(true);
            }
            let left = by.saturating_duration_since(Instant::now());
            if left.is_zero() || !meanwhile() {
                return Ok(false);
            }
            if !self.tls.is_handshaking() {
                continue;
            }
            let slice = left.clamp(Duration::from_millis(1), CONNECT_SLICE);
            if self.timeout != slice {
                self.socket.set_read_timeout(Some(slice))?;
                self.timeout = slice;
            }
            match self.tls.read_tls(&mut &self.socket) {
                Ok(0) => return Err(closed(io::ErrorKind::UnexpectedEof)),
                Ok(_) => {
                    self.heard = true;
                    if let Err(err) = self.tls.process_new_packets() {
                        // The server may want to know why; the reason is given here all the same.
                        self.write().unwrap_or_default();
                        return Err(self.context.explain(&err));
                    }
                }
                Err(err) if is_pause(&err) => {}
                Err(err) => return Err(closed(err.kind())),
            }
        }
    }

    fn write(&mut self) -> RedisResult<()> {
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut &self.socket) {
                Ok(_) => {}
                Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
                Err(err) if is_pause(&err) => break,
                Err(err) => return Err(closed(err.kind())),
            }
        }
        Ok(())
    }

    /// What it waits for. A redis without TLS takes the beginning of a handshake for that of a command, and waits as well.
    pub(in crate::net::socket) fn waits_for(&self) -> RedisError {
        timed_out(if self.heard {
            "the server did not finish the TLS handshake in time"
        } else {
            "the server did not answer the TLS handshake in time; if it does not speak TLS, the URL begins with `redis`"
        })
    }

    pub(in crate::net::socket) fn done(self) -> TlsStream {
        TlsStream::new(self.socket, self.tls, self.context)
    }
}

fn is_pause(err: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(err.kind(), Interrupted | TimedOut | WouldBlock)
}

fn closed(kind: io::ErrorKind) -> RedisError {
    let what = "the server closed the connection during the TLS handshake; does it speak TLS on this port?";
    io::Error::new(kind, what).into()
}
