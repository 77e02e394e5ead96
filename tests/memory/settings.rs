//! Any setting with any time works, or is refused with a clear error.

use std::time::Duration;

use bellwether::MemoryBackend;
use proptest::prelude::*;
use tokio::runtime::Builder;

use crate::all_settings::{OF_LOCKS, any_picks, next_key, picks, use_cache, use_locks};

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
