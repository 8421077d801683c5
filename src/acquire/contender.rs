//! A contender: a thread that asks Redis for a lock, on behalf of the local lock of its name.
//!
//! How a contender waits depends on the kind of lock. As a rule one server, or each of several, announces a release to all
//! waiters. Where Redis keeps the queue, the release is announced only to the first place; for a spin lock it is not
//! announced. Accepting the lock and giving up are the same for all kinds.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::acquire::contest::Contest;
use crate::acquire::guard::{GuardInner, HoldOrigin};
use crate::acquire::listening::Listening;
use crate::acquire::spec::{HoldParams, LockSpec};
use crate::acquire::spinning::Spin;
use crate::acquire::turn::Turn;
use crate::acquire::wait_mode::WaitMode;
use crate::acquire::{self, Busy, NoReply, Outcome, Reply, Strategy, quorum, yielding};
use crate::error::LossReason;
use crate::error::{Error, Result};
use crate::hold::entry::{EntryState, wake};
use crate::hold::places::Places;
use crate::hold::{Entry, Hold, UNDO_FOR};
use crate::local::lock::{Mode, Order};
use crate::net::call::{Attempt, Call, Undo};
use crate::net::nodes::calls;
use crate::protocol::adopt::{self, ADOPTING};
use crate::protocol::kind::{ACQUIRING, AcquireArgs, Note, Place};
use crate::protocol::owner::OwnerNumber;
use crate::protocol::script::{self, AcquireReply};
use crate::quorum::ask::QuorumRequest;
use crate::session::{Contending, Session};
use crate::time;

/// How many tokens to request when other threads of this process wait, so that each hand-over has one.
///
/// That is about the number of hand-overs in a tenure of 5 ms. A draw soon after the last one gets fewer tokens, but at
/// least one (`lua/prelude/tokens.lua`).
const TOKENS: u64 = 1024;

/// A thread in the queue of a fair lock asks for the last time this long before its time is up. If a quarter of its time is
/// shorter, the quarter counts.
///
/// If a thread that is not first stayed until its time is up, it might become first with too little time left for a
/// message and a request. If the threads behind it are in the same position, the lock could stay free although threads
/// wait. So if its last request finds the lock free and another waiter first, the thread gives up its place at once. (If
/// the lock is held, the thread stays in the queue until its time is up.)
const LAST: Duration = Duration::from_millis(50);

/// A thread that asks Redis for a lock.
///
/// 1. `_contending` counts a contender from before its first request until its hold is accepted or its last request
///    undone. Closing the client waits until none is counted, so no hold is left behind unnoticed.
/// 2. However a contender ends, its place or note ends too, and the next thread of the process may ask. After a grant the
///    script has removed the place or note, and `accept` lets the next thread ask. In any other case `Drop` does both.
/// 3. A request of unknown outcome is undone, and its number is not used again. A contender with a
///    [place](crate::hold::places) is the exception: its request has the number of the place and may be sent again,
///    because Redis ignores the request once the place is gone from the queue.
pub(crate) struct Contender<'a> {
    lock: &'a LockSpec,
    entry: Arc<Entry>,
    params: HoldParams,
    wait: WaitMode,
    /// The thread's exclusive hold, if it takes a shared one as well.
    under: Option<Arc<Hold>>,
    /// The number of the contender's place in the queue that Redis keeps, if it has one: see
    /// [`places`](crate::hold::places).
    place: Option<OwnerNumber>,
    /// The notes by which readers and writers take turns.
    turn: Option<Turn>,
    /// The pauses between questions, for a kind that announces nothing.
    spin: Option<Spin>,
    /// For a quorum: what is known of the other contenders.
    contest: Contest,
    /// The release after which other processes go first, unless it is known to have notified none.
    yields_after: Option<Arc<Call>>,
    /// The first request, if it was queued ahead.
    ahead: Option<(calls::Ahead, AskedHold)>,
    listening: Listening,
    is_granted: bool,
    /// From this moment on, a question is the *last question* before the time is up.
    last_question_at: Option<Instant>,
    /// The latest pause was cut short for the last question.
    parks_until_last: bool,
    _contending: Contending<'a>,
}

/// The hold that a request asks for, and whether the request has or wants a place in the queue.
struct AskedHold {
    hold: Arc<Hold>,
    place: Place,
}

impl Drop for Contender<'_> {
    fn drop(&mut self) {
        if let Some((ahead, _)) = self.ahead.take() {
            // The reply will not be read, so the request is undone: rule 3.
            self.session().connection.abandon(&ahead);
        }
        // Before others are woken, so that they are not behind a place or a note that is given up.
        self.give_up_place();
        if self.is_granted {
            return;
        }
        let mut state = self.entry.lock();
        // From here on, the watchdog's signs of life leave this place out.
        state.forget_place(self.listening.known_waiter());
        let next = state
            .lock
            .withdraw_contender(self.lock.mode, Instant::now());
        state.store_wakeups(&next);
        drop(state);
        wake(next);
    }
}

impl<'a> Contender<'a> {
    /// If the thread has waited in the queue of the process, `listening` has the waiter that it used there.
    pub(crate) fn new(
        lock: &'a LockSpec,
        entry: Arc<Entry>,
        params: HoldParams,
        wait: WaitMode,
        listening: Listening,
        under: Option<Arc<Hold>>,
        yields_after: Option<Arc<Call>>,
    ) -> Self {
        let readers_first = lock.readers_first && lock.mode == Mode::Shared;
        let turn = || Turn::new(wait, readers_first, Instant::now());
        Self {
            place: None,
            turn: lock.key.kind.has_notes.then(turn),
            spin: (!lock.key.kind.is_notified && lock.quorum.is_none())
                .then(|| Spin::new(lock.back_off.clone())),
            contest: Contest::default(),
            lock,
            entry,
            params,
            wait,
            under,
            yields_after,
            ahead: None,
            listening,
            is_granted: false,
            last_question_at: wait.deadline().instant().map(last_question_at),
            parks_until_last: false,
            _contending: lock.session().contending(),
        }
    }

    fn session(&self) -> &'a Arc<Session> {
        self.lock.session()
    }

    /// The place in the queue that the next request has or wants, if Redis keeps a queue.
    fn place_to_send(&self) -> Place {
        let is_last = || self.last_question_at.is_some_and(|at| Instant::now() >= at);
        match self.place {
            Some(_) if is_last() => Place::Last,
            Some(_) => Place::Has,
            // Once a question is the last, a new place would be given up at once.
            None if self.lock.key.kind.order == Order::Server
                && self.wait.asks_again()
                && !is_last() =>
            {
                Place::New
            }
            None => Place::None,
        }
    }

    /// A request with [`Place::New`], sent at `sent_at`, did not get the lock, so the contender has the place with this
    /// number.
    fn keep_place(&mut self, number: OwnerNumber, sent_at: Instant) {
        self.place = Some(number);
        // Each place has its own channel, to which the next park subscribes.
        self.listening.end();
        let is_first = self.entry.lock().add_place(self.listening.waiter(), number);
        // The flag behind `is_first` changes with the entry's mutex held, so exactly one of the contenders arms the
        // watchdog.
        if is_first {
            let session = self.session();
            let schedule_number = session.owners.draw();
            let places = Places::of(&self.entry, schedule_number, session.waiter_lease);
            session.watchdog.arm(&places, places.due_after(sent_at));
        }
    }

    /// Gives up the place or the note. Giving up a place also releases a hold that a request without an answer may have
    /// acquired.
    fn give_up_place(&mut self) {
        let (session, now) = (self.session(), Instant::now());
        // A note ends by itself after a `waiter_lease`, so its undo is not needed for longer.
        let noted = || {
            let number = self.turn.as_ref()?.noted(now)?;
            Some((number, session.waiter_lease))
        };
        let known_by = self.place.map(|place| (place, UNDO_FOR)).or_else(noted);
        if let Some((number, useful_for)) = known_by {
            let owner = session.owners.id(number);
            let mode = self.lock.mode;
            let undo = self.entry.release(mode, &owner, now + useful_for, true);
            session.connection.send_deferred(undo);
        }
    }

    /// Asks until the contender has the lock or its time is up.
    pub(crate) fn run(&mut self) -> Result<Outcome<GuardInner>> {
        let (lock, wait) = (self.lock, self.wait);
        acquire::acquire(self, lock, wait)
    }

    /// Takes over the hold of the owner `from` for this thread.
    ///
    /// If the hold was lost, the error is that loss, even if too few replicas have confirmed the request.
    pub(super) fn adopt(&mut self, from: &str, until: Instant) -> Result<GuardInner> {
        let (session, lock, params) = (self.session(), self.lock, self.params);
        let (entry, number) = (Arc::clone(&self.entry), session.owners.draw());
        let hold = Arc::new(Hold::new(
            entry,
            lock.mode,
            number,
            params.lease,
            params.ttl,
        ));
        let request = adopt::adopt(
            &self.entry.protocol,
            from,
            &AcquireArgs {
                token_ttl: lock.token_ttl,
                ..AcquireArgs::plain(&session.owners.id(number), params.ttl)
            },
        );
        let answer = lock.ask_to_adopt(request, until, || session.give_back(&hold))?;
        let (replicated, sent_at) = (session.is_replicated(&answer), answer.sent_at);
        let has_tokens = self.entry.protocol.kind().has_tokens;
        let adopted = script::adopted(answer.value, has_tokens).map_err(|unexpected| {
            session.give_back(&hold);
            session.error(ADOPTING, &lock.name, unexpected)
        })?;
        let tokens = adopted.map_err(|reason| hold.lost_error(reason))?;
        replicated.inspect_err(|_| session.give_back(&hold))?;
        hold.grant(sent_at);
        if let Some((first, last)) = tokens {
            hold.set_tokens(first, last);
        }
        self.accept(hold)
    }

    /// Queues the first request, if there is a connection; [`run`](Self::run) waits for the reply.
    pub(crate) fn ask_ahead(&mut self) {
        // This is checked while the contender is counted in `_contending` (rule 1): either closing waits for it, or the
        // check fails and nothing is sent.
        if self.lock.quorum.is_some() || self.lock.must_stop() {
            return;
        }
        let mut asked = None;
        let attempt = self.question(&mut asked);
        let ahead = self.session().connection.submit_ahead(attempt);
        self.ahead = ahead.zip(asked);
    }

    /// Writes the request that was queued ahead, with all others for its server.
    pub(crate) fn send_ahead(&self) {
        if let Some((ahead, _)) = &self.ahead {
            self.session().connection.flush_ahead(ahead);
        }
    }

    /// See [`yielding`].
    pub(crate) fn yield_to_others(&mut self, asks_by: Instant) -> Result<bool> {
        let (lock, wait) = (self.lock, self.wait);
        yielding::yield_to_others(self, lock, wait, asks_by, &mut None)
    }

    /// How many tokens to request: one, or enough for hand-overs if other threads wait.
    fn tokens(&self) -> u64 {
        let others = self.entry.protocol.kind().has_tokens
            && !self.lock.is_election
            && self.entry.lock().lock.waiters().next().is_some();
        if others { TOKENS } else { 1 }
    }

    /// Makes a request, the first or a repeated one, and stores what it asks for.
    fn question(&mut self, asked: &mut Option<AskedHold>) -> Attempt {
        let (session, params, mode) = (self.session(), self.params, self.lock.mode);
        let tokens = self.tokens();
        let draw = || session.owners.draw();
        // A new number for each request, with two exceptions. A contender with a place keeps the number of the place (rule
        // 3). A reader or writer keeps its number after a refusal (rules 2 and 3 of `turn`).
        let number = match (self.place, &mut self.turn) {
            (Some(place), _) => place,
            (None, Some(turn)) => turn.take_number(draw),
            (None, None) => draw(),
        };
        let owner = session.owners.id(number);
        let under = self.under.as_ref().map(|hold| hold.owner());
        let turn = self.turn.as_ref();
        let note = turn.map_or(Note::NONE, |turn| {
            turn.note(session.waiter_lease, Instant::now())
        });
        let place = self.place_to_send();
        let mut request = self.entry.protocol.acquire(&AcquireArgs {
            mode,
            under: under.as_deref(),
            note,
            place,
            tokens,
            token_ttl: self.lock.token_ttl,
            ..AcquireArgs::plain(&owner, params.ttl)
        });
        let entry = Arc::clone(&self.entry);
        let hold = Arc::new(Hold::new(entry, mode, number, params.lease, params.ttl));
        session.replicate(&mut request, self.lock.command_timeout);
        // A contender with a place sends its request again with the same number. An undo would remove the place, so it
        // is sent only when the contender gives up.
        let is_undone = self.place.is_none();
        let undo = is_undone.then(|| Arc::clone(&hold) as Arc<dyn Undo>);
        *asked = Some(AskedHold { hold, place });
        Attempt { request, undo }
    }

    /// Asks the one server that keeps the lock.
    fn ask_server(&mut self, until: Instant) -> std::result::Result<Reply<Arc<Hold>>, NoReply> {
        let (lock, session) = (self.lock, self.session());
        let (ahead, mut asked) = self.ahead.take().unzip();
        let mut attempt = || self.question(&mut asked);
        let stop = || lock.must_stop();
        let answer = session.connection.call(until, &stop, ahead, &mut attempt)?;
        if self.place.is_some() && answer.value == script::PLACE_LOST {
            // The place has expired, after an outage for example, or this was the last question and has given it up. If
            // the last question is not due yet, the contender joins the end of the queue with a new number. That is one
            // more request at most, since a new number has no place to lose.
            let asks_again = self.place_to_send() == Place::Has;
            self.place = None;
            // Forgotten, so that the watchdog does not find the place gone and wake this thread to ask for another.
            let waiter = self.listening.known_waiter();
            self.entry.lock().forget_place(waiter);
            return match asks_again {
                true => self.ask_server(until),
                false => Ok(Reply::Busy(Busy::default())),
            };
        }
        let replicated = session.is_replicated(&answer);
        let sent_at = answer.sent_at;
        let has_tokens = self.entry.protocol.kind().has_tokens;
        let acquired = match self.turn {
            Some(_) => script::acquired_in_turn(answer.value),
            None => script::acquired(answer.value, has_tokens),
        };
        // An odd reply may be a grant, so the hold is given back.
        let acquired = acquired.map_err(|unexpected| {
            if let Some(AskedHold { hold, .. }) = &asked {
                session.give_back(hold);
            }
            session.error(ACQUIRING, &self.lock.name, unexpected)
        })?;
        match (acquired, asked) {
            (AcquireReply::Taken { tokens, ttl_left }, Some(AskedHold { hold, .. })) => {
                self.place = None;
                // Granted, but too few replicas have it: a failover could grant the lock again.
                replicated.inspect_err(|_| session.give_back(&hold))?;
                hold.grant(sent_at);
                if let Some((first, last)) = tokens {
                    hold.set_tokens(first, last);
                }
                if ttl_left.is_some() {
                    // Before this grant the read lock's key had only `ttl_left` to live. Another client may set so short a
                    // TTL again, so the hold is renewed as often as that requires.
                    hold.change(|lease| lease.adapt_keep_lock(ttl_left));
                }
                Ok(Reply::Granted(hold))
            }
            (
                AcquireReply::Busy {
                    retry_after,
                    behind,
                },
                Some(AskedHold { hold, place }),
            ) => {
                if place == Place::New {
                    self.keep_place(hold.number, sent_at);
                }
                if let (Some(spin), Some(retry_after)) = (&mut self.spin, retry_after) {
                    spin.record_refusal(sent_at + retry_after);
                }
                if let (Some(turn), Some(behind)) = (&mut self.turn, behind) {
                    turn.set_behind(hold.number, behind);
                }
                Ok(Reply::Busy(Busy {
                    retry_after,
                    is_contested: false,
                }))
            }
            (_, None) => unreachable!("nothing was sent without an owner"),
        }
    }

    /// Whether all waiters listen to one channel, so that the reply to a release says how many were notified. With a queue
    /// in Redis each place has its own channel. For a quorum, `QuorumNodes::notified` counts the listeners instead.
    fn is_notified_with_others(&self) -> bool {
        let kind = self.lock.key.kind;
        kind.is_notified && kind.order == Order::Local && self.lock.quorum.is_none()
    }

    /// Makes a guard of a hold that Redis has granted, and records the hold in the local lock, unless it is useless by
    /// now.
    fn accept(&mut self, hold: Arc<Hold>) -> Result<GuardInner> {
        let (session, params, now) = (self.session(), self.params, Instant::now());
        if now >= hold.valid_until() {
            // The grant was so late that the lease is over, and somebody else may have the lock.
            return self.decline(&hold, self.lock.granted_too_late());
        }
        if let Err(closed) = session.arm(std::slice::from_ref(&hold)) {
            return self.decline(&hold, closed);
        }
        let has_listened = self.listening.leave();
        let mut state = self.entry.lock();
        let recorded = self.recorded_hold(&state);
        if recorded
            .as_ref()
            .is_some_and(|recorded| recorded.is_later_than(&hold))
        {
            // A later grant, to another thread, is recorded already, which proves that this hold is over.
            drop(state);
            return self.decline(&hold, self.lock.granted_too_late());
        }
        self.is_granted = true;
        state.forget_place(self.listening.known_waiter());
        // The subscription of this wait, or of an earlier one, may still be open when the new hold is released. Redis then
        // counts this process among the listeners, and it has to be subtracted (`Call::is_heard_by_us`). On the channel of a
        // place, which belongs to one waiter, nothing is counted.
        let are_counted = self.is_notified_with_others();
        let is_alone = are_counted && self.was_alone(&state);
        if are_counted && (has_listened || state.is_heard) {
            hold.record_subscription();
        }
        let (thread, mode, granted) = (params.thread, self.lock.mode, Arc::clone(&hold));
        // Granted and stored with the mutex held: queued readers that join get the same hold before anybody can release
        // it.
        let next = (state.lock).granted(thread, mode, granted, params.lease, is_alone, now);
        state.store_wakeups(&next);
        drop(state);
        wake(next);
        if let Some(recorded) = recorded {
            session.lose(
                &recorded,
                LossReason::TakenOver.or_expired(recorded.is_valid(now)),
            );
        }
        if !hold.is_held() {
            // The watchdog found the hold lost between `arm` and `granted`, when there was nothing to remove from the
            // local lock. The guard reports the loss.
            session.remove_lost(&hold);
        }
        session.counters.acquired.add(1);
        Ok(GuardInner::new(
            self.lock,
            hold,
            thread,
            HoldOrigin::Granted,
        ))
    }

    /// The hold that the local lock still has on record when Redis grants the lock to this thread; normally `None`. For a
    /// shared grant always `None`.
    ///
    /// Several threads of a process are contenders where Redis keeps the queue, or while one of them adopts a hold. So a grant
    /// may be the first sign that the recorded hold is over.
    fn recorded_hold(&self, state: &EntryState) -> Option<Arc<Hold>> {
        match self.lock.mode {
            Mode::Exclusive => state.lock.holds().next().cloned(),
            Mode::Shared => None,
        }
    }

    /// Whether the process's last release is known to have notified no other process. On the connection the reply to that
    /// release precedes this grant, so the number of listeners is known.
    fn was_alone(&self, state: &EntryState) -> bool {
        // For a read-write lock the number proves nothing: the release of a read hold while others read notifies nobody
        // and returns 0.
        self.turn.is_none()
            && state
                .lock
                .cohort
                .last_release()
                .is_some_and(|last| yielding::has_notified_nobody(self.session(), last))
    }

    /// Gives back a granted hold that is useless; returns `why` as the error.
    fn decline(&self, hold: &Arc<Hold>, why: Error) -> Result<GuardInner> {
        self.session().watchdog.end(hold);
        self.session().give_back(hold);
        Err(why)
    }
}

/// When a wait that ends at `deadline` asks its last question.
fn last_question_at(deadline: Instant) -> Instant {
    let time_left = deadline.saturating_duration_since(Instant::now());
    deadline - (time_left / 4).min(LAST)
}

impl Strategy for Contender<'_> {
    type Grant = GuardInner;

    const DOING: &'static str = ACQUIRING;

    fn entry(&self) -> &Arc<Entry> {
        &self.entry
    }

    fn yields_after(&mut self) -> Option<Arc<Call>> {
        self.yields_after.take()
    }

    fn alternates(&self) -> bool {
        self.turn.is_none()
    }

    fn has_asked_ahead(&self) -> bool {
        self.ahead.is_some()
    }

    fn is_last_question(&self) -> bool {
        self.parks_until_last
    }

    fn ask(&mut self, until: Instant) -> std::result::Result<Reply<GuardInner>, NoReply> {
        let answered = match &self.lock.quorum {
            Some(servers) => {
                let messages = self.listening.signals().messages;
                let is_busy = self.contest.begin_request(messages);
                let (lock, wait) = (self.lock, self.wait);
                let request = QuorumRequest {
                    lease: self.params.lease,
                    ttl: self.params.ttl,
                    up_for: lock.up_for,
                    asks_again_in: wait.asks_again().then(|| self.contest.longest_pause()),
                    is_busy,
                };
                quorum::ask(servers, lock, &self.entry, request, until)?
            }
            None => self.ask_server(until)?,
        };
        match answered {
            Reply::Granted(hold) => Ok(Reply::Granted(self.accept(hold)?)),
            Reply::HandedOver => Ok(Reply::HandedOver),
            Reply::Busy(busy) => {
                let messages = self.listening.signals().messages;
                self.contest.record_refusal(busy.is_contested, messages);
                self.entry.lock().lock.record_refusal();
                Ok(Reply::Busy(busy))
            }
        }
    }

    fn channel(&self) -> Option<Arc<str>> {
        let protocol = &self.entry.protocol;
        match self.place {
            Some(number) => Some(protocol.channel_of(&self.entry.owners().id(number))),
            None if self.is_notified_with_others() => Some(protocol.channel()),
            None => None,
        }
    }

    fn listening(&mut self) -> &mut Listening {
        &mut self.listening
    }

    fn park_for(&mut self, cap: Duration) -> Duration {
        let pause = match &mut self.spin {
            Some(spin) => spin.next_pause(),
            None => self.contest.next_pause(time::jittered(cap)),
        };
        let until_last = self
            .last_question_at
            .map(|at| at.saturating_duration_since(Instant::now()));
        let until_last =
            until_last.filter(|wait| !wait.is_zero() && self.place.is_some() && *wait < pause);
        self.parks_until_last = until_last.is_some();
        until_last.unwrap_or(pause)
    }
}
