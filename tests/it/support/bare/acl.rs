//! The ACL lines that the guide gives for each kind of user.

use super::is_redis_6;

/// Pages of the guide that contain ACL lines.
pub(crate) const OPERATIONS: &str = include_str!("../../../../src/guide/operations.md");
pub(crate) const DEPLOYMENTS: &str = include_str!("../../../../src/guide/deployments.md");

/// The words of the `ACL SETUSER` line that `page` gives for `user`, without those that the server under test does not
/// support.
pub(crate) fn acl_line(page: &'static str, user: &str) -> Vec<&'static str> {
    let begins = format!("ACL SETUSER {user} ");
    let line = page.lines().find(|line| line.starts_with(&begins));
    // Redis 6.2 has no sharded pub/sub.
    let sharded = [
        "+spublish",
        "+ssubscribe",
        "+sunsubscribe",
        "+pubsub|shardnumsub",
    ];
    let words = line.expect("the guide has it").split(' ');
    words
        .filter(|word| !is_redis_6() || !sharded.contains(word))
        .collect()
}
