//! **Tests without Redis.** Give the code that works under a lock a way to run something
//! alone, instead of a client: the program passes one that locks in Redis, a test one that
//! locks in memory.
//!
//! What only Redis can do, such as losing a lock, is worth a test with a real server: one
//! starts in 10 ms, on a free port or a Unix socket.

use std::sync::Mutex;

use redlatch::{Client, Result};

/// Runs something while nobody else runs something of that name.
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
