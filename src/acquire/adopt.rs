//! Making a hold of another owner this client's own: see [`protocol::adopt`](crate::protocol::adopt).

use std::time::Instant;

use crate::acquire::Outcome;
use crate::acquire::contender::Contender;
use crate::acquire::guard::GuardInner;
use crate::acquire::listening::Listening;
use crate::acquire::spec::LockSpec;
use crate::acquire::wait_mode::WaitMode;
use crate::error::{Error, Result};

impl LockSpec {
    /// Makes the hold of the owner `from` one of this client: [`Error::Lost`] if that owner has it no longer.
    pub(crate) fn adopt(&self, from: &str, until: Instant) -> Result<GuardInner> {
        let adopt = || Ok(Outcome::Granted(self.adopt_now(from, until)?));
        let adopted = self.observed(adopt, |held, began| self.observe(held, began))?;
        adopted.ok_or(Error::Closed)
    }

    fn adopt_now(&self, from: &str, until: Instant) -> Result<GuardInner> {
        let (params, entry) = self.start(WaitMode::Once)?;
        // Beside a thread of this process that waits for the lock: that one is refused for as long as this one holds.
        entry.lock().lock.ask_beside(self.mode);
        let (wait, listening) = (WaitMode::Once, Listening::default());
        let mut contender = Contender::new(self, entry, params, wait, listening, None, None);
        contender.adopt(from, until)
    }
}
