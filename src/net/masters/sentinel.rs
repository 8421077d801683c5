//! Sentinels: which server they call the master of a service, and whether the connections still lead to that server.
//!
//! After a planned failover, the former master still acts as a master until a Sentinel makes it a replica of the new one,
//! about ten seconds later. Until then, connections to it still work, but locks that it grants are lost. Therefore a
//! thread that has asked a Sentinel goes on to listen for that Sentinel's announcements:
//!
//! ```text
//!          it is silent or gone: the next one is asked
//!    ┌──────────────────────────────────────────────────────┐
//!    ▼                                                      │
//!    asking who is the master, and subscribing ─────────► listening
//!    ▲     │ after a later failover                         │ │
//!    │     ▼                                                │ │
//!    │   the new master's ROLE agrees: connections to       │ │
//!    │   earlier masters are cut                            │ │
//!    │                                                      │ │
//!    └──────────── it announces something ──────────────────┘ │
//!    └──────────── a connection is to be made ────────────────┘
//! ```
//!
//! Each failover has a number, its *epoch*, and the highest counts. A Sentinel that names a lower epoch than this client
//! knows from its own connections *lags behind*. It is believed only after a round in which no Sentinel succeeded
//! ([`begin_again`](Service::begin_again)). A connection that this client cuts is handled like one that was lost.
//!
//! The client asks only the Sentinels of the URL. Sentinels could name others, but one that restarts may have forgotten
//! them.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use redis::{RedisResult, Value};

use super::Masters;
use crate::config::server::Address;
use crate::error::{excerpt, lasting, named, wrong_url};
use crate::net::socket::dial::{Dial, SHARE};
use crate::net::socket::{Duplex, Socket, connect_to, timed_out};
use crate::report::report;

/// The announcements that there is another master: `+promoted-slave` at once, by the Sentinel that carries out the failover;
/// `+switch-master` later, by each Sentinel.
const SUBSCRIBE: [&str; 3] = ["SUBSCRIBE", "+switch-master", "+promoted-slave"];

/// How long the name of a host may be.
const LONGEST_HOST: usize = 255;

/// A server that a Sentinel has named as the master.
#[derive(Clone)]
struct NamedMaster {
    address: Address,
    /// The number of the failover that made the server the master.
    epoch: u64,
}

/// The master of the service, as far as this client knows it, and the connections to it.
#[derive(Default)]
pub(super) struct Service {
    /// The last accepted answer of a Sentinel.
    master: Option<NamedMaster>,
    /// Of the answers of Sentinels that lag behind, the one with the highest epoch. It is cleared when a Sentinel's answer
    /// is accepted, and by `begin_again`.
    behind: Option<NamedMaster>,
    /// The highest epoch of a master that was connected to; `begin_again` may lower it.
    epoch: u64,
    /// The connections to masters, each with the epoch of the failover that made its server the master.
    made: Vec<(u64, Weak<Socket>)>,
    /// The Sentinel that is listened to.
    pub(super) sentinel: Option<Weak<Socket>>,
}

impl Service {
    /// A connection was made to the master of this epoch; returns the connections to earlier masters.
    fn made(&mut self, epoch: u64, socket: &Arc<Socket>) -> Vec<Arc<Socket>> {
        self.epoch = self.epoch.max(epoch);
        self.made.push((epoch, Arc::downgrade(socket)));
        // While this connection was made, a Sentinel may have named a later master. `ask_sentinel` then cut the
        // connections to earlier masters, but not this connection, which was not in `made` yet. So the epoch of the named
        // master counts here too.
        let latest = self
            .master
            .as_ref()
            .map_or(0, |named| named.epoch)
            .max(self.epoch);
        let earlier = self.made.extract_if(.., |(epoch, _)| *epoch < latest);
        let earlier = earlier.filter_map(|(_, socket)| socket.upgrade()).collect();
        self.made.retain(|(_, socket)| socket.strong_count() > 0);
        earlier
    }

    /// Whether a connection to a master is still in use.
    fn is_connected(&self) -> bool {
        self.made
            .iter()
            .any(|(_, socket)| socket.strong_count() > 0)
    }

    /// Whether the Sentinel that has named this master lags behind: this client knows of a later failover. If so, the
    /// answer is stored in `behind`. If `behind` already has an answer with the same or a higher epoch, that answer stays.
    fn lags(&mut self, named: &NamedMaster) -> bool {
        let lags = named.epoch < self.epoch;
        let is_later = |master: &NamedMaster| master.epoch < named.epoch;
        if lags && self.behind.as_ref().is_none_or(is_later) {
            self.behind = Some(named.clone());
        }
        lags
    }

    /// Called after a round in which every server failed. A Sentinel fails if it lags behind this client, or gives no
    /// usable answer. While a connection to a master is in use, a Sentinel also fails if it names a later master that
    /// cannot be reached, or whose `ROLE` disagrees. If at least one of them lags behind, the client assumes that the
    /// Sentinels were set up from scratch. Of those that lag behind, the one with the highest epoch is then believed: from
    /// now on its master is the master, and its epoch counts as the highest known. Returns whether any lags behind.
    ///
    /// The price: this client, one Sentinel and a former master may be cut off together from the rest of the network. Then
    /// the client connects to that former master. The present master does not know the locks that are granted there, so
    /// other clients may acquire them.
    pub(super) fn begin_again(&mut self) -> bool {
        let latest = self.behind.take();
        let is_named = latest.is_some();
        if let Some(named) = latest {
            self.epoch = named.epoch;
            // Connections with a higher epoch count as made in the epoch that was named. If they kept theirs, later
            // failovers, which may have lower numbers now, would not cut them.
            for (epoch, _) in &mut self.made {
                *epoch = named.epoch.min(*epoch);
            }
            self.master = Some(named);
        }
        is_named
    }

    /// The Sentinel that is listened to, to be cut.
    pub(super) fn sentinel(&mut self) -> Option<Arc<Socket>> {
        self.sentinel.take()?.upgrade()
    }
}

impl Masters {
    /// Makes a connection to the server that is named as the master; fails if that server's `ROLE` disagrees.
    pub(super) fn connect_to_named(self: &Arc<Self>, dial: &mut Dial) -> RedisResult<Duplex> {
        // If a thread asks already, its answer is recent enough.
        if !self.asking.lock().under_way {
            self.doubt();
        }
        let nobody = || timed_out("no Sentinel has named the master in time");
        dial.set_reason(nobody());
        // Asking may take three quarters of the time; the rest is for reaching the master.
        let until = Instant::now() + dial.left()? / 4 * 3;
        let asked = self.refresh(until, &|| dial.left().is_err());
        asked.map_err(|why| if why.is_timeout() { nobody() } else { why })?;
        let NamedMaster { address, epoch } =
            (self.asking.lock().service.master.clone()).ok_or_else(nobody)?;
        let master = self.endpoint.master(address);
        // This attempt gets half of the time left, and so fails early if the master is gone: the next attempt may find its
        // successor.
        let mut dial = dial.part(dial.role, dial.left()? / 2);
        match connect_to(&mut dial, &master) {
            Ok(connection) => {
                self.made(epoch, &connection);
                Ok(connection)
            }
            Err(err) => {
                // The Sentinel may be cut off without knowing it, so the next round begins with another one.
                self.asking.lock().first += 1;
                Err(named(&master, err))
            }
        }
    }

    /// A connection was made to the master of this epoch: cuts the connections to earlier masters.
    fn made(&self, epoch: u64, connection: &Duplex) {
        let mut asking = self.asking.lock();
        // If a later master was named or reached since, this connection is among those that are cut.
        let earlier = asking.service.made(epoch, &connection.writer);
        drop(asking);
        for socket in earlier {
            report!(Debug, "closing a connection to a master that was replaced");
            socket.shut_down();
        }
    }

    /// Asks one Sentinel, and subscribes to its announcements. Connecting to a new master may take at most `share`.
    pub(super) fn ask_sentinel(
        &self,
        mut sentinel: Duplex,
        service: &str,
        dial: &Dial,
        share: Duration,
    ) -> RedisResult<Duplex> {
        // The epoch is asked for first. If a failover comes in between, the new address gets the old epoch, and at worst
        // its connections are cut once without need. In the other order, the old address could get the new epoch, and its
        // connections would never be cut.
        let epoch = ["SENTINEL", "MASTER", service];
        let address = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", service];
        sentinel.write("asking a sentinel", &[&epoch, &address, &SUBSCRIBE])?;
        let state = sentinel.read(dial)?;
        let address = said_address(sentinel.read(dial)?)?;
        let unknown = || {
            lasting("it knows no such service; `SENTINEL MASTERS` lists those that it knows".into())
        };
        let named_master = NamedMaster {
            address: address.ok_or_else(unknown)?,
            epoch: said_epoch(state)?,
        };
        let mut asking = self.asking.lock();
        if asking.service.lags(&named_master) {
            let lags = format!("it is out of date, and names {}", named_master.address);
            return Err(io::Error::other(lags).into());
        }
        if named_master.epoch > asking.service.epoch && asking.service.is_connected() {
            // The mutex is released to connect. Only the thread that asks sets `master`, and only one thread asks at a
            // time, so no later answer is overwritten below.
            drop(asking);
            // Before working connections are cut, the server must confirm that it is a master: `connect_to` fails
            // otherwise.
            let master = self.endpoint.master(named_master.address.clone());
            let connection = connect_to(&mut Dial::by_itself("sentinel", share), &master)
                .map_err(|err| named(&master, err))?;
            self.made(named_master.epoch, &connection);
            connection.writer.shut_down();
            asking = self.asking.lock();
        }
        asking.service.master = Some(named_master);
        asking.service.behind = None;
        Ok(sentinel)
    }

    /// Asks, listens, and asks again, until another thread is to do so or the client is closed.
    pub(super) fn follow(&self, thread: u64) {
        loop {
            let sentinel = self.ask();
            let is_answered = sentinel.is_some();
            let heard = sentinel.map_or(Ok(()), listen);
            if let Err(err) = &heard {
                report!(Debug, "listening to a Sentinel failed: {err}");
            }
            let mut asking = self.asking.lock();
            if !is_answered && asking.thread == thread && !asking.is_closed {
                self.changed.wait_for(&mut asking, 2 * SHARE);
            }
            // After `begin`, the thread that it started asks and listens instead of this one.
            if asking.thread != thread || asking.is_closed {
                return;
            }
            asking.first += usize::from(heard.is_err());
            // Set before the mutex is released, so that no other thread begins to ask beside this one.
            asking.under_way = true;
        }
    }

    /// The client is closed: nobody asks or listens any more.
    pub(crate) fn stop(&self) {
        let mut asking = self.asking.lock();
        asking.is_closed = true;
        let sentinel = asking.service.sentinel();
        drop(asking);
        self.changed.notify_all();
        if let Some(sentinel) = sentinel {
            sentinel.shut_down();
        }
    }
}

/// Listens to a Sentinel until it announces something. A Sentinel that rejects `SUBSCRIBE` is asked once a second instead.
fn listen(mut sentinel: Duplex) -> RedisResult<()> {
    let (mut is_asked, mut hears) = (false, true);
    loop {
        match sentinel.reader.read(2 * SHARE)? {
            None if !hears => return Ok(()),
            None if is_asked => return Err(timed_out("it does not answer")),
            None => {
                sentinel.write("checking the connection", &[&["PING"]])?;
                is_asked = true;
                continue;
            }
            Some(Value::Array(parts)) if is_message(&parts) => return Ok(()),
            Some(Value::ServerError(_)) if !is_asked => hears = false,
            Some(_) => {}
        }
        is_asked = false;
    }
}

fn is_message(parts: &[Value]) -> bool {
    matches!(parts.first(), Some(Value::BulkString(kind)) if kind == b"message")
}

/// Reads the answer to `SENTINEL GET-MASTER-ADDR-BY-NAME`.
fn said_address(reply: Value) -> RedisResult<Option<Address>> {
    let odd =
        |text: &str| io::Error::other(format!("it named no address: {}", excerpt(text))).into();
    let reply =
        reply
            .extract_error()
            .map_err(|err| match err.to_string().contains("unknown command") {
                true => wrong_url(
                    "it is not a Sentinel: use redis:// for a single server, redis+cluster:// for a cluster; Sentinels usually listen on port 26379".into(),
                ),
                false => err,
            })?;
    match redis::from_redis_value::<Option<(String, u16)>>(reply) {
        Ok(Some((host, _))) if host.len() > LONGEST_HOST => Err(odd(&host)),
        Ok(named) => Ok(named.map(|(host, port)| Address::Tcp(host, port))),
        // The text of the error quotes the whole answer, which `odd` shortens.
        Err(err) => Err(odd(&err.to_string())),
    }
}

/// Reads the answer to `SENTINEL MASTER`.
fn said_epoch(reply: Value) -> RedisResult<u64> {
    let said = redis::from_redis_value::<HashMap<String, String>>(reply.extract_error()?);
    let epoch = said
        .ok()
        .and_then(|said| said.get("config-epoch")?.parse().ok());
    Ok(epoch.unwrap_or_default())
}

#[cfg(test)]
mod tests;
