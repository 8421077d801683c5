//! The command: runs a program under a lock, and shows who holds one.

#[cfg(unix)]
mod held;
#[cfg(unix)]
mod options;
#[cfg(unix)]
mod run;
#[cfg(unix)]
mod show;

#[cfg(unix)]
fn main() -> std::process::ExitCode {
    options::main()
}

#[cfg(not(unix))]
fn main() -> std::process::ExitCode {
    eprintln!("redlatch: the command runs on Unix only");
    std::process::ExitCode::from(69)
}
