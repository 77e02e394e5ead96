//! Sends requests to the origin.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bellwether::BoxError;
use http::{
    HeaderMap, HeaderName, HeaderValue, Request, Response, Uri, Version,
    header::{
        CONNECTION, HOST, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING,
        UPGRADE, VIA,
    },
    uri::{Authority, PathAndQuery, Scheme},
};
use hyper::body::Incoming;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use tower::Service;

use crate::options::Options;

/// The origin. Clones share their connections.
#[derive(Clone)]
pub(crate) struct Upstream {
    client: Client<HttpConnector, Incoming>,
    authority: Authority,
    version: Version,
    timeout: Duration,
}

/// The origin did not answer in time.
#[derive(Debug)]
pub(crate) struct TimedOut;

impl std::fmt::Display for TimedOut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the origin did not answer in time")
    }
}

impl std::error::Error for TimedOut {}

impl Upstream {
    pub(crate) fn new(options: &Options) -> Result<Self, BoxError> {
        let authority = options.upstream.authority().ok_or("--upstream names no host")?.clone();
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(Duration::from_secs(30))
            .http2_only(options.upstream_http2)
            .build_http();
        let version = match options.upstream_http2 {
            true => Version::HTTP_2,
            false => Version::HTTP_11,
        };
        Ok(Self { client, authority, version, timeout: options.timeout })
    }

    /// Rewrites a request for the origin. The host stays that of the client.
    fn rewrite<B>(&self, request: Request<B>) -> Result<Request<B>, http::Error> {
        let (mut parts, body) = request.into_parts();
        let host = parts.uri.authority().map(|host| HeaderValue::from_str(host.as_str()));
        if let Some(host) = host.transpose()? {
            parts.headers.entry(HOST).or_insert(host);
        }
        let root = || PathAndQuery::from_static("/");
        parts.uri = Uri::builder()
            .scheme(Scheme::HTTP)
            .authority(self.authority.clone())
            .path_and_query(parts.uri.path_and_query().cloned().unwrap_or_else(root))
            .build()?;
        parts.version = self.version;
        strip(&mut parts.headers);
        // The origin may address the cache by `Surrogate-Control`, by this name.
        let surrogate = HeaderValue::from_static("bellwether=\"Surrogate/1.0\"");
        parts.headers.append("surrogate-capability", surrogate);
        parts.headers.append(VIA, HeaderValue::from_static("1.1 bellwether"));
        Ok(Request::from_parts(parts, body))
    }
}

impl Service<Request<Incoming>> for Upstream {
    type Response = Response<Incoming>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        let request = self.rewrite(request);
        let (client, timeout) = (self.client.clone(), self.timeout);
        Box::pin(async move {
            let answered = tokio::time::timeout(timeout, client.request(request?)).await;
            let mut response = answered.map_err(|_elapsed| TimedOut)??;
            strip(response.headers_mut());
            Ok(response)
        })
    }
}

/// Removes the headers of one connection (RFC 9110, section 7.6.1).
fn strip(headers: &mut HeaderMap) {
    let lines = headers.get_all(CONNECTION).iter().filter_map(|line| line.to_str().ok());
    let options = lines.flat_map(|line| line.split(','));
    let names: Vec<HeaderName> = options.filter_map(|name| name.trim().parse().ok()).collect();
    let always = [
        CONNECTION,
        PROXY_AUTHENTICATE,
        PROXY_AUTHORIZATION,
        TE,
        TRAILER,
        TRANSFER_ENCODING,
        UPGRADE,
        HeaderName::from_static("keep-alive"),
        HeaderName::from_static("proxy-connection"),
    ];
    for name in names.iter().chain(&always) {
        headers.remove(name);
    }
}
