//! Permits without an owner: any thread may release them, or be handed those of another thread.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::Value;

use crate::acquire::Outcome;
use crate::acquire::permits::{self, Grants};
use crate::acquire::spec::LockSpec;
use crate::acquire::wait_mode::WaitMode;
use crate::error::Result;
use crate::hold::Entry;
use crate::net::call::{Deferred, Undo};
use crate::net::request::Request;
use crate::protocol::idempotency::{FORGET, RequestKeys};
use crate::protocol::owner::OwnerId;
use crate::protocol::script::{self, PermitsAcquired, Unexpected};
use crate::protocol::semaphore;
use crate::session::Session;

/// The moment at which Redis granted permits to this process, and whether another thread of the process handed them over.
type Granted = (Instant, bool);

/// Takes `permits` permits at once, or none.
pub(crate) fn take(
    spec: &LockSpec,
    entry: &Arc<Entry>,
    permits: u32,
    wait: WaitMode,
) -> Result<Outcome<Granted>> {
    let entry = Arc::clone(entry);
    permits::take(spec, permits, wait, PlainPermits { entry, permits })
}

struct PlainPermits {
    entry: Arc<Entry>,
    permits: u32,
}

impl Grants for PlainPermits {
    type Grant = Granted;

    type Asked = PermitRequest;

    const ARE_HANDED_OVER: bool = true;

    fn draw(&self, session: &Session) -> Arc<PermitRequest> {
        Arc::new(PermitRequest {
            entry: Arc::clone(&self.entry),
            keys: session.request_keys(self.entry.protocol.key(), FORGET, session.command_timeout),
            replay: session.replay(),
        })
    }

    fn request(&self, asked: &PermitRequest) -> Request {
        let protocol = &self.entry.protocol;
        semaphore::acquire(protocol, &asked.keys, self.permits)
    }

    fn read(reply: Value) -> std::result::Result<PermitsAcquired, Unexpected> {
        let too_few = |is_set| PermitsAcquired::TooFew {
            retry_after: None,
            is_set,
        };
        match script::integer(reply)? {
            1 => Ok(PermitsAcquired::Taken { ends_at: 0 }),
            0 => Ok(too_few(true)),
            -1 => Ok(too_few(false)),
            n => Err(Unexpected(Value::Int(n))),
        }
    }

    fn granted(
        &self,
        spec: &LockSpec,
        asked: &PermitRequest,
        _: Instant,
        _: i64,
    ) -> Result<Granted> {
        let session = spec.session();
        let key = self.entry.protocol.key();
        session.requests.answered(key, asked.keys.number);
        session.counters.acquired.add(1);
        Ok((Instant::now(), false))
    }

    fn handed_over(&self, since: Instant) -> Option<Granted> {
        Some((since, true))
    }
}

/// A request for permits, which may have to be undone.
struct PermitRequest {
    entry: Arc<Entry>,
    keys: RequestKeys,
    /// The time for which the undo may be sent again.
    replay: Duration,
}

impl Undo for PermitRequest {
    fn undo(&self) -> Deferred {
        let request = semaphore::undo(&self.entry.protocol, &self.keys);
        let (owner, useful_until) = (OwnerId::default(), Instant::now() + self.replay);
        let undo = self.entry.deferred(request, &owner, useful_until, true);
        undo.without_lease()
    }
}
