//! The rights that the guide gives are sufficient for every kind of lock, with and without contention.

use std::time::Duration;

use redlatch::{Client, Error, RedLock, ReplicaAck};

use crate::support::rights::{
    OPERATIONS, acl_line, every_lock_works, hands_over, nothing_was_refused,
};
use crate::support::{Server, eventually, loosely, lua, ms, settings_as, timed};

// Some commands run only after a waiter died or a key was evicted, so check the sources of the scripts.
#[test]
fn every_command_of_the_scripts_is_among_the_rights_in_the_guide() {
    let rights: Vec<_> = acl_line(OPERATIONS, "locker")
        .into_iter()
        .filter_map(|word| word.strip_prefix('+')?.split('|').next())
        .collect();
    let mut command_count = 0;
    for (file, script) in lua::ALL {
        for call in script.split("call('").skip(1) {
            let command = call.split('\'').next().unwrap();
            assert!(rights.contains(&command), "{command} of {file}");
            command_count += 1;
        }
    }
    assert!(command_count > 100, "only {command_count} commands");
}

/// A client with exactly the rights of the guide.
fn open(server: &Server) -> Client {
    let config = settings_as(server, "locker:secret@", "");
    let lease = loosely(Duration::from_millis(300));
    Client::open(config.key_prefix("shop:").lease(lease)).unwrap()
}

timed!(the_rights_in_the_guide_are_enough_for_every_lock);
fn the_rights_in_the_guide_are_enough_for_every_lock() {
    let servers = [(); 3].map(|()| Server::start());
    for server in &servers {
        server.cli(&acl_line(OPERATIONS, "locker"));
    }
    let [client, other] = [open(&servers[0]), open(&servers[0])];
    let [second, third] = [open(&servers[1]), open(&servers[2])];
    // The second name contains braces, which changes how the other keys are named.
    for name in ["plain", "in{braces}"] {
        every_lock_works([&client, &other], name, |_, command| {
            servers[0].cli(command);
        });
        let n = format!("red:{name}");
        let red = RedLock::new([&client, &second, &third], &n).unwrap();
        let (two, three) = (second.clone(), third.clone());
        hands_over(
            [&client, &other],
            |_| red.lock(),
            move |c| RedLock::new([c, &two, &three], &n)?.lock(),
        );
        eventually("all are up for a second", || {
            let grown = red.clone().min_uptime(ms(10));
            grown
                .try_lock()
                .is_ok_and(|guard| guard.is_some_and(|guard| guard.is_valid()))
        });
        let guard = red.lock().unwrap();
        let renewed = client.stats().renewals + 1;
        eventually("the hold is renewed", || client.stats().renewals > renewed);
        assert!(red.is_locked().unwrap() && red.remaining_lease().unwrap().is_some());
        assert!(red.force_unlock().unwrap());
        assert!(guard.unlock().is_err());
    }
    for client in [&client, &other, &second, &third] {
        nothing_was_refused(client);
    }
    // Operations of administrators, and optional settings.
    let guard = client.mutex("seen").lock().unwrap();
    let info = client.inspect("seen").unwrap();
    assert_eq!((info.held, &*info.unknown), (1, &[] as &[String]));
    assert_eq!(client.locks("*").filter(Result::is_ok).count(), 1);
    assert!(client.force_unlock_owner("seen", guard.owner()).unwrap());
    servers[0].cli(&["SET", "shop:text", "x"]);
    let wrong = client.mutex("text").lock().unwrap_err().to_string();
    assert!(wrong.contains("holds a string"), "{wrong}");
    let config = settings_as(&servers[0], "locker:secret@", "3").key_prefix("shop:");
    drop(Client::open(config).unwrap().mutex("three").lock().unwrap());
    let config = settings_as(&servers[0], "locker:secret@", "").key_prefix("shop:");
    let config = config.replica_ack(ReplicaAck::AtLeast(1));
    let acked = Client::open(config).unwrap().mutex("acked").lock();
    assert!(
        matches!(acked, Err(Error::NotReplicated { .. })),
        "{acked:?}"
    );
    // Redis logs every command that it rejected.
    for server in &servers {
        let refused: Vec<redis::Value> = server.ask(&["ACL", "LOG"]);
        assert!(refused.is_empty(), "{refused:?}");
    }
}

#[cfg(feature = "tls")]
timed!(they_are_enough_over_tls);
#[cfg(feature = "tls")]
fn they_are_enough_over_tls() {
    crate::support::over_tls(&|| {
        let server = Server::start();
        server.cli(&acl_line(OPERATIONS, "locker"));
        let [client, other] = [open(&server), open(&server)];
        every_lock_works([&client, &other], "tls", |_, command| {
            server.cli(command);
        });
        nothing_was_refused(&client);
        nothing_was_refused(&other);
        // Without the scripts' commands nothing works, which shows that the test used these rights.
        server.cli(&["ACL", "SETUSER", "locker", "-evalsha", "-eval"]);
        assert!(client.mutex("none").lock().is_err());
    });
}
