use super::*;

use std::hash::{Hash, Hasher};
use std::sync::LazyLock;

use parking_lot::Mutex;

use crate::net::call::{Attempt, Deferred, DeferredInfo, Undo};
use crate::net::request::{Acknowledgements, Request};
use crate::net::text::Text;
use crate::search::{Digest, Explore, Trace, explore};

static ACQUIRE: LazyLock<Script> = LazyLock::new(|| Script::new("acquire"));
static RELEASE: LazyLock<Script> = LazyLock::new(|| Script::new("release"));
static HASHES: LazyLock<[String; 2]> = LazyLock::new(|| {
    ["acquire", "release"].map(|text| redis::Script::new(text).get_hash().to_owned())
});
static BEGIN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// The commands, by their number: what each is about, and when a release is of no use any more.
const KEYS: [&str; 4] = ["a", "a", "b", "b"];
const ENDS_MS: u64 = 40;
const UNDOING: usize = 9;

fn at(ms: u64) -> Instant {
    *BEGIN + Duration::from_millis(ms)
}

fn ms(at: Instant) -> u128 {
    at.saturating_duration_since(*BEGIN).as_millis()
}

fn request(id: usize, script: &'static Script, key: &str) -> Request {
    Request::script("testing", script, &[key], &[&id.to_string()])
}

fn release(id: usize, key: &str, ends: Instant) -> Deferred {
    Deferred {
        request: request(id, &RELEASE, key),
        info: DeferredInfo {
            name: id.to_string().into(),
            owner: Text::default(),
            useful_until: ends,
            valid_until: None,
            undo: false,
            has_no_lease: false,
        },
    }
}

struct TakeBack;

impl Undo for TakeBack {
    fn undo(&self) -> Deferred {
        release(UNDOING, "a", at(1_000_000))
    }
}

/// An acquire that a thread waits for, a release of the same that is of no use after a while, another release, and an
/// acquire whose reply may never be looked at.
fn command(id: usize) -> Arc<Call> {
    match id {
        0 => Call::attempt(Attempt {
            request: request(id, &ACQUIRE, KEYS[id]),
            undo: Some(Arc::new(TakeBack)),
        }),
        1 => Call::deferred(release(id, KEYS[id], at(ENDS_MS))),
        2 => Call::deferred(release(id, KEYS[id], at(1_000_000))),
        _ => Call::unattended(Attempt {
            request: request(id, &ACQUIRE, KEYS[id]),
            undo: None,
        }),
    }
}

/// The commands that the server got.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Command {
    id: usize,
    script: usize,
    by_text: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Says {
    Ran,
    NoScript,
    Loading,
    ReadOnly,
}

impl Says {
    fn value(self, id: usize) -> Value {
        let line = match self {
            Self::Ran => format!(":{id}\r\n"),
            Self::NoScript => "-NOSCRIPT No matching script\r\n".to_owned(),
            Self::Loading => "-LOADING not yet\r\n".to_owned(),
            Self::ReadOnly => "-READONLY a replica\r\n".to_owned(),
        };
        redis::parse_redis_value(line.as_bytes()).expect("a reply")
    }
}

/// The outcomes of releases, by number: run, or given up.
#[derive(Default)]
struct Heard(Mutex<Vec<(usize, Option<bool>)>>);

impl OnReply for Heard {
    fn released(&self, release: &DeferredInfo, reply: &Value, replayed: bool) {
        let id: usize = release.name.parse().expect("a number");
        assert_eq!(*reply, Value::Int(i64::try_from(id).expect("small")));
        self.0.lock().push((id, Some(replayed)));
    }

    fn given_up(&self, release: &DeferredInfo, _: &RedisError) {
        let id = release.name.parse().expect("a number");
        self.0.lock().push((id, None));
    }
}

#[test]
fn a_call_is_not_locked_while_somebody_learns_what_became_of_it() {
    struct Locks(Arc<Call>, Mutex<u32>);

    impl Locks {
        fn look(&self) {
            assert!(self.0.state.is_free());
            *self.1.lock() += 1;
        }
    }

    impl OnReply for Locks {
        fn released(&self, _: &DeferredInfo, _: &Value, _: bool) {
            self.look();
        }

        fn given_up(&self, _: &DeferredInfo, _: &RedisError) {
            self.look();
        }
    }

    let now = Instant::now();
    let denied = redis::parse_redis_value(b"-NOPERM not yours\r\n").expect("a reply");
    for reply in [Value::Int(2), denied] {
        let call = command(2);
        let mut pipeline = pipeline();
        pipeline.connected(now);
        assert!(pipeline.submit(&call, now));
        let locks = Locks(call, Mutex::new(0));
        assert!(matches!(
            pipeline.reply(reply, now, &locks),
            Received::Of(_)
        ));
        assert_eq!(*locks.1.lock(), 1);
    }
}

#[test]
fn the_replies_around_one_that_counts_are_part_of_the_same_call() {
    let now = Instant::now();
    let okay = || Value::Okay;
    let silent = Heard::default();
    for (asking, waits) in [(false, true), (true, false), (true, true)] {
        for answers in 0..=4 {
            let mut request = request(0, &ACQUIRE, KEYS[0]);
            request.acknowledgements = waits.then_some(Acknowledgements {
                needed: 1,
                timeout: 9,
            });
            let call = Call::attempt(Attempt {
                request,
                undo: None,
            });
            call.state.lock().asking = asking;
            let next = Call::question(Request::command("testing", &["PING"]));
            let mut pipeline = pipeline();
            pipeline.connected(now);
            assert!(pipeline.submit(&call, now) && pipeline.submit(&next, now));
            let mut replies = Vec::new();
            if asking {
                replies.push((okay(), None));
            }
            replies.push((Value::Int(7), (!waits).then_some(&call)));
            if waits {
                replies.push((Value::Int(2), Some(&call)));
            }
            replies.push((okay(), Some(&next)));
            let call_replies = replies.len() - 1;
            for (value, of) in replies.into_iter().take(answers) {
                let replied = match pipeline.reply(value, now, &silent) {
                    Received::Of(replied) => Some(Arc::as_ptr(&replied.call)),
                    Received::Part => None,
                    Received::Stray => panic!("{asking} {waits} {answers}: it is due"),
                };
                assert_eq!(replied, of.map(Arc::as_ptr), "{asking} {waits} {answers}");
            }
            let awaiting = pipeline.in_flight().expect("a connection").due();
            pipeline.lost(&RedisError::from(std::io::Error::other("away")));
            let outcome = call.outcome().expect("either way");
            if answers < call_replies {
                // Half of an answer is none.
                assert!(
                    outcome.is_err() && awaiting == 2,
                    "{asking} {waits} {answers}"
                );
            } else {
                let answer = outcome.expect("a reply");
                assert_eq!(answer.value, Value::Int(7));
                assert_eq!(answer.acknowledged, waits.then_some((2, 1)));
                assert_eq!(awaiting, usize::from(answers == call_replies));
            }
        }
    }
}

fn pipeline() -> Pipeline {
    Pipeline::new(0, Arc::new(Ledger::of_one()))
}

/// How often each of what goes wrong still may, and the clock moves on.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Left {
    partial: u8,
    forgets: u8,
    refusals: u8,
    losses: u8,
    ticks: u8,
}

struct World {
    pipeline: Pipeline,
    now_ms: u64,
    calls: Vec<Arc<Call>>,
    submitted: [bool; 4],
    /// How often each was found to be settled.
    settled: [u8; 4],
    heard: Heard,
    budget: Left,
    // The server.
    knows: [bool; 2],
    runs: [u8; 4],
    // The connection.
    inbox: Vec<u8>,
    arrived: VecDeque<Command>,
    replies: VecDeque<(Command, Says)>,
    /// Sent here, and not refused.
    here: [bool; 4],
    /// The text of this script was sent here.
    introduced: [bool; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Submit(usize),
    Write,
    WritePart,
    /// Part is written, and another thread submits this one before that is noted.
    WritePartAndSubmit(usize),
    Run,
    Refuse(Says),
    Forget,
    Read,
    /// The server runs what has arrived, or does not.
    Lose {
        runs: bool,
    },
    Connect,
    Feed,
    Bring(usize),
    Tick(u64),
    End,
}

fn steps(commands: &[usize]) -> Vec<Step> {
    let submits = commands.iter();
    let submits = submits.flat_map(|id| {
        let id = *id;
        [
            Step::Submit(id),
            Step::WritePartAndSubmit(id),
            Step::Bring(id),
        ]
    });
    let others = [
        Step::Write,
        Step::WritePart,
        Step::Run,
        Step::Refuse(Says::Loading),
        Step::Refuse(Says::ReadOnly),
        Step::Forget,
        Step::Read,
        Step::Lose { runs: true },
        Step::Lose { runs: false },
        Step::Connect,
        Step::Feed,
        Step::Tick(11),
        Step::Tick(60),
        Step::End,
    ];
    submits.chain(others).collect()
}

impl World {
    fn new(budget: Left) -> Self {
        Self {
            pipeline: pipeline(),
            now_ms: 0,
            calls: (0..4).map(command).collect(),
            submitted: [false; 4],
            settled: [0; 4],
            heard: Heard::default(),
            budget,
            knows: [false; 2],
            runs: [0; 4],
            inbox: Vec::new(),
            arrived: VecDeque::new(),
            replies: VecDeque::new(),
            here: [false; 4],
            introduced: [false; 2],
        }
    }

    fn id(&self, call: &Arc<Call>) -> usize {
        let ids = self.calls.iter();
        let mut ids = ids
            .enumerate()
            .filter(|(_, known)| Arc::ptr_eq(known, call));
        ids.next().expect("one of ours").0
    }

    fn is_kept(&self, id: usize) -> bool {
        let kept = self.pipeline.ledger.calls();
        kept.iter().any(|call| Arc::ptr_eq(call, &self.calls[id]))
    }

    fn submit(&mut self, id: usize) -> bool {
        if self.submitted[id] {
            return false;
        }
        let connected = self.pipeline.in_flight.is_some();
        let sent = self.pipeline.submit(&self.calls[id], at(self.now_ms));
        let deferred = self.calls[id].deferred.is_some();
        assert!(!sent || connected);
        assert!(
            sent || !connected || deferred,
            "refused although there is a connection"
        );
        self.submitted[id] = sent || deferred;
        if sent {
            let kept = self.pipeline.ledger.calls();
            let mut kept = kept.iter().map(|call| self.id(call));
            let about = kept.find(|kept| KEYS[*kept] == KEYS[id]);
            assert!(about.is_none(), "one about the same is not taken along");
        }
        sent || deferred
    }

    /// Writes so many of the bytes, and `meanwhile` another thread submits.
    fn write(&mut self, most: impl Fn(usize) -> usize, meanwhile: Option<usize>) -> bool {
        let Some(in_flight) = self
            .pipeline
            .in_flight()
            .filter(|in_flight| in_flight.has_bytes())
        else {
            return false;
        };
        let bytes = in_flight.unwritten.take();
        let written = most(bytes.len());
        self.inbox.extend_from_slice(&bytes[..written]);
        if let Some(id) = meanwhile {
            self.submit(id);
        }
        let in_flight = self.pipeline.in_flight().expect("still connected");
        in_flight.unwritten.wrote(bytes, written);
        while let Some(command) = next_command(&mut self.inbox) {
            self.arrive(command);
        }
        true
    }

    fn arrive(&mut self, command: Command) {
        let id = command.id;
        assert!(!self.here[id], "{id} is sent twice over one connection");
        self.here[id] = true;
        let introduced = &mut self.introduced[command.script];
        *introduced |= command.by_text;
        let is_attended = !self.calls[id].unattended;
        assert!(is_attended || *introduced, "a new server may not know {id}");
        self.arrived.push_back(command);
    }

    /// The server runs the next command, or says something else.
    fn serve(&mut self, refusal: Option<Says>) -> bool {
        let Some(command) = self.arrived.pop_front() else {
            return false;
        };
        let knows = &mut self.knows[command.script];
        let says = match refusal {
            Some(says) => says,
            None if !command.by_text && !*knows => Says::NoScript,
            None => {
                *knows = true;
                self.runs[command.id] += 1;
                Says::Ran
            }
        };
        self.replies.push_back((command, says));
        true
    }

    fn read(&mut self) -> bool {
        let Some((command, says)) = self.replies.pop_front() else {
            return false;
        };
        let id = command.id;
        let (deferred, by_text) = (self.calls[id].deferred.is_some(), command.by_text);
        let (now, heard_before) = (at(self.now_ms), self.heard.0.lock().len());
        if says != Says::Ran {
            self.here[id] = false;
        }
        self.introduced[command.script] &= says != Says::NoScript;
        let reply = self.pipeline.reply(says.value(id), now, &self.heard);
        let Received::Of(replied) = reply else {
            panic!("it was asked for");
        };
        assert_eq!(self.id(&replied.call), id, "somebody else's reply");
        let heard = self.heard.0.lock().clone();
        match (deferred, says) {
            (false, _) => self.settled[id] += 1,
            (true, Says::Ran) => {
                let replayed = heard[heard_before..] == [(id, Some(true))];
                assert!(replayed || heard[heard_before..] == [(id, Some(false))]);
                assert!(replayed || self.runs[id] == 1, "{id} ran before");
                self.settled[id] += 1;
            }
            (true, _) => {
                let info = self.calls[id].deferred.as_ref().expect("a release");
                // The text is sent at once, whatever the time.
                let ended = now >= info.useful_until && says != Says::NoScript;
                assert!(says != Says::NoScript || !by_text);
                assert_eq!(
                    ended,
                    heard[heard_before..] == [(id, None)],
                    "given up in its time"
                );
                self.settled[id] += u8::from(ended);
            }
        }
        if replied.leaving.is_some() {
            assert!(self.replies.is_empty() && self.arrived.is_empty());
            self.lose(false);
        }
        true
    }

    fn lose(&mut self, runs: bool) {
        let torn = !self.inbox.is_empty();
        while runs && self.serve(None) {}
        let why = RedisError::from(std::io::Error::other("lost"));
        let in_flight = self.pipeline.in_flight.as_ref().expect("connected");
        let waited: Vec<_> = in_flight
            .awaiting
            .iter()
            .map(|call| self.id(call))
            .collect();
        let lost = self.pipeline.lost(&why).expect("connected");
        assert!(lost.torn || !torn, "something would follow half a command");
        let mut undoing = lost.undoing;
        let undone = next_command(&mut undoing);
        assert_eq!(
            undone.is_some(),
            waited.contains(&0),
            "undone if it may have run"
        );
        assert!(undone.is_none_or(|command| command.by_text && command.id == UNDOING));
        for id in waited {
            self.settled[id] += u8::from(self.calls[id].deferred.is_none());
        }
        self.inbox.clear();
        self.arrived.clear();
        self.replies.clear();
        self.here = [false; 4];
        self.introduced = [false; 2];
    }
}

impl Explore for World {
    type Step = Step;

    fn copy(&self) -> Self {
        let calls: Vec<_> = (0..4).map(command).collect();
        for (call, copy) in self.calls.iter().zip(&calls) {
            *copy.state.lock() = call.state.lock().clone();
        }
        let of = |call: &Arc<Call>| Arc::clone(&calls[self.id(call)]);
        let ledger = Arc::new(self.pipeline.ledger.copy(of));
        Self {
            pipeline: self.pipeline.copy(&ledger, of),
            calls,
            heard: Heard(Mutex::new(self.heard.0.lock().clone())),
            inbox: self.inbox.clone(),
            arrived: self.arrived.clone(),
            replies: self.replies.clone(),
            ..*self
        }
    }

    fn digest(&self) -> u64 {
        let mut hasher = Digest::default();
        let h = &mut hasher;
        (self.now_ms, self.submitted, self.settled, self.budget).hash(h);
        (self.knows, self.runs, self.here, self.introduced).hash(h);
        (&self.inbox, &self.arrived, &self.replies).hash(h);
        for call in &self.calls {
            let state = call.state.lock();
            std::mem::discriminant(&state.phase).hash(h);
            (ms(state.sent_at), state.by_text, state.sendings, state.seq).hash(h);
        }
        let kept = self.pipeline.ledger.calls();
        let kept: Vec<_> = kept.iter().map(|call| self.id(call)).collect();
        kept.hash(h);
        self.pipeline.rests_until.map(ms).hash(h);
        if let Some(in_flight) = &self.pipeline.in_flight {
            let awaiting = in_flight.awaiting.iter();
            awaiting
                .map(|call| self.id(call))
                .collect::<Vec<_>>()
                .hash(h);
            let unwritten = &in_flight.unwritten;
            (&unwritten.bytes, unwritten.is_full(), unwritten.is_torn()).hash(h);
            let due = in_flight.awaiting.len() as u64;
            let of_batch = (in_flight.batch_ends + due).saturating_sub(in_flight.queued);
            (of_batch, in_flight.leaving.is_some()).hash(h);
        }
        hasher.finish()
    }

    fn can(&self, step: Step) -> bool {
        let in_flight = self.pipeline.in_flight.as_ref();
        let (connected, budget) = (in_flight.is_some(), self.budget);
        let has_bytes = || in_flight.is_some_and(InFlight::has_bytes);
        match step {
            Step::Submit(id) => !self.submitted[id] && (connected || id == 1 || id == 2),
            Step::Write => has_bytes(),
            Step::WritePart => budget.partial > 0 && has_bytes(),
            Step::WritePartAndSubmit(id) => {
                budget.partial > 0 && has_bytes() && !self.submitted[id]
            }
            Step::Run => !self.arrived.is_empty(),
            Step::Refuse(_) => budget.refusals > 0 && !self.arrived.is_empty(),
            Step::Forget => budget.forgets > 0 && self.knows != [false; 2],
            Step::Read => !self.replies.is_empty(),
            Step::Lose { .. } => connected && budget.losses > 0,
            Step::Connect => !connected,
            Step::Feed => connected && !self.pipeline.ledger.is_empty(),
            Step::Bring(id) => connected && self.submitted[id] && self.settled[id] == 0,
            Step::Tick(_) => budget.ticks > 0,
            Step::End => !self.pipeline.ledger.is_empty(),
        }
    }

    fn take(&mut self, step: Step) -> bool {
        let now = at(self.now_ms);
        let connected = self.pipeline.in_flight.is_some();
        let spend = |count: &mut u8| {
            let some = *count > 0;
            *count = count.saturating_sub(1);
            some
        };
        match step {
            Step::Submit(id) => self.submit(id),
            Step::Write => self.write(|len| len, None),
            Step::WritePart => {
                self.can(step) && spend(&mut self.budget.partial) && self.write(|len| len / 2, None)
            }
            Step::WritePartAndSubmit(id) => {
                self.can(step)
                    && spend(&mut self.budget.partial)
                    && self.write(|len| len / 2, Some(id))
            }
            Step::Run => self.serve(None),
            Step::Refuse(says) => {
                !self.arrived.is_empty()
                    && spend(&mut self.budget.refusals)
                    && self.serve(Some(says))
            }
            Step::Forget => {
                self.knows != [false; 2] && spend(&mut self.budget.forgets) && {
                    self.knows = [false; 2];
                    true
                }
            }
            Step::Read => self.read(),
            Step::Lose { runs } => {
                connected && spend(&mut self.budget.losses) && {
                    self.lose(runs);
                    true
                }
            }
            Step::Connect => {
                !connected && {
                    self.pipeline.connected(now);
                    true
                }
            }
            Step::Feed => {
                self.pipeline.feed(now);
                true
            }
            Step::Bring(id) => {
                let (was_kept, rests) = (self.is_kept(id), self.pipeline.rests(now));
                self.pipeline.bring(&self.calls[id].request, now);
                let is_brought = was_kept && !self.is_kept(id);
                assert_eq!(is_brought, was_kept && connected && !rests);
                is_brought
            }
            Step::Tick(ms) => {
                spend(&mut self.budget.ticks) && {
                    self.now_ms += ms;
                    true
                }
            }
            Step::End => {
                let useless = self.pipeline.ledger.take_useless(now, usize::MAX);
                for call in &useless {
                    let info = call.deferred.as_ref().expect("a release");
                    assert!(now >= info.useful_until, "dropped before its time");
                    let why = RedisError::from(std::io::Error::other("useless"));
                    call.state.lock().phase = CallPhase::Broken(why);
                    self.settled[self.id(call)] += 1;
                }
                !useless.is_empty()
            }
        }
    }

    fn check(&self) {
        let kept = self.pipeline.ledger.calls();
        let in_flight = self.pipeline.in_flight.as_ref();
        let awaiting = || {
            in_flight
                .into_iter()
                .flat_map(|in_flight| &in_flight.awaiting)
        };
        for (id, call) in self.calls.iter().enumerate() {
            let is_this = |other: &&Arc<Call>| Arc::ptr_eq(other, call);
            let waits = awaiting().filter(is_this).count();
            let copies = waits + kept.iter().filter(|other| is_this(other)).count();
            let settled = usize::from(self.settled[id]);
            let submitted = usize::from(self.submitted[id]);
            assert_eq!(
                copies + settled,
                submitted,
                "{id} is in one place or settled, once"
            );
            let phase = call.state.lock().phase.clone();
            let fits = match phase {
                CallPhase::Idle(_) => waits == 0 && settled == 0,
                CallPhase::Awaiting => waits == 1,
                CallPhase::Done(_) | CallPhase::Broken(_) => settled == 1,
            };
            assert!(fits, "{id} is {phase:?}");
        }
    }

    /// With a server that works again everything is settled, and what is of use has run.
    fn drain(mut self) {
        for _ in 0..20 {
            self.take(Step::End);
            self.take(Step::Connect);
            self.now_ms += 60;
            self.take(Step::Feed);
            while self.take(Step::Write) {}
            while self.take(Step::Run) {}
            while self.take(Step::Read) {}
            self.check();
        }
        for (id, submitted) in self.submitted.into_iter().enumerate() {
            assert_eq!(self.settled[id], u8::from(submitted), "{id} is left over");
        }
        assert!(!self.submitted[2] || self.runs[2] > 0, "a release is lost");
    }
}

/// Takes the first command that is there in whole.
fn next_command(bytes: &mut Vec<u8>) -> Option<Command> {
    let text = std::str::from_utf8(bytes).expect("text");
    let mut lines = text.split_inclusive("\r\n");
    let mut taken = 0;
    let mut line = || {
        let line = lines.next()?.strip_suffix("\r\n")?;
        taken += line.len() + 2;
        Some(line)
    };
    let count: usize = line()?.strip_prefix('*')?.parse().ok()?;
    let mut parts = Vec::new();
    for _ in 0..count {
        line()?;
        parts.push(line()?);
    }
    let script = HASHES.iter().position(|hash| hash == parts[1]);
    let command = Command {
        id: parts[4].parse().expect("a number"),
        script: script.unwrap_or(usize::from(parts[1] == "release")),
        by_text: parts[0] == "EVAL",
    };
    bytes.drain(..taken);
    Some(command)
}

#[test]
fn every_schedule_answers_each_command_once_in_order_or_sends_it_again() {
    let of = |commands: &[usize], limits: [u8; 5]| {
        let [partial, forgets, refusals, losses, ticks] = limits;
        let budget = Left {
            partial,
            forgets,
            refusals,
            losses,
            ticks,
        };
        explore(World::new(budget), &steps(commands), 16)
    };
    let states = of(&[0, 1, 2, 3], [0, 0, 0, 1, 0])
        + of(&[0, 2, 3], [0, 0, 0, 2, 0])
        + of(&[0, 1, 3], [0, 0, 0, 1, 1])
        + of(&[0, 2, 3], [0, 1, 0, 0, 1])
        + of(&[1, 3], [1, 0, 0, 1, 0])
        + of(&[0, 2], [1, 0, 0, 0, 0])
        + of(&[1, 2, 3], [0, 0, 1, 1, 0])
        + of(&[0, 1], [0, 0, 1, 1, 1])
        + of(&[1], [1, 1, 1, 1, 2])
        + of(&[0, 1], [1, 0, 1, 1, 0])
        + of(&[1, 2], [0, 0, 1, 1, 1]);
    assert!(states > 50_000, "{states}");
}

#[test]
fn so_do_long_schedules_in_which_much_goes_wrong() {
    let steps = steps(&[0, 1, 2, 3]);
    let mut refused = 0;
    for seed in 0..1000_u64 {
        let mut seed = seed;
        let mut world = World::new(Left {
            partial: 9,
            forgets: 3,
            refusals: 5,
            losses: 5,
            ticks: 5,
        });
        let mut path = Vec::new();
        for _ in 0..150 {
            seed = seed.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
            let at = usize::try_from(seed >> 33).unwrap_or(0) % steps.len();
            if world.can(steps[at]) {
                path.push(steps[at]);
                let _trace = Trace(&path);
                world.take(steps[at]);
                world.check();
            }
        }
        refused += u32::from(world.budget.refusals < 5);
        world.drain();
    }
    assert!(refused > 200, "{refused}");
}
