//! Both ends in memory, and a socket that takes as many bytes as it is told to.

use super::*;

use std::sync::Arc;

use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::{
    ClientConfig, RootCertStore, ServerConfig, ServerConnection, SupportedProtocolVersion, version,
};

use crate::config::tls::TlsConfig;

/// The client's end of a connection whose other end is memory.
#[derive(Default)]
struct Pipe(Mutex<Ends>);

#[derive(Default)]
struct Ends {
    /// The bytes that the client has written.
    sent: Vec<u8>,
    /// How much more of that is taken now.
    takes: usize,
    /// The bytes that the client can read.
    coming: Vec<u8>,
    has_ended: bool,
}

impl WriteAtOnce for Pipe {
    fn write_at_once(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut ends = self.0.lock();
        let n = bytes.len().min(ends.takes);
        if n == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        ends.takes -= n;
        ends.sent.extend_from_slice(&bytes[..n]);
        Ok(n)
    }
}

impl Read for &Pipe {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let mut ends = self.0.lock();
        if ends.coming.is_empty() && !ends.has_ended {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let n = ends.coming.len().min(buf.len());
        buf[..n].copy_from_slice(&ends.coming[..n]);
        ends.coming.drain(..n);
        Ok(n)
    }
}

const VERSIONS: [&SupportedProtocolVersion; 2] = [&version::TLS12, &version::TLS13];

fn configs(version: &'static SupportedProtocolVersion) -> (ClientConfig, ServerConfig) {
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(["here".to_owned()]).expect("a name");
    let certificate = params.self_signed(&key).expect("a certificate");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(certificate.der().clone()).expect("a root");
    let client = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[version])
        .expect("a version")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let key = PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
    let server = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[version])
        .expect("a version")
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .expect("a certificate");
    (client, server)
}

fn connections(
    version: &'static SupportedProtocolVersion,
) -> (ClientConnection, ServerConnection, TlsContext) {
    let (client, server) = configs(version);
    let name = ServerName::try_from("here").expect("a name");
    let client = ClientConnection::new(Arc::new(client), name).expect("a client");
    let server = ServerConnection::new(Arc::new(server)).expect("a server");
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(["here".to_owned()]).expect("a name");
    let pem = params.self_signed(&key).expect("a certificate").pem();
    let settings = TlsConfig::new().ca_pem(pem).build().expect("settings");
    (client, server, settings.context)
}

/// A stream and the server that it is connected to.
struct Pair {
    stream: TlsStream<Pipe>,
    server: ServerConnection,
}

impl Pair {
    fn new(version: &'static SupportedProtocolVersion) -> Self {
        let (mut client, mut server, context) = connections(version);
        while client.is_handshaking() || server.is_handshaking() {
            let mut bytes = Vec::new();
            while client.wants_write() {
                client.write_tls(&mut bytes).expect("memory");
            }
            feed_server(&mut server, &bytes);
            bytes.clear();
            while server.wants_write() {
                server.write_tls(&mut bytes).expect("memory");
            }
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                client.read_tls(&mut rest).expect("memory");
                client.process_new_packets().expect("a good server");
            }
        }
        Self {
            stream: TlsStream::new(Pipe::default(), client, context),
            server,
        }
    }

    fn takes(&self, bytes: usize) {
        self.stream.socket.0.lock().takes = bytes;
    }

    /// The bytes that the server has read since the last call.
    fn arrived(&mut self) -> Vec<u8> {
        let sent = std::mem::take(&mut self.stream.socket.0.lock().sent);
        feed_server(&mut self.server, &sent)
    }

    /// Delivers the server's bytes to the client at once.
    fn deliver(&mut self) {
        let bytes = self.sent_by_server();
        self.stream.socket.0.lock().coming.extend(bytes);
    }

    fn sent_by_server(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        while self.server.wants_write() {
            self.server.write_tls(&mut bytes).expect("memory");
        }
        bytes
    }

    fn says(&mut self, plain: &[u8]) {
        self.server.writer().write_all(plain).expect("memory");
    }

    /// Reads all that the client can read now.
    fn read(&self) -> Vec<u8> {
        let (mut plain, mut buf) = (Vec::new(), [0; 1000]);
        loop {
            match self.stream.read(&mut buf) {
                Ok(0) => return plain,
                Ok(n) => plain.extend_from_slice(&buf[..n]),
                Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return plain,
            }
        }
    }
}

fn feed_server(server: &mut ServerConnection, mut bytes: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    while !bytes.is_empty() {
        server.read_tls(&mut bytes).expect("memory");
        server.process_new_packets().expect("a good client");
        let read = server.reader().read_to_end(&mut plain);
        assert!(read.is_err_and(|err| err.kind() == io::ErrorKind::WouldBlock));
    }
    plain
}

/// Offers `text` as the pipeline does, with `more` behind it once something was left over, to a socket that takes `takes`
/// bytes at each call and then everything; what was read.
fn written_in_pieces(
    pair: &mut Pair,
    text: &[u8],
    more: &[u8],
    takes: &[usize],
    mut between: impl FnMut(&mut Pair),
) -> (Vec<u8>, usize) {
    let mut offered = text.to_vec();
    let mut arrived = Vec::new();
    let mut calls = 0;
    for takes in takes.iter().copied().chain(std::iter::repeat(usize::MAX)) {
        pair.takes(takes);
        let n = pair.stream.write_some(&offered).expect("a socket");
        assert!(n <= offered.len());
        offered.drain(..n);
        arrived.extend(pair.arrived());
        if calls == 0 && !offered.is_empty() {
            offered.extend_from_slice(more);
        }
        calls += 1;
        if offered.is_empty() {
            break;
        }
        between(pair);
        arrived.extend(pair.arrived());
        assert!(calls < takes_limit(), "it goes on for ever");
    }
    (arrived, calls)
}

fn takes_limit() -> usize {
    100
}

#[test]
fn every_byte_is_written_once_wherever_the_socket_stops() {
    for version in VERSIONS {
        let mut pair = Pair::new(version);
        for text in [&b"x"[..], b"xy", b"PING\r\n"] {
            // A record adds fewer than 40 bytes.
            for first in 0..text.len() + 40 {
                for second in 0..text.len() + 40 {
                    let (arrived, calls) =
                        written_in_pieces(&mut pair, text, b"+more", &[first, second], |_| {});
                    let mut expected = text.to_vec();
                    if calls > 1 {
                        expected.extend_from_slice(b"+more");
                    }
                    assert_eq!(arrived, expected, "{first}, {second}");
                    let session = pair.stream.session.lock();
                    assert!(session.is_clean(), "{first}, {second}");
                }
            }
        }
    }
}

#[test]
fn what_is_left_over_is_never_reported_as_written() {
    let mut pair = Pair::new(&version::TLS13);
    pair.takes(usize::MAX);
    assert_eq!(pair.stream.write_some(b"PING\r\n").expect("a socket"), 6);
    let record = pair.stream.socket.0.lock().sent.len();
    assert_eq!(pair.arrived(), b"PING\r\n");
    for stop in 0..record {
        pair.takes(stop);
        let n = pair.stream.write_some(b"PING\r\n").expect("a socket");
        // If all bytes counted as written, no thread would write the end of the record.
        assert_eq!(n, 5, "{stop}");
        assert!(!pair.stream.session.lock().is_clean());
        // Nothing can follow a record of which a part is missing.
        pair.takes(usize::MAX);
        pair.stream.write_last(b"QUIT").expect("a socket");
        assert!(pair.stream.session.lock().outgoing.len() == record - stop);
        let rest = pair.stream.write_some(&b"PING\r\n"[n..]);
        assert_eq!(n + rest.expect("a socket"), 6);
        assert_eq!(pair.arrived(), b"PING\r\n");
    }
    pair.stream.write_last(b"QUIT").expect("a socket");
    assert_eq!(pair.arrived(), b"QUIT");
}

#[test]
fn the_answers_of_the_reader_take_their_place_among_what_is_written() {
    // The server changes its keys and asks for the same, after the client has written a part.
    let mut pair = Pair::new(&version::TLS13);
    for first in 0..40 {
        for second in 0..60 {
            let mut changes = 2;
            let (arrived, _) =
                written_in_pieces(&mut pair, b"a command", b"", &[first, second], |pair| {
                    if changes > 0 {
                        changes -= 1;
                        pair.server.refresh_traffic_keys().expect("TLS 1.3");
                        pair.says(b"!");
                        pair.deliver();
                        assert_eq!(pair.read(), b"!");
                    }
                });
            assert_eq!(arrived, b"a command", "{first}, {second}");
        }
    }
    // The thread that reads sends a refusal at once.
    pair.takes(usize::MAX);
    pair.stream.socket.0.lock().coming = b"garbage".to_vec();
    assert!(pair.read().is_empty());
    assert!(pair.stream.failure().is_some());
    assert!(!pair.stream.socket.0.lock().sent.is_empty());
}

#[test]
fn what_comes_in_pieces_is_read_whole() {
    for version in VERSIONS {
        let mut pair = Pair::new(version);
        pair.says(b"+PONG\r\n");
        pair.says(b":1\r\n");
        // With the session tickets of TLS 1.3 in front.
        let bytes = pair.sent_by_server();
        let (at, rest) = bytes.split_at(bytes.len() / 2);
        for half in [at, rest] {
            for byte in half {
                pair.stream.socket.0.lock().coming.push(*byte);
                let mut buf = [0; 0];
                drop(pair.stream.read(&mut buf));
            }
        }
        assert_eq!(pair.read(), b"+PONG\r\n:1\r\n");
        // Several records at once, larger than any buffer.
        let large: Vec<u8> = (0..100_000_u32).map(|n| n.to_le_bytes()[0]).collect();
        for part in large.chunks(30_000) {
            pair.says(part);
            pair.deliver();
        }
        assert!(pair.read() == large);
    }
}

#[test]
fn only_the_server_ends_a_connection() {
    // New tickets and keys are nothing to anybody.
    let mut pair = Pair::new(&version::TLS13);
    pair.takes(usize::MAX);
    assert!(!pair.stream.has_ended());
    pair.deliver();
    assert!(!pair.stream.has_ended(), "tickets");
    pair.server.refresh_traffic_keys().expect("TLS 1.3");
    pair.deliver();
    assert!(!pair.stream.has_ended(), "keys");
    pair.stream.write_some(b"more").expect("a socket");
    assert_eq!(pair.arrived(), b"more");
    // The rest of the record may still come.
    pair.server.refresh_traffic_keys().expect("TLS 1.3");
    let bytes = pair.sent_by_server();
    let (begin, rest) = bytes.split_at(bytes.len() - 3);
    pair.stream.socket.0.lock().coming.extend(begin);
    assert!(!pair.stream.has_ended(), "half a record");
    pair.stream.socket.0.lock().coming.extend(rest);
    assert!(!pair.stream.has_ended(), "the other half");

    for (case, end) in [
        ("a word", (|pair| pair.says(b"-ERR\r\n")) as fn(&mut Pair)),
        ("a goodbye", |pair| pair.server.send_close_notify()),
        ("an end", |pair| {
            pair.stream.socket.0.lock().has_ended = true
        }),
        ("garbage", |pair| {
            pair.stream.socket.0.lock().coming = b"-ERR\r\n\r\n".to_vec();
        }),
    ] {
        for version in VERSIONS {
            let mut pair = Pair::new(version);
            pair.deliver();
            assert!(!pair.stream.has_ended());
            end(&mut pair);
            pair.deliver();
            assert!(pair.stream.has_ended(), "{case}");
        }
    }
}

#[test]
fn an_end_comes_behind_what_was_said_before_it() {
    for version in VERSIONS {
        for announced in [true, false] {
            let mut pair = Pair::new(version);
            pair.says(b"+OK\r\n");
            if announced {
                pair.server.send_close_notify();
            }
            pair.deliver();
            pair.stream.socket.0.lock().has_ended = true;
            let mut buf = [0; 3];
            assert_eq!(pair.stream.read(&mut buf).expect("a word"), 3);
            assert_eq!(pair.read(), b"\r\n");
            assert_eq!(pair.stream.read(&mut buf).expect("the end"), 0);
            assert!(pair.stream.failure().is_none());
        }
    }
}

/// A thread writes while another reads, over real sockets, and the server changes its keys again and again.
#[test]
fn both_directions_are_used_at_once() {
    const ROUNDS: usize = 300;
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let socket = TcpStream::connect(listener.local_addr().expect("bound")).expect("a server");
    socket.set_nodelay(true).expect("a socket");
    let (mut tls, mut server, context) = connections(&version::TLS13);
    let echo = std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().expect("a client");
        server.complete_io(&mut socket).expect("a handshake");
        let (mut echoed, mut buf) = (0, [0; 4096]);
        while echoed < ROUNDS * 1000 {
            let n = match server.reader().read(&mut buf) {
                Ok(n) => n,
                Err(_) => {
                    server.read_tls(&mut socket).expect("a client");
                    server.process_new_packets().expect("a good client");
                    continue;
                }
            };
            server.writer().write_all(&buf[..n]).expect("memory");
            server.refresh_traffic_keys().expect("TLS 1.3");
            while server.wants_write() {
                server.write_tls(&mut socket).expect("a client");
            }
            echoed += n;
        }
    });
    tls.complete_io(&mut &socket).expect("a handshake");
    socket.set_write_timeout(Some(GLANCE)).expect("a socket");
    let stream = &TlsStream::new(socket, tls, context);
    let text: &[u8] = &(0..1000_u32)
        .map(|n| n.to_le_bytes()[0])
        .collect::<Vec<_>>();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..ROUNDS {
                let mut rest = text;
                while !rest.is_empty() {
                    rest = &rest[stream.write_some(rest).expect("a server")..];
                }
            }
        });
        let (mut heard, mut buf) = (Vec::new(), [0; 700]);
        while heard.len() < ROUNDS * 1000 {
            match stream.read(&mut buf) {
                Ok(0) => panic!("it has ended: {:?}", stream.failure()),
                Ok(n) => heard.extend_from_slice(&buf[..n]),
                Err(err) => assert_eq!(err.kind(), io::ErrorKind::Interrupted),
            }
        }
        assert!(heard.chunks(1000).all(|part| part == text));
    });
    echo.join().expect("a server to the end");
}
