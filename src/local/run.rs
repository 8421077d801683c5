//! Which places in a queue that Redis keeps belong to this process, one directly behind the other.
//!
//! The reply to a request that takes a place says who is directly ahead of it. New places are only added at the end, so a
//! place that is directly behind another stays so: a holder of this process knows who is next, and hands the lock over in
//! memory, in the order of the queue.
//!
//! ```text
//!             park              pass (the one ahead has the lock, and hands it over)
//!   asking ─────────► parked ──────────────────────────► served ── removed by the next script ──► gone
//!     ▲  ◄─────────────┘ │
//!     │    asks again    │ wake_next (the one ahead has released it in Redis)
//!     └──────────────────┘
//!   served ── the hold was lost before the thread woke ──► asking
//!   asking or parked ── leaves: those behind it move up ──► gone
//!   asking ── granted by Redis, which removes the place ──► gone, and next is who was behind it
//! ```
//!
//! A parked thread does not subscribe for as long as only places of this process are ahead of it. Once that is not so any
//! more, it is *stranded*, and is woken to ask and to subscribe.
//!
//! Only a parked thread is served in memory: no request of its place is under way. Its place is still in Redis then, where
//! nobody is notified while the lock is held; the next script of this process removes it, at the latest the release. If
//! the hold is lost instead, that is a request of its own. So it is soon after the hand-over if nothing else was sent: the
//! hold may be lost without anybody here knowing, and others would wait for places that nobody uses.
//!
//! What is known can be wrong where places were lost: another process's place may have come back to the front, or the
//! server may have lost the queue. Then one waits for at most a tenure of this process. Who holds never depends on it.

use std::collections::VecDeque;

/// How many served places may still be in Redis.
const MOST_SERVED: usize = 64;

/// How many that left are remembered. Of one that was forgotten, those directly behind it find out after a moment that
/// it serves nobody.
const MOST_LEFT: usize = 64;

/// Who is directly ahead of a new place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ahead {
    /// Nobody: it is the first.
    Nobody,
    /// A place of this process.
    Own(u64),
    /// Somebody else, or it is not known.
    Other,
}

/// What a thread does that was refused, and parks in its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Then {
    /// It waits for a message.
    Listens,
    /// It waits for a thread of this process that hands the lock over.
    WaitsHere,
    /// This process has released the lock since it asked, and it is next: it asks at once.
    AsksAgain,
}

#[derive(Debug, Clone)]
struct Place<P> {
    number: u64,
    ahead: Ahead,
    /// `None` while it asks.
    parked: Option<P>,
    /// It does not listen.
    waits_here: bool,
}

/// A place whose thread was served in memory.
#[derive(Debug, Clone, Copy)]
struct Served {
    number: u64,
    /// A request that removes it is under way.
    is_sent: bool,
}

/// The places of this process. `P` is a thread that parks.
#[derive(Debug, Clone)]
pub(super) struct Run<P> {
    /// That of the holder, if it is of this process.
    holder: Option<u64>,
    /// That of the last holder, which has released the lock in Redis.
    released: Option<u64>,
    /// The one that was woken to ask after that.
    woken: Option<u64>,
    /// How often this process has released the lock in Redis.
    releases: u64,
    /// In the order of their numbers, which is mostly that of the queue: each is found by a binary search, and the next is
    /// one of the first.
    places: VecDeque<Place<P>>,
    served: Vec<Served>,
    /// Somebody is to remove soon what no other request has removed by then.
    clearing_asked: bool,
    /// Those that gave their places up lately, and who was ahead of them: a reply that is still on its way may name them.
    left: VecDeque<(u64, Ahead)>,
}

impl<P> Default for Run<P> {
    fn default() -> Self {
        Self {
            holder: None,
            released: None,
            woken: None,
            releases: 0,
            places: VecDeque::new(),
            served: Vec::new(),
            clearing_asked: false,
            left: VecDeque::new(),
        }
    }
}

impl<P> Run<P> {
    /// Where the place is, or would be.
    fn at(&self, number: u64) -> Result<usize, usize> {
        match self.places.back() {
            Some(last) if last.number >= number => self
                .places
                .binary_search_by_key(&number, |place| place.number),
            _ => Err(self.places.len()),
        }
    }

    /// The same of one that is mostly directly before another.
    fn at_before(&self, number: u64, other: usize) -> Result<usize, usize> {
        let before = other.checked_sub(1);
        match before.and_then(|at| self.places.get(at)) {
            Some(place) if place.number == number => Ok(other - 1),
            _ => self.at(number),
        }
    }

    fn get(&self, number: u64) -> Option<&Place<P>> {
        self.places.get(self.at(number).ok()?)
    }

    fn find(&mut self, number: u64) -> Option<&mut Place<P>> {
        let at = self.at(number).ok()?;
        self.places.get_mut(at)
    }

    fn insert(&mut self, place: Place<P>) {
        let (Ok(at) | Err(at)) = self.at(place.number);
        self.places.insert(at, place);
    }

    fn remove(&mut self, number: u64) -> Option<Place<P>> {
        self.places.remove(self.at(number).ok()?)
    }

    /// A thread parks in its place; `ahead` if the place is new. It asked after so many releases of this process, a thread of
    /// which has the lock now if it `is_held`. If it listens, those that waited for it are
    /// [stranded](Self::stranded_behind).
    pub(super) fn park(
        &mut self,
        number: u64,
        ahead: Option<Ahead>,
        asked_after: u64,
        is_held: bool,
        may_wait_here: bool,
        parked: P,
    ) -> Then {
        let ahead = ahead.map(|ahead| self.still_ahead(ahead));
        match self.find(number) {
            Some(place) => {
                place.parked = Some(parked);
                place.ahead = ahead.unwrap_or(place.ahead);
            }
            None => self.insert(Place {
                number,
                ahead: ahead.unwrap_or(Ahead::Other),
                parked: Some(parked),
                waits_here: false,
            }),
        }
        let was_released = asked_after != self.releases;
        if !is_held && self.woken.is_none() && was_released && self.is_first(number) {
            self.woken = Some(number);
            return Then::AsksAgain;
        }
        let is_soon = is_held || self.woken.is_some() || was_released;
        if !(is_soon && may_wait_here && self.is_served_here(number)) {
            return Then::Listens;
        }
        if let Some(place) = self.find(number) {
            place.waits_here = true;
        }
        Then::WaitsHere
    }

    /// Those that wait here for the place of this number, one behind the other, if it is not served here: they have to ask.
    pub(super) fn stranded_behind(&mut self, mut number: u64) -> Vec<P>
    where
        P: Clone,
    {
        let mut stranded = Vec::new();
        // As a rule nobody waits here, and the way through all places is long.
        if !self.places.iter().any(|place| place.waits_here) || self.is_served_here(number) {
            return stranded;
        }
        for _ in 0..self.places.len() {
            let behind = |place: &&mut Place<P>| place.ahead == Ahead::Own(number);
            let Some(place) = self.places.iter_mut().find(behind) else {
                break;
            };
            number = place.number;
            if std::mem::take(&mut place.waits_here) {
                stranded.extend(place.parked.clone());
            }
        }
        stranded
    }

    /// The same of all that wait here.
    fn stranded(&mut self) -> Vec<P>
    where
        P: Clone,
    {
        let waiting = self.places.iter().filter(|place| place.waits_here);
        let waiting: Vec<_> = waiting.map(|place| place.number).collect();
        let mut stranded = Vec::new();
        for number in waiting {
            if !self.is_served_here(number)
                && let Some(place) = self.find(number)
            {
                place.waits_here = false;
                stranded.extend(place.parked.clone());
            }
        }
        stranded
    }

    /// Who is directly ahead by now, of those that were when a reply was made.
    fn still_ahead(&self, ahead: Ahead) -> Ahead {
        let Ahead::Own(own) = ahead else {
            return ahead;
        };
        if self.released == Some(own) {
            return Ahead::Nobody;
        }
        let left = self.left.iter().find(|(number, _)| *number == own);
        left.map_or(ahead, |(_, ahead)| *ahead)
    }

    /// Those directly behind this place are behind `ahead` from now on.
    fn move_up(&mut self, number: u64, now: Ahead) {
        let waiting = self.places.iter_mut().map(|place| &mut place.ahead);
        let left = self.left.iter_mut().map(|(_, ahead)| ahead);
        for ahead in waiting.chain(left) {
            if *ahead == Ahead::Own(number) {
                *ahead = now;
            }
        }
    }

    fn is_first(&self, number: u64) -> bool {
        let place = self.get(number);
        place.is_some_and(|place| place.ahead == Ahead::Nobody)
    }

    /// How often this process has released the lock so far.
    pub(super) fn releases(&self) -> u64 {
        self.releases
    }

    /// Whether all ahead of it are places of this process, as far as is known.
    fn is_served_here(&self, number: u64) -> bool {
        let mut found = self.at(number);
        for _ in 0..MOST_SERVED {
            let Ok(at) = found else {
                // The thread ahead has not read the reply yet that its place is taken.
                return true;
            };
            let place = &self.places[at];
            if self.woken == Some(place.number) {
                return true;
            }
            match place.ahead {
                Ahead::Nobody => return true,
                Ahead::Own(own) if self.holder == Some(own) => return true,
                Ahead::Own(own) => found = self.at_before(own, at),
                Ahead::Other => return false,
            }
        }
        false
    }

    /// The thread asks Redis, and is not parked.
    pub(super) fn asks(&mut self, number: u64) {
        if let Some(place) = self.find(number) {
            place.parked = None;
            place.waits_here = false;
        }
    }

    /// Redis has lost a place: nobody knows any more who is behind whom. Returns who has to ask.
    pub(super) fn place_lost(&mut self) -> Vec<P>
    where
        P: Clone,
    {
        for place in &mut self.places {
            place.ahead = Ahead::Other;
        }
        for (_, ahead) in &mut self.left {
            *ahead = Ahead::Other;
        }
        self.stranded()
    }

    /// A thread that was served asks after all, since the hold was lost before it woke. It has its place again, or gets it
    /// back.
    pub(super) fn is_not_served(&mut self, number: u64) {
        self.served.retain(|served| served.number != number);
        self.insert(Place {
            number,
            ahead: Ahead::Other,
            parked: None,
            waits_here: false,
        });
    }

    /// A thread gives its place up; those behind it move up. Returns who has to ask: in its stead, or since nobody of this
    /// process serves them any more.
    pub(super) fn leave(&mut self, number: u64) -> Vec<P>
    where
        P: Clone,
    {
        let ahead = self
            .remove(number)
            .map_or(Ahead::Other, |place| place.ahead);
        self.move_up(number, ahead);
        if self.left.len() == MOST_LEFT {
            self.left.pop_front();
        }
        self.left.push_back((number, ahead));
        let mut ask = match ahead {
            Ahead::Other => self.stranded(),
            Ahead::Nobody | Ahead::Own(_) => Vec::new(),
        };
        if self.woken == Some(number) {
            ask.extend(self.wake_next());
        }
        ask
    }

    /// Nobody asks any more: no reply can name those that left.
    pub(super) fn forget_left(&mut self) {
        self.left = VecDeque::new();
    }

    /// Redis has granted the lock, and removed the place of that thread if it had one.
    pub(super) fn granted(&mut self, number: Option<u64>) {
        if let Some(number) = number {
            self.remove(number);
        }
        (self.holder, self.released, self.woken) = (number, None, None);
    }

    /// The place that is next in the queue of Redis, if that is known.
    fn next(&self) -> Option<usize> {
        let behind = self.holder.map(Ahead::Own);
        let of = |ahead| {
            self.places
                .iter()
                .position(|place| Some(place.ahead) == ahead)
        };
        let at = of(behind).or_else(|| of(Some(Ahead::Nobody)))?;
        // One that lost its place got it back in front of those that came later.
        let mut before = self.places.iter().take(at);
        (!before.any(|place| place.ahead == Ahead::Other)).then_some(at)
    }

    /// The holder hands the lock over to the next, if that one parks and wants the same.
    pub(super) fn pass(&mut self, same: impl FnOnce(&P) -> bool) -> Option<P> {
        let at = self.next()?;
        let parks = self.places[at].parked.as_ref();
        if self.served.len() >= MOST_SERVED || !parks.is_some_and(same) {
            return None;
        }
        let place = self.places.remove(at)?;
        self.holder = Some(place.number);
        self.served.push(Served {
            number: place.number,
            is_sent: false,
        });
        place.parked
    }

    /// The hold is over in Redis. Returns who has to ask for the next one.
    pub(super) fn ended(&mut self) -> Option<P>
    where
        P: Clone,
    {
        let holder = self.holder.take();
        if let Some(holder) = holder {
            self.move_up(holder, Ahead::Nobody);
        }
        self.released = holder;
        self.releases += 1;
        self.wake_next()
    }

    fn wake_next(&mut self) -> Option<P>
    where
        P: Clone,
    {
        self.woken = None;
        let next = &self.places[self.next()?];
        let parked = next.parked.clone()?;
        self.woken = Some(next.number);
        Some(parked)
    }

    /// The thread that was woken to ask did so in vain: somebody else has the lock.
    pub(super) fn refused(&mut self, number: u64) {
        if self.woken == Some(number) {
            self.woken = None;
        }
    }

    /// Whether it is one of those whose places have to be removed.
    pub(super) fn is_served(&self, number: u64) -> bool {
        self.served.iter().any(|served| served.number == number)
    }

    /// The served places that the next request has to remove, which no other is about to.
    pub(super) fn begin_removal(&mut self) -> Vec<u64> {
        let unsent = self.served.iter_mut().filter(|served| !served.is_sent);
        unsent
            .map(|served| {
                served.is_sent = true;
                served.number
            })
            .collect()
    }

    /// That request was answered, or has to be sent again.
    pub(super) fn end_removal(&mut self, numbers: &[u64], answered: bool) {
        if answered {
            self.served
                .retain(|served| !numbers.contains(&served.number));
        } else {
            for served in &mut self.served {
                served.is_sent &= !numbers.contains(&served.number);
            }
        }
    }

    /// Whether somebody has to [clear](Self::clear_served) what was served soon, and nobody is to yet.
    pub(super) fn asks_for_clearing(&mut self) -> bool {
        !self.served.is_empty() && !std::mem::replace(&mut self.clearing_asked, true)
    }

    /// The served places, for a request of their own.
    pub(super) fn clear_served(&mut self) -> Vec<u64> {
        self.clearing_asked = false;
        self.take_served()
    }

    /// All served places that may be in Redis: a release is sent until it is acknowledged, and so is a request of their own.
    pub(super) fn take_served(&mut self) -> Vec<u64> {
        self.served.drain(..).map(|served| served.number).collect()
    }

    pub(super) fn parked(&self) -> impl Iterator<Item = &P> {
        self.places.iter().filter_map(|place| place.parked.as_ref())
    }
}

#[cfg(test)]
mod tests;
