//! The pauses of the waiters whose requests failed, and their end.
//!
//! The pauses of one waiter grow, because many waiters may be in the same trouble. To notice its
//! end soon, one waiter at a time is the probe, which asks again after a short pause. The first
//! answer wakes all of them. So the time until the locks are back does not depend on the length of
//! the trouble. The rate of requests does not depend on the number of waiters.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use tokio::{
    sync::{Notify, Semaphore},
    time::sleep,
};

/// The first pause of a waiter, which doubles with each failure.
const FIRST: Duration = Duration::from_millis(20);
/// The longest pauses of the probe and of the other waiters are this many times [`FIRST`].
const PROBE: u32 = 4;
const LONGEST: u32 = 256;
/// An answer to another waiter is heeded after this many times [`FIRST`], or earlier.
const LONGEST_UNHEEDED: u32 = 64;

/// The waiters of one shard whose last requests failed.
pub(super) struct Recovery {
    /// The right to ask again soon. Its queue is in order, so each waiter is the probe in turn: the
    /// server may refuse some names and not others.
    probe: Semaphore,
    /// Notified when a request was answered.
    answered: Notify,
    paused: AtomicUsize,
}

/// The failures of one waiter since its last answer.
#[derive(Default)]
pub(super) struct WaiterFailures {
    count: u32,
    /// How often it failed although another waiter had an answer.
    alone: u32,
}

impl WaiterFailures {
    pub(super) fn is_none(&self) -> bool {
        self.count == 0
    }
}

impl Default for Recovery {
    fn default() -> Self {
        let (answered, paused) = (Notify::new(), AtomicUsize::new(0));
        Self { probe: Semaphore::new(1), answered, paused }
    }
}

impl Recovery {
    /// Wakes the waiters if the shard has answered a request well.
    pub(super) fn heard(&self, is_well: bool) {
        // Each answer comes here, and the waiters are rare.
        if is_well && self.paused.load(Ordering::Relaxed) > 0 {
            self.answered.notify_waiters();
        }
    }

    /// Pauses after a failure.
    pub(super) async fn pause(&self, failures: &mut WaiterFailures) {
        let longest = jittered(failures.count, LONGEST);
        let unheeded = match failures.alone {
            0 => Duration::ZERO,
            alone => jittered(alone - 1, LONGEST_UNHEEDED),
        };
        let short = jittered(failures.count, PROBE);
        failures.count = failures.count.saturating_add(1);
        let _paused = Paused::new(&self.paused);
        let answered = async {
            sleep(unheeded).await;
            self.answered.notified().await;
        };
        let probe = async {
            let _probe = self.probe.acquire().await;
            sleep(short).await;
        };
        tokio::select! {
            () = sleep(longest) => {}
            () = answered => failures.alone = failures.alone.saturating_add(1),
            () = probe => {}
        }
    }
}

/// Returns a random time in the upper half of a bound, which doubles with each failure up to
/// `longest` times [`FIRST`].
fn jittered(failures: u32, longest: u32) -> Duration {
    let bound = FIRST.saturating_mul((1 << failures.min(16)).min(longest));
    bound.mul_f64(0.5 + fastrand::f64() / 2.0)
}

/// Counts a waiter that pauses.
struct Paused<'a>(&'a AtomicUsize);

impl<'a> Paused<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Paused<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, atomic::AtomicBool};

    use tokio::time::Instant;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Waiters that ask until the trouble is over, and what they did.
    #[derive(Default)]
    struct Outlasting {
        recovery: Recovery,
        is_over: AtomicBool,
        requests: AtomicUsize,
        served: AtomicUsize,
    }

    impl Outlasting {
        async fn wait(self: Arc<Self>) {
            let mut failures = WaiterFailures::default();
            loop {
                self.requests.fetch_add(1, Ordering::Relaxed);
                if self.is_over.load(Ordering::Relaxed) {
                    break;
                }
                self.recovery.pause(&mut failures).await;
            }
            self.recovery.heard(true);
            self.served.fetch_add(1, Ordering::Relaxed);
        }

        async fn all_served(&self, count: usize) -> Duration {
            let begun = Instant::now();
            while self.served.load(Ordering::Relaxed) < count {
                sleep(Duration::from_millis(1)).await;
            }
            begun.elapsed()
        }
    }

    /// The pauses of a waiter grew to 1.3 s, and nothing woke it.
    #[tokio::test(start_paused = true)]
    async fn all_waiters_are_back_soon_after_a_long_trouble() {
        for count in [1, 1000] {
            let trouble = Arc::<Outlasting>::default();
            for _ in 0..count {
                tokio::spawn(trouble.clone().wait());
            }
            sleep(60 * SECOND).await;
            let asked = trouble.requests.swap(0, Ordering::Relaxed);
            let probes = 60 * SECOND.as_millis() as usize / 40;
            assert!(asked <= probes + count * 32, "{asked} requests of {count} waiters");
            trouble.is_over.store(true, Ordering::Relaxed);
            let took = trouble.all_served(count).await;
            assert!(took <= FIRST * PROBE + Duration::from_millis(3), "{took:?} for {count}");
        }
    }

    /// The server may refuse one name for good, and answer for all others.
    #[tokio::test(start_paused = true)]
    async fn answers_to_others_do_not_make_a_waiter_ask_all_the_time() {
        let trouble = Arc::<Outlasting>::default();
        for _ in 0..10 {
            tokio::spawn(trouble.clone().wait());
        }
        for _ in 0..10_000 {
            sleep(Duration::from_millis(1)).await;
            trouble.recovery.heard(true);
        }
        let asked = trouble.requests.load(Ordering::Relaxed);
        assert!(asked < 500, "{asked} requests in ten seconds");
    }
}
