//! What is logged, through the `log` crate.
//!
//! The logger is the user's code: it may block, panic, or take a lock of the very client that logs. So it is called on a
//! thread of its own, see [`Callback`], and [`report!`] may be used anywhere, under any mutex.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use log::Level;

use crate::callback::Callback;

/// How many records may be queued for a slow logger. Further ones are counted and dropped.
const MOST: usize = 10_000;

/// How long closing a client waits for its records to reach the logger.
const FLUSH: Duration = Duration::from_millis(100);

struct Entry {
    level: Level,
    target: &'static str,
    text: String,
}

static RECORDS: LazyLock<Arc<Callback<Entry>>> =
    LazyLock::new(|| Callback::new("redlatch-log", log_entry, |_| {}));

static DROPPED: AtomicU64 = AtomicU64::new(0);

/// Logs at a level, as `log::warn!` and its kin do, but on another thread.
macro_rules! report {
    ($level:ident, $($text:tt)+) => {
        $crate::report::submit(log::Level::$level, module_path!(), format_args!($($text)+))
    };
}

pub(crate) use report;

pub(crate) fn submit(level: Level, target: &'static str, text: fmt::Arguments<'_>) {
    if level > log::STATIC_MAX_LEVEL || level > log::max_level() {
        return;
    }
    if RECORDS.waiting() >= MOST {
        DROPPED.fetch_add(1, Ordering::Relaxed);
        return;
    }
    let text = text.to_string();
    let entry = Entry {
        level,
        target,
        text,
    };
    // If no thread can be started, it is logged together with the next record.
    RECORDS.give(entry).unwrap_or_default();
}

/// Waits a little for what was submitted to be logged: the process may be about to end.
pub(crate) fn flush() {
    RECORDS.flush(FLUSH);
}

fn log_entry(entry: &Entry) {
    let dropped = DROPPED.swap(0, Ordering::Relaxed);
    if dropped > 0 {
        let text = format_args!("{dropped} records were not logged: the logger is too slow");
        log_now(Level::Warn, module_path!(), text);
    }
    log_now(entry.level, entry.target, format_args!("{}", entry.text));
}

fn log_now(level: Level, target: &'static str, text: fmt::Arguments<'_>) {
    log::log!(target: target, level, "{text}");
}
