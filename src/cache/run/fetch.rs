//! The fetch of an entry that is too large to be pushed to all processes that wait for it.
//!
//! All of them hear of it at once. If all fetched it at once, their requests would wait for each
//! other beyond their time-outs, and each process would load by itself. So each has a turn.

use std::time::Duration;

use tokio::time::sleep;
use tracing::debug;

use super::{Step, claim::Claiming};
use crate::{backend::Announcement, error::Chain};

/// For how long each process has the server to itself: 4 ms for an entry of 1 MiB.
const BYTES_PER_MS: u32 = 256 << 10;
/// The turns that processes choose from if the backend does not know their number.
const TURNS: u32 = 64;
/// How often a process fetches an entry. Each try after the first spreads twice as far.
const TRIES: u32 = 4;

impl<V: Clone + Send + Sync + 'static> Claiming<'_, V> {
    /// Fetches the entry when it is this process's turn, within half of the time `left`.
    ///
    /// Returns `None` if the entry is gone or of no use. The process then claims the lease.
    pub(super) async fn fetch(
        &mut self,
        announced: Announcement,
        left: Duration,
    ) -> Option<Step<V>> {
        let run = self.run;
        for tried in 0..TRIES {
            let pause = pause(&announced, tried).min(left / 2);
            tokio::select! {
                biased;
                () = sleep(pause) => {}
                () = run.shard.breaker.opened() => return Some(run.away()),
            }
            let turn = run.shard.turn().await;
            self.epoch = run.leader.begin_epoch();
            let fetched = run.core.counted(run.core.store.fetch(&run.name, &announced).await);
            drop(turn);
            match fetched {
                Ok(entry) => {
                    let entry = entry.filter(|entry| entry.fence >= announced.fence)?;
                    return self.received(entry).await;
                }
                Err(error) => debug!(error = %Chain(&error), "an announced entry is fetched again"),
            }
        }
        None
    }
}

/// Returns how long a process waits for its turn.
fn pause(announced: &Announcement, tried: u32) -> Duration {
    let turns = match announced.turn {
        Some(turn) if tried == 0 => turn,
        // The last ones of a crowd do not know how many are behind them.
        turn => fastrand::u32(0..turn.unwrap_or(0).max(TURNS)) << tried,
    };
    let bytes = u32::try_from(announced.bytes).unwrap_or(u32::MAX);
    Duration::from_millis(1).mul_f64(f64::from(bytes) / f64::from(BYTES_PER_MS)) * turns
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn turns_are_spread_by_the_size_of_the_entry() {
        let announced = |bytes, turn| Announcement { fence: 1, bytes, turn };
        assert_eq!(pause(&announced(1 << 20, Some(0)), 0), Duration::ZERO);
        assert_eq!(pause(&announced(1 << 20, Some(99)), 0), 396 * MS);
        assert_eq!(pause(&announced(64 << 10, Some(100)), 0), 25 * MS);
        for tried in 0..TRIES {
            let longest = 64 * 4 * MS * (1 << tried);
            assert!(pause(&announced(1 << 20, None), tried) < longest);
            assert!(tried == 0 || pause(&announced(1 << 20, Some(3)), tried) < longest);
        }
    }
}
