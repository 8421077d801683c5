//! Adopting the hold of another owner: see [`protocol::adopt`](crate::protocol::adopt).

use std::time::Instant;

use crate::acquire::Outcome;
use crate::acquire::contender::Contender;
use crate::acquire::guard::GuardInner;
use crate::acquire::listening::Listening;
use crate::acquire::spec::LockSpec;
use crate::acquire::wait_mode::WaitMode;
use crate::error::{Error, Result};
use crate::net::call::{Answer, Fault};
use crate::net::request::Request;
use crate::protocol::adopt::ADOPTING;

impl LockSpec {
    /// Makes the hold of the owner `from` one of this client: [`Error::Lost`] if that owner has it no longer.
    pub(crate) fn adopt(&self, from: &str, until: Instant) -> Result<GuardInner> {
        let adopt = || Ok(Outcome::Granted(self.adopt_now(from, until)?));
        let adopted = self.observed(adopt, |held, began| self.observe(held, began))?;
        // Always a guard: `adopt_now` returns one or an error.
        adopted.ok_or(Error::Closed)
    }

    /// Sends the `request` by which this client takes over a hold. If there is no answer, sends it again, until `until` at
    /// most.
    ///
    /// All copies of the request name the same new owner, so a second copy finds what the first has done. If none is
    /// answered, `give_back` undoes it.
    pub(super) fn ask_to_adopt(
        &self,
        mut request: Request,
        until: Instant,
        give_back: impl FnOnce(),
    ) -> Result<Answer> {
        let session = self.session();
        session.replicate(&mut request, self.command_timeout);
        let answer = session
            .connection
            .ask(&request, until, &|| session.is_closed());
        answer.map_err(|fault| {
            if !matches!(fault, Fault::Refused(_)) {
                give_back();
            }
            self.error(ADOPTING, fault)
        })
    }

    fn adopt_now(&self, from: &str, until: Instant) -> Result<GuardInner> {
        // The copy of a client in a forked process shares the connections of its parent, and must not use them.
        self.check_going()?;
        let (params, entry) = self.start(WaitMode::Once)?;
        // This thread need not queue: while the other process has the lock, Redis refuses the threads of this process that
        // ask at the same time.
        entry.lock().lock.begin_adopting(self.mode);
        let (wait, listening) = (WaitMode::Once, Listening::new(self.command_timeout));
        let mut contender = Contender::new(self, entry, params, wait, listening, None, None);
        contender.adopt(from, until)
    }
}
