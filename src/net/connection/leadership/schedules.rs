use super::*;

use std::collections::VecDeque;
use std::hash::{Hash, Hasher};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use redis::{RedisError, Value};

use crate::net::call::{CallPhase, Deferred, DeferredInfo};
use crate::net::ledger::Ledger;
use crate::net::pipeline::{Pipeline, Received};
use crate::net::request::{Request, Script};
use crate::net::slot::slot_of;
use crate::net::tests::Patient;
use crate::net::text::Text;
use crate::search::{Digest, Explore, asked_for, explore};
use crate::verdict::Redirection;

static SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new("return 1"));
static BEGIN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// A release of a name whose slot is at the first node, and may move to the second; and queries.
const RELEASE: usize = 0;

fn call(id: usize) -> Arc<Call> {
    if id != RELEASE {
        return Call::question(Request::command("asking", &["PING"]));
    }
    Call::deferred(Deferred {
        request: Request::script("releasing", &SCRIPT, &["k"], &["o:1"]),
        info: DeferredInfo {
            name: "k".into(),
            owner: Text::default(),
            useful_until: *BEGIN + Duration::from_secs(9_999),
            valid_until: None,
            undo: false,
            has_no_lease: false,
        },
    })
}

fn parsed(line: &str) -> Value {
    redis::parse_redis_value(format!("{line}\r\n").as_bytes()).expect("a reply")
}

fn moved(node: usize) -> Redirection {
    Redirection {
        slot: slot_of(b"k"),
        host: "h".into(),
        port: u16::try_from(node).expect("one of two"),
        is_asking: false,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Reply {
    Yes,
    Later,
    /// The slot is at the other node.
    Moved,
}

/// How far a thread has got.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Doing {
    /// The thread looks next, at the connection to this node.
    Looks(usize),
    Leads(usize),
    Follows {
        node: usize,
        sending: u64,
        is_woken: bool,
    },
    Done,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Thread {
    /// The call that it waits for; none for housekeeping.
    waits_for: Option<usize>,
    doing: Doing,
    /// The thread has no time left.
    is_late: bool,
    /// The thread has looked once more for a reply that has come.
    has_looked: bool,
}

struct Node {
    pipeline: Pipeline,
    /// None while there is no connection.
    leadership: Option<ReadLeadership<()>>,
    /// Replies that have come, and that no thread has read.
    unread: VecDeque<Reply>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Left {
    late: u8,
    moves: u8,
    rejections: u8,
    panics: u8,
    glances: u8,
}

struct World {
    ledger: Arc<Ledger>,
    nodes: [Node; 2],
    calls: Vec<Arc<Call>>,
    threads: Vec<Thread>,
    /// Which node has the slot, and which one the client sends to.
    master: usize,
    known: usize,
    budget: Left,
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Look(usize),
    /// A thread whose time is up reads what has come, although another thread is to lead.
    LookOnceMore(usize),
    /// A thread that follows was woken.
    Wake(usize),
    Late(usize),
    /// A leader reads so many replies.
    Read(usize, usize),
    /// A leader has read for long enough.
    PutBack(usize),
    Panic(usize),
    /// Housekeeping takes the reader.
    Glance(usize),
    Answer(usize, Reply),
    Connect(usize),
    /// Housekeeping has a connection take what is in the ledger.
    Feed(usize),
}

fn steps(threads: usize) -> Vec<Step> {
    let mut steps = Vec::new();
    for t in 0..=threads {
        steps.extend([
            Step::Read(t, 1),
            Step::Read(t, 2),
            Step::PutBack(t),
            Step::Panic(t),
        ]);
    }
    for t in 0..threads {
        steps.extend([
            Step::Look(t),
            Step::LookOnceMore(t),
            Step::Wake(t),
            Step::Late(t),
        ]);
    }
    for node in 0..2 {
        let answers = [Reply::Yes, Reply::Later, Reply::Moved];
        steps.extend(answers.map(|reply| Step::Answer(node, reply)));
        steps.extend([Step::Connect(node), Step::Feed(node), Step::Glance(node)]);
    }
    steps
}

impl World {
    /// Thread `t` waits for the call `waits[t]`; `at[id]` is the node of a call.
    fn new(waits: &[usize], at: &[usize], budget: Left) -> Self {
        let ledger = Arc::new(Ledger::at("redis+cluster://127.0.0.1:1/"));
        let node = |node| {
            let mut pipeline = Pipeline::new(node, Arc::clone(&ledger));
            pipeline.connected(*BEGIN);
            Node {
                pipeline,
                leadership: Some(ReadLeadership::new(())),
                unread: VecDeque::new(),
            }
        };
        let mut nodes = [0, 1].map(node);
        let calls: Vec<_> = (0..at.len()).map(call).collect();
        for (call, node) in calls.iter().zip(at) {
            assert!(nodes[*node].pipeline.submit(call, *BEGIN));
        }
        let thread = |waits_for: Option<usize>| Thread {
            waits_for,
            doing: waits_for.map_or(Doing::Done, |id| Doing::Looks(at[id])),
            is_late: false,
            has_looked: false,
        };
        let waiting = waits.iter().map(|id| thread(Some(*id)));
        let world = Self {
            threads: waiting.chain([thread(None)]).collect(),
            ledger,
            nodes,
            calls,
            master: 0,
            known: 0,
            budget,
        };
        // Both nodes have their numbers.
        for node in [0, 1] {
            world.ledger.learn(&moved(node));
        }
        world
    }

    fn id(&self, call: &Arc<Call>) -> usize {
        let mut calls = self.calls.iter();
        calls
            .position(|other| Arc::ptr_eq(other, call))
            .expect("one of ours")
    }

    /// Wakes the threads that follow a call.
    fn wake(&mut self, call: Option<&Arc<Call>>) {
        let id = call.map(|call| self.id(call));
        for thread in &mut self.threads {
            if id.is_some()
                && thread.waits_for == id
                && let Doing::Follows { is_woken, .. } = &mut thread.doing
            {
                *is_woken = true;
            }
        }
    }

    /// The connection at which a thread looks, or which it leads or follows.
    fn node_of(&self, t: usize) -> usize {
        match self.threads[t].doing {
            Doing::Looks(node) | Doing::Leads(node) | Doing::Follows { node, .. } => node,
            Doing::Done => panic!("thread {t} is done"),
        }
    }

    fn awaits(&self, id: usize, at: usize) -> bool {
        let mut awaiting = self.nodes[at].pipeline.awaiting();
        awaiting.any(|call| Arc::ptr_eq(call, &self.calls[id]))
    }

    /// A thread that waits looks once.
    fn look(&mut self, t: usize) {
        let (id, at) = (self.threads[t].waits_for.expect("a call"), self.node_of(t));
        let call = Arc::clone(&self.calls[id]);
        let phase = call.state.lock().phase.clone();
        let is_late = self.threads[t].is_late;
        self.threads[t].doing = match phase {
            CallPhase::Done(_) | CallPhase::Broken(_) => Doing::Done,
            CallPhase::Awaiting if call.node() == at => {
                let node = &mut self.nodes[at];
                let leadership = node.leadership.as_mut().expect("a connection");
                let in_flight = node.pipeline.in_flight().expect("a connection");
                if is_late {
                    let next = leadership.leave(&call, in_flight);
                    self.wake(next.as_ref());
                    Doing::Done
                } else if let Some(()) = leadership.lead(&call) {
                    Doing::Leads(at)
                } else {
                    Doing::Follows {
                        node: at,
                        sending: call.state.lock().begin_following(),
                        is_woken: false,
                    }
                }
            }
            _ if is_late => Doing::Done,
            // The thread looks again at the connection that has the call now, or had it last.
            _ => Doing::Looks(call.node()),
        };
    }

    fn end_following(&mut self, t: usize) {
        let thread = &mut self.threads[t];
        if let (Some(id), Doing::Follows { node, sending, .. }) = (thread.waits_for, thread.doing) {
            self.calls[id].state.lock().end_following(sending);
            thread.doing = Doing::Looks(node);
        }
    }

    fn take_reader(&mut self, t: usize, at: usize) {
        let leadership = self.nodes[at].leadership.as_mut().expect("a connection");
        assert_eq!(leadership.take_from_anyone(), Some(()));
        self.threads[t].doing = Doing::Leads(at);
    }

    fn read(&mut self, t: usize, at: usize, replies: usize) {
        let (mut has_own, mut served) = (false, Vec::new());
        for _ in 0..replies {
            let node = &mut self.nodes[at];
            let value = match node.unread.pop_front().expect("counted") {
                Reply::Yes => Value::Int(1),
                Reply::Later => parsed("-LOADING not yet"),
                Reply::Moved => parsed(&format!("-MOVED {} h:{}", slot_of(b"k"), 1 - at)),
            };
            let Received::Of(replied) = node.pipeline.reply(value, *BEGIN, &Patient) else {
                panic!("it was asked for");
            };
            has_own |= self.threads[t].waits_for == Some(self.id(&replied.call));
            if replied.was_followed {
                served.push(replied.call);
            }
        }
        if has_own {
            self.step_down(t, at);
        }
        for call in &served {
            self.wake(Some(call));
        }
    }

    fn step_down(&mut self, t: usize, at: usize) {
        let node = &mut self.nodes[at];
        let leadership = node.leadership.as_mut().expect("a connection");
        let in_flight = node.pipeline.in_flight().expect("a connection");
        let next = leadership.put_back((), in_flight);
        self.wake(next.as_ref());
        self.threads[t].doing = match self.threads[t].waits_for {
            Some(_) => Doing::Looks(at),
            None => Doing::Done,
        };
    }

    fn fail(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        node.leadership = None;
        node.unread.clear();
        let why = RedisError::from(std::io::Error::other("lost"));
        let lost = node.pipeline.lost(&why).expect("connected");
        for call in &lost.followed {
            self.wake(Some(call));
        }
    }
}

impl Node {
    fn is_in_place(&self) -> bool {
        let leadership = self.leadership.as_ref();
        leadership.is_some_and(|leadership| leadership.reader().is_some())
    }
}

impl Explore for World {
    type Step = Step;

    fn copy(&self) -> Self {
        let calls: Vec<_> = (0..self.calls.len()).map(call).collect();
        for (call, copy) in self.calls.iter().zip(&calls) {
            *copy.state.lock() = call.state.lock().clone();
            copy.set_node(call.node());
        }
        let of = |call: &Arc<Call>| Arc::clone(&calls[self.id(call)]);
        let ledger = Arc::new(self.ledger.copy(of));
        let node = |node: &Node| Node {
            pipeline: node.pipeline.copy(&ledger, of),
            leadership: node.leadership.as_ref().map(|leadership| ReadLeadership {
                reader: leadership.reader,
                appointed: leadership.appointed.as_ref().map(of),
            }),
            unread: node.unread.clone(),
        };
        let nodes = self.nodes.each_ref().map(node);
        Self {
            nodes,
            ledger,
            calls,
            threads: self.threads.clone(),
            ..*self
        }
    }

    fn digest(&self) -> u64 {
        let mut hasher = Digest::default();
        let h = &mut hasher;
        (&self.threads, self.master, self.known, self.budget).hash(h);
        for call in &self.calls {
            let state = call.state.lock();
            std::mem::discriminant(&state.phase).hash(h);
            (state.followed(), state.redirected, call.node()).hash(h);
        }
        for node in &self.nodes {
            node.unread.hash(h);
            let awaiting: Vec<_> = node.pipeline.awaiting().map(|call| self.id(call)).collect();
            let leadership = node.leadership.as_ref();
            let appointed = leadership.and_then(|leadership| leadership.appointed.as_ref());
            let appointed = appointed.map(|call| self.id(call));
            let is_in_place = leadership.map(|leadership| leadership.reader.is_some());
            (awaiting, appointed, is_in_place).hash(h);
        }
        hasher.finish()
    }

    fn can(&self, step: Step) -> bool {
        let doing = |t: usize| self.threads[t].doing;
        let leads = |t| matches!(doing(t), Doing::Leads(_));
        match step {
            Step::Look(t) => matches!(doing(t), Doing::Looks(_)),
            Step::LookOnceMore(t) => match self.threads[t] {
                Thread {
                    waits_for: Some(id),
                    doing: Doing::Looks(at),
                    is_late: true,
                    has_looked: false,
                } => self.awaits(id, at) && self.nodes[at].is_in_place(),
                _ => false,
            },
            Step::Wake(t) => matches!(doing(t), Doing::Follows { is_woken: true, .. }),
            Step::Late(t) => {
                self.budget.late > 0 && !self.threads[t].is_late && doing(t) != Doing::Done
            }
            Step::Read(t, replies) => match doing(t) {
                Doing::Leads(at) => self.nodes[at].unread.len() >= replies,
                _ => false,
            },
            Step::PutBack(t) => leads(t),
            Step::Panic(t) => leads(t) && self.budget.panics > 0,
            Step::Glance(at) => {
                let last = self.threads.len() - 1;
                let is_free = doing(last) == Doing::Done;
                self.budget.glances > 0 && is_free && self.nodes[at].is_in_place()
            }
            Step::Answer(at, reply) => {
                let node = &self.nodes[at];
                let next = node.pipeline.awaiting().nth(node.unread.len());
                let Some(next) = next else {
                    return false;
                };
                let is_release = next.deferred.is_some();
                match reply {
                    Reply::Yes => !is_release || self.master == at,
                    Reply::Later => is_release && self.budget.rejections > 0,
                    Reply::Moved => is_release && (self.master != at || self.budget.moves > 0),
                }
            }
            Step::Connect(at) => self.nodes[at].leadership.is_none(),
            Step::Feed(at) => !self.ledger.is_empty() && self.nodes[at].leadership.is_some(),
        }
    }

    fn take(&mut self, step: Step) -> bool {
        if !self.can(step) {
            return false;
        }
        // All worlds share the map of slots.
        if self.ledger.master(slot_of(b"k")) != self.known {
            self.ledger.learn(&moved(self.known));
        }
        match step {
            Step::Look(t) => self.look(t),
            Step::LookOnceMore(t) => {
                self.threads[t].has_looked = true;
                self.take_reader(t, self.node_of(t));
            }
            Step::Wake(t) => self.end_following(t),
            // A thread whose time is nearly up follows with a limit.
            Step::Late(t) => {
                self.budget.late -= 1;
                self.threads[t].is_late = true;
                self.end_following(t);
            }
            Step::Read(t, replies) => self.read(t, self.node_of(t), replies),
            Step::PutBack(t) => self.step_down(t, self.node_of(t)),
            Step::Panic(t) => {
                self.budget.panics -= 1;
                self.fail(self.node_of(t));
                self.threads[t].doing = Doing::Done;
            }
            Step::Glance(at) => {
                self.budget.glances -= 1;
                self.take_reader(self.threads.len() - 1, at);
            }
            Step::Answer(at, reply) => {
                self.budget.rejections -= u8::from(reply == Reply::Later);
                if reply == Reply::Moved && self.master == at {
                    self.budget.moves -= 1;
                    self.master = 1 - at;
                }
                self.nodes[at].unread.push_back(reply);
            }
            Step::Connect(at) => {
                self.nodes[at].leadership = Some(ReadLeadership::new(()));
                self.nodes[at].pipeline.connected(*BEGIN);
            }
            // The rest after a rejection is over by then.
            Step::Feed(at) => {
                let pipeline = &mut self.nodes[at].pipeline;
                pipeline.feed(*BEGIN + Duration::from_secs(1));
            }
        }
        self.known = self.ledger.master(slot_of(b"k"));
        true
    }

    fn check(&self) {
        for (at, node) in self.nodes.iter().enumerate() {
            let Some(leadership) = &node.leadership else {
                continue;
            };
            let leads = |thread: &&Thread| thread.doing == Doing::Leads(at);
            let leaders = self.threads.iter().filter(leads).count();
            let is_in_place = node.is_in_place();
            assert_eq!(leaders, usize::from(!is_in_place), "rule 1, node {at}");
            let follow = |id: usize, only_woken: bool| {
                let follows = |thread: &&Thread| {
                    thread.waits_for == Some(id)
                        && matches!(thread.doing, Doing::Follows { node, is_woken, .. }
                            if node == at && (is_woken || !only_woken))
                };
                self.threads.iter().filter(follows).count()
            };
            if let Some(appointed) = &leadership.appointed {
                assert!(is_in_place, "rule 2, node {at}: somebody reads");
                let id = self.id(appointed);
                // A woken thread looks.
                let looks = |thread: &Thread| {
                    thread.waits_for == Some(id) && thread.doing == Doing::Looks(at)
                };
                let comes = follow(id, true) > 0 || self.threads.iter().any(looks);
                assert!(comes, "rule 2, node {at}: no thread comes for {id}");
            }
            let is_followed = |call: &&Arc<Call>| call.state.lock().is_followed();
            let followed = node.pipeline.awaiting().find(is_followed);
            if is_in_place && leadership.appointed.is_none() {
                assert!(followed.is_none(), "rule 4, node {at}: nobody reads");
            }
        }
        for (id, call) in self.calls.iter().enumerate() {
            let state = call.state.lock();
            let awaits = matches!(state.phase, CallPhase::Awaiting);
            let (sending, count) = state.followed();
            let of_this = |thread: &&Thread| {
                thread.waits_for == Some(id)
                    && matches!(thread.doing, Doing::Follows { sending: followed, .. } if followed == sending)
            };
            let follow: Vec<_> = self.threads.iter().filter(of_this).collect();
            assert_eq!(follow.len(), count as usize, "rule 5: followers of {id}");
            for thread in &self.threads {
                let Doing::Follows {
                    node,
                    sending: followed,
                    is_woken,
                } = thread.doing
                else {
                    continue;
                };
                if thread.waits_for == Some(id) && !is_woken {
                    assert!(
                        awaits && followed == sending,
                        "rule 6: nobody wakes who waits for {id}"
                    );
                    assert_eq!(node, call.node(), "rule 5: {id} is elsewhere");
                }
            }
        }
    }

    /// With servers that answer, every thread comes to an end.
    fn drain(mut self) {
        let threads = self.threads.len() - 1;
        for _ in 0..30 {
            for node in 0..2 {
                self.take(Step::Connect(node));
                self.take(Step::Feed(node));
                while self.take(Step::Answer(node, Reply::Yes))
                    || self.master != node && self.take(Step::Answer(node, Reply::Moved))
                {
                }
            }
            for t in 0..=threads {
                while self.take(Step::Read(t, 1)) {}
                if self.threads[t].waits_for.is_none() {
                    self.take(Step::PutBack(t));
                } else {
                    self.take(Step::Wake(t));
                    self.take(Step::Look(t));
                }
                self.check();
            }
        }
        for (t, thread) in self.threads.iter().enumerate() {
            assert_eq!(thread.doing, Doing::Done, "thread {t} waits for ever");
        }
    }
}

#[test]
fn whoever_waits_is_woken_or_leads_in_every_schedule() {
    let of = |waits: &[usize], at: &[usize], limits: [u8; 5]| {
        let [late, moves, rejections, panics, glances] = limits;
        let budget = Left {
            late,
            moves,
            rejections,
            panics,
            glances,
        };
        explore(World::new(waits, at, budget), &steps(waits.len()), 16)
    };
    let states = of(&[0, 0, 1], &[0, 1], [1, 1, 0, 1, 0])
        + of(&[0, 1], &[0, 0], [1, 1, 1, 0, 0])
        + of(&[0, 1], &[0, 0], [1, 1, 0, 1, 0])
        + of(&[0, 0], &[0], [1, 0, 1, 0, 1]);
    assert!(states > 10_000, "{states}");
    if asked_for("deep") {
        let states = of(&[0, 1, 2], &[0, 0, 0], [1, 0, 0, 1, 0])
            + of(&[0, 0, 1], &[0, 1], [1, 2, 0, 0, 0])
            + of(&[0, 0, 1], &[0, 0], [1, 0, 1, 0, 1])
            + of(&[0, 0], &[0], [2, 1, 1, 1, 1]);
        assert!(states > 40_000, "{states}");
    }
}
