//! The rights that the guide names.

use super::is_redis_6;

/// Pages of the guide.
pub(crate) const OPERATIONS: &str = include_str!("../../../../src/guide/operations.md");
pub(crate) const DEPLOYMENTS: &str = include_str!("../../../../src/guide/deployments.md");

/// The command that a page gives for a user, as far as this server knows its words.
pub(crate) fn acl_line(page: &'static str, user: &str) -> Vec<&'static str> {
    let begins = format!("ACL SETUSER {user} ");
    let line = page.lines().find(|line| line.starts_with(&begins));
    // Redis 6.2 knows no sharded channels.
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
