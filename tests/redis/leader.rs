//! One leader over a real server: no two at a time, and no gap between two.
//!
//! `cargo test --test redis leader:: -- --nocapture` prints how long the handovers took.

use std::{
    future::pending,
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bellwether::{Locks, lock::Term};
use testkit::{LIMIT, Raw, RedisServer, comes_true, proxy::Proxy, signal};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
    signal::unix::{SignalKind, signal as signals},
    sync::{
        Notify,
        mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    },
    task::JoinHandle,
    time::{Instant, timeout},
};

const MS: Duration = Duration::from_millis(1);

/// What the candidates of a test have in common.
#[derive(Clone)]
struct Fleet {
    url: String,
    leading: Arc<AtomicUsize>,
    terms: UnboundedSender<Term>,
}

impl Fleet {
    fn new(server: &RedisServer, terms: UnboundedSender<Term>) -> Self {
        Self { url: server.url(), leading: Arc::default(), terms }
    }

    /// Runs a candidate with connections of its own, which leads until it is dropped.
    fn stands(&self, lease: Duration) -> JoinHandle<()> {
        let (fleet, locks) = (self.clone(), Locks::new(testkit::open(&self.url), "bellwether"));
        tokio::spawn(async move {
            locks.leader("work").lease(lease).run(|term| fleet.clone().leads(term)).await.unwrap();
        })
    }

    async fn leads(self, term: Term) {
        let _ended = Leads::begin(self.leading);
        self.terms.send(term).unwrap();
        pending().await
    }
}

struct Leads(Arc<AtomicUsize>);

impl Leads {
    fn begin(leading: Arc<AtomicUsize>) -> Self {
        assert_eq!(leading.fetch_add(1, Ordering::SeqCst), 0, "two lead at a time");
        Self(leading)
    }
}

impl Drop for Leads {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The leader is stopped again and again, as in a rolling restart, and one takes its place.
#[tokio::test]
async fn each_restart_hands_over_with_two_commands() {
    let server = RedisServer::start().await;
    let mut raw = server.raw().await;
    let (sender, mut terms) = unbounded_channel();
    let fleet = Fleet::new(&server, sender);
    let lease = Duration::from_secs(60);
    let mut running = vec![fleet.stands(lease)];
    let mut term = timeout(LIMIT, terms.recv()).await.unwrap().unwrap();
    for _ in 0..5 {
        running.push(fleet.stands(lease));
        let queued = comes_true(LIMIT, async || !raw.keys("*:q").await.is_empty());
        assert!(queued.await, "the candidate does not queue");
        let (begun, before) = (Instant::now(), raw.scripts_called().await);
        running.remove(0).abort();
        let next = timeout(LIMIT, terms.recv()).await.expect("there is no leader").unwrap();
        let (took, scripts) = (begun.elapsed(), raw.scripts_called().await - before);
        assert!(term.is_lost() && next.fence() > term.fence());
        // The release, which grants, and the first renewal or the entries that are kept.
        assert!(scripts <= 2 && took < 500 * MS, "{scripts} scripts, {took:?}");
        term = next;
    }
    running.remove(0).abort();
}

/// A server that hangs for longer than the lease, and one that comes back empty: the old leader has
/// ended before another one begins.
#[tokio::test]
async fn no_two_lead_beside_a_server_that_hangs() {
    let server = RedisServer::start().await;
    let (sender, mut terms) = unbounded_channel();
    let fleet = Fleet::new(&server, sender);
    let lease = Duration::from_secs(1);
    let running: Vec<_> = (0..3).map(|_| fleet.stands(lease)).collect();
    let mut fence = 0;
    for _ in 0..3 {
        let term = timeout(LIMIT, terms.recv()).await.expect("there is no leader").unwrap();
        assert!(term.fence() > fence);
        fence = term.fence();
        server.stop_signal();
        timeout(LIMIT, term.lost()).await.expect("the loss is not told");
        let ended = comes_true(LIMIT, async || fleet.leading.load(Ordering::SeqCst) == 0);
        assert!(ended.await, "the work goes on after the loss");
        server.resume();
    }
    timeout(LIMIT, terms.recv()).await.expect("there is no leader").unwrap();
    running.iter().for_each(JoinHandle::abort);
}

/// Each round trip takes 300 ms. From the end of the work to the next leader's first act, there are
/// two at most: the release, whose script grants the lease, and the push that tells the next one.
#[tokio::test]
async fn the_next_leader_acts_within_two_round_trips() {
    const WAY: Duration = Duration::from_millis(300);
    const CANDIDATES: usize = 3;
    let server = RedisServer::start().await;
    let proxy = Proxy::start(server.port());
    proxy.lengthen_round_trip(WAY);
    let mut raw = server.raw().await;
    let (acts, ends) = (unbounded_channel(), unbounded_channel());
    let (mut acted, mut ended) = (acts.1, ends.1);
    let end = Arc::new(Notify::new());
    let candidates = (0..CANDIDATES).map(|_| {
        let locks = Locks::new(testkit::open(proxy.url()), "bellwether");
        let (acts, ends, end) = (acts.0.clone(), ends.0.clone(), end.clone());
        tokio::spawn(async move {
            let candidate = locks.leader("work").lease(Duration::from_secs(60));
            loop {
                let work = async |_term: Term| {
                    acts.send(Instant::now()).unwrap();
                    end.notified().await;
                    ends.send(Instant::now()).unwrap();
                };
                candidate.run(work).await.unwrap();
            }
        })
    });
    let candidates: Vec<_> = candidates.collect();
    let mut gaps = Vec::new();
    timeout(LIMIT, acted.recv()).await.expect("there is no leader").unwrap();
    // All of them have the channel of this process. One that came a moment ago does not listen yet.
    let hear = comes_true(LIMIT, async || listeners(&mut raw).await == CANDIDATES);
    assert!(hear.await, "a candidate does not subscribe");
    for _ in 0..CANDIDATES + 6 {
        others_queue(&mut raw, CANDIDATES - 1).await;
        end.notify_one();
        let end = timeout(LIMIT, ended.recv()).await.unwrap().unwrap();
        let act = timeout(LIMIT, acted.recv()).await.expect("there is no leader").unwrap();
        gaps.push(act - end);
    }
    println!("round trips of {WAY:?}; from the end of a term to the next act: {gaps:.0?}");
    candidates.iter().for_each(JoinHandle::abort);
    // A first request that waits for its connection makes the waiter ask once more.
    let later = all_but_the_longest(gaps.split_off(CANDIDATES));
    // A busy machine may be late once. The half of a round trip tells two of them from three.
    assert!(later.iter().all(|gap| *gap < 5 * WAY / 2), "{later:?}");
}

fn all_but_the_longest(mut gaps: Vec<Duration>) -> Vec<Duration> {
    gaps.sort();
    gaps.pop();
    gaps
}

async fn listeners(raw: &mut Raw) -> usize {
    let Some(channel) = raw.process_channels().await.pop() else { return 0 };
    raw.run::<(String, usize)>(&["PUBSUB", "NUMSUB", &channel]).await.1
}

/// Waits until so many candidates are in the queue of the server.
async fn others_queue(raw: &mut Raw, count: usize) {
    let queue = "bellwether:l:{work}:q";
    let queued = comes_true(LIMIT, async || raw.run::<usize>(&["ZCARD", queue]).await == count);
    assert!(queued.await, "the candidates do not queue");
}

// Processes

/// The environment variable that makes this process a candidate: the URL of the server.
const VARIABLE: &str = "BELLWETHER_LEADER";
/// The lease of a candidate that is a process.
const LEASE: Duration = Duration::from_secs(1);

/// Returns the time of the clock that all processes share.
fn now() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::try_from(time).unwrap()
}

#[test]
fn worker() {
    let Ok(url) = std::env::var(VARIABLE) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut told = signals(SignalKind::terminate()).unwrap();
        let locks = Locks::new(testkit::open(&url), "bellwether");
        let candidate = locks.leader("work").lease(LEASE);
        let work = async |_term: Term| {
            let _act = Act::begin();
            pending::<()>().await
        };
        tokio::select! {
            led = candidate.run(work) => led.unwrap(),
            _ = told.recv() => {}
        }
        locks.shutdown(LIMIT).await;
    });
}

/// What a leader does: it says when it begins, and when its work ends or is dropped.
struct Act;

impl Act {
    fn begin() -> Self {
        println!("\nleads {}", now().as_micros());
        Self
    }
}

impl Drop for Act {
    fn drop(&mut self) {
        println!("\nends {}", now().as_micros());
    }
}

/// A candidate that is a process, with the lines that it writes.
struct Process {
    child: Child,
    lines: UnboundedReceiver<(String, Duration)>,
}

impl Process {
    fn start(server: &RedisServer) -> Self {
        let mut command = Command::from(testkit::rerun("leader::worker"));
        command.env(VARIABLE, server.url()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
        let (sender, lines) = unbounded_channel();
        tokio::spawn(async move {
            while let Ok(Some(line)) = output.next_line().await {
                let Some((what, at)) = line.split_once(' ') else { continue };
                if let ("leads" | "ends", Ok(at)) = (what, at.parse()) {
                    let _ = sender.send((what.to_owned(), Duration::from_micros(at)));
                }
            }
        });
        Self { child, lines }
    }

    /// Waits until this process says that it leads or ends. Returns when.
    async fn says(&mut self, expected: &str) -> Duration {
        let line = timeout(LIMIT, self.lines.recv()).await.expect("the process says nothing");
        let (what, at) = line.expect("the process has ended");
        assert_eq!(what, expected);
        at
    }
}

/// Leaders are told to end, and killed, in turns. The queue has the order of their starts.
#[tokio::test]
async fn a_process_that_ends_hands_over_and_one_that_is_killed_is_followed_in_its_lease() {
    let server = RedisServer::start().await;
    let mut raw = server.raw().await;
    let mut leader = Process::start(&server);
    leader.says("leads").await;
    let (mut handed, mut followed) = (Vec::new(), Vec::new());
    for round in 0..10 {
        let mut next = Process::start(&server);
        others_queue(&mut raw, 1).await;
        let killed = now();
        match round % 2 {
            0 => signal(leader.child.id().expect("the leader runs"), "TERM"),
            _ => leader.child.start_kill().unwrap(),
        }
        let begun = next.says("leads").await;
        if round % 2 == 0 {
            let end = leader.says("ends").await;
            assert!(begun >= end, "{begun:?} before {end:?}: two lead at a time");
            handed.push(begun - end);
        } else {
            followed.push(begun - killed);
        }
        leader = next;
    }
    println!("after the end of a term: {handed:.1?}; after a kill: {followed:.1?}");
    // A busy machine may be late once. The time of a timer and of a task is on top.
    let [handed, followed] = [handed, followed].map(all_but_the_longest);
    assert!(handed.iter().all(|gap| *gap < LEASE / 3), "{handed:?}");
    assert!(followed.iter().all(|gap| *gap < LEASE + 100 * MS), "{followed:?}");
}
