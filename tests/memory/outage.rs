//! A backend that is away, and the values that a process remembers meanwhile.
//!
//! Time is paused. The origin numbers its answers, so a value tells which load made it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bellwether::{
    BoxError, Cache, MemoryBackend,
    cache::{Builder, Lead, Source},
};
use testkit::faulty::{Fault, Faulty, Op};
use tokio::time::{advance, sleep, timeout};

const MS: Duration = Duration::from_millis(1);
const TTL: Duration = Duration::from_secs(60);
const LOAD: Duration = Duration::from_millis(50);

/// One process, whose backend may be away.
#[derive(Clone)]
struct Scene {
    faulty: Faulty,
    cache: Cache<usize>,
    loads: Arc<AtomicUsize>,
    fails: Arc<AtomicBool>,
}

impl Scene {
    fn new() -> Self {
        Self::with(|builder| builder)
    }

    fn with(set: impl Fn(Builder<usize>) -> Builder<usize>) -> Self {
        let faulty = Faulty::over(MemoryBackend::new(), |_| None);
        let builder = Cache::builder(faulty.clone()).ttl(TTL).outage_memory(1 << 20);
        let cache = set(builder).build().unwrap();
        Self { faulty, cache, loads: Arc::default(), fails: Arc::default() }
    }

    fn away() -> Self {
        let scene = Self::new();
        scene.leave(Fault::Refuse);
        scene
    }

    fn leave(&self, fault: Fault) {
        self.faulty.plan(move |_| Some(fault));
    }

    fn come_back(&self) {
        self.faulty.plan(|_| None);
    }

    async fn load(&self, lead: Lead<usize>) -> Result<usize, BoxError> {
        let number = self.loads.fetch_add(1, Ordering::SeqCst) + 1;
        sleep(LOAD).await;
        if number >= 100 {
            lead.do_not_store();
        }
        match self.fails.load(Ordering::SeqCst) {
            true => Err("the origin is down".into()),
            false => Ok(number),
        }
    }

    async fn ask(&self, key: &str) -> (usize, Source) {
        let scene = self.clone();
        let load = |lead| async move { scene.load(lead).await };
        let loaded = self.cache.request(key).load(load).await.unwrap();
        (*loaded.value(), loaded.source())
    }

    fn loads(&self) -> usize {
        self.loads.load(Ordering::SeqCst)
    }

    /// Does an act that the backend does not answer.
    async fn act(&self, act: usize) {
        let cache = &self.cache;
        let is_done = match act {
            0 => cache.insert("k", &7).await.is_ok(),
            1 => cache.invalidate("k").await.is_ok(),
            2 => cache.expire("k").await.is_ok(),
            3 => cache.touch("k").await.is_ok(),
            _ => cache.refresh("k", |_| async { Ok::<_, BoxError>(7) }).await.is_ok(),
        };
        assert!(!is_done);
    }
}

const ACTS: usize = 5;

/// A hot key with a time to live of 60 s cost 20 loads in an outage of 6 s, one after another.
#[tokio::test(start_paused = true)]
async fn a_hot_key_costs_one_load_in_an_outage() {
    for fault in [Fault::Refuse, Fault::Hang] {
        let scene = Scene::new();
        scene.leave(fault);
        for _ in 0..600 {
            assert_eq!(scene.ask("k").await, (1, Source::Degraded));
            advance(10 * MS).await;
        }
        assert_eq!(scene.loads(), 1, "{fault:?}");
        assert_eq!(scene.cache.stats().degraded, 600);
    }
}

#[tokio::test(start_paused = true)]
async fn each_window_of_a_remembered_value_holds() {
    let scene = Scene::with(|builder| builder.stale_while_revalidate(TTL).stale_if_error(3 * TTL));
    scene.leave(Fault::Refuse);
    assert_eq!(scene.ask("k").await, (1, Source::Degraded));
    // Fresh and stale.
    advance(2 * TTL - LOAD).await;
    assert_eq!(scene.ask("k").await, (1, Source::Degraded));
    assert_eq!(scene.loads(), 1);
    // For failures.
    advance(LOAD).await;
    scene.fails.store(true, Ordering::SeqCst);
    assert_eq!(scene.ask("k").await, (1, Source::Stale));
    assert_eq!(scene.loads(), 2);
    scene.fails.store(false, Ordering::SeqCst);
    advance(TTL).await;
    assert_eq!(scene.ask("k").await, (3, Source::Degraded));
    // Gone.
    advance(4 * TTL).await;
    assert_eq!(scene.ask("k").await, (4, Source::Degraded));
    assert_eq!(scene.loads(), 4);
}

/// Each act has no answer. It may have happened, so its caller is served nothing older.
#[tokio::test(start_paused = true)]
async fn no_act_is_undone() {
    for act in 0..ACTS {
        let scene = Scene::away();
        assert_eq!(scene.ask("k").await, (1, Source::Degraded));
        scene.act(act).await;
        assert_eq!(scene.ask("k").await, (2, Source::Degraded), "act {act}");
        assert_eq!(scene.ask("k").await, (2, Source::Degraded), "act {act}");
    }
}

/// The load began before the act, so its value is for the callers that asked before.
#[tokio::test(start_paused = true)]
async fn a_load_from_before_an_act_is_not_remembered() {
    for act in 0..ACTS {
        let scene = Scene::away();
        let theirs = scene.clone();
        let before = tokio::spawn(async move { theirs.ask("k").await });
        while scene.loads() == 0 {
            tokio::task::yield_now().await;
        }
        scene.act(act).await;
        assert_eq!(before.await.unwrap(), (1, Source::Degraded));
        assert_eq!(scene.ask("k").await, (2, Source::Degraded), "act {act}");
    }
}

/// The caller of an act may have a time-out of its own.
#[tokio::test(start_paused = true)]
async fn an_act_whose_caller_went_away_is_not_undone() {
    let scene = Scene::new();
    scene.leave(Fault::Hang);
    assert_eq!(scene.ask("k").await, (1, Source::Degraded));
    assert!(timeout(MS, scene.cache.invalidate("k")).await.is_err());
    assert_eq!(scene.ask("k").await, (2, Source::Degraded));
}

/// The backend knows of acts of other processes. So does each answer that comes after it is back.
#[tokio::test(start_paused = true)]
async fn nothing_is_remembered_beyond_the_first_answer() {
    let scene = Scene::away();
    assert_eq!(scene.ask("k").await, (1, Source::Degraded));
    assert_eq!(scene.ask("other").await, (2, Source::Degraded));
    scene.come_back();
    // The breaker lets a probe through after a while.
    advance(300 * MS).await;
    assert_eq!(scene.ask("k").await, (3, Source::Led));
    scene.leave(Fault::Refuse);
    assert_eq!(scene.ask("k").await, (4, Source::Degraded));
    // Nor is a value of another key, which was not asked for meanwhile.
    assert_eq!(scene.ask("other").await, (5, Source::Degraded));
}

/// A look of another kind has told this caller that there is no value.
#[tokio::test(start_paused = true)]
async fn a_value_that_a_caller_saw_missing_is_not_remembered() {
    for peeks in [false, true] {
        let scene = Scene::away();
        for _ in 0..3 {
            assert_eq!(scene.ask("k").await, (1, Source::Degraded));
        }
        scene.come_back();
        let is_missing = match peeks {
            true => scene.cache.peek("k").await.unwrap().is_none(),
            false => scene.cache.get("k").await.unwrap().is_none(),
        };
        assert!(is_missing);
        let (value, _) = scene.ask("k").await;
        assert_eq!(value, 2);
    }
}

/// A server that is full answers reads and refuses claims. Its answers are newer than the memory.
#[tokio::test(start_paused = true)]
async fn a_backend_that_answers_reads_is_believed() {
    let scene = Scene::new();
    scene.faulty.plan(|op| (op == Op::Claim).then_some(Fault::Refuse));
    assert_eq!(scene.ask("k").await, (1, Source::Degraded));
    assert_eq!(scene.ask("k").await, (2, Source::Degraded));
}

#[tokio::test(start_paused = true)]
async fn a_value_whose_commit_had_no_answer_is_remembered() {
    let scene = Scene::new();
    let mut is_away = false;
    scene.faulty.plan(move |op| {
        is_away |= op == Op::Commit;
        is_away.then_some(Fault::Refuse)
    });
    assert_eq!(scene.ask("k").await, (1, Source::Led));
    assert_eq!(scene.ask("k").await, (1, Source::Degraded));
    assert_eq!(scene.loads(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_value_that_is_not_to_be_stored_is_not_remembered() {
    let scene = Scene::away();
    scene.loads.store(99, Ordering::SeqCst);
    assert_eq!(scene.ask("k").await, (100, Source::Degraded));
    assert_eq!(scene.ask("k").await, (101, Source::Degraded));
}

/// Zero switches the memory off, and a value that is too heavy for it costs each caller a load.
#[tokio::test(start_paused = true)]
async fn the_memory_may_be_off_or_too_small() {
    for bytes in [0, 500] {
        let scene = Scene::with(|builder| builder.outage_memory(bytes));
        scene.leave(Fault::Refuse);
        for load in 1..4 {
            assert_eq!(scene.ask("k").await, (load, Source::Degraded));
        }
    }
}
