//! The poll of a body of the inner service, for all of its readers.

use std::{future::pending, mem, pin::pin, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::FutureExt;
use tokio::{
    runtime::Handle,
    task::{coop::consume_budget, yield_now},
    time::{Instant, timeout, timeout_at},
};

use super::{
    backlog::LeftBody,
    error::BodyError,
    service_body::{Arrival, BodyRest, ServiceBody},
    shared_body::{BodyLimits, SharedBody},
};
use crate::{sync::lock, time::after};

/// For how long the readers of a body wait for slower readers at least, in all. A fast reader may
/// have read for a few milliseconds only, and a mere pause of a task must end no reader.
const PATIENCE: Duration = Duration::from_secs(1);
/// A body that makes no progress for longer is a stream, or its sender has gone away.
const IDLE: Duration = Duration::from_secs(10);
/// How much of a body that is always ready is collected before its readers have a turn.
const TURN: u64 = 64 << 10;

/// Polls a body for its readers. A collector that is dropped before the end leaves the rest to a
/// task.
pub(in super::super) struct Collector {
    pub(in super::super) body: Arc<SharedBody>,
    source: BodyRest,
}

/// A body of which the first part was polled.
pub(in super::super) struct BegunBody {
    /// The whole body, if it was there at once.
    pub(in super::super) at_once: Bytes,
    /// Otherwise what collects the body, while callers read it.
    pub(in super::super) collector: Option<Collector>,
}

/// Why a body is not collected to its end.
pub(in super::super) enum NotCollected {
    /// The body is too large or too slow, or has trailers. Its readers go on.
    Unfit,
    /// The body has no reader, and is not to be finished.
    Unread,
    /// The body broke off, for all its readers.
    Broken(BodyError),
}

impl Collector {
    /// Polls a body once. Most bodies are there at once. The headers may announce a length.
    pub(in super::super) fn begin(
        body: ServiceBody,
        announced: Option<u64>,
        limits: BodyLimits,
    ) -> BegunBody {
        let mut source = BodyRest::whole(body, announced);
        let announced = source.length();
        let first = source.next().now_or_never();
        if let Some(Arrival { data, end: Some(Ok(None)) }) = &first
            && data.len() as u64 <= limits.size
        {
            return BegunBody { at_once: data.clone(), collector: None };
        }
        let body = SharedBody::new(announced, limits);
        if let Some(arrival) = first {
            body.receive(arrival);
        }
        BegunBody { at_once: Bytes::new(), collector: Some(Self { body, source }) }
    }

    /// Collects the body within its limits, while readers read the body. Gives the body up that is
    /// not to be stored.
    pub(in super::super) async fn collect(mut self) -> Result<Bytes, NotCollected> {
        let body = self.body.clone();
        let limits = &body.limits;
        let last = after(Instant::now(), limits.total);
        let mut unread = pin!(async {
            if limits.finish_unread {
                pending().await
            }
            body.unread().await;
        });
        let mut next_turn = TURN;
        loop {
            match collection(&body) {
                Collection::UnderWay => {}
                Collection::Whole(bytes) => return Ok(bytes),
                Collection::Over(why) => return Err(why),
            }
            // A body that is always ready lets its readers read meanwhile. The first turn is for
            // the callers that wait for the head. A small body is settled before that.
            let received = lock(&body.state).received;
            if received >= next_turn {
                next_turn = received.saturating_add(TURN);
                yield_now().await;
            }
            consume_budget().await;
            let until = after(Instant::now(), IDLE).min(last);
            tokio::select! {
                biased;
                advanced = timeout_at(until, self.advance()) => {
                    if advanced.is_err() {
                        return Err(NotCollected::Unfit);
                    }
                }
                () = &mut unread => return Err(NotCollected::Unread),
            }
        }
    }

    /// Polls the body as fast as the fastest of its readers wants, until no reader is left. Gives
    /// the slowest reader up while the backlog is full.
    async fn serve(mut self) {
        let body = self.body.clone();
        let backlog = &body.limits.backlog;
        // For how long readers have waited for slower readers.
        let mut waited = Duration::ZERO;
        loop {
            match wanted(&body) {
                Wanted::Nothing => return,
                Wanted::Later => body.moved.notified().await,
                Wanted::Room => {
                    // The readers have waited for no longer than they have read.
                    let read = body.begun.elapsed().saturating_sub(waited);
                    let patience = read.max(PATIENCE).saturating_sub(waited);
                    if patience.is_zero() {
                        lock(&body.state).end_furthest_behind(backlog);
                        continue;
                    }
                    let since = Instant::now();
                    // The readers may have moved, or the patience is over: both are looked at next.
                    let _ = timeout(patience, body.moved.notified()).await;
                    waited = waited.saturating_add(since.elapsed());
                }
                Wanted::More => {
                    backlog.make_room();
                    tokio::select! {
                        () = self.advance() => {}
                        () = body.moved.notified() => {}
                    }
                }
            }
        }
    }

    async fn advance(&mut self) {
        let arrival = self.source.next().await;
        self.body.receive(arrival);
    }
}

/// How far the collection of a body is.
enum Collection {
    UnderWay,
    Whole(Bytes),
    /// The body is not collected.
    Over(NotCollected),
}

fn collection(body: &SharedBody) -> Collection {
    let mut state = lock(&body.state);
    match &state.end {
        Some(Ok(Some(_trailers))) => Collection::Over(NotCollected::Unfit),
        Some(Err(error)) => Collection::Over(NotCollected::Broken(error.clone())),
        _ if state.received > body.limits.size => Collection::Over(NotCollected::Unfit),
        Some(Ok(None)) => Collection::Whole(state.whole()),
        None => Collection::UnderWay,
    }
}

/// What the readers want of a body that is left to them.
enum Wanted {
    /// The body has ended, or no reader is left.
    Nothing,
    /// Each reader still has bytes to take.
    Later,
    /// A reader waits for more, and too many bytes are kept for slower readers.
    Room,
    /// A reader waits for more.
    More,
}

fn wanted(body: &SharedBody) -> Wanted {
    let state = lock(&body.state);
    if state.end.is_some() || state.readers.is_empty() {
        return Wanted::Nothing;
    }
    if state.readers.values().all(|reader| reader.waker.is_none()) {
        return Wanted::Later;
    }
    if state.held() > body.limits.backlog.of_body { Wanted::Room } else { Wanted::More }
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
            let body: Arc<dyn LeftBody> = self.body.clone();
            state.left_as = Some(backlog.add(Arc::downgrade(&body)));
        }
        state.free(backlog);
        drop(state);
        match Handle::try_current() {
            Ok(runtime) if is_first => {
                let body = self.body.clone();
                let source = mem::take(&mut self.source);
                drop(runtime.spawn(Self { body, source }.serve()));
            }
            // No reader is left, or the runtime has ended.
            _ => {
                let end = Err(BodyError::service("the runtime has ended"));
                self.body.receive(Arrival::end(end));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        pin::Pin,
        task::{Context, Poll, Waker},
    };

    use http_body::{Body, Frame, SizeHint};
    use http_body_util::Full;

    use super::*;
    use crate::layer::http::body::{Backlog, LayerBody};

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

    fn limits() -> BodyLimits {
        let backlog = Arc::new(Backlog::new(100, 100));
        BodyLimits { size: 100, total: Duration::MAX, finish_unread: true, backlog }
    }

    #[tokio::test]
    async fn a_body_that_contradicts_its_hint_is_broken() {
        for (length, until) in [(7, 1), (9, 0)] {
            let hinted = Hinted(Full::from(vec![7; length]));
            let begun = Collector::begin(ServiceBody::new(hinted), None, limits());
            let collector = begun.collector.unwrap();
            let Ok(reader) = LayerBody::join(&collector.body, true) else { panic!("not joined") };
            let mut reader = Box::pin(reader);
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
}
