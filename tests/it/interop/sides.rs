//! The two sides of a test: how a thread here takes what a thread of Java takes.

use std::any::Any;
use std::env;
use std::io::{self, Write};
use std::time::Duration;

use redlatch::{Client, RedLock};

/// How many seconds each load lasts. If this is set, the tests also say what they have measured.
const SECONDS: &str = "INTEROP_SECONDS";

/// How long a load lasts: `short` unless another time is wanted.
pub(super) fn lasting(short: Duration) -> Duration {
    let seconds = env::var(SECONDS).ok().and_then(|its| its.parse().ok());
    seconds.map_or(short, Duration::from_secs_f64)
}

/// Which kinds of load there are, of all; separated by commas.
const KINDS: &str = "INTEROP_KINDS";

/// Whether loads of this kind are wanted: all, unless some are named.
pub(super) fn is_wanted(kind: &str) -> bool {
    env::var(KINDS).map_or(true, |kinds| kinds.split(',').any(|it| it == kind))
}

/// Says what was measured, if anybody wants to know.
pub(super) fn measured(what: &str) {
    if env::var_os(SECONDS).is_some() {
        writeln!(io::stderr(), "measured: {what}").expect("stderr");
    }
}

/// What a thread has: released when dropped.
pub(super) struct Taken {
    _guard: Box<dyn Any>,
    pub(super) token: u64,
}

/// Takes it, however long that takes. A `RedLock` is one of all clients, anything else of the first.
pub(super) fn take(clients: &[Client], kind: &str, name: &str) -> redlatch::Result<Taken> {
    let client = &clients[0];
    let boxed: Box<dyn Any> = match kind {
        "lock" => Box::new(client.reentrant_lock(name).lock()?),
        "fair" => Box::new(client.fair_lock(name).lock()?),
        "spin" => Box::new(client.spin_lock(name).lock()?),
        "read" => Box::new(client.rw_lock(name).read()?),
        "write" => Box::new(client.rw_lock(name).write()?),
        "multi" => Box::new(client.multi_lock(name.split('+')).lock()?),
        "red" => Box::new(RedLock::new(clients, name)?.lock()?),
        "semaphore" => Box::new(client.semaphore(name).acquire()?),
        "permit" => Box::new(client.expirable_semaphore(name).acquire()?),
        "fenced" => {
            let guard = client.fenced_lock(name).lock()?;
            let token = guard.token();
            return Ok(Taken {
                _guard: Box::new(guard),
                token,
            });
        }
        _ => panic!("no such kind: {kind}"),
    };
    Ok(Taken {
        _guard: boxed,
        token: 0,
    })
}
