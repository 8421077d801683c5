//! Which master has which slot, as far as this client has heard. Memory only.
//!
//! ```text
//!                 CLUSTER SLOTS, asked of any node             MOVED, from the node that was asked for a key
//!                        │ for all slots                              │ for one slot
//!                        ▼                                            ▼
//!    slot ──► nobody ──────────────────────► master ──────────────────────────► another master
//! ```
//!
//! A node that was a master once keeps its number for ever, so that whoever has noted one never means another node by it:
//! calls, connections and subscribers do, and none of them says when it is done with it. So how many are known is bounded,
//! and those that nothing but a redirection has named are counted apart: redirections are cheap to make up.

use std::collections::{HashMap, HashSet};
use std::ops::RangeInclusive;

use redis::Value;

use crate::config::server::Address;
use crate::net::slot::SLOTS;

/// How many masters or replicas one answer may name. A thousand nodes is the most that Redis recommends.
const MOST_AT_ONCE: usize = 4096;

/// How many masters may be known in all, since none is ever forgotten.
const MOST: usize = 8 * MOST_AT_ONCE;

/// How many nodes may be known besides that no answer has named as masters, but a redirection.
const MOST_UNCONFIRMED: usize = 1024;

/// How long the name of a host may be.
const LONGEST_HOST: usize = 255;

/// No master is known for the slot.
const NOBODY: usize = usize::MAX;

/// One node, and where it listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Node {
    /// Where to connect to.
    pub(crate) address: Address,
    /// By what else other nodes may call it.
    others: Vec<Address>,
}

impl Node {
    fn at(address: Address) -> Self {
        Self {
            address,
            others: Vec::new(),
        }
    }

    fn is_called(&self, address: &Address) -> bool {
        self.address == *address || self.others.contains(address)
    }
}

/// A range of slots, and who has them.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Shard {
    slots: RangeInclusive<u16>,
    master: Node,
    replicas: Vec<Node>,
}

/// Reads the answer to `CLUSTER SLOTS` of the node at `asked`, which stands for a node without a name. `by_name` prefers
/// an announced host name to an address: it is what a certificate is made out to.
pub(crate) fn shards(reply: &Value, asked: &Address, by_name: bool) -> Option<Vec<Shard>> {
    let Value::Array(ranges) = reply else {
        return None;
    };
    if ranges.len() > usize::from(SLOTS) {
        return None;
    }
    let read = |range: &Value| {
        let Value::Array(parts) = range else {
            return None;
        };
        let [first, last, master, replicas @ ..] = parts.as_slice() else {
            return None;
        };
        let slots = number(first)?..=number(last)?;
        if slots.is_empty() || *slots.end() >= SLOTS {
            return None;
        }
        let replicas = replicas.iter().filter_map(|its| node(its, asked, by_name));
        Some(Shard {
            slots,
            master: node(master, asked, by_name)?,
            replicas: replicas.collect(),
        })
    };
    ranges.iter().map(read).collect()
}

fn number(value: &Value) -> Option<u16> {
    match value {
        Value::Int(n) => u16::try_from(*n).ok(),
        _ => None,
    }
}

fn text(value: &Value) -> Option<&str> {
    let text = match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok()?,
        Value::SimpleString(text) => text,
        _ => return None,
    };
    // "?" stands for a host name that was not announced.
    Some(text).filter(|text| (1..=LONGEST_HOST).contains(&text.len()) && *text != "?")
}

/// `[host, port, id, [what, value, …]]`
fn node(value: &Value, asked: &Address, by_name: bool) -> Option<Node> {
    let Value::Array(parts) = value else {
        return None;
    };
    let [host, port, rest @ ..] = parts.as_slice() else {
        return None;
    };
    let port = number(port)?;
    let said = match rest {
        [_, Value::Array(said), ..] => said.as_slice(),
        _ => &[],
    };
    let also = |what: &str| {
        let mut pairs = said.chunks_exact(2);
        pairs.find_map(|pair| (text(&pair[0]) == Some(what)).then(|| text(&pair[1]))?)
    };
    let host = text(host);
    let known: Vec<&str> = if by_name {
        [also("hostname"), host, also("ip")]
            .into_iter()
            .flatten()
            .collect()
    } else {
        [host, also("ip"), also("hostname")]
            .into_iter()
            .flatten()
            .collect()
    };
    let mut addresses: Vec<_> = known
        .iter()
        .map(|host| Address::Tcp((*host).into(), port))
        .collect();
    if host.is_none() {
        // It is reached as the one that was asked.
        if let Address::Tcp(host, _) = asked {
            addresses.push(Address::Tcp(host.clone(), port));
        }
    }
    if addresses.is_empty() {
        return None;
    }
    let address = addresses.remove(0);
    Some(Node {
        address,
        others: addresses,
    })
}

/// The slot and the node that a redirection names: `<slot> <host>:<port>`; a node without a name is that at `asked`.
pub(crate) fn redirection(detail: &str, asked: &Address) -> Option<(u16, Address)> {
    let mut parts = detail.split_ascii_whitespace();
    let slot = parts.next()?.parse().ok().filter(|slot| *slot < SLOTS)?;
    let (host, port) = parts.next()?.rsplit_once(':')?;
    let port = port.parse().ok()?;
    let host = match (host, asked) {
        ("" | "?", Address::Tcp(host, _)) => host.clone(),
        _ => host.trim_matches(['[', ']']).to_owned(),
    };
    (host.len() <= LONGEST_HOST).then_some((slot, Address::Tcp(host, port)))
}

/// Who has which slot.
pub(crate) struct Topology {
    /// Every node that was ever a master or named as one.
    nodes: Vec<Node>,
    /// By slot.
    owners: Vec<usize>,
    /// Those that can be asked besides.
    replicas: Vec<Node>,
    /// The numbers of nodes that are known by an address alone, which may not be what their certificates are made out to.
    unconfirmed: Vec<usize>,
}

impl Topology {
    pub(crate) fn new() -> Self {
        Self {
            nodes: Vec::new(),
            owners: vec![NOBODY; usize::from(SLOTS)],
            replicas: Vec::new(),
            unconfirmed: Vec::new(),
        }
    }

    /// The number of the master that has a slot.
    pub(crate) fn owner(&self, slot: u16) -> Option<usize> {
        let owner = self.owners.get(usize::from(slot)).copied();
        owner.filter(|owner| *owner != NOBODY)
    }

    /// Whether a node has any slot.
    pub(crate) fn is_master(&self, node: usize) -> bool {
        self.owners.contains(&node)
    }

    pub(crate) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Whether no node has said what a node is called: a redirection has named it, by its IP perhaps.
    pub(crate) fn is_unconfirmed(&self, node: usize) -> bool {
        self.unconfirmed.contains(&node)
    }

    /// The number of the node that is called so. The one that came last: an address may have had another node before.
    fn called(&self, address: &Address) -> Option<usize> {
        self.nodes.iter().rposition(|its| its.is_called(address))
    }

    /// How many masters more may be named.
    fn left(&self) -> usize {
        MOST.saturating_sub(self.nodes.len() - self.unconfirmed.len())
    }

    /// The number of a node that a redirection names, a new one if none is called so. `None` if there are too many.
    pub(crate) fn redirected(&mut self, to: Address) -> Option<usize> {
        if let Some(known) = self.called(&to) {
            return Some(known);
        }
        // A replica that was promoted: by its IP alone, it could not prove who it is.
        let replica = self.replicas.iter().find(|its| its.is_called(&to)).cloned();
        match &replica {
            Some(_) if self.left() == 0 => return None,
            Some(_) => {}
            None if self.unconfirmed.len() >= MOST_UNCONFIRMED => return None,
            None => self.unconfirmed.push(self.nodes.len()),
        }
        self.nodes.push(replica.unwrap_or_else(|| Node::at(to)));
        Some(self.nodes.len() - 1)
    }

    /// The numbers of all nodes by what they are called, each by that which came last.
    fn by_name(&self) -> HashMap<&Address, usize> {
        let nodes = self.nodes.iter().enumerate();
        let names = nodes.flat_map(|(number, node)| {
            let names = std::iter::once(&node.address).chain(&node.others);
            names.map(move |name| (name, number))
        });
        names.collect()
    }

    /// Takes over what a node has said of all slots, and returns whether anything is different now. A slot that nobody
    /// has at the moment stays where it was: its keys are nowhere else. `None` if there are too many masters: then
    /// nothing is taken over.
    ///
    /// Threads wait meanwhile, so every node is looked at a few times and not once for each master.
    pub(crate) fn learn(&mut self, shards: &[Shard]) -> Option<bool> {
        let mut met = HashSet::new();
        let masters = shards.iter().map(|shard| &shard.master);
        let masters: Vec<_> = masters.filter(|its| met.insert(&its.address)).collect();
        if masters.len() > MOST_AT_ONCE {
            return None;
        }
        let names = self.by_name();
        let known = masters.iter().map(|its| names.get(&its.address).copied());
        let known: Vec<_> = known.collect();
        let unconfirmed: HashSet<_> = self.unconfirmed.iter().copied().collect();
        let is_new = |its: &&Option<usize>| its.is_none_or(|its| unconfirmed.contains(&its));
        if known.iter().filter(is_new).count() > self.left() {
            return None;
        }
        let confirmed: HashSet<_> = known.iter().flatten().copied().collect();
        self.unconfirmed.retain(|node| !confirmed.contains(node));
        // What these are called now, nobody else is any more.
        let others = masters.iter().flat_map(|its| &its.others);
        let others: HashSet<_> = others.collect();
        for node in &mut self.nodes {
            node.others.retain(|its| !others.contains(its));
        }
        let mut numbers = HashMap::with_capacity(masters.len());
        for (master, known) in masters.into_iter().zip(known) {
            let number = known.unwrap_or(self.nodes.len());
            match self.nodes.get_mut(number) {
                None => self.nodes.push(master.clone()),
                Some(known) if !master.others.is_empty() => {
                    known.others.clone_from(&master.others);
                }
                Some(_) => {}
            }
            numbers.insert(&master.address, number);
        }
        let mut changed = false;
        for shard in shards {
            let master = numbers[&shard.master.address];
            let slots = usize::from(*shard.slots.start())..=usize::from(*shard.slots.end());
            for owner in self.owners.get_mut(slots).into_iter().flatten() {
                changed |= *owner != master;
                *owner = master;
            }
        }
        if !shards.is_empty() {
            let mut met = HashSet::new();
            let replicas = shards.iter().flat_map(|shard| &shard.replicas);
            let replicas = replicas.filter(|its| met.insert(*its));
            self.replicas = replicas.take(MOST_AT_ONCE).cloned().collect();
        }
        Some(changed)
    }

    /// Takes over that a slot has moved; returns the number of its master, `None` if there are too many.
    pub(crate) fn moved(&mut self, slot: u16, to: Address) -> Option<usize> {
        let to = self.redirected(to)?;
        if let Some(owner) = self.owners.get_mut(usize::from(slot)) {
            *owner = to;
        }
        Some(to)
    }

    /// Every node that may know the slots: masters and their replicas, and apart from them those that were masters, of
    /// which there are more and more that are gone.
    pub(crate) fn witnesses(&self) -> (Vec<Address>, Vec<Address>) {
        let owners: HashSet<usize> = self.owners.iter().copied().collect();
        let (masters, others): (Vec<_>, Vec<_>) =
            (0..self.nodes.len()).partition(|node| owners.contains(node));
        let nodes = |numbers: Vec<usize>| numbers.into_iter().map(|number| &self.nodes[number]);
        let mut met = HashSet::new();
        let mut addresses = |nodes: &mut dyn Iterator<Item = &'_ Node>| {
            let addresses = nodes.map(|node| node.address.clone());
            addresses.filter(|its| met.insert(its.clone())).collect()
        };
        let present = addresses(&mut nodes(masters).chain(&self.replicas));
        (present, addresses(&mut nodes(others)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use proptest::prelude::*;

    use crate::net::socket::{self, LARGEST_MAP};
    use crate::net::strange;

    fn tcp(host: &str, port: u16) -> Address {
        Address::Tcp(host.into(), port)
    }

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    fn node(host: Value, port: i64, said: &[&str]) -> Value {
        let said = said.iter().map(|its| bulk(its)).collect();
        Value::Array(vec![host, Value::Int(port), bulk("id"), Value::Array(said)])
    }

    fn range(first: i64, last: i64, nodes: &[Value]) -> Value {
        let mut parts = vec![Value::Int(first), Value::Int(last)];
        parts.extend_from_slice(nodes);
        Value::Array(parts)
    }

    fn read(ranges: Vec<Value>) -> Option<Vec<Shard>> {
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
            let found = super::node(&node(host.clone(), 7001, said), &asked, by_name);
            let expected = Node {
                address: tcp(address, 7001),
                others: others.iter().map(|host| tcp(host, 7001)).collect(),
            };
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
    fn redirections_name_a_slot_and_a_node() {
        let asked = tcp("seed", 7000);
        for (detail, expected) in [
            ("3999 127.0.0.1:6381", Some((3999, tcp("127.0.0.1", 6381)))),
            ("3999 ::1:6381", Some((3999, tcp("::1", 6381)))),
            ("3999 a.example:6381", Some((3999, tcp("a.example", 6381)))),
            ("3999 :6381", Some((3999, tcp("seed", 6381)))),
            ("16384 a:1", None),
            ("3999", None),
            ("x a:1", None),
            ("3999 a", None),
            ("", None),
        ] {
            assert_eq!(redirection(detail, &asked), expected, "{detail}");
        }
    }

    #[test]
    fn slots_go_to_whom_the_last_word_gives_them() {
        let mut known = Topology::new();
        assert_eq!(known.owner(0), None);
        let first = vec![
            range(0, 99, &[plain(1), plain(4)]),
            range(100, 16383, &[plain(2)]),
        ];
        let first = read(first).expect("a topology");
        assert_eq!(known.learn(&first), Some(true));
        assert_eq!(known.learn(&first), Some(false), "nothing new");
        assert_eq!((known.owner(0), known.owner(99)), (Some(0), Some(0)));
        assert_eq!((known.owner(100), known.owner(16383)), (Some(1), Some(1)));
        assert_eq!(known.owner(16384), None);
        // A replica has taken over, and its old master follows it.
        let second = vec![
            range(0, 99, &[plain(4), plain(1)]),
            range(100, 16383, &[plain(2)]),
        ];
        assert_eq!(known.learn(&read(second).expect("a topology")), Some(true));
        assert_eq!(known.owner(0), Some(2));
        assert!(!known.is_master(0) && known.is_master(1) && known.is_master(2));
        // What was a master is a replica now.
        let addresses = [2, 4, 1].map(|port| tcp("10.0.0.1", port));
        assert_eq!(known.witnesses(), (addresses.into(), Vec::new()));
        // One slot moves, to a node that is known and to one that is not.
        assert_eq!(known.moved(7, tcp("10.0.0.1", 2)), Some(1));
        assert_eq!(known.moved(8, tcp("10.0.0.9", 9)), Some(3));
        let owners = [6, 7, 8, 9].map(|slot| known.owner(slot));
        assert_eq!(owners, [Some(2), Some(1), Some(3), Some(2)]);
        // A node that has nothing to say takes nothing away.
        assert_eq!(known.learn(&[]), Some(false));
        assert_eq!(known.owner(0), Some(2));
    }

    #[test]
    fn one_node_with_two_names_has_one_number() {
        let mut known = Topology::new();
        let named = node(bulk("10.0.0.1"), 1, &["hostname", "a.example"]);
        let reply = Value::Array(vec![range(0, 16383, &[named])]);
        let shards = shards(&reply, &tcp("seed", 1), true).expect("a topology");
        assert_eq!(known.learn(&shards), Some(true));
        assert_eq!(known.nodes()[0].address, tcp("a.example", 1));
        assert_eq!(known.moved(5, tcp("10.0.0.1", 1)), Some(0));
    }

    #[test]
    fn a_replica_that_is_promoted_keeps_its_name() {
        let mut known = Topology::new();
        let named = |ip: &str, name| node(bulk(ip), 1, &["hostname", name]);
        let nodes = [
            named("10.0.0.1", "a.example"),
            named("10.0.0.2", "b.example"),
        ];
        let reply = Value::Array(vec![range(0, 16383, &nodes)]);
        let shards = shards(&reply, &tcp("seed", 1), true).expect("a topology");
        assert_eq!(known.learn(&shards), Some(true));
        assert_eq!(known.moved(5, tcp("10.0.0.2", 1)), Some(1));
        assert_eq!(known.nodes()[1].address, tcp("b.example", 1));
        assert_eq!(known.moved(6, tcp("b.example", 1)), Some(1));
    }

    #[test]
    fn a_node_is_known_by_an_address_alone_until_another_says_what_it_is_called() {
        let mut known = Topology::new();
        let range = |name| {
            let named = node(bulk("10.0.0.1"), 1, &["hostname", name]);
            let reply = Value::Array(vec![range(0, 16383, &[named])]);
            shards(&reply, &tcp("seed", 1), true).expect("a topology")
        };
        assert_eq!(known.moved(5, tcp("10.0.0.1", 1)), Some(0));
        assert!(known.is_unconfirmed(0));
        assert_eq!(known.learn(&range("a.example")), Some(true));
        assert_eq!(known.owner(5), Some(1));
        assert!(!known.is_unconfirmed(1));
        // Both are called so, and one can prove it.
        assert_eq!(known.moved(6, tcp("10.0.0.1", 1)), Some(1));
        // Another node has the address by now.
        assert_eq!(known.learn(&range("b.example")), Some(true));
        assert_eq!(known.moved(7, tcp("10.0.0.1", 1)), Some(2));
        // What is called as it was named is the same.
        assert_eq!(known.moved(8, tcp("c.example", 1)), Some(3));
        assert!(known.is_unconfirmed(3));
        assert_eq!(known.learn(&range("c.example")), Some(true));
        assert_eq!(known.owner(0), Some(3));
        assert!(!known.is_unconfirmed(3));
    }

    #[test]
    fn a_node_that_names_no_end_of_others_is_not_believed() {
        let many = |of: i64, from: i64| {
            let ranges = (0..of).map(|n| {
                let host = bulk(&format!("host-{}", from + n));
                range(
                    n,
                    n,
                    &[node(host, 6379, &[]), node(bulk(&format!("r{n}")), 1, &[])],
                )
            });
            shards(&Value::Array(ranges.collect()), &tcp("asked", 1), false)
        };
        let most = i64::try_from(MOST_AT_ONCE).expect("few");
        let mut known = Topology::new();
        let first = many(most, 0).expect("within the limits");
        assert_eq!(known.learn(&first), Some(true));
        assert_eq!(
            (known.nodes.len(), known.replicas.len()),
            (MOST_AT_ONCE, MOST_AT_ONCE)
        );
        let (present, gone) = known.witnesses();
        assert_eq!((present.len(), gone.len()), (2 * MOST_AT_ONCE, 0));
        // In the course of time.
        let gone = Node::at(Address::Unix("gone".into()));
        known.nodes.resize(MOST - 1, gone);
        assert_eq!(known.learn(&many(2, most).expect("two")), None);
        assert_eq!(known.learn(&many(1, most).expect("one")), Some(true));
        assert_eq!(known.nodes.len(), MOST);
        assert_eq!(
            known.learn(&many(1, 0).expect("one")),
            Some(true),
            "it was known"
        );
        // A replica is as good as named.
        assert_eq!(known.moved(7, tcp("r0", 1)), None);
        assert_eq!(
            known.redirected(tcp("host-0", 6379)),
            Some(0),
            "it was known"
        );
        let mut other = Topology::new();
        let too_many = many(most + 1, 0).expect("within the limits");
        assert_eq!(other.learn(&too_many), None);
        assert!(other.nodes.is_empty());
        assert_eq!(
            many(i64::from(SLOTS) + 1, 0),
            None,
            "more ranges than slots"
        );
        let long = "x".repeat(LONGEST_HOST + 1);
        assert_eq!(redirection(&format!("1 {long}:1"), &tcp("asked", 1)), None);
        let named = node(bulk(&long), 1, &[]);
        let read = shards(
            &Value::Array(vec![range(0, 1, &[named])]),
            &Address::Unix("s".into()),
            false,
        );
        assert_eq!(read, None);
    }

    #[test]
    fn redirections_that_are_made_up_keep_no_master_from_being_known() {
        let mut known = Topology::new();
        let all = |port| read(vec![range(0, 16383, &[plain(port)])]).expect("a topology");
        assert_eq!(known.learn(&all(1)), Some(true));
        for made_up in 0..MOST_UNCONFIRMED {
            assert!(known.moved(0, tcp(&format!("m{made_up}"), 1)).is_some());
        }
        assert_eq!(known.redirected(tcp("one.more", 1)), None);
        assert_eq!(known.moved(7, tcp("one.more", 1)), None);
        assert_eq!(known.owner(7), Some(0));
        // Those that are known still count.
        assert_eq!(known.moved(7, tcp("m3", 1)), Some(4));
        // However many there are, what the cluster says is learnt, and then there are fewer.
        let named = node(bulk("m3"), 1, &[]);
        let named = read(vec![range(0, 16383, &[named])]).expect("a topology");
        assert_eq!(known.learn(&named), Some(true));
        assert!(!known.is_unconfirmed(4) && known.is_unconfirmed(5));
        assert!(known.redirected(tcp("one.more", 1)).is_some());
        assert_eq!(known.redirected(tcp("and.another", 1)), None);
        for port in 2..100 {
            assert_eq!(known.learn(&all(port)), Some(true));
        }
        // One that is confirmed takes the place of another.
        let gone = Node::at(Address::Unix("gone".into()));
        known.nodes.resize(MOST + MOST_UNCONFIRMED, gone);
        let named = node(bulk("m5"), 1, &[]);
        let named = read(vec![range(0, 16383, &[named])]).expect("a topology");
        assert_eq!(known.learn(&named), None);
        known.nodes.pop();
        assert_eq!(known.learn(&named), Some(true));
        // Those that serve nothing are asked for the slots after the others.
        let (present, gone) = known.witnesses();
        assert_eq!(present, [tcp("m5", 1)]);
        assert!(gone.contains(&tcp("10.0.0.1", 1)) && gone.contains(&tcp("m9", 1)));
    }

    #[test]
    fn the_largest_cluster_is_read_and_fails_over() {
        // Every slot is a range of its own, and each node has the longest names.
        let masters = i64::try_from(MOST_AT_ONCE).expect("few");
        let named = |port: i64| {
            let host = format!("{port:05}.{}", "x".repeat(40));
            node(bulk("10.100.100.100"), port, &["hostname", &host])
        };
        let answer = |turn: i64| {
            let ranges = (0..i64::from(SLOTS)).map(|slot| {
                let [a, b, c] =
                    [0, 1, 2].map(|n| named(1 + slot % masters + (turn + n) % 3 * masters));
                range(slot, slot, &[a, b, c])
            });
            let mut bytes = Vec::new();
            strange::encode(&Value::Array(ranges.collect()), &mut bytes);
            let read = socket::parsed(&bytes, LARGEST_MAP).expect("within the limits");
            shards(&read, &tcp("asked", 1), true).expect("a topology")
        };
        let mut known = Topology::new();
        for turn in 0..4 {
            assert_eq!(known.learn(&answer(turn)), Some(true), "{turn}");
            let first = usize::try_from(turn % 3).expect("few") * MOST_AT_ONCE;
            assert_eq!(known.owner(0), Some(first));
            assert_eq!(known.owner(SLOTS - 1), Some(first + MOST_AT_ONCE - 1));
        }
        assert_eq!(known.nodes.len(), 3 * MOST_AT_ONCE);
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
        #![proptest_config(strange::cases(256))]

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
            let mut known = Topology::new();
            for answer in answers {
                let ranges = answer.iter().map(|(first, last, nodes)| range(*first, *last, nodes));
                if let Some(shards) = shards(&Value::Array(ranges.collect()), &asked, by_name) {
                    known.learn(&shards);
                }
            }
            shards(&other, &asked, by_name);
            if let Some((slot, to)) = redirection(&moved, &asked) {
                prop_assert!(slot < SLOTS);
                let to = known.moved(slot, to);
                prop_assert!(to.is_some());
                prop_assert_eq!(known.owner(slot), to);
            }
            known.witnesses();
            let is_known = |owner: &usize| *owner == NOBODY || *owner < known.nodes.len();
            prop_assert!(known.owners.iter().all(is_known));
        }
    }
}
