//! A hold of each kind, acquired and released on a key that only the check uses. On some servers that fails, and their
//! settings do not show it.

use std::sync::Arc;
use std::time::Duration;

use crate::error::Result;
use crate::hold::entry::EntryKey;
use crate::local::lock::Mode;
use crate::net::request::Request;
use crate::protocol::idempotency::RequestKeys;
use crate::protocol::kind::{AcquireArgs, Kind};
use crate::protocol::owner::PermitId;
use crate::protocol::{fair, fenced, keys, latch, permits, red, reentrant, rw, semaphore};
use crate::session::Session;

/// The lease of a trial's holds, so they expire if the trial cannot delete them.
const LEASE: Duration = Duration::from_secs(10);
const KEEP_MS: &str = "10000";

/// The requests of a trial, each with its kind, and the one that deletes what is left.
pub(super) struct Trial {
    pub(super) steps: Vec<(&'static str, Request)>,
    pub(super) tidy: Request,
}

impl Trial {
    pub(super) fn new(session: &Session, doing: &'static str, name: &Arc<str>) -> Result<Self> {
        let entry = |kind: &'static Kind, id: &Arc<str>| {
            let id = Arc::clone(id);
            session.registry.unregistered(&EntryKey { kind, id })
        };
        let (owner, mut steps) = (session.owners.id(session.owners.draw()), Vec::new());
        let red = keys::list([&**name]).into();
        for (label, kind, id, mode) in [
            ("locks", &reentrant::KIND, name, Mode::Exclusive),
            // Once more: the second time, scripts are called by their hash.
            ("locks", &reentrant::KIND, name, Mode::Exclusive),
            ("fair locks", &fair::KIND, name, Mode::Exclusive),
            ("fenced locks", &fenced::KIND, name, Mode::Exclusive),
            ("read-write locks", &rw::KIND, name, Mode::Shared),
            ("read-write locks", &rw::KIND, name, Mode::Exclusive),
            ("RedLocks", &red::KIND, &red, Mode::Exclusive),
        ] {
            let entry = entry(kind, id)?;
            let args = AcquireArgs {
                mode,
                token_ttl: LEASE,
                ..AcquireArgs::plain(&owner, LEASE)
            };
            steps.push((label, entry.protocol.acquire(&args)));
            steps.push((label, entry.protocol.release(mode, owner.as_bytes())));
        }
        let lock = entry(&reentrant::KIND, name)?;
        let key = lock.protocol.key();
        let beside = [keys::fenced_token, keys::latch_round, keys::permit_timeouts];
        let mut used_keys: Vec<_> = beside.map(|beside| beside(key)).into();
        used_keys.push(key.to_owned());
        let mut request = || {
            let keys = RequestKeys::new(&session.owners, key, KEEP_MS.to_owned(), &[]);
            used_keys.push(keys.own().to_owned());
            keys
        };
        let delete = || Request::command(doing, &["DEL", key]);
        let mut step = |label, request| steps.push((label, request));
        let (slots, label) = (entry(&semaphore::KIND, name)?, "semaphores");
        let of = &slots.protocol;
        step(label, semaphore::set(of, &request(), 1, Duration::ZERO));
        step(label, semaphore::acquire(of, &request(), 1));
        step(label, semaphore::release(of, &request(), 1));
        step(label, delete());
        let (slots, label) = (entry(&permits::KIND, name)?, "expirable semaphores");
        let (of, id) = (&slots.protocol, [PermitId::draw()]);
        let set = permits::PermitChange::TrySet(1);
        step(label, permits::change(of, &request(), set));
        step(label, permits::acquire(of, &id, LEASE));
        step(label, permits::release(of, &id));
        step(label, delete());
        let gate = entry(&latch::KIND, name)?;
        for change in [latch::LatchChange::Set(1), latch::LatchChange::CountDown] {
            step("latches", latch::change(&gate.protocol, &request(), change));
        }
        let tidy = ["DEL"]
            .into_iter()
            .chain(used_keys.iter().map(String::as_str));
        let tidy = Request::command(doing, &tidy.collect::<Vec<_>>());
        Ok(Self { steps, tidy })
    }
}
