//! The body that a caller receives, and its error. Several callers may read a body while it
//! arrives, each at its own pace.
//!
//! At first the load collects the body, within limits, so that it can be stored. All bytes are kept
//! meanwhile, and readers may join. Once the load stops, a task polls the body as fast as the
//! fastest reader wants, and bytes that all have read are freed.
//!
//! What is kept for slow readers is the [`Backlog`]. While that of a body is full, the other
//! readers wait for the slowest one. They do so for no longer than they have read. So a slow reader
//! may hold the others to half of their pace. After that the slowest reader gets an error. While
//! the backlog of the layer is full, the reader gets an error that has taken nothing for longest.

use std::{
    collections::{BTreeMap, VecDeque},
    error::Error as StdError,
    fmt,
    future::pending,
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::{Pin, pin},
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::{Buf, Bytes, BytesMut};
use futures_util::FutureExt;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, combinators::UnsyncBoxBody};
use pin_project::pin_project;
use tokio::{
    runtime::Handle,
    sync::Notify,
    task::{coop::consume_budget, yield_now},
    time::{Instant, sleep, timeout, timeout_at},
};

use crate::{
    error::{BoxError, Chain},
    sync::lock,
    time::after,
};

/// The body of a response. `B` is the body of the inner service.
///
/// The body of a response to a request that passed is a `B`, in its place. Any other one is stored
/// bytes, or the body of the inner service in a box. The callers of a process may read that
/// together, each at its own pace. If it breaks off, all of them get its [error](BodyError).
///
/// It is `Send` if `B` is, and `Unpin` if `B` is.
#[pin_project]
pub struct ResponseBody<B> {
    #[pin]
    source: BodySource<B>,
}

#[pin_project(project = SourceProjection)]
enum BodySource<B> {
    /// The body of the inner service, for the caller whose request passed.
    Passed(#[pin] B),
    /// A body that does not depend on `B`, because services of different bodies share one cache.
    Layer(LayerBody),
}

impl<B> ResponseBody<B> {
    pub(super) fn from_passed(body: B) -> Self {
        Self { source: BodySource::Passed(body) }
    }

    pub(super) fn from_layer(body: LayerBody) -> Self {
        Self { source: BodySource::Layer(body) }
    }
}

/// Returns an empty body, which middlewares such as CORS answer with.
impl<B> Default for ResponseBody<B> {
    fn default() -> Self {
        Self::from_layer(LayerBody::default())
    }
}

impl<B> Body for ResponseBody<B>
where
    B: Body<Error: Into<BoxError>>,
{
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.project().source.project() {
            SourceProjection::Passed(body) => body.poll_frame(cx).map(|frame| match frame? {
                Ok(frame) => Some(Ok(frame.map_data(into_bytes))),
                Err(error) => Some(Err(BodyError::service(error))),
            }),
            SourceProjection::Layer(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            BodySource::Passed(body) => body.is_end_stream(),
            BodySource::Layer(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            BodySource::Passed(body) => body.size_hint(),
            BodySource::Layer(body) => body.size_hint(),
        }
    }
}

impl<B> fmt::Debug for ResponseBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseBody").finish_non_exhaustive()
    }
}

/// Returns the bytes of a piece of a body. `Bytes` itself is not copied.
fn into_bytes(mut data: impl Buf) -> Bytes {
    data.copy_to_bytes(data.remaining())
}

/// The body of a response that the layer has made, has stored, or has called the service for.
pub(super) enum LayerBody {
    /// All bytes are here.
    Whole(Bytes),
    /// The inner body, for one caller.
    Single(ServiceBody),
    /// The inner body, which others may read too.
    Shared(Reader),
}

impl LayerBody {
    /// Returns the bytes of a whole body.
    pub(super) fn bytes(&self) -> Option<&Bytes> {
        match self {
            Self::Whole(bytes) => Some(bytes),
            Self::Single(_) | Self::Shared(_) => None,
        }
    }
}

impl Default for LayerBody {
    fn default() -> Self {
        Self::Whole(Bytes::new())
    }
}

impl Body for LayerBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match &mut *self {
            Self::Whole(bytes) => {
                let bytes = Some(mem::take(bytes)).filter(|bytes| !bytes.is_empty());
                Poll::Ready(bytes.map(|bytes| Ok(Frame::data(bytes))))
            }
            Self::Single(body) => Pin::new(body).poll_frame(cx),
            Self::Shared(reader) => reader.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_empty(),
            Self::Single(body) => body.is_end_stream(),
            Self::Shared(reader) => reader.is_done,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Single(body) => body.size_hint(),
            Self::Shared(Reader { body, place, .. }) => {
                let state = lock(&body.state);
                let arrived = matches!(state.end, Some(Ok(_))).then_some(state.received);
                let left = arrived.or(body.announced).map(|length| length.saturating_sub(*place));
                left.map_or_else(SizeHint::default, SizeHint::with_exact)
            }
        }
    }
}

/// The body of the inner service, in a box.
pub(super) struct ServiceBody {
    frames: UnsyncBoxBody<Bytes, BodyError>,
    /// The length that it announces, until it is read.
    hint: SizeHint,
}

impl Body for ServiceBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.hint = SizeHint::default();
        Pin::new(&mut self.frames).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.frames.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.hint
    }
}

impl ServiceBody {
    pub(super) fn new<B>(body: B) -> Self
    where
        B: Body<Error: Into<BoxError>> + Send + 'static,
    {
        let hint = body.size_hint();
        let body = body.map_err(BodyError::service);
        let body = body.map_frame(|frame| frame.map_data(into_bytes));
        Self { frames: body.boxed_unsync(), hint }
    }

    /// Returns the bytes of a body that is there at once, as most are, or else what collects it
    /// while callers read it. The headers may announce a length.
    pub(super) fn begin(
        self,
        announced: Option<u64>,
        limits: BodyLimits,
    ) -> (Bytes, Option<Collector>) {
        let announced = announced.or_else(|| self.hint.exact());
        let mut source = BodyRest { body: Some(self), length: announced };
        let first = source.next().now_or_never();
        if let Some((bytes, Some(Ok(None)))) = &first
            && bytes.len() as u64 <= limits.size
        {
            return (bytes.clone(), None);
        }
        let body = Arc::new(SharedBody {
            limits,
            announced,
            begun: Instant::now(),
            state: Mutex::default(),
            moved: Notify::new(),
        });
        if let Some((data, end)) = first {
            body.receive(data, end);
        }
        (Bytes::new(), Some(Collector { body, source }))
    }
}

/// Why a response body broke off. All readers of a shared body get the same error.
#[derive(Clone)]
#[non_exhaustive]
pub enum BodyError {
    /// The body of the inner service ended with this error, or with the runtime.
    Service(Arc<dyn StdError + Send + Sync>),
    /// The length of the body contradicts its `Content-Length`.
    Length,
    /// The body of the inner service panicked.
    Panicked,
    /// This reader of a shared body was too slow for it. The others read on.
    Slow,
}

impl fmt::Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Service(_) => "the response body broke off",
            Self::Length => "the length of the response body contradicts its `Content-Length`",
            Self::Panicked => "the response body panicked",
            Self::Slow => "the response body was read too slowly for the buffer that it shares",
        })
    }
}

// Not derived: the source would be the `Arc`, and no caller could downcast it.
impl StdError for BodyError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Service(error) => Some(&**error),
            Self::Length | Self::Panicked | Self::Slow => None,
        }
    }
}

impl BodyError {
    fn service(error: impl Into<BoxError>) -> Self {
        match error.into().downcast::<Self>() {
            // The body has passed through a body of this layer.
            Ok(error) => *error,
            Err(error) => Self::Service(Arc::from(error)),
        }
    }
}

impl fmt::Debug for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Chain(self))
    }
}

/// For how long the readers of a body wait for slower ones at least, in all. A fast one may have
/// read for a few milliseconds only, and a mere pause of a task must end no reader.
const PATIENCE: Duration = Duration::from_secs(1);
/// A piece from this size on is kept as it came. Smaller ones are joined, because a list of small
/// `Bytes` takes many times their size.
const WORTH_KEEPING: usize = 4 << 10;
/// The size up to which small pieces are joined. Each may be copied as often as a reader has it.
const JOINED: usize = 8 << 10;
/// A body that makes no progress for longer is a stream, or its sender has gone away.
const IDLE: Duration = Duration::from_secs(10);
/// How much of a body that is always ready is collected before its readers have a turn.
const TURN: u64 = 64 << 10;
/// How long a body is without a reader before it counts as unread. The callers that wait for it
/// have their turns meanwhile.
const UNREAD: Duration = Duration::from_millis(50);

/// When a body is no longer collected, and what is kept for its slow readers then.
#[derive(Clone, Debug)]
pub(super) struct BodyLimits {
    /// The largest body, in bytes.
    pub(super) size: u64,
    pub(super) total: Duration,
    /// Whether a body that has no reader is collected to its end.
    pub(super) finish_unread: bool,
    pub(super) backlog: Arc<Backlog>,
}

/// The bytes that a layer keeps for slow readers, of bodies that are left to their readers.
#[derive(Debug)]
pub(super) struct Backlog {
    /// The most bytes that one body keeps.
    pub(super) of_body: u64,
    /// The most bytes that all bodies keep.
    pub(super) of_layer: u64,
    kept: AtomicU64,
    bodies: Mutex<Bodies>,
}

/// The bodies that are left to their readers, by the numbers in which they were left.
#[derive(Debug, Default)]
struct Bodies {
    last: u64,
    by_number: BTreeMap<u64, Weak<SharedBody>>,
}

impl Backlog {
    pub(super) fn new(of_body: u64, of_layer: u64) -> Self {
        Self { of_body, of_layer, kept: AtomicU64::new(0), bodies: Mutex::default() }
    }

    /// Adds a body that is left to its readers. Returns its number.
    fn add(&self, body: &Arc<SharedBody>) -> u64 {
        let mut bodies = lock(&self.bodies);
        bodies.last += 1;
        let number = bodies.last;
        bodies.by_number.insert(number, Arc::downgrade(body));
        number
    }

    fn remove(&self, number: u64) {
        lock(&self.bodies).by_number.remove(&number);
    }

    /// Ends readers until the layer keeps no more bytes than it may.
    fn make_room(&self) {
        while self.kept.load(Ordering::Relaxed) > self.of_layer && self.end_slowest() {}
    }

    /// Ends the reader of all bodies that has taken nothing for longest, although another reader of
    /// its body has more. Returns whether there is one.
    fn end_slowest(&self) -> bool {
        // Without the lock: the last reference to a body may end here, which takes it.
        let bodies: Vec<_> = {
            let bodies = lock(&self.bodies);
            bodies.by_number.values().filter_map(Weak::upgrade).collect()
        };
        let mut slowest: Option<(Instant, u64, &Arc<SharedBody>)> = None;
        for body in &bodies {
            let Some((since, number)) = lock(&body.state).longest_behind() else { continue };
            if slowest.is_none_or(|(longest, ..)| since < longest) {
                slowest = Some((since, number, body));
            }
        }
        let Some((_, number, body)) = slowest else { return false };
        body.leave(number);
        true
    }
}

/// Why a body is not collected to its end.
pub(super) enum NotCollected {
    /// The body is too large or too slow, or it has trailers. Its readers go on.
    Unfit,
    /// The body has no reader, and is not to be finished.
    Unread,
    /// The body broke off, for all its readers.
    Broken(BodyError),
}

/// The trailers of a body that is whole, or why it broke off.
type BodyEnd = Result<Option<HeaderMap>, BodyError>;

/// The state that the readers of a body share.
pub(super) struct SharedBody {
    limits: BodyLimits,
    /// The length that the headers announce, or else the body. The heads of its readers have it.
    announced: Option<u64>,
    begun: Instant,
    state: Mutex<State>,
    /// Tells the one that polls the body what its readers do.
    moved: Notify,
}

#[derive(Default)]
struct State {
    /// The bytes that are kept, each piece with its place in the body.
    pieces: VecDeque<(u64, Bytes)>,
    received: u64,
    /// The readers, by the numbers in which they have joined.
    readers: BTreeMap<u64, Reading>,
    joined: u64,
    is_read: bool,
    /// The number in the backlog of a body that is no longer collected. What all have read of it
    /// is freed.
    left_as: Option<u64>,
    /// How many bytes of the backlog are of this body.
    kept: u64,
    end: Option<BodyEnd>,
}

/// What a reader has read. A reader that is not among those of the state was too slow.
struct Reading {
    place: u64,
    /// Since when it has bytes to take: since it took some, or since they arrived.
    since: Instant,
    /// Set while it waits for more than was received.
    waker: Option<Waker>,
}

/// Polls a body for its readers. Dropped before the end, it leaves that to a task.
pub(super) struct Collector {
    pub(super) body: Arc<SharedBody>,
    source: BodyRest,
}

/// The rest of the body of the inner service, whose code may panic.
#[derive(Default)]
struct BodyRest {
    body: Option<ServiceBody>,
    /// The length of the rest, if that is known.
    length: Option<u64>,
}

impl BodyRest {
    /// Takes the next data, and the end of the body if that is known with it.
    async fn next(&mut self) -> (Bytes, Option<BodyEnd>) {
        let Some(ServiceBody { frames, .. }) = &mut self.body else { return (Bytes::new(), None) };
        let next = async { (frames.frame().await, frames.is_end_stream()) };
        let (frame, is_end) = AssertUnwindSafe(next)
            .catch_unwind()
            .await
            .unwrap_or_else(|_panic| (Some(Err(BodyError::Panicked)), true));
        let (mut data, mut end) = match frame.map(|frame| frame.map(Frame::into_data)) {
            Some(Ok(Ok(data))) => (data, is_end.then_some(Ok(None))),
            Some(Ok(Err(frame))) => (Bytes::new(), Some(Ok(frame.into_trailers().ok()))),
            Some(Err(error)) => (Bytes::new(), Some(Err(error))),
            None => (Bytes::new(), Some(Ok(None))),
        };
        let size = data.len() as u64;
        if self.length.is_some_and(|left| size > left) {
            (data, end) = (Bytes::new(), Some(Err(BodyError::Length)));
        }
        self.length = self.length.map(|left| left.saturating_sub(size));
        if self.length.is_some_and(|left| left > 0) {
            end = end.map(|end| end.and(Err(BodyError::Length)));
        }
        if end.is_some() {
            let body = self.body.take();
            let _ = catch_unwind(AssertUnwindSafe(|| drop(body)));
        }
        (data, end)
    }
}

impl SharedBody {
    /// Returns a reader from the start on, for the caller whose request the body answers or for
    /// another one. Fails for the latter with the error by which the body broke off, or with none
    /// if the first bytes are gone.
    pub(super) fn reader(self: &Arc<Self>, is_own: bool) -> Result<LayerBody, Option<BodyError>> {
        let mut state = lock(&self.state);
        match &state.end {
            Some(Err(error)) if !is_own => return Err(Some(error.clone())),
            _ if state.left_as.is_some() => return Err(None),
            Some(Ok(None)) => return Ok(LayerBody::Whole(state.whole())),
            _ => {}
        }
        state.joined += 1;
        let number = state.joined;
        state.readers.insert(number, Reading { place: 0, since: Instant::now(), waker: None });
        drop(state);
        let body = Arc::clone(self);
        let reader = Reader { body, number, place: 0, takes_trailers: is_own, is_done: false };
        Ok(LayerBody::Shared(reader))
    }

    /// Adds data of the body and its end, and wakes the readers that wait.
    fn receive(&self, data: Bytes, end: Option<BodyEnd>) {
        let mut state = lock(&self.state);
        state.push(data);
        state.end = state.end.take().or(end);
        let mut waiting = Vec::new();
        for reader in state.readers.values_mut() {
            if let Some(waker) = reader.waker.take() {
                reader.since = Instant::now();
                waiting.push(waker);
            }
        }
        drop(state);
        for waker in waiting {
            waker.wake();
        }
    }

    /// Frees what was kept for a reader, which is gone or too slow.
    fn leave(&self, number: u64) {
        let mut state = lock(&self.state);
        state.readers.remove(&number);
        state.free(&self.limits.backlog);
        drop(state);
        self.moved.notify_one();
    }

    /// Completes when the body has no reader any more. A body that none has begun to read is loaded
    /// for later callers. The body of a refresh has no reader.
    async fn unread(&self) {
        let mut readers = None;
        loop {
            let left = {
                let state = lock(&self.state);
                (state.is_read && state.readers.is_empty()).then_some(state.joined)
            };
            match left {
                None => self.moved.notified().await,
                left if mem::replace(&mut readers, left) == left => return,
                _ => sleep(UNREAD).await,
            }
        }
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

impl Collector {
    /// Collects the body within its limits, while others read it.
    pub(super) async fn collect(mut self) -> Result<Bytes, NotCollected> {
        let body = self.body.clone();
        let limits = &body.limits;
        let last = after(Instant::now(), limits.total);
        let mut unread = pin!(async {
            match limits.finish_unread {
                true => pending().await,
                false => body.unread().await,
            }
        });
        let mut next_turn = TURN;
        loop {
            let (received, end) = {
                let state = lock(&body.state);
                (state.received, state.end.clone())
            };
            match end {
                Some(Ok(Some(_trailers))) => return Err(NotCollected::Unfit),
                Some(Err(error)) => return Err(NotCollected::Broken(error)),
                _ if received > limits.size => return Err(NotCollected::Unfit),
                Some(Ok(None)) => return Ok(lock(&body.state).whole()),
                None => {}
            }
            // A body that is always ready lets its readers read it meanwhile. The first turn is
            // that of the callers which wait for its head. A small body is settled before that.
            if received >= next_turn {
                next_turn = received.saturating_add(TURN);
                yield_now().await;
            }
            consume_budget().await;
            let until = after(Instant::now(), IDLE).min(last);
            tokio::select! {
                biased;
                more = timeout_at(until, self.advance()) => more.map_err(|_| NotCollected::Unfit)?,
                () = &mut unread => return Err(NotCollected::Unread),
            }
        }
    }

    /// Polls the body as fast as the fastest of its readers wants, until none is left.
    async fn serve(mut self) {
        let body = self.body.clone();
        let backlog = &body.limits.backlog;
        // For how long readers have waited for slower ones.
        let mut waited = Duration::ZERO;
        loop {
            let (wants_more, is_full) = {
                let state = lock(&body.state);
                if state.end.is_some() || state.readers.is_empty() {
                    return;
                }
                let wants_more = state.readers.values().any(|reader| reader.waker.is_some());
                (wants_more, state.held() > backlog.of_body)
            };
            if !wants_more {
                body.moved.notified().await;
                continue;
            }
            if is_full {
                // They have waited for no longer than they have read.
                let read = body.begun.elapsed().saturating_sub(waited);
                let patience = read.max(PATIENCE).saturating_sub(waited);
                if patience.is_zero() {
                    lock(&body.state).end_furthest_behind(backlog);
                } else {
                    let since = Instant::now();
                    drop(timeout(patience, body.moved.notified()).await);
                    waited = waited.saturating_add(since.elapsed());
                }
                continue;
            }
            backlog.make_room();
            tokio::select! {
                () = self.advance() => {}
                () = body.moved.notified() => {}
            }
        }
    }

    async fn advance(&mut self) {
        let (data, end) = self.source.next().await;
        self.body.receive(data, end);
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        let mut state = lock(&self.body.state);
        if state.end.is_some() {
            return;
        }
        let backlog = &self.body.limits.backlog;
        let is_first = state.left_as.is_none();
        if is_first {
            state.left_as = Some(backlog.add(&self.body));
        }
        state.free(backlog);
        drop(state);
        match Handle::try_current() {
            Ok(runtime) if is_first => {
                let (body, source) = (self.body.clone(), mem::take(&mut self.source));
                drop(runtime.spawn(Self { body, source }.serve()));
            }
            // Its readers are gone, or the runtime is.
            _ => {
                let end = Err(BodyError::service("the runtime has ended"));
                self.body.receive(Bytes::new(), Some(end));
            }
        }
    }
}

impl State {
    fn held(&self) -> u64 {
        self.pieces.front().map_or(0, |(start, _)| self.received - start)
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

    /// Returns the next data for a reader, or the end of the body. `None` if it has to wait.
    fn next(
        &mut self,
        number: u64,
        waker: &Waker,
        backlog: &Backlog,
    ) -> Option<Result<Bytes, BodyEnd>> {
        self.is_read = true;
        let Some(place) = self.readers.get(&number).map(|reader| reader.place) else {
            return Some(Err(Err(BodyError::Slow)));
        };
        let since = Instant::now();
        let Some(data) = self.at(place) else {
            let end = self.end.clone().map(Err);
            let waker = end.is_none().then(|| waker.clone());
            self.readers.insert(number, Reading { place, since, waker });
            return end;
        };
        let place = place + data.len() as u64;
        self.readers.insert(number, Reading { place, since, waker: None });
        self.free(backlog);
        Some(Ok(data))
    }

    /// Returns the place of the slowest reader, and that of the fastest.
    fn span(&self) -> Option<(u64, u64)> {
        let places = || self.readers.values().map(|reader| reader.place);
        Some((places().min()?, places().max()?))
    }

    /// Returns the reader that has taken nothing for longest, since when, of those that are behind
    /// another one.
    fn longest_behind(&self) -> Option<(Instant, u64)> {
        let (_, fastest) = self.span()?;
        let behind = self.readers.iter().filter(|(_, reader)| reader.place < fastest);
        behind.map(|(number, reader)| (reader.since, *number)).min()
    }

    /// Ends the slowest readers, until no more bytes are kept than one body may.
    fn end_furthest_behind(&mut self, backlog: &Backlog) {
        while self.held() > backlog.of_body {
            let slowest = self.readers.iter().min_by_key(|(_, reader)| reader.place);
            let Some(number) = slowest.map(|(number, _)| *number) else { return };
            self.readers.remove(&number);
            self.free(backlog);
        }
    }

    /// Returns all bytes that are kept as one piece, which the readers share from then on.
    fn whole(&mut self) -> Bytes {
        if self.pieces.len() > 1 {
            let mut joined = BytesMut::with_capacity(self.received as usize);
            self.pieces.iter().for_each(|(_, piece)| joined.extend_from_slice(piece));
            self.pieces = VecDeque::from([(0, joined.freeze())]);
        }
        self.pieces.front().map(|(_, piece)| piece.clone()).unwrap_or_default()
    }

    /// Returns the bytes from a place on, as far as they lie together.
    fn at(&self, place: u64) -> Option<Bytes> {
        let after = self.pieces.partition_point(|(start, _)| *start <= place);
        let (start, piece) = self.pieces.get(after.checked_sub(1)?)?;
        let rest = piece.get(usize::try_from(place - start).ok()?..)?;
        (!rest.is_empty()).then(|| piece.slice_ref(rest))
    }

    /// Frees the bytes that all readers of a body have read which is left to them, and counts what
    /// is kept for the slow ones.
    fn free(&mut self, backlog: &Backlog) {
        // A body that has come to its end while it was collected is kept whole.
        if self.left_as.is_none() {
            return;
        }
        let (slowest, fastest) = self.span().unwrap_or((u64::MAX, u64::MAX));
        while self.pieces.front().is_some_and(|(start, it)| start + it.len() as u64 <= slowest) {
            self.pieces.pop_front();
        }
        let kept = fastest - slowest;
        if kept > self.kept {
            backlog.kept.fetch_add(kept - self.kept, Ordering::Relaxed);
        } else {
            backlog.kept.fetch_sub(self.kept - kept, Ordering::Relaxed);
        }
        self.kept = kept;
    }
}

pub(super) struct Reader {
    body: Arc<SharedBody>,
    number: u64,
    /// How much it has read.
    place: u64,
    /// Whether it gets the trailers, because the body is the answer to its request.
    takes_trailers: bool,
    is_done: bool,
}

impl Reader {
    fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if self.is_done {
            return Poll::Ready(None);
        }
        let backlog = &self.body.limits.backlog;
        let next = lock(&self.body.state).next(self.number, cx.waker(), backlog);
        self.body.moved.notify_one();
        match next {
            None => Poll::Pending,
            Some(Ok(data)) => {
                self.place += data.len() as u64;
                Poll::Ready(Some(Ok(Frame::data(data))))
            }
            Some(Err(end)) => {
                self.is_done = true;
                let trailers = |trailers: Option<_>| trailers.filter(|_| self.takes_trailers);
                Poll::Ready(end.map(trailers).transpose().map(|end| end.map(Frame::trailers)))
            }
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.body.leave(self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http_body_util::Full;

    use super::*;

    /// A body that tells a length of eight bytes, whatever it has.
    struct Hinted(Full<Bytes>);

    impl Body for Hinted {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: std::pin::Pin<&mut Self>,
            cx: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            std::pin::Pin::new(&mut self.0).poll_frame(cx)
        }

        fn size_hint(&self) -> SizeHint {
            SizeHint::with_exact(8)
        }
    }

    fn limits() -> BodyLimits {
        let backlog = Arc::new(Backlog::new(100, 100));
        BodyLimits { size: 100, total: Duration::MAX, finish_unread: true, backlog }
    }

    #[tokio::test]
    async fn a_body_that_contradicts_its_hint_is_broken() {
        for (length, until) in [(7, 1), (9, 0)] {
            let hinted = Hinted(Full::from(vec![7; length]));
            let collector = ServiceBody::new(hinted).begin(None, limits()).1.unwrap();
            let mut reader = Box::pin(collector.body.reader(true).unwrap());
            assert!(matches!(collector.collect().await, Err(NotCollected::Broken(_))), "{length}");
            let cx = &mut Context::from_waker(Waker::noop());
            for _ in 0..until {
                assert!(matches!(reader.as_mut().poll_frame(cx), Poll::Ready(Some(Ok(_)))));
            }
            assert!(
                matches!(reader.as_mut().poll_frame(cx), Poll::Ready(Some(Err(_)))),
                "{length}"
            );
        }
    }

    #[test]
    fn many_small_pieces_are_kept_as_few() {
        let mut state = State::default();
        (0..1 << 20).for_each(|_| state.push(Bytes::from_static(b"x")));
        assert!(state.pieces.len() <= 1 + (1 << 20) / JOINED, "{}", state.pieces.len());
        assert_eq!(state.held(), 1 << 20);
    }
}
