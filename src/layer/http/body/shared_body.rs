//! What the readers of a body share: the bytes that have arrived, and where each reader is.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt, mem,
    sync::{Arc, Mutex},
    task::Waker,
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use tokio::{
    sync::Notify,
    time::{Instant, sleep},
};

use super::{
    backlog::{Backlog, LeftBody, SlowReader},
    error::BodyError,
    service_body::{Arrival, BodyEnd},
};
use crate::sync::lock;

/// A piece from this size on is kept as it came. Smaller pieces are joined, because a list of small
/// `Bytes` takes many times their size.
const WORTH_KEEPING: usize = 4 << 10;
/// The size up to which small pieces are joined. A piece may be copied as often as a reader has a
/// reference to it.
const JOINED: usize = 8 << 10;
/// How long a body is without a reader before the body counts as unread. The callers that wait for
/// the body have their turns meanwhile.
const UNREAD: Duration = Duration::from_millis(50);

/// When a body is no longer collected, and what is kept for its slow readers then.
#[derive(Clone, Debug)]
pub(in super::super) struct BodyLimits {
    /// The largest body, in bytes.
    pub(in super::super) size: u64,
    pub(in super::super) total: Duration,
    /// Whether a body that has no reader is collected to its end.
    pub(in super::super) finish_unread: bool,
    pub(in super::super) backlog: Arc<Backlog>,
}

/// A body of the inner service that callers read while it arrives.
pub(in super::super) struct SharedBody {
    pub(super) limits: BodyLimits,
    /// The length that the headers announce, or else the body. The head that each reader has got
    /// says this length, too.
    pub(super) announced: Option<u64>,
    pub(super) begun: Instant,
    pub(super) state: Mutex<State>,
    /// Notifies the collector of what the readers do.
    pub(super) moved: Notify,
}

impl SharedBody {
    pub(super) fn new(announced: Option<u64>, limits: BodyLimits) -> Arc<Self> {
        Arc::new(Self {
            limits,
            announced,
            begun: Instant::now(),
            state: Mutex::default(),
            moved: Notify::new(),
        })
    }

    /// Adds data of the body and the end of the body, and wakes the readers that wait.
    pub(super) fn receive(&self, arrival: Arrival) {
        let mut state = lock(&self.state);
        state.push(arrival.data);
        if state.end.is_none() {
            state.end = arrival.end;
        }
        let waiting = state.take_waiting();
        drop(state);
        for waker in waiting {
            waker.wake();
        }
    }

    /// Frees what was kept for a reader, which is gone or too slow.
    pub(super) fn leave(&self, number: u64) {
        let mut state = lock(&self.state);
        state.readers.remove(&number);
        state.free(&self.limits.backlog);
        drop(state);
        self.moved.notify_one();
    }

    /// Completes when the body has no reader any more. A body that no caller has begun to read is
    /// loaded for later callers, such as the body of a refresh.
    pub(super) async fn unread(&self) {
        // How many readers had joined when the body was last seen without any.
        let mut joined_before = None;
        loop {
            let Some(joined) = lock(&self.state).joined_if_left() else {
                self.moved.notified().await;
                continue;
            };
            if joined_before == Some(joined) {
                return;
            }
            joined_before = Some(joined);
            sleep(UNREAD).await;
        }
    }
}

impl LeftBody for SharedBody {
    fn slowest(&self) -> Option<SlowReader> {
        lock(&self.state).longest_behind()
    }

    fn end_reader(&self, number: u64) {
        self.leave(number);
    }
}

impl fmt::Debug for SharedBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedBody").finish_non_exhaustive()
    }
}

impl Drop for SharedBody {
    fn drop(&mut self) {
        let mut state = lock(&self.state);
        if let Some(number) = state.left_as {
            self.limits.backlog.remove(number);
            state.readers.clear();
            state.free(&self.limits.backlog);
        }
    }
}

#[derive(Default)]
pub(super) struct State {
    /// The bytes that are kept, in order.
    pieces: VecDeque<Piece>,
    pub(super) received: u64,
    /// The readers, by the numbers in which they have joined.
    pub(super) readers: BTreeMap<u64, Reading>,
    joined: u64,
    is_read: bool,
    /// The number in the backlog of a body that is no longer collected. What all readers have read
    /// of such a body is freed.
    pub(super) left_as: Option<u64>,
    /// How many bytes of the backlog are of this body.
    kept: u64,
    pub(super) end: Option<BodyEnd>,
}

/// Bytes of a body that lie together.
struct Piece {
    /// The place of the first byte in the body.
    start: u64,
    bytes: Bytes,
}

impl Piece {
    fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }
}

/// What a reader has read. A reader that is not among those of the state was too slow.
pub(super) struct Reading {
    place: u64,
    /// Since when the reader has bytes to take: since the reader took bytes, or since bytes
    /// arrived.
    since: Instant,
    /// Set while the reader waits for more than was received.
    pub(super) waker: Option<Waker>,
}

impl Reading {
    fn at(place: u64) -> Self {
        Self { place, since: Instant::now(), waker: None }
    }
}

/// What a reader finds.
pub(super) enum ReaderStep {
    Data(Bytes),
    End(BodyEnd),
    /// The reader waits, and its waker is registered.
    Waits,
}

impl State {
    /// Adds a reader at the start of the body. Returns its number.
    pub(super) fn join(&mut self) -> u64 {
        self.joined += 1;
        self.readers.insert(self.joined, Reading::at(0));
        self.joined
    }

    /// Returns how many bytes are kept.
    pub(super) fn held(&self) -> u64 {
        match self.pieces.front() {
            Some(first) => self.received - first.start,
            None => 0,
        }
    }

    fn push(&mut self, data: Bytes) {
        if data.is_empty() {
            return;
        }
        let start = self.received;
        self.received += data.len() as u64;
        match self.pieces.back_mut() {
            Some(last) if last.bytes.len() < JOINED && data.len() < WORTH_KEEPING => {
                let bytes = mem::take(&mut last.bytes);
                let mut joined = match bytes.try_into_mut() {
                    Ok(joined) => joined,
                    Err(shared) => BytesMut::from(&*shared),
                };
                joined.extend_from_slice(&data);
                last.bytes = joined.freeze();
            }
            _ => self.pieces.push_back(Piece { start, bytes: data }),
        }
    }

    /// Returns the next data for a reader, or the end of the body.
    pub(super) fn next(&mut self, number: u64, waker: &Waker, backlog: &Backlog) -> ReaderStep {
        self.is_read = true;
        let Some(reader) = self.readers.get_mut(&number) else {
            return ReaderStep::End(Err(BodyError::Slow));
        };
        let place = reader.place;
        *reader = Reading::at(place);
        let Some(data) = bytes_at(&self.pieces, place) else {
            if let Some(end) = &self.end {
                return ReaderStep::End(end.clone());
            }
            reader.waker = Some(waker.clone());
            return ReaderStep::Waits;
        };
        reader.place += data.len() as u64;
        self.free(backlog);
        ReaderStep::Data(data)
    }

    /// Takes the wakers of the readers that wait. From now on these readers have bytes to take.
    fn take_waiting(&mut self) -> Vec<Waker> {
        let mut waiting = Vec::new();
        for reader in self.readers.values_mut() {
            if let Some(waker) = reader.waker.take() {
                reader.since = Instant::now();
                waiting.push(waker);
            }
        }
        waiting
    }

    /// Returns how many readers have joined, if all of them have left.
    fn joined_if_left(&self) -> Option<u64> {
        if self.is_read && self.readers.is_empty() { Some(self.joined) } else { None }
    }

    /// Returns the place of the slowest reader.
    fn slowest_place(&self) -> Option<u64> {
        self.readers.values().map(|reader| reader.place).min()
    }

    /// Returns the place of the fastest reader.
    fn fastest_place(&self) -> Option<u64> {
        self.readers.values().map(|reader| reader.place).max()
    }

    /// Returns the reader that has taken nothing for longest, of the readers that are behind
    /// another reader.
    fn longest_behind(&self) -> Option<SlowReader> {
        let fastest = self.fastest_place()?;
        let mut longest: Option<SlowReader> = None;
        for (number, reader) in &self.readers {
            if reader.place >= fastest {
                continue;
            }
            let behind = SlowReader { since: reader.since, number: *number };
            longest = Some(longest.map_or(behind, |longest| longest.min(behind)));
        }
        longest
    }

    /// Ends the slowest readers, until no more bytes are kept than one body may.
    pub(super) fn end_furthest_behind(&mut self, backlog: &Backlog) {
        while self.held() > backlog.of_body {
            let slowest = self.readers.iter().min_by_key(|(_, reader)| reader.place);
            let Some((number, _)) = slowest else { return };
            let number = *number;
            self.readers.remove(&number);
            self.free(backlog);
        }
    }

    /// Returns all bytes that are kept as one piece, which the readers share from then on.
    pub(super) fn whole(&mut self) -> Bytes {
        if self.pieces.len() > 1 {
            let mut joined = BytesMut::with_capacity(self.received as usize);
            for piece in &self.pieces {
                joined.extend_from_slice(&piece.bytes);
            }
            self.pieces = VecDeque::from([Piece { start: 0, bytes: joined.freeze() }]);
        }
        match self.pieces.front() {
            Some(piece) => piece.bytes.clone(),
            None => Bytes::new(),
        }
    }

    /// Frees the bytes that all readers have read, if the body is left to its readers. Counts what
    /// is kept for the slow readers.
    pub(super) fn free(&mut self, backlog: &Backlog) {
        // A body that has come to its end while it was collected is kept whole.
        if self.left_as.is_none() {
            return;
        }
        let slowest = self.slowest_place().unwrap_or(u64::MAX);
        let fastest = self.fastest_place().unwrap_or(u64::MAX);
        while self.pieces.front().is_some_and(|piece| piece.end() <= slowest) {
            self.pieces.pop_front();
        }
        let kept = fastest - slowest;
        backlog.count(kept, self.kept);
        self.kept = kept;
    }
}

/// Returns the bytes from a place on, as far as these bytes lie together.
fn bytes_at(pieces: &VecDeque<Piece>, place: u64) -> Option<Bytes> {
    let after = pieces.partition_point(|piece| piece.start <= place);
    let piece = pieces.get(after.checked_sub(1)?)?;
    let offset = usize::try_from(place - piece.start).ok()?;
    let rest = piece.bytes.get(offset..)?;
    if rest.is_empty() { None } else { Some(piece.bytes.slice_ref(rest)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_small_pieces_are_kept_as_few() {
        let mut state = State::default();
        (0..1 << 20).for_each(|_| state.push(Bytes::from_static(b"x")));
        assert!(state.pieces.len() <= 1 + (1 << 20) / JOINED, "{}", state.pieces.len());
        assert_eq!(state.held(), 1 << 20);
    }
}
