//! The permits with ids that the guards of a client hold.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::hold::Hold;
use crate::protocol::owner::PermitId;

/// The permits of a client whose guards are alive, so that a release by id finds its holder.
#[derive(Default)]
pub(crate) struct LivePermits(Mutex<HashMap<PermitId, Arc<Hold>>>);

impl LivePermits {
    pub(crate) fn insert(&self, hold: &Arc<Hold>) {
        if let Some(id) = PermitId::parse(&hold.owner()) {
            self.0.lock().insert(id, Arc::clone(hold));
        }
    }

    pub(crate) fn get(&self, id: PermitId) -> Option<Arc<Hold>> {
        self.0.lock().get(&id).cloned()
    }

    /// The permits of the semaphore with this key.
    pub(crate) fn of(&self, key: &str) -> Vec<Arc<Hold>> {
        let live = self.0.lock();
        let of_key = live
            .values()
            .filter(|hold| hold.entry().protocol.key() == key);
        of_key.cloned().collect()
    }

    pub(crate) fn remove(&self, hold: &Hold) {
        let Some(id) = PermitId::parse(&hold.owner()) else {
            return;
        };
        let mut live = self.0.lock();
        live.remove(&id);
        if live.is_empty() && live.capacity() > 1024 {
            *live = HashMap::new();
        }
    }
}
