//! Sends requests to the origin.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bellwether::BoxError;
use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, Version,
    header::{
        CONNECTION, COOKIE, HOST, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER,
        TRANSFER_ENCODING, UPGRADE, VIA,
    },
    uri::{Authority, PathAndQuery, Scheme},
};
use http_body_util::{Either, Empty};
use hyper::{
    body::Incoming,
    client::conn::http2::{self, SendRequest},
};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioIo, TokioTimer},
};
use tokio::{net::TcpStream, sync::Mutex};
use tower::Service;

use crate::options::Options;

/// How often an HTTP/2 connection is asked whether it lives.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// The origin. Clones share their connections.
#[derive(Clone)]
pub(crate) struct Upstream {
    connections: Connections,
    authority: Authority,
    timeout: Duration,
}

#[derive(Clone)]
enum Connections {
    /// A pool.
    Http1(Box<Client<HttpConnector, Incoming>>),
    /// A single one, once there is one. A pool would have one for each host that clients name.
    Http2(Arc<Mutex<Option<SendRequest<Incoming>>>>),
}

impl Connections {
    async fn send(
        &self,
        request: Request<Incoming>,
        origin: &Authority,
    ) -> Result<Response<Incoming>, BoxError> {
        match self {
            Self::Http1(client) => Ok(client.request(request).await?),
            Self::Http2(single) => {
                let mut connection = connected(single, origin).await?;
                Ok(connection.send_request(request).await?)
            }
        }
    }
}

/// Returns the HTTP/2 connection to the origin.
async fn connected(
    single: &Mutex<Option<SendRequest<Incoming>>>,
    origin: &Authority,
) -> Result<SendRequest<Incoming>, BoxError> {
    let mut single = single.lock().await;
    if let Some(living) = single.as_ref().filter(|connection| !connection.is_closed()) {
        return Ok(living.clone());
    }
    let port = origin.port_u16().unwrap_or(80);
    let stream = TcpStream::connect(format!("{}:{port}", origin.host())).await?;
    stream.set_nodelay(true)?;
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder.timer(TokioTimer::new()).keep_alive_interval(KEEP_ALIVE);
    let (connection, driver) = builder.handshake(TokioIo::new(stream)).await?;
    // The requests on it get its error.
    tokio::spawn(async move { drop(driver.await) });
    *single = Some(connection.clone());
    Ok(connection)
}

/// Why a request is not sent to the origin.
#[derive(Debug)]
pub(crate) enum Unanswered {
    /// The request has no clear host.
    Host,
    /// The request asks for a tunnel.
    Tunnel,
}

impl Unanswered {
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::Host => StatusCode::BAD_REQUEST,
            Self::Tunnel => StatusCode::NOT_IMPLEMENTED,
        }
    }
}

impl fmt::Display for Unanswered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Host => "the request names several hosts, or none that is one",
            Self::Tunnel => "the request asks for a tunnel",
        })
    }
}

impl std::error::Error for Unanswered {}

impl Upstream {
    pub(crate) fn new(options: &Options) -> Result<Self, BoxError> {
        let authority = options.upstream.authority().ok_or("--upstream names no host")?.clone();
        let connections = if options.upstream_http2 {
            Connections::Http2(Arc::default())
        } else {
            let mut pool = Client::builder(TokioExecutor::new());
            pool.pool_timer(TokioTimer::new()).pool_idle_timeout(Duration::from_secs(30));
            Connections::Http1(Box::new(pool.build_http()))
        };
        Ok(Self { connections, authority, timeout: options.timeout })
    }

    /// Rewrites a request for the origin. The host stays that of the client.
    fn rewrite<B>(&self, request: Request<B>) -> Result<Request<B>, BoxError> {
        let (mut parts, body) = request.into_parts();
        if parts.method == Method::CONNECT {
            return Err(Unanswered::Tunnel.into());
        }
        if parts.headers.get_all(HOST).iter().nth(1).is_some() {
            return Err(Unanswered::Host.into());
        }
        // The target counts, and not a header beside it (RFC 9112, section 3.2.2).
        if let Some(host) = parts.uri.authority() {
            parts.headers.insert(HOST, HeaderValue::from_str(host.as_str())?);
        }
        join_cookies(&mut parts.headers)?;
        let mut authority = self.authority.clone();
        parts.version = Version::HTTP_11;
        if let Connections::Http2(_) = self.connections {
            parts.version = Version::HTTP_2;
            // It is the `:authority` there, which stands for `Host` (RFC 9113, section 8.3.1).
            if let Some(host) = parts.headers.remove(HOST) {
                authority = host.as_bytes().try_into().map_err(|_invalid| Unanswered::Host)?;
            }
        }
        let root = || PathAndQuery::from_static("/");
        parts.uri = Uri::builder()
            .scheme(Scheme::HTTP)
            .authority(authority)
            .path_and_query(parts.uri.path_and_query().cloned().unwrap_or_else(root))
            .build()?;
        strip(&mut parts.headers);
        parts.headers.append(VIA, HeaderValue::from_static("1.1 bellwether"));
        Ok(Request::from_parts(parts, body))
    }
}

/// The body of the origin, or none in place of it.
pub(crate) type UpstreamBody = Either<Incoming, Empty<Bytes>>;

impl Service<Request<Incoming>> for Upstream {
    type Response = Response<UpstreamBody>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        let request = self.rewrite(request);
        let upstream = self.clone();
        Box::pin(async move {
            let answering = upstream.connections.send(request?, &upstream.authority);
            let Ok(answered) = tokio::time::timeout(upstream.timeout, answering).await else {
                return Ok(timed_out());
            };
            let mut response = answered?;
            strip(response.headers_mut());
            Ok(response.map(Either::Left))
        })
    }
}

/// Answers in place of an origin that did not answer in time. A response, and no error, so that the
/// layer outside treats it as one of the origin.
fn timed_out() -> Response<UpstreamBody> {
    eprintln!("proxy: the origin did not answer in time");
    let mut response = Response::new(Either::Right(Empty::new()));
    *response.status_mut() = StatusCode::GATEWAY_TIMEOUT;
    response
}

/// Makes one line of the cookies, of which HTTP/2 may send one each (RFC 9113, section 8.2.3).
fn join_cookies(headers: &mut HeaderMap) -> Result<(), BoxError> {
    let lines: Vec<_> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if lines.len() > 1 {
        let joined = HeaderValue::from_bytes(&lines.join(&b"; "[..]))?;
        headers.insert(COOKIE, joined);
    }
    Ok(())
}

/// Removes the headers of one connection (RFC 9110, section 7.6.1). The host is none of them,
/// whatever a client says.
fn strip(headers: &mut HeaderMap) {
    let lines = headers.get_all(CONNECTION).iter().filter_map(|line| line.to_str().ok());
    let options = lines.flat_map(|line| line.split(','));
    let names = options.filter_map(|name| name.trim().parse().ok());
    let names: Vec<HeaderName> = names.filter(|name| *name != HOST).collect();
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

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, future::pending};

    use bytes::Bytes;
    use http_body_util::Empty;
    use tokio::net::TcpListener;
    use tower::service_fn;

    use super::*;
    use crate::server::Server;

    fn rewritten(request: Request<()>) -> Result<HeaderMap, BoxError> {
        let upstream = Upstream {
            connections: Connections::Http1(Box::new(
                Client::builder(TokioExecutor::new()).build_http(),
            )),
            authority: Authority::from_static("origin:8080"),
            timeout: Duration::from_secs(1),
        };
        Ok(upstream.rewrite(request)?.into_parts().0.headers)
    }

    /// Answers with what it was asked.
    async fn tell(request: Request<Incoming>) -> Result<Response<Empty<Bytes>>, Infallible> {
        let version = request.version();
        let authority = request.uri().authority();
        let hosts = request.headers().get_all(HOST).iter().count();
        let mut response = Response::new(Empty::new());
        let told = HeaderValue::from_str(&format!("{version:?} {authority:?} {hosts}"));
        response.headers_mut().extend(told.ok().map(|told| (VIA, told)));
        Ok(response)
    }

    /// The origin was asked for its own address, with the host of the client in a header beside.
    #[tokio::test]
    async fn the_host_of_the_client_is_the_authority_of_http_2() -> Result<(), BoxError> {
        let bind = || TcpListener::bind("127.0.0.1:0");
        let origin = bind().await?;
        let listener = bind().await?;
        let metrics = bind().await?;
        let options = Options {
            upstream: format!("http://{}/", origin.local_addr()?).parse()?,
            upstream_http2: true,
            quiet: true,
            ..Options::default()
        };
        let url = format!("http://{}/", listener.local_addr()?);
        let server = Server::new(16, options.grace);
        let asking = async move {
            let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
            for host in ["shop.test", "bank.test:80"] {
                let request = Request::get(&url).header(HOST, host).body(Empty::new())?;
                let response = client.request(request).await?;
                assert_eq!(response.headers()[VIA], format!("HTTP/2.0 Some({host}) 0"));
            }
            let request = Request::get(&url).header(HOST, "a b").body(Empty::new())?;
            assert_eq!(client.request(request).await?.status(), 400);
            Ok(())
        };
        tokio::select! {
            () = server.serve(origin, service_fn(tell), pending()) => Ok(()),
            proxied = crate::proxy(options, listener, metrics, pending()) => proxied,
            asked = asking => asked,
        }
    }

    /// A client made the origin answer for another host, under the key of the one that it named.
    #[test]
    fn the_host_of_the_target_reaches_the_origin() -> Result<(), BoxError> {
        for (target, connection) in [("/", "host"), ("http://shop/", "Host, close"), ("/", "x")] {
            let request = Request::get(target).header(HOST, "shop").header(CONNECTION, connection);
            let headers = rewritten(request.header("x", "1").body(())?)?;
            assert_eq!(headers[HOST], "shop", "{target} {connection}");
            assert_eq!(headers.contains_key("x"), connection != "x");
        }
        let request = Request::get("http://shop/").header(HOST, "bank");
        assert_eq!(rewritten(request.body(())?)?[HOST], "shop");
        Ok(())
    }

    #[test]
    fn a_request_without_a_clear_host_and_a_tunnel_are_refused() -> Result<(), BoxError> {
        let hosts = Request::get("/").header(HOST, "shop").header(HOST, "bank").body(())?;
        let tunnel = Request::connect("shop:443").body(())?;
        for (request, status) in [(hosts, 400), (tunnel, 501)] {
            let refused = rewritten(request).err().ok_or("it is not refused")?;
            let refused = refused.downcast::<Unanswered>()?;
            assert_eq!(refused.status().as_u16(), status);
        }
        Ok(())
    }

    #[test]
    fn cookies_of_several_lines_are_one_line() -> Result<(), BoxError> {
        let request = Request::get("/").header(COOKIE, "a=1").header(COOKIE, "b=2; c=3");
        let headers = rewritten(request.body(())?)?;
        let cookies: Vec<_> = headers.get_all(COOKIE).iter().collect();
        assert_eq!(cookies, ["a=1; b=2; c=3"]);
        Ok(())
    }
}
