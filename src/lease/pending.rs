use std::{sync::Arc, time::Duration};

use tokio::{runtime::Handle, time::Instant};
use tracing::debug;

use super::{Claim, Engine, Grant, Held, Occupied, Owner, Upkeep, Watch, place::Place};
use crate::{
    backend::{Handover, answered_by},
    error::BackendError,
};

/// An acquisition under way. Dropped before its outcome is known, it undoes itself.
pub(crate) struct Pending {
    engine: Arc<Engine>,
    claim: Claim,
    runtime: Handle,
    /// A try is under way.
    trying: bool,
    /// A try ended without an answer. It may yet be granted, for it may be on its way on a connection
    /// that broke, even after another try was; so this is never cleared. Or it was granted, and perhaps could not be
    /// given back.
    pub(super) doubtful: bool,
    /// Someone is in the way; where the mode has a queue at the backend, there is a place in it.
    place: Place,
}

impl Pending {
    pub(crate) fn new(engine: Arc<Engine>, claim: Claim) -> Self {
        Self {
            engine,
            claim,
            runtime: Handle::current(),
            trying: false,
            doubtful: false,
            place: Place::default(),
        }
    }

    /// One try, with the answer and the time at which it was sent.
    pub(crate) async fn attempt<'a, T, F>(
        &'a mut self,
        limit: Duration,
        send: impl FnOnce(&'a Claim) -> F,
    ) -> Result<(T, Instant), BackendError>
    where
        F: Future<Output = Result<T, BackendError>> + 'a,
    {
        self.trying = true;
        let sent = Instant::now();
        self.place.asked(sent);
        let backend = self.engine.backend().as_ref();
        let answer = answered_by(backend, limit, send(&self.claim)).await;
        self.trying = false;
        self.doubtful |= answer.as_ref().is_err_and(BackendError::may_have_happened);
        answer.map(|answer| (answer, sent))
    }

    /// What may have been granted is given back: the next try has a token of its own, for the release may come late. It
    /// is undone here as well.
    pub(super) fn contend_anew(&mut self) -> &Claim {
        let fresh = Claim { owner: Owner::fresh(), ..self.claim.clone() };
        self.doubtful = true;
        *self = Self::new(self.engine.clone(), fresh);
        &self.claim
    }

    /// The last try found someone in the way.
    pub(super) fn waits(&mut self, occupied: &Occupied) {
        self.place.keep(occupied.fence);
    }

    /// Whether a try found someone in the way.
    pub(super) fn is_waiting(&self) -> bool {
        self.place.is_taken()
    }

    /// The last try, sent at `sent`, was granted.
    pub(crate) fn granted(self, grant: &Grant, upkeep: Upkeep, sent: Instant) -> Held {
        let watch =
            self.engine.watchdog.watch(self.claim.clone(), upkeep, self.runtime.clone(), sent);
        self.held(grant.fence(), watch)
    }

    /// Until when the lease is held that was handed over to it; none, if it must ask.
    pub(super) fn handed(&self, handover: &Handover) -> Option<Instant> {
        // A try that may be on its way still could be granted it once more, after its end.
        self.place.handed(handover).filter(|_| self.claim.takes_handover && !self.doubtful)
    }

    /// The lease was handed over to it, and lasts until then.
    pub(super) fn pushed(self, fence: u64, upkeep: Upkeep, until: Instant) -> Held {
        let watch = self.engine.watchdog.watch_until(
            self.claim.clone(),
            upkeep,
            self.runtime.clone(),
            until,
        );
        self.held(fence, watch)
    }

    fn held(mut self, fence: u64, watch: Arc<Watch>) -> Held {
        self.trying = false;
        self.place = Place::default();
        // It is the holder's now to see to what may yet arrive.
        let doubtful = std::mem::take(&mut self.doubtful);
        Held::new(self.engine.clone(), fence, watch, self.runtime.clone()).doubted(doubtful)
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let doubtful = self.trying || self.doubtful;
        if doubtful {
            debug!(name = ?self.claim.name, "an acquisition with an unknown outcome is undone");
        }
        if doubtful || (self.place.is_taken() && self.claim.waits && self.claim.mode.queues()) {
            self.engine.undo(self.claim.clone(), doubtful, &self.runtime);
        }
    }
}
