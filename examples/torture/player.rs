//! The threads of a remote worker: what each is told to do, and what is recorded of it.
//!
//! The program dates its answers, since a stopped program answers late. A hold ends in the history when the driver decides to
//! release it: from then on nothing is done under the lock.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::dice::Dice;
use super::journal::{Journal, now};
use super::kinds::{Kind, MEMBERS, log_of};
use super::remote::{Library, Line};
use super::support::{locked, ms};
use super::worker::{Job, Limit, Wish};

/// How long a program keeps a hold until it is asked again: the driver has writes in between.
const PIECE: Duration = ms(20);

/// The threads of one worker.
pub(crate) struct Players {
    state: Arc<State>,
    conductor: JoinHandle<()>,
}

struct State {
    line: Arc<Line>,
    library: Library,
    job: Job,
    journal: Journal,
    is_open: AtomicBool,
    is_done: AtomicBool,
    /// The last answer to `open` that was an error.
    open_error: Mutex<Option<String>>,
}

impl Players {
    /// `servers` is what the program opens, as fields of the command `open`.
    pub(crate) fn start(line: Arc<Line>, library: Library, job: Job, servers: Value) -> Self {
        let state = Arc::new(State {
            line,
            library,
            journal: Journal::open(&job.journal()).expect("a file"),
            job,
            is_open: AtomicBool::new(false),
            is_done: AtomicBool::new(false),
            open_error: Mutex::new(None),
        });
        let conductor = Arc::clone(&state);
        let conductor = thread::spawn(move || conductor.conduct(servers));
        Self { state, conductor }
    }

    pub(crate) fn are_open(&self) -> bool {
        self.state.is_open.load(Ordering::SeqCst)
    }

    /// Why the servers are not open.
    pub(crate) fn open_error(&self) -> Option<String> {
        locked(&self.state.open_error).clone()
    }

    /// Each thread ends after what it does at the moment.
    pub(crate) fn finish(&self) {
        self.state.is_done.store(true, Ordering::SeqCst);
    }

    pub(crate) fn have_finished(&self) -> bool {
        self.conductor.is_finished()
    }

    pub(crate) fn close(&self) {
        self.state.line.close();
    }
}

impl State {
    fn is_done(&self) -> bool {
        self.is_done.load(Ordering::SeqCst)
    }

    fn conduct(&self, mut open: Value) {
        let millis = |span: Duration| u64::try_from(span.as_millis()).expect("a short time");
        open["op"] = "open".into();
        open["lease_ms"] = millis(self.job.lease).into();
        open["timeout_ms"] = millis(self.job.command_timeout).into();
        // A worker that replaces a killed one may begin while its server is unreachable.
        loop {
            match self.line.ask(open.clone()) {
                Some(answer) if answer["ok"] == true => break,
                Some(answer) if !self.is_done() => {
                    *locked(&self.open_error) = Some(answer["error"].to_string());
                    thread::sleep(ms(100));
                }
                _ => return,
            }
        }
        self.is_open.store(true, Ordering::SeqCst);
        thread::scope(|scope| {
            for number in 0..self.job.threads {
                scope.spawn(move || Player::new(self, number).play());
            }
        });
    }
}

struct Player<'a> {
    state: &'a State,
    number: usize,
    process: i64,
    dice: Dice,
    writes: u64,
}

impl<'a> Player<'a> {
    fn new(state: &'a State, number: usize) -> Self {
        let (process, dice) = state.job.process(number);
        Self {
            state,
            number,
            process,
            dice,
            writes: 0,
        }
    }

    fn play(mut self) {
        while !self.state.is_done() && self.lock().is_some() {
            thread::sleep(self.below(20));
        }
    }

    fn below(&mut self, millis: usize) -> Duration {
        ms(self.dice.draw(millis) as u64)
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.dice.draw(n) == 0
    }

    fn note(&self, kind: &str, f: &str, value: &Value, time: u64, error: Option<&Value>) {
        let mut event = json!({ "process": self.process, "type": kind, "f": f, "value": value });
        if let Some(error) = error {
            event["error"] = match error {
                Value::String(text) => text.as_str().into(),
                other => other.to_string().into(),
            };
        }
        self.state.journal.note_at(time, event);
    }

    /// Notes the outcome of a release or a guarded write.
    fn note_outcome(&self, f: &str, value: &Value, answer: &Value, at: u64) {
        if answer["ok"] == true {
            self.note("ok", f, value, at, None);
        } else if let Some(reason) = answer.get("lost") {
            self.note("fail", f, value, at, Some(reason));
        } else {
            self.note("info", f, value, at, Some(&answer["error"]));
        }
    }

    /// The answer to a command of this thread, and when it was given.
    fn ask(&self, mut command: Value) -> Option<(Value, u64)> {
        command["thread"] = self.number.into();
        let answer = self.state.line.ask(command)?;
        let at = answer["at"].as_u64().unwrap_or_else(now);
        Some((answer, at))
    }

    fn wish(&mut self) -> Wish {
        let job = &self.state.job;
        let kind = job.kinds[self.dice.draw(job.kinds.len())];
        let names = match kind {
            Kind::Multi => {
                let two = self.dice.shuffled(MEMBERS);
                two[..2].iter().map(|n| kind.name_of(*n as u64)).collect()
            }
            _ => vec![kind.name_of(0)],
        };
        let limit = match self.dice.draw(10) {
            0 => Limit::Once,
            1 | 2 => Limit::Never,
            3..=5 => Limit::For(ms(100) + self.below(400)),
            _ => Limit::For(ms(1_000) + self.below(4_000)),
        };
        // A lease that nobody renews is the same for all holds.
        let fixed = (!self.state.library.renews).then_some(job.lease);
        Wish {
            kind,
            names,
            write: self.one_in(3),
            permits: 1,
            limit,
            lease: job.fixed_lease.or(fixed),
        }
    }

    /// Requests a lock, and keeps it for a while; `None` once the program has ended.
    fn lock(&mut self) -> Option<()> {
        let wish = self.wish();
        let value = wish.value();
        let mut asked = value.clone();
        asked["limit_ms"] = wish.limit.ms();
        let mut command = json!({
            "op": "lock", "kind": wish.kind.name(), "mode": wish.mode(), "names": wish.names,
            "wait_ms": wish.limit.ms(),
        });
        if let Some(lease) = value.get("lease_ms") {
            command["lease_ms"] = lease.clone();
        }
        self.note("invoke", "acquire", &asked, now(), None);
        let (answer, at) = self.ask(command)?;
        if answer["ok"] == true {
            return self.have(&wish, value, &answer, at);
        }
        if answer["busy"] == true {
            self.note("fail", "acquire", &asked, at, None);
        } else {
            self.note("info", "acquire", &asked, at, Some(&answer["error"]));
            thread::sleep(self.below(30));
        }
        Some(())
    }

    fn have(&mut self, wish: &Wish, mut value: Value, granted: &Value, at: u64) -> Option<()> {
        if let Some(token) = granted["token"].as_u64() {
            value["token"] = token.into();
        }
        self.note("ok", "acquire", &value, at, None);
        let lease = wish.lease.unwrap_or(self.state.job.lease);
        let for_so_long = match self.dice.draw(300) {
            // Long enough to outlive a server that has forgotten the hold, but never a lease that nobody renews.
            0 | 1 if wish.lease.is_none() => {
                lease + lease.mul_f64(self.dice.draw(200) as f64 / 100.0)
            }
            0 | 1 => lease / 2,
            2..=13 => self.below(400),
            _ => self.below(6),
        };
        let writes = wish.kind.guards_commands() && self.one_in(2);
        if writes {
            self.write(wish)?;
        }
        let until = Instant::now() + for_so_long;
        let mut was_told = false;
        let mut valid_until;
        loop {
            let time_left = until.saturating_duration_since(Instant::now());
            let piece = u64::try_from(time_left.min(PIECE).as_millis()).expect("a short time");
            let (answer, at) = self.ask(json!({ "op": "hold", "ms": piece }))?;
            valid_until = answer["valid_until"].clone();
            if let Some(reason) = answer["lost"].as_str() {
                let mut lost = value.clone();
                lost["reason"] = reason.into();
                lost["valid_until"] = valid_until.clone();
                self.note("info", "lost", &lost, at, None);
                was_told = true;
                break;
            }
            if time_left.is_zero() || self.state.is_done() {
                break;
            }
            if writes && self.one_in(4) {
                self.write(wish)?;
            }
        }
        // A holder that knows of its loss writes only if the library rejects that.
        if writes && (!was_told || self.state.library.guards) {
            self.write(wish)?;
        }
        let mut releasing = value.clone();
        releasing["valid_until"] = valid_until;
        self.note("invoke", "release", &releasing, now(), None);
        let (answer, at) = self.ask(json!({ "op": "unlock" }))?;
        self.note_outcome("release", &value, &answer, at);
        Some(())
    }

    /// Appends to the log that the server keeps beside the lock.
    fn write(&mut self, wish: &Wish) -> Option<()> {
        self.writes += 1;
        let name = &wish.names[0];
        let entry = format!("{}-{}", self.process, self.writes);
        let value = json!({ "name": name, "entry": entry });
        self.note("invoke", "write", &value, now(), None);
        let command = json!({ "op": "write", "key": log_of(name), "entry": entry });
        let (answer, at) = self.ask(command)?;
        self.note_outcome("write", &value, &answer, at);
        Some(())
    }
}
