//! HTTP caches beside the layer of this crate: inside a service, and before it.
//!
//! `cargo bench --manifest-path peers/Cargo.toml --bench http` starts a Redis server. A request has
//! the headers of a browser, and its response has twelve. nginx and Varnish are measured where they
//! are installed. Over a socket, the layer stands in an axum server, and each contender has one
//! connection.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    convert::Infallible,
    fs,
    net::TcpListener as Reserved,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use axum::{
    Router,
    http::{HeaderName, Request, Response, header},
    routing::get,
    serve::ListenerExt,
};
use bellwether::{BellwetherLayer, MemoryBackend, RedisBackend, http_cache};
use bytes::Bytes;
use cpu_time::ProcessTime;
use http_body_util::{BodyExt, Full};
use report::figures::{Chart, Rows, Statistic, turns};
use testkit::RedisServer;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::sleep,
};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_http_cache::{backend, layer::CacheLayer};

const LONG: Duration = Duration::from_secs(3_600);
const HEADERS: [(&str, &str); 12] = [
    ("host", "shop.example"),
    ("user-agent", "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101"),
    ("accept", "text/html,application/xhtml+xml,application/xml;q=0.9"),
    ("accept-language", "en-GB,en;q=0.5"),
    ("accept-encoding", "gzip, deflate, br, zstd"),
    ("referer", "https://shop.example/"),
    ("connection", "keep-alive"),
    ("upgrade-insecure-requests", "1"),
    ("sec-fetch-dest", "document"),
    ("sec-fetch-mode", "navigate"),
    ("sec-fetch-site", "none"),
    ("sec-fetch-user", "?1"),
];

const ROWS: Rows = Rows {
    chart: Chart::HttpHit,
    command: "cargo bench --manifest-path peers/Cargo.toml --bench http",
    statistic: Statistic::Median,
};

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    // The task is spawned, so that no measured future runs in `block_on`.
    runtime.block_on(async { tokio::spawn(all()).await.unwrap() });
}

async fn all() {
    from_memory().await;
    from_redis(&RedisServer::start().await.url()).await;
    over_a_socket().await;
}

/// Measures the processor time of hits in the process.
async fn from_memory() {
    const HITS: u32 = 1_000;
    let ours =
        BellwetherLayer::http(http_cache(MemoryBackend::new(), "bellwether").build().unwrap());
    let ours = ours.layer(service_fn(page));
    let memory = backend::memory::InMemoryBackend::new(10_000);
    let theirs = CacheLayer::builder(memory).ttl(LONG).build().layer(service_fn(page));
    let mut times = [const { Vec::new() }; 2];
    for _ in 0..turns(350) {
        let begun = ProcessTime::now();
        for _ in 0..HITS {
            ask(&ours).await;
        }
        times[0].push(begun.elapsed() / HITS);
        let begun = ProcessTime::now();
        for _ in 0..HITS {
            ask(&theirs).await;
        }
        times[1].push(begun.elapsed() / HITS);
    }
    let [ours, theirs] = &times;
    ROWS.peer(("a hit from memory", ours), ("tower-http-cache, memory", theirs)).unwrap();
}

async fn from_redis(url: &str) {
    const HITS: u32 = 30;
    let cache = http_cache(RedisBackend::open(url).unwrap(), "shop").build().unwrap();
    let ours = BellwetherLayer::http(cache).layer(service_fn(page));
    let client = redis::Client::open(url).unwrap().get_connection_manager().await.unwrap();
    let redis = backend::redis::RedisBackend::new(client);
    let theirs = CacheLayer::builder(redis).ttl(LONG).build().layer(service_fn(page));
    let mut times = [const { Vec::new() }; 2];
    for _ in 0..turns(1_000) {
        let begun = Instant::now();
        for _ in 0..HITS {
            ask(&ours).await;
        }
        times[0].push(begun.elapsed() / HITS);
        let begun = Instant::now();
        for _ in 0..HITS {
            ask(&theirs).await;
        }
        times[1].push(begun.elapsed() / HITS);
    }
    let [ours, theirs] = &times;
    ROWS.peer(("a hit from Redis", ours), ("tower-http-cache, Redis", theirs)).unwrap();
}

/// The headers of each response, with a type and a length. Over a socket, axum adds these two.
fn headers() -> [(HeaderName, &'static str); 10] {
    [
        (header::CACHE_CONTROL, "max-age=3600"),
        (header::ETAG, "\"5f3c-61a0b7\""),
        (header::LAST_MODIFIED, "Tue, 14 Nov 2023 22:13:20 GMT"),
        (header::CONTENT_LANGUAGE, "en"),
        (header::CONTENT_SECURITY_POLICY, "default-src 'self'; img-src 'self' data:"),
        (header::STRICT_TRANSPORT_SECURITY, "max-age=31536000; includeSubDomains"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::SERVER, "shop"),
        (HeaderName::from_static("x-release"), "2026-11-20"),
    ]
}

/// Answers with a page. Its body is `Sync`, as tower-http-cache asks for.
async fn page(_: Request<Full<Bytes>>) -> Result<Response<Full<Bytes>>, Infallible> {
    let more = [(header::CONTENT_TYPE, "text/plain"), (header::CONTENT_LENGTH, "9")];
    let response = headers()
        .into_iter()
        .chain(more)
        .fold(Response::builder(), |response, header| response.header(header.0, header.1));
    Ok(response.body(Full::from("a product")).unwrap())
}

fn router() -> Router {
    Router::new().route("/products/{id}", get(async move || (headers(), "a product")))
}

async fn ask<S, B>(service: &S)
where
    S: Service<Request<Full<Bytes>>, Response = Response<B>, Error: std::fmt::Debug> + Clone,
    B: BodyExt<Error: std::fmt::Debug>,
{
    let request = HEADERS
        .into_iter()
        .fold(Request::get("/products/42"), |request, header| request.header(header.0, header.1));
    let response = service.clone().oneshot(request.body(Full::default()).unwrap()).await.unwrap();
    assert!(response.headers().len() >= 12);
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes().len(), 9);
}

/// Measures hits over one connection, of the layer in an axum server and of the programs.
async fn over_a_socket() {
    const HITS: u32 = 30;
    let ours =
        BellwetherLayer::http(http_cache(MemoryBackend::new(), "bellwether").build().unwrap());
    let ours = serve(router().layer(ours)).await;
    let origin = serve(router()).await;
    let mut programs = Vec::new();
    for start in [Program::nginx, Program::varnish] {
        programs.extend(start(origin));
    }
    let mut connections = vec![Connection::open(ours).await];
    for program in &programs {
        connections.push(Connection::open(program.port).await);
    }
    let mut times = vec![Vec::new(); connections.len()];
    for _ in 0..turns(1_000) {
        for (connection, times) in connections.iter_mut().zip(&mut times) {
            let begun = Instant::now();
            for _ in 0..HITS {
                connection.ask().await;
            }
            times.push(begun.elapsed() / HITS);
        }
    }
    for (program, theirs) in programs.iter().zip(&times[1..]) {
        let ours = ("a hit over a socket", times[0].as_slice());
        ROWS.peer(ours, (program.name, theirs)).unwrap();
    }
}

async fn serve(app: Router) -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let listener = listener.tap_io(|stream| stream.set_nodelay(true).unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await });
    port
}

/// A connection that asks for the same page again and again.
struct Connection {
    stream: TcpStream,
    request: Vec<u8>,
}

impl Connection {
    /// Opens the connection once the program listens, and asks until the page is stored.
    async fn open(port: u16) -> Self {
        let lines = HEADERS.map(|(name, value)| format!("{name}: {value}\r\n")).concat();
        let request = format!("GET /products/42 HTTP/1.1\r\n{lines}\r\n").into_bytes();
        let stream = loop {
            match TcpStream::connect(("127.0.0.1", port)).await {
                Ok(stream) => break stream,
                Err(_) => sleep(Duration::from_millis(10)).await,
            }
        };
        stream.set_nodelay(true).unwrap();
        let mut connection = Self { stream, request };
        for _ in 0..10 {
            connection.ask().await;
        }
        connection
    }

    async fn ask(&mut self) {
        self.stream.write_all(&self.request).await.unwrap();
        let mut response = Vec::with_capacity(2_048);
        while !response.ends_with(b"a product") {
            assert!(self.stream.read_buf(&mut response).await.unwrap() > 0, "the connection ended");
        }
        assert!(response.starts_with(b"HTTP/1.1 200"));
    }
}

/// A cache that stands before the service.
struct Program {
    name: &'static str,
    port: u16,
    child: Child,
    folder: String,
}

impl Program {
    fn nginx(origin: u16) -> Option<Self> {
        let (port, folder) = (free_port(), new_folder("nginx"));
        let settings = format!(
            "daemon off; master_process off; pid {folder}/pid; error_log stderr crit;\n\
             events {{}}\n\
             http {{\n\
               access_log off; keepalive_requests 1000000;\n\
               client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;\n\
               fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u;\n\
               scgi_temp_path {folder}/s;\n\
               proxy_cache_path {folder}/cache keys_zone=shop:1m;\n\
               server {{\n\
                 listen 127.0.0.1:{port};\n\
                 location / {{ proxy_pass http://127.0.0.1:{origin}; proxy_cache shop; }}\n\
               }}\n\
             }}\n"
        );
        let file = format!("{folder}/nginx.conf");
        fs::write(&file, settings).unwrap();
        let child = Command::new("nginx").args(["-p", &folder, "-c", &file]).spawn();
        Some(Self { name: "nginx", port, child: child.ok()?, folder })
    }

    fn varnish(origin: u16) -> Option<Self> {
        let (port, folder) = (free_port(), new_folder("varnish"));
        let child = Command::new("varnishd")
            .args(["-F", "-n", &folder, "-s", "malloc,16m"])
            .args(["-a", &format!("127.0.0.1:{port}"), "-b", &format!("127.0.0.1:{origin}")])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Some(Self { name: "Varnish", port, child: child.ok()?, folder })
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn free_port() -> u16 {
    Reserved::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

fn new_folder(name: &str) -> String {
    let folder = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    Path::new(&folder).display().to_string()
}
