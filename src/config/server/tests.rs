use super::*;

use proptest::prelude::*;
use redis::RedisConnectionInfo;

use crate::net::strange;

const PASSWORD: &str = "Xyzzy7Secret";

fn nearly_urls() -> impl Strategy<Value = String> {
    const SCHEMES: [&str; 12] = [
        "redis",
        "rediss",
        "valkey",
        "valkeys",
        "unix",
        "redis+unix",
        "redis+sentinel",
        "rediss+sentinel",
        "redis+cluster",
        "rediss+cluster",
        "valkey+cluster",
        "http",
    ];
    const PARTS: [&str; 34] = [
        "",
        "://",
        ":",
        "/",
        "//",
        "@",
        ",",
        "?",
        "&",
        "=",
        "#",
        "%",
        "%2",
        "%zz",
        "%00",
        "%ff",
        "[",
        "]",
        "[::1]",
        "host",
        "h:6379",
        ":99999",
        ":-1",
        "/0",
        "/99999999999999999999",
        "db=1",
        "user=u",
        "pass=p",
        "sentinel_user=x",
        "sentinel_password=y",
        "protocol=resp3",
        "é",
        " ",
        "\0",
    ];
    let part = prop_oneof![
        8 => prop::sample::select(PARTS.to_vec()).prop_map(str::to_owned),
        1 => any::<char>().prop_map(String::from),
    ];
    let rest = prop::collection::vec(part, 0..10).prop_map(|parts| parts.concat());
    let userinfo = prop::sample::select(vec!["", "u:PW@", ":PW@", "PW@", "u:PW", "u@"]);
    let separator = prop::sample::select(vec!["://", ":/", ""]);
    (
        prop::sample::select(SCHEMES.to_vec()),
        separator,
        userinfo,
        rest,
    )
        .prop_map(|(scheme, separator, userinfo, rest)| {
            format!(
                "{scheme}{separator}{}{rest}",
                userinfo.replace("PW", PASSWORD)
            )
        })
}

#[test]
fn a_host_that_a_server_names_is_shown_on_one_line() {
    let shown = |host: &str| Address::Tcp(host.into(), 1).to_string();
    assert_eq!(shown("a.example"), "a.example:1");
    assert_eq!(shown("::1"), "[::1]:1");
    assert_eq!(shown("a\n\x1b[2J"), "a\u{fffd}\u{fffd}[2J:1");
}

proptest! {
    #![proptest_config(strange::cases(1024))]

    #[test]
    fn a_url_is_understood_or_refused_without_its_password(url in nearly_urls()) {
        match Server::of(&url) {
            Err(Error::InvalidSetting { reason, .. }) => prop_assert!(reason.starts_with("url: ") && !reason.contains(PASSWORD), "{reason}"),
            Err(other) => prop_assert!(false, "{other:?}"),
            Ok(found) => {
                prop_assert!(found.db >= 0);
                let is_login = [&found.login.username, &found.login.password].into_iter().flatten();
                if is_login.clone().any(|part| part.contains(PASSWORD)) {
                    let user = found.login.username.as_deref().unwrap_or_default();
                    let shown = format!("{found:?}{:?}", found.login);
                    prop_assert!(user.contains(PASSWORD) || !shown.contains(PASSWORD));
                }
            }
        }
    }

    #[test]
    fn a_password_comes_through_whatever_it_is(user in "[a-z]{1,9}", password in any::<String>(), db in 0..100_i64) {
        prop_assume!(!password.is_empty());
        let encoded: String = password.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let urls = [
            format!("redis://{user}:{encoded}@host:7/{db}"),
            format!("redis+sentinel://{user}:{encoded}@a,b:1/m/{db}?sentinel_password={encoded}"),
            format!("redis+cluster://{user}:{encoded}@a,b:1/{db}"),
        ];
        for url in urls {
            let found = server(&url);
            prop_assert_eq!(found.login.password.as_deref(), Some(&*password));
            prop_assert_eq!(found.login.username.as_deref(), Some(&*user));
            prop_assert_eq!(found.db, db);
        }
    }

    #[test]
    fn no_text_is_a_url_that_panics(url in any::<String>()) {
        Server::of(&url).ok();
    }
}

fn server(url: &str) -> Server {
    Server::of(url).expect("a good URL")
}

fn refusal(url: &str) -> String {
    match Server::of(url) {
        Err(Error::InvalidSetting { reason, .. }) => reason,
        other => panic!("{url}: {:?}", other.map(|_| ())),
    }
}

fn tcp(host: &str, port: u16) -> Address {
    Address::Tcp(host.into(), port)
}

#[test]
fn one_server_is_named_by_its_address() {
    let parsed = server("redis://alice:s%20ecret@[::1]:7000/3");
    assert_eq!(parsed.deployment, Deployment::Single(tcp("::1", 7000)));
    assert_eq!(parsed.deployment.to_string(), "[::1]:7000");
    assert_eq!(parsed.login.username.as_deref(), Some("alice"));
    assert_eq!(parsed.login.password.as_deref(), Some("s ecret"));
    assert_eq!((parsed.is_encrypted, parsed.db), (false, 3));
    assert!(!format!("{parsed:?}{:?}", parsed.login).contains("ecret"));
    // Schemes have no case.
    let shouted = server("REDIS://h:7").deployment;
    assert_eq!(shouted, Deployment::Single(tcp("h", 7)));
    let unix = server("redis+unix:///run/redis.sock?db=1");
    let path = Address::Unix("/run/redis.sock".into());
    assert_eq!(unix.deployment, Deployment::Single(path));
    assert_eq!(unix.db, 1);
    let plus = server("redis+unix:///run/redis.sock?user=a%20b&pass=a+b%2B");
    assert_eq!(plus.login.username.as_deref(), Some("a b"));
    assert_eq!(plus.login.password.as_deref(), Some("a+b+"));
    assert_eq!(
        server("valkey://h").deployment,
        Deployment::Single(tcp("h", 6379))
    );
}

fn info(addr: ConnectionAddr, settings: RedisConnectionInfo) -> ConnectionInfo {
    let info = addr.into_connection_info().expect("an address");
    info.set_redis_settings(settings)
}

fn encrypted(insecure: bool) -> ConnectionAddr {
    ConnectionAddr::TcpTls {
        host: "redis.example".into(),
        port: 6380,
        insecure,
        tls_params: None,
    }
}

#[test]
fn what_the_client_crate_is_given_is_one_server() {
    let settings = || RedisConnectionInfo::default().set_password("p@:/ \u{fc}");
    let user = settings().set_username("a:b").set_db(3);
    let parsed = Server::of_info(&info(ConnectionAddr::Tcp("::1".into(), 7000), user));
    let parsed = parsed.expect("good settings");
    assert_eq!(parsed.deployment, Deployment::Single(tcp("::1", 7000)));
    assert_eq!(parsed.login.username.as_deref(), Some("a:b"));
    assert_eq!(parsed.login.password.as_deref(), Some("p@:/ \u{fc}"));
    assert_eq!((parsed.is_encrypted, parsed.db), (false, 3));
    assert!(!format!("{parsed:?}{:?}", parsed.login).contains("p@"));

    let path = ConnectionAddr::Unix("/run/a b.sock".into());
    let unix = Server::of_info(&info(path, settings().set_username("")));
    let unix = unix.expect("good settings");
    let path = Address::Unix("/run/a b.sock".into());
    assert_eq!(unix.deployment, Deployment::Single(path));
    // As in a URL, the user is the default one.
    assert_eq!((unix.login.username, unix.db), (None, 0));

    #[cfg(feature = "tls")]
    {
        let tls = Server::of_info(&info(encrypted(false), settings()));
        let tls = tls.expect("good settings");
        let expected = Deployment::Single(tcp("redis.example", 6380));
        assert!(tls.is_encrypted && tls.deployment == expected);
    }
}

#[test]
fn what_the_client_crate_is_given_follows_the_rules_for_urls() {
    let host = |host: &str, port| ConnectionAddr::Tcp(host.into(), port);
    let here = || host("h", 1);
    let secret = || RedisConnectionInfo::default().set_password("secret");
    #[cfg(feature = "tls")]
    let of_tls = "`insecure`";
    #[cfg(not(feature = "tls"))]
    let of_tls = "the feature `tls`";
    for (addr, settings, said) in [
        (
            here(),
            secret().set_protocol(ProtocolVersion::RESP3),
            "RESP2",
        ),
        (here(), secret().set_db(-1), "negative"),
        (
            here(),
            RedisConnectionInfo::default().set_username("alice"),
            "given without a password",
        ),
        (host("", 1), secret(), "the host is missing"),
        (host("0.0.0.0", 1), secret(), "are for servers to listen at"),
        (host("::", 1), secret(), "are for servers to listen at"),
        (host("h", 0), secret(), "the port is out of range"),
        (encrypted(true), secret(), of_tls),
    ] {
        match Server::of_info(&info(addr, settings)) {
            Err(Error::InvalidSetting { reason, .. }) => {
                assert!(reason.starts_with("connection_info: "), "{reason}");
                assert!(
                    reason.contains(said) && !reason.contains("secret"),
                    "{reason}"
                );
            }
            other => panic!("{said}: {other:?}"),
        }
    }
}

#[test]
fn what_the_client_crate_cannot_read_is_said_without_its_password() {
    assert!(info_of("redis://:secret@h/1").is_ok());
    for (url, said) in [
        ("redis+sentinel://:secret@a/m", "Config::new"),
        ("secret", "did not parse"),
        ("redis://:secret@h/x", "Invalid database number"),
        ("redis://u:1?protocol=secret@h", "Invalid protocol version"),
    ] {
        match info_of(url) {
            Err(Error::InvalidSetting { reason, .. }) => {
                assert!(reason.starts_with("connection_info: "), "{reason}");
                assert!(
                    reason.contains(said) && !reason.contains("secret"),
                    "{reason}"
                );
            }
            other => panic!("{said}: {:?}", other.map(|_| ())),
        }
    }
}

#[test]
fn what_is_wrong_with_a_url_is_said_without_its_password() {
    for (url, said) in [
        ("", "no scheme"),
        ("127.0.0.1:6379", "no scheme"),
        ("http://:secret@127.0.0.1/", "the scheme `http` is unknown"),
        ("secret:127.0.0.1://a", "its scheme is unknown"),
        ("Secret7://127.0.0.1/", "its scheme is unknown"),
        ("redis://:secret@127.0.0.1/?protocol=resp3", "RESP2"),
        ("redis://:secret@127.0.0.1/-1", "negative"),
        (
            "redis://",
            "the host is missing; a URL looks like redis://user:password@host:6379/3",
        ),
        ("redis://:secret@:6379/", "the host is missing"),
        ("redis://:secret@h o/", "the host contains a character"),
        (
            "redis://h:0",
            "; a URL looks like redis://user:password@host:6379/3",
        ),
        (
            "unix://",
            "Missing path; a URL looks like redis+unix:///run/redis.sock?db=3",
        ),
        (
            "redis+cluster://h:0",
            "; a URL looks like redis+cluster://host:6379,host:6379",
        ),
        ("redis://alice@127.0.0.1/", "given without a password"),
        ("redis://h?db=3", "`db` is unknown (known: `protocol`)"),
        ("redis://h?db=3", "redis://host:6379/3"),
        (
            "redis://h/?timeout=5s",
            "the parameter `timeout` is unknown",
        ),
        ("valkey://:secret@h/0?protocol=resp2&x=1", "`x` is unknown"),
        ("unix:///s?timeout=5", "the parameter `timeout` is unknown"),
        ("unix:///s?pass=a&secret", "a parameter is unknown"),
        ("unix:///s?pass=secret#", "`#` as %23"),
        ("redis://a:sec/ret@h", "`/` as %2F"),
        ("redis://a:1/secret@h", "`/` as %2F"),
        ("redis://:secret#1@h", "`#` as %23"),
        ("redis://:secret?1@h/2", "`?` as %3F"),
        ("redis://u:1?secret@h", "`?` as %3F"),
        ("redis://:secret@h:99999/", "the port is out of range"),
        ("redis://[::1]:65536", "the port is out of range"),
        ("redis://h:0", "the port is out of range"),
        (
            "redis://h:secret/",
            "the port has to be a number, as in redis://host:6379/",
        ),
        ("redis://:secret@h:abc", "the port has to be a number"),
        ("redis://user:secret", "the port has to be a number"),
        ("redis://[::1]:abc", "the port has to be a number"),
        (
            "redis://h/secret",
            "the database has to be a number, as in redis://host:6379/3",
        ),
        ("redis://h/3x", "the database has to be a number"),
        ("redis://::1/", "needs brackets, as in redis://[::1]:6379/"),
        ("redis://:secret@fe80::1:6379/", "needs brackets"),
        ("redis://[::1/", "needs brackets"),
        (
            "redis://[fe80::1%eth0]:6379/",
            "with a zone is not supported",
        ),
        ("redis+cluster://fe80::1,b/", "needs brackets"),
        (
            "redis+sentinel://a,b:secret/m",
            "the port has to be a number",
        ),
        (
            "redis+sentinel://a/m/secret",
            "the database has to be a number",
        ),
    ] {
        let reason = refusal(url);
        assert!(
            reason.starts_with("url: ") && reason.contains(said),
            "{reason}"
        );
        assert!(!reason.contains("secret"), "{reason}");
    }
}

#[test]
#[cfg(not(feature = "tls"))]
fn the_feature_that_is_missing_is_named() {
    for url in ["rediss://h/", "rediss+sentinel://h/service"] {
        assert!(refusal(url).contains("`tls`"), "{url}");
    }
}

#[test]
fn sentinels_are_named_with_their_service() {
    let url = "redis+sentinel://bob:p%2Fw@a,b:7,[::1]/my%20master/2?sentinel_user=eve&sentinel_password=x%26y";
    let found = server(url);
    let expected = Deployment::Sentinel {
        sentinels: vec![tcp("a", 26379), tcp("b", 7), tcp("::1", 26379)],
        service: "my master".into(),
        login: Login {
            username: Some("eve".into()),
            password: Some("x&y".into()),
            asked: None,
        },
    };
    assert_eq!(found.deployment, expected);
    for url in ["redis+sentinel://a/x:y", "redis+sentinel://a/x%3Ay"] {
        let Deployment::Sentinel { service, .. } = server(url).deployment else {
            panic!("{url}");
        };
        assert_eq!(service, "x:y");
    }
    assert_eq!(found.login.password.as_deref(), Some("p/w"));
    assert_eq!(found.db, 2);
    for (url, said) in [
        ("redis+sentinel://a,b", "the name of the service is missing"),
        ("redis+sentinel://a,,b/m", "an address is missing"),
        ("redis+sentinel:///m", "an address is missing"),
        ("redis+sentinel://a/m?db=1", "the parameter `db` is unknown"),
        ("redis+sentinel://a/m?sentinel_user=x", "sentinel_password"),
        ("redis+sentinel://a,b:99999/m", "out of range"),
        ("redis+sentinel://:p/w@a/m", "%2F"),
        ("redis+sentinel://a/m/x", "url: "),
    ] {
        assert!(refusal(url).contains(said), "{url}: {}", refusal(url));
    }
}

#[test]
fn a_cluster_is_named_by_some_of_its_nodes() {
    let found = server("redis+cluster://:pw@a:1,b,a:1");
    let expected = Deployment::Cluster {
        seeds: vec![tcp("a", 1), tcp("b", 6379)],
    };
    assert_eq!(found.deployment, expected);
    assert_eq!(found.login.password.as_deref(), Some("pw"));
    assert_eq!(found.db, 0);
    for (url, said) in [
        ("redis+cluster://", "an address is missing"),
        ("redis+cluster://a/?x=1", "the parameter `x` is unknown"),
        ("redis+cluster://a,b:99999", "out of range"),
        ("redis+cluster://:p#w@a", "%23"),
    ] {
        assert!(refusal(url).contains(said), "{url}: {}", refusal(url));
    }
}

#[test]
fn passwords_are_percent_decoded_wherever_they_are() {
    let (there, meant) = ("p%40%3A%2F%3F%23%25%26%2B%20%C3%BC", "p@:/?#%&+ ü");
    let urls = [
        format!("redis://u:{there}@host/1"),
        format!("unix:///s.sock?user=u&pass={there}"),
        format!("redis+sentinel://u:{there}@a,b/m?sentinel_password={there}"),
        format!("redis+cluster://u:{there}@a,b"),
    ];
    for url in urls {
        let found = server(&url);
        assert_eq!(found.login.password.as_deref(), Some(meant), "{url}");
        assert_eq!(found.login.username.as_deref(), Some("u"), "{url}");
        if let Deployment::Sentinel { login, .. } = found.deployment {
            assert_eq!(login.password.as_deref(), Some(meant));
        }
    }
    let path = server("redis+unix:///run/a%20b%25c.sock").deployment;
    assert_eq!(
        path,
        Deployment::Single(Address::Unix("/run/a b%c.sock".into()))
    );
}
