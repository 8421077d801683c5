//! **From async programs.** Lock, work and unlock in one closure, on a thread that may
//! block; or lock there, and keep an owned guard.
//!
//! Only an owned guard may live across an `.await`. For any other a thread is an owner, and
//! futures of one task run on the same thread: under `join!` two of them would both get a
//! reentrant lock, and a `mutex` says `WouldDeadlock`. The compiler helps where a task may
//! move between threads, since these guards are not `Send`.

use redlatch::{Client, OwnedMutexGuard, Result};

/// Runs `work` on a thread for blocking calls, while holding the lock.
pub async fn with_lock<T: Send + 'static>(
    client: &Client,
    name: String,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    let client = client.clone();
    blocking(move || {
        let guard = client.mutex(name).lock()?;
        let done = work();
        guard.unlock()?;
        Ok(done)
    })
    .await
}

/// Waits on a thread for blocking calls, and returns a guard that may live across an
/// `.await`. Dropping it never waits. `unlock` waits, so it belongs on such a thread too;
/// so does dropping the last handle or guard of a client, which closes the client and
/// may take 2 s while Redis is unreachable.
pub async fn lock(client: &Client, name: String) -> Result<OwnedMutexGuard> {
    let client = client.clone();
    blocking(move || client.mutex(name).lock_owned()).await
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
    }
}
