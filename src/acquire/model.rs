//! The protocol of a lock on one server, as a model: clients that ask, wait, hold and release, each with one thread,
//! and a server; in between a network that loses, delays and doubles. Searched exhaustively, see
//! [`search`](crate::search).
//!
//! The model asks the library how long a hold is certain and when it is renewed ([`Lease`]), and when a client yields
//! ([`LocalLock`]). The parts that are bound to I/O are restated: the loop of a contender, its signals, the order of
//! commands on a connection and their fate when it is lost, and the scripts.
//!
//! Time passes in ticks of a millisecond, and only where a [`Scene`] has them. Without ticks nothing is reached by
//! waiting, neither for the end of a lease nor for a poll. A command, reply or message that is under way may take any
//! time.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::time::{Duration, Instant};

use crate::hold::validity::{Duty, Lease};
use crate::local::lock::{Entered, Holding, LeasePolicy, LocalLock, Mode, Order, Validity};
use crate::search::{self, Model};
use crate::time;

const RENEWED: LeasePolicy = LeasePolicy::Renewed { max_hold: None };

const TICK: Duration = Duration::from_millis(1);

/// In ticks. Of a lease so short the margin takes two ticks, so a hold is certain at the ages 0 to 2, and its renewal is
/// due at the age of 2.
const LEASE: u8 = 5;

/// How much sooner a lease may end by the server's clock than by the client's, in ticks: within the margin.
const DRIFT: u8 = 2;

/// How long a client keeps the lock for itself, in ticks.
const TENURE: u8 = 2;

/// How often another client may have the lock while one waits, in a [`Scene`] in which all are prompt: once for each
/// tick of its tenure, and once more if it asked just before.
const OVERTAKEN: u8 = TENURE + 1;

/// The number of an owner id. Only equality matters, so a number is used again once nothing refers to it.
type Number = u8;

/// A few things in a row, without an allocation: there are very many states.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Few<T> {
    things: [Option<T>; 6],
    count: usize,
}

impl<T: Copy> Default for Few<T> {
    fn default() -> Self {
        Self {
            things: [None; 6],
            count: 0,
        }
    }
}

impl<T: Copy + PartialEq> Few<T> {
    fn push(&mut self, thing: T) {
        self.things[self.count] = Some(thing);
        self.count += 1;
    }

    fn get(&self, at: usize) -> Option<T> {
        self.things.get(at).copied().flatten()
    }

    fn take_first(&mut self) -> Option<T> {
        let first = self.things[0].take()?;
        self.count -= 1;
        for at in 0..self.count {
            self.things.swap(at, at + 1);
        }
        Some(first)
    }

    fn iter(self) -> impl Iterator<Item = T> {
        (0..self.count).filter_map(move |at| self.things[at])
    }

    fn extend(&mut self, things: impl Iterator<Item = T>) {
        for thing in things {
            self.push(thing);
        }
    }

    fn contains(&self, thing: T) -> bool {
        self.things.contains(&Some(thing))
    }

    fn is_empty(&self) -> bool {
        self.count == 0
    }
}

impl<T: Hash> Hash for Few<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u8(u8::try_from(self.count).unwrap_or(u8::MAX));
        for thing in &self.things[..self.count] {
            thing.hash(state);
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for Few<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.things.iter().flatten())
            .finish()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Command {
    Acquire(Number),
    Release(Number),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Reply {
    Taken,
    Busy,
    Released { others_listen: bool },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
enum Doing {
    #[default]
    Nothing,
    /// The client waits for the reply to its last release, which says whether it has to yield.
    Counts,
    Yields,
    Asks,
    Parks,
    Holds,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
enum Subscription {
    #[default]
    No,
    Sent,
    /// The server has executed it, and the confirmation is on its way.
    Made,
    Confirmed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Renewal {
    number: Number,
    age: u8,
    /// Whether the server found the hold, once it has executed the renewal.
    found: Option<bool>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Client {
    comes: u8,
    doing: Doing,
    /// The number of the hold, or of the request.
    number: Number,
    /// How long ago the request was sent, or the last one that was confirmed.
    age: u8,
    /// The signals have changed since the client read them last.
    news: bool,
    subscription: Subscription,
    messages: u8,
    renewal: Option<Renewal>,
    is_down: bool,
    /// Commands without an answer. The first of them are executed, as many as there are replies.
    sent: Few<Command>,
    replies: Few<Reply>,
    /// Commands of a lost connection that the server may still execute, in this order.
    late: Few<Command>,
    /// Releases that were not acknowledged.
    kept: Few<Number>,
    /// The server has lost the client's hold, or its last renewal.
    forgotten: bool,
    /// How often others had the lock since the client began to wait.
    overtaken: u8,
    /// How long ago the cohort started, and the last release was sent.
    cohort: Option<u8>,
    released: Option<u8>,
    /// The last release has notified others.
    notified: bool,
    /// For variants: commands that are not written yet, and messages that the client takes for its own.
    unwritten: Few<Command>,
    ignores: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Key {
    owner: Option<(usize, Number)>,
    /// In how many ticks the key ends.
    ttl: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct State<const N: usize> {
    key: Key,
    replica: Key,
    clients: [Client; N],
    faults: Left,
}

/// How often each fault may still happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Left {
    /// A connection is lost.
    losses: u8,
    /// A thread gives up.
    ends: u8,
    /// The server restarts empty.
    restarts: u8,
    /// The replica takes the place of the server, with the data that it has.
    promotions: u8,
    /// The subscriber's connection is lost.
    deaf: u8,
}

/// The setting of a search.
#[derive(Debug, Clone, Copy, Default)]
struct Scene {
    /// How often each client comes. A model of two clients has the first two.
    comes: [u8; 3],
    faults: Left,
    /// Time passes. No client subscribes then, and one that waits asks now and then.
    ticks: bool,
    /// Each client comes again and again, holds for a tick, and does all that it can do before the next tick.
    prompt: bool,
    variant: Variant,
}

/// The library as it is, or with a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Variant {
    #[default]
    AsItIs,
    /// Releases go over a connection of their own.
    TwoConnections,
    /// A thread may ask after another has left the local lock and before that one's release is queued.
    ReleaseQueuedLate,
    /// A client does not count messages of its own releases, and notes that one will come when it reads the reply.
    OwnMessagesNotedLate,
    /// No client yields.
    NoYield,
    /// A cohort ends when no thread of its process waits.
    CohortEndsWhenIdle,
    /// The server counts only the listeners of one node, and the client relies on it.
    CountsOneNode,
    /// The bytes of a release leave with the next command.
    ReleaseWaitsForCommand,
    /// A lost connection is made again by the next command.
    NobodyReconnects,
    /// A contender reads its signals when it has been refused.
    SignalsReadAfterReply,
    /// A contender parks once it has subscribed, and does not ask again when the subscription is confirmed.
    NotAskedAfterSubscribing,
    /// A subscription that is made again after its connection was lost wakes nobody.
    SubscribedAgainQuietly,
    /// A hold has the number of its thread.
    NumberPerThread,
    /// A request for whose reply nobody waits any more is not undone.
    NoUndo,
    /// On a connection that is given up no undo is written any more.
    NoLastWords,
    /// A renewal creates what it does not find.
    RenewalCreates,
    /// Validity counts from the reply.
    CountsFromReply,
    /// The whole lease counts.
    NoMargin,
    /// The clocks differ by more than the margin.
    ClocksBeyondMargin,
    /// A hold is granted although its time is over.
    GrantedTooLate,
    /// Releases that were not acknowledged are forgotten with their connection.
    ReleaseSentOnce,
    /// A release notifies one of the clients that listen.
    NotifiesOne,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Come(usize),
    Submit(usize),
    Run(usize),
    RunLate(usize),
    /// Executes the second of two commands first.
    RunOther(usize),
    Read(usize),
    Subscribe(usize),
    Confirm(usize),
    Message(usize),
    Ask(usize),
    Poll(usize),
    GiveUp(usize),
    Leave(usize),
    Renew(usize),
    RunRenewal(usize),
    ReadRenewal(usize),
    LoseRenewal(usize),
    Notice(usize),
    Lose(usize, Fate),
    Connect(usize),
    LoseSubscription(usize),
    Expire,
    Restart,
    Replicate,
    Promote,
    Tick,
}

/// The fate of the commands on a connection that is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Lost,
    /// The commands are executed late, and the undos of acquires behind them.
    Late,
    /// The commands are executed late, and no undo could be written behind them.
    LateAndTorn,
}

const EXCLUSION: &str = "two hold it, and neither server nor clock is to blame";
const KEPT: &str = "a hold that counts as valid is kept by the server";
const OWN: &str = "nobody meets a hold that its own process has released";
const UNDONE: &str = "what nobody holds or asks for is released without waiting for the lease";
const REACHED: &str = "whoever waits comes to hold it";
const TURNS: &str = "nobody is overtaken again and again";

/// The library's answers for a hold, by age.
struct Ages {
    valid: Vec<bool>,
    renews: Vec<bool>,
    ends: Vec<bool>,
}

/// `N` clients.
struct Plain<const N: usize> {
    scene: Scene,
    ages: Ages,
    begin: Instant,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Held(Instant);

impl Holding for Held {
    fn validity(&self) -> Validity {
        Validity {
            until: self.0,
            lease: TICK * LEASE.into(),
            may_change_threads: true,
        }
    }
}

fn is(variant: Variant, scene: Scene) -> bool {
    scene.variant == variant
}

impl<const N: usize> Plain<N> {
    fn new(scene: Scene) -> Self {
        let begin = Instant::now();
        let now = begin + TICK * 100;
        let lease_of = |age: u8| {
            let sent_at = now - TICK * age.into();
            let mut lease = Lease::new(RENEWED, TICK * LEASE.into());
            lease.grant(sent_at, sent_at);
            (lease, sent_at)
        };
        let valid = |age: u8| match scene.variant {
            Variant::NoMargin => age < LEASE,
            _ => time::nanos(now) < lease_of(age).0.until(),
        };
        let renews = |age: u8| {
            let (lease, sent_at) = lease_of(age);
            lease.duty(now, Mode::Exclusive) == Duty::Renew
                && time::nanos(now) >= lease.due_after(sent_at, Mode::Exclusive)
        };
        let ends = |age: u8| matches!(lease_of(age).0.duty(now, Mode::Exclusive), Duty::Lose(_));
        let ages = || 0..=LEASE + 1;
        Self {
            scene,
            ages: Ages {
                valid: ages().map(valid).collect(),
                renews: ages().map(renews).collect(),
                ends: ages().map(ends).collect(),
            },
            begin,
        }
    }

    fn holds(&self, client: &Client) -> bool {
        client.doing == Doing::Holds && self.ages.valid[usize::from(client.age)]
    }

    /// How the next contender of this client has to start.
    fn starts_yielding(&self, client: &Client) -> bool {
        let (Some(since), Some(released)) = (client.cohort, client.released) else {
            return false;
        };
        let now = self.begin + TICK * 100;
        let at = |age: u8| now - TICK * age.into();
        let mut lock: LocalLock<(), Held, ()> = LocalLock::new(Order::Local, TICK * TENURE.into());
        let mut enter = |now| lock.enter(1, Mode::Exclusive, RENEWED, now, None, false);
        enter(at(since));
        let held = Held(now + TICK);
        let granted = lock.granted(1, Mode::Exclusive, held, RENEWED, false, at(since));
        drop(granted);
        drop(lock.leave(1, &held, at(released), &|| ()));
        match lock.enter(1, Mode::Exclusive, RENEWED, now, None, false) {
            Entered::Contend { yields_after, .. } => yields_after.is_some(),
            other => panic!("{other:?}"),
        }
    }

    /// A number that nothing refers to.
    fn fresh(&self, state: &State<N>, c: usize) -> Number {
        if is(Variant::NumberPerThread, self.scene) {
            return 1;
        }
        let client = &state.clients[c];
        let mut used = 0_u32;
        for commands in [client.sent, client.late, client.unwritten] {
            for Command::Acquire(number) | Command::Release(number) in commands.iter() {
                used |= 1 << number;
            }
        }
        for number in client.kept.iter() {
            used |= 1 << number;
        }
        if let Some(renewal) = client.renewal {
            used |= 1 << renewal.number;
        }
        for owner in [state.key.owner, state.replica.owner] {
            if let Some((_, number)) = owner.filter(|(owner, _)| *owner == c) {
                used |= 1 << number;
            }
        }
        u8::try_from((used | 1).trailing_ones()).unwrap_or(u8::MAX)
    }

    /// The client's thread asks.
    fn ask(&self, state: &mut State<N>, c: usize) {
        let number = self.fresh(state, c);
        let client = &mut state.clients[c];
        client.doing = Doing::Asks;
        // Read before the request is sent.
        client.news = false;
        client.age = 0;
        client.number = number;
        if !client.is_down {
            if is(Variant::ReleaseWaitsForCommand, self.scene) {
                client
                    .sent
                    .extend(std::mem::take(&mut client.unwritten).iter());
            }
            client.sent.push(Command::Acquire(number));
        }
    }

    /// The server executes a command; the reply.
    fn run(&self, state: &mut State<N>, c: usize, command: Command) -> Reply {
        match command {
            Command::Acquire(number) => {
                if state.key.owner.is_some_and(|owner| owner != (c, number)) {
                    return Reply::Busy;
                }
                state.key.owner = Some((c, number));
                state.key.ttl = LEASE;
                state.clients[c].forgotten = false;
                Reply::Taken
            }
            Command::Release(number) => {
                if state.key.owner == Some((c, number)) {
                    state.key = Key::default();
                }
                let mut others_listen = false;
                if state.key.owner.is_none() {
                    for (other, client) in state.clients.iter_mut().enumerate() {
                        let listens = matches!(
                            client.subscription,
                            Subscription::Made | Subscription::Confirmed
                        );
                        if listens {
                            client.messages = (client.messages + 1).min(2);
                            others_listen |= other != c && !is(Variant::CountsOneNode, self.scene);
                            if other != c && is(Variant::NotifiesOne, self.scene) {
                                break;
                            }
                        }
                    }
                }
                Reply::Released { others_listen }
            }
        }
    }

    /// The client sends a release, of a hold or of a request whose outcome it does not wait for.
    fn release(&self, state: &mut State<N>, c: usize, number: Number) {
        let client = &mut state.clients[c];
        if client.is_down {
            if !client.kept.contains(number) {
                client.kept.push(number);
            }
        } else if self.defers() {
            client.unwritten.push(Command::Release(number));
        } else {
            client.sent.push(Command::Release(number));
        }
    }

    fn defers(&self) -> bool {
        matches!(
            self.scene.variant,
            Variant::ReleaseWaitsForCommand | Variant::ReleaseQueuedLate
        )
    }

    /// The client neither waits nor holds any more.
    fn goes(&self, client: &mut Client) {
        client.doing = Doing::Nothing;
        (client.number, client.age, client.news) = (0, 0, false);
        client.overtaken = 0;
        self.unsubscribes(client);
    }

    fn unsubscribes(&self, client: &mut Client) {
        // The subscription that a granted contender leaves behind ends at its release.
        let lingers = is(Variant::OwnMessagesNotedLate, self.scene);
        if !lingers {
            client.subscription = Subscription::No;
            client.messages = 0;
        }
    }

    fn is_granted(&self, state: &mut State<N>, c: usize) {
        let client = &mut state.clients[c];
        if is(Variant::CountsFromReply, self.scene) {
            client.age = 0;
        }
        let in_time = self.ages.valid[usize::from(client.age)];
        if !in_time && !is(Variant::GrantedTooLate, self.scene) {
            let number = client.number;
            self.goes(client);
            return self.release(state, c, number);
        }
        if is(Variant::GrantedTooLate, self.scene) && !in_time {
            client.age = 0;
        }
        client.doing = Doing::Holds;
        client.news = false;
        client.overtaken = 0;
        if self.scene.prompt {
            client.cohort.get_or_insert(0);
        }
        self.unsubscribes(client);
        for (index, other) in state.clients.iter_mut().enumerate() {
            let waits = matches!(other.doing, Doing::Asks | Doing::Parks);
            if index != c && waits && self.scene.prompt {
                other.overtaken = (other.overtaken + 1).min(OVERTAKEN + 1);
            }
        }
    }

    fn read(&self, state: &mut State<N>, c: usize) {
        let client = &mut state.clients[c];
        let (Some(reply), Some(command)) = (client.replies.take_first(), client.sent.take_first())
        else {
            return;
        };
        let is_awaited = |number| client.doing == Doing::Asks && client.number == number;
        match (command, reply) {
            (Command::Acquire(number), Reply::Taken) if is_awaited(number) => {
                self.is_granted(state, c);
            }
            (Command::Acquire(number), Reply::Busy) if is_awaited(number) => {
                client.doing = Doing::Parks;
                (client.number, client.age) = (0, 0);
                // The lock is held by another client, so the tenure is over.
                (client.cohort, client.released) = (None, None);
                if client.subscription == Subscription::No && !self.scene.ticks {
                    client.subscription = Subscription::Sent;
                    client.news = false;
                }
                if is(Variant::SignalsReadAfterReply, self.scene) {
                    client.news = false;
                }
            }
            (Command::Release(_), Reply::Released { others_listen }) => {
                if is(Variant::OwnMessagesNotedLate, self.scene) {
                    client.ignores = (client.ignores + 1).min(2);
                }
                client.notified = others_listen && self.scene.prompt;
                if client.doing == Doing::Counts && client.sent.is_empty() {
                    self.counted(state, c);
                }
            }
            _ => {}
        }
    }

    /// The last release is answered: the client yields if others were notified.
    fn counted(&self, state: &mut State<N>, c: usize) {
        let client = &mut state.clients[c];
        if client.notified {
            client.doing = Doing::Yields;
            client.subscription = Subscription::Sent;
        } else {
            self.ask(state, c);
        }
    }

    /// The connection is lost, with all that it carried.
    fn lose(&self, state: &mut State<N>, c: usize, fate: Fate) {
        let client = &mut state.clients[c];
        let sent = std::mem::take(&mut client.sent);
        if fate != Fate::Lost {
            client.late.extend(sent.iter().skip(client.replies.count));
        }
        client.replies = Few::default();
        client.is_down = true;
        for command in sent.iter() {
            let number = match command {
                Command::Acquire(number) => {
                    let words = !is(Variant::NoLastWords, self.scene);
                    if fate == Fate::Late && words && !is(Variant::NoUndo, self.scene) {
                        client.late.push(Command::Release(number));
                    }
                    if is(Variant::NoUndo, self.scene) {
                        continue;
                    }
                    number
                }
                Command::Release(_) if is(Variant::ReleaseSentOnce, self.scene) => continue,
                Command::Release(number) => number,
            };
            if !client.kept.contains(number) {
                client.kept.push(number);
            }
        }
    }

    fn connect(&self, state: &mut State<N>, c: usize) {
        let client = &mut state.clients[c];
        client.is_down = false;
        // Unacknowledged releases of the name go first.
        for number in std::mem::take(&mut client.kept).iter() {
            client.sent.push(Command::Release(number));
        }
        if client.doing == Doing::Asks {
            let news = client.news;
            self.ask(state, c);
            state.clients[c].news = news;
        }
    }

    /// The server is another now, and all connections to it are lost.
    fn replaced(&self, state: &mut State<N>, by: Key) {
        let old_key = std::mem::replace(&mut state.key, by);
        for c in 0..state.clients.len() {
            if !state.clients[c].is_down {
                self.lose(state, c, Fate::Lost);
            }
            let client = &mut state.clients[c];
            // A replica may know the hold, and not its last renewal.
            client.forgotten |= by != old_key;
            // The old server will not execute any more commands.
            client.late = Few::default();
            if client.subscription != Subscription::No {
                self.is_deaf(client);
            }
        }
    }

    /// The subscription was lost, and the client subscribes again.
    fn is_deaf(&self, client: &mut Client) {
        client.messages = 0;
        if is(Variant::SubscribedAgainQuietly, self.scene) {
            return;
        }
        // The client is notified of that, and asks again.
        client.news |= client.subscription == Subscription::Confirmed;
        client.subscription = Subscription::Sent;
    }

    fn tick(&self, state: &mut State<N>) {
        // All ages at which a hold is over are alike.
        let over = self.ages.valid.iter().take_while(|valid| **valid).count();
        let older = |age: &mut u8| *age = (*age + 1).min(u8::try_from(over).unwrap_or(LEASE));
        let more = |age: &mut u8| *age = (*age + 1).min(LEASE + 1);
        for key in [&mut state.key, &mut state.replica] {
            key.ttl = key.ttl.saturating_sub(1);
            if key.ttl == 0 {
                *key = Key::default();
            }
        }
        for client in &mut state.clients {
            if matches!(client.doing, Doing::Asks | Doing::Holds) {
                older(&mut client.age);
            }
            if let Some(renewal) = &mut client.renewal {
                older(&mut renewal.age);
            }
            client.cohort.iter_mut().for_each(more);
            client.released.iter_mut().for_each(more);
        }
    }

    /// The steps of one client that do not depend on time.
    fn next_of(&self, state: &State<N>, c: usize, add: &mut dyn FnMut(Step, State<N>)) {
        let client = &state.clients[c];
        let mut take = |step: Step, change: &dyn Fn(&mut State<N>)| {
            let mut after = *state;
            change(&mut after);
            add(step, after);
        };
        let (is_up, scene) = (!client.is_down, self.scene);
        let unexecuted = client.sent.get(client.replies.count);
        if client.doing == Doing::Nothing && (client.comes > 0 || scene.prompt) {
            take(Step::Come(c), &|state| {
                let yields = self.starts_yielding(&state.clients[c]);
                let client = &mut state.clients[c];
                client.comes = client.comes.saturating_sub(1);
                if yields && !is(Variant::NoYield, scene) {
                    client.doing = Doing::Counts;
                    (client.cohort, client.released) = (None, None);
                    if client.sent.is_empty() {
                        self.counted(state, c);
                    }
                } else {
                    self.ask(state, c);
                }
            });
        }
        if is(Variant::ReleaseQueuedLate, scene) && is_up && !client.unwritten.is_empty() {
            take(Step::Submit(c), &|state| {
                let client = &mut state.clients[c];
                let commands = std::mem::take(&mut client.unwritten);
                client.sent.extend(commands.iter());
            });
        }
        if let Some(command) = unexecuted.filter(|_| is_up) {
            take(Step::Run(c), &|state| {
                let reply = self.run(state, c, command);
                state.clients[c].replies.push(reply);
            });
        }
        let other = client.sent.get(client.replies.count + 1);
        if let Some(command) = other
            && is_up
            && is(Variant::TwoConnections, scene)
        {
            take(Step::RunOther(c), &|state| {
                let at = state.clients[c].replies.count;
                state.clients[c].sent.things.swap(at, at + 1);
                let reply = self.run(state, c, command);
                state.clients[c].replies.push(reply);
            });
        }
        if let Some(command) = client.late.get(0) {
            take(Step::RunLate(c), &|state| {
                state.clients[c].late.take_first();
                self.run(state, c, command);
            });
        }
        if !client.replies.is_empty() {
            take(Step::Read(c), &|state| self.read(state, c));
        }
        match client.subscription {
            Subscription::Sent => take(Step::Subscribe(c), &|state| {
                state.clients[c].subscription = Subscription::Made;
            }),
            Subscription::Made => take(Step::Confirm(c), &|state| {
                let client = &mut state.clients[c];
                client.subscription = Subscription::Confirmed;
                let asks = !is(Variant::NotAskedAfterSubscribing, scene);
                client.news |= asks && client.doing != Doing::Yields;
            }),
            Subscription::Confirmed if client.messages > 0 => {
                take(Step::Message(c), &|state| {
                    let client = &mut state.clients[c];
                    client.messages -= 1;
                    if client.ignores > 0 {
                        client.ignores -= 1;
                        return;
                    }
                    client.news = true;
                    if client.doing == Doing::Yields {
                        self.ask(state, c);
                    }
                });
            }
            Subscription::Confirmed | Subscription::No => {}
        }
        if client.doing == Doing::Parks && client.news {
            take(Step::Ask(c), &|state| self.ask(state, c));
        }
        let may_leave = !scene.prompt || client.age > 0;
        if client.doing == Doing::Holds && may_leave {
            take(Step::Leave(c), &|state| {
                let client = &mut state.clients[c];
                let number = client.number;
                self.goes(client);
                client.released = client.cohort.map(|_| 0);
                if is(Variant::CohortEndsWhenIdle, scene) {
                    (client.cohort, client.released) = (None, None);
                }
                self.release(state, c, number);
            });
        }
        let reconnects = match scene.variant {
            Variant::NobodyReconnects => false,
            _ => !client.kept.is_empty(),
        };
        if client.is_down && (client.doing == Doing::Asks || reconnects) {
            take(Step::Connect(c), &|state| self.connect(state, c));
        }
    }

    /// Faults, and threads that give up.
    fn faults(&self, state: &State<N>, c: usize, add: &mut dyn FnMut(Step, State<N>)) {
        let (client, faults) = (&state.clients[c], state.faults);
        let mut take = |step: Step, change: &dyn Fn(&mut State<N>)| {
            let mut after = *state;
            change(&mut after);
            add(step, after);
        };
        if faults.losses > 0 && !client.is_down && !client.sent.is_empty() {
            let torn = self.scene.ticks;
            let fates = [Fate::Lost, Fate::Late, Fate::LateAndTorn];
            let possible = fates.into_iter().take(if torn { 3 } else { 2 });
            for fate in possible.filter(|fate| *fate == Fate::Lost || client.late.is_empty()) {
                take(Step::Lose(c, fate), &|state| {
                    state.faults.losses -= 1;
                    self.lose(state, c, fate);
                });
            }
        }
        let waits = matches!(client.doing, Doing::Asks | Doing::Parks);
        if faults.ends > 0 && waits {
            take(Step::GiveUp(c), &|state| {
                state.faults.ends -= 1;
                let client = &mut state.clients[c];
                let (doing, number) = (client.doing, client.number);
                self.goes(client);
                let undoes = !is(Variant::NoUndo, self.scene);
                if doing == Doing::Asks && !client.is_down && undoes {
                    self.release(state, c, number);
                }
            });
        }
        if faults.deaf > 0 && client.subscription != Subscription::No {
            take(Step::LoseSubscription(c), &|state| {
                state.faults.deaf -= 1;
                self.is_deaf(&mut state.clients[c]);
            });
        }
    }

    /// The steps of the lease while time passes.
    fn lease(&self, state: &State<N>, c: usize, add: &mut dyn FnMut(Step, State<N>)) {
        let client = &state.clients[c];
        let mut take = |step: Step, change: &dyn Fn(&mut State<N>)| {
            let mut after = *state;
            change(&mut after);
            add(step, after);
        };
        let age = usize::from(client.age);
        let holds = client.doing == Doing::Holds;
        match client.renewal {
            None if holds && self.ages.renews[age] => take(Step::Renew(c), &|state| {
                let client = &mut state.clients[c];
                client.renewal = Some(Renewal {
                    number: client.number,
                    age: 0,
                    found: None,
                });
            }),
            None => {}
            Some(renewal) => {
                let Renewal { number, found, .. } = renewal;
                // The renewal, or its reply, may be lost.
                take(Step::LoseRenewal(c), &|state| {
                    state.clients[c].renewal = None;
                });
                if found.is_none() {
                    take(Step::RunRenewal(c), &|state| {
                        let mut found = state.key.owner == Some((c, number));
                        if is(Variant::RenewalCreates, self.scene) && state.key.owner.is_none() {
                            state.key.owner = Some((c, number));
                            found = true;
                        }
                        if found {
                            state.key.ttl = LEASE;
                            state.clients[c].forgotten = false;
                        }
                        let found = Some(found);
                        state.clients[c].renewal = Some(Renewal { found, ..renewal });
                    });
                }
                if let Some(found) = found {
                    take(Step::ReadRenewal(c), &|state| {
                        let client = &mut state.clients[c];
                        client.renewal = None;
                        if client.doing != Doing::Holds || client.number != number {
                            return;
                        }
                        if found {
                            let from_reply = is(Variant::CountsFromReply, self.scene);
                            let age = if from_reply { 0 } else { renewal.age };
                            client.age = client.age.min(age);
                        } else {
                            self.goes(client);
                        }
                    });
                }
            }
        }
        if holds && self.ages.ends[age] && !self.ages.valid[age] {
            take(Step::Notice(c), &|state| {
                let client = &mut state.clients[c];
                let number = client.number;
                self.goes(client);
                self.release(state, c, number);
            });
        }
        if client.doing == Doing::Parks {
            take(Step::Poll(c), &|state| self.ask(state, c));
        }
    }
}

impl<const N: usize> Model for Plain<N> {
    type State = State<N>;
    type Step = Step;

    fn start(&self) -> State<N> {
        let client = |c: usize| Client {
            comes: self.scene.comes[c],
            ..Client::default()
        };
        State {
            key: Key::default(),
            replica: Key::default(),
            clients: std::array::from_fn(client),
            faults: self.scene.faults,
        }
    }

    fn next(&self, state: &State<N>, successors: &mut Vec<(Step, State<N>)>) {
        let scene = self.scene;
        let mut add = |step, after| successors.push((step, after));
        for c in 0..state.clients.len() {
            self.next_of(state, c, &mut add);
            self.faults(state, c, &mut add);
            if scene.ticks {
                self.lease(state, c, &mut add);
            }
        }
        let with = |change: &dyn Fn(&mut State<N>)| {
            let mut after = *state;
            change(&mut after);
            after
        };
        if state.faults.restarts > 0 {
            let after = with(&|state| {
                state.faults.restarts -= 1;
                self.replaced(state, Key::default());
            });
            add(Step::Restart, after);
        }
        if state.faults.promotions > 0 {
            if state.replica != state.key {
                add(Step::Replicate, with(&|state| state.replica = state.key));
            }
            let after = with(&|state| {
                state.faults.promotions -= 1;
                self.replaced(state, state.replica);
            });
            add(Step::Promote, after);
        }
        if scene.ticks {
            let drift = match scene.variant {
                Variant::ClocksBeyondMargin => DRIFT + 1,
                _ => DRIFT,
            };
            if state.key.owner.is_some() && state.key.ttl <= drift {
                add(Step::Expire, with(&|state| state.key = Key::default()));
            }
            add(Step::Tick, with(&|state| self.tick(state)));
        }
        if scene.prompt && successors.is_empty() {
            let after = with(&|state| {
                self.tick(state);
                // Nothing is renewed here, and no lease ends.
                state.key.ttl = LEASE;
                for c in 0..state.clients.len() {
                    if state.clients[c].doing == Doing::Holds {
                        state.clients[c].age = 1;
                    }
                    if state.clients[c].doing == Doing::Yields {
                        self.ask(state, c);
                    }
                }
            });
            successors.push((Step::Tick, after));
        }
    }

    fn broken(&self, before: &State<N>, step: Step, after: &State<N>) -> Option<&'static str> {
        let held = after
            .clients
            .iter()
            .filter(|client| self.holds(client))
            .count();
        let forgotten = after.clients.iter().any(|client| client.forgotten);
        if held > 1 && !forgotten {
            return Some(EXCLUSION);
        }
        for (c, client) in after.clients.iter().enumerate() {
            let is_kept = after.key.owner == Some((c, client.number));
            if self.holds(client) && !is_kept && !client.forgotten {
                return Some(KEPT);
            }
            if client.overtaken > OVERTAKEN {
                return Some(TURNS);
            }
        }
        let calm = self.scene.faults == Left::default() && !self.scene.ticks;
        if let Step::Run(c) | Step::RunOther(c) = step
            && calm
            && last_reply(after, c) == Some(Reply::Busy)
            && before.key.owner.is_some_and(|(owner, _)| owner == c)
        {
            return Some(OWN);
        }
        None
    }

    fn goals(&self) -> Vec<&'static str> {
        // A command of a torn connection can only end with its lease, and so can a hold whose release a replica lacks.
        let torn = self.scene.ticks && self.scene.faults.losses > 0;
        let lacks = self.scene.faults.promotions > 0;
        let mut goals = vec![REACHED; N];
        goals.extend((!torn && !lacks).then_some(UNDONE));
        goals
    }

    fn lacks(&self, goal: usize, state: &State<N>) -> bool {
        match state.clients.get(goal) {
            // A client may also end with an error: granted too late.
            Some(client) => matches!(client.doing, Doing::Asks | Doing::Parks),
            None => state.key.owner.is_some_and(|(c, number)| {
                let client = &state.clients[c];
                let has_or_wants = matches!(client.doing, Doing::Asks | Doing::Holds);
                client.number != number || !has_or_wants
            }),
        }
    }

    fn is_due(&self, goal: usize, step: Step) -> bool {
        match step {
            Step::Come(_)
            | Step::GiveUp(_)
            | Step::Lose(..)
            | Step::LoseRenewal(_)
            | Step::LoseSubscription(_)
            | Step::Restart
            | Step::Promote => false,
            Step::Tick | Step::Expire | Step::Poll(_) | Step::Notice(_) | Step::Renew(_) => {
                goal < N
            }
            _ => true,
        }
    }

    fn words(&self, before: &State<N>, step: Step, after: &State<N>) -> String {
        let of = |c: usize| ["A", "B", "C"][c];
        let command = |of: &Few<Command>, at: usize| match of.get(at) {
            Some(Command::Acquire(number)) => format!("acquire as owner {number}"),
            Some(Command::Release(number)) => format!("release of owner {number}"),
            None => String::new(),
        };
        let reply = |c: usize| match last_reply(after, c) {
            Some(Reply::Taken) => "granted",
            Some(Reply::Busy) => "busy",
            _ if before.key.owner != after.key.owner => "released",
            _ => "nothing to release",
        };
        match step {
            Step::Come(c) => format!("{} comes and wants the lock", of(c)),
            Step::Submit(c) => format!("{}'s release is queued on its connection", of(c)),
            Step::Run(c) => {
                let client = &before.clients[c];
                let command = command(&client.sent, client.replies.count);
                format!("the server executes {}'s {command}: {}", of(c), reply(c))
            }
            Step::RunLate(c) => {
                let command = command(&before.clients[c].late, 0);
                format!("the server executes {}'s {command}, which was late", of(c))
            }
            Step::RunOther(c) => {
                let client = &before.clients[c];
                let command = command(&client.sent, client.replies.count + 1);
                format!(
                    "the server executes {}'s {command} first: {}",
                    of(c),
                    reply(c)
                )
            }
            Step::Read(c) => format!("{} reads the next reply", of(c)),
            Step::Subscribe(c) => format!("the server executes {}'s SUBSCRIBE", of(c)),
            Step::Confirm(c) => format!("{}'s subscription is confirmed", of(c)),
            Step::Message(c) => format!("{} receives a message", of(c)),
            Step::Ask(c) => format!("{} has news, and asks again", of(c)),
            Step::Poll(c) => format!("{} has parked for long enough, and asks again", of(c)),
            Step::GiveUp(c) => format!("{} gives up waiting", of(c)),
            Step::Leave(c) => format!("{} releases the lock", of(c)),
            Step::Renew(c) => format!("{}'s watchdog sends a renewal", of(c)),
            Step::RunRenewal(c) => format!("the server executes {}'s renewal", of(c)),
            Step::ReadRenewal(c) => format!("{}'s watchdog reads the reply", of(c)),
            Step::LoseRenewal(c) => format!("{}'s renewal or its reply is lost", of(c)),
            Step::Notice(c) => format!("{}'s hold is reported lost: its time is over", of(c)),
            Step::Lose(c, Fate::Lost) => format!("{}'s connection is lost", of(c)),
            Step::Lose(c, Fate::Late) => format!(
                "{}'s connection is given up; what it carries may be executed late",
                of(c)
            ),
            Step::Lose(c, Fate::LateAndTorn) => format!(
                "{}'s connection breaks; what it carries may be executed late, and nothing more can be written",
                of(c)
            ),
            Step::Connect(c) => format!("{} connects, and sends what is unacknowledged", of(c)),
            Step::LoseSubscription(c) => {
                format!("{}'s subscription is lost; it subscribes again", of(c))
            }
            Step::Expire => "the lease ends by the server's clock".to_owned(),
            Step::Restart => "the server restarts, empty".to_owned(),
            Step::Replicate => "the replica receives what the server has".to_owned(),
            Step::Promote => "the replica becomes the server, as it is".to_owned(),
            Step::Tick => "a tick".to_owned(),
        }
    }
}

fn last_reply<const N: usize>(state: &State<N>, c: usize) -> Option<Reply> {
    let replies = &state.clients[c].replies;
    replies.get(replies.count.checked_sub(1)?)
}

/// Two clients, without time and faults: no client waits for an event that cannot happen.
const WAITS: Scene = Scene {
    comes: [2, 2, 0],
    faults: Left {
        losses: 0,
        ends: 0,
        restarts: 0,
        promotions: 0,
        deaf: 0,
    },
    ticks: false,
    prompt: false,
    variant: Variant::AsItIs,
};

/// Connections are lost, threads give up.
fn losses(losses: u8, ends: u8, deaf: u8) -> Scene {
    Scene {
        faults: Left {
            losses,
            ends,
            deaf,
            ..Left::default()
        },
        ..WAITS
    }
}

/// The second client comes only once.
fn twice_and_once(scene: Scene) -> Scene {
    Scene {
        comes: [2, 1, 0],
        ..scene
    }
}

/// Leases run out, and are renewed.
const LEASES: Scene = Scene {
    comes: [1, 1, 0],
    ticks: true,
    ..WAITS
};

/// Both clients want the lock all the time.
const CROWDED: Scene = Scene {
    comes: [0, 0, 0],
    prompt: true,
    ..WAITS
};

fn keeps(name: &str, scene: Scene) -> usize {
    search::keeps(name, &Plain::<2>::new(scene)).states
}

#[test]
fn whoever_waits_gets_it_without_polling_whatever_connections_are_lost() {
    let mut states = keeps("two clients", WAITS);
    states += keeps("two who give up", losses(0, 2, 0));
    states += keeps("a lost connection", twice_and_once(losses(1, 0, 0)));
    let both = twice_and_once(losses(1, 1, 0));
    states += keeps("a lost connection, and one gives up", both);
    states += keeps("a lost subscription", losses(0, 0, 1));
    let restart = Left {
        restarts: 1,
        ..Left::default()
    };
    let restarted = Scene {
        faults: restart,
        ..WAITS
    };
    states += keeps("a server that restarts", twice_and_once(restarted));
    if search::asked_for("deep") {
        keeps(
            "two lost connections, twice and once",
            twice_and_once(losses(2, 0, 0)),
        );
        keeps("a server that restarts, twice each", restarted);
        keeps("a lost connection, twice each", losses(1, 1, 0));
        keeps("two lost connections", losses(2, 1, 0));
        keeps("everything once", losses(1, 1, 1));
        keeps(
            "three times each",
            Scene {
                comes: [3, 3, 0],
                ..losses(1, 0, 0)
            },
        );
    }
    assert!(states > 10_000, "{states}");
}

#[test]
fn two_never_hold_it_unless_the_server_forgets() {
    let with = |faults| Scene { faults, ..LEASES };
    let mut states = keeps("leases", LEASES);
    states += keeps(
        "a restart",
        with(Left {
            restarts: 1,
            ..Left::default()
        }),
    );
    if search::asked_for("deep") {
        keeps(
            "leases, twice each",
            Scene {
                comes: [2, 2, 0],
                ..LEASES
            },
        );
        keeps(
            "a promotion",
            with(Left {
                promotions: 1,
                ..Left::default()
            }),
        );
        keeps(
            "a lost connection",
            with(Left {
                losses: 1,
                ..Left::default()
            }),
        );
    }
    assert!(states > 10_000, "{states}");
}

#[test]
fn nobody_is_overtaken_again_and_again() {
    let states = keeps("a crowd", CROWDED);
    assert!(states > 100, "{states}");
}

#[test]
fn every_fault_of_the_protocol_is_found() {
    let faults = [
        (Variant::TwoConnections, WAITS, OWN),
        (Variant::ReleaseQueuedLate, WAITS, OWN),
        (Variant::OwnMessagesNotedLate, WAITS, REACHED),
        (Variant::NoYield, CROWDED, TURNS),
        (Variant::CohortEndsWhenIdle, CROWDED, TURNS),
        (Variant::CountsOneNode, CROWDED, TURNS),
        (Variant::ReleaseWaitsForCommand, WAITS, REACHED),
        (Variant::NobodyReconnects, losses(1, 0, 0), REACHED),
        (Variant::SignalsReadAfterReply, WAITS, REACHED),
        (Variant::NotAskedAfterSubscribing, WAITS, REACHED),
        (Variant::SubscribedAgainQuietly, losses(0, 0, 1), REACHED),
        (Variant::NumberPerThread, losses(1, 0, 0), KEPT),
        (Variant::NoUndo, losses(0, 1, 0), REACHED),
        (Variant::NoLastWords, losses(1, 0, 0), REACHED),
        (Variant::ReleaseSentOnce, losses(1, 0, 0), REACHED),
        (Variant::RenewalCreates, LEASES, UNDONE),
        (Variant::CountsFromReply, LEASES, KEPT),
        (Variant::NoMargin, LEASES, KEPT),
        (Variant::ClocksBeyondMargin, LEASES, KEPT),
        (Variant::GrantedTooLate, LEASES, KEPT),
    ];
    for (variant, scene, rule) in faults {
        let scene = Scene { variant, ..scene };
        search::breaks(&format!("{variant:?}"), &Plain::<2>::new(scene), rule);
    }
}

/// Three clients, each of which comes once.
fn once_each(scene: Scene) -> Scene {
    Scene {
        comes: [1, 1, 1],
        ..scene
    }
}

/// With `three` in `REDLATCH_MODEL` this takes a minute of one core.
#[test]
fn each_of_three_clients_gets_it() {
    let keeps = |name: &str, scene| search::keeps(name, &Plain::<3>::new(scene)).states;
    let mut states = keeps("three clients", once_each(WAITS));
    let twice_once_once = Scene {
        comes: [2, 1, 1],
        ..WAITS
    };
    states += keeps("three clients, one comes twice", twice_once_once);
    states += keeps("one of three gives up", once_each(losses(0, 1, 0)));
    states += keeps("two of three give up", once_each(losses(0, 2, 0)));
    states += keeps("a lost subscription of three", once_each(losses(0, 0, 1)));
    assert!(states > 50_000, "{states}");
    if search::asked_for("three") {
        let twice_each = Scene {
            comes: [2, 2, 2],
            ..WAITS
        };
        keeps("three clients, twice each", twice_each);
        keeps("a lost connection of three", once_each(losses(1, 0, 0)));
        let lost = Scene {
            comes: [2, 1, 1],
            ..losses(1, 0, 0)
        };
        keeps("a lost connection of three, one comes twice", lost);
        let both = once_each(losses(1, 1, 0));
        keeps("a lost connection of three, and one gives up", both);
        let faults = Left {
            restarts: 1,
            ..Left::default()
        };
        let restarted = once_each(Scene { faults, ..WAITS });
        keeps("a server of three clients that restarts", restarted);
        keeps("leases of three", once_each(LEASES));
    }
}

/// The first fault is found with three clients only: with two, the one that waits is the one that is notified.
#[test]
fn every_fault_among_three_is_found() {
    let faults = [
        (Variant::NotifiesOne, losses(0, 1, 0), REACHED),
        (Variant::ReleaseWaitsForCommand, WAITS, REACHED),
        (Variant::SignalsReadAfterReply, WAITS, REACHED),
        (Variant::NotAskedAfterSubscribing, WAITS, REACHED),
        (Variant::SubscribedAgainQuietly, losses(0, 0, 1), REACHED),
        (Variant::NumberPerThread, losses(1, 0, 0), KEPT),
        (Variant::NoUndo, losses(0, 1, 0), REACHED),
        (Variant::CountsFromReply, LEASES, KEPT),
        (Variant::NoMargin, LEASES, KEPT),
        (Variant::ClocksBeyondMargin, LEASES, KEPT),
        (Variant::GrantedTooLate, LEASES, KEPT),
    ];
    for (variant, scene, rule) in faults {
        let scene = once_each(Scene { variant, ..scene });
        let name = format!("{variant:?} among three");
        search::breaks(&name, &Plain::<3>::new(scene), rule);
    }
    let one_of_two = Scene {
        variant: Variant::NotifiesOne,
        ..losses(0, 1, 0)
    };
    keeps("two clients, of which one is notified", one_of_two);
}
