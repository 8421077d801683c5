//! The user's commands and scripts, which run only while a hold is in force.

use std::sync::Arc;

use redis::{Arg, Cmd, RedisError};

use crate::error::LossReason;
use crate::local::lock::Mode;
use crate::net::request::ScriptRef;
use crate::net::slot::slot_of;
use crate::protocol::kind::Protocol;
use crate::protocol::lua;
use crate::protocol::owner::OwnerId;
use crate::protocol::script::{self, Request, Script};

pub(crate) use crate::error::RUNNING;

/// The most keys, or arguments, of the user: Lua unpacks at most about 8,000 values.
const MOST: usize = 7_900;

/// Restores the `KEYS` and `ARGV` of the user's script, without the first two of each, which belong to the check.
const OWN: &str = "local KEYS, ARGV = {unpack(KEYS, 3)}, {unpack(ARGV, 3)}";

/// Why a command cannot be guarded, and what to do instead.
pub(crate) type Unfit = String;

/// Puts the check of the hold (`lua/prelude/guarded.lua`) in front of a user's script.
pub(crate) fn wrapped(text: &str) -> Arc<Script> {
    let code = lua::GUARDED
        .lines()
        .filter(|line| !line.starts_with("--"))
        .map(str::trim);
    // The check is one line, so that errors name the lines of the user's text.
    let check: Vec<_> = code.chain([OWN]).collect();
    let (first, rest) = match text.starts_with("#!") {
        true => text.split_at(text.find('\n').map_or(text.len(), |end| end + 1)),
        false => ("", text),
    };
    Arc::new(Script::new(&format!("{first}{} {rest}", check.join(" "))))
}

/// Why the hold of this owner is over, if an error says that it is. A user's script may return an error with the same
/// code, but not with this owner in it.
pub(crate) fn not_held(refusal: &RedisError, owner: &str) -> Option<LossReason> {
    if refusal.code() != Some("NOTHELD") {
        return None;
    }
    let (cause, hold) = refusal.detail()?.split_once(' ')?;
    (hold.strip_suffix(":write").unwrap_or(hold) == owner).then_some(match cause {
        "taken" => LossReason::TakenOver,
        _ => LossReason::Forced,
    })
}

/// A hold under which commands run.
pub(crate) struct Guarded<'a> {
    pub(crate) protocol: &'a Protocol,
    pub(crate) mode: Mode,
    pub(crate) owner: &'a OwnerId,
    /// Whether all keys must be in the slot of the lock.
    pub(crate) is_cluster: bool,
}

impl Guarded<'_> {
    /// The request that runs a command.
    pub(crate) fn command(&self, command: &Cmd) -> Result<Request, Unfit> {
        let args: Vec<&[u8]> = command
            .args_iter()
            .map(|arg| match arg {
                Arg::Simple(bytes) => Ok(bytes),
                _ => Err("`cursor_arg` is for iterators; give the cursor as an argument"),
            })
            .collect::<Result<_, _>>()?;
        if args.first().is_none_or(|name| name.is_empty()) {
            return Err("it has no name".into());
        }
        if is_about_connection(args[0]) {
            let name = String::from_utf8_lossy(args[0]);
            return Err(format!(
                "`{name}` acts on a connection, and a guarded command runs in a script, which has none"
            ));
        }
        let keys = keys_of(&args);
        self.request(ScriptRef::Ours(&script::GUARDED_CALL), &keys, &args)
    }

    /// The request that runs a [`wrapped`] script.
    pub(crate) fn script(
        &self,
        script: &Arc<Script>,
        keys: &[Vec<u8>],
        args: &[Vec<u8>],
    ) -> Result<Request, Unfit> {
        let keys: Vec<_> = keys.iter().map(Vec::as_slice).collect();
        let args: Vec<_> = args.iter().map(Vec::as_slice).collect();
        self.request(ScriptRef::Users(Arc::clone(script)), &keys, &args)
    }

    fn request(&self, script: ScriptRef, keys: &[&[u8]], args: &[&[u8]]) -> Result<Request, Unfit> {
        if keys.len().max(args.len()) > MOST {
            let many = keys.len().max(args.len());
            return Err(format!(
                "it has {many} keys or arguments; at most {MOST} are possible"
            ));
        }
        let evidence =
            (self.protocol.kind().evidence)(self.protocol, self.mode, self.owner.as_bytes());
        if self.is_cluster {
            self.check_slots(keys)?;
        }
        let lock = evidence.lock.as_bytes();
        let life = evidence.life.as_ref().map_or(lock, |life| life.as_bytes());
        let kind: &[u8] = if evidence.is_permit {
            b"permit"
        } else {
            b"lock"
        };
        let keys = [&[lock, life], keys].concat();
        let args = [&[&*evidence.hold, kind], args].concat();
        Ok(Request::once(RUNNING, script, &keys, &args))
    }

    fn check_slots(&self, keys: &[&[u8]]) -> Result<(), Unfit> {
        let lock = self.protocol.key();
        let slot = slot_of(lock.as_bytes());
        match keys.iter().find(|key| slot_of(key) != slot) {
            None => Ok(()),
            Some(key) => Err(format!(
                "the key `{}` is in another slot of the cluster than the lock's, `{lock}`; a hash tag puts both into one: `{{stock:42}}:left` is in the slot of `stock:42`",
                String::from_utf8_lossy(key)
            )),
        }
    }
}

/// Commands that change their connection, or wait on it. Redis rejects most of them in scripts, but some succeed without
/// effect.
const ABOUT_CONNECTIONS: &str = "ASKING AUTH CLIENT DISCARD EXEC HELLO MONITOR MULTI PSUBSCRIBE PSYNC PUNSUBSCRIBE \
    QUIT READONLY READWRITE REPLCONF RESET SELECT SSUBSCRIBE SUBSCRIBE SUNSUBSCRIBE SYNC UNSUBSCRIBE UNWATCH WAIT WAITAOF \
    WATCH";

fn is_about_connection(name: &[u8]) -> bool {
    let mut words = ABOUT_CONNECTIONS.split(' ');
    words.any(|word| name.eq_ignore_ascii_case(word.as_bytes()))
}

/// The keys among these arguments; the first argument is the command's name.
///
/// Source: the key specifications of Redis, <https://redis.io/docs/latest/develop/reference/key-specs/>. A command
/// that is not listed here is taken to have one key, in front. If it has others, the server rejects those in another
/// slot, since a script reaches only its own slot.
fn keys_of<'a>(args: &[&'a [u8]]) -> Vec<&'a [u8]> {
    let from = |first: usize| args.get(first..).unwrap_or_default();
    let some = |first: usize, count: usize| {
        let rest = from(first);
        rest[..count.min(rest.len())].to_vec()
    };
    // The number of keys is the argument at `at`; the keys follow.
    let counted = |at: usize| {
        let count = args.get(at).and_then(|n| std::str::from_utf8(n).ok());
        some(at + 1, count.and_then(|n| n.parse().ok()).unwrap_or(0))
    };
    // The first key, and the values of the options with these names. The options start at `at`.
    let and_options = |at: usize, words: &[&str]| {
        let named = options(args, at, words).flat_map(|at| some(at + 1, 1));
        some(1, 1).into_iter().chain(named).collect()
    };
    let name = String::from_utf8_lossy(args[0]).to_ascii_uppercase();
    match &*name {
        "ACL" | "CLUSTER" | "COMMAND" | "CONFIG" | "DBSIZE" | "ECHO" | "EVAL" | "EVALSHA"
        | "EVALSHA_RO" | "EVAL_RO" | "FCALL" | "FCALL_RO" | "FLUSHALL" | "FLUSHDB" | "FUNCTION"
        | "INFO" | "KEYS" | "LASTSAVE" | "LATENCY" | "LOLWUT" | "MODULE" | "PING" | "PUBLISH"
        | "PUBSUB" | "RANDOMKEY" | "ROLE" | "SCAN" | "SCRIPT" | "SLOWLOG" | "SWAPDB" | "TIME" => {
            Vec::new()
        }
        "DEL" | "EXISTS" | "MGET" | "PFCOUNT" | "PFMERGE" | "SDIFF" | "SDIFFSTORE" | "SINTER"
        | "SINTERSTORE" | "SUNION" | "SUNIONSTORE" | "TOUCH" | "UNLINK" => from(1).to_vec(),
        "MSET" | "MSETNX" => from(1).iter().step_by(2).copied().collect(),
        "BLMOVE" | "BRPOPLPUSH" | "COPY" | "GEOSEARCHSTORE" | "LCS" | "LMOVE" | "RENAME"
        | "RENAMENX" | "RPOPLPUSH" | "SMOVE" | "ZRANGESTORE" => some(1, 2),
        "BLPOP" | "BRPOP" | "BZPOPMAX" | "BZPOPMIN" => some(1, args.len().saturating_sub(2)),
        "BITOP" => from(2).to_vec(),
        "DEBUG" | "MEMORY" | "OBJECT" | "PFDEBUG" | "XGROUP" | "XINFO" => some(2, 1),
        "LMPOP" | "SINTERCARD" | "ZDIFF" | "ZINTER" | "ZINTERCARD" | "ZMPOP" | "ZUNION" => {
            counted(1)
        }
        "BLMPOP" | "BZMPOP" => counted(2),
        "ZDIFFSTORE" | "ZINTERSTORE" | "ZUNIONSTORE" => [some(1, 1), counted(2)].concat(),
        "GEORADIUS" | "GEORADIUSBYMEMBER" => and_options(5, &["STORE", "STOREDIST"]),
        "SORT" => and_options(2, &["STORE"]),
        "XREAD" | "XREADGROUP" => {
            let streams = options(args, 1, &["STREAMS"]).next();
            streams.map_or_else(Vec::new, |at| some(at + 1, (args.len() - at - 1) / 2))
        }
        "MIGRATE" if args.get(3).is_some_and(|key| key.is_empty()) => {
            let keys = options(args, 6, &["KEYS"]).next();
            keys.map_or_else(Vec::new, |at| from(at + 1).to_vec())
        }
        "MIGRATE" => some(3, 1),
        _ => some(1, 1),
    }
}

/// The positions of the options with these names, among the arguments from `at` on.
fn options(args: &[&[u8]], mut at: usize, words: &[&str]) -> impl Iterator<Item = usize> {
    /// Options that have this many values. The values are skipped, since one may look like an option.
    const WITH_VALUES: &[(&str, usize)] = &[
        ("AUTH", 1),
        ("AUTH2", 2),
        ("BLOCK", 1),
        ("BY", 1),
        ("COUNT", 1),
        ("GET", 1),
        ("GROUP", 2),
        ("LIMIT", 2),
        ("STORE", 1),
        ("STOREDIST", 1),
    ];
    let is = |arg: &[u8], word: &str| arg.eq_ignore_ascii_case(word.as_bytes());
    std::iter::from_fn(move || {
        let (option, arg) = (at, args.get(at)?);
        let values = WITH_VALUES.iter().find(|(word, _)| is(arg, word));
        at += 1 + values.map_or(0, |(_, count)| *count);
        Some((option, *arg))
    })
    .filter(move |(_, arg)| words.iter().any(|word| is(arg, word)))
    .map(|(option, _)| option)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_where_commands_have_them() {
        for (command, keys) in [
            ("get k", "k"),
            ("SET k v PX 5", "k"),
            ("json.set k $ 1", "k"),
            ("ping", ""),
            ("time", ""),
            ("get", ""),
            ("del a b c", "a b c"),
            ("mset a 1 b 2", "a b"),
            ("rename a b", "a b"),
            ("blpop a b 0", "a b"),
            ("bitop and d a b", "d a b"),
            ("object encoding a", "a"),
            ("lmpop 2 a b left", "a b"),
            ("lmpop x a b left", ""),
            ("blmpop 0 2 a b left", "a b"),
            ("zunionstore d 2 a b weights 1 2", "d a b"),
            ("zunionstore d 9 a b", "d a b"),
            ("sort a by nosort store d", "a d"),
            ("sort a by store desc", "a"),
            ("sort a limit 0 1 store d", "a d"),
            ("georadius a 0 0 1 m storedist d", "a d"),
            ("georadiusbymember a store 1 m storedist d", "a d"),
            ("migrate host 1 k 0 5", "k"),
            ("migrate host 1  0 5 copy auth keys keys a b", "a b"),
            ("xread count 2 streams a b 0 0", "a b"),
            ("xreadgroup group g c streams a >", "a"),
            ("xreadgroup group g streams noack streams a b > >", "a b"),
            ("xread", ""),
        ] {
            let args: Vec<_> = command.split(' ').map(str::as_bytes).collect();
            let found: Vec<_> = keys_of(&args)
                .into_iter()
                .map(|key| String::from_utf8_lossy(key).into_owned())
                .collect();
            assert_eq!(found.join(" "), keys, "{command}");
        }
    }
}
