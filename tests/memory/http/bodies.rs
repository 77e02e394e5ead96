//! Bodies that are whole, stream, stall or break off.

use std::{convert::Infallible, error::Error as _, io};

use bellwether::layer::ResponseBody;
use http_body::{Body as _, Frame};
use http_body_util::{Full, StreamBody};
use tokio::{sync::mpsc, task::JoinSet};

use super::prelude::*;

/// The feed of a body that is filled from outside.
pub(crate) type Feed = mpsc::UnboundedSender<Result<Frame<Bytes>, io::Error>>;

/// Returns an origin whose bodies come out of one feed each, in the order of the calls.
pub(crate) fn fed(
    headers: &'static [(&'static str, &'static str)],
) -> (Inner, mpsc::UnboundedReceiver<Feed>) {
    let (feeds, fed) = mpsc::unbounded_channel();
    let (inner, _) = origin(move |_, _| {
        let (feed, mut frames) = mpsc::unbounded_channel();
        feeds.send(feed).unwrap();
        let frames = futures_util::stream::poll_fn(move |context| frames.poll_recv(context));
        let mut response = Response::new(Body::new(StreamBody::new(frames)));
        for (name, value) in headers {
            response.headers_mut().append(*name, value.parse().unwrap());
        }
        response
    });
    (inner, fed)
}

pub(crate) fn data(text: &'static str) -> Result<Frame<Bytes>, io::Error> {
    Ok(Frame::data(Bytes::from_static(text.as_bytes())))
}

pub(crate) async fn next(
    body: &mut (impl http_body::Body<Data = Bytes, Error: std::fmt::Debug> + Unpin),
) -> Bytes {
    body.frame().await.unwrap().unwrap().into_data().unwrap()
}

#[tokio::test(start_paused = true)]
async fn an_unshared_body_streams() {
    for headers in [
        &[("content-type", "text/event-stream")][..],
        &[("cache-control", "no-store")],
        &[("content-length", "9999999")],
    ] {
        let (inner, mut feeds) = fed(headers);
        let service = layered(&inner);
        let response = service.oneshot(get("/")).await.unwrap();
        let feed = feeds.recv().await.unwrap();
        let mut body = response.into_body();
        // The first piece arrives before the second one is made.
        for piece in ["one", "two"] {
            assert!(!body.is_end_stream());
            feed.send(data(piece)).unwrap();
            assert_eq!(next(&mut body).await, piece);
        }
        drop(feed);
        assert!(body.frame().await.is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_of_the_limit_is_shared() {
    for (length, shared) in [(0, true), (4, true), (5, true), (6, false)] {
        for streamed in [false, true] {
            let (inner, calls) = origin(move |_, _| {
                let body = Bytes::from(vec![b'x'; length]);
                let pieces = (0..length).map(move |at| Ok::<_, io::Error>(body.slice(at..at + 1)));
                Response::new(if streamed {
                    Body::from_stream(futures_util::stream::iter(pieces))
                } else {
                    Body::from(vec![b'x'; length])
                })
            });
            // An encoded response is 20 bytes longer than its body.
            let service = layer_of(builder().max_value(25)).layer(inner);
            for _ in 0..2 {
                assert_eq!(ask(&service, get("/")).await.body.len(), length);
            }
            assert_eq!(calls.count(), if shared { 1 } else { 2 }, "{length} {streamed}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn large_bodies_are_shared_byte_for_byte() {
    let bytes: Bytes =
        (0..1_u32 << 20).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    for pieces in [1 << 20, 4096, 77] {
        let body = bytes.clone();
        let (inner, calls) = origin(move |_, _| {
            let body = body.clone();
            let starts = (0..body.len()).step_by(pieces);
            let pieces = starts
                .map(move |at| Ok::<_, io::Error>(body.slice(at..body.len().min(at + pieces))));
            Response::new(Body::from_stream(futures_util::stream::iter(pieces)))
        });
        let service = layered(&inner);
        for answer in ask_all(&[service], (0..5).map(|_| get("/"))).await {
            assert!(answer.body == bytes);
        }
        assert_eq!(calls.count(), 1);
    }
}

/// Its end comes by itself, so the length is not known with its head.
#[tokio::test(start_paused = true)]
async fn a_body_that_has_arrived_has_a_length() {
    let (inner, _) = origin(|_, _| {
        let pieces = ["01234", "56789"].map(|piece| Ok::<_, io::Error>(Bytes::from(piece)));
        Response::new(Body::from_stream(futures_util::stream::iter(pieces)))
    });
    let faulty = Faulty::new(|op| (op == Op::Commit).then_some(Fault::Late(200 * MS)));
    let cache = http_cache(faulty, "bellwether").build().unwrap();
    let service: Layered = shared(BellwetherLayer::http(cache)).layer(inner);
    let answer = service.oneshot(request("HEAD", "/", &[])).await.unwrap();
    assert_eq!(answer.headers()["content-length"], "10");
}

/// A body was collected to its end in one go if it was always ready. The callers that waited for
/// its head then had their first byte after the last one had come.
#[tokio::test(start_paused = true)]
async fn a_body_that_is_always_ready_is_read_while_it_is_collected() {
    const PARTS: usize = 12;
    let made = Arc::new(AtomicUsize::new(0));
    let (inner, _) = origin({
        let made = made.clone();
        move |_, _| {
            let made = made.clone();
            let parts = (0..PARTS).map(move |_| {
                made.fetch_add(1, Ordering::Relaxed);
                Ok::<_, Infallible>(Frame::data(Bytes::from(vec![7; 64 << 10])))
            });
            Response::new(Body::new(StreamBody::new(futures_util::stream::iter(parts))))
        }
    });
    let service = layered(&inner);
    let mut callers = JoinSet::new();
    for _ in 0..10 {
        let service = service.clone();
        let made = made.clone();
        callers.spawn(async move {
            let mut body = service.oneshot(get("/")).await.unwrap().into_body();
            next(&mut body).await;
            made.load(Ordering::Relaxed)
        });
    }
    for parts in callers.join_all().await {
        assert!(parts < PARTS / 2, "{parts} parts were made before the first was read");
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_breaks_off_is_passed_to_its_caller_and_the_others_share_the_next() {
    let (inner, mut feeds) = fed(&[]);
    let service = layered(&inner);
    let responses = [(); 3].map(|()| spawn(service.clone().oneshot(get("/"))));
    let feed = feeds.recv().await.unwrap();
    feed.send(data("one")).unwrap();
    feed.send(Err(io::Error::other("broken off"))).unwrap();
    assert!(feeds.recv().await.unwrap().send(data("two")).is_ok());
    let mut broken = 0;
    for response in responses {
        let mut body = response.await.unwrap().unwrap().into_body();
        if next(&mut body).await == "two" {
            continue;
        }
        broken += 1;
        let error = body.frame().await.unwrap().unwrap_err();
        assert_eq!(error.source().unwrap().to_string(), "broken off");
    }
    assert_eq!(broken, 1);
    assert!(feeds.try_recv().is_err(), "a further call");
}

/// The data is neither `Bytes` nor `Clone`, `Sync` or `Unpin`.
#[tokio::test(start_paused = true)]
async fn any_type_of_body_works() {
    let inner = service_fn(|_| async {
        let pieces = async_frames();
        Ok::<_, Infallible>(Response::new(StreamBody::new(pieces)))
    });
    let service = layer().layer(inner);
    for _ in 0..2 {
        let response = service.clone().oneshot(get("/")).await.unwrap();
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "onetwo");
    }
}

type Chained = Frame<bytes::buf::Chain<&'static [u8], Bytes>>;

fn async_frames() -> impl futures_util::Stream<Item = Result<Chained, io::Error>> + Send {
    use bytes::Buf;
    futures_util::stream::once(async {
        let not_sync = std::cell::Cell::new(b"one".as_slice());
        sleep(Duration::from_millis(1)).await;
        Ok(Frame::data(not_sync.get().chain(Bytes::from_static(b"two"))))
    })
}

/// The leader got a `502` of the layer, because the body had broken off before it was read.
#[tokio::test(start_paused = true)]
async fn a_body_that_is_announced_and_not_there_goes_on_as_it_is() {
    for (status, empty) in
        [200, 500].into_iter().flat_map(|status| [(status, true), (status, false)])
    {
        let (inner, calls) = origin(move |_, _| {
            let none = futures_util::stream::empty::<Result<Bytes, io::Error>>();
            let body = if empty { Body::empty() } else { Body::from_stream(none) };
            reply(status, &[("content-length", "5")], body)
        });
        let service = layered(&inner);
        let response = service.clone().oneshot(get("/")).await.unwrap();
        let length = response.headers()["content-length"].to_str().unwrap();
        assert_eq!((response.status().as_u16(), length), (status, "5"));
        // The body ends as it does without the layer, or it is known to have broken off.
        let body = response.into_body().collect().await.map(|body| body.to_bytes());
        assert!(body.map_or(!empty, |body| body.is_empty()));
        let _ = service.clone().oneshot(get("/")).await.unwrap();
        assert_eq!(calls.count(), 2, "{status} {empty}");
    }
}

#[tokio::test(start_paused = true)]
async fn services_of_different_bodies_share_one_cache() {
    let (inner, mut feeds) = fed(&[]);
    let layer = layer();
    let streamed = layer.layer(inner);
    let calls = Calls::default();
    let counted = calls.clone();
    let full = layer.layer(service_fn(move |_: Request<Body>| {
        counted.add();
        async { Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("full"))) }
    }));

    // A body that one service is still sending.
    let leader = streamed.clone().oneshot(get("/"));
    let follower = full.clone().oneshot(get("/"));
    let send = async {
        let feed = feeds.recv().await.unwrap();
        feed.send(data("one")).unwrap();
        feed
    };
    let (leader, follower, feed) = tokio::join!(leader, follower, send);
    let mut bodies = (leader.unwrap().into_body(), follower.unwrap().into_body());
    assert_eq!(next(&mut bodies.0).await, "one");
    assert_eq!(next(&mut bodies.1).await, "one");
    feed.send(data("two")).unwrap();
    drop(feed);
    assert_eq!(bodies.0.collect().await.unwrap().to_bytes(), "two");
    assert_eq!(bodies.1.collect().await.unwrap().to_bytes(), "two");

    // What it has stored.
    let stored = full.clone().oneshot(get("/")).await.unwrap();
    assert_eq!(stored.into_body().collect().await.unwrap().to_bytes(), "onetwo");
    assert_eq!(calls.count(), 0);

    // A response that belongs to its caller has the body of its own service.
    let own = full.oneshot(get_with(&[("cookie", "a=b")])).await.unwrap().into_body();
    assert_eq!(own.size_hint().exact(), Some(4));
    assert_eq!(own.collect().await.unwrap().to_bytes(), "full");
}

#[test]
fn any_body_has_an_empty_default() {
    /// A body without a default of its own.
    type Framed = StreamBody<mpsc::UnboundedReceiver<Result<Frame<Bytes>, io::Error>>>;
    let _empty = ResponseBody::<Framed>::default();
    assert!(ResponseBody::<Body>::default().is_end_stream());
}
