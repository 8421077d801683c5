//! Addresses of every form, and percent-encoding in URLs.

use std::net::{TcpListener, ToSocketAddrs};
use std::os::unix::fs::symlink;

use redis::{ConnectionAddr, IntoConnectionInfo, ProtocolVersion, RedisConnectionInfo};
use redlatch::{Client, Config, Error};

use crate::support::{Server, config, connection_to, eventually, in_haste, skipped, unique};

/// A password with every character that has a meaning in a URL, and its encoded form.
const PASSWORD: &str = "p@:/?#%&+ \u{fc}";
const ENCODED: &str = "p%40%3A%2F%3F%23%25%26%2B%20%C3%BC";

fn locks(url: &str) {
    let client = Client::open(config(url)).unwrap_or_else(|err| panic!("{url}: {err}"));
    let guard = client.mutex(unique("there")).lock().unwrap();
    eventually("it is renewed", || client.stats().renewals > 0);
    guard.unlock().unwrap();
}

#[test]
fn a_server_may_have_an_ipv6_address() {
    let test = "a server at [::1]";
    if let Err(err) = TcpListener::bind("[::1]:0") {
        return skipped(test, &format!("this machine has no such address: {err}"));
    }
    let server = Server::start_with(&["--bind", "::1"]);
    let port = server.port();
    locks(&format!("redis://[::1]:{port}/"));
    let client = Client::open(config(&format!("redis://[::1]:{port}/"))).unwrap();
    let mut unix = connection_to(&server.unix_url());
    let list: String = redis::cmd("CLIENT").arg("LIST").query(&mut unix).unwrap();
    assert!(list.contains("addr=[::1]:"), "{list}");
    drop(client);
    let err = Client::open(config(&format!("redis://[::1]:{}/", port - 1))).unwrap_err();
    assert!(
        err.to_string().contains(&format!("[::1]:{}", port - 1)),
        "{err}"
    );
    let mut local = ("localhost", port).to_socket_addrs().unwrap();
    if local.any(|addr| addr.is_ipv6()) {
        locks(&format!("redis://localhost:{port}/"));
    } else {
        skipped("localhost by IPv6", "the name has no such address here");
    }
}

#[test]
fn the_first_address_of_a_name_need_not_answer() {
    let server = Server::start_with(&[]);
    locks(&format!("redis://localhost:{}/", server.port()));
}

#[test]
fn passwords_and_paths_are_percent_decoded() {
    let server = Server::start_with(&[]);
    let user = format!(">{PASSWORD}");
    server.cli(&["ACL", "SETUSER", "a:b", "on", &user, "~*", "&*", "+@all"]);
    locks(&format!(
        "redis://a%3Ab:{ENCODED}@127.0.0.1:{}/",
        server.port()
    ));
    let dir = tempfile::tempdir().unwrap();
    let odd = dir.path().join("a b%c\u{fc}.sock");
    let unix = server.unix_url();
    symlink(unix.strip_prefix("redis+unix://").unwrap(), &odd).unwrap();
    let dir = dir.path().display();
    let url = format!("redis+unix://{dir}/a%20b%25c%C3%BC.sock");
    locks(&url);
    locks(&format!("{url}?user=a%3Ab&pass={ENCODED}"));
    let refused = Client::open(config(&format!("{url}?user=a%3Ab&pass=other")));
    assert!(refused.unwrap_err().to_string().contains("WRONGPASS"));
    server.cli(&["CONFIG", "SET", "requirepass", PASSWORD]);
    locks(&format!("redis://:{ENCODED}@127.0.0.1:{}/", server.port()));
}

/// The connection settings that a program uses for its other commands lead to the same server, database and user.
#[test]
fn settings_of_the_redis_crate_are_taken_as_they_are() {
    let server = Server::start_with(&[]);
    let user = format!(">{PASSWORD}");
    server.cli(&["ACL", "SETUSER", "a:b", "on", &user, "~*", "&*", "+@all"]);
    let login = RedisConnectionInfo::default()
        .set_username("a:b")
        .set_password(PASSWORD)
        .set_db(3);
    let path = server.unix_url().replace("redis+unix://", "");
    let tcp = ConnectionAddr::Tcp("127.0.0.1".into(), server.port());
    for addr in [tcp, ConnectionAddr::Unix(path.into())] {
        let info = addr.into_connection_info().unwrap();
        let info = info.set_redis_settings(login.clone());
        // A connection of the redis crate proves that the settings are correct.
        let mut theirs = redis::Client::open(info.clone()).unwrap();
        let () = redis::cmd("PING").query(&mut theirs).unwrap();
        drop(theirs);
        let client = Client::open(in_haste(info.clone().into())).unwrap();
        let guard = client.mutex(unique("there")).lock().unwrap();
        eventually("it is renewed", || client.stats().renewals > 0);
        // A connection for commands and one for renewals.
        let our_connections = server.clients_named("");
        let as_told = |line: &str| line.contains(" db=3 ") && line.contains(" user=a:b ");
        assert_eq!(our_connections.len(), 2, "{our_connections:?}");
        assert!(
            our_connections.iter().all(|client| as_told(&client.line)),
            "{our_connections:?}"
        );
        guard.unlock().unwrap();
        drop(client);
        eventually("all are closed", || server.clients_named("").is_empty());

        let wrong = login.clone().set_password("other");
        let refused = Client::open(info.clone().set_redis_settings(wrong));
        assert!(refused.unwrap_err().to_string().contains("WRONGPASS"));
        let other = login.clone().set_protocol(ProtocolVersion::RESP3);
        let refused = Client::open(info.set_redis_settings(other));
        assert!(matches!(refused, Err(Error::InvalidSetting { .. })));
    }
    let config = Config::from_connection_info(("localhost", server.port())).unwrap();
    let client = Client::open(config.key_prefix("shop:")).unwrap();
    let _guard = client.mutex("there").lock().unwrap();
    assert_eq!(server.ask::<u32>(&["EXISTS", "shop:there"]), 1);
}
