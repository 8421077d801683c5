//! The identity of this process: for `fork()`, whose child must not use the parent's objects, and for people who look
//! at Redis.

/// The process in which an object was made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Process(u32);

impl Process {
    pub(crate) fn this() -> Self {
        Self(std::process::id())
    }

    /// Whether this is a copy that `fork()` made for a child process. The child has none of the parent's threads, a
    /// mutex may be locked there forever, and connections and holds belong to the parent. The child may touch only
    /// atomics, and data behind a mutex that is free.
    pub(crate) fn is_copy(self) -> bool {
        std::process::id() != self.0
    }
}

/// The name of this machine, as far as the process can tell without asking the network; `-` if unknown.
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
    // Redis allows no spaces in the name of a connection, and colons separate its parts.
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

/// The start of the names of a client's connections, before their role.
pub(crate) fn names(client: &str, label: &str) -> String {
    format!(
        "redlatch:{client}:{}:{}:{label}",
        host(),
        std::process::id()
    )
}
