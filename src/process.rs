//! The identity of this process: for `fork()`, whose child must not use the parent's objects, and for people who look
//! at Redis.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;

use uuid::{Builder, Uuid};

/// The process in which an object was made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HomeProcess(u32);

impl HomeProcess {
    pub(crate) fn this() -> Self {
        Self(std::process::id())
    }

    /// Whether this is a copy that `fork()` made for a child process. The child has none of the parent's threads, a mutex
    /// may be locked there forever, and connections and holds belong to the parent. The child may use atomics. It must not
    /// lock a mutex of the client.
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

/// A new id for a client. Random, but on Linux it also says in which process the client is, so that [`is_gone`] can tell.
///
/// | bytes | |
/// | --- | --- |
/// | 0 to 5 | the [`view`] of the process |
/// | 9 to 11 | its number |
/// | the others | 50 random bits, and the version, 8 |
///
/// Where the view is unknown, or the process's number needs more than 24 bits, it is a random UUID, version 4.
pub(crate) fn client_id() -> Uuid {
    let random = Uuid::new_v4();
    let [0, pid @ ..] = std::process::id().to_be_bytes() else {
        return random;
    };
    let Some(view) = view() else {
        return random;
    };
    let mut bytes = random.into_bytes();
    bytes[..6].copy_from_slice(&view);
    bytes[9..12].copy_from_slice(&pid);
    Builder::from_custom_bytes(bytes).into_uuid()
}

/// A hash of the boot, the pid namespace and the user. If two processes have the same hash, each finds the other in `/proc`
/// by its process id. `None` where `/proc` is missing, or shows another namespace.
///
/// The kernel reuses the number of a namespace only after all its processes have ended. An id that was made in an earlier
/// namespace may have the same hash as ours. Its process has ended, so `is_gone` is right if it says so. The hash contains
/// the user because `/proc` may hide the processes of others.
fn view() -> Option<[u8; 6]> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let namespace = fs::read_link("/proc/self/ns/pid").ok()?;
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = |name: &str| {
        let mut lines = status.lines().filter_map(|line| line.strip_prefix(name));
        lines.next().map(str::trim)
    };
    // `NSpid` has more than one number if `/proc` shows a namespace above that of this process. In that namespace another
    // process may have the number that `std::process::id` returns.
    if line("NSpid:")? != std::process::id().to_string() {
        return None;
    }
    let mut hasher = DefaultHasher::new();
    (boot, namespace, line("Uid:")?).hash(&mut hasher);
    let [_, _, view @ ..] = hasher.finish().to_be_bytes();
    Some(view)
}

/// Whether the process of the client with the id `other` has certainly ended, as far as the process of the client `own_id`
/// can see that. It counts as alive if another process has got its number, or if its parent has not waited for it.
pub(crate) fn is_gone(other: &str, own_id: &str) -> bool {
    let read = |id: &str| {
        let id = Uuid::try_parse(id)
            .ok()
            .filter(|id| id.get_version_num() == 8)?;
        let bytes = id.into_bytes();
        let pid = u32::from_be_bytes([0, bytes[9], bytes[10], bytes[11]]);
        Some((<[u8; 6]>::try_from(&bytes[..6]).ok()?, pid))
    };
    let (Some((view, pid)), Some((own_view, _))) = (read(other), read(own_id)) else {
        return false;
    };
    view == own_view && matches!(Path::new(&format!("/proc/{pid}")).try_exists(), Ok(false))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn an_id_tells_whether_its_process_has_ended() {
        let own_id = client_id();
        assert_eq!(own_id.get_version_num(), 8);
        let id_of = |pid: u32| {
            let mut bytes = own_id.into_bytes();
            bytes[9..12].copy_from_slice(&pid.to_be_bytes()[1..]);
            Builder::from_custom_bytes(bytes).into_uuid().to_string()
        };
        let own_id = own_id.to_string();
        assert_ne!(client_id().to_string(), own_id);
        assert_eq!(id_of(std::process::id()), own_id);
        assert!(!is_gone(&own_id, &own_id));
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .expect("a child");
        let child_id = id_of(child.id());
        assert!(!is_gone(&child_id, &own_id));
        child.kill().expect("our child");
        child.wait().expect("our child");
        assert!(is_gone(&child_id, &own_id));
        // On another machine, of another user, or of a client that is not ours, nobody knows.
        let elsewhere = format!("0123{}", &child_id[4..]);
        for other in [elsewhere, Uuid::new_v4().to_string(), "7".into()] {
            assert!(!is_gone(&other, &own_id), "{other}");
            assert!(!is_gone(&child_id, &other), "{other}");
        }
    }
}
