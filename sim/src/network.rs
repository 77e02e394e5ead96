//! The network of a schedule: streams in memory between processes and one server.
//!
//! Each connection has a pipe in each direction. Bytes arrive in their order after a delay, and the
//! delays of two connections are independent of each other. The weather says how long delays are;
//! faults cut connections, hold their bytes back, or swallow them.

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

/// The microsecond of the server's clock at the beginning of a schedule: the year 2100. No clock of
/// a machine that plays it is so far.
const EPOCH: i64 = 4_102_444_800_000_000;

/// How long bytes are under way.
#[derive(Clone, Copy, Debug)]
pub struct Weather {
    /// The longest delay of most bytes, in milliseconds.
    pub usual: u64,
    /// The longest delay of a few.
    pub longest: u64,
    /// How many of a thousand have such a delay.
    pub late: u32,
}

#[derive(Clone)]
pub struct World {
    shared: Arc<Shared>,
}

struct Shared {
    server: Mutex<Server>,
    /// The data before each of the last writes, the last one at the end.
    snapshots: Mutex<VecDeque<Snapshot>>,
    /// How many of them are kept.
    kept: usize,
    air: Mutex<Air>,
    begun: Instant,
    trace: Trace,
}

/// What decides when bytes arrive.
struct Air {
    rng: Rng,
    weather: Weather,
    lines: Vec<Arc<Line>>,
    next_line: u64,
    /// Bytes of a process are held back until then.
    held: Vec<(Process, Instant)>,
    /// No command runs until then.
    server_stands_until: Instant,
    /// The processes that were killed.
    dead: Vec<Process>,
    clock_offset: i64,
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
    /// Bytes are taken and never arrive.
    swallows: bool,
}

#[derive(Default)]
struct Pipe {
    chunks: VecDeque<(Instant, Vec<u8>)>,
    /// When the last chunk arrives.
    last: Option<Instant>,
    /// The writer has ended.
    has_ended: bool,
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
        kept: usize,
    ) -> Self {
        let now = Instant::now();
        let air = Air {
            rng: Rng::with_seed(seed),
            weather,
            lines: Vec::new(),
            next_line: 1,
            held: Vec::new(),
            server_stands_until: now,
            dead: Vec::new(),
            clock_offset: 0,
        };
        let server = Mutex::new(Server::new(planted));
        let air = Mutex::new(air);
        let snapshots = Mutex::default();
        Self { shared: Arc::new(Shared { server, snapshots, kept, air, begun: now, trace }) }
    }

    /// Begins a network without delays and faults for this thread, with an empty server. Its clock
    /// is right.
    pub fn calm() -> Self {
        let weather = Weather { usual: 0, longest: 0, late: 0 };
        let world = Self::new(1, weather, Trace::new(false), None, 0);
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        world.step_clock(i64::try_from(now.as_micros()).unwrap_or(EPOCH) - EPOCH);
        let network = world.clone();
        bellwether::sim::begin(1, move |host| network.open(host));
        world
    }

    /// Returns the server, with its clock set.
    pub fn server(&self) -> MutexGuard<'_, Server> {
        let elapsed = i64::try_from(self.shared.begun.elapsed().as_micros()).unwrap_or(i64::MAX);
        let offset = lock(&self.shared.air).clock_offset;
        let server = lock(&self.shared.server);
        server.set_time(EPOCH + elapsed + offset);
        server
    }

    /// Opens a connection for a process: the host `p3` is process 3.
    pub fn open(&self, host: &str) -> Opening {
        let process = host.trim_start_matches('p').parse().unwrap_or(0);
        let world = self.clone();
        Box::pin(async move {
            let (delay, is_dead) = {
                let mut air = lock(&world.shared.air);
                (air.delay(process), air.dead.contains(&process))
            };
            if is_dead {
                std::future::pending::<()>().await;
            }
            sleep(delay).await;
            Ok(Box::new(world.connect(process)) as Box<dyn bellwether::sim::SimulatedStream>)
        })
    }

    fn connect(&self, process: Process) -> End {
        let line = {
            let mut air = lock(&self.shared.air);
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
        self.shared.trace.add(|| format!("p{process} connects by line {}", line.number));
        let there = End::new(self, &line, true);
        let outlet = LineOutlet { world: self.clone(), line: line.clone() };
        let client = lock(&self.shared.server).connect(Arc::new(outlet));
        tokio::spawn(self.clone().serve(there, client));
        End::new(self, &line, false)
    }

    /// Runs the commands of a connection until that ends.
    async fn serve(self, mut end: End, client: ClientId) {
        let mut bytes = Vec::new();
        while let Ok(Some(more)) = poll_fn(|cx| end.poll_take(cx)).await {
            bytes.extend_from_slice(&more);
            while let Some((words, taken)) = take_command(&bytes) {
                bytes.drain(..taken);
                loop {
                    let until = lock(&self.shared.air).server_stands_until;
                    if until <= Instant::now() {
                        break;
                    }
                    sleep_until(until).await;
                }
                if lock(&end.line.pipes).is_cut {
                    break;
                }
                self.run(&end, client, &words);
            }
        }
        lock(&self.shared.server).disconnect(client);
    }

    fn run(&self, end: &End, client: ClientId, words: &[Vec<u8>]) {
        let reply = {
            let mut server = self.server();
            let before = (self.shared.kept > 0).then(|| (server.writes(), server.snapshot()));
            let reply = server.handle(client, words);
            if let Some((writes, snapshot)) = before
                && server.writes() > writes
            {
                let mut snapshots = lock(&self.shared.snapshots);
                snapshots.push_back(snapshot);
                if snapshots.len() > self.shared.kept {
                    snapshots.pop_front();
                }
            }
            reply
        };
        let line = &end.line;
        self.shared.trace.add(|| {
            format!("p{} line {}:{} -> {}", line.process, line.number, shown(words), short(&reply))
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

    /// Swallows all further bytes of the present connections of a process, which stay open.
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
        lock(&self.shared.air).server_stands_until = Instant::now() + time;
    }

    /// Cuts a process off for good. Its connections are refused without an answer.
    pub fn kill(&self, process: Process) {
        lock(&self.shared.air).dead.push(process);
        self.cut(process);
    }

    /// Has the server refuse writes for a time, as a replica does.
    pub fn refuse_writes(&self, time: Duration) {
        self.server().refuse_writes(true);
        let world = self.clone();
        tokio::spawn(async move {
            sleep(time).await;
            world.server().refuse_writes(false);
        });
    }

    /// Ends all connections, and goes on with the data of so many writes ago.
    pub fn fail_over(&self, writes: usize) {
        self.cut_all();
        let mut snapshots = lock(&self.shared.snapshots);
        let kept = snapshots.len().saturating_sub(writes);
        let snapshot = snapshots.get(kept).cloned();
        snapshots.truncate(kept);
        drop(snapshots);
        if let Some(snapshot) = snapshot {
            self.server().fail_over_to(snapshot);
        } else {
            self.server().end_connections();
        }
    }

    pub fn step_clock(&self, micros: i64) {
        lock(&self.shared.air).clock_offset += micros;
    }
}

impl Air {
    fn delay(&mut self, process: Process) -> Duration {
        let Weather { usual, longest, late } = self.weather;
        let most = if self.rng.u32(0..1000) < late { longest } else { usual };
        let delay = Duration::from_millis(self.rng.u64(0..=most));
        let now = Instant::now();
        self.held.retain(|(_, until)| *until > now);
        let held = self.held.iter().filter(|(other, _)| *other == process);
        held.map(|(_, until)| *until - now).fold(delay, Duration::max)
    }
}

impl Pipe {
    fn wake(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }

    fn push(&mut self, at: Instant, bytes: Vec<u8>) {
        let at = self.last.map_or(at, |last| last.max(at));
        self.last = Some(at);
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

/// One end of a connection.
struct End {
    world: World,
    line: Arc<Line>,
    is_server: bool,
    timer: Pin<Box<Sleep>>,
    /// What was taken and not read yet.
    taken: VecDeque<u8>,
}

impl End {
    fn new(world: &World, line: &Arc<Line>, is_server: bool) -> Self {
        let timer = Box::pin(sleep(Duration::ZERO));
        let world = world.clone();
        let line = line.clone();
        Self { world, line, is_server, timer, taken: VecDeque::new() }
    }

    /// Takes what has arrived. Returns `None` at the end.
    fn poll_take(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<Vec<u8>>>> {
        loop {
            let mut pipes = lock(&self.line.pipes);
            if pipes.is_cut {
                return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
            }
            let pipe = if self.is_server { &mut pipes.to_server } else { &mut pipes.to_client };
            let arrives = match pipe.chunks.front() {
                None if pipe.has_ended => return Poll::Ready(Ok(None)),
                None => {
                    pipe.reader = Some(cx.waker().clone());
                    return Poll::Pending;
                }
                Some((at, _)) => *at,
            };
            if arrives <= Instant::now() {
                return Poll::Ready(Ok(pipe.chunks.pop_front().map(|(_, bytes)| bytes)));
            }
            pipe.reader = Some(cx.waker().clone());
            drop(pipes);
            if self.timer.deadline() != arrives {
                self.timer.as_mut().reset(arrives);
            }
            if self.timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
    }
}

impl AsyncRead for End {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.taken.is_empty() {
            match std::task::ready!(self.poll_take(cx))? {
                Some(bytes) => self.taken.extend(bytes),
                None => return Poll::Ready(Ok(())),
            }
        }
        let count = self.taken.len().min(into.remaining());
        let bytes: Vec<u8> = self.taken.drain(..count).collect();
        into.put_slice(&bytes);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for End {
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

impl Drop for End {
    fn drop(&mut self) {
        let mut pipes = lock(&self.line.pipes);
        let pipe = if self.is_server { &mut pipes.to_client } else { &mut pipes.to_server };
        pipe.has_ended = true;
        pipe.wake();
    }
}

/// Returns the words of a command, each without its end if it is long.
fn shown(words: &[Vec<u8>]) -> String {
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

fn short(reply: &Reply) -> String {
    let text = reply.to_string();
    match text.char_indices().nth(160) {
        Some((end, _)) => format!("{}..", &text[..end]),
        None => text,
    }
}
