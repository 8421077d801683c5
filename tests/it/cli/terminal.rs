//! The command in a shell on a terminal: job control, Ctrl-C, pipelines, and a terminal that is closed.

#![cfg(target_os = "linux")]

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use super::{Running, done, pty, redlatch};
use crate::support::{GENEROUS, Server, eventually, loosely, ms, unique, within};

/// A program in a session of its own, with a terminal of its own.
struct Terminal {
    keyboard: File,
    screen: Receiver<Vec<u8>>,
    screen_text: String,
    running: Running,
}

impl Terminal {
    fn start(server: &Server, command: &[&str]) -> Self {
        let pty = pty();
        let slave = || Stdio::from(pty.slave.try_clone().unwrap());
        // `setsid --ctty` makes this the controlling terminal. Under `nohup` SIGHUP would be ignored.
        let child = Command::new("setsid")
            .args(["--ctty", "env", "--default-signal=HUP"])
            .args(command)
            .env("REDLATCH_URL", server.client_url())
            .env("PATH", path())
            .env("PS1", "$ ")
            .env("TERM", "dumb")
            .env_remove("HISTFILE")
            .stdin(slave())
            .stdout(slave())
            .stderr(slave())
            .spawn()
            .unwrap();
        let running = Running(child);
        let keyboard = File::from(pty.master);
        let (sender, screen) = channel();
        let mut terminal = keyboard.try_clone().unwrap();
        std::thread::spawn(move || {
            let mut some = [0; 1024];
            while let Ok(n @ 1..) = terminal.read(&mut some) {
                if sender.send(some[..n].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self {
            keyboard,
            screen,
            screen_text: String::new(),
            running,
        }
    }

    /// Starts an interactive shell.
    fn shell(server: &Server) -> Self {
        let mut shell = Self::start(server, &["bash", "--norc", "--noprofile", "-b", "-i"]);
        shell.expect("$ ");
        shell
    }

    fn types(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until `text` is on the screen; returns everything up to its end.
    #[track_caller]
    fn expect(&mut self, text: &str) -> String {
        let shown = within(loosely(GENEROUS), || {
            if let Ok(more) = self.screen.recv_timeout(ms(20)) {
                self.screen_text.push_str(&String::from_utf8_lossy(&more));
            }
            self.screen_text.contains(text)
        });
        assert!(shown, "no {text:?} on the screen: {:?}", self.screen_text);
        let end = self.screen_text.find(text).unwrap() + text.len();
        self.screen_text.drain(..end).collect()
    }
}

/// A search path that begins with the folder of the command.
fn path() -> String {
    let command = std::path::Path::new(env!("CARGO_BIN_EXE_redlatch"));
    let dir = command.parent().unwrap().display();
    format!("{dir}:{}", std::env::var("PATH").unwrap_or_default())
}

fn is_free(server: &Server, name: &str) -> bool {
    done(redlatch(server).args(["who", name])).0 == 1
}

#[test]
fn a_program_reads_the_terminal_stops_and_comes_back() {
    let server = Server::start();
    let name = unique("read");
    let mut shell = Terminal::shell(&server);
    // The quotes keep the echo of the keys different from the output.
    shell.types(&format!(
        "redlatch run {name} -- sh -c 'echo as\"\"king; read a; echo first:$a; read b; echo second:$b'\n"
    ));
    shell.expect("asking");
    shell.types("one\n");
    shell.expect("first:one");
    shell.types("\x1a");
    shell.expect("Stopped");
    shell.expect("$ ");
    assert!(!is_free(&server, &name));
    shell.types("jobs; echo still h\"\"ere\n");
    shell.expect("still here");
    shell.types("fg\n");
    shell.expect("redlatch run");
    shell.types("two\n");
    shell.expect("second:two");
    shell.expect("$ ");
    assert!(is_free(&server, &name));
    // A program in the background that reads the terminal is stopped, and the shell reports that.
    shell.types(&format!(
        "redlatch run {name} -- sh -c 'read c; echo third:$c' &\n"
    ));
    shell.expect("Stopped");
    shell.types("\necho no\"\"w; fg\n");
    // The shell's report contains the same words, so wait for the marker first.
    shell.expect("now");
    shell.expect("redlatch run");
    shell.types("three\n");
    shell.expect("third:three");
    shell.types("exit\n");
    shell.running.end();
}

#[test]
fn ctrl_c_is_one_interrupt_and_ends_a_script() {
    let server = Server::start();
    let name = unique("interrupt");
    let dir = tempfile::tempdir().unwrap();
    let (go, go_path) = (dir.path().join("go"), dir.path().join("go"));
    let script = dir.path().join("count.sh");
    std::fs::write(
        &script,
        format!(
            "trap 'echo i\"\"nt' INT\necho wai\"\"ting\nwhile [ ! -e {} ]; do :; done\necho do\"\"ne\n",
            go_path.display()
        ),
    )
    .unwrap();
    let mut shell = Terminal::shell(&server);
    // With the terminal as standard input, without it, and in a pipeline.
    for around in ["", "</dev/null", "| (trap '' INT; cat)"] {
        std::fs::remove_file(&go).ok();
        shell.types(&format!(
            "redlatch run {name} -- sh {} {around}\n",
            script.display()
        ));
        shell.expect("waiting");
        shell.types("\x03");
        shell.expect("int");
        std::fs::write(&go, "").unwrap();
        let rest = shell.expect("done");
        assert!(!rest.contains("int"), "{around}: {rest}");
        shell.expect("$ ");
    }
    // Ctrl-C ends the program, and the script that runs the command.
    for around in ["", "</dev/null"] {
        let program = "sh -c \"echo wai\\\"\\\"ting; exec sleep 100\"";
        shell.types(&format!(
            "bash -c 'redlatch run {name} -- {program} {around}; echo go\"\"es on'\n"
        ));
        shell.expect("waiting");
        shell.types("\x03");
        let said = shell.expect("$ ");
        assert!(!said.contains("goes on"), "{around}: {said}");
        shell.types("echo stat\"\"us $?\n");
        shell.expect("status 130");
        shell.expect("$ ");
        assert!(is_free(&server, &name));
    }
    shell.types("exit\n");
    shell.running.end();
}

// `timeout` makes a process group of its own.
#[test]
fn ctrl_c_reaches_a_program_that_makes_its_own_group() {
    let server = Server::start();
    let name = unique("own");
    let mut shell = Terminal::shell(&server);
    shell.types(&format!(
        "redlatch run {name} -- timeout 100 sh -c 'echo wai\"\"ting; exec sleep 100'\n"
    ));
    shell.expect("waiting");
    // The group is noticed a moment after it is made, so the key is pressed until it is heard.
    let ended = within(loosely(GENEROUS), || {
        shell.types("\x03");
        std::thread::sleep(ms(200));
        is_free(&server, &name)
    });
    assert!(ended, "it is not interrupted");
    shell.types("exit\n");
    shell.running.end();
}

#[test]
fn a_pager_behind_it_has_the_terminal() {
    let server = Server::start();
    let name = unique("pager");
    let mut shell = Terminal::shell(&server);
    shell.types(&format!(
        "redlatch run {name} -- echo text | sh -c 'echo as\"\"king; read key </dev/tty; echo pa\"\"ger:$key; cat'\n"
    ));
    shell.expect("asking");
    shell.types("q\n");
    shell.expect("pager:q");
    shell.expect("text");
    // Ctrl-Z stops the whole pipeline, of which the command is the first part.
    shell.types(&format!(
        "redlatch run {name} -- sh -c 'echo be\"\"gun; exec sleep 100' | cat\n"
    ));
    shell.expect("begun");
    shell.types("\x1a");
    shell.expect("Stopped");
    shell.types("\necho no\"\"w; fg\n");
    // The shell's report contains the same words, so wait for the marker first.
    shell.expect("now");
    shell.expect("redlatch run");
    shell.types("\x03");
    shell.expect("$ ");
    eventually("it is free", || is_free(&server, &name));
    shell.types("exit\n");
    shell.running.end();
}

#[test]
fn without_a_shell_nothing_stops_for_ever() {
    let server = Server::start();
    let name = unique("alone");
    let mut alone = Terminal::start(
        &server,
        &[
            "redlatch",
            "run",
            &name,
            "--",
            "sh",
            "-c",
            "echo asking; read a; echo first:$a",
        ],
    );
    alone.expect("asking");
    // A stopped job would stay stopped, since the session has no shell.
    alone.types("\x1aone\n");
    alone.expect("first:one");
    assert_eq!(alone.running.status(), Some(0));
}

#[test]
fn a_terminal_that_is_closed_ends_the_job() {
    let server = Server::start();
    let name = unique("closed");
    let mut shell = Terminal::shell(&server);
    shell.types(&format!(
        "redlatch run {name} -- sh -c 'echo be\"\"gun; sleep 100; echo'\n"
    ));
    shell.expect("begun");
    assert!(!is_free(&server, &name));
    let Terminal {
        keyboard, running, ..
    } = shell;
    // The thread that reads the terminal has a copy, which is closed when the session ends.
    drop((keyboard, running));
    eventually("it is free", || is_free(&server, &name));
}
