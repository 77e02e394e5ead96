//! The router of a worker under the layer, and users that send requests to it.

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::{Request, State},
    http::{Response, header},
    routing::get,
};
use bellwether::{BellwetherLayer, Cache, layer::CachedResponse};
use tokio::{sync::Barrier, time::sleep};
use tower::ServiceExt;

use super::{
    protocol::{Answer, Event, Report, Requests, now},
    worker::tell,
};

async fn origin(State(requests): State<Requests>, request: Request) -> Response<Body> {
    let key = requests.path;
    tell(Event::LoadBegun { key: key.clone(), at: now() });
    sleep(Duration::from_millis(requests.ms)).await;
    let user = request.headers()["x-user"].to_str().unwrap();
    let answer = Response::builder();
    let answer = match requests.answer {
        Answer::Common => answer.body(Body::from(format!("common, made for {user}"))),
        Answer::Cookie => answer
            .header(header::SET_COOKIE, format!("user={user}"))
            .body(Body::from(format!("for {user} alone"))),
    };
    tell(Event::LoadEnded { key, at: now() });
    answer.unwrap()
}

pub async fn play(pages: Cache<CachedResponse>, requests: Requests) -> Report {
    // No answer depends on the user, but those that belong to one say whose they are.
    let layer = BellwetherLayer::http(pages.clone())
        .default_lifetime(Duration::from_secs(60))
        .ignore_headers(["x-user"]);
    let router =
        Router::new().route("/{*path}", get(origin)).with_state(requests.clone()).layer(layer);
    let barrier = Arc::new(Barrier::new(requests.users.len() + 1));
    let users: Vec<_> = requests
        .users
        .clone()
        .map(|user| {
            let (router, barrier) = (router.clone(), barrier.clone());
            let request = Request::get(&requests.path)
                .header(header::HOST, "shop.example")
                .header("x-user", user)
                .body(Body::empty())
                .unwrap();
            tokio::spawn(async move {
                barrier.wait().await;
                let answer = router.oneshot(request).await.unwrap();
                let status = answer.status();
                let cookie = answer.headers().get(header::SET_COOKIE).cloned();
                let body = to_bytes(answer.into_body(), usize::MAX).await.unwrap();
                let ended = now();
                assert_eq!(status, 200);
                let whole = match requests.answer {
                    Answer::Cookie => {
                        cookie.is_some_and(|cookie| cookie == *format!("user={user}"))
                    }
                    Answer::Common => cookie.is_none(),
                };
                assert!(whole, "user {user} got {} bytes", body.len());
                (String::from_utf8_lossy(&body).into_owned(), ended)
            })
        })
        .collect();
    sleep(Duration::from_micros(requests.at.saturating_sub(now()))).await;
    let mut report = Report { began: now(), ..Report::default() };
    barrier.wait().await;
    for user in users {
        match user.await {
            Ok((body, ended)) => {
                report.ended = report.ended.max(ended);
                *report.values.entry(body).or_default() += 1;
            }
            Err(error) => *report.errors.entry(error.to_string()).or_default() += 1,
        }
    }
    report.degraded = pages.stats().degraded;
    report.stats = format!("{:?}", pages.stats());
    report
}
