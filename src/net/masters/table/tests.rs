use super::*;

use proptest::prelude::*;

use crate::net::socket::{self, LARGEST_MAP};
use crate::net::strange;
use crate::verdict::{RequestFacts, Verdict, verdict};

fn tcp(host: &str, port: u16) -> Address {
    Address::Tcp(host.into(), port)
}

fn bulk(text: &str) -> Value {
    Value::BulkString(text.into())
}

fn node(host: Value, port: i64, said: &[&str]) -> Value {
    let said = said.iter().map(|word| bulk(word)).collect();
    Value::Array(vec![host, Value::Int(port), bulk("id"), Value::Array(said)])
}

fn range(first: i64, last: i64, nodes: &[Value]) -> Value {
    let mut parts = vec![Value::Int(first), Value::Int(last)];
    parts.extend_from_slice(nodes);
    Value::Array(parts)
}

fn read(ranges: Vec<Value>) -> Option<Vec<SlotRange>> {
    shards(&Value::Array(ranges), &tcp("seed", 1), false)
}

fn plain(port: i64) -> Value {
    node(bulk("10.0.0.1"), port, &[])
}

#[test]
fn a_node_is_found_by_what_it_announces() {
    let asked = tcp("seed", 7000);
    let name = ["hostname", "a.example"];
    for (host, said, by_name, address, others) in [
        (bulk("10.0.0.1"), &[][..], false, "10.0.0.1", &[][..]),
        (
            bulk("10.0.0.1"),
            &name,
            false,
            "10.0.0.1",
            &["a.example"][..],
        ),
        (bulk("10.0.0.1"), &name, true, "a.example", &["10.0.0.1"]),
        (
            bulk("a.example"),
            &["ip", "10.0.0.1"],
            true,
            "a.example",
            &["10.0.0.1"],
        ),
        (bulk("?"), &["ip", "10.0.0.1"], true, "10.0.0.1", &["seed"]),
        (bulk(""), &[], false, "seed", &[]),
        (Value::Nil, &[], true, "seed", &[]),
        (bulk("::1"), &[], false, "::1", &[]),
    ] {
        let found = names(&node(host.clone(), 7001, said), &asked, by_name);
        let expected = std::iter::once(&address).chain(others);
        let expected = expected.map(|host| tcp(host, 7001)).collect();
        assert_eq!(found, Some(expected), "{host:?} {said:?}");
    }
}

#[test]
fn an_answer_of_another_shape_is_no_topology() {
    for odd in [
        Value::Okay,
        Value::Nil,
        Value::Array(vec![Value::Okay]),
        Value::Array(vec![range(0, 16384, &[plain(1)])]),
        Value::Array(vec![range(-1, 5, &[plain(1)])]),
        Value::Array(vec![range(9, 3, &[plain(1)])]),
        Value::Array(vec![range(0, 5, &[])]),
        Value::Array(vec![range(0, 5, &[node(bulk("a"), 70_000, &[])])]),
    ] {
        assert_eq!(shards(&odd, &tcp("seed", 1), false), None, "{odd:?}");
    }
    assert_eq!(read(Vec::new()), Some(Vec::new()));
}

#[test]
fn a_redirection_without_a_host_leads_to_the_host_that_was_asked() {
    let asked = tcp("seed", 7000);
    for (host, expected) in [
        ("127.0.0.1", "127.0.0.1"),
        ("::1", "::1"),
        ("", "seed"),
        ("?", "seed"),
    ] {
        let redirection = Redirection {
            slot: 3999,
            host: host.into(),
            port: 6381,
            is_asking: false,
        };
        assert_eq!(
            named_by(&redirection, &asked),
            tcp(expected, 6381),
            "{host}"
        );
    }
}

#[test]
fn slots_go_to_whom_the_last_word_gives_them() {
    let mut known = Table::new();
    assert_eq!(known.owner(0), None);
    let learn = |known: &mut Table, ranges| known.learn(&read(ranges).expect("a topology"));
    let witnesses = |known: &Table| {
        let mut witnesses = known.witnesses(&[tcp("10.0.0.1", 2)]);
        witnesses.sort_by_key(ToString::to_string);
        witnesses
    };
    let addresses =
        |ports: &[u16]| -> Vec<_> { ports.iter().map(|port| tcp("10.0.0.1", *port)).collect() };
    let others = || range(100, 16383, &[plain(2)]);
    let first = || vec![range(0, 99, &[plain(1), plain(4)]), others()];
    assert!(learn(&mut known, first()));
    assert!(!learn(&mut known, first()), "nothing new");
    assert_eq!((known.owner(0), known.owner(99)), (Some(0), Some(0)));
    assert_eq!((known.owner(100), known.owner(16383)), (Some(1), Some(1)));
    assert_eq!(known.owner(16384), None);
    assert_eq!(witnesses(&known), addresses(&[1, 2, 4]));
    // A replica has taken over.
    let second = vec![range(0, 99, &[plain(4)]), others()];
    assert!(learn(&mut known, second));
    assert_eq!(known.owner(0), Some(2));
    assert!(!known.is_master(0) && known.is_master(1) && known.is_master(2));
    assert_eq!(witnesses(&known), addresses(&[2, 4]));
    // A slot moves to a known node, and another slot to an unknown node.
    for (slot, host, port, expected) in [(7, "10.0.0.1", 2, 1), (8, "10.0.0.9", 9, 3)] {
        let node = known.called(&tcp(host, port));
        known.moved(slot, node);
        assert_eq!((known.owner(slot), node), (Some(expected), expected));
    }
    assert_eq!((known.owner(6), known.owner(9)), (Some(2), Some(2)));
    assert!(known.is_named(1) && !known.is_named(3));
    // A node that has nothing to say takes nothing away.
    assert!(!known.learn(&[]));
    assert_eq!(known.owner(0), Some(2));
}

#[test]
fn a_node_is_known_by_all_of_its_names() {
    let mut known = Table::new();
    let named = |ip: &str, name| node(bulk(ip), 1, &["hostname", name]);
    let nodes = [
        named("10.0.0.1", "a.example"),
        named("10.0.0.2", "b.example"),
    ];
    let reply = Value::Array(vec![range(0, 16383, &nodes)]);
    // By its address alone, until another says what it is called.
    assert_eq!(known.called(&tcp("10.0.0.1", 1)), 0);
    assert!(!known.is_named(0));
    known.learn(&shards(&reply, &tcp("seed", 1), true).expect("a topology"));
    assert_eq!(known.owner(5), Some(1));
    for name in ["10.0.0.1", "a.example"] {
        assert_eq!(known.called(&tcp(name, 1)), 1);
    }
    // A replica that is promoted keeps its name.
    assert_eq!(known.called(&tcp("10.0.0.2", 1)), 2);
    assert_eq!(known.address(2), Some(&tcp("b.example", 1)));
    assert!(known.is_named(1) && known.is_named(2));
}

#[test]
fn the_largest_cluster_is_read() {
    // Every slot is a range of its own, and each node has the longest names.
    let named = |port: i64| {
        let host = format!("{port:05}.{}", "x".repeat(40));
        node(bulk("10.100.100.100"), port, &["hostname", &host])
    };
    let ranges = (0..i64::from(SLOTS)).map(|slot| {
        let nodes = [0, 1, 2].map(|n| named(1 + (slot + n) % 16_384));
        range(slot, slot, &nodes)
    });
    let mut bytes = Vec::new();
    strange::encode(&Value::Array(ranges.collect()), &mut bytes);
    let read = socket::parsed(&bytes, LARGEST_MAP).expect("within the limits");
    let mut known = Table::new();
    assert!(known.learn(&shards(&read, &tcp("asked", 1), true).expect("a topology")));
    assert_eq!(known.owner(SLOTS - 1), Some(usize::from(SLOTS) - 1));
}

fn named() -> impl Strategy<Value = Value> {
    let words = prop_oneof![
        strange::word().prop_map(Value::BulkString),
        strange::value()
    ];
    let said = prop::collection::vec(words.clone(), 0..6).prop_map(Value::Array);
    let port = prop_oneof![
        strange::number().prop_map(Value::Int),
        Just(Value::Int(6379))
    ];
    let parts = (words.clone(), port, words, said);
    parts.prop_map(|(host, port, id, said)| Value::Array(vec![host, port, id, said]))
}

proptest! {
    #![proptest_config(strange::cases(64))]

    #[test]
    fn whatever_a_node_says_of_the_slots_is_understood_or_not(
        answers in prop::collection::vec(
            prop::collection::vec(
                (strange::number(), strange::number(), prop::collection::vec(named(), 0..3)),
                0..5,
            ),
            1..4,
        ),
        other in strange::value(),
        moved in "[0-9]{0,6} ?[a-z0-9.:?\\[\\]]{0,9}:?[0-9]{0,6}",
        by_name in any::<bool>(),
    ) {
        let asked = tcp("10.0.0.1", 1);
        let mut known = Table::new();
        for answer in answers {
            let ranges = answer.iter().map(|(first, last, nodes)| range(*first, *last, nodes));
            if let Some(shards) = shards(&Value::Array(ranges.collect()), &asked, by_name) {
                known.learn(&shards);
            }
        }
        shards(&other, &asked, by_name);
        let moved = redis::parse_redis_value(format!("-MOVED {moved}\r\n").as_bytes());
        let moved = moved.expect("a reply");
        if let Verdict::Elsewhere(redirection) = verdict(moved, || RequestFacts::question(true)) {
            let node = known.called(&named_by(&redirection, &asked));
            known.moved(redirection.slot, node);
            prop_assert_eq!(known.owner(redirection.slot), Some(node).filter(|_| redirection.slot < SLOTS));
        }
        known.witnesses(&[]);
        let is_known = |owner: &usize| *owner == NOBODY || *owner < known.nodes.len();
        prop_assert!(known.owners.iter().all(is_known));
    }
}
