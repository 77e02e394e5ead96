//! Two proxies in front of an origin and over a Redis server, both of which fail under load.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

use std::{
    error::Error,
    process::Stdio,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use testkit::{Port, RedisServer, comes_true, signal};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    process::{Child, Command},
    runtime::Runtime,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

const SECOND: Duration = Duration::from_secs(1);
const LIMIT: Duration = Duration::from_secs(20);
/// How long after the origin is back an answer may tell that it was away, on a busy machine.
const LATE: Duration = Duration::from_secs(2);
const PATHS: usize = 24;
const LENGTH: usize = 48 << 10;
const PIECES: usize = 4;

/// An origin that can be killed with its connections.
struct Origin {
    port: Port,
    calls: Arc<AtomicUsize>,
    runtime: Option<Runtime>,
}

impl Origin {
    async fn start() -> Self {
        let mut origin = Self { port: Port::free(), calls: Arc::default(), runtime: None };
        origin.revive().await;
        origin
    }

    async fn revive(&mut self) {
        let runtime = Runtime::new().unwrap();
        let port = self.port.number();
        let calls = self.calls.clone();
        let listening = runtime.spawn(async move {
            let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
            tokio::spawn(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(answer_all(stream, calls.clone()));
                }
            });
        });
        listening.await.unwrap();
        self.runtime = Some(runtime);
    }

    /// Cuts all connections, also within a body.
    fn kill(&mut self) {
        self.runtime.take().unwrap().shutdown_background();
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Answers the requests of a connection, until it breaks.
async fn answer_all(stream: TcpStream, calls: Arc<AtomicUsize>) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let mut stream = BufReader::new(stream);
    loop {
        let mut path = None;
        loop {
            let mut line = String::new();
            if stream.read_line(&mut line).await.ok()? == 0 {
                return None;
            }
            match line.trim() {
                "" => break,
                line => path = path.or_else(|| Some(line.split(' ').nth(1)?.to_owned())),
            }
        }
        let path = path?;
        let body = body(&path, calls.fetch_add(1, Ordering::SeqCst) + 1);
        // Every second resource has no length.
        let number: usize = path.trim_start_matches('/').parse().ok()?;
        let framing = match number % 2 {
            0 => format!("content-length: {}", body.len()),
            _ => "transfer-encoding: chunked".to_owned(),
        };
        let control = if may_be_stale(number) { "max-age=1" } else { "max-age=1, must-revalidate" };
        let head = format!("HTTP/1.1 200 OK\r\ncache-control: {control}\r\n{framing}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.ok()?;
        for piece in body.chunks(body.len().div_ceil(PIECES)) {
            let piece = match number % 2 {
                0 => piece.to_vec(),
                _ => [format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat(),
            };
            stream.write_all(&piece).await.ok()?;
            sleep(Duration::from_millis(5)).await;
        }
        if number % 2 == 1 {
            stream.write_all(b"0\r\n\r\n").await.ok()?;
        }
    }
}

fn may_be_stale(number: usize) -> bool {
    !number.is_multiple_of(3)
}

/// Returns the body of a call: a line that names it, and bytes that follow from that.
fn body(path: &str, call: usize) -> Vec<u8> {
    let mut body = format!("{path} {call}\n").into_bytes();
    let mut state = call as u64 ^ (path.len() as u64) << 32 | 1;
    while body.len() < LENGTH + call % 1000 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        body.push((state >> 56) as u8);
    }
    body
}

/// Returns whether a body is that of some call for this path.
fn is_right(path: &str, found: &[u8]) -> bool {
    let line = found.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let call = std::str::from_utf8(line).ok().and_then(|line| line.strip_prefix(path));
    let call = call.and_then(|call| call.trim().parse().ok());
    call.is_some_and(|call| body(path, call) == found)
}

/// A proxy in a process of its own.
struct Proxy {
    child: Child,
    url: String,
}

impl Proxy {
    async fn start(origin: &Origin, redis: &RedisServer) -> Self {
        Self::with(origin.port.number(), &["--redis", &redis.url()]).await
    }

    /// Starts a proxy in front of a port.
    async fn with(upstream: u16, options: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_proxy"))
            .args(["--upstream", &format!("http://127.0.0.1:{upstream}"), "--quiet"])
            .args(["--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"])
            .args(options)
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut told = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        told.read_line(&mut line).await.unwrap();
        let address = line.split(' ').nth(1).unwrap_or_else(|| panic!("{line}"));
        let url = format!("http://{address}");
        // It logs the failures of the origin.
        tokio::spawn(async move {
            let mut rest = Vec::new();
            let _ = told.read_to_end(&mut rest).await;
        });
        Self { child, url }
    }

    async fn end(mut self) {
        signal(self.child.id().unwrap(), "TERM");
        let ended = timeout(LIMIT, self.child.wait()).await.unwrap().unwrap();
        assert!(ended.success(), "{ended}");
    }
}

/// What the clients saw.
#[derive(Default)]
struct Seen {
    right: AtomicUsize,
    failed: Mutex<Vec<Failed>>,
}

/// A request without a right answer.
struct Failed {
    number: usize,
    begun: Instant,
    ended: Instant,
    what: String,
}

type Asking = Client<HttpConnector, Empty<Bytes>>;

/// Asks for a path, and returns what came if that is not the right answer.
async fn ask(client: &Asking, proxy: &str, path: &str) -> Option<String> {
    let request = Request::get(format!("{proxy}{path}")).body(Empty::new()).unwrap();
    let response = match client.request(request).await {
        Ok(response) => response,
        // A body that broke off before its head was written.
        Err(error) if is_cut_off(&error) => return Some(format!("{error:?}")),
        Err(error) => panic!("the proxy itself fails: {error:?}"),
    };
    let status = response.status();
    match response.into_body().collect().await {
        Ok(body) if status == StatusCode::OK => {
            assert!(is_right(path, &body.to_bytes()), "wrong bytes for {path}");
            None
        }
        Ok(_) => Some(status.to_string()),
        Err(error) => Some(format!("{status}, then {error:?}")),
    }
}

fn is_cut_off(error: &hyper_util::client::legacy::Error) -> bool {
    let cause = error.source().and_then(|cause| cause.downcast_ref::<hyper::Error>());
    cause.is_some_and(hyper::Error::is_incomplete_message)
}

/// Asks one request after the other until the end.
async fn load(seen: Arc<Seen>, proxy: String, mut number: usize, end: Instant) {
    let client = Client::builder(TokioExecutor::new()).build_http();
    while Instant::now() < end {
        number = (number + 5) % PATHS;
        let begun = Instant::now();
        let path = format!("/{number}");
        let asked = timeout(LIMIT, ask(&client, &proxy, &path)).await;
        match asked.unwrap_or_else(|_elapsed| panic!("{path} is not answered")) {
            None => drop(seen.right.fetch_add(1, Ordering::SeqCst)),
            Some(what) => {
                let failed = Failed { number, begun, ended: Instant::now(), what };
                seen.failed.lock().unwrap().push(failed);
            }
        }
        sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failures_of_the_origin_and_of_redis_make_no_wrong_byte_and_no_error_of_their_own() {
    let mut origin = Origin::start().await;
    let mut redis = RedisServer::start().await;
    let proxies = [Proxy::start(&origin, &redis).await, Proxy::start(&origin, &redis).await];
    let client = Client::builder(TokioExecutor::new()).build_http();
    for number in 0..PATHS {
        assert_eq!(ask(&client, &proxies[0].url, &format!("/{number}")).await, None);
    }
    let seen = Arc::new(Seen::default());
    let end = Instant::now() + 10 * SECOND;
    let mut clients = JoinSet::new();
    for number in 0..8 {
        let url = proxies[number % 2].url.clone();
        clients.spawn(load(seen.clone(), url, 3 * number, end));
    }

    let mut away = Vec::new();
    sleep(SECOND).await;
    away.push(without(&mut origin).await);
    sleep(LATE).await;
    redis.kill();
    sleep(SECOND).await;
    redis.start_again().await;
    sleep(SECOND / 2).await;
    redis.stop_signal();
    away.push(without(&mut origin).await);
    redis.resume();
    clients.join_all().await;

    let failed = std::mem::take(&mut *seen.failed.lock().unwrap());
    let right = seen.right.load(Ordering::SeqCst);
    let mut not_hidden = 0;
    println!("{right} right answers, {} errors in outages of the origin", failed.len());
    for Failed { number, begun, ended, what } in failed {
        let is_of_origin = away.iter().any(|(from, to)| begun < *to + LATE && ended > *from);
        assert!(is_of_origin, "{what} for /{number}, while the origin was there");
        // The server was there in the first outage, and had a response that may be stale.
        let is_late = begun > away[0].0 + SECOND / 2 && ended < away[0].1;
        not_hidden += usize::from(is_late && may_be_stale(number));
    }
    // A machine that stands still may keep a broken body for longer.
    assert!(not_hidden <= 5, "{not_hidden} errors in place of stale responses");
    // They share again.
    let shares = async || {
        let before = origin.calls.load(Ordering::SeqCst);
        for proxy in &proxies {
            for number in 0..8 {
                assert_eq!(ask(&client, &proxy.url, &format!("/{number}")).await, None);
            }
        }
        origin.calls.load(Ordering::SeqCst) - before <= 8
    };
    assert!(comes_true(LIMIT, shares).await, "the proxies do not share any more");
    for proxy in proxies {
        proxy.end().await;
    }
}

/// Kills the origin, and starts it again after a second. Returns from when to when it was away.
async fn without(origin: &mut Origin) -> (Instant, Instant) {
    let from = Instant::now();
    origin.kill();
    sleep(SECOND).await;
    origin.revive().await;
    (from, Instant::now())
}

/// Answers a request, unless it has the header `x-slow`.
async fn answer_quick(stream: TcpStream, calls: Arc<AtomicUsize>) -> Option<()> {
    let mut stream = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        stream.read_line(&mut head).await.ok().filter(|read| *read > 0)?;
    }
    calls.fetch_add(1, Ordering::SeqCst);
    if head.contains("x-slow") {
        std::future::pending::<()>().await;
    }
    let answer = "HTTP/1.1 200 OK\r\ncache-control: max-age=60\r\ncontent-length: 2\r\n\r\nok";
    stream.write_all(answer.as_bytes()).await.ok()
}

/// A caller that waited for a request which timed out received a `502`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_time_out_is_for_its_caller_alone() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let calls: Arc<AtomicUsize> = Arc::default();
    let counted = calls.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(answer_quick(stream, counted.clone()));
        }
    });
    let proxy = Proxy::with(port, &["--timeout", "2"]).await;
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let get = |name| {
        let request = Request::get(format!("{}/", proxy.url)).header(name, "1");
        client.request(request.body(Empty::new()).unwrap())
    };
    let slow = tokio::spawn(get("x-slow"));
    assert!(comes_true(LIMIT, async || calls.load(Ordering::SeqCst) == 1).await);
    let waiter = tokio::spawn(get("x-quick"));
    assert_eq!(waiter.await.unwrap().unwrap().status(), StatusCode::OK);
    assert_eq!(slow.await.unwrap().unwrap().status(), StatusCode::GATEWAY_TIMEOUT);
    proxy.end().await;
}
