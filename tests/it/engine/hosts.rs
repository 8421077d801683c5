//! Host names, and hosts with several addresses.

use std::net::{IpAddr, Ipv6Addr, ToSocketAddrs};
use std::process::Command;

use redlatch::Client;

use crate::support::{
    Server, client, config, eventually, is_waited_for, loosely, ms, name_of, nothing_is_left,
    timed, unique,
};

/// Commands, renewals and messages work over this URL.
fn works_over(server: &Server, url: &str) {
    let (holder, waiter) = (
        Client::open(config(url).lease(loosely(ms(600)))).unwrap(),
        client(url),
    );
    let name = unique("host");
    let guard = holder.mutex(&name).lock().unwrap();
    eventually("the hold is renewed", || holder.stats().renewals > 0);
    guard.unlock().unwrap();
    is_waited_for(&holder, &waiter, &name, ms(100));
    for role in ["link", "watchdog", "subscriber"] {
        let connected = server.clients_named(role);
        assert!(!connected.is_empty(), "{role}");
    }
    nothing_is_left(server);
}

timed!(a_host_name_will_do);
fn a_host_name_will_do() {
    let server = Server::start();
    works_over(&server, &format!("redis://localhost:{}/", server.port()));
}

timed!(a_host_name_whose_first_address_refuses_will_do);
fn a_host_name_whose_first_address_refuses_will_do() {
    // A process in its own mount namespace can have its own `/etc/hosts`; some systems do not allow that.
    let hosts = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(hosts.path(), "::1 localhost\n127.0.0.1 localhost\n").unwrap();
    let script =
        r#"mount --bind "$1" /etc/hosts || exit 77; exec "$2" --exact "$3" --ignored --nocapture"#;
    let run = Command::new("unshare")
        .args(["--map-root-user", "--mount", "sh", "-c", script, "sh"])
        .arg(hosts.path())
        .arg(std::env::current_exe().unwrap())
        .arg(name_of(part_with_a_host_of_two_addresses))
        .output();
    match run {
        Ok(run)
            if run.status.code() != Some(77)
                && String::from_utf8_lossy(&run.stdout).contains("running 1 test") =>
        {
            assert!(
                run.status.success(),
                "{}\n{}",
                String::from_utf8_lossy(&run.stdout),
                String::from_utf8_lossy(&run.stderr)
            );
        }
        _ => eprintln!("not tried: no namespace of its own for a process here"),
    }
}

#[test]
#[ignore = "run by another test, in a namespace of its own"]
fn part_with_a_host_of_two_addresses() {
    let server = Server::start(); // on 127.0.0.1 alone
    let addrs: Vec<_> = ("localhost", server.port())
        .to_socket_addrs()
        .unwrap()
        .map(|addr| addr.ip())
        .collect();
    assert_eq!(
        addrs.first(),
        Some(&IpAddr::V6(Ipv6Addr::LOCALHOST)),
        "{addrs:?}"
    );
    works_over(&server, &format!("redis://localhost:{}/", server.port()));
}
