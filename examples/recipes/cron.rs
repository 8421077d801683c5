//! **Once a minute, on whichever host.** The same job starts on every host at about the
//! same time; one of them does it.
//!
//! `min_hold` keeps the name after the job has ended, so a host whose clock is late
//! finds it taken. Choose a time shorter than the interval and longer than the clocks
//! differ. If the host dies in the middle, the name is free after its lease, and the
//! next round does the job.

use std::time::Duration;

use redlatch::{Client, Result};

/// To be called by every host once a minute; says whether this one has done the job.
pub fn every_minute(client: &Client, job: impl FnOnce()) -> Result<bool> {
    let lock = client
        .mutex("cron:report")
        .min_hold(Duration::from_secs(55));
    let Some(guard) = lock.try_lock()? else {
        return Ok(false); // another host does it, or has done it in this minute
    };
    job();
    guard.unlock()?; // an error if the lock was lost while the job ran
    Ok(true)
}
