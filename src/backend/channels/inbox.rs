//! The unread pushes of one listener.

use std::{
    collections::VecDeque,
    sync::Mutex,
    task::{Context, Poll, Waker},
};

use crate::{backend::Change, sync::lock};

/// The pushes that a slow waiter may have unread. With more, it looks again.
const BACKLOG: usize = 16;

/// Takes the pushes for one listener until it reads them.
#[derive(Default)]
pub(super) struct Inbox(Mutex<State>);

#[derive(Default)]
struct State {
    unread: VecDeque<Change>,
    reader: Option<Waker>,
}

impl Inbox {
    /// Adds a push. Returns the task that reads it, to be woken when no lock is held any more.
    pub(super) fn put(&self, change: Change) -> Option<Waker> {
        let mut state = lock(&self.0);
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
    pub(super) fn poll_next(&self, context: &mut Context<'_>) -> Poll<Change> {
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
    pub(super) fn forget(&self) {
        lock(&self.0).unread.clear();
    }
}
