//! Which process this is: for `fork()`, whose child must not use what its parent has made, and for those who look at Redis.

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

/// The name of this machine, as far as the process can tell without asking the network; `-` if it cannot.
fn host() -> String {
    let said = ["/proc/sys/kernel/hostname", "/etc/hostname"]
        .into_iter()
        .filter_map(|file| std::fs::read_to_string(file).ok())
        .chain(
            ["HOSTNAME", "COMPUTERNAME"]
                .into_iter()
                .filter_map(|name| std::env::var(name).ok()),
        )
        .map(|said| said.trim().to_owned())
        .find(|said| !said.is_empty());
    // Redis takes no spaces in the name of a connection, and colons are between its parts.
    let fits = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    let fitting = said
        .unwrap_or_default()
        .chars()
        .take(64)
        .map(|c| if fits(c) { c } else { '_' })
        .collect::<String>();
    if fitting.is_empty() {
        "-".into()
    } else {
        fitting
    }
}

/// What the names of a client's connections begin with. Their role follows.
pub(crate) fn names(client: &str, label: &str) -> String {
    format!(
        "redlatch:{client}:{}:{}:{label}",
        host(),
        std::process::id()
    )
}
