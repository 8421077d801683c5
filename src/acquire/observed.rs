//! What the observer of a client is told of acquires and holds.

use std::sync::Arc;
use std::time::Instant;

use crate::acquire::Outcome;
use crate::acquire::spec::LockSpec;
use crate::error::{Error, Result};
use crate::observer::{Acquired, Observers, Refusal, Refused, Released};

/// A hold whose end an observer is told of.
pub(crate) struct Observed {
    observer: Observers,
    name: Arc<str>,
    kind: &'static str,
    since: Instant,
}

impl Observed {
    /// Its holder has released it.
    pub(crate) fn released(&self) {
        let held = self.since.elapsed();
        let (name, kind) = (&*self.name, self.kind);
        self.observer
            .tell(|observer| observer.released(&Released { name, kind, held }));
    }
}

impl LockSpec {
    /// Acquires something, counts refusals, and tells the observer what has come of it. `is_handed_over`: the grant came from
    /// another thread of this process.
    pub(crate) fn observed<G>(
        &self,
        acquire: impl FnOnce() -> Result<Outcome<G>>,
        is_handed_over: impl FnOnce(&G) -> bool,
    ) -> Result<Option<(G, Option<Box<Observed>>)>> {
        let began = self.session().observer.is_some().then(Instant::now);
        let outcome = acquire();
        let refusal = match &outcome {
            Ok(Outcome::Granted(_)) => None,
            Ok(Outcome::Busy(_)) => Some(Refusal::Busy),
            Ok(Outcome::TooLate) => Some(Refusal::Late),
            Err(_) => Some(Refusal::Error),
        };
        if let Some(why) = refusal {
            self.was_refused(began, why);
        }
        if self.late_is_error && matches!(outcome, Ok(Outcome::TooLate)) {
            let name = self.name.to_string();
            return Err(Error::Late { name });
        }
        Ok(outcome?.granted().map(|grant| {
            let observed = began.map(|began| self.was_granted(began, is_handed_over(&grant)));
            (grant, observed)
        }))
    }

    /// Counts it, and tells the observer if there was one when it `began`.
    pub(crate) fn was_refused(&self, began: Option<Instant>, why: Refusal) {
        let session = self.session();
        session.counters.refused.add(1);
        if let Some(began) = began {
            let (name, kind, waited) = (&*self.name, self.key.kind.name, began.elapsed());
            let event = Refused {
                name,
                kind,
                waited,
                why,
            };
            session.observer.tell(|observer| observer.refused(&event));
        }
    }

    pub(crate) fn was_granted(&self, began: Instant, handed_over: bool) -> Box<Observed> {
        let (observer, kind, since) =
            (&self.session().observer, self.key.kind.name, Instant::now());
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
