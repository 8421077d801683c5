//! The processes of a job: none outlives the lock, and each gets a signal as often as it was sent.

use std::any::Any;
use std::fs;
use std::io::{BufRead as _, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};
use std::time::Instant;

use nix::sys::signal::Signal;
use nix::unistd::Pid;
use redlatch::Client;

use super::{done, redlatch, runs, started};
use crate::support::{
    Mode, Proxy, Server, Target, deployments, eventually, ms, unique, unless_late,
};

/// The state of a process in the kernel, for example `T` if it is stopped; `None` for a process that has ended.
fn state(pid: Pid) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let state = stat.rsplit_once(") ")?.1.chars().next()?;
    Some(state).filter(|state| *state != 'Z')
}

#[track_caller]
fn pid(says: &mut impl std::io::BufRead) -> Pid {
    let mut line = String::new();
    says.read_line(&mut line).unwrap();
    Pid::from_raw(line.trim().parse().unwrap())
}

/// A script like the README's: its shell waits for the program that works.
const SCRIPT: &str = "sh -c 'echo ready; echo $$; exec sleep 100'; echo after";

#[cfg(target_os = "linux")]
#[test]
fn no_process_of_a_job_outlives_the_lock() {
    let pipeline = "sleep 100 | sh -c 'echo ready; echo $$; exec cat' | cat";
    for deployment in deployments() {
        let server = Server::start_as(deployment);
        // `timeout` creates a process group of its own.
        let own_group = "exec timeout 100 sh -c 'echo ready; echo $$; exec sleep 100'";
        for script in [SCRIPT, pipeline, own_group] {
            for (event, status) in [("lost", 70), ("TERM", 143), ("INT", 130), ("KILL", 0)] {
                let name = unique(event);
                let (mut running, mut says) = runs(&server, &["--lease", "3s"], &name, script);
                let worker = pid(&mut says);
                assert!(state(worker).is_some());
                match event {
                    "lost" => drop(server.cli(&["DEL", &name])),
                    "TERM" => running.signal(Signal::SIGTERM),
                    "INT" => running.signal(Signal::SIGINT),
                    "KILL" => running.signal(Signal::SIGKILL),
                    _ => {}
                }
                if event == "KILL" {
                    running.0.wait().unwrap();
                    eventually("its processes have ended", || state(worker).is_none());
                } else {
                    assert_eq!(running.shell_status(), status, "{event}: {script}");
                    // The worker ends before the name is released.
                    assert_eq!(state(worker), None, "{event}: {script}");
                }
                let mut rest = String::new();
                says.read_to_string(&mut rest).unwrap();
                assert_eq!(rest, "", "{event}: the script has ended as well");
                assert!(event == "KILL" || !server.exists(&name), "{event}");
            }
        }
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_job_that_holds_for_too_long_is_ended_as_a_whole() {
    let server = Server::start();
    unless_late(&|| {
        let args = ["--lease", "2s", "--max-hold", "1s"];
        let (mut running, mut says) = runs(&server, &args, &unique("max"), SCRIPT);
        let worker = pid(&mut says);
        assert_eq!(running.status(), Some(70));
        assert_eq!(state(worker), None);
    });
}

#[cfg(target_os = "linux")]
#[test]
fn a_process_that_ignores_its_end_is_killed_before_the_name_is_free() {
    let server = Server::start();
    let name = unique("stubborn");
    let script = "sh -c 'trap \"\" TERM; echo ready; echo $$; while :; do sleep 0.05; done'";
    let (mut running, mut says) = runs(&server, &["--grace", "700ms"], &name, script);
    let worker = pid(&mut says);
    let begun = Instant::now();
    running.signal(Signal::SIGTERM);
    let mut held_meanwhile = 0;
    let mut status = None;
    eventually("it ends", || {
        held_meanwhile += u32::from(state(worker).is_some() && server.exists(&name));
        status = running.0.try_wait().unwrap();
        status.is_some()
    });
    assert!(begun.elapsed() >= ms(700) && held_meanwhile > 0);
    assert_eq!(state(worker), None);
    assert!(!server.exists(&name));
}

// The mask is inherited from the process that starts the command.
#[cfg(target_os = "linux")]
#[test]
fn the_end_of_the_program_is_seen_although_its_signal_was_blocked_at_the_start() {
    let server = Server::start();
    let mut command = Command::new("env");
    command.args(["--block-signal=CHLD", env!("CARGO_BIN_EXE_redlatch")]);
    command.env("REDLATCH_URL", server.client_url());
    command.args([
        "run",
        &unique("mask"),
        "--",
        "sh",
        "-c",
        "echo ready; sleep 0.5; exit 3",
    ]);
    let (mut running, _says) = started(&mut command);
    assert_eq!(running.status(), Some(3));
}

#[cfg(target_os = "linux")]
#[test]
fn a_script_without_an_interpreter_is_run_by_the_shell() {
    let server = Server::start();
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("script");
    fs::write(&script, "echo \"$0 $1 $REDLATCH_NAME\"\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:/usr/bin:/bin", dir.path().display());
    for program in [script.to_str().unwrap(), "script"] {
        let mut command = redlatch(&server);
        command.env("PATH", &path);
        let (status, said, why) = done(command.args(["run", "bare", "--", program, "one"]));
        let expected = format!("{} one bare\n", script.display());
        assert_eq!((status, said, why), (0, expected, String::new()));
    }
}

#[test]
fn the_name_stays_held_while_the_program_has_left_processes_at_work() {
    let server = Server::start();
    let name = unique("left");
    let dir = tempfile::tempdir().unwrap();
    let go = dir.path().join("go");
    let script = format!(
        "while [ ! -e {} ]; do sleep 0.05; done & echo ready; exit 4",
        go.display()
    );
    let (mut running, _says) = runs(&server, &[], &name, &script);
    let mut errors = std::io::BufReader::new(running.0.stderr.take().unwrap());
    let mut line = String::new();
    errors.read_line(&mut line).unwrap();
    assert!(line.contains("stays held"), "{line}");
    let run = ["run", "-n", &*name, "--", "true"];
    assert_eq!(done(redlatch(&server).args(run)).0, 75);
    fs::write(&go, "").unwrap();
    assert_eq!(running.status(), Some(4), "that of the program");
    assert_eq!(done(redlatch(&server).args(run)).0, 0);
}

#[test]
fn an_upgrade_while_a_job_waits_does_not_break_it() {
    let server = Server::start();
    let name = unique("upgrade");
    let dir = tempfile::tempdir().unwrap();
    let [installed, new] = ["redlatch", "new"].map(|file| dir.path().join(file));
    fs::copy(env!("CARGO_BIN_EXE_redlatch"), &installed).unwrap();
    let client = Client::open(server.client_url()).unwrap();
    let guard = client.mutex(&name).lock().unwrap();
    let mut command = std::process::Command::new(&installed);
    command
        .env("REDLATCH_URL", server.client_url())
        .args(["run", &name, "--", "sh", "-c", SCRIPT])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut running = super::Running(command.spawn().unwrap());
    let mut errors = std::io::BufReader::new(running.0.stderr.take().unwrap());
    errors.read_line(&mut String::new()).unwrap();
    // Replace the file as package managers and `cargo install` do.
    fs::copy(env!("CARGO_BIN_EXE_redlatch"), &new).unwrap();
    fs::rename(&new, &installed).unwrap();
    guard.unlock().unwrap();
    let mut says = std::io::BufReader::new(running.0.stdout.take().unwrap());
    let mut line = String::new();
    says.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    // Even after an upgrade, the command ends the processes that it has started.
    let worker = pid(&mut says);
    running.signal(Signal::SIGKILL);
    #[cfg(target_os = "linux")]
    eventually("its processes have ended", || state(worker).is_none());
    #[cfg(not(target_os = "linux"))]
    nix::sys::signal::kill(worker, Signal::SIGKILL).unwrap();
}

#[cfg(target_os = "linux")]
#[test]
fn a_signal_that_is_ignored_at_the_start_stays_ignored() {
    let server = Server::start();
    let name = unique("nohup");
    let ignoring = |args: &str| {
        let mut shell = std::process::Command::new("sh");
        let script = format!(
            "trap '' HUP INT; exec {} {args}",
            env!("CARGO_BIN_EXE_redlatch")
        );
        shell
            .args(["-c", &script])
            .env("REDLATCH_URL", server.client_url());
        shell
    };
    let script = "kill -HUP $$; kill -INT $$; echo ready; read line; echo survived";
    let mut command = ignoring(&format!("run {name} -- sh -c '{script}'"));
    let (mut running, mut says) = started(command.stdin(Stdio::piped()));
    // A waiting job survives both signals as well.
    let mut waits = ignoring(&format!("run {name} -- echo ready"));
    let mut waits = super::Running(
        waits
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let mut errors = std::io::BufReader::new(waits.0.stderr.take().unwrap());
    errors.read_line(&mut String::new()).unwrap();
    for signal in [Signal::SIGHUP, Signal::SIGINT] {
        running.signal(signal);
        waits.signal(signal);
    }
    drop(running.0.stdin.take());
    assert_eq!(running.status(), Some(0));
    let mut said = String::new();
    says.read_line(&mut said).unwrap();
    assert_eq!(said, "survived\n");
    assert_eq!(waits.status(), Some(0));
}

#[test]
fn a_signal_from_elsewhere_is_passed_on_once_and_ends_a_wait() {
    let server = Server::start();
    let name = unique("signal");
    // A signal ends `wait`. `dash` loses a signal that arrives while it starts a program, so only one is started.
    let script = "trap 'echo int' INT; trap 'echo hup' HUP; trap 'echo usr1; kill $s; exit 3' USR1
        sleep 100 & s=$!; echo ready; while :; do wait; done";
    let (mut running, mut says) = runs(&server, &[], &name, script);
    for (signal, status) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143)] {
        let mut waits = redlatch(&server);
        waits
            .args(["run", &name, "--", "true"])
            .stderr(Stdio::piped());
        let mut waits = super::Running(waits.spawn().unwrap());
        let mut told = std::io::BufReader::new(waits.0.stderr.take().unwrap());
        told.read_line(&mut String::new()).unwrap();
        waits.signal(signal);
        assert_eq!(waits.shell_status(), status);
    }
    let mut line = String::new();
    for (signal, said) in [(Signal::SIGINT, "int\n"), (Signal::SIGHUP, "hup\n")] {
        running.signal(signal);
        line.clear();
        says.read_line(&mut line).unwrap();
        assert_eq!(line, said);
    }
    running.signal(Signal::SIGUSR1);
    line.clear();
    says.read_to_string(&mut line).unwrap();
    assert_eq!(line, "usr1\n");
    assert_eq!(running.status(), Some(3));
    assert!(!server.exists(&name));
}

#[cfg(target_os = "linux")]
#[test]
fn a_stop_stops_the_program_too_and_both_continue() {
    use std::os::unix::process::CommandExt as _;

    let server = Server::start();
    let name = unique("stop");
    let mut command = redlatch(&server);
    command
        .args(["run", &name, "--", "sh", "-c", SCRIPT])
        .process_group(0);
    let (mut running, mut says) = started(&mut command);
    let worker = pid(&mut says);
    let itself = Pid::from_raw(running.0.id().try_into().unwrap());
    for _ in 0..2 {
        running.signal(Signal::SIGTSTP);
        eventually("both stop", || {
            [itself, worker].map(state) == [Some('T'), Some('T')]
        });
        running.signal(Signal::SIGCONT);
        eventually("both continue", || {
            [itself, worker].map(state) == [Some('S'), Some('S')]
        });
    }
    // A run within a run stops itself by SIGSTOP once it has passed SIGTSTP on.
    let inner = env!("CARGO_BIN_EXE_redlatch");
    let mut command = redlatch(&server);
    command.args([
        "run",
        &unique("outer"),
        "--",
        inner,
        "run",
        &unique("inner"),
    ]);
    command.args(["--", "sh", "-c", SCRIPT]).process_group(0);
    let (mut outer, mut outer_says) = started(&mut command);
    let inmost = pid(&mut outer_says);
    let outermost = Pid::from_raw(outer.0.id().try_into().unwrap());
    for (signal, expected) in [(Signal::SIGTSTP, 'T'), (Signal::SIGCONT, 'S')] {
        outer.signal(signal);
        eventually("all stop or continue", || {
            [outermost, inmost].map(state) == [Some(expected); 2]
        });
    }
    outer.signal(Signal::SIGTERM);
    outer.end();
    // A stopped program is ended, too.
    running.signal(Signal::SIGTSTP);
    eventually("both stop", || {
        [itself, worker].map(state) == [Some('T'), Some('T')]
    });
    running.signal(Signal::SIGKILL);
    running.0.wait().unwrap();
    eventually("its processes have ended", || state(worker).is_none());
    // A job that was stopped until another process could have the name must not continue.
    let name = unique("stop");
    let script = "echo ready; echo $$; exec sleep 100";
    let mut command = redlatch(&server);
    command
        .args(["run", "--lease", "2s", &name, "--", "sh", "-c", script])
        .process_group(0);
    let (mut running, mut says) = started(&mut command);
    let worker = pid(&mut says);
    running.signal(Signal::SIGTSTP);
    eventually("it stops", || state(worker) == Some('T'));
    eventually("it is free", || !server.exists(&name));
    running.signal(Signal::SIGCONT);
    assert_eq!(running.status(), Some(70));
    assert_eq!(state(worker), None);
}

#[test]
fn a_program_never_sees_the_token_of_another_lock() {
    let server = Server::start();
    let [outer, inner] = ["outer", "inner"].map(unique);
    let itself = env!("CARGO_BIN_EXE_redlatch");
    let show = [
        "--",
        "sh",
        "-c",
        "echo $REDLATCH_NAME ${REDLATCH_TOKEN-none}",
    ];
    let mut command = redlatch(&server);
    command.args(["run", "--fenced", &outer, "--", itself, "run", &inner]);
    let (status, said, _) = done(command.args(show));
    assert_eq!((status, said), (0, format!("{inner} none\n")));
}

#[test]
fn a_program_that_cannot_be_started_keeps_nothing() {
    let server = Server::start();
    for kind in [&[][..], &["--fair"], &["-x"], &["-s"], &["--fenced"]] {
        let name = unique("none");
        let mut command = redlatch(&server);
        command.args(["run", "--min-hold", "100s"]).args(kind);
        assert_eq!(done(command.args([&name, "--", "/no/such"])).0, 127);
        let mut again = redlatch(&server);
        again.args(["run", "-n"]).args(kind);
        assert_eq!(done(again.args([&name, "--", "true"])).0, 0, "{kind:?}");
    }
}

#[test]
fn a_signal_at_the_moment_of_the_grant_keeps_nothing() {
    let server = Server::start_with(&[]);
    let client = Client::open(server.url()).unwrap();
    let proxy = Proxy::start(server.addr());
    // The command has the grant only if its reply arrives after the signal and before the command looks for signals. Its
    // program cannot be started, so that it keeps nothing if the grant comes first.
    let try_it = |kind: &[&str]| {
        let name = unique("signal");
        let held: Box<dyn Any> = match kind {
            ["--fair"] => Box::new(client.fair_mutex(&name).lock().unwrap()),
            ["--fenced"] => Box::new(client.fenced_lock(&name).lock().unwrap()),
            ["-x" | "-s"] => Box::new(client.rw_lock(&name).write().unwrap()),
            _ => Box::new(client.mutex(&name).lock().unwrap()),
        };
        let mut waits = redlatch(&server);
        waits
            .env("REDLATCH_URL", proxy.url())
            .args(["run", "--lease", "3s", "--min-hold", "100s"])
            .args(kind)
            .args([&name, "--", "/no/such"])
            .stderr(Stdio::piped());
        let mut waits = super::Running(waits.spawn().unwrap());
        let mut told = std::io::BufReader::new(waits.0.stderr.take().unwrap());
        told.read_line(&mut String::new()).unwrap();
        proxy.set(Target::Link, Mode::Stall);
        drop(held);
        eventually("it asks again", || proxy.held() > 0);
        waits.signal(Signal::SIGTERM);
        proxy.pass();
        let status = waits.status();
        eventually("it is free", || !server.exists(&name));
        status
    };
    for kind in [&[][..], &["--fair"], &["-x"], &["-s"], &["--fenced"]] {
        let mut tries = (0..20).map(|_| try_it(kind));
        assert!(tries.any(|status| status == Some(143)), "{kind:?}");
    }
}
