//! Names, numbers of permits, statuses and help.

use std::process::{Command, Stdio};
use std::time::Instant;

use redlatch::{Client, Config};

use super::{Running, done, redlatch, runs};
use crate::support::scripts::sha;
use crate::support::{Proxy, Server, deployments, eventually, free_port, loosely, lua, ms, unique};

/// A name that would clear a terminal and look like another line.
const NASTY: &str = "job\x1b[2J\x1b[31mPWNED\x07\nstock: lock, 1 held\u{9b}2J";

#[test]
fn names_are_shown_as_text() {
    let server = Server::start();
    let client = Client::open(server.client_url()).unwrap();
    let guard = client.fair_mutex(NASTY).lock().unwrap();
    let lost = format!("{NASTY}lost");
    let script = "echo ready; exec sleep 100";
    let (mut running, _says) = runs(&server, &["--lease", "500ms"], &lost, script);
    server.cli(&["DEL", &lost]);
    running.status();
    let mut texts = vec![
        running
            .0
            .stderr
            .take()
            .map(std::io::read_to_string)
            .unwrap()
            .unwrap(),
    ];
    for args in [
        &["ls"][..],
        &["who", NASTY],
        &["run", "-n", NASTY, "--", "true"],
        &["run", "-w", "100ms", NASTY, "--", "true"],
        &["run", "--permits", "2", NASTY, "--", "true"],
        &["unlock", NASTY, "--owner", "x:1"],
        &["unlock", NASTY, "--force"],
        &["unlock", NASTY, "--force"],
        &["permits", NASTY, "3"],
        &["run", "-n", "--permits", "2", NASTY, "--", "true"],
    ] {
        let (_, said, why) = done(redlatch(&server).args(args));
        texts.push(format!("{said}{why}"));
    }
    for text in texts {
        assert!(
            text.contains(r"job\u{1b}[2J\u{1b}[31mPWNED\u{7}\nstock"),
            "{text:?}"
        );
        let is_odd = |c: char| c.is_control() && c != '\n';
        assert!(!text.contains(is_odd), "{text:?}");
        assert!(
            !text.lines().any(|line| line.starts_with("stock")),
            "{text:?}"
        );
    }
    drop(guard);
    // In JSON the name stays as it is.
    let guard = client.mutex(&lost).lock().unwrap();
    let (_, said, _) = done(redlatch(&server).args(["ls", "--json"]));
    let listed: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(listed[0]["name"].as_str(), Some(&*lost));
    drop(guard);
}

#[test]
fn another_number_of_permits_is_told_and_can_be_set() {
    let server = Server::start();
    let name = unique("permits");
    let run = |permits: &str| {
        let mut command = redlatch(&server);
        done(command.args(["run", "-n", "--permits", permits, &name, "--", "true"]))
    };
    assert_eq!(run("1").0, 0);
    let (status, _, why) = run("5");
    assert_eq!(status, 64);
    assert!(why.contains("is 1, not 5"), "{why}");
    let advice = format!("redlatch permits {name} 5");
    assert!(why.contains(&advice), "{why}");
    let words = advice.split(' ').skip(1);
    let (status, said, _) = done(redlatch(&server).args(words));
    assert!(status == 0 && said.contains("5 free"), "{said}");
    assert_eq!((run("5").0, run("1").0), (0, 64));
    // Permits that are held count as well.
    let script = "echo ready; exec sleep 100";
    let _one = runs(&server, &["--permits", "5"], &name, script);
    assert_eq!((run("5").0, run("4").0), (0, 64));
}

#[test]
fn each_question_has_a_status_for_held_and_for_free() {
    let server = Server::start();
    let client = Client::open(server.client_url()).unwrap();
    let [held, slots, latch] = ["held", "slots", "latch"].map(unique);
    let status = |args: &[&str]| done(redlatch(&server).args(args)).0;
    assert_eq!(status(&["who", &held]), 1);
    assert_eq!(status(&["unlock", &held, "--force"]), 1);
    assert_eq!(status(&["unlock", &held, "--owner", "x:1"]), 1);
    let guard = client.mutex(&held).lock().unwrap();
    assert_eq!(status(&["who", &held]), 0);
    assert_eq!(status(&["who", &held, "--json"]), 0);
    assert_eq!(status(&["unlock", &held, "--owner", "x:1"]), 75);
    assert_eq!(status(&["unlock", &held, "--owner", guard.owner()]), 0);
    let semaphore = client.expirable_semaphore(&slots);
    semaphore.try_set_permits(2).unwrap();
    assert_eq!(status(&["who", &slots]), 1);
    let permit = semaphore.acquire().unwrap();
    assert_eq!(status(&["who", &slots]), 0);
    client.latch(&latch).try_set_count(1).unwrap();
    assert_eq!(status(&["who", &latch]), 0);
    drop((permit, guard));
}

#[test]
fn every_permit_is_taken_away_though_only_some_are_listed() {
    let server = Server::start();
    let client = Client::open(server.client_url()).unwrap();
    let name = unique("many");
    let semaphore = client.expirable_semaphore(&name);
    semaphore.try_set_permits(2_500).unwrap();
    let held = [1_000, 1_000, 500].map(|n| semaphore.acquire_many(n).unwrap());
    let unlock = || done(redlatch(&server).args(["unlock", &name, "--force"])).0;
    assert_eq!(unlock(), 0);
    assert_eq!(semaphore.available_permits().unwrap(), 2_500);
    drop(held);
}

#[test]
fn help_says_what_a_user_asks() {
    let help = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_redlatch"));
        let (status, said, why) = done(command.args(args));
        (
            status,
            said.split_whitespace().collect::<Vec<_>>().join(" ") + &why,
        )
    };
    let (status, run) = help(&["run", "--help"]);
    assert_eq!(status, 0);
    for text in [
        "<NAME> The name of the lock",
        "500ms, 30s, 5m, 2h",
        "without a limit unless -n or -w",
        "75 somebody else has the lock",
        "126, 127",
    ] {
        assert!(run.contains(text), "{text}: {run}");
    }
    assert!(help(&["--help"]).1.contains("who 0 held, 1 free"));
    let (status, wrong) = help(&["unlock", "a"]);
    assert!(status == 64 && wrong.contains("--force"), "{wrong}");
    for wrong in ["becom", "r", "nonsense"] {
        let (status, said) = help(&[wrong]);
        assert!(status == 64 && !said.contains("become"), "{said}");
    }
}

#[test]
fn with_a_limit_a_server_that_starts_later_is_waited_for() {
    let mut server = Server::start_with(&[]);
    server.kill();
    let mut command = redlatch(&server);
    command
        .args(["run", "-w", "60s", "later", "--", "echo", "ran"])
        .stderr(Stdio::piped());
    let mut running = Running(command.spawn().unwrap());
    let mut told = std::io::BufReader::new(running.0.stderr.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut told, &mut line).unwrap();
    assert!(line.contains("waiting"), "{line}");
    server.restart();
    assert_eq!(running.status(), Some(0));
    // The limit also applies if the server is unreachable, whatever the `command_timeout`.
    let mut command = Command::new(env!("CARGO_BIN_EXE_redlatch"));
    command.env(
        "REDLATCH_URL",
        format!("redis://127.0.0.1:{}/", free_port()),
    );
    let begun = std::time::Instant::now();
    let (status, ..) = done(command.args(["run", "-w", "300ms", "a", "--", "true"]));
    let lasted = begun.elapsed();
    assert!(status == 69 && lasted >= super::ms(300), "{lasted:?}");
    assert!(lasted < super::loosely(super::ms(2_500)), "{lasted:?}");
}

#[test]
fn a_wait_that_is_over_does_not_ask_again() {
    let server = Server::start_with(&[]);
    let client = Client::open(server.url()).unwrap();
    let proxy = Proxy::start(server.addr());
    let name = unique("over");
    let guard = client.mutex(&name).lock().unwrap();
    // The question who holds the lock is not answered, and takes longer than the wait.
    let trap = proxy.swallow_reply_to(sha(lua::INSPECT));
    let mut command = redlatch(&server);
    command
        .env("REDLATCH_URL", proxy.url())
        .args(["run", "-w", "500ms", &name, "--", "echo", "ran"])
        .stdout(Stdio::piped());
    let mut running = Running(command.spawn().unwrap());
    eventually("it asks who holds the lock", || trap.fired());
    // From now on an attempt would get the lock.
    guard.unlock().unwrap();
    assert_eq!((running.status(), &*running.said()), (Some(75), ""));
}

#[test]
fn an_empty_no_color_counts_as_unset() {
    let server = Server::start();
    let client = Client::open(Config::new(server.client_url())).unwrap();
    let name = unique("colour");
    let guard = client.mutex(&name).lock().unwrap();
    for (no_color, coloured) in [("", true), ("1", false)] {
        let (_, said) = super::on_terminal_with(&server, &["who", &name], "", no_color);
        assert_eq!(said.contains("\x1b[1m"), coloured, "{no_color:?}: {said}");
    }
    drop(guard);
}

#[test]
fn an_empty_variable_counts_as_unset() {
    let server = Server::start_with(&[]);
    let mut command = redlatch(&server);
    command.env("REDLATCH_CA", "").args(["who", "free"]);
    assert_eq!(done(&mut command).0, 1);
    // The default port may have a server, or none.
    let mut command = redlatch(&server);
    command.env("REDLATCH_URL", "").args(["who", "free"]);
    assert!([0, 1, 69].contains(&done(&mut command).0));
}

#[test]
fn a_name_that_cannot_be_is_not_watched() {
    let server = Server::start();
    let mut command = redlatch(&server);
    command.args(["watch", ""]).stdout(Stdio::null());
    let mut running = Running(command.stderr(Stdio::null()).spawn().unwrap());
    assert_eq!(running.status(), Some(64));
}

#[test]
fn what_a_check_advises_makes_the_user_fit() {
    let server = Server::start_with(&[]);
    server.cli(&[
        "ACL", "SETUSER", "app", "on", ">secret", "~sh?p:*", "&none", "+@all",
    ]);
    let url = server.url().replace("//", "//app:secret@");
    let check = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_redlatch"));
        done(command.args(["--url", &url, "--prefix", "sh?p:", "check"])).1
    };
    let said = check();
    let advice: Vec<_> = said
        .lines()
        .filter_map(|line| line.split_once("ACL SETUSER "))
        .collect();
    assert!(advice.len() > 5, "{said}");
    for (_, rule) in advice {
        let rule = rule.split('`').next().unwrap();
        server.cli(
            &["ACL SETUSER", rule]
                .join(" ")
                .split(' ')
                .collect::<Vec<_>>(),
        );
    }
    let said = check();
    assert!(!said.contains("ACL SETUSER"), "{said}");
}

#[test]
fn a_frozen_server_keeps_no_run_beyond_its_limit() {
    let server = Server::start();
    server.freeze();
    let begun = Instant::now();
    let (status, _, why) = done(redlatch(&server).args(["run", "-w", "300ms", "a", "--", "true"]));
    let took = begun.elapsed();
    server.thaw();
    assert_eq!(status, 69, "{why}");
    // The connect timeout is 3 s.
    assert!(took >= ms(300) && took < loosely(ms(1_500)), "{took:?}");
}

#[test]
fn with_a_limit_of_zero_a_free_lock_is_taken() {
    let server = Server::start();
    let client = Client::open(server.client_url()).unwrap();
    let held = unique("held");
    let guard = client.mutex(&held).lock().unwrap();
    let name = unique("free");
    for (name, expected) in [(&name, 0), (&held, 75)] {
        let run = ["run", "-q", "-w", "0", name, "--", "true"];
        assert_eq!(done(redlatch(&server).args(run)).0, expected);
    }
    drop(guard);
}

#[test]
fn a_check_finds_what_makes_locks_fail_before_they_do() {
    let server = Server::start_with(&[]);
    let check = |url: &str, args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_redlatch"));
        done(command.args(["--url", url, "check"]).args(args))
    };
    let (status, said, why) = check(&server.url(), &[]);
    assert_eq!((status, &*why), (0, ""));
    assert!(said.contains("a hold of each kind"), "{said}");
    for deployment in deployments() {
        let server = Server::start_as(deployment);
        let (status, said, _) = check(&server.client_url(), &[]);
        assert!(
            status == 0 && said.contains("a hold of each kind"),
            "{said}"
        );
        let wrong = server.client_url().replacen("//", "//nobody:wrong@", 1);
        let (status, said, _) = check(&wrong, &[]);
        assert!(status == 69 && said.contains("WRONGPASS"), "{said}");
        let is_problem = |line: &str| line.starts_with("problem");
        assert!(said.lines().any(is_problem), "{said}");
    }
    let wrong = server.url().replacen("//", "//nobody:wrong@", 1);
    let (status, said, why) = check(&wrong, &["--json"]);
    let findings: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(
        (status, &*why, &findings[0]["severity"]),
        (69, "", &"problem".into())
    );
    let (status, said, _) = check(&format!("redis://127.0.0.1:{}/", free_port()), &[]);
    assert!(status == 69 && said.starts_with("problem"), "{said}");
    server.cli(&["CONFIG", "SET", "min-replicas-to-write", "2"]);
    let (status, said, _) = check(&server.url(), &[]);
    assert!(status == 69 && said.contains("NOREPLICAS"), "{said}");
}
