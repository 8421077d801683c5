//! **Ending on SIGTERM.** A process that is simply ended leaves its locks until their
//! leases are over, 30 s unless set. Closing the client releases them at once, and ends the
//! waits of all threads.
//!
//! Here with the crate `signal-hook`. Threads at work find `lost()` or `is_valid()` on
//! their guards.

use std::time::Duration;

use redlatch::Client;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Closes the client at the first signal, in a thread of its own; to be called once, when
/// the process starts.
pub fn close_on_signal(client: &Client) -> std::io::Result<std::thread::JoinHandle<()>> {
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    let client = client.clone();
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            if signals.forever().next().is_some()
                && let Err(err) = client.close(Duration::from_secs(5))
            {
                eprintln!("not all locks were released: {err}");
            }
        })
}
