//! The cost of a lock for one thread, compared with bare PINGs and with a lock written by hand.

#![expect(clippy::print_stdout, reason = "a bench prints what it measured")]

mod rig;
#[path = "../tests/it/support/bare/mod.rs"]
mod support;

use std::time::Duration;

use criterion::Criterion;
use redis::Value;

use crate::rig::by_hand::ByHand;
use crate::rig::{
    Case, End, Kind, Lock, Rates, Table, Target, ask, evalsha, interleaved, repeated, typical,
};
use crate::support::Server;

fn main() {
    let server = rig::start();
    let mut criterion = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(1))
        .configure_from_args();
    absolute(&server, &mut criterion);
    criterion.final_summary();
    let mut table = Table::default();
    if rig::wants("ratios") {
        ratios(&server, &mut table);
    }
    if rig::wants("kinds") {
        kinds(&server, &mut table);
    }
    if rig::wants("guarded") {
        guarded(&server, &mut table);
    }
    #[cfg(feature = "tls")]
    if rig::wants("tls") {
        over_tls(&mut table);
    }
    if rig::wants("cluster") {
        in_cluster(&mut table);
    }
    table.print();
}

/// Two bare PINGs, one after the other.
fn two_pings(server: &Server) -> impl FnMut() + use<> {
    let mut connection = rig::connection(server);
    let ping = redis::cmd("PING").get_packed_command();
    move || {
        for _ in 0..2 {
            let pong = ask(&mut connection, &ping);
            assert_eq!(pong, Value::SimpleString("PONG".to_owned()));
        }
    }
}

fn open(server: &Server) -> redlatch::Client {
    redlatch::Client::open(rig::config(server.url())).expect("the server is up")
}

fn absolute(server: &Server, criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("baseline");
    group.bench_function("two_pings", |b| b.iter(two_pings(server)));
    group.bench_function("lock_by_hand", |b| {
        let mut by_hand = ByHand::new(&server.url(), "by_hand:absolute");
        b.iter(|| by_hand.pair());
    });
    group.finish();

    let (client, other) = (open(server), open(server));
    let mut group = criterion.benchmark_group("reentrant_lock");
    group.bench_function("uncontended", |b| {
        let lock = client.reentrant_lock("drop:absolute");
        b.iter(|| drop(lock.lock().expect("a grant")));
    });
    group.bench_function("uncontended_unlock", |b| {
        let lock = client.reentrant_lock("unlock:absolute");
        b.iter(|| lock.lock().and_then(|guard| guard.unlock()).expect("both"));
    });
    group.bench_function("busy", |b| {
        let lock = client.reentrant_lock("busy:absolute");
        let _held = other
            .reentrant_lock("busy:absolute")
            .lock()
            .expect("a grant");
        b.iter(|| assert!(lock.try_lock().expect("an answer").is_none()));
    });
    group.bench_function("reentry", |b| {
        let lock = client.reentrant_lock("reentry:absolute");
        let held = lock.lock().expect("a grant");
        b.iter(|| drop(lock.lock().expect("a hold")));
        assert_eq!(held.hold_count(), 1);
    });
    group.finish();
    for (kind, group, function) in [
        (Kind::Fair, "fair_lock", "uncontended"),
        (Kind::Fenced, "fenced_lock", "uncontended"),
        (Kind::Write, "rwlock", "uncontended_write"),
        (Kind::Read, "rwlock", "uncontended_read"),
    ] {
        let lock = Lock::new(&client, kind, &format!("{group}:{function}"));
        let mut group = criterion.benchmark_group(group);
        group.bench_function(function, |b| b.iter(|| lock.pair(End::Drop)));
        group.finish();
    }
    let mut group = criterion.benchmark_group("spin_lock");
    group.bench_function("uncontended_names", |b| {
        let mut next = in_turn(names(&client, Kind::Spin, "absolute"));
        b.iter(|| next(End::Drop));
    });
    group.finish();
    for client in [client, other] {
        assert_eq!(client.stats().lost, 0);
    }
}

/// So many names that the process has forgotten one when its turn comes again.
const NAMES: usize = 2000;

/// Locks of one kind on many names. A spin lock is measured on many: on one name it would pause after each tenure.
fn names(client: &redlatch::Client, kind: Kind, prefix: &str) -> Vec<Lock> {
    (0..NAMES)
        .map(|n| Lock::new(client, kind, &format!("{prefix}:{kind:?}:{n}")))
        .collect()
}

/// Locks and releases them in turn, one at each call.
fn in_turn(locks: Vec<Lock>) -> impl FnMut(End) {
    let mut turn = 0;
    move |end| {
        turn = (turn + 1) % locks.len();
        locks[turn].pair(end);
    }
}

fn ratios(server: &Server, table: &mut Table) {
    let (client, other) = (open(server), open(server));
    let mut by_hand = ByHand::new(&server.url(), "by_hand");
    let (drop_it, unlock) = (
        client.reentrant_lock("drop"),
        client.reentrant_lock("unlock"),
    );
    let busy = client.reentrant_lock("busy");
    let _busy = other.reentrant_lock("busy").lock().expect("a grant");
    let reentry = client.reentrant_lock("reentry");
    let _reentry = reentry.lock().expect("a grant");

    let [pings, by_hand, dropped, unlocked, busy, reentered] = interleaved(
        21,
        Duration::from_millis(60),
        [
            repeated(16, two_pings(server)),
            repeated(16, || by_hand.pair()),
            repeated(16, || drop(drop_it.lock().expect("a grant"))),
            repeated(16, || {
                unlock
                    .lock()
                    .and_then(|guard| guard.unlock())
                    .expect("both");
            }),
            repeated(16, || {
                assert!(busy.try_lock().expect("an answer").is_none())
            }),
            repeated(1024, || drop(reentry.lock().expect("a hold"))),
        ],
    );
    assert_eq!(client.stats().lost, 0);
    assert_eq!(reentry.hold_count(), 1);

    println!(
        "\n{:<44} {:>9} {:>11}",
        "one thread, in turn", "us each", "a second"
    );
    show("two PINGs", &pings);
    show("SET NX PX + script, by hand", &by_hand);
    show("lock + drop", &dropped);
    show("lock + unlock", &unlocked);
    show("try_lock on a busy lock", &busy);
    show("lock again + unlock", &reentered);
    let time = |of: &Rates, by: &Rates| by.over(of);
    table.row(
        "lock + drop, time of two PINGs",
        time(&dropped, &pings),
        Target::AtMost(0.65),
    );
    table.row(
        "lock + unlock, time of two PINGs",
        time(&unlocked, &pings),
        Target::AtMost(1.15),
    );
    table.row(
        "reentry, time of two PINGs",
        time(&reentered, &pings),
        Target::AtMost(0.002),
    );
    table.row(
        "lock + drop, time of a lock by hand",
        time(&dropped, &by_hand),
        Target::None,
    );
    table.row(
        "try_lock on a busy lock, time of two PINGs",
        time(&busy, &pings),
        Target::None,
    );
}

fn show(what: &str, rates: &Rates) {
    let rate = rates.median();
    println!(
        "{what:<44} {:>9} {rate:>11.0}",
        rig::significant(1e6 / rate)
    );
}

/// Commands that run only while a hold is in force, compared with the same commands sent directly.
fn guarded(server: &Server, table: &mut Table) {
    const COUNT: &str = "{guarded}:count";
    let text = "return redis.call('incr', KEYS[1])";
    let (client, script) = (open(server), redlatch::GuardedScript::new(text));
    let guard = client.mutex("guarded").lock().expect("a grant");
    let (mut bare, mut by_hash) = (rig::connection(server), rig::connection(server));
    let incr = redis::cmd("INCR").arg(COUNT).to_owned();
    let packed = incr.get_packed_command();
    let is_number = |reply: &Value| matches!(reply, Value::Int(_));
    let scripted = evalsha(&mut by_hash, text, &[COUNT], &[]);
    let [bare, by_hash, command, script] = interleaved(
        41,
        Duration::from_millis(25),
        [
            typical(|| assert!(is_number(&ask(&mut bare, &packed)))),
            typical(|| assert!(is_number(&ask(&mut by_hash, &scripted)))),
            typical(|| assert!(is_number(&guard.query(&incr).expect("a reply")))),
            typical(|| {
                let reply = guard.invoke(&script, COUNT, None::<&str>);
                assert!(is_number(&reply.expect("a reply")));
            }),
        ],
    );
    show("INCR", &bare);
    show("INCR in a script", &by_hash);
    show("INCR, guarded", &command);
    show("INCR in a script, guarded", &script);
    for (what, than, rates, by) in [
        ("INCR, guarded", "bare", &command, &bare),
        ("a script, guarded", "bare", &script, &by_hash),
    ] {
        let ratio = by.over(rates);
        table.row(
            format!("{what}, time of {than}"),
            ratio,
            Target::AtMost(1.3),
        );
    }
    guard.unlock().expect("still held");
}

/// Compares the same server's lock with and without TLS.
#[cfg(feature = "tls")]
fn over_tls(table: &mut Table) {
    let server = rig::start_tls();
    let ca = redlatch::TlsConfig::new().ca_pem(support::authority().pem());
    let config = rig::config(server.client_url()).tls(ca);
    beside_plain(&server, config, "with TLS", Target::None, table);
}

/// Compares a client that looks for the master of a slot with one that knows a single server.
fn in_cluster(table: &mut Table) {
    let (cluster, plain) = (rig::start_cluster(), rig::start_another());
    let config = rig::config(format!("redis+cluster://{}/", cluster.addr()));
    beside_plain(&plain, config, "in a cluster", Target::AtMost(1.2), table);
}

/// Compares the same lock by a client of `config` and by a client of the plain server.
fn beside_plain(
    server: &Server,
    config: redlatch::Config,
    what: &str,
    target: Target,
    table: &mut Table,
) {
    let (plain, other) = (
        open(server),
        redlatch::Client::open(config).expect("the server is up"),
    );
    for (end, verb) in [(End::Drop, "drop"), (End::Unlock, "unlock")] {
        let case = |client: &redlatch::Client, name: &str| {
            let lock = Lock::new(client, Kind::Reentrant, &format!("{name}:{verb}"));
            typical(move || lock.pair(end))
        };
        let [without, with] = interleaved(
            41,
            Duration::from_millis(25),
            [case(&plain, "plain"), case(&other, "other")],
        );
        show(&format!("lock + {verb}, plain"), &without);
        show(&format!("lock + {verb}, {what}"), &with);
        table.row(
            format!("lock + {verb} {what}, time of a plain one"),
            without.over(&with),
            target,
        );
    }
    assert_eq!(other.stats().reconnects, 0);
}

/// Compares every kind with the reentrant lock.
fn kinds(server: &Server, table: &mut Table) {
    let client = open(server);
    let one = [
        (Kind::Reentrant, "reentrant lock", Target::None),
        (Kind::Fair, "fair lock", Target::AtMost(1.15)),
        (Kind::Fenced, "fenced lock", Target::AtMost(1.1)),
        (Kind::Write, "rwlock, writing", Target::None),
        (Kind::Read, "rwlock, reading", Target::None),
    ];
    for (end, verb) in [(End::Drop, "drop"), (End::Unlock, "unlock")] {
        let case = |(kind, ..): (Kind, &str, Target)| {
            let lock = Lock::new(&client, kind, &format!("{verb}:{kind:?}"));
            typical(move || lock.pair(end))
        };
        let many = |kind: Kind| -> Case<'_> {
            let mut next = in_turn(names(&client, kind, verb));
            typical(move || next(end))
        };
        let [reentrant, fair, fenced, write, read] = one.map(case);
        let cases = [
            reentrant,
            fair,
            fenced,
            write,
            read,
            many(Kind::Reentrant),
            many(Kind::Spin),
        ];
        let rates = interleaved(41, Duration::from_millis(25), cases);
        let [of_one @ .., many, spin] = &rates;
        for ((kind, what, target), rates) in one.iter().zip(of_one) {
            show(&format!("{what} + {verb}"), rates);
            if *kind != Kind::Reentrant {
                table.row(
                    format!("{what} + {verb}, time of a reentrant lock"),
                    of_one[0].over(rates),
                    *target,
                );
            }
        }
        show(&format!("reentrant lock + {verb}, a name each"), many);
        show(&format!("spin lock + {verb}, a name each"), spin);
        table.row(
            format!("spin lock + {verb}, a name each, time of a reentrant lock"),
            many.over(spin),
            Target::None,
        );
    }
    assert_eq!(client.stats().lost, 0);
}
