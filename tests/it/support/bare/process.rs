//! This process and its children: names, ports, threads and memory.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A name that no other test uses, in any process.
pub(crate) fn unique(prefix: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{prefix}:{}:{n}", std::process::id())
}

/// A loopback port that was free when it was tested.
///
/// The port lies below the kernel's ephemeral range, so no outgoing connection takes it while its server is down, and
/// the next calls return other ports.
pub(crate) fn free_port() -> u16 {
    const LOWEST: u16 = 10_000;
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let ephemeral = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")
        .ok()
        .and_then(|range| range.split_whitespace().next()?.parse().ok())
        .unwrap_or(0_u16);
    let below = u64::from(ephemeral.saturating_sub(LOWEST));
    // Other test processes begin elsewhere.
    let first = u64::from(std::process::id()) * 97;
    let known = (0..below.min(1000)).find_map(|_| {
        let n = (first + NEXT.fetch_add(1, Ordering::Relaxed)) % below;
        let port = LOWEST + u16::try_from(n).ok()?;
        TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok()?;
        Some(port)
    });
    known.unwrap_or_else(|| {
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .and_then(|listener| listener.local_addr())
            .expect("a free loopback port")
            .port()
    })
}

/// The number of threads of this process, including those of this module; 0 without `/proc`.
pub(crate) fn thread_count() -> usize {
    threads_named("")
}

/// The number of threads of this process whose name starts with `prefix`, of which the kernel keeps the first 15 bytes.
///
/// Threads that are exiting do not count, because the kernel still lists a thread for a moment after it was joined.
pub(crate) fn threads_named(prefix: &str) -> usize {
    let known = &prefix[..prefix.len().min(15)];
    let Ok(tasks) = fs::read_dir("/proc/self/task") else {
        return 0;
    };
    let counts = |stat: &String| {
        let name = stat.split_once('(').map_or("", |(_, name)| name);
        name.starts_with(known) && !is_ending(stat)
    };
    tasks
        .flatten()
        .filter_map(|task| fs::read_to_string(task.path().join("stat")).ok())
        .filter(counts)
        .count()
}

/// Whether the thread is exiting (`PF_EXITING`); the flag is set before a join returns.
fn is_ending(stat: &str) -> bool {
    const FLAGS_AFTER_NAME: usize = 6;
    const EXITING: u64 = 4;
    let flags = stat.rsplit_once(") ").and_then(|(_, fields)| {
        let flags = fields.split(' ').nth(FLAGS_AFTER_NAME)?;
        flags.parse::<u64>().ok()
    });
    flags.is_some_and(|flags| flags & EXITING != 0)
}

/// Resident memory of this process in KiB; 0 without `/proc`.
pub(crate) fn rss_kib() -> u64 {
    fs::read_to_string("/proc/self/status")
        .ok()
        .and_then(|status| {
            let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
            line.split_whitespace().nth(1)?.parse().ok()
        })
        .unwrap_or(0)
}

/// Locks `mutex`, even if a test panicked while it held it.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
