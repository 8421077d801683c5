//! Which Sentinels are asked, for how long, and the error when none of them knows the master.

use std::time::Duration;

use redlatch::{Client, Config, Error};

use crate::support::sentinel::Deployment;
use crate::support::{
    RESPONSE, Server, elsewhere, free_port, in_time, is_waited_for, ms, timed, unique,
};

timed!(the_master_is_found_through_whichever_sentinel_answers);
fn the_master_is_found_through_whichever_sentinel_answers() {
    let deployment = Deployment::start();
    let [one, two, three] = [0, 1, 2].map(|n| deployment.sentinels[n].port());
    let client = Client::open(deployment.config()).unwrap();
    let other = Client::open(deployment.config()).unwrap();
    is_waited_for(&client, &other, &unique("service"), ms(30));
    elsewhere(|| client.mutex(unique("name")).lock().unwrap().unlock()).unwrap();

    // The first address is closed, the second is no Sentinel, the third does not reply.
    let none = Server::start();
    deployment.sentinels[0].freeze();
    let url = Deployment::url_of(&[free_port(), none.port(), one, two, three]);
    let limit = Duration::from_secs(3);
    let found = in_time("finding the master", limit, || {
        Client::open(Config::new(&url))
    });
    let guard = found.unwrap().mutex(unique("found")).lock().unwrap();
    guard.unlock().unwrap();

    // No Sentinel replies. A connection that was used a moment ago needs none.
    let kept = client.mutex(unique("kept"));
    kept.lock().unwrap().unlock().unwrap();
    for sentinel in &deployment.sentinels[1..] {
        sentinel.freeze();
    }
    kept.lock().unwrap().unlock().unwrap();
    let hasty = deployment.config().connect_timeout(RESPONSE);
    let opened = in_time("giving up", RESPONSE, || Client::open(hasty));
    let said = opened.map(|_| ()).unwrap_err().to_string();
    assert!(said.contains("lock service"), "{said}");
    for sentinel in &deployment.sentinels {
        sentinel.thaw();
    }

    let refusal = |url: String| {
        let opened = Client::open(Config::new(url).connect_timeout(ms(2_000)));
        let err = opened.map(|_| ()).unwrap_err();
        assert!(matches!(err, Error::Redis { .. }), "{err:?}");
        assert!(!err.to_string().contains("cret"), "{err}");
        err.to_string()
    };
    let known = Deployment::url_of(&[one, two]);
    let said = refusal(known.replace("lock%20service", "other"));
    assert!(
        said.contains("knows no such service") && said.contains(&one.to_string()),
        "{said}"
    );
    let said = refusal(known.replace("s3nt", "wrong"));
    assert!(said.contains("WRONGPASS"), "{said}");
    let said = refusal(known.replace("se:cret", "wrong"));
    assert!(said.contains("WRONGPASS"), "{said}");
    let plain = format!("redis+sentinel://127.0.0.1:{}/x", none.port());
    let err = Client::open(Config::new(plain)).map(drop).unwrap_err();
    assert!(matches!(err, Error::InvalidSetting { .. }), "{err:?}");
    assert!(err.to_string().contains("it is not a Sentinel"), "{err}");
}
