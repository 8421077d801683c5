//! Detects `fork()`: a child must not use what its parent has made.

/// The process in which something was made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Process(u32);

impl Process {
    pub(crate) fn this() -> Self {
        Self(std::process::id())
    }

    /// Whether this is a copy that `fork()` made for a child process: the threads are missing there, mutexes may be locked
    /// for ever, and connections and holds are the parent's. Nothing but atomics may be touched, and what a mutex guards
    /// that is free.
    pub(crate) fn is_copy(self) -> bool {
        std::process::id() != self.0
    }
}
