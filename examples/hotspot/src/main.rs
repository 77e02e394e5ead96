//! Shows a cache stampede, and how bellwether stops it.
//!
//! ```text
//! cargo run --release -p hotspot
//! cargo run --release -p hotspot -- --redis redis://127.0.0.1/ --processes 4 --kill-leader
//! cargo run --release -p hotspot -- --web
//! ```
//!
//! The `clients` send real HTTP to the `replica`s of a `fleet`, which load from the slow `origin`.
//! Six ways `run` in turn. `figures` holds the result of each, `report`, `chart` and `web` show it,
//! and `takeover` kills the leader.

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
mod run;
mod sliders;
mod takeover;
mod web;

use std::{
    io::{self, Write},
    process::ExitCode,
};

use bellwether::RedisBackend;

use crate::{
    figures::Figures,
    options::{Options, Role},
    origin::Load,
    progress::Progress,
    replica::Way,
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
    if options.web {
        return web::serve(options).await;
    }
    chart::prepare(&options.chart)?;
    if !options.json {
        print(&report::setting(&options))?;
    }

    let progress = Progress::new(options.length() * Way::ALL.len() as u32);
    let mut ways = Vec::new();
    for way in Way::ALL {
        let tick = |loads: &[Load], _| {
            progress.show(&format!("{}: {} origin loads", way.title(), loads.len()));
        };
        ways.push(run::one_way(&options, way, tick).await?);
    }
    progress.clear();
    chart::draw(&options, &ways)?;
    show(&options, &ways)
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
