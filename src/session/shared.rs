//! The session, shared by all handles of a client.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::report::report;
use crate::session::Session;

/// How long dropping the last handle may take to release all holds.
const DROP_DEADLINE: Duration = Duration::from_secs(2);

/// The session, shared by all handles of a client. Dropping the last handle closes the client.
pub(crate) struct SharedSession {
    pub(crate) session: Arc<Session>,
}

impl SharedSession {
    pub(crate) fn new(session: Arc<Session>) -> Arc<Self> {
        Arc::new(Self { session })
    }
}

impl Drop for SharedSession {
    fn drop(&mut self) {
        // If the client is closed, the result was reported already.
        if !self.session.is_closed()
            && let Err(err) = self.session.close(Instant::now() + DROP_DEADLINE)
        {
            report!(Warn, "closing a dropped client failed: {err}");
        }
    }
}
