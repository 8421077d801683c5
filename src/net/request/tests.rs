use super::*;
use std::sync::LazyLock;

const TEXT: &str = "return redis.call('get', KEYS[1])\n-- \"quoted\"";
static SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new(TEXT));

#[test]
fn a_request_is_packed_like_the_redis_crate_packs_it() {
    let request = Request::script("testing", &SCRIPT, &["k e\ny"], &["o:1", "1500"]);
    let mut written = Vec::new();
    request.write(&mut written, true);
    let expected = redis::cmd("EVAL")
        .arg(TEXT)
        .arg(1)
        .arg("k e\ny")
        .arg("o:1")
        .arg(1500)
        .get_packed_command();
    assert_eq!(written, expected);
    written.clear();
    request.write(&mut written, false);
    let hash = redis::Script::new(TEXT);
    let expected = redis::cmd("EVALSHA")
        .arg(hash.get_hash())
        .arg(1)
        .arg("k e\ny")
        .arg("o:1")
        .arg(1500)
        .get_packed_command();
    assert_eq!(written, expected);
}

#[test]
fn so_is_one_of_any_length() {
    for length in 0..3 * TYPICAL {
        let key = "k".repeat(length);
        let request = Request::script("testing", &SCRIPT, &[&key, "l"], &["o:1", "1500"]);
        let mut written = Vec::new();
        request.write(&mut written, true);
        let mut expected = redis::cmd("EVAL");
        let expected = expected.arg(TEXT).arg(2).arg(&key).arg("l");
        assert_eq!(written, expected.arg("o:1").arg(1500).get_packed_command());
        let keys: Vec<_> = request.keys().collect();
        assert_eq!(keys, [key.as_bytes(), b"l"]);
    }
}

#[test]
fn several_become_one_with_the_keys_and_arguments_of_all() {
    let request = |key: &str, arg: &str| Request::script("testing", &SCRIPT, &[key], &[arg, ""]);
    let long = "k".repeat(2 * TYPICAL);
    let requests = [request("a\r\n", "1"), request(&long, "2"), request("", "3")];
    let mut written = Vec::new();
    Request::together(requests.to_vec()).write(&mut written, true);
    let mut expected = redis::cmd("EVAL");
    expected.arg(TEXT).arg(3).arg("a\r\n").arg(&long).arg("");
    for arg in ["1", "", "2", "", "3", ""] {
        expected.arg(arg);
    }
    assert_eq!(written, expected.get_packed_command());
    let (mut batch, mut alone) = (Vec::new(), Vec::new());
    Request::together(requests[1..2].to_vec()).write(&mut batch, false);
    requests[1].write(&mut alone, false);
    assert_eq!(batch, alone);
    assert!(requests[0].can_join(&requests[1], &SCRIPT));
    assert!(!requests[0].can_join(&Request::command("testing", &["PING"]), &SCRIPT));
    static OTHER: LazyLock<Script> = LazyLock::new(|| Script::new("return 1"));
    assert!(!requests[0].can_join(&requests[1], &OTHER));
}

#[test]
fn the_keys_of_a_request_can_be_read_back() {
    let keys = |request: &Request| -> Vec<Vec<u8>> { request.keys().map(<[u8]>::to_vec).collect() };
    let odd = ["k e\r\ny", "", "$3"];
    let request = Request::script("testing", &SCRIPT, &odd, &["o:1", "1500"]);
    assert_eq!(keys(&request), odd.map(|key| key.as_bytes().to_vec()));
    let many = ["k"; 10];
    let request = Request::script("testing", &SCRIPT, &many, &["o:1"]);
    assert_eq!(keys(&request), many.map(|key| key.as_bytes().to_vec()));
    let request = Request::script("testing", &SCRIPT, &[], &["o:1"]);
    assert!(keys(&request).is_empty());
    assert!(keys(&Request::command("testing", &["PING", "1"])).is_empty());
}

#[test]
fn sharded_channels_have_commands_of_their_own() {
    static TELLING: LazyLock<Script> =
        LazyLock::new(|| Script::new("return redis.pcall('publish', KEYS[1], '0')"));
    let sharded = Wording {
        by_text: true,
        sharded: true,
    };
    let written = |request: Request| {
        let mut bytes = Vec::new();
        request.write_as(&mut bytes, sharded);
        String::from_utf8(bytes).expect("text")
    };
    let script = written(Request::script::<&str>("telling", &TELLING, &["c"], &[]));
    assert!(script.contains("pcall('spublish', KEYS[1]"), "{script}");
}

#[test]
fn a_request_belongs_where_its_first_key_is() {
    let first = |request: Request| request.first_key().map(<[u8]>::to_vec);
    let key = Some(b"k".to_vec());
    assert_eq!(
        first(Request::script("x", &SCRIPT, &["k", "l"], &["a"])),
        key
    );
    assert_eq!(first(Request::command("x", &["HLEN", "k"])), key);
    assert_eq!(first(Request::command("x", &["PING"])), None);
    assert_eq!(first(Request::script("x", &SCRIPT, &[], &["a"])), None);
}
