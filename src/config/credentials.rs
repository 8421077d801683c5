//! Credentials returned by a function of the program, for servers whose passwords change.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::time;

/// The function that returns a user and a password.
pub(crate) type Ask = dyn Fn() -> std::result::Result<(String, String), Box<dyn StdError + Send + Sync>>
    + Send
    + Sync;

/// The shortest and the longest `reauth_after`.
const AGES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(365 * 24 * 3600));

/// Credentials that are asked for at every connection attempt.
#[derive(Clone)]
pub(crate) struct Credentials {
    pub(crate) ask: Arc<Ask>,
    /// How old a login may become.
    reauth_after: Option<Duration>,
}

impl Credentials {
    /// Checks the settings; `None` without a function.
    pub(crate) fn of(
        ask: Option<&Arc<Ask>>,
        reauth_after: Option<Duration>,
    ) -> Result<Option<Self>> {
        let bad = |reason: String| Err(Error::setting(reason));
        match (ask, reauth_after) {
            (_, Some(age)) if !(AGES.0..=AGES.1).contains(&age) => bad(format!(
                "reauth_after {} is not between a second and a year",
                time::shown(age)
            )),
            (None, Some(_)) => bad(
                "reauth_after needs Config::credentials: a password in the URL does not change"
                    .into(),
            ),
            (None, None) => Ok(None),
            (Some(ask), _) => Ok(Some(Self {
                ask: Arc::clone(ask),
                reauth_after,
            })),
        }
    }

    /// When a connection that logged in at this moment is replaced: early enough for several attempts.
    pub(crate) fn again_at(&self, logged_in: Instant) -> Option<Instant> {
        Some(logged_in + self.reauth_after? / 4 * 3)
    }

    /// How often the client checks whether a login is due for renewal, and how soon it tries again after a failure.
    pub(crate) fn period(&self) -> Option<Duration> {
        Some((self.reauth_after? / 16).min(Duration::from_secs(60)))
    }
}

impl PartialEq for Credentials {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.ask, &other.ask) && self.reauth_after == other.reauth_after
    }
}

impl Eq for Credentials {}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("reauth_after", &self.reauth_after)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_is_renewed_well_before_it_is_too_old() {
        let ask: Arc<Ask> = Arc::new(|| Ok((String::new(), "password".into())));
        let now = Instant::now();
        for age in [AGES.0, Duration::from_secs(11 * 3600), AGES.1] {
            let credentials = Credentials::of(Some(&ask), Some(age))
                .expect("a good age")
                .expect("something to ask");
            let (at, period) = (credentials.again_at(now), credentials.period());
            let (at, period) = (at.expect("an age"), period.expect("an age"));
            assert!(at + 3 * period < now + age, "{age:?}");
        }
        let credentials = Credentials::of(Some(&ask), None).expect("nothing to object to");
        assert_eq!(credentials.expect("something to ask").again_at(now), None);
    }
}
