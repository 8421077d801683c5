//! A process that uses every kind of lock and writes a history of its requests, their results and its notifications.
//!
//! A grant is noted after it arrived and a release before it is sent, so the history never shows a hold longer than it
//! was.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{env, io, panic, process, thread};

use redlatch::{CancelToken, Client, Config, Error, RedLock, Result};
use serde_json::{Value, json};

use super::dice::Dice;
use super::holds::{Held, held};
use super::journal::{Journal, now};
use super::kinds::{Kind, MEMBERS, epoch, latch_of, log_of};
use super::support::ms;

/// The environment variable that makes a process a worker; it contains the [`Job`].
const JOB: &str = "REDLATCH_TORTURE_JOB";

/// All workers use the same few kinds for this long, so that their threads meet.
const SLOT: u64 = 400_000_000;

/// The number of kinds in use at a time.
const KINDS_AT_A_TIME: usize = 3;

/// The task of a worker.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) number: i64,
    pub(crate) seed: u64,
    pub(crate) threads: usize,
    /// The worker opens one client per URL.
    pub(crate) urls: Vec<String>,
    pub(crate) kinds: Vec<Kind>,
    /// If set, no lease is renewed, and this is the shortest: see [`Plan`](super::run::Plan).
    pub(crate) fixed_lease: Option<Duration>,
    pub(crate) lease: Duration,
    pub(crate) command_timeout: Duration,
    pub(crate) waiter_lease: Duration,
    /// The start of the run, by [`now`].
    pub(crate) began: u64,
    /// The folder of the worker's history, and of the numbers that the locks protect.
    pub(crate) folder: PathBuf,
}

impl Job {
    /// The number of the thread at this index in the history, and its dice.
    pub(crate) fn process(&self, thread: usize) -> (i64, Dice) {
        let process = self.number * 1000 + i64::try_from(thread).expect("a few") + 1;
        let seed = self.seed.wrapping_mul(1_000_003);
        let dice = Dice::new(seed ^ process.cast_unsigned().wrapping_mul(0x9E37));
        (process, dice)
    }

    pub(crate) fn journal(&self) -> PathBuf {
        self.folder.join(format!("worker-{}.jsonl", self.number))
    }

    /// Puts the job into the environment, where [`given`](Self::given) finds it.
    pub(crate) fn give(&self, command: &mut process::Command) {
        let millis = |span: Duration| u64::try_from(span.as_millis()).expect("a short time");
        let kinds: Vec<_> = self.kinds.iter().map(|kind| kind.name()).collect();
        let job = json!({
            "number": self.number, "seed": self.seed, "threads": self.threads, "urls": self.urls,
            "kinds": kinds, "fixed_lease": self.fixed_lease.map(millis), "lease": millis(self.lease),
            "response": millis(self.command_timeout), "waiter_lease": millis(self.waiter_lease),
            "began": self.began, "folder": self.folder,
        });
        command.env(JOB, job.to_string());
    }

    /// The job of this process, if it is a worker.
    pub(crate) fn given() -> Option<Self> {
        let job: Value = serde_json::from_str(&env::var(JOB).ok()?).expect("what was given");
        let number = |key: &str| job[key].as_u64().expect("a number");
        let texts = |key: &str| -> Vec<String> {
            let all = job[key].as_array().expect("several");
            let all = all
                .iter()
                .map(|word| word.as_str().expect("text").to_owned());
            all.collect()
        };
        let size = |key: &str| usize::try_from(number(key)).expect("a small number");
        Some(Self {
            number: job["number"].as_i64().expect("a number"),
            seed: number("seed"),
            threads: size("threads"),
            urls: texts("urls"),
            kinds: texts("kinds")
                .iter()
                .filter_map(|name| Kind::named(name))
                .collect(),
            fixed_lease: job["fixed_lease"].as_u64().map(ms),
            lease: ms(number("lease")),
            command_timeout: ms(number("response")),
            waiter_lease: ms(number("waiter_lease")),
            began: number("began"),
            folder: job["folder"].as_str().expect("a path").into(),
        })
    }

    /// Works until standard input is closed or the parent dies.
    pub(crate) fn run(self) {
        #[cfg(target_os = "linux")]
        nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL).expect("a signal");
        let journal = Journal::open(&self.journal()).expect("a file");
        let journal = Arc::new(journal);
        let process = self.number * 1000;
        panic::set_hook(Box::new({
            let journal = Arc::clone(&journal);
            move |panic| {
                let message = panic.to_string();
                eprintln!("worker {}: {message}", process / 1000);
                journal.note_with(process, "info", "panic", Value::Null, Some(message));
            }
        }));
        let clients: Vec<_> = self.urls.iter().map(|url| self.client(url)).collect();
        let worker = Worker {
            red: (clients.len() > 1)
                .then(|| RedLock::new(&clients, Kind::Red.name_of(0)))
                .map(|lock| lock.expect("a good name").min_uptime(self.lease)),
            clients,
            journal,
            cancel: CancelToken::new(),
            done: AtomicBool::new(false),
            job: self,
        };
        thread::scope(|scope| {
            let threads: Vec<_> = (0..worker.job.threads)
                .map(|number| {
                    let worker = &worker;
                    scope.spawn(move || Thread::new(worker, number).work())
                })
                .collect();
            io::copy(&mut io::stdin(), &mut io::sink()).ok();
            worker.done.store(true, Ordering::SeqCst);
            worker.cancel.cancel();
            for thread in threads {
                thread.join().ok();
            }
        });
        for client in &worker.clients {
            if let Err(err) = client.close(worker.job.command_timeout) {
                let err = Some(err.to_string());
                worker
                    .journal
                    .note_with(process, "info", "close", Value::Null, err);
            }
        }
        worker.journal.note(process, "info", "stopped", Value::Null);
    }

    fn client(&self, url: &str) -> Client {
        let mut config = Config::new(url)
            .lease(self.lease)
            .command_timeout(self.command_timeout)
            .connect_timeout(self.command_timeout)
            .waiter_lease(self.waiter_lease)
            .label(format!("worker-{}", self.number));
        if !url.contains("+cluster") {
            config = config.lazy();
        }
        loop {
            match Client::open(config.clone()) {
                Ok(client) => return client,
                Err(err) => assert!(err.is_retryable(), "{err}"),
            }
        }
    }
}

struct Worker {
    job: Job,
    clients: Vec<Client>,
    red: Option<RedLock>,
    journal: Arc<Journal>,
    cancel: CancelToken,
    done: AtomicBool,
}

/// How long a thread waits for a lock.
#[derive(Clone, Copy)]
pub(crate) enum Limit {
    Never,
    Once,
    For(Duration),
}

impl Limit {
    /// As the history has it: nothing if there is none.
    pub(crate) fn ms(self) -> Value {
        match self {
            Self::Never => Value::Null,
            Self::Once => 0.into(),
            Self::For(span) => u64::try_from(span.as_millis())
                .expect("a short time")
                .into(),
        }
    }
}

/// A request for one lock, or for several.
pub(crate) struct Wish {
    pub(crate) kind: Kind,
    /// A single name, except for a multi-lock.
    pub(crate) names: Vec<String>,
    pub(crate) write: bool,
    pub(crate) permits: u32,
    pub(crate) limit: Limit,
    /// Fixed, if not that of the client.
    pub(crate) lease: Option<Duration>,
}

impl Wish {
    pub(crate) fn mode(&self) -> &'static str {
        match self.kind {
            Kind::RwLock if self.write => "write",
            Kind::RwLock => "read",
            Kind::Semaphore | Kind::ExpirableSemaphore => "permits",
            _ => "exclusive",
        }
    }

    pub(crate) fn value(&self) -> Value {
        let mut value = json!({ "kind": self.kind.name(), "mode": self.mode() });
        match &self.names[..] {
            [name] => value["name"] = name.as_str().into(),
            names => value["names"] = names.into(),
        }
        if self.mode() == "permits" {
            value["permits"] = self.permits.into();
        }
        if let Some(lease) = self.lease {
            value["lease_ms"] = u64::try_from(lease.as_millis())
                .expect("a short time")
                .into();
        }
        value
    }
}

struct Thread<'a> {
    worker: &'a Worker,
    process: i64,
    dice: Dice,
    /// The last latch that this thread used.
    latch: Option<String>,
    /// The number of guarded writes so far.
    writes: u64,
}

impl<'a> Thread<'a> {
    fn new(worker: &'a Worker, number: usize) -> Self {
        let (process, dice) = worker.job.process(number);
        Self {
            worker,
            process,
            dice,
            latch: None,
            writes: 0,
        }
    }

    fn is_done(&self) -> bool {
        self.worker.done.load(Ordering::SeqCst)
    }

    fn work(mut self) {
        while !self.is_done() {
            match self.kind() {
                Kind::Latch => self.latch(),
                kind if kind.can_be_forced() && self.one_in(200) => self.force(kind),
                kind => self.lock(kind),
            }
            self.pause(20);
        }
    }

    fn pause(&mut self, below: usize) {
        thread::sleep(self.below(below));
    }

    fn below(&mut self, millis: usize) -> Duration {
        ms(self.dice.draw(millis) as u64)
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.dice.draw(n) == 0
    }

    /// Chooses one of the kinds that all workers use at the moment.
    fn kind(&mut self) -> Kind {
        let job = &self.worker.job;
        let slot = (now() - job.began) / SLOT;
        let mut at_the_moment = Dice::new(job.seed ^ slot.wrapping_mul(0x5851_F42D));
        let chosen = at_the_moment.shuffled(job.kinds.len());
        job.kinds[chosen[self.dice.draw(KINDS_AT_A_TIME.min(chosen.len()))]]
    }

    fn wish(&mut self, kind: Kind) -> Wish {
        let names = match kind {
            Kind::Multi => {
                let two = self.dice.shuffled(MEMBERS);
                two[..2].iter().map(|n| kind.name_of(*n as u64)).collect()
            }
            Kind::Reentrant if self.one_in(3) => {
                vec![Kind::Multi.name_of(self.dice.draw(MEMBERS) as u64)]
            }
            Kind::Semaphore => vec![kind.name_of(epoch(self.worker.job.began))],
            _ => vec![kind.name_of(0)],
        };
        let limit = match self.dice.draw(10) {
            0 => Limit::Once,
            // Permits of a plain semaphore are lost with their process, so wait for them only up to a limit.
            1 | 2 if kind != Kind::Semaphore => Limit::Never,
            3..=5 => Limit::For(ms(100) + self.below(400)),
            _ => Limit::For(ms(1_000) + self.below(4_000)),
        };
        let lease = match self.worker.job.fixed_lease {
            Some(shortest) => Some(shortest + shortest.mul_f64(self.dice.draw(100) as f64 / 100.0)),
            None => self.one_in(12).then(|| ms(300) + self.below(400)),
        };
        Wish {
            kind,
            names,
            write: self.one_in(3),
            permits: if kind == Kind::Semaphore {
                1 + u32::from(self.one_in(3))
            } else {
                1
            },
            limit,
            lease: lease.filter(|_| kind != Kind::Semaphore),
        }
    }

    fn ask(&self, wish: &Wish) -> Result<Option<Held>> {
        let cancel = &self.worker.cancel;
        let client = &self.worker.clients[0];
        let name = &wish.names[0];
        macro_rules! leased {
            ($handle:expr) => {{
                let handle = $handle.cancel_on(cancel);
                match wish.lease {
                    Some(lease) => handle.fixed_lease(lease),
                    None => handle,
                }
            }};
        }
        macro_rules! by {
            ($handle:expr, $wait:ident, $try:ident, $try_for:ident) => {{
                let handle = $handle;
                match wish.limit {
                    Limit::Never => held(handle.$wait().map(Some)),
                    Limit::Once => held(handle.$try()),
                    Limit::For(span) => held(handle.$try_for(span)),
                }
            }};
        }
        macro_rules! locked {
            ($handle:expr) => {
                by!(leased!($handle), lock, try_lock, try_lock_for)
            };
        }
        match wish.kind {
            Kind::Reentrant => locked!(client.reentrant_lock(name)),
            Kind::Mutex => locked!(client.mutex(name)),
            Kind::Fair => locked!(client.fair_lock(name)),
            Kind::FairMutex => locked!(client.fair_mutex(name)),
            Kind::Fenced => locked!(client.fenced_lock(name)),
            Kind::Spin => locked!(client.spin_lock(name)),
            Kind::Multi => locked!(client.multi_lock(&wish.names)),
            Kind::Red => locked!(self.worker.red.clone().expect("several clients")),
            Kind::RwLock if wish.write => {
                by!(
                    leased!(client.rw_lock(name)),
                    write,
                    try_write,
                    try_write_for
                )
            }
            Kind::RwLock => by!(leased!(client.rw_lock(name)), read, try_read, try_read_for),
            Kind::ExpirableSemaphore => by!(
                leased!(client.expirable_semaphore(name)),
                acquire,
                try_acquire,
                try_acquire_for
            ),
            Kind::Semaphore => {
                let handle = client.semaphore(name).cancel_on(cancel);
                let n = wish.permits;
                match wish.limit {
                    Limit::Never => held(handle.acquire_many(n).map(Some)),
                    Limit::Once => held(handle.try_acquire_many(n)),
                    Limit::For(span) => held(handle.try_acquire_many_for(n, span)),
                }
            }
            Kind::Latch => unreachable!("it is not held"),
        }
    }

    fn note(&self, kind: &str, f: &str, value: Value) {
        self.worker.journal.note(self.process, kind, f, value);
    }

    fn note_with(&self, kind: &str, f: &str, value: Value, error: impl ToString) {
        let error = Some(error.to_string());
        self.worker
            .journal
            .note_with(self.process, kind, f, value, error);
    }

    /// Acquires a lock, and keeps it for a while.
    fn lock(&mut self, kind: Kind) {
        let wish = self.wish(kind);
        let mut asked = wish.value();
        asked["limit_ms"] = wish.limit.ms();
        self.note("invoke", "acquire", asked.clone());
        match self.ask(&wish) {
            Ok(Some(hold)) => self.have(&wish, hold),
            Ok(None) => self.note("fail", "acquire", asked),
            Err(Error::Cancelled) => self.note_with("fail", "acquire", asked, "cancelled"),
            Err(err) => {
                self.note_with("info", "acquire", asked, err);
                self.pause(30);
            }
        }
    }

    fn have(&mut self, wish: &Wish, hold: Held) {
        let mut value = wish.value();
        if let Some(token) = hold.token() {
            value["token"] = token.into();
        }
        if let Some(id) = hold.id() {
            value["id"] = id.into();
        }
        self.note("ok", "acquire", value.clone());
        let lease = self.worker.job.lease;
        let for_so_long = match self.dice.draw(300) {
            // This lease is not renewed, so outstay it to see the loss noticed.
            n if n % 4 == 0 && wish.lease.is_some() => {
                wish.lease.unwrap_or(lease) + self.below(300)
            }
            // Long enough for a server that has forgotten the lock to be noticed.
            0 | 1 => lease + lease.mul_f64(self.dice.draw(200) as f64 / 100.0),
            2..=13 => self.below(400),
            _ => self.below(6),
        };
        let read = self.protected(wish).map(|file| (number_in(&file), file));
        // Holds without guarded writes have to notice a loss by themselves.
        let writes = wish.kind.guards_commands() && self.one_in(2);
        if writes {
            self.write(wish, &hold);
        }
        if let Some(guard) = self.once_more(wish) {
            drop(guard);
        }
        let until = Instant::now() + for_so_long;
        let valid_until = |hold: &Held| hold.valid_until().map(on_our_clock);
        let mut told = false;
        loop {
            if writes && self.one_in(4) {
                self.write(wish, &hold);
            }
            let time_left = until.saturating_duration_since(Instant::now());
            let loss = hold
                .lost()
                .and_then(|lost| lost.recv_timeout(time_left.min(ms(5))).ok());
            let valid = hold.is_valid();
            if loss.is_some() || !valid {
                let mut lost = value.clone();
                lost["reason"] =
                    loss.map_or("not valid".into(), |loss| loss.reason.to_string().into());
                lost["valid_until"] = valid_until(&hold).into();
                self.note("info", "lost", lost);
                told = true;
                break;
            }
            if time_left.is_zero() || self.is_done() {
                break;
            }
            if hold.lost().is_none() {
                thread::sleep(time_left.min(ms(5)));
            }
        }
        if let Some((read, file)) = read.filter(|_| !told) {
            let wrote = read + 1;
            file.write_all_at(&wrote.to_le_bytes(), 0).expect("a disk");
            let name = &wish.names[0];
            self.note(
                "ok",
                "work",
                json!({ "name": name, "read": read, "wrote": wrote }),
            );
        }
        // Write also if the hold is known to be lost: the server must reject this.
        if writes {
            self.write(wish, &hold);
        }
        // The hold may have ended since the loop looked last.
        if !told && !hold.is_valid() {
            let mut lost = value.clone();
            lost["reason"] = "not valid".into();
            lost["valid_until"] = valid_until(&hold).into();
            self.note("info", "lost", lost);
        }
        let mut releasing = value.clone();
        releasing["valid_until"] = valid_until(&hold).into();
        self.note("invoke", "release", releasing);
        if self.one_in(3) {
            drop(hold);
            return self.note("ok", "release", value);
        }
        match hold.release() {
            Ok(()) => self.note("ok", "release", value),
            Err(err @ Error::Lost { .. }) => self.note_with("fail", "release", value, err),
            Err(err) => self.note_with("info", "release", value, err),
        }
    }

    /// Appends to the log that the server keeps beside the lock, and must reject once the hold is over.
    fn write(&mut self, wish: &Wish, hold: &Held) {
        self.writes += 1;
        let name = &wish.names[0];
        let entry = format!("{}-{}", self.process, self.writes);
        let value = json!({ "name": name, "entry": entry });
        self.note("invoke", "write", value.clone());
        match hold.write(&log_of(name), &entry, self.one_in(2)) {
            Ok(()) => self.note("ok", "write", value),
            Err(err) if err.may_have_run() => self.note_with("info", "write", value, err),
            Err(err) => self.note_with("fail", "write", value, err),
        }
    }

    /// Acquires a lock again that this thread holds.
    fn once_more(&mut self, wish: &Wish) -> Option<redlatch::ReentrantLockGuard> {
        // The second hold would make the watchdog renew a fixed lease.
        let is_renewed = wish.lease.is_none();
        if wish.kind != Kind::Reentrant || !is_renewed || !self.one_in(4) {
            return None;
        }
        let lock = self.worker.clients[0].reentrant_lock(&wish.names[0]);
        match lock.try_lock() {
            Ok(guard) => guard,
            // The first hold is lost already.
            Err(Error::Lost { .. }) => None,
            Err(err) => {
                self.note_with("info", "reenter", wish.value(), err);
                None
            }
        }
    }

    /// The number that the lock protects, in a file, so that the check does not depend on Redis.
    fn protected(&self, wish: &Wish) -> Option<File> {
        if wish.mode() == "permits" || wish.mode() == "read" || wish.kind == Kind::Multi {
            return None;
        }
        let path = self
            .worker
            .job
            .folder
            .join(format!("number-{}", wish.names[0]));
        let open = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(path);
        Some(open.expect("a disk"))
    }

    /// Releases a lock by force, for any holder.
    fn force(&mut self, kind: Kind) {
        let client = &self.worker.clients[0];
        let name = kind.name_of(0);
        let value = json!({ "kind": kind.name(), "name": name });
        let force = || match kind {
            Kind::Reentrant | Kind::Mutex => client.reentrant_lock(&name).force_unlock(),
            Kind::Multi => client.multi_lock([&name]).force_unlock(),
            Kind::Fair | Kind::FairMutex => client.fair_lock(&name).force_unlock(),
            Kind::Fenced => client.fenced_lock(&name).force_unlock(),
            Kind::Spin => client.spin_lock(&name).force_unlock(),
            Kind::RwLock => client.rw_lock(&name).force_unlock(),
            Kind::Red => self
                .worker
                .red
                .as_ref()
                .expect("several clients")
                .force_unlock(),
            Kind::Semaphore | Kind::ExpirableSemaphore | Kind::Latch => unreachable!("no lock"),
        };
        self.note("invoke", "force-unlock", value.clone());
        match force() {
            Ok(_) => self.note("ok", "force-unlock", value),
            Err(err) => self.note_with("info", "force-unlock", value, err),
        }
    }

    /// Counts the current latch down once, and waits until it opens.
    fn latch(&mut self) {
        let job = &self.worker.job;
        let name = latch_of(job.began);
        if self.latch.as_ref() == Some(&name) {
            return;
        }
        self.latch = Some(name.clone());
        let latch = self.worker.clients[0]
            .latch(&name)
            .cancel_on(&self.worker.cancel);
        let value = json!({ "kind": "latch", "name": name });
        // The count-down of any thread may be the one that opens the latch, so each is noted.
        self.note("invoke", "count-down", value.clone());
        match latch.count_down() {
            Ok(()) => self.note("ok", "count-down", value.clone()),
            Err(err) => self.note_with("info", "count-down", value.clone(), err),
        }
        let limit = ms(500) + self.below(1_500);
        let mut asked = value;
        asked["limit_ms"] = Limit::For(limit).ms();
        self.note("invoke", "await", asked.clone());
        match latch.wait_for(limit) {
            Ok(true) => self.note("ok", "await", asked),
            Ok(false) => self.note("fail", "await", asked),
            Err(Error::Cancelled) => self.note_with("fail", "await", asked, "cancelled"),
            Err(err) => self.note_with("info", "await", asked, err),
        }
    }
}

fn number_in(file: &File) -> u64 {
    let mut bytes = [0; 8];
    match file.read_exact_at(&mut bytes, 0) {
        Ok(()) => u64::from_le_bytes(bytes),
        // The file is new and empty.
        Err(_) => 0,
    }
}

/// Converts an `Instant` to the clock of [`now`].
fn on_our_clock(instant: Instant) -> u64 {
    let (our_now, its_now) = (now(), Instant::now());
    let nanos = |span: Duration| u64::try_from(span.as_nanos()).expect("centuries");
    match instant.checked_duration_since(its_now) {
        Some(time_left) => our_now + nanos(time_left),
        None => our_now.saturating_sub(nanos(its_now - instant)),
    }
}
