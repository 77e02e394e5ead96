use std::fmt;

use super::{joined::JointListener, topics::Listener};
use crate::{
    backend::{Change, Owner},
    error::BackendError,
};

/// A subscription to the changes of one name. Dropping it ends it.
///
/// It gets all changes of the name, until it has an [address](Self::address).
pub struct Changes(Listeners);

enum Listeners {
    One(Listener),
    /// That of all processes, and that of this process.
    Two(Box<[Listener; 2]>),
    /// The channels of several servers.
    Several(JointListener),
}

impl Changes {
    pub(super) fn one([listener]: [Listener; 1]) -> Self {
        Self(Listeners::One(listener))
    }

    pub(super) fn two(listeners: [Listener; 2]) -> Self {
        Self(Listeners::Two(Box::new(listeners)))
    }

    /// Joins the changes of one name at several servers. The result wakes when as many servers as
    /// are `enough` have told of a change.
    pub(crate) fn join(each: Vec<Self>, enough: usize) -> Self {
        let listeners = each.into_iter().flat_map(|changes| match changes.0 {
            Listeners::One(listener) => vec![listener],
            Listeners::Two(both) => Vec::from(*both),
            Listeners::Several(joined) => joined.into_listeners(),
        });
        Self(Listeners::Several(JointListener::new(listeners.collect(), enough)))
    }

    /// Returns the next change, or [`Change::Wake`] if some were missed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no change.
    pub async fn next(&mut self) -> Change {
        match &mut self.0 {
            Listeners::One(listener) => listener.next().await,
            Listeners::Two(both) => {
                let [one, other] = both.as_mut();
                tokio::select! {
                    change = one.next() => change,
                    change = other.next() => change,
                }
            }
            Listeners::Several(joined) => joined.next().await,
        }
    }

    /// Gets the changes for this owner from now on, and none for another one. The changes for all
    /// keep coming.
    pub fn address(&mut self, owner: Owner) {
        match &mut self.0 {
            Listeners::One(listener) => listener.address(owner),
            Listeners::Two(both) => both.iter_mut().for_each(|one| one.address(owner)),
            Listeners::Several(joined) => joined.address(owner),
        }
    }

    /// Returns whether the subscription was confirmed, and is no longer.
    pub(crate) fn is_lost(&self) -> bool {
        match &self.0 {
            Listeners::One(listener) => listener.is_lost(),
            Listeners::Two(both) => both.iter().any(Listener::is_lost),
            Listeners::Several(joined) => joined.is_lost(),
        }
    }

    /// Completes when the server has confirmed the subscription, or refused it.
    #[cfg_attr(not(feature = "redis"), allow(dead_code))]
    pub(crate) async fn confirmed(&mut self) -> Result<(), BackendError> {
        match &mut self.0 {
            Listeners::One(listener) => listener.confirmed().await,
            Listeners::Two(both) => {
                let [one, other] = both.as_mut();
                one.confirmed().await?;
                other.confirmed().await
            }
            // Each was confirmed before it was joined.
            Listeners::Several(_) => Ok(()),
        }
    }
}

impl fmt::Debug for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_tuple("Changes");
        match &self.0 {
            Listeners::One(listener) => shown.field(listener.topic()),
            Listeners::Two(both) => shown.field(both[0].topic()),
            Listeners::Several(joined) => shown.field(joined),
        };
        shown.finish()
    }
}
