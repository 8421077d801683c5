//! rlock 0.2 with its synchronous API and its defaults, but for the TTL, and for the limits of the connections.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redis::Commands;
use rlock::sync_lock::{PoolOptions, RLock, RLockGuard};
use rlock::{AcquireError, AcquireOptions, LeaseState, RenewalMode};
use serde_json::{Value, json};

use crate::library::{Failure, Hold, Library, Request, Servers, failed};

pub fn described() -> Value {
    json!({
        "library": "rlock", "version": "0.2.0", "renews": true, "guards": false,
        "kinds": ["mutex"], "deployments": ["one"],
    })
}

struct Rlock {
    locks: RLock,
    lease: Duration,
    writing: Arc<Writing>,
}

/// rlock lends no connection, so writes have their own.
struct Writing {
    client: redis::Client,
    timeout: Duration,
    connection: Mutex<Option<redis::Connection>>,
}

pub fn open(servers: &Servers) -> Result<Arc<dyn Library>, Failure> {
    let url = servers.urls[0].as_str();
    let limits = PoolOptions::new()
        .connection_timeout(Some(servers.timeout))
        .response_timeout(Some(servers.timeout));
    Ok(Arc::new(Rlock {
        locks: RLock::new_with_pool_options(url, limits).map_err(failed)?,
        lease: servers.lease,
        writing: Arc::new(Writing {
            client: redis::Client::open(url).map_err(failed)?,
            timeout: servers.timeout,
            connection: Mutex::new(None),
        }),
    }))
}

impl Library for Rlock {
    fn lock(&self, request: &Request) -> Result<Box<dyn Hold>, Failure> {
        let mut options = AcquireOptions::builder().ttl(request.lease.unwrap_or(self.lease));
        if request.lease.is_some() {
            options = options.renewal_mode(RenewalMode::Disabled);
        }
        // Zero would be no attempt at all.
        let wait = request.wait.filter(|wait| !wait.is_zero());
        let options = options.lock_timeout(wait).build().map_err(failed)?;
        let (locks, name) = (&self.locks, request.names[0].as_str());
        let guard = match request.wait {
            Some(Duration::ZERO) => locks.try_acquire_mutex_with_options(name, options),
            _ => locks.acquire_mutex_with_options(name, options).map(Some),
        };
        match guard {
            Ok(Some(guard)) => Ok(Box::new(Held {
                guard,
                writing: Arc::clone(&self.writing),
            })),
            Ok(None) | Err(AcquireError::LockTimeout) => Err(Failure::Busy),
            Err(error) => Err(failed(error)),
        }
    }
}

struct Held {
    guard: RLockGuard,
    writing: Arc<Writing>,
}

impl Hold for Held {
    fn keep(&self, limit: Duration) -> Option<String> {
        let until = Instant::now() + limit;
        loop {
            if self.guard.lease_state() != LeaseState::Active {
                return Some("lease_state() is Lost".to_owned());
            }
            let time_left = until.saturating_duration_since(Instant::now());
            if time_left.is_zero() {
                return None;
            }
            std::thread::sleep(time_left.min(Duration::from_millis(5)));
        }
    }

    // The deadline is known to rlock, but it has no method for it.
    fn valid_until(&self) -> Option<Instant> {
        None
    }

    fn token(&self) -> Option<u64> {
        None
    }

    fn write(&self, key: &str, entry: &str) -> Result<(), Failure> {
        let mut connection = self.writing.connection.lock().expect("no panic");
        let mut open = match connection.take() {
            Some(open) => open,
            None => self.writing.connect()?,
        };
        // A connection that failed is replaced.
        let () = open.rpush(key, entry).map_err(failed)?;
        *connection = Some(open);
        Ok(())
    }

    // A release of what is not held any more is no error of rlock, but the state before it says so.
    fn unlock(mut self: Box<Self>) -> Result<(), Failure> {
        let was_lost = self.guard.lease_state() != LeaseState::Active;
        self.guard.release().map_err(failed)?;
        match was_lost {
            true => Err(Failure::Lost("lease_state() was Lost".to_owned())),
            false => Ok(()),
        }
    }
}

impl Writing {
    fn connect(&self) -> Result<redis::Connection, Failure> {
        let connection = self
            .client
            .get_connection_with_timeout(self.timeout)
            .map_err(failed)?;
        connection
            .set_read_timeout(Some(self.timeout))
            .map_err(failed)?;
        connection
            .set_write_timeout(Some(self.timeout))
            .map_err(failed)?;
        Ok(connection)
    }
}
