//! Compares every text that a user can see with `messages.txt`, where people can read them from top to bottom.
//!
//! The first parts of that file show texts as a user sees them: of real values, by the code that shows them. The last two
//! parts list the texts as they stand in the code: the log records, then the others, from which log records are made. A text
//! that is new in the code is found without a change here. After an intended change, run this test with `MESSAGES=write`,
//! and read the lines that have changed: each says what happened, to what, and what to do about it.

use std::collections::HashSet;
use std::fmt::{Display, Write as _};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use redis::RedisError;

use crate::config::Config;
use crate::config::replicas::ReplicaAck;
use crate::error::{DeadlockReason, Error, LossReason, RELEASING, RUNNING};
use crate::error::{lasting, named, not_started};
use crate::local::lock::Mode;
use crate::net::socket::timed_out;
use crate::operations::inspect::LockKind;
use crate::operations::list::LockSummary;
use crate::operations::{check, health, inspect};
use crate::protocol::guarded::Guarded;
use crate::protocol::kind::{Keyspace, Protocol};
use crate::protocol::owner::Owners;
use crate::protocol::reentrant;
use crate::sync::multi_lock::MultiLock;
use crate::sync::ticket::Ticket;
use crate::verdict::{RequestFacts, Verdict, verdict};

const ACQUIRING: &str = "acquiring the lock";
const CONNECTING: &str = "connecting";
const READING: &str = "reading the reply to a guarded command";

#[test]
fn every_text_is_as_it_was_read() {
    let mut page = Page::default();
    page.errors();
    page.settings();
    page.answers();
    page.sources();
    let (shown, file) = (page.0, src().join("messages/messages.txt"));
    if std::env::var_os("MESSAGES").is_some_and(|mode| mode == "write") {
        fs::write(&file, &shown).expect("a file");
    }
    let listed = fs::read_to_string(&file).expect("a file");
    let only_in = |one: &str, other: &str| {
        let known: HashSet<_> = other.lines().collect();
        let new: Vec<_> = one.lines().filter(|line| !known.contains(line)).collect();
        new.join("\n")
    };
    assert!(
        shown == listed,
        "new:\n{}\ngone:\n{}",
        only_in(&shown, &listed),
        only_in(&listed, &shown)
    );
}

// ---------------------------------------------------------------------------------------------------------------------
// Texts as they are shown
// ---------------------------------------------------------------------------------------------------------------------

#[derive(Default)]
struct Page(String);

fn of_server(line: &str) -> RedisError {
    let reply = redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).expect("a reply");
    reply.extract_error().expect_err(line)
}

fn of_io(kind: io::ErrorKind) -> RedisError {
    io::Error::from(kind).into()
}

/// The error that a waiting thread gets after this reply; with `is_cluster`, after too many redirections.
fn refused(line: &str, is_cluster: bool) -> RedisError {
    let reply = redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).expect("a reply");
    let asked = RequestFacts {
        redirected: u8::MAX,
        ..RequestFacts::question(is_cluster)
    };
    match verdict(reply, || asked) {
        Verdict::Later(err) | Verdict::Never(err) => err,
        other => panic!("{line}: {other:?}"),
    }
}

impl Page {
    fn heading(&mut self, text: &str) {
        let gap = if self.0.is_empty() { "" } else { "\n" };
        writeln!(self.0, "{gap}# {text}\n").expect("text");
    }

    fn put(&mut self, text: impl Display) {
        writeln!(self.0, "{text}").expect("text");
    }

    fn errors(&mut self) {
        self.heading("Errors: no connection");
        let at = |server: &str, err| Error::redis(CONNECTING, err).at(&server);
        for kind in [
            io::ErrorKind::ConnectionRefused,
            io::ErrorKind::TimedOut,
            io::ErrorKind::ConnectionReset,
        ] {
            self.put(at("10.0.0.7:6379", of_io(kind)));
        }
        for kind in [io::ErrorKind::NotFound, io::ErrorKind::PermissionDenied] {
            self.put(at("/run/redis.sock", of_io(kind)));
        }
        for line in [
            "NOAUTH Authentication required.",
            "WRONGPASS invalid username-password pair or user is disabled.",
            "NOPERM User app has no permissions to run the 'ping' command",
            "ERR unknown command 'PING', with args beginning with:",
            "ERR max number of clients reached",
            "LOADING Redis is loading the dataset in memory",
            "READONLY You can't write against a read only replica.",
        ] {
            self.put(at("10.0.0.7:6379", of_server(line)));
        }
        self.put(at("10.0.0.7:6379", lasting("a setting is wrong".into())));
        let away = named(&"10.0.0.8:6379", of_io(io::ErrorKind::ConnectionRefused));
        self.put(at("the cluster of 10.0.0.7:6379,10.0.0.8:6379", away));
        let thread = not_started(
            "redlatch-connect",
            &io::Error::from(io::ErrorKind::WouldBlock),
        );
        self.put(Error::redis(CONNECTING, thread));

        self.heading("Errors: Redis has answered, or not in time");
        let about = |doing, err| {
            Error::redis(doing, err)
                .at(&"10.0.0.7:6379")
                .about("orders")
        };
        let late = || timed_out("redis did not answer in time");
        self.put(about(ACQUIRING, late()));
        for line in [
            "NOPERM User app has no permissions to access the 'orders' key",
            "READONLY You can't write against a read only replica.",
            "NOREPLICAS Not enough good replicas to write.",
            "OOM command not allowed when used memory > 'maxmemory'.",
            "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
            "ERR unknown command 'EVALSHA', with args beginning with:",
            "ERR Could not find scripting engine 'lua'",
            "ERR syntax error",
            "MOVED 7 10.0.0.8:6379",
        ] {
            self.put(about(ACQUIRING, refused(line, false)));
        }
        self.put(about(ACQUIRING, refused("MOVED 7 10.0.0.8:6379", true)));
        self.put(about(RELEASING, late()).after_work());
        let denied = of_server("NOPERM User app has no permissions to run the 'decr' command");
        self.put(about(RUNNING, denied));
        self.put(
            Error::outcome_unknown(RUNNING, late())
                .at(&"10.0.0.7:6379")
                .about("orders"),
        );
        self.put(
            Error::unread(READING, lasting("not a number".into()))
                .at(&"10.0.0.7:6379")
                .about("orders"),
        );
        self.put(about(ACQUIRING, late()).downgrading("orders"));
        let wrong = "WRONGTYPE Operation against a key holding the wrong kind of value";
        for line in [wrong, "WRONGTYPE the key `orders` holds a list"] {
            self.put(Error::wrong_type(&of_server(line), "orders").expect("the wrong type"));
        }

        self.heading("Errors: the lock");
        let name = || "orders".to_owned();
        for reason in LossReason::ALL {
            self.put(Error::Lost {
                name: name(),
                reason,
            });
        }
        use DeadlockReason::{NotReentrant, OtherKind, Reading};
        for reason in [NotReentrant, OtherKind, Reading] {
            self.put(Error::WouldDeadlock {
                name: name(),
                reason,
            });
        }
        self.put(Error::Late { name: name() });
        self.put(Error::Cancelled);
        self.put(Error::Closed);
        self.put(Error::NotReplicated {
            acked: 0,
            needed: 1,
        });
        let failures = |name: [&str; 2]| {
            let name = name.map(str::to_owned);
            let err = Error::redis(ACQUIRING, late())
                .at(&"10.0.0.7:6379")
                .about("orders");
            name.into_iter().zip([err, Error::Closed]).collect()
        };
        self.put(Error::Members {
            failures: failures(["orders", "stock"]),
        });
        let down = Error::redis(ACQUIRING, of_io(io::ErrorKind::ConnectionRefused)).about("orders");
        self.put(Error::NoQuorum {
            name: name(),
            nodes: 3,
            needed: 2,
            agreed: 1,
            failures: vec![
                (0, down.at(&"10.0.0.7:6379")),
                (2, Error::redis(ACQUIRING, late()).at(&"10.0.0.9:6379")),
            ],
        });

        self.heading("Errors: names, commands, tickets");
        let protocol = |name: &str, is_cluster| {
            let keyspace = Keyspace {
                prefix: "",
                is_cluster,
                waiter_lease: Duration::from_secs(3),
            };
            Protocol::new(&reentrant::KIND, keyspace, &name.into())
        };
        let long = "x".repeat(100_000);
        for (name, is_cluster) in [("", false), (&*long, false), ("a{}b", true), ("}{", true)] {
            if let Err(err) = protocol(name, is_cluster) {
                self.put(err);
            }
        }
        let protocol = protocol("stock:42", true).expect("a name");
        let owner = Owners::of("u").id(Owners::of("u").draw());
        let guarded = Guarded {
            protocol: &protocol,
            mode: Mode::Exclusive,
            owner: &owner,
            is_cluster: true,
        };
        let mut many = redis::cmd("DEL");
        many.arg(vec!["k"; 10_000]);
        let mut cursor = redis::cmd("SCAN");
        cursor.cursor_arg(0);
        for command in [
            redis::Cmd::new(),
            redis::cmd("SELECT"),
            redis::cmd("GET").arg("other").clone(),
            many,
            cursor,
        ] {
            let why = guarded.command(&command).err().expect("it is unfit");
            self.put(Error::InvalidCommand { reason: why });
        }
        self.put("x".parse::<Ticket>().expect_err("no ticket"));
    }

    fn settings(&mut self) {
        self.heading("Errors: settings");
        let url = |url: &str| Config::new(url);
        let ok = || Config::new("redis://10.0.0.7/");
        let login = |config: Config| config.credentials(|| Ok(("u".into(), "p".into())));
        let (zero, hour) = (Duration::ZERO, Duration::from_secs(3600));
        for config in [
            url("10.0.0.7:6379"),
            url("http://10.0.0.7/"),
            url("red is://10.0.0.7/"),
            url("redis://:pass#word@10.0.0.7/"),
            url("redis://:pass/word@10.0.0.7/"),
            url("redis:///"),
            url("redis://0.0.0.0/"),
            url("redis://10.0.0.7:99999/"),
            url("redis://10.0.0.7:port/"),
            url("redis://10.0.0.7/db"),
            url("redis://10.0.0.7/-1"),
            url("redis://10.0.0.7/?timeout=3"),
            url("redis://10.0.0.7/?pass=x"),
            url("redis://10.0.0.7/?protocol=resp3"),
            url("redis://::1/"),
            url("redis://[fe80::1%25eth0]/"),
            url("redis://app@10.0.0.7/"),
            url("redis://%ff:p@10.0.0.7/"),
            url("unix://"),
            url("redis+sentinel://10.0.0.7"),
            url("redis+sentinel://10.0.0.7,/main"),
            url("redis+sentinel://10.0.0.7/main?sentinel_user=u"),
            url("redis+sentinel://10.0.0.7/main?sentinel_user"),
            url("redis+sentinel://10.0.0.7/main?timeout=3"),
            url("redis+cluster://10.0.0.7,"),
            url("redis+cluster://10.0.0.7/?a=b"),
            ok().lease(zero),
            ok().lease(Duration::MAX),
            ok().command_timeout(zero),
            ok().connect_timeout(Duration::MAX),
            ok().tenure(hour),
            ok().waiter_lease(hour),
            ok().label("a b"),
            ok().key_prefix("x".repeat(2000)),
            ok().replica_ack(ReplicaAck::AtLeast(0)),
            url("redis+cluster://10.0.0.7/").replica_ack(ReplicaAck::Majority),
            ok().replica_ack(ReplicaAck::Majority).lazy(),
            url("redis+cluster://10.0.0.7/").lazy(),
            ok().reauth_after(hour),
            login(ok()).reauth_after(zero),
            login(url("redis://:p@10.0.0.7/")),
        ] {
            self.put(config.check().expect_err("a setting that cannot work"));
        }
        let empty = MultiLock::new(Vec::new());
        self.put(empty.try_lock().expect_err("no members"));
    }

    fn answers(&mut self) {
        self.heading("Findings of `check`");
        self.put(check::tests::samples());
        self.heading("Facts that `who`, `ls` and `health` show");
        inspect::tests::samples()
            .iter()
            .for_each(|text| self.put(text));
        for remaining_lease in [Some(Duration::from_millis(27_300)), None] {
            self.put(LockSummary {
                name: "orders".into(),
                kind: LockKind::Lock,
                held: 1,
                remaining_lease,
            });
        }
        for (reachable, why) in [(true, None), (false, Some("connection refused".to_owned()))] {
            self.put(health::Health {
                reachable,
                since: Duration::from_secs(70),
                why,
                renewal: Some(health::UnconfirmedRenewal {
                    name: "orders".into(),
                    confirmed_ago: Duration::from_secs(12),
                    lease: Duration::from_secs(30),
                }),
            });
        }
    }

    fn sources(&mut self) {
        let mut files = Vec::new();
        collect(&src(), &mut files);
        files.sort();
        let texts = |file: &PathBuf| {
            let text = fs::read_to_string(file).expect("a file");
            let name = file.strip_prefix(src()).expect("a file of src");
            let name = name.to_str().expect("text").replace('\\', "/");
            (
                LiteralReader::texts(&text, name == "bin/redlatch/options.rs"),
                name,
            )
        };
        let files: Vec<_> = files.iter().map(texts).collect();
        self.heading("Log records");
        for (texts, file) in &files {
            let records = texts.iter().filter(|text| text.level.is_some());
            for (n, Literal { level, text }) in records.enumerate() {
                if n == 0 {
                    self.put(file);
                }
                let level = level.as_deref().unwrap_or_default().to_lowercase();
                self.put(format_args!("  {level:<5} {text}"));
            }
        }
        self.heading("Other texts in the code");
        for (texts, file) in &files {
            let mut known = HashSet::new();
            let others = texts
                .iter()
                .filter(|text| text.level.is_none() && known.insert(&text.text));
            for (n, Literal { text, .. }) in others.enumerate() {
                if n == 0 {
                    self.put(file);
                }
                self.put(format_args!("  {text}"));
            }
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Texts in the code
// ---------------------------------------------------------------------------------------------------------------------

fn src() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// Collects the files whose texts users can see.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    const OF_TESTS: [&str; 6] = ["tests", "model", "schedules", "golden", "strange", "search"];
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let stem = path.file_stem().and_then(|stem| stem.to_str());
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|ext| ext == "rs")
            && !stem.is_some_and(|stem| OF_TESTS.contains(&stem))
        {
            files.push(path);
        }
    }
}

/// A literal in the code that is a text, of a log record if it has a level.
struct Literal {
    level: Option<String>,
    text: String,
}

/// Reads the literals of a file that users can see.
struct LiteralReader<'a> {
    rest: &'a str,
    /// The name in front of each delimiter that is open: of a function, of a macro with its `!`, or of an attribute.
    open: Vec<String>,
    word: String,
    /// The first word within the innermost `report!` or attribute.
    first: String,
    texts: Vec<Literal>,
    /// Within an item for tests: how many delimiters are open outside of it.
    skips: Option<usize>,
    /// Documentation is the help of the command.
    has_help: bool,
}

impl<'a> LiteralReader<'a> {
    fn texts(code: &'a str, has_help: bool) -> Vec<Literal> {
        let mut reader = Self {
            rest: code,
            open: Vec::new(),
            word: String::new(),
            first: String::new(),
            texts: Vec::new(),
            skips: None,
            has_help,
        };
        while reader.step() {}
        reader.texts
    }

    fn step(&mut self) -> bool {
        let rest = self.rest;
        let Some(c) = rest.chars().next() else {
            return false;
        };
        let mut skip = c.len_utf8();
        if rest.starts_with("//") {
            skip = rest.find('\n').unwrap_or(rest.len());
            if let Some(text) = rest[..skip].strip_prefix("/// ")
                && self.has_help
            {
                let (level, text) = (None, text.to_owned());
                self.texts.push(Literal { level, text });
            }
        } else if let Some((literal, len)) = raw(rest) {
            self.literal(literal.to_owned());
            skip = len;
        } else if c == '"' {
            let (literal, len) = quoted(rest);
            self.literal(literal);
            skip = len;
        } else if c == '\'' {
            skip = character(rest);
        } else if c.is_alphanumeric() || c == '_' {
            let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_');
            skip = end.unwrap_or(rest.len());
            self.word = rest[..skip].to_owned();
            if self.first.is_empty() {
                self.first.clone_from(&self.word);
            }
            let is_for_tests = ["cfg", "test"].contains(&&*self.first) && self.word == "test";
            if is_for_tests && self.open.iter().any(|name| name == "#") {
                let outside = self.open.iter().position(|name| name == "#");
                self.skips = self.skips.or(outside);
            }
        } else if "([{".contains(c) {
            let name = std::mem::take(&mut self.word);
            if name == "report!" || name == "#" {
                self.first.clear();
            }
            self.open.push(name);
        } else if ")]}".contains(c) {
            self.open.pop();
            self.word.clear();
            if c == '}' && self.skips == Some(self.open.len()) {
                self.skips = None;
            }
        } else if c == '!' || c == '#' {
            match c {
                '!' if !self.word.is_empty() => self.word.push('!'),
                '!' => {}
                _ => self.word = "#".into(),
            }
        } else if !c.is_whitespace() {
            if c == ';' && self.skips == Some(self.open.len()) {
                self.skips = None;
            }
            self.word.clear();
        }
        self.rest = &rest[skip..];
        true
    }

    fn literal(&mut self, text: String) {
        self.word.clear();
        const HIDE: [&str; 16] = [
            "contains",
            "starts_with",
            "strip_prefix",
            "rsplit_once",
            "split",
            "expect",
            "assert!",
            "assert_eq!",
            "assert_ne!",
            "debug_assert!",
            "debug_assert_eq!",
            "debug_assert_ne!",
            "panic!",
            "unreachable!",
            "include_str!",
            "concat!",
        ];
        let is_in = |names: &[&str]| self.open.iter().any(|name| names.contains(&&**name));
        let is_hidden = is_in(&["#"]) && self.first != "must_use";
        if self.skips.is_some() || is_hidden || is_in(&HIDE) {
            return;
        }
        let level = is_in(&["report!"]).then(|| self.first.clone());
        if level.is_some() || is_text(&text) {
            self.texts.push(Literal { level, text });
        }
    }
}

/// Whether a literal is a text for people: it has two words in a row.
fn is_text(literal: &str) -> bool {
    let is_word = |word: &str| {
        let word = word.trim_matches(|c: char| ",;:.`()".contains(c));
        word.len() > 1 && word.chars().all(|c| c.is_ascii_lowercase() || c == '\'')
    };
    let is_code = ["redis.call", "KEYS[", "local "]
        .iter()
        .any(|code| literal.contains(code));
    let words: Vec<_> = literal.split_whitespace().map(is_word).collect();
    !is_code && words.windows(2).any(|two| two == [true, true])
}

/// The contents and the length of a literal in quotes, its lines joined as the compiler joins them.
fn quoted(code: &str) -> (String, usize) {
    let (mut text, mut chars) = (String::new(), code.char_indices().skip(1).peekable());
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return (text, at + 1),
            '\\' => match chars.next() {
                Some((_, '\n')) => while chars.next_if(|(_, c)| c.is_whitespace()).is_some() {},
                Some((_, c @ ('"' | '\'' | '\\'))) => text.push(c),
                Some((_, c)) => text.extend(['\\', c]),
                None => {}
            },
            '\n' => text.push_str("\\n"),
            c => text.push(c),
        }
    }
    (text, code.len())
}

/// The contents and the length of a raw literal, if the code begins with one.
fn raw(code: &str) -> Option<(&str, usize)> {
    let hashes = code.strip_prefix('r')?;
    let body = hashes.trim_start_matches('#');
    let end = format!("\"{}", "#".repeat(hashes.len() - body.len()));
    let body = body.strip_prefix('"')?;
    let at = body.find(&end)?;
    Some((&body[..at], code.len() - body.len() + at + end.len()))
}

/// The length of a character in quotes, or of the quote of a lifetime.
fn character(code: &str) -> usize {
    let mut chars = code.char_indices().skip(1);
    match (chars.next(), chars.next()) {
        (Some((_, '\\')), Some((at, _))) => code[at + 1..].find('\'').map_or(1, |n| at + n + 2),
        (Some(_), Some((at, '\''))) => at + 1,
        _ => 1,
    }
}

#[test]
fn texts_are_found_wherever_they_are() {
    let code = r##"
        /// A "text of documentation".
        #[must_use = "the value has to be used"]
        #[expect(dead_code, reason = "not for users")]
        fn f<'a>(quote: char) -> Option<char> {
            report!(Warn, "{name}: {err}");
            let raw = r#"a "raw" text of one kind"#;
            let long = "a text \
                in two lines";
            value.expect("never seen by anybody")?;
            (quote == '"' || quote == '\'').then_some('"')
        }
        #[cfg(all(test, unix))]
        mod tests {
            fn g() { h("not this text"); }
        }
        #[cfg(test)]
        mod more;
        const LAST: &str = "the last text";
    "##;
    let texts = LiteralReader::texts(code, false);
    let texts: Vec<_> = texts
        .iter()
        .map(|literal| (literal.level.as_deref(), &*literal.text))
        .collect();
    let expected = [
        (None, "the value has to be used"),
        (Some("Warn"), "{name}: {err}"),
        (None, "a \"raw\" text of one kind"),
        (None, "a text in two lines"),
        (None, "the last text"),
    ];
    assert_eq!(texts, expected);
}
