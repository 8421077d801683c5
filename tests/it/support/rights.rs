//! Users that may do what the guide says, and no more.

use redlatch::{Client, Result};

use crate::support::{Crew, is_redis_6};

macro_rules! guide {
    ($page:literal) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/guide/", $page))
    };
}

pub(crate) const OPERATIONS: &str = guide!("operations.md");
#[cfg(any(feature = "cluster", feature = "sentinel"))]
pub(crate) const DEPLOYMENTS: &str = guide!("deployments.md");

/// The command that a page of the guide gives for a user.
pub(crate) fn acl_line(page: &'static str, user: &str) -> Vec<&'static str> {
    let start = format!("ACL SETUSER {user} ");
    let line = page.lines().find(|line| line.starts_with(&start));
    let words = line.expect("a user").split(' ');
    // Redis 6.2 knows no sharded channels.
    let sharded = [
        "+spublish",
        "+ssubscribe",
        "+sunsubscribe",
        "+pubsub|shardnumsub",
    ];
    words
        .filter(|word| !is_redis_6() || !sharded.contains(word))
        .collect()
}

/// Somebody waits with `wait` for what `hold` holds, and gets it.
pub(crate) fn hands_over<G, H: 'static>(
    [client, other]: [&Client; 2],
    hold: impl Fn(&Client) -> Result<G>,
    wait: impl Fn(&Client) -> Result<H> + Send + 'static,
) {
    let guard = hold(client).unwrap();
    let mut crew = Crew::new();
    let other = other.clone();
    crew.spawn(move || drop(wait(&other).unwrap()));
    crew.all_parked();
    drop(guard);
    crew.join();
}
