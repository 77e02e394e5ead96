//! The promises of a leader. `Locks` over one memory backend stand for processes.
//!
//! Time is paused, so every wait here is exact and takes no time.

use bellwether::{
    Redlock,
    lock::{Candidate, Term},
};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::prelude::*;

fn process(backend: &MemoryBackend) -> Locks {
    Locks::new(backend.clone(), "bellwether")
}

/// Counts the leaders, and fails if there are two.
#[derive(Clone, Default)]
struct Office(Arc<AtomicUsize>);

impl Office {
    fn enter(&self) -> Sitting {
        assert_eq!(self.0.fetch_add(1, Ordering::SeqCst), 0, "two lead at a time");
        Sitting(self.clone())
    }
}

struct Sitting(Office);

impl Drop for Sitting {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Runs a candidate that leads until it is dropped, and sends its terms.
fn stands(
    candidate: Candidate,
    office: &Office,
    terms: &UnboundedSender<Term>,
) -> JoinHandle<Result<(), Error>> {
    let office = office.clone();
    let terms = terms.clone();
    spawn(async move {
        let lead = |term: Term| {
            let sitting = office.enter();
            let sent = terms.send(term);
            async move {
                sent.unwrap();
                let _sitting = sitting;
                pending().await
            }
        };
        candidate.run(lead).await
    })
}

async fn next(terms: &mut UnboundedReceiver<Term>) -> Term {
    timeout(60 * SECOND, terms.recv()).await.expect("there is no leader").unwrap()
}

#[tokio::test(start_paused = true)]
async fn one_leads_at_a_time_and_each_end_hands_over() {
    let backend = MemoryBackend::new();
    let office = Office::default();
    let fences = Arc::new(Mutex::new(Vec::new()));
    let candidates = (0..5).map(|at| {
        let candidate = process(&backend).leader("work");
        let office = office.clone();
        let fences = fences.clone();
        spawn(async move {
            let lead = |term: Term| {
                let sitting = office.enter();
                let fences = fences.clone();
                async move {
                    let _sitting = sitting;
                    fences.lock().unwrap().push(term.fence());
                    sleep(SECOND).await;
                    if at % 2 == 0 { Ok(at) } else { Err("it failed") }
                }
            };
            candidate.run(lead).await.unwrap()
        })
    });
    let candidates = candidates.collect::<Vec<_>>();
    let begun = Instant::now();
    for (at, candidate) in candidates.into_iter().enumerate() {
        let output = candidate.await.unwrap();
        assert_eq!(output, if at % 2 == 0 { Ok(at) } else { Err("it failed") });
    }
    assert_eq!(begun.elapsed(), 5 * SECOND, "there was a gap");
    assert!(fences.lock().unwrap().is_sorted_by(|a, b| a < b));
}

/// The processes have one backend, or the same three servers.
#[tokio::test(start_paused = true)]
async fn a_candidate_that_is_dropped_hands_over_at_once() {
    let backend = MemoryBackend::new();
    let servers = [(); 3].map(|()| MemoryBackend::new());
    let of_majority = || Redlock::over(servers.clone(), "bellwether").unwrap().leader("work");
    for (candidates, within) in [
        ([(); 3].map(|()| process(&backend).leader("work")), 10 * MS),
        ([(); 3].map(|()| of_majority()), SECOND),
    ] {
        let office = Office::default();
        let (sender, mut terms) = unbounded_channel();
        let [first, waits, third] = candidates;
        let first = stands(first, &office, &sender);
        let term = next(&mut terms).await;
        let [waits, third] = [waits, third].map(|candidate| stands(candidate, &office, &sender));
        sleep(100 * SECOND).await;
        assert!(terms.is_empty() && !term.is_lost(), "a wait has no limit, and a term is renewed");
        // One that waits leaves the queue.
        waits.abort();
        assert!(waits.await.unwrap_err().is_cancelled());
        let begun = Instant::now();
        first.abort();
        let after = next(&mut terms).await;
        assert!(begun.elapsed() < within, "{:?}", begun.elapsed());
        assert!(after.fence() > term.fence());
        assert!(term.is_lost() && term.remaining() == Duration::ZERO && !after.is_lost());
        term.lost().await;
        third.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn a_loss_drops_the_work_and_the_candidate_waits_again() {
    let backend = MemoryBackend::new();
    let office = Office::default();
    let (sender, mut terms) = unbounded_channel();
    let locks = process(&backend);
    let standing = stands(locks.leader("work").lease(3 * SECOND), &office, &sender);
    let mut fence = 0;
    for _ in 0..3 {
        let term = next(&mut terms).await;
        assert!(term.fence() > fence);
        fence = term.fence();
        assert!(locks.mutex("work").fair().force_unlock().await.unwrap());
        timeout(2 * SECOND, term.lost()).await.expect("the loss is not told at a renewal");
    }
    next(&mut terms).await;
    standing.abort();
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_the_work_hands_over() {
    let backend = MemoryBackend::new();
    let office = Office::default();
    let (sender, mut terms) = unbounded_channel();
    let candidate = process(&backend).leader("work");
    let panics = spawn(async move {
        candidate.run(|_term| async { panic!("planned") }).await.map(|(): ()| ())
    });
    assert!(panics.await.unwrap_err().is_panic());
    let standing = stands(process(&backend).leader("work"), &office, &sender);
    timeout(SECOND, next(&mut terms)).await.expect("the lease of the panic is kept");
    standing.abort();
}

#[tokio::test(start_paused = true)]
async fn a_term_ends_before_its_lease_is_handed_over() {
    let locks = process(&MemoryBackend::new());
    let term = locks.leader("work").run(|term| async { term }).await.unwrap();
    assert!(term.is_lost());
    assert_eq!(locks.stats().lost, 0, "an end is no loss");
}

/// A program may end when its shutdown returns. A leader in another task has handed over by then.
#[tokio::test(start_paused = true)]
async fn a_shutdown_ends_those_that_lead_and_those_that_wait() {
    let backend = MemoryBackend::new();
    let office = Office::default();
    let (sender, mut terms) = unbounded_channel();
    let locks = process(&backend);
    let other = process(&backend);
    let ends = [(); 2].map(|()| stands(locks.leader("work"), &office, &sender));
    let term = next(&mut terms).await;
    sleep(SECOND).await;
    locks.shutdown(SECOND).await;
    assert!(term.is_lost(), "the work goes on after the shutdown");
    let holder = other.mutex("work").fair().holder().await.unwrap();
    assert!(holder.is_none(), "the lease is not handed over");
    for ended in all(ends).await {
        assert_eq!(ended.unwrap_err().kind(), ErrorKind::ShutDown);
    }
    let stays = stands(other.leader("work"), &office, &sender);
    assert!(next(&mut terms).await.fence() > term.fence());
    stays.abort();
}

#[tokio::test(start_paused = true)]
async fn a_wrong_setting_is_told_at_once() {
    let locks = process(&MemoryBackend::new());
    let lead = |_term| async {};
    let wrong = locks.leader("work").lease(MS).run(lead).await.unwrap_err();
    assert_eq!(wrong.kind(), ErrorKind::InvalidConfig);
    let wrong = locks.leader("").run(lead).await.unwrap_err();
    assert_eq!(wrong.kind(), ErrorKind::InvalidKey);
}

#[tokio::test(start_paused = true)]
async fn a_candidate_waits_through_an_outage() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let backend = Faulty::new(move |op| {
        (op == Op::Acquire).then(|| count.fetch_add(1, Ordering::Relaxed)).map(|_| Fault::Refuse)
    });
    let candidate = Locks::new(backend.clone(), "bellwether").leader("work");
    let waits = spawn(async move { candidate.run(|term| async move { term.fence() }).await });
    sleep(600 * SECOND).await;
    assert!(!waits.is_finished(), "an outage ended the wait");
    let asked = asked.load(Ordering::Relaxed);
    assert!((60..3000).contains(&asked), "{asked} questions in 600 s");
    backend.plan(|_| None);
    timeout(30 * SECOND, waits).await.expect("there is no leader").unwrap().unwrap();
}

/// A candidate with a wait limit kept longer and longer pauses between its waits, in which no
/// release reached it. A reading of the code found this.
#[tokio::test(start_paused = true)]
async fn a_candidate_waits_anew_after_its_wait_limit() {
    let backend = MemoryBackend::new();
    let guard = process(&backend).mutex("job").lock().await.unwrap();
    let candidate = process(&backend).leader("job").wait_limit(50 * MS);
    let led = spawn(async move { candidate.run(|_term| async { 7 }).await });
    sleep(5 * SECOND).await;
    assert!(!led.is_finished());
    guard.unlock().await.unwrap();
    let released = Instant::now();
    assert_eq!(led.await.unwrap().unwrap(), 7);
    assert!(released.elapsed() <= 100 * MS, "{:?}", released.elapsed());
}

/// The pauses of a candidate in an outage took no notice of a shutdown.
#[tokio::test(start_paused = true)]
async fn a_shutdown_ends_the_pause_of_a_candidate() {
    let backend = Faulty::new(|op| (op == Op::Acquire).then_some(Fault::Refuse));
    let locks = Locks::new(backend, "bellwether");
    let candidate = locks.leader("work").wait_limit(50 * MS);
    let waits = spawn(async move { candidate.run(|_term| async {}).await });
    // By now, the pauses last from half a second to a second.
    sleep(60 * SECOND).await;
    let begun = Instant::now();
    locks.shutdown(10 * SECOND).await;
    assert!(begun.elapsed() < 10 * MS, "{:?}", begun.elapsed());
    assert_eq!(kind(waits.await.unwrap()), ErrorKind::ShutDown);
}

/// A candidate begins a new wait after its wait limit, and shows the error to no caller.
#[tokio::test(start_paused = true)]
async fn a_candidate_does_not_look_for_the_holder() {
    let faulty = Faulty::new(|_| None);
    let _held = Locks::new(faulty.inner.clone(), "bellwether").mutex("job").lock().await.unwrap();
    let locks = Locks::new(faulty.clone(), "bellwether").owner("here");
    let candidate = locks.leader("job").wait_limit(50 * MS);
    let run = candidate.run(|_term| async {});
    assert!(timeout(SECOND, run).await.is_err());
    assert_eq!(faulty.count(Op::Inspect), 0);
}
