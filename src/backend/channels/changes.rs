use std::fmt;

use super::registry::{Listener, Subscription};
use crate::{
    backend::Change,
    error::{BackendError, BackendErrorKind},
};

/// A registration for the changes of one name. Dropping it ends it.
pub struct Changes(Listeners);

enum Listeners {
    One(Listener),
    /// Nothing is pushed.
    None,
}

impl Changes {
    pub(super) fn one(listener: Listener) -> Self {
        Self(Listeners::One(listener))
    }

    /// Returns a registration for a backend that pushes nothing. Its waiter looks at intervals.
    pub fn none() -> Self {
        Self(Listeners::None)
    }

    /// Returns the next change, or [`Change::Wake`] if some were missed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no change.
    pub async fn next(&mut self) -> Change {
        match &mut self.0 {
            Listeners::One(listener) => listener.next().await,
            Listeners::None => std::future::pending().await,
        }
    }

    /// Asks the server for its subscriptions, if that was not done yet. Returns whether it has
    /// confirmed them, so that changes arrive.
    ///
    /// The listener is woken ([`Change::Wake`]) when they are confirmed, refused or lost.
    pub fn subscribe(&mut self) -> bool {
        matches!(self.subscription(), Subscription::Confirmed)
    }

    /// Completes when the server has confirmed the subscription, or refused it. The changes until
    /// then may be missed.
    ///
    /// # Errors
    ///
    /// That of the server, or that of the last attempt to connect to it.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, changes may be missed.
    pub async fn confirmed(&mut self) -> Result<(), BackendError> {
        loop {
            match self.subscription() {
                Subscription::Confirmed => break,
                Subscription::Failed(error) => return Err(error),
                Subscription::Pending => drop(self.next().await),
            }
        }
        match &mut self.0 {
            Listeners::One(listener) => listener.forget(),
            Listeners::None => {}
        }
        Ok(())
    }

    fn subscription(&mut self) -> Subscription {
        match &mut self.0 {
            Listeners::One(listener) => listener.subscribe(),
            Listeners::None => {
                let why = "the backend pushes nothing";
                Subscription::Failed(BackendError::new(BackendErrorKind::Refused, why))
            }
        }
    }
}

impl fmt::Debug for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_tuple("Changes");
        match &self.0 {
            Listeners::One(listener) => shown.field(&listener.topic()),
            Listeners::None => &mut shown,
        };
        shown.finish()
    }
}
