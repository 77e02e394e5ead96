//! One leader over a real server: no two at a time, and no gap between two.

use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bellwether::{Locks, lock::Term};
use testkit::{LIMIT, RedisServer, comes_true};
use tokio::{
    sync::mpsc::{UnboundedSender, unbounded_channel},
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
        let (fleet, locks) = (self.clone(), Locks::new(testkit::open(&self.url)));
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
        assert!(term.is_ended() && next.fence() > term.fence());
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
        timeout(LIMIT, term.ended()).await.expect("the loss is not told");
        let ended = comes_true(LIMIT, async || fleet.leading.load(Ordering::SeqCst) == 0);
        assert!(ended.await, "the work goes on after the loss");
        server.resume();
    }
    timeout(LIMIT, terms.recv()).await.expect("there is no leader").unwrap();
    running.iter().for_each(JoinHandle::abort);
}
