use super::*;
use std::sync::Arc;

use std::sync::LazyLock;

use crate::config::server::Server;
use crate::net::call::{Deferred, DeferredInfo};
use crate::net::connection::Settings;
use crate::net::ledger::Ledger;
use crate::net::masters::Masters;
use crate::net::request::Script;
use crate::net::socket::Endpoint;
use crate::net::tests::Nobody;
use crate::net::text::Text;

static RELEASE: LazyLock<Script> = LazyLock::new(|| Script::new("return 0"));

/// A connection to a server that is unreachable.
pub(in crate::net::connection) fn connection(node: usize) -> Connection {
    let server = Server::of("redis://127.0.0.1:1");
    let endpoint = Endpoint::new(server.expect("a good URL"));
    let timeout = Duration::from_secs(1);
    let masters = Arc::new(Masters::new(endpoint, timeout, || {}));
    let settings = Settings {
        connect_timeout: timeout,
        command_timeout: timeout,
        counters: Arc::default(),
        housekeeper: Arc::new(Nobody),
        on_reply: Arc::new(Nobody),
    };
    let ledger = Arc::new(Ledger::new(masters));
    Connection::new("test", node, settings, ledger)
}

pub(in crate::net::connection) fn undo(name: &Arc<str>, useful_until: Instant) -> Arc<Call> {
    let request = Request::script("releasing", &RELEASE, &[name], &["o:1"]);
    let info = DeferredInfo {
        name: Arc::clone(name),
        owner: Text::default(),
        useful_until,
        valid_until: None,
        undo: true,
        has_no_lease: false,
    };
    Call::deferred(Deferred { request, info })
}

#[test]
fn nobody_waits_for_what_an_attempt_owes_once_another_node_has_to_answer_it() {
    let (connection, now) = (connection(0), Instant::now());
    connection.state.lock().pipeline.connected(now);
    let mut last = None;
    for _ in 0..100 {
        let call = last.insert(undo(&"name".into(), now + Duration::from_secs(60)));
        assert!(connection.submit(call).is_some());
    }
    // The node redirects the undo, so another connection sends it.
    last.expect("one").set_node(1);
    let waited = connection.wait_for_backlog(now + Duration::from_secs(60), &|| false);
    assert!(waited.is_ok(), "{waited:?}");
}
