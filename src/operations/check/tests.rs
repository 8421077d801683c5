use super::*;

use crate::config::Config;

#[test]
fn clocks_differ_by_what_asking_cannot_explain() {
    let clock = |name: &str, least, most| (name.to_owned(), least, most);
    assert_eq!(skewed(&[]), None);
    let near = [clock("a", 0, 5), clock("b", 900, 1004)];
    assert_eq!(skewed(&near), None);
    let far = [clock("a", 0, 5), clock("b", 1005, 1500)];
    let found = skewed(&far).expect("they differ");
    assert_eq!(found.what, "its clock is 1000 ms ahead of that of a");
}

#[test]
fn who_could_protect_keys_is_told_that_locks_are_new_keys() {
    let speaks_of_it = |is_redis, version| eviction_advice(is_redis, version).contains("BLESS");
    assert!(speaks_of_it(true, (8, 12)) && speaks_of_it(true, (9, 0)));
    assert!(!speaks_of_it(true, (8, 8)) && !speaks_of_it(false, (9, 1)));
    assert!(eviction_advice(true, BLESSES).contains(eviction_advice(true, OLDEST)));
}

#[test]
fn what_a_refusal_asks_for_is_the_right() {
    let args = |args: &[&str]| args.iter().map(|arg| (*arg).to_owned()).collect::<Vec<_>>();
    let said = |text: &str| Value::BulkString(text.into());
    let answered = |of: &[&str], text: &str, is_asked| lacks(&args(of), said(text), is_asked);
    let lacks = |of: &[&str], text: &str| answered(of, text, true);
    let run = "User locker has no permissions to run the 'hset' command";
    assert_eq!(
        lacks(&["hset", "k", "1", "1"], run).as_deref(),
        Some("+hset")
    );
    let run = "User locker has no permissions to run the 'client|list' command";
    assert_eq!(
        lacks(&["client", "list"], run).as_deref(),
        Some("+client|list")
    );
    let key = "User locker has no permissions to access the 'k' key";
    assert_eq!(lacks(&["del", "k"], key).as_deref(), Some("~k"));
    let channel = "User locker has no permissions to access the 'c' channel";
    assert_eq!(
        lacks(&["publish", "c", "0"], channel).as_deref(),
        Some("&c")
    );
    assert_eq!(lacks(&["del", "k"], "OK"), None);
    // Channels of scripts are keys as well, and names may contain any word.
    let key = "User channel has no permissions to access the 'command__channel:{k}' key";
    let found = lacks(&["del", "command__channel:{k}"], key);
    assert_eq!(found.as_deref(), Some("~command__channel:{k}"));
    let channel = "User key has no permissions to access the 'key' channel";
    let found = lacks(&["publish", "key", "0"], channel);
    assert_eq!(found.as_deref(), Some("&key"));
    // A command that was executed may answer anything.
    let info = "executable:/usr/bin/valkey-server";
    assert_eq!(answered(&["info", "server"], info, false), None);
}

#[test]
fn every_script_is_of_a_kind_and_every_command_is_tried() {
    let tries = tries("k", false, false);
    for (file, text) in lua::ALL {
        for command in commands(text) {
            assert!(
                tries.iter().any(|(_, args)| args[0] == command),
                "{command} of {file}"
            );
        }
    }
    assert_eq!(tries.last().map(|(_, args)| &*args[0]), Some("subscribe"));
}

/// A report with every finding, as servers with all kinds of faults give rise to them.
pub(crate) fn samples() -> String {
    let config = Config::new("redis://10.0.0.7/").replica_ack(ReplicaAck::AtLeast(2));
    let session = Session::open(config.lazy()).expect("a client");
    let mut checked = Checked {
        session: &session,
        server: "10.0.0.7:6379".into(),
        findings: Vec::new(),
        until: Instant::now(),
    };
    let says = |line: &str| {
        let line = format!("{line}\r\n");
        redis::parse_redis_value(line.as_bytes()).expect("a reply")
    };
    checked.settings(
        "redis_version:5.0.14\r\nrole:slave\r\nconnected_slaves:1\r\nmaxmemory:100\r\nmaxmemory_policy:allkeys-lru\r\n\
         aof_enabled:0\r\nrdb_last_bgsave_status:err\r\n",
    );
    let tries = tries("k", false, false);
    let may_all = || tries.iter().map(|_| says("+OK")).collect::<Vec<_>>();
    for is_dry_run in [true, false] {
        checked.judge_rights(Some("app"), &tries, may_all(), is_dry_run);
    }
    for (command, answer) in [
        (
            "hset",
            "-NOPERM User app has no permissions to run the 'hset' command",
        ),
        (
            "del",
            "-NOPERM User app has no permissions to access the 'k' key",
        ),
        (
            "publish",
            "-NOPERM User app has no permissions to access the 'c' channel",
        ),
        (
            "pubsub",
            "-NOPERM User app has no permissions to run the 'pubsub|numsub' command",
        ),
        (
            "eval",
            "-ERR unknown command 'eval', with args beginning with: 'return 0'",
        ),
    ] {
        let answers = tries.iter().map(|(_, args)| match args[0] == command {
            true => says(answer),
            false => says("+OK"),
        });
        checked.judge_rights(Some("app"), &tries, answers.collect(), true);
    }
    checked.judge_holds([("locks", says(":1"))]);
    for answer in [
        "-MOVED 7 10.0.0.8:6379",
        "-OOM command not allowed when used memory > 'maxmemory'.",
        "-ERR Could not find scripting engine 'lua'",
        "-ERR syntax error",
    ] {
        checked.judge_holds([("locks", says(answer)), ("fair locks", says(answer))]);
    }
    let refused = RedisError::from(std::io::Error::from(std::io::ErrorKind::ConnectionRefused));
    let advice = advice(&refused, None, "connecting");
    for advice in [advice, None] {
        let server = checked.server.clone();
        checked
            .findings
            .push(away(server, &refused.to_string(), advice));
    }
    let clocks = [("10.0.0.8:6379", 0, 5), ("10.0.0.9:6379", 1505, 2000)];
    checked.findings.extend(skewed(
        &clocks.map(|(server, least, most)| (server.to_owned(), least, most)),
    ));
    Report::of(checked.findings).to_string()
}
