//! **Migrations when a service starts.** Many replicas of it start together; the first one
//! migrates, the others wait and then find nothing to do.
//!
//! A limit on the wait turns a migration that hangs into a start that fails, which the
//! operators of the service notice.

use std::time::Duration;

use redlatch::Client;

type Failure = Box<dyn std::error::Error>;

/// `version` reads how far the database is, `migrate` brings it from there to `wanted`.
pub fn migrate(
    client: &Client,
    wanted: u32,
    version: impl Fn() -> u32,
    migrate: impl FnOnce(u32),
) -> Result<bool, Failure> {
    if version() >= wanted {
        return Ok(false);
    }
    let lock = client.mutex("migrations");
    let Some(guard) = lock.try_lock_for(Duration::from_secs(300))? else {
        return Err("another replica has been migrating for five minutes".into());
    };
    // Perhaps another replica migrated while this one waited.
    let found = version();
    if found < wanted {
        migrate(found);
    }
    guard.unlock()?;
    Ok(found < wanted)
}
