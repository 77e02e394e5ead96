//! Shows a cache stampede, and how bellwether stops it.
//!
//! ```text
//! cargo run --release -p hotspot
//! cargo run --release -p hotspot -- --redis redis://127.0.0.1/ --processes 4 --kill-leader
//! cargo run --release -p hotspot -- --web
//! ```
//!
//! The `clients` send real HTTP to the `replica`s of a `fleet` at a fixed rate. The replicas load
//! from the slow `origin`, which stands for a database, and share a `store`. The ways `run` in
//! turn. `figures` holds the result of each, and `document` keeps all of them. `report`, `chart`
//! and `web` show them. `takeover` kills the leader.

mod chart;
mod clients;
mod document;
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
mod store;
mod takeover;
mod web;

use std::{
    io::{self, Write},
    process::ExitCode,
};

use bellwether::RedisBackend;

use crate::{
    document::Document,
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
        Role::Main(options) => *options,
    };
    if let Some(path) = &options.replay {
        let document = Document::read(path)?;
        let options = document.options(&options);
        return replay(&options, &document).await;
    }
    if let Some(url) = &options.redis {
        let ping = RedisBackend::open(url)?.ping().await;
        ping.map_err(|error| format!("--redis: {error:#}"))?;
    }
    if options.web {
        return web::serve(options, None).await;
    }
    chart::prepare(&options.chart)?;
    if !options.json {
        print(&report::setting(&options))?;
    }

    let progress = Progress::new(options.length_of_all());
    let mut ways = Vec::new();
    for way in Way::ALL {
        let title = way.title(&options);
        let tick = |loads: &[Load], _| progress.show(&format!("{title}: {} queries", loads.len()));
        ways.push(run::one_way(&options, way, tick).await?);
    }
    progress.clear();
    show(&options, &ways)
}

/// Shows a run that was made before.
async fn replay(options: &Options, document: &Document) -> Result<(), Failure> {
    if options.web {
        return web::serve(options.clone(), Some(document.ways.clone())).await;
    }
    print(&report::setting(options))?;
    show(options, &document.ways)
}

fn show(options: &Options, ways: &[Figures]) -> Result<(), Failure> {
    chart::draw(options, ways)?;
    if options.json {
        return print(&serde_json::to_string_pretty(&Document::new(options, ways))?);
    }
    let table = report::table(options, ways);
    let sentences = report::sentences(options, ways);
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
