//! Runs a program while holding a lock.

use std::time::{Duration, Instant};

use crossbeam_channel::{RecvTimeoutError, Sender, unbounded};
use nix::sys::signal::{SigSet, Signal};
use redlatch::{CancelToken, Client, Config, Error};
use signal_hook::consts::{
    SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2, SIGWINCH,
};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use crate::held::{AnyHold, boxed};
use crate::job::Job;
use crate::options::{CommandFailure, LOST, Run, UNAVAILABLE, USAGE};
use crate::say::{beside, say};
use crate::shown::Shown;

/// Signals that end a wait. Once the program runs, they are passed on to it.
const ENDING: [i32; 6] = [SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2];

/// Signals that matter only while the program runs.
const RUNNING: [i32; 4] = [SIGTSTP, SIGCONT, SIGWINCH, SIGCHLD];

/// Signals that this process needs, even if they were ignored or blocked when it started.
const NEEDED: [Signal; 2] = [Signal::SIGCHLD, Signal::SIGCONT];

/// How long to wait after an error before the next attempt.
const PAUSE: Duration = Duration::from_millis(100);

/// How long to look for the holder of a lock. Connecting gets at least this long, even if `--wait` is shorter.
const LOOKING: Duration = Duration::from_millis(500);

/// How long to wait for the reply to the last release.
const CLOSING: Duration = Duration::from_secs(3);

/// Sends signals to a channel from now on. A signal that was ignored when this process started, as HUP is under `nohup`,
/// stays ignored, here and in the program, unless it is in [`NEEDED`]. On systems other than Linux, this process cannot
/// tell which signals were ignored, and handles all of them.
fn listen(
    signals: &[i32],
    sender: &Sender<i32>,
    heard: impl Fn() + Send + 'static,
) -> Result<(), CommandFailure> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    let is_ignored = |signal: i32| mask.unwrap_or(0) >> (signal - 1) & 1 == 1;
    let is_needed = |signal: i32| NEEDED.iter().any(|needed| *needed as i32 == signal);
    let is_heard = |signal: &&i32| is_needed(**signal) || !is_ignored(**signal);
    let mut handled = Signals::new(signals.iter().filter(is_heard))?;
    let sender = sender.clone();
    std::thread::spawn(move || {
        // A process inherits the mask of the one that started it. If SIGCHLD stayed blocked, no end of the program would
        // be seen. Only this thread's mask changes: the program inherits the mask of the main thread.
        SigSet::from_iter(NEEDED).thread_unblock().ok();
        for signal in handled.forever() {
            // Send first, so that the thread woken by `heard` finds the signal.
            sender.send(signal).ok();
            heard();
        }
    });
    Ok(())
}

pub(crate) fn run(config: Config, options: &Run) -> Result<u8, CommandFailure> {
    let (sender, signals) = unbounded();
    let cancelled = CancelToken::new();
    let token = cancelled.clone();
    listen(&ENDING, &sender, move || token.cancel())?;
    let (loss_sender, losses) = unbounded();
    let config = config.lease(options.lease).label("run");
    let config = config.on_lost(move |loss| drop(loss_sender.send(loss.clone())));
    let mut wait = Wait::new(options, &cancelled);
    let taken = wait.open(&config).and_then(|client| {
        let held = wait.take(&client)?;
        Ok((client, held))
    });
    if cancelled.is_cancelled() {
        match taken {
            // The hold was granted just before the signal.
            Ok((client, Some(held))) => leave_unused(&client, options, held),
            // Redis may have granted the cancelled attempt. A client sends the undo when it is dropped: here, or in the
            // closure above after an error.
            other => drop(other),
        }
        return Ok(end_by(signals.try_recv().unwrap_or(SIGTERM)));
    }
    let (client, held) = taken?;
    let Some(held) = held else {
        say_who(&client, options, "busy:");
        return Ok(options.conflict_exit_code);
    };
    let started = listen(&RUNNING, &sender, || {}).and_then(|()| {
        let job = Job::start(options, held.token());
        job.map_err(|err| not_started(options, &err))
    });
    let mut job = match started {
        Ok(job) => job,
        Err(failure) => {
            leave_unused(&client, options, held);
            return Err(failure);
        }
    };
    let ended = job.attend(&*held, &losses, &signals, options);
    let released = held.release();
    // If the release has failed, give the client time to complete it.
    client.close(CLOSING).ok();
    let was_lost = job.was_lost;
    drop(job);
    if was_lost {
        return Ok(LOST);
    }
    match released {
        Err(Error::Lost { reason, .. }) => {
            let name = Shown(&options.name);
            say(format_args!(
                "`{name}` was lost before the command ended: {reason}"
            ));
            return Ok(LOST);
        }
        Err(err) => say(err),
        Ok(()) => {}
    }
    if ended.signal == Some(Signal::SIGINT) {
        end_by(SIGINT);
    }
    Ok(u8::try_from(ended.status).unwrap_or(UNAVAILABLE))
}

/// Releases a hold under which no program was started, by dropping it. With `--min-hold` the drop would keep the name for
/// a while, so the hold is first taken away by force.
fn leave_unused(client: &Client, options: &Run, held: Box<dyn AnyHold>) {
    if options.min_hold.is_some() {
        client.force_unlock_owner(&options.name, held.owner()).ok();
    }
}

/// The status of a process that a signal ends. SIGINT really ends this process, since scripts stop at Ctrl-C only if the
/// signal ended their command. The first process of a container (number 1) is not ended by the signal, and returns the
/// status.
fn end_by(signal: i32) -> u8 {
    if signal == SIGINT && std::process::id() != 1 {
        emulate_default_handler(SIGINT).ok();
    }
    u8::try_from(128 + signal).unwrap_or(UNAVAILABLE)
}

fn not_started(options: &Run, err: &std::io::Error) -> CommandFailure {
    let status = match err.kind() {
        std::io::ErrorKind::NotFound => 127,
        _ => 126,
    };
    CommandFailure::new(status, format!("{}: {err}", options.command[0].display()))
}

/// A wait for the lock and, with `--wait`, for a Redis that is unreachable.
struct Wait<'a> {
    options: &'a Run,
    cancelled: &'a CancelToken,
    /// `None` without a limit, or with a limit beyond what the clock can represent.
    deadline: Option<Instant>,
    is_said: bool,
}

impl<'a> Wait<'a> {
    fn new(options: &'a Run, cancelled: &'a CancelToken) -> Self {
        let limit = match options.nonblock {
            true => Some(Duration::ZERO),
            false => options.wait,
        };
        Self {
            options,
            cancelled,
            deadline: limit.and_then(|limit| Instant::now().checked_add(limit)),
            is_said: limit == Some(Duration::ZERO) || options.quiet,
        }
    }

    fn left(&self) -> Duration {
        let left = |at: Instant| at.saturating_duration_since(Instant::now());
        self.deadline.map_or(Duration::MAX, left)
    }

    fn open(&mut self, config: &Config) -> Result<Client, CommandFailure> {
        loop {
            match self.opened(config.clone()) {
                Err(failure) if self.outlasts(&failure) => {}
                opened => return opened,
            }
        }
    }

    /// Opens a client in a thread of its own, so that `--wait` and a signal end the wait for a server that is silent.
    fn opened(&self, config: Config) -> Result<Client, CommandFailure> {
        let opened = beside(move || Client::open(config))?;
        // Without `--wait`, the connect timeout alone limits how long connecting may take. Even with a short `--wait`, a
        // server that works has [`LOOKING`] to answer.
        let began = Instant::now();
        let limit = self
            .options
            .wait
            .map_or(Duration::MAX, |_| self.left().max(LOOKING));
        loop {
            match opened.recv_timeout(PAUSE) {
                Ok(opened) => return opened.map_err(CommandFailure::from),
                Err(RecvTimeoutError::Timeout)
                    if !self.cancelled.is_cancelled() && began.elapsed() < limit => {}
                Err(_) => {
                    let why = "no connection to redis in time; check the address and port";
                    return Err(CommandFailure::new(UNAVAILABLE, why.into()));
                }
            }
        }
    }

    /// Acquires the lock. Before waiting, prints who holds it.
    fn take(&mut self, client: &Client) -> Result<Option<Box<dyn AnyHold>>, CommandFailure> {
        // With `--wait` the first attempt gets a short limit instead of zero: an attempt with a limit of zero may last
        // until the command timeout, which may be longer than `--wait`.
        let mut limit = match self.options.wait {
            Some(wait) => wait.min(PAUSE),
            None => Duration::ZERO,
        };
        loop {
            match attempt(client, self.options, self.cancelled, limit) {
                Ok(None) if !self.left().is_zero() => {
                    if !std::mem::replace(&mut self.is_said, true) {
                        say_who(client, self.options, "waiting for");
                    }
                }
                Err(failure) if self.outlasts(&failure) => {}
                taken => return taken,
            }
            limit = self.left();
            // The message may have taken the rest of the time.
            if limit.is_zero() {
                return Ok(None);
            }
        }
    }

    /// Whether to try again, after a pause: with `--wait`, if the failure may pass, time is left and no signal came.
    fn outlasts(&mut self, failure: &CommandFailure) -> bool {
        let is_over = self.left().is_zero() || self.cancelled.is_cancelled();
        if self.options.wait.is_none() || !failure.is_retryable || is_over {
            return false;
        }
        if !std::mem::replace(&mut self.is_said, true) {
            say(format_args!("waiting: {}", failure.why));
        }
        std::thread::sleep(PAUSE.min(self.left()));
        !self.left().is_zero()
    }
}

fn attempt(
    client: &Client,
    options: &Run,
    cancelled: &CancelToken,
    wait: Duration,
) -> Result<Option<Box<dyn AnyHold>>, CommandFailure> {
    let name = &options.name;
    if let Some(permits) = options.permits {
        let semaphore = client.expirable_semaphore(name).cancel_on(cancelled);
        if !semaphore.try_set_permits(permits)? {
            let set = semaphore.permits()?;
            if set != i64::from(permits) {
                let name = Shown(name);
                let why = format!(
                    "the number of permits of `{name}` is {set}, not {permits}; `redlatch permits {name} {permits}` changes that"
                );
                return Err(CommandFailure::new(USAGE, why));
            }
        }
        return Ok(boxed(semaphore.try_acquire_for(wait))?);
    }
    macro_rules! take {
        ($lock:ident, $take:ident) => {{
            let mut lock = client.$lock(name).cancel_on(cancelled);
            if let Some(span) = options.max_hold {
                lock = lock.max_hold(span);
            }
            if let Some(span) = options.min_hold {
                lock = lock.min_hold(span);
            }
            boxed(lock.$take(wait))
        }};
    }
    let taken = if options.shared {
        take!(rw_lock, try_read_for)
    } else if options.exclusive {
        take!(rw_lock, try_write_for)
    } else if options.fair {
        take!(fair_mutex, try_lock_for)
    } else if options.fenced {
        take!(fenced_lock, try_lock_for)
    } else {
        take!(mutex, try_lock_for)
    };
    Ok(taken?)
}

fn say_who(client: &Client, options: &Run, event: &str) {
    if options.quiet {
        return;
    }
    // In a thread of its own, since a frozen Redis would delay the exit for the command timeout.
    let (client, name) = (client.clone(), options.name.clone());
    let inspected = beside(move || client.inspect(&name));
    match inspected.map(|inspected| inspected.recv_timeout(LOOKING)) {
        Ok(Ok(Ok(info))) => say(format_args!("{event} {info}")),
        _ => say(format_args!("{event} {}", Shown(&options.name))),
    }
}
