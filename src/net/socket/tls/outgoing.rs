//! Encrypted bytes on their way to the socket, in the order of their encryption. Memory only: no I/O.
//!
//! A writer is told how many bytes of its *plain text* are written, and offers the others again. What is encrypted once must
//! not be encrypted twice, so bytes that it offers again and that are here already are only counted:
//!
//! ```text
//!              sealed            wrote               collect
//!    offered ─────────► pending ─────────► writable ─────────► reported to the writer, which offers the rest
//!             encrypted         the socket
//!                               has taken it
//! ```

/// The largest buffer that is kept for the next bytes.
const SPARE: usize = 64 * 1024;

#[derive(Default)]
pub(super) struct Outgoing {
    /// Encrypted, and not in anybody's hands.
    bytes: Vec<u8>,
    /// An empty buffer for the next bytes.
    spare: Vec<u8>,
    /// Somebody has taken bytes and writes them.
    is_writing: bool,
    /// Plain text that is encrypted and not reported.
    unreported: usize,
    /// How much of that the socket has taken.
    written: usize,
}

impl Outgoing {
    /// Nothing is to be written; somebody may be writing.
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(super) fn is_writing(&self) -> bool {
        self.is_writing
    }

    /// Nothing that was encrypted is left, and the writer knows: what is encrypted next begins a command of its own.
    pub(super) fn is_clean(&self) -> bool {
        !self.is_writing && self.bytes.is_empty() && self.unreported == 0
    }

    /// Where encrypted bytes are to be appended.
    pub(super) fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// What was appended last is so much plain text.
    pub(super) fn sealed(&mut self, plain: usize) {
        self.unreported += plain;
    }

    /// Takes what is to be written; [`Outgoing::wrote`] has to follow, and nobody else takes any before.
    pub(super) fn take(&mut self) -> Vec<u8> {
        debug_assert!(!self.is_writing, "one at a time");
        self.is_writing = true;
        std::mem::replace(&mut self.bytes, std::mem::take(&mut self.spare))
    }

    /// The socket has taken so many of the bytes that were taken from here; the rest goes before all that came meanwhile.
    pub(super) fn wrote(&mut self, mut bytes: Vec<u8>, taken: usize) {
        self.is_writing = false;
        if taken < bytes.len() {
            bytes.drain(..taken);
            bytes.append(&mut self.bytes);
            self.bytes = bytes;
            // A sign of life counts at once, but the last byte is written only when the last of the encrypted ones is.
            let most = self.unreported.saturating_sub(1);
            self.written = most.min(self.written + taken);
            return;
        }
        // What came meanwhile is the protocol's own: nobody encrypts plain text while somebody writes.
        self.written = self.unreported;
        if bytes.capacity() <= SPARE {
            bytes.clear();
            self.spare = bytes;
        }
    }

    /// How much plain text is written since this was last asked.
    pub(super) fn collect(&mut self) -> usize {
        self.unreported -= self.written;
        std::mem::take(&mut self.written)
    }

    /// How many bytes at the beginning of what the writer offers are encrypted already.
    pub(super) fn offered_again(&self) -> usize {
        self.unreported
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_while_somebody_writes_goes_behind_the_rest() {
        for taken in 0..=4 {
            let mut outgoing = Outgoing::default();
            outgoing.buffer().extend(b"text");
            outgoing.sealed(3);
            let bytes = outgoing.take();
            assert!(outgoing.is_writing() && !outgoing.is_clean());
            outgoing.buffer().extend(b"keys");
            outgoing.wrote(bytes, taken);
            // All of the text, or less than that.
            let reported = outgoing.collect();
            assert_eq!(reported, if taken == 4 { 3 } else { taken.min(2) });
            assert_eq!(outgoing.offered_again(), 3 - reported);
            let bytes = outgoing.take();
            assert_eq!(bytes, b"textkeys"[taken..]);
            let all = bytes.len();
            outgoing.wrote(bytes, all);
            assert_eq!(outgoing.collect(), 3 - reported);
            assert!(outgoing.is_clean());
        }
    }
}
