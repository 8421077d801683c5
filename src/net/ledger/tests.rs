use super::*;

use std::sync::LazyLock;
use std::time::Duration;

use crate::net::call::{Deferred, DeferredInfo};
use crate::net::request::Script;
use crate::net::text::Text;

static SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new("return 0"));

fn release(keys: &[&str], useful_until: Instant) -> Arc<Call> {
    Call::deferred(Deferred {
        request: Request::script("releasing", &SCRIPT, keys, &["o:1"]),
        info: DeferredInfo {
            name: keys[0].into(),
            owner: Text::default(),
            useful_until,
            valid_until: None,
            undo: false,
            has_no_lease: false,
        },
    })
}

fn names(calls: &[Arc<Call>]) -> Vec<&str> {
    let infos = calls.iter().filter_map(|call| call.deferred.as_ref());
    infos.map(|info| &*info.name).collect()
}

fn is_empty(ledger: &Ledger) -> bool {
    let entries = ledger.entries.lock();
    entries.slots.is_empty() && entries.ends.is_empty() && entries.keys.is_empty()
}

#[test]
fn the_oldest_goes_first_and_back_to_its_position() {
    let later = Instant::now() + Duration::from_secs(1);
    let calls = ["a", "b", "c"].map(|name| release(&[name], later));
    let ledger = Ledger::of_one();
    ledger.keep(&calls);
    let first = ledger.take(0);
    assert_eq!(names(&first), ["a", "b"]);
    ledger.keep(&first[1..]);
    ledger.keep(&first[..1]);
    assert_eq!(names(&ledger.take(0)), ["a", "b"]);
    assert!(!ledger.is_empty());
    assert_eq!(names(&ledger.take(0)), ["c"]);
    assert!(ledger.is_empty() && is_empty(&ledger));
}

#[test]
fn what_is_about_a_key_is_found_by_each_of_its_keys() {
    let later = Instant::now() + Duration::from_secs(1);
    let ledger = Ledger::of_one();
    for keys in [&["a", "b"][..], &["c"], &["b"], &["b", "c"]] {
        ledger.keep([&release(keys, later)]);
    }
    let fresh = Request::script("acquiring", &SCRIPT, &["b"], &["o:2", "1"]);
    assert_eq!(names(&ledger.take_about(&fresh, 0)), ["a", "b"]);
    assert_eq!(names(&ledger.take_about(&fresh, 0)), ["b"]);
    assert!(ledger.take_about(&fresh, 0).is_empty());
    assert_eq!(names(&ledger.take(0)), ["c"]);
}

#[test]
fn what_is_useless_is_found_without_looking_at_the_rest() {
    let now = Instant::now();
    let after = |n| now + Duration::from_secs(n);
    let ledger = Ledger::of_one();
    for (name, end) in [("late", 9), ("soon", 1), ("next", 2)] {
        ledger.keep([&release(&[name], after(end))]);
    }
    assert!(ledger.take_useless(now, 9).is_empty());
    assert_eq!(names(&ledger.take_useless(after(2), 1)), ["soon"]);
    assert_eq!(names(&ledger.take_useless(after(2), 9)), ["next"]);
    assert_eq!(ledger.forget(), (1, 0));
    assert!(ledger.is_empty() && is_empty(&ledger));
}

#[test]
fn an_entry_is_for_the_node_that_serves_its_slot_at_that_time() {
    let later = Instant::now() + Duration::from_secs(1);
    let ledger = Ledger::at("redis+cluster://127.0.0.1:1/");
    let calls = ["a", "b"].map(|name| release(&[name], later));
    ledger.keep(&calls);
    let move_to = |name: &str, port| {
        let redirection = Redirection {
            slot: slot_of(name.as_bytes()),
            host: "h".into(),
            port,
            is_asking: false,
        };
        ledger.learn(&redirection)
    };
    assert_eq!(ledger.nodes(), [None].into());
    let (a, b) = (move_to("a", 1), move_to("b", 2));
    assert_eq!(ledger.nodes(), [Some(a), Some(b)].into());
    assert!(ledger.owes(a) && ledger.owes(b));
    assert_eq!(names(&ledger.take(b)), ["b"]);
    assert_eq!(move_to("a", 2), b);
    assert!(ledger.take(a).is_empty() && !ledger.owes(a));
    assert_eq!(names(&ledger.take(b)), ["a"]);
    assert!(ledger.is_empty() && is_empty(&ledger));
}
