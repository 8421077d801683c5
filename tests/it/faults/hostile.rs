//! The server sends malformed or malicious replies, or is no Redis: every call ends by its deadline, memory use is
//! bounded, and the client uses a sane server as soon as there is one.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use redlatch::{Client, Config, Error, ReplicaAck};

use crate::support::{
    Adversary, Crew, Dice, GENEROUS, Proxy, Server, Target, after_the_greeting, client,
    commands_in, config, eventually, greeted, logs, ms, once, scoped, settings, timed, unique,
    within,
};

/// The `command_timeout` of these tests.
const HASTY: Duration = ms(120);

/// The time limit of each wait.
const WAIT: Duration = ms(40);

fn hasty(url: &str) -> Config {
    config(url).command_timeout(HASTY).connect_timeout(HASTY)
}

/// Runs `work` on a thread of its own, and fails if `work` does not end.
#[track_caller]
fn ends<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let result = Arc::new(Mutex::new(None));
    let mut crew = Crew::new();
    let place = Arc::clone(&result);
    crew.spawn(move || *place.lock().unwrap() = Some(work()));
    // `work` is many calls, each of which may take until its deadline.
    assert!(within(3 * GENEROUS, || crew.is_finished()), "{what} hangs");
    crew.join();
    let mut result = result.lock().unwrap();
    result.take().expect("a result")
}

/// Makes a call of each kind, and returns each result.
fn one_of_each(client: &Client, name: &str) -> Vec<(&'static str, redlatch::Result<()>)> {
    let n = |kind: &str| format!("{name}:{kind}");
    let rw = client.rw_lock(n("rw"));
    let semaphore = client.semaphore(n("semaphore"));
    let slots = client.expirable_semaphore(n("slots"));
    let latch = client.latch(n("latch"));
    vec![
        (
            "lock",
            client
                .reentrant_lock(n("lock"))
                .try_lock_for(WAIT)
                .map(drop),
        ),
        ("mutex", client.mutex(n("mutex")).try_lock().map(drop)),
        (
            "fair",
            client.fair_lock(n("fair")).try_lock_for(WAIT).map(drop),
        ),
        (
            "fenced",
            client.fenced_lock(n("fenced")).try_lock_for(WAIT).map(drop),
        ),
        (
            "spin",
            client.spin_lock(n("spin")).try_lock_for(WAIT).map(drop),
        ),
        ("read", rw.try_read_for(WAIT).map(drop)),
        ("write", rw.try_write_for(WAIT).map(drop)),
        (
            "multi",
            client
                .multi_lock([n("a"), n("b")])
                .try_lock_for(WAIT)
                .map(drop),
        ),
        ("permits", semaphore.try_acquire_for(WAIT).map(drop)),
        ("available", semaphore.available_permits().map(drop)),
        ("drained", semaphore.drain_permits().map(drop)),
        ("slots", slots.try_acquire_for(WAIT).map(drop)),
        ("latch", latch.wait_for(WAIT).map(drop)),
        ("count", latch.count().map(drop)),
        ("force", client.mutex(n("mutex")).force_unlock().map(drop)),
        ("locked", client.fair_lock(n("fair")).is_locked().map(drop)),
    ]
}

/// The whole life of a client: opens it, makes one call of each kind, closes it.
fn a_whole_life(config: Config, name: String) -> Vec<(&'static str, redlatch::Result<()>)> {
    let client = match Client::open(config) {
        Ok(client) => client,
        Err(err) => return vec![("open", Err(err))],
    };
    let held = client.mutex(format!("{name}:held")).try_lock();
    let mut done = one_of_each(&client, &name);
    drop(held);
    done.push(("close", client.close(ms(200))));
    done
}

/// Bytes that are no reply of a server, or too large a reply, each with a part of the error's text.
fn bad_replies() -> Vec<(Vec<u8>, &'static str)> {
    const LIMIT: &str = "the most that is read";
    const NONE: &str = "of redis";
    vec![
        (b"$999999999999\r\nabc".to_vec(), LIMIT),
        (b"*1000000000\r\n:1\r\n:1\r\n".to_vec(), LIMIT),
        ("*1\r\n".repeat(100_000).into_bytes(), LIMIT),
        (vec![b'+'; 3_000_000], LIMIT),
        ([b"-ERR ".to_vec(), vec![b'x'; 3_000_000]].concat(), LIMIT),
        (
            format!(
                "*20\r\n{}",
                format!("$100000\r\n{}\r\n", "x".repeat(100_000)).repeat(20)
            )
            .into_bytes(),
            LIMIT,
        ),
        (
            b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n".to_vec(),
            NONE,
        ),
        (b"_\r\n".to_vec(), NONE),
        (b"%1\r\n+a\r\n+b\r\n".to_vec(), NONE),
        (b">2\r\n+a\r\n+b\r\n".to_vec(), NONE),
        (b"$3\r\nabcdef\r\n".to_vec(), NONE),
        (b":x\r\n".to_vec(), NONE),
        (b"*2\r\n$1\r\na\r\n".to_vec(), ""), // not complete
        (b"+PO".to_vec(), ""),
        (b"*2\r\n+a\r\n-ERR b\r\n".to_vec(), ""),
        (b"+OK\r\n".repeat(9), "unexpected reply"), // more replies than commands
    ]
}

timed!(a_reply_that_is_none_is_an_error_that_says_so_and_the_next_server_is_used);
fn a_reply_that_is_none_is_an_error_that_says_so_and_the_next_server_is_used() {
    let server = Server::start();
    let unharmed = client(&server.url());
    scoped(|scope| {
        for (sent, says) in bad_replies() {
            let (server, unharmed) = (&server, &unharmed);
            scope.spawn(move || {
                let begin = String::from_utf8_lossy(&sent[..sent.len().min(20)]).into_owned();
                let proxy = Proxy::start(server.addr());
                // Replies of 3 MB pass the proxy and are read beside twenty other clients.
                let config = hasty(&proxy.url()).command_timeout(ms(500));
                let client = Client::open(config.connect_timeout(ms(500))).unwrap();
                let name = unique("bad");
                let lock = client.mutex(&name);
                drop(lock.try_lock().unwrap().unwrap());
                let replies = sent.clone();
                proxy.rewrite_replies(Target::Link, move |_| replies.clone());
                // On a busy machine a call may reach its deadline before the bad reply, so repeat it.
                eventually(&format!("{begin}: {says}"), || {
                    let (asking, asked) = (client.clone(), name.clone());
                    let said = ends(&begin, move || asking.mutex(asked).try_lock().map(drop));
                    let err = said.expect_err(&begin);
                    let text = err.to_string();
                    assert!(matches!(err, Error::Redis { .. }), "{begin}: {err:?}");
                    assert!(text.contains(&proxy.port().to_string()), "{begin}: {text}");
                    assert!(text.len() < 1000, "{begin}: {} bytes", text.len());
                    text.contains(says)
                });

                // Opening another client fails with the same address in its error.
                let url = proxy.url();
                let opened = ends(&begin, move || Client::open(hasty(&url)).map(drop));
                let said = opened.expect_err(&begin).to_string();
                assert!(said.contains(&proxy.port().to_string()), "{begin}: {said}");

                drop(
                    unharmed
                        .mutex(&name)
                        .try_lock_for(GENEROUS)
                        .unwrap()
                        .unwrap(),
                );
                proxy.pass();
                eventually("a sane server is used again", || {
                    matches!(lock.try_lock(), Ok(Some(_)))
                });
            });
        }
    });
}

timed!(the_connections_for_renewals_and_messages_survive_bad_replies);
fn the_connections_for_renewals_and_messages_survive_bad_replies() {
    let server = Server::start();
    let other = client(&server.url());
    scoped(|scope| {
        for (sent, said) in bad_replies().into_iter().step_by(3) {
            // A well-formed reply of the wrong type leaves it unknown whether the hold was renewed, so the hold is
            // lost.
            let is_lost = said == "unexpected reply";
            let (server, other) = (&server, &other);
            scope.spawn(move || {
                let proxy = Proxy::start(server.addr());
                // No reply on the connection for commands is bad here, so that connection keeps the usual, generous
                // timeout.
                let client = Client::open(config(&proxy.url()).lease(ms(1_500))).unwrap();
                let (held, contended) = (unique("held"), unique("contended"));
                let guard = client.mutex(&held).try_lock().unwrap().unwrap();
                let theirs = other
                    .mutex(&contended)
                    .try_lock_for(GENEROUS)
                    .unwrap()
                    .unwrap();
                // The subscriber first, since it has to reconnect within the guard's lease.
                for target in [Target::Subscriber, Target::Watchdog] {
                    let sent = sent.clone();
                    proxy.rewrite_replies(target, move |_| sent.clone());
                    let opened_before = proxy.opened(target);
                    let waiter = client.mutex(&contended);
                    assert!(waiter.try_lock_for(ms(20)).unwrap().is_none());
                    // Without messages, the waiter polls.
                    eventually(&format!("{target:?} connects anew"), || {
                        assert!(waiter.try_lock_for(ms(20)).unwrap().is_none());
                        proxy.opened(target) > opened_before || is_lost && !guard.is_valid()
                    });
                    proxy.pass();
                    let renewed = client.stats().renewals;
                    eventually("it is renewed", || {
                        client.stats().renewals > renewed || is_lost && !guard.is_valid()
                    });
                }
                let waiter = client.mutex(&contended);
                let waiting =
                    scope.spawn(move || waiter.try_lock_for(GENEROUS).map(|got| got.is_some()));
                thread::sleep(ms(20));
                drop(theirs);
                assert!(waiting.join().unwrap().unwrap());
                assert_eq!(guard.is_valid(), !is_lost);
                drop(guard);
            });
        }
    });
}

/// Appends a random reply, well formed in most cases.
fn anything(dice: &mut Dice, depth: usize, sent: &mut Vec<u8>) {
    let numbers = [
        "-9223372036854775808",
        "-3",
        "-2",
        "-1",
        "0",
        "1",
        "2",
        "16383",
        "16384",
        "9223372036854775807",
    ];
    let words = [
        "",
        "OK",
        "PONG",
        "1",
        "-1",
        "message",
        "subscribe",
        "smessage",
        "master",
        "slave",
        "run_id:\r\n",
        "18446744073709551615",
        "127.0.0.1",
        "\u{fffd}",
    ];
    let errors = [
        "ERR x",
        "NOSCRIPT x",
        "MOVED 1 127.0.0.1:1",
        "MOVED 16383 :0",
        "ASK 0 ?:1",
        "READONLY x",
        "LOADING x",
        "BUSY x",
        "NOAUTH x",
        "WRONGTYPE x",
        "OOM x",
        "NOPERM x",
        "CLUSTERDOWN x",
        "TRYAGAIN x",
        "MASTERDOWN x",
        "ERR max number of clients reached",
    ];
    let number = numbers[dice.draw(numbers.len())];
    let word = words[dice.draw(words.len())];
    match dice.draw(if depth == 0 { 9 } else { 13 }) {
        0..=2 => sent.extend(format!(":{number}\r\n").bytes()),
        3..=4 => sent.extend(format!("${}\r\n{word}\r\n", word.len()).bytes()),
        5 => sent.extend(b"$-1\r\n"),
        6 => sent.extend(b"+OK\r\n"),
        7 => sent.extend(b"+PONG\r\n"),
        8 => sent.extend(format!("-{}\r\n", errors[dice.draw(errors.len())]).bytes()),
        _ => {
            let of = dice.draw(5);
            sent.extend(format!("*{of}\r\n").bytes());
            for _ in 0..of {
                anything(dice, depth - 1, sent);
            }
        }
    }
}

/// Changes, inserts or cuts off some bytes.
fn spoiled(dice: &mut Dice, mut sent: Vec<u8>) -> Vec<u8> {
    while !sent.is_empty() && dice.draw(3) == 0 {
        let at = dice.draw(sent.len());
        match dice.draw(4) {
            0 => sent[at] = b"+-:$*\r\n019>_%"[dice.draw(13)],
            1 => sent.truncate(at),
            2 => sent.insert(at, b"+-:$*\r\n019"[dice.draw(10)]),
            _ => sent[at] = u8::try_from(dice.draw(256)).unwrap(),
        }
    }
    sent
}

/// The seeds to try: this many, or as many as the variable `FUZZ_CASES` says.
fn seeds(seeds: u64) -> std::ops::Range<u64> {
    let asked = std::env::var("FUZZ_CASES").ok();
    0..asked.and_then(|n| n.parse().ok()).unwrap_or(seeds)
}

/// Runs `test` for the seeds, four at a time, and names the seed that failed.
fn for_each_seed(of: std::ops::Range<u64>, test: impl Fn(u64) + Sync) {
    let seeds: Vec<u64> = of.collect();
    scoped(|scope| {
        for part in 0..4 {
            let (seeds, test) = (&seeds, &test);
            scope.spawn(move || {
                for seed in seeds.iter().skip(part).step_by(4) {
                    let tried =
                        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| test(*seed)));
                    assert!(tried.is_ok(), "seed {seed}");
                }
            });
        }
    });
}

fn is_possible(seed: u64, (call, came): (&str, redlatch::Result<()>)) {
    if let Err(err) = came {
        let text = err.to_string();
        assert!(
            text.len() < 2000,
            "seed {seed}, {call}: {} bytes",
            text.len()
        );
        assert!(
            !text.contains(char::is_control),
            "seed {seed}, {call}: {text:?}"
        );
    }
}

#[test]
fn whatever_a_server_says_every_call_ends_and_nothing_panics() {
    let panics = || logs().count(log::Level::Error, "panicked");
    let panics_before = panics();
    for_each_seed(seeds(8), |seed| {
        let dice = std::sync::Mutex::new(Dice::new(seed));
        let greets = seed % 2 == 0;
        let adversary = Adversary::start(move |asked| {
            let mut dice = dice.lock().unwrap();
            let mut sent = Vec::new();
            for command in commands_in(asked) {
                match greeted(&command).filter(|_| greets) {
                    Some(text) => sent.extend(text.bytes()),
                    // A random reply, so that most commands get one.
                    None => anything(&mut dice, 3, &mut sent),
                }
            }
            let spoil = dice.draw(4) == 0;
            once(if spoil {
                spoiled(&mut dice, sent)
            } else {
                sent
            })
        });
        let config = hasty(&adversary.url());
        for outcome in ends(&format!("seed {seed}"), move || {
            a_whole_life(config, unique("any"))
        }) {
            is_possible(seed, outcome);
        }
    });
    assert_eq!(panics(), panics_before);
}

timed!(whatever_becomes_of_the_replies_on_their_way_every_call_ends_and_the_rest_goes_on);
fn whatever_becomes_of_the_replies_on_their_way_every_call_ends_and_the_rest_goes_on() {
    let server = Server::start();
    for_each_seed(seeds(6), |seed| {
        let proxy = Proxy::start(server.addr());
        let url = proxy.url();
        let dice = std::sync::Mutex::new(Dice::new(seed + 1000));
        proxy.rewrite_replies(Target::All, move |replies| {
            let mut dice = dice.lock().unwrap();
            match dice.draw(4) {
                0 => spoiled(&mut dice, replies.to_vec()),
                1 => {
                    let mut sent = Vec::new();
                    anything(&mut dice, 3, &mut sent);
                    sent
                }
                _ => replies.to_vec(),
            }
        });
        let config = hasty(&url);
        for outcome in ends(&format!("seed {seed}"), move || {
            a_whole_life(config, unique("spoiled"))
        }) {
            is_possible(seed, outcome);
        }
        proxy.pass();
        let client = Client::open(hasty(&url).command_timeout(GENEROUS)).unwrap();
        drop(
            client
                .mutex(unique("sane"))
                .try_lock_for(GENEROUS)
                .unwrap()
                .unwrap(),
        );
    });
}

timed!(a_place_that_is_lost_again_and_again_is_an_error);
fn a_place_that_is_lost_again_and_again_is_an_error() {
    let adversary = Adversary::start(after_the_greeting(|_| once(":-3\r\n")));
    let config = hasty(&adversary.url());
    let said = ends("waiting for a fair lock", move || {
        let client = Client::open(config).unwrap();
        let waited = client.fair_lock("fair").try_lock_for(GENEROUS).map(drop);
        (waited, client.mutex("other").try_lock().map(drop))
    });
    for said in [said.0, said.1] {
        let said = said.unwrap_err().to_string();
        assert!(said.contains("unexpected reply int(-3)"), "{said}");
    }
}

timed!(a_fenced_lock_without_a_token_is_none);
fn a_fenced_lock_without_a_token_is_none() {
    let adversary = Adversary::start(after_the_greeting(|_| once("$-1\r\n")));
    let client = Client::open(hasty(&adversary.url())).unwrap();
    assert!(client.mutex("lock").try_lock().unwrap().is_some());
    let said = client
        .fenced_lock("fenced")
        .try_lock()
        .map(drop)
        .unwrap_err();
    assert!(said.to_string().contains("unexpected reply"), "{said}");
}

timed!(a_reply_too_many_is_not_taken_for_that_to_the_next_command);
fn a_reply_too_many_is_not_taken_for_that_to_the_next_command() {
    // Two replies to each command: the lock is held for 9 ms more, and the lock is acquired.
    let adversary = Adversary::start(after_the_greeting(|_| once(":9\r\n$-1\r\n")));
    let client = Client::open(hasty(&adversary.url())).unwrap();
    for _ in 0..3 {
        assert!(client.mutex("lock").try_lock().unwrap().is_none());
    }
    let greeting = Adversary::start(|asked| {
        let sent = commands_in(asked)
            .iter()
            .filter_map(|command| greeted(command))
            .collect::<String>();
        once(sent + "$-1\r\n")
    });
    let said = Client::open(hasty(&greeting.url()))
        .map(drop)
        .unwrap_err()
        .to_string();
    assert!(
        said.contains("a reply arrived that no command asked for"),
        "{said}"
    );
}

timed!(who_gives_a_client_its_own_words_back_is_no_server);
fn who_gives_a_client_its_own_words_back_is_no_server() {
    // A socket connected to itself echoes in this way.
    let echo = Adversary::start(|sent| once(sent));
    // Servers that reply to one command of the greeting with something that belongs to another command.
    let others = ["CLIENT", "PING", "INFO", "AUTH", "SELECT", "WAIT"].map(|asked| {
        Adversary::start(move |sent| {
            let replies = commands_in(sent)
                .into_iter()
                .map(|command| match &*command[0] {
                    name if name == asked => "*0\r\n",
                    "WAIT" => ":0\r\n",
                    _ => greeted(&command).expect("a greeting"),
                });
            once(replies.collect::<String>())
        })
    });
    for strange in others.iter().chain([&echo]) {
        let url = format!("redis://:secret@127.0.0.1:{}/7", strange.port());
        let config = config(&url).replica_ack(ReplicaAck::AtLeast(1));
        let said = Client::open(config).map(drop).unwrap_err().to_string();
        assert!(said.contains("is this a Redis server?"), "{said}");
    }
}

timed!(a_reply_that_no_script_gives_ends_its_connection);
fn a_reply_that_no_script_gives_ends_its_connection() {
    for sent in [
        "+OK\r\n",
        "*5\r\n+EVAL\r\n:1\r\n:1\r\n:1\r\n:1\r\n",
        "*1\r\n*0\r\n",
    ] {
        let adversary = Adversary::start(after_the_greeting(move |_| once(sent)));
        let client = Client::open(hasty(&adversary.url())).unwrap();
        for reconnects in 0..3 {
            let said = client.mutex("lock").try_lock().map(drop).unwrap_err();
            // The second: the reply to the undo of the last attempt has ended the connection.
            let texts = [
                "unexpected reply",
                "a reply arrived that no command asked for",
            ];
            let said = said.to_string();
            assert!(texts.iter().any(|text| said.contains(text)), "{said}");
            eventually("there is another connection", || {
                client.stats().reconnects > reconnects
            });
        }
    }
}

#[test]
fn an_error_that_ends_within_a_character_is_final() {
    // The server's error quotes the first 128 bytes of an argument, which may end within a character.
    let server = Server::start_with(&[
        "--rename-command",
        "EVALSHA",
        "",
        "--rename-command",
        "EVAL",
        "",
    ]);
    let client = Client::open(settings(&server).command_timeout(GENEROUS)).unwrap();
    for shift in 0..3 {
        let name = format!("{}{}", "x".repeat(shift), "é".repeat(100));
        let said = client.mutex(name).try_lock().map(drop).unwrap_err();
        assert!(said.to_string().contains("unknown command"), "{said}");
        assert!(!said.is_retryable(), "{said}");
    }
}

timed!(hostile_sentinels_are_passed_over_in_time);
fn hostile_sentinels_are_passed_over_in_time() {
    use crate::support::endlessly;

    let server = Server::start_with(&[]);
    let port = server.port();
    let named = |host: &str, port: &str| {
        format!(
            "*2\r\n${}\r\n{host}\r\n${}\r\n{port}\r\n",
            host.len(),
            port.len()
        )
    };
    let sane = Adversary::start({
        let named = named("127.0.0.1", &port.to_string());
        after_the_greeting(move |_| once(named.clone()))
    });
    let hostile = |command: Answer| Adversary::start(after_the_greeting(move |_| command()));
    let long = named(&"h".repeat(100_000), "1");
    let no_port = named("h\x1b[2J", &"1".repeat(900_000));
    let nowhere = named("h\n\x1b[2J", "1");
    let sentinels = [
        hostile(Box::new(|| endlessly(vec![b'+'; 100_000]))),
        hostile(Box::new(|| once("$999999999999\r\n"))),
        hostile(Box::new(|| once("*1\r\n".repeat(1000)))),
        hostile(Box::new(move || once(long.clone()))),
        hostile(Box::new(move || once(no_port.clone()))),
        hostile(Box::new(|| once("*2\r\n$1\r\nh\r\n$5\r\n99999\r\n"))),
        hostile(Box::new(|| once(":1\r\n"))),
        hostile(Box::new(|| once("*2\r\n"))),
    ];
    let url = |ports: &[u16]| {
        let hosts: Vec<_> = ports
            .iter()
            .map(|port| format!("127.0.0.1:{port}"))
            .collect();
        format!("redis+sentinel://{}/service", hosts.join(","))
    };
    let liar = hostile(Box::new(move || once(nowhere.clone())));
    let misled = hasty(&url(&[liar.port()]));
    let said = ends("asking", move || Client::open(misled).map(drop)).unwrap_err();
    let said = said.to_string();
    assert!(
        said.contains("[2J:1") && !said.contains(char::is_control),
        "{said:?}"
    );
    let mut ports: Vec<u16> = sentinels.iter().map(Adversary::port).collect();
    let alone = hasty(&url(&ports));
    let said = ends("asking", move || Client::open(alone).map(drop))
        .unwrap_err()
        .to_string();
    assert!(said.contains("no Sentinel has named the master"), "{said}");
    assert!(said.len() < 5000, "{} bytes", said.len());
    assert!(!said.contains(char::is_control), "{said:?}");
    ports.push(sane.port());
    let beside = Config::new(url(&ports));
    let client = ends("asking", move || Client::open(beside)).unwrap();
    drop(
        client
            .mutex(unique("sane"))
            .try_lock_for(GENEROUS)
            .unwrap()
            .unwrap(),
    );
}

type Answer = Box<dyn Fn() -> crate::support::Sent + Send + Sync>;

timed!(hostile_nodes_of_a_cluster_are_passed_over_in_time);
fn hostile_nodes_of_a_cluster_are_passed_over_in_time() {
    let range = |first: u32, last: u32, port: u16| {
        format!("*3\r\n:{first}\r\n:{last}\r\n*3\r\n$9\r\n127.0.0.1\r\n:{port}\r\n$2\r\nid\r\n")
    };
    type Slots = Box<dyn Fn(u16) -> Vec<u8> + Send + Sync>;
    let node = |slots: Slots, rest: &'static str| {
        let port = std::sync::Arc::new(std::sync::OnceLock::new());
        let known = std::sync::Arc::clone(&port);
        let adversary = Adversary::start(after_the_greeting(move |command| {
            let port = *known.wait();
            match command[0].as_str() {
                "CLUSTER" => once(slots(port)),
                _ => once(rest.replace("PORT", &port.to_string())),
            }
        }));
        port.set(adversary.port()).unwrap();
        adversary
    };
    let nodes: [(_, _, _, _); 7] = [
        (
            "no end of ranges",
            Box::new(|_| b"*999999999\r\n".to_vec()) as Slots,
            ":0\r\n",
            ": 127.0.0.1:PORT: a reply has more",
        ),
        (
            "deep",
            Box::new(|_| b"*1\r\n".repeat(1000)),
            ":0\r\n",
            ": 127.0.0.1:PORT: a reply is nested deeper",
        ),
        (
            "ranges beyond the last slot",
            Box::new(move |port| format!("*1\r\n{}", range(0, 16_384, port)).into_bytes()),
            ":0\r\n",
            "127.0.0.1:PORT sent a reply to CLUSTER SLOTS",
        ),
        (
            "ranges that end before they begin",
            Box::new(move |port| format!("*1\r\n{}", range(9, 3, port)).into_bytes()),
            ":0\r\n",
            "127.0.0.1:PORT sent a reply to CLUSTER SLOTS",
        ),
        (
            "a name that clears the screen",
            Box::new(move |port| {
                let range = range(0, 16_383, port).replace("127.0.0.1", "a\n\x1b[2J..b");
                format!("*1\r\n{range}").into_bytes()
            }),
            ":0\r\n",
            "[2J..b:PORT",
        ),
        (
            "a circle",
            Box::new(move |port| format!("*1\r\n{}", range(0, 16_383, port)).into_bytes()),
            "-MOVED 1 127.0.0.1:PORT\r\n",
            "",
        ),
        (
            "always elsewhere",
            Box::new(move |port| format!("*1\r\n{}", range(0, 16_383, port)).into_bytes()),
            "-ASK 1 127.0.0.1:PORT\r\n",
            "",
        ),
    ];
    scoped(|scope| {
        for (case, slots, rest, says) in nodes {
            let node = node(slots, rest);
            scope.spawn(move || {
                let url = format!("redis+cluster://127.0.0.1:{}", node.port());
                // On a busy machine a call may reach its deadline before the bad reply, so repeat it.
                eventually(&format!("{case}: {says}"), || {
                    let config = hasty(&url).connect_timeout(ms(500));
                    let done = ends(case, move || a_whole_life(config, unique("cluster")));
                    let mut errors = done.iter().filter_map(|(_, came)| came.as_ref().err());
                    let text = errors.next().expect(case).to_string();
                    assert!(text.contains(&node.port().to_string()), "{case}: {text}");
                    assert!(!text.contains(char::is_control), "{case}: {text:?}");
                    text.contains(&says.replace("PORT", &node.port().to_string()))
                });
            });
        }
    });
}

// A renewal that is redirected to no address is sent again before the lease ends.
#[test]
fn a_redirection_to_nowhere_does_not_cost_a_lock() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
    let (port, scripts) = (Arc::new(AtomicU16::new(0)), Arc::new(AtomicUsize::new(0)));
    let (its_port, its_scripts) = (Arc::clone(&port), Arc::clone(&scripts));
    let node = Adversary::start(after_the_greeting(move |command| {
        let port = its_port.load(Ordering::SeqCst);
        once(match command[0].as_str() {
            "CLUSTER" => {
                format!("*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:{port}\r\n")
            }
            "EVALSHA" | "EVAL" => match its_scripts.fetch_add(1, Ordering::SeqCst) {
                0 => "$-1\r\n".to_owned(),
                1 => "-MOVED somewhere\r\n".to_owned(),
                _ => ":1\r\n".to_owned(),
            },
            _ => ":0\r\n".to_owned(),
        })
    }));
    port.store(node.port(), Ordering::SeqCst);
    let url = format!("redis+cluster://127.0.0.1:{}", node.port());
    let client = Client::open(Config::new(url).lease(ms(3_000))).unwrap();
    let guard = client.mutex("lock").try_lock().unwrap().unwrap();
    eventually("it is renewed or lost", || {
        client.stats().renewals > 0 || !guard.is_valid()
    });
    assert!(guard.is_valid() && scripts.load(Ordering::SeqCst) >= 3);
}

// A server in protected mode writes its reason unasked and closes the connection.
#[test]
fn why_a_server_hangs_up_at_once_is_said() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}/", listener.local_addr().unwrap());
    scoped(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = listener.accept().unwrap();
            stream
                .write_all(b"-DENIED Redis is running in protected mode because it may\r\n")
                .unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            stream.read_to_end(&mut Vec::new()).ok();
        });
        let opened = Client::open(Config::new(&url).connect_timeout(GENEROUS));
        let said = opened.map(|_| ()).unwrap_err().to_string();
        assert!(said.contains("protected mode"), "{said}");
    });
}
