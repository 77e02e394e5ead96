//! The state that the readers of a shared body look at, and their wakers.

use std::{
    sync::{Arc, Mutex},
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use bytes::Bytes;
use http::HeaderMap;
use tokio::time::Instant;

use super::{
    buffer::{Buffer, Piece},
    error::{BodyError, BodyErrorKind},
    seats::Seats,
};
use crate::sync::lock;

/// For how long in all the readers of a body wait for slower ones. After that, a reader that is a
/// whole buffer behind gets an error.
const PATIENCE: Duration = Duration::from_secs(1);

/// As a waker, it wakes all readers that wait.
pub(super) struct Board(Mutex<State>);

struct State {
    buffer: Buffer,
    /// How many bytes are kept for slow readers of a body that is not collected.
    most: u64,
    phase: Phase,
    seats: Seats,
    /// How many readers have joined.
    joined: u64,
    /// A reader has asked for the body.
    is_read: bool,
    /// The collector, if it waits for the last reader to leave.
    collector: Option<Waker>,
}

enum Phase {
    /// The collector reads the body of the inner service. All bytes are kept, and readers may join.
    Collected,
    /// The readers read it, as fast as the fastest one wants. While the buffer is full, they wait
    /// for the slowest one, for this long at most.
    Read { patience: Duration, full_since: Option<Instant> },
    /// It has ended while it was collected. All bytes are kept, and readers may join.
    Kept(Option<HeaderMap>),
    /// It has ended while the readers read it.
    Ended(Option<HeaderMap>),
    /// It broke off.
    Broken(BodyError),
}

/// The next piece for a reader.
pub(super) enum Next {
    Data(Bytes),
    /// The body of the inner service is to be polled.
    Poll,
    /// The reader is woken when there is more.
    Wait,
    /// The reader is woken when there is more, and waits for this long at most.
    WaitFor(Duration),
    /// The body is whole, with the trailers if there were any.
    End(Option<HeaderMap>),
    Broken(BodyError),
}

/// Why a caller cannot become a reader.
pub(crate) enum Missed {
    /// The first bytes are no longer kept.
    Start,
    /// The body broke off.
    Broken,
}

impl Board {
    pub(super) fn new(most: u64) -> Arc<Self> {
        Arc::new(Self(Mutex::new(State {
            buffer: Buffer::default(),
            most,
            phase: Phase::Collected,
            seats: Seats::default(),
            joined: 0,
            is_read: false,
            collector: None,
        })))
    }

    /// Returns the seat of a new reader, which reads from the start.
    pub(super) fn join(&self) -> Result<usize, Missed> {
        let mut state = lock(&self.0);
        match &state.phase {
            Phase::Collected | Phase::Kept(_) => {
                state.joined += 1;
                Ok(state.seats.take())
            }
            Phase::Read { .. } | Phase::Ended(_) => Err(Missed::Start),
            Phase::Broken(_) => Err(Missed::Broken),
        }
    }

    /// Frees the seat of a reader. Returns whether the body of the inner service has no reader any
    /// more.
    pub(super) fn leave(&self, seat: usize) -> bool {
        let mut state = lock(&self.0);
        let own = state.seats.free(seat);
        let mut wakers = state.free_behind(0);
        let is_last = state.seats.is_empty();
        if is_last {
            wakers.extend(state.collector.take());
        }
        let is_unread = is_last && matches!(state.phase, Phase::Read { .. });
        drop(state);
        drop(own);
        wakers.into_iter().for_each(Waker::wake);
        is_unread
    }

    /// Lets a reader begin at this place.
    pub(super) fn go_to(&self, seat: usize, place: u64) {
        let mut state = lock(&self.0);
        let from = state.seats.place(seat);
        state.seats.go_to(seat, place);
        let wakers = state.free_behind(from);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Returns what there is for a reader, which is woken if it has to wait.
    pub(super) fn next(&self, seat: usize, cx: &Context<'_>) -> Next {
        let mut state = lock(&self.0);
        state.is_read = true;
        let place = state.seats.place(seat);
        let mut last = None;
        let (next, wakers) = match state.buffer.at(place) {
            Piece::Data(data) => {
                state.seats.go_to(seat, place + data.len() as u64);
                (Next::Data(data), state.free_behind(place))
            }
            Piece::Gone => (Next::Broken(BodyError::new(BodyErrorKind::Slow)), Vec::new()),
            Piece::Nothing => {
                last = state.seats.wait(seat, cx.waker());
                (state.at_the_front(), Vec::new())
            }
        };
        drop(state);
        // Without the lock, because the last reference to a task may drop a reader.
        drop(last);
        wakers.into_iter().for_each(Waker::wake);
        next
    }

    /// Adds data of the body, and wakes the readers.
    pub(super) fn push(&self, data: Bytes) {
        let mut state = lock(&self.0);
        state.buffer.push(data);
        drop(state);
        self.wake_readers();
    }

    /// Ends the body, and wakes the readers.
    pub(super) fn end(&self, end: Result<Option<HeaderMap>, BodyError>) {
        let mut state = lock(&self.0);
        state.phase = match (end, &state.phase) {
            (Err(error), _) => Phase::Broken(error),
            (Ok(trailers), Phase::Read { .. }) => Phase::Ended(trailers),
            (Ok(trailers), _) => Phase::Kept(trailers),
        };
        drop(state);
        self.wake_readers();
    }

    /// Leaves the rest of the body to its readers, if it has not ended.
    pub(super) fn leave_to_readers(&self) {
        let mut state = lock(&self.0);
        if let Phase::Collected = state.phase {
            state.phase = Phase::Read { patience: PATIENCE, full_since: None };
            state.free_behind(0);
        }
        drop(state);
        self.wake_readers();
    }

    /// Returns how many bytes were received.
    pub(super) fn received(&self) -> u64 {
        lock(&self.0).buffer.received()
    }

    /// Returns whether the body is whole, with its trailers, or the error that it broke off with.
    /// `None` if it has not ended.
    pub(super) fn ended(&self) -> Option<Result<Option<HeaderMap>, BodyError>> {
        match &lock(&self.0).phase {
            Phase::Collected | Phase::Read { .. } => None,
            Phase::Kept(trailers) | Phase::Ended(trailers) => Some(Ok(trailers.clone())),
            Phase::Broken(error) => Some(Err(error.clone())),
        }
    }

    /// Returns all bytes as one piece, which the readers share from then on.
    pub(super) fn whole(&self) -> Option<Bytes> {
        lock(&self.0).buffer.whole()
    }

    /// Returns how many bytes are left for a reader at this place, if the body is whole, and
    /// whether trailers follow.
    pub(super) fn left(&self, place: u64) -> Option<(u64, bool)> {
        let state = lock(&self.0);
        match &state.phase {
            Phase::Kept(trailers) | Phase::Ended(trailers) => {
                Some((state.buffer.received().saturating_sub(place), trailers.is_some()))
            }
            _ => None,
        }
    }

    /// Completes when all readers have left, with their number. A body that none has begun to read
    /// is loaded for later callers, such as that of a refresh. To be polled by the collector.
    pub(super) fn poll_left(&self, cx: &Context<'_>) -> Poll<u64> {
        let mut state = lock(&self.0);
        if state.is_read && state.seats.is_empty() {
            return Poll::Ready(state.joined);
        }
        let last = state.collector.replace(cx.waker().clone());
        drop(state);
        drop(last);
        Poll::Pending
    }

    fn wake_readers(&self) {
        let wakers = lock(&self.0).seats.wakers();
        wakers.into_iter().for_each(Waker::wake);
    }

    #[cfg(test)]
    pub(super) fn held(&self) -> u64 {
        lock(&self.0).buffer.held()
    }
}

impl State {
    /// Returns what there is for a reader that has read all that was received.
    fn at_the_front(&mut self) -> Next {
        let (patience, full_since) = match &mut self.phase {
            Phase::Collected => return Next::Wait,
            Phase::Kept(trailers) | Phase::Ended(trailers) => return Next::End(trailers.clone()),
            Phase::Broken(error) => return Next::Broken(error.clone()),
            Phase::Read { patience, full_since } => (patience, full_since),
        };
        if self.buffer.held() <= self.most {
            return Next::Poll;
        }
        let waited = full_since.get_or_insert_with(Instant::now).elapsed();
        let left = patience.saturating_sub(waited);
        if !left.is_zero() {
            return Next::WaitFor(left);
        }
        (*patience, *full_since) = (Duration::ZERO, None);
        self.buffer.shrink_to(self.most);
        Next::Poll
    }

    /// Frees the bytes that all readers have read, after one went on from this place. Returns the
    /// readers that waited for that.
    fn free_behind(&mut self, from: u64) -> Vec<Waker> {
        let Phase::Read { patience, full_since } = &mut self.phase else { return Vec::new() };
        // A reader in the midst of others frees nothing.
        if from >= self.buffer.first_end() {
            return Vec::new();
        }
        self.buffer.free_to(self.seats.slowest().unwrap_or(u64::MAX));
        if self.buffer.held() > self.most {
            return Vec::new();
        }
        match full_since.take() {
            Some(since) => {
                *patience = patience.saturating_sub(since.elapsed());
                self.seats.wakers()
            }
            None => Vec::new(),
        }
    }
}

impl Wake for Board {
    fn wake(self: Arc<Self>) {
        self.wake_readers();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.wake_readers();
    }
}
