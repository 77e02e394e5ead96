//! The subscription of one waiter.
//!
//! Without a subscription the waiter looks at intervals: the server forbids it, its connection is
//! broken, or the lost one is not restored yet.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::release::Janitor;
use crate::{
    backend::{Change, Changes, Claim, Owner},
    error::Chain,
    key::Name,
    observe::Rarely,
};

/// Without a subscription: the first interval between looks, doubled up to the longest.
pub(super) const FIRST_LOOK: Duration = Duration::from_millis(10);
pub(super) const LONGEST_LOOK: Duration = Duration::from_millis(100);
/// How long after a refused or a lost subscription the next one is asked for.
const RESUBSCRIBE: Duration = Duration::from_secs(1);

/// The subject of one waiter, and the pushes about it.
pub(crate) struct Listening {
    janitor: Arc<Janitor>,
    subject: WaitedFor,
    changes: Option<Changes>,
    /// How many pushes may have been missed before the last request, if it had no subscription.
    missed: Option<u64>,
    /// The number of looks without a subscription, and when to ask for one again.
    looks: u32,
    subscribe_at: Option<Instant>,
}

/// The claim or the name that is waited for.
pub(crate) enum WaitedFor {
    Claim(Claim),
    /// A name without a claim.
    Name(Name),
}

impl Listening {
    pub(super) fn new(janitor: &Arc<Janitor>, subject: WaitedFor) -> Self {
        Self {
            janitor: janitor.clone(),
            subject,
            changes: None,
            missed: None,
            looks: 0,
            subscribe_at: None,
        }
    }

    pub(super) fn name(&self) -> &Name {
        self.subject.name()
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
        self.missed = None;
        self.address();
    }

    /// Takes a subscription over, so that none of its own is needed.
    pub(crate) fn adopt(&mut self, changes: Changes) {
        self.changes = Some(changes);
        self.address();
    }

    /// Notes before a request how many pushes were missed until now.
    pub(crate) fn note_missed(&mut self) {
        self.missed = match (&self.changes, &self.subject) {
            (None, WaitedFor::Claim(claim)) => Some(self.janitor.backend().missed_pushes(claim)),
            _ => None,
        };
    }

    /// Subscribes before a request, if that costs nothing.
    pub(crate) fn listen_along(&mut self) {
        self.note_missed();
        self.listen_since();
    }

    /// Subscribes after a request, if that costs nothing, and no push was missed since.
    pub(super) fn listen_since(&mut self) {
        if let (Some(missed), WaitedFor::Claim(claim)) = (self.missed.take(), &self.subject) {
            self.changes = self.janitor.backend().changes_since(claim, missed);
        }
    }

    /// Hands its subscription on.
    pub(crate) fn take_changes(&mut self) -> Option<Changes> {
        self.changes.take()
    }

    /// Gets the changes for the owner that waits now.
    fn address(&mut self) {
        if let (Some(changes), Some(owner)) = (&mut self.changes, self.subject.owner()) {
            changes.address(owner);
        }
    }

    /// Decides whether to ask for a subscription.
    pub(super) fn must_subscribe(&mut self, now: Instant) -> bool {
        match self.changes.as_ref().is_some_and(Changes::is_lost) {
            // The waiter that was to restore it may be gone; a new request restores it.
            true if self.subscribe_at.is_some_and(|at| at <= now) => self.changes = None,
            true => drop(self.subscribe_at.get_or_insert(now + RESUBSCRIBE)),
            false if self.changes.is_some() => self.subscribe_at = None,
            false => {}
        }
        self.changes.is_none() && self.subscribe_at.is_none_or(|at| at <= now)
    }

    /// Subscribes. Returns `false` if there is no subscription to be had.
    pub(super) async fn subscribe(&mut self) -> bool {
        let backend = self.janitor.backend();
        let subscribed = match &self.subject {
            WaitedFor::Claim(claim) => backend.changes_for(claim).await,
            WaitedFor::Name(name) => backend.changes(name).await,
        };
        match subscribed {
            Ok(changes) => {
                self.changes = Some(changes);
                true
            }
            Err(error) => {
                let name = self.name();
                static SAID: Rarely = Rarely::once_in(1);
                if SAID.first() {
                    tracing::debug!(?name, error = %Chain(&error), "no subscription; looking");
                }
                self.subscribe_at = Some(Instant::now() + RESUBSCRIBE);
                false
            }
        }
    }

    /// Returns how long to wait for the next look, if no push can be expected.
    pub(super) fn look_interval(&mut self) -> Option<Duration> {
        if self.changes.as_ref().is_some_and(|changes| !changes.is_lost()) {
            return None;
        }
        let interval = FIRST_LOOK.saturating_mul(1 << self.looks.min(6)).min(LONGEST_LOOK);
        self.looks += 1;
        Some(interval.mul_f64(0.5 + fastrand::f64() / 2.0))
    }

    /// Returns the next push for the waiter.
    pub(super) async fn pushed(&mut self) -> Change {
        let owner = self.subject.owner();
        let Some(changes) = &mut self.changes else { return std::future::pending().await };
        loop {
            let change = changes.next().await;
            // An unread push may be for the owner that this waiter had before.
            if change.addressee().is_none_or(|addressee| Some(addressee) == owner) {
                return change;
            }
        }
    }
}

impl WaitedFor {
    fn owner(&self) -> Option<Owner> {
        match self {
            Self::Claim(claim) => Some(claim.owner),
            Self::Name(_) => None,
        }
    }

    fn name(&self) -> &Name {
        match self {
            Self::Claim(claim) => &claim.name,
            Self::Name(name) => name,
        }
    }
}
