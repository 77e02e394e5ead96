//! The network of a schedule: streams in memory between processes and one server.
//!
//! Each connection is a line with a pipe in each direction. The bytes of a pipe arrive in their
//! order, each after a delay. The delays of two lines are independent of each other. The weather
//! says how long delays are. Faults cut lines, hold their bytes back, or swallow the bytes.
//!
//! Locks are taken in one order: the server, then the air, then the pipes of a line.

use std::{
    collections::VecDeque,
    future::poll_fn,
    io,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
    time::{Duration, SystemTime},
};

use bellwether::sim::Opening;
use bytes::Bytes;
use fastrand::Rng;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep, sleep_until},
};

use crate::{
    planted::Planted,
    server::{
        Server, Snapshot,
        data::{ClientId, Outlet},
        reply::{Reply, take_command},
    },
    trace::Trace,
};

pub type Process = u32;

/// The server's clock at the beginning of a schedule, in microseconds: the year 2100. The clock of
/// the machine is never so late, so a time of the machine that slips in is seen.
const EPOCH_MICROS: i64 = 4_102_444_800_000_000;

/// How long bytes are under way.
#[derive(Clone, Copy, Debug)]
pub struct Weather {
    /// Most delays are random up to this, in milliseconds.
    pub usual_ms: u64,
    /// Late delays are random up to this.
    pub longest_ms: u64,
    /// How many of a thousand delays are late.
    pub late_per_mille: u32,
}

#[derive(Clone)]
pub struct World {
    shared: Arc<Shared>,
}

struct Shared {
    server: Mutex<Server>,
    /// The data before each of the last writes. The newest snapshot is at the end.
    snapshots: Mutex<VecDeque<Snapshot>>,
    /// The most snapshots that are kept.
    snapshot_limit: usize,
    air: Mutex<Air>,
    begun: Instant,
    trace: Trace,
}

/// The state of the network, which decides when bytes arrive.
struct Air {
    rng: Rng,
    weather: Weather,
    lines: Vec<Arc<Line>>,
    next_line: u64,
    /// Processes whose bytes are held back, each with the end of that.
    held: Vec<(Process, Instant)>,
    /// The server runs no command before this instant.
    server_stalls_until: Instant,
    /// The server refuses writes before this instant.
    writes_refused_until: Instant,
    /// The processes that were killed.
    dead: Vec<Process>,
    clock_offset_micros: i64,
}

/// One connection.
struct Line {
    number: u64,
    process: Process,
    pipes: Mutex<Pipes>,
}

struct Pipes {
    to_server: Pipe,
    to_client: Pipe,
    is_cut: bool,
    /// The line takes bytes, and they never arrive. Each side learns late that the other has ended.
    swallows: bool,
}

#[derive(Default)]
struct Pipe {
    /// The bytes on their way, each chunk with its arrival.
    chunks: VecDeque<(Instant, Vec<u8>)>,
    /// The arrival of the newest chunk, also if that was read.
    newest: Option<Instant>,
    /// The writer has ended. The reader learns it at this instant.
    end: Option<Instant>,
    reader: Option<Waker>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl World {
    pub fn new(
        seed: u64,
        weather: Weather,
        trace: Trace,
        planted: Option<&'static Planted>,
        snapshot_limit: usize,
    ) -> Self {
        let now = Instant::now();
        let air = Air {
            rng: Rng::with_seed(seed),
            weather,
            lines: Vec::new(),
            next_line: 1,
            held: Vec::new(),
            server_stalls_until: now,
            writes_refused_until: now,
            dead: Vec::new(),
            clock_offset_micros: 0,
        };
        let server = Mutex::new(Server::new(planted));
        let air = Mutex::new(air);
        let snapshots = Mutex::default();
        Self {
            shared: Arc::new(Shared { server, snapshots, snapshot_limit, air, begun: now, trace }),
        }
    }

    /// Begins a network without delays and faults for this thread, with an empty server. The clock
    /// of the server is that of the machine.
    pub fn calm() -> Self {
        let weather = Weather { usual_ms: 0, longest_ms: 0, late_per_mille: 0 };
        let world = Self::new(1, weather, Trace::new(false), None, 0);
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        world.step_clock(i64::try_from(now.as_micros()).unwrap_or(EPOCH_MICROS) - EPOCH_MICROS);
        let network = world.clone();
        bellwether::sim::begin(1, move |host| network.open(host));
        world
    }

    /// Returns the server as it is now: its clock, and whether it refuses writes.
    pub fn server(&self) -> MutexGuard<'_, Server> {
        let now = Instant::now();
        let elapsed = now - self.shared.begun;
        let elapsed = i64::try_from(elapsed.as_micros()).unwrap_or(i64::MAX);
        let server = lock(&self.shared.server);
        let air = lock(&self.shared.air);
        server.set_time(EPOCH_MICROS + elapsed + air.clock_offset_micros);
        server.refuse_writes(now < air.writes_refused_until);
        drop(air);
        server
    }

    /// Opens a connection for a process: the host `p3` is process 3. The attempt of a process that
    /// is dead, or is killed meanwhile, never ends.
    pub fn open(&self, host: &str) -> Opening {
        let process = host.trim_start_matches('p').parse().unwrap_or(0);
        let world = self.clone();
        Box::pin(async move {
            let delay = lock(&world.shared.air).delay(process);
            sleep(delay).await;
            match world.connect(process) {
                Some(side) => Ok(Box::new(side) as Box<dyn bellwether::sim::SimulatedStream>),
                None => std::future::pending().await,
            }
        })
    }

    /// Makes a line, and returns the side of the process. A dead process gets none.
    fn connect(&self, process: Process) -> Option<Side> {
        let line = {
            let mut air = lock(&self.shared.air);
            // In one step with the new line, so that `kill` either cuts the line or prevents it.
            if air.dead.contains(&process) {
                return None;
            }
            let number = air.next_line;
            air.next_line += 1;
            let pipes = Pipes {
                to_server: Pipe::default(),
                to_client: Pipe::default(),
                is_cut: false,
                swallows: false,
            };
            let line = Arc::new(Line { number, process, pipes: Mutex::new(pipes) });
            air.lines.push(line.clone());
            line
        };
        let what = (process, line.number);
        self.shared.trace.add(what, || format!("p{process} connects by line {}", line.number));
        let side_of_server = Side::new(self, &line, true);
        let outlet = LineOutlet { world: self.clone(), line: line.clone() };
        let client = lock(&self.shared.server).connect(Arc::new(outlet));
        tokio::spawn(self.clone().serve(side_of_server, client));
        Some(Side::new(self, &line, false))
    }

    /// Runs the commands of a client until its line ends.
    async fn serve(self, mut side: Side, client: ClientId) {
        let mut bytes = Vec::new();
        while let Ok(Some(more)) = poll_fn(|cx| side.poll_take(cx)).await {
            bytes.extend_from_slice(&more);
            while let Some((words, taken)) = take_command(&bytes) {
                bytes.drain(..taken);
                loop {
                    let until = lock(&self.shared.air).server_stalls_until;
                    if until <= Instant::now() {
                        break;
                    }
                    sleep_until(until).await;
                }
                if lock(&side.line.pipes).is_cut {
                    break;
                }
                self.run(&side.line, client, &words);
            }
        }
        lock(&self.shared.server).disconnect(client);
    }

    fn run(&self, line: &Line, client: ClientId, words: &[Vec<u8>]) {
        let reply = {
            let mut server = self.server();
            let before =
                (self.shared.snapshot_limit > 0).then(|| (server.writes(), server.snapshot()));
            let reply = server.handle(client, words);
            if let Some((writes, snapshot)) = before
                && server.writes() > writes
            {
                let mut snapshots = lock(&self.shared.snapshots);
                snapshots.push_back(snapshot);
                if snapshots.len() > self.shared.snapshot_limit {
                    snapshots.pop_front();
                }
            }
            reply
        };
        // The beginning of a script tells which one it is.
        let begins: Vec<_> =
            words.iter().map(|word| (word.len(), &word[..word.len().min(200)])).collect();
        self.shared.trace.add((line.number, begins, &reply), || {
            format!(
                "p{} line {}:{} -> {}",
                line.process,
                line.number,
                words_text(words),
                reply_text(&reply)
            )
        });
    }

    /// Cuts all connections of a process.
    pub fn cut(&self, process: Process) {
        self.cut_where(|line| line.process == process);
    }

    /// Cuts the connections of all processes.
    pub fn cut_all(&self) {
        self.cut_where(|_| true);
    }

    fn cut_where(&self, which: impl Fn(&Line) -> bool) {
        let lines: Vec<_> = {
            let mut air = lock(&self.shared.air);
            air.lines.extract_if(.., |line| which(line)).collect()
        };
        for line in lines {
            let mut pipes = lock(&line.pipes);
            pipes.is_cut = true;
            pipes.to_client.wake();
            pipes.to_server.wake();
        }
    }

    /// Swallows what is sent on the present connections of a process from now on. The connections
    /// stay open.
    pub fn swallow(&self, process: Process) {
        for line in lock(&self.shared.air).lines.iter().filter(|line| line.process == process) {
            lock(&line.pipes).swallows = true;
        }
    }

    /// Holds the bytes of a process back for a time.
    pub fn hold(&self, process: Process, time: Duration) {
        let until = Instant::now() + time;
        lock(&self.shared.air).held.push((process, until));
    }

    /// Has the server run no command for a time.
    pub fn stall(&self, time: Duration) {
        let mut air = lock(&self.shared.air);
        air.server_stalls_until = air.server_stalls_until.max(Instant::now() + time);
    }

    /// Cuts a process off for good. Its further attempts to connect never end.
    pub fn kill(&self, process: Process) {
        lock(&self.shared.air).dead.push(process);
        self.cut(process);
    }

    /// Has the server refuse writes for a time, as a replica does.
    pub fn refuse_writes(&self, time: Duration) {
        let mut air = lock(&self.shared.air);
        air.writes_refused_until = air.writes_refused_until.max(Instant::now() + time);
    }

    /// Ends all connections, and continues with the data from before the last `writes` writes.
    pub fn fail_over(&self, writes: usize) {
        self.cut_all();
        let mut snapshots = lock(&self.shared.snapshots);
        let remaining = snapshots.len().saturating_sub(writes);
        let snapshot = snapshots.get(remaining).cloned();
        snapshots.truncate(remaining);
        drop(snapshots);
        if let Some(snapshot) = snapshot {
            self.server().fail_over_to(snapshot);
        } else {
            self.server().end_connections();
        }
    }

    pub fn step_clock(&self, micros: i64) {
        lock(&self.shared.air).clock_offset_micros += micros;
    }
}

impl Air {
    fn delay(&mut self, process: Process) -> Duration {
        let Weather { usual_ms, longest_ms, late_per_mille } = self.weather;
        let is_late = self.rng.u32(0..1000) < late_per_mille;
        let most = if is_late { longest_ms } else { usual_ms };
        let delay = Duration::from_millis(self.rng.u64(0..=most));
        let now = Instant::now();
        self.held.retain(|(_, until)| *until > now);
        let held = self.held.iter().filter(|(other, _)| *other == process);
        held.map(|(_, until)| *until - now).fold(delay, Duration::max)
    }

    /// Returns how late the end of one side of a swallowed line is known at the other side: up to a
    /// minute, with short times as likely as long ones.
    fn delay_of_swallowed_end(&mut self) -> Duration {
        Duration::from_millis(1 << self.rng.u32(0..17))
    }
}

impl Pipe {
    fn wake(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }

    fn push(&mut self, at: Instant, bytes: Vec<u8>) {
        let at = self.newest.map_or(at, |newest| newest.max(at));
        self.newest = Some(at);
        self.chunks.push_back((at, bytes));
        self.wake();
    }
}

/// Sends the replies of the server.
struct LineOutlet {
    world: World,
    line: Arc<Line>,
}

impl Outlet for LineOutlet {
    fn send(&self, bytes: Vec<u8>) {
        self.line.write(&self.world, bytes, false);
    }
}

impl Line {
    /// Sends bytes to the server, or to the client. Now and then they arrive in two parts.
    fn write(&self, world: &World, mut bytes: Vec<u8>, to_server: bool) {
        let mut air = lock(&world.shared.air);
        let mut pipes = lock(&self.pipes);
        if pipes.swallows || pipes.is_cut {
            return;
        }
        let pipe = if to_server { &mut pipes.to_server } else { &mut pipes.to_client };
        if bytes.len() > 1 && air.rng.u8(0..30) == 0 {
            let rest = bytes.split_off(air.rng.usize(1..bytes.len()));
            pipe.push(Instant::now() + air.delay(self.process), bytes);
            bytes = rest;
        }
        pipe.push(Instant::now() + air.delay(self.process), bytes);
    }
}

/// One side of a line.
struct Side {
    world: World,
    line: Arc<Line>,
    is_server: bool,
    timer: Pin<Box<Sleep>>,
    /// Bytes that have arrived, and that the reader has not asked for yet.
    unread: Bytes,
}

impl Side {
    fn new(world: &World, line: &Arc<Line>, is_server: bool) -> Self {
        let timer = Box::pin(sleep(Duration::ZERO));
        let world = world.clone();
        let line = line.clone();
        Self { world, line, is_server, timer, unread: Bytes::new() }
    }

    /// Takes the next chunk when it has arrived. Returns `None` if the other side has ended.
    fn poll_take(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<Vec<u8>>>> {
        loop {
            let mut pipes = lock(&self.line.pipes);
            if pipes.is_cut {
                return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
            }
            let pipe = if self.is_server { &mut pipes.to_server } else { &mut pipes.to_client };
            let arrival = pipe.chunks.front().map(|(at, _)| *at);
            let next = arrival.or(pipe.end);
            if next.is_some_and(|at| at <= Instant::now()) {
                return Poll::Ready(Ok(pipe.chunks.pop_front().map(|(_, bytes)| bytes)));
            }
            pipe.reader = Some(cx.waker().clone());
            drop(pipes);
            let Some(next) = next else { return Poll::Pending };
            if self.timer.deadline() != next {
                self.timer.as_mut().reset(next);
            }
            if self.timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
    }
}

impl AsyncRead for Side {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.unread.is_empty() {
            match std::task::ready!(self.poll_take(cx))? {
                Some(bytes) => self.unread = bytes.into(),
                None => return Poll::Ready(Ok(())),
            }
        }
        let count = self.unread.len().min(into.remaining());
        into.put_slice(&self.unread.split_to(count));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Side {
    fn poll_write(
        self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if lock(&self.line.pipes).is_cut {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        self.line.write(&self.world, bytes.to_vec(), !self.is_server);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// The other side learns of the end as of bytes. If the line swallows, that takes long: for the
/// server, the client is then half open, and still a subscriber.
impl Drop for Side {
    fn drop(&mut self) {
        let mut air = lock(&self.world.shared.air);
        let mut pipes = lock(&self.line.pipes);
        let delay = if pipes.swallows {
            air.delay_of_swallowed_end()
        } else {
            air.delay(self.line.process)
        };
        let pipe = if self.is_server { &mut pipes.to_client } else { &mut pipes.to_server };
        let end = Instant::now() + delay;
        pipe.end = Some(pipe.newest.map_or(end, |newest| newest.max(end)));
        pipe.wake();
    }
}

/// Returns a command as one line of text. Long words are cut short.
fn words_text(words: &[Vec<u8>]) -> String {
    let mut text = String::new();
    for (at, word) in words.iter().enumerate() {
        let most = if at == 1 && word.len() == 40 { 6 } else { 90 };
        let begin = String::from_utf8_lossy(&word[..word.len().min(most)]);
        text.push(' ');
        text.extend(begin.chars().map(|char| if char.is_control() { ' ' } else { char }));
        if word.len() > most {
            text.push_str("..");
        }
    }
    text
}

/// Returns a reply as text, which is cut short if it is long.
fn reply_text(reply: &Reply) -> String {
    let text = reply.to_string();
    match text.char_indices().nth(160) {
        Some((end, _)) => format!("{}..", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    fn world(seed: u64) -> World {
        let weather = Weather { usual_ms: 20, longest_ms: 20, late_per_mille: 0 };
        World::new(seed, weather, Trace::new(false), None, 0)
    }

    async fn ask(side: &mut (impl AsyncRead + AsyncWrite + Unpin), words: &[&str]) -> String {
        let mut command = format!("*{}\r\n", words.len());
        for word in words {
            command += &format!("${}\r\n{word}\r\n", word.len());
        }
        side.write_all(command.as_bytes()).await.unwrap();
        let mut reply = vec![0; 256];
        let count = side.read(&mut reply).await.unwrap();
        String::from_utf8_lossy(&reply[..count]).into_owned()
    }

    /// A process is killed while its attempt to connect is under way. Its tasks still run, and must
    /// not reach the server.
    #[tokio::test(start_paused = true)]
    async fn a_process_that_is_killed_while_it_connects_gets_no_line() {
        for millis in 0..25 {
            let world = world(millis);
            let mut opening = world.open("p1");
            if (&mut opening).now_or_never().is_some() {
                continue;
            }
            sleep(Duration::from_millis(millis)).await;
            world.kill(1);
            let opened = tokio::time::timeout(Duration::from_secs(60), opening).await;
            let Ok(Ok(mut side)) = opened else { continue };
            let read = side.read_u8().await;
            assert!(read.is_err(), "killed after {millis} ms, with a line that lives");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_short_stall_and_a_short_refusal_do_not_end_longer_ones() {
        let world = world(7);
        let begun = Instant::now();
        let mut side = world.open("p1").await.unwrap();
        world.stall(Duration::from_millis(500));
        world.stall(Duration::from_millis(100));
        assert_eq!(ask(&mut side, &["PING"]).await, "+PONG\r\n");
        assert!(begun.elapsed() >= Duration::from_millis(500), "{:?}", begun.elapsed());
        world.refuse_writes(Duration::from_millis(500));
        world.refuse_writes(Duration::from_millis(10));
        sleep(Duration::from_millis(300)).await;
        let refused = ask(&mut side, &["SET", "k", "v"]).await;
        assert!(refused.starts_with("-READONLY"), "{refused}");
        sleep(Duration::from_millis(300)).await;
        assert_eq!(ask(&mut side, &["SET", "k", "v"]).await, "+OK\r\n");
    }

    /// A client is gone, and its line swallowed what would have told the server.
    #[tokio::test(start_paused = true)]
    async fn a_half_open_client_is_a_subscriber_for_a_while() {
        let mut was_counted = false;
        for seed in 0..9 {
            let world = world(seed);
            let mut gone = world.open("p1").await.unwrap();
            ask(&mut gone, &["SUBSCRIBE", "news"]).await;
            world.swallow(1);
            drop(gone);
            let mut side = world.open("p2").await.unwrap();
            was_counted |= ask(&mut side, &["PUBLISH", "news", "1"]).await == ":1\r\n";
            sleep(Duration::from_secs(70)).await;
            assert_eq!(ask(&mut side, &["PUBLISH", "news", "2"]).await, ":0\r\n");
        }
        assert!(was_counted);
    }
}
