//! The pushes for one waiter.
//!
//! The waiter registers before it asks. Then it asks again if it was told anything meanwhile, and
//! sleeps otherwise. While its subscription is not confirmed it looks at intervals: the server
//! forbids it, or its connection is broken. It is told when the subscription is confirmed.

use std::{sync::Arc, time::Duration};

use super::release::Janitor;
use crate::{
    backend::{Change, Changes, Claim},
    key::Name,
};

/// Without a subscription: the first interval between looks, doubled up to the longest.
pub(super) const FIRST_LOOK: Duration = Duration::from_millis(40);
pub(super) const LONGEST_LOOK: Duration = Duration::from_millis(100);

/// The subject of one waiter, and the pushes about it.
pub(crate) struct Listening {
    janitor: Arc<Janitor>,
    subject: WaitedFor,
    changes: Option<Changes>,
    /// The number of looks without a subscription.
    looks: u32,
}

/// The claim or the name that is waited for.
pub(crate) enum WaitedFor {
    Claim(Claim),
    /// A name without a claim.
    Name(Name),
}

impl Listening {
    pub(super) fn new(janitor: &Arc<Janitor>, subject: WaitedFor) -> Self {
        Self { janitor: janitor.clone(), subject, changes: None, looks: 0 }
    }

    pub(super) fn claim(&self) -> Option<&Claim> {
        match &self.subject {
            WaitedFor::Claim(claim) => Some(claim),
            WaitedFor::Name(_) => None,
        }
    }

    /// Turns to another claim of the same name.
    pub(super) fn turn_to(&mut self, claim: &Claim) {
        self.subject = WaitedFor::Claim(claim.clone());
        self.changes = None;
    }

    /// Registers the waiter. This comes before each request, so that no push is missed.
    pub(crate) fn listen(&mut self) -> &mut Changes {
        self.changes.get_or_insert_with(|| {
            let backend = self.janitor.backend();
            match &self.subject {
                WaitedFor::Claim(claim) => backend.listen(&claim.name, Some(claim)),
                WaitedFor::Name(name) => backend.listen(name, None),
            }
        })
    }

    /// Returns whether the waiter is registered.
    pub(super) fn is_listening(&self) -> bool {
        self.changes.is_some()
    }

    /// Hands its registration on.
    pub(crate) fn take_changes(&mut self) -> Option<Changes> {
        self.changes.take()
    }

    /// Returns how long to wait for the next look, if no push can be expected.
    pub(super) fn look_interval(&mut self) -> Option<Duration> {
        if self.listen().subscribe() {
            return None;
        }
        let interval = FIRST_LOOK.saturating_mul(1 << self.looks.min(6)).min(LONGEST_LOOK);
        self.looks += 1;
        Some(interval.mul_f64(0.5 + fastrand::f64() / 2.0))
    }

    /// Returns the next push for the waiter.
    pub(super) async fn pushed(&mut self) -> Change {
        self.listen().next().await
    }
}
