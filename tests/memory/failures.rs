//! Keys that back off after a failed load.
//!
//! Caches over one memory backend stand for processes. Time is paused.

use bellwether::{backend::Windows, cache::Json};

use crate::{origin::*, prelude::*};

const ERROR: Duration = Duration::from_secs(600);
const LOAD: Duration = Duration::from_millis(10);
/// The longest wait after the first failure by default, and the longest of all.
const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(5);
/// How exact the memory of a process is of the keys that back off.
const TICK: Duration = Duration::from_millis(33);
/// The pause of callers that ask all the time.
const PAUSE: Duration = Duration::from_millis(10);

fn failing() -> Origin {
    let origin = Origin::new(LOAD);
    origin.fails(true);
    origin
}

fn with_error_window(builder: Builder<u64>) -> Builder<u64> {
    builder.stale_if_error(ERROR)
}

fn always(builder: Builder<u64>) -> Builder<u64> {
    builder.after_failure(|_| Some(AfterFailure::BACK_OFF))
}

/// Returns caches with a value that is kept for failures, and its origin, which fails now.
async fn failing_fleet(with: impl Fn(Builder<u64>) -> Builder<u64>) -> ([Cache<u64>; 3], Origin) {
    let caches = fleet(with);
    let origin = Origin::new(LOAD);
    origin.load(&caches[0]).await.unwrap();
    sleep(TTL).await;
    origin.fails(true);
    (caches, origin)
}

/// Checks that each cache has the error of a key that backs off for up to this time.
async fn back_off(caches: &[Cache<u64>], origin: &Origin, longest: Duration) {
    for cache in caches {
        let error = origin.load_at_once(cache).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BackingOff);
        let wait = error.retry_after().unwrap();
        assert!(wait <= longest && wait >= longest / 2, "{wait:?}");
        assert!(format!("{error:#}").ends_with("Down"), "{error:#}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stale_value_stands_in_while_its_key_backs_off() {
    let (caches, origin) = failing_fleet(with_error_window).await;
    let first = origin.load(&caches[0]).await.unwrap();
    assert_eq!((first.value, first.source, origin.asked()), (1, Source::Stale, 2));
    for _ in 0..10 {
        for cache in &caches {
            let loaded = origin.load_at_once(cache).await.unwrap();
            assert_eq!((loaded.value, loaded.source), (1, Source::Stale));
        }
    }
    assert_eq!(caches[1].stats().backed_off, 10);
    sleep(FIRST + TICK).await;
    assert_eq!(origin.load(&caches[2]).await.unwrap().source, Source::Stale);
    assert_eq!(origin.asked(), 3);
}

/// A process asks once whether a key backs off, and then serves the value that stands in for it.
#[tokio::test(start_paused = true)]
async fn a_process_claims_once_for_each_back_off() {
    let backend = Faulty::new(|_| None);
    let caches = [(), ()].map(|()| {
        let builder = builder(backend.clone());
        with_error_window(builder).build().unwrap()
    });
    let origin = Origin::new(LOAD);
    origin.load(&caches[0]).await.unwrap();
    sleep(TTL).await;
    origin.fails(true);
    for _ in 0..20 {
        for cache in &caches {
            origin.load(cache).await.unwrap();
        }
    }
    assert_eq!((origin.asked(), backend.count(Op::Claim)), (2, 1 + 2));
}

#[tokio::test(start_paused = true)]
async fn no_failure_is_remembered_without_a_value_that_stands_in() {
    let caches: [_; 2] = fleet(with_error_window);
    let origin = failing();
    for number in 1..=4_usize {
        let error = origin.load(&caches[number % 2]).await.unwrap_err();
        assert_eq!((error.kind(), error.retry_after()), (ErrorKind::Load, None));
        assert_eq!(origin.asked_at().len(), number);
    }
}

/// The back-off would have outlasted the value that stood in, and callers got its failure.
#[tokio::test(start_paused = true)]
async fn a_back_off_by_default_ends_with_the_value_that_stands_in() {
    let with = |builder: Builder<u64>| builder.stale_if_error(LOAD + FIRST / 10);
    let (caches, origin) = failing_fleet(with).await;
    assert_eq!(origin.load(&caches[0]).await.unwrap().source, Source::Stale);
    sleep(FIRST / 10).await;
    assert_eq!(origin.load(&caches[1]).await.unwrap_err().kind(), ErrorKind::Load);
    assert_eq!(origin.asked(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_told_at_once_while_the_key_backs_off() {
    let caches: [_; 3] = fleet(always);
    let origin = failing();
    let error = origin.load(&caches[0]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Load);
    let wait = error.retry_after().unwrap();
    assert!(wait >= FIRST / 2 && wait <= FIRST);
    back_off(&caches, &origin, FIRST).await;
    sleep(wait - MS).await;
    assert_eq!(origin.load_at_once(&caches[1]).await.unwrap_err().retry_after(), Some(MS));
    sleep(MS).await;
    assert_eq!(origin.load(&caches[1]).await.unwrap_err().kind(), ErrorKind::Load);
    back_off(&caches, &origin, 2 * FIRST).await;
    assert_eq!(origin.asked(), 2);
}

/// Only the process that had loaded knew of the pause. The others asked once more to learn of it.
#[tokio::test(start_paused = true)]
async fn waiters_of_another_process_are_told_for_how_long_the_key_backs_off() {
    for typed in [false, true] {
        let pause = 1234 * MS;
        let caches: [_; 2] = fleet(|builder| {
            let builder = builder.after_failure(move |_| Some(AfterFailure::RetryAfter(pause)));
            if typed { builder.error_codec::<ShopError>(Json) } else { builder }
        });
        let origin = failing();
        let asked = join_all(caches.iter().map(|cache| origin.load(cache))).await;
        for error in asked.into_iter().map(Result::unwrap_err) {
            assert_eq!((error.kind(), error.retry_after()), (ErrorKind::Load, Some(pause)));
        }
        assert_eq!(origin.asked(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_failure_keeps_its_type_while_the_key_backs_off() {
    let caches: [_; 3] = fleet(|builder| always(builder).error_codec::<ShopError>(Json));
    let origin = failing();
    for cache in &caches {
        let error = origin.load(cache).await.unwrap_err();
        assert_eq!(error.load_ref(), Some(&ShopError::Down));
        assert!(error.retry_after().is_some());
    }
    assert_eq!(origin.asked(), 1);
}

/// Callers of each process ask all the time, and the origin is asked by one of them for each wait.
#[tokio::test(start_paused = true)]
async fn waits_grow_up_to_the_longest_and_the_first_success_ends_them() {
    for with in [with_error_window, always] {
        let (caches, origin) = failing_fleet(with).await;
        let before = origin.asked_at().len();
        let end = Instant::now() + 8 * LONGEST;
        while Instant::now() < end {
            for cache in &caches {
                let _ = origin.load(cache).await;
            }
            sleep(PAUSE).await;
        }
        let at = origin.asked_at().split_off(before);
        assert!(at.len() > 9 && at.len() < 25, "{}", at.len());
        for (number, pair) in at.windows(2).enumerate() {
            let step = (FIRST * (1 << number.min(10))).min(LONGEST);
            let wait = pair[1] - pair[0] - LOAD;
            assert!(wait >= step / 2 && wait <= step + TICK + PAUSE, "{wait:?} of {step:?}");
        }
        origin.fails(false);
        sleep(LONGEST + TICK).await;
        let asked = origin.asked();
        for cache in &caches {
            assert_eq!(origin.load(cache).await.unwrap().value, asked + 1);
        }
        // The next failure is the first one again.
        sleep(TTL).await;
        origin.fails(true);
        let _ = origin.load(&caches[1]).await;
        sleep(FIRST + TICK).await;
        let _ = origin.load(&caches[2]).await;
        assert_eq!(origin.asked(), asked + 3);
    }
}

/// The longest waits after the failures of a row. Half of each is random.
#[tokio::test(start_paused = true)]
async fn each_rule_has_its_waits() {
    let endless = AfterFailure::BackOff { first: Duration::MAX, longest: Duration::MAX };
    let waits =
        |of_first: [u32; 4]| of_first.map(|times| (times > 0).then_some(times * FIRST)).to_vec();
    for (rule, waits) in [
        (AfterFailure::BACK_OFF, waits([1, 2, 4, 8])),
        (endless, vec![Some(24 * 3600 * SECOND)]),
        (AfterFailure::RetryAfter(Duration::MAX), vec![Some(3600 * SECOND)]),
        (AfterFailure::RetryAfter(MS + Duration::from_nanos(1)), vec![Some(2 * MS)]),
        (AfterFailure::RetryAfter(Duration::ZERO), vec![None, None]),
        (AfterFailure::LoadAgain, vec![None, None]),
    ] {
        let [cache]: [_; 1] = fleet(|builder| builder.after_failure(move |_| Some(rule)));
        let origin = Origin::default();
        origin.fails(true);
        for longest in waits {
            let wait = origin.load(&cache).await.unwrap_err().retry_after();
            let is_right = match (wait, longest) {
                (Some(wait), Some(longest)) => (longest / 2..=longest).contains(&wait),
                (wait, longest) => wait == longest,
            };
            assert!(is_right, "{rule:?}: {wait:?} of {longest:?}");
            sleep(wait.unwrap_or_default()).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_refresh_that_fails_backs_off_in_the_whole_fleet() {
    let (caches, origin) = failing_fleet(|builder| builder.stale_while_revalidate(ERROR)).await;
    let end = Instant::now() + 2 * LONGEST;
    while Instant::now() < end {
        for cache in &caches {
            assert_eq!(origin.load_at_once(cache).await.unwrap().source, Source::Stale);
        }
        sleep(PAUSE).await;
    }
    // After the first value: the waits are 0.1, 0.2, … to 3.2 s, or half of that.
    assert!((1 + 6..=1 + 9).contains(&origin.asked()), "{}", origin.asked());
    origin.fails(false);
    sleep(LONGEST + TICK).await;
    origin.load_at_once(&caches[0]).await.unwrap();
    sleep(2 * LOAD).await;
    assert_eq!(origin.load_at_once(&caches[1]).await.unwrap().source, Source::Hit);
}

#[tokio::test(start_paused = true)]
async fn each_act_ends_a_back_off_in_the_whole_fleet() {
    for (act, value) in [("insert", 77), ("invalidate", 3), ("expire", 3), ("touch", 1)] {
        let (caches, origin) = failing_fleet(|builder| with_error_window(always(builder))).await;
        for cache in &caches {
            assert_eq!(origin.load(cache).await.unwrap().source, Source::Stale);
        }
        origin.fails(false);
        match act {
            "insert" => drop(caches[1].insert("k", &77).await.unwrap()),
            "invalidate" => drop(caches[1].invalidate("k").await.unwrap()),
            "expire" => drop(caches[1].expire("k").await.unwrap()),
            _ => assert!(caches[1].request("k").touch().await.unwrap()),
        }
        for at in [2, 0, 1] {
            let loaded = origin.load(&caches[at]).await.unwrap();
            assert_eq!(loaded.value, value, "{act}");
            assert_ne!(loaded.source, Source::Stale, "{act}");
        }
    }
}

/// The leader that was cancelled has not failed, and the row of failures goes on.
#[tokio::test(start_paused = true)]
async fn after_a_cancelled_leader_the_next_caller_loads() {
    let caches: [_; 2] = fleet(|builder| always(builder).cancel_abandoned());
    let origin = failing();
    origin.load(&caches[0]).await.unwrap_err();
    sleep(FIRST).await;
    assert!(timeout(LOAD / 2, origin.load(&caches[0])).await.is_err());
    sleep(MS).await;
    assert_eq!(origin.load(&caches[1]).await.unwrap_err().kind(), ErrorKind::Load);
    assert_eq!(origin.asked(), 3);
    back_off(&caches, &origin, 2 * FIRST).await;
}

#[tokio::test(start_paused = true)]
async fn a_policy_decides_by_the_error() {
    let caches: [_; 2] = fleet(|builder| {
        builder.after_failure(|error| match error.load_ref::<ShopError>()? {
            ShopError::BadInput => Some(AfterFailure::LoadAgain),
            ShopError::Busy { seconds } => Some(AfterFailure::RetryAfter(*seconds as u32 * SECOND)),
            ShopError::Down => Some(AfterFailure::BACK_OFF),
        })
    });
    let fail =
        |cache: &Cache<u64>, error: ShopError| cache.request("k").load(move |_| ready(Err(error)));
    for cache in [&caches[0], &caches[1], &caches[0]] {
        let error = fail(cache, ShopError::BadInput).await.unwrap_err();
        assert_eq!((error.kind(), error.retry_after()), (ErrorKind::Load, None));
    }
    let error = fail(&caches[0], ShopError::Busy { seconds: 30 }).await.unwrap_err();
    assert_eq!(error.retry_after(), Some(30 * SECOND));
    sleep(30 * SECOND - MS).await;
    let error = fail(&caches[1], ShopError::Down).await.unwrap_err();
    assert_eq!((error.kind(), error.retry_after()), (ErrorKind::BackingOff, Some(MS)));
    sleep(MS).await;
    // It is the second failure in a row that backs off.
    let error = fail(&caches[1], ShopError::Down).await.unwrap_err();
    assert!(error.retry_after().unwrap() > FIRST || error.retry_after() == Some(FIRST));
}

#[tokio::test(start_paused = true)]
async fn a_loader_has_a_rule_of_its_own() {
    let [cache] = &fleet(always);
    let load = |rule: AfterFailure| {
        cache.request("k").load(move |lead: Lead<u64>| async move {
            lead.after_failure(rule);
            Err::<u64, _>(ShopError::Down)
        })
    };
    assert_eq!(load(AfterFailure::LoadAgain).await.unwrap_err().retry_after(), None);
    let origin = failing();
    let minute = 60 * SECOND;
    let error = load(AfterFailure::RetryAfter(minute)).await.unwrap_err();
    assert_eq!(error.retry_after(), Some(minute));
    assert_eq!(origin.load(cache).await.unwrap_err().kind(), ErrorKind::BackingOff);
}

/// The backend is away, so each process backs off by itself.
#[tokio::test(start_paused = true)]
async fn without_a_backend_each_process_backs_off() {
    let caches = [(), ()].map(|()| {
        let backend = Faulty::new(|_| Some(Fault::Refuse));
        always(builder(backend)).build().unwrap()
    });
    let origin = failing();
    for (number, cache) in caches.iter().enumerate() {
        let error = origin.load(cache).await.unwrap_err();
        assert_eq!(origin.asked_at().len(), number + 1);
        sleep(error.retry_after().unwrap() - MS).await;
        let error = origin.load_at_once(cache).await.unwrap_err();
        assert_eq!((error.load_ref(), error.retry_after()), (Some(&ShopError::Down), Some(MS)));
    }
    sleep(MS).await;
    let wait = origin.load(&caches[0]).await.unwrap_err().retry_after().unwrap();
    assert!(wait >= FIRST && wait <= 2 * FIRST, "{wait:?}");
    origin.fails(false);
    sleep(wait).await;
    assert_eq!(origin.load(&caches[0]).await.unwrap().source, Source::Degraded);
    origin.fails(true);
    let wait = origin.load(&caches[0]).await.unwrap_err().retry_after().unwrap();
    assert!(wait <= FIRST, "{wait:?}");
}

/// The process cannot know whether the others were told, so it backs off at least by itself.
#[tokio::test(start_paused = true)]
async fn a_failure_without_an_answer_backs_off_once() {
    for fault in [Fault::LoseReply, Fault::Refuse] {
        let backend = once(Op::Fail, fault);
        let cache = always(builder(backend.clone())).build().unwrap();
        let origin = failing();
        let error = origin.load(&cache).await.unwrap_err();
        assert!(error.retry_after().is_some());
        sleep(LONGEST).await;
        // It is the second one, whether the backend knows of the first or not.
        let wait = origin.load(&cache).await.unwrap_err().retry_after().unwrap();
        assert!(wait <= 2 * FIRST && origin.asked() == 2, "{fault:?}: {wait:?}");
    }
}

/// A setting of a request that equals the default of its cache is a setting. One that is about old
/// values only says nothing of how long a negative value is kept.
#[tokio::test(start_paused = true)]
async fn a_request_keeps_a_negative_value_for_the_time_that_it_sets() {
    let none_ttl = TTL / 10;
    let builder = Cache::<Option<usize>>::builder(MemoryBackend::new(), "bellwether");
    let builder = builder.ttl(TTL).stale_while_revalidate(ERROR);
    let cache = builder.negative_ttl(none_ttl, Option::is_none).build().unwrap();
    let windows = async |key: &str| cache.explain(key).await.unwrap().entry.unwrap().windows;
    let request = || cache.request("k");
    for (request, expected) in [
        (request(), Windows::fresh(none_ttl)),
        (request().ttl(TTL), Windows::fresh(TTL)),
        (request().ttl(2 * TTL), Windows::fresh(2 * TTL)),
        (request().stale_while_revalidate(2 * ERROR), Windows::fresh(none_ttl)),
        (request().stale_if_error(2 * ERROR), Windows::fresh(none_ttl)),
        (request().ttl(TTL).stale_while_revalidate(ERROR), Windows::fresh(TTL).stale(ERROR)),
        (request().ttl(TTL).stale_if_error(ERROR), Windows::fresh(TTL).error(ERROR)),
    ] {
        request.insert(&None).await.unwrap();
        assert_eq!(windows("k").await, Some(expected));
    }
    request().ttl(2 * TTL).insert(&Some(1)).await.unwrap();
    assert_eq!(windows("k").await, Some(Windows::fresh(2 * TTL).stale(ERROR)));
}

/// "Not found" was kept for ever by a sliding expiry, and served stale.
#[tokio::test(start_paused = true)]
async fn a_negative_value_that_is_touched_stays_negative() {
    let none_ttl = TTL / 10;
    for has_tags in [false, true] {
        let builder = Cache::<Option<usize>>::builder(MemoryBackend::new(), "bellwether");
        let builder = builder.ttl(TTL).stale_while_revalidate(ERROR);
        let builder = if has_tags { builder.tags() } else { builder };
        let cache = builder.negative_ttl(none_ttl, Option::is_none).build().unwrap();
        let windows = async |key: &str| cache.explain(key).await.unwrap().entry.unwrap().windows;
        let load = cache.get_or_load("none", value(None));
        assert_eq!(load.await.unwrap(), None);
        sleep(none_ttl / 2).await;
        assert!(cache.request("none").touch().await.unwrap());
        assert_eq!(windows("none").await, Some(Windows::fresh(none_ttl)));
        sleep(none_ttl).await;
        assert!(!cache.request("none").touch().await.unwrap());
        assert_eq!(cache.get("none").await.unwrap(), None);
        // The caller may ask for another time.
        cache.insert("none", &None).await.unwrap();
        assert!(cache.request("none").ttl(TTL).touch().await.unwrap());
        assert_eq!(windows("none").await, Some(Windows::fresh(TTL)));
        cache.insert("some", &Some(1)).await.unwrap();
        assert!(cache.request("some").touch().await.unwrap());
        assert_eq!(windows("some").await, Some(Windows::fresh(TTL).stale(ERROR)));
    }
}

/// "Not found" was stored between the look of a touch and its write, and lived as long as a value.
#[tokio::test(start_paused = true)]
async fn a_touch_does_not_prolong_a_negative_value_that_came_meanwhile() {
    let none_ttl = TTL / 10;
    let faulty = Faulty::new(|_| None);
    let build = |builder: Builder<Option<usize>>| {
        builder.ttl(TTL).negative_ttl(none_ttl, Option::is_none).build().unwrap()
    };
    let cache = build(Cache::builder(faulty.clone(), "bellwether"));
    let other = build(Cache::builder(faulty.inner.clone(), "bellwether"));
    cache.insert("k", &Some(1)).await.unwrap();
    let mut is_late = false;
    faulty.plan(move |op| {
        let is_first = op == Op::Edit && !std::mem::replace(&mut is_late, op == Op::Edit);
        is_first.then_some(Fault::Late(50 * MS))
    });
    let touched = cache.clone();
    let touched = spawn(async move { touched.request("k").touch().await.unwrap() });
    sleep(10 * MS).await;
    other.insert("k", &None).await.unwrap();
    assert!(touched.await.unwrap());
    let entry = cache.explain("k").await.unwrap().entry.unwrap();
    assert_eq!(entry.windows, Some(Windows::fresh(none_ttl)));
}

/// A value that says that there is none ends with its time, and nothing stands in for its load.
#[tokio::test(start_paused = true)]
async fn none_is_kept_for_a_time_of_its_own() {
    let none_ttl = TTL / 10;
    let builder = Cache::<Option<usize>>::builder(MemoryBackend::new(), "bellwether")
        .ttl(TTL)
        .negative_ttl(none_ttl, Option::is_none);
    let cache = builder.stale_while_revalidate(ERROR).stale_if_error(ERROR).build().unwrap();
    let kept = async |key: &str| cache.peek(key).await.unwrap().unwrap().expires_in().unwrap();
    for (value, ttl) in [(None, none_ttl), (Some(1), TTL)] {
        let key = format!("{value:?}");
        cache.get_or_load(&*key, self::value(value)).await.unwrap();
        assert_eq!(kept(&key).await, ttl);
        cache.insert(&*key, &value).await.unwrap();
        assert_eq!(kept(&key).await, ttl);
        cache.request(&*key).wait_limit(TTL).insert(&value).await.unwrap();
        assert_eq!(kept(&key).await, ttl);
        cache.request(&*key).ttl(3 * TTL).insert(&value).await.unwrap();
        assert_eq!(kept(&key).await, 3 * TTL);
    }
    let keeps_longer = |lead: Lead<Option<usize>>| async move {
        lead.expire_after(2 * TTL);
        Ok::<_, ShopError>(None)
    };
    cache.get_or_load("longer", keeps_longer).await.unwrap();
    assert_eq!(kept("longer").await, 2 * TTL);
    cache.get_or_load("gone", value(None)).await.unwrap();
    sleep(none_ttl - MS).await;
    assert_eq!(cache.get("gone").await.unwrap(), Some(None));
    sleep(MS).await;
    let error = cache.get_or_load("gone", |_| ready(Err(ShopError::Down))).await.unwrap_err();
    assert_eq!(error.load_ref(), Some(&ShopError::Down));
    let builder = Cache::<Option<usize>>::builder(MemoryBackend::new(), "bellwether");
    let error = builder.negative_ttl(Duration::ZERO, Option::is_none).build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
}
