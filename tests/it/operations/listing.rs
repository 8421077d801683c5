//! `locks`: which locks there are.

use std::collections::BTreeMap;
use std::time::Duration;

use redlatch::ops::LockKind;
use redlatch::{Client, Error};

use crate::support::cluster::Cluster;
use crate::support::{Server, ms, open, scoped, settings, timed, unique};

/// The kind and the number of holders of each listed lock, by name.
#[track_caller]
fn list(client: &Client, pattern: &str) -> BTreeMap<String, (LockKind, u64)> {
    let listed = client.locks(pattern).map(|lock| {
        let lock = lock.unwrap();
        assert!(lock.to_string().contains(&lock.name));
        assert!(
            lock.remaining_lease
                .is_none_or(|lease_left| lease_left <= Duration::from_secs(30))
        );
        (lock.name, (lock.kind, lock.held))
    });
    listed.collect()
}

timed!(what_is_held_is_listed_and_nothing_else);
fn what_is_held_is_listed_and_nothing_else() {
    let server = Server::start();
    let client = Client::open(settings(&server).key_prefix("sh*p:")).unwrap();
    let (stranger, hash) = (unique("stranger"), unique("hash"));
    let [a, b, c, d, e] = ["a", "b", "c", "d", "e"].map(|name| unique(&format!("held:{name}")));
    let one = client.mutex(&a).lock().unwrap();
    let two = client.fair_lock(&b).lock().unwrap();
    let three = client.fenced_lock(&c).lock().unwrap();
    let four = client.rw_lock(&d).read().unwrap();
    let semaphore = client.expirable_semaphore(&e);
    semaphore.try_set_permits(3).unwrap();
    let five = semaphore.acquire_many(2).unwrap();
    // None of these may be listed: a lock with another prefix, which the prefix would match as a pattern, and two keys
    // that are no locks.
    let other = Client::open(settings(&server).key_prefix("shop:")).unwrap();
    let six = other.mutex(&a).lock().unwrap();
    server.cli(&["HSET", &format!("sh*p:{hash}"), "a", "1"]);
    server.cli(&["SET", &format!("sh*p:{stranger}"), "1"]);
    let expected = BTreeMap::from([
        (a.clone(), (LockKind::Lock, 1)),
        (b.clone(), (LockKind::Lock, 1)),
        (c, (LockKind::FencedLock, 1)),
        (d, (LockKind::RwLock, 1)),
        (e, (LockKind::ExpirableSemaphore, 2)),
    ]);
    assert_eq!(list(&client, "*"), expected);
    let only_a = BTreeMap::from([(a.clone(), (LockKind::Lock, 1))]);
    assert_eq!(list(&client, &a), only_a);
    assert_eq!(list(&client, "held:a*"), only_a);
    assert_eq!(list(&client, "none:*"), BTreeMap::new());
    drop((one, two, three, four, five, six));
}

timed!(a_user_who_may_not_look_at_the_keys_gets_an_error_and_no_empty_list);
fn a_user_who_may_not_look_at_the_keys_gets_an_error_and_no_empty_list() {
    let server = Server::start();
    let ours = open(&server);
    let _guard = ours.mutex(unique("held")).lock().unwrap();
    for denied in ["-eval -evalsha", "resetkeys ~x"] {
        let rules = format!("ACL SETUSER looker on >secret ~* &* +@all {denied}");
        server.cli(&rules.split(' ').collect::<Vec<_>>());
        let url = server.url().replace("//", "//looker:secret@");
        let client = Client::open(url).unwrap();
        let listed: Vec<_> = client.locks("*").collect();
        assert!(
            matches!(&listed[..], [Err(Error::Redis { .. })]),
            "{denied}: {listed:?}"
        );
    }
}

timed!(every_name_is_listed_whatever_braces_it_has);
fn every_name_is_listed_whatever_braces_it_has() {
    const PREFIXES: [&str; 8] = ["", "p:", "{", "}", "{}", "{p}:", "p{q}r:", "p*?[\\"];
    const NAMES: [&str; 16] = [
        "a",
        "{a}",
        "a{b}c",
        "{",
        "}",
        "{}",
        "a{",
        "a}",
        "}{",
        "{{a}}",
        "{a}{b}",
        "{a",
        "{a}b",
        "a:timeout",
        "[a]*?",
        "\\ü",
    ];
    let server = Server::start();
    let mut taken = 0;
    for prefix in PREFIXES {
        let client = Client::open(settings(&server).key_prefix(prefix)).unwrap();
        for name in NAMES {
            let mut literal = String::new();
            for c in name.chars() {
                literal.extend("*?[]^\\".contains(c).then_some('\\'));
                literal.push(c);
            }
            macro_rules! listed {
                ($take:expr, $kind:ident) => {
                    // In a cluster, names of some kinds have no slot of their own.
                    if let Ok(held) = $take {
                        taken += 1;
                        let expected = BTreeMap::from([(name.to_owned(), (LockKind::$kind, 1))]);
                        for pattern in ["*", &literal] {
                            assert_eq!(
                                list(&client, pattern),
                                expected,
                                "{prefix}|{name}|{pattern}"
                            );
                        }
                        assert_eq!(list(&client, "b*"), BTreeMap::new());
                        drop(held);
                    }
                };
            }
            listed!(client.mutex(name).lock(), Lock);
            listed!(client.fair_lock(name).lock(), Lock);
            listed!(client.fenced_lock(name).lock(), FencedLock);
            listed!(client.rw_lock(name).read(), RwLock);
            listed!(client.rw_lock(name).write(), RwLock);
            let semaphore = client.expirable_semaphore(name);
            semaphore.try_set_permits(2).ok();
            listed!(semaphore.acquire(), ExpirableSemaphore);
            server.cli(&["FLUSHALL"]);
        }
    }
    assert!(taken > 400, "{taken}");
    // The permits of these two names are stored in the same keys.
    let client = open(&server);
    let both = ["s", "{s}"].map(|name| {
        client.expirable_semaphore(name).try_set_permits(2).unwrap();
        client.expirable_semaphore(name).acquire().unwrap()
    });
    let listed = list(&client, "*s*");
    assert!(
        listed.contains_key("s") && listed.contains_key("{s}"),
        "{listed:?}"
    );
    drop(both);
}

timed!(a_large_keyspace_is_gone_through_in_steps);
fn a_large_keyspace_is_gone_through_in_steps() {
    const STRANGERS: usize = 20_000;
    let server = Server::start();
    let client = open(&server);
    let mut fill = redis::pipe();
    for n in 0..STRANGERS {
        // In a cluster all of these keys are on the same node.
        fill.cmd("SET")
            .arg(format!("{{other}}:{n}"))
            .arg(n)
            .ignore();
    }
    if crate::support::deployment() != crate::support::Deployment::Cluster {
        fill.exec(&mut server.connection()).unwrap();
    }
    let names: Vec<_> = (0..50).map(|n| unique(&format!("many:{n}"))).collect();
    let guards: Vec<_> = names
        .iter()
        .map(|name| client.mutex(name).lock().unwrap())
        .collect();
    let (keys, scans) = (server.calls("keys"), server.calls("scan"));
    let listed = list(&client, "many:*");
    assert_eq!(listed.len(), 50);
    assert!(names.iter().all(|name| listed.contains_key(name)));
    assert_eq!(server.calls("keys"), keys, "never KEYS");
    assert!(server.calls("scan") > scans);
    drop(guards);
}

timed!(every_master_of_a_cluster_is_gone_through);
fn every_master_of_a_cluster_is_gone_through() {
    let cluster = Cluster::start();
    let [client, other] = [0, 1].map(|_| Client::open(cluster.config()).unwrap());
    let names: Vec<_> = (0..3).map(|n| cluster.name_at(n, "at")).collect();
    let guards: Vec<_> = names
        .iter()
        .map(|name| client.mutex(name).lock().unwrap())
        .collect();
    let listed = list(&other, "at*");
    assert_eq!(listed.len(), 3, "{listed:?}");
    for (name, guard) in names.iter().zip(&guards) {
        // The client that asks may have no connection to that master so far.
        let info = other.inspect(name).unwrap();
        assert_eq!(info.holders[0].owner, guard.owner());
        assert_eq!(
            info.holders[0].process.as_ref().unwrap().pid,
            std::process::id()
        );
        assert_eq!(info.unknown, [] as [String; 0]);
    }
    let report = other.check().unwrap();
    assert!(report.is_fit(), "{report}");
    let masters = report
        .findings
        .iter()
        .filter(|finding| finding.what.contains("role master"));
    assert_eq!(masters.count(), 3, "{report}");
    let tried = report.findings.iter();
    let tried = tried.filter(|finding| finding.what.contains("a hold of each kind"));
    assert_eq!(tried.count(), 3, "{report}");
    drop(guards);
}

timed!(a_name_whose_keys_are_in_several_slots_ends_no_list);
fn a_name_whose_keys_are_in_several_slots_ends_no_list() {
    let cluster = Cluster::shared();
    let client = Client::open(cluster.config()).unwrap();
    let name = cluster.name_at(0, "beside");
    let _guard = client.mutex(&name).lock().unwrap();
    // A hash of another application: the keys that a lock of this name would have are in other slots.
    let tag = unique("odd");
    let odd = format!("{tag}:{{}}:1");
    let () = cluster.ask(&odd, &["HSET", &odd, "a", "1"]);
    assert_eq!(list(&client, &format!("{tag}*")), BTreeMap::new());
    assert_eq!(list(&client, &name).len(), 1);
}

timed!(a_name_that_has_moved_is_asked_about_where_it_is);
fn a_name_that_has_moved_is_asked_about_where_it_is() {
    let cluster = Cluster::start();
    let [client, other] = [0, 1].map(|_| Client::open(cluster.config()).unwrap());
    let name = cluster.name_at(0, "moves");
    assert_eq!(other.inspect(&name).unwrap().held, 0);
    let guard = client.mutex(&name).lock().unwrap();
    // While its slot moves, a request for several keys gets no answer from either node.
    scoped(|scope| {
        let mut asked = None;
        let begin = || asked = Some(scope.spawn(|| other.inspect(&name)));
        cluster.migrate_to(1, &name, begin);
        let info = asked.unwrap().join().unwrap().unwrap();
        assert_eq!(info.holders[0].owner, guard.owner());
    });
    let info = other.inspect(&name).unwrap();
    assert_eq!(info.holders[0].owner, guard.owner());
    drop(guard);
}

timed!(a_name_whose_slot_is_on_its_way_is_asked_about_less_and_less_often);
fn a_name_whose_slot_is_on_its_way_is_asked_about_less_and_less_often() {
    let cluster = Cluster::start();
    let client = Client::open(cluster.config().command_timeout(ms(800))).unwrap();
    let name = cluster.name_at(0, "empty");
    let connections = || -> u64 {
        let info: String = cluster.nodes[0].ask(&["INFO", "stats"]);
        let count = info
            .lines()
            .find_map(|line| line.strip_prefix("total_connections_received:"));
        count.unwrap().trim().parse().unwrap()
    };
    cluster.migrate_to(1, &name, || {
        let connections_before = connections();
        // During the move, both nodes reject questions about several missing keys.
        client.inspect(&name).unwrap_err();
        let questions = connections() - connections_before;
        assert!(questions < 20, "{questions}");
    });
    assert_eq!(client.inspect(&name).unwrap().held, 0);
}
