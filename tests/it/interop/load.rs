//! Two Java and two Rust processes with four threads each contend for one name of each kind in turn. The tests check
//! their histories, the number of turns of each process, and the longest waits.

use std::fmt::Write;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use redlatch::Client;

use super::sides::{is_wanted, lasting, measured, take};
use crate::support::history::{
    self, Event, Mode, NEMESIS, Phase, Rule, Setup, Wanted, What, nanos,
};
use crate::support::java::{Answer, Java, now_ns};
use crate::support::{
    Part, SLACK, Server, always, connection_to, given, loosely, ms, order, say, scoped, timed,
    unique,
};

/// The name of the client in each Java process.
const CLIENT: &str = "load";

const THREADS: usize = 4;

/// The kinds of locks that they contend for.
const KINDS: [&str; 9] = [
    "rw-apart",
    "rw",
    "lock",
    "fair",
    "fenced",
    "spin",
    "multi",
    "semaphore",
    "permit",
];

/// A Rust process has at least a fourth of the turns of a Java process. For expirable semaphores the share is 0.4 to
/// 0.8, since our threads let other processes go first after a tenure and Redisson's never do.
const LEAST_SHARE: usize = 4;

/// The longest wait that does not count as starvation.
const LONGEST: Duration = ms(2_000);

/// A shorter load says nothing about the longest waits.
const TELLING: Duration = ms(8_000);

/// The number of loads per kind; the first without starvation ends the series.
const LOADS: usize = 4;

/// The number of permits for all threads together.
const PERMITS: usize = 3;

/// A hold of a thread, as `load` in `tests/interop/src/Interop.java` prints it.
#[derive(Clone, Debug)]
struct Turn {
    thread: usize,
    mode: char,
    asked: u64,
    answered: u64,
    until: u64,
    released: u64,
    token: u64,
    number: u64,
    again: u64,
}

impl Turn {
    fn parse(line: &str) -> Self {
        let words: Vec<_> = line.split(' ').collect();
        let number = |at: usize| words[at].parse().expect("a number");
        Self {
            thread: words[1].parse().expect("a number"),
            mode: words[2].chars().next().expect("a mode"),
            asked: number(3),
            answered: number(4),
            until: number(5),
            released: number(6),
            token: number(7),
            number: number(8),
            again: number(9),
        }
    }

    fn wanted(&self, kind: &str, names: &[Arc<str>]) -> Wanted {
        let mode = match self.mode {
            'p' => Mode::Permits,
            'r' => Mode::Read,
            _ if kind.starts_with("rw") => Mode::Write,
            _ => Mode::Exclusive,
        };
        Wanted {
            kind: kind.into(),
            names: names.to_vec(),
            mode,
            permits: u64::from(mode == Mode::Permits),
            lease: None,
        }
    }

    fn waited(&self) -> Duration {
        Duration::from_nanos(self.answered - self.asked)
    }
}

/// The four processes and their server.
struct Four {
    server: Server,
    java: [Java; 2],
    rust: [Part; 2],
}

/// The turns of each process, Java's first.
struct Seen {
    kind: String,
    name: String,
    turns: [Vec<Turn>; 4],
}

impl Four {
    fn start() -> Option<Self> {
        let server = Server::start();
        let java = [Java::start()?, Java::start()?];
        for java in &java {
            open(java, &server);
        }
        let rust = [(); 2].map(|()| Part::start(part_that_contends, &[&server.url()]));
        Some(Self { server, java, rust })
    }

    fn contend(&mut self, kind: &str, span: Duration) -> Seen {
        let name = match kind {
            "multi" => format!("{}+{}", unique("one"), unique("two")),
            _ => unique(kind),
        };
        let first = &self.java[0];
        if matches!(kind, "semaphore" | "permit") {
            first.does(CLIENT, &format!("permits {CLIENT} {kind} {name} {PERMITS}"));
        }
        // Exclude the start-up time of the Java virtual machine.
        self.java.iter().for_each(|java| warm_up(java, kind));
        let load = format!("{kind} {name} {THREADS} {}", span.as_millis());
        for part in &mut self.rust {
            part.order(&load);
        }
        let (begun, server) = (Instant::now(), &self.server);
        let order = format!("load {CLIENT} {load}");
        let asked = self.java.each_ref().map(|java| java.order(CLIENT, &order));
        let [java, other] = asked.map(|answer| {
            turns_of(answer, span, || {
                // Redisson drops a writer's message if a thread is about to park; the thread then sleeps until the
                // lease expires. Later messages wake it while the load goes on, so only the last threads need this
                // message.
                if kind.starts_with("rw") && begun.elapsed() > span + LONGEST {
                    let channel = format!("redisson_rwlock:{{{name}}}");
                    server.cli(&["PUBLISH", &channel, "1"]);
                }
            })
        });
        let [rust, another] = self.rust.each_mut().map(|part| {
            let mut turns = Vec::new();
            loop {
                let line = part.says("");
                if line == "done" {
                    return turns;
                }
                turns.push(Turn::parse(&line));
            }
        });
        self.server.cli(&["DEL", &name]);
        Seen {
            kind: kind.to_owned(),
            name,
            turns: [java, other, rust, another],
        }
    }

    /// Repeats the load while some process starves, since a single load proves little if a process was slow during it.
    fn starved_by(&mut self, kind: &str) -> Vec<String> {
        let span = lasting(ms(800));
        let mut starved = Vec::new();
        for _ in 0..LOADS {
            let contention = self.contend(kind, span);
            measured(&contention.shares());
            let wrong = contention.wrong();
            always(wrong.is_empty(), &format!("{kind}: {wrong:#?}"));
            starved = contention.starved();
            if kind == "spin" && span >= TELLING {
                let beside = longest_waits(&contention.turns[..2]);
                let alone = self.waits_without_rust(kind, span);
                starved.extend(waits_beside_rust(&beside, &alone));
            }
            if starved.is_empty() {
                break;
            }
        }
        starved.iter().map(|who| format!("{kind}: {who}")).collect()
    }

    /// The longest wait of each thread, in ascending order, where four Java processes contend.
    fn waits_without_rust(&self, kind: &str, span: Duration) -> Vec<Duration> {
        let more = [(); 2].map(|()| Java::start().expect("there are two already"));
        for java in &more {
            open(java, &self.server);
            warm_up(java, kind);
        }
        let load = format!(
            "load {CLIENT} {kind} {} {THREADS} {}",
            unique(kind),
            span.as_millis()
        );
        let all = self.java.iter().chain(&more);
        let asked: Vec<_> = all.map(|java| java.order(CLIENT, &load)).collect();
        let all_turns = asked.into_iter().map(|load| turns_of(load, span, || ()));
        longest_waits(&all_turns.collect::<Vec<_>>())
    }
}

/// Compares the waits of Java threads beside ours with waits among Java threads only, for the spin lock, whose releases
/// are not announced. Redisson polls at intervals of up to 128 ms, so a thread may wait for seconds even among its own
/// kind; beside ours the median must not be longer than 1.5 times that.
fn waits_beside_rust(beside: &[Duration], alone: &[Duration]) -> Option<String> {
    let words = |waits: &[Duration]| {
        let (half, longest) = (waits[waits.len() / 2], waits[waits.len() - 1]);
        format!("half of its threads {half:.1?} at most, one of them {longest:.1?}")
    };
    let (ours, theirs) = (words(beside), words(alone));
    let both = format!("spin: Java waits, beside Rust: {ours}; four of Java: {theirs}");
    measured(&both);
    let is_longer = beside[beside.len() / 2] > alone[alone.len() / 2] * 3 / 2;
    is_longer.then_some(both)
}

fn open(java: &Java, server: &Server) {
    java.does(CLIENT, &format!("open {CLIENT} {} 30000 -", server.url()));
}

fn warm_up(java: &Java, kind: &str) {
    let load = format!("load {CLIENT} {kind} {} {THREADS} 0", unique("warm"));
    java.does(CLIENT, &load);
}

/// The turns of a Java process; calls `idle` while the process prints nothing.
fn turns_of(load: Answer, span: Duration, idle: impl Fn()) -> Vec<Turn> {
    let lines = load.lines(span + 6 * loosely(LONGEST), idle);
    lines.iter().map(|line| Turn::parse(line)).collect()
}

/// The longest wait of each thread, in ascending order.
fn longest_waits<'a>(processes: impl IntoIterator<Item = &'a Vec<Turn>>) -> Vec<Duration> {
    let mut longest = Vec::new();
    for turns in processes {
        longest.extend((0..THREADS).map(|thread| {
            let of_thread = turns.iter().filter(|turn| turn.thread == thread);
            of_thread.map(Turn::waited).max().unwrap_or(Duration::MAX)
        }));
    }
    longest.sort_unstable();
    longest
}

impl Seen {
    fn all(&self) -> impl Iterator<Item = &Turn> {
        self.turns.iter().flatten()
    }

    fn longest_wait(&self, process: usize) -> Duration {
        let waits = self.turns[process].iter().map(Turn::waited);
        waits.max().unwrap_or(Duration::MAX)
    }

    /// Describes the turns and the longest wait of each process in a line.
    fn shares(&self) -> String {
        let mut line = format!("{}:", self.kind);
        for (process, turns) in self.turns.iter().enumerate() {
            let side = if process < 2 { "Java" } else { "Rust" };
            let longest = self.longest_wait(process);
            let written = turns.iter().filter(|turn| turn.mode == 'x').count();
            write!(line, " {side} {} turns", turns.len()).unwrap();
            if written < turns.len() && written > 0 {
                write!(line, " ({written} alone)").unwrap();
            }
            write!(line, ", longest wait {longest:.1?};").unwrap();
        }
        line
    }

    /// Describes every violation: of the rules about grants, and reads during which somebody wrote.
    fn wrong(&self) -> Vec<String> {
        const RULES: [Rule; 6] = [
            Rule::Exclusion,
            Rule::Permits,
            Rule::Numbers,
            Rule::Order,
            Rule::Tokens,
            Rule::Log,
        ];
        let report = history::check(self.events());
        let broken = report.violations.iter();
        let broken = broken.filter(|violation| RULES.contains(&violation.rule));
        let mut wrong: Vec<_> = broken
            .map(|violation| format!("{}: {}", violation.rule.name(), violation.words))
            .collect();
        let torn = self.all().filter(|turn| turn.number != turn.again);
        wrong.extend(torn.map(|turn| format!("somebody wrote meanwhile: {turn:?}")));
        wrong
    }

    /// The history, process by process.
    fn events(&self) -> Vec<Event> {
        let names: Vec<Arc<str>> = self.name.split('+').map(Arc::from).collect();
        let setup = Setup {
            slack: nanos(loosely(SLACK)),
            permits: vec![(Arc::clone(&names[0]), PERMITS as u64)],
            ..Setup::default()
        };
        let begin = self.all().map(|turn| turn.asked).min().unwrap_or(0);
        let setup = What::Setup(Box::new(setup));
        let mut events = vec![Event::new(NEMESIS, Phase::Info, setup, begin)];
        for (process, turns) in (0..).zip(&self.turns) {
            for turn in turns {
                let thread = 1000 * process + i64::try_from(turn.thread).expect("few threads");
                let wanted = turn.wanted(&self.kind, &names);
                let acquire = |token: u64| What::Acquire {
                    wanted: wanted.clone(),
                    limit: None,
                    token: (token > 0).then_some(token),
                    id: None,
                };
                let release = || What::Release {
                    wanted: wanted.clone(),
                    id: None,
                    valid_until: None,
                };
                let work = (turn.mode == 'x').then(|| What::Work {
                    name: Arc::clone(&names[0]),
                    read: turn.number,
                    wrote: turn.number + 1,
                });
                let all = [
                    (Phase::Invoke, Some(acquire(0)), turn.asked),
                    (Phase::Ok, Some(acquire(turn.token)), turn.answered),
                    (Phase::Ok, work, turn.until),
                    (Phase::Invoke, Some(release()), turn.until),
                    (Phase::Ok, Some(release()), turn.released),
                ];
                for (phase, what, time) in all {
                    events.extend(what.map(|what| Event::new(thread, phase, what, time)));
                }
            }
        }
        events
    }

    /// The Rust processes with too few turns, and the threads that waited too long. With separate reading and writing
    /// threads (`rw-apart`) no writer gets a turn while Redisson's readers overlap, on either side, and our readers let
    /// our writers go first for up to 10 s, so this kind is not judged.
    fn starved(&self) -> Vec<String> {
        let mut starved = Vec::new();
        if self.kind == "rw-apart" {
            return starved;
        }
        let [java, other, rust, another] = self.turns.each_ref().map(Vec::len);
        if rust.min(another) * 2 * LEAST_SHARE < java + other {
            starved.push(format!(
                "a process had {} turns of {java} and {other}",
                rust.min(another)
            ));
        }
        let limit = loosely(LONGEST);
        for (process, turns) in (0..).zip(&self.turns).skip(2) {
            for thread in 0..THREADS {
                let of_thread = turns.iter().filter(|turn| turn.thread == thread);
                let longest = of_thread.map(Turn::waited).max();
                if longest.is_none_or(|longest| longest > limit) {
                    starved.push(format!("process {process}, thread {thread}: {longest:?}"));
                }
            }
        }
        starved
    }
}

#[test]
#[ignore = "part of other tests"]
fn part_that_contends() {
    let Some([url]) = given::<1>() else {
        return;
    };
    let clients = [Client::open(&*url).unwrap()];
    loop {
        let line = order();
        let [kind, name, threads, span] = line.split(' ').collect::<Vec<_>>()[..] else {
            panic!("{line}");
        };
        let (threads, span) = (threads.parse().unwrap(), span.parse().unwrap());
        for turn in contend(&clients, &url, kind, name, threads, ms(span)) {
            say(&turn);
        }
        say("done");
    }
}

/// Does here what `load` in `tests/interop/src/Interop.java` does there.
fn contend(
    clients: &[Client],
    url: &str,
    kind: &str,
    name: &str,
    threads: usize,
    span: Duration,
) -> Vec<String> {
    let end = now_ns() + u64::try_from(span.as_nanos()).unwrap();
    let counts = matches!(kind, "semaphore" | "permit");
    let (key, alone) = (
        format!("{name}:number"),
        if kind.starts_with("rw") {
            "write"
        } else {
            kind
        },
    );
    let work = |me: usize| {
        let mut con = connection_to(url);
        let mut turns = Vec::new();
        for n in me.. {
            let asked = now_ns();
            if asked >= end {
                break;
            }
            let reads = match kind {
                "rw" => n % 4 != 0,
                "rw-apart" => me != 0,
                _ => false,
            };
            let taken = take(clients, if reads { "read" } else { alone }, name).unwrap();
            let answered = now_ns();
            let number = if counts { 0 } else { read(&mut con, &key) };
            thread::sleep(ms(if kind == "rw-apart" { 10 } else { 1 }));
            let mut again = number;
            if reads {
                again = read(&mut con, &key);
            } else if !counts {
                let () = redis::cmd("SET")
                    .arg(&key)
                    .arg(number + 1)
                    .query(&mut con)
                    .unwrap();
            }
            let until = now_ns();
            let token = taken.token;
            drop(taken);
            let mode = match () {
                () if counts => 'p',
                () if reads => 'r',
                () => 'x',
            };
            turns.push(format!(
                "turn {me} {mode} {asked} {answered} {until} {} {token} {number} {again}",
                now_ns()
            ));
        }
        turns
    };
    scoped(|scope| {
        let work = &work;
        let all: Vec<_> = (0..threads)
            .map(|me| scope.spawn(move || work(me)))
            .collect();
        all.into_iter()
            .flat_map(|thread| thread.join().unwrap())
            .collect()
    })
}

fn read(con: &mut redis::Connection, key: &str) -> u64 {
    let found: Option<u64> = redis::cmd("GET").arg(key).query(con).unwrap();
    found.unwrap_or(0)
}

timed!(nobody_starves_and_nothing_is_wrong_where_java_and_rust_contend);
fn nobody_starves_and_nothing_is_wrong_where_java_and_rust_contend() {
    let Some(mut four) = Four::start() else {
        return;
    };
    let mut starved = Vec::new();
    for kind in KINDS.into_iter().filter(|kind| is_wanted(kind)) {
        starved.extend(four.starved_by(kind));
    }
    assert!(starved.is_empty(), "{starved:#?}");
}
