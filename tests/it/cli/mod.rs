//! The command as people use it: in two shells, on a terminal, in a pipe, and with processes that are killed.

mod job;
mod looking;
mod streams;
mod terminal;

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use nix::pty::{OpenptyResult, openpty};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use redlatch::Client;
use serde_json::Value;

use crate::support::{Server, eventually, free_port, loosely, ms, unique};

/// The command, with the URL of the server.
fn redlatch(server: &Server) -> Command {
    let binary = env!("CARGO_BIN_EXE_redlatch");
    // Under `nohup` the command would inherit an ignored SIGHUP, which its program could not trap.
    let mut command = Command::new("env");
    command.args(["--default-signal=HUP", binary]);
    if cfg!(not(target_os = "linux")) {
        command = Command::new(binary);
    }
    command
        .env("REDLATCH_URL", server.client_url())
        .stdin(Stdio::null());
    command
}

/// Runs the command; returns the status, the standard output and the standard error.
#[track_caller]
fn done(command: &mut Command) -> (i32, String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (
        status.code().expect("an exit status"),
        text(stdout),
        text(stderr),
    )
}

/// A process that is killed at the end of the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

impl Running {
    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.0.id().try_into().unwrap()), signal).unwrap();
    }

    #[track_caller]
    fn end(&mut self) -> ExitStatus {
        let mut status = None;
        eventually("it ends", || {
            status = self.0.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }

    #[track_caller]
    fn status(&mut self) -> Option<i32> {
        self.end().code()
    }

    /// The whole output of a command that has ended.
    #[track_caller]
    fn said(&mut self) -> String {
        std::io::read_to_string(self.0.stdout.take().unwrap()).unwrap()
    }

    /// The status as a shell shows it.
    #[track_caller]
    fn shell_status(&mut self) -> i32 {
        let status = self.end();
        let signal = || 128 + status.signal().unwrap();
        status.code().unwrap_or_else(signal)
    }
}

/// Runs a shell script under a lock, and waits until it has printed `ready`.
#[track_caller]
fn runs(
    server: &Server,
    args: &[&str],
    name: &str,
    script: &str,
) -> (Running, BufReader<std::process::ChildStdout>) {
    let mut command = redlatch(server);
    command
        .arg("run")
        .args(args)
        .args([name, "--", "sh", "-c", script]);
    started(&mut command)
}

/// Starts a command, and waits until it has printed `ready`.
#[track_caller]
fn started(command: &mut Command) -> (Running, BufReader<std::process::ChildStdout>) {
    let mut running = Running(
        command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let mut says = BufReader::new(running.0.stdout.take().unwrap());
    let mut line = String::new();
    says.read_line(&mut line).unwrap();
    if line != "ready\n" {
        let errors = running.0.stderr.take().map(std::io::read_to_string);
        panic!("{line:?} instead of ready: {errors:?}");
    }
    (running, says)
}

/// A script that prints `ready`, and waits for a signal.
const WAITS: &str = "echo ready; exec sleep 100";

#[test]
fn a_program_runs_under_a_lock_and_its_status_is_the_commands() {
    let server = Server::start();
    let name = unique("job");
    let shell = |script: &str| {
        let mut command = redlatch(&server);
        command.args(["run", &name, "--", "sh", "-c", script]);
        command
    };
    assert_eq!(
        done(&mut shell("echo $REDLATCH_NAME; exit 7")),
        (7, format!("{name}\n"), String::new())
    );
    assert_eq!(done(&mut shell("kill -9 $$")).0, 137);
    assert_eq!(done(&mut shell("test -z \"$REDLATCH_TOKEN\"")).0, 0);
    let mut fenced = redlatch(&server);
    fenced.args([
        "run",
        "--fenced",
        &unique("f"),
        "--",
        "sh",
        "-c",
        "echo $REDLATCH_TOKEN",
    ]);
    let (status, token, _) = done(&mut fenced);
    assert!(status == 0 && token.trim().parse::<u64>().unwrap() > 0);
    let mut none = redlatch(&server);
    let (status, _, says) = done(none.args(["run", &name, "--", "/no/such/program"]));
    assert!(status == 127 && says.contains("/no/such/program"), "{says}");
    assert_eq!(
        done(redlatch(&server).args([
            "run",
            &name,
            "--",
            concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")
        ]))
        .0,
        126
    );
    // The program reads the command's standard input.
    let mut pipe = shell("tr a-z A-Z");
    let mut running = pipe
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    running.stdin.take().unwrap().write_all(b"stock").unwrap();
    assert_eq!(running.wait_with_output().unwrap().stdout, b"STOCK");
    assert!(!server.exists(&name), "it is released each time");
}

#[test]
fn in_two_shells_one_has_it_and_the_other_is_told_who() {
    let server = Server::start();
    let name = unique("shells");
    let (mut running, _says) = runs(&server, &[], &name, WAITS);
    let run = |args: &[&str]| {
        let mut command = redlatch(&server);
        command
            .arg("run")
            .args(args)
            .args([&name, "--", "echo", "mine"]);
        command
    };
    let (status, said, why) = done(&mut run(&["-n"]));
    assert_eq!((status, &*said), (75, ""));
    let pid = running.0.id().to_string();
    assert!(
        why.contains("held by") && why.contains(&format!("pid {pid}")),
        "{why}"
    );
    assert_eq!(done(&mut run(&["-n", "-E", "9"])).0, 9);
    let begun = Instant::now();
    let (status, _, why) = done(&mut run(&["-w", "300ms"]));
    assert!(
        status == 75 && begun.elapsed() >= ms(300) && why.contains("waiting for"),
        "{why}"
    );
    // A waiting command gets the lock when the first ends, in whatever way.
    let mut waits = Running(
        run(&[])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let mut says = BufReader::new(waits.0.stderr.take().unwrap());
    let mut line = String::new();
    says.read_line(&mut line).unwrap();
    assert!(line.contains("waiting for"), "{line}");
    running.signal(Signal::SIGTERM);
    assert_eq!(running.status(), Some(143), "it is passed on");
    assert_eq!(waits.status(), Some(0));
    assert_eq!(waits.said(), "mine\n");
}

#[test]
fn kinds_of_locks_go_together_as_they_should() {
    let server = Server::start();
    let [shared, slots, fair] = ["shared", "slots", "fair"].map(unique);
    let try_it = |args: &[&str], name: &str| {
        let mut command = redlatch(&server);
        done(
            command
                .args(["run", "-n"])
                .args(args)
                .args([name, "--", "true"]),
        )
        .0
    };
    let (mut reads, _says) = runs(&server, &["-s"], &shared, WAITS);
    assert_eq!(
        (try_it(&["-s"], &shared), try_it(&["-x"], &shared)),
        (0, 75)
    );
    reads.signal(Signal::SIGTERM);
    reads.status();
    assert_eq!(try_it(&["-x"], &shared), 0);
    let _two = [(); 2].map(|()| runs(&server, &["--permits", "2"], &slots, WAITS));
    assert_eq!(try_it(&["--permits", "2"], &slots), 75);
    let _fair = runs(&server, &["--fair"], &fair, WAITS);
    assert_eq!(try_it(&["--fair"], &fair), 75);
    for wrong in [
        &["run", "-n", "-w", "1", "a", "--", "true"][..],
        &["run", "-s", "--fair", "a", "--", "true"],
        &["run", "a"],
    ] {
        assert_eq!(done(redlatch(&server).args(wrong)).0, 64, "{wrong:?}");
    }
    assert_eq!(
        done(redlatch(&server).args(["run", "", "--", "true"])).0,
        64
    );
}

#[test]
fn of_many_hosts_one_runs_the_job() {
    let server = Server::start();
    let name = unique("cron");
    let hosts: Vec<_> = (0..5)
        .map(|n| {
            std::thread::sleep(ms(80) * u32::from(n > 0));
            let mut command = redlatch(&server);
            command.args(["run", "-n", "--min-hold", "20s", &name, "--", "echo", "ran"]);
            done(&mut command)
        })
        .collect();
    let ran = hosts
        .iter()
        .filter(|(status, said, _)| *status == 0 && said == "ran\n");
    assert_eq!(ran.count(), 1);
    assert!(hosts[1..].iter().all(|(status, ..)| *status == 75));
}

#[test]
fn without_a_server_it_says_so_in_time() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_redlatch"));
    command.env(
        "REDLATCH_URL",
        format!("redis://127.0.0.1:{}/", free_port()),
    );
    let begun = Instant::now();
    let (status, _, why) = done(command.args(["run", "a", "--", "true"]));
    assert!(
        status == 69 && why.starts_with("redlatch: "),
        "{status}: {why}"
    );
    assert!(begun.elapsed() < loosely(ms(5_000)));
    for action in [&["who", "a"][..], &["ls"], &["unlock", "a", "--force"]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_redlatch"));
        command.env(
            "REDLATCH_URL",
            format!("redis://127.0.0.1:{}/", free_port()),
        );
        assert_eq!(done(command.args(action)).0, 69, "{action:?}");
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_redlatch"));
    assert_eq!(done(command.args(["--url", "http://here", "ls"])).0, 64);
}

#[test]
fn a_program_whose_lock_is_lost_is_ended() {
    let server = Server::start();
    for (script, grace) in [
        (WAITS, "60s"),
        (
            "trap '' TERM; echo ready; while :; do sleep 0.1; done",
            "200ms",
        ),
    ] {
        let name = unique("lost");
        let (mut running, _says) = runs(
            &server,
            &["--lease", "600ms", "--grace", grace],
            &name,
            script,
        );
        server.cli(&["DEL", &name]);
        assert_eq!(running.status(), Some(70));
        let mut why = String::new();
        running
            .0
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut why)
            .unwrap();
        assert!(why.contains("was lost"), "{why}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn whoever_is_killed_nothing_goes_on_without_the_lock() {
    let server = Server::start();
    let name = unique("killed");
    let (mut running, mut says) = runs(
        &server,
        &["--lease", "1s"],
        &name,
        "echo ready; echo $$; exec sleep 100",
    );
    let mut pid = String::new();
    says.read_line(&mut pid).unwrap();
    running.signal(Signal::SIGKILL);
    running.0.wait().unwrap();
    // The program dies with the command, and the lock is free when its lease expires.
    let program = Pid::from_raw(pid.trim().parse().unwrap());
    eventually("the program has died", || {
        let state = std::fs::read_to_string(format!("/proc/{program}/stat"));
        state.is_err() || state.is_ok_and(|state| state.contains(") Z "))
    });
    eventually("it is free", || !server.exists(&name));
    // Here the program is killed instead.
    let (mut running, mut says) = runs(&server, &[], &name, "echo ready; echo $$; exec sleep 100");
    let mut pid = String::new();
    says.read_line(&mut pid).unwrap();
    kill(Pid::from_raw(pid.trim().parse().unwrap()), Signal::SIGKILL).unwrap();
    assert_eq!(running.status(), Some(137));
    assert!(!server.exists(&name));
}

#[test]
fn what_is_shown_can_be_read_by_programs() {
    let server = Server::start();
    let client = Client::open(server.client_url()).unwrap();
    let name = unique("shown");
    let guard = client.fair_lock(&name).lock().unwrap();
    let json = |args: &[&str]| -> Value {
        let (status, said, why) = done(redlatch(&server).args(args).arg("--json"));
        assert_eq!((status, &*why), (0, ""));
        serde_json::from_str(&said).unwrap()
    };
    let who = json(&["who", &name]);
    assert_eq!(
        (who["name"].as_str(), who["held"].as_u64()),
        (Some(&*name), Some(1))
    );
    assert_eq!(who["holders"][0]["owner"].as_str(), Some(guard.owner()));
    assert_eq!(
        who["holders"][0]["process"]["pid"].as_u64(),
        Some(u64::from(std::process::id()))
    );
    let ls = json(&["ls", "*shown*"]);
    assert_eq!(ls.as_array().unwrap().len(), 1);
    assert_eq!(ls[0]["name"].as_str(), Some(&*name));
    assert!(
        json(&["check"])
            .as_array()
            .unwrap()
            .iter()
            .all(|finding| finding["severity"] != "problem")
    );
    let (status, said, _) = done(redlatch(&server).args(["who", &name]));
    assert!(
        status == 0 && said.starts_with(&name) && said.contains(guard.owner()),
        "{said}"
    );
    assert!(!said.contains('\x1b'), "no colours in a pipe");
    let (_, said, _) = done(redlatch(&server).arg("ls"));
    assert!(said.contains(&name));
    let (status, said, _) = done(redlatch(&server).arg("check"));
    assert!(status == 0 && said.contains("role master"), "{said}");
    let (status, said, _) = done(redlatch(&server).args(["completions", "bash"]));
    assert!(status == 0 && said.contains("_redlatch"));
}

#[test]
fn a_name_is_taken_from_one_owner_only() {
    let server = Server::start();
    let client = Client::open(server.client_url()).unwrap();
    let unlock = |name: &str, owner: &str| {
        done(redlatch(&server).args(["unlock", name, "--owner", owner])).0
    };
    macro_rules! each {
        ($($lock:ident $take:ident;)+) => {$(
            let name = unique(stringify!($lock));
            let stuck = client.$lock(&name).$take().unwrap();
            let owner = stuck.owner().to_owned();
            assert_eq!(unlock(&name, "5f0c2b1e-0000-4000-8000-000000000000:17"), 75);
            assert!(server.exists(&name));
            assert_eq!(unlock(&name, &owner), 0, "{}", stringify!($lock));
            let next = Client::open(server.client_url()).unwrap();
            let guard = next.$lock(&name).$take().unwrap();
            assert_eq!(unlock(&name, &owner), 75, "it is the next one's");
            guard.unlock().unwrap();
            drop(stuck);
        )+};
    }
    each! {
        mutex lock;
        fair_lock lock;
        fenced_lock lock;
        rw_lock write;
        rw_lock read;
    }
    let slots = unique("slots");
    let semaphore = client.expirable_semaphore(&slots);
    semaphore.try_set_permits(1).unwrap();
    let permit = semaphore.acquire().unwrap();
    assert_eq!(unlock(&slots, permit.id()), 0);
    assert_eq!(semaphore.available_permits().unwrap(), 1);
    drop(permit);
}

/// Runs the command on a terminal; returns the status and what it prints.
fn on_terminal(server: &Server, args: &[&str], answer: &str) -> (i32, String) {
    on_terminal_with(server, args, answer, "")
}

/// A terminal that no server inherits which another test starts at this moment: it would keep the terminal open for as long as
/// it runs, and the test would never reach its end.
fn pty() -> OpenptyResult {
    let pty = openpty(None, None).unwrap();
    // A clone is closed in programs that are started.
    OpenptyResult {
        master: pty.master.try_clone().unwrap(),
        slave: pty.slave.try_clone().unwrap(),
    }
}

/// With this value of `NO_COLOR`.
fn on_terminal_with(server: &Server, args: &[&str], answer: &str, no_color: &str) -> (i32, String) {
    let pty = pty();
    let slave = || Stdio::from(pty.slave.try_clone().unwrap());
    let mut command = redlatch(server);
    command
        .env("NO_COLOR", no_color)
        .args(args)
        .stdin(slave())
        .stdout(slave())
        .stderr(slave());
    let mut child = command.spawn().unwrap();
    drop(command);
    drop(pty.slave);
    let mut terminal = File::from(pty.master);
    terminal.write_all(answer.as_bytes()).unwrap();
    let mut said = Vec::new();
    let mut some = [0; 1024];
    // Reading ends with an error once the other side is closed.
    while let Ok(n @ 1..) = terminal.read(&mut some) {
        said.extend_from_slice(&some[..n]);
    }
    let status = child.wait().unwrap().code().unwrap();
    (status, String::from_utf8_lossy(&said).into_owned())
}

#[cfg(target_os = "linux")]
#[test]
fn on_a_terminal_it_asks_first_and_shows_colours() {
    let server = Server::start();
    let client = Client::open(server.client_url()).unwrap();
    let name = unique("terminal");
    let guard = client.mutex(&name).lock().unwrap();
    let (status, said) = on_terminal(&server, &["who", &name], "");
    assert!(status == 0 && said.contains("\x1b[1m"), "{said}");
    let (status, said) = on_terminal(&server, &["unlock", &name, "--force"], "n\n");
    assert!(
        status == 75 && said.contains("[y/N]") && said.contains(guard.owner()),
        "{said}"
    );
    assert!(guard.is_valid() && server.exists(&name));
    let (status, said) = on_terminal(&server, &["unlock", &name, "--force"], "y\n");
    assert!(status == 0 && said.contains("taken away"), "{said}");
    assert!(!server.exists(&name));
    // The command only asks on a terminal.
    let again = client.mutex(unique("again")).lock().unwrap();
    let (status, ..) = done(redlatch(&server).args(["unlock", again.name(), "--force"]));
    assert_eq!(status, 0);
    let nobody = done(redlatch(&server).args(["unlock", again.name(), "--force"]));
    assert_eq!(nobody.0, 1);
    drop(guard);
    drop(again);
    client.close(Duration::from_secs(2)).unwrap();
}

#[cfg(feature = "tls")]
#[test]
fn over_tls_it_needs_the_ca() {
    let identity = crate::support::authority().issue(&["127.0.0.1", "localhost"]);
    let server = Server::start_tls(&identity, &[]);
    let files = tempfile::tempdir().unwrap();
    let ca = files.path().join("ca.pem");
    std::fs::write(&ca, crate::support::authority().pem()).unwrap();
    let name = unique("tls");
    let mut command = Command::new(env!("CARGO_BIN_EXE_redlatch"));
    command
        .env("REDLATCH_URL", server.client_url())
        .args(["run", &name, "--", "echo", "mine"]);
    assert!(server.client_url().starts_with("rediss://"));
    assert_ne!(done(&mut command).0, 0, "the system knows no such CA");
    assert_eq!(
        done(command.env("REDLATCH_CA", &ca)),
        (0, "mine\n".into(), String::new())
    );
}

#[test]
fn a_record_of_the_application_is_wrong_use_for_every_command() {
    let server = Server::start();
    let name = unique("user");
    for limited in [false, true] {
        server.cli(&["HSET", &name, "name", "Ann"]);
        if limited {
            server.cli(&["PEXPIRE", &name, "600000"]);
        }
        let record: Vec<u8> = server.ask(&["DUMP", &name]);
        for args in [
            &["who", &name][..],
            &["unlock", "--force", &name],
            &[
                "unlock",
                "--owner",
                "9f8e7d6c-5b4a-4321-8fed-cba987654321:57",
                &name,
            ],
            &["run", &name, "--", "true"],
            &["run", "--fair", &name, "--", "true"],
            &["run", "-x", &name, "--", "true"],
        ] {
            let (status, out, err) = done(redlatch(&server).args(args));
            assert_eq!(status, 64, "{args:?}: {out} {err}");
            assert!(
                err.contains("holds a hash that is not a"),
                "{args:?}: {err}"
            );
        }
        assert_eq!(server.ask::<Vec<u8>>(&["DUMP", &name]), record);
    }
}

#[test]
fn no_lock_is_taken_where_redis_knows_no_holder() {
    let server = Server::start();
    let client = Client::open(server.client_url()).unwrap();
    let (slots, gate) = (unique("slots"), unique("gate"));
    client.semaphore(&slots).try_set_permits(2).unwrap();
    client.latch(&gate).try_set_count(1).unwrap();
    for (name, text) in [
        (
            &slots,
            "is a semaphore, and Redis does not know who has its permits",
        ),
        (&gate, "is a latch, which nobody holds"),
    ] {
        for how in [&["--force"][..], &["--owner", "a:1"]] {
            let (status, _, err) = done(redlatch(&server).args(["unlock", name]).args(how));
            assert!(status == 64 && err.contains(text), "{status}: {err}");
        }
    }
}
