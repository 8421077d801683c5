//! **From async programs.** Lock, work and unlock in one closure, on a thread that may block.
//!
//! A guard must not live across an `.await`. Futures of one task run on the same thread, and a thread is an owner: under
//! `join!` two of them would both get a reentrant lock, and a `mutex` says `WouldDeadlock`. The compiler helps where a
//! task may move between threads, since guards are not `Send`.

use redlatch::{Client, Result};

/// Runs `work` on a thread for blocking calls, while holding the lock.
pub async fn with_lock<T: Send + 'static>(
    client: &Client,
    name: String,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    let client = client.clone();
    let done = tokio::task::spawn_blocking(move || {
        let guard = client.mutex(name).lock()?;
        let done = work();
        guard.unlock()?;
        Ok(done)
    });
    match done.await {
        Ok(done) => done,
        Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
    }
}
