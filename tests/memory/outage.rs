//! A backend that is away, and the values that a process remembers meanwhile.
//!
//! Time is paused. The origin numbers its answers, so a value tells which load made it.

use bellwether::cache::Begun;
use tokio::time::advance;

use crate::{
    origin::{Origin, served},
    prelude::*,
};

const TTL: Duration = Duration::from_secs(60);
const LOAD: Duration = Duration::from_millis(50);

/// One process, whose backend may be away.
#[derive(Clone)]
struct Scene {
    faulty: Faulty,
    cache: Cache<u64>,
    origin: Origin,
}

impl Scene {
    fn new() -> Self {
        Self::with(|builder| builder)
    }

    fn with(set: impl Fn(Builder<u64>) -> Builder<u64>) -> Self {
        let faulty = Faulty::new(|_| None);
        let builder = Cache::builder(faulty.clone(), "bellwether").ttl(TTL).outage_memory(1 << 20);
        let cache = set(builder).build().unwrap();
        Self { faulty, cache, origin: Origin::new(LOAD) }
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

    async fn ask(&self, key: &str) -> (u64, Source) {
        served(&self.cache.request(key).load(self.origin.loader()).await.unwrap())
    }

    fn loads(&self) -> u64 {
        self.origin.asked()
    }

    /// Does an act that the backend does not answer.
    async fn act(&self, act: usize) {
        let cache = &self.cache;
        let is_done = match act {
            0 => cache.insert("k", &7).await.is_ok(),
            1 => cache.invalidate("k").await.is_ok(),
            2 => cache.expire("k").await.is_ok(),
            3 => cache.request("k").touch().await.is_ok(),
            _ => cache.request("k").refresh(value(7)).await.is_ok(),
        };
        assert!(!is_done);
    }
}

const ACTS: usize = 5;

/// Each act has no answer. It may have happened, and others may have seen that, so its caller is
/// served nothing older: neither what was loaded in the outage nor what was seen before.
#[tokio::test(start_paused = true)]
async fn no_act_is_undone() {
    for act in 0..ACTS {
        for (was_seen, has_tags) in [(false, false), (true, false), (true, true)] {
            let scene = Scene::with(
                |builder| if has_tags { stale(builder).tags() } else { stale(builder) },
            );
            if was_seen {
                assert_eq!(scene.ask("k").await, (1, Source::Led));
            }
            scene.leave(Fault::Refuse);
            assert_eq!(scene.ask("k").await, (1, Source::Degraded));
            scene.act(act).await;
            for _ in 0..2 {
                let then = scene.ask("k").await;
                assert_eq!(then, (2, Source::Degraded), "{act}, {was_seen}, {has_tags}");
            }
        }
    }
}

/// The load began before the act, so its value is for the callers that asked before.
#[tokio::test(start_paused = true)]
async fn a_load_from_before_an_act_is_not_remembered() {
    for act in 0..ACTS {
        let scene = Scene::away();
        let theirs = scene.clone();
        let before = spawn(async move { theirs.ask("k").await });
        while scene.loads() == 0 {
            tokio::task::yield_now().await;
        }
        scene.act(act).await;
        assert_eq!(before.await.unwrap(), (1, Source::Degraded));
        assert_eq!(scene.ask("k").await, (2, Source::Degraded), "act {act}");
    }
}

/// A loader that asks for its own key gets a value of its own, which may be a placeholder.
#[tokio::test(start_paused = true)]
async fn a_load_for_one_caller_alone_is_not_remembered() {
    let scene = Scene::away();
    let cache = scene.cache.clone();
    let outer = scene.cache.get_or_load("k", |_| async move {
        let inner = cache.get_or_load("k", value(50)).await?;
        Err::<u64, BoxError>(format!("{inner} is a placeholder").into())
    });
    assert!(outer.await.is_err());
    assert_eq!(scene.ask("k").await, (1, Source::Degraded));
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
        let is_missing = if peeks {
            scene.cache.peek("k").await.unwrap().is_none()
        } else {
            scene.cache.get("k").await.unwrap().is_none()
        };
        assert!(is_missing);
        let (value, _) = scene.ask("k").await;
        assert_eq!(value, 2);
    }
}

/// Claims find no connection, and reads are answered. The answers are newer than the memory.
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
    let load = |lead: Lead<u64>| async move {
        lead.do_not_store();
        Ok::<_, BoxError>(1)
    };
    for load_number in 1..3 {
        let loaded = scene.cache.request("k").load(load).await.unwrap();
        assert_eq!((loaded.source, scene.cache.stats().loads), (Source::Degraded, load_number));
    }
}

/// Zero switches the memory off, and a value that is too heavy for it costs each caller a load.
#[tokio::test(start_paused = true)]
async fn the_memory_may_be_off_or_too_small() {
    for bytes in [0, 2048] {
        let scene = Scene::with(|builder| builder.outage_memory(bytes));
        scene.leave(Fault::Refuse);
        let key = "k".repeat(100);
        for load in 1..4 {
            assert_eq!(scene.ask(&key).await, (load, Source::Degraded));
        }
    }
    for bytes in [1, 500, 2047] {
        let builder = Cache::<u64>::builder(MemoryBackend::new(), "bellwether");
        let error = builder.outage_memory(bytes).build().unwrap_err();
        let is_told = error.to_string().contains("`outage_memory` is");
        assert!(error.kind() == ErrorKind::InvalidConfig && is_told, "{error}");
    }
}

/// The value that the process saw last is remembered only if it may be stale: its user expects
/// that.
const STALE: Duration = Duration::from_secs(30);

fn stale(builder: Builder<u64>) -> Builder<u64> {
    builder.stale_while_revalidate(STALE)
}

/// A hot key with a time to live of 60 s cost 20 loads in an outage of 6 s, one after another. So
/// did one whose value the process had seen.
#[tokio::test(start_paused = true)]
async fn a_hot_key_costs_one_load_and_no_more_in_an_outage() {
    for fault in [Fault::Refuse, Fault::Hang] {
        for seen in [&[][..], &[Source::Led], &[Source::Led, Source::Hit]] {
            let scene = if seen.is_empty() { Scene::new() } else { Scene::with(stale) };
            for source in seen {
                assert_eq!(scene.ask("k").await, (1, *source));
            }
            scene.leave(fault);
            for _ in 0..600 {
                assert_eq!(scene.ask("k").await, (1, Source::Degraded));
                advance(10 * MS).await;
            }
            assert_eq!((scene.loads(), scene.cache.stats().degraded), (1, 600), "{fault:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn each_window_of_a_value_that_was_seen_holds() {
    let scene = Scene::with(|builder| stale(builder).stale_if_error(3 * TTL));
    assert_eq!(scene.ask("k").await, (1, Source::Led));
    advance(TTL / 2).await;
    assert_eq!(scene.ask("k").await, (1, Source::Hit));
    scene.leave(Fault::Refuse);
    // Fresh and stale: by the age at the hit, and the time since then.
    advance(TTL / 2 + STALE - MS).await;
    assert_eq!(scene.ask("k").await, (1, Source::Degraded));
    assert_eq!(scene.loads(), 1);
    // For failures.
    advance(MS).await;
    scene.origin.fails(true);
    assert_eq!(scene.ask("k").await, (1, Source::Degraded));
    assert_eq!(scene.loads(), 2);
    // Gone.
    advance(3 * TTL).await;
    assert!(scene.cache.request("k").load(fails("the origin is down")).await.is_err());
    scene.origin.fails(false);
    advance(TTL).await;
    assert_eq!(scene.ask("k").await, (3, Source::Degraded));
}

/// A request may ask for a fresher value than its cache.
#[tokio::test(start_paused = true)]
async fn a_request_narrows_the_window_of_a_value_that_was_seen() {
    let scene = Scene::with(stale);
    assert_eq!(scene.ask("k").await, (1, Source::Led));
    scene.leave(Fault::Refuse);
    advance(TTL).await;
    let request = scene.cache.request("k").stale_while_revalidate(Duration::ZERO);
    assert_eq!(request.load(value(7)).await.unwrap().value, 7);
}

/// Another process over the same backend, which is never away for it.
fn other(scene: &Scene) -> Cache<u64> {
    let backend = scene.faulty.inner.clone();
    stale(Cache::builder(backend, "bellwether").ttl(TTL)).build().unwrap()
}

/// A process knows of windows only by its first answer. It asks once, and remembers that answer.
#[tokio::test(start_paused = true)]
async fn the_first_values_that_were_seen_are_remembered() {
    let keys: Vec<_> = (0..100).map(|number| format!("k{number}")).collect();
    for asked in [&keys[..1], &keys] {
        let scene = Scene::with(stale);
        for key in asked {
            other(&scene).insert(key, &50).await.unwrap();
        }
        match asked {
            [key] => drop(scene.cache.get(key).await),
            _ => drop(scene.cache.get_many(asked).await),
        }
        assert_eq!(scene.faulty.count(Op::Get), asked.len());
        scene.leave(Fault::Refuse);
        for key in asked {
            assert_eq!(scene.ask(key).await, (50, Source::Degraded));
        }
    }
}

/// The first question of the process is answered after the other ones.
#[tokio::test(start_paused = true)]
async fn the_last_answer_counts() {
    for is_removed in [false, true] {
        let scene = Scene::with(stale);
        let other = other(&scene);
        let cache = scene.cache.clone();
        let mut reads = 0;
        scene.faulty.plan(move |op| {
            reads += usize::from(op == Op::Get);
            (op == Op::Get && reads == 1).then_some(Fault::Late(100 * MS))
        });
        let first = spawn(async move { cache.get("k").await.unwrap() });
        advance(10 * MS).await;
        other.insert("k", &60).await.unwrap();
        for _ in 0..2 {
            assert_eq!(scene.cache.get("k").await.unwrap(), Some(60));
        }
        if is_removed {
            other.invalidate("k").await.unwrap()
        } else {
            other.insert("k", &70).await.unwrap()
        };
        assert_eq!(first.await.unwrap(), (!is_removed).then_some(70));
        scene.leave(Fault::Refuse);
        assert_eq!(scene.ask("k").await.0, if is_removed { 1 } else { 70 });
    }
}

/// A look has told this process that another one has removed or replaced the value.
#[tokio::test(start_paused = true)]
async fn a_value_that_is_known_to_be_gone_is_not_served() {
    for look in 0..4 {
        let scene = Scene::with(stale);
        assert_eq!(scene.ask("k").await, (1, Source::Led));
        let other = other(&scene);
        match look {
            0..2 => drop(other.invalidate("k").await.unwrap()),
            2 => drop(other.insert("k", &50).await.unwrap()),
            // A value without windows is not remembered, and ends the older one.
            _ => {
                let request = other.request("k").stale_while_revalidate(Duration::ZERO);
                request.insert(&50).await.unwrap();
            }
        }
        let seen = match look {
            0 => scene.cache.get("k").await.unwrap(),
            1 => scene.cache.peek("k").await.unwrap().map(|loaded| loaded.value),
            _ => Some(scene.ask("k").await.0),
        };
        assert_eq!(seen, (look > 1).then_some(50));
        scene.leave(Fault::Refuse);
        let expected = if look == 2 { 50 } else { 2 };
        assert_eq!(scene.ask("k").await, (expected, Source::Degraded), "look {look}");
    }
}

/// The process is cut off when another one invalidates the value. It cannot know of that, and its
/// callers are told by the source. After the outage the value is not served any more.
#[tokio::test(start_paused = true)]
async fn a_value_that_another_process_invalidates_meanwhile_is_degraded_and_ends() {
    let scene = Scene::with(stale);
    assert_eq!(scene.ask("k").await, (1, Source::Led));
    scene.leave(Fault::Hang);
    other(&scene).invalidate("k").await.unwrap();
    for _ in 0..10 {
        assert_eq!(scene.ask("k").await, (1, Source::Degraded));
    }
    scene.come_back();
    advance(300 * MS).await;
    assert_eq!(scene.ask("k").await, (2, Source::Led));
    scene.leave(Fault::Refuse);
    assert_eq!(scene.ask("k").await, (2, Source::Degraded));
}

/// Returns a scene whose callers have patience, with a value that has just become stale, and no
/// backend. If the backend is known to be away, other callers have found that out.
async fn impatient(patience: Duration, fault: Fault, is_known: bool) -> Scene {
    let scene = Scene::with(|builder| builder.stale_if_error(TTL).serve_stale_after(patience));
    assert_eq!(scene.ask("k").await.0, 1);
    advance(TTL).await;
    scene.leave(fault);
    for _ in 0..if is_known { 3 } else { 0 } {
        scene.cache.get("other").await.unwrap_err();
        scene.cache.request("other").load(value(7)).await.unwrap();
    }
    scene
}

/// The origin is slow as well. A caller waits for a while, and then takes what was seen last.
#[tokio::test(start_paused = true)]
async fn an_impatient_caller_gets_the_value_that_was_seen() {
    for fault in [Fault::Refuse, Fault::Hang] {
        let scene = impatient(LOAD / 2, fault, true).await;
        let asked = Instant::now();
        assert_eq!(scene.ask("k").await, (1, Source::Degraded));
        assert!(asked.elapsed() < LOAD, "{fault:?}");
        // The load goes on, and its value is remembered.
        sleep(LOAD).await;
        assert_eq!(scene.ask("k").await, (2, Source::Degraded));
        assert_eq!(scene.loads(), 2);
    }
}

/// The leader's look ended unanswered after the patience of its caller. The caller then asked the
/// silent server once more, and waited for two time-outs.
#[tokio::test(start_paused = true)]
async fn an_impatient_caller_asks_a_silent_server_once() {
    const TIME_OUT: Duration = Duration::from_millis(250);
    let scene = impatient(LOAD / 2, Fault::Hang, false).await;
    let asked = Instant::now();
    assert_eq!(scene.ask("k").await, (1, Source::Degraded));
    assert!(asked.elapsed() <= TIME_OUT + MS, "{:?}", asked.elapsed());
}

/// The breaker let the caller whose patience was over ask the silent server, as its probe. So the
/// caller waited for one more time-out.
#[tokio::test(start_paused = true)]
async fn an_impatient_caller_is_no_probe() {
    let scene = impatient(LOAD, Fault::Hang, true).await;
    // The patience of some ends when the next probe is due.
    for round in 0..16 {
        let asked = Instant::now();
        let loaded = scene.cache.request("k").load(after(10 * SECOND, 2)).await.unwrap();
        assert_eq!((loaded.value, loaded.source), (1, Source::Degraded));
        assert!(asked.elapsed() <= LOAD + MS, "{round}: {:?}", asked.elapsed());
        advance(7 * MS).await;
    }
}

/// A loader that asks for changes only is given the value, and may say that it is unchanged.
#[tokio::test(start_paused = true)]
async fn a_loader_is_given_the_value_that_was_seen() {
    let scene = Scene::with(|builder| builder.stale_if_error(TTL));
    assert_eq!(scene.ask("k").await.0, 1);
    advance(TTL).await;
    scene.leave(Fault::Refuse);
    let load = |lead: Lead<u64>| async move {
        Ok::<_, BoxError>(lead.unchanged(lead.stale().ok_or("no stale value")?))
    };
    let loaded = scene.cache.request("k").load(load).await.unwrap();
    assert_eq!((loaded.value, loaded.source), (1, Source::Degraded));
    assert_eq!(scene.ask("k").await, (1, Source::Degraded));
    assert_eq!(scene.loads(), 1);
}

/// The value that the process remembers has a smaller fence than the write that the caller was told
/// of. A value that was loaded for a caller with the same fence is as new as that write.
#[tokio::test(start_paused = true)]
async fn nothing_that_is_remembered_is_older_than_a_fence() {
    for fault in [Fault::Refuse, Fault::Hang] {
        for is_late in [false, true] {
            let scene = Scene::with(stale);
            assert_eq!(scene.ask("k").await, (1, Source::Led));
            if is_late {
                advance(TTL).await;
            }
            scene.leave(fault);
            let fence = other(&scene).insert("k", &50).await.unwrap();
            assert_eq!(scene.ask("k").await, (1, Source::Degraded));
            let newer = || scene.cache.request("k").not_older_than(fence);
            for _ in 0..2 {
                let loaded = newer().load(scene.origin.loader()).await.unwrap();
                assert_eq!(served(&loaded), (2, Source::Degraded), "{fault:?}, {is_late}");
            }
            assert_eq!(scene.ask("k").await, (2, Source::Degraded));
        }
    }
}

/// The old value stands in for a failed load, and for one that is too slow. Neither may do so for a
/// caller that knows of a newer write.
#[tokio::test(start_paused = true)]
async fn no_value_that_is_older_than_a_fence_stands_in_for_a_load() {
    for fault in [Fault::Refuse, Fault::Hang] {
        let scene = impatient(LOAD / 2, fault, false).await;
        let fence = other(&scene).insert("k", &50).await.unwrap();
        let newer = || scene.cache.request("k").not_older_than(fence);
        let failed = newer().load(fails("the origin is down")).await;
        assert_eq!(failed.unwrap_err().kind(), ErrorKind::Load, "{fault:?}");
        let slow = newer().load(scene.origin.loader()).await.unwrap();
        assert_eq!(served(&slow), (2, Source::Degraded), "{fault:?}");
    }
}

/// A load that began before the write may be under way when the caller asks.
#[tokio::test(start_paused = true)]
async fn no_load_from_before_a_fence_answers_its_caller() {
    let scene = Scene::with(stale);
    scene.leave(Fault::Refuse);
    let theirs = scene.clone();
    let before = spawn(async move { theirs.ask("k").await });
    while scene.loads() == 0 {
        tokio::task::yield_now().await;
    }
    let fence = other(&scene).insert("k", &50).await.unwrap();
    let request = scene.cache.request("k").not_older_than(fence);
    let loaded = request.load(scene.origin.loader()).await.unwrap();
    assert_eq!(served(&loaded), (2, Source::Degraded));
    assert_eq!(before.await.unwrap(), (1, Source::Degraded));
}

/// A caller that begins a load by hand is given no older value either.
#[tokio::test(start_paused = true)]
async fn a_load_begun_by_hand_is_not_older_than_a_fence() {
    let scene = Scene::with(stale);
    assert_eq!(scene.ask("k").await, (1, Source::Led));
    scene.leave(Fault::Refuse);
    let fence = other(&scene).insert("k", &50).await.unwrap();
    let begun = scene.cache.request("k").not_older_than(fence).begin().await.unwrap();
    assert!(matches!(begun, Begun::Alone), "{begun:?}");
    let begun = scene.cache.request("k").begin().await.unwrap();
    assert!(matches!(begun, Begun::Ready(_)), "{begun:?}");
}

/// A value that was loaded in an outage is not stored, and has no fence of its own.
#[tokio::test(start_paused = true)]
async fn a_value_of_an_outage_says_that_it_is_not_stored() {
    let scene = Scene::with(|builder| builder.stale_if_error(TTL));
    assert_eq!(scene.ask("k").await, (1, Source::Led));
    advance(TTL).await;
    scene.leave(Fault::Refuse);
    for _ in 0..2 {
        let loaded = scene.cache.request("k").load(scene.origin.loader()).await.unwrap();
        assert_eq!(served(&loaded), (2, Source::Degraded));
        assert_eq!((loaded.fence(), loaded.expires_in()), (None, None));
    }
}
