use super::*;

#[test]
fn a_socket_that_is_connected_to_itself_found_nobody_and_leaves_the_port() {
    use redis::io::tcp::socket2::{Domain, Socket, Type};
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    socket.bind(&any.into()).expect("a port");
    let addr = socket.local_addr().expect("it is bound");
    socket.connect(&addr).expect("itself");
    let refused = prepare(&SockRef::from(&socket)).map_err(|err| err.kind());
    assert_eq!(refused, Err(io::ErrorKind::ConnectionRefused));
    drop(socket);
    let server = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    server.bind(&addr).expect("the port is free at once");
}

// A late copy of a request must not arrive when Redis has forgotten the request.
#[cfg(any(target_os = "android", target_os = "linux"))]
#[test]
fn what_the_server_does_not_acknowledge_is_not_sent_for_longer_than_redis_remembers_it() {
    let server = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let addr = server.local_addr().expect("it is bound");
    let stream = connect(&addr, Duration::from_secs(60)).expect("it listens");
    let timeout = SockRef::from(&stream).tcp_user_timeout();
    assert_eq!(timeout.expect("Linux has it"), Some(REPLAY));
}

#[test]
fn few_threads_look_the_same_host_up_however_many_want_to() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    let (answer, answers) = crossbeam_channel::unbounded::<()>();
    let asked = AtomicUsize::new(0);
    let addr = SocketAddr::from(([127, 0, 0, 1], 1));
    let ask = |host, timeout| {
        look_up(host, 1, &mut Dial::by_itself("test", timeout), || {
            asked.fetch_add(1, Ordering::SeqCst);
            let generous = Duration::from_secs(60);
            answers.recv_timeout(generous).map_err(io::Error::other)?;
            Ok(vec![addr])
        })
    };
    let is_asked = |times| {
        while asked.load(Ordering::SeqCst) < times {
            std::thread::yield_now();
        }
    };
    let generous = Duration::from_secs(60);
    std::thread::scope(|scope| {
        let ask = &ask;
        let many: Vec<_> = (0..LOOK_UPS)
            .map(|_| scope.spawn(move || ask("slow.test", generous)))
            .collect();
        is_asked(LOOK_UPS);
        let late = ask("slow.test", Duration::from_millis(10)).expect_err("no answer yet");
        assert!(late.is_timeout(), "{late}");
        let waits = scope.spawn(move || ask("slow.test", generous));
        let is_waited_for = |look_up: &LookUp| Arc::strong_count(&look_up.next) > 1;
        while !LOOKED_UP.lock().values().any(is_waited_for) {
            std::thread::yield_now();
        }
        scope.spawn(move || ask("other.test", generous));
        is_asked(LOOK_UPS + 1);
        // The threads take the answers in any order, so all of them get one.
        for _ in 0..=LOOK_UPS {
            answer.send(()).expect("they wait");
        }
        for asked in many.into_iter().chain([waits]) {
            let found = asked.join().expect("it does not panic");
            assert_eq!(found.expect("the answer to one of them"), [addr]);
        }
        assert_eq!(asked.load(Ordering::SeqCst), LOOK_UPS + 1);
    });
    assert!(
        LOOKED_UP
            .lock()
            .keys()
            .all(|(_, host, _)| host != "slow.test")
    );
}

#[test]
fn an_idle_connection_is_kept_alive() {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let dial = Dial::by_itself("test", Duration::from_secs(10));
    let addr = listener.local_addr().expect("it is bound");
    let stream = open_one(&[addr], &dial).expect("it listens");
    let socket = SockRef::from(&stream);
    assert!(socket.keepalive().expect("a socket") && stream.nodelay().expect("a socket"));
}

#[test]
fn whichever_address_of_a_name_answers_is_used() {
    use std::net::TcpListener;
    let dial = Dial::by_itself("test", Duration::from_secs(10));
    for host in ["127.0.0.1", "[::1]"] {
        let Ok(listener) = TcpListener::bind(format!("{host}:0")) else {
            continue; // a machine without IPv6
        };
        let addr = listener.local_addr().expect("it is bound");
        let others = ["127.0.0.2", "127.0.0.1", "[::1]"].into_iter();
        let others = others.filter(|other| *other != host);
        let others = others.map(|ip| format!("{ip}:{}", addr.port()).parse().expect("both"));
        for mut addrs in [others.collect::<Vec<_>>(), Vec::new()] {
            addrs.push(addr);
            let stream = open_one(&addrs, &dial).expect("one answers");
            assert_eq!(stream.peer_addr().expect("it is connected"), addr);
        }
    }
}
