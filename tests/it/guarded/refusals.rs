//! Commands that cannot be guarded, commands that Redis rejects, and the hold after that.

use redis::cmd;
use redlatch::{Client, Error, GuardedScript};

use super::key;
use crate::support::rights::{OPERATIONS, acl_line};
use crate::support::{Deployment, Server, open, settings_as, unique};

#[test]
fn what_is_no_command_is_refused_before_it_is_sent() {
    let server = Server::start();
    let client = open(&server);
    let name = unique("bad");
    let guard = client.mutex(&name).lock().unwrap();
    let calls_before = (server.calls("evalsha"), server.calls("eval"));
    let many: Vec<u64> = (0..7_900).collect();
    let script = GuardedScript::new("return #ARGV");
    let bad = [
        guard.query::<()>(&redis::Cmd::new()),
        guard.query::<()>(&cmd("")),
        guard.query::<()>(cmd("SCAN").cursor_arg(7)),
        guard.query::<()>(cmd("SELECT").arg(5)),
        guard.query::<()>(cmd("select").arg(5)),
        guard.query::<()>(&cmd("READONLY")),
        guard.query::<()>(&cmd("MULTI")),
        guard.query::<()>(cmd("SUBSCRIBE").arg("c")),
        guard.query::<()>(cmd("AUTH").arg("secret")),
        guard.query::<()>(cmd("CLIENT").arg("REPLY").arg("OFF")),
        guard.query::<()>(&cmd("RESET")),
        guard.query::<()>(&cmd("MONITOR")),
        guard.query::<()>(cmd("WAIT").arg(0).arg(1)),
        guard.query::<()>(cmd("DEL").arg(&many)),
        guard.invoke::<()>(&script, None::<&str>, [&*many, &[7]].concat()),
        guard.invoke::<()>(&script, [&*many, &[7]].concat(), 7),
    ];
    for result in bad {
        let err = result.unwrap_err();
        assert!(matches!(err, Error::InvalidCommand { .. }), "{err}");
        assert!(!err.is_retryable() && !err.may_have_run());
    }
    assert_eq!(
        (server.calls("evalsha"), server.calls("eval")),
        calls_before
    );
    // The highest number of arguments.
    let most: i64 = guard.invoke(&script, None::<&str>, &many).unwrap();
    assert_eq!(most, 7_900);
    let keys: Vec<_> = many[1..]
        .iter()
        .map(|n| key(&name, &n.to_string()))
        .collect();
    let there: i64 = guard.query(cmd("EXISTS").arg(&keys)).unwrap();
    assert_eq!(there, 0);
}

/// The code of an error that Redis returned.
fn code(err: &Error) -> String {
    let Error::Redis {
        source,
        name,
        server,
        ..
    } = err
    else {
        panic!("{err:?}");
    };
    assert!(name.is_some() && server.is_some(), "{err:?}");
    let redis = source.downcast_ref::<redis::RedisError>().unwrap();
    redis.code().unwrap_or_default().to_owned()
}

#[test]
fn what_redis_refuses_is_told_in_its_words_and_the_hold_stays() {
    let server = Server::start();
    let client = open(&server);
    let name = unique("refused");
    let list = key(&name, "list");
    server.ask::<i64>(&["RPUSH", &list, "x"]);
    let guard = client.mutex(&name).lock().unwrap();
    for (command, means, says) in [
        (cmd("INCR").arg(&list), "WRONGTYPE", "holds a list"),
        (&mut cmd("NONSENSE"), "ERR", "nknown"),
        (cmd("SCRIPT").arg("FLUSH"), "ERR", "not allowed from script"),
        (
            cmd("GET").arg(&list).arg("more"),
            "ERR",
            "rong number of args",
        ),
    ] {
        let err = guard.query::<i64>(command).unwrap_err();
        assert_eq!(code(&err), means, "{err}");
        assert!(err.to_string().contains(says), "{err}");
        // The error must not be about the lock's own key, a hash.
        assert!(!err.to_string().contains("holds a hash"), "{err}");
        assert!(!err.may_have_run() && guard.is_valid());
    }
    // The command has run, and its reply has another type than the caller expects.
    let count = key(&name, "count");
    let unread = guard
        .query::<Vec<String>>(cmd("INCR").arg(&count))
        .unwrap_err();
    assert!(unread.to_string().contains("reading the reply"), "{unread}");
    assert!(
        unread.may_have_run() && !unread.is_retryable(),
        "{unread:?}"
    );
    assert_eq!(server.get_int(&count), 1);
    guard.unlock().unwrap();
}

#[test]
fn an_error_of_a_script_is_told_in_its_words_whatever_its_code() {
    let server = Server::start();
    let client = open(&server);
    let guard = client.mutex(unique("codes")).lock().unwrap();
    let script = GuardedScript::new("return redis.error_reply(ARGV[1] .. ' the basket is full')");
    for text in ["FULL", "TOOLARGE", "\u{1}TOOLARGE"] {
        let err = guard.invoke::<()>(&script, None::<&str>, text).unwrap_err();
        assert!(err.to_string().contains("the basket is full"), "{err}");
        assert!(!err.to_string().contains("reading the reply"), "{err}");
        assert!(
            code(&err).contains(text.trim_start_matches('\u{1}')),
            "{err}"
        );
        assert!(!err.may_have_run() && guard.is_valid());
    }
}

#[test]
fn a_key_that_became_something_else_is_a_lost_lock() {
    let server = Server::start();
    let client = open(&server);
    let name = unique("other type");
    let guard = client.mutex(&name).lock().unwrap();
    server.ask::<()>(&["SET", &name, "not a lock"]);
    let lost = guard
        .query::<()>(cmd("SET").arg(key(&name, "data")).arg(1))
        .unwrap_err();
    assert!(matches!(lost, Error::Lost { .. }), "{lost}");
    assert!(!server.exists(&key(&name, "data")));
}

#[test]
fn it_takes_the_rights_for_the_command_and_its_keys() {
    let server = Server::start_as(Deployment::Single);
    server.ask::<()>(&acl_line(OPERATIONS, "locker"));
    let config = settings_as(&server, "locker:secret@", "").key_prefix("shop:");
    let client = Client::open(config).unwrap();
    let guard = client.mutex("stock").lock().unwrap();
    let stock_left: Option<i64> = guard.query(cmd("GET").arg("{shop:stock}:left")).unwrap();
    assert_eq!(stock_left, None);
    for command in [
        cmd("HINCRBY").arg("{shop:stock}:left").arg("field").arg(1),
        cmd("GET").arg("elsewhere{shop:stock}"),
    ] {
        let err = guard.query::<i64>(command).unwrap_err();
        assert_eq!(code(&err), "NOPERM", "{err}");
        assert!(guard.is_valid(), "{err}");
        // A guarded command may need more rights than the guide lists, so the error must not repeat that list.
        assert!(!err.to_string().contains("ACL SETUSER"), "{err}");
    }
}

#[test]
fn a_closed_client_runs_nothing() {
    let server = Server::start();
    let client = open(&server);
    let guard = client.mutex(unique("closed")).lock().unwrap();
    client.close(std::time::Duration::from_secs(5)).unwrap();
    let err = guard.query::<String>(&cmd("PING")).unwrap_err();
    assert!(matches!(err, Error::Closed), "{err}");
}

#[test]
fn a_script_that_says_what_a_server_may_say_has_run_once() {
    let server = Server::start();
    let client = open(&server);
    let name = unique("says");
    let guard = client.mutex(&name).lock().unwrap();
    let count = key(&name, "count");
    let script = GuardedScript::new(
        "redis.call('incr', KEYS[1]) return redis.error_reply(ARGV[1] .. ' of mine')",
    );
    let codes = [
        "NOSCRIPT",
        "MOVED",
        "ASK",
        "LOADING",
        "TRYAGAIN",
        "CLUSTERDOWN",
        "MASTERDOWN",
        "READONLY",
        "BUSY",
        "OOM",
        "NOTHELD",
    ];
    for (n, said) in (1..).zip(codes.iter().flat_map(|code| [code, code])) {
        let err = guard.invoke::<()>(&script, &count, *said).unwrap_err();
        assert_eq!(code(&err), *said, "{err}");
        assert!(
            err.to_string().contains("of mine") && !err.may_have_run(),
            "{err}"
        );
        assert_eq!(server.get_int(&count), n, "{said}");
        assert!(guard.is_valid(), "{said}");
    }
    for said in ["NOTHELD gone", "NOTHELD taken", "NOTHELD gone away"] {
        let script = GuardedScript::new(format!("return redis.error_reply('{said}')"));
        let err = guard
            .invoke::<()>(&script, None::<&str>, None::<&str>)
            .unwrap_err();
        assert_eq!(code(&err), "NOTHELD", "{err}");
        assert!(guard.is_valid() && !err.is_retryable(), "{said}");
    }
    guard.unlock().unwrap();
}
