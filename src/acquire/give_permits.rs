//! Releasing permits that have no owner: to waiting threads of this process, or to Redis.

use std::sync::Arc;
use std::time::Instant;

use crate::hold::entry::notify;
use crate::hold::{Entry, Wakeup};
use crate::local::semaphore::Given;
use crate::net::call::Call;
use crate::session::Session;

/// Releases permits that Redis granted at `since`: to waiting threads of this process, or to Redis. Returns the release
/// if one was sent.
pub(crate) fn give(
    session: &Session,
    entry: &Arc<Entry>,
    permits: u32,
    since: Instant,
) -> Option<Arc<Call>> {
    let now = Instant::now();
    let mut state = entry.lock();
    let Given {
        receivers,
        first,
        back,
    } = state.local_semaphore().give(permits, since, now);
    // These threads are off the queue, and find the wakeup if they give up at this moment: rule 2 at `Entry`.
    for waiter in &receivers {
        waiter.store(Wakeup::Given(since));
    }
    // Queued with the mutex held, so that on the connection it precedes the request of the thread that is first now:
    // rule 4 at `Entry`.
    let release = (back > 0).then(|| {
        let release = session.release_permits(entry, back.into());
        let cohort = &mut state.local_semaphore().cohort;
        cohort.released(Arc::clone(&release), now);
        release
    });
    let first = match &release {
        Some(_) => state.call_first(first, now),
        // All permits stay in this process, so the thread that is first now would most likely be refused. With 64 threads on
        // 8 permits, each would send Redis a request that is refused.
        None => first.inspect(|first| {
            let tenure = state.lock.cohort.tenure();
            first.store(Wakeup::ContendAt(now + tenure));
        }),
    };
    drop(state);
    // These threads have their permits, and need not wait until the release of the other permits is written.
    notify(receivers);
    if let Some(release) = &release {
        session.connection.at(release).deliver();
    }
    // Wakes the first in the queue. If there is a release, the request of that thread follows it on the connection.
    notify(first);
    session.watchdog.housekeep_soon();
    release
}
