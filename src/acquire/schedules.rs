//! Threads of one process around the local lock, in every order that their mutexes allow. Searched exhaustively, see
//! [`search`](crate::search).
//!
//! The [`LocalLock`] is the library's. The steps around it are restated: those of `enter`, of the queue's threads, of
//! [`WaitingThread`](crate::local::waiter::WaitingThread), and of a release. A step is everything that a thread does while
//! it holds one mutex.

use std::hash::{Hash, Hasher};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use crate::local::lock::{
    Entered, Holding, LeasePolicy, LeaveOutcome, LocalLock, Mode, Order, Validity, Wakeups,
};
use crate::search::{self, Model};

const RENEWED: LeasePolicy = LeasePolicy::Renewed { max_hold: None };

/// No time passes.
static NOW: LazyLock<Instant> = LazyLock::new(Instant::now);

const HELD: Held = Held;

#[derive(Debug, Clone, Copy, PartialEq)]
struct Held;

impl Holding for Held {
    fn validity(&self) -> Validity {
        let lease = Duration::from_secs(30);
        Validity {
            until: *NOW + lease,
            lease,
            may_change_threads: true,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Wakeup {
    Granted,
    Contend,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
enum At {
    #[default]
    Start,
    Queued,
    /// The thread has found no wakeup, and still holds the mutex of its waiter.
    Checked,
    Parked,
    /// The thread's time is up, or the thread is cancelled.
    Withdraws,
    /// The thread has left the queue, and checks whether it was woken just before.
    Looks,
    Contends,
    Asks,
    Holds,
    /// The thread has left the local lock, and the release is not queued yet.
    Releases,
    Gone,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Thread {
    at: At,
    ticket: u64,
    wakeup: Option<Wakeup>,
    /// The thread whose wakeup it still has to store, and the thread that it still has to wake.
    stores: Option<(usize, Wakeup)>,
    wakes: Option<usize>,
}

#[derive(Debug, Clone)]
struct State {
    lock: LocalLock<usize, Held, ()>,
    threads: [Thread; 3],
    cancelled: bool,
    canceller_wakes: bool,
    /// By the server's knowledge, this process holds the lock.
    server_holds: bool,
}

impl Hash for State {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // The rest of the lock's state follows from the states of the threads.
        for thread in self.lock.waiters() {
            thread.hash(state);
        }
        self.lock.holds().count().hash(state);
        (self.threads, self.cancelled, self.canceller_wakes).hash(state);
        self.server_holds.hash(state);
    }
}

/// The library as it is, or with a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Variant {
    AsItIs,
    /// A wakeup is stored once the mutex of the local lock is released.
    StoredLate,
    /// A thread is woken without its mutex.
    WokenWithoutMutex,
    /// The next thread is woken before the release is queued.
    WokenBeforeRelease,
    /// A thread whose time is up does not check whether it was woken just before.
    LeavesUnseen,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Go(usize),
    TimeUp(usize),
    Store(usize),
    Wake(usize),
    Cancel,
    CancellerWakes,
}

const ORDER: &str = "a release is queued before the next acquire";
const COMES_HOME: &str = "every thread comes to hold the lock, or gives up";

struct Process {
    variant: Variant,
    tenure: Duration,
}

impl Process {
    fn is(&self, variant: Variant) -> bool {
        self.variant == variant
    }

    /// Stores the wakeup of the thread that is next, and remembers to wake it.
    fn notify(&self, state: &mut State, by: usize, next: &Wakeups<usize, Held>) {
        if let Some(next) = next.contend {
            self.store(state, by, next, Wakeup::Contend);
        }
    }

    fn store(&self, state: &mut State, by: usize, waiter: usize, wakeup: Wakeup) {
        if self.is(Variant::StoredLate) {
            state.threads[by].stores = Some((waiter, wakeup));
        } else {
            state.threads[waiter].wakeup = Some(wakeup);
            state.threads[by].wakes = Some(waiter);
        }
    }

    /// The next step of a thread that need not wait.
    fn goes(&self, state: &mut State, t: usize) {
        let (now, cancelled) = (*NOW, state.cancelled && t == 1);
        let thread = &mut state.threads[t];
        match thread.at {
            At::Start => {
                let entered = state.lock.enter(
                    t as u64,
                    Mode::Exclusive,
                    RENEWED,
                    now,
                    Some(&move || t),
                    false,
                );
                thread.at = match entered {
                    Entered::Contend { .. } => At::Contends,
                    Entered::Queued(ticket) => {
                        thread.ticket = ticket;
                        At::Queued
                    }
                    other => panic!("{other:?}"),
                };
            }
            At::Queued => {
                thread.at = self.woken(thread).unwrap_or(if cancelled {
                    At::Withdraws
                } else {
                    At::Checked
                })
            }
            At::Checked => thread.at = At::Parked,
            At::Withdraws => {
                thread.at = At::Looks;
                let ticket = thread.ticket;
                if let Some(next) = state.lock.withdraw(ticket, now) {
                    self.notify(state, t, &next);
                }
            }
            At::Looks => {
                let woken = self.woken(thread);
                let unseen = self.is(Variant::LeavesUnseen);
                thread.at = woken.filter(|_| !unseen).unwrap_or(At::Gone);
            }
            At::Contends => thread.at = At::Asks,
            At::Asks => {
                thread.at = At::Holds;
                state.server_holds = true;
                let next = state
                    .lock
                    .granted(t as u64, Mode::Exclusive, HELD, RENEWED, false, now);
                self.notify(state, t, &next);
            }
            At::Holds => match state.lock.leave(t as u64, &HELD, now, &|| ()) {
                LeaveOutcome::Passed { waiter, .. } => {
                    state.threads[t].at = At::Gone;
                    self.store(state, t, waiter, Wakeup::Granted);
                }
                LeaveOutcome::Release { next } => {
                    let late = self.is(Variant::WokenBeforeRelease);
                    state.threads[t].at = if late { At::Releases } else { At::Gone };
                    state.server_holds = late;
                    self.notify(state, t, &next);
                }
                other => panic!("{other:?}"),
            },
            At::Releases => {
                thread.at = At::Gone;
                state.server_holds = false;
            }
            At::Parked | At::Gone => {}
        }
    }

    /// Takes the wakeup of a thread; returns its next position.
    fn woken(&self, thread: &mut Thread) -> Option<At> {
        thread.wakeup.take().map(|wakeup| match wakeup {
            Wakeup::Granted => At::Holds,
            Wakeup::Contend => At::Contends,
        })
    }

    /// Whether a thread can be woken now. Between its check and its park it cannot, since it holds its mutex then.
    fn can_wake(&self, state: &State, t: usize) -> bool {
        state.threads[t].at != At::Checked || self.is(Variant::WokenWithoutMutex)
    }

    fn wake(state: &mut State, t: usize) {
        let thread = &mut state.threads[t];
        if thread.at == At::Parked {
            thread.at = At::Queued;
        }
    }
}

impl Model for Process {
    type State = State;
    type Step = Step;

    fn start(&self) -> State {
        State {
            lock: LocalLock::new(Order::Local, self.tenure),
            threads: [Thread::default(); 3],
            cancelled: false,
            canceller_wakes: false,
            server_holds: false,
        }
    }

    fn next(&self, state: &State, successors: &mut Vec<(Step, State)>) {
        let mut take = |step: Step, change: &dyn Fn(&mut State)| {
            let mut after = state.clone();
            change(&mut after);
            successors.push((step, after));
        };
        for (t, thread) in state.threads.iter().enumerate() {
            if let Some((waiter, wakeup)) = thread.stores {
                take(Step::Store(t), &|state| {
                    state.threads[t].stores = None;
                    state.threads[waiter].wakeup = Some(wakeup);
                    state.threads[t].wakes = Some(waiter);
                });
                continue;
            }
            if let Some(waiter) = thread.wakes {
                if self.can_wake(state, waiter) {
                    take(Step::Wake(t), &|state| {
                        state.threads[t].wakes = None;
                        Self::wake(state, waiter);
                    });
                }
                continue;
            }
            if !matches!(thread.at, At::Parked | At::Gone) {
                take(Step::Go(t), &|state| self.goes(state, t));
            }
            // The last thread has a time limit.
            if t == 2 && thread.wakeup.is_none() && matches!(thread.at, At::Queued | At::Parked) {
                take(Step::TimeUp(t), &|state| {
                    state.threads[t].at = At::Withdraws
                });
            }
        }
        if !state.cancelled {
            take(Step::Cancel, &|state| {
                (state.cancelled, state.canceller_wakes) = (true, true);
            });
        }
        if state.canceller_wakes && self.can_wake(state, 1) {
            take(Step::CancellerWakes, &|state| {
                state.canceller_wakes = false;
                Self::wake(state, 1);
            });
        }
    }

    fn broken(&self, before: &State, step: Step, after: &State) -> Option<&'static str> {
        let asks = |state: &State, t: usize| state.threads[t].at == At::Asks;
        match step {
            Step::Go(t) if asks(after, t) && before.server_holds => Some(ORDER),
            _ => None,
        }
    }

    fn goals(&self) -> Vec<&'static str> {
        vec![COMES_HOME]
    }

    fn lacks(&self, _: usize, state: &State) -> bool {
        let over = |thread: &Thread| matches!(thread.at, At::Holds | At::Gone | At::Start);
        !state.threads.iter().all(over)
    }

    fn is_due(&self, _: usize, step: Step) -> bool {
        // A thread must finish without relying on others that come, give up, or are cancelled.
        !matches!(step, Step::TimeUp(_) | Step::Cancel)
    }

    fn words(&self, before: &State, step: Step, after: &State) -> String {
        match step {
            Step::Go(t) => {
                let (from, to) = (before.threads[t].at, after.threads[t].at);
                format!("thread {t}: {from:?}, then {to:?}")
            }
            Step::TimeUp(t) => format!("thread {t}: its time is up"),
            Step::Store(t) => format!("thread {t} stores a wakeup"),
            Step::Wake(t) => format!("thread {t} wakes the next one"),
            Step::Cancel => "thread 1 is cancelled".to_owned(),
            Step::CancellerWakes => "and woken, to see that".to_owned(),
        }
    }
}

const TENURES: [Duration; 2] = [Duration::ZERO, Duration::from_secs(1)];

#[test]
fn nobody_sleeps_for_ever_and_releases_come_first_in_every_schedule() {
    let variant = Variant::AsItIs;
    let size = |tenure| search::keeps(&format!("{tenure:?}"), &Process { variant, tenure });
    let states: usize = TENURES.map(size).iter().map(|size| size.states).sum();
    assert!(states > 1_000, "{states}");
}

#[test]
fn every_planted_fault_is_found_in_a_schedule() {
    for (variant, tenure, rule) in [
        (Variant::StoredLate, TENURES[1], COMES_HOME),
        (Variant::WokenWithoutMutex, TENURES[1], COMES_HOME),
        (Variant::WokenBeforeRelease, TENURES[0], ORDER),
        (Variant::LeavesUnseen, TENURES[1], COMES_HOME),
    ] {
        search::breaks(&format!("{variant:?}"), &Process { variant, tenure }, rule);
    }
}
