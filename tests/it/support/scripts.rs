//! Runs scripts directly by EVALSHA: owners, names, and users with limited rights.

#[path = "../../../src/net/script_error.rs"]
mod script_error;

use redis::{Connection, FromRedisValue, PubSub, RedisError, RedisResult, ToRedisArgs, Value};

use crate::support::{Server, eventually, lua, ms};

/// The hash of a script as it appears in requests.
pub(crate) fn sha(script: &str) -> String {
    redis::Script::new(script).get_hash().to_owned()
}

pub(crate) fn acquire_sha() -> String {
    sha(lua::LOCK_ACQUIRE)
}

pub(crate) fn renew_sha() -> String {
    sha(lua::LOCK_RENEW)
}

pub(crate) const RELEASE: &str = lua::LOCK_RELEASE;

pub(crate) const RENEW: &str = lua::LOCK_RENEW;

pub(crate) const US: &str = "0b7e1c52-6f0a-4f3e-9b8f-1d2c3a4b5c6d:1";

pub(crate) const THEM: &str = "9f8e7d6c-5b4a-4321-8fed-cba987654321:57";

pub(crate) const LEASE: i64 = 30_000;

/// Names with every special character. Scripts get keys as arguments, so no character may have a meaning.
pub(crate) const NAMES: [&str; 9] = [
    "orders",
    "stock:{42}",
    "half{brace",
    "half}brace",
    "two words",
    "line\r\nbreak",
    "nul\0byte",
    "🔒 žluťoučký",
    "*?[a]\\'\"%s",
];

/// The key of a request that counts once.
pub(crate) const REQUEST: &str = "the:request:1";

pub(crate) fn channel(name: &str) -> String {
    if name.contains('{') {
        format!("redisson_lock__channel:{name}")
    } else {
        format!("redisson_lock__channel:{{{name}}}")
    }
}

pub(crate) fn run<T: FromRedisValue>(
    con: &mut Connection,
    script: &str,
    keys: &[&str],
    args: &[&str],
) -> RedisResult<T> {
    evalsha(con, script, keys, args)
}

/// [`run`] for keys and arguments of any type.
pub(crate) fn evalsha<T: FromRedisValue>(
    con: &mut Connection,
    script: &str,
    keys: &[impl ToRedisArgs],
    args: &[impl ToRedisArgs],
) -> RedisResult<T> {
    let sha: String = redis::cmd("SCRIPT").arg("LOAD").arg(script).query(con)?;
    redis::cmd("EVALSHA")
        .arg(sha)
        .arg(keys.len())
        .arg(keys)
        .arg(args)
        .query(con)
        .map_err(plain)
}

/// The error as the crate reports it, independent of the server's version.
pub(crate) fn plain(err: RedisError) -> RedisError {
    let Some(code) = err.code() else {
        return err;
    };
    let line = format!("-{code} {}\r\n", err.detail().unwrap_or_default());
    match redis::parse_redis_value(line.as_bytes()) {
        Ok(Value::ServerError(err)) => Value::ServerError(script_error::plain(err))
            .extract_error()
            .unwrap_err(),
        _ => err,
    }
}

/// Acquires the lock by hand, as Redisson does.
pub(crate) fn as_redisson(server: &Server, name: &str, owner: &str, count: &str, lease: i64) {
    let () = server.ask(&["HINCRBY", name, owner, count]);
    let () = server.ask(&["PEXPIRE", name, &lease.to_string()]);
}

/// Asserts that `ttl_left` is at most `most`, and less only by what a slow machine may use up.
#[track_caller]
pub(crate) fn assert_left(ttl_left: i64, most: i64) {
    assert!(
        (most - 10_000..=most).contains(&ttl_left),
        "{ttl_left} ms left of {most}"
    );
}

/// Subscribes to every channel, so that a message on a wrong channel is seen as well.
pub(crate) fn listen_to_all(con: &mut Connection) -> PubSub<'_> {
    con.set_read_timeout(Some(ms(10_000))).unwrap();
    let mut pubsub = con.as_pubsub();
    pubsub.psubscribe("*").unwrap();
    pubsub
}

/// The messages since the last call, as channel and payload.
pub(crate) fn messages(server: &Server, pubsub: &mut PubSub<'_>) -> Vec<(String, String)> {
    let () = server.ask(&["PUBLISH", "end", "end"]);
    let mut heard = Vec::new();
    loop {
        let message = pubsub.get_message().unwrap();
        let channel = message.get_channel_name().to_owned();
        if channel == "end" {
            return heard;
        }
        heard.push((channel, message.get_payload().unwrap()));
    }
}

/// Logs `con` in as a user that may neither publish nor subscribe.
pub(crate) fn forbid_channels(server: &Server, con: &mut Connection) {
    let () = server.ask(&[
        "ACL",
        "SETUSER",
        "deaf",
        "on",
        ">pw",
        "~*",
        "+@all",
        "resetchannels",
    ]);
    let () = redis::cmd("AUTH").arg("deaf").arg("pw").query(con).unwrap();
    let refused = redis::cmd("PUBLISH").arg("c").arg("m").query::<()>(con);
    assert_eq!(refused.unwrap_err().code(), Some("NOPERM"));
}

/// Logs `con` in as a user that may do everything except `command`.
pub(crate) fn forbid(server: &Server, con: &mut Connection, command: &str) {
    let not = format!("-{command}");
    let () = server.ask(&[
        "ACL", "SETUSER", "hasty", "on", ">pw", "~*", "&*", "+@all", &not,
    ]);
    let () = redis::cmd("AUTH")
        .arg("hasty")
        .arg("pw")
        .query(con)
        .unwrap();
}

/// Makes the server reject every write that needs memory (OOM).
pub(crate) fn out_of_memory(server: &Server) {
    let () = server.ask(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    let () = server.ask(&["CONFIG", "SET", "maxmemory", "1"]);
}

/// Makes the server reject every write with MISCONF, since its snapshots fail. The server must be started with
/// `--dbfilename no-such-name.rdb`.
pub(crate) fn cannot_save(server: &Server) {
    let () = server.ask(&["CONFIG", "SET", "save", "3600 1"]);
    let dir: (String, String) = server.ask(&["CONFIG", "GET", "dir"]);
    std::fs::create_dir(format!("{}/no-such-name.rdb", dir.1)).unwrap();
    let () = server.ask(&["SET", "dirty", "1", "PX", "60000"]);
    let () = server.ask(&["BGSAVE"]);
    eventually("it refuses writes", || {
        let set = server.try_ask::<String>(&["SET", "dirty", "2", "PX", "60000"]);
        set.is_err_and(|err| err.code() == Some("MISCONF"))
    });
}
