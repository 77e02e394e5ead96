//! Attempts of which one success is enough.

use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::time::{Instant, sleep_until, timeout};

use crate::time::after;

/// Runs attempts, and returns the first success. Each begins when the one before it has failed, or
/// has taken longer than `pause`. Returns the last failure, or `None` if there is none within
/// `limit`.
pub(super) async fn first_success<T, E, F>(
    attempts: impl IntoIterator<Item = F>,
    pause: Duration,
    limit: Duration,
) -> Result<T, Option<E>>
where
    F: Future<Output = Result<T, E>>,
{
    let mut waiting = attempts.into_iter().peekable();
    let (mut running, mut failure) = (FuturesUnordered::new(), None);
    let mut next_at = Instant::now();
    let race = async {
        loop {
            if let Some(attempt) = waiting.next() {
                running.push(attempt);
                next_at = after(Instant::now(), pause);
            }
            let outcome = tokio::select! {
                Some(outcome) = running.next() => outcome,
                () = sleep_until(next_at), if waiting.peek().is_some() => continue,
                else => return None,
            };
            match outcome {
                Ok(success) => return Some(success),
                Err(error) => failure = Some(error),
            }
        }
    };
    let success = timeout(limit, race).await.ok().flatten();
    success.ok_or(failure)
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    async fn race(attempts: &[(u32, Result<u32, u32>)]) -> (Result<u32, Option<u32>>, Duration) {
        let begun = Instant::now();
        let attempts: Vec<_> = attempts
            .iter()
            .map(|(takes, outcome)| async move {
                sleep(*takes * MS).await;
                *outcome
            })
            .collect();
        (first_success(attempts, 80 * MS, 1000 * MS).await, begun.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn an_attempt_that_hangs_holds_up_the_next_for_a_pause_only() {
        assert_eq!(race(&[(5, Ok(1)), (1, Ok(2))]).await, (Ok(1), 5 * MS));
        assert_eq!(race(&[(5000, Ok(1)), (3, Ok(2))]).await, (Ok(2), 83 * MS));
        assert_eq!(race(&[(90, Ok(1)), (5000, Ok(2))]).await, (Ok(1), 90 * MS));
        assert_eq!(race(&[(2, Err(1)), (3, Ok(2))]).await, (Ok(2), 5 * MS));
        assert_eq!(race(&[(2, Err(1)), (3, Err(2))]).await, (Err(Some(2)), 5 * MS));
        assert_eq!(race(&[(5000, Ok(1))]).await, (Err(None), 1000 * MS));
        assert_eq!(race(&[]).await, (Err(None), Duration::ZERO));
    }
}
