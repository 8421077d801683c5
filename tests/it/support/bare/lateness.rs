//! How late the machine is, so that tests can tell their own failures from those of a busy machine.
//!
//! On a busy machine a thread runs later than it is due, and a test that compares two moments, or holds a lock for a
//! few milliseconds, measures the machine instead of the crate. A background thread therefore measures how late a short
//! sleep ends. The thread also counts the threads that wait for a processor: the kernel prefers threads that have
//! slept, so a sleep alone looks too good. [`loosely`] lengthens limits and leases accordingly; [`unless_late`] repeats
//! a test that failed while the machine was late.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::num::NonZero;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use super::locked;

/// How long the measuring thread sleeps at a time.
const TICK: Duration = Duration::from_millis(2);

/// How long measurements are kept.
const MEMORY: Duration = Duration::from_secs(30);

/// How late the machine may be without any effect: every lease, limit and pause in the tests is longer than this.
const MARGIN: Duration = Duration::from_millis(20);

/// The most that [`loosely`] adds. On a machine that is even later, only another attempt helps.
const MOST: Duration = Duration::from_secs(4);

/// How long the kernel lets a thread run before the next thread's turn.
const SLICE: Duration = Duration::from_millis(3);

/// Threads are counted every fifth tick, and the lowest of ten counts is used: a test that wakes many threads at once
/// does not make the machine busy.
const COUNT_EVERY: u32 = 5;
const COUNTS: usize = 10;

/// How often a test runs at most.
const ATTEMPTS: u32 = 5;

/// How often a test runs at most if the machine was not late. The measuring thread
/// notices neither a server nor a Java process nor a disk that was slow for a moment.
const ATTEMPTS_IN_TIME: u32 = 2;

/// The lateness in milliseconds that a new process starts with, because it has not measured anything.
pub(crate) const KNOWN: &str = "REDLATCH_TEST_LATENESS_MS";

struct Measured {
    /// The greatest lateness first: a new measurement removes all smaller ones before it.
    late: VecDeque<(Instant, Duration)>,
    /// When the current sleep should end.
    due: Instant,
    /// The most recent counts of runnable threads.
    runnable: VecDeque<u32>,
}

impl Measured {
    fn add(&mut self, now: Instant) {
        let late = now.saturating_duration_since(self.due).max(self.turn());
        while self.late.back().is_some_and(|&(_, less)| less <= late) {
            self.late.pop_back();
        }
        self.late.push_back((now, late));
        while self.late.front().is_some_and(|&(at, _)| now - at > MEMORY) {
            self.late.pop_front();
        }
    }
}

impl Measured {
    /// How long a thread waits for its turn on a processor.
    fn turn(&self) -> Duration {
        let processors = thread::available_parallelism().map_or(1, NonZero::get);
        let lowest = self.runnable.iter().min().copied().unwrap_or(0);
        let rounds = f64::from(lowest) / processors as f64 - 1.0;
        SLICE.mul_f64(rounds.max(0.0))
    }

    fn count(&mut self) {
        self.runnable.push_back(runnable().unwrap_or(0));
        if self.runnable.len() > COUNTS {
            self.runnable.pop_front();
        }
    }
}

/// The number of threads on the whole machine that run or wait for a processor, if `/proc` has it.
fn runnable() -> Option<u32> {
    let load = fs::read_to_string("/proc/loadavg").ok()?;
    let (running, _) = load.split_whitespace().nth(3)?.split_once('/')?;
    running.parse().ok()
}

/// The measurements. The first call starts the measuring thread.
fn measured() -> MutexGuard<'static, Measured> {
    static MEASURED: OnceLock<Mutex<Measured>> = OnceLock::new();
    let mut is_new = false;
    let measured = MEASURED.get_or_init(|| {
        is_new = true;
        let now = Instant::now();
        let known = env::var(KNOWN).ok().and_then(|ms| ms.parse().ok());
        Mutex::new(Measured {
            late: VecDeque::from([(now, Duration::from_millis(known.unwrap_or(0)))]),
            due: now + TICK,
            runnable: VecDeque::from([0]),
        })
    });
    if is_new {
        let measure = || {
            for tick in 0_u32.. {
                thread::sleep(TICK);
                let now = Instant::now();
                let mut measured = locked(measured);
                if tick.is_multiple_of(COUNT_EVERY) {
                    measured.count();
                }
                measured.add(now);
                measured.due = Instant::now() + TICK;
            }
        };
        thread::Builder::new()
            .name("lateness".to_owned())
            .spawn(measure)
            .expect("a thread");
        // Wait for a first measurement.
        thread::sleep(50 * TICK);
    }
    locked(measured)
}

/// The greatest lateness of a sleeping thread since `since`, at most half a minute back.
pub(crate) fn lateness_since(since: Instant) -> Duration {
    let measured = measured();
    let overdue = Instant::now().saturating_duration_since(measured.due);
    let known = measured.late.iter().find(|&&(at, _)| at >= since);
    known.map_or(overdue, |&(_, late)| late.max(overdue))
}

/// The greatest lateness of a sleeping thread in the last half minute.
pub(crate) fn lateness() -> Duration {
    let now = Instant::now();
    lateness_since(now.checked_sub(MEMORY).unwrap_or(now))
}

/// `span`, lengthened if the machine is late: for upper limits, and for leases that must not expire.
///
/// Spans that are compared with each other must be computed together: a lease before the work that it covers, an upper
/// limit after it.
pub(crate) fn loosely(span: Duration) -> Duration {
    span + (4 * lateness()).min(MOST)
}

/// Runs `test`, and repeats it if it fails while the machine is late. A first failure is always repeated.
///
/// The last attempt decides, and each repetition is reported on stderr. [`always`] asserts what no busy machine
/// excuses; such a failure is final.
pub(crate) fn unless_late(test: &dyn Fn()) {
    repeated(&lateness_since, test, &|late| {
        let thread = thread::current();
        let name = thread.name().unwrap_or("a test");
        // Written directly to stderr, which the harness does not capture.
        writeln!(
            io::stderr(),
            "{name} failed while the machine was {late:?} late: once more"
        )
        .ok();
    });
}

/// Whether some test of this process has failed an [`always`]. No test is repeated after that, since the whole run
/// fails anyway.
static FAILED_FOR_CERTAIN: AtomicBool = AtomicBool::new(false);

/// Panics unless `holds`, and the test is not repeated. Mutual exclusion and rising tokens must hold however late the
/// machine is; a repetition would hide a race that is lost once in a hundred runs.
#[track_caller]
pub(crate) fn always(holds: bool, what: &str) {
    if !holds {
        FAILED_FOR_CERTAIN.store(true, Ordering::SeqCst);
        panic!("{what}");
    }
}

/// [`unless_late`] with another measure of lateness and another `report` of each repetition.
pub(crate) fn repeated(
    late: &dyn Fn(Instant) -> Duration,
    test: &dyn Fn(),
    report: &dyn Fn(Duration),
) {
    let mut in_time = 0;
    for _ in 1..ATTEMPTS {
        let begun = Instant::now();
        let Err(panic) = panic::catch_unwind(AssertUnwindSafe(test)) else {
            return;
        };
        let late = late(begun);
        in_time += u32::from(late < MARGIN);
        if in_time == ATTEMPTS_IN_TIME || FAILED_FOR_CERTAIN.load(Ordering::SeqCst) {
            panic::resume_unwind(panic);
        }
        report(late);
    }
    test();
}

/// Stands in place of `#[test]`: the function of that name runs under [`unless_late`].
macro_rules! timed {
    ($test:ident) => {
        mod $test {
            #[test]
            fn unless_late() {
                crate::support::unless_late(&super::$test);
            }
        }
    };
}
pub(crate) use timed;
