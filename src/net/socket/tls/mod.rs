//! An encrypted connection: two threads use it at once, one to read and one to write.
//!
//! The TLS session cannot be split between the two threads, so a mutex guards it. The mutex is held for cryptography
//! alone, never while the socket is read or written, so that a thread that waits for a reply keeps nobody from sending:
//!
//! ```text
//!    write: lock, encrypt, unlock ──► socket     in the order of encryption: one writes at a time
//!    read:  socket ──► lock, decrypt, unlock
//! ```
//!
//! The thread that reads may have to answer (a change of keys). If no thread is writing, it sends the answer at once;
//! otherwise the answer is queued before the bytes that are written next.
//!
//! Bytes must not be encrypted twice. So if the socket does not take all encrypted bytes, `write_some` keeps them and
//! reports the last plain byte as unwritten. The caller offers that byte again until all encrypted bytes are written; it
//! is not encrypted again.

mod failure;
mod handshake;

use std::fmt;
use std::io::{self, Read, Write};
use std::net::TcpStream;

use parking_lot::{Condvar, Mutex, MutexGuard};
use redis::RedisError;
use redis::io::tcp::socket2::SockRef;
use rustls::ClientConnection;

pub(super) use self::handshake::secure;
use super::{GLANCE, WriteAtOnce, written};
use crate::config::tls::TlsContext;
use crate::report::report;

/// How many encrypted bytes are read at once.
const READ: usize = 8 * 1024;

pub(crate) struct TlsStream<S = TcpStream> {
    socket: S,
    session: Mutex<TlsSession>,
    /// Notified when a thread has finished writing.
    written: Condvar,
}

/// This end of a TLS connection, without its socket.
struct TlsSession {
    tls: ClientConnection,
    /// Encrypted, and not written.
    outgoing: Vec<u8>,
    /// A thread has taken the bytes and writes them.
    is_writing: bool,
    /// The last plain byte was encrypted, but reported as unwritten.
    is_held: bool,
    /// Decrypted, and how much of it has been read.
    incoming: Vec<u8>,
    read: usize,
    /// Nothing more comes.
    has_ended: bool,
    /// Why, if there is more to say than that the server closed the connection.
    failure: Option<RedisError>,
    context: TlsContext,
}

impl TlsSession {
    fn new(tls: ClientConnection, context: TlsContext) -> Self {
        Self {
            tls,
            outgoing: Vec::new(),
            is_writing: false,
            is_held: false,
            incoming: Vec::new(),
            read: 0,
            has_ended: false,
            failure: None,
            context,
        }
    }

    /// Encrypts `plain`, behind the bytes that are encrypted already.
    fn seal(&mut self, plain: &[u8]) -> io::Result<()> {
        let mut rest = plain;
        while !rest.is_empty() {
            // The session takes as much as it has memory for.
            let n = self.tls.writer().write(rest)?;
            rest = &rest[n..];
            self.fetch();
            if n == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
        }
        Ok(())
    }

    /// Moves encrypted bytes to where they are written from.
    fn fetch(&mut self) {
        while self.tls.wants_write() {
            // To memory, which takes everything.
            if self.tls.write_tls(&mut self.outgoing).is_err() {
                break;
            }
        }
    }

    /// Decrypts what has come; an empty slice is the end of the stream.
    fn feed(&mut self, mut encrypted: &[u8]) {
        let at_end = encrypted.is_empty();
        while !self.has_ended {
            // This reads from memory, so it fails only if too much is unprocessed, and each round processes everything.
            let fed = self.tls.read_tls(&mut encrypted).unwrap_or_default();
            if let Err(err) = self.tls.process_new_packets() {
                self.failure = Some(self.context.explain(&err));
                self.has_ended = true;
            }
            // `WouldBlock` means that more may come. Everything else ends the stream, even without the server's
            // `close_notify`: a reply that was cut off is noticed, since each reply says where it ends.
            let drained = self.tls.reader().read_to_end(&mut self.incoming);
            self.has_ended |=
                drained.map_or_else(|err| err.kind() != io::ErrorKind::WouldBlock, |_| true);
            if at_end || encrypted.is_empty() || fed == 0 {
                break;
            }
        }
        self.fetch();
    }

    /// Hands out what is decrypted; `None` if more has to be read first.
    fn drain(&mut self, buf: &mut [u8]) -> Option<usize> {
        let unread = &self.incoming[self.read..];
        if unread.is_empty() {
            return self.has_ended.then_some(0);
        }
        let n = unread.len().min(buf.len());
        buf[..n].copy_from_slice(&unread[..n]);
        self.read += n;
        if self.read == self.incoming.len() {
            self.read = 0;
            self.incoming.clear();
            self.incoming.shrink_to(READ);
        }
        Some(n)
    }

    /// Whether all encrypted bytes are written, and the caller knows that. Then the server has only whole commands, and the
    /// next bytes begin a new one.
    fn is_clean(&self) -> bool {
        !self.is_writing && self.outgoing.is_empty() && !self.is_held
    }

    fn has_plain_text(&self) -> bool {
        self.read < self.incoming.len()
    }
}

impl<S: WriteAtOnce> TlsStream<S>
where
    for<'a> &'a S: Read,
{
    fn new(socket: S, tls: ClientConnection, context: TlsContext) -> Self {
        Self {
            socket,
            session: Mutex::new(TlsSession::new(tls, context)),
            written: Condvar::new(),
        }
    }

    pub(super) fn socket(&self) -> &S {
        &self.socket
    }

    /// Reads plain text; `Interrupted` if what came holds none, so that the caller can look at the clock.
    pub(super) fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        if let Some(n) = self.session.lock().drain(buf) {
            return Ok(n);
        }
        let mut encrypted = [0; READ];
        let n = (&self.socket).read(&mut encrypted)?;
        let mut session = self.session.lock();
        session.feed(&encrypted[..n]);
        let drained = session.drain(buf);
        // An answer of the protocol. If a thread is writing, it stays in `outgoing`, before the bytes that are written
        // next.
        if !session.outgoing.is_empty() && !session.is_writing {
            // What the socket does not take stays queued. A failure shows in the next read.
            let answered = self.push(&mut session);
            drop(session);
            if let Err(err) = answered {
                report!(Trace, "answering over TLS failed: {err}");
            }
        }
        drained.ok_or_else(|| io::ErrorKind::Interrupted.into())
    }

    /// Why the connection ended, if that is known better than by its socket.
    pub(super) fn failure(&self) -> Option<RedisError> {
        self.session.lock().failure.clone()
    }

    /// Encrypts and writes. Returns how many bytes of `plain` the caller may drop: all; all but the last if the socket did
    /// not take everything; 0 if earlier bytes are unwritten or being written. The caller has to offer the rest again,
    /// before any other bytes.
    pub(super) fn write_some(&self, plain: &[u8]) -> io::Result<usize> {
        let mut session = self.session.lock();
        if session.is_writing {
            // A thread that reads may be writing an answer of the protocol.
            self.written.wait_for(&mut session, GLANCE);
        }
        let is_behind =
            session.is_writing || !session.outgoing.is_empty() && !self.push(&mut session)?;
        if is_behind || plain.is_empty() {
            return Ok(0);
        }
        let held = usize::from(std::mem::take(&mut session.is_held));
        session.seal(&plain[held..])?;
        session.is_held = !self.push(&mut session)?;
        Ok(plain.len() - usize::from(session.is_held))
    }

    /// Writes the last bytes; does nothing if earlier bytes are not completely written.
    pub(super) fn write_last(&self, plain: &[u8]) -> io::Result<()> {
        if self.session.lock().is_clean() {
            self.write_some(plain)?;
        }
        Ok(())
    }

    /// Writes once what there is, without the mutex. Returns whether the socket has taken all of it.
    fn push(&self, session: &mut MutexGuard<'_, TlsSession>) -> io::Result<bool> {
        let bytes = std::mem::take(&mut session.outgoing);
        session.is_writing = true;
        let wrote = MutexGuard::unlocked(session, || written(&self.socket, &bytes));
        session.is_writing = false;
        self.written.notify_one();
        let rest = &bytes[*wrote.as_ref().unwrap_or(&0)..];
        // The rest goes before all bytes that were queued since.
        session.outgoing.splice(..0, rest.iter().copied());
        wrote.map(|_| rest.is_empty())
    }

    /// Whether the server has ended the connection, or has said what nobody asked for. The socket must be one that does
    /// not block, and no other thread may be reading or writing.
    ///
    /// Messages of TLS itself (new session tickets, a change of keys) do not count.
    pub(super) fn has_ended(&self) -> bool {
        let mut buf = [0; 1];
        loop {
            if self.session.lock().has_plain_text() {
                return true;
            }
            match self.read(&mut buf) {
                Ok(_) => return true,
                Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
                Err(err) => return err.kind() != io::ErrorKind::WouldBlock,
            }
        }
    }
}

impl TlsStream {
    /// Tells the server that nothing follows (`close_notify`), without waiting. Does nothing if a thread is writing or
    /// earlier bytes are unwritten. The caller shuts the socket down.
    pub(super) fn say_goodbye(&self) {
        let mut session = self.session.lock();
        if !session.is_clean() {
            return;
        }
        session.tls.send_close_notify();
        session.fetch();
        // The socket stays non-blocking, since nothing is written after this. After `finish`, a thread may still read: each
        // of its reads returns at once, so it reads again without a pause until its slice ends.
        let said = SockRef::from(&self.socket)
            .set_nonblocking(true)
            .and_then(|()| self.push(&mut session));
        drop(session);
        if let Err(err) = said {
            report!(Trace, "ending a TLS connection failed: {err}");
        }
    }
}

impl fmt::Debug for TlsStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsStream")
            .field("socket", &self.socket)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
