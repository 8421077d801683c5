//! The order of commands on a connection, and what becomes of each. Memory only: no I/O, and `now` is an argument.
//!
//! ```text
//!            submit                            reply
//!    idle ───────────► awaiting ─────────────────────────► done
//!     ▲                 │  │  │
//!     │ connection lost,│  │  └─ a reply that refuses for good: done, or broken if deferred
//!     │ or refused for  │  │
//!     │ now             │  └─ connection lost, a thread waits ──► broken: it decides whether to send again
//!     └─────────────────┘
//!       deferred: unacknowledged, sent again ────────────────────► broken once it is of no use any more
//! ```
//!
//! Redis answers in the order in which it was asked, so the oldest awaiting command owns the next reply.
//!
//! A deferred command that has no answer when its connection is lost is *unacknowledged*. After an outage there may be very
//! many, so they are sent again in portions, each once the last one is answered, and other commands go in between. A command
//! about a name first sends what is unacknowledged about that name, or an acquire would find a hold that is long over.
//!
//! Some calls are several commands, one right behind the other: `ASKING` in front of one for a node of a cluster that has
//! the key before it has its slot, `WAIT` behind one that replicas have to acknowledge. Their replies count together.
//!
//! A script is sent by its hash, and by its text once the server has answered that it does not know it. A call whose reply
//! may never be read brings the text the first time over a connection, and after such an answer: the process may end after a
//! release, and a master of several may answer after the others.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{RedisError, Value};

use crate::net::call::{Call, CallPhase, OnReply};
use crate::net::outbox::Outbox;
use crate::net::request::{Request, Script, Wording};
use crate::net::socket::unasked;
use crate::net::write_queue::WriteQueue;
use crate::verdict::{self, Kind, Reach, Redirection, Verdict, verdict};

/// Has a node carry out the next command although the slot of its key is still on its way there.
const ASKING: &[u8] = b"*1\r\n$6\r\nASKING\r\n";

/// How many bytes of unacknowledged calls go out before their replies have come.
const PORTION: usize = if cfg!(test) { 128 } else { 16 * 1024 };

/// How many unacknowledged calls about the same name are sent before a new one.
const SAME_NAME: usize = 64;

/// How long no unacknowledged call is sent after the server has replied that it cannot serve now.
const REST: Duration = Duration::from_millis(50);

/// How many replies are due before attempts wait for what others owe. With fewer than that the server is about to answer.
const BUSY: usize = 64;

/// After how long without a command the connection is checked before the next one is sent.
pub(super) const IDLE: Duration = Duration::from_millis(100);

/// After how long without a command the connection is [in doubt](InFlight::is_in_doubt) once one is sent, and is tested
/// with a PING while anything is held.
pub(super) const PING_AFTER: Duration = Duration::from_secs(2);

/// The commands of a client, over one connection after another.
#[derive(Default)]
pub(super) struct Pipeline {
    to: Destination,
    /// The commands on the current connection, if there is one.
    in_flight: Option<InFlight>,
    /// Deferred calls that have no answer and are not on the current connection.
    unacknowledged: Outbox,
    /// Until when none of them is sent: the server has replied that it cannot serve now.
    rests_until: Option<Instant>,
    /// The last call so far that undoes an attempt which was given up.
    owed: Option<Arc<Call>>,
    /// What it has replied, until it is lost or carries one out.
    refused: Option<RedisError>,
}

/// What a pipeline leads to.
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
    /// When the last reply came, or a command was sent while none was due.
    pub(super) last_heard: Instant,
    /// When a thread last read and found nothing: all that had come by then has been read.
    pub(super) quiet_at: Instant,
    /// The connection was idle before what is written now, for so long that the server may have closed it.
    pub(super) doubtful: bool,
    /// Nothing was heard since it was idle for long, when a firewall on the way may have forgotten it, or since a caller's
    /// time was up. Then it is given up the sooner.
    pub(super) is_in_doubt: bool,
    /// How many calls of the last portion have no answer yet.
    portion: usize,
    /// The scripts whose texts were sent with calls whose replies may never be read.
    introduced: Vec<&'static Script>,
    /// Why the connection is closed once all replies have come: the server is no longer the master.
    leaving: Option<RedisError>,
}

/// What has been read.
pub(super) enum Received {
    /// Nobody has asked for it.
    Stray,
    /// Others to the same call are due.
    Part,
    Of(Replied),
}

/// What became of a reply.
pub(super) struct Replied {
    pub(super) call: Arc<Call>,
    /// A deferred call is to be sent to another node.
    pub(super) elsewhere: Option<Redirection>,
    /// The call's thread waits to be woken.
    pub(super) following: bool,
    /// Why the connection has to be closed now, if so.
    pub(super) leaving: Option<RedisError>,
}

/// What is left of a lost connection.
pub(super) struct Lost {
    /// Those that had no reply.
    pub(super) calls: Vec<Arc<Call>>,
    /// Requests that undo the acquires among them. The server may still have those unread, and execute them after the next
    /// holder has come and gone.
    pub(super) undoing: Vec<u8>,
    /// The last command was written in part, so nothing can be sent after it.
    pub(super) torn: bool,
}

impl Pipeline {
    pub(super) fn new(to: Destination) -> Self {
        Self {
            to,
            ..Self::default()
        }
    }

    /// There is a connection, with nothing on its way yet.
    pub(super) fn connected(&mut self, now: Instant) {
        self.in_flight = Some(InFlight {
            to: self.to,
            unwritten: WriteQueue::default(),
            awaiting: VecDeque::new(),
            last_heard: now,
            quiet_at: now,
            doubtful: false,
            is_in_doubt: false,
            portion: 0,
            introduced: Vec::new(),
            leaving: None,
        });
        self.feed(now);
    }

    pub(super) fn in_flight(&mut self) -> Option<&mut InFlight> {
        self.in_flight.as_mut()
    }

    pub(super) fn has_unacknowledged(&self) -> bool {
        !self.unacknowledged.is_empty()
    }

    /// Queues a call after all others, if there is a connection. Without one, or while the socket is full, a deferred call
    /// is kept and sent later. An attempt is refused until it has waited for what others [owe](Self::owed).
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
                if !self.unacknowledged.is_empty() {
                    for earlier in self.unacknowledged.take_about(&call.request, SAME_NAME) {
                        in_flight.enqueue(&earlier, now);
                    }
                }
                in_flight.enqueue(call, now);
                true
            }
            _ => {
                call.sent_to(self.to.node);
                self.unacknowledged.keep(call);
                false
            }
        }
    }

    /// Takes out unacknowledged calls that do not belong here any more.
    pub(super) fn take_strays(&mut self, belongs: impl Fn(&Arc<Call>) -> bool) -> Vec<Arc<Call>> {
        self.unacknowledged.take_strays(belongs)
    }

    /// Queues the next portion of unacknowledged calls, when the former is answered.
    pub(super) fn feed(&mut self, now: Instant) {
        let rests = self.rests(now);
        let Some(in_flight) = &mut self.in_flight else {
            return;
        };
        let full = in_flight.unwritten.is_full();
        if in_flight.portion > 0 || full || self.unacknowledged.is_empty() || rests {
            return;
        }
        let enough = in_flight.unwritten.bytes.len() + PORTION;
        while in_flight.unwritten.bytes.len() < enough
            && let Some(call) = self.unacknowledged.take_first()
        {
            in_flight.enqueue(&call, now);
            call.state.lock().in_portion = true;
            in_flight.portion += 1;
        }
    }

    /// What an attempt has to wait for once before it is sent: the last of many commands that are in flight, among them
    /// attempts that were given up. So these leave no more behind than one for each thread, however short their times are.
    pub(super) fn owed(&mut self) -> Option<Arc<Call>> {
        self.owed.take_if(|undo| undo.outcome().is_some());
        let awaiting = &self.in_flight.as_ref()?.awaiting;
        let owes = self.owed.is_some() && awaiting.len() >= BUSY;
        awaiting.back().filter(|_| owes).cloned()
    }

    fn rests(&self, now: Instant) -> bool {
        self.rests_until.is_some_and(|until| now < until)
    }

    /// Why deferred calls are kept, if the server has said so.
    pub(super) fn refusal(&self) -> Option<RedisError> {
        self.refused.clone()
    }

    /// Queues this one of the unacknowledged calls now, if the server can be asked.
    pub(super) fn bring(&mut self, call: &Arc<Call>, now: Instant) -> bool {
        let rests = self.rests(now);
        match &mut self.in_flight {
            Some(in_flight) if !rests && self.unacknowledged.remove(call) => {
                in_flight.enqueue(call, now);
                true
            }
            _ => false,
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
        let (replayed, following) = (its.sendings > 1, its.following > 0);
        if std::mem::take(&mut its.in_portion) {
            in_flight.portion -= 1;
        }
        // What a guarded command returns is the user's.
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
        let mut elsewhere = None;
        if call.deferred.is_some() {
            drop(its);
            match self.settle(&call, value, replayed, now, on_reply) {
                Settled::Here => {}
                Settled::Elsewhere(to) => elsewhere = Some(to),
                Settled::NoMaster(err) => {
                    if let Some(in_flight) = &mut self.in_flight {
                        in_flight.leaving = Some(err);
                    }
                }
            }
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
            elsewhere,
            following,
            leaving,
        })
    }

    /// What a deferred call's reply means: it is settled, or sent once more.
    fn settle(
        &mut self,
        call: &Arc<Call>,
        value: Value,
        replayed: bool,
        now: Instant,
        on_reply: &dyn OnReply,
    ) -> Settled {
        let Some(deferred) = call.deferred.as_ref() else {
            return Settled::Here;
        };
        let verdict = verdict(value, || call.asked(Kind::Kept, on_reply.redirects()));
        let verdict = match verdict {
            Verdict::Later(err) if now >= deferred.useful_until => Verdict::Never(err),
            verdict => verdict,
        };
        match verdict {
            Verdict::Answer(value) => {
                on_reply.released(deferred, &value, replayed);
                self.refused = None;
                call.state.lock().phase = CallPhase::Done(value);
            }
            Verdict::Never(err) => {
                on_reply.given_up(deferred, &err);
                call.state.lock().phase = CallPhase::Broken(err);
            }
            Verdict::SendText => {
                call.send_text();
                call.discount_sending();
                if let Some(in_flight) = &mut self.in_flight {
                    in_flight.enqueue(call, now);
                }
            }
            Verdict::Elsewhere(to) => {
                call.discount_sending();
                call.state.lock().seq = 0;
                return Settled::Elsewhere(to);
            }
            Verdict::Later(err) => {
                call.discount_sending();
                call.rest();
                self.unacknowledged.keep(call);
                self.rests_until = Some(now + REST);
                self.refused = Some(err.clone());
                if verdict::reach(&err) == Reach::Master {
                    return Settled::NoMaster(err);
                }
            }
        }
        Settled::Here
    }

    /// The connection is lost, or given up.
    pub(super) fn lost(&mut self, why: &RedisError) -> Option<Lost> {
        let in_flight = self.in_flight.take()?;
        self.refused = None;
        let mut undoing = Vec::new();
        let unwritten = in_flight.unwritten.calls; // more than there are if replies came unasked
        let written = in_flight.awaiting.len().saturating_sub(unwritten);
        for (index, call) in in_flight.awaiting.iter().enumerate() {
            let mut its = call.state.lock();
            if call.deferred.is_some() {
                its.phase = CallPhase::Idle;
                its.in_portion = false;
                drop(its);
                self.unacknowledged.keep(call);
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
        Some(Lost {
            calls: in_flight.awaiting.into(),
            undoing,
            torn: in_flight.unwritten.is_torn(),
        })
    }

    /// Takes out unacknowledged calls that are of no use any more, not more than `most`.
    pub(super) fn take_ended(
        &mut self,
        now: Instant,
        most: usize,
        why: &RedisError,
    ) -> Vec<Arc<Call>> {
        let mut ended = Vec::new();
        while ended.len() < most
            && let Some(call) = self.unacknowledged.take_ended(now)
        {
            call.state.lock().phase = CallPhase::Broken(why.clone());
            ended.push(call);
        }
        ended
    }

    /// Forgets what is unacknowledged: how many releases that is, and how many undoings of acquires.
    pub(super) fn forget(&mut self) -> (u64, u64) {
        let (mut releases, mut undos) = (0, 0);
        while let Some(call) = self.unacknowledged.take_first() {
            match &call.deferred {
                Some(info) if info.undo && !info.for_good => undos += 1,
                _ => releases += 1,
            }
        }
        (releases, undos)
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

/// What a deferred call's reply leaves to be done.
enum Settled {
    /// Nothing, or it is done here.
    Here,
    /// It belongs to another node of the cluster.
    Elsewhere(Redirection),
    /// The server is no master any more.
    NoMaster(RedisError),
}

impl InFlight {
    pub(super) fn enqueue(&mut self, call: &Arc<Call>, now: Instant) {
        let mut its = call.state.lock();
        its.phase = CallPhase::Awaiting;
        its.sent_at = now;
        call.sent_to(self.to.node);
        its.before = u8::from(its.asking);
        (its.own, its.acknowledged) = (None, None);
        if self.awaiting.is_empty() {
            let idle = now.saturating_duration_since(self.last_heard);
            self.doubtful = idle >= IDLE;
            self.is_in_doubt = idle >= PING_AFTER;
            // Silence counts from when a reply became due, whoever waits for it.
            self.last_heard = now;
        }
        its.sendings += 1;
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
        self.awaiting.push_back(Arc::clone(call));
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
        self.awaiting.iter().filter(|call| {
            let its = call.state.lock();
            its.following > 0 && its.followed_at == self.to.node
        })
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

/// What another node of a cluster has to do with it.
#[cfg(test)]
mod redirections {
    use super::*;

    use std::sync::LazyLock;

    use crate::net::call::{Attempt, Deferred, DeferredInfo, Undo};
    use crate::net::request::Request;
    use crate::net::text::Text;

    static RELEASE: LazyLock<Script> = LazyLock::new(|| Script::new("release"));

    struct Forwarding;

    impl OnReply for Forwarding {
        fn released(&self, _: &DeferredInfo, _: &Value, _: bool) {}

        fn given_up(&self, _: &DeferredInfo, why: &RedisError) {
            panic!("given up: {why}");
        }

        fn redirects(&self) -> bool {
            true
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
        let sharded = false;
        Pipeline::new(Destination { node, sharded })
    }

    fn says(line: &str) -> Value {
        redis::parse_redis_value(format!("{line}\r\n").as_bytes()).expect("a reply")
    }

    #[test]
    fn a_release_that_belongs_elsewhere_leaves_and_counts_as_never_sent() {
        let now = Instant::now();
        let (mut here, mut there) = (to(1), to(2));
        here.connected(now);
        there.connected(now);
        let call = release(now);
        assert!(here.submit(&call, now));
        assert_eq!(call.node(), 1);
        let moved = says("-MOVED 12 127.0.0.1:7002");
        let Received::Of(replied) = here.reply(moved, now, &Forwarding) else {
            panic!("it was asked for");
        };
        assert!(replied.elsewhere.is_some_and(|to| to.port == 7002));
        assert!(!here.has_unacknowledged());
        assert_eq!(call.state.lock().sendings, 0);
        assert!(there.submit(&call, now));
        assert_eq!(call.node(), 2);
        there.reply(says(":1"), now, &Forwarding);
        assert!(matches!(call.outcome(), Some(Ok(_))));
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
        for given_up in [BUSY - 2, BUSY - 1] {
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
            let waits = given_up + 1 >= BUSY;
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
                pipeline.reply(says(":1"), now, &Forwarding);
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
        let mut reply = |line: &str| pipeline.reply(says(line), now, &Forwarding);
        // A refusal of it is no reply to the command either.
        assert!(matches!(reply("-ERR unknown command"), Received::Part));
        assert!(asked.outcome().is_none());
        assert!(matches!(reply(":1"), Received::Of(_)) && asked.outcome().is_some());
        assert!(matches!(reply(":2"), Received::Of(_)) && plain.outcome().is_some());
        assert!(matches!(reply(":3"), Received::Stray));
    }

    #[test]
    fn what_a_node_cannot_take_any_more_goes_in_its_order() {
        let now = Instant::now();
        let mut pipeline = to(0);
        let calls = [release(now), release(now), release(now)];
        for call in &calls {
            assert!(!pipeline.submit(call, now), "there is no connection");
        }
        let strays = pipeline.take_strays(|call| Arc::ptr_eq(call, &calls[1]));
        assert_eq!(strays.len(), 2);
        assert!(Arc::ptr_eq(&strays[0], &calls[0]) && Arc::ptr_eq(&strays[1], &calls[2]));
        assert!(pipeline.has_unacknowledged());
        assert!(pipeline.take_strays(|_| false).len() == 1 && !pipeline.has_unacknowledged());
    }

    #[test]
    fn a_call_is_brought_only_where_it_is_kept() {
        let now = Instant::now();
        let (mut here, mut there) = (to(1), to(2));
        let (call, other) = (release(now), release(now));
        assert!(!here.submit(&call, now));
        assert!(!there.submit(&other, now));
        there.rests_until = Some(now + REST);
        there.connected(now);
        assert_eq!(call.state.lock().seq, other.state.lock().seq);
        let now = now + REST;
        assert!(!there.bring(&call, now), "it is not there");
        assert!(there.has_unacknowledged() && here.has_unacknowledged());
        assert_eq!(here.take_strays(|_| false).len(), 1);
        assert!(there.bring(&other, now) && there.submit(&call, now));
        assert!(!there.has_unacknowledged() && !here.has_unacknowledged());
        for call in [&call, &other] {
            assert_eq!((call.state.lock().sendings, call.node()), (1, 2));
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

    /// What the server got.
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

    /// What was heard of releases, by number: run, or given up.
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
            let mut pipeline = Pipeline::default();
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
                let mut pipeline = Pipeline::default();
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
                let lost = pipeline.lost(&RedisError::from(std::io::Error::other("away")));
                let awaiting = lost.expect("a connection").calls.len();
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

    /// How often each of what goes wrong still may, and the clock moves on.
    #[derive(Clone, Copy, PartialEq, Eq, Hash)]
    struct Left {
        partial: u8,
        forgets: u8,
        refusals: u8,
        losses: u8,
        ticks: u8,
        moves: u8,
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
        /// It goes elsewhere and comes back.
        Move(usize),
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
                Step::Move(id),
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
                pipeline: Pipeline::default(),
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
            let mut kept = self.pipeline.unacknowledged.calls();
            kept.any(|call| Arc::ptr_eq(call, &self.calls[id]))
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
                let mut kept = self.pipeline.unacknowledged.calls();
                let about = kept.find(|call| KEYS[self.id(call)] == KEYS[id]);
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
            assert_eq!(lost.calls.len(), waited.len());
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
                let (from, mut to) = (from.state.lock(), to.state.lock());
                to.phase = from.phase.clone();
                to.sent_at = from.sent_at;
                to.by_text = from.by_text;
                to.sendings = from.sendings;
                to.seq = from.seq;
                to.in_portion = from.in_portion;
            }
            let of = |call: &Arc<Call>| Arc::clone(&calls[self.id(call)]);
            let in_flight = self.pipeline.in_flight.as_ref();
            let pipeline = Pipeline {
                to: self.pipeline.to,
                in_flight: in_flight.map(|in_flight| InFlight {
                    unwritten: in_flight.unwritten.clone(),
                    awaiting: in_flight.awaiting.iter().map(of).collect(),
                    introduced: in_flight.introduced.clone(),
                    leaving: in_flight.leaving.clone(),
                    ..*in_flight
                }),
                unacknowledged: self.pipeline.unacknowledged.copy(of),
                rests_until: self.pipeline.rests_until,
                owed: self.pipeline.owed.as_ref().map(of),
                refused: self.pipeline.refused.clone(),
            };
            Self {
                pipeline,
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
                (
                    ms(its.sent_at),
                    its.by_text,
                    its.sendings,
                    its.seq,
                    its.in_portion,
                )
                    .hash(h);
            }
            let kept = self.pipeline.unacknowledged.calls();
            kept.map(|call| self.id(call)).collect::<Vec<_>>().hash(h);
            self.pipeline.rests_until.map(ms).hash(h);
            if let Some(in_flight) = &self.pipeline.in_flight {
                let awaiting = in_flight.awaiting.iter();
                awaiting
                    .map(|call| self.id(call))
                    .collect::<Vec<_>>()
                    .hash(h);
                let unwritten = &in_flight.unwritten;
                (&unwritten.bytes, unwritten.is_full(), unwritten.is_torn()).hash(h);
                (in_flight.portion, in_flight.leaving.is_some()).hash(h);
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
                Step::Feed => connected && self.pipeline.has_unacknowledged(),
                Step::Bring(id) => connected && self.submitted[id] && self.settled[id] == 0,
                Step::Move(id) => left.moves > 0 && self.is_kept(id),
                Step::Tick(_) => left.ticks > 0,
                Step::End => self.pipeline.has_unacknowledged(),
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
                    let brought = self.pipeline.bring(&self.calls[id], now);
                    assert_eq!(brought, was_kept && connected && !rests);
                    brought
                }
                Step::Move(id) => {
                    self.can(step) && spend(&mut self.left.moves) && {
                        let call = Arc::clone(&self.calls[id]);
                        let stays = |its: &Arc<Call>| !Arc::ptr_eq(its, &call);
                        let moved = self.pipeline.take_strays(stays);
                        assert!(moved.len() == 1 && Arc::ptr_eq(&moved[0], &call));
                        assert!(!self.pipeline.bring(&call, now), "it is elsewhere");
                        self.submitted[id] = false;
                        self.submit(id)
                    }
                }
                Step::Tick(ms) => {
                    spend(&mut self.left.ticks) && {
                        self.now_ms += ms;
                        true
                    }
                }
                Step::End => {
                    let why = RedisError::from(std::io::Error::other("ended"));
                    let ended = self.pipeline.take_ended(now, usize::MAX, &why);
                    for call in &ended {
                        let info = call.deferred.as_ref().expect("a release");
                        assert!(now >= info.useful_until, "dropped before its time");
                        self.settled[self.id(call)] += 1;
                    }
                    !ended.is_empty()
                }
            }
        }

        fn check(&self) {
            let kept: Vec<_> = self.pipeline.unacknowledged.calls().collect();
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
                    CallPhase::Idle => waits == 0 && settled == 0,
                    CallPhase::Awaiting => waits == 1,
                    CallPhase::Done(_) | CallPhase::Broken(_) => settled == 1,
                };
                assert!(fits, "{id} is {phase:?}");
            }
            let of_portion = awaiting()
                .filter(|call| call.state.lock().in_portion)
                .count();
            assert_eq!(of_portion, in_flight.map_or(0, |its| its.portion));
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
        let with = |moves, commands: &[usize], limits: [u8; 5]| {
            let [partial, forgets, refusals, losses, ticks] = limits;
            let left = Left {
                partial,
                forgets,
                refusals,
                losses,
                ticks,
                moves,
            };
            explore(World::new(left), &steps(commands), 16)
        };
        let of = |commands: &[usize], limits| with(0, commands, limits);
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
            + with(2, &[1, 2], [0, 0, 1, 1, 1]);
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
                moves: 5,
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
