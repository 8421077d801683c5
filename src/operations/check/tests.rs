use super::*;

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
    // A command that was executed may answer anything.
    let info = "executable:/usr/bin/valkey-server";
    assert_eq!(answered(&["info", "server"], info, false), None);
}

#[test]
fn every_script_is_of_a_kind_and_every_command_is_tried() {
    let tries = tries("k");
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
