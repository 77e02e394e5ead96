//! Many keys in one call. Clones of a backend in memory stand for the processes.

use std::collections::HashMap;

use bellwether::{backend::Claimed, cache::Batch};
use tokio::task::JoinSet;

use crate::prelude::*;

/// The ids of each call of a loader.
#[derive(Clone, Default)]
struct Calls(Arc<Mutex<Vec<Vec<u64>>>>);

impl Calls {
    /// Returns a loader of values that are twice their ids. It takes this time.
    fn loader(
        &self,
        takes: Duration,
    ) -> impl Fn(Batch<u64, u64>) -> BoxFuture<'static, Made> + Send + Sync + use<> {
        let calls = self.clone();
        move |batch| {
            let calls = calls.clone();
            Box::pin(async move {
                let ids = batch.ids().to_vec();
                calls.0.lock().unwrap().push(ids.clone());
                sleep(takes).await;
                Ok(ids.into_iter().map(|id| (id, 2 * id)).collect())
            })
        }
    }

    /// Returns the ids of the calls until now, each in order.
    fn take(&self) -> Vec<Vec<u64>> {
        let mut calls = std::mem::take(&mut *self.0.lock().unwrap());
        calls.iter_mut().for_each(|ids| ids.sort_unstable());
        calls
    }
}

type Made = Result<HashMap<u64, u64>, BoxError>;

fn cache(backend: impl Store) -> Cache<u64> {
    Cache::builder(backend, "many").build().unwrap()
}

fn key(id: &u64) -> String {
    format!("id:{id}")
}

type Answers = Result<Vec<Result<Loaded<u64>, Error>>, Error>;

fn values(answers: Answers) -> Vec<u64> {
    answers.unwrap().into_iter().map(|answer| answer.unwrap().value).collect()
}

fn kinds(answers: Answers) -> Vec<Result<u64, ErrorKind>> {
    let kind = |answer: Result<Loaded<u64>, Error>| match answer {
        Ok(loaded) => Ok(loaded.value),
        Err(error) => Err(error.kind()),
    };
    answers.unwrap().into_iter().map(kind).collect()
}

fn sources(answers: Answers) -> Vec<Source> {
    answers.unwrap().into_iter().map(|answer| answer.unwrap().source).collect()
}

/// Another process stores an entry between the look of a call and its claim.
#[tokio::test(start_paused = true)]
async fn an_entry_that_is_stored_behind_the_look_comes_with_the_claim() {
    let memory = MemoryBackend::new();
    let late = |op| (op == Op::Get).then_some(Fault::Late(50 * MS));
    let backend = Faulty::over(memory.clone(), late);
    let here = cache(backend.clone());
    let there = cache(memory);
    let calls = Calls::default();
    let call = spawn(here.get_or_load_many([1, 2], key, calls.loader(MS)));
    sleep(10 * MS).await;
    there.insert(key(&1), &7).await.unwrap();
    assert_eq!(values(call.await.unwrap()), [7, 4]);
    assert_eq!(calls.take(), [[2]]);
    assert_eq!(backend.count(Op::Get), 2, "a key was read twice");
}

#[tokio::test(start_paused = true)]
async fn cold_keys_are_one_call_and_the_answers_are_in_order() {
    let cache = cache(MemoryBackend::new());
    let calls = Calls::default();
    let ids: Vec<u64> = (0..100).rev().collect();
    let loaded = cache.get_or_load_many(ids.clone(), key, calls.loader(10 * MS)).await;
    assert_eq!(values(loaded), ids.iter().map(|id| 2 * id).collect::<Vec<_>>());
    assert_eq!(calls.take(), [(0..100).collect::<Vec<_>>()]);
    // Now they are hits, but for the new ones.
    let loaded = cache.get_or_load_many(95..105, key, calls.loader(10 * MS)).await;
    assert_eq!(sources(loaded), [[Source::Hit; 5], [Source::Led; 5]].concat());
    assert_eq!(calls.take(), [(100..105).collect::<Vec<_>>()]);
    let none = cache.get_or_load_many([], key, calls.loader(MS)).await;
    assert_eq!(values(none), [0; 0]);
    assert!(calls.take().is_empty());
    let stats = cache.stats();
    assert_eq!((stats.loads, stats.stored, stats.led, stats.hits), (105, 105, 105, 5));
    assert_eq!((stats.flights, stats.unasked), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn an_id_that_occurs_twice_and_ids_that_share_a_key_load_once() {
    let cache = cache(MemoryBackend::new());
    let calls = Calls::default();
    let of_ten = |id: &u64| id / 10;
    let loaded = cache.get_or_load_many([7, 25, 7, 3, 21], of_ten, calls.loader(MS)).await;
    assert_eq!(values(loaded), [14, 50, 14, 14, 50]);
    assert_eq!(calls.take(), [[7, 25]]);
}

#[tokio::test(start_paused = true)]
async fn a_loader_may_return_fewer_values_or_others_or_some_twice() {
    let cache = cache(MemoryBackend::new());
    let load = |_: Batch<u64, u64>| async { Ok::<_, BoxError>([(2, 4), (9, 18), (1, 2), (2, 5)]) };
    let loaded = cache.get_or_load_many([1, 2, 3], key, load).await.unwrap();
    let missing = loaded[2].as_ref().unwrap_err();
    assert!(missing.to_string().contains("no value"), "{missing}");
    assert_eq!(kinds(Ok(loaded)), [Ok(2), Ok(4), Err(ErrorKind::Load)]);
    assert_eq!((cache.stats().unasked, cache.stats().failures), (2, 1));
    assert_eq!(cache.get(key(&9)).await.unwrap(), None);
    assert_eq!(cache.get(key(&2)).await.unwrap(), Some(4));
}

#[derive(Debug, thiserror::Error)]
#[error("product {0} is broken")]
struct Broken(u64);

#[tokio::test(start_paused = true)]
async fn half_of_the_ids_may_fail_each_with_its_error() {
    let cache = cache(MemoryBackend::new());
    let load = |batch: Batch<u64, u64>| async move {
        let (odd, even): (Vec<u64>, _) = batch.ids().iter().partition(|id| *id % 2 == 1);
        for id in odd {
            batch.fail(id, Broken(id));
        }
        Ok::<_, BoxError>(even.into_iter().map(|id: u64| (id, 2 * id)).collect::<Vec<_>>())
    };
    let loaded = cache.get_or_load_many(0..50, key, load).await.unwrap();
    for (id, answer) in (0..50).zip(loaded) {
        match answer {
            Ok(loaded) => assert_eq!((id % 2, loaded.value), (0, 2 * id)),
            Err(error) => assert_eq!(error.load_ref::<Broken>().unwrap().0, id),
        }
        let stored = cache.get(key(&id)).await.unwrap();
        assert_eq!(stored, (id % 2 == 0).then_some(2 * id));
    }
    assert_eq!((cache.stats().failures, cache.stats().stored), (25, 25));
}

#[tokio::test(start_paused = true)]
async fn a_loader_that_fails_panics_or_hangs_fails_its_ids_alone() {
    let cache = cache(MemoryBackend::new());
    cache.insert(key(&0), &7).await.unwrap();
    let fails = |_: Batch<u64, u64>| async { Err::<Vec<_>, _>(Broken(1)) };
    let loaded = cache.get_or_load_many(0..3, key, fails).await.unwrap();
    assert!(loaded[1].as_ref().unwrap_err().load_ref::<Broken>().is_some());
    let failed = Err(ErrorKind::Load);
    assert_eq!(kinds(Ok(loaded)), [Ok(7), failed, failed]);
    let panics = |_: Batch<u64, u64>| -> std::future::Ready<Result<Vec<_>, BoxError>> {
        panic!("as planned")
    };
    let failed = Err(ErrorKind::Panicked);
    let loaded = cache.get_or_load_many(0..3, key, panics).await;
    assert_eq!(kinds(loaded), [Ok(7), failed, failed]);
    let hangs = |_: Batch<u64, u64>| std::future::pending::<Made>();
    let failed = Err(ErrorKind::LoadTimeout);
    assert_eq!(kinds(cache.get_or_load_many(0..3, key, hangs).await), [Ok(7), failed, failed]);
    let loaded = cache.get_or_load_many(0..3, key, Calls::default().loader(MS)).await;
    assert_eq!(values(loaded), [7, 2, 4]);
    assert_eq!(cache.stats().flights, 0);
}

#[tokio::test(start_paused = true)]
async fn a_load_is_shared_with_single_calls_and_own_keys_do_not_wait_for_it() {
    let backend = MemoryBackend::new();
    let calls = Calls::default();
    let here = cache(backend.clone());
    let there = cache(backend);
    let singles = [(&here, 1), (&there, 2)]
        .map(|(cache, id)| spawn(cache.request(key(&id)).load(after(300 * MS, 70))));
    sleep(MS).await;
    let begun = Instant::now();
    let many = spawn(here.get_or_load_many(1..=3, key, calls.loader(20 * MS)));
    // The keys that this process leads are loaded before the others are waited for.
    sleep(50 * MS).await;
    assert_eq!(calls.take(), [[3]]);
    assert_eq!(here.get(key(&3)).await.unwrap(), Some(6));
    // And a single call shares the load of a batch.
    let loaded = many.await.unwrap();
    assert!(begun.elapsed() < 350 * MS, "{:?}", begun.elapsed());
    assert_eq!(sources(loaded), [Source::Followed, Source::Received, Source::Led]);
    assert!(all(singles).await.into_iter().all(|single| single.unwrap().value == 70));
    let many = spawn(here.get_or_load_many(4..=5, key, calls.loader(20 * MS)));
    sleep(MS).await;
    assert_eq!(here.get_or_load(key(&4), fails("not this one")).await.unwrap(), 8);
    assert_eq!(there.get_or_load(key(&5), fails("not this one")).await.unwrap(), 10);
    many.await.unwrap().unwrap();
    assert_eq!(calls.take(), [[4, 5]]);
}

#[tokio::test(start_paused = true)]
async fn batches_that_overlap_load_each_key_once_and_never_wait_in_a_circle() {
    for seed in 0..60 {
        let backend = MemoryBackend::new();
        let processes = [(); 3].map(|()| cache(backend.clone()));
        let mut rng = fastrand::Rng::with_seed(seed);
        let calls = Calls::default();
        let mut callers = JoinSet::new();
        for at in 0..9 {
            let mut ids: Vec<u64> = (0..12).filter(|_| rng.bool()).collect();
            rng.shuffle(&mut ids);
            let begins = rng.u32(0..4) * MS;
            let takes = rng.u32(1..5) * MS;
            let cache = processes[at % 3].clone();
            let loader = calls.loader(takes);
            callers.spawn(async move {
                sleep(begins).await;
                let loaded = cache.get_or_load_many(ids.clone(), key, loader).await;
                assert_eq!(values(loaded), ids.iter().map(|id| 2 * id).collect::<Vec<_>>());
            });
        }
        let all = async { while callers.join_next().await.is_some_and(|ended| ended.is_ok()) {} };
        timeout(500 * MS, all).await.expect("no call waits for another one in a circle");
        let mut loaded = calls.take().concat();
        loaded.sort_unstable();
        let all = loaded.len();
        loaded.dedup();
        assert_eq!(loaded.len(), all, "seed {seed}: {loaded:?}");
    }
}

/// Takes the leases of some ids, as a process does that dies then.
async fn lead_and_die(backend: &MemoryBackend, ids: impl Iterator<Item = u64>, lease: Duration) {
    for id in ids {
        let name = entry_name("many", &key(&id));
        let claim = Claim::new(name, Mode::Exclusive, lease, 60 * SECOND);
        assert!(matches!(backend.claim(&claim, 0).await, Ok(Claimed::Granted(_))));
    }
}

#[tokio::test(start_paused = true)]
async fn ids_that_a_dead_process_led_are_loaded_when_its_leases_end() {
    let backend = MemoryBackend::new();
    let calls = Calls::default();
    lead_and_die(&backend, 0..20, 400 * MS).await;
    let cache = cache(backend);
    let begun = Instant::now();
    let loaded = cache.get_or_load_many(0..40, key, calls.loader(MS)).await;
    assert_eq!(values(loaded), (0..40).map(|id| 2 * id).collect::<Vec<_>>());
    assert!(begun.elapsed() < 600 * MS, "{:?}", begun.elapsed());
    let calls = calls.take();
    assert_eq!(calls[0], (20..40).collect::<Vec<_>>());
    let mut ids = calls.concat();
    ids.sort_unstable();
    assert_eq!(ids, (0..40).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn a_call_of_the_loader_takes_one_permit_and_nested_calls_none() {
    let builder = Cache::<u64>::builder(MemoryBackend::new(), "bellwether").max_loads(1);
    let cache = builder.wait_limit(900 * MS).build().unwrap();
    let calls = Calls::default();
    let slow = spawn(cache.request("slow").load(after(100 * MS, 1)));
    sleep(MS).await;
    let begun = Instant::now();
    let loaded = cache.get_or_load_many(0..50, key, calls.loader(MS)).await;
    assert_eq!(values(loaded).len(), 50);
    assert!((99 * MS..200 * MS).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    assert_eq!(calls.take().len(), 1);
    slow.await.unwrap().unwrap();
    // The loader that waits for the batch has the only permit.
    let inner = cache.clone();
    let loader = calls.loader(MS);
    let nested = cache.get_or_load("outer", move |_| async move {
        Ok::<_, BoxError>(values(inner.get_or_load_many(50..60, key, loader).await).iter().sum())
    });
    assert_eq!(nested.await.unwrap(), (50..60).sum::<u64>() * 2);
    // A load that waits for the only permit is told as such.
    let forever = spawn(cache.request("forever").load(hangs()));
    sleep(MS).await;
    let begun = Instant::now();
    let loaded = cache.get_or_load_many(70..73, key, calls.loader(MS)).await;
    assert_eq!(kinds(loaded), [Err(ErrorKind::Overloaded); 3]);
    assert!(begun.elapsed() < 1_000 * MS, "{:?}", begun.elapsed());
    forever.abort();
}

/// A batch waits for a permit that a loader has, which then waits for a key of the batch.
#[tokio::test(start_paused = true)]
async fn a_loader_that_waits_for_a_batch_lends_it_no_deadlock() {
    let cache =
        Cache::<u64>::builder(MemoryBackend::new(), "bellwether").max_loads(1).build().unwrap();
    let inner = cache.clone();
    let calls = Calls::default();
    let outer = spawn(cache.request("outer").load(move |_| async move {
        sleep(10 * MS).await;
        inner.get_or_load(key(&1), fails("the batch leads")).await
    }));
    sleep(MS).await;
    let begun = Instant::now();
    let loaded = cache.get_or_load_many([1], key, calls.loader(MS)).await;
    assert_eq!(values(loaded), [2]);
    assert_eq!(outer.await.unwrap().unwrap().value, 2);
    assert!(begun.elapsed() < 200 * MS, "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_loader_that_asks_for_a_key_of_its_batch_loads_it_for_itself() {
    let cache = cache(MemoryBackend::new());
    let inner = cache.clone();
    let calls = Calls::default();
    let loader = move |batch: Batch<u64, u64>| {
        let inner = inner.clone();
        let once = calls.loader(MS);
        async move {
            let ids = batch.ids().to_vec();
            let values = values(inner.get_or_load_many(ids.clone(), key, once).await);
            Ok::<_, BoxError>(ids.into_iter().zip(values).collect::<Vec<_>>())
        }
    };
    let loaded = timeout(300 * MS, cache.get_or_load_many(0..5, key, loader)).await;
    assert_eq!(values(loaded.expect("no deadlock")), [0, 2, 4, 6, 8]);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_gives_back_each_lease_or_goes_on() {
    for is_cancelled in [true, false] {
        let backend = MemoryBackend::new();
        let calls = Calls::default();
        let builder = Cache::<u64>::builder(backend.clone(), "many");
        let builder = if is_cancelled { builder.cancel_abandoned() } else { builder };
        let here = builder.build().unwrap();
        let call = here.get_or_load_many(0..20, key, calls.loader(50 * MS));
        timeout(10 * MS, call).await.expect_err("the load takes longer");
        assert_eq!(calls.take().len(), 1);
        let there = cache(backend);
        let begun = Instant::now();
        let loaded = there.get_or_load_many(0..20, key, calls.loader(MS)).await;
        assert_eq!(values(loaded).len(), 20);
        assert_eq!(calls.take().len(), usize::from(is_cancelled));
        assert_eq!(begun.elapsed() < 10 * MS, is_cancelled, "{:?}", begun.elapsed());
        assert_eq!(here.stats().flights, 0);
        assert_eq!(here.stats().stored, if is_cancelled { 0 } else { 20 });
    }
}

/// Another caller waits for one key of a call that is dropped. So the loader goes on, and is told
/// that the other keys may now be loaded elsewhere.
#[tokio::test(start_paused = true)]
async fn a_loader_is_told_of_the_keys_that_nobody_waits_for() {
    let backend = MemoryBackend::new();
    let here = Cache::<u64>::builder(backend.clone(), "many");
    let here = here.cancel_abandoned().build().unwrap();
    let there = cache(backend);
    let told = Arc::<Mutex<Vec<u64>>>::default();
    let telling = told.clone();
    let loader = move |batch: Batch<u64, u64>| {
        let told = telling.clone();
        async move {
            for (id, lead) in batch.leads() {
                if timeout(50 * MS, lead.lost()).await.is_ok() {
                    told.lock().unwrap().push(*id);
                }
            }
            Made::Ok(batch.ids().iter().map(|id| (*id, 2 * id)).collect())
        }
    };
    let call = here.get_or_load_many(0..3, key, loader);
    let caller = here.clone();
    let wanted = spawn(async move {
        sleep(5 * MS).await;
        caller.get_or_load(key(&1), hangs()).await
    });
    timeout(10 * MS, call).await.expect_err("the load takes longer");
    let begun = Instant::now();
    let calls = Calls::default();
    let loaded = there.get_or_load_many([0, 2], key, calls.loader(MS)).await;
    assert_eq!(values(loaded), [0, 4]);
    assert!(begun.elapsed() < 10 * MS, "{:?}", begun.elapsed());
    assert_eq!(wanted.await.unwrap().unwrap(), 2);
    let mut told = told.lock().unwrap().clone();
    told.sort_unstable();
    assert_eq!(told, [0, 2]);
}

/// The call is left alone when some of its keys are led and others are not looked up yet.
#[tokio::test(start_paused = true)]
async fn a_call_that_is_no_longer_polled_blocks_nobody() {
    for polled in 1..12 {
        let backend = MemoryBackend::new();
        let calls = Calls::default();
        // The answers about some keys come later than those about the others.
        let mut asked = 0;
        let faulty = Faulty::over(backend.clone(), move |_| {
            asked += 1;
            (asked % 3 == 0).then_some(Fault::Late(4 * MS))
        });
        let here = cache(faulty);
        let mut call = Box::pin(here.get_or_load_many(0..9, key, calls.loader(MS)));
        assert!(timeout(polled * MS, &mut call).await.is_err() || polled > 9);
        let begun = Instant::now();
        let there = cache(backend);
        let loaded = there.get_or_load_many(0..9, key, calls.loader(MS)).await;
        assert_eq!(values(loaded), (0..9).map(|id| 2 * id).collect::<Vec<_>>());
        assert!(begun.elapsed() < 100 * MS, "{:?} after {polled} ms", begun.elapsed());
        drop(call);
    }
}

#[tokio::test(start_paused = true)]
async fn stale_values_are_served_at_once_and_refreshed_together() {
    let builder = Cache::<u64>::builder(MemoryBackend::new(), "bellwether").ttl(100 * MS);
    let cache = builder.stale_while_revalidate(60_000 * MS).build().unwrap();
    let calls = Calls::default();
    for id in 0..30 {
        cache.insert(key(&id), &1).await.unwrap();
    }
    sleep(20_000 * MS).await;
    let begun = Instant::now();
    let loaded = cache.get_or_load_many(0..30, key, calls.loader(20 * MS)).await;
    assert_eq!(sources(loaded), [Source::Stale; 30]);
    assert!(begun.elapsed() < 5 * MS, "{:?}", begun.elapsed());
    while cache.stats().flights > 0 || cache.stats().stored < 30 {
        sleep(MS).await;
    }
    assert_eq!(calls.take(), [(0..30).collect::<Vec<_>>()]);
    let loaded = cache.get_or_load_many(0..30, key, calls.loader(MS)).await;
    assert_eq!(values(loaded), (0..30).map(|id| 2 * id).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn without_a_backend_and_after_a_shutdown_the_ids_are_one_call_too() {
    let faulty = Faulty::new(|_| Some(Fault::Refuse));
    let cache = cache(faulty);
    let calls = Calls::default();
    let loaded = cache.get_or_load_many(0..30, key, calls.loader(MS)).await;
    assert_eq!(sources(loaded), [Source::Degraded; 30]);
    assert_eq!(calls.take().len(), 1);
    cache.shutdown(MS).await;
    let loaded = cache.get_or_load_many(30..60, key, calls.loader(MS)).await;
    assert_eq!(sources(loaded), [Source::Degraded; 30]);
    assert_eq!(calls.take().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_ends_a_batch_that_is_under_way() {
    let backend = MemoryBackend::new();
    let here = cache(backend.clone());
    let hangs = |_: Batch<u64, u64>| std::future::pending::<Made>();
    let call = spawn(here.get_or_load_many(0..3, key, hangs));
    sleep(MS).await;
    here.shutdown(10 * MS).await;
    assert_eq!(kinds(call.await.unwrap()), [Err(ErrorKind::ShutDown); 3]);
    let begun = Instant::now();
    let loaded = cache(backend).get_or_load_many(0..3, key, Calls::default().loader(MS)).await;
    assert_eq!(values(loaded), [0, 2, 4]);
    assert!(begun.elapsed() < 10 * MS, "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn the_loads_of_a_batch_have_their_leases_fences_and_settings() {
    let cache = cache(MemoryBackend::new());
    let seen = Arc::new(AtomicUsize::new(0));
    let load = {
        let seen = seen.clone();
        move |batch: Batch<u64, u64>| {
            for (id, lead) in batch.leads() {
                seen.fetch_add(usize::from(lead.fence().is_some()), Ordering::Relaxed);
                match id {
                    0 => lead.do_not_store(),
                    _ => lead.expire_after(100 * MS),
                }
            }
            let ids = batch.ids().to_vec();
            async move { Ok::<_, BoxError>(ids.into_iter().map(|id| (id, id))) }
        }
    };
    assert_eq!(values(cache.get_or_load_many(0..3, key, load).await), [0, 1, 2]);
    assert_eq!(seen.load(Ordering::Relaxed), 3);
    let stored = |stored: Vec<Result<_, Error>>| -> Vec<_> {
        stored.into_iter().map(Result::unwrap).collect()
    };
    let keys = || (0..3).map(|id| key(&id));
    assert_eq!(stored(cache.get_many(keys()).await), [None, Some(1), Some(2)]);
    sleep(101 * MS).await;
    assert_eq!(stored(cache.get_many(keys()).await), [None; 3]);
}

#[tokio::test(start_paused = true)]
async fn too_many_ids_and_bad_keys_are_errors() {
    let cache = cache(MemoryBackend::new());
    let calls = Calls::default();
    let error = cache.get_or_load_many(0..10_001, key, calls.loader(MS)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Overloaded);
    assert!(error.to_string().contains("10000"), "{error}");
    assert!(calls.take().is_empty());
    let empty_for_one = |id: &u64| if *id == 1 { String::new() } else { key(id) };
    let loaded = cache.get_or_load_many(0..3, empty_for_one, calls.loader(MS)).await;
    assert_eq!(kinds(loaded), [Ok(0), Err(ErrorKind::InvalidKey), Ok(4)]);
    assert_eq!(calls.take(), [[0, 2]]);
}

#[tokio::test(start_paused = true)]
async fn many_values_are_written_read_and_invalidated() {
    let cache = cache(MemoryBackend::new());
    let written = cache.insert_many((0..300).map(|id| (key(&id), id))).await;
    assert_eq!(written.len(), 300);
    let mut written = cache.invalidate_many((0..300).step_by(2).map(|id| key(&id))).await;
    written.extend(cache.invalidate_many([""]).await);
    let failed: Vec<_> = written.into_iter().filter_map(Result::err).collect();
    assert_eq!(failed.iter().map(Error::kind).collect::<Vec<_>>(), [ErrorKind::InvalidKey]);
    let stored = cache.get_many((0..300).map(|id| key(&id))).await;
    let stored: Vec<_> = stored.into_iter().map(Result::unwrap).collect();
    let odd = |id: u64| (id % 2 == 1).then_some(id);
    assert_eq!(stored, (0..300).map(odd).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn one_silence_for_many_keys_is_one_failure() {
    let cache = cache(first(100, Op::Get, Fault::Hang));
    let keys = (0..100).map(|id| key(&id));
    assert!(cache.get_many(keys).await.iter().all(Result::is_err));
    let loaded = cache.request("k").load(value(1)).await.unwrap();
    assert_eq!(loaded.source, Source::Led);
}

/// Other tasks keep the threads busy for longer than a call waits for its keys.
#[test]
fn each_call_loads_once_on_a_starved_runtime() {
    for is_remote in [false, true] {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            let faulty = Faulty::new(|_| None);
            let cache = if is_remote { cache(faulty) } else { cache(faulty.inner.clone()) };
            let mut hogs = JoinSet::new();
            for _ in 0..8 {
                hogs.spawn(async {
                    loop {
                        std::thread::sleep(20 * MS);
                        tokio::task::yield_now().await;
                    }
                });
            }
            let calls = Calls::default();
            let asked = (0..50).map(|call| {
                let ids = (0..10).map(move |id| 10 * call + id);
                spawn(cache.get_or_load_many(ids, key, calls.loader(Duration::ZERO)))
            });
            let asked: Vec<_> = asked.collect();
            for answers in all(asked).await {
                values(answers);
            }
            let calls = calls.take().len();
            println!("remote: {is_remote}: {calls}");
            assert!(calls == 50, "remote: {is_remote}: {calls}");
        });
    }
}
