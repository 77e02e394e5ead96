//! Any setting with any time works, or is refused with a clear error.

use bellwether::lease::Retry;
use proptest::prelude::*;
use tokio::runtime::Builder;

use crate::{
    all_settings::{OF_LOCKS, any_picks, next_key, picks, use_cache, use_locks},
    prelude::*,
};

/// Runs a case with paused time. The tasks run on this thread.
fn run(case: impl Future<Output = Result<(), TestCaseError>>) -> Result<(), TestCaseError> {
    let mut runtime = Builder::new_current_thread();
    runtime.enable_time().start_paused(true).build().unwrap().block_on(case)
}

proptest! {
    #[test]
    fn any_time_in_any_setting_of_a_cache_works_or_is_refused(picks in any_picks()) {
        run(async { use_cache(&MemoryBackend::new(), &next_key(), picks).await })?;
    }

    #[test]
    fn any_time_in_any_setting_of_a_lock_works_or_is_refused(picks in picks(OF_LOCKS)) {
        run(async { use_locks(&MemoryBackend::new(), &next_key(), picks).await })?;
    }
}

/// A time to live of all time, less a random part of it, overflowed.
#[test]
fn the_longest_time_to_live_may_have_the_smallest_jitter() {
    let longest = [(0, Duration::MAX), (9, Duration::MAX)].to_vec();
    run(use_cache(&MemoryBackend::new(), "k", [longest, Vec::new(), Vec::new()])).unwrap();
}

/// A wait of zero tried again at once, for ever where the backend answers at once.
#[test]
fn a_strategy_of_zero_does_not_spin() {
    for retry in [Retry::fixed(Duration::ZERO), Retry::exponential(Duration::ZERO, Duration::MAX)] {
        let case = async {
            let backend = Faulty::new(|_| None);
            let locks = Locks::new(backend.clone(), "bellwether");
            let _held = locks.mutex("m").lock().await.unwrap();
            let waiter = locks.mutex("m").wait_limit(Duration::from_secs(1)).retry(retry);
            prop_assert_eq!(waiter.lock().await.unwrap_err().kind(), ErrorKind::NotAcquired);
            prop_assert!(backend.count(Op::Acquire) <= 1100, "{}", backend.count(Op::Acquire));
            Ok(())
        };
        run(case).unwrap();
    }
}
