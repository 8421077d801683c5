//! The bytes of a request: a plain command, or a script by its hash or its text.

use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use crate::net::slot::slot_of;
use crate::verdict::RequestKind;

/// A script, in two versions: for plain channels, and for sharded ones. The second is encoded once a client needs it.
pub(crate) struct Script {
    text: Box<str>,
    plain: Encoded,
    sharded: OnceLock<Encoded>,
}

/// A script of this crate, or one of the user's.
#[derive(Clone)]
pub(crate) enum ScriptRef {
    Ours(&'static Script),
    Users(Arc<Script>),
}

impl ScriptRef {
    /// A user's script is sent unchanged, also to servers with sharded channels.
    fn encoded(&self, wording: Wording) -> &[u8] {
        match self {
            Self::Ours(script) => script.encoded(wording),
            Self::Users(script) => script.encoded(Wording::plain(wording.by_text)),
        }
    }
}

impl Deref for ScriptRef {
    type Target = Script;

    fn deref(&self) -> &Script {
        match self {
            Self::Ours(script) => script,
            Self::Users(script) => script,
        }
    }
}

/// A script, encoded both ways: `EVALSHA` with its hash, and `EVAL` with its text.
struct Encoded {
    by_hash: Vec<u8>,
    by_text: Vec<u8>,
}

impl Script {
    pub(crate) fn new(text: &str) -> Self {
        Self {
            text: text.into(),
            plain: Encoded::new(text),
            sharded: OnceLock::new(),
        }
    }

    /// The text with the commands of sharded channels in place of those of plain ones. The names of commands stay literal,
    /// since some servers search the text of a script for them before they run it.
    pub(crate) fn sharded_text(&self) -> String {
        self.text.replace("call('publish'", "call('spublish'")
    }

    fn encoded(&self, wording: Wording) -> &[u8] {
        let encoded = match wording.sharded {
            false => &self.plain,
            true => self
                .sharded
                .get_or_init(|| Encoded::new(&self.sharded_text())),
        };
        match wording.by_text {
            false => &encoded.by_hash,
            true => &encoded.by_text,
        }
    }
}

impl Encoded {
    fn new(text: &str) -> Self {
        let mut by_hash = Vec::new();
        push_bulk(&mut by_hash, b"EVALSHA");
        push_bulk(&mut by_hash, redis::Script::new(text).get_hash().as_bytes());
        let mut by_text = Vec::new();
        push_bulk(&mut by_text, b"EVAL");
        push_bulk(&mut by_text, text.as_bytes());
        Self { by_hash, by_text }
    }
}

/// The choices that a request leaves open until it is sent.
#[derive(Clone, Copy)]
pub(crate) struct Wording {
    /// A script's text (`EVAL`) instead of its hash, for a server that may not know it.
    pub(crate) by_text: bool,
    /// Channels are sharded: each is known only to the master of its slot.
    pub(crate) sharded: bool,
}

impl Wording {
    /// The wording for servers without sharded channels.
    fn plain(by_text: bool) -> Self {
        Self {
            by_text,
            sharded: false,
        }
    }
}

/// How many replicas have to acknowledge the writes of a connection, and for how long to wait for that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Acknowledgements {
    pub(crate) needed: u32,
    /// In milliseconds; the server takes 0 as "no timeout".
    pub(crate) timeout: u32,
}

/// The parts of a script in front of its keys: the name of the command, the script, and how many keys there are.
const HEAD: usize = 3;

/// Enough for the requests of a lock with a name of 40 bytes.
const TYPICAL: usize = 192;

/// A command, encoded except for what its [`Wording`] decides.
#[derive(Clone)]
pub(crate) struct Request {
    pub(crate) script: Option<ScriptRef>,
    parts: usize,
    /// The parts behind the script; of a command without one, all parts.
    packed: Vec<u8>,
    /// What the command is for, as it appears in error messages.
    pub(crate) doing: &'static str,
    /// `WAIT` follows the command, and the reply to `WAIT` follows the command's reply.
    pub(crate) acknowledgements: Option<Acknowledgements>,
    /// The request is not sent again once it may have run.
    pub(crate) is_sent_once: bool,
    /// Redis applies the request once, however often it is sent; a new request for the same action would be applied again.
    pub(crate) applies_once: bool,
}

impl Request {
    /// A plain command.
    pub(crate) fn command(doing: &'static str, parts: &[&str]) -> Self {
        let mut packed = Vec::with_capacity(TYPICAL);
        for part in parts {
            push_bulk(&mut packed, part.as_bytes());
        }
        Self {
            script: None,
            parts: parts.len(),
            packed,
            doing,
            acknowledgements: None,
            is_sent_once: false,
            applies_once: false,
        }
    }

    pub(crate) fn script<A: AsRef<[u8]>>(
        doing: &'static str,
        script: &'static Script,
        keys: &[&str],
        args: &[A],
    ) -> Self {
        let keys = keys.iter().map(std::slice::from_ref);
        Self::pack(doing, ScriptRef::Ours(script), keys, args)
    }

    /// A script with keys that consist of several parts each.
    pub(crate) fn script_of_parts(
        doing: &'static str,
        script: &'static Script,
        keys: &[&[&str]],
        args: &[impl AsRef<[u8]>],
    ) -> Self {
        Self::pack(doing, ScriptRef::Ours(script), keys.iter().copied(), args)
    }

    /// Marks the request as one that Redis applies once.
    pub(crate) fn applied_once(self) -> Self {
        Self {
            applies_once: true,
            ..self
        }
    }

    /// A script that is not sent again once it may have run.
    pub(crate) fn once(
        doing: &'static str,
        script: ScriptRef,
        keys: &[&[u8]],
        args: &[&[u8]],
    ) -> Self {
        let keys = keys.iter().map(std::slice::from_ref);
        Self {
            is_sent_once: true,
            ..Self::pack(doing, script, keys, args)
        }
    }

    fn pack<'a, K: AsRef<[u8]> + 'a>(
        doing: &'static str,
        script: ScriptRef,
        keys: impl ExactSizeIterator<Item = &'a [K]>,
        args: &[impl AsRef<[u8]>],
    ) -> Self {
        let parts = HEAD + keys.len() + args.len();
        let mut packed = Vec::with_capacity(TYPICAL);
        push_number(&mut packed, keys.len());
        for key in keys {
            push_joined(&mut packed, key);
        }
        for arg in args {
            push_bulk(&mut packed, arg.as_ref());
        }
        Self {
            script: Some(script),
            parts,
            packed,
            doing,
            acknowledgements: None,
            is_sent_once: false,
            applies_once: false,
        }
    }

    /// The script, unless it is the user's.
    pub(crate) fn our_script(&self) -> Option<&'static Script> {
        match self.script {
            Some(ScriptRef::Ours(script)) => Some(script),
            _ => None,
        }
    }

    pub(crate) fn is_users_script(&self) -> bool {
        matches!(self.script, Some(ScriptRef::Users(_)))
    }

    /// The kind of a request whose answer a thread waits for.
    pub(crate) fn kind(&self) -> RequestKind {
        match self.is_users_script() {
            true => RequestKind::Users(self.first_key().map(slot_of)),
            false => RequestKind::Waited,
        }
    }

    /// The keys that the request is about. Leaves out the first two keys of a guarded command, which only decide whether
    /// it may run.
    pub(crate) fn asked_keys(&self) -> impl Iterator<Item = &[u8]> {
        self.keys().skip(if self.is_sent_once { 2 } else { 0 })
    }

    /// About how many bytes this request adds to one that it is joined with: its keys and arguments.
    pub(crate) fn joined_len(&self) -> usize {
        self.packed.len()
    }

    /// Whether both requests run `script`, so that [`together`](Self::together) can join them. The caller knows that
    /// `script` accepts the keys and arguments of several requests. A request that waits for replicas is never joined.
    pub(crate) fn can_join(&self, other: &Self, script: &Script) -> bool {
        let is_of = |request: &Self| {
            request.acknowledgements.is_none()
                && (request.script.as_deref())
                    .is_some_and(|request_script| std::ptr::eq(request_script, script))
        };
        is_of(self) && is_of(other)
    }

    /// Several requests of one script as one: first the keys of all, then the arguments of all.
    pub(crate) fn together(mut requests: Vec<Self>) -> Self {
        if requests.len() == 1 {
            return requests.remove(0);
        }
        let parts = requests.iter().map(|request| request.parts - HEAD);
        let parts = HEAD + parts.sum::<usize>();
        let keys = requests.iter().map(|request| request.keys().count());
        let mut bytes = Vec::new();
        push_number(&mut bytes, keys.sum());
        let both = requests.iter().map(Self::keys_and_args);
        both.clone()
            .for_each(|(keys, _)| bytes.extend_from_slice(keys));
        both.for_each(|(_, args)| bytes.extend_from_slice(args));
        Self {
            parts,
            packed: bytes,
            ..requests[0].clone()
        }
    }

    /// The bytes of a script's keys, and those of its arguments.
    fn keys_and_args(&self) -> (&[u8], &[u8]) {
        let mut args = &*self.packed;
        pull_bulk(&mut args);
        let both = args;
        for _ in self.keys() {
            pull_bulk(&mut args);
        }
        both.split_at(both.len() - args.len())
    }

    /// Appends the command in the wording for servers without sharded channels.
    pub(crate) fn write(&self, out: &mut Vec<u8>, by_text: bool) {
        self.write_as(out, Wording::plain(by_text));
    }

    /// Appends the command.
    pub(crate) fn write_as(&self, out: &mut Vec<u8>, wording: Wording) {
        push_head(out, b'*', self.parts);
        if let Some(script) = &self.script {
            out.extend_from_slice(script.encoded(wording));
        }
        out.extend_from_slice(&self.packed);
        if let Some(Acknowledgements { needed, timeout }) = self.acknowledgements {
            out.extend_from_slice(b"*3\r\n$4\r\nWAIT\r\n");
            for number in [needed, timeout] {
                push_bulk(out, number.to_string().as_bytes());
            }
        }
    }

    /// The key or channel whose slot decides which node gets the request; `None` for a command that any server answers.
    pub(crate) fn first_key(&self) -> Option<&[u8]> {
        if self.script.is_some() {
            return self.keys().next();
        }
        let mut rest = &*self.packed;
        pull_bulk(&mut rest)?;
        pull_bulk(&mut rest)
    }

    /// How many keys and arguments the request has.
    pub(crate) fn given(&self) -> usize {
        let (mut keys, mut args) = self.keys_and_args();
        let count = |bytes: &mut &[u8]| std::iter::from_fn(|| pull_bulk(bytes)).count();
        count(&mut keys) + count(&mut args)
    }

    /// The keys of a script.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = &*self.packed;
        let count = match &self.script {
            Some(_) => pull_bulk(&mut rest),
            None => None,
        };
        let count = count.and_then(|count| std::str::from_utf8(count).ok()?.parse().ok());
        (0..count.unwrap_or(0_usize)).map_while(move |_| pull_bulk(&mut rest))
    }
}

/// Appends the line that a bulk string or an array of `n` begins with. Most numbers have one digit or two.
fn push_head(out: &mut Vec<u8>, kind: u8, n: usize) {
    match n {
        0..10 => out.extend_from_slice(&[kind, digit(n), b'\r', b'\n']),
        10..100 => out.extend_from_slice(&[kind, digit(n / 10), digit(n % 10), b'\r', b'\n']),
        _ => {
            out.push(kind);
            out.extend_from_slice(n.to_string().as_bytes());
            out.extend_from_slice(b"\r\n");
        }
    }
}

/// The digit of a number below ten.
fn digit(n: usize) -> u8 {
    b"0123456789"[n]
}

fn push_bulk(out: &mut Vec<u8>, bytes: &[u8]) {
    push_joined(out, &[bytes]);
}

fn push_joined(out: &mut Vec<u8>, parts: &[impl AsRef<[u8]>]) {
    let len = parts.iter().map(|part| part.as_ref().len());
    push_head(out, b'$', len.sum());
    for part in parts {
        out.extend_from_slice(part.as_ref());
    }
    out.extend_from_slice(b"\r\n");
}

fn push_number(out: &mut Vec<u8>, n: usize) {
    match n {
        0..10 => out.extend_from_slice(&[b'$', b'1', b'\r', b'\n', digit(n), b'\r', b'\n']),
        _ => push_bulk(out, n.to_string().as_bytes()),
    }
}

/// Removes one bulk string, as [`push_bulk`] writes it, from the front of `bytes`. Returns its content.
fn pull_bulk<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let head = bytes.iter().position(|byte| *byte == b'\n')?;
    let digits = bytes.get(1..head.checked_sub(1)?)?;
    let len: usize = std::str::from_utf8(digits).ok()?.parse().ok()?;
    let body = bytes.get(head + 1..head + 1 + len)?;
    *bytes = bytes.get(head + 1 + len + 2..)?;
    Some(body)
}

#[cfg(test)]
mod tests;
