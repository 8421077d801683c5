//! The rights that the guide lists suffice with Sentinels, before and after a failover: for the user of the servers,
//! and for the Sentinels' user that all tests share.

use redlatch::{Client, Config, Error};

use crate::support::rights::{OPERATIONS, acl_line, every_lock_works, nothing_was_refused};
use crate::support::sentinel::{Deployment, ask};
use crate::support::{Server, loosely, ms, timed, unique};

timed!(the_rights_in_the_guide_are_enough_with_sentinels);
fn the_rights_in_the_guide_are_enough_with_sentinels() {
    let deployment = Deployment::start();
    for server in &deployment.servers {
        let () = ask(server, &acl_line(OPERATIONS, "locker"));
    }
    let ports: Vec<_> = deployment.sentinels.iter().map(Server::port).collect();
    let url = Deployment::url_of(&ports).replace("//:se:cret@", "//locker:secret@");
    let config = Config::new(url).key_prefix("shop:");
    let config = config.lease(loosely(ms(300)));
    let open = || Client::open(config.clone());
    let [client, other] = [open().unwrap(), open().unwrap()];
    let on_master = |_: &str, command: &[&str]| {
        let _: redis::Value = ask(&deployment.servers[deployment.named()], command);
    };
    every_lock_works([&client, &other], "first", on_master);
    nothing_was_refused(&client);
    nothing_was_refused(&other);
    // The rights suffice at the new master, too, and for finding it.
    deployment.fail_over();
    deployment.agree();
    every_lock_works([&client, &other], "second", on_master);

    // Each of these rights is necessary.
    let refusal = || match open() {
        Err(err @ Error::Redis { .. }) => err.to_string(),
        other => panic!("{other:?}"),
    };
    let named = deployment.named();
    let master = &deployment.servers[named];
    let () = ask(master, &["ACL", "SETUSER", "locker", "-role"]);
    let said = refusal();
    assert!(said.contains("no permissions"), "{said}");
    let () = ask(master, &["ACL", "SETUSER", "locker", "+role"]);
    client
        .mutex(unique("works"))
        .lock()
        .unwrap()
        .unlock()
        .unwrap();
    for sentinel in &deployment.sentinels {
        sentinel.cli(&[
            "ACL",
            "SETUSER",
            "watcher",
            "-@all",
            "+ping",
            "+client|setname",
        ]);
    }
    let said = refusal();
    assert!(said.contains("no permissions"), "{said}");
}
