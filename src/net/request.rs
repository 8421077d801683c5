//! The bytes of a request: a plain command, or a script by its hash or its text.

/// A script, encoded both ways: `EVALSHA` with its hash, and `EVAL` with its text.
pub(crate) struct Script {
    by_hash: Vec<u8>,
    by_text: Vec<u8>,
}

impl Script {
    pub(crate) fn new(text: &str) -> Self {
        let mut by_hash = Vec::new();
        push_bulk(&mut by_hash, b"EVALSHA");
        push_bulk(&mut by_hash, redis::Script::new(text).get_hash().as_bytes());
        let mut by_text = Vec::new();
        push_bulk(&mut by_text, b"EVAL");
        push_bulk(&mut by_text, text.as_bytes());
        Self { by_hash, by_text }
    }
}

/// One command, encoded but for the choice between a script's hash and its text.
#[derive(Clone)]
pub(crate) struct Request {
    pub(crate) script: Option<&'static Script>,
    parts: usize,
    packed: Vec<u8>,
    /// What the command is for, as errors say it.
    pub(crate) doing: &'static str,
}

impl Request {
    /// A plain command.
    pub(crate) fn command(doing: &'static str, parts: &[&str]) -> Self {
        let mut packed = Vec::with_capacity(64);
        for part in parts {
            push_bulk(&mut packed, part.as_bytes());
        }
        Self {
            script: None,
            parts: parts.len(),
            packed,
            doing,
        }
    }

    pub(crate) fn script(
        doing: &'static str,
        script: &'static Script,
        keys: &[&str],
        args: &[&str],
    ) -> Self {
        let args = args.iter().map(|arg| arg.as_bytes());
        Self::pack(doing, script, keys, args)
    }

    /// A script with arguments that are no text.
    pub(crate) fn script_of_bytes(
        doing: &'static str,
        script: &'static Script,
        keys: &[&str],
        args: &[&[u8]],
    ) -> Self {
        Self::pack(doing, script, keys, args.iter().copied())
    }

    fn pack<'a>(
        doing: &'static str,
        script: &'static Script,
        keys: &[&'a str],
        args: impl ExactSizeIterator<Item = &'a [u8]>,
    ) -> Self {
        let parts = 3 + keys.len() + args.len();
        let mut packed = Vec::with_capacity(192);
        push_head(&mut packed, b'$', digits_of(keys.len()));
        push_digits(&mut packed, keys.len());
        packed.extend_from_slice(b"\r\n");
        let keys = keys.iter().map(|key| key.as_bytes());
        for part in keys.chain(args) {
            push_bulk(&mut packed, part);
        }
        Self {
            script: Some(script),
            parts,
            packed,
            doing,
        }
    }

    /// Appends the command; `by_text` sends a script's text (`EVAL`) instead of its hash, for a server that may not know it.
    pub(crate) fn write(&self, out: &mut Vec<u8>, by_text: bool) {
        push_head(out, b'*', self.parts);
        if let Some(script) = self.script {
            out.extend_from_slice(if by_text {
                &script.by_text
            } else {
                &script.by_hash
            });
        }
        out.extend_from_slice(&self.packed);
    }

    /// The keys of a script.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = self.packed.as_slice();
        let count = match self.script {
            Some(_) => pull_bulk(&mut rest),
            None => None,
        };
        let count = count.and_then(|count| std::str::from_utf8(count).ok()?.parse().ok());
        (0..count.unwrap_or(0_usize)).map_while(move |_| pull_bulk(&mut rest))
    }
}

fn push_head(out: &mut Vec<u8>, kind: u8, n: usize) {
    out.push(kind);
    push_digits(out, n);
    out.extend_from_slice(b"\r\n");
}

/// How many decimal digits `n` has.
fn digits_of(n: usize) -> usize {
    n.checked_ilog10().map_or(1, |log| log as usize + 1)
}

fn push_digits(out: &mut Vec<u8>, mut n: usize) {
    let digits = out.len();
    loop {
        out.push(b"0123456789"[n % 10]);
        n /= 10;
        if n == 0 {
            break;
        }
    }
    out[digits..].reverse();
}

fn push_bulk(out: &mut Vec<u8>, bytes: &[u8]) {
    push_head(out, b'$', bytes.len());
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
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
}
