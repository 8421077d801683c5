//! A server that evicts keys when its memory is full.

use redlatch::Client;

use crate::support::{Server, config, eventually, is_waited_for, logs, ms, unique};

#[test]
fn a_server_that_evicts_keys_is_warned_of_once_per_client() {
    let logs = logs();
    let server = Server::start_with(&["--maxmemory", "1gb", "--maxmemory-policy", "volatile-ttl"]);
    let warned = format!("redis, {}, deletes keys", server.addr());
    let open = || Client::open(config(&server.url())).unwrap();
    let (client, other) = (open(), open());
    eventually("both warn", || logs.count(log::Level::Warn, &warned) == 2);
    let about = logs.about(&warned);
    assert!(
        about[0].1.contains("maxmemory-policy volatile-ttl"),
        "{about:?}"
    );
    is_waited_for(&client, &other, &unique("evicted"), ms(20));
    server.kill_clients_named("");
    is_waited_for(&client, &other, &unique("evicted"), ms(20));
    // Closing the clients waits for their log records.
    for each in [client, other] {
        each.close(ms(2_000)).unwrap();
    }
    assert_eq!(logs.about(&warned).len(), 2);

    // No warning follows if the client may not ask, or if the server does not evict.
    server.cli(&[
        "ACL", "SETUSER", "shy", "on", ">pw", "~*", "&*", "+@all", "-info",
    ]);
    let shy = server.url().replace("redis://", "redis://shy:pw@");
    let silent = |url: &str| {
        let client = Client::open(config(url)).unwrap();
        client.mutex(unique("m")).lock().unwrap().unlock().unwrap();
        client.close(ms(2_000)).unwrap();
        assert_eq!(logs.about(&warned).len(), 2);
    };
    silent(&shy);
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    silent(&server.url());
    server.cli(&["CONFIG", "SET", "maxmemory", "1gb"]);
    server.cli(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    silent(&server.url());
}
