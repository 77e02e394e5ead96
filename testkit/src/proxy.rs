//! A proxy between a client and a Redis server that parses the traffic and injects faults.
//!
//! The proxy reads frames of RESP2 and RESP3 in both directions. So it can lose *one* answer,
//! double *one* command or reorder *two* pushes, and pass everything else unchanged. A
//! [rule](Proxy::when) selects commands by their [`kind`] (`get`, `claim`, `commit`, `renew`, ...)
//! and by their keys.
//!
//! The proxy has its own thread, so that a busy test does not slow it down. The thread ends on
//! drop.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use redis::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{Mutex as AsyncMutex, Notify, mpsc, watch},
    time::{Instant, sleep, sleep_until},
};

use crate::scripts::scripts;

/// A fault of one command or its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The command is done. Its answer is lost, and so is each later one on this connection.
    Silence,
    /// The command is done, and its answer is left out. Later answers go to the wrong commands.
    Swallow,
    /// The answer comes late, and so do all answers behind it.
    Delay(Duration),
    /// The server gets the command twice. The client gets one answer.
    Double,
    /// The command is done, and the connection ends in place of its answer.
    Cut,
    /// The connection ends in the middle of the answer.
    CutInHalf,
    /// The connection ends in place of sending the command.
    CutBefore,
}

/// A fault of pushed messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushFault {
    Drop,
    /// Each message comes this much later, in the same order.
    Delay(Duration),
    Double,
    /// Two messages in a row change places. A single one comes after a moment.
    Reorder,
}

/// How the proxy treats connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Pass,
    /// New connections are closed at once.
    Refuse,
    /// New connections are accepted, and all traffic is dropped. A connection that lost bytes in
    /// this mode stays silent for good, like a connection that a gateway has forgotten.
    Stall,
}

/// A command on its way.
#[derive(Clone, Debug)]
pub struct Request {
    /// The file name of a script, such as `claim`, `acquire` or `commit`. For any other command,
    /// its name in lower case. A read of an entry is a `get`, in part or whole.
    pub kind: String,
    pub words: Vec<Bytes>,
    pub keys: Vec<String>,
}

type Matcher = Box<dyn Fn(&Request) -> bool + Send + Sync>;

struct Rule {
    matches: Matcher,
    fault: Fault,
    left: AtomicUsize,
    hits: Arc<AtomicUsize>,
}

/// Counts the commands that a rule has met.
#[derive(Clone)]
pub struct Hits(Arc<AtomicUsize>);

impl Hits {
    pub fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

/// Matches commands of a kind.
pub fn kind(kind: &str) -> impl Fn(&Request) -> bool + Send + Sync + 'static {
    let kind = kind.to_owned();
    move |request| request.kind == kind
}

/// Matches commands of a kind on a cache key or a lock.
pub fn kind_of(kind: &str, key: &str) -> impl Fn(&Request) -> bool + Send + Sync + 'static {
    let kind = kind.to_owned();
    let part = format!("{{{key}}}");
    move |request| request.kind == kind && request.keys.iter().any(|name| name.contains(&part))
}

/// The traffic so far.
#[derive(Debug, Default)]
pub struct Counters {
    pub connections: AtomicU64,
    pub refused: AtomicU64,
    /// Connections that were accepted, and stay silent from their beginning.
    pub stalled: AtomicU64,
    pub pushes_spoilt: AtomicU64,
}

struct Shared {
    server: u16,
    mode: Mutex<Mode>,
    rules: Mutex<Vec<Arc<Rule>>>,
    pushes: Mutex<Option<PushFault>>,
    scripts: HashMap<String, &'static str>,
    seen: Mutex<HashMap<String, u64>>,
    counters: Counters,
    to_server: Link,
    to_client: Link,
    /// The time of one way, in microseconds.
    one_way: AtomicU64,
    /// Ends all connections that are open when a message arrives.
    cut: Notify,
}

/// One direction of a link that all connections share. A rate of 0 is no limit.
#[derive(Default)]
struct Link {
    rate: AtomicU64,
    /// When the bytes that were sent so far have passed.
    passed: Mutex<Option<Instant>>,
}

/// The connections take turns on a slow link after this many bytes.
const PACKET: usize = 16 << 10;

impl Link {
    /// Waits until this many bytes have passed.
    async fn pass(&self, bytes: usize) {
        let rate = self.rate.load(Ordering::SeqCst);
        if rate == 0 {
            return;
        }
        let end = {
            let mut passed = self.passed.lock().unwrap();
            let from = passed.map_or_else(Instant::now, |passed| passed.max(Instant::now()));
            let end = from + Duration::from_secs_f64(bytes as f64 / rate as f64);
            *passed = Some(end);
            end
        };
        sleep_until(end).await;
    }

    /// Reads what is there, as fast as the link lets it pass. Returns `false` at the end.
    async fn read(&self, from: &mut Incoming, into: &mut BytesMut) -> bool {
        let from = match from {
            Incoming::Direct(from) => from,
            Incoming::Far(packets) => {
                let Some((due, packet)) = packets.recv().await else { return false };
                sleep_until(due).await;
                self.pass(packet.len()).await;
                into.extend_from_slice(&packet);
                return true;
            }
        };
        if self.rate.load(Ordering::SeqCst) == 0 {
            return from.read_buf(into).await.is_ok_and(|read| read > 0);
        }
        let mut packet = [0; PACKET];
        let read = from.read(&mut packet).await.unwrap_or(0);
        self.pass(read).await;
        into.extend_from_slice(&packet[..read]);
        read > 0
    }
}

/// The bytes that arrive on one side of a connection.
enum Incoming {
    Direct(OwnedReadHalf),
    /// Each packet with the time at which it is due.
    Far(mpsc::UnboundedReceiver<(Instant, Bytes)>),
}

impl Incoming {
    fn new(mut from: OwnedReadHalf, shared: Arc<Shared>) -> Self {
        if shared.one_way().is_zero() {
            return Self::Direct(from);
        }
        let (send, packets) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            let mut packet = BytesMut::with_capacity(PACKET);
            while from.read_buf(&mut packet).await.is_ok_and(|read| read > 0) {
                let due = Instant::now() + shared.one_way();
                let arrived = packet.split().freeze();
                if send.send((due, arrived)).is_err() {
                    return;
                }
            }
        });
        Self::Far(packets)
    }
}

/// See the [module](self).
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
    end: watch::Sender<bool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Proxy {
    /// Starts a proxy in front of a server on a port of the loopback interface.
    pub fn start(server: u16) -> Self {
        let mut names_by_digest = HashMap::new();
        for (name, source) in scripts() {
            names_by_digest.insert(digest(source), name);
        }
        let shared = Arc::new(Shared {
            server,
            mode: Mutex::new(Mode::Pass),
            rules: Mutex::default(),
            pushes: Mutex::default(),
            scripts: names_by_digest,
            seen: Mutex::default(),
            counters: Counters::default(),
            to_server: Link::default(),
            to_client: Link::default(),
            one_way: AtomicU64::new(0),
            cut: Notify::new(),
        });
        let (end, mut ended) = watch::channel(false);
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        listener.set_nonblocking(true).expect("a socket that does not block");
        let address = listener.local_addr().expect("a bound socket has an address");
        let port = address.port();
        let theirs = shared.clone();
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async move {
                let listener = TcpListener::from_std(listener).expect("a listener");
                tokio::select! {
                    () = accept(listener, theirs) => {}
                    _ = ended.wait_for(|end| *end) => {}
                }
            });
        });
        Self { port, shared, end, thread: Some(thread) }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// Gives the fault to each matching command from now on, until [`clear`](Self::clear).
    pub fn when(
        &self,
        matches: impl Fn(&Request) -> bool + Send + Sync + 'static,
        fault: Fault,
    ) -> Hits {
        self.when_times(usize::MAX, matches, fault)
    }

    /// Gives the fault to the next matching command.
    pub fn once(
        &self,
        matches: impl Fn(&Request) -> bool + Send + Sync + 'static,
        fault: Fault,
    ) -> Hits {
        self.when_times(1, matches, fault)
    }

    pub fn when_times(
        &self,
        times: usize,
        matches: impl Fn(&Request) -> bool + Send + Sync + 'static,
        fault: Fault,
    ) -> Hits {
        let hits = Arc::new(AtomicUsize::new(0));
        let rule = Rule {
            matches: Box::new(matches),
            fault,
            left: AtomicUsize::new(times),
            hits: hits.clone(),
        };
        let mut rules = self.shared.rules.lock().unwrap();
        rules.push(Arc::new(rule));
        Hits(hits)
    }

    /// Gives the fault to each pushed message from now on.
    pub fn pushes(&self, fault: Option<PushFault>) {
        *self.shared.pushes.lock().unwrap() = fault;
    }

    pub fn mode(&self, mode: Mode) {
        *self.shared.mode.lock().unwrap() = mode;
    }

    /// Limits the bytes in each second of each direction, for all connections together.
    pub fn limit_rate(&self, bytes_per_second: u64) {
        for link in [&self.shared.to_server, &self.shared.to_client] {
            link.rate.store(bytes_per_second, Ordering::SeqCst);
        }
    }

    /// Lengthens each round trip by this time. It applies to connections that are made from now on,
    /// and to connections that were lengthened before.
    pub fn lengthen_round_trip(&self, by: Duration) {
        self.shared.one_way.store(by.as_micros() as u64 / 2, Ordering::SeqCst);
    }

    /// Closes all open connections.
    pub fn cut(&self) {
        self.shared.cut.notify_waiters();
    }

    /// Removes all rules.
    pub fn clear(&self) {
        let mut rules = self.shared.rules.lock().unwrap();
        rules.clear();
        drop(rules);
        self.pushes(None);
        self.mode(Mode::Pass);
    }

    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// Returns how many commands of a kind clients have sent.
    pub fn seen(&self, kind: &str) -> u64 {
        let seen = self.shared.seen.lock().unwrap();
        seen.get(kind).copied().unwrap_or(0)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.end.send_replace(true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        let Ok((client, _)) = listener.accept().await else { continue };
        let mode = *shared.mode.lock().unwrap();
        if mode == Mode::Refuse {
            shared.counters.refused.fetch_add(1, Ordering::SeqCst);
            continue;
        }
        shared.counters.connections.fetch_add(1, Ordering::SeqCst);
        if mode == Mode::Stall {
            shared.counters.stalled.fetch_add(1, Ordering::SeqCst);
        }
        let shared = shared.clone();
        tokio::spawn(async move {
            let server = match mode {
                Mode::Stall => None,
                _ => TcpStream::connect(("127.0.0.1", shared.server)).await.ok(),
            };
            let cut = shared.cut.notified();
            tokio::select! {
                () = Connection::run(client, server, mode == Mode::Stall, shared.clone()) => {}
                () = cut => {}
            }
        });
    }
}

/// What the next answer on a connection is, and its fault.
#[derive(Debug)]
enum Expected {
    Answer(Option<Fault>),
    /// This many confirmations of subscriptions, which are pushes, or one answer that refuses them.
    /// A fault concerns the refusal.
    Subscriptions(usize, Option<Fault>),
    /// The second answer to a command that was doubled.
    Second,
}

struct Connection {
    shared: Arc<Shared>,
    expected: Mutex<VecDeque<Expected>>,
    to_client: AsyncMutex<OwnedWriteHalf>,
    held: AsyncMutex<Option<Bytes>>,
    silent: Mutex<bool>,
}

impl Connection {
    async fn run(client: TcpStream, server: Option<TcpStream>, stalled: bool, shared: Arc<Shared>) {
        let _ = client.set_nodelay(true);
        if stalled {
            let (mut from_client, _keep) = client.into_split();
            let mut swallowed = vec![0; 4096];
            while from_client.read(&mut swallowed).await.is_ok_and(|read| read > 0) {}
            return;
        }
        let Some(server) = server else { return };
        let _ = server.set_nodelay(true);
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        let connection = Arc::new(Self {
            shared,
            expected: Mutex::default(),
            to_client: AsyncMutex::new(to_client),
            held: AsyncMutex::new(None),
            silent: Mutex::new(false),
        });
        let requests = Incoming::new(from_client, connection.shared.clone());
        let answers = Incoming::new(from_server, connection.shared.clone());
        tokio::select! {
            () = connection.requests(requests, to_server) => {}
            () = connection.answers(answers) => {}
        }
    }

    fn is_silent(&self) -> bool {
        let mut silent = self.silent.lock().unwrap();
        *silent |= *self.shared.mode.lock().unwrap() == Mode::Stall;
        *silent
    }

    async fn requests(&self, mut from: Incoming, mut to: OwnedWriteHalf) {
        let mut buffer = BytesMut::new();
        loop {
            while let Some(frame) = take_frame(&mut buffer) {
                let request = self.shared.request(&frame);
                self.shared.count(&request);
                if self.is_silent() {
                    continue;
                }
                let fault = self.shared.fault(&request);
                if fault == Some(Fault::CutBefore) {
                    return;
                }
                let subscribing = matches!(
                    request.kind.as_str(),
                    "subscribe" | "unsubscribe" | "ssubscribe" | "sunsubscribe"
                );
                let is_doubled = fault == Some(Fault::Double) && !subscribing;
                if subscribing {
                    let confirmations = request.words.len().max(2) - 1;
                    self.expect(Expected::Subscriptions(confirmations, fault));
                } else {
                    self.expect(Expected::Answer(fault));
                }
                if is_doubled {
                    self.expect(Expected::Second);
                }
                if to.write_all(&frame).await.is_err() {
                    return;
                }
                if is_doubled && to.write_all(&frame).await.is_err() {
                    return;
                }
            }
            if !self.shared.to_server.read(&mut from, &mut buffer).await {
                return;
            }
        }
    }

    fn expect(&self, answer: Expected) {
        let mut expected = self.expected.lock().unwrap();
        expected.push_back(answer);
    }

    /// Takes what the next answer was expected to be.
    fn next_expected(&self) -> Option<Expected> {
        let mut expected = self.expected.lock().unwrap();
        expected.pop_front()
    }

    async fn answers(self: &Arc<Self>, mut from: Incoming) {
        let mut buffer = BytesMut::new();
        loop {
            while let Some(frame) = take_frame(&mut buffer) {
                let passes = match frame.first() {
                    Some(b'>') => self.push(frame).await,
                    _ => self.answer(frame).await,
                };
                if !passes {
                    return;
                }
            }
            // The answers pass the link where they are written.
            if !Link::default().read(&mut from, &mut buffer).await {
                return;
            }
        }
    }

    /// Returns `false` if the connection must end.
    async fn answer(&self, frame: Bytes) -> bool {
        let expected = self.next_expected();
        if self.is_silent() {
            return true;
        }
        let fault = match expected {
            Some(Expected::Answer(fault) | Expected::Subscriptions(_, fault)) => fault,
            Some(Expected::Second) => return true,
            None => None,
        };
        match fault {
            None | Some(Fault::Double | Fault::CutBefore) => self.write(&frame).await,
            Some(Fault::Silence) => {
                *self.silent.lock().unwrap() = true;
                true
            }
            Some(Fault::Swallow) => true,
            Some(Fault::Delay(time)) => {
                sleep(time).await;
                self.write(&frame).await
            }
            Some(Fault::Cut) => false,
            Some(Fault::CutInHalf) => {
                self.write(&frame.slice(..frame.len() / 2)).await;
                false
            }
        }
    }

    async fn push(self: &Arc<Self>, frame: Bytes) -> bool {
        let words = words(&frame);
        let is_message = matches!(words.first().map(AsRef::as_ref), Some(b"message" | b"smessage"));
        if !is_message {
            self.confirmed();
            return self.is_silent() || self.write(&frame).await;
        }
        if self.is_silent() {
            return true;
        }
        let fault = *self.shared.pushes.lock().unwrap();
        if fault.is_some() {
            self.shared.counters.pushes_spoilt.fetch_add(1, Ordering::SeqCst);
        }
        match fault {
            None => self.write(&frame).await,
            Some(PushFault::Drop) => true,
            Some(PushFault::Double) => self.write(&frame).await && self.write(&frame).await,
            Some(PushFault::Delay(time)) => {
                let connection = self.clone();
                tokio::spawn(async move {
                    sleep(time).await;
                    connection.write(&frame).await;
                });
                true
            }
            Some(PushFault::Reorder) => {
                let earlier = self.held.lock().await.take();
                if let Some(earlier) = earlier {
                    return self.write(&frame).await && self.write(&earlier).await;
                }
                *self.held.lock().await = Some(frame);
                let connection = self.clone();
                tokio::spawn(async move {
                    sleep(Duration::from_millis(100)).await;
                    let held = connection.held.lock().await.take();
                    if let Some(held) = held {
                        connection.write(&held).await;
                    }
                });
                true
            }
        }
    }

    /// Handles the start or the end of a subscription.
    fn confirmed(&self) {
        let mut expected = self.expected.lock().unwrap();
        if let Some(Expected::Subscriptions(left, _)) = expected.front_mut() {
            *left -= 1;
            if *left == 0 {
                expected.pop_front();
            }
        }
    }

    async fn write(&self, frame: &[u8]) -> bool {
        let mut client = self.to_client.lock().await;
        for packet in frame.chunks(PACKET) {
            self.shared.to_client.pass(packet.len()).await;
            if client.write_all(packet).await.is_err() {
                return false;
            }
        }
        true
    }
}

impl Shared {
    fn one_way(&self) -> Duration {
        Duration::from_micros(self.one_way.load(Ordering::SeqCst))
    }

    /// Returns the fault of a command. The rule counts the command.
    fn fault(&self, request: &Request) -> Option<Fault> {
        let rules = Vec::clone(&self.rules.lock().unwrap());
        for rule in rules {
            if (rule.matches)(request) && rule.take() {
                return Some(rule.fault);
            }
        }
        None
    }

    fn count(&self, request: &Request) {
        let mut seen = self.seen.lock().unwrap();
        *seen.entry(request.kind.clone()).or_default() += 1;
    }

    fn request(&self, frame: &Bytes) -> Request {
        let mut request = Request { kind: String::new(), words: words(frame), keys: Vec::new() };
        let command = request.text(0).to_lowercase();
        match command.as_str() {
            "eval" | "evalsha" => self.read_script(&mut request, &command),
            _ => {
                if request.words.len() > 1 {
                    request.keys.push(request.text(1));
                }
                // A part of an entry is a `get`, too.
                request.kind = if command == "getrange" { "get".to_owned() } else { command };
            }
        }
        request
    }

    /// Reads the kind and the keys of a call of a script.
    fn read_script(&self, request: &mut Request, command: &str) {
        let script = request.text(1);
        let digest = if command == "eval" { digest(&script) } else { script };
        let keys: usize = request.text(2).parse().unwrap_or(0);
        let first_argument = 3 + keys;
        request.keys = (3..first_argument).map(|at| request.text(at)).collect();
        request.kind = match self.scripts.get(&digest) {
            // The script of several operations, which its first argument names.
            Some(&"change") => request.text(first_argument),
            Some(name) => (*name).to_owned(),
            None => command.to_owned(),
        };
        if request.kind == "end_load" {
            let is_failure = request.text(first_argument + 1).starts_with('f');
            request.kind = if is_failure { "fail" } else { "release" }.to_owned();
        }
    }
}

impl Request {
    /// Returns a word of the command as text, which is empty if there is none.
    fn text(&self, at: usize) -> String {
        let word = self.words.get(at).map(|word| String::from_utf8_lossy(word).into_owned());
        word.unwrap_or_default()
    }
}

impl Rule {
    /// Counts a command, unless the rule has met all that it is for.
    fn take(&self) -> bool {
        let left =
            self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        if left.is_ok() {
            self.hits.fetch_add(1, Ordering::SeqCst);
        }
        left.is_ok()
    }
}

/// Takes a whole frame from the front of a buffer.
fn take_frame(buffer: &mut BytesMut) -> Option<Bytes> {
    let end = frame_end(buffer, 0)?;
    Some(buffer.split_to(end).freeze())
}

/// Returns the end of the frame that begins at `at`, or `None` if the frame is not complete.
fn frame_end(bytes: &[u8], at: usize) -> Option<usize> {
    let line = at + bytes.get(at..)?.windows(2).position(|two| two == b"\r\n")? + 2;
    match bytes[at] {
        b'$' | b'!' | b'=' => {
            let length = number(&bytes[at + 1..line - 2]);
            let end = if length < 0 { line } else { line + length as usize + 2 };
            if bytes.len() < end { None } else { Some(end) }
        }
        kind @ (b'*' | b'~' | b'>' | b'%' | b'|') => {
            let count = number(&bytes[at + 1..line - 2]).max(0);
            // An attribute precedes the value that it describes.
            let count = match kind {
                b'%' => 2 * count,
                b'|' => 2 * count + 1,
                _ => count,
            };
            let mut end = line;
            for _ in 0..count {
                end = frame_end(bytes, end)?;
            }
            Some(end)
        }
        _ => Some(line),
    }
}

/// Reads a length or a count.
fn number(text: &[u8]) -> i64 {
    let text = std::str::from_utf8(text).expect("a number is text");
    text.parse().expect("a length or a count")
}

/// Returns the strings in a frame.
fn words(frame: &[u8]) -> Vec<Bytes> {
    let mut words = Vec::new();
    let values = match redis::parse_redis_value(frame) {
        Ok(Value::Array(values)) => values,
        Ok(Value::Push { kind, data }) => {
            words.push(Bytes::from(kind.to_string()));
            data
        }
        _ => Vec::new(),
    };
    for value in values {
        words.push(match value {
            Value::BulkString(bytes) => bytes.into(),
            Value::SimpleString(text) => text.into(),
            other => format!("{other:?}").into(),
        });
    }
    words
}

/// Returns the digest by which a server knows a script.
fn digest(source: &str) -> String {
    redis::Script::new(source).get_hash().to_owned()
}
