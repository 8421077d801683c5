use super::*;

use proptest::prelude::*;

use crate::net::strange;

proptest! {
    #![proptest_config(strange::cases(256))]

    #[test]
    fn whatever_a_sentinel_says_it_is_an_address_or_an_error(reply in strange::value()) {
        said_epoch(reply.clone()).ok();
        if let Ok(Some(address)) = said_address(reply) {
            prop_assert!(matches!(address, Address::Tcp(host, _) if host.len() <= LONGEST_HOST));
        }
    }
}

#[test]
fn what_a_sentinel_says_is_an_address_or_that_it_knows_none() {
    let bulk = |text: &str| Value::BulkString(text.into());
    let named = said_address(Value::Array(vec![bulk("fe80::1"), bulk("6379")]));
    let expected = Address::Tcp("fe80::1".into(), 6379);
    assert_eq!(named.expect("an address"), Some(expected));
    assert_eq!(said_address(Value::Nil).expect("an answer"), None);
    let long = bulk(&"h".repeat(LONGEST_HOST + 1));
    let longest = bulk(&"1".repeat(900_000));
    for strange in [
        Value::Okay,
        Value::Array(vec![bulk("h")]),
        bulk("h:1"),
        Value::Array(vec![long, bulk("1")]),
        Value::Array(vec![bulk("h"), longest.clone()]),
        Value::Array(vec![bulk("h"), bulk("1"), longest.clone()]),
        longest,
    ] {
        let why = said_address(strange)
            .map(|_| ())
            .expect_err("no address")
            .to_string();
        assert!(why.len() < 300, "{} bytes", why.len());
    }
}

fn sockets<const N: usize>() -> [Arc<Socket>; N] {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let address = listener.local_addr().expect("it is bound");
    let connect = || std::net::TcpStream::connect(address).expect("it listens");
    [(); N].map(|()| Arc::new(Socket::Plain(connect())))
}

#[test]
fn connections_to_masters_of_earlier_failovers_are_cut() {
    let [first, second, late, dropped] = sockets();
    let mut service = Service::default();
    assert!(service.made(1, &dropped).is_empty() && service.made(1, &first).is_empty());
    drop(dropped);
    let is = |cut: &[Arc<Socket>], socket| matches!(cut, [other] if Arc::ptr_eq(other, socket));
    assert!(is(&service.made(2, &second), &first));
    // A Sentinel that lags behind has named this one.
    assert!(is(&service.made(1, &late), &late));
    assert_eq!((service.epoch, service.made.len()), (2, 1));
}

#[test]
fn a_sentinel_that_lags_behind_is_believed_only_if_none_knows_better() {
    let named = |port, epoch| NamedMaster {
        address: Address::Tcp("m".into(), port),
        epoch,
    };
    let (mut service, [socket, next]) = (Service::default(), sockets());
    assert!(service.made(5, &socket).is_empty());
    assert!(!service.lags(&named(1, 5)) && !service.lags(&named(1, 6)));
    assert!(!service.begin_again(), "none lags behind");
    for (port, epoch) in [(2, 1), (3, 4), (4, 2)] {
        assert!(service.lags(&named(port, epoch)));
    }
    assert!(service.begin_again() && !service.begin_again());
    let master = service.master.take().expect("the latest of them");
    assert_eq!(
        (master.address, service.epoch),
        (Address::Tcp("m".into(), 3), 4)
    );
    // A later failover cuts the connection that was made before.
    assert_eq!(service.made(5, &next).len(), 1);
}

#[test]
fn a_connection_to_a_master_that_was_replaced_meanwhile_is_cut() {
    let (mut service, [old, late, new]) = (Service::default(), sockets());
    assert!(service.made(3, &old).is_empty() && service.is_connected());
    drop(old);
    // Without a connection there is nothing to check a later master for, so it is only named.
    assert!(!service.is_connected());
    let address = Address::Tcp("m".into(), 2);
    service.master = Some(NamedMaster { address, epoch: 4 });
    assert_eq!(service.made(3, &late).len(), 1, "it was under way");
    assert!(service.made(4, &new).is_empty() && service.is_connected());
}
