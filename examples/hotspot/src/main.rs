//! Shows a cache stampede, and how bellwether stops it.
//!
//! ```text
//! cargo run --release -p hotspot
//! cargo run --release -p hotspot -- --redis redis://127.0.0.1/ --processes 4 --kill-leader
//! ```
//!
//! The `clients` send real HTTP to the `replica`s of a `fleet`, which load from the slow `origin`.
//! Five ways run in turn. `figures` holds the result of each, `report` and `chart` show it, and
//! `takeover` kills the leader.

mod chart;
mod clients;
mod figures;
mod fleet;
mod http;
mod options;
mod origin;
mod progress;
mod replica;
mod report;
mod takeover;

use std::{
    convert::Infallible,
    io::{self, Write},
    process::ExitCode,
    time::{Duration, Instant},
};

use bellwether::RedisBackend;

use crate::{
    figures::Figures,
    fleet::Fleet,
    options::{Options, Role},
    origin::Origin,
    progress::Progress,
    replica::{Settings, Way},
};

/// A failure of the demo, printed in one line.
pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hotspot: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Failure> {
    let options = match Role::read()? {
        Role::Replica => return replica::serve_as_process().await,
        Role::Main(options) => options,
    };
    if let Some(url) = &options.redis {
        let ping = RedisBackend::open(url)?.ping().await;
        ping.map_err(|error| format!("--redis: {error:#}"))?;
    }
    chart::prepare(&options.chart)?;
    if !options.json {
        print(&report::setting(&options))?;
    }

    let progress = Progress::new(options.length() * Way::ALL.len() as u32);
    let mut ways = Vec::new();
    for way in Way::ALL {
        ways.push(run_way(&options, way, &progress).await?);
    }
    progress.clear();
    chart::draw(&options, &ways)?;
    show(&options, &ways)
}

/// Runs one way from its first request to its last.
async fn run_way(options: &Options, way: Way, progress: &Progress) -> Result<Figures, Failure> {
    let origin = Origin::start(options.load_time).await?;
    let replicas = replicas(options, way, &origin);
    let fleet = Fleet::start(replicas, options.processes.is_some()).await?;

    clients::warm_up(options, &fleet.doors()).await;
    let begun = Instant::now();
    if let Some(time) = options.failing() {
        origin.fail(begun + time.start..begun + time.end);
    }
    let hammer = clients::hammer(options, fleet.doors(), begun);
    let kill = async {
        match (way, options.kill_leader) {
            (Way::Bellwether, true) => takeover::kill_leader(options, &origin, &fleet).await,
            _ => Ok(None),
        }
    };
    let (tally, takeover) = tokio::select! {
        both = async { tokio::try_join!(hammer, kill) } => both?,
        never = show_progress(progress, way, &origin) => match never {},
    };
    Ok(Figures::new(options, way, begun, &origin, &tally, takeover))
}

fn replicas(options: &Options, way: Way, origin: &Origin) -> Vec<Settings> {
    // Each run has its own namespace, so that it finds no entry of an earlier run.
    let namespace = format!("hotspot-{:08x}", fastrand::u32(..));
    let settings = |number| Settings {
        number,
        way,
        origin: origin.address,
        redis: options.redis.clone(),
        namespace: namespace.clone(),
        ttl: options.ttl,
        lease: options.lease(),
    };
    (0..options.fleet_size()).map(settings).collect()
}

async fn show_progress(progress: &Progress, way: Way, origin: &Origin) -> Infallible {
    let mut tick = tokio::time::interval(Duration::from_millis(100));
    loop {
        tick.tick().await;
        progress.show(&format!("{}: {} origin loads", way.title(), origin.count()));
    }
}

fn show(options: &Options, ways: &[Figures]) -> Result<(), Failure> {
    let sentences = report::sentences(options, ways);
    if options.json {
        let document = serde_json::json!({
            "replicas": options.fleet_size(),
            "processes": options.processes.is_some(),
            "backend": if options.redis.is_some() { "redis" } else { "memory" },
            "clients": options.clients,
            "keys": options.keys,
            "seconds": options.seconds,
            "ttl_ms": options.ttl.as_secs_f64() * 1e3,
            "load_time_ms": options.load_time.as_secs_f64() * 1e3,
            "origin_fails_ms": options.origin_fails.map(|time| time.as_secs_f64() * 1e3),
            "lease_ms": options.lease().as_secs_f64() * 1e3,
            "ways": ways,
            "summary": sentences,
            "chart": options.chart,
        });
        return print(&serde_json::to_string_pretty(&document)?);
    }
    let table = report::table(options, ways);
    let chart = options.chart.display();
    print(&format!("{table}\n{sentences}\n\nThe chart is in {chart}"))
}

/// Prints a text. A closed pipe is not a failure, because the reader may have read enough.
fn print(text: &str) -> Result<(), Failure> {
    match writeln!(io::stdout(), "{text}") {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}
