//! How late the machine is, for what only the clock can tell.
//!
//! On a busy machine a thread runs later than it is due, and a test that compares two moments, or holds a lock for a few
//! milliseconds, measures the machine instead of the crate. So a thread of its own measures how late a short sleep ends, and
//! how many threads wait for a processor, since the kernel lets those that have slept run first. Tests allow for it: [`loosely`] lengthens limits and leases, [`unless_late`] repeats a test that failed meanwhile.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::num::NonZero;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use super::locked;

/// How long the measuring thread sleeps each time.
const TICK: Duration = Duration::from_millis(2);

/// What was measured earlier is forgotten.
const MEMORY: Duration = Duration::from_secs(30);

/// How late the machine may be without any test failing: no lease, limit or pause in the tests is this tight.
const MARGIN: Duration = Duration::from_millis(20);

/// What [`loosely`] adds at most: on a machine that is later than that, only another attempt helps.
const MOST: Duration = Duration::from_secs(4);

/// How long the kernel lets a thread run before it is the next one's turn.
const SLICE: Duration = Duration::from_millis(3);

/// How many ticks apart the threads are counted, and of how many counts the lowest is taken: those that a test wakes all
/// at once are no sign of a busy machine.
const COUNT_EVERY: u32 = 5;
const COUNTS: usize = 10;

/// How often a test is run at most.
const ATTEMPTS: u32 = 5;

/// How often it is run at most if the machine was not seen to be late: what one thread measures says little of a server, a
/// Java process or a disk that was slow for a moment.
const ATTEMPTS_IN_TIME: u32 = 2;

/// By how many milliseconds the machine has been late, for a process that begins: it has measured nothing yet.
pub(crate) const KNOWN: &str = "REDLATCH_TEST_LATENESS_MS";

struct Measured {
    /// The greatest first: a measurement is dropped as soon as one follows that is no smaller.
    late: VecDeque<(Instant, Duration)>,
    /// When the sleep ends that is under way.
    due: Instant,
    /// The last counts of threads that can run.
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
    /// How long a thread waits that has to take its turn.
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

/// Threads of the whole machine that run or wait for a processor, where `/proc` tells.
fn runnable() -> Option<u32> {
    let load = fs::read_to_string("/proc/loadavg").ok()?;
    let (running, _) = load.split_whitespace().nth(3)?.split_once('/')?;
    running.parse().ok()
}

/// What is measured, by a thread that the first call starts.
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
        // Something has to be known.
        thread::sleep(50 * TICK);
    }
    locked(measured)
}

/// By how much at most a sleeping thread has been late since then, as far as remembered.
pub(crate) fn lateness_since(since: Instant) -> Duration {
    let measured = measured();
    let overdue = Instant::now().saturating_duration_since(measured.due);
    let known = measured.late.iter().find(|&&(at, _)| at >= since);
    known.map_or(overdue, |&(_, late)| late.max(overdue))
}

/// By how much at most a sleeping thread has been late in the last half minute.
pub(crate) fn lateness() -> Duration {
    let now = Instant::now();
    lateness_since(now.checked_sub(MEMORY).unwrap_or(now))
}

/// `span`, and longer if the machine is late: for limits from above, and for leases that are to be kept.
///
/// What is asked for belongs together: take each span once, before what it is about, or after it if it is a limit.
pub(crate) fn loosely(span: Duration) -> Duration {
    span + (4 * lateness()).min(MOST)
}

/// Runs `test`, and again if it fails while the machine was later than any test allows for, or for the first time.
///
/// It is never passed for that: the last attempt decides. Nor is it repeated in secret: whoever runs the tests reads of it.
/// What no busy machine excuses is asserted by [`always`], and fails at once.
pub(crate) fn unless_late(test: &dyn Fn()) {
    repeated(&lateness_since, test, &|late| {
        let thread = thread::current();
        let name = thread.name().unwrap_or("a test");
        // Past the capture of the output.
        writeln!(
            io::stderr(),
            "{name} failed while the machine was {late:?} late: once more"
        )
        .ok();
    });
}

/// Some test has failed for what no busy machine excuses. Of any of them: then they fail as a whole.
static FAILED_FOR_CERTAIN: AtomicBool = AtomicBool::new(false);

/// Panics unless it `holds`, and the test is not repeated: however late the machine is, two never hold what excludes the
/// other, and tokens rise. A race that is lost once in a hundred times would pass otherwise.
#[track_caller]
pub(crate) fn always(holds: bool, what: &str) {
    if !holds {
        FAILED_FOR_CERTAIN.store(true, Ordering::SeqCst);
        panic!("{what}");
    }
}

/// The same as [`unless_late`], with the lateness since a moment as `late` has it, and `report` for each time that it is repeated.
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

/// Stands where `#[test]` would: the function of that name, run by [`unless_late`].
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
