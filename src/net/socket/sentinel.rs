//! Which server Sentinels call the master of a service.
//!
//! They are asked one after the other, each for its share of the time, beginning with the one that was last of use.
//! Those of the URL are asked for ever: what they say of each other is not kept, since that is lost when they restart.

use std::collections::HashMap;
use std::io;

use redis::{ErrorKind, RedisError, RedisResult, Value};

use super::connecting::connect_to;
use super::dial::{Dial, SHARE};
use super::{Duplex, Endpoint, timed_out};
use crate::config::replicas::ReplicaAck;
use crate::config::server::{Address, Deployment};
use crate::error::{excerpt, is_transient, lasting};
use crate::report::report;

/// The name of these connections.
pub(super) const ROLE: &str = "sentinel";

/// How long the name of a host may be.
const LONGEST_HOST: usize = 255;

/// The master that a Sentinel has named.
pub(super) struct Named {
    pub(super) address: Address,
    /// The number of the failover that made it one: that of a Sentinel which has not heard of the last is lower.
    pub(super) epoch: u64,
    /// Which of the Sentinels has named it.
    pub(super) by: usize,
}

/// What those said that have not named a master.
#[derive(Default)]
struct Failures {
    said: Vec<String>,
    /// How many of them know no such service.
    unknown: usize,
    /// How many of them cannot be asked however often it is tried.
    lasting: usize,
}

/// Asks one after the other until one has named the master. One that lags behind counts only if none knows better.
pub(super) fn find(endpoint: &Endpoint, dial: &Dial) -> RedisResult<Named> {
    let (
        Deployment::Sentinel {
            sentinels, service, ..
        },
        Some(following),
    ) = (&endpoint.server.deployment, &endpoint.following)
    else {
        return Err(io::Error::from(io::ErrorKind::Unsupported).into());
    };
    let first = following.first();
    let mut failures = Failures::default();
    let mut behind: Option<Named> = None;
    for n in 0..sentinels.len() {
        let by = (first + n) % sentinels.len();
        let left = u32::try_from(sentinels.len() - n).unwrap_or(u32::MAX);
        // The master has to be reached as well.
        let share = (dial.left()? / (left + 1)).min(SHARE);
        dial.waits_for(timed_out("no sentinel has named the master in time"));
        let why = match ask(endpoint, by, dial.part(ROLE, share), &[]) {
            Ok((Some(named), connection)) => {
                connection.writer.shut_down();
                if named.epoch >= following.epoch() {
                    endpoint.asks_first(by);
                    return Ok(named);
                }
                let lags = io::Error::other(format!("it lags behind, and names {}", named.address));
                if behind.as_ref().is_none_or(|its| its.epoch < named.epoch) {
                    behind = Some(named);
                }
                lags.into()
            }
            Ok((None, _)) => {
                failures.unknown += 1;
                io::Error::other("it knows no such service").into()
            }
            Err(err) => err,
        };
        failures.lasting += usize::from(!is_transient(&why));
        let failure = format!("{}: {why}", sentinels[by]);
        report!(Debug, "asking a sentinel for `{service}`: {failure}");
        failures.said.push(failure);
    }
    let behind = behind.ok_or_else(|| failures.of(service))?;
    // They were set up anew.
    following.begin_again(behind.epoch);
    Ok(behind)
}

impl Failures {
    /// None of them has named a master. That none knows the service does not pass by itself, nor that all refuse.
    fn of(&self, service: &str) -> RedisError {
        let said = self.said.join("; ");
        if self.unknown == self.said.len() {
            let what = "no sentinel knows the service of the URL; `SENTINEL MASTERS` lists those that are known";
            return (ErrorKind::InvalidClientConfig, what, said).into();
        }
        let text = format!("no sentinel has named the master of `{service}`: {said}");
        if self.lasting == self.said.len() {
            return lasting(text);
        }
        io::Error::other(text).into()
    }
}

/// Asks one of the Sentinels; `None` if it knows no such service. Also subscribes to `channels`, without a gap in between.
pub(super) fn ask(
    of: &Endpoint,
    by: usize,
    mut dial: Dial,
    channels: &[&str],
) -> RedisResult<(Option<Named>, Duplex)> {
    let Deployment::Sentinel {
        sentinels,
        service,
        login,
    } = &of.server.deployment
    else {
        return Err(io::Error::from(io::ErrorKind::Unsupported).into());
    };
    let endpoint = of.other(sentinels[by].clone(), login.clone(), 0, ReplicaAck::None);
    let mut connection = connect_to(&mut dial, &endpoint)?;
    dial.waits_for(timed_out("it did not answer in time"));
    let subscribe = [&["SUBSCRIBE"], channels].concat();
    // The epoch first: if both change in between, the address is the newer.
    let epochs = ["SENTINEL", "MASTER", service];
    let address = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", service];
    let questions = [&epochs[..], &address, &subscribe];
    let asked = if channels.is_empty() { 2 } else { 3 };
    connection.write("asking a sentinel", &questions[..asked])?;
    let state = connection.read(&dial)?;
    let named = match said_address(connection.read(&dial)?)? {
        Some(address) => Some(Named {
            address,
            epoch: said_epoch(state)?,
            by,
        }),
        None => None,
    };
    Ok((named, connection))
}

/// Reads the answer to `SENTINEL GET-MASTER-ADDR-BY-NAME`.
fn said_address(reply: Value) -> RedisResult<Option<Address>> {
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
        Ok(named) => Ok(named.map(|(host, port)| Address::Tcp(host, port))),
        // It quotes the whole answer.
        Err(err) => {
            let why = format!("it gave no address: {}", excerpt(&err.to_string()));
            Err(io::Error::other(why).into())
        }
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
mod tests {
    use super::*;

    use proptest::prelude::*;

    use crate::net::strange;

    proptest! {
        #![proptest_config(strange::cases(256))]

        #[test]
        fn whatever_a_sentinel_says_it_is_an_address_or_an_error(reply in strange::value()) {
            said_epoch(reply.clone()).ok();
            if let Ok(Some(address)) = said_address(reply) {
                prop_assert!(matches!(address, Address::Tcp(host, _) if host.len() <= LONGEST_HOST));
            }
        }
    }

    #[test]
    fn what_a_sentinel_says_is_an_address_or_that_it_knows_none() {
        let bulk = |text: &str| Value::BulkString(text.into());
        let named = said_address(Value::Array(vec![bulk("fe80::1"), bulk("6379")]));
        let expected = Address::Tcp("fe80::1".into(), 6379);
        assert_eq!(named.expect("an address"), Some(expected));
        assert_eq!(said_address(Value::Nil).expect("an answer"), None);
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
            let why = said_address(strange)
                .map(|_| ())
                .expect_err("no address")
                .to_string();
            assert!(why.len() < 300, "{} bytes", why.len());
        }
    }

    #[test]
    fn only_if_no_sentinel_knows_the_service_it_is_the_settings_that_are_wrong() {
        let error = |unknown, lasting, failures: usize| {
            let failures = Failures {
                said: vec!["one".into(); failures],
                unknown,
                lasting,
            };
            failures.of("m")
        };
        assert_eq!(error(2, 0, 2).kind(), ErrorKind::InvalidClientConfig);
        assert!(is_transient(&error(1, 1, 2)));
        assert!(is_transient(&error(0, 2, 3)));
        assert!(!is_transient(&error(0, 3, 3)));
    }
}
