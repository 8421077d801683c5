//! Guarded commands: the server checks that the hold is in force and runs the command in one step.

use std::sync::Arc;
use std::time::Instant;

use redis::{FromRedisValue, Value};

use crate::error::{Error, Result, lasting};
use crate::hold::Hold;
use crate::net::call::Fault;
use crate::net::request::Request;
use crate::net::socket::TOO_LARGE;
use crate::protocol::guarded::{Guarded, RUNNING, Unfit, not_held};
use crate::session::Session;

/// Makes the request of a guarded command or script, or says why that is impossible.
pub(crate) type Work<'a> = dyn Fn(&Guarded<'_>) -> std::result::Result<Request, Unfit> + 'a;

impl Session {
    /// Runs `work` once, if the hold is in force, and reads the reply.
    pub(crate) fn run<T: FromRedisValue>(
        &self,
        hold: &Arc<Hold>,
        work: &Work<'_>,
        until: Instant,
    ) -> Result<T> {
        let reply = self.run_guarded(hold, work, until)?;
        T::from_redis_value(reply).map_err(|err| self.unread(hold, err.to_string()))
    }

    /// The error for a reply that cannot be read. The command has run, so a retry would repeat it.
    fn unread(&self, hold: &Hold, why: String) -> Error {
        let doing = "reading the reply to a guarded command";
        Error::unread(doing, lasting(why))
            .at(&self.endpoint)
            .about(hold.entry().name())
    }

    fn run_guarded(&self, hold: &Arc<Hold>, work: &Work<'_>, until: Instant) -> Result<Value> {
        self.check_open()?;
        hold.check_not_lost()?;
        let request = self.guarded_request(hold, work)?;
        let stop = || self.is_closed();
        // The request is not sent again once it may have run: the command may not be repeatable, and nothing can undo it.
        let refusal = match self.guarded.ask(&request, until, &stop) {
            Ok(answer) => return Ok(answer.value),
            Err(Fault::Refused(refusal)) if refusal.code() == Some(TOO_LARGE) => {
                return Err(self.unread(hold, refusal.detail().unwrap_or_default().to_owned()));
            }
            Err(Fault::Refused(refusal)) => refusal,
            Err(fault) => {
                // The command may still be executed. If the hold were handed over, the server could not tell this command
                // from one of the next holder, since a hold that is handed over keeps its number.
                if matches!(fault, Fault::Unknown(_)) {
                    hold.record_unanswered();
                }
                return Err(fault
                    .into_error(RUNNING, hold.entry().name())
                    .at(&self.endpoint));
            }
        };
        // If the server did not find the hold, or found another, the hold is lost: the guard learns that before the
        // next renewal.
        let in_time = Instant::now() < hold.valid_until();
        let Some(why) = not_held(&refusal, &hold.owner()) else {
            return Err(self.error(RUNNING, hold.entry().name(), refusal));
        };
        let reason = why.or_expired(in_time);
        self.lose(hold, reason);
        Err(hold.lost_or(reason))
    }

    fn guarded_request(&self, hold: &Hold, work: &Work<'_>) -> Result<Request> {
        let guarded = Guarded {
            protocol: &hold.entry().protocol,
            mode: hold.mode,
            owner: &hold.owner(),
            is_cluster: self.registry.is_cluster,
        };
        work(&guarded).map_err(|why| Error::InvalidCommand { reason: why })
    }
}
