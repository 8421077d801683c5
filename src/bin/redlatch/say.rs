//! Output without panics: standard output or standard error may be closed.

use std::fmt::Display;
use std::io::Write as _;
use std::time::Duration;

use crossbeam_channel::{Receiver, bounded};

use crate::options::CommandFailure;

/// The exit status if the reader has closed its end of the pipe, as for a program ended by SIGPIPE.
const UNREAD: u8 = 141;

/// Writes a message to standard error. If that is closed, the message is discarded.
pub(crate) fn say(text: impl Display) {
    writeln!(std::io::stderr(), "redlatch: {text}").ok();
}

/// As [`say`], but a reader that does not read delays the caller only for a moment.
pub(crate) fn say_in_passing(text: String) {
    // Without a thread the message is lost, which matters less than the job.
    if let Ok(written) = beside(move || say(text)) {
        written.recv_timeout(Duration::from_millis(100)).ok();
    }
}

/// Runs work that may take long, in a thread of its own. The receiver gets the result.
pub(crate) fn beside<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> std::io::Result<Receiver<T>> {
    let (done, result) = bounded(1);
    std::thread::Builder::new().spawn(move || drop(done.send(work())))?;
    Ok(result)
}

/// Writes to standard error, without a prefix and without a line end.
pub(crate) fn ask(text: impl Display) {
    write!(std::io::stderr(), "{text}").ok();
}

/// Writes a result to standard output. A reader that has closed the pipe ends the command without a message.
pub(crate) fn print(text: impl Display) -> Result<(), CommandFailure> {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(err) if err.kind() == std::io::ErrorKind::BrokenPipe => {
            Err(CommandFailure::new(UNREAD, String::new()))
        }
        written => Ok(written?),
    }
}
