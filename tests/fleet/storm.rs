//! The callers of a worker that ask for one key all the time.

use std::{sync::Arc, time::Duration};

use bellwether::{BoxError, Cache, cache::AfterFailure};
use tokio::time::sleep;

use super::{
    protocol::{Event, Report, Storm, now},
    worker::tell,
};

/// The waits after the first failure and after many.
pub const FIRST: Duration = Duration::from_millis(50);
pub const LONGEST: Duration = Duration::from_millis(400);
/// The time for which a value is kept for failures.
pub const KEPT: Duration = Duration::from_secs(600);

/// Plays the callers of one process.
pub async fn play(cache: Cache<String>, storm: Storm) -> Report {
    let storm = Arc::new(storm);
    let callers: Vec<_> = (0..storm.callers)
        .map(|_| tokio::spawn(ask_until_the_end(cache.clone(), storm.clone())))
        .collect();
    let mut report = Report { began: now(), ..Report::default() };
    for caller in callers {
        for (source, count) in caller.await.unwrap().sources {
            *report.sources.entry(source).or_default() += count;
        }
    }
    report.ended = now();
    report.stats = format!("{:?}", cache.stats());
    report
}

/// Counts the answers by their source or kind of error, each before and after the first success.
async fn ask_until_the_end(cache: Cache<String>, storm: Arc<Storm>) -> Report {
    let mut report = Report::default();
    while now() < storm.ends {
        let rule = AfterFailure::BackOff { first: FIRST, longest: LONGEST };
        let request = cache.request(storm.key.as_str()).ttl(KEPT).after_failure(rule);
        let request = if storm.keeps { request.stale_if_error(KEPT) } else { request };
        let loader = load(storm.clone());
        let answer = match request.load(|_| loader).await {
            Ok(loaded) => format!("{:?}", loaded.source()),
            Err(error) => format!("{:?}", error.kind()),
        };
        *report.sources.entry(answer).or_default() += 1;
        sleep(Duration::from_millis(2)).await;
    }
    report
}

async fn load(storm: Arc<Storm>) -> Result<String, BoxError> {
    let key = storm.key.clone();
    tell(Event::LoadBegun { key: key.clone(), at: now() });
    sleep(Duration::from_millis(storm.load_ms)).await;
    if now() < storm.fails_until {
        return Err("the origin is down".into());
    }
    tell(Event::LoadEnded { key, at: now() });
    Ok("recovered".to_owned())
}
