use std::{collections::HashMap, error::Error, future::pending};

use async_trait::async_trait;

use super::*;
use crate::{
    backend::{Acquired, Changes, Grant, Holding, Leases, Mode, Owner, Renewal},
    key::{Family, Key, Name, Namespace},
};

const MS: Duration = Duration::from_millis(1);
const LEASE: Duration = Duration::from_secs(60);

/// When entries were kept, and for how long.
type KeptAt = (Instant, Duration);

/// Counts requests, and notes when each name was kept and for how long. Silent names have no
/// answer.
#[derive(Default)]
struct Kepts {
    requests: Mutex<usize>,
    at: Mutex<HashMap<Arc<str>, Vec<KeptAt>>>,
    /// How long after it was kept a request is answered.
    late: Duration,
}

fn is_silent(name: &Name) -> bool {
    name.prefix().contains("silent")
}

#[async_trait]
impl Leases for Arc<Kepts> {
    async fn keep(&self, claims: &[Claim], life: Duration) -> Result<Kept, BackendError> {
        *lock(&self.requests) += 1;
        let name = &claims[0].name;
        if is_silent(name) {
            pending::<()>().await;
        }
        lock(&self.at).entry(name.prefix().clone()).or_default().push((Instant::now(), life));
        sleep_until(Instant::now() + self.late).await;
        Ok(Kept {
            remaining: LEASE,
            has_lapsed: false,
            handed_over: false,
            // A waiter that is not the first of its process has lost its entry.
            stands: (0..claims.len()).map(|at| at == 0).collect(),
        })
    }

    async fn acquire(&self, _: &Claim) -> Result<Acquired, BackendError> {
        pending().await
    }

    async fn renew(&self, _: &[Claim]) -> Result<Vec<Renewal>, BackendError> {
        pending().await
    }

    async fn release(&self, _: &Claim) -> Result<bool, BackendError> {
        pending().await
    }

    async fn pass(&self, _: &Claim, _: &Claim) -> Result<Option<Grant>, BackendError> {
        pending().await
    }

    async fn inspect(&self, _: &Name, _: SemaphoreKind) -> Result<Holding, BackendError> {
        pending().await
    }

    async fn clear(&self, _: &Name, _: Mode) -> Result<bool, BackendError> {
        pending().await
    }

    fn listen(&self, _: &Name, _: Option<&Claim>) -> Changes {
        Changes::none()
    }
}

fn claim(key: String, mode: Mode) -> Result<Claim, crate::Error> {
    let name = Name::new(&Namespace::standard(), Family::Lock, &Key::from(key), 512)?;
    Ok(Claim::new(name, mode, LEASE, LEASE))
}

fn keeper() -> (Arc<Keeper>, Arc<Kepts>) {
    late_keeper(Duration::ZERO)
}

fn late_keeper(late: Duration) -> (Arc<Keeper>, Arc<Kepts>) {
    let kepts = Arc::new(Kepts { late, ..Kepts::default() });
    (Keeper::new(Arc::new(kepts.clone())), kepts)
}

/// Asserts that each of some names was kept often enough for its entry to last, though two requests
/// fail, each after 250 ms and a pause of 100 ms.
fn assert_kept(kepts: &Kepts, begun: Instant, count: usize) {
    let at = lock(&kepts.at);
    assert_eq!(at.len(), count);
    for times in at.values() {
        let mut last = (begun, Duration::from_secs(2));
        for time in times.iter().chain([&(Instant::now(), Duration::ZERO)]) {
            let gap = time.0 - last.0;
            assert!(gap + 600 * MS < last.1, "{gap:?} without a request for {:?}", last.1);
            last = *time;
        }
    }
}

/// Each queue has a request of its own, and a process of thousands of queues asks seldom.
#[tokio::test(start_paused = true)]
async fn queues_are_kept_in_time_whatever_their_number() -> Result<(), crate::Error> {
    for count in [1, 100, 1_000, 10_000] {
        let (keeper, kepts) = keeper();
        let mut places = Vec::new();
        let begun = Instant::now();
        for number in 0..count {
            places.push(keeper.enter(&claim(number.to_string(), Mode::Fair)?, LEASE));
        }
        sleep_until(begun + Duration::from_secs(10)).await;
        assert_kept(&kepts, begun, count);
        let requests = *lock(&kepts.requests);
        assert!(requests <= (18 * count).min(count + 23_000), "{requests} requests for {count}");
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn each_waiter_learns_of_its_own_entry() -> Result<(), crate::Error> {
    let (keeper, _) = keeper();
    let stands = keeper.enter(&claim("k".to_owned(), Mode::Fair)?, LEASE);
    let gone = keeper.enter(&claim("k".to_owned(), Mode::Fair)?, LEASE);
    let other = keeper.enter(&claim("other".to_owned(), Mode::Fair)?, LEASE);
    gone.asks().await;
    for place in [stands, other] {
        assert!(tokio::time::timeout(5000 * MS, place.asks()).await.is_err());
    }
    Ok(())
}

/// The answer says that the entry of a waiter is gone. That waiter has left meanwhile, and another
/// one came, which the request did not name.
#[tokio::test(start_paused = true)]
async fn a_late_answer_says_nothing_of_a_waiter_that_came_since() -> Result<(), crate::Error> {
    let (keeper, kepts) = late_keeper(900 * MS);
    let enter = || claim("k".to_owned(), Mode::Fair).map(|claim| keeper.enter(&claim, LEASE));
    let (_stands, gone) = (enter()?, enter()?);
    while lock(&kepts.at).is_empty() {
        sleep_until(Instant::now() + MS).await;
    }
    drop(gone);
    let since = enter()?;
    let asked = Instant::now();
    since.asks().await;
    // By the next request, which names it, and not by the answer to the one under way.
    assert!(asked.elapsed() > 1_700 * MS, "{:?}", asked.elapsed());
    Ok(())
}

/// The waiters leave, also while a request is under way. The task ends, and starts again for
/// the next waiter.
#[tokio::test(start_paused = true)]
async fn the_task_ends_after_the_last_waiter() -> Result<(), crate::Error> {
    let (keeper, kepts) = keeper();
    for key in ["k", "silent"] {
        for _ in 0..3 {
            let place = keeper.enter(&claim(key.to_owned(), Mode::Fair)?, LEASE);
            sleep_until(Instant::now() + 700 * MS).await;
            assert_eq!(keeper.queues().len(), 1);
            drop(place);
            // Longer than the answer of a request is waited for.
            sleep_until(Instant::now() + 60_000 * MS).await;
            assert!(keeper.queues().is_empty());
        }
    }
    let before = *lock(&kepts.requests);
    sleep_until(Instant::now() + 5000 * MS).await;
    assert_eq!(*lock(&kepts.requests), before);
    Ok(())
}

/// The runtime of the first waiter ends, with the task in it and a request under way. The other
/// waiter asks, and waits again.
#[test]
fn a_task_starts_in_the_runtime_of_another_waiter() -> Result<(), Box<dyn Error>> {
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_time().start_paused(true).build()
    };
    let (first, second) = (runtime()?, runtime()?);
    let (keeper, kepts) = late_keeper(5000 * MS);
    let claim = claim("k".to_owned(), Mode::Fair)?;
    let place = first.block_on(async {
        let place = keeper.enter(&claim, LEASE);
        sleep_until(Instant::now() + 700 * MS).await;
        place
    });
    let other = Claim { owner: Owner::fresh(), ..claim.clone() };
    let waits = second.block_on(async { keeper.enter(&other, LEASE) });
    assert!(waits.met(LEASE));
    drop(first);
    drop(place);
    assert!(lock(&kepts.at).remove(claim.name.prefix()).is_some());
    second.block_on(async {
        waits.asks().await;
        assert!(!waits.met(LEASE));
        let _waits = keeper.enter(&other, LEASE);
        sleep_until(Instant::now() + 5000 * MS).await;
    });
    assert!(lock(&kepts.at).get(claim.name.prefix()).is_some_and(|times| !times.is_empty()));
    Ok(())
}
