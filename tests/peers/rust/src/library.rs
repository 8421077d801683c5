//! The requirements on a library.

use std::time::{Duration, Instant};

/// Why a request was not granted or not done.
pub enum Failure {
    Busy,
    /// The lock was certainly not held.
    Lost(String),
    Error(String),
}

/// Any other error.
pub fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::Error(error.to_string())
}

/// The request of a thread.
pub struct Request {
    pub kind: String,
    pub names: Vec<String>,
    /// `None`: without limit; zero: one attempt.
    pub wait: Option<Duration>,
    /// A lease that is not renewed.
    pub lease: Option<Duration>,
}

/// The servers that the driver opens.
pub struct Servers {
    pub urls: Vec<String>,
    pub lease: Duration,
    pub timeout: Duration,
}

/// A library on the servers of the driver.
pub trait Library: Send + Sync {
    fn lock(&self, request: &Request) -> Result<Box<dyn Hold>, Failure>;
}

/// An acquired lock.
pub trait Hold {
    /// Waits for a loss, up to `limit`; why the library believes that the hold is over.
    fn keep(&self, limit: Duration) -> Option<String>;
    fn valid_until(&self) -> Option<Instant>;
    fn token(&self) -> Option<u64>;
    fn write(&self, key: &str, entry: &str) -> Result<(), Failure>;
    fn unlock(self: Box<Self>) -> Result<(), Failure>;
}
