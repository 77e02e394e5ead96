//! A body that several callers read while it arrives.
//!
//! The collector polls the body of the inner service, within limits, so that it can be stored. When
//! the collector leaves it, the readers poll it: the one that has read the most, for all of them.

use std::{
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{Arc, Mutex, TryLockError},
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use bytes::{Buf, Bytes};
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, combinators::UnsyncBoxBody};
use tokio::time::{Sleep, sleep};

use super::{
    board::{Board, Missed, Next},
    error::{BodyError, BodyErrorKind},
};
use crate::{error::BoxError, sync::lock};

pub(crate) struct SharedBody {
    /// The body of the inner service, until its end.
    source: Mutex<Option<UnsyncBoxBody<Bytes, BodyError>>>,
    /// Apart from the source, which keeps it as a waker.
    board: Arc<Board>,
    /// The length that the headers announce, or else the body. The heads of its readers have it.
    announced: Option<u64>,
}

/// One reader of a shared body.
pub(crate) struct Reader {
    body: Arc<SharedBody>,
    seat: usize,
    place: u64,
    /// The end of the part that it reads.
    until: Option<u64>,
    /// Whether it gets the trailers, because the body is the answer to its request.
    takes_trailers: bool,
    state: ReaderState,
}

enum ReaderState {
    Reading,
    /// It waits for slower readers.
    Patient(Pin<Box<Sleep>>),
    Done,
}

/// The right to poll the body alone. Dropped, it leaves the rest to the readers.
pub(super) struct Collecting<'a>(&'a SharedBody);

impl SharedBody {
    /// Shares a body. At most `most` bytes of it are kept for slow readers, once it is no longer
    /// collected.
    pub(crate) fn new<B>(body: B, announced: Option<u64>, most: u64) -> Arc<Self>
    where
        B: Body + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let board = Board::new(most);
        let announced = announced.or_else(|| body.size_hint().exact());
        let is_empty = body.is_end_stream();
        let source = body.map_err(BodyError::service).map_frame(in_bytes).boxed_unsync();
        let shared = Self { source: Mutex::new(Some(source)), board, announced };
        if is_empty {
            shared.end(Ok(None));
        }
        Arc::new(shared)
    }

    /// Returns a reader from the start on.
    pub(crate) fn reader(self: &Arc<Self>, takes_trailers: bool) -> Result<Reader, Missed> {
        let (body, seat) = (Arc::clone(self), self.board.join()?);
        let state = ReaderState::Reading;
        Ok(Reader { body, seat, place: 0, until: None, takes_trailers, state })
    }

    /// Begins to collect the body. To be called once.
    pub(super) fn collecting(&self) -> Collecting<'_> {
        Collecting(self)
    }

    pub(super) fn board(&self) -> &Board {
        &self.board
    }

    /// Polls the body of the inner service. Ready if the board may have something new.
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
            Some(Ok(Ok(data))) => self.data(data).err().or((is_end).then_some(Ok(None))),
            Some(Ok(Err(frame))) => Some(Ok(frame.into_trailers().ok())),
            Some(Err(error)) => Some(Err(error)),
            None => Some(Ok(None)),
        };
        if let Some(end) = end {
            let ended = source.take();
            drop(source);
            drop(ended);
            self.end(end);
        }
        Poll::Ready(())
    }

    fn data(&self, data: Bytes) -> Result<(), Result<Option<HeaderMap>, BodyError>> {
        let received = self.board.received().saturating_add(data.len() as u64);
        if self.announced.is_some_and(|announced| received > announced) {
            return Err(Err(BodyError::new(BodyErrorKind::Length)));
        }
        self.board.push(data);
        Ok(())
    }

    fn end(&self, end: Result<Option<HeaderMap>, BodyError>) {
        let is_short = |announced| announced != self.board.received();
        let end = match end {
            Ok(_) if self.announced.is_some_and(is_short) => {
                Err(BodyError::new(BodyErrorKind::Length))
            }
            end => end,
        };
        self.board.end(end);
    }
}

impl Collecting<'_> {
    /// Completes when more of the body has arrived, or its end.
    pub(super) async fn more(&mut self) {
        std::future::poll_fn(|cx| self.0.poll_source(cx)).await;
    }
}

impl Drop for Collecting<'_> {
    fn drop(&mut self) {
        self.0.board.leave_to_readers();
    }
}

impl Reader {
    /// Returns the reader of a part, at the start of the body.
    pub(super) fn part(mut self, range: Range<usize>) -> Self {
        self.place = range.start as u64;
        self.until = Some(range.end as u64);
        self.body.board.go_to(self.seat, self.place);
        self
    }

    pub(super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        loop {
            if self.is_done() {
                return Poll::Ready(None);
            }
            match self.body.board.next(self.seat, cx) {
                Next::Data(data) => return Poll::Ready(Some(Ok(Frame::data(self.read(data))))),
                Next::Poll => {
                    let waker = Waker::from(Arc::clone(&self.body.board));
                    ready!(self.body.poll_source(&mut Context::from_waker(&waker)));
                }
                Next::Wait => return Poll::Pending,
                Next::WaitFor(time) => ready!(self.poll_patience(time, cx)),
                Next::End(trailers) => {
                    self.state = ReaderState::Done;
                    let trailers = trailers.filter(|_| self.takes_trailers);
                    return Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))));
                }
                Next::Broken(error) => {
                    self.state = ReaderState::Done;
                    return Poll::Ready(Some(Err(error)));
                }
            }
        }
    }

    /// Waits for slower readers, for this long at most.
    fn poll_patience(&mut self, time: Duration, cx: &mut Context<'_>) -> Poll<()> {
        if !matches!(self.state, ReaderState::Patient(_)) {
            self.state = ReaderState::Patient(Box::pin(sleep(time)));
        }
        if let ReaderState::Patient(timer) = &mut self.state {
            ready!(timer.as_mut().poll(cx));
        }
        self.state = ReaderState::Reading;
        Poll::Ready(())
    }

    /// Goes on over this data, and returns what belongs to the part.
    fn read(&mut self, mut data: Bytes) -> Bytes {
        if let Some(until) = self.until {
            data.truncate(usize::try_from(until - self.place).unwrap_or(usize::MAX));
        }
        self.place += data.len() as u64;
        self.state = ReaderState::Reading;
        data
    }

    fn is_done(&self) -> bool {
        matches!(self.state, ReaderState::Done) || self.until == Some(self.place)
    }

    pub(super) fn is_end_stream(&self) -> bool {
        let has_more = |(left, trailers)| left > 0 || (trailers && self.takes_trailers);
        self.is_done() || self.body.board.left(self.place).is_some_and(|left| !has_more(left))
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        let whole = || self.body.board.left(self.place).map(|(left, _)| left + self.place);
        let end = self.until.or_else(whole).or(self.body.announced);
        let left = end.map(|end| end.saturating_sub(self.place));
        left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if self.body.board.leave(self.seat) {
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

    /// Returns a shared body of ten chunks.
    fn ten_chunks(most: u64) -> Arc<SharedBody> {
        let chunk = |_| Ok::<_, Infallible>(Frame::data(Bytes::from(vec![7; CHUNK])));
        let body = StreamBody::new(stream::iter((0..10).map(chunk)));
        SharedBody::new(body, None, most)
    }

    fn reader(body: &Arc<SharedBody>) -> Reader {
        body.reader(false).unwrap_or_else(|_| unreachable!())
    }

    fn read(reader: &mut Reader) -> Poll<Option<usize>> {
        let frame = reader.poll_frame(&mut Context::from_waker(Waker::noop()));
        frame.map(|frame| frame.map(|frame| frame.unwrap().into_data().unwrap().len()))
    }

    #[tokio::test]
    async fn a_hundred_readers_hold_a_body_once() {
        let body = ten_chunks(0);
        let mut readers: Vec<_> = (0..100).map(|_| reader(&body)).collect();
        let mut collecting = body.collecting();
        for chunk in 1..=10 {
            collecting.more().await;
            assert_eq!(body.board.held(), (chunk * CHUNK) as u64);
            for reader in &mut readers {
                assert_eq!(read(reader), Poll::Ready(Some(CHUNK)));
                assert_eq!(read(reader), Poll::Pending);
            }
        }
        collecting.more().await;
        let whole = body.board.whole().unwrap();
        assert_eq!((whole.len(), body.board.held()), (10 * CHUNK, 10 * CHUNK as u64));
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
            let body = SharedBody::new(body, None, 100);
            let mut part = reader(&body).part(0..8);
            let mut collecting = body.collecting();
            while body.board.ended().is_none() {
                collecting.more().await;
            }
            assert!(matches!(body.board.ended(), Some(Err(_))), "{length} of 8 bytes");
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
        drop(body.collecting());
        assert!(body.reader(false).is_err());
        for held in [1, 2, 3] {
            assert_eq!(read(&mut fast), Poll::Ready(Some(CHUNK)));
            assert_eq!(body.board.held(), held * CHUNK as u64);
        }
        assert_eq!(read(&mut slow), Poll::Ready(Some(CHUNK)));
        assert_eq!(body.board.held(), 2 * CHUNK as u64);
        drop(slow);
        assert_eq!(body.board.held(), 0);
        for _ in 3..10 {
            assert_eq!(read(&mut fast), Poll::Ready(Some(CHUNK)));
            assert_eq!(body.board.held(), 0);
        }
        assert_eq!(read(&mut fast), Poll::Ready(None));
    }
}
