//! A fake server that sends whatever a test chooses, independent of the request.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use super::proxy::spawn;
use super::wait::ms;

/// The pieces to send. An endless iterator is consumed until the client stops reading.
pub(crate) type Sent = Box<dyn Iterator<Item = Vec<u8>>>;

type Answer = dyn Fn(&[u8]) -> Sent + Send + Sync;

/// A TCP server in threads of this process that sends what a test chooses.
pub(crate) struct Adversary {
    addr: SocketAddr,
    closing: Arc<AtomicBool>,
    acceptor: Option<JoinHandle<()>>,
}

impl Adversary {
    /// Listens on a free loopback port. `answer` is called with the bytes of each read.
    pub(crate) fn start(answer: impl Fn(&[u8]) -> Sent + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let addr = listener.local_addr().expect("it is bound");
        let closing = Arc::new(AtomicBool::new(false));
        let answer: Arc<Answer> = Arc::new(answer);
        let acceptor = spawn({
            let closing = Arc::clone(&closing);
            move || accept(&listener, &closing, &answer)
        });
        Self {
            addr,
            closing,
            acceptor: Some(acceptor),
        }
    }

    pub(crate) fn port(&self) -> u16 {
        self.addr.port()
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}/", self.addr)
    }
}

impl Drop for Adversary {
    fn drop(&mut self) {
        self.closing.store(true, Ordering::SeqCst);
        // A connection of our own ends the wait in `accept`.
        let woken = TcpStream::connect(self.addr);
        if let Some(acceptor) = self.acceptor.take().filter(|_| woken.is_ok()) {
            acceptor.join().ok();
        }
    }
}

fn accept(listener: &TcpListener, closing: &Arc<AtomicBool>, answer: &Arc<Answer>) {
    let mut talks: Vec<JoinHandle<()>> = Vec::new();
    for client in listener.incoming() {
        if closing.load(Ordering::SeqCst) {
            break;
        }
        let Ok(client) = client else { continue };
        let (closing, answer) = (Arc::clone(closing), Arc::clone(answer));
        talks.retain(|talk| !talk.is_finished());
        talks.push(spawn(move || {
            // Every way in which the connection can end is fine.
            talk(&client, &closing, &*answer).ok();
        }));
    }
    for talk in talks {
        talk.join().ok();
    }
}

fn talk(mut client: &TcpStream, closing: &AtomicBool, answer: &Answer) -> std::io::Result<()> {
    client.set_read_timeout(Some(ms(20)))?;
    client.set_write_timeout(Some(ms(200)))?;
    client.set_nodelay(true)?;
    let mut asked = vec![0; 64 * 1024];
    while !closing.load(Ordering::SeqCst) {
        let n = match client.read(&mut asked) {
            Ok(0) => return Ok(()),
            Ok(n) => n,
            Err(err) if err.kind() == std::io::ErrorKind::WouldBlock => continue,
            Err(err) => return Err(err),
        };
        for piece in answer(&asked[..n]) {
            client.write_all(&piece)?;
            if closing.load(Ordering::SeqCst) {
                break;
            }
        }
    }
    Ok(())
}

/// The commands in `asked`, each as its words.
pub(crate) fn commands_in(asked: &[u8]) -> Vec<Vec<String>> {
    let text = String::from_utf8_lossy(asked);
    let mut commands: Vec<Vec<String>> = Vec::new();
    let mut lines = text.split("\r\n");
    while let Some(line) = lines.next() {
        if line.starts_with('*') {
            commands.push(Vec::new());
        } else if line.starts_with('$')
            && let (Some(word), Some(command)) = (lines.next(), commands.last_mut())
        {
            command.push(word.to_owned());
        }
    }
    commands
}

/// The reply of a real server to a command of the client's greeting; `None` for every other command.
pub(crate) fn greeted(command: &[String]) -> Option<&'static str> {
    match command.first()?.as_str() {
        "CLIENT" | "SELECT" | "AUTH" => Some("+OK\r\n"),
        "PING" => Some("+PONG\r\n"),
        "INFO" => Some("$0\r\n\r\n"),
        "HELLO" => Some("*2\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n"),
        "ROLE" => Some("*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n"),
        _ => None,
    }
}

/// Answers the greeting as a real server does, and every later command with what `answer` returns.
pub(crate) fn after_the_greeting(
    answer: impl Fn(&[String]) -> Sent + Send + Sync + 'static,
) -> impl Fn(&[u8]) -> Sent + Send + Sync + 'static {
    move |asked| {
        let mut sent: Sent = Box::new(std::iter::empty());
        for command in commands_in(asked) {
            let next: Sent = match greeted(&command) {
                Some(text) => once(text),
                None => answer(&command),
            };
            sent = Box::new(sent.chain(next));
        }
        sent
    }
}

/// Sends `sent` once and then nothing more.
pub(crate) fn once(sent: impl Into<Vec<u8>>) -> Sent {
    Box::new(std::iter::once(sent.into()))
}

/// Repeats `sent` without end.
pub(crate) fn endlessly(sent: impl Into<Vec<u8>>) -> Sent {
    Box::new(std::iter::repeat(sent.into()))
}
