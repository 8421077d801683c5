use super::*;

use proptest::prelude::*;
use redis::RedisConnectionInfo;

use crate::net::strange;

/// The settings of a program that already has a `ConnectionInfo`.
fn known(settings: RedisConnectionInfo) -> Config {
    let info = ("127.0.0.1", 7000).into_connection_info();
    Config::from(info.expect("an address").set_redis_settings(settings))
}

fn span() -> impl Strategy<Value = Duration> {
    prop_oneof![
        (any::<u64>(), 0..1_000_000_000_u32).prop_map(|(secs, nanos)| Duration::new(secs, nanos)),
        any::<u64>().prop_map(Duration::from_nanos),
        (0..100_000_u64).prop_map(Duration::from_millis),
        prop::sample::select(vec![Duration::ZERO, Duration::MAX, MIN_LEASE, MAX_LEASE]),
    ]
}

proptest! {
    #![proptest_config(strange::cases(512))]

    #[test]
    fn whatever_the_settings_are_they_are_accepted_or_one_of_them_is_named(
        (lease, response, connect, tenure, waiter, reauth) in (span(), span(), span(), span(), span(), prop::option::of(span())),
        prefix in any::<String>(),
        label in prop_oneof!["[!-~]{0,70}", any::<String>()],
        replicas in any::<u32>(),
    ) {
        const NAMES: [&str; 9] = [
            "lease", "command_timeout", "connect_timeout", "tenure", "waiter_lease", "key_prefix", "label",
            "reauth_after", "replica_ack",
        ];
        let mut config = Config::new("redis://127.0.0.1/")
            .lease(lease)
            .command_timeout(response)
            .connect_timeout(connect)
            .tenure(tenure)
            .waiter_lease(waiter)
            .key_prefix(prefix)
            .label(label)
            .replica_ack(ReplicaAck::AtLeast(replicas));
        if let Some(age) = reauth {
            config = config.credentials(|| Ok(("u".into(), "p".into()))).reauth_after(age);
        }
        match config.check() {
            Ok(_) => prop_assert!((MIN_LEASE..=MAX_LEASE).contains(&lease)),
            Err(Error::InvalidSetting { reason, .. }) => prop_assert!(NAMES.iter().any(|name| reason.starts_with(name)), "{reason}"),
            Err(other) => prop_assert!(false, "{other:?}"),
        }
    }
}

#[test]
fn every_bad_setting_is_named() {
    let ok = || Config::new("redis://127.0.0.1/");
    let asking = |config: Config| config.credentials(|| Ok(("u".into(), "p".into())));
    let (zero, ms) = (Duration::ZERO, Duration::from_millis);
    for (config, named) in [
        (ok().lease(zero), "lease"),
        (
            ok().lease(Duration::MAX),
            "lease Duration::MAX is not between",
        ),
        (ok().lease(Duration::from_micros(9_999)), "lease"),
        (ok().command_timeout(zero), "command_timeout"),
        (ok().connect_timeout(Duration::MAX), "connect_timeout"),
        (ok().tenure(Duration::from_secs(2)), "tenure"),
        (ok().waiter_lease(Duration::from_millis(99)), "waiter_lease"),
        (ok().waiter_lease(Duration::from_secs(61)), "waiter_lease"),
        (ok().label("a b"), "label"),
        (ok().replica_ack(ReplicaAck::AtLeast(0)), "replica_ack"),
        (ok().label("é"), "label"),
        (ok().key_prefix("x".repeat(2000)), "key_prefix"),
        (Config::new("http://127.0.0.1/"), "url"),
        (ok().reauth_after(ms(2000)), "reauth_after"),
        (asking(ok()).reauth_after(ms(999)), "reauth_after"),
        (asking(ok()).reauth_after(Duration::MAX), "reauth_after"),
        (
            asking(Config::new("redis://:secret@127.0.0.1/")),
            "credentials",
        ),
        (ok().replica_ack(ReplicaAck::Majority).lazy(), "lazy"),
        (Config::new("redis+cluster://127.0.0.1/").lazy(), "lazy"),
        #[cfg(feature = "tls")]
        (ok().tls(TlsConfig::new()), "tls: the URL"),
        #[cfg(feature = "tls")]
        (
            known(RedisConnectionInfo::default()).tls(TlsConfig::new()),
            "tls: the address",
        ),
        (
            known(RedisConnectionInfo::default().set_db(-1)),
            "connection_info",
        ),
        (
            asking(known(RedisConnectionInfo::default().set_password("p"))),
            "credentials: the ConnectionInfo",
        ),
    ] {
        match config.check() {
            Err(Error::InvalidSetting { reason, .. }) => {
                assert!(reason.starts_with(named), "{reason}")
            }
            other => panic!("{named}: {:?}", other.map(|_| ())),
        }
    }
}

#[test]
fn good_settings_are_accepted_and_passwords_never_shown() {
    let login = RedisConnectionInfo::default()
        .set_username("alice")
        .set_password("s ecret");
    for config in [
        Config::new("redis://alice:s%20ecret@[::1]:7000/3"),
        known(login),
    ] {
        let config = config.lease(MIN_LEASE).tenure(Duration::ZERO);
        assert!(config.check().is_ok());
        assert!(!format!("{config:?}").contains("ecret"));
    }
    let asking = known(RedisConnectionInfo::default());
    let asking = asking.credentials(|| Ok(("u".into(), "p".into())));
    assert!(asking.check().is_ok());
}
