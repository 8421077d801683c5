//! A hold that changes hands: detached by one client, adopted by another.

use std::fmt::{self, Write as _};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use crate::acquire::spec::LockSpec;
use crate::config;
use crate::error::{Error, Result};
use crate::protocol::{KINDS, owner};
use crate::session::shared::SharedSession;
use crate::sync::guard::Guard;
use crate::sync::kind::{Detachable, Owned, Scope, sealed};

/// The first word of a ticket's text.
const WORD: &str = "redlatch-ticket-1";

/// A text with which another client can take over a hold. Until the ticket is adopted, nobody renews the hold: Redis keeps
/// it for the time given to `detach`, or until the handle's `min_hold` ends if that is later.
///
/// Made by [`detach`](crate::MutexGuard::detach), taken by [`Client::adopt`](crate::Client::adopt). Send the text to
/// the other process, for example in a message of a queue. That process may be on any machine.
///
/// ```no_run
/// use redlatch::{OwnedMutexGuard, Ticket};
///
/// let client = redlatch::Client::open("redis://127.0.0.1/")?;
/// let a_minute = std::time::Duration::from_secs(60);
/// let text = client.mutex("job:7").lock()?.detach(a_minute)?.to_string();
/// // in the other process
/// let ticket: Ticket = text.parse()?;
/// let guard: OwnedMutexGuard = client.adopt(&ticket)?;
/// # Ok::<(), redlatch::Error>(())
/// ```
///
/// The text is one line, four words with single spaces between them: white space, control characters and `%` in the name are
/// percent-encoded. With the feature `serde` a ticket is serialized as its text, and deserialized from it.
///
/// A ticket can be adopted once, by any process that has the text. To end the hold earlier, call
/// [`force_unlock`](crate::Mutex::force_unlock) on the lock, or [`release_id`](crate::ExpirableSemaphore::release_id) with
/// the permit's id (note it before you detach). The text of a ticket names the kind of lock;
/// [`Client::adopt`](crate::Client::adopt) says which guards fit, and rejects others.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[must_use = "without the ticket nobody can adopt the hold, and the name stays taken"]
pub struct Ticket {
    kind: String,
    owner: String,
    name: String,
}

impl Ticket {
    pub(super) fn new(kind: &str, owner: &str, name: &str) -> Self {
        Self {
            kind: kind.into(),
            owner: owner.into(),
            name: name.into(),
        }
    }

    /// Returns the name, as given to the client that detached the hold.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let ticket = client.mutex("job:7").lock()?.detach(std::time::Duration::from_secs(60))?;
    /// assert_eq!(ticket.name(), "job:7");
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn adopt<A: Adopt>(&self, shared: &Arc<SharedSession>) -> Result<A> {
        let kind = KINDS.iter().find(|kind| kind.name == self.kind);
        let Some(kind) = kind.filter(|_| self.kind == A::TICKET) else {
            let (is, wanted) = (&self.kind, A::TICKET);
            return Err(Error::setting(format!(
                "the ticket is for the kind {is}, and not for {wanted}"
            )));
        };
        A::adopt(
            LockSpec::new(shared, self.name.as_str().into(), kind),
            &self.owner,
        )
    }
}

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{WORD} {} {} ", self.kind, self.owner)?;
        for c in self.name.chars() {
            if c == '%' || c.is_whitespace() || c.is_control() {
                let mut bytes = [0; 4];
                for byte in c.encode_utf8(&mut bytes).bytes() {
                    write!(f, "%{byte:02X}")?;
                }
            } else {
                f.write_char(c)?;
            }
        }
        Ok(())
    }
}

impl FromStr for Ticket {
    type Err = Error;

    /// [`Error::InvalidSetting`] for a text that is no ticket.
    fn from_str(text: &str) -> Result<Self> {
        let words: Vec<&str> = text.trim().split(' ').collect();
        let whole = match words[..] {
            [WORD, kind, owner, name] if ![kind, owner, name].contains(&"") => {
                percent_decoded(name).map(|name| Self {
                    kind: kind.into(),
                    owner: owner.into(),
                    name,
                })
            }
            _ => None,
        };
        whole.ok_or_else(|| Error::setting(format!("{text:?} is no ticket")))
    }
}

fn percent_decoded(mut word: &str) -> Option<String> {
    let mut name = Vec::new();
    while let Some((literal, behind)) = word.split_once('%') {
        let digits = behind.get(..2)?;
        name.extend(literal.bytes());
        // A sign is no digit, and `from_str_radix` would take it.
        let byte = u8::from_str_radix(digits, 16).ok();
        name.push(byte.filter(|_| !digits.starts_with('+'))?);
        word = &behind[2..];
    }
    name.extend(word.bytes());
    String::from_utf8(name).ok()
}

#[cfg(feature = "serde")]
impl serde::Serialize for Ticket {
    fn serialize<S: serde::Serializer>(
        &self,
        serializer: S,
    ) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for Ticket {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// A type that a ticket can become: the [owned guard](crate::OwnedGuard) of a [`Detachable`] kind, or an
/// [`ExpirablePermit`](crate::ExpirablePermit). Sealed.
pub trait Adopt: sealed::SealedAdopt {}

impl<A: sealed::SealedAdopt> Adopt for A {}

impl<K: Detachable> sealed::SealedAdopt for Guard<K, Owned> {
    const TICKET: &'static str = K::PROTOCOL.name;

    fn adopt(mut spec: LockSpec, from: &str) -> Result<Self> {
        (spec.as_thread, spec.reported_as) = (Some(owner::draw_thread()), K::REPORTED_AS);
        let until = spec.until();
        Ok(Self::new(spec.adopt(from, until)?))
    }
}

impl<K: Detachable, S: Scope> Guard<K, S> {
    /// Leaves the hold in Redis for `lease`, for another client to adopt: see [`Ticket`].
    ///
    /// Guards of an `RwLock`, a `MultiLock` or a `RedLock` lack this method. The hold is no longer renewed. Until it is adopted
    /// or `lease` is over, nobody else gets the lock. Once it is adopted, Redis rejects commands that this client still sends
    /// as the old owner. Blocks for one round trip, at most for the command timeout. If the handle's
    /// [`min_hold`](crate::Mutex::min_hold) ends later than `lease`, the hold stays until then.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let guard = client.mutex("job:7").lock()?;
    /// let ticket = guard.detach(std::time::Duration::from_secs(60))?;
    /// println!("{ticket}"); // for the process that adopts it
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// An error releases this guard, as dropping it does.
    ///
    /// - [`Error::Lost`] if the hold ended earlier, also by [`Client::close`](crate::Client::close).
    /// - [`Error::Redis`] if Redis did not confirm.
    /// - [`Error::InvalidSetting`] for a lease below 10 ms or above 100 years, and if the thread has further guards of the
    ///   lock.
    pub fn detach(self, lease: Duration) -> Result<Ticket> {
        config::check_lease("lease", lease)?;
        let name = self.name().to_owned();
        let owner = self.held.detach(lease)?;
        Ok(Ticket::new(K::PROTOCOL.name, &owner, &name))
    }
}

#[cfg(test)]
mod tests;
