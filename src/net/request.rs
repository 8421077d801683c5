//! The bytes of a request: a plain command, or a script by its hash or its text.

use std::sync::OnceLock;
use std::time::Duration;

/// A script: with plain channels, and with sharded ones where a client of a cluster uses those.
pub(crate) struct Script {
    text: Box<str>,
    plain: Encoded,
    sharded: OnceLock<Encoded>,
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

    /// The text with the commands of sharded channels in place of those of plain ones. They stay literal, since some
    /// servers read scripts before they run them.
    pub(crate) fn sharded_text(&self) -> String {
        self.text
            .replace("call('publish'", "call('spublish'")
            .replace("'pubsub', 'numsub'", "'pubsub', 'shardnumsub'")
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

/// What a request leaves open until it is sent.
#[derive(Clone, Copy)]
pub(crate) struct Wording {
    /// A script's text (`EVAL`) instead of its hash, for a server that may not know it.
    pub(crate) by_text: bool,
    /// Channels are sharded: each is known only to the master of its slot.
    pub(crate) sharded: bool,
    /// How old the connection is, if it is young: see [`Request::without_grace_while_young`].
    pub(crate) young: Option<Duration>,
}

impl Wording {
    /// Without sharded channels, for a connection that is not young.
    fn plain(by_text: bool) -> Self {
        Self {
            by_text,
            sharded: false,
            young: None,
        }
    }
}

/// How many replicas are to have what was written on a connection, and for how long that is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Acknowledgements {
    pub(crate) needed: u32,
    /// In milliseconds; the server takes 0 for ever.
    pub(crate) timeout: u32,
}

/// One command, encoded but for its [`Wording`].
#[derive(Clone)]
pub(crate) struct Request {
    pub(crate) script: Option<&'static Script>,
    /// It asks how many listen to a channel.
    counts_listeners: bool,
    /// Which of a script's arguments is another one while the connection is young.
    grace: Option<u8>,
    parts: usize,
    packed: Packed,
    /// What the command is for, as errors say it.
    pub(crate) doing: &'static str,
    /// `WAIT` follows the command, and its reply that of the command.
    pub(crate) acknowledgements: Option<Acknowledgements>,
}

impl Request {
    /// A plain command.
    pub(crate) fn command(doing: &'static str, parts: &[&str]) -> Self {
        let len = parts.iter().map(|part| bulk_len(part.len())).sum();
        let packed = Packed::of(len, |out| {
            for part in parts {
                push_bulk(out, part.as_bytes());
            }
        });
        Self {
            script: None,
            counts_listeners: false,
            grace: None,
            parts: parts.len(),
            packed,
            doing,
            acknowledgements: None,
        }
    }

    /// Asks how many listen to a channel.
    pub(crate) fn listeners(doing: &'static str, channel: &str) -> Self {
        Self {
            counts_listeners: true,
            parts: 3,
            ..Self::command(doing, &[channel])
        }
    }

    pub(crate) fn script(
        doing: &'static str,
        script: &'static Script,
        keys: &[&str],
        args: &[&str],
    ) -> Self {
        let args = args.iter().map(|arg| arg.as_bytes());
        Self::pack(doing, script, keys.iter().map(std::slice::from_ref), args)
    }

    /// A script with keys that consist of several parts each.
    pub(crate) fn script_of_parts(
        doing: &'static str,
        script: &'static Script,
        keys: &[&[&str]],
        args: &[&str],
    ) -> Self {
        let args = args.iter().map(|arg| arg.as_bytes());
        Self::pack(doing, script, keys.iter().copied(), args)
    }

    /// A script with arguments that are no text.
    pub(crate) fn script_of_bytes(
        doing: &'static str,
        script: &'static Script,
        keys: &[&str],
        args: &[&[u8]],
    ) -> Self {
        let keys = keys.iter().map(std::slice::from_ref);
        Self::pack(doing, script, keys, args.iter().copied())
    }

    fn pack<'a>(
        doing: &'static str,
        script: &'static Script,
        keys: impl ExactSizeIterator<Item = &'a [&'a str]> + Clone,
        args: impl ExactSizeIterator<Item = &'a [u8]> + Clone,
    ) -> Self {
        let (count, parts) = (keys.len(), 3 + keys.len() + args.len());
        let each_key = keys.clone().map(|key| bulk_len(joined_len(key)));
        let each_arg = args.clone().map(|arg| bulk_len(arg.len()));
        let len =
            bulk_len(digits_of(count as u64)) + each_key.sum::<usize>() + each_arg.sum::<usize>();
        let packed = Packed::of(len, |out| {
            push_number(out, count);
            for key in keys {
                push_joined(out, key);
            }
            for arg in args {
                push_bulk(out, arg);
            }
        });
        Self {
            script: Some(script),
            counts_listeners: false,
            grace: None,
            parts,
            packed,
            doing,
            acknowledgements: None,
        }
    }

    /// How many bytes it takes at most.
    pub(crate) fn len(&self, by_text: bool) -> usize {
        const HEAD: usize = 32;
        let script = |script: &Script| script.encoded(Wording::plain(by_text)).len();
        HEAD + self.script.map_or(0, script) + self.joined_len()
    }

    /// How many bytes it adds to another request of its script.
    pub(crate) fn joined_len(&self) -> usize {
        self.packed.bytes().len()
    }

    /// Whether both are of a script that may be given the keys and arguments of several requests.
    pub(crate) fn goes_with(&self, other: &Self, script: &Script) -> bool {
        let is_of = |request: &Self| {
            request.acknowledgements.is_none()
                && request.script.is_some_and(|its| std::ptr::eq(its, script))
        };
        is_of(self) && is_of(other)
    }

    /// Appends several requests of one script as one: first the keys of all, then the arguments of all.
    pub(crate) fn write_together(requests: &[Self], out: &mut Vec<u8>, by_text: bool) {
        let first = match requests {
            [] => return,
            [only] => return only.write(out, by_text),
            [first, ..] => first,
        };
        // The name of the command, the script, and how many keys there are.
        const HEAD: usize = 3;
        let parts = requests.iter().map(|request| request.parts - HEAD);
        push_head(out, b'*', HEAD + parts.sum::<usize>());
        if let Some(script) = first.script {
            out.extend_from_slice(script.encoded(Wording::plain(by_text)));
        }
        let keys = requests.iter().map(|request| request.keys().count());
        push_number(out, keys.sum());
        let both = requests.iter().map(Self::keys_and_args);
        both.clone()
            .for_each(|(keys, _)| out.extend_from_slice(keys));
        both.for_each(|(_, args)| out.extend_from_slice(args));
    }

    /// The bytes of a script's keys, and those of its arguments.
    fn keys_and_args(&self) -> (&[u8], &[u8]) {
        let mut args = self.packed.bytes();
        pull_bulk(&mut args);
        let both = args;
        for _ in self.keys() {
            pull_bulk(&mut args);
        }
        both.split_at(both.len() - args.len())
    }

    /// This argument says how long a grace those have who do not listen. After an outage others may be about to connect
    /// again, so on a young connection there is none: what is sent is `-1`, less one for each tenth of a second since the
    /// connection was made, in as many digits. What has no room for that is all zeros.
    pub(crate) fn without_grace_while_young(mut self, nth: u8) -> Self {
        self.grace = Some(nth);
        self
    }

    /// Appends the command as it is without sharded channels, on a connection that is not young.
    pub(crate) fn write(&self, out: &mut Vec<u8>, by_text: bool) {
        self.write_as(out, Wording::plain(by_text));
    }

    /// Appends the command.
    pub(crate) fn write_as(&self, out: &mut Vec<u8>, wording: Wording) {
        push_head(out, b'*', self.parts);
        if let Some(script) = self.script {
            out.extend_from_slice(script.encoded(wording));
        } else if self.counts_listeners {
            push_bulk(out, b"PUBSUB");
            let what: &[u8] = match wording.sharded {
                false => b"NUMSUB",
                true => b"SHARDNUMSUB",
            };
            push_bulk(out, what);
        }
        out.extend_from_slice(self.packed.bytes());
        if let (Some(nth), Some(age)) = (self.grace, wording.young) {
            let mut rest = self.packed.bytes();
            let before = 1 + self.keys().count() + usize::from(nth);
            let length = (0..=before).filter_map(|_| pull_bulk(&mut rest)).last();
            let length = length.map_or(0, <[u8]>::len);
            // Its end is what is in front of the rest, but for the end of its line.
            let end = out.len() - rest.len() - 2;
            let argument = &mut out[end - length..end];
            argument.fill(b'0');
            if let [minus, .., tens, ones] = argument {
                let tenths = u8::try_from(age.as_millis() / 100).map_or(98, |age| age.min(98));
                *minus = b'-';
                (*tens, *ones) = (b'0' + (1 + tenths) / 10, b'0' + (1 + tenths) % 10);
            }
        }
        if let Some(Acknowledgements { needed, timeout }) = self.acknowledgements {
            out.extend_from_slice(b"*3\r\n$4\r\nWAIT\r\n");
            for number in [needed, timeout] {
                push_bulk(out, number.to_string().as_bytes());
            }
        }
    }

    /// The key or channel whose slot says where it belongs; none for a command that any server answers.
    #[cfg(feature = "cluster")]
    pub(crate) fn first_key(&self) -> Option<&[u8]> {
        if self.script.is_some() {
            return self.keys().next();
        }
        let mut rest = self.packed.bytes();
        let first = pull_bulk(&mut rest)?;
        match self.counts_listeners {
            true => Some(first),
            false => pull_bulk(&mut rest),
        }
    }

    /// The keys of a script.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = self.packed.bytes();
        let count = match self.script {
            Some(_) => pull_bulk(&mut rest),
            None => None,
        };
        let count = count.and_then(|count| std::str::from_utf8(count).ok()?.parse().ok());
        (0..count.unwrap_or(0_usize)).map_while(move |_| pull_bulk(&mut rest))
    }
}

/// The bytes of a request, in place if they are few: then a command needs no memory besides that of its call.
#[derive(Clone)]
enum Packed {
    Few { bytes: [u8; FEW], len: u8 },
    Many(Vec<u8>),
}

/// Enough for the requests of a lock with a name of 40 bytes.
const FEW: usize = 190;

impl Packed {
    /// So many bytes, which `write` fills.
    fn of(len: usize, write: impl FnOnce(&mut Unfilled<'_>)) -> Self {
        let mut packed = match u8::try_from(len) {
            Ok(few) if len <= FEW => Self::Few {
                bytes: [0; FEW],
                len: few,
            },
            _ => Self::Many(vec![0; len]),
        };
        write(&mut Unfilled(match &mut packed {
            Self::Few { bytes, .. } => &mut bytes[..len],
            Self::Many(bytes) => bytes,
        }));
        packed
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Self::Few { bytes, len } => &bytes[..usize::from(*len)],
            Self::Many(bytes) => bytes,
        }
    }
}

/// Where bytes are appended.
trait Append {
    fn append(&mut self, bytes: &[u8]);
}

impl Append for Vec<u8> {
    fn append(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// Bytes that are filled from the front. There have to be enough.
struct Unfilled<'a>(&'a mut [u8]);

impl Append for Unfilled<'_> {
    #[inline]
    fn append(&mut self, bytes: &[u8]) {
        let (front, rest) = std::mem::take(&mut self.0).split_at_mut(bytes.len());
        front.copy_from_slice(bytes);
        self.0 = rest;
    }
}

/// How many decimal digits `n` has.
pub(crate) fn digits_of(n: u64) -> usize {
    match n {
        0..10 => 1,
        10..100 => 2,
        _ => n.ilog10() as usize + 1,
    }
}

/// Fills `place` with as many digits of `n`, the last ones.
pub(crate) fn write_digits(place: &mut [u8], mut n: u64) {
    for digit in place.iter_mut().rev() {
        *digit = DIGITS[(n % 10) as usize];
        n /= 10;
    }
}

const DIGITS: &[u8; 10] = b"0123456789";

/// Appends the line that a bulk string or an array of `n` begins with.
#[inline]
fn push_head(out: &mut impl Append, kind: u8, n: usize) {
    match n {
        0..10 => out.append(&[kind, DIGITS[n], b'\r', b'\n']),
        10..100 => out.append(&[kind, DIGITS[n / 10], DIGITS[n % 10], b'\r', b'\n']),
        _ => {
            let mut digits = [0; 20];
            let digits = &mut digits[..digits_of(n as u64)];
            write_digits(digits, n as u64);
            out.append(&[kind]);
            out.append(digits);
            out.append(b"\r\n");
        }
    }
}

fn push_bulk(out: &mut impl Append, bytes: &[u8]) {
    push_head(out, b'$', bytes.len());
    out.append(bytes);
    out.append(b"\r\n");
}

fn push_joined(out: &mut impl Append, parts: &[&str]) {
    push_head(out, b'$', joined_len(parts));
    for part in parts {
        out.append(part.as_bytes());
    }
    out.append(b"\r\n");
}

fn push_number(out: &mut impl Append, n: usize) {
    if let Some(digit) = DIGITS.get(n) {
        return out.append(&[b'$', b'1', b'\r', b'\n', *digit, b'\r', b'\n']);
    }
    push_head(out, b'$', digits_of(n as u64));
    let mut digits = [0; 20];
    let digits = &mut digits[..digits_of(n as u64)];
    write_digits(digits, n as u64);
    out.append(digits);
    out.append(b"\r\n");
}

fn joined_len(parts: &[&str]) -> usize {
    parts.iter().map(|part| part.len()).sum()
}

/// How many bytes a bulk string of so many takes.
fn bulk_len(len: usize) -> usize {
    1 + digits_of(len as u64) + 2 + len + 2
}

/// Takes what [`push_bulk`] has appended from the front.
fn pull_bulk<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let head = bytes.iter().position(|byte| *byte == b'\n')?;
    let digits = bytes.get(1..head.checked_sub(1)?)?;
    let len: usize = std::str::from_utf8(digits).ok()?.parse().ok()?;
    let body = bytes.get(head + 1..head + 1 + len)?;
    *bytes = bytes.get(head + 1 + len + 2..)?;
    Some(body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::LazyLock;

    const TEXT: &str = "return redis.call('get', KEYS[1])\n-- \"quoted\"";
    static SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new(TEXT));

    #[test]
    fn a_request_is_packed_like_the_redis_crate_packs_it() {
        let request = Request::script("testing", &SCRIPT, &["k e\ny"], &["o:1", "1500"]);
        let mut ours = Vec::new();
        request.write(&mut ours, true);
        let theirs = redis::cmd("EVAL")
            .arg(TEXT)
            .arg(1)
            .arg("k e\ny")
            .arg("o:1")
            .arg(1500)
            .get_packed_command();
        assert_eq!(ours, theirs);
        ours.clear();
        request.write(&mut ours, false);
        let hash = redis::Script::new(TEXT);
        let theirs = redis::cmd("EVALSHA")
            .arg(hash.get_hash())
            .arg(1)
            .arg("k e\ny")
            .arg("o:1")
            .arg(1500)
            .get_packed_command();
        assert_eq!(ours, theirs);
    }

    #[test]
    fn there_is_no_grace_on_a_young_connection() {
        for (args, age, sent) in [
            (["500", "7", "8"], 0, ["-01", "7", "8"]),
            (["o:1", "500", "500"], 99, ["o:1", "-01", "500"]),
            (["o:1", "500", "500"], 100, ["o:1", "500", "-02"]),
            (["500", "o:1", "5"], 4_999, ["-50", "o:1", "5"]),
            (["500", "o:1", "5"], 60_000, ["-99", "o:1", "5"]),
            (["x", "2500", "x"], 1_000, ["x", "-011", "x"]),
            (["o:1", "500", "x"], 0, ["o:1", "500", "0"]),
            (["o:1", "50", "x"], 0, ["o:1", "00", "x"]),
        ] {
            let nth = (0..)
                .zip(args.iter().zip(sent))
                .find(|(_, (a, z))| **a != *z);
            let nth = nth.map_or(0, |(nth, _)| nth);
            let [request, expected] = [args, sent]
                .map(|args| Request::script("testing", &SCRIPT, &["k", "l\r\n"], &args));
            let request = request.without_grace_while_young(nth);
            let written = |request: &Request, young| {
                let mut bytes = Vec::new();
                let wording = Wording {
                    by_text: false,
                    sharded: false,
                    young,
                };
                request.write_as(&mut bytes, wording);
                bytes
            };
            let young = Some(Duration::from_millis(age));
            assert_eq!(written(&request, young), written(&expected, young));
            assert_ne!(written(&request, None), written(&request, young));
        }
    }

    #[test]
    fn so_is_one_of_any_length() {
        for length in 0..3 * FEW {
            let key = "k".repeat(length);
            let request = Request::script("testing", &SCRIPT, &[&key, "l"], &["o:1", "1500"]);
            let mut ours = Vec::new();
            request.write(&mut ours, true);
            let mut theirs = redis::cmd("EVAL");
            let theirs = theirs.arg(TEXT).arg(2).arg(&key).arg("l");
            assert_eq!(ours, theirs.arg("o:1").arg(1500).get_packed_command());
            let keys: Vec<_> = request.keys().collect();
            assert_eq!(keys, [key.as_bytes(), b"l"]);
        }
    }

    #[test]
    fn several_become_one_with_the_keys_and_arguments_of_all() {
        let request =
            |key: &str, arg: &str| Request::script("testing", &SCRIPT, &[key], &[arg, ""]);
        let long = "k".repeat(2 * FEW);
        let requests = [request("a\r\n", "1"), request(&long, "2"), request("", "3")];
        let mut ours = Vec::new();
        Request::write_together(&requests, &mut ours, true);
        let mut theirs = redis::cmd("EVAL");
        theirs.arg(TEXT).arg(3).arg("a\r\n").arg(&long).arg("");
        for arg in ["1", "", "2", "", "3", ""] {
            theirs.arg(arg);
        }
        assert_eq!(ours, theirs.get_packed_command());
        let (mut one, mut alone) = (Vec::new(), Vec::new());
        Request::write_together(&requests[1..2], &mut one, false);
        requests[1].write(&mut alone, false);
        assert_eq!(one, alone);
        Request::write_together(&[], &mut one, false);
        assert_eq!(one, alone);
        assert!(requests[0].goes_with(&requests[1], &SCRIPT));
        assert!(!requests[0].goes_with(&Request::command("testing", &["PING"]), &SCRIPT));
        static OTHER: LazyLock<Script> = LazyLock::new(|| Script::new("return 1"));
        assert!(!requests[0].goes_with(&requests[1], &OTHER));
    }

    #[test]
    fn the_keys_of_a_request_can_be_read_back() {
        let keys =
            |request: &Request| -> Vec<Vec<u8>> { request.keys().map(<[u8]>::to_vec).collect() };
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
        static TELLING: LazyLock<Script> = LazyLock::new(|| {
            Script::new(
                "redis.pcall('publish', KEYS[1], '0') return redis.call('pubsub', 'numsub', KEYS[1])",
            )
        });
        let sharded = Wording {
            by_text: true,
            sharded: true,
            young: None,
        };
        let written = |request: Request| {
            let mut bytes = Vec::new();
            request.write_as(&mut bytes, sharded);
            String::from_utf8(bytes).expect("text")
        };
        let script = written(Request::script("telling", &TELLING, &["c"], &[]));
        assert!(script.contains("pcall('spublish', KEYS[1]"), "{script}");
        assert!(script.contains("'pubsub', 'shardnumsub', KEYS"), "{script}");
        let count = written(Request::listeners("counting", "c"));
        assert_eq!(
            count,
            "*3\r\n$6\r\nPUBSUB\r\n$11\r\nSHARDNUMSUB\r\n$1\r\nc\r\n"
        );
    }

    #[test]
    #[cfg(feature = "cluster")]
    fn a_request_belongs_where_its_first_key_is() {
        let first = |request: Request| request.first_key().map(<[u8]>::to_vec);
        let key = Some(b"k".to_vec());
        assert_eq!(
            first(Request::script("x", &SCRIPT, &["k", "l"], &["a"])),
            key
        );
        assert_eq!(first(Request::command("x", &["HLEN", "k"])), key);
        assert_eq!(first(Request::listeners("x", "k")), key);
        assert_eq!(first(Request::command("x", &["PING"])), None);
        assert_eq!(first(Request::script("x", &SCRIPT, &[], &["a"])), None);
    }
}
