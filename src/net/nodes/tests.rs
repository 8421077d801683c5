use super::*;

use std::sync::LazyLock;
use std::sync::atomic::AtomicUsize;

use crate::config::server::Server;
use crate::net::call::{Deferred, DeferredInfo, OnReply};
use crate::net::request::{Request, Script};
use crate::net::slot::slot_of;
use crate::net::socket::Endpoint;
use crate::net::tests::Nobody;
use crate::net::text::Text;
use crate::verdict::Redirection;

static RELEASE: LazyLock<Script> = LazyLock::new(|| Script::new("return 0"));

#[derive(Default)]
struct Releases {
    given_up: AtomicUsize,
}

impl OnReply for Releases {
    fn released(&self, _: &DeferredInfo, _: &Value, _: bool) {}

    fn given_up(&self, _: &DeferredInfo, _: &RedisError) {
        self.given_up.fetch_add(1, Ordering::SeqCst);
    }
}

/// A client's connections to nodes that are unreachable.
fn nodes(releases: &Arc<Releases>) -> Arc<Nodes> {
    at("redis+cluster://127.0.0.1:1/", releases)
}

fn at(url: &str, releases: &Arc<Releases>) -> Arc<Nodes> {
    let server = Server::of(url);
    let endpoint = Endpoint::new(server.expect("a good URL"));
    let timeout = Duration::from_secs(1);
    let map = Masters::new(endpoint, timeout, || {});
    let settings = Settings {
        connect_timeout: timeout,
        command_timeout: timeout,
        counters: Arc::default(),
        housekeeper: Arc::new(Nobody),
        on_reply: Arc::clone(releases) as _,
    };
    Nodes::new(Arc::new(map), socket::COMMANDS, settings)
}

fn says(line: &str) -> Value {
    let value = redis::parse_redis_value(format!("-{line}\r\n").as_bytes());
    value.expect("a reply")
}

/// The master of a key is that with this port.
fn has_moved(nodes: &Nodes, key: &str, port: u16) -> Redirection {
    let moved = Redirection {
        slot: slot_of(key.as_bytes()),
        host: "127.0.0.1".into(),
        port,
        is_asking: false,
    };
    nodes.map.redirected(0, &moved);
    moved
}

fn release(key: &str) -> Arc<Call> {
    Call::deferred(Deferred {
        request: Request::script("releasing", &RELEASE, &[key], &["o:1"]),
        info: DeferredInfo {
            name: key.into(),
            owner: Text::default(),
            useful_until: Instant::now() + Duration::from_secs(60),
            valid_until: None,
            undo: false,
            has_no_lease: false,
        },
    })
}

#[test]
fn a_release_that_is_redirected_before_the_client_is_closed_counts_as_given_up() {
    let nodes = nodes(&Arc::default());
    let moved = has_moved(&nodes, "a", 1);
    assert_eq!(nodes.submit(&release("a")), None, "it is kept");
    for is_asking in [false, true] {
        let redirection = Redirection {
            is_asking,
            ..moved.clone()
        };
        nodes.ledger.redirect(&release("a"), 0, &redirection);
    }
    assert_eq!(nodes.close(), (3, 0));
    assert_eq!(nodes.close(), (0, 0));
}

#[test]
fn a_node_keeps_its_connection_however_many_there_are_and_a_closed_client_has_no_open_one() {
    let nodes = nodes(&Arc::default());
    for port in 1..=50 {
        has_moved(&nodes, "a", port);
    }
    let numbers = [0, 40, 15, 16, 33];
    let connections = numbers.map(|node| Arc::clone(nodes.connection(node)));
    for (node, connection) in numbers.into_iter().zip(&connections) {
        assert_eq!(connection.node, node);
        assert!(Arc::ptr_eq(connection, nodes.connection(node)));
    }
    let all = nodes.connections.all().map(|connection| connection.node);
    assert_eq!(all.collect::<Vec<_>>(), [0, 15, 16, 33, 40]);
    nodes.close();
    for node in [40, 41] {
        let up = nodes.connection(node).up(Instant::now(), &|| false);
        assert!(matches!(up, Err(Fault::Closed)));
    }
}

#[test]
fn a_release_is_delivered_without_a_look_at_other_connections() {
    let nodes = nodes(&Arc::default());
    let [a, b] = ["a", "b"].map(release);
    for (port, key) in [(1, "a"), (2, "b")] {
        has_moved(&nodes, key, port);
    }
    for call in [&a, &b] {
        assert_eq!(nodes.submit(call), None, "it is kept");
    }
    let other = nodes.at(&b);
    assert_ne!(other.node, nodes.at(&a).node);
    let (done, is_done) = crossbeam_channel::bounded(1);
    let used = other.while_used();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            nodes.at(&a).deliver();
            done.send(()).expect("somebody waits");
        });
        let done = is_done.recv_timeout(Duration::from_secs(60));
        drop(used);
        assert!(done.is_ok(), "it waits for the other");
    });
}

#[test]
fn other_duties_are_looked_after_while_the_releases_of_an_outage_are_given_up() {
    let releases = Arc::default();
    let nodes = at("redis://127.0.0.1:1/", &releases);
    for _ in 0..4 * USELESS {
        let mut release = release("a");
        let deferred = Arc::get_mut(&mut release).and_then(|call| call.deferred.as_mut());
        deferred.expect("a release").useful_until = Instant::now();
        assert_eq!(nodes.submit(&release), None, "it is kept");
    }
    for step in 1..=5 {
        let is_last = nodes.housekeep() == WorkLeft::Nothing;
        assert_eq!(is_last, step == 5, "step {step}");
        let given_up = releases.given_up.load(Ordering::SeqCst);
        assert_eq!(given_up, USELESS * step.min(4));
    }
}

#[test]
fn a_redirection_that_is_not_understood_is_shown_as_it_is() {
    let nodes = nodes(&Arc::default());
    let single = at("redis://127.0.0.1:1/", &Arc::default());
    for (nodes, is_one) in [(nodes, false), (single, true)] {
        let call = release("a");
        let said = nodes.verdict(
            says("MOVED somewhere"),
            &call,
            RequestKind::Waited,
            nodes.at(&call),
            1,
        );
        let Verdict::Never(err) = said else {
            panic!("{said:?}");
        };
        let shown = err.to_string();
        assert!(shown.contains("somewhere"), "{shown}");
        assert_eq!(shown.contains("redis+cluster"), is_one, "{shown}");
    }
}

#[test]
fn a_sending_that_the_server_has_rejected_does_not_count() {
    let nodes = nodes(&Arc::default());
    let rejections = [
        ("NOSCRIPT No matching script", false),
        ("LOADING Redis is loading the dataset in memory", false),
        ("WRONGTYPE Operation against a key", true),
    ];
    for (text, has_run) in rejections {
        let call = release("a");
        call.state.lock().begin_sending();
        nodes.verdict(says(text), &call, RequestKind::Waited, nodes.at(&call), 1);
        assert_eq!(call.was_sent(), has_run, "{text}");
    }
}

#[test]
fn a_connection_in_doubt_is_waited_for_until_the_time_is_up() {
    // Accepts connections, and says nothing.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = silent.local_addr().expect("an address").port();
    let nodes = at(
        &format!("redis+cluster://127.0.0.1:{port}/"),
        &Arc::default(),
    );
    has_moved(&nodes, "a", port);
    let (call, began) = (release("a"), Instant::now());
    let node = nodes.destination(&call).expect("a node");
    let doubted_until = began + Duration::from_secs(60);
    nodes.connection(node).set_doubted_until(doubted_until);
    let until = began + 4 * socket::SLICE;
    assert!(nodes.up(&call, until, &|| false).is_err());
    assert!(Instant::now() >= until, "{:?}", began.elapsed());
}
