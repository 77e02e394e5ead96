//! Writes that fail while the backend is away, and are repeated when it answers.
//!
//! Time is paused. Two caches over one backend stand for two processes; the backend is away for the
//! first one alone.

use bellwether::cache::{Begun, LocalTier};

use crate::{log::collect, prelude::*};

const HOUR: Duration = Duration::from_secs(3600);
/// After this time each write that can be repeated is.
const REPEATED: Duration = Duration::from_secs(2);

/// A process whose backend may be away, and another one.
struct Scene {
    faulty: Faulty,
    cache: Cache<u64>,
    other: Cache<u64>,
}

impl Scene {
    fn new() -> Self {
        Self::with(|builder| builder)
    }

    fn with(set: impl Fn(Builder<u64>) -> Builder<u64>) -> Self {
        let faulty = Faulty::new(|_| None);
        let kept = |builder: Builder<u64>| builder.ttl(HOUR).stale_if_error(HOUR).tags();
        let builder = Cache::builder(faulty.clone(), "bellwether").outage_memory(1 << 20);
        let other = Cache::builder(faulty.inner.clone(), "bellwether");
        let cache = set(kept(builder));
        let other = kept(other);
        Self { faulty, cache: cache.build().unwrap(), other: other.build().unwrap() }
    }

    fn leave(&self, fault: Fault) {
        self.faulty.plan(move |_| Some(fault));
    }

    /// The backend answers questions, and no writes.
    fn refuse_writes(&self) {
        let is_write = |op| matches!(op, Op::Edit | Op::EndTag | Op::Claim | Op::Commit);
        self.faulty.plan(move |op| is_write(op).then_some(Fault::Refuse));
    }

    fn come_back(&self) {
        self.faulty.plan(|_| None);
    }

    async fn write(&self, act: Act) -> Result<(), Error> {
        let cache = &self.cache;
        match act {
            Act::Insert => cache.insert("k", &7).await.map(drop),
            Act::Invalidate => cache.invalidate("k").await.map(drop),
            Act::Expire => cache.expire("k").await.map(drop),
            Act::InvalidateTag => cache.invalidate_tag("t").await,
            Act::ExpireTag => cache.expire_tag("t").await,
            Act::Clear => cache.clear().await,
            Act::Touch => cache.request("k").touch().await.map(drop),
            Act::Refresh => cache.request("k").refresh(value(8)).await.map(drop),
        }
    }

    /// Stores a value with a tag, by the other process.
    async fn store(&self, value: u64) {
        self.other.request("k").tag("t").insert(&value).await.unwrap();
    }

    async fn ask(&self, made: u64) -> (u64, Source) {
        let loaded = self.cache.request("k").load(value(made)).await.unwrap();
        (loaded.value, loaded.source)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Insert,
    Invalidate,
    Expire,
    InvalidateTag,
    ExpireTag,
    Clear,
    Touch,
    Refresh,
}

const DEFERRED: [Act; 6] =
    [Act::Insert, Act::Invalidate, Act::Expire, Act::InvalidateTag, Act::ExpireTag, Act::Clear];

/// Each user of a cache had a loop of its own for this. The other process then finds no old value,
/// or only one that stands in for a failure.
#[tokio::test(start_paused = true)]
async fn a_write_that_fails_is_repeated() {
    for act in DEFERRED {
        for fault in [Fault::Refuse, Fault::Hang, Fault::LoseReply] {
            let scene = Scene::new();
            scene.store(1).await;
            scene.leave(fault);
            let error = scene.write(act).await.unwrap_err();
            assert!(error.is_deferred() && error.kind() == ErrorKind::Backend, "{act:?}: {error}");
            assert_eq!(scene.cache.stats().deferred_writes, 1);
            sleep(10 * SECOND).await;
            scene.come_back();
            sleep(REPEATED).await;
            assert_eq!(scene.other.get("k").await.unwrap(), None, "{act:?}, {fault:?}");
            let fallback = scene.other.peek("k").await.unwrap().is_some();
            assert_eq!(fallback, matches!(act, Act::Expire | Act::ExpireTag), "{act:?}");
            assert_eq!(scene.cache.stats().deferred_writes, 0);
        }
    }
}

/// By the time of the repeat, there may be another value than the one that the caller knew.
#[tokio::test(start_paused = true)]
async fn a_touch_and_a_refresh_are_not_deferred() {
    for act in [Act::Touch, Act::Refresh] {
        let scene = Scene::new();
        scene.store(1).await;
        scene.leave(Fault::Refuse);
        assert!(!scene.write(act).await.unwrap_err().is_deferred(), "{act:?}");
        scene.come_back();
        sleep(REPEATED).await;
        assert_eq!(scene.other.get("k").await.unwrap(), Some(1));
    }
}

/// A refusal is no outage: the caller is told, and nothing is repeated.
#[tokio::test(start_paused = true)]
async fn a_write_that_is_refused_is_not_deferred() {
    let scene = Scene::new();
    scene.leave(Fault::Full);
    let error = scene.write(Act::Insert).await.unwrap_err();
    assert!(!error.is_deferred() && scene.cache.stats().deferred_writes == 0, "{error}");
}

/// Reads are answered, and writes are not, as by a replica.
#[tokio::test(start_paused = true)]
async fn nothing_older_is_served_until_the_write_is_repeated() {
    for act in DEFERRED {
        for has_tier in [false, true] {
            let scene =
                Scene::with(
                    |builder| if has_tier { builder.local(LocalTier::default()) } else { builder },
                );
            scene.store(1).await;
            for _ in 0..3 {
                assert_eq!(scene.cache.get("k").await.unwrap(), Some(1));
            }
            scene.refuse_writes();
            scene.write(act).await.unwrap_err();
            assert_eq!(scene.cache.get_local("k"), None);
            assert_ne!(scene.cache.get("k").await.ok(), Some(Some(1)), "{act:?}");
            let many = scene.cache.get_many(["k"]).await.remove(0);
            assert_ne!(many.ok(), Some(Some(1)), "{act:?}");
            // An expired value may stand in for a failed load, and for nothing else.
            assert_eq!(scene.ask(2).await, (2, Source::Degraded), "{act:?}, {has_tier}");
            // Another process does not know, and stores what it has loaded before. A tier is told
            // of that, and lets go of what is remembered.
            scene.store(3).await;
            let (then, source) = scene.ask(4).await;
            assert!(then != 3 && source == Source::Degraded, "{act:?}, {has_tier}: {then}");
            scene.come_back();
            let then = scene.ask(5).await.0;
            assert!(then != 1 && then != 3, "{act:?}, {has_tier}: {then}");
        }
    }
}

/// The write is noted while the load runs. Its commit is answered, because the note has ended no
/// lease yet, and no copy of its value may be kept.
#[tokio::test(start_paused = true)]
async fn a_load_from_before_a_deferred_write_is_not_kept() {
    for act in DEFERRED {
        let scene = Scene::with(|builder| builder.local(LocalTier::default()));
        // So that the tier hears of the changes of the key.
        for _ in 0..3 {
            scene.cache.get("k").await.unwrap();
        }
        let cache = scene.cache.clone();
        let load = |lead: Lead<u64>| async move {
            lead.tag("t");
            sleep(SECOND).await;
            Ok::<_, BoxError>(1)
        };
        let before = spawn(async move { cache.get_or_load("k", load).await.unwrap() });
        sleep(SECOND / 2).await;
        let is_write = |op| matches!(op, Op::Edit | Op::EndTag);
        scene.faulty.plan(move |op| is_write(op).then_some(Fault::Refuse));
        scene.write(act).await.unwrap_err();
        assert_eq!(before.await.unwrap(), 1);
        assert_eq!(scene.cache.get_local("k"), None, "{act:?}");
        assert_ne!(scene.cache.get("k").await.ok(), Some(Some(1)), "{act:?}");
        assert_eq!(scene.ask(2).await.0, 2, "{act:?}");
    }
}

/// A caller that asks after the write may not be given what the load has made so far.
#[tokio::test(start_paused = true)]
async fn a_load_from_before_a_deferred_write_is_not_confirmed() {
    let scene = Scene::new();
    let Begun::Load(load) = scene.cache.request("k").begin().await.unwrap() else {
        panic!("there is nothing to load");
    };
    load.confirm().await.unwrap();
    scene.refuse_writes();
    scene.write(Act::Invalidate).await.unwrap_err();
    assert_eq!(kind(load.confirm().await), ErrorKind::Lost);
}

/// The repeat of an invalidation deleted what was inserted after it.
#[tokio::test(start_paused = true)]
async fn a_later_write_is_not_undone_by_the_repeat() {
    let scene = Scene::new();
    scene.store(1).await;
    scene.leave(Fault::Refuse);
    scene.write(Act::Invalidate).await.unwrap_err();
    scene.come_back();
    scene.cache.insert("k", &7).await.unwrap();
    sleep(REPEATED).await;
    assert_eq!(scene.cache.get("k").await.unwrap(), Some(7));
    assert_eq!(scene.other.get("k").await.unwrap(), Some(7));
}

#[tokio::test(start_paused = true)]
async fn the_strongest_write_of_a_name_is_repeated() {
    for acts in [[Act::Invalidate, Act::Expire], [Act::Expire, Act::Invalidate]] {
        let scene = Scene::new();
        scene.store(1).await;
        scene.leave(Fault::Refuse);
        for act in acts {
            assert!(scene.write(act).await.unwrap_err().is_deferred());
        }
        assert_eq!(scene.cache.stats().deferred_writes, 1);
        scene.come_back();
        sleep(REPEATED).await;
        assert!(scene.other.peek("k").await.unwrap().is_none(), "{acts:?}");
    }
}

/// The read comes before the task has tried again, and has the write repeated.
#[tokio::test(start_paused = true)]
async fn a_read_has_the_write_repeated_first() {
    let scene = Scene::new();
    scene.store(1).await;
    scene.leave(Fault::Refuse);
    scene.write(Act::Invalidate).await.unwrap_err();
    sleep(10 * SECOND).await;
    scene.come_back();
    let asked = Instant::now();
    assert_eq!(scene.cache.get("k").await.unwrap(), None);
    assert!(asked.elapsed() < 10 * MS, "{:?}", asked.elapsed());
    assert_eq!(scene.cache.stats().deferred_writes, 0);
}

/// A silent backend costs a reader of a noted name one time-out, however many there are.
#[tokio::test(start_paused = true)]
async fn readers_of_noted_names_wait_for_one_try() {
    let scene = Scene::new();
    scene.leave(Fault::Hang);
    let keys: Vec<_> = (0..500).map(|number| format!("k{number}")).collect();
    scene.cache.invalidate_many(&keys).await;
    let asked = Instant::now();
    let reads = keys.iter().map(|key| scene.cache.get(key));
    assert!(join_all(reads).await.iter().all(|read| read.is_err()));
    assert!(asked.elapsed() <= 600 * MS, "{:?}", asked.elapsed());
    scene.come_back();
    sleep(REPEATED).await;
    assert_eq!(scene.cache.stats().deferred_writes, 0);
}

/// The runtime of the write has ended when the backend answers again.
#[test]
fn a_write_outlives_the_runtime_of_its_caller() {
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_time().start_paused(true).build().unwrap()
    };
    let first = runtime();
    let scene = first.block_on(async {
        let scene = Scene::new();
        scene.store(1).await;
        scene.leave(Fault::Refuse);
        scene.write(Act::Invalidate).await.unwrap_err();
        scene.come_back();
        scene
    });
    drop(first);
    runtime().block_on(async {
        assert_eq!(scene.cache.get("k").await.unwrap(), None);
        assert_eq!(scene.other.get("k").await.unwrap(), None);
    });
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_tries_once_more() {
    let scene = Scene::new();
    scene.store(1).await;
    scene.leave(Fault::Refuse);
    scene.write(Act::Invalidate).await.unwrap_err();
    sleep(10 * SECOND).await;
    // Without an answer it goes on at once.
    let begun = Instant::now();
    scene.cache.shutdown(5 * SECOND).await;
    assert!(begun.elapsed() < SECOND, "{:?}", begun.elapsed());
    scene.come_back();
    scene.cache.shutdown(5 * SECOND).await;
    assert_eq!(scene.cache.stats().deferred_writes, 0);
    assert_eq!(scene.other.get("k").await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn the_log_tells_of_the_begin_and_the_end_and_of_what_is_lost() {
    let (lines, _collecting) = collect();
    let scene = Scene::new();
    scene.leave(Fault::Refuse);
    for act in [Act::Invalidate, Act::InvalidateTag] {
        scene.write(act).await.unwrap_err();
    }
    sleep(10 * SECOND).await;
    assert_eq!(lines.with("is repeated when the backend answers").len(), 1);
    scene.come_back();
    sleep(REPEATED).await;
    let ended = lines.with("the deferred writes are repeated");
    assert!(ended.len() == 1 && ended[0].contains("repeated=2 dropped=0"), "{ended:?}");
    scene.leave(Fault::Refuse);
    scene.write(Act::Invalidate).await.unwrap_err();
    drop(scene);
    // The task lets go of the cache as well.
    sleep(REPEATED).await;
    assert_eq!(lines.with("its deferred writes are lost").len(), 1);
}

/// A read for two keys waits for the deferred write of one of them. Meanwhile a write to the other
/// key fails, which is repeated after the read. What the read has found is older than that write.
#[tokio::test(start_paused = true)]
async fn a_read_that_waits_for_a_repeat_remembers_nothing_from_before_a_write() {
    let scene = Scene::with(|builder| builder);
    for key in ["k", "other"] {
        scene.other.insert(key, &1).await.unwrap();
    }
    scene.leave(Fault::Refuse);
    assert!(scene.cache.invalidate("other").await.unwrap_err().is_deferred());
    scene.faulty.plan(|op| (op == Op::Edit).then_some(Fault::Late(50 * MS)));
    let reader = scene.cache.clone();
    let read = spawn(async move { reader.get_many(["k", "other"]).await });
    sleep(10 * MS).await;
    scene.faulty.plan(|op| (op == Op::Edit).then_some(Fault::Refuse));
    assert!(scene.cache.invalidate("k").await.unwrap_err().is_deferred());
    scene.faulty.plan(|op| (op == Op::Edit).then_some(Fault::Late(50 * MS)));
    let read = read.await.unwrap();
    assert_eq!(*read[0].as_ref().unwrap(), Some(1), "the read came too late");
    sleep(REPEATED).await;
    assert_eq!(scene.cache.stats().deferred_writes, 0);
    scene.leave(Fault::Refuse);
    assert_eq!(scene.ask(2).await, (2, Source::Degraded));
}
