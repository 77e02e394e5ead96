//! The dashboard and the alerts before a real Prometheus, under faults.
//!
//! Two services ([`service`]) of one Redis server are scraped every two seconds, while the origin
//! fails, a lock is stuck, a hot key expires and Redis is away. Each fault has to move the query of
//! its panel within two scrapes. A service publishes once a second, so the second scrape after a
//! fault shows what happened in its first second.
//!
//! With `BELLWETHER_DASHBOARD_CHART=docs/dashboard.svg`, it also draws what the queries returned.
#![allow(unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod chart;
mod fault;
mod panels;
mod prometheus;
mod service;
mod shop;

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    net::Ipv4Addr,
    path::Path,
    time::Duration,
};

use testkit::RedisServer;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::sleep,
};

use self::{
    chart::FaultSpan,
    fault::Fault,
    prometheus::{ALERTS, in_time},
    shop::Shop,
};

const METRICS: &str = include_str!("../../docs/metrics.md");
const ALERT_TESTS: &str = include_str!("alerts.test.yml");
const PAGE: &str = include_str!("../../docs/dashboard.md");

/// The service process. Returns at once unless this process was started as one.
#[test]
fn service() {
    service::work();
}

#[test]
fn each_metric_has_a_panel_or_is_named_among_those_without() {
    let told = metrics_in(METRICS.lines().filter(|line| line.starts_with("| `bellwether_")));
    let (_, without) = PAGE.split_once("## Metrics without a panel").unwrap();
    let without = metrics_in(without.lines().take_while(|line| !line.starts_with("## ")));
    let panels = panels::all();
    let queries = panels.iter().flat_map(|panel| &panel.queries);
    let shown: BTreeSet<_> = queries.flat_map(|query| metrics_of(&query.text)).collect();
    let without_panel: BTreeSet<_> = told.difference(&shown).cloned().collect();
    assert_eq!(without_panel, without, "the page names the metrics without a panel");
    let unknown: Vec<_> = shown.difference(&told).collect();
    assert!(unknown.is_empty(), "no page tells of {unknown:?}");
}

/// Returns the first metric of each line.
fn metrics_in<'a>(lines: impl Iterator<Item = &'a str>) -> BTreeSet<String> {
    lines.filter_map(|line| metrics_of(line).into_iter().next()).collect()
}

fn metrics_of(text: &str) -> Vec<String> {
    let words = text.split(|letter: char| !letter.is_ascii_lowercase() && letter != '_');
    let metrics = words.filter(|word| word.starts_with("bellwether_"));
    metrics.map(|word| word.trim_end_matches("_bucket").to_owned()).collect()
}

#[test]
fn promtool_accepts_the_alerts() {
    let checked = prometheus::promtool(&["check", "rules", ALERTS]);
    assert!(checked.contains("SUCCESS"), "{checked}");
}

/// Asks a service for its metrics.
async fn metrics_of_service(port: u16) -> String {
    let answer = async {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
        stream.write_all(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n").await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    answer.await.unwrap_or_default()
}

/// A real exporter writes a `# HELP` and a `# TYPE` for each metric, with the words of the page.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_metric_of_a_service_is_described_as_its_page_says() {
    let redis = RedisServer::start().await;
    let service = service::Service::start(&redis.url()).await;
    let mut answer = String::new();
    let is_whole = async || {
        answer = metrics_of_service(service.port).await;
        let of_server = ["local_staleness_seconds", "round_trip_seconds", "connected_seconds"];
        of_server.iter().all(|name| answer.contains(&format!("\nbellwether_{name}{{")))
    };
    assert!(in_time(is_whole).await, "{answer}");
    let mut told = BTreeMap::new();
    for line in METRICS.lines().filter(|line| line.starts_with("| `bellwether_")) {
        let cells: Vec<_> = line.split('|').map(|cell| cell.trim().replace('`', "")).collect();
        told.insert(cells[1].clone(), (cells[2].clone(), cells[3].clone()));
    }
    let described = |what: &str| -> BTreeMap<String, String> {
        let lines = answer.lines().filter_map(|line| line.strip_prefix(&format!("# {what} ")));
        let pairs = lines.filter_map(|line| line.split_once(' '));
        pairs.map(|(name, text)| (name.to_owned(), text.to_owned())).collect()
    };
    let help = described("HELP");
    let types = described("TYPE");
    assert!(types.len() > 40, "{types:?}");
    for (name, kind) in types {
        let (told_kind, told_help) = told.get(&name).unwrap_or_else(|| panic!("{name}: no page"));
        assert_eq!((told_kind, Some(told_help)), (&kind, help.get(&name)), "{name}");
    }
}

/// The alerts with their times, over series of minutes and of a day.
#[test]
fn each_alert_fires_for_its_cause_and_for_nothing_else() {
    let directory = tempfile::TempDir::new().unwrap();
    let file = directory.path().join("alerts.test.yml");
    fs::write(&file, ALERT_TESTS.replace("ALERTS", ALERTS)).unwrap();
    let tested = prometheus::promtool(&["test", "rules", file.to_str().unwrap()]);
    assert!(tested.contains("SUCCESS"), "{tested}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_fault_moves_its_panel_within_two_scrapes_and_each_query_returns_data() {
    let chart = env::var("BELLWETHER_DASHBOARD_CHART").ok();
    // In a picture, a fault lasts longer, and a panel is quiet again before the next one.
    let [lasts, rest] = if chart.is_some() { [4, 10] } else { [0, 0] }.map(Duration::from_secs);
    let mut shop = Shop::open().await;
    let alerts = shop.prometheus.alerts().await;
    let mut spans = Vec::new();
    shop.becomes_quiet().await;
    for (alert, query) in &alerts {
        assert!(shop.prometheus.query(query).await.is_empty(), "{alert} holds without a fault");
    }
    for fault in Fault::ALL {
        spans.push(play(&mut shop, fault, &alerts, lasts).await);
        sleep(rest).await;
    }
    for query in panels::all().into_iter().flat_map(|panel| panel.queries) {
        let returned = shop.prometheus.range(&query.text).await;
        let mut points = returned.iter().flat_map(|series| &series.points);
        assert!(points.any(|(_, value)| value.is_finite()), "no data: {}", query.text);
    }
    if let Some(chart) = chart {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(chart);
        chart::draw(&path, &shop.prometheus, &spans).await;
    }
}

/// Plays one fault, until its panel and its alerts tell of it, and for a while.
async fn play(
    shop: &mut Shop,
    fault: Fault,
    alerts: &[(String, String)],
    lasts: Duration,
) -> FaultSpan {
    let begun = shop.begin(fault).await;
    let (scrapes, value) = shop.moved_by(fault).await;
    println!("{fault:?}: {:?} is {value:.2} after {scrapes} scrapes", fault.panel().title);
    for alert in fault.alerts() {
        let (_, query) = alerts.iter().find(|(name, _)| name == alert).unwrap();
        let holds = async || !shop.prometheus.query(query).await.is_empty();
        assert!(in_time(holds).await, "{alert} does not hold while {}", fault.words());
    }
    sleep(lasts).await;
    shop.end(fault).await;
    (fault, begun, shop.prometheus.age())
}
