//! Runs a program while holding a lock.

use std::ffi::OsString;
use std::io::IsTerminal as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, after, never, select, unbounded};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getppid};
use redlatch::{CancelToken, Client, Config, Error};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;

use crate::held::{Held, boxed};
use crate::options::{Failure, LOST, Run, UNAVAILABLE};

/// What the shell says of a program that a signal has ended.
fn status_of(status: ExitStatus) -> u8 {
    let code = status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok())
        .unwrap_or(UNAVAILABLE)
}

/// The signals that come from now on. While nothing runs the first of them cancels the wait.
fn signals(waiting: &CancelToken) -> Result<Receiver<i32>, Failure> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCHLD])?;
    let (sender, receiver) = unbounded();
    let waiting = waiting.clone();
    std::thread::spawn(move || {
        for signal in signals.forever() {
            if signal != SIGCHLD {
                waiting.cancel();
            }
            if sender.send(signal).is_err() {
                return;
            }
        }
    });
    Ok(receiver)
}

pub(crate) fn run(config: Config, its: &Run) -> Result<u8, Failure> {
    let waiting = CancelToken::new();
    let signals = signals(&waiting)?;
    let client = Client::open(config.lease(its.lease).label("run"))?;
    let held = match take(&client, its, &waiting) {
        Ok(Some(held)) => held,
        Ok(None) => {
            say_who(&client, its, "busy:");
            return Ok(its.conflict_exit_code);
        }
        Err(Error::Cancelled) => {
            let signal = signals.try_iter().find(|signal| *signal != SIGCHLD);
            return Ok(u8::try_from(128 + signal.unwrap_or(SIGTERM)).unwrap_or(UNAVAILABLE));
        }
        Err(err) => return Err(err.into()),
    };
    let child = start(its, held.token())?;
    let (status, was_lost) = attend(child, &*held, &signals, its.grace)?;
    let released = held.release();
    // So that nothing is left behind, whatever has become of the release.
    client.close(Duration::from_secs(3)).ok();
    match released {
        _ if was_lost => Ok(LOST),
        Err(Error::Lost { reason, .. }) => {
            eprintln!(
                "redlatch: `{}` was lost before the command ended: {reason}",
                its.name
            );
            Ok(LOST)
        }
        Err(err) => {
            eprintln!("redlatch: {err}");
            Ok(status_of(status))
        }
        Ok(()) => Ok(status_of(status)),
    }
}

/// Takes the lock, and says who has it if that takes waiting.
fn take(
    client: &Client,
    its: &Run,
    waiting: &CancelToken,
) -> redlatch::Result<Option<Box<dyn Held>>> {
    let wait = match its.nonblock {
        true => Some(Duration::ZERO),
        false => its.wait,
    };
    let began = Instant::now();
    let first = attempt(client, its, waiting, Some(Duration::ZERO))?;
    if first.is_some() || wait == Some(Duration::ZERO) {
        return Ok(first);
    }
    say_who(client, its, "waiting for");
    let left = wait.map(|wait| wait.saturating_sub(began.elapsed()));
    attempt(client, its, waiting, left)
}

fn attempt(
    client: &Client,
    its: &Run,
    waiting: &CancelToken,
    wait: Option<Duration>,
) -> redlatch::Result<Option<Box<dyn Held>>> {
    // What the clock cannot tell is no limit.
    let wait = wait.unwrap_or(Duration::MAX);
    if let Some(permits) = its.permits {
        let semaphore = client.expirable_semaphore(&its.name).cancel_on(waiting);
        semaphore.try_set_permits(permits)?;
        return boxed(semaphore.try_acquire_for(wait));
    }
    macro_rules! take {
        ($lock:ident, $take:ident) => {{
            let mut lock = client.$lock(&its.name).cancel_on(waiting);
            if let Some(span) = its.max_hold {
                lock = lock.max_hold(span);
            }
            if let Some(span) = its.at_least {
                lock = lock.at_least(span);
            }
            boxed(lock.$take(wait))
        }};
    }
    if its.shared {
        take!(rwlock, try_read_for)
    } else if its.exclusive {
        take!(rwlock, try_write_for)
    } else if its.fair {
        take!(fair_mutex, try_lock_for)
    } else if its.fenced {
        take!(fenced_lock, try_lock_for)
    } else {
        take!(mutex, try_lock_for)
    }
}

fn say_who(client: &Client, its: &Run, what: &str) {
    match client.inspect(&its.name) {
        Ok(info) => eprintln!("redlatch: {what} {info}"),
        Err(_) => eprintln!("redlatch: {what} {}", its.name),
    }
}

/// Starts the program. On Linux it dies with this process: otherwise it would go on without the lock.
fn start(its: &Run, token: Option<u64>) -> Result<Child, Failure> {
    let program = &its.command[0];
    let mut command = match std::env::current_exe() {
        Ok(this) if cfg!(target_os = "linux") => {
            let mut command = Command::new(this);
            command
                .arg("become")
                .arg(std::process::id().to_string())
                .arg("--")
                .args(&its.command);
            command
        }
        _ => {
            let mut command = Command::new(program);
            command.args(&its.command[1..]);
            command
        }
    };
    command.env("REDLATCH_NAME", &its.name);
    if let Some(token) = token {
        command.env("REDLATCH_TOKEN", token.to_string());
    }
    command.spawn().map_err(|err| not_run(program, &err))
}

fn not_run(program: &OsString, err: &std::io::Error) -> Failure {
    Failure {
        status: match err.kind() {
            std::io::ErrorKind::NotFound => 127,
            _ => 126,
        },
        why: format!("{}: {err}", program.display()),
    }
}

/// Becomes the program, which the system ends with the process that has started it.
pub(crate) fn become_command(parent: i32, command: &[OsString]) -> Result<u8, Failure> {
    #[cfg(target_os = "linux")]
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).map_err(std::io::Error::from)?;
    if getppid() != Pid::from_raw(parent) {
        // It died before that was set.
        return Ok(LOST);
    }
    let program = &command[0];
    let err = Command::new(program).args(&command[1..]).exec();
    Err(not_run(program, &err))
}

/// Waits for the program, passes signals on to it, and ends it if the lock is lost.
fn attend(
    mut child: Child,
    held: &dyn Held,
    signals: &Receiver<i32>,
    grace: Duration,
) -> Result<(ExitStatus, bool), Failure> {
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap_or(i32::MAX));
    // Those of the keyboard go to all processes of the terminal anyway.
    let is_on_terminal = std::io::stdin().is_terminal();
    let (mut lost, mut kill_at) = (held.lost().clone(), never());
    let mut was_lost = false;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok((status, was_lost));
        }
        select! {
            recv(signals) -> signal => match signal {
                Ok(SIGINT | SIGQUIT) if is_on_terminal => {}
                Ok(SIGCHLD) => {}
                Ok(signal) => {
                    if let Ok(signal) = Signal::try_from(signal) {
                        // It has not been waited for, so the number is still its own.
                        kill(pid, signal).ok();
                    }
                }
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            },
            recv(lost) -> loss => {
                lost = never();
                if let Ok(loss) = loss {
                    eprintln!("redlatch: `{}` is lost: {}; the command is ended", loss.name, loss.reason);
                    was_lost = true;
                    kill(pid, Signal::SIGTERM).ok();
                    kill_at = after(grace);
                }
            },
            recv(kill_at) -> _ => {
                kill(pid, Signal::SIGKILL).ok();
            },
        }
    }
}
