//! The rights that the guide names are enough with Sentinels, before and after a failover.

use redlatch::{Client, Config};

use crate::support::rights::{OPERATIONS, acl_line, hands_over};
use crate::support::sentinel::{Deployment, SERVICE, ask};
use crate::support::{Server, timed};

timed!(the_rights_in_the_guide_are_enough_with_sentinels);
fn the_rights_in_the_guide_are_enough_with_sentinels() {
    let deployment = Deployment::start();
    for server in &deployment.servers {
        let () = ask(server, &acl_line(OPERATIONS, "locker"));
    }
    let ports: Vec<_> = deployment.sentinels.iter().map(Server::port).collect();
    let url = Deployment::url_of(&ports).replace("//:se:cret@", "//locker:secret@");
    let open = || Client::open(Config::new(&url).key_prefix("shop:")).unwrap();
    let [client, other] = [open(), open()];
    let all_work = || {
        let both = [&client, &other];
        hands_over(both, |c| c.mutex("a").lock(), |c| c.mutex("a").lock());
        hands_over(
            both,
            |c| c.fair_lock("b").lock(),
            |c| c.fair_lock("b").lock(),
        );
        hands_over(both, |c| c.rwlock("c").read(), |c| c.rwlock("c").write());
    };
    all_work();
    let old = deployment.named();
    let () = deployment.sentinels[0].ask(&["SENTINEL", "FAILOVER", SERVICE]);
    deployment.wait_for_successor(old);
    all_work();
    for client in [&client, &other] {
        assert_eq!(client.stats().lost, 0);
    }
}
