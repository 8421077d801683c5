//! Which channels this process is subscribed to, and who waits on each. Memory only: no I/O, and `now` is an argument.
//!
//! The states of a channel:
//!
//! ```text
//!          SUBSCRIBE             confirmed, or refused            its last waiter leaves it behind
//!   none ────────────► wanted ─────────────────────────► active ───────────────────────────────────► lingering
//!    ▲                 │  ▲                              │ │  ▲                                      │  │
//!    │                 │  └──── the connection is lost ──┘ │  └── a waiter takes it over: no command ┘  │
//!    │   UNSUBSCRIBE   │                                   │                                            │
//!    └─────────────────┴────── its last waiter ends it ────┴── LINGER is over, or the hold is lost ◄────┘
//! ```
//!
//! A waiter may leave its subscription behind when its wait ends, if there was a message or a confirmation lately. Then
//! nothing is written before its call returns, and the next waiter on the channel need not subscribe. All lingering
//! subscriptions are in one queue, `Channels::lingering`. If a hold of this process is lost, the lingering subscription to
//! its channel ends at once (`end_lingering`).
//!
//! A waiter that asks for the lock before it is subscribed may have missed a message after that request. So it asks again
//! once its subscription is confirmed. If the channel was confirmed already, for example for another waiter, it asks again
//! at once. If a waiter sends its first request only after its subscription is confirmed, this request suffices.
//!
//! Confirmations come in the order of the commands. So if a channel was subscribed to several times, the queue of sent
//! commands shows which subscription a confirmation is for. The confirmation of a subscription that has ended by then does
//! not count.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::net::back_off::BackOff;
use crate::net::request::Request;
use crate::net::write_queue::WriteQueue;

/// How long a subscription lingers. A lingering subscription costs every release on its channel a few microseconds, and other
/// processes take it for a waiter.
///
/// If processes take turns and each has the lock for less than `LINGER`, a process finds its subscription still there at
/// its next wait, and needs no SUBSCRIBE.
pub(super) const LINGER: Duration = Duration::from_millis(50);

/// Above this capacity an empty map is freed.
const SPARE: usize = 1024;

/// Receives the messages of a channel. May be called with the subscriber's mutex held, so an implementation only stores them,
/// and may wake a thread.
pub(crate) trait Listener: Send + Sync {
    /// A message has come on the channel, or may have been missed.
    fn message(&self);

    /// `true`: the server has answered SUBSCRIBE with a confirmation or a refusal. `false`: there is no answer yet, or the
    /// connection was lost.
    fn set_answered(&self, is_answered: bool);

    /// No message has come, but the listener's thread should check how long it has waited.
    fn look_again(&self) {}
}

/// All channels, and the commands under way on the connection if there is one.
#[derive(Default)]
pub(super) struct Channels {
    /// Whether the channels are sharded. Sharded channels have commands of their own.
    sharded: bool,
    wanted: HashMap<Arc<str>, Channel>,
    /// The channel that was last reported as `News::Refused`; `None` before that, and after `News::Allowed`.
    refused: Option<Arc<str>>,
    /// The subscriptions that were left behind, in the order in which they end. Each may have been taken over or have ended
    /// since.
    lingering: VecDeque<(Instant, Arc<str>)>,
    exchange: Option<Exchange>,
    last_epoch: u64,
    last_waiter: u64,
}

struct Channel {
    waiters: Vec<RegisteredListener>,
    /// Until when a subscription that was left behind is kept even if no thread waits on it.
    lingers_until: Option<Instant>,
    /// The number of this subscription, by which its confirmation is known.
    epoch: u64,
    /// SUBSCRIBE was sent and not answered.
    asked: bool,
    confirmed: bool,
    refused: bool,
}

struct RegisteredListener {
    number: u64,
    listener: Arc<dyn Listener>,
}

impl Channel {
    /// Whether the server has confirmed or refused the subscription.
    fn is_answered(&self) -> bool {
        self.confirmed || self.refused
    }

    fn is_unused(&self) -> bool {
        self.waiters.is_empty() && self.lingers_until.is_none()
    }
}

/// The commands on one connection.
#[derive(Default)]
struct Exchange {
    sharded: bool,
    unwritten: WriteQueue,
    /// Commands that were sent and not answered.
    awaiting: VecDeque<ChannelCommand>,
    /// Commands that the server could not carry out when it got them.
    postponed: Vec<ChannelCommand>,
    /// When the postponed commands, and the refused subscriptions, are sent again.
    again_at: Option<Instant>,
}

#[derive(Clone)]
enum ChannelCommand {
    Subscribe {
        channel: Arc<str>,
        epoch: u64,
        /// The command replaces a subscription of an earlier connection, so a message may have been missed.
        again: bool,
    },
    Unsubscribe {
        channel: Arc<str>,
    },
    Ping,
}

impl Exchange {
    fn send(&mut self, command: ChannelCommand) {
        let words: &[&str] = match (&command, self.sharded) {
            (ChannelCommand::Subscribe { channel, .. }, false) => &["SUBSCRIBE", channel],
            (ChannelCommand::Subscribe { channel, .. }, true) => &["SSUBSCRIBE", channel],
            (ChannelCommand::Unsubscribe { channel }, false) => &["UNSUBSCRIBE", channel],
            (ChannelCommand::Unsubscribe { channel }, true) => &["SUNSUBSCRIBE", channel],
            (ChannelCommand::Ping, _) => &["PING"],
        };
        Request::command("listening", words).write(&mut self.unwritten.bytes, false);
        self.awaiting.push_back(command);
    }
}

/// What an answer has shown about this user's rights.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum News {
    /// This channel is refused, and no refusal was reported since the last `Allowed`.
    Refused(Arc<str>),
    /// The channel of the last `Refused` is allowed now.
    Allowed,
}

/// In a cluster the channels of a slot may move to another node. Then these channels are forgotten at this node: their
/// waiters are woken, ask again, and subscribe at the other node.
impl Channels {
    pub(super) fn new(sharded: bool) -> Self {
        Self {
            sharded,
            ..Self::default()
        }
    }

    /// Whether a waiter still listens.
    pub(super) fn has(&self, name: &str, waiter: u64) -> bool {
        let channel = self.wanted.get(name);
        channel.is_some_and(|channel| channel.waiters.iter().any(|known| known.number == waiter))
    }

    /// Forgets all channels for which `belongs` is false, and unsubscribes from them.
    pub(super) fn keep(&mut self, belongs: impl Fn(&str) -> bool) {
        let strays: Vec<_> = self
            .wanted
            .keys()
            .filter(|name| !belongs(name))
            .cloned()
            .collect();
        for name in strays {
            self.forget(&name);
            if let Some(exchange) = &mut self.exchange {
                exchange.send(ChannelCommand::Unsubscribe { channel: name });
            }
        }
    }

    /// The server has ended the subscription to a channel. Returns `false` if an UNSUBSCRIBE had asked for that, and
    /// `true` if the channel belongs to another node now.
    pub(super) fn ended(&mut self, name: &str) -> bool {
        let Some(exchange) = &mut self.exchange else {
            return false;
        };
        let next = exchange.awaiting.front();
        if matches!(next, Some(ChannelCommand::Unsubscribe { channel }) if **channel == *name) {
            exchange.awaiting.pop_front();
            return false;
        }
        self.forget(name);
        true
    }

    /// The server has rejected the oldest unanswered command, since its channel belongs to another node. `is_moved`
    /// holds for such channels.
    pub(super) fn moved(&mut self, is_moved: impl Fn(&str) -> bool) {
        let Some(exchange) = &mut self.exchange else {
            return;
        };
        let is_meant = match exchange.awaiting.front() {
            Some(
                ChannelCommand::Subscribe { channel, .. } | ChannelCommand::Unsubscribe { channel },
            ) => is_moved(channel),
            // The node ended the subscription while UNSUBSCRIBE was on its way, and its message about that came first.
            // `ended` took that message for the reply to UNSUBSCRIBE, and removed the command from `awaiting`. So this
            // error, the real reply to UNSUBSCRIBE, belongs to no command that is left, and is ignored.
            Some(ChannelCommand::Ping) | None => false,
        };
        if is_meant
            && let Some(ChannelCommand::Subscribe { channel, epoch, .. }) =
                exchange.awaiting.pop_front()
        {
            let wanted = self.wanted.get(&channel);
            if wanted.is_some_and(|wanted| wanted.epoch == epoch) {
                self.forget(&channel);
            }
        }
    }

    fn forget(&mut self, name: &str) {
        let Some(channel) = self.wanted.remove(name) else {
            return;
        };
        for waiter in &channel.waiters {
            waiter.listener.set_answered(false);
            waiter.listener.message();
        }
    }
}

impl Channels {
    /// How many channels are wanted.
    pub(super) fn len(&self) -> usize {
        self.wanted.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.wanted.is_empty()
    }

    /// Whether messages on `channel` come to this process.
    pub(super) fn listens_to(&self, channel: &str) -> bool {
        let channel = self.wanted.get(channel);
        channel.is_some_and(|channel| channel.confirmed)
    }

    pub(super) fn is_refused(&self, channel: &str) -> bool {
        let channel = self.wanted.get(channel);
        channel.is_some_and(|channel| channel.refused)
    }

    /// A waiter begins to listen. It is told at once whether the server has answered, and if not, again when it has.
    /// Returns its number.
    pub(super) fn subscribe(&mut self, name: &Arc<str>, waiter: Arc<dyn Listener>) -> u64 {
        let Self {
            wanted,
            exchange,
            last_epoch,
            ..
        } = self;
        self.last_waiter += 1;
        let channel = wanted.entry(Arc::clone(name)).or_insert_with(|| {
            *last_epoch += 1;
            let epoch = *last_epoch;
            let asked = exchange.is_some();
            // Without a connection, `connected` sends the command later.
            if let Some(exchange) = exchange {
                exchange.send(ChannelCommand::Subscribe {
                    channel: Arc::clone(name),
                    epoch,
                    again: false,
                });
            }
            Channel {
                waiters: Vec::new(),
                lingers_until: None,
                epoch,
                asked,
                confirmed: false,
                refused: false,
            }
        });
        // No answer comes between these two steps: `answered` is called under the subscriber's mutex too, so it finds the
        // waiter.
        waiter.set_answered(channel.is_answered());
        channel.waiters.push(RegisteredListener {
            number: self.last_waiter,
            listener: waiter,
        });
        self.last_waiter
    }

    /// A waiter stops listening. If the waiter leaves the subscription behind, it lingers until `lingers_until`.
    pub(super) fn end(&mut self, name: &Arc<str>, waiter: u64, lingers_until: Option<Instant>) {
        let Some(channel) = self.wanted.get_mut(name) else {
            return;
        };
        channel.waiters.retain(|listener| listener.number != waiter);
        if let Some(until) = lingers_until {
            channel.lingers_until = Some(until);
            self.lingering.push_back((until, Arc::clone(name)));
        }
        self.drop_unused(name);
    }

    /// Ends a lingering subscription to a channel now.
    pub(super) fn end_lingering(&mut self, name: &str) {
        if let Some(channel) = self.wanted.get_mut(name) {
            channel.lingers_until = None;
            self.drop_unused(name);
        }
    }

    /// Ends the subscriptions that have lingered for long enough. Returns whether others still linger.
    pub(super) fn end_lingering_until(&mut self, now: Instant) -> bool {
        while self
            .lingering
            .front()
            .is_some_and(|(until, _)| *until <= now)
            && let Some((until, name)) = self.lingering.pop_front()
        {
            // A waiter that took the channel over and left it behind again has set a later moment, with an entry of its own.
            if let Some(channel) = self.wanted.get_mut(&name)
                && channel.lingers_until == Some(until)
            {
                channel.lingers_until = None;
                self.drop_unused(&name);
            }
        }
        !self.lingering.is_empty()
    }

    fn drop_unused(&mut self, name: &str) {
        if !self.wanted.get(name).is_some_and(Channel::is_unused) {
            return;
        }
        let Some((name, channel)) = self.wanted.remove_entry(name) else {
            return;
        };
        if self.wanted.is_empty() && self.wanted.capacity() > SPARE {
            self.wanted = HashMap::new();
        }
        // If a SUBSCRIBE is under way, its answer comes before that to UNSUBSCRIBE, finds no channel or a later epoch, and
        // confirms nothing.
        if (channel.asked || channel.confirmed)
            && let Some(exchange) = &mut self.exchange
        {
            exchange.send(ChannelCommand::Unsubscribe { channel: name });
        }
    }

    /// There is a connection now: queues SUBSCRIBE for all wanted channels. `again`: the connection replaces an earlier
    /// one.
    pub(super) fn connected(&mut self, again: bool) {
        let mut exchange = Exchange {
            sharded: self.sharded,
            ..Exchange::default()
        };
        for (name, channel) in &mut self.wanted {
            channel.asked = true;
            exchange.send(ChannelCommand::Subscribe {
                channel: Arc::clone(name),
                epoch: channel.epoch,
                again,
            });
        }
        self.exchange = Some(exchange);
    }

    /// The connection is lost: nobody listens until there is another.
    pub(super) fn lost(&mut self) {
        self.exchange = None;
        for channel in self.wanted.values_mut() {
            (channel.asked, channel.confirmed, channel.refused) = (false, false, false);
            // The waiters are told under the mutex. Once it is released, a waiter could already listen to another channel
            // or at another master, and would take this signal for that subscription.
            for waiter in &channel.waiters {
                waiter.listener.set_answered(false);
            }
        }
    }

    /// The bytes to be written, if there is a connection.
    pub(super) fn unwritten(&mut self) -> Option<&mut WriteQueue> {
        Some(&mut self.exchange.as_mut()?.unwritten)
    }

    /// Whether a command has no answer yet.
    pub(super) fn is_owed(&self) -> bool {
        let exchange = self.exchange.as_ref();
        exchange.is_some_and(|exchange| !exchange.awaiting.is_empty())
    }

    /// Queues a PING.
    pub(super) fn ping(&mut self) {
        if let Some(exchange) = &mut self.exchange {
            exchange.send(ChannelCommand::Ping);
        }
    }

    /// A message has come on a channel. Returns its listeners: threads that ask Redis for a lock or permits, or wait for a
    /// latch.
    pub(super) fn message(&self, name: &str) -> Vec<Arc<dyn Listener>> {
        let waiters = self.wanted.get(name).map(|channel| &channel.waiters[..]);
        let waiters = waiters.unwrap_or_default().iter();
        waiters.map(|waiter| Arc::clone(&waiter.listener)).collect()
    }

    /// The server has carried out the oldest unanswered command, or has `refused` it because this user lacks the rights.
    pub(super) fn answered(&mut self, refused: bool, now: Instant) -> Option<News> {
        let exchange = self.exchange.as_mut()?;
        let ChannelCommand::Subscribe {
            channel: name,
            epoch,
            again,
        } = exchange.awaiting.pop_front()?
        else {
            return None;
        };
        let channel = self.wanted.get_mut(&name);
        let channel = channel.filter(|channel| channel.epoch == epoch);
        // Only a confirmation of the present subscription lifts the channel's refusal.
        let is_current = channel.is_some();
        if let Some(channel) = channel {
            channel.asked = false;
            channel.confirmed = !refused;
            channel.refused = refused;
            // The waiters are told under the mutex. Once it is released, a waiter could already listen to another channel,
            // and would take this answer for that subscription.
            for waiter in &channel.waiters {
                waiter.listener.set_answered(true);
                // A message may have been missed while the subscription was lost.
                if again {
                    waiter.listener.message();
                }
            }
        }
        if refused {
            // Rights may be granted later, so `ask_again` sends the command again.
            exchange
                .again_at
                .get_or_insert(now + BackOff::REFUSED.first);
            let is_first = self.refused.is_none();
            self.refused.get_or_insert_with(|| Arc::clone(&name));
            return is_first.then_some(News::Refused(name));
        }
        let refused = self.refused.take_if(|known| is_current && *known == name);
        refused.map(|_| News::Allowed)
    }

    /// The server could not execute the oldest unanswered command now.
    pub(super) fn postpone(&mut self, now: Instant) {
        if let Some(exchange) = &mut self.exchange
            && let Some(command) = exchange.awaiting.pop_front()
        {
            exchange.postponed.push(command);
            exchange
                .again_at
                .get_or_insert(now + BackOff::REFUSED.first);
        }
    }

    /// Repeats postponed and refused commands that are still wanted, once it is time. If it is too early, returns that
    /// time; otherwise `None`.
    pub(super) fn ask_again(&mut self, now: Instant) -> Option<Instant> {
        let Self {
            wanted, exchange, ..
        } = self;
        let exchange = exchange.as_mut()?;
        if exchange.again_at.take_if(|at| *at <= now).is_none() {
            return exchange.again_at;
        }
        for command in std::mem::take(&mut exchange.postponed) {
            let is_due = match &command {
                ChannelCommand::Subscribe { channel, epoch, .. } => {
                    // A waiter that left and came back has sent a command of its own, with a later epoch.
                    let channel = wanted.get(channel);
                    channel.is_some_and(|channel| channel.epoch == *epoch)
                }
                // A later waiter may have subscribed again, and an UNSUBSCRIBE now would end its subscription.
                ChannelCommand::Unsubscribe { channel } => !wanted.contains_key(channel),
                ChannelCommand::Ping => false,
            };
            if is_due {
                exchange.send(command);
            }
        }
        // If `asked` is set, the SUBSCRIBE of an earlier round has no answer yet.
        let refused = wanted.iter_mut();
        for (name, channel) in refused.filter(|(_, channel)| channel.refused && !channel.asked) {
            channel.asked = true;
            exchange.send(ChannelCommand::Subscribe {
                channel: Arc::clone(name),
                epoch: channel.epoch,
                again: false,
            });
        }
        None
    }
}

#[cfg(test)]
impl Channels {
    fn has_bytes(&self) -> bool {
        let exchange = self.exchange.as_ref();
        exchange.is_some_and(|exchange| !exchange.unwritten.is_empty())
    }

    /// Takes the bytes to be written, and counts them as written.
    fn taken(&mut self) -> Vec<u8> {
        let Some(unwritten) = self.unwritten() else {
            return Vec::new();
        };
        let bytes = unwritten.take();
        unwritten.wrote(bytes.clone(), bytes.len());
        bytes
    }
}

#[cfg(test)]
mod model;

#[cfg(test)]
mod tests;
