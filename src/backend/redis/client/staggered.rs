//! Attempts of which one success is enough.

use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::time::{Instant, sleep_until};

use crate::{error::BoxError, time::after};

/// Runs attempts, and returns the first success. Each begins when the one before it has failed, or
/// has taken longer than `pause`. Returns the last failure if all of them fail.
pub(super) async fn first_success<T, E: Into<BoxError>, F>(
    attempts: impl IntoIterator<Item = F>,
    pause: Duration,
) -> Result<T, BoxError>
where
    F: Future<Output = Result<T, E>>,
{
    let mut waiting = attempts.into_iter().peekable();
    let (mut running, mut failure) = (FuturesUnordered::new(), None);
    let mut next_at = Instant::now();
    loop {
        if let Some(attempt) = waiting.next() {
            running.push(attempt);
            next_at = after(Instant::now(), pause);
        }
        let outcome = tokio::select! {
            Some(outcome) = running.next() => outcome,
            () = sleep_until(next_at), if waiting.peek().is_some() => continue,
            else => break,
        };
        match outcome {
            Ok(success) => return Ok(success),
            Err(error) => failure = Some(error),
        }
    }
    Err(failure.map_or_else(|| "there is nothing to try".into(), Into::into))
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    async fn race(attempts: &[(u32, Result<u32, &'static str>)]) -> (Result<u32, String>, u32) {
        let begun = Instant::now();
        let attempts: Vec<_> = attempts
            .iter()
            .map(|(takes, outcome)| async move {
                sleep(*takes * MS).await;
                *outcome
            })
            .collect();
        let outcome = first_success(attempts, 80 * MS).await.map_err(|error| error.to_string());
        (outcome, begun.elapsed().as_millis().try_into().unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn an_attempt_that_hangs_holds_up_the_next_for_a_pause_only() {
        assert_eq!(race(&[(5, Ok(1)), (1, Ok(2))]).await, (Ok(1), 5));
        assert_eq!(race(&[(5000, Ok(1)), (3, Ok(2))]).await, (Ok(2), 83));
        assert_eq!(race(&[(90, Ok(1)), (5000, Ok(2))]).await, (Ok(1), 90));
        assert_eq!(race(&[(2, Err("a")), (3, Ok(2))]).await, (Ok(2), 5));
        assert_eq!(race(&[(2, Err("a")), (3, Err("b"))]).await, (Err("b".to_owned()), 5));
        assert_eq!(race(&[(1000, Err("a")), (3, Err("b"))]).await, (Err("a".to_owned()), 1000));
        assert!(race(&[]).await.0.is_err());
    }
}
