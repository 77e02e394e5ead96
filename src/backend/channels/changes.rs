use std::fmt;

use super::{joined::Joined, topics::Listener};
use crate::{backend::Change, error::BackendError};

/// A subscription to the changes of one name. Dropping it ends it.
pub struct Changes(Source);

enum Source {
    One(Listener),
    /// The channel of all processes, and that of this process.
    Two(Box<[Listener; 2]>),
    /// The channels of several servers.
    Several(Joined),
}

impl Changes {
    pub(super) fn one([listener]: [Listener; 1]) -> Self {
        Self(Source::One(listener))
    }

    pub(super) fn two(listeners: [Listener; 2]) -> Self {
        Self(Source::Two(Box::new(listeners)))
    }

    /// Joins the changes of one name at several servers. The result wakes when as many servers as
    /// are `enough` have told of a change.
    pub(crate) fn join(each: Vec<Self>, enough: usize) -> Self {
        let listeners = each.into_iter().flat_map(|changes| match changes.0 {
            Source::One(listener) => vec![listener],
            Source::Two(both) => Vec::from(*both),
            Source::Several(joined) => joined.into_listeners(),
        });
        Self(Source::Several(Joined::new(listeners.collect(), enough)))
    }

    /// Returns the next change, or [`Change::Wake`] if some were missed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no change.
    pub async fn next(&mut self) -> Change {
        match &mut self.0 {
            Source::One(listener) => listener.next().await,
            Source::Two(both) => {
                let [one, other] = both.as_mut();
                tokio::select! {
                    change = one.next() => change,
                    change = other.next() => change,
                }
            }
            Source::Several(joined) => joined.next().await,
        }
    }

    /// Passes over the pushes until now.
    pub(crate) fn forget(&mut self) {
        match &mut self.0 {
            Source::One(listener) => listener.forget(),
            Source::Two(both) => both.iter_mut().for_each(Listener::forget),
            Source::Several(joined) => joined.forget(),
        }
    }

    /// Returns whether no push can be expected any more.
    pub(crate) fn is_mute(&self) -> bool {
        match &self.0 {
            Source::One(listener) => listener.is_mute(),
            Source::Two(both) => both.iter().any(Listener::is_mute),
            Source::Several(joined) => joined.is_mute(),
        }
    }

    /// Returns whether the subscription was confirmed, and is no longer.
    pub(crate) fn is_lost(&self) -> bool {
        match &self.0 {
            Source::One(listener) => listener.is_lost(),
            Source::Two(both) => both.iter().any(Listener::is_lost),
            Source::Several(joined) => joined.is_lost(),
        }
    }

    /// Completes when the server has confirmed the subscription, or refused it.
    #[cfg_attr(not(feature = "redis"), allow(dead_code))]
    pub(crate) async fn confirmed(&mut self) -> Result<(), BackendError> {
        match &mut self.0 {
            Source::One(listener) => listener.confirmed().await,
            Source::Two(both) => {
                let [one, other] = both.as_mut();
                one.confirmed().await?;
                other.confirmed().await
            }
            // Each was confirmed before it was joined.
            Source::Several(_) => Ok(()),
        }
    }
}

impl fmt::Debug for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_tuple("Changes");
        match &self.0 {
            Source::One(listener) => shown.field(listener.channel()),
            Source::Two(both) => shown.field(both[0].channel()),
            Source::Several(joined) => shown.field(joined),
        };
        shown.finish()
    }
}
