//! Output streams without a reader: the command does not panic, its statuses stay, and a waiting job runs.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::Stdio;

use redlatch::Client;

use super::{Running, done, redlatch};
use crate::support::{Server, eventually, free_port, unique};

/// A pipe without a reader.
fn unread() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

#[test]
fn without_a_reader_of_errors_the_statuses_stay() {
    let server = Server::start();
    let client = Client::open(server.client_url()).unwrap();
    let held = unique("held");
    let guard = client.mutex(&held).lock().unwrap();
    let status = |args: &[&str], url: &str| {
        let mut command = redlatch(&server);
        command.env("REDLATCH_URL", url).args(args);
        command.stderr(unread()).status().unwrap().code()
    };
    let url = server.client_url();
    let away = format!("redis://127.0.0.1:{}/", free_port());
    for (expected, args, url) in [
        (75, &["run", "-n", &held, "--", "true"][..], &url),
        (75, &["run", "-w", "200ms", &held, "--", "true"], &url),
        (127, &["run", "free", "--", "/no/such/program"], &url),
        (69, &["run", "-n", "free", "--", "true"], &away),
        (69, &["ls"], &away),
        (64, &["run", "", "--", "true"], &url),
        (1, &["unlock", "free", "--force"], &url),
        (64, &["nonsense"], &url),
        (64, &["run", "--permits", "1", &held, "--", "true"], &url),
    ] {
        assert_eq!(status(args, url), Some(expected), "{args:?}");
    }
    // A lost lock and a waiting job have the same statuses as with a reader.
    let lost = unique("lost");
    let mut command = redlatch(&server);
    command
        .args(["run", "--lease", "500ms", &lost, "--", "sleep", "100"])
        .stderr(unread());
    let mut running = Running(command.spawn().unwrap());
    eventually("it is held", || server.exists(&lost));
    server.cli(&["DEL", &lost]);
    assert_eq!(running.status(), Some(70));
    let mut waits = redlatch(&server);
    waits
        .args(["run", &held, "--", "echo", "mine"])
        .stdout(Stdio::piped())
        .stderr(unread());
    let mut waits = Running(waits.spawn().unwrap());
    eventually("it waits", || {
        client.inspect(&held).unwrap().listening > Some(0)
    });
    guard.unlock().unwrap();
    assert_eq!(waits.status(), Some(0));
    assert_eq!(waits.said(), "mine\n");
}

// Linux keeps 64 KiB in a pipe.
#[cfg(target_os = "linux")]
#[test]
fn a_reader_of_errors_that_does_not_read_keeps_no_job_alive() {
    let server = Server::start();
    let name = unique("full");
    let (_reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(&[b'x'; 65_536]).unwrap();
    let mut command = redlatch(&server);
    command.args([
        "run", "--lease", "2s", "--grace", "300ms", &name, "--", "sh", "-c",
    ]);
    command.arg("trap '' TERM; echo ready; while :; do sleep 0.05; done");
    let mut running = Running(
        command
            .stdout(Stdio::piped())
            .stderr(writer)
            .spawn()
            .unwrap(),
    );
    let mut line = String::new();
    let mut says = BufReader::new(running.0.stdout.take().unwrap());
    says.read_line(&mut line).unwrap();
    server.cli(&["DEL", &name]);
    assert_eq!(running.status(), Some(70));
}

#[test]
fn who_reads_the_first_line_only_hears_of_no_error() {
    let server = Server::start();
    let client = Client::open(server.client_url()).unwrap();
    let names: Vec<_> = (0..50).map(|_| unique("first")).collect();
    let guards: Vec<_> = names
        .iter()
        .map(|name| client.mutex(name).lock().unwrap())
        .collect();
    for args in [
        &["ls"][..],
        &["ls", "--json"],
        &["who", &names[0]],
        &["watch", "-i", "50ms", &names[0]],
        &["check"],
        &["completions", "bash"],
        &["--help"],
    ] {
        let mut command = redlatch(&server);
        command
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut running = Running(command.spawn().unwrap());
        let mut says = BufReader::new(running.0.stdout.take().unwrap());
        says.read_line(&mut String::new()).unwrap();
        drop(says);
        let status = running.status();
        assert!(matches!(status, Some(0 | 141)), "{args:?}: {status:?}");
        let mut errors = String::new();
        let stderr = running.0.stderr.as_mut().unwrap();
        stderr.read_to_string(&mut errors).unwrap();
        assert_eq!(errors, "", "{args:?}");
        // Standard output without any reader.
        if args[0] != "watch" {
            let mut command = redlatch(&server);
            let status = command.args(args).stdout(unread()).output().unwrap().status;
            assert!(
                matches!(status.code(), Some(0 | 141)),
                "{args:?}: {status:?}"
            );
        }
    }
    drop(guards);
}

#[test]
fn the_command_prints_through_what_does_not_panic() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/src/bin/redlatch");
    for file in std::fs::read_dir(dir).unwrap() {
        let path = file.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        for (n, line) in (1..).zip(text.lines()) {
            let line = line.trim_start();
            let panics = ["print!", "println!", "eprint!", "eprintln!"];
            let called = panics.iter().any(|name| line.contains(name));
            assert!(!called || line.starts_with("//"), "{}:{n}", path.display());
        }
    }
}

#[test]
fn a_crontab_hears_nothing_if_another_host_runs_the_job() {
    let server = Server::start();
    let client = Client::open(server.client_url()).unwrap();
    let name = unique("cron");
    let guard = client.mutex(&name).lock().unwrap();
    for args in [&["-q", "-n"][..], &["--quiet", "-w", "100ms"]] {
        let mut command = redlatch(&server);
        command.arg("run").args(args).args([&name, "--", "true"]);
        assert_eq!(done(&mut command), (75, String::new(), String::new()));
    }
    drop(guard);
}
