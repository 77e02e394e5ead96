//! A body that several callers read while it arrives, each at its own pace.
//!
//! At first the load collects the body, within limits, so that it can be stored. All bytes are kept
//! meanwhile, and readers may join. When the load stops to collect it, the readers poll it as fast
//! as the fastest one wants, and bytes that all have read are freed. While too many
//! bytes are kept for slow readers, the others wait for these, for a second in all. After that, a
//! reader that is a whole buffer behind gets an error.
//!
//! Any change wakes all readers that wait. So a reader that is not polled holds up no other one,
//! even if it was the last to poll the body of the inner service.

use std::{
    collections::{BTreeMap, VecDeque},
    future::{pending, poll_fn},
    mem,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::{Pin, pin},
    sync::{Arc, Mutex, TryLockError},
    task::{Context, Poll, Wake, Waker, ready},
    time::Duration,
};

use bytes::{Buf, Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, combinators::UnsyncBoxBody};
use tokio::{
    sync::Notify,
    task::{coop::consume_budget, yield_now},
    time::{Instant, sleep, timeout, timeout_at},
};

use super::{BodyError, BodyErrorKind};
use crate::{error::BoxError, sync::lock, time::after};

/// For how long in all the readers of a body wait for slower ones.
const PATIENCE: Duration = Duration::from_secs(1);
/// A piece from this size on is kept as it came. Smaller ones are joined, because a list of small
/// `Bytes` takes many times their size.
const WORTH_KEEPING: usize = 4 << 10;
/// The size up to which small pieces are joined. Each may be copied as often as a reader has it.
const JOINED: usize = 8 << 10;
/// How much of a body that is always ready is collected before its readers have a turn.
const TURN: u64 = 64 << 10;
/// How long a body is without a reader before it counts as unread. The callers that wait for it
/// have their turns meanwhile.
const UNREAD: Duration = Duration::from_millis(50);

/// When a body is no longer collected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BodyLimits {
    /// The largest body, in bytes. Once a body is left to its readers, at most so many are kept for
    /// slow ones.
    pub(crate) size: u64,
    /// The longest time without progress.
    pub(crate) idle: Duration,
    /// The longest time in all.
    pub(crate) total: Duration,
    /// Whether a body that has no reader is collected to its end.
    pub(crate) finish_unread: bool,
}

/// Why a body is not collected to its end.
pub(crate) enum NotCollected {
    /// The body is too large or too slow, or it has trailers. Its readers go on.
    Unfit,
    /// The body has no reader, and is not to be finished.
    Unread,
    /// The body broke off, for all its readers.
    Broken(BodyError),
}

/// Why a caller cannot become a reader.
pub(crate) enum Missed {
    /// The first bytes are no longer kept.
    Start,
    /// The body broke off.
    Broken,
}

/// The trailers of a body that is whole, or why it broke off.
type BodyEnd = Result<Option<HeaderMap>, BodyError>;

pub(crate) struct SharedBody {
    /// The body of the inner service, until its end.
    source: Mutex<Option<UnsyncBoxBody<Bytes, BodyError>>>,
    limits: BodyLimits,
    /// The length that the headers announce, or else the body. The heads of its readers have it.
    announced: Option<u64>,
    /// The state that the load and the readers share.
    state: Mutex<State>,
    /// Tells them of each change. The source keeps it as a waker, so it does not keep the source.
    changed: Arc<BodyChanges>,
}

/// As a waker of the body, it wakes all readers that wait.
struct BodyChanges(Notify);

impl Wake for BodyChanges {
    fn wake(self: Arc<Self>) {
        self.0.notify_waiters();
    }
}

#[derive(Default)]
struct State {
    /// The bytes that are kept, each piece with its place in the body.
    pieces: VecDeque<(u64, Bytes)>,
    /// How many bytes were received.
    received: u64,
    /// How many bytes are kept for slow readers.
    most: u64,
    /// How many bytes each reader has read, by the numbers in which they have joined.
    readers: BTreeMap<u64, u64>,
    joined: u64,
    /// A reader has asked for the body.
    is_read: bool,
    /// Set once the readers poll the body.
    left: Option<Left>,
    end: Option<BodyEnd>,
}

/// How long the readers of a body that is left to them wait for slower ones.
struct Left {
    patience: Duration,
    full_since: Option<Instant>,
}

/// The next piece for a reader.
enum Next {
    Data(Bytes),
    End(BodyEnd),
    /// The body of the inner service is to be polled.
    Poll,
    /// Nothing before a change, or before this time is over.
    Wait(Duration),
}

impl SharedBody {
    /// Shares a body, whose headers may announce a length.
    pub(crate) fn new<B>(body: B, announced: Option<u64>, limits: BodyLimits) -> Arc<Self>
    where
        B: Body + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let announced = announced.or_else(|| body.size_hint().exact());
        let is_empty = body.is_end_stream();
        let source = body.map_err(BodyError::service).map_frame(in_bytes).boxed_unsync();
        let source = Mutex::new(Some(source));
        let state = Mutex::new(State { most: limits.size, ..State::default() });
        let changed = Arc::new(BodyChanges(Notify::new()));
        let shared = Self { source, limits, announced, state, changed };
        if is_empty {
            shared.end(Ok(None));
        }
        Arc::new(shared)
    }

    /// Returns a reader from the start on.
    pub(crate) fn reader(self: &Arc<Self>, takes_trailers: bool) -> Result<Reader, Missed> {
        let number = lock(&self.state).join()?;
        let (body, next) = (Arc::clone(self), None);
        Ok(Reader { body, number, place: 0, until: None, takes_trailers, next, is_done: false })
    }

    /// Collects the body within its limits, while others read it. To be called once. It leaves the
    /// rest to the readers, if it ends before the body or is dropped.
    pub(crate) async fn collect(&self) -> Result<Bytes, NotCollected> {
        let (_leaving, limits) = (Leaving(self), &self.limits);
        let end = after(Instant::now(), limits.total);
        let mut unread = pin!(self.unread());
        let mut next_turn = TURN;
        loop {
            let (received, ended) = self.progress();
            match ended {
                Some(Ok(Some(_trailers))) => return Err(NotCollected::Unfit),
                Some(Err(error)) => return Err(NotCollected::Broken(error)),
                _ if received > limits.size => return Err(NotCollected::Unfit),
                Some(Ok(None)) => return Ok(self.whole()),
                None => {}
            }
            // A body that is always ready lets its readers read it meanwhile. The first turn is
            // that of the callers which wait for its head. A small body is settled before that.
            if received >= next_turn {
                next_turn = received.saturating_add(TURN);
                yield_now().await;
            }
            consume_budget().await;
            let until = after(Instant::now(), limits.idle).min(end);
            tokio::select! {
                biased;
                more = timeout_at(until, poll_fn(|cx| self.poll_source(cx))) => {
                    more.map_err(|_| NotCollected::Unfit)?;
                }
                () = &mut unread => return Err(NotCollected::Unread),
            }
        }
    }

    /// Returns the next data for a reader at this place, or the end of the body.
    async fn next(self: Arc<Self>, number: u64, place: u64) -> Result<Bytes, BodyEnd> {
        let waker = Waker::from(Arc::clone(&self.changed));
        loop {
            let mut changed = pin!(self.changed.0.notified());
            changed.as_mut().enable();
            match self.what_is_next(number, place) {
                Next::Data(data) => return Ok(data),
                Next::End(end) => return Err(end),
                Next::Poll => {
                    if self.poll_source(&mut Context::from_waker(&waker)).is_pending() {
                        changed.await;
                    }
                }
                Next::Wait(limit) => drop(timeout(limit, changed).await),
            }
        }
    }

    /// Polls the body of the inner service. Ready if the state may have changed.
    fn poll_source(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut source = match self.source.try_lock() {
            Ok(source) => source,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Another reader polls it, and wakes this one.
            Err(TryLockError::WouldBlock) => return Poll::Pending,
        };
        let Some(body) = source.as_mut() else { return Poll::Ready(()) };
        let polled = catch_unwind(AssertUnwindSafe(|| {
            let frame = Pin::new(&mut *body).poll_frame(cx);
            (frame, body.is_end_stream())
        }));
        let (frame, is_end) = match polled {
            Ok((frame, is_end)) => (ready!(frame), is_end),
            Err(_panic) => (Some(Err(BodyError::new(BodyErrorKind::Panicked))), true),
        };
        let end = match frame.map(|frame| frame.map(Frame::into_data)) {
            Some(Ok(Ok(data))) => self.push(data, is_end),
            Some(Ok(Err(frame))) => Some(Ok(frame.into_trailers().ok())),
            Some(Err(error)) => Some(Err(error)),
            None => Some(Ok(None)),
        };
        if let Some(end) = end {
            let ended = source.take();
            drop(source);
            self.end(end);
            // Last, because it is the code of the service, and may panic.
            drop(ended);
        }
        Poll::Ready(())
    }

    fn end(&self, end: BodyEnd) {
        self.change(|state| {
            let is_short = self.announced.is_some_and(|length| length != state.received);
            state.end = Some(match end {
                Ok(_) if is_short => Err(BodyError::new(BodyErrorKind::Length)),
                end => end,
            });
        });
    }

    /// Changes the state, and wakes all that wait for that.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let changed = change(&mut lock(&self.state));
        self.changed.0.notify_waiters();
        changed
    }

    /// Removes a reader. Returns whether the body of the inner service has no reader any more.
    fn leave(&self, number: u64) -> bool {
        self.change(|state| {
            state.readers.remove(&number);
            state.free();
            state.readers.is_empty() && state.left.is_some() && state.end.is_none()
        })
    }

    /// Returns what there is for a reader at this place.
    fn what_is_next(&self, number: u64, place: u64) -> Next {
        let mut state = lock(&self.state);
        state.is_read = true;
        if place < state.start() {
            return Next::End(Err(BodyError::new(BodyErrorKind::Slow)));
        }
        let Some(data) = state.at(place) else { return state.at_the_front() };
        let is_freed = state.go_on(number, place, place + data.len() as u64);
        drop(state);
        if is_freed {
            self.changed.0.notify_waiters();
        }
        Next::Data(data)
    }

    /// Adds data of the body. Returns the end of the body, if this is the last, or too much.
    fn push(&self, data: Bytes, is_last: bool) -> Option<BodyEnd> {
        self.change(|state| {
            let received = state.received.saturating_add(data.len() as u64);
            if self.announced.is_some_and(|announced| received > announced) {
                return Some(Err(BodyError::new(BodyErrorKind::Length)));
            }
            state.push(data);
            is_last.then_some(Ok(None))
        })
    }

    /// Returns how many bytes were received, and the end of the body if it has come.
    fn progress(&self) -> (u64, Option<BodyEnd>) {
        let state = lock(&self.state);
        (state.received, state.end.clone())
    }

    /// Returns all bytes that are kept as one piece, which the readers share from then on.
    fn whole(&self) -> Bytes {
        let mut state = lock(&self.state);
        if state.pieces.len() > 1 {
            let mut joined = BytesMut::with_capacity(state.held() as usize);
            state.pieces.iter().for_each(|(_, piece)| joined.extend_from_slice(piece));
            state.pieces = VecDeque::from([(0, joined.freeze())]);
        }
        state.pieces.front().map(|(_, piece)| piece.clone()).unwrap_or_default()
    }

    /// Returns how many bytes are left for a reader at this place, if the body is whole, and
    /// whether trailers follow.
    fn rest(&self, place: u64) -> Option<(u64, bool)> {
        let state = lock(&self.state);
        let trailers = state.end.as_ref()?.as_ref().ok()?;
        Some((state.received.saturating_sub(place), trailers.is_some()))
    }

    /// Completes when the body has no reader any more, and is not to be finished. A body that none
    /// has begun to read is loaded for later callers, such as that of a refresh.
    async fn unread(&self) {
        if self.limits.finish_unread {
            return pending().await;
        }
        let mut readers = None;
        loop {
            let mut changed = pin!(self.changed.0.notified());
            changed.as_mut().enable();
            let left = {
                let state = lock(&self.state);
                (state.is_read && state.readers.is_empty()).then_some(state.joined)
            };
            match left {
                None => changed.await,
                left if mem::replace(&mut readers, left) == left => return,
                _ => sleep(UNREAD).await,
            }
        }
    }
}

/// Dropped, it leaves the rest of a body to its readers.
struct Leaving<'a>(&'a SharedBody);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.0.change(|state| {
            if state.end.is_none() {
                state.left = Some(Left { patience: PATIENCE, full_since: None });
                state.free();
            }
        });
    }
}

impl State {
    /// Returns the number of a new reader, which reads from the start.
    fn join(&mut self) -> Result<u64, Missed> {
        match (&self.end, &self.left) {
            (Some(Err(_)), _) => return Err(Missed::Broken),
            (_, Some(_)) => return Err(Missed::Start),
            _ => {}
        }
        self.joined += 1;
        self.readers.insert(self.joined, 0);
        Ok(self.joined)
    }

    /// Returns the place of the first byte that is kept.
    fn start(&self) -> u64 {
        self.pieces.front().map_or(self.received, |(start, _)| *start)
    }

    /// Returns the end of the first piece that is kept.
    fn first_end(&self) -> u64 {
        self.pieces.front().map_or(self.received, |(start, piece)| start + piece.len() as u64)
    }

    /// Returns how many bytes are kept.
    fn held(&self) -> u64 {
        self.received - self.start()
    }

    fn push(&mut self, data: Bytes) {
        let start = self.received;
        self.received += data.len() as u64;
        match self.pieces.back_mut() {
            Some((_, last)) if last.len() < JOINED && data.len() < WORTH_KEEPING => {
                let last_piece = mem::take(last).try_into_mut();
                let mut joined = last_piece.unwrap_or_else(|shared| BytesMut::from(&*shared));
                joined.extend_from_slice(&data);
                *last = joined.freeze();
            }
            _ if data.is_empty() => {}
            _ => self.pieces.push_back((start, data)),
        }
    }

    /// Returns the bytes from a place on, as far as they lie together.
    fn at(&self, place: u64) -> Option<Bytes> {
        let after = self.pieces.partition_point(|(start, _)| *start <= place);
        let (start, piece) = self.pieces.get(after.checked_sub(1)?)?;
        let rest = piece.get(usize::try_from(place - start).ok()?..)?;
        (!rest.is_empty()).then(|| piece.slice_ref(rest))
    }

    /// Returns what there is for a reader that has read all that was received.
    fn at_the_front(&mut self) -> Next {
        if let Some(end) = &self.end {
            return Next::End(end.clone());
        }
        let is_full = self.held() > self.most;
        let Some(left) = &mut self.left else { return Next::Wait(Duration::MAX) };
        if is_full {
            let waited = left.full_since.get_or_insert_with(Instant::now).elapsed();
            let patience = left.patience.saturating_sub(waited);
            if !patience.is_zero() {
                return Next::Wait(patience);
            }
            *left = Left { patience: Duration::ZERO, full_since: None };
            while self.held() > self.most {
                self.pieces.pop_front();
            }
        }
        Next::Poll
    }

    /// Moves a reader on. Returns whether others have waited for that.
    fn go_on(&mut self, number: u64, from: u64, to: u64) -> bool {
        // A reader in the midst of others frees nothing.
        let is_first = from < self.first_end();
        self.readers.insert(number, to);
        is_first && self.free()
    }

    /// Frees the bytes that all readers have read. Returns whether some have waited for that.
    fn free(&mut self) -> bool {
        if self.left.is_none() {
            return false;
        }
        let slowest = self.readers.values().min().copied().unwrap_or(u64::MAX);
        while !self.pieces.is_empty() && self.first_end() <= slowest {
            self.pieces.pop_front();
        }
        let is_full = self.held() > self.most;
        let Some(left) = self.left.as_mut().filter(|_| !is_full) else { return false };
        let since = left.full_since.take();
        let waited = since.map(|since| since.elapsed()).unwrap_or_default();
        left.patience = left.patience.saturating_sub(waited);
        since.is_some()
    }
}

/// A wait for the next data, or the end of the body.
type NextData = Pin<Box<dyn Future<Output = Result<Bytes, BodyEnd>> + Send + Sync>>;

/// One reader of a shared body.
pub(crate) struct Reader {
    body: Arc<SharedBody>,
    number: u64,
    place: u64,
    /// The end of the part that it reads.
    until: Option<u64>,
    /// Whether it gets the trailers, because the body is the answer to its request.
    takes_trailers: bool,
    /// Set while it waits.
    next: Option<NextData>,
    is_done: bool,
}

impl Reader {
    /// Returns the reader of a part, at the start of the body.
    pub(super) fn part(mut self, range: Range<usize>) -> Self {
        self.place = range.start as u64;
        self.until = Some(range.end as u64);
        self.body.change(|state| state.go_on(self.number, 0, self.place));
        self
    }

    pub(super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if self.is_done() {
            return Poll::Ready(None);
        }
        let (body, number, place) = (&self.body, self.number, self.place);
        let next = self.next.get_or_insert_with(|| Box::pin(Arc::clone(body).next(number, place)));
        let next = ready!(next.as_mut().poll(cx));
        self.next = None;
        Poll::Ready(match next {
            Ok(data) => Some(Ok(Frame::data(self.read(data)))),
            Err(end) => {
                self.is_done = true;
                let trailers = |trailers: Option<_>| trailers.filter(|_| self.takes_trailers);
                end.map(trailers).transpose().map(|end| end.map(Frame::trailers))
            }
        })
    }

    /// Goes on over this data, and returns what belongs to the part.
    fn read(&mut self, mut data: Bytes) -> Bytes {
        if let Some(until) = self.until {
            data.truncate(usize::try_from(until - self.place).unwrap_or(usize::MAX));
        }
        self.place += data.len() as u64;
        data
    }

    fn is_done(&self) -> bool {
        self.is_done || self.until == Some(self.place)
    }

    pub(super) fn is_end_stream(&self) -> bool {
        let has_more = |(left, trailers)| left > 0 || (trailers && self.takes_trailers);
        self.is_done() || self.body.rest(self.place).is_some_and(|rest| !has_more(rest))
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        let whole = || self.body.rest(self.place).map(|(left, _)| left + self.place);
        let end = self.until.or_else(whole).or(self.body.announced);
        let left = end.map(|end| end.saturating_sub(self.place));
        left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.next = None;
        if self.body.leave(self.number) {
            let unread = lock(&self.body.source).take();
            drop(unread);
        }
    }
}

/// Copies the data of a frame into one `Bytes`. `Bytes` itself is not copied.
pub(super) fn in_bytes<D: Buf>(frame: Frame<D>) -> Frame<Bytes> {
    frame.map_data(|mut data| data.copy_to_bytes(data.remaining()))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::stream;
    use http_body_util::{Full, StreamBody};
    use proptest::{collection::vec, prelude::*};

    use super::*;

    const CHUNK: usize = 1 << 20;

    /// A body that tells a length of eight bytes, whatever it has.
    struct Hinted(Full<Bytes>);

    impl Body for Hinted {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Pin::new(&mut self.0).poll_frame(cx)
        }

        fn size_hint(&self) -> SizeHint {
            SizeHint::with_exact(8)
        }
    }

    fn limits(size: u64) -> BodyLimits {
        BodyLimits { size, idle: Duration::MAX, total: Duration::MAX, finish_unread: true }
    }

    /// Returns a shared body of ten chunks.
    fn ten_chunks(most: u64) -> Arc<SharedBody> {
        let chunk = |_| Ok::<_, Infallible>(Frame::data(Bytes::from(vec![7; CHUNK])));
        let body = StreamBody::new(stream::iter((0..10).map(chunk)));
        SharedBody::new(body, None, limits(most))
    }

    /// Returns a shared body to which the test adds the data.
    fn empty() -> Arc<SharedBody> {
        let never = StreamBody::new(stream::pending::<Result<Frame<Bytes>, Infallible>>());
        SharedBody::new(never, None, limits(0))
    }

    fn reader(body: &Arc<SharedBody>) -> Reader {
        body.reader(false).unwrap_or_else(|_| unreachable!())
    }

    fn read(reader: &mut Reader) -> Poll<Option<usize>> {
        let frame = reader.poll_frame(&mut Context::from_waker(Waker::noop()));
        frame.map(|frame| frame.map(|frame| frame.unwrap().into_data().unwrap().len()))
    }

    async fn more(body: &SharedBody) {
        poll_fn(|cx| body.poll_source(cx)).await;
    }

    fn held(body: &SharedBody) -> u64 {
        lock(&body.state).held()
    }

    #[tokio::test]
    async fn a_hundred_readers_hold_a_body_once() {
        let body = ten_chunks(0);
        let mut readers: Vec<_> = (0..100).map(|_| reader(&body)).collect();
        for chunk in 1..=10 {
            more(&body).await;
            assert_eq!(held(&body), (chunk * CHUNK) as u64);
            for reader in &mut readers {
                assert_eq!(read(reader), Poll::Ready(Some(CHUNK)));
                assert_eq!(read(reader), Poll::Pending);
            }
        }
        more(&body).await;
        let whole = body.whole();
        assert_eq!((whole.len(), held(&body)), (10 * CHUNK, 10 * CHUNK as u64));
        // A late reader shares the bytes that are stored.
        let mut late = reader(&body);
        let frame = late.poll_frame(&mut Context::from_waker(Waker::noop()));
        let Poll::Ready(Some(Ok(frame))) = frame else { unreachable!() };
        assert_eq!(frame.into_data().unwrap().as_ptr(), whole.as_ptr());
        assert!(readers.iter_mut().all(|reader| read(reader) == Poll::Ready(None)));
    }

    /// A part of such a body ended in its midst without an error. Its head had the whole length.
    #[tokio::test]
    async fn a_body_that_contradicts_its_hint_is_broken() {
        for (length, until) in [(7, 1), (9, 0)] {
            let body = Hinted(Full::from(vec![7; length]));
            let body = SharedBody::new(body, None, limits(100));
            let mut part = reader(&body).part(0..8);
            while body.progress().1.is_none() {
                more(&body).await;
            }
            assert!(matches!(body.progress().1, Some(Err(_))), "{length} of 8 bytes");
            let cx = &mut Context::from_waker(Waker::noop());
            for _ in 0..until {
                assert!(matches!(part.poll_frame(cx), Poll::Ready(Some(Ok(_)))));
            }
            assert!(matches!(part.poll_frame(cx), Poll::Ready(Some(Err(_)))), "{length}");
        }
    }

    #[tokio::test]
    async fn a_body_without_a_collector_is_freed_behind_its_slowest_reader() {
        let body = ten_chunks(4 * CHUNK as u64);
        let (mut fast, mut slow) = (reader(&body), reader(&body));
        drop(Leaving(&body));
        assert!(body.reader(false).is_err());
        for chunks in [1, 2, 3] {
            assert_eq!(read(&mut fast), Poll::Ready(Some(CHUNK)));
            assert_eq!(held(&body), chunks * CHUNK as u64);
        }
        assert_eq!(read(&mut slow), Poll::Ready(Some(CHUNK)));
        assert_eq!(held(&body), 2 * CHUNK as u64);
        drop(slow);
        assert_eq!(held(&body), 0);
        for _ in 3..10 {
            assert_eq!(read(&mut fast), Poll::Ready(Some(CHUNK)));
            assert_eq!(held(&body), 0);
        }
        assert_eq!(read(&mut fast), Poll::Ready(None));
    }

    fn rest(body: &SharedBody, mut place: u64) -> Vec<u8> {
        let mut read = Vec::new();
        while let Some(data) = lock(&body.state).at(place) {
            place += data.len() as u64;
            read.extend_from_slice(&data);
        }
        assert_eq!(place, lock(&body.state).received);
        read
    }

    proptest! {
        #[test]
        fn each_reader_reads_the_same_bytes(
            sizes in vec(prop_oneof![0..40_usize, 3000..6000_usize], 0..60),
            from in any::<prop::sample::Index>(),
        ) {
            let all: Vec<u8> = (0..sizes.iter().sum::<usize>()).map(|at| (at * 31) as u8).collect();
            let (body, mut given) = (empty(), 0);
            for size in sizes {
                body.push(Bytes::copy_from_slice(&all[given..given + size]), false);
                given += size;
                prop_assert_eq!(body.progress().0, given as u64);
            }
            let from = from.index(all.len() + 1);
            prop_assert_eq!(rest(&body, from as u64), &all[from..]);
            prop_assert_eq!(body.whole(), &all);
            prop_assert_eq!(rest(&body, from as u64), &all[from..]);
        }
    }

    #[test]
    fn many_small_pieces_are_kept_as_few() {
        let body = empty();
        (0..1 << 20).for_each(|_| drop(body.push(Bytes::from_static(b"x"), false)));
        let state = lock(&body.state);
        assert!(state.pieces.len() <= 1 + (1 << 20) / JOINED, "{}", state.pieces.len());
        assert_eq!(state.held(), 1 << 20);
    }
}
