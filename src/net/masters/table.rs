//! Which master has which slot, as far as this client has heard. Memory only.
//!
//! ```text
//!                 CLUSTER SLOTS, asked of any node             MOVED, from the node that was asked for a key
//!                        │ for all slots                              │ for one slot
//!                        ▼                                            ▼
//!    slot ──► nobody ──────────────────────► master ──────────────────────────► another master
//! ```
//!
//! A node keeps its number for good: calls, connections and subscribers store the number, and do not report when they no
//! longer need it.

use std::collections::HashMap;
use std::ops::RangeInclusive;

use redis::Value;

use crate::config::server::Address;
use crate::net::slot::SLOTS;
use crate::verdict::Redirection;

/// No master is known for the slot.
const NOBODY: usize = usize::MAX;

/// The addresses by which a node may be named. The first is the one to connect to.
type Names = Vec<Address>;

/// A range of slots, and who has them: the master first.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SlotRange {
    slots: RangeInclusive<u16>,
    nodes: Vec<Names>,
}

/// Reads the answer of the node at `asked` to `CLUSTER SLOTS`. A node for which the answer gives no host also gets the
/// host of `asked`. With `by_name`, an announced host name comes before an IP, since certificates are made out to host
/// names.
pub(super) fn shards(reply: &Value, asked: &Address, by_name: bool) -> Option<Vec<SlotRange>> {
    let Value::Array(ranges) = reply else {
        return None;
    };
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
        let mut nodes = vec![names(master, asked, by_name)?];
        nodes.extend(
            replicas
                .iter()
                .filter_map(|replica| names(replica, asked, by_name)),
        );
        Some(SlotRange { slots, nodes })
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
    Some(text).filter(|text| !["", "?"].contains(text))
}

/// The names of a node, from `[host, port, id, [what, value, …]]`.
fn names(value: &Value, asked: &Address, by_name: bool) -> Option<Names> {
    let Value::Array(parts) = value else {
        return None;
    };
    let [host, port, rest @ ..] = parts.as_slice() else {
        return None;
    };
    let port = number(port)?;
    let also = |key: &str| match rest {
        [_, Value::Array(said), ..] => {
            let mut pairs = said.chunks_exact(2);
            pairs.find_map(|pair| (text(&pair[0]) == Some(key)).then(|| text(&pair[1]))?)
        }
        _ => None,
    };
    let mut hosts = vec![text(host), also("ip"), also("hostname")];
    if by_name {
        hosts.rotate_right(1);
    }
    if let (None, Address::Tcp(asked, _)) = (text(host), asked) {
        // The answer gives no host, which stands for the host that was asked.
        hosts.push(Some(asked));
    }
    let hosts = hosts.into_iter().flatten();
    let names: Names = hosts.map(|host| Address::Tcp(host.into(), port)).collect();
    (!names.is_empty()).then_some(names)
}

/// The node that a redirection names. A redirection without a host means the host of `asked`.
pub(super) fn named_by(redirection: &Redirection, asked: &Address) -> Address {
    let host = match (&*redirection.host, asked) {
        ("" | "?", Address::Tcp(host, _)) => host,
        _ => &redirection.host,
    };
    Address::Tcp(host.clone(), redirection.port)
}

/// The master of each slot.
pub(super) struct Table {
    /// Every node that was ever a master, or that a redirection has named.
    nodes: Vec<Address>,
    numbers: HashMap<Address, usize>,
    /// The number of each slot's master, or `NOBODY`.
    owners: Vec<usize>,
    /// Each name of each node in the last answer to `CLUSTER SLOTS`, with the address to connect to.
    names: HashMap<Address, Address>,
}

impl Table {
    pub(super) fn new() -> Self {
        Self {
            nodes: Vec::new(),
            numbers: HashMap::new(),
            owners: vec![NOBODY; usize::from(SLOTS)],
            names: HashMap::new(),
        }
    }

    /// The number of the master that has a slot.
    pub(super) fn owner(&self, slot: u16) -> Option<usize> {
        let owner = self.owners.get(usize::from(slot)).copied();
        owner.filter(|owner| *owner != NOBODY)
    }

    /// Every node that has a slot.
    pub(super) fn masters(&self) -> Vec<usize> {
        (0..self.nodes.len())
            .filter(|node| self.is_master(*node))
            .collect()
    }

    /// Whether a node has any slot.
    pub(super) fn is_master(&self, node: usize) -> bool {
        self.owners.contains(&node)
    }

    /// Whether the last answer has named a node.
    pub(super) fn is_named(&self, node: usize) -> bool {
        let address = self.nodes.get(node);
        address.is_some_and(|address| self.names.contains_key(address))
    }

    pub(super) fn address(&self, node: usize) -> Option<&Address> {
        self.nodes.get(node)
    }

    fn number(&mut self, address: &Address) -> usize {
        if let Some(number) = self.numbers.get(address) {
            return *number;
        }
        self.nodes.push(address.clone());
        let number = self.nodes.len() - 1;
        self.numbers.insert(address.clone(), number);
        number
    }

    /// The number of the node with this name.
    pub(super) fn called(&mut self, name: &Address) -> usize {
        // The name may be an IP although the certificate is valid only for the host name, so the address in `names` is
        // used.
        let address = self.names.get(name).unwrap_or(name).clone();
        self.number(&address)
    }

    /// Stores a node's answer about all slots, and returns whether any slot has another master now. A slot that the answer
    /// leaves out keeps its last master: no other node has its keys.
    pub(super) fn learn(&mut self, shards: &[SlotRange]) -> bool {
        let mut changed = false;
        self.names.clear();
        for SlotRange { slots, nodes } in shards {
            for names in nodes {
                for name in names.iter().rev() {
                    self.names.insert(name.clone(), names[0].clone());
                }
            }
            let master = self.number(&nodes[0][0]);
            for owner in &mut self.owners[usize::from(*slots.start())..=usize::from(*slots.end())] {
                changed |= *owner != master;
                *owner = master;
            }
        }
        changed
    }

    /// Stores that a slot has moved.
    pub(super) fn moved(&mut self, slot: u16, node: usize) {
        if let Some(owner) = self.owners.get_mut(usize::from(slot)) {
            *owner = node;
        }
    }

    /// Every node that may know the slots: the masters and their replicas, and the addresses of the URL.
    pub(super) fn witnesses(&self, seeds: &[Address]) -> Vec<Address> {
        // A node may have several names. Each node is asked once, by the name that is used to connect to it.
        let names = self.names.iter().filter(|(name, address)| name == address);
        let known = names.map(|(name, _)| name);
        let others = seeds
            .iter()
            .filter(|seed| self.names.get(seed) != Some(seed));
        known.chain(others).cloned().collect()
    }
}

#[cfg(test)]
mod tests;
