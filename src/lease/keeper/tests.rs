use std::{collections::HashMap, error::Error};

use super::*;
use crate::{
    backend::{Changes, Leases, Mode},
    key::{Family, Key, Name, Namespace},
    lease::doubles::unanswered,
};

const MS: Duration = Duration::from_millis(1);
const LEASE: Duration = Duration::from_secs(60);

/// Counts requests, and notes when each name was kept. Names of shard 1 have no answer.
#[derive(Default)]
struct Kepts {
    requests: Mutex<usize>,
    at: Mutex<HashMap<Arc<str>, Vec<Instant>>>,
    /// How long after it was kept a request is answered.
    late: Duration,
    /// How long a request may take.
    limit: Option<Duration>,
}

fn is_silent(name: &Name) -> bool {
    name.prefix().contains("silent")
}

impl Leases for Arc<Kepts> {
    async fn keep_each(&self, queues: &[Vec<Claim>]) -> Answers {
        *lock(&self.requests) += 1;
        for name in queues.iter().flatten().map(|claim| &claim.name) {
            if is_silent(name) {
                std::future::pending::<()>().await;
            }
            lock(&self.at).entry(name.prefix().clone()).or_default().push(Instant::now());
        }
        sleep_until(Instant::now() + self.late).await;
        let kept = |claims: &Vec<Claim>| Kept {
            remaining: LEASE,
            has_lapsed: false,
            handed_over: false,
            // A waiter that is not the first of its process has lost its entry.
            stands: (0..claims.len()).map(|at| at == 0).collect(),
        };
        Ok(queues.iter().map(|claims| Ok(kept(claims))).collect())
    }

    fn shard(&self, name: &Name) -> usize {
        usize::from(is_silent(name))
    }

    fn time_limit(&self) -> Option<Duration> {
        self.limit
    }

    unanswered!();

    async fn changes(&self, _: &Name) -> Result<Changes, BackendError> {
        std::future::pending().await
    }
}

fn claim(key: String, mode: Mode) -> Result<Claim, crate::Error> {
    let name = Name::new(&Namespace::standard(), Family::Lock, &Key::from(key), 512)?;
    Ok(Claim::new(name, mode, LEASE, LEASE))
}

fn keeper() -> (Keeper, Arc<Kepts>) {
    late_keeper(Duration::ZERO)
}

fn late_keeper(late: Duration) -> (Keeper, Arc<Kepts>) {
    let kepts = Arc::new(Kepts { late, ..Kepts::default() });
    (Keeper::new(Arc::new(kepts.clone())), kepts)
}

/// Asserts that each of some names was kept often enough for its entry to last.
fn assert_kept(kepts: &Kepts, begun: Instant, count: usize) {
    let at = lock(&kepts.at);
    assert_eq!(at.len(), count);
    // Two requests may fail, each after 250 ms and a pause of 100 ms, before an entry ends.
    let longest = if count > 1400 { 1250 * MS } else { 700 * MS };
    for times in at.values() {
        let mut last = begun;
        for time in times.iter().chain([&Instant::now()]) {
            assert!(*time - last < longest, "{:?} without a request", *time - last);
            last = *time;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn queues_share_requests_whatever_their_number() -> Result<(), crate::Error> {
    for count in [1, 100, 1_000, 10_000] {
        let (keeper, kepts) = keeper();
        let mut places = Vec::new();
        let begun = Instant::now();
        for number in 0..count {
            places.push(keeper.enter(&claim(number.to_string(), Mode::Fair)?, LEASE));
            if number % 100 == 99 {
                sleep_until(Instant::now() + 3 * MS).await;
            }
        }
        sleep_until(begun + Duration::from_secs(10)).await;
        assert_kept(&kepts, begun + 300 * MS, count);
        // Ten seconds are 16 to 18 intervals, each with some batches that are not full.
        let (requests, full) = (*lock(&kepts.requests), count.div_ceil(QUEUES_KEPT_AT_ONCE));
        assert!(requests <= 18 * (full + full / 4 + 1), "{requests} requests for {count}");
    }
    Ok(())
}

/// With a limit of half a second, a third request would have come too late.
#[tokio::test(start_paused = true)]
async fn many_queues_are_kept_rarely_only_if_two_requests_may_fail() -> Result<(), crate::Error> {
    for (limit, longest) in [(250 * MS, 1250 * MS), (300 * MS, 1250 * MS), (500 * MS, 700 * MS)] {
        let kepts = Arc::new(Kepts { limit: Some(limit), ..Kepts::default() });
        let keeper = Keeper::new(Arc::new(kepts.clone()));
        let places = (0..2000)
            .map(|number| Ok(keeper.enter(&claim(number.to_string(), Mode::Fair)?, LEASE)));
        let _places = places.collect::<Result<Vec<_>, crate::Error>>()?;
        let begun = Instant::now();
        sleep_until(begun + Duration::from_secs(10)).await;
        let at = lock(&kepts.at);
        let gaps = at.values().flat_map(|times| times.windows(2).map(|pair| pair[1] - pair[0]));
        let most = gaps.max().unwrap_or_default();
        assert!(most <= longest && most >= longest / 2, "{most:?} with {limit:?}");
    }
    Ok(())
}

/// A request for queues of one shard hangs. It costs those of another shard nothing.
#[tokio::test(start_paused = true)]
async fn a_silent_shard_costs_the_others_nothing() -> Result<(), crate::Error> {
    let (keeper, kepts) = keeper();
    let (mut places, begun) = (Vec::new(), Instant::now());
    for number in 0..50 {
        places.push(keeper.enter(&claim(number.to_string(), Mode::Fair)?, LEASE));
        places.push(keeper.enter(&claim(format!("silent {number}"), Mode::Fair)?, LEASE));
    }
    sleep_until(begun + Duration::from_secs(10)).await;
    assert_kept(&kepts, begun, 50);
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

/// A request is answered after the time for the next one. Until then its queue is not asked for
/// again, and the other queues are kept in time.
#[tokio::test(start_paused = true)]
async fn a_late_answer_delays_its_own_queue_only() -> Result<(), crate::Error> {
    const LATE: Duration = Duration::from_millis(900);
    let (keeper, kepts) = late_keeper(LATE);
    let (mut places, begun) = (Vec::new(), Instant::now());
    for number in 0..5 {
        // Further apart than the queues that come along with another one.
        sleep_until(begun + number * 200 * MS).await;
        places.push(keeper.enter(&claim(number.to_string(), Mode::Fair)?, LEASE));
    }
    sleep_until(begun + Duration::from_secs(10)).await;
    let at = lock(&kepts.at);
    assert_eq!(at.len(), 5);
    for times in at.values() {
        // The answer is older than an interval, so the next request follows it at once.
        let apart = times.windows(2).map(|two| two[1] - two[0]);
        assert!(times.len() > 8, "{times:?}");
        assert!(apart.clone().all(|apart| apart >= LATE && apart < LATE + 200 * MS), "{times:?}");
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
            assert!(keeper.schedule().running);
            drop(place);
            sleep_until(Instant::now() + 3000 * MS).await;
            assert!(!keeper.schedule().running && keeper.schedule().len() == 0);
        }
    }
    let before = *lock(&kepts.requests);
    sleep_until(Instant::now() + 5000 * MS).await;
    assert_eq!(*lock(&kepts.requests), before);
    Ok(())
}

/// The runtime of the first waiter ends, with the task in it and a request under way.
#[test]
fn the_task_goes_on_in_the_runtime_of_another_waiter() -> Result<(), Box<dyn Error>> {
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_time().start_paused(true).build()
    };
    let (first, second) = (runtime()?, runtime()?);
    let (keeper, kepts) = keeper();
    let [silent, other] = ["silent", "k"].map(|key| claim(key.to_owned(), Mode::Fair));
    let (silent, other) = (silent?, other?);
    let place = first.block_on(async {
        let place = keeper.enter(&silent, LEASE);
        sleep_until(Instant::now() + 700 * MS).await;
        place
    });
    let kept = second.block_on(async { keeper.enter(&other, LEASE) });
    drop(first);
    drop(place);
    second.block_on(async {
        sleep_until(Instant::now() + 5000 * MS).await;
    });
    assert!(lock(&kepts.at).contains_key(other.name.prefix()));
    drop(kept);
    Ok(())
}
