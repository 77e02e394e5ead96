//! Connections that change their protocol pass through: WebSockets, and an upgrade by hand. So do
//! early hints.

use axum::{
    Router,
    extract::ws::{Message, WebSocketUpgrade},
    routing::get,
};
use futures_util::{SinkExt, StreamExt};
use http_body_util::Empty;
use hyper::{body::Incoming, client::conn::http1::SendRequest};
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio_tungstenite::{WebSocketStream, client_async, tungstenite};
use tower::Service;

use super::prelude::*;

const LIMIT: Duration = Duration::from_secs(10);

/// Returns a service with a WebSocket that answers each message at once, and counts its clients.
fn echoing(cache: Cache<CachedResponse>) -> (Router, Arc<AtomicUsize>) {
    let clients = Arc::<AtomicUsize>::default();
    let counted = clients.clone();
    let handler = get(move |upgrade: WebSocketUpgrade| {
        let client = counted.fetch_add(1, Ordering::SeqCst) + 1;
        async move {
            upgrade.on_upgrade(move |mut socket| async move {
                while let Some(Ok(message)) = socket.recv().await {
                    let Message::Text(text) = message else { continue };
                    let answer = Message::text(format!("{client}: {text}"));
                    if socket.send(answer).await.is_err() {
                        return;
                    }
                }
            })
        }
    });
    (Router::new().route("/ws", handler).layer(http_layer(cache)), clients)
}

/// Serves a connection of HTTP/1.1, and returns the other end.
pub(super) fn connect<S, B>(service: &S) -> DuplexStream
where
    S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    B: http_body::Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
{
    let (here, there) = duplex(4096);
    let service = TowerToHyperService::new(service.clone());
    let server = hyper::server::conn::http1::Builder::new();
    tokio::spawn(server.serve_connection(TokioIo::new(there), service).with_upgrades());
    here
}

/// Connects a client of HTTP/1.1.
pub(super) async fn client(io: DuplexStream) -> SendRequest<Empty<Bytes>> {
    let (sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(io)).await.unwrap();
    tokio::spawn(connection.with_upgrades());
    sender
}

async fn open(app: &Router) -> (WebSocketStream<DuplexStream>, StatusCode) {
    let opening = client_async("ws://shop.example/ws", connect(app));
    let (socket, response) = timeout(LIMIT, opening).await.unwrap().unwrap();
    (socket, response.status())
}

async fn say(socket: &mut WebSocketStream<DuplexStream>, text: &str) -> String {
    socket.send(tungstenite::Message::text(text)).await.unwrap();
    let answer = timeout(LIMIT, socket.next()).await.unwrap().unwrap().unwrap();
    answer.into_text().unwrap().to_string()
}

#[tokio::test]
async fn each_websocket_reaches_the_service_and_flows_both_ways() {
    let cache = cache(&MemoryBackend::new());
    let (app, clients) = echoing(cache.clone());
    let mut sockets = Vec::new();
    for _ in 0..10 {
        let (socket, status) = open(&app).await;
        assert_eq!(status, StatusCode::SWITCHING_PROTOCOLS);
        sockets.push(socket);
    }
    assert_eq!(clients.load(Ordering::SeqCst), 10);
    // Each message is answered before the next is sent, so none is held back.
    for round in 0..20 {
        for (at, socket) in sockets.iter_mut().enumerate() {
            let expected = format!("{}: {round}", at + 1);
            assert_eq!(say(socket, &round.to_string()).await, expected);
        }
    }
    let stats = cache.stats();
    assert_eq!((stats.passed, stats.stored, stats.loads), (10, 0, 0), "{stats:?}");
}

/// The bytes are no messages, and their number is not known before.
#[tokio::test]
async fn an_upgrade_by_hand_flows_both_ways() {
    let inner = service_fn(|mut request: Request<Incoming>| async move {
        let upgrade = hyper::upgrade::on(&mut request);
        tokio::spawn(async move {
            let mut io = TokioIo::new(upgrade.await.unwrap());
            let mut piece = [0; 1024];
            loop {
                let count = io.read(&mut piece).await.unwrap();
                if count == 0 {
                    break;
                }
                io.write_all(&piece[..count]).await.unwrap();
            }
        });
        // It may say that it is for all.
        let response = Response::builder()
            .status(StatusCode::SWITCHING_PROTOCOLS)
            .header("connection", "upgrade")
            .header("upgrade", "echo")
            .header("cache-control", "public, max-age=60");
        Ok::<_, std::convert::Infallible>(response.body(Empty::<Bytes>::new()).unwrap())
    });
    let cache = cache(&MemoryBackend::new());
    let service = http_layer(cache.clone()).layer(inner);
    for _ in 0..3 {
        let mut sender = client(connect(&service)).await;
        let request = Request::get("/")
            .header("host", "shop.example")
            .header("connection", "upgrade")
            .header("upgrade", "echo");
        let request = request.body(Empty::<Bytes>::new()).unwrap();
        let response = timeout(LIMIT, sender.send_request(request)).await.unwrap().unwrap();
        assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
        let mut io = TokioIo::new(hyper::upgrade::on(response).await.unwrap());
        for size in [1, 100, 1000] {
            let sent = vec![size as u8; size];
            io.write_all(&sent).await.unwrap();
            let mut received = vec![0; size];
            timeout(LIMIT, io.read_exact(&mut received)).await.unwrap().unwrap();
            assert_eq!(received, sent);
        }
    }
    let stats = cache.stats();
    assert_eq!((stats.passed, stats.stored, stats.loads), (3, 0, 0), "{stats:?}");
}

/// An origin sends hints before its answer. They are about the request that reaches it.
#[tokio::test]
async fn early_hints_go_to_the_caller_whose_request_runs() {
    const ANSWER: &[u8] = b"HTTP/1.1 103 Early Hints\r\nlink: </a.css>\r\n\r\n\
        HTTP/1.1 200 OK\r\ncontent-length: 6\r\ncache-control: max-age=60\r\n\r\na body";
    let inner = service_fn(|request: Request<Empty<Bytes>>| async move {
        let (here, mut there) = duplex(4096);
        tokio::spawn(async move {
            let mut request = [0; 4096];
            assert!(there.read(&mut request).await.unwrap() > 0);
            there.write_all(ANSWER).await.unwrap();
            // The connection stays open until the client ends it.
            while there.read(&mut request).await.is_ok_and(|count| count > 0) {}
        });
        client(here).await.send_request(request).await
    });
    let service = layer().layer(inner);
    let hinted = [(); 10].map(|()| Arc::<AtomicUsize>::default());
    let asked = hinted.clone().map(|hints| {
        let mut request = Request::get("/").header("host", "shop.example");
        if Arc::ptr_eq(&hints, &hinted[9]) {
            request = request.header("cookie", "a=b");
        }
        let mut request = request.body(Empty::<Bytes>::new()).unwrap();
        hyper::ext::on_informational(&mut request, move |hint| {
            assert_eq!(hint.status(), StatusCode::EARLY_HINTS);
            hints.fetch_add(1, Ordering::SeqCst);
        });
        service.clone().oneshot(request)
    });
    for answer in join_all(asked).await {
        let (parts, body) = answer.unwrap().into_parts();
        assert_eq!((parts.status, parts.headers.contains_key("link")), (StatusCode::OK, false));
        assert_eq!(body.collect().await.unwrap().to_bytes(), "a body");
    }
    let hinted = hinted.map(|hints| hints.load(Ordering::SeqCst));
    assert_eq!((hinted[9], hinted[..9].iter().sum::<usize>()), (1, 1), "{hinted:?}");
}
