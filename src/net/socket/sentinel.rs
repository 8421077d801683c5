//! Which server Sentinels call the master of a service.
//!
//! They are asked one after the other, each for its share of the time, beginning with the one that was last of use.
//! Those of the URL are asked for ever: what they say of each other is not kept, since that is lost when they restart.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use redis::{ErrorKind, RedisError, RedisResult, Value};

use super::dial::{Dial, Dialled};
use super::{CONNECT_SLICE, Duplex, Endpoint, Meanwhile, timed_out};
use crate::config::replicas::ReplicaAck;
use crate::config::server::{Address, Deployment, Login};
use crate::error::{excerpt, is_transient, lasting};
use crate::net::request::Request;
use crate::report::report;

/// The name of these connections.
pub(super) const ROLE: &str = "sentinel";

/// How long one Sentinel may take at most while there are others: their hosts fail together with those of masters.
pub(super) const SHARE: Duration = Duration::from_millis(500);

/// How long the name of a host may be.
const LONGEST_HOST: usize = 255;

/// Which of the Sentinels to ask first, for all connections of a client.
#[derive(Default)]
pub(super) struct First(AtomicUsize);

impl First {
    /// The next time another than `at` is asked first, unless somebody has seen to that already.
    pub(super) fn is_not(&self, at: usize, but: usize) {
        let moved = self
            .0
            .compare_exchange(at, but, Ordering::Relaxed, Ordering::Relaxed);
        if moved.is_ok() {
            report!(Trace, "another sentinel is asked first from now on");
        }
    }

    /// The next time this one is asked first.
    pub(super) fn is(&self, at: usize) {
        self.0.store(at, Ordering::Relaxed);
    }
}

/// Asking for the master of a service.
pub(super) struct Discovery {
    first: usize,
    /// How many have been asked, the present one included.
    asked: usize,
    inquiry: Option<Inquiry>,
    /// What each of the others said.
    failures: Vec<String>,
    /// How many of them know no such service.
    unknown: usize,
    /// How many of them cannot be asked however often it is tried.
    lasting: usize,
}

/// One Sentinel that is being asked.
struct Inquiry {
    endpoint: Endpoint,
    ends: Instant,
    stage: Stage,
}

enum Stage {
    Dialling(Dial),
    Asked(Duplex),
}

/// What a Sentinel said.
enum Said {
    Master(Address),
    Unknown,
}

impl Discovery {
    pub(super) fn new(first: &First) -> Self {
        Self {
            first: first.0.load(Ordering::Relaxed),
            asked: 0,
            inquiry: None,
            failures: Vec::new(),
            unknown: 0,
            lasting: 0,
        }
    }

    /// Goes on until one has named the master, `by`, or all have failed; `ends` is when all of it has to be done.
    pub(super) fn advance(
        &mut self,
        endpoint: &Endpoint,
        ends: Instant,
        by: Instant,
        meanwhile: Meanwhile<'_>,
    ) -> RedisResult<Option<Address>> {
        let Deployment::Sentinel {
            sentinels,
            service,
            login,
        } = &endpoint.server.deployment
        else {
            return Err(io::Error::from(io::ErrorKind::Unsupported).into());
        };
        loop {
            let Some(inquiry) = &mut self.inquiry else {
                if self.asked == sentinels.len() {
                    return Err(self.failed(service));
                }
                let at = self.first.wrapping_add(self.asked) % sentinels.len();
                let left = u32::try_from(sentinels.len() - self.asked).unwrap_or(u32::MAX);
                self.asked += 1;
                // The master has to be reached as well.
                let share = ends.saturating_duration_since(Instant::now()) / (left + 1);
                let its_end = Instant::now() + share.min(SHARE);
                self.inquiry = Some(Inquiry::new(
                    endpoint,
                    sentinels[at].clone(),
                    login,
                    its_end,
                ));
                continue;
            };
            let why = match inquiry.advance(service, by, meanwhile) {
                Ok(None) if Instant::now() < inquiry.ends => return Ok(None),
                Ok(None) => timed_out("it did not answer in time"),
                Ok(Some(Said::Master(address))) => {
                    // Whoever asks next begins with the one that knew.
                    let this = self.first.wrapping_add(self.asked - 1);
                    endpoint.first_sentinel.is_not(self.first, this);
                    self.first = this;
                    return Ok(Some(address));
                }
                Ok(Some(Said::Unknown)) => {
                    self.unknown += 1;
                    io::Error::other("it knows no such service").into()
                }
                Err(err) => err,
            };
            self.lasting += usize::from(!is_transient(&why));
            let failure = format!("{}: {why}", inquiry.endpoint);
            report!(Debug, "asking a sentinel for `{service}`: {failure}");
            self.failures.push(failure);
            self.inquiry = None;
        }
    }

    /// Which Sentinel, counted on and on, was the last to be asked.
    pub(super) fn asked_at(&self) -> usize {
        self.first
    }

    /// None of them has named a master. That none knows the service does not pass by itself, nor that all refuse.
    fn failed(&self, service: &str) -> RedisError {
        let said = self.failures.join("; ");
        if self.unknown == self.failures.len() {
            let what = "no sentinel knows the service of the URL; `SENTINEL MASTERS` lists those that are known";
            return (ErrorKind::InvalidClientConfig, what, said).into();
        }
        let said = format!("no sentinel has named the master of `{service}`: {said}");
        if self.lasting == self.failures.len() {
            return lasting(said);
        }
        io::Error::other(said).into()
    }
}

/// Asks one of the Sentinels; `None` if it knows no such service, or does not answer.
pub(super) fn ask_one(
    endpoint: &Endpoint,
    sentinel: &Address,
    meanwhile: Meanwhile<'_>,
) -> RedisResult<Option<Address>> {
    let Deployment::Sentinel { service, login, .. } = &endpoint.server.deployment else {
        return Ok(None);
    };
    let ends = Instant::now() + SHARE;
    let mut inquiry = Inquiry::new(endpoint, sentinel.clone(), login, ends);
    match inquiry.advance(service, ends, meanwhile)? {
        Some(Said::Master(address)) => Ok(Some(address)),
        Some(Said::Unknown) | None => Ok(None),
    }
}

impl Inquiry {
    fn new(of: &Endpoint, sentinel: Address, login: &Login, ends: Instant) -> Self {
        Self {
            endpoint: of.other(sentinel, login.clone(), 0, ReplicaAck::None),
            ends,
            stage: Stage::Dialling(Dial::new(ROLE, ends)),
        }
    }

    fn advance(
        &mut self,
        service: &str,
        by: Instant,
        meanwhile: Meanwhile<'_>,
    ) -> RedisResult<Option<Said>> {
        let by = by.min(self.ends);
        loop {
            match &mut self.stage {
                Stage::Dialling(dial) => match dial.advance(&self.endpoint, by, meanwhile)? {
                    Dialled::Unfinished(_) => return Ok(None),
                    Dialled::Made(connection) => {
                        let question = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", service];
                        let mut bytes = Vec::new();
                        Request::command("asking a sentinel", &question).write(&mut bytes, false);
                        connection.writer.write_all(&bytes)?;
                        self.stage = Stage::Asked(connection);
                    }
                },
                Stage::Asked(connection) => {
                    let left = by.saturating_duration_since(Instant::now());
                    if left.is_zero() || !meanwhile() {
                        return Ok(None);
                    }
                    let slice = left.min(CONNECT_SLICE);
                    if let Some(reply) = connection.reader.read(slice)? {
                        connection.writer.shut_down();
                        return said(reply).map(Some);
                    }
                }
            }
        }
    }
}

/// Reads the answer to `SENTINEL GET-MASTER-ADDR-BY-NAME`.
fn said(reply: Value) -> RedisResult<Said> {
    let reply = reply.extract_error().map_err(|err| {
        let text = err.to_string();
        if text.contains("unknown command") {
            io::Error::other("it is no sentinel, which listen on port 26379 as a rule").into()
        } else {
            err
        }
    })?;
    match redis::from_redis_value::<Option<(String, u16)>>(reply) {
        Ok(Some((host, _))) if host.len() > LONGEST_HOST => {
            Err(io::Error::other("it gave no address, but a text that is longer").into())
        }
        Ok(Some((host, port))) => Ok(Said::Master(Address::Tcp(host, port))),
        Ok(None) => Ok(Said::Unknown),
        // It quotes the whole answer.
        Err(err) => {
            let why = format!("it gave no address: {}", excerpt(&err.to_string()));
            Err(io::Error::other(why).into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use proptest::prelude::*;

    use crate::net::strange;

    proptest! {
        #![proptest_config(strange::cases(256))]

        #[test]
        fn whatever_a_sentinel_says_it_is_an_address_or_an_error(reply in strange::value()) {
            if let Ok(Said::Master(address)) = said(reply) {
                prop_assert!(matches!(address, Address::Tcp(host, _) if host.len() <= LONGEST_HOST));
            }
        }
    }

    #[test]
    fn what_a_sentinel_says_is_an_address_or_that_it_knows_none() {
        let bulk = |text: &str| Value::BulkString(text.into());
        let named = said(Value::Array(vec![bulk("fe80::1"), bulk("6379")])).expect("an address");
        assert!(matches!(named, Said::Master(Address::Tcp(host, 6379)) if host == "fe80::1"));
        assert!(matches!(said(Value::Nil), Ok(Said::Unknown)));
        let long = bulk(&"h".repeat(LONGEST_HOST + 1));
        let longest = bulk(&"1".repeat(900_000));
        for strange in [
            Value::Okay,
            Value::Array(vec![bulk("h")]),
            bulk("h:1"),
            Value::Array(vec![long, bulk("1")]),
            Value::Array(vec![bulk("h"), longest.clone()]),
            Value::Array(vec![bulk("h"), bulk("1"), longest.clone()]),
            longest,
        ] {
            let why = said(strange)
                .map(|_| ())
                .expect_err("no address")
                .to_string();
            assert!(why.len() < 300, "{} bytes", why.len());
        }
    }

    #[test]
    fn only_if_no_sentinel_knows_the_service_it_is_the_settings_that_are_wrong() {
        let error = |unknown, lasting, failures: usize| {
            let discovery = Discovery {
                first: 0,
                asked: failures,
                inquiry: None,
                failures: vec!["one".into(); failures],
                unknown,
                lasting,
            };
            discovery.failed("m")
        };
        assert_eq!(error(2, 0, 2).kind(), ErrorKind::InvalidClientConfig);
        assert!(is_transient(&error(1, 1, 2)));
        assert!(is_transient(&error(0, 2, 3)));
        assert!(!is_transient(&error(0, 3, 3)));
    }
}
