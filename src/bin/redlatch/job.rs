//! The processes that run under a lock: the program, and everything that it starts in its process group.
//!
//! The group is the job's own, so a signal to the group reaches the whole job and nothing else. If the program makes
//! a group of its own, as `timeout` and interactive shells do, signals go to that group too.
//!
//! - The terminal, if there is one, belongs to the group while the program needs it, and to this process's group
//!   otherwise. If the program stops, this process takes the terminal back and stops too, so the shell sees a stopped
//!   job.
//! - On Linux, orphans of the job become children of this process, which therefore sees them end.
//! - On Linux, a second process of this executable, the guardian, kills the job if this process is killed. The guardian
//!   leads the group and exists before the program does. While the guardian exists, the number of the group is not reused.

use std::fs::File;
use std::io::{IsTerminal as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, after, at, never, select};
use nix::errno::Errno;
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill, killpg, raise};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, getpgid, getpgrp, getsid, tcgetpgrp, tcsetpgrp};
use redlatch::Loss;
use signal_hook::consts::{SIGCHLD, SIGCONT, SIGTERM, SIGUSR1, SIGUSR2};

use crate::held::AnyHold;
use crate::options::Run;
use crate::say::{say, say_in_passing};
use crate::shown::Shown;

/// The name under which the guardian runs.
pub(crate) const GUARDIAN: &str = "redlatch-guardian";

/// How often to look at processes of the job, since not all of them announce their end.
const POLL: Duration = Duration::from_millis(50);

/// Three limits that happen to be the same. For this long after its start, the program is watched in case it makes a group
/// of its own. If processes of the job outlive the program by this long, a message says so. If the program stops by
/// SIGSTOP within this time after a SIGTSTP, the stop counts as the answer to it.
const PATIENCE: Duration = Duration::from_secs(1);

/// How a program ended.
#[derive(Clone, Copy)]
pub(crate) struct Ended {
    /// The exit status as a shell shows it.
    pub(crate) status: i32,
    pub(crate) signal: Option<Signal>,
}

pub(crate) struct Job {
    program: Pid,
    /// The process group. The guardian leads it; if there is no guardian, the program does.
    group: Pid,
    /// The group that the program has made for itself.
    own_group: Option<Pid>,
    ended: Option<Ended>,
    pub(crate) was_lost: bool,
    kill_at: Option<Instant>,
    remind_at: Option<Instant>,
    /// The controlling terminal.
    terminal: Option<File>,
    /// Whether the program has asked for the terminal, or had it from the start.
    needs_terminal: bool,
    /// When SIGTSTP was passed on. A program that handles SIGTSTP may stop itself by SIGSTOP a moment later.
    told_to_stop_at: Option<Instant>,
    guardian: Option<Child>,
}

impl Job {
    pub(crate) fn start(options: &Run, token: Option<u64>) -> std::io::Result<Self> {
        #[cfg(target_os = "linux")]
        nix::sys::prctl::set_child_subreaper(true).ok();
        let mut guardian = guardian();
        let leader = guardian
            .as_ref()
            .map_or(0, |guardian| guardian.id().cast_signed());
        let spawn = |mut command: Command| {
            command
                .args(&options.command[1..])
                .env("REDLATCH_NAME", &options.name);
            match token {
                Some(token) => command.env("REDLATCH_TOKEN", token.to_string()),
                // The program must not take the token of an outer lock for a token of this one.
                None => command.env_remove("REDLATCH_TOKEN"),
            };
            command.process_group(leader).spawn()
        };
        let program = Path::new(&options.command[0]);
        let mut spawned = spawn(Command::new(program));
        // A script without `#!` is run by the shell, as `execvp` does.
        if let Err(err) = &spawned
            && err.raw_os_error() == Some(Errno::ENOEXEC as i32)
            && let Some(script) = found(program)
        {
            let mut shell = Command::new("/bin/sh");
            shell.arg(script);
            spawned = spawn(shell);
        }
        let program = match spawned {
            Ok(program) => program.id().cast_signed(),
            Err(err) => {
                dismiss(guardian);
                return Err(err);
            }
        };
        tell(&mut guardian, program);
        // SIGTTOU is blocked, so that this thread may take the terminal back, and write to it, while the group has it. The
        // program would inherit the mask, so this comes after its start.
        SigSet::from(Signal::SIGTTOU).thread_block().ok();
        let job = Self {
            program: Pid::from_raw(program),
            group: Pid::from_raw(if leader == 0 { program } else { leader }),
            own_group: None,
            ended: None,
            was_lost: false,
            kill_at: None,
            remind_at: None,
            terminal: File::open("/dev/tty").ok(),
            // In a pipeline, such as `redlatch run … | less`, another member may need the terminal: lend it on demand.
            needs_terminal: std::io::stdin().is_terminal() && std::io::stdout().is_terminal(),
            told_to_stop_at: None,
            guardian,
        };
        if job.needs_terminal {
            job.lend_terminal();
        }
        Ok(job)
    }

    /// Passes signals on until the whole group has ended. If the lock is lost, ends the group.
    pub(crate) fn attend(
        &mut self,
        held: &dyn AnyHold,
        losses: &Receiver<Loss>,
        signals: &Receiver<i32>,
        options: &Run,
    ) -> Ended {
        let began = Instant::now();
        loop {
            self.look();
            let timer = match self.ended {
                Some(ended) if self.is_over() => {
                    self.leave_terminal(ended);
                    return ended;
                }
                Some(_) => after(POLL),
                // The keyboard's signals go to the group that has the terminal. So a group that the program makes at its
                // start has to be given the terminal. Nothing announces it, so look for it.
                None if self.needs_terminal
                    && self.own_group.is_none()
                    && began.elapsed() < PATIENCE =>
                {
                    after(POLL)
                }
                None => self.kill_at.map_or_else(never, at),
            };
            select! {
                recv(signals) -> signal => match signal {
                    Ok(SIGCHLD) => {}
                    Ok(SIGTERM) => self.end(options.grace),
                    Ok(SIGCONT) => {
                        // The lease may have expired while this process was stopped.
                        if !held.is_valid() {
                            self.end(options.grace);
                        }
                        self.resume();
                    }
                    Ok(signal) => self.pass_on(signal),
                    Err(_) => std::thread::sleep(POLL),
                },
                recv(losses) -> loss => match loss {
                    // Only the loss of this hold counts: `losses` has those of all holds of the client.
                    Ok(loss) if loss.owner == held.owner() => {
                        self.was_lost = true;
                        self.end(options.grace);
                        let name = Shown(&loss.name);
                        say_in_passing(format!("`{name}` was lost: {}; ending the command", loss.reason));
                    }
                    _ => {}
                },
                recv(timer) -> _ => self.on_time(&options.name),
            }
        }
    }

    fn is_guardian(&self, pid: Pid) -> bool {
        let guardian = self.guardian.as_ref();
        guardian.is_some_and(|guardian| guardian.id().cast_signed() == pid.as_raw())
    }

    fn groups(&self) -> impl Iterator<Item = Pid> {
        [self.group].into_iter().chain(self.own_group)
    }

    /// Whether all processes of the groups, except the guardian, have ended.
    fn is_over(&self) -> bool {
        let (Some(guardian), Ok(all)) = (&self.guardian, std::fs::read_dir("/proc")) else {
            return self
                .groups()
                .all(|group| killpg(group, None) == Err(Errno::ESRCH));
        };
        let guardian = guardian.id().to_string();
        let groups: Vec<_> = self.groups().map(|group| group.to_string()).collect();
        let is_left = |process: std::fs::DirEntry| {
            let stat = std::fs::read_to_string(process.path().join("stat")).ok()?;
            // The process name, in parentheses, may contain anything.
            let mut fields = stat.rsplit_once(") ")?.1.split(' ');
            let (state, _, its_group) = (fields.next()?, fields.next()?, fields.next()?);
            // A process whose main thread has ended is shown as a zombie while its other threads run.
            let threads: u32 = fields.nth(14)?.parse().ok()?;
            let is_another = process.file_name() != *guardian;
            let is_ours = groups.iter().any(|group| group == its_group);
            (is_another && is_ours && (state != "Z" || threads > 1)).then_some(())
        };
        all.flatten().find_map(is_left).is_none()
    }

    fn signal(&self, signal: Signal) {
        for group in self.groups() {
            killpg(group, signal).ok();
        }
    }

    /// Checks whether the program has made a group of its own. The number of such a group is the program's process id, so
    /// no other group can have it until the program is reaped.
    fn look_for_own_group(&mut self) {
        if self.ended.is_none() && getpgid(Some(self.program)) == Ok(self.program) {
            let previous_group = self.own_group;
            self.own_group = Some(self.program).filter(|group| *group != self.group);
            if self.own_group != previous_group && self.needs_terminal {
                self.lend_terminal();
            }
        }
    }

    fn pass_on(&mut self, signal: i32) {
        self.look_for_own_group();
        let Ok(named) = Signal::try_from(signal) else {
            return;
        };
        match signal {
            // Only the program gets this signal: the default action would end the processes that it started.
            SIGUSR1 | SIGUSR2 if self.ended.is_none() => {
                kill(self.program, named).ok();
            }
            SIGUSR1 | SIGUSR2 => {}
            _ => {
                if named == Signal::SIGTSTP {
                    self.told_to_stop_at = Some(Instant::now());
                }
                self.signal(named);
            }
        }
    }

    fn end(&mut self, grace: Duration) {
        self.look_for_own_group();
        self.signal(Signal::SIGTERM);
        // A stopped process handles the signal only once it continues.
        self.signal(Signal::SIGCONT);
        self.kill_at = self.kill_at.or(Instant::now().checked_add(grace));
    }

    fn on_time(&mut self, name: &str) {
        let now = Instant::now();
        if self.kill_at.take_if(|at| *at <= now).is_some() {
            self.look_for_own_group();
            self.signal(Signal::SIGKILL);
        }
        if self.ended.is_some() && *self.remind_at.get_or_insert(now + PATIENCE) <= now {
            self.remind_at = Some(now + Duration::from_secs(3600));
            let name = Shown(name);
            say_in_passing(format!(
                "`{name}` stays held: the command has ended, processes that it started have not"
            ));
        }
    }

    /// Handles all changes of state of the program, and reaps orphans.
    fn look(&mut self) {
        loop {
            self.look_for_own_group();
            match waitpid(None, Some(WaitPidFlag::WNOHANG | WaitPidFlag::WUNTRACED)) {
                Ok(WaitStatus::Exited(pid, status)) if pid == self.program => {
                    self.record_end(status, None);
                }
                Ok(WaitStatus::Signaled(pid, signal, _)) if pid == self.program => {
                    self.record_end(128 + signal as i32, Some(signal));
                }
                Ok(WaitStatus::Stopped(pid, signal)) if pid == self.program => self.on_stop(signal),
                Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => return,
                Ok(WaitStatus::Exited(pid, _) | WaitStatus::Signaled(pid, ..))
                    if self.is_guardian(pid) =>
                {
                    // The guardian was killed. Forget it: its number may be reused.
                    self.guardian = None;
                }
                // `EINVAL`: a child was ended by a real-time signal, which `Signal` cannot express. The child may be the
                // program.
                Err(Errno::EINVAL) if self.ended.is_none() => {
                    let is_gone = kill(self.program, None) == Err(Errno::ESRCH);
                    if is_gone {
                        self.record_end(128, None);
                    }
                }
                Ok(_) | Err(Errno::EINVAL) => {}
                Err(_) => return,
            }
        }
    }

    fn record_end(&mut self, status: i32, signal: Option<Signal>) {
        self.ended = Some(Ended { status, signal });
        if self.own_group.is_none() {
            // From now on the program's number may be reused, so the guardian must not kill a group of that number.
            tell(&mut self.guardian, 0);
        }
    }

    /// The program has stopped. Lends the terminal if the program waits for it; otherwise stops this process as well.
    fn on_stop(&mut self, signal: Signal) {
        let asks_for_terminal = matches!(signal, Signal::SIGTTIN | Signal::SIGTTOU);
        self.needs_terminal |= asks_for_terminal;
        if asks_for_terminal && self.lend_terminal() {
            return self.signal(Signal::SIGCONT);
        }
        let had_terminal = self.return_terminal();
        let told_at = self.told_to_stop_at.take();
        let is_told = told_at.is_some_and(|at| at.elapsed() < PATIENCE);
        if signal == Signal::SIGSTOP && !had_terminal && !is_told {
            // SIGSTOP was sent to the program alone, which may be continued alone: keep renewing the lease until then.
            return;
        }
        if getsid(None) == Ok(getpgrp()) {
            // No shell in this session could continue the job.
            return self.resume();
        }
        // No process of the job may work while this one does not renew the lease.
        self.signal(Signal::SIGSTOP);
        match had_terminal {
            // The keyboard's signal went to the job alone. Stop the rest of this process's group too, such as the script
            // that started this process.
            true => killpg(getpgrp(), Signal::SIGSTOP).ok(),
            false => raise(Signal::SIGSTOP).ok(),
        };
    }

    /// Continues the job, because this process was continued.
    fn resume(&self) {
        if self.needs_terminal {
            self.lend_terminal();
        }
        self.signal(Signal::SIGCONT);
    }

    /// Takes the terminal back. If the job had it and SIGINT or SIGQUIT ended the program, the keyboard's signal reached
    /// only the job. So it is passed on to this process's group, which may contain the script that started this process.
    fn leave_terminal(&self, ended: Ended) {
        let had_terminal = self.return_terminal();
        if let Some(signal @ (Signal::SIGINT | Signal::SIGQUIT)) = ended.signal
            && had_terminal
        {
            killpg(getpgrp(), signal).ok();
        }
    }

    /// Gives the terminal to the program's group, if the terminal belongs to this process's group or to another group of
    /// the job. Returns whether the program's group has the terminal.
    fn lend_terminal(&self) -> bool {
        // The program may have left a group that it made.
        let now = getpgid(Some(self.program)).ok();
        let group = self
            .groups()
            .find(|group| Some(*group) == now)
            .unwrap_or(self.group);
        self.terminal.as_ref().is_some_and(|terminal| {
            let foreground = tcgetpgrp(terminal);
            let is_ours = || {
                foreground == Ok(getpgrp()) || self.groups().any(|group| foreground == Ok(group))
            };
            foreground == Ok(group) || is_ours() && tcsetpgrp(terminal, group).is_ok()
        })
    }

    /// Takes the terminal back. Returns whether the job had it.
    fn return_terminal(&self) -> bool {
        self.terminal.as_ref().is_some_and(|terminal| {
            let foreground = tcgetpgrp(terminal);
            self.groups().any(|group| foreground == Ok(group))
                && tcsetpgrp(terminal, getpgrp()).is_ok()
        })
    }
}

/// The file that a program's name stands for.
fn found(program: &Path) -> Option<PathBuf> {
    if program.components().count() > 1 || program.has_root() {
        return Some(program.to_owned());
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|folder| Path::new(".").join(folder).join(program))
        .find(|file| {
            let found = file.metadata();
            found.is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
        })
}

impl Drop for Job {
    fn drop(&mut self) {
        dismiss(self.guardian.take());
    }
}

fn dismiss(guardian: Option<Child>) {
    if let Some(mut guardian) = guardian {
        guardian.kill().ok();
        guardian.wait().ok();
    }
}

/// Tells the guardian which group to kill besides its own; zero for none.
fn tell(guardian: &mut Option<Child>, group: i32) {
    let input = guardian
        .as_mut()
        .and_then(|guardian| guardian.stdin.as_mut());
    if let Some(input) = input {
        writeln!(input, "{group}").ok();
    }
}

/// Starts the process that kills the job if this process is killed.
#[cfg(target_os = "linux")]
fn guardian() -> Option<Child> {
    // Unlike a path, this link leads to the same executable even if it was replaced on disk.
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0(GUARDIAN)
        .process_group(0)
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    // The guardian inherits this mask, so that signals to the group do not end it.
    let previous_mask = SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK);
    let guardian = command.spawn();
    if let Ok(previous_mask) = previous_mask {
        previous_mask.thread_set_mask().ok();
    }
    if let Err(err) = &guardian {
        say(format_args!(
            "the command would outlive a kill of this process: {err}"
        ));
    }
    guardian.ok()
}

#[cfg(not(target_os = "linux"))]
fn guardian() -> Option<Child> {
    None
}

/// Runs the guardian. The end of its input means that the process that started it was killed: then it kills the job.
pub(crate) fn guard() -> ExitCode {
    let mut own_group = None;
    for line in std::io::stdin().lines().map_while(Result::ok) {
        own_group = line.parse().ok().filter(|group| *group > 1);
    }
    if let Some(group) = own_group {
        killpg(Pid::from_raw(group), Signal::SIGKILL).ok();
    }
    killpg(getpgrp(), Signal::SIGKILL).ok();
    ExitCode::SUCCESS
}
