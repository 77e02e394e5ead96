//! The check of the proxy by itself: an origin, two requests through the proxy, and the end.

use std::{
    convert::Infallible,
    sync::atomic::{AtomicUsize, Ordering},
};

use bellwether::BoxError;
use bytes::Bytes;
use http::{HeaderValue, Request, Response, header::CACHE_CONTROL};
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::Incoming;
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use tokio::{net::TcpListener, sync::oneshot};
use tower::service_fn;

use crate::{options::Options, proxy, server::Server};

/// Asks twice through the proxy and prints what came.
pub(crate) async fn show(mut options: Options) -> Result<(), BoxError> {
    let bind = || TcpListener::bind("127.0.0.1:0");
    let origin = bind().await?;
    let listener = bind().await?;
    let metrics = bind().await?;
    options.upstream = format!("http://{}/", origin.local_addr()?).parse()?;
    let url = listener.local_addr()?;
    let metrics_url = metrics.local_addr()?;

    let (told, end) = oneshot::channel::<()>();
    let (told_origin, end_of_origin) = oneshot::channel::<()>();
    let grace = options.grace;
    let answering = async move {
        let server = Server::new(16, grace);
        server.serve(origin, service_fn(answer), async { drop(end_of_origin.await) }).await;
    };
    let proxying = proxy(options, listener, metrics, async { drop(end.await) });
    let asking = async move {
        for _ in 0..2 {
            ask(&format!("http://{url}/")).await?;
        }
        // The second response is a hit, or shares a load whose commit is not over.
        match ANSWERS.load(Ordering::Relaxed) {
            1 => {}
            answers => return Err(format!("the origin was asked {answers} times").into()),
        }
        ask(&format!("http://{metrics_url}/metrics")).await?;
        drop((told, told_origin));
        Ok(())
    };
    let ((), proxied, asked) = tokio::join!(answering, proxying, asking);
    proxied.and(asked)
}

/// Sends a request, and prints what came.
async fn ask(url: &str) -> Result<(), BoxError> {
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let response = client.request(Request::get(url).body(Empty::new())?).await?;
    println!("GET {url} {}", response.status());
    for name in ["cache-status", "age"] {
        if let Some(value) = response.headers().get(name) {
            println!("  {name}: {}", value.to_str()?);
        }
    }
    let body = response.into_body().collect().await?.to_bytes();
    if url.ends_with("/metrics") {
        let text = std::str::from_utf8(&body)?;
        let told = text.lines().filter(|line| !line.starts_with('#') && !line.ends_with(" 0"));
        told.for_each(|line| println!("  {line}"));
    }
    Ok(())
}

/// How many requests the origin has answered.
static ANSWERS: AtomicUsize = AtomicUsize::new(0);

/// The origin.
async fn answer(_request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    ANSWERS.fetch_add(1, Ordering::Relaxed);
    let mut response = Response::new(Full::from("product 42"));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("max-age=60"));
    Ok(response)
}
