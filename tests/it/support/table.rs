//! Tests of scripts as tables. Each row is: call | reply | all keys afterwards | messages published.
//!
//! Tables use short words for keys and values, so that one table can be played for every name of a lock. `30s` is
//! 30,000 ms. Durations from the server are rounded up to ten seconds, and times are shown as an offset from now. A
//! state of `=`, or an empty one, is that of the previous row.

use redis::{Connection, PubSub, RedisResult, Value};

use crate::support::Server;
use crate::support::rw_scripts::PASS;
use crate::support::scripts::{
    evalsha, forbid, forbid_channels, listen_to_all, messages, out_of_memory,
};

/// A verb of a table: its script, keys and arguments. `$1` is the first word after the verb, `$2:30s` the second with
/// the default `30s`, and `$3?` the third, which is omitted if not given.
pub(crate) type Call = (&'static str, &'static str, &'static str, &'static str);

/// A title, and the rows that are played on an empty server.
pub(crate) type Table = (&'static str, &'static [&'static str]);

/// Every key of a server, with its type, TTL and content, and the server's time.
const DUMP: &str = "
local all = {}
for _, key in ipairs(redis.call('keys', '*')) do
  local kind, content = redis.call('type', key).ok, {}
  if kind == 'string' then
    content = {redis.call('get', key)}
  elseif kind == 'hash' then
    content = redis.call('hgetall', key)
  elseif kind == 'zset' then
    content = redis.call('zrange', key, 0, -1, 'withscores')
  end
  all[#all + 1] = {key, kind, redis.call('pttl', key), content}
end
local time = redis.call('time')
return {time[1] * 1000 + math.floor(time[2] / 1000), all}";

type Dump = (i64, Vec<(Vec<u8>, String, i64, Vec<Vec<u8>>)>);

/// A duration, rounded up to ten seconds so that a slow machine does not change it. A script may add a few
/// milliseconds.
fn seconds(ms: i64) -> String {
    format!("{}s", (ms - 5).div_euclid(10_000) * 10 + 10)
}

/// A server with one lock, and the words for its keys and values.
pub(crate) struct Stage<'a> {
    pub(crate) server: &'a Server,
    pub(crate) con: Connection,
    news: PubSub<'a>,
    listeners: Vec<Connection>,
    calls: &'static [Call],
    words: Vec<(String, Vec<u8>)>,
    state_before: String,
}

impl<'a> Stage<'a> {
    /// `words` stand for keys and values; `channel` is the channel of the lock.
    pub(crate) fn new<W: Into<String>, V: Into<Vec<u8>>>(
        server: &'a Server,
        listener: &'a mut Connection,
        calls: &'static [Call],
        words: impl IntoIterator<Item = (W, V)>,
    ) -> Self {
        let words = words.into_iter();
        Self {
            server,
            con: server.connection(),
            news: listen_to_all(listener),
            listeners: Vec::new(),
            calls,
            words: words.map(|(w, v)| (w.into(), v.into())).collect(),
            state_before: String::new(),
        }
    }

    /// The bytes that a word of a table stands for; `''` is empty, `a+b` concatenates.
    fn meaning(&self, word: &str) -> Vec<u8> {
        if let Some((_, meaning)) = self.words.iter().find(|(known, _)| known == word) {
            return meaning.clone();
        }
        let ms = |span: &str| {
            span.strip_suffix('s')?
                .parse::<i64>()
                .ok()
                .map(|s| s * 1000)
        };
        if let Some(ms) = ms(word) {
            return ms.to_string().into();
        }
        match word.split_once('+') {
            Some(("now", span)) => {
                let now = self.dump().0 + ms(span).unwrap_or_else(|| span.parse().unwrap());
                now.to_string().into()
            }
            Some((first, rest)) if !first.is_empty() => {
                [self.meaning(first), self.meaning(rest)].concat()
            }
            _ => word.trim_matches('\'').into(),
        }
    }

    /// The word of a table for `raw`.
    fn word(&self, raw: &[u8]) -> String {
        let known = self.words.iter().find(|(_, meaning)| meaning == raw);
        match known {
            Some((word, _)) => word.clone(),
            None if raw.is_empty() => "''".into(),
            None => String::from_utf8_lossy(raw).into_owned(),
        }
    }

    fn number(&self, n: i64) -> String {
        if (1_000..1_000_000_000).contains(&n.abs()) {
            return seconds(n);
        }
        if n > 1_000_000_000_000 {
            let from_now = n - self.dump().0;
            if from_now.abs() < 10_000_000_000 {
                return format!("now+{}", seconds(from_now));
            }
        }
        self.word(n.to_string().as_bytes())
    }

    fn dump(&self) -> Dump {
        self.server.ask(&["EVAL", DUMP, "0"])
    }

    /// Calls the script of a row.
    pub(crate) fn call(&mut self, row: &str) -> RedisResult<Value> {
        let mut words = row.split_whitespace();
        let verb = words.next().unwrap_or_default();
        let given: Vec<_> = words.collect();
        let call = self.calls.iter().find(|call| call.0 == verb);
        let (_, script, keys, args) = call.unwrap_or_else(|| panic!("{row}: no such verb"));
        let place = |part: &str| -> String {
            let Some(place) = part.strip_prefix('$') else {
                return part.to_owned();
            };
            let (n, otherwise) = place.split_once([':', '?']).unwrap_or((place, ""));
            let given = given.get(n.parse::<usize>().unwrap() - 1).copied();
            given.unwrap_or(otherwise).to_owned()
        };
        let is_given = |word: &&str| match word.strip_prefix('$').and_then(|n| n.strip_suffix('?'))
        {
            Some(n) => n.parse::<usize>().is_ok_and(|n| given.len() >= n),
            None => true,
        };
        let fill = |template: &str| -> Vec<Vec<u8>> {
            let words = template.split_whitespace().filter(is_given);
            let filled = words.map(|word| word.split('+').map(place).collect::<Vec<_>>().join("+"));
            filled.map(|word| self.meaning(&word)).collect()
        };
        let (keys, args) = (fill(keys), fill(args));
        evalsha(&mut self.con, script, &keys, &args)
    }

    /// Executes the call of a row: a verb of the table, a command in capitals, or one of the words below.
    pub(crate) fn says(&mut self, row: &str) -> String {
        let (verb, rest) = row.split_once(' ').unwrap_or((row, ""));
        match verb {
            "pass" => {
                let ms = String::from_utf8(self.meaning(rest)).unwrap();
                self.server.cli(&["EVAL", PASS, "0", &ms]);
            }
            "listen" => {
                let mut con = self.server.connection();
                let channel = self.meaning("channel");
                let listen = redis::cmd("SUBSCRIBE").arg(channel).get_packed_command();
                con.send_packed_command(&listen).unwrap();
                con.recv_response().unwrap();
                self.listeners.push(con);
            }
            "deaf" => forbid_channels(self.server, &mut self.con),
            "forbid" => forbid(self.server, &mut self.con, rest),
            "full" => out_of_memory(self.server),
            "calls" => return self.server.calls(rest).to_string(),
            _ if verb.bytes().all(|b| b.is_ascii_uppercase()) => {
                let mut cmd = redis::cmd(verb);
                cmd.arg(
                    rest.split_whitespace()
                        .map(|word| self.meaning(word))
                        .collect::<Vec<_>>(),
                );
                cmd.exec(&mut self.server.connection()).unwrap();
            }
            _ => {
                let reply = self.call(row);
                return self.reply(reply);
            }
        }
        String::new()
    }

    pub(crate) fn reply(&self, reply: RedisResult<Value>) -> String {
        match reply {
            Err(err) => match err.code() {
                // The texts of these errors differ between server versions.
                Some("ERR" | "NOPERM") => "refused".into(),
                code => code.unwrap_or("?").to_owned(),
            },
            Ok(Value::Nil) => "nil".into(),
            Ok(Value::Int(n)) => self.number(n),
            Ok(Value::BulkString(raw)) => self.word(&raw),
            Ok(Value::Array(all)) => {
                let all: Vec<_> = all.into_iter().map(|one| self.reply(Ok(one))).collect();
                all.join(" ")
            }
            Ok(other) => panic!("{other:?}"),
        }
    }

    /// All keys of the server, in the words of the table.
    pub(crate) fn state(&self) -> String {
        let mut all: Vec<_> = self
            .dump()
            .1
            .into_iter()
            .map(|key| self.describe(key))
            .collect();
        all.sort();
        all.join(" ")
    }

    fn describe(
        &self,
        (key, kind, ttl_left, content): (Vec<u8>, String, i64, Vec<Vec<u8>>),
    ) -> String {
        let mut all: Vec<_> = content
            .chunks(2)
            .map(|pair| match pair {
                [one] => format!("={}", self.word(one)),
                [member, score] if kind == "zset" => {
                    // Scores are whole milliseconds; drop the fraction.
                    let score = String::from_utf8_lossy(score);
                    let score = score.split('.').next().unwrap_or_default().parse().unwrap();
                    format!("{}:{}", self.word(member), self.number(score))
                }
                [field, value] => format!("{}:{}", self.word(field), self.word(value)),
                _ => unreachable!(),
            })
            .collect();
        all.sort();
        let content = match &*kind {
            "string" => all.concat(),
            "hash" | "zset" => format!("{{{}}}", all.join(" ")),
            other => format!("({other})"),
        };
        let ttl = match ttl_left {
            0.. => format!("@{}", seconds(ttl_left)),
            _ => String::new(),
        };
        format!("{}{content}{ttl}", self.word(&key))
    }

    /// The messages since the last call: the payload, preceded by the channel if that is not the lock's.
    pub(crate) fn news(&mut self) -> String {
        let news = messages(self.server, &mut self.news).into_iter();
        let news = news.map(|(channel, payload)| match self.word(channel.as_bytes()) {
            channel if channel == "channel" => payload,
            channel => format!("{channel}:{payload}"),
        });
        news.collect::<Vec<_>>().join(" ")
    }

    /// Resets the server for the next table.
    fn begin(&mut self) {
        self.server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
        self.server.cli(&["FLUSHALL"]);
        self.server.cli(&["CONFIG", "RESETSTAT"]);
        self.con = self.server.connection();
        self.listeners.clear();
        self.state_before.clear();
        self.news();
    }

    /// Plays rows on the present state of the server.
    pub(crate) fn play(&mut self, title: &str, rows: &[&str]) {
        for row in rows {
            let mut cells = row.split('|').map(str::trim);
            let call = cells.next().unwrap_or_default();
            let [reply, state, news] = [(); 3].map(|()| cells.next().unwrap_or_default());
            let got = (self.says(call), self.state(), self.news());
            let wanted = if matches!(state, "=" | "") {
                &*self.state_before
            } else {
                state
            };
            let wanted = if state == "nothing" { "" } else { wanted };
            assert_eq!(
                (&*got.0, &*got.1, &*got.2),
                (reply, wanted, news),
                "{title}: {row}"
            );
            self.state_before = got.1;
        }
    }

    /// Plays each table on an empty server.
    pub(crate) fn play_all(&mut self, tables: &[Table]) {
        for (title, rows) in tables {
            self.begin();
            self.play(title, rows);
        }
    }

    /// Sets each of `values` (several commands, separated by `;`) on an empty server. Every call must fail with
    /// WRONGTYPE, and must neither change nor publish anything.
    pub(crate) fn refuses(&mut self, values: &[&[&str]], calls: &[&str]) {
        for value in values {
            self.begin();
            for command in value.split(|word| *word == ";") {
                let args: Vec<_> = command[1..].iter().map(|word| self.meaning(word)).collect();
                let mut cmd = redis::cmd(command[0]);
                cmd.arg(args).exec(&mut self.server.connection()).unwrap();
            }
            let content = |table: &Self| -> Vec<Vec<u8>> {
                let keys = table.server.keys();
                keys.iter()
                    .map(|key| table.server.ask(&["DUMP", key]))
                    .collect()
            };
            let all_before = (self.state(), content(self));
            for call in calls {
                let reply = self.call(call);
                assert_eq!(self.reply(reply), "WRONGTYPE", "{call} of {value:?}");
                assert_eq!(
                    (self.state(), content(self)),
                    all_before,
                    "{call} of {value:?}"
                );
            }
            assert_eq!(self.news(), "", "{value:?}");
        }
    }
}
