//! A proxy between a client and a Redis server that parses the traffic and injects faults.
//!
//! The proxy reads frames of RESP2 and RESP3 in both directions. So it can leave out *one* answer,
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
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};

use crate::scripts::{digest, names_by_digest};

/// A fault of one command or its answer. The answer to a subscription is its first confirmation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The command is done, and its answer is lost. From then on the connection is silent: no bytes
    /// pass in either direction.
    Silence,
    /// The command is done, and its answer is left out. The client takes the answer to its next
    /// command for this one.
    Swallow,
    /// The answer comes late, and so do all answers and pushes behind it.
    Delay(Duration),
    /// The server gets the command twice, unless it subscribes. The client gets one answer.
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
    /// Each message comes this much later. Answers overtake it.
    Delay(Duration),
    Double,
    /// Two messages in a row change places. A message without a second one comes after 100 ms.
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
    /// The file name of a script, such as `claim`, `acquire` or `commit`. The script `change` has
    /// the name of its operation instead, and `end_load` is a `fail` or a `release`. For any other
    /// command, its name in lower case. A read of an entry is a `get`, in part or whole.
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

/// Counts the commands that a rule has met. A command counts when the proxy has sent it to the
/// server, or has ended the connection in its place.
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
    push_fault: Mutex<Option<PushFault>>,
    scripts: HashMap<String, &'static str>,
    seen: Mutex<HashMap<String, u64>>,
    counters: Counters,
    to_server: Link,
    to_client: Link,
    /// The time of one way, in microseconds.
    one_way: AtomicU64,
    /// Ends all connections that were accepted before a notification.
    cut: Arc<Notify>,
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

    fn set_rate(&self, bytes_per_second: u64) {
        self.rate.store(bytes_per_second, Ordering::SeqCst);
        // The bytes before passed at another rate.
        *self.passed.lock().unwrap() = None;
    }
}

/// The bytes that arrive on one side of a connection.
enum Incoming {
    Direct(OwnedReadHalf),
    Far {
        /// Each packet with the time at which it is due.
        packets: mpsc::UnboundedReceiver<(Instant, Bytes)>,
        /// Ends with the connection, and closes its socket.
        _reader: JoinSet<()>,
    },
}

impl Incoming {
    fn new(mut from: OwnedReadHalf, shared: Arc<Shared>) -> Self {
        if shared.one_way().is_zero() {
            return Self::Direct(from);
        }
        let (send, packets) = mpsc::unbounded_channel();
        let mut reader = JoinSet::new();
        reader.spawn(async move {
            let mut packet = BytesMut::with_capacity(PACKET);
            while from.read_buf(&mut packet).await.is_ok_and(|read| read > 0) {
                let due = Instant::now() + shared.one_way();
                let arrived = packet.split().freeze();
                if send.send((due, arrived)).is_err() {
                    return;
                }
            }
        });
        Self::Far { packets, _reader: reader }
    }

    /// Reads what is there, as fast as a link lets it pass. Returns `false` at the end.
    async fn read(&mut self, link: Option<&Link>, into: &mut BytesMut) -> bool {
        let read = match self {
            Self::Direct(from) => {
                into.reserve(PACKET);
                from.take(PACKET as u64).read_buf(into).await.unwrap_or(0)
            }
            Self::Far { packets, .. } => {
                let Some((due, packet)) = packets.recv().await else { return false };
                sleep_until(due).await;
                into.extend_from_slice(&packet);
                packet.len()
            }
        };
        if let Some(link) = link {
            link.pass(read).await;
        }
        read > 0
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
        let shared = Arc::new(Shared {
            server,
            mode: Mutex::new(Mode::Pass),
            rules: Mutex::default(),
            push_fault: Mutex::default(),
            scripts: names_by_digest(),
            seen: Mutex::default(),
            counters: Counters::default(),
            to_server: Link::default(),
            to_client: Link::default(),
            one_way: AtomicU64::new(0),
            cut: Arc::default(),
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

    /// Gives the fault to each matching command from now on, until [`clear`](Self::clear). If
    /// several rules match, the oldest one decides.
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
    pub fn set_push_fault(&self, fault: Option<PushFault>) {
        *self.shared.push_fault.lock().unwrap() = fault;
    }

    pub fn set_mode(&self, mode: Mode) {
        *self.shared.mode.lock().unwrap() = mode;
    }

    /// Limits the bytes in each second of each direction, for all connections together.
    pub fn limit_rate(&self, bytes_per_second: u64) {
        for link in [&self.shared.to_server, &self.shared.to_client] {
            link.set_rate(bytes_per_second);
        }
    }

    /// Lengthens each round trip by this time. It applies to connections that are made from now on,
    /// and to connections that were lengthened before.
    pub fn lengthen_round_trip(&self, by: Duration) {
        self.shared.one_way.store(by.as_micros() as u64 / 2, Ordering::SeqCst);
    }

    /// Closes all connections, those that are being made included.
    pub fn cut(&self) {
        self.shared.cut.notify_waiters();
    }

    /// Removes all rules and the fault of pushes, and lets connections pass.
    pub fn clear(&self) {
        let mut rules = self.shared.rules.lock().unwrap();
        rules.clear();
        drop(rules);
        self.set_push_fault(None);
        self.set_mode(Mode::Pass);
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
        let cut = shared.cut.clone().notified_owned();
        shared.counters.connections.fetch_add(1, Ordering::SeqCst);
        if mode == Mode::Stall {
            shared.counters.stalled.fetch_add(1, Ordering::SeqCst);
        }
        let shared = shared.clone();
        tokio::spawn(async move {
            let served = async {
                match mode {
                    Mode::Stall => drop_all(client).await,
                    _ => Connection::run(client, shared).await,
                }
            };
            tokio::select! {
                () = served => {}
                () = cut => {}
            }
        });
    }
}

/// Reads and drops all bytes of a client until its end.
async fn drop_all(mut client: TcpStream) {
    let mut dropped = vec![0; 4096];
    while client.read(&mut dropped).await.is_ok_and(|read| read > 0) {}
}

/// What the next answer on a connection is, and its fault.
#[derive(Debug)]
enum Expected {
    Answer(Option<Fault>),
    /// This many confirmations of subscriptions, which are pushes, or one answer that refuses them.
    /// A fault concerns the first confirmation, or the refusal.
    Subscriptions(usize, Option<Fault>),
    /// The second answer to a command that was doubled.
    Second,
}

struct Connection {
    shared: Arc<Shared>,
    expected: Mutex<VecDeque<Expected>>,
    to_client: AsyncMutex<OwnedWriteHalf>,
    /// The message that waits for the next one, with its number.
    held: AsyncMutex<Option<(u64, Bytes)>>,
    next_held: AtomicU64,
    silent: Mutex<bool>,
}

impl Connection {
    async fn run(client: TcpStream, shared: Arc<Shared>) {
        let address = ("127.0.0.1", shared.server);
        let Ok(server) = TcpStream::connect(address).await else { return };
        let _ = client.set_nodelay(true);
        let _ = server.set_nodelay(true);
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        let connection = Arc::new(Self {
            shared,
            expected: Mutex::default(),
            to_client: AsyncMutex::new(to_client),
            held: AsyncMutex::new(None),
            next_held: AtomicU64::new(0),
            silent: Mutex::new(false),
        });
        let requests = Incoming::new(from_client, connection.shared.clone());
        let answers = Incoming::new(from_server, connection.shared.clone());
        tokio::select! {
            () = connection.requests(requests, to_server) => {}
            () = connection.answers(answers) => {}
        }
    }

    /// Returns whether the connection is silent, and has it stay silent if it is now.
    fn stays_silent(&self) -> bool {
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
                if self.stays_silent() {
                    continue;
                }
                let rule = self.shared.take_rule(&request);
                let hits = rule.as_ref().map(|rule| rule.hits.clone()).unwrap_or_default();
                let fault = rule.map(|rule| rule.fault);
                if fault == Some(Fault::CutBefore) {
                    hits.fetch_add(1, Ordering::SeqCst);
                    return;
                }
                let subscribing = matches!(
                    request.kind.as_str(),
                    "subscribe" | "unsubscribe" | "ssubscribe" | "sunsubscribe"
                );
                let is_doubled = fault == Some(Fault::Double) && !subscribing;
                if subscribing {
                    // One for each channel. The client names all channels, also to unsubscribe.
                    let confirmations = request.words.len() - 1;
                    assert!(confirmations > 0, "{} without channels", request.kind);
                    self.push_expected(Expected::Subscriptions(confirmations, fault));
                } else {
                    self.push_expected(Expected::Answer(fault));
                }
                if is_doubled {
                    self.push_expected(Expected::Second);
                }
                if to.write_all(&frame).await.is_err() {
                    return;
                }
                if is_doubled && to.write_all(&frame).await.is_err() {
                    return;
                }
                hits.fetch_add(1, Ordering::SeqCst);
            }
            if !from.read(Some(&self.shared.to_server), &mut buffer).await {
                return;
            }
        }
    }

    fn push_expected(&self, answer: Expected) {
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
            if !from.read(None, &mut buffer).await {
                return;
            }
        }
    }

    /// Returns `false` if the connection must end.
    async fn answer(&self, frame: Bytes) -> bool {
        match self.next_expected() {
            Some(Expected::Answer(fault) | Expected::Subscriptions(_, fault)) => {
                self.write_with(fault, &frame).await
            }
            Some(Expected::Second) => true,
            None => self.write(&frame).await,
        }
    }

    /// Writes an answer with the fault of its command. Returns `false` if the connection must end.
    async fn write_with(&self, fault: Option<Fault>, frame: &Bytes) -> bool {
        if self.stays_silent() {
            return true;
        }
        match fault {
            None | Some(Fault::Double | Fault::CutBefore) => self.write(frame).await,
            Some(Fault::Silence) => {
                *self.silent.lock().unwrap() = true;
                true
            }
            Some(Fault::Swallow) => true,
            Some(Fault::Delay(time)) => {
                sleep(time).await;
                self.write(frame).await
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
            let fault = self.note_confirmation();
            return self.write_with(fault, &frame).await;
        }
        if self.stays_silent() {
            return true;
        }
        let fault = *self.shared.push_fault.lock().unwrap();
        if fault.is_some() {
            self.shared.counters.pushes_spoilt.fetch_add(1, Ordering::SeqCst);
        }
        match fault {
            None => self.write(&frame).await,
            Some(PushFault::Drop) => true,
            Some(PushFault::Double) => self.write(&frame).await && self.write(&frame).await,
            Some(PushFault::Delay(time)) => {
                // Weak, so that the message does not keep a connection open that was cut.
                let connection = Arc::downgrade(self);
                tokio::spawn(async move {
                    sleep(time).await;
                    if let Some(connection) = connection.upgrade() {
                        connection.write(&frame).await;
                    }
                });
                true
            }
            Some(PushFault::Reorder) => {
                let earlier = self.held.lock().await.take();
                if let Some((_, earlier)) = earlier {
                    return self.write(&frame).await && self.write(&earlier).await;
                }
                let number = self.next_held.fetch_add(1, Ordering::SeqCst);
                *self.held.lock().await = Some((number, frame));
                let connection = Arc::downgrade(self);
                tokio::spawn(async move {
                    sleep(Duration::from_millis(100)).await;
                    if let Some(connection) = connection.upgrade() {
                        connection.write_held(number).await;
                    }
                });
                true
            }
        }
    }

    /// Writes the held message of this number, unless it has changed places with another one.
    async fn write_held(&self, number: u64) {
        let mut held = self.held.lock().await;
        if let Some((_, frame)) = held.take_if(|(other, _)| *other == number) {
            drop(held);
            self.write(&frame).await;
        }
    }

    /// Handles the start or the end of a subscription. Returns the fault of the first confirmation.
    fn note_confirmation(&self) -> Option<Fault> {
        let mut expected = self.expected.lock().unwrap();
        let Some(Expected::Subscriptions(left, fault)) = expected.front_mut() else { return None };
        let fault = fault.take();
        *left -= 1;
        if *left == 0 {
            expected.pop_front();
        }
        fault
    }

    /// Writes a frame to the client, unless the connection is silent. Returns `false` if the
    /// connection must end.
    async fn write(&self, frame: &[u8]) -> bool {
        if self.stays_silent() {
            return true;
        }
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

    /// Takes the first rule for a command that is not used up.
    fn take_rule(&self, request: &Request) -> Option<Arc<Rule>> {
        let rules = Vec::clone(&self.rules.lock().unwrap());
        rules.into_iter().find(|rule| (rule.matches)(request) && rule.take())
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
    /// Returns `false` if the rule is used up.
    fn take(&self) -> bool {
        let left =
            self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
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
