//! Responses that are shared while their bodies arrive.

use std::{error::Error as _, io};

use bellwether::layer::{BodyError, ResponseBody};
use http_body::{Body as _, Frame};

use super::{
    bodies::{data, fed, next},
    prelude::*,
};

type SharedBody = ResponseBody<Body>;

async fn open(service: &Layered, request: Request<Body>) -> SharedBody {
    let response = service.clone().oneshot(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    response.into_body()
}

/// Opens as many bodies at once.
async fn open_all(service: &Layered, count: usize) -> Vec<SharedBody> {
    let open = |_| {
        let service = service.clone();
        spawn(async move { open(&service, get("/")).await })
    };
    all((0..count).map(open)).await
}

/// Returns the rest of a body, or its error.
async fn end(body: SharedBody) -> Result<Bytes, BodyError> {
    body.collect().await.map(|body| body.to_bytes())
}

async fn rest(body: SharedBody) -> Bytes {
    end(body).await.unwrap()
}

async fn is_silent(body: &mut SharedBody) -> bool {
    timeout(DELAY, body.frame()).await.is_err()
}

/// Returns a service that shares bodies of so many bytes.
fn limited(bytes: usize, inner: Inner) -> Layered {
    layer_of(builder().max_value(bytes)).layer(inner)
}

fn kib(count: usize) -> Result<Frame<Bytes>, io::Error> {
    Ok(Frame::data(Bytes::from(vec![b'x'; count << 10])))
}

/// An endless answer had its first byte after 26 s.
#[tokio::test(start_paused = true)]
async fn each_caller_has_the_head_and_each_piece_at_once() {
    for headers in [&[][..], &[("content-length", "9")], &[("content-type", "application/json")]] {
        let (inner, mut feeds) = fed(headers);
        let service = layered(&inner);
        let begun = Instant::now();
        let mut bodies = open_all(&service, 100).await;
        assert_eq!(begun.elapsed(), DELAY);
        let feed = feeds.recv().await.unwrap();
        for pieces in ["one", "onetwo", "onetwosix"] {
            assert!(is_silent(&mut bodies[0]).await);
            let sent = Instant::now();
            feed.send(data(&pieces[pieces.len() - 3..])).unwrap();
            for body in &mut bodies {
                assert_eq!(next(body).await, pieces[pieces.len() - 3..]);
            }
            // A late caller reads from the start.
            let mut late = open(&service, get("/")).await;
            let mut read = Vec::new();
            while read.len() < pieces.len() {
                read.extend_from_slice(&next(&mut late).await);
            }
            assert_eq!(read, pieces.as_bytes());
            bodies.push(late);
            assert!(sent.elapsed().is_zero());
        }
        drop(feed);
        for body in bodies {
            assert_eq!(rest(body).await, "");
        }
        assert_eq!(rest(open(&service, get("/")).await).await, "onetwosix");
        assert!(feeds.try_recv().is_err(), "a second call");
    }
}

#[tokio::test(start_paused = true)]
async fn the_bytes_of_a_body_are_in_memory_once() {
    let (inner, mut feeds) = fed(&[]);
    let mut bodies = open_all(&limited(16 << 20, inner), 100).await;
    let feed = feeds.recv().await.unwrap();
    for _ in 0..10 {
        feed.send(kib(1024)).unwrap();
        let mut places = Vec::new();
        for body in &mut bodies {
            places.push(next(body).await.as_ptr());
        }
        assert!(places.iter().all(|place| *place == places[0]), "a copy for a reader");
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_breaks_off_breaks_off_for_all_its_readers() {
    let (inner, mut feeds) = fed(&[]);
    let service = layered(&inner);
    let bodies = open_all(&service, 5).await;
    let feed = feeds.recv().await.unwrap();
    feed.send(data("half")).unwrap();
    sleep(DELAY).await;
    let late = open(&service, get("/")).await;
    feed.send(Err(io::Error::other("cut"))).unwrap();
    for mut body in bodies.into_iter().chain([late]) {
        assert_eq!(next(&mut body).await, "half");
        let error = body.frame().await.unwrap().unwrap_err();
        assert!(matches!(error, BodyError::Service(_)));
        let source = error.source().unwrap().downcast_ref::<axum::Error>();
        assert_eq!(source.unwrap().to_string(), "cut");
        assert!(body.frame().await.is_none() && body.is_end_stream());
    }
    let again = open(&service, get("/")).await;
    feeds.recv().await.unwrap().send(data("whole")).unwrap();
    assert_eq!(rest(again).await, "whole");
}

#[tokio::test(start_paused = true)]
async fn a_body_that_contradicts_its_length_is_broken() {
    for (pieces, until) in [(&["on"][..], "on"), (&["on", "e!"], "on"), (&[], "")] {
        let (inner, mut feeds) = fed(&[("content-length", "3")]);
        let service = layered(&inner);
        let bodies = open_all(&service, 2).await;
        let feed = feeds.recv().await.unwrap();
        pieces.iter().for_each(|piece| feed.send(data(piece)).unwrap());
        drop(feed);
        for mut body in bodies {
            assert_eq!(body.size_hint().exact(), Some(3));
            if !until.is_empty() {
                assert_eq!(next(&mut body).await, until);
            }
            assert!(matches!(end(body).await, Err(BodyError::Length)));
        }
        let _again = open(&service, get("/")).await;
        assert!(feeds.recv().await.is_some());
    }
}

/// No trailer of one caller reaches another one, and none is lost for its own caller.
#[tokio::test(start_paused = true)]
async fn trailers_go_to_the_caller_whose_request_ran() {
    let (inner, mut feeds) = fed(&[]);
    let service = layered(&inner);
    let own = open(&service, get("/")).await;
    let other = open(&service, get("/")).await;
    let feed = feeds.recv().await.unwrap();
    let trailers = HeaderMap::from_iter([(http::header::ETAG, "1".parse().unwrap())]);
    feed.send(data("one")).unwrap();
    feed.send(Ok(Frame::trailers(trailers.clone()))).unwrap();
    drop(feed);
    let own = own.collect().await.unwrap();
    let other = other.collect().await.unwrap();
    assert_eq!((own.trailers(), other.trailers()), (Some(&trailers), None));
    assert_eq!((own.to_bytes(), other.to_bytes()), (Bytes::from("one"), Bytes::from("one")));
    let _again = open(&service, get("/")).await;
    assert!(feeds.recv().await.is_some(), "it was stored");
}

#[tokio::test(start_paused = true)]
async fn a_body_over_the_limit_goes_on_for_its_readers_only() {
    let (inner, mut feeds) = fed(&[]);
    let service = limited(64 << 10, inner);
    let mut bodies = open_all(&service, 3).await;
    let feed = feeds.recv().await.unwrap();
    for _ in 0..100 {
        feed.send(kib(8)).unwrap();
        for body in &mut bodies {
            assert_eq!(next(body).await.len(), 8 << 10);
        }
    }
    let begun = Instant::now();
    let _alone = open(&service, get("/")).await;
    assert_eq!(begun.elapsed(), DELAY);
    assert!(feeds.try_recv().is_ok(), "a caller reads a body whose start is gone");
    // One reader is enough to read on, and the last one ends the call.
    bodies.truncate(1);
    feed.send(kib(8)).unwrap();
    assert_eq!(next(&mut bodies[0]).await.len(), 8 << 10);
    assert!(!feed.is_closed());
    bodies.clear();
    feed.closed().await;
}

/// The others wait for a slow reader for a second, or for as long as they have read. It gets an
/// error then, never a clean end. One that is slower by less than the backlog is served to the end.
#[tokio::test(start_paused = true)]
async fn a_slow_reader_holds_up_no_other_for_long() {
    for is_slow in [true, false] {
        let (inner, mut feeds) = fed(&[]);
        let layer = layer_of(builder().max_value(64 << 10)).body_backlog(64 << 10);
        let service = layer.layer(inner);
        let mut bodies = open_all(&service, 3).await;
        let feed = feeds.recv().await.unwrap();
        let mut slower = bodies.remove(0);
        assert!(is_silent(&mut slower).await);
        let begun = Instant::now();
        for round in 0..100 {
            feed.send(kib(8)).unwrap();
            for body in &mut bodies {
                assert_eq!(next(body).await.len(), 8 << 10);
            }
            if !is_slow && round >= 6 {
                assert_eq!(next(&mut slower).await.len(), 8 << 10);
            }
        }
        assert_eq!(begun.elapsed(), if is_slow { SECOND } else { Duration::ZERO });
        drop(feed);
        for body in bodies {
            assert_eq!(rest(body).await, "");
        }
        match end(slower).await {
            Ok(rest) => assert!(!is_slow && rest.len() == 48 << 10),
            Err(error) => assert!(is_slow && matches!(error, BodyError::Slow), "{error}"),
        }
    }
}

/// A client that goes away takes nothing from the others, nor from the store.
#[tokio::test(start_paused = true)]
async fn a_body_without_readers_is_finished_and_stored() {
    let (inner, mut feeds) = fed(&[]);
    let service = layered(&inner);
    drop(open_all(&service, 3).await);
    let feed = feeds.recv().await.unwrap();
    for piece in ["one", "two"] {
        feed.send(data(piece)).unwrap();
        sleep(SECOND).await;
    }
    drop(feed);
    sleep(DELAY).await;
    assert_eq!(rest(open(&service, get("/")).await).await, "onetwo");
    assert!(feeds.try_recv().is_err());
}

#[tokio::test(start_paused = true)]
async fn a_body_without_readers_is_cancelled_by_option() {
    let (inner, mut feeds) = fed(&[]);
    let service = layer_of(builder().cancel_abandoned()).layer(inner);
    let mut bodies = open_all(&service, 3).await;
    let feed = feeds.recv().await.unwrap();
    feed.send(data("one")).unwrap();
    bodies.truncate(1);
    sleep(DELAY).await;
    assert_eq!(next(&mut bodies[0]).await, "one");
    // The next reader comes in time.
    let late = open(&service, get("/")).await;
    bodies.clear();
    sleep(DELAY).await;
    assert!(!feed.is_closed());
    drop(late);
    feed.closed().await;
    let again = open(&service, get("/")).await;
    feeds.recv().await.unwrap().send(data("two")).unwrap();
    assert_eq!(rest(again).await, "two");
}

/// A body whose limits are over goes on for its readers, and later callers call for themselves.
#[tokio::test(start_paused = true)]
async fn the_limits_of_a_body_end_its_sharing_and_no_response() {
    // A body that is silent for too long, and one that takes too long in all.
    for (limit, pause, pieces) in [(60, 11 * SECOND, 1), (5, SECOND, 5)] {
        let (inner, mut feeds) = fed(&[]);
        let service = layer().body_limit(limit * SECOND).layer(inner);
        let mut bodies = open_all(&service, 2).await;
        let feed = feeds.recv().await.unwrap();
        for _ in 0..pieces {
            feed.send(data("one")).unwrap();
            sleep(pause).await;
        }
        let _alone = open(&service, get("/")).await;
        assert!(feeds.try_recv().is_ok());
        feed.send(data("two")).unwrap();
        drop(feed);
        for body in bodies.drain(..) {
            assert_eq!(rest(body).await.len(), 3 * (pieces + 1));
        }
    }
}

/// The lease of 5 s is renewed, and no load limit ends the body.
#[tokio::test(start_paused = true)]
async fn the_lease_is_held_while_the_body_arrives() {
    let (inner, mut feeds) = fed(&[("cache-control", "max-age=100")]);
    let backend = MemoryBackend::new();
    let [here, there] = [(), ()].map(|()| {
        let cache = http_cache(backend.clone(), "bellwether").ttl(200 * SECOND).build().unwrap();
        http_layer(cache).layer(inner.clone())
    });
    let body = open(&here, get("/")).await;
    let feed = feeds.recv().await.unwrap();
    for _ in 0..50 {
        feed.send(data("x")).unwrap();
        sleep(SECOND).await;
    }
    let waits = asking(&there, get("/"));
    sleep(SECOND).await;
    assert!(!waits.is_finished() && feeds.try_recv().is_err());
    drop(feed);
    assert_eq!(rest(body).await.len(), 50);
    let answer = waits.await.unwrap();
    assert_eq!((answer.body.len(), &answer.headers["age"]), (50, &"51".parse().unwrap()));
    // The lifetime began with the headers.
    sleep(48 * SECOND).await;
    assert_eq!(ask(&here, get("/")).await.headers["age"], "99");
    sleep(2 * SECOND).await;
    let _anew = open(&here, get("/")).await;
    assert!(feeds.try_recv().is_ok());
}

/// Another process has the answer when it is complete. Until then it waits, for a limited time.
#[tokio::test(start_paused = true)]
async fn another_process_waits_for_a_time_and_goes_alone() {
    let (inner, mut feeds) = fed(&[]);
    let backend = MemoryBackend::new();
    let [here, there] = [(), ()].map(|()| {
        let cache = http_cache(backend.clone(), "bellwether").wait_limit(2 * SECOND).build();
        http_layer(cache.unwrap()).layer(inner.clone())
    });
    let _body = open(&here, get("/")).await;
    let _feed = feeds.recv().await.unwrap();
    let begun = Instant::now();
    let bodies = open_all(&there, 10).await;
    assert_eq!(begun.elapsed(), 2 * SECOND + DELAY);
    let feed = feeds.recv().await.unwrap();
    feed.send(data("one")).unwrap();
    drop(feed);
    for body in bodies {
        assert_eq!(rest(body).await, "one");
    }
    assert!(feeds.try_recv().is_err(), "more than one call of a process");
}

/// A caller that knows of an invalidation must not be served a body that was asked for before it.
#[tokio::test(start_paused = true)]
async fn no_caller_joins_a_body_that_was_invalidated() {
    let (inner, mut feeds) = fed(&[]);
    let backend = MemoryBackend::new();
    let layer = http_layer(cache(&backend));
    let key = layer.key(&get("/").into_parts().0).unwrap();
    let service = layer.layer(inner);
    let old = open(&service, get("/")).await;
    let feed = feeds.recv().await.unwrap();
    feed.send(data("old")).unwrap();
    let also_old = open(&service, get("/")).await;
    cache(&backend).invalidate(key).await.unwrap();
    let new = open(&service, get("/")).await;
    let new_feed = feeds.recv().await.unwrap();
    new_feed.send(data("new")).unwrap();
    drop((feed, new_feed));
    assert!(rest(old).await == "old" && rest(also_old).await == "old");
    assert_eq!(rest(new).await, "new");
    sleep(DELAY).await;
    assert_eq!(ask(&service, get("/")).await.text(), "new");
}

/// A body may take longer than its response is fresh.
#[tokio::test(start_paused = true)]
async fn no_caller_joins_a_body_that_is_no_longer_fresh() {
    let (inner, mut feeds) = fed(&[("cache-control", "max-age=2")]);
    let service = layered(&inner);
    let body = open(&service, get("/")).await;
    let feed = feeds.recv().await.unwrap();
    sleep(SECOND).await;
    assert_eq!(service.clone().oneshot(get("/")).await.unwrap().headers()["age"], "1");
    sleep(2 * SECOND).await;
    let _alone = open(&service, get("/")).await;
    assert!(feeds.try_recv().is_ok());
    feed.send(data("one")).unwrap();
    drop(feed);
    assert_eq!(rest(body).await, "one");
    let _not_stored = open(&service, get("/")).await;
    assert!(feeds.try_recv().is_ok());
}

/// The readers read on, whatever becomes of the cache.
#[tokio::test(start_paused = true)]
async fn a_shutdown_ends_no_body() {
    let (inner, mut feeds) = fed(&[]);
    let cache = cache(&MemoryBackend::new());
    let service = http_layer(cache.clone()).layer(inner);
    let mut bodies = open_all(&service, 2).await;
    let feed = feeds.recv().await.unwrap();
    feed.send(data("one")).unwrap();
    cache.shutdown(SECOND).await;
    // A cache that is shut down shares nothing, and streams.
    let mut alone = open(&service, get("/")).await;
    let second = feeds.recv().await.unwrap();
    second.send(data("three")).unwrap();
    assert_eq!(next(&mut alone).await, "three");
    feed.send(data("two")).unwrap();
    drop((feed, second));
    for body in bodies.drain(..) {
        assert_eq!(rest(body).await, "onetwo");
    }
    assert_eq!(rest(alone).await, "");
}

#[tokio::test(start_paused = true)]
async fn a_body_that_panics_is_an_error_for_all_its_readers() {
    let (inner, calls) = origin(|_, _| {
        let pieces = futures_util::stream::unfold(0, |at| async move {
            sleep(SECOND).await;
            assert_eq!(at, 0, "a body");
            Some((Ok::<_, io::Error>("half"), 1))
        });
        Response::new(Body::from_stream(pieces))
    });
    let service = layered(&inner);
    for mut body in open_all(&service, 3).await {
        assert_eq!(next(&mut body).await, "half");
        assert!(matches!(end(body).await, Err(BodyError::Panicked)));
    }
    let _again = open(&service, get("/")).await;
    assert_eq!(calls.count(), 2);
}

#[tokio::test(start_paused = true)]
async fn the_first_request_for_a_part_gets_all_of_a_body_under_way() {
    let (inner, mut feeds) = fed(&[("content-length", "3")]);
    let all = layered(&inner).oneshot(get_with(&[("range", "bytes=1-1")])).await.unwrap();
    assert_eq!((all.status(), all.headers().get("content-range")), (StatusCode::OK, None));
    let feed = feeds.recv().await.unwrap();
    feed.send(data("012")).unwrap();
    drop(feed);
    assert_eq!(rest(all.into_body()).await, "012");
}

/// A part of a body, and its headers alone, do not wait for the body to be complete.
#[tokio::test(start_paused = true)]
async fn conditions_are_answered_from_a_body_under_way_and_ranges_with_all_of_it() {
    let (inner, mut feeds) = fed(&[("content-length", "9"), ("etag", "\"1\"")]);
    let service = layered(&inner);
    let _whole = open(&service, get("/")).await;
    let feed = feeds.recv().await.unwrap();
    let ask = |request| service.clone().oneshot(request);
    let unchanged = ask(get_with(&[("if-none-match", "\"1\"")])).await.unwrap();
    assert_eq!(unchanged.status(), StatusCode::NOT_MODIFIED);
    let head = ask(request("HEAD", "/", &[])).await.unwrap();
    assert_eq!(head.headers()["content-length"], "9");
    assert!(head.into_body().is_end_stream());
    let all = ask(get_with(&[("range", "bytes=2-4")])).await.unwrap();
    assert_eq!(all.status(), StatusCode::OK);
    let mut all = all.into_body();
    assert_eq!(all.size_hint().exact(), Some(9));
    feed.send(data("012")).unwrap();
    assert_eq!(next(&mut all).await, "012");
    feed.send(data("345678")).unwrap();
    assert_eq!(next(&mut all).await, "345678");
    drop(feed);
    assert!(all.frame().await.is_none());
    assert!(feeds.try_recv().is_err());
}
