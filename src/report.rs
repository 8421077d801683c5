//! What is logged, through the `log` crate, on the thread that caused it.
//!
//! The logger is the user's code: it may block, panic, or take a lock of the very client that logs. So no mutex is held
//! while it runs, nor anything else that other threads wait for: where one is, [`hold_back`] has the records wait.

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
    /// How many [`HeldBack`] the thread has.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    static RECORDS: Cell<Vec<Record>> = const { Cell::new(Vec::new()) };
    /// The thread is in the logger.
    static IS_LOGGING: Cell<bool> = const { Cell::new(false) };
}

/// Logs at a level, as `log::warn!` and its kin do, unless the logger itself has caused it.
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
    // A thread that is about to end keeps none.
    let held_back = RECORDS.try_with(|records| {
        let mut all = records.take();
        all.push(record);
        records.set(all);
    });
    held_back.unwrap_or_default();
}

/// Until it is dropped, what its thread logs waits. To be taken before the mutex, so that it is dropped after it.
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

/// Calls the logger. If it panics, that ends no thread, and no call half-way.
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
