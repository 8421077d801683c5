//! The command: runs a program under a lock, and shows who holds one.

#[cfg(unix)]
mod held;
#[cfg(unix)]
mod job;
#[cfg(unix)]
mod options;
#[cfg(unix)]
mod run;
#[cfg(unix)]
mod say;
#[cfg(unix)]
mod show;
#[cfg(unix)]
#[path = "../../shown.rs"]
mod shown;

#[cfg(unix)]
fn main() -> std::process::ExitCode {
    match std::env::args_os().next() {
        Some(name) if name == job::GUARDIAN => job::guard(),
        _ => options::main(),
    }
}

#[cfg(not(unix))]
fn main() -> std::process::ExitCode {
    use std::io::Write as _;
    writeln!(std::io::stderr(), "redlatch: the command runs on Unix only").ok();
    std::process::ExitCode::from(69)
}
