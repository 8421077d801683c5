//! A worker of the torture for lock libraries of Rust: `../README.md` describes its lines. The first argument names the library.

use std::collections::HashMap;
use std::io::{BufRead, Write};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use library::{Failure, Hold, Library, Request, Servers};
use nix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

mod library;
mod redlatch_peer;
mod rlock_peer;

fn now() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("a clock");
    time.tv_sec().cast_unsigned() * 1_000_000_000 + time.tv_nsec().cast_unsigned()
}

fn on_the_clock(instant: Instant) -> u64 {
    let (our_now, monotonic) = (now(), Instant::now());
    match instant.checked_duration_since(monotonic) {
        Some(time_left) => our_now + time_left.as_nanos() as u64,
        None => our_now - (monotonic - instant).as_nanos() as u64,
    }
}

fn say(id: &Value, mut answer: Value) {
    answer["at"] = now().into();
    answer["id"] = id.clone();
    let mut out = std::io::stdout().lock();
    writeln!(out, "{answer}").and_then(|()| out.flush()).ok();
}

fn outcome(done: Result<(), Failure>) -> Value {
    match done {
        Ok(()) => json!({ "ok": true }),
        Err(Failure::Busy) => json!({ "busy": true }),
        Err(Failure::Lost(reason)) => json!({ "lost": reason }),
        Err(Failure::Error(error)) => json!({ "error": error }),
    }
}

fn millis(value: &Value) -> Option<Duration> {
    value.as_u64().map(Duration::from_millis)
}

fn texts(value: &Value) -> Vec<String> {
    let texts = value.as_array().into_iter().flatten();
    texts
        .filter_map(|text| text.as_str().map(str::to_owned))
        .collect()
}

fn work(library: &dyn Library, commands: &Receiver<Value>) {
    let mut held: Option<Box<dyn Hold>> = None;
    for command in commands {
        let text = |field: &str| command[field].as_str().unwrap_or_default().to_owned();
        let answer = match (command["op"].as_str(), &held) {
            (Some("lock"), _) => {
                let granted = library.lock(&Request {
                    kind: text("kind"),
                    names: texts(&command["names"]),
                    wait: millis(&command["wait_ms"]),
                    lease: millis(&command["lease_ms"]),
                });
                let mut answer = json!({ "ok": true });
                match granted {
                    Ok(hold) => {
                        answer["token"] = hold.token().into();
                        held = Some(hold);
                    }
                    Err(failure) => answer = outcome(Err(failure)),
                }
                answer
            }
            (Some("hold"), Some(hold)) => {
                let lost = hold.keep(millis(&command["ms"]).unwrap_or_default());
                let mut answer = lost.map_or(json!({ "ok": true }), |why| json!({ "lost": why }));
                answer["valid_until"] = hold.valid_until().map(on_the_clock).into();
                answer
            }
            (Some("write"), Some(hold)) => outcome(hold.write(&text("key"), &text("entry"))),
            (Some("unlock"), Some(_)) => outcome(held.take().expect("it is held").unlock()),
            _ => json!({ "error": "an unknown command, or nothing is held" }),
        };
        say(&command["id"], answer);
    }
}

fn main() {
    let name = std::env::args().nth(1).unwrap_or_default();
    let mut library: Option<Arc<dyn Library>> = None;
    let mut threads: HashMap<u64, Sender<Value>> = HashMap::new();
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let command: Value = serde_json::from_str(&line).expect("a command");
        match command["op"].as_str() {
            Some("describe") if name == "rlock" => say(&command["id"], rlock_peer::described()),
            Some("describe") => say(&command["id"], redlatch_peer::described()),
            Some("open") => {
                let servers = Servers {
                    urls: texts(&command["urls"]),
                    lease: millis(&command["lease_ms"]).expect("a lease"),
                    timeout: millis(&command["timeout_ms"]).expect("a timeout"),
                };
                let opened = match name.as_str() {
                    "rlock" => rlock_peer::open(&servers),
                    _ => redlatch_peer::open(&servers),
                };
                let done = opened.map(|opened| library = Some(opened));
                say(&command["id"], outcome(done));
            }
            _ => {
                let number = command["thread"].as_u64().unwrap_or(0);
                let library = library.as_ref().expect("`open` comes first");
                let thread = threads.entry(number).or_insert_with(|| {
                    let (sender, commands) = channel();
                    let library = Arc::clone(library);
                    std::thread::spawn(move || work(&*library, &commands));
                    sender
                });
                thread.send(command).ok();
            }
        }
    }
    std::process::exit(0);
}
