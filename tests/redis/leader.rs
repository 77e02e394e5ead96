//! Leaders over a real server, and how soon the next one acts.
//!
//! `cargo test --test redis leader:: -- --nocapture` prints how long the handovers took.

use bellwether::lock::Term;
use tokio::sync::mpsc::unbounded_channel;

use crate::prelude::*;

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
    let acts = unbounded_channel();
    let ends = unbounded_channel();
    let mut acted = acts.1;
    let mut ended = ends.1;
    let end = Arc::new(Notify::new());
    let candidates = (0..CANDIDATES).map(|_| {
        let locks = Locks::new(testkit::open(proxy.url()), "bellwether");
        let acts = acts.0.clone();
        let ends = ends.0.clone();
        let end = end.clone();
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
