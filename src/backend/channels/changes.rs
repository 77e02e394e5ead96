//! The changes that a waiter is told of.

use std::{
    collections::VecDeque,
    fmt,
    future::poll_fn,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
};

use tokio::time::Instant;

use super::{Channels, ChannelsOfWaiter, Subscription, WaiterPlace};
use crate::{
    backend::Change,
    error::{BackendError, BackendErrorKind},
    meter,
    sync::lock,
};

/// A registration for the changes of one name. Dropping it ends it.
pub struct Changes {
    inbox: Arc<Inbox>,
    /// `None` for a backend that pushes nothing.
    registered: Option<(Channels, WaiterPlace)>,
    channels: ChannelsOfWaiter,
    /// Whether the channels are open for it.
    is_open: bool,
}

impl Changes {
    /// Returns a registration for a backend that pushes nothing. Its waiter looks at intervals.
    pub fn none() -> Self {
        Self { inbox: Arc::default(), registered: None, channels: [None, None], is_open: false }
    }

    pub(super) fn new(
        registry: Channels,
        inbox: Arc<Inbox>,
        place: WaiterPlace,
        channels: ChannelsOfWaiter,
    ) -> Self {
        Self { inbox, registered: Some((registry, place)), channels, is_open: false }
    }

    /// Returns the next change, or [`Change::Wake`] if some were missed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no change.
    pub async fn next(&mut self) -> Change {
        poll_fn(|context| self.inbox.poll_next(context)).await
    }

    /// Returns when the last change came, if metrics are compiled in.
    pub(crate) fn last(&self) -> Option<Instant> {
        lock(&self.inbox.0).last
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
    /// The error of the server, or of the last attempt to connect to it.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, changes may be missed.
    ///
    /// # Examples
    ///
    /// ```
    /// # let mut builder = tokio::runtime::Builder::new_current_thread();
    /// # builder.enable_time().build().unwrap().block_on(async {
    /// use bellwether::{
    ///     MemoryBackend,
    ///     backend::{Change, Leases, Mode},
    ///     key::{Family, Key, Name, Namespace},
    /// };
    ///
    /// let backend = MemoryBackend::new();
    /// let name = Name::new(&Namespace::standard(), Family::Lock, &Key::from("import"), 512)?;
    /// let mut changes = backend.listen(&name, None);
    /// changes.confirmed().await?;
    /// backend.clear(&name, Mode::Exclusive).await?;
    /// assert_eq!(changes.next().await, Change::Wake);
    /// # Ok::<_, bellwether::BoxError>(()) }).unwrap();
    /// ```
    pub async fn confirmed(&mut self) -> Result<(), BackendError> {
        loop {
            match self.subscription() {
                Subscription::Confirmed => break,
                Subscription::Failed(error) => return Err(error),
                Subscription::Pending => drop(self.next().await),
            }
        }
        self.inbox.forget();
        Ok(())
    }

    /// Opens its channels. Returns what is known of the subscriptions to them.
    fn subscription(&mut self) -> Subscription {
        let Some((registry, _)) = &self.registered else {
            let why = "the backend pushes nothing";
            return Subscription::Failed(BackendError::new(BackendErrorKind::Refused, why));
        };
        let mut state = registry.state();
        if !std::mem::replace(&mut self.is_open, true) {
            let must_ask = |asks, channel| state.open(channel) | asks;
            if self.channels.iter().flatten().fold(false, must_ask) {
                registry.recheck();
            }
        }
        let known = |channel| match state.channels.get(channel) {
            Some(channel) => channel.subscription.clone(),
            None => Subscription::Pending,
        };
        let mut each = self.channels.iter().flatten().map(known);
        let unheard = each.find(|known| !matches!(known, Subscription::Confirmed));
        unheard.unwrap_or(Subscription::Confirmed)
    }
}

impl Drop for Changes {
    fn drop(&mut self) {
        let Some((registry, place)) = &self.registered else { return };
        let mut state = registry.state();
        state.waiters.remove(place);
        let mut has_closed = false;
        for channel in self.channels.iter().flatten().filter(|_| self.is_open) {
            has_closed |= state.close(channel);
        }
        drop(state);
        if has_closed {
            registry.recheck();
        }
    }
}

impl fmt::Debug for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let topic = self.registered.as_ref().map(|(_, place)| &place.topic);
        f.debug_tuple("Changes").field(&topic).finish()
    }
}

/// The pushes that a slow waiter may have unread. With more, it looks again.
const BACKLOG: usize = 16;

/// Takes the pushes for one listener until it reads them.
#[derive(Default)]
pub(super) struct Inbox(Mutex<Unread>);

#[derive(Default)]
struct Unread {
    unread: VecDeque<Change>,
    /// When the last push came, for the metrics.
    last: Option<Instant>,
    reader: Option<Waker>,
}

impl Inbox {
    /// Adds a push. Returns the task that reads it, to be woken when no lock is held any more.
    pub(super) fn put(&self, change: Change) -> Option<Waker> {
        let mut state = lock(&self.0);
        state.last = meter::now();
        if change == Change::Wake && state.unread.back() == Some(&change) {
            // One look sees both, as when two channels of a listener are lost together.
        } else if state.unread.len() == BACKLOG {
            state.unread.clear();
            state.unread.push_back(Change::Wake);
        } else {
            state.unread.push_back(change);
        }
        state.reader.take()
    }

    /// Takes the oldest push.
    fn poll_next(&self, context: &mut Context<'_>) -> Poll<Change> {
        let mut state = lock(&self.0);
        if let Some(change) = state.unread.pop_front() {
            return Poll::Ready(change);
        }
        match &mut state.reader {
            Some(reader) => reader.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
        Poll::Pending
    }

    /// Passes over the pushes until now.
    fn forget(&self) {
        lock(&self.0).unread.clear();
    }
}
