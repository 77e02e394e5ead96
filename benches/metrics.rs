//! The processor time of a hit over memory, with the feature `metrics` and without.
//!
//! ```text
//! cargo bench -p benches --bench metrics --no-run                      # prints the path of PLAIN
//! cargo bench -p benches --bench metrics --features metrics --no-run   # and of METERED
//! PLAIN PLAIN METERED
//! ```
//!
//! Without paths, it measures its own build. With the paths of two builds, it runs them in turns.
//! The build with the feature installs a recorder, and its cache publishes.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{process::Command, time::Duration};

use bellwether::{BoxError, Cache, MemoryBackend};
use cpu_time::ProcessTime;

/// How often each build is run.
const TURNS: usize = 16;
/// The windows of one run. The least of them counts, because other programs disturb the rest.
const WINDOWS: usize = 60;
const HITS: u32 = 50_000;

fn main() {
    let builds: Vec<_> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    match builds.as_slice() {
        [plain, metered] => in_turns([plain, metered]),
        _ => println!("{:.2} ns a hit", measured()),
    }
}

/// Returns the processor time of a hit in nanoseconds.
fn measured() -> f64 {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::spawn(hits()).await.unwrap() })
}

async fn hits() -> f64 {
    let builder = Cache::builder(MemoryBackend::new(), "bellwether").ttl(Duration::from_secs(3600));
    let cache: Cache<u64> = builder.build().unwrap();
    #[cfg(feature = "metrics")]
    {
        metrics_util::debugging::DebuggingRecorder::new().install().unwrap();
        tokio::spawn(cache.publish_metrics("products"));
    }
    let mut least = Duration::MAX;
    for _ in 0..WINDOWS {
        let begun = ProcessTime::now();
        for _ in 0..HITS {
            let loaded = cache.get_or_load("stock:42", |_| async { Ok::<_, BoxError>(17) }).await;
            assert_eq!(loaded.unwrap(), 17);
        }
        least = least.min(begun.elapsed());
        // The task that publishes has its turn.
        tokio::task::yield_now().await;
    }
    least.as_secs_f64() * 1e9 / f64::from(HITS)
}

/// Runs two builds in turns. Each is first in half of them.
fn in_turns(builds: [&String; 2]) {
    let mut figures = [const { Vec::new() }; 2];
    for turn in 0..TURNS {
        for at in [turn % 2, 1 - turn % 2] {
            let output = Command::new(builds[at]).output().expect("the build can be run");
            let text = String::from_utf8(output.stdout).unwrap();
            let figure = text.split(' ').next().and_then(|word| word.parse::<f64>().ok());
            figures[at].push(figure.expect("the build prints its figure"));
        }
    }
    let mut ratios: Vec<_> =
        figures[0].iter().zip(&figures[1]).map(|(plain, metered)| metered / plain).collect();
    for (what, figures) in ["without", "with   "].into_iter().zip(&mut figures) {
        let [median, least, most] = spread(figures);
        println!("{what} metrics: {median:.1} ns a hit, {least:.1} to {most:.1}");
    }
    let [median, least, most] = spread(&mut ratios).map(|ratio| (ratio - 1.0) * 100.0);
    println!("with metrics: {median:+.1} % in the middle, {least:+.1} to {most:+.1} %");
}

/// Returns the median, the least and the greatest figure.
fn spread(figures: &mut [f64]) -> [f64; 3] {
    figures.sort_by(f64::total_cmp);
    [figures[figures.len() / 2], figures[0], figures[figures.len() - 1]]
}
