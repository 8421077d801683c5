use super::*;

use proptest::prelude::*;

use crate::config::server::Server;
use crate::error::{Error, is_transient};
use crate::net::strange;

fn reply(line: &str) -> Value {
    redis::parse_redis_value(line.as_bytes()).expect("a reply")
}

/// The error of an endpoint after two replies, and whether another attempt may help.
fn said(url: &str, role: &str, hello: &str) -> (String, bool) {
    let server = Server::of(url).expect("a good URL");
    let endpoint = Endpoint::new(server).named_by_url();
    assert!(endpoint.asks_what_it_is(super::super::COMMANDS));
    let by_role = endpoint.record_role(&reply(role));
    let said = by_role.and_then(|()| endpoint.record_hello(Some(&reply(hello))));
    match said {
        Ok(()) => {
            assert!(!endpoint.asks_what_it_is(super::super::COMMANDS));
            ("fine".into(), true)
        }
        Err(err) => {
            assert!(endpoint.asks_what_it_is(super::super::COMMANDS));
            let may_pass = is_transient(&err);
            (
                Error::redis("connecting", err).at(&endpoint).to_string(),
                may_pass,
            )
        }
    }
}

#[test]
fn a_server_of_another_sort_is_named_with_the_url_to_use() {
    const MASTER: &str = "*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n";
    const REPLICA: &str =
        "*5\r\n$5\r\nslave\r\n$8\r\n10.0.0.1\r\n:6379\r\n$9\r\nconnected\r\n:9\r\n";
    const SENTINEL: &str = "*2\r\n$8\r\nsentinel\r\n*1\r\n$6\r\norders\r\n";
    const ODD: &str = "*2\r\n$8\r\nsentinel\r\n*1\r\n$3\r\na/b\r\n";
    const ALONE: &str = "*4\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n$4\r\nrole\r\n$6\r\nmaster\r\n";
    const CLUSTER: &str = "*4\r\n$4\r\nmode\r\n$7\r\ncluster\r\n$4\r\nrole\r\n$6\r\nmaster\r\n";
    const FOLLOWS: &str =
        "*4\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n$4\r\nrole\r\n$7\r\nreplica\r\n";
    const WATCHES: &str = "*2\r\n$4\r\nmode\r\n$8\r\nsentinel\r\n";
    for (url, role, hello, text, may_pass) in [
        ("redis://h:1/", MASTER, ALONE, "fine", true),
        (
            "redis://h:1/",
            MASTER,
            CLUSTER,
            "invalid setting: url: h:1 is a node of a cluster and serves only some of the names: use redis+cluster://h:1/",
            false,
        ),
        (
            "unix:///r.sock",
            MASTER,
            CLUSTER,
            "invalid setting: url: /r.sock is a node of a cluster and serves only some of the names: use redis+cluster://host:port/",
            false,
        ),
        (
            "redis://[::1]:7/",
            SENTINEL,
            ALONE,
            "invalid setting: url: [::1]:7 is a Sentinel, which keeps no locks: use redis+sentinel://[::1]:7/orders",
            false,
        ),
        (
            "redis://h:1/",
            ODD,
            ALONE,
            "invalid setting: url: h:1 is a Sentinel, which keeps no locks: use redis+sentinel://h:1/service",
            false,
        ),
        (
            "redis://h:1/",
            MASTER,
            WATCHES,
            "invalid setting: url: h:1 is a Sentinel, which keeps no locks: use redis+sentinel://h:1/service",
            false,
        ),
        (
            "redis://h:1/",
            REPLICA,
            FOLLOWS,
            "cannot connect to redis at h:1: it is a replica of 10.0.0.1:6379, and only a master grants locks: use redis://10.0.0.1:6379/, or let Sentinels find the master with redis+sentinel://host:26379/service",
            true,
        ),
        (
            "redis://h:1/",
            MASTER,
            FOLLOWS,
            "cannot connect to redis at h:1: it is a replica, and only a master grants locks: use redis://host:port/ of its master, or let Sentinels find the master with redis+sentinel://host:26379/service",
            true,
        ),
    ] {
        assert_eq!(said(url, role, hello), (text.into(), may_pass));
    }
}

#[test]
fn only_servers_that_the_url_names_are_asked_and_only_once() {
    for url in ["redis+sentinel://h:1/x", "redis+cluster://h:1/"] {
        let server = Server::of(url).expect("a good URL");
        let endpoint = Endpoint::new(server).named_by_url();
        assert!(!endpoint.asks_what_it_is(super::super::COMMANDS));
    }
    let server = Server::of("redis://h:1/").expect("a good URL");
    let endpoint = Endpoint::new(server).named_by_url();
    let other = endpoint.node(Address::Tcp("h".into(), 2));
    assert!(!other.asks_what_it_is(super::super::COMMANDS));
    assert!(!endpoint.asks_what_it_is("subscriber"));
    // A user without the right to ask.
    endpoint.record_hello(None).expect("it may be used");
    assert!(!endpoint.asks_what_it_is(super::super::COMMANDS));
}

proptest! {
    #![proptest_config(strange::cases(256))]

    #[test]
    fn whatever_is_answered_is_judged(reply in strange::value()) {
        let server = Server::of("redis://h:1/").expect("a good URL");
        let endpoint = Endpoint::new(server).named_by_url();
        for judged in [endpoint.record_role(&reply), endpoint.record_hello(Some(&reply))] {
            if let Err(err) = judged {
                prop_assert!(err.to_string().len() < 1000);
            }
        }
    }
}
