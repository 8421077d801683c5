//! Signals to processes that a test has started.

use std::fs;
use std::path::Path;
use std::process::Child;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::eventually;

/// Sends one of our children a signal.
pub(crate) fn send(child: &Child, signal: Signal) {
    let pid = i32::try_from(child.id()).expect("a pid is an i32");
    kill(Pid::from_raw(pid), signal).expect("our child takes our signals");
}

/// SIGSTOP; returns once it has come.
pub(crate) fn stop(child: &Child) {
    send(child, Signal::SIGSTOP);
    let stat = format!("/proc/{}/stat", child.id());
    if Path::new(&stat).exists() {
        eventually("the process is stopped", || {
            fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") T "))
        });
    }
}
