//! The message of a release of this process, which is no news to a thread that asks after that release.
//!
//! A thread that takes over the subscription of the last holder of its process sends its request behind that holder's
//! release. The server executes them in this order, so the request sees what the release announces, and the message need
//! not wake the thread. But a message does not say whose it is, and comes over another connection than the replies.
//!
//! The first message after the release was queued is left out, if the release turns out to have been announced. Messages
//! come in the order in which they were published, so that one was published by the release or before it, and the request
//! has seen what it announces in either case. If it was published before, the release's own message counts as news, which
//! costs a round trip.
//!
//! Commands and messages have to come from one server, which is so but for the moments of a failover in which the subscriber
//! is still with the old master. A waiter that is misled then sleeps until it asks by itself.
//!
//! ```text
//!             the release was announced               a message: left out
//!   unknown ──────────────────────────────► awaited ──────────────────────► nothing
//!    │   │   it was not, or may yet be;                                       ▲
//!    │   └── the connection is lost ──────────────────────────────────────────┤
//!    │ a message                                                              │
//!    └──────────► kept back ── it was: left out; it was not: news ────────────┤
//!                     └─────── another message: news ─────────────────────────┘
//! ```

/// What is known of that message, for one thread.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) enum OwnMessage {
    /// Every message is news.
    #[default]
    Nothing,
    /// It may come.
    Unknown,
    /// A message has come that may be it.
    KeptBack,
    /// It will come.
    Awaited,
}

impl OwnMessage {
    /// Of a release that was queued when so many messages had come, if the subscription was confirmed; now there are
    /// `messages`.
    pub(super) fn of_release(queued_at: Option<u64>, messages: u64) -> Self {
        match queued_at {
            Some(at) if at == messages => Self::Unknown,
            _ => Self::Nothing,
        }
    }

    /// A message has come: whether the thread is notified.
    pub(super) fn message(&mut self) -> bool {
        let (next, is_news) = match self {
            Self::Nothing | Self::KeptBack => (Self::Nothing, true),
            Self::Unknown => (Self::KeptBack, false),
            Self::Awaited => (Self::Nothing, false),
        };
        *self = next;
        is_news
    }

    /// The thread is about to wait for messages. `was_announced`: its request was executed after the release, and that was
    /// announced. Whether the thread is notified of the message that was kept back.
    pub(super) fn settle(&mut self, was_announced: bool) -> bool {
        let (next, is_news) = match self {
            Self::KeptBack => (Self::Nothing, !was_announced),
            Self::Unknown if was_announced => (Self::Awaited, false),
            Self::Unknown => (Self::Nothing, false),
            Self::Nothing | Self::Awaited => return false,
        };
        *self = next;
        is_news
    }

    /// The connection for messages is lost, and with it what was still to come. Whoever subscribes again is notified.
    pub(super) fn lost(&mut self) {
        *self = Self::Nothing;
    }
}

/// A thread that asks after the release of another thread of its process, between two connections to a server and other
/// processes. Searched exhaustively, see [`search`](crate::search).
///
/// [`OwnMessage`] is the library's. Restated are the order of the commands, the subscription, and the loop of the thread.
#[cfg(test)]
mod model {
    use super::*;

    use std::collections::VecDeque;

    use crate::search::{self, Model};

    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    enum Owner {
        /// Whose release is on its way.
        Before,
        Thread,
        /// Another process.
        Other,
    }

    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    enum Command {
        Release,
        Ask,
        /// Undoes a request without a reply.
        Undo,
    }

    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    enum Reply {
        Announced,
        /// There was nothing to release.
        Gone,
        /// It has not been executed, and is sent again.
        Refused,
        Taken,
        Busy,
        Undone,
    }

    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    enum Message {
        Own,
        Others,
    }

    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    enum At {
        Start,
        /// It has taken the subscription over.
        Listens,
        Yields,
        Asks,
        /// It was refused.
        Refused,
        Parks,
        Holds,
    }

    #[derive(Debug, Clone, PartialEq, Eq, Hash)]
    struct State {
        // The server.
        owner: Option<Owner>,
        is_subscribed: bool,
        // The connection for commands: those without a reply, of which as many are executed as there are replies.
        sent: VecDeque<Command>,
        replies: VecDeque<Reply>,
        // The one for messages, and what the client counts.
        messages: VecDeque<Message>,
        is_confirmed: bool,
        /// None has come since the release was queued.
        none_yet: bool,
        // The release, as its process knows it.
        is_announced: bool,
        /// What is sent after it is executed after it.
        is_first: bool,
        // The thread.
        at: At,
        own: OwnMessage,
        /// What it has been notified of since it read its signals, and what it saw then.
        news: bool,
        saw_confirmed: bool,
        left: Left,
    }

    /// How often what else may happen.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    struct Left {
        /// Another process takes the lock.
        others: u8,
        /// Messages on the channel that announce nothing.
        noise: u8,
        /// The lease of the hold ends before its release is executed.
        expiries: u8,
        /// The server refuses the release, and takes it later.
        refusals: u8,
        /// The connection for commands is lost.
        losses: u8,
        /// The one for messages is.
        deaf: u8,
    }

    /// The library as it is, or with a fault.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Variant {
        AsItIs,
        /// A message that came before the thread listened does not count.
        CountsNoMessages,
        /// Every release counts as announced.
        AnnouncedInAnyCase,
        /// The same for one that was sent again, behind the request.
        OvertakenCounts,
        /// A message is left out at once, whatever becomes of the release.
        LeftOutAtOnce,
        /// Two messages are left out.
        LeavesTwoOut,
        /// What is known outlives the connection.
        OutlivesTheConnection,
        /// A message that was kept back is never news.
        KeptBackForGood,
        /// The thread parks without having asked what became of the release.
        NotSettled,
        /// No message is left out.
        LeavesNoneOut,
    }

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Step {
        Run,
        Refuse,
        Read,
        Message,
        TakeOver,
        Yield,
        Ask,
        Park,
        OtherTakes,
        OtherReleases,
        Noise,
        Expire,
        Lose,
        Cut,
        Notice,
        Confirm,
    }

    const REACHED: &str = "whoever waits comes to hold it without a poll";
    const QUIET: &str = "the message of its own process's release wakes nobody";

    struct World {
        variant: Variant,
        left: Left,
        /// Messages of other processes are on their way when the release is queued.
        stale: usize,
    }

    impl World {
        fn is(&self, variant: Variant) -> bool {
            self.variant == variant
        }

        fn publish(state: &mut State, message: Message) {
            if state.is_subscribed {
                state.messages.push_back(message);
            }
        }

        /// The server executes a command. Others listen too, so a release is always announced to somebody.
        fn run(state: &mut State, command: Command) -> Reply {
            let releases = |owner| match command {
                Command::Release => owner == Some(Owner::Before),
                Command::Undo => owner == Some(Owner::Thread),
                Command::Ask => false,
            };
            match command {
                _ if releases(state.owner) => {
                    state.owner = None;
                    Self::publish(state, Message::Own);
                    match command {
                        Command::Release => Reply::Announced,
                        _ => Reply::Undone,
                    }
                }
                Command::Release => Reply::Gone,
                Command::Undo => Reply::Undone,
                Command::Ask if state.owner.is_none() => {
                    state.owner = Some(Owner::Thread);
                    Reply::Taken
                }
                Command::Ask => Reply::Busy,
            }
        }

        fn read(&self, state: &mut State) {
            let (Some(reply), Some(command)) = (state.replies.pop_front(), state.sent.pop_front())
            else {
                return;
            };
            match reply {
                Reply::Announced => state.is_announced = true,
                Reply::Refused => {
                    state.sent.push_back(command);
                    state.is_first &= self.is(Variant::OvertakenCounts);
                }
                Reply::Taken => state.at = At::Holds,
                Reply::Busy => state.at = At::Refused,
                Reply::Gone | Reply::Undone => {}
            }
        }

        fn ask(state: &mut State) {
            // Read before the request is sent.
            (state.news, state.saw_confirmed) = (false, state.is_confirmed);
            state.at = At::Asks;
            state.sent.push_back(Command::Ask);
        }

        fn settle(&self, state: &mut State) {
            let was_announced = match self.variant {
                Variant::NotSettled => return,
                Variant::LeavesNoneOut => false,
                Variant::AnnouncedInAnyCase => true,
                _ => state.is_announced && state.is_first,
            };
            let is_news = state.own.settle(was_announced);
            state.news |= is_news && !self.is(Variant::KeptBackForGood);
        }

        fn message(&self, state: &mut State) {
            state.messages.pop_front();
            state.none_yet = false;
            let was = state.own;
            let is_news = state.own.message();
            match (self.variant, was) {
                (Variant::LeftOutAtOnce, OwnMessage::Unknown) => state.own = OwnMessage::Nothing,
                (Variant::LeavesTwoOut, OwnMessage::Awaited) => state.own = OwnMessage::Unknown,
                _ => {}
            }
            state.news |= is_news && state.at != At::Start;
        }

        /// The connection for commands is lost. The release is sent again before anything else.
        fn lose(state: &mut State) {
            state.replies.clear();
            let sent = std::mem::take(&mut state.sent);
            let again = |command: &Command| *command != Command::Ask;
            state.sent.extend(sent.iter().copied().filter(again));
            if state.at == At::Asks {
                state.sent.push_back(Command::Undo);
                state.sent.push_back(Command::Ask);
            }
        }

        /// It is woken, if it parks.
        fn has_news(state: &State) -> bool {
            state.news || state.saw_confirmed != state.is_confirmed
        }
    }

    impl Model for World {
        type State = State;
        type Step = Step;

        fn start(&self) -> State {
            State {
                owner: Some(Owner::Before),
                is_subscribed: true,
                sent: [Command::Release].into(),
                replies: VecDeque::new(),
                messages: vec![Message::Others; self.stale].into(),
                is_confirmed: true,
                none_yet: true,
                is_announced: false,
                is_first: true,
                at: At::Start,
                own: OwnMessage::Nothing,
                news: false,
                saw_confirmed: true,
                left: self.left,
            }
        }

        fn next(&self, state: &State, to: &mut Vec<(Step, State)>) {
            let mut take = |step: Step, change: &dyn Fn(&mut State)| {
                let mut after = state.clone();
                change(&mut after);
                to.push((step, after));
            };
            let left = state.left;
            if let Some(command) = state.sent.get(state.replies.len()).copied() {
                take(Step::Run, &|state| {
                    let reply = Self::run(state, command);
                    state.replies.push_back(reply);
                });
                if left.refusals > 0 && command == Command::Release {
                    take(Step::Refuse, &|state| {
                        state.left.refusals -= 1;
                        state.replies.push_back(Reply::Refused);
                    });
                }
            }
            if !state.replies.is_empty() {
                take(Step::Read, &|state| self.read(state));
            }
            if !state.messages.is_empty() {
                take(Step::Message, &|state| self.message(state));
            }
            match state.at {
                // The last release is known, so it has been queued.
                At::Start if state.is_confirmed => take(Step::TakeOver, &|state| {
                    let none_yet = state.none_yet || self.is(Variant::CountsNoMessages);
                    let messages = u64::from(!none_yet);
                    state.own = OwnMessage::of_release(state.is_first.then_some(0), messages);
                    state.at = At::Listens;
                }),
                At::Listens => {
                    take(Step::Ask, &Self::ask);
                    if state.is_announced {
                        take(Step::Yield, &|state| {
                            self.settle(state);
                            state.at = At::Yields;
                        });
                    }
                }
                // Until there is news, or its time is over.
                At::Yields => take(Step::Ask, &Self::ask),
                At::Refused => take(Step::Park, &|state| {
                    self.settle(state);
                    state.at = At::Parks;
                }),
                At::Parks if Self::has_news(state) => take(Step::Ask, &Self::ask),
                At::Start | At::Asks | At::Parks | At::Holds => {}
            }
            if left.others > 0 && state.owner.is_none() {
                take(Step::OtherTakes, &|state| {
                    state.left.others -= 1;
                    state.owner = Some(Owner::Other);
                });
            }
            if state.owner == Some(Owner::Other) {
                take(Step::OtherReleases, &|state| {
                    state.owner = None;
                    Self::publish(state, Message::Others);
                });
            }
            if left.noise > 0 {
                take(Step::Noise, &|state| {
                    state.left.noise -= 1;
                    Self::publish(state, Message::Others);
                });
            }
            if left.expiries > 0 && state.owner == Some(Owner::Before) {
                take(Step::Expire, &|state| {
                    state.left.expiries -= 1;
                    state.owner = None;
                    // A thread that was refused parks until then at most.
                    let was_refused = matches!(state.at, At::Refused | At::Parks);
                    state.news |= was_refused || state.replies.contains(&Reply::Busy);
                });
            }
            if left.losses > 0 && !state.sent.is_empty() {
                take(Step::Lose, &|state| {
                    state.left.losses -= 1;
                    Self::lose(state);
                });
            }
            if left.deaf > 0 && state.is_subscribed && state.is_confirmed {
                take(Step::Cut, &|state| {
                    state.left.deaf -= 1;
                    state.is_subscribed = false;
                });
            }
            if !state.is_subscribed && state.is_confirmed {
                take(Step::Notice, &|state| {
                    (state.is_confirmed, state.none_yet) = (false, false);
                    state.messages.clear();
                    if !self.is(Variant::OutlivesTheConnection) {
                        state.own.lost();
                    }
                });
            }
            if !state.is_confirmed {
                take(Step::Confirm, &|state| {
                    (state.is_subscribed, state.is_confirmed) = (true, true);
                    // Messages may have been missed.
                    state.news |= state.at != At::Start;
                });
            }
        }

        fn broken(&self, before: &State, step: Step, after: &State) -> Option<&'static str> {
            let is_news = !before.news && after.news;
            let is_own = match step {
                Step::Message => before.messages.front() == Some(&Message::Own),
                Step::Park | Step::Yield => true,
                _ => false,
            };
            // Otherwise nobody can know, or it is news.
            let nothing_else = self.stale == 0
                && self.left
                    == Left {
                        others: self.left.others,
                        ..Left::default()
                    };
            (nothing_else && is_own && is_news).then_some(QUIET)
        }

        fn goals(&self) -> Vec<&'static str> {
            vec![REACHED]
        }

        fn lacks(&self, _: usize, state: &State) -> bool {
            state.at != At::Holds
        }

        fn is_due(&self, _: usize, step: Step) -> bool {
            // Nobody is helped by what need not happen.
            !matches!(
                step,
                Step::Refuse
                    | Step::OtherTakes
                    | Step::Noise
                    | Step::Expire
                    | Step::Lose
                    | Step::Cut
            )
        }

        fn words(&self, before: &State, step: Step, after: &State) -> String {
            match step {
                Step::Run => format!("the server: {:?}", after.replies.back()),
                Step::Refuse => "the server refuses the release".to_owned(),
                Step::Read => format!("read: {:?}", before.replies.front()),
                Step::Message => {
                    let (own, then) = (before.own, after.own);
                    format!(
                        "message: {:?}; {own:?}, then {then:?}",
                        before.messages.front()
                    )
                }
                Step::TakeOver => format!("the thread takes over: {:?}", after.own),
                Step::Yield | Step::Park => {
                    format!(
                        "the thread: {step:?}; {:?}, then {:?}",
                        before.own, after.own
                    )
                }
                Step::Ask => "the thread asks".to_owned(),
                _ => format!("{step:?}"),
            }
        }
    }

    const NONE: Left = Left {
        others: 0,
        noise: 0,
        expiries: 0,
        refusals: 0,
        losses: 0,
        deaf: 0,
    };

    #[test]
    fn no_release_of_others_is_taken_for_our_own_in_any_order() {
        let variant = Variant::AsItIs;
        let of = |stale, left: Left| {
            let world = World {
                variant,
                left,
                stale,
            };
            search::keeps(&format!("{stale} stale, {left:?}"), &world).states
        };
        let others = 2;
        let mut states = 0;
        for stale in 0..=2 {
            states += of(stale, Left { others, ..NONE });
            states += of(
                stale,
                Left {
                    others,
                    noise: 1,
                    ..NONE
                },
            );
            states += of(
                stale,
                Left {
                    others,
                    expiries: 1,
                    ..NONE
                },
            );
            states += of(
                stale,
                Left {
                    others,
                    refusals: 2,
                    ..NONE
                },
            );
            states += of(
                stale,
                Left {
                    others,
                    losses: 2,
                    ..NONE
                },
            );
            states += of(
                stale,
                Left {
                    others,
                    deaf: 2,
                    ..NONE
                },
            );
            let both = Left {
                expiries: 1,
                noise: 1,
                ..NONE
            };
            states += of(
                stale,
                Left {
                    others: 1,
                    refusals: 1,
                    losses: 1,
                    ..both
                },
            );
            states += of(
                stale,
                Left {
                    others: 1,
                    losses: 1,
                    deaf: 1,
                    ..both
                },
            );
            states += of(
                stale,
                Left {
                    others: 1,
                    refusals: 1,
                    deaf: 1,
                    ..both
                },
            );
        }
        assert!(states > 10_000, "{states}");
    }

    #[test]
    fn every_planted_fault_is_found() {
        let others = Left { others: 1, ..NONE };
        for (variant, left, rule) in [
            (Variant::CountsNoMessages, others, REACHED),
            (
                Variant::AnnouncedInAnyCase,
                Left {
                    expiries: 1,
                    ..others
                },
                REACHED,
            ),
            (
                Variant::OvertakenCounts,
                Left {
                    refusals: 1,
                    ..NONE
                },
                REACHED,
            ),
            (
                Variant::LeftOutAtOnce,
                Left {
                    expiries: 1,
                    ..others
                },
                REACHED,
            ),
            (Variant::LeavesTwoOut, others, REACHED),
            (
                Variant::OutlivesTheConnection,
                Left { deaf: 1, ..others },
                REACHED,
            ),
            (
                Variant::KeptBackForGood,
                Left {
                    expiries: 1,
                    ..others
                },
                REACHED,
            ),
            (
                Variant::NotSettled,
                Left {
                    expiries: 1,
                    ..others
                },
                REACHED,
            ),
            (Variant::LeavesNoneOut, others, QUIET),
        ] {
            let world = World {
                variant,
                left,
                stale: 0,
            };
            search::breaks(&format!("{variant:?}"), &world, rule);
        }
    }
}
