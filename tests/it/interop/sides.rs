//! Both sides of a test: acquires in Rust what a Java thread acquires by the same word.

use std::any::Any;
use std::env;
use std::io::{self, Write};
use std::time::Duration;

use redlatch::{Client, RedLock};

/// An environment variable: how many seconds each load lasts. If it is set, the tests print their measurements as well.
const SECONDS: &str = "INTEROP_SECONDS";

/// How long a load lasts: `short`, unless the variable says otherwise.
pub(super) fn lasting(short: Duration) -> Duration {
    let seconds = env::var(SECONDS).ok().and_then(|text| text.parse().ok());
    seconds.map_or(short, Duration::from_secs_f64)
}

/// An environment variable: the kinds of load to run, separated by commas.
const KINDS: &str = "INTEROP_KINDS";

/// Whether loads of this kind are to run: all kinds, unless the variable names some.
pub(super) fn is_wanted(kind: &str) -> bool {
    env::var(KINDS).map_or(true, |kinds| kinds.split(',').any(|it| it == kind))
}

/// Prints a measurement, if a duration was asked for.
pub(super) fn measured(text: &str) {
    if env::var_os(SECONDS).is_some() {
        writeln!(io::stderr(), "measured: {text}").expect("stderr");
    }
}

/// A hold of a thread, released when dropped.
pub(super) struct Taken {
    _guard: Box<dyn Any>,
    pub(super) token: u64,
}

/// Acquires a lock, without a time limit. A `RedLock` uses all clients, every other kind the first.
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
