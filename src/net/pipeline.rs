//! The order of commands on a connection, and what becomes of each. Memory only: no I/O, and `now` is an argument.
//!
//! ```text
//!            submit                            reply
//!    idle ───────────► awaiting ─────────────────────────► done
//!     ▲                 │  │  │
//!     │ connection lost,│  │  └─ rejected for good: done, or broken if deferred
//!     │ or rejected     │  │
//!     │ for now         │  └─ connection lost, a thread waits ──► broken: the thread decides whether to send it again
//!     └─────────────────┘
//!       deferred: in the ledger, sent again ─────────────────────► broken once it is useless
//! ```
//!
//! Redis answers in the order in which it was asked, so the oldest awaiting command owns the next reply. The way of a
//! deferred command is described at the [ledger](crate::net::ledger).
//!
//! Some calls are several commands, one right behind the other: `ASKING` in front of one for a node of a cluster that has the
//! key before it has its slot, `WAIT` behind one that replicas have to acknowledge. The replies to these commands count
//! together.
//!
//! A script is sent by its hash, and by its text once the server has answered that it does not know it. A call whose reply
//! may never be read brings the text the first time over a connection, and after such an answer: the process may end after a
//! release, and a master of several may answer after the others.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{RedisError, Value};

use crate::net::call::{Call, CallPhase, DeferredInfo, OnReply};
use crate::net::ledger::{AT_ONCE, Ledger};
use crate::net::request::{Request, Script, Wording};
use crate::net::socket::unasked;
use crate::net::write_queue::WriteQueue;
use crate::verdict::{self, Kind, Reach, Verdict, verdict};

/// Has a node carry out the next command although the slot of its key is still on its way there.
const ASKING: &[u8] = b"*1\r\n$6\r\nASKING\r\n";

/// How long nothing is taken from the ledger after the server has replied that it cannot serve now.
const REST: Duration = Duration::from_millis(50);

/// After how long without a command the connection is checked before the next one is sent.
pub(super) const IDLE: Duration = Duration::from_millis(100);

/// After how long without a command the connection is [in doubt](InFlight::is_in_doubt) once one is sent, and is tested
/// with a PING while anything is held.
pub(super) const PING_AFTER: Duration = Duration::from_secs(2);

/// The commands of a client, over one connection after another.
pub(super) struct Pipeline {
    to: Destination,
    /// The commands on the current connection, if there is one.
    in_flight: Option<InFlight>,
    /// Deferred calls that are on no connection.
    ledger: Arc<Ledger>,
    /// Until when nothing is taken from the ledger: the server has replied that it cannot serve now.
    rests_until: Option<Instant>,
    /// The last call so far that undoes an attempt which was given up.
    owed: Option<Arc<Call>>,
}

/// The server that a pipeline leads to.
#[derive(Clone, Copy, Default)]
pub(crate) struct Destination {
    /// Which node of a cluster it is.
    pub(crate) node: usize,
    /// Whether channels are sharded there.
    pub(crate) sharded: bool,
}

/// The commands on one connection.
pub(super) struct InFlight {
    to: Destination,
    pub(super) unwritten: WriteQueue,
    awaiting: VecDeque<Arc<Call>>,
    /// How many calls were queued so far, and how many by the time that the last batch from the ledger was.
    queued: u64,
    batch_ends: u64,
    /// When the last reply came, or a command was sent while none was due.
    pub(super) last_heard: Instant,
    /// When a thread last read and found nothing: all that had come by then has been read.
    pub(super) quiet_at: Instant,
    /// The connection was idle before what is written now, for so long that the server may have closed it.
    pub(super) doubtful: bool,
    /// Nothing was heard since it was idle for long, when a firewall on the way may have forgotten it, or since a caller's
    /// time was up. Then it is given up the sooner.
    pub(super) is_in_doubt: bool,
    /// The scripts whose texts were sent with calls whose replies may never be read.
    introduced: Vec<&'static Script>,
    /// Why the connection is closed once all replies have come: the server is no longer the master.
    leaving: Option<RedisError>,
}

/// The meaning of a reply that was read.
pub(super) enum Received {
    /// The reply belongs to no command.
    Stray,
    /// Further replies to the same call are due.
    Part,
    Of(Replied),
}

/// The call that a reply belongs to, and what follows.
pub(super) struct Replied {
    pub(super) call: Arc<Call>,
    /// The call is in the ledger, from which the connection to another node takes it.
    pub(super) is_elsewhere: bool,
    /// The call's thread waits to be woken.
    pub(super) following: bool,
    /// Why the connection has to be closed now, if so.
    pub(super) leaving: Option<RedisError>,
}

/// The remains of a lost connection.
pub(super) struct Lost {
    /// Calls without a reply for which threads wait.
    pub(super) followed: Vec<Arc<Call>>,
    /// Requests that undo the acquires among them. The server may still have those unread, and execute them after the next
    /// holder has come and gone.
    pub(super) undoing: Vec<u8>,
    /// The last command was written in part, so nothing can be sent after it.
    pub(super) torn: bool,
}

impl Pipeline {
    pub(super) fn new(to: Destination, ledger: Arc<Ledger>) -> Self {
        Self {
            to,
            in_flight: None,
            ledger,
            rests_until: None,
            owed: None,
        }
    }

    /// There is a connection, with nothing on its way yet.
    pub(super) fn connected(&mut self, now: Instant) {
        self.in_flight = Some(InFlight {
            to: self.to,
            unwritten: WriteQueue::default(),
            awaiting: VecDeque::new(),
            queued: 0,
            batch_ends: 0,
            last_heard: now,
            quiet_at: now,
            doubtful: false,
            is_in_doubt: false,
            introduced: Vec::new(),
            leaving: None,
        });
        self.feed(now);
    }

    pub(super) fn in_flight(&mut self) -> Option<&mut InFlight> {
        self.in_flight.as_mut()
    }

    /// Whether the ledger has something for this node.
    pub(super) fn owes(&self) -> bool {
        self.ledger.owes(self.to.node)
    }

    /// Queues a call after all others, if there is a connection. Without one, or while the socket is full, a deferred call
    /// goes to the ledger. An attempt is refused until it has waited for what others [owe](Self::owed).
    pub(super) fn submit(&mut self, call: &Arc<Call>, now: Instant) -> bool {
        match &call.deferred {
            None if self.owed.is_some() && call.has_to_wait() && self.owed().is_some() => {
                return false;
            }
            Some(info) if info.undo => self.owed = Some(Arc::clone(call)),
            _ => {}
        }
        match &mut self.in_flight {
            Some(in_flight) if !(in_flight.unwritten.is_full() && call.deferred.is_some()) => {
                in_flight.enqueue_about(&call.request, &self.ledger, now);
                in_flight.enqueue(call, now);
                true
            }
            _ => {
                call.sent_to(self.to.node);
                self.ledger.keep([call]);
                false
            }
        }
    }

    /// Takes a batch from the ledger, when the former is answered.
    pub(super) fn feed(&mut self, now: Instant) {
        let rests = self.rests(now);
        let Some(in_flight) = &mut self.in_flight else {
            return;
        };
        if rests || self.ledger.is_empty() || in_flight.unwritten.is_full() || in_flight.has_batch()
        {
            return;
        }
        for call in self.ledger.take(self.to.node) {
            in_flight.enqueue(&call, now);
        }
        in_flight.batch_ends = in_flight.queued;
    }

    /// Returns the command for which an attempt has to wait once: the last of many commands that are in flight, among them attempts
    /// that were given up. So these leave no more behind than one for each thread, however short their times are.
    pub(super) fn owed(&mut self) -> Option<Arc<Call>> {
        self.owed.take_if(|undo| undo.outcome().is_some());
        let awaiting = &self.in_flight.as_ref()?.awaiting;
        // With fewer than that the server is about to answer.
        let owes = self.owed.is_some() && awaiting.len() >= AT_ONCE;
        awaiting.back().filter(|_| owes).cloned()
    }

    fn rests(&self, now: Instant) -> bool {
        self.rests_until.is_some_and(|until| now < until)
    }

    /// Takes what concerns the keys of a request from the ledger now, if the server can be asked.
    pub(super) fn bring(&mut self, about: &Request, now: Instant) {
        let rests = self.rests(now);
        if let Some(in_flight) = self.in_flight.as_mut().filter(|_| !rests) {
            in_flight.enqueue_about(about, &self.ledger, now);
        }
    }

    /// The reply to the oldest command has come.
    pub(super) fn reply(&mut self, value: Value, now: Instant, on_reply: &dyn OnReply) -> Received {
        let Some(in_flight) = self.in_flight.as_mut() else {
            return Received::Stray;
        };
        in_flight.last_heard = now;
        in_flight.is_in_doubt = false;
        let Some(call) = in_flight.awaiting.pop_front() else {
            return Received::Stray;
        };
        let mut its = call.state.lock();
        let Some(value) = its.take_reply(value, call.request.acknowledgements.is_some()) else {
            drop(its);
            in_flight.awaiting.push_front(call);
            return Received::Part;
        };
        let (replayed, following) = (its.sendings > 1, its.is_followed());
        // A guarded command may return any value, so its replies are not checked.
        if let Some(script) = call
            .request
            .our_script()
            .filter(|_| !call.request.is_sent_once)
        {
            if verdict::has_forgotten_scripts(&value) {
                in_flight
                    .introduced
                    .retain(|its| !std::ptr::eq(*its, script));
            }
            if !is_of_a_script(&value, &call.request) {
                in_flight.leave_for(unasked());
            }
        }
        let mut is_elsewhere = false;
        if let Some(deferred) = &call.deferred {
            drop(its);
            is_elsewhere = self.settle(&call, deferred, value, replayed, now, on_reply);
        } else {
            its.phase = CallPhase::Done(value);
            drop(its);
        }
        let leaving = self.in_flight.as_mut().and_then(InFlight::leave);
        if leaving.is_none() && call.deferred.is_some() {
            self.feed(now);
        }
        Received::Of(Replied {
            call,
            is_elsewhere,
            following,
            leaving,
        })
    }

    /// Settles a deferred call by its reply, or has it sent once more. Returns whether another node has to execute it.
    fn settle(
        &mut self,
        call: &Arc<Call>,
        deferred: &DeferredInfo,
        value: Value,
        replayed: bool,
        now: Instant,
        on_reply: &dyn OnReply,
    ) -> bool {
        let verdict = verdict(value, || call.asked(Kind::Kept, self.ledger.is_clustered()));
        let verdict = match verdict {
            Verdict::Later(err) if now >= deferred.useful_until => Verdict::Never(err),
            verdict => verdict,
        };
        match verdict {
            Verdict::Answer(value) => {
                on_reply.released(deferred, &value, replayed);
                call.state.lock().phase = CallPhase::Done(value);
            }
            Verdict::Never(err) => {
                on_reply.given_up(deferred, &err);
                call.state.lock().phase = CallPhase::Broken(err);
            }
            // Commands about the same name that were sent behind this one have been executed before it. An acquire among them
            // has found the hold, and hears of the release when it is executed now.
            Verdict::SendText => {
                call.send_text();
                call.discount_sending(None);
                if let Some(in_flight) = &mut self.in_flight {
                    in_flight.enqueue(call, now);
                }
            }
            // This connection's mutex is held, so another one must not be called from here: the ledger hands the release over.
            Verdict::Elsewhere(to) => {
                call.discount_sending(None);
                self.ledger.redirect(call, self.to.node, &to);
                return true;
            }
            // Without the rest, the next batch would be rejected at once, and again and again.
            Verdict::Later(err) => {
                call.discount_sending(Some(err.clone()));
                call.rest();
                self.ledger.keep([call]);
                self.rests_until = Some(now + REST);
                if let Some(in_flight) = &mut self.in_flight
                    && verdict::reach(&err) == Reach::Master
                {
                    in_flight.leave_for(err);
                }
            }
        }
        false
    }

    /// The connection is lost, or given up.
    pub(super) fn lost(&mut self, why: &RedisError) -> Option<Lost> {
        let in_flight = self.in_flight.take()?;
        let (mut undoing, mut followed) = (Vec::new(), Vec::new());
        let unwritten = in_flight.unwritten.calls; // more than there are if replies came unasked
        let written = in_flight.awaiting.len().saturating_sub(unwritten);
        for (index, call) in in_flight.awaiting.iter().enumerate() {
            let mut its = call.state.lock();
            if its.is_followed() {
                followed.push(Arc::clone(call));
            }
            // The server may have executed the command or not. A release may be sent again; anything else is undone, and its
            // thread decides.
            if call.deferred.is_some() {
                its.phase = CallPhase::Idle(Some(why.clone()));
            } else {
                its.phase = CallPhase::Broken(why.clone());
                its.sendings -= u32::from(index >= written); // nobody has begun to write it
                drop(its);
                if let Some(undo) = call.undo() {
                    // The reply is never read, so the text is sent.
                    let sharded = self.to.sharded;
                    let wording = Wording {
                        by_text: true,
                        sharded,
                    };
                    undo.request.write_as(&mut undoing, wording);
                }
            }
        }
        // From here on another connection may take these calls, before their followers are woken. These then find a newer
        // sending, and follow that, or look at the other connection.
        let deferred = in_flight.awaiting.iter();
        self.ledger
            .keep(deferred.filter(|call| call.deferred.is_some()));
        Some(Lost {
            followed,
            undoing,
            torn: in_flight.unwritten.is_torn(),
        })
    }
}

#[cfg(test)]
impl Pipeline {
    /// A copy that works on another ledger, and with each call replaced.
    pub(super) fn copy(&self, ledger: &Arc<Ledger>, of: impl Fn(&Arc<Call>) -> Arc<Call>) -> Self {
        let in_flight = self.in_flight.as_ref();
        Self {
            to: self.to,
            in_flight: in_flight.map(|in_flight| InFlight {
                unwritten: in_flight.unwritten.clone(),
                awaiting: in_flight.awaiting.iter().map(&of).collect(),
                introduced: in_flight.introduced.clone(),
                leaving: in_flight.leaving.clone(),
                ..*in_flight
            }),
            ledger: Arc::clone(ledger),
            rests_until: self.rests_until,
            owed: self.owed.as_ref().map(&of),
        }
    }

    pub(super) fn awaiting(&self) -> impl Iterator<Item = &Arc<Call>> {
        let in_flight = self.in_flight.iter();
        in_flight.flat_map(|in_flight| &in_flight.awaiting)
    }
}

/// Whether a script may give such a reply: a number, a string, nothing, or up to three of them; or one for each key of a
/// request that is several.
fn is_of_a_script(reply: &Value, request: &Request) -> bool {
    let is_one =
        |part: &Value| !matches!(part, Value::Array(_) | Value::Okay | Value::SimpleString(_));
    match reply {
        Value::Array(parts) => {
            let is_short = parts.len() <= 3 || parts.len() == request.keys().count();
            is_short && parts.iter().all(is_one)
        }
        reply => is_one(reply),
    }
}

impl InFlight {
    pub(super) fn enqueue(&mut self, call: &Arc<Call>, now: Instant) {
        let mut its = call.state.lock();
        its.sent_at = now;
        call.sent_to(self.to.node);
        its.begin_sending();
        its.before = u8::from(its.asking);
        (its.own, its.acknowledged) = (None, None);
        if self.awaiting.is_empty() {
            let idle = now.saturating_duration_since(self.last_heard);
            self.doubtful = idle >= IDLE;
            self.is_in_doubt = idle >= PING_AFTER;
            // Silence counts from when a reply became due, whichever thread waits for it.
            self.last_heard = now;
        }
        if call.unattended
            && let Some(script) = call.request.our_script()
            && !self.introduced.iter().any(|its| std::ptr::eq(*its, script))
        {
            its.by_text = true;
            self.introduced.push(script);
        }
        if its.asking {
            self.unwritten.bytes.extend_from_slice(ASKING);
        }
        let wording = Wording {
            by_text: its.by_text,
            sharded: self.to.sharded,
        };
        call.request.write_as(&mut self.unwritten.bytes, wording);
        drop(its);
        self.unwritten.calls += 1;
        self.queued += 1;
        self.awaiting.push_back(Arc::clone(call));
    }

    /// Queues what the ledger has about the keys of a request.
    fn enqueue_about(&mut self, request: &Request, ledger: &Ledger, now: Instant) {
        if !ledger.is_empty() {
            for call in ledger.take_about(request, self.to.node) {
                self.enqueue(&call, now);
            }
        }
    }

    /// Whether a call of the last batch from the ledger has no answer yet.
    fn has_batch(&self) -> bool {
        self.queued - (self.awaiting.len() as u64) < self.batch_ends
    }

    /// How many replies are due.
    pub(super) fn due(&self) -> usize {
        self.awaiting.len()
    }

    /// When the oldest command was sent whose reply is due.
    pub(super) fn due_since(&self) -> Option<Instant> {
        Some(self.awaiting.front()?.state.lock().sent_at)
    }

    /// Whether a reply is due and the server is known to have sent nothing for `max_silence`.
    pub(super) fn is_silent(&self, max_silence: Duration) -> bool {
        !self.awaiting.is_empty() && self.quiet_at >= self.last_heard + max_silence
    }

    /// The calls whose threads wait to be woken, the first one first.
    pub(super) fn following(&self) -> impl Iterator<Item = &Arc<Call>> {
        let awaiting = self.awaiting.iter();
        awaiting.filter(|call| call.state.lock().is_followed())
    }

    /// Whether a thread writes although another leads: a third of the commands are unwritten, so that the server may have nothing
    /// to do before the leader writes. More writes cost more than they bring (bench: many3, many8, many64; scale, network).
    pub(super) fn is_worth_a_write(&self) -> bool {
        self.unwritten.calls >= self.due() / 3
    }

    /// Whether every command of which a byte was written is answered.
    pub(super) fn is_answered(&self) -> bool {
        self.awaiting.len() <= self.unwritten.calls && !self.unwritten.is_full()
    }

    pub(super) fn has_bytes(&self) -> bool {
        !self.unwritten.is_empty()
    }

    /// The unwritten bytes go over another connection, perhaps to another server.
    pub(super) fn go_on(&mut self, now: Instant) {
        (self.last_heard, self.doubtful, self.is_in_doubt) = (now, false, false);
        self.introduced.clear();
    }

    /// Has the connection given up once all replies have come.
    pub(super) fn leave_for(&mut self, why: RedisError) {
        self.leaving = Some(why);
    }

    /// Why to leave now, if there is a reason and no reply is due.
    pub(super) fn leave(&mut self) -> Option<RedisError> {
        if self.awaiting.is_empty() {
            self.leaving.take()
        } else {
            None
        }
    }
}

/// Commands that another node of a cluster has to execute.
#[cfg(test)]
mod redirections {
    use super::*;

    use std::sync::LazyLock;

    use crate::net::call::{Attempt, Deferred, DeferredInfo, Undo};
    use crate::net::request::Request;
    use crate::net::slot::slot_of;
    use crate::net::text::Text;

    static RELEASE: LazyLock<Script> = LazyLock::new(|| Script::new("release"));

    struct Silent;

    impl OnReply for Silent {
        fn released(&self, _: &DeferredInfo, _: &Value, _: bool) {}

        fn given_up(&self, _: &DeferredInfo, why: &RedisError) {
            panic!("given up: {why}");
        }
    }

    fn release(now: Instant) -> Arc<Call> {
        Call::deferred(Deferred {
            request: Request::script("releasing", &RELEASE, &["k"], &["o:1"]),
            info: DeferredInfo {
                name: "k".into(),
                owner: Text::default(),
                useful_until: now + Duration::from_secs(9),
                undo: false,
                for_good: false,
            },
        })
    }

    fn to(node: usize) -> Pipeline {
        leading(node, &Arc::new(Ledger::of_one()))
    }

    fn leading(node: usize, ledger: &Arc<Ledger>) -> Pipeline {
        let sharded = false;
        Pipeline::new(Destination { node, sharded }, Arc::clone(ledger))
    }

    fn says(line: &str) -> Value {
        redis::parse_redis_value(format!("{line}\r\n").as_bytes()).expect("a reply")
    }

    #[test]
    fn a_release_that_belongs_elsewhere_leaves_and_counts_as_never_sent() {
        let now = Instant::now();
        let ledger = Arc::new(Ledger::at("redis+cluster://127.0.0.1:1/"));
        let slot = slot_of(b"k");
        for is_asking in [false, true] {
            // The first node that is named has the number 0.
            let (mut here, mut there) = (leading(1, &ledger), leading(0, &ledger));
            here.connected(now);
            let call = release(now);
            assert!(here.submit(&call, now));
            assert_eq!(call.node(), 1);
            let code = if is_asking { "ASK" } else { "MOVED" };
            let reply = says(&format!("-{code} {slot} 127.0.0.1:7002"));
            let Received::Of(replied) = here.reply(reply, now, &Silent) else {
                panic!("it was asked for");
            };
            assert!(replied.is_elsewhere && !ledger.is_empty());
            assert_eq!(call.state.lock().sendings, 0);
            there.connected(now);
            if is_asking {
                let asked = ledger.take_asked();
                assert!(asked.len() == 1 && there.submit(&asked[0], now));
                assert!(matches!(
                    there.reply(says("+OK"), now, &Silent),
                    Received::Part
                ));
            }
            assert!(ledger.is_empty());
            assert_eq!(call.node(), 0);
            there.reply(says(":1"), now, &Silent);
            assert!(matches!(call.outcome(), Some(Ok(_))));
        }
    }

    // Or the acquire would find the hold that the release is about to end, and wait for its lease.
    #[test]
    fn an_acquire_goes_behind_a_release_that_a_node_asks_for() {
        let now = Instant::now();
        let ledger = Arc::new(Ledger::at("redis+cluster://127.0.0.1:1/"));
        let (mut here, mut there) = (leading(1, &ledger), leading(0, &ledger));
        here.connected(now);
        there.connected(now);
        let (released, acquire) = (release(now), attempt());
        assert!(here.submit(&released, now));
        let asks = says(&format!("-ASK {} 127.0.0.1:7002", slot_of(b"k")));
        here.reply(asks, now, &Silent);
        acquire.redirect(Some(0));
        assert!(there.submit(&acquire, now));
        let sent = &there.in_flight().expect("a connection").awaiting;
        let expected = [&released, &acquire];
        assert!(sent.len() == 2 && sent.iter().zip(expected).all(|(a, b)| Arc::ptr_eq(a, b)));
    }

    struct GivenUp;

    impl Undo for GivenUp {
        fn undo(&self) -> Option<Deferred> {
            None
        }
    }

    /// An attempt that may leave something to be undone.
    fn attempt() -> Arc<Call> {
        Call::attempt(Attempt {
            request: Request::command("asking", &["HLEN", "k"]),
            undo: Some(Arc::new(GivenUp)),
        })
    }

    // Or many with little time would keep the server so busy that one with more time is never answered.
    #[test]
    fn an_attempt_waits_once_for_the_many_that_were_given_up_before_it() {
        let now = Instant::now();
        for given_up in [AT_ONCE - 2, AT_ONCE - 1] {
            let mut pipeline = to(0);
            pipeline.connected(now);
            for _ in 0..given_up {
                assert!(pipeline.submit(&attempt(), now));
            }
            let mut undo = release(now);
            Arc::get_mut(&mut undo)
                .and_then(|its| its.deferred.as_mut())
                .expect("a release")
                .undo = true;
            assert!(pipeline.submit(&undo, now));
            let (patient, later) = (attempt(), attempt());
            let waits = given_up + 1 >= AT_ONCE;
            assert_eq!(pipeline.submit(&patient, now), !waits, "{given_up}");
            if waits {
                let owed = pipeline.owed().expect("what it waits for");
                assert!(Arc::ptr_eq(&owed, &undo), "all that are on their way");
                let query = Call::question(Request::command("asking", &["PING"]));
                assert!(pipeline.submit(&query, now), "it leaves nothing behind");
                patient.may_go();
                assert!(pipeline.submit(&patient, now), "it has waited");
            }
            for _ in 0..=given_up {
                pipeline.reply(says(":1"), now, &Silent);
            }
            assert!(undo.outcome().is_some() && pipeline.owed().is_none());
            assert!(pipeline.submit(&later, now), "nothing is owed any more");
        }
    }

    #[test]
    fn a_thread_leaves_its_bytes_to_the_leader_unless_a_third_of_the_commands_are_unwritten() {
        let now = Instant::now();
        let mut pipeline = to(0);
        pipeline.connected(now);
        let mut writes = Vec::new();
        for due in 1..=20 {
            assert!(pipeline.submit(&release(now), now));
            let in_flight = pipeline.in_flight().expect("a connection");
            assert_eq!(in_flight.due(), due);
            if in_flight.is_worth_a_write() {
                let bytes = in_flight.unwritten.take();
                let all = bytes.len();
                in_flight.unwritten.wrote(bytes, all);
                writes.push(due);
            }
        }
        assert_eq!(writes, [1, 2, 3, 4, 5, 7, 10, 14, 20]);
    }

    #[test]
    fn asking_goes_in_front_and_its_reply_does_not_count() {
        let now = Instant::now();
        let mut pipeline = to(0);
        pipeline.connected(now);
        let (asked, plain) = (release(now), release(now));
        asked.state.lock().asking = true;
        assert!(pipeline.submit(&asked, now) && pipeline.submit(&plain, now));
        let bytes = pipeline.in_flight().expect("a connection").unwritten.take();
        let sent = String::from_utf8(bytes).expect("text");
        assert!(sent.starts_with("*1\r\n$6\r\nASKING\r\n*"), "{sent}");
        assert_eq!(sent.matches("ASKING").count(), 1);
        let mut reply = |line: &str| pipeline.reply(says(line), now, &Silent);
        // A refusal of it is no reply to the command either.
        assert!(matches!(reply("-ERR unknown command"), Received::Part));
        assert!(asked.outcome().is_none());
        assert!(matches!(reply(":1"), Received::Of(_)) && asked.outcome().is_some());
        assert!(matches!(reply(":2"), Received::Of(_)) && plain.outcome().is_some());
        assert!(matches!(reply(":3"), Received::Stray));
    }

    #[test]
    fn what_one_node_could_not_take_another_takes_in_its_order_and_after_a_rest() {
        let now = Instant::now();
        let ledger = Arc::new(Ledger::of_one());
        let (mut here, mut there) = (leading(1, &ledger), leading(2, &ledger));
        let calls = [release(now), release(now)];
        for call in &calls {
            assert!(!here.submit(call, now), "there is no connection");
        }
        there.rests_until = Some(now + REST);
        there.connected(now);
        there.bring(&calls[1].request, now);
        assert!(calls.iter().all(|call| call.state.lock().sendings == 0));
        there.bring(&calls[1].request, now + REST);
        assert!(ledger.is_empty());
        let in_flight = there.in_flight().expect("a connection");
        for (call, sent) in calls.iter().zip(&in_flight.awaiting) {
            assert!(Arc::ptr_eq(call, sent));
            assert_eq!((call.state.lock().sendings, call.node()), (1, 2));
        }
    }

    #[test]
    fn a_batch_is_taken_once_the_former_is_answered() {
        let now = Instant::now();
        let mut pipeline = to(0);
        let calls: Vec<_> = (0..=AT_ONCE).map(|_| release(now)).collect();
        for call in &calls {
            assert!(!pipeline.submit(call, now), "there is no connection");
        }
        pipeline.connected(now);
        let query = Call::question(Request::command("asking", &["PING"]));
        assert!(pipeline.submit(&query, now), "other commands go in between");
        for answered in 1..=AT_ONCE {
            pipeline.reply(says(":1"), now, &Silent);
            let due = pipeline.in_flight().expect("a connection").due();
            assert_eq!(
                due,
                AT_ONCE + 1 - answered + usize::from(answered == AT_ONCE)
            );
            assert_eq!(pipeline.ledger.is_empty(), answered == AT_ONCE);
        }
    }

    #[test]
    fn a_call_is_where_it_was_sent_last() {
        let now = Instant::now();
        let mut pipeline = to(3);
        pipeline.connected(now);
        let request = Request::command("asking", &["HLEN", "k"]);
        let call = Call::attempt(Attempt {
            request,
            undo: None,
        });
        assert!(pipeline.submit(&call, now));
        assert_eq!(call.node(), 3);
    }
}

/// Every schedule of a few commands, exhaustively: submitted, written in whole or in part, run, refused or forgotten by
/// the server, answered, lost with the connection before or after they ran, sent again, and given up.
#[cfg(test)]
mod model {
    use super::*;

    use std::hash::{DefaultHasher, Hash, Hasher};
    use std::sync::LazyLock;

    use parking_lot::Mutex;

    use crate::net::call::{Attempt, Deferred, DeferredInfo, Undo};
    use crate::net::request::{Acknowledgements, Request};
    use crate::net::text::Text;
    use crate::search::{Explore, Trace, explore};

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
                undo: false,
                for_good: false,
            },
        }
    }

    struct TakeBack;

    impl Undo for TakeBack {
        fn undo(&self) -> Option<Deferred> {
            Some(release(UNDOING, "a", at(1_000_000)))
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
                let own = replies.len() - 1;
                for (value, of) in replies.into_iter().take(answers) {
                    let whose = match pipeline.reply(value, now, &silent) {
                        Received::Of(replied) => Some(Arc::as_ptr(&replied.call)),
                        Received::Part => None,
                        Received::Stray => panic!("{asking} {waits} {answers}: it is due"),
                    };
                    assert_eq!(whose, of.map(Arc::as_ptr), "{asking} {waits} {answers}");
                }
                let awaiting = pipeline.in_flight().expect("a connection").due();
                pipeline.lost(&RedisError::from(std::io::Error::other("away")));
                let outcome = call.outcome().expect("either way");
                if answers < own {
                    // Half of an answer is none.
                    assert!(
                        outcome.is_err() && awaiting == 2,
                        "{asking} {waits} {answers}"
                    );
                } else {
                    let answer = outcome.expect("a reply");
                    assert_eq!(answer.value, Value::Int(7));
                    assert_eq!(answer.acknowledged, waits.then_some((2, 1)));
                    assert_eq!(awaiting, usize::from(answers == own));
                }
            }
        }
    }

    fn pipeline() -> Pipeline {
        Pipeline::new(Destination::default(), Arc::new(Ledger::of_one()))
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
        left: Left,
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
        fn new(left: Left) -> Self {
            Self {
                pipeline: pipeline(),
                now_ms: 0,
                calls: (0..4).map(command).collect(),
                submitted: [false; 4],
                settled: [0; 4],
                heard: Heard::default(),
                left,
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
            let mut ids = ids.enumerate().filter(|(_, its)| Arc::ptr_eq(its, call));
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
            let Some(in_flight) = self.pipeline.in_flight().filter(|its| its.has_bytes()) else {
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
            let (now, before) = (at(self.now_ms), self.heard.0.lock().len());
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
                    let replayed = heard[before..] == [(id, Some(true))];
                    assert!(replayed || heard[before..] == [(id, Some(false))]);
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
                        heard[before..] == [(id, None)],
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
            assert!(undone.is_none_or(|its| its.by_text && its.id == UNDOING));
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
            for (from, to) in self.calls.iter().zip(&calls) {
                *to.state.lock() = from.state.lock().clone();
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
            let mut hasher = DefaultHasher::new();
            let h = &mut hasher;
            (self.now_ms, self.submitted, self.settled, self.left).hash(h);
            (self.knows, self.runs, self.here, self.introduced).hash(h);
            (&self.inbox, &self.arrived, &self.replies).hash(h);
            for call in &self.calls {
                let its = call.state.lock();
                std::mem::discriminant(&its.phase).hash(h);
                (ms(its.sent_at), its.by_text, its.sendings, its.seq).hash(h);
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
            let (connected, left) = (in_flight.is_some(), self.left);
            let has_bytes = || in_flight.is_some_and(InFlight::has_bytes);
            match step {
                Step::Submit(id) => !self.submitted[id] && (connected || id == 1 || id == 2),
                Step::Write => has_bytes(),
                Step::WritePart => left.partial > 0 && has_bytes(),
                Step::WritePartAndSubmit(id) => {
                    left.partial > 0 && has_bytes() && !self.submitted[id]
                }
                Step::Run => !self.arrived.is_empty(),
                Step::Refuse(_) => left.refusals > 0 && !self.arrived.is_empty(),
                Step::Forget => left.forgets > 0 && self.knows != [false; 2],
                Step::Read => !self.replies.is_empty(),
                Step::Lose { .. } => connected && left.losses > 0,
                Step::Connect => !connected,
                Step::Feed => connected && !self.pipeline.ledger.is_empty(),
                Step::Bring(id) => connected && self.submitted[id] && self.settled[id] == 0,
                Step::Tick(_) => left.ticks > 0,
                Step::End => !self.pipeline.ledger.is_empty(),
            }
        }

        fn take(&mut self, step: Step) -> bool {
            let now = at(self.now_ms);
            let connected = self.pipeline.in_flight.is_some();
            let spend = |left: &mut u8| {
                let some = *left > 0;
                *left = left.saturating_sub(1);
                some
            };
            match step {
                Step::Submit(id) => self.submit(id),
                Step::Write => self.write(|len| len, None),
                Step::WritePart => {
                    self.can(step)
                        && spend(&mut self.left.partial)
                        && self.write(|len| len / 2, None)
                }
                Step::WritePartAndSubmit(id) => {
                    self.can(step)
                        && spend(&mut self.left.partial)
                        && self.write(|len| len / 2, Some(id))
                }
                Step::Run => self.serve(None),
                Step::Refuse(says) => {
                    !self.arrived.is_empty()
                        && spend(&mut self.left.refusals)
                        && self.serve(Some(says))
                }
                Step::Forget => {
                    self.knows != [false; 2] && spend(&mut self.left.forgets) && {
                        self.knows = [false; 2];
                        true
                    }
                }
                Step::Read => self.read(),
                Step::Lose { runs } => {
                    connected && spend(&mut self.left.losses) && {
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
                    spend(&mut self.left.ticks) && {
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
            let awaiting = || in_flight.into_iter().flat_map(|its| &its.awaiting);
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
            let left = Left {
                partial,
                forgets,
                refusals,
                losses,
                ticks,
            };
            explore(World::new(left), &steps(commands), 16)
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
            refused += u32::from(world.left.refusals < 5);
            world.drain();
        }
        assert!(refused > 200, "{refused}");
    }
}
