//! Each setting of caches and of locks, with any time, and the calls that depend on them.

use std::{cell::RefCell, panic::PanicHookInfo, sync::Once, time::Duration};

use bellwether::{
    BoxError, Cache, Error, ErrorKind, Key, Locks,
    backend::Store,
    cache::{AfterFailure, Builder, EarlyRefresh, Lead, Request},
    lease::Retry,
    lock::PermitId,
};
use proptest::prelude::*;
use tokio::time::{sleep, timeout};

const MS: Duration = Duration::from_millis(1);
/// A call that a setting lets wait for ever ends after this time.
const PATIENCE: Duration = Duration::from_millis(300);

/// A setting of a caller, with a time.
pub type Set<T> = fn(T, Duration) -> T;

fn back_off(first: Duration, longest: Duration) -> AfterFailure {
    AfterFailure::BackOff { first, longest }
}

pub const OF_CACHES: [Set<Builder<Option<u32>>>; 20] = [
    |builder, time| builder.ttl(time),
    |builder, time| builder.negative_ttl(time, Option::is_none),
    |builder, time| builder.stale_while_revalidate(time),
    |builder, time| builder.stale_if_error(time),
    |builder, time| builder.serve_stale_after(time),
    |builder, time| builder.early_refresh(EarlyRefresh::Within(time)),
    |builder, time| builder.early_refresh(EarlyRefresh::LastPart(time.as_secs_f64())),
    |builder, time| builder.ttl_jitter(time.as_secs_f64()),
    |builder, time| builder.ttl_jitter(1.0 / (1.0 + time.as_secs_f64())),
    |builder, time| builder.lease(time),
    |builder, time| builder.load_limit(time),
    |builder, time| builder.wait_limit(time),
    |builder, time| builder.after_failure(move |_| Some(back_off(time, time))),
    |builder, time| builder.after_failure(move |_| Some(back_off(MS, time))),
    |builder, time| builder.after_failure(move |_| Some(back_off(time, Duration::MAX))),
    |builder, time| builder.after_failure(move |_| Some(AfterFailure::RetryAfter(time))),
    |builder, time| builder.retry(Retry::fixed(time)),
    |builder, time| builder.retry(Retry::exponential(time, Duration::MAX)),
    |builder, time| builder.retry(Retry::exponential(MS, time)),
    |builder, time| builder.retry(Retry::on_demand().try_limit(time)),
];
/// The place of the limit of one try.
const TRY_LIMIT: usize = 19;

pub const OF_REQUESTS: [Set<Request<Option<u32>>>; 5] = [
    |request, time| request.ttl(time),
    |request, time| request.stale_while_revalidate(time),
    |request, time| request.stale_if_error(time),
    |request, time| request.serve_stale_after(time),
    |request, time| request.wait_limit(time),
];

/// Sets something of a load that is under way.
pub const OF_LOADS: [Set<Lead<Option<u32>>>; 4] = [
    |lead, time| {
        lead.expire_after(time);
        lead
    },
    |lead, time| {
        lead.stale_while_revalidate(time);
        lead
    },
    |lead, time| {
        lead.stale_if_error(time);
        lead
    },
    |lead, time| {
        lead.after_failure(back_off(time, time));
        lead
    },
];

/// Returns times from 0 to the longest, most of them at the edge of some range.
pub fn time() -> impl Strategy<Value = Duration> {
    const SECOND: Duration = Duration::from_secs(1);
    const DAY: Duration = Duration::from_secs(86_400);
    prop_oneof![
        4 => prop::sample::select(vec![
            Duration::ZERO, Duration::from_nanos(1), Duration::from_micros(999), MS, 20 * MS,
            SECOND, 3600 * SECOND, DAY, DAY + MS, 30 * 365 * DAY, 35 * 365 * DAY,
            Duration::from_millis(u64::from(u32::MAX)), Duration::from_micros(u64::MAX),
            Duration::from_millis(1 << 53), Duration::from_millis(u64::MAX),
            Duration::from_secs(i64::MAX as u64), Duration::MAX / 2,
            Duration::MAX - Duration::from_nanos(1),
        ]),
        3 => Just(Duration::MAX),
        1 => (0..20_000_u64).prop_map(Duration::from_micros),
        1 => (any::<u64>(), 0..1_000_000_000_u32).prop_map(|(secs, n)| Duration::new(secs, n)),
    ]
}

/// Returns up to two settings of so many, each with its time.
pub fn picks(count: usize) -> impl Strategy<Value = Vec<(usize, Duration)>> {
    prop::collection::vec((0..count, time()), 0..3)
}

fn apply<T>(settings: &[Set<T>], picks: &[(usize, Duration)], target: T) -> T {
    picks.iter().fold(target, |target, (at, time)| settings[*at](target, *time))
}

/// The settings that a case picks of a cache, of a request, and of a load.
pub type Picks = [Vec<(usize, Duration)>; 3];

pub fn any_picks() -> impl Strategy<Value = Picks> {
    let counts = [OF_CACHES.len(), OF_REQUESTS.len(), OF_LOADS.len()].map(picks);
    let [cache, request, load] = counts;
    (cache, request, load).prop_map(|(cache, request, load)| [cache, request, load])
}

thread_local! {
    /// The overflows of sums and products of times, also in tasks whose panics are caught.
    static OVERFLOWS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Returns the panics of arithmetic in this thread since the last call.
fn overflows() -> Vec<String> {
    static HOOKED: Once = Once::new();
    HOOKED.call_once(|| {
        let default = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info: &PanicHookInfo<'_>| {
            let words = info.to_string();
            if ["overflow", "Duration", "divide"].iter().any(|word| words.contains(word)) {
                OVERFLOWS.with_borrow_mut(|all| all.push(words));
            }
            default(info);
        }));
    });
    OVERFLOWS.take()
}

/// Returns the answer of a call, unless the call waits for long because a setting says so.
async fn soon<T>(call: impl Future<Output = Result<T, Error>>) -> Option<Result<T, ErrorKind>> {
    let answer = timeout(PATIENCE, call).await.ok()?;
    Some(answer.map_err(|error| error.kind()))
}

/// Builds a cache and uses it, or is told which setting is wrong. `key` is of this case alone.
pub async fn use_cache<B: Store + Clone>(
    backend: &B,
    key: &str,
    [of_cache, of_request, of_load]: Picks,
) -> Result<(), TestCaseError> {
    overflows();
    let builder = || Cache::<Option<u32>>::builder(backend.clone(), "settings");
    let built = apply(&OF_CACHES, &of_cache, builder()).build();
    let cache = match built {
        Ok(cache) => cache,
        Err(error) => {
            let words = error.to_string();
            prop_assert!(error.kind() == ErrorKind::InvalidConfig && words.contains("; set "));
            prop_assert!(!of_cache.is_empty(), "{words}");
            return Ok(());
        }
    };
    // The leases of this cache last as long as the default says.
    let request = || apply(&OF_REQUESTS, &of_request, cache.request(key));
    let load = |value: Result<Option<u32>, &'static str>| {
        let of_load = of_load.clone();
        move |lead| async move {
            let _lead = apply(&OF_LOADS, &of_load, lead);
            value.map_err(BoxError::from)
        }
    };
    let is_fit = |kind: &ErrorKind| {
        use ErrorKind::{BackingOff, Load, LoadTimeout, Overloaded};
        matches!(kind, Load | LoadTimeout | BackingOff | Overloaded)
    };
    for value in [Ok(Some(1)), Err("no article"), Ok(None), Err("no article"), Ok(Some(2))] {
        let request = soon(request().load(load(value))).await.map(|got| got.map(|_| ()));
        let plain = soon(cache.get_or_load(key, load(value))).await.map(|got| got.map(|_| ()));
        for answer in [request, plain] {
            let kind = answer.and_then(Result::err);
            prop_assert!(kind.iter().all(is_fit), "{value:?}: {kind:?}");
        }
        sleep(MS).await;
        prop_assert!(soon(cache.get(key)).await.is_some_and(|got| got.is_ok()));
    }
    // One try that may take no time has no answer on a busy machine.
    let hurries = of_cache.iter().any(|(at, time)| *at == TRY_LIMIT && *time < PATIENCE);
    let is_done = |answer: Option<Result<u64, ErrorKind>>| {
        matches!(answer, Some(Ok(_))) || hurries && answer == Some(Err(ErrorKind::Backend))
    };
    for value in [Some(3), None] {
        prop_assert!(is_done(soon(request().insert(&value)).await));
        let touched = soon(request().touch()).await;
        prop_assert!(is_done(touched.map(|touched| touched.map(u64::from))));
        soon(request().load(load(Ok(Some(4))))).await;
        soon(request().refresh(load(Ok(Some(5))))).await;
        prop_assert!(is_done(soon(cache.expire(key)).await));
        soon(request().load(load(Err("no article")))).await;
        prop_assert!(is_done(soon(cache.insert(key, &value)).await));
    }
    prop_assert!(is_done(soon(cache.invalidate(key)).await));
    cache.shutdown(of_cache.first().map_or(MS, |(_, time)| *time)).await;
    prop_assert_eq!(overflows(), Vec::<String>::new());
    Ok(())
}

/// Uses a lock whose settings are those that the case picks.
macro_rules! lock_settings {
    ($picks:expr, $lock:expr $(, $renewal:ident $(, $fence:ident)?)?) => {
        $picks.iter().fold($lock, |lock, (at, time)| match at {
            0 => lock.lease(*time),
            1 => lock.wait_limit(*time),
            2 => lock.retry(Retry::fixed(*time)),
            3 => lock.retry(Retry::exponential(*time, Duration::MAX)),
            4 => lock.retry(Retry::on_demand().try_limit(*time)),
            $(5 => lock.$renewal(*time),
            6 => lock.max_hold(*time),
            $(7 => lock.$fence(*time),)?)?
            _ => lock,
        })
    };
}

pub const OF_LOCKS: usize = 8;

fn is_fit<T>(answer: Option<&Result<T, ErrorKind>>) -> Result<(), TestCaseError> {
    use ErrorKind::{InvalidConfig, Lost, NotAcquired};
    let fits = |kind: &ErrorKind| matches!(kind, InvalidConfig | Lost | NotAcquired);
    let kind = answer.and_then(|answer| answer.as_ref().err());
    prop_assert!(kind.is_none_or(fits), "{kind:?}");
    Ok(())
}

/// Takes each kind of lock, and asks for it once more while it is held.
pub async fn use_locks<B: Store + Clone>(
    backend: &B,
    name: &str,
    picks: Vec<(usize, Duration)>,
) -> Result<(), TestCaseError> {
    overflows();
    let locks = Locks::new(backend.clone(), "bellwether");
    let named = |kind| format!("{name}-{kind}");
    let mutex = lock_settings!(picks, locks.mutex(name), renew_every);
    let fair = lock_settings!(picks, locks.mutex(named("fair")).fair(), renew_every);
    let reentrant = locks.reentrant_mutex(named("reentrant"));
    let reentrant = lock_settings!(picks, reentrant, renew_every);
    let rw = lock_settings!(picks, locks.rw_lock(named("rw")), renew_every);
    let several = locks.several([named("one"), named("other")]);
    let several = lock_settings!(picks, several, renew_every);
    let semaphore = lock_settings!(picks, locks.semaphore(named("sem"), 2), renew_every);
    let permits = lock_settings!(picks, locks.permits(named("permits"), 2));
    macro_rules! twice {
        ($call:expr) => {{
            let held = soon($call).await;
            is_fit(soon($call).await.as_ref())?;
            is_fit(held.as_ref())?;
        }};
    }
    twice!(mutex.lock());
    twice!(fair.lock());
    twice!(several.lock());
    twice!(rw.read());
    twice!(rw.write());
    twice!(semaphore.acquire());
    twice!(permits.acquire());
    let unknown: PermitId = "0".repeat(32).parse().unwrap();
    is_fit(soon(permits.renew(unknown)).await.as_ref())?;
    twice!(reentrant.lock());
    for (_, time) in picks {
        let latch = locks.latch(format!("{name}-latch")).ttl(time).wait_limit(time);
        is_fit(soon(latch.set(2)).await.as_ref())?;
        let _ = soon(latch.wait()).await;
        let _ = soon(latch.clear()).await;
        let job = locks.once_id(name, "id", time).lease(time);
        is_fit(soon(job.begin()).await.as_ref())?;
        let mut ticks = locks.every(named("every"), time).lease(time);
        is_fit(soon(ticks.next()).await.as_ref())?;
    }
    locks.shutdown(MS).await;
    prop_assert_eq!(overflows(), Vec::<String>::new());
    Ok(())
}

/// Returns a key of its own for each call.
pub fn next_key() -> String {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let key = Key::from(NEXT.fetch_add(1, Ordering::Relaxed));
    key.as_str().to_owned()
}
