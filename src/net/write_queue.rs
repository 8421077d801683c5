//! Bytes that wait to be written to a socket which many threads share.
//!
//! ```text
//!              queued            taken             all written
//!    empty ───────────► waiting ───────► writing ───────────────► empty
//!                         ▲              │ │ ▲
//!                         └─more queued──┘ │ │ tried again
//!                  the socket took a part  ▼ │
//!                                          full
//! ```
//!
//! - **Waiting**: a thread that has queued something writes for all, unless another writes, or a
//!   [leader](super::connection) will soon. A writer stops after [`TURNS`] writes, since it has other work. The next
//!   thread that queues, or the leader, writes the rest; if nobody leads, housekeeping is woken at once: perhaps no other
//!   thread writes.
//! - **Writing**: what others queue meanwhile is written by the thread that writes, in at most `TURNS` writes.
//! - **Full**: the server does not read. The leader tries again before each short read, and housekeeping at once and then
//!   every few milliseconds. Releases submitted now go to the ledger; once the socket has taken the rest, housekeeping is
//!   woken to send them in batches.
//!
//! The [subscriber](super::subscriber) has such a queue too, without leader, housekeeping and ledger, and without counting
//! `calls`. A thread that has queued a command writes, unless another writes or the socket is full. The rest is written by
//! the subscriber's thread before its next read, or by a thread that sends a PING.

use std::io;

use parking_lot::MutexGuard;

use crate::net::socket::Socket;

/// A thread stops after this many writes, even if others have queued more meanwhile.
const TURNS: usize = 16;

/// The largest buffer that is reused.
const SPARE: usize = 64 * 1024;

#[derive(Clone, Default)]
pub(super) struct WriteQueue {
    pub(super) bytes: Vec<u8>,
    /// The buffer that was written last, emptied. Other threads queue into it while one thread writes the other buffer.
    spare: Vec<u8>,
    /// How many calls were queued since the bytes were last taken.
    pub(super) calls: usize,
    /// Whether part of the first command in `bytes` may have been written.
    torn: bool,
    /// The socket did not take all of the last write.
    full: bool,
}

impl WriteQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Whether the last write was incomplete. Then the leader, housekeeping, and threads that flush with `all` try again.
    /// All other threads leave the bytes to them.
    pub(super) fn is_full(&self) -> bool {
        self.full
    }

    /// Whether part of a command may have been written, so that only its rest may follow.
    pub(super) fn is_torn(&self) -> bool {
        self.torn
    }

    /// Takes what is to be written; [`wrote`](Self::wrote) has to follow.
    pub(super) fn take(&mut self) -> Vec<u8> {
        self.calls = 0;
        let spare = std::mem::take(&mut self.spare);
        std::mem::replace(&mut self.bytes, spare)
    }

    /// `written` of the taken bytes are written; the rest precedes all that others have queued.
    pub(super) fn wrote(&mut self, mut bytes: Vec<u8>, written: usize) {
        self.full = written < bytes.len();
        if self.full {
            self.torn |= written > 0;
            bytes.drain(..written);
            bytes.append(&mut self.bytes);
            self.bytes = bytes;
            return;
        }
        self.torn = false;
        if bytes.capacity() <= SPARE {
            bytes.clear();
            self.spare = bytes;
        }
    }
}

/// Writes what is queued until nothing is left, the socket is full, or this thread has written for others for long enough.
/// Returns how many bytes were written, or `None` if the closure `queue` finds no connection any more.
///
/// No other thread may write in the meantime. The mutex is released while writing.
pub(super) fn write_turn<S>(
    state: &mut MutexGuard<'_, S>,
    writer: &Socket,
    queue: impl Fn(&mut S) -> Option<&mut WriteQueue>,
) -> io::Result<Option<usize>> {
    let mut total = 0;
    for turn in 1.. {
        let Some(unwritten) = queue(state) else {
            return Ok(None);
        };
        if unwritten.is_empty() {
            break;
        }
        let bytes = unwritten.take();
        let written = MutexGuard::unlocked(state, || writer.write_some(&bytes))?;
        total += written;
        let Some(unwritten) = queue(state) else {
            return Ok(None);
        };
        unwritten.wrote(bytes, written);
        if unwritten.full || turn >= TURNS {
            break;
        }
    }
    Ok(Some(total))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    use std::io::Read as _;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;
    use std::thread;

    use parking_lot::Mutex;

    /// More than a socket takes.
    const MUCH: usize = 16 * 1024 * 1024;

    fn pair() -> (Socket, UnixStream) {
        let (client, server) = UnixStream::pair().expect("a pair");
        // Without a timeout, a write that waits for space would hang.
        (Socket::Plain(OwnedFd::from(client).into()), server)
    }

    fn turn(queue: &Mutex<WriteQueue>, socket: &Socket) -> usize {
        let wrote = write_turn(&mut queue.lock(), socket, |queue| Some(queue));
        wrote.expect("it is open").expect("it stands")
    }

    #[test]
    fn a_socket_is_full_until_it_has_taken_the_rest() {
        let (socket, mut server) = pair();
        let queue = Mutex::new(WriteQueue::default());
        queue.lock().bytes = vec![7; MUCH];
        let mut written = turn(&queue, &socket);
        assert!(queue.lock().is_full() && queue.lock().is_torn());
        assert!(written > 0 && queue.lock().bytes.len() == MUCH - written);
        let reads = thread::spawn(move || {
            let mut all = vec![0; MUCH + 1];
            server.read_exact(&mut all).map(|()| all)
        });
        queue.lock().bytes.push(8);
        while !queue.lock().is_empty() {
            written += turn(&queue, &socket);
        }
        assert!(!queue.lock().is_full() && !queue.lock().is_torn());
        assert_eq!(written, MUCH + 1);
        let all = reads.join().expect("it reads").expect("all of it");
        assert!(all[MUCH] == 8 && all[..MUCH].iter().all(|byte| *byte == 7));
    }

    #[test]
    fn a_buffer_is_used_again_unless_it_is_large() {
        let mut queue = WriteQueue::default();
        for (size, is_kept) in [(100, true), (SPARE + 1, false)] {
            queue.bytes.resize(size, 7);
            let written = queue.take();
            queue.bytes.push(8);
            queue.wrote(written, size);
            assert_eq!(queue.bytes, [8], "what others have queued meanwhile");
            assert_eq!(queue.spare.capacity() > 0, is_kept);
            let rest = queue.take();
            queue.wrote(rest, 1);
            assert!(queue.is_empty() && queue.spare.is_empty());
        }
    }

    #[test]
    fn a_turn_ends_however_much_others_queue() {
        let (socket, server) = pair();
        server.set_nonblocking(true).expect("it does not wait");
        let queue = Mutex::new(WriteQueue::default());
        let wrote = write_turn(&mut queue.lock(), &socket, |queue| {
            // The server reads what is there, and others queue a byte whenever the mutex is free.
            (&server).read(&mut [0; 4096]).unwrap_or_default();
            queue.bytes.push(7);
            Some(queue)
        });
        let wrote = wrote.expect("it is open").expect("it stands");
        assert!(wrote >= TURNS, "it writes while others queue");
        let queue = queue.into_inner();
        assert!(!queue.is_empty() && !queue.is_full() && !queue.is_torn());
    }
}
