//! **Tests without Redis.** Give the code that works under a lock a way to run something
//! alone, instead of a client: the program passes one that locks in Redis, a test one that
//! locks in memory.
//!
//! For failures that only Redis can cause, such as losing a lock, test with a real
//! server: one starts in 10 ms, on a free port or a Unix socket.

use std::sync::Mutex;

use redlatch::{Client, Result};

/// Runs work under a name, never two at once.
pub trait Alone {
    fn alone(&self, name: &str, work: &mut dyn FnMut()) -> Result<()>;
}

impl Alone for Client {
    fn alone(&self, name: &str, work: &mut dyn FnMut()) -> Result<()> {
        self.mutex(name).with(|_guard| work())
    }
}

/// For tests: all names exclude each other, within this process.
#[derive(Default)]
pub struct InMemory(Mutex<()>);

impl Alone for InMemory {
    fn alone(&self, _name: &str, work: &mut dyn FnMut()) -> Result<()> {
        let _guard = self.0.lock();
        work();
        Ok(())
    }
}
