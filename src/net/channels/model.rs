//! Every schedule of a few waiters, exhaustively: they begin to listen, give up, or leave their subscription behind; the
//! server carries commands out, refuses them or is busy; messages, pauses and lost connections come in between.

use super::*;

use std::hash::{Hash, Hasher};
use std::sync::LazyLock;

use parking_lot::Mutex;

use crate::search::{Digest, Explore, asked_for, explore};

static BEGIN: LazyLock<Instant> = LazyLock::new(Instant::now);

const NAMES: [&str; 2] = ["a", "b"];
/// The channel of each waiter, by index.
const LISTENS_TO: [usize; 3] = [0, 0, 1];

#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
struct Knows {
    is_answered: bool,
    /// There was a message, and it has neither got that nor asked since.
    missed: bool,
}

#[derive(Default)]
struct TestListener(Mutex<Knows>);

impl Listener for TestListener {
    fn message(&self) {
        self.0.lock().missed = false;
    }

    fn set_answered(&self, is_answered: bool) {
        let mut knows = self.0.lock();
        // A waiter asks once its subscription is confirmed.
        knows.missed &= !is_answered;
        knows.is_answered = is_answered;
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Sent {
    Subscribe(usize),
    Unsubscribe(usize),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Says {
    Done,
    Refused,
    Busy,
    Message(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Begin(usize),
    End(usize),
    Leave(usize),
    Release(usize),
    Publish(usize),
    /// The server carries the next command out, or says something else.
    Run(Says),
    Read,
    Housekeep,
    Tick(u64),
    Lose,
    Connect,
}

const STEPS: [Step; 20] = [
    Step::Begin(0),
    Step::Begin(1),
    Step::Begin(2),
    Step::End(0),
    Step::End(1),
    Step::End(2),
    Step::Leave(0),
    Step::Leave(1),
    Step::Leave(2),
    Step::Release(0),
    Step::Publish(0),
    Step::Run(Says::Done),
    Step::Run(Says::Refused),
    Step::Run(Says::Busy),
    Step::Read,
    Step::Housekeep,
    Step::Tick(20),
    Step::Tick(1000),
    Step::Lose,
    Step::Connect,
];

/// How often each of these still may happen.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Left {
    begins: [u8; 3],
    messages: u8,
    refusals: u8,
    busy: u8,
    ticks: u8,
    losses: u8,
}

struct World {
    channels: Channels,
    now_ms: u64,
    waiting: [Arc<TestListener>; 3],
    numbers: [Option<u64>; 3],
    budget: Left,
    // The connection and the server.
    connections: u8,
    connected: bool,
    inbox: VecDeque<Sent>,
    replies: VecDeque<Says>,
    subscribed: [bool; 2],
    may_repeat: bool,
}

fn commands(bytes: &[u8]) -> impl Iterator<Item = Sent> {
    let text = std::str::from_utf8(bytes).expect("text");
    let words: Vec<_> = text
        .split("\r\n")
        .filter(|word| !word.is_empty() && !word.starts_with(['*', '$']))
        .collect();
    let sent = |words: &[&str]| {
        let name = NAMES.iter().position(|name| *name == words[1]);
        let name = name.expect("a name");
        match words[0] {
            "SUBSCRIBE" => Sent::Subscribe(name),
            _ => Sent::Unsubscribe(name),
        }
    };
    words.chunks(2).map(sent).collect::<Vec<_>>().into_iter()
}

impl World {
    fn new(budget: Left) -> Self {
        Self {
            channels: Channels::default(),
            now_ms: 0,
            waiting: Default::default(),
            numbers: [None; 3],
            budget,
            connections: 0,
            connected: false,
            inbox: VecDeque::new(),
            replies: VecDeque::new(),
            subscribed: [false; 2],
            may_repeat: false,
        }
    }

    fn now(&self) -> Instant {
        *BEGIN + Duration::from_millis(self.now_ms)
    }

    fn try_take(&mut self, step: Step) -> bool {
        let now = self.now();
        let spend = |count: &mut u8| {
            let some = *count > 0;
            *count = count.saturating_sub(1);
            some
        };
        let name = |waiter: usize| Arc::from(NAMES[LISTENS_TO[waiter]]);
        match step {
            Step::Begin(waiter) => {
                if self.numbers[waiter].is_some() || !spend(&mut self.budget.begins[waiter]) {
                    return false;
                }
                let name: Arc<str> = name(waiter);
                let was_wanted = self.channels.wanted.contains_key(&name);
                self.waiting[waiter] = Arc::default();
                let listener = Arc::clone(&self.waiting[waiter]) as _;
                let number = self.channels.subscribe(&name, listener);
                self.numbers[waiter] = Some(number);
                assert!(
                    !was_wanted || !self.channels.has_bytes(),
                    "what is there already is taken over"
                );
                true
            }
            Step::End(waiter) | Step::Leave(waiter) => {
                let Some(number) = self.numbers[waiter].take() else {
                    return false;
                };
                let lingers = matches!(step, Step::Leave(_));
                let until = lingers.then(|| now + LINGER);
                self.channels.end(&name(waiter), number, until);
                assert!(!lingers || !self.channels.has_bytes(), "it lingers");
                true
            }
            Step::Release(name) => {
                let channel = self.channels.wanted.get(NAMES[name]);
                channel.is_some_and(|channel| channel.lingers_until.is_some()) && {
                    self.channels.end_lingering(NAMES[name]);
                    let mut waiters = (0..3).filter(|waiter| LISTENS_TO[*waiter] == name);
                    let wanted = waiters.any(|waiter| self.numbers[waiter].is_some());
                    assert_eq!(self.channels.wanted.contains_key(NAMES[name]), wanted);
                    true
                }
            }
            Step::Publish(name) => {
                spend(&mut self.budget.messages) && {
                    self.publish(name);
                    true
                }
            }
            Step::Run(says) => self.serve(says),
            Step::Read => self.read(),
            Step::Housekeep => {
                let ends = |channels: &Channels| {
                    let ends = NAMES.map(|name| channels.wanted.get(name)?.lingers_until);
                    ends.map(|until| until.filter(|until| *until > now))
                };
                let ends_before = ends(&self.channels);
                self.channels.end_lingering_until(now);
                let ends_after = ends(&self.channels);
                assert_eq!(
                    ends_before, ends_after,
                    "a subscription lingers for its time"
                );
                self.channels.ask_again(now);
                true
            }
            Step::Tick(ms) => {
                spend(&mut self.budget.ticks) && {
                    self.now_ms += ms;
                    true
                }
            }
            Step::Lose => {
                self.connected && spend(&mut self.budget.losses) && {
                    self.channels.lost();
                    self.connected = false;
                    self.inbox.clear();
                    self.replies.clear();
                    self.subscribed = [false; 2];
                    true
                }
            }
            Step::Connect => {
                !self.connected && !self.channels.is_empty() && {
                    self.channels.connected(self.connections > 0);
                    self.connections += 1;
                    self.connected = true;
                    true
                }
            }
        }
    }

    fn publish(&mut self, name: usize) {
        if self.subscribed[name] {
            self.replies.push_back(Says::Message(name));
        }
        if self.channels.is_refused(NAMES[name]) {
            return;
        }
        for (waiter, waiting) in self.waiting.iter().enumerate() {
            if LISTENS_TO[waiter] == name && self.numbers[waiter].is_some() {
                waiting.0.lock().missed = true;
            }
        }
    }

    fn serve(&mut self, says: Says) -> bool {
        let Some(next) = self.inbox.front().copied() else {
            return false;
        };
        let count = match (says, next) {
            (Says::Refused, Sent::Unsubscribe(_)) => return false,
            (Says::Refused, _) => &mut self.budget.refusals,
            (Says::Busy, _) => &mut self.budget.busy,
            _ => &mut u8::MAX.clone(),
        };
        if *count == 0 {
            return false;
        }
        *count -= 1;
        self.inbox.pop_front();
        self.replies.push_back(says);
        // An UNSUBSCRIBE that was postponed may come after the next SUBSCRIBE, or not at all.
        self.may_repeat |= says == Says::Busy && matches!(next, Sent::Unsubscribe(_));
        if says == Says::Done {
            let (name, subscribes) = match next {
                Sent::Subscribe(name) => (name, true),
                Sent::Unsubscribe(name) => (name, false),
            };
            let was = std::mem::replace(&mut self.subscribed[name], subscribes);
            // Where a SUBSCRIBE was refused, its UNSUBSCRIBE may have been on its way already.
            let may_repeat = self.may_repeat || !subscribes;
            assert!(may_repeat || was != subscribes, "{next:?} twice");
        }
        true
    }

    fn read(&mut self) -> bool {
        let now = self.now();
        match self.replies.pop_front() {
            None => return false,
            Some(Says::Done) => drop(self.channels.answered(false, now)),
            Some(Says::Refused) => drop(self.channels.answered(true, now)),
            Some(Says::Busy) => self.channels.postpone(now),
            Some(Says::Message(name)) => {
                for waiter in self.channels.message(NAMES[name]) {
                    waiter.message();
                }
            }
        }
        true
    }
}

impl Explore for World {
    type Step = Step;

    fn copy(&self) -> Self {
        let copied =
            |waiting: &Arc<TestListener>| Arc::new(TestListener(Mutex::new(*waiting.0.lock())));
        let waiting = self.waiting.each_ref().map(copied);
        let of = |number: u64| {
            let mut numbers = self.numbers.iter();
            let at = numbers.position(|listed| *listed == Some(number));
            Arc::clone(&waiting[at.expect("it listens")])
        };
        let channel = |(name, wanted): (&Arc<str>, &Channel)| {
            let waiters = wanted.waiters.iter();
            let waiters = waiters.map(|waiter| RegisteredListener {
                number: waiter.number,
                listener: of(waiter.number) as _,
            });
            let waiters = waiters.collect();
            (Arc::clone(name), Channel { waiters, ..*wanted })
        };
        let exchange = self.channels.exchange.as_ref().map(|exchange| Exchange {
            sharded: exchange.sharded,
            unwritten: exchange.unwritten.clone(),
            awaiting: exchange.awaiting.clone(),
            postponed: exchange.postponed.clone(),
            again_at: exchange.again_at,
        });
        Self {
            channels: Channels {
                wanted: self.channels.wanted.iter().map(channel).collect(),
                refused: self.channels.refused.clone(),
                lingering: self.channels.lingering.clone(),
                exchange,
                ..self.channels
            },
            waiting,
            inbox: self.inbox.clone(),
            replies: self.replies.clone(),
            ..*self
        }
    }

    fn digest(&self) -> u64 {
        let mut hasher = Digest::default();
        let h = &mut hasher;
        (self.now_ms, self.budget, self.may_repeat).hash(h);
        (self.connections, self.connected, self.subscribed).hash(h);
        (&self.inbox, &self.replies).hash(h);
        self.numbers.map(|number| number.is_some()).hash(h);
        self.waiting
            .each_ref()
            .map(|listener| *listener.0.lock())
            .hash(h);
        self.channels.refused.hash(h);
        let ms = |at: Instant| at.saturating_duration_since(*BEGIN).as_millis();
        for name in NAMES {
            if let Some(channel) = self.channels.wanted.get(name) {
                let waiters = channel.waiters.iter().map(|waiter| {
                    let mut numbers = self.numbers.iter();
                    numbers.position(|number| *number == Some(waiter.number))
                });
                waiters.collect::<Vec<_>>().hash(h);
                channel.lingers_until.map(ms).hash(h);
                (channel.asked, channel.confirmed, channel.refused).hash(h);
            }
        }
        for (at, name) in &self.channels.lingering {
            (ms(*at), name).hash(h);
        }
        let Some(exchange) = &self.channels.exchange else {
            return hasher.finish();
        };
        exchange.again_at.map(ms).hash(h);
        for command in exchange.awaiting.iter().chain(&exchange.postponed) {
            match command {
                ChannelCommand::Subscribe {
                    channel,
                    epoch,
                    again,
                } => {
                    let wanted = self.channels.wanted.get(channel);
                    let is_current = wanted.is_some_and(|wanted| wanted.epoch == *epoch);
                    (channel, is_current, again).hash(h);
                }
                ChannelCommand::Unsubscribe { channel } => channel.hash(h),
                ChannelCommand::Ping => {}
            }
        }
        exchange.postponed.len().hash(h);
        hasher.finish()
    }

    fn can(&self, step: Step) -> bool {
        match step {
            Step::Begin(waiter) => self.numbers[waiter].is_none() && self.budget.begins[waiter] > 0,
            Step::End(waiter) | Step::Leave(waiter) => self.numbers[waiter].is_some(),
            Step::Run(_) => !self.inbox.is_empty(),
            Step::Read => !self.replies.is_empty(),
            Step::Tick(_) => self.budget.ticks > 0,
            Step::Lose => self.connected && self.budget.losses > 0,
            Step::Connect => !self.connected,
            Step::Release(_) | Step::Publish(_) | Step::Housekeep => true,
        }
    }

    /// Also writes what there is to be written.
    fn take(&mut self, step: Step) -> bool {
        let was_taken = self.try_take(step);
        self.inbox.extend(commands(&self.channels.taken()));
        was_taken
    }

    fn check(&self) {
        let exchange = self.channels.exchange.as_ref();
        if let Some(exchange) = exchange {
            let replies = self.replies.iter();
            let replies = replies.filter(|says| !matches!(says, Says::Message(_)));
            let due = replies.count() + self.inbox.len();
            assert_eq!(exchange.awaiting.len(), due, "an answer for each command");
        }
        for (at, name) in NAMES.into_iter().enumerate() {
            let channel = self.channels.wanted.get(name);
            assert!(
                channel.is_none_or(|channel| !channel.is_unused()),
                "of no use"
            );
            if channel.is_some_and(|channel| channel.confirmed) {
                let ends = self.inbox.contains(&Sent::Unsubscribe(at));
                assert!(self.subscribed[at] && !ends, "no message would come");
            }
        }
        for (waiter, number) in self.numbers.iter().enumerate() {
            let Some(number) = number else {
                continue;
            };
            let channel = self.channels.wanted.get(NAMES[LISTENS_TO[waiter]]);
            let channel = channel.expect("it is wanted");
            assert!(channel.waiters.iter().any(|known| known.number == *number));
            let knows = *self.waiting[waiter].0.lock();
            let is_answered = channel.is_answered();
            assert_eq!(knows.is_answered, is_answered, "it knows how it stands");
        }
    }

    /// With a server that works, everybody who waits is subscribed and has missed nothing, and nothing else is left.
    fn drain(mut self) {
        for _ in 0..4 {
            self.take(Step::Housekeep);
            self.take(Step::Connect);
            while self.take(Step::Run(Says::Done)) {}
            while self.take(Step::Read) {}
            self.check();
            self.now_ms += 1000;
        }
        for (at, name) in NAMES.into_iter().enumerate() {
            let mut waits = false;
            for waiter in (0..3).filter(|waiter| LISTENS_TO[*waiter] == at) {
                if self.numbers[waiter].is_some() {
                    waits = true;
                    let knows = *self.waiting[waiter].0.lock();
                    assert!(
                        knows.is_answered && !knows.missed,
                        "{waiter} misses a message"
                    );
                }
            }
            assert_eq!(self.channels.wanted.contains_key(name), waits);
            assert_eq!(self.subscribed[at], waits, "{name}");
        }
        assert!(self.channels.lingering.is_empty());
    }
}

#[test]
fn whoever_waits_is_subscribed_and_misses_no_message_in_every_schedule() {
    let of = |begins, [messages, refusals, busy, ticks, losses]: [u8; 5]| {
        let budget = Left {
            begins,
            messages,
            refusals,
            busy,
            ticks,
            losses,
        };
        explore(
            World::new(budget),
            &STEPS,
            if asked_for("deep") { 2 } else { 8 },
        )
    };
    let states = of([2, 1, 0], [1, 0, 0, 0, 0])
        + of([1, 1, 0], [1, 0, 0, 1, 0])
        + of([2, 0, 0], [1, 0, 0, 2, 0])
        + of([2, 0, 0], [1, 0, 0, 0, 1])
        + of([2, 1, 0], [0, 1, 0, 0, 0])
        + of([2, 0, 0], [1, 1, 0, 1, 0])
        + of([2, 1, 0], [0, 0, 1, 0, 0])
        + of([2, 0, 0], [0, 0, 1, 1, 1])
        + of([1, 0, 1], [0, 0, 0, 0, 1]);
    assert!(states > 30_000, "{states}");
}
