//! Log records, through the `log` crate, on the thread that caused them.
//!
//! The logger is the user's code: it may block, panic, or take a lock of the very client that logs. So it is called with
//! no mutex held, and while no other thread waits for this one. (One exception: while `ExpirablePermit::update_lease`
//! waits for its reply, it may log with the mutex of its permit held. Other threads wait for that mutex with a time
//! limit.) Where a mutex is held, [`hold_back`] defers the records.

use std::cell::Cell;
use std::fmt;
use std::panic::AssertUnwindSafe;

use log::Level;

use crate::shown::Shown;

struct Record {
    level: Level,
    target: &'static str,
    text: String,
}

std::thread_local! {
    /// How many [`HeldBack`] values the thread has.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    static RECORDS: Cell<Vec<Record>> = const { Cell::new(Vec::new()) };
    /// Whether the thread is in the logger.
    static IS_LOGGING: Cell<bool> = const { Cell::new(false) };
}

/// Logs at a level, like `log::warn!`, unless the logger itself caused the record.
macro_rules! report {
    ($level:ident, $($text:tt)+) => {
        $crate::report::submit(log::Level::$level, module_path!(), format_args!($($text)+))
    };
}

pub(crate) use report;

pub(crate) fn submit(level: Level, target: &'static str, text: fmt::Arguments<'_>) {
    if level > log::STATIC_MAX_LEVEL || level > log::max_level() || IS_LOGGING.get() {
        return;
    }
    let text = Shown(&text.to_string()).to_string();
    let record = Record {
        level,
        target,
        text,
    };
    if DEPTH.get() == 0 {
        return log_now(&record);
    }
    // Records of a thread whose thread-locals are already destroyed are discarded.
    let held_back = RECORDS.try_with(|records| {
        let mut all = records.take();
        all.push(record);
        records.set(all);
    });
    held_back.unwrap_or_default();
}

/// Defers the log records of its thread until it is dropped. Created before the mutex is locked, so that it is
/// dropped after the mutex is unlocked.
pub(crate) struct HeldBack;

/// See [`HeldBack`].
pub(crate) fn hold_back() -> HeldBack {
    DEPTH.set(DEPTH.get() + 1);
    HeldBack
}

impl Drop for HeldBack {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
        if DEPTH.get() == 0 {
            let records = RECORDS.try_with(Cell::take).unwrap_or_default();
            records.iter().for_each(log_now);
        }
    }
}

/// Calls the logger. A panic in it ends neither the thread nor the call that logs.
fn log_now(record: &Record) {
    let Record {
        level,
        target,
        text,
    } = record;
    IS_LOGGING.set(true);
    let log = || log::log!(target: target, *level, "{text}");
    drop(std::panic::catch_unwind(AssertUnwindSafe(log)));
    IS_LOGGING.set(false);
}
