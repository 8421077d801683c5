//! Reports of acquires and holds to the observer of a client.

use std::sync::Arc;
use std::time::Instant;

use crate::acquire::Outcome;
use crate::acquire::guard::GuardInner;
use crate::acquire::spec::LockSpec;
use crate::error::{Error, Result};
use crate::observer::{Acquired, Observed, RefusalReason, Refused};

/// Why nothing was granted, for the observer; `None` if something was.
pub(crate) fn refusal<G>(outcome: &Result<Outcome<G>>) -> Option<RefusalReason> {
    match outcome {
        Ok(Outcome::Granted(_)) => None,
        Ok(Outcome::Busy(_)) => Some(RefusalReason::Busy),
        Ok(Outcome::TooLate) => Some(RefusalReason::Late),
        Err(Error::Cancelled | Error::Closed) => Some(RefusalReason::Cancelled),
        Err(_) => Some(RefusalReason::Error),
    }
}

impl LockSpec {
    /// Acquires something, counts a refusal, and reports the outcome to the observer. If there is an observer, `grant` is
    /// called with what was granted and when the call began, and reports that.
    pub(crate) fn observed<G>(
        &self,
        acquire: impl FnOnce() -> Result<Outcome<G>>,
        grant: impl FnOnce(&mut G, Instant),
    ) -> Result<Option<G>> {
        let began = self.session().observer.is_some().then(Instant::now);
        let outcome = acquire();
        if let Some(why) = refusal(&outcome) {
            self.record_refusal(began, why);
        }
        let mut granted = outcome?.settled(&self.name, self.late_is_error)?;
        if let (Some(granted), Some(began)) = (&mut granted, began) {
            grant(granted, began);
        }
        Ok(granted)
    }

    /// Reports a guard to the observer, unless its thread had the lock already. The end of the hold will be reported, too.
    pub(crate) fn observe(&self, held: &mut GuardInner, began: Instant) {
        if let Some(handed_over) = held.record_observed() {
            held.hold()
                .observe(held.thread(), self.report_granted(began, handed_over));
        }
    }

    /// Counts a refusal, and reports it if there was an observer when the call `began`.
    pub(crate) fn record_refusal(&self, began: Option<Instant>, reason: RefusalReason) {
        let session = self.session();
        session.counters.refused.add(1);
        if let Some(began) = began {
            let (name, kind, waited) = (&*self.name, self.reported_as, began.elapsed());
            let event = Refused {
                name,
                kind,
                waited,
                reason,
            };
            session.observer.tell(|observer| observer.refused(&event));
        }
    }

    pub(crate) fn report_granted(&self, began: Instant, handed_over: bool) -> Box<Observed> {
        let (observer, kind, since) = (&self.session().observer, self.reported_as, Instant::now());
        let (name, waited) = (&*self.name, since - began);
        let event = Acquired {
            name,
            kind,
            waited,
            handed_over,
        };
        observer.tell(|observer| observer.acquired(&event));
        Box::new(Observed {
            observer: observer.clone(),
            name: Arc::clone(&self.name),
            kind,
            since,
        })
    }
}
