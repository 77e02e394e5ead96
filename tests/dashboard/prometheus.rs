//! A real Prometheus on a free port, and questions to it.

use std::{
    collections::BTreeMap,
    fs,
    net::Ipv4Addr,
    process::{Child, Command, Stdio},
};

use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::{LIMIT, Port};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Duration, Instant, sleep},
};

use super::panels::WINDOW;

pub const ALERTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../dashboards/alerts.yml");
/// A service publishes twice between two scrapes.
const SCRAPE_INTERVAL: &str = "2s";
/// The pause between two questions that wait for an answer.
pub const PAUSE: Duration = Duration::from_millis(50);

/// The server ends when this is dropped, and also when the test process is killed.
pub struct Prometheus {
    child: Child,
    port: Port,
    targets: usize,
    begun: Instant,
    _directory: TempDir,
}

/// One series that a query has returned.
pub struct Series {
    pub labels: BTreeMap<String, String>,
    /// Times of the system in seconds, each with its value.
    pub points: Vec<(f64, f64)>,
}

impl Prometheus {
    pub async fn start(targets: &[u16]) -> Self {
        let directory = TempDir::new().unwrap();
        let port = Port::free();
        let file = directory.path().join("prometheus.yml");
        // JSON is YAML as well.
        fs::write(&file, configuration(targets).to_string()).unwrap();
        let mut command = testkit::server_command("prometheus").expect(
            "this test needs `prometheus` and `promtool` in the PATH: `scripts/test --all` \
             installs them",
        );
        command
            .arg(format!("--config.file={}", file.display()))
            .arg(format!("--storage.tsdb.path={}", directory.path().join("data").display()))
            .arg(format!("--web.listen-address=127.0.0.1:{}", port.number()))
            .arg("--log.level=warn")
            .stdin(Stdio::null());
        let child = testkit::spawn_server(command).expect("prometheus can be run");
        let targets = targets.len();
        let begun = Instant::now();
        let server = Self { child, port, targets, begun, _directory: directory };
        let answers = async || !server.query("vector(1)").await.is_empty();
        assert!(in_time(answers).await, "prometheus does not answer");
        server
    }

    /// Returns the time since the start, in seconds.
    pub fn age(&self) -> f64 {
        self.begun.elapsed().as_secs_f64()
    }

    /// Returns what a query returns now. An error is no answer.
    pub async fn query(&self, query: &str) -> Vec<Series> {
        let answer = self.fetch(&format!("query?query={}", encoded(query))).await;
        series(&answer, |one| vec![&one["value"]])
    }

    /// Returns what a query has returned since the start, at each second.
    pub async fn range(&self, query: &str) -> Vec<Series> {
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs_f64();
        let from = now - self.age();
        let query = encoded(query);
        let path = format!("query_range?query={query}&start={from}&end={now}&step=1");
        let mut returned = series(&self.fetch(&path).await, |one| {
            one["values"].as_array().unwrap().iter().collect()
        });
        for (at, _) in returned.iter_mut().flat_map(|series| &mut series.points) {
            *at -= from;
        }
        returned
    }

    /// Returns how often each service was scraped since then.
    pub async fn scrapes_since(&self, then: Instant) -> u64 {
        let milliseconds = then.elapsed().as_millis().max(1);
        let counts = self.query(&format!("count_over_time(up[{milliseconds}ms])")).await;
        let least = counts.iter().map(|series| series.points[0].1 as u64).min();
        least.filter(|_| counts.len() == self.targets).unwrap_or(0)
    }

    /// Returns the names of the alerts, and their queries over a short time.
    pub async fn alerts(&self) -> Vec<(String, String)> {
        let answer = self.fetch("rules").await;
        let rules = answer["data"]["groups"][0]["rules"].as_array().expect("it has the rules");
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        // Minutes and days are seconds here.
        let short = |query: String| {
            let times = ["[2m]", "[5m]", "[10m]", "[1d]"];
            let query = query.replace("[1d] offset 10m", "[1d]").replace("> 300", "> 3");
            times.into_iter().fold(query, |query, time| query.replace(time, "[W]"))
        };
        let one = |rule: &Value| {
            let query = short(text(&rule["query"])).replace("[W]", &format!("[{WINDOW}]"));
            (text(&rule["name"]), query)
        };
        rules.iter().map(one).collect()
    }

    async fn fetch(&self, path: &str) -> Value {
        let answer = async {
            let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port.number())).await?;
            // The answer to this version of HTTP is in one piece.
            let request = format!("GET /api/v1/{path} HTTP/1.0\r\nHost: localhost\r\n\r\n");
            stream.write_all(request.as_bytes()).await?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await?;
            Ok::<_, std::io::Error>(answer)
        };
        let answer = answer.await.unwrap_or_default();
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        let answer: Value = serde_json::from_str(body).unwrap_or_default();
        assert_ne!(answer["errorType"], "bad_data", "{path}: {}", answer["error"]);
        answer
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Asks until the answer is yes. Returns `false` if it is not within the limit.
pub async fn in_time(mut asks: impl AsyncFnMut() -> bool) -> bool {
    let end = Instant::now() + LIMIT;
    while !asks().await {
        if Instant::now() >= end {
            return false;
        }
        sleep(PAUSE).await;
    }
    true
}

fn configuration(targets: &[u16]) -> Value {
    let target = |(number, port): (i32, &u16)| {
        json!({
            "targets": [format!("127.0.0.1:{port}")],
            "labels": { "instance": format!("shop-{number}") },
        })
    };
    let targets: Vec<_> = (1..).zip(targets).map(target).collect();
    json!({
        "global": { "scrape_interval": SCRAPE_INTERVAL, "scrape_timeout": "1s" },
        "rule_files": [ALERTS],
        "scrape_configs": [{ "job_name": "shop", "static_configs": targets }],
    })
}

/// Returns the series of an answer, each with these points.
fn series(answer: &Value, points: impl Fn(&Value) -> Vec<&Value>) -> Vec<Series> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let point = |pair: &Value| (pair[0].as_f64().unwrap(), text(&pair[1]).parse().unwrap());
    let one = |one: &Value| Series {
        labels: one["metric"]
            .as_object()
            .unwrap()
            .iter()
            .map(|(name, value)| (name.clone(), text(value)))
            .collect(),
        points: points(one).into_iter().map(point).collect(),
    };
    answer["data"]["result"].as_array().map_or(Vec::new(), |all| all.iter().map(one).collect())
}

fn encoded(query: &str) -> String {
    query.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// Runs `promtool`, and returns what it has written.
pub fn promtool(arguments: &[&str]) -> String {
    let output = Command::new("promtool").args(arguments).output();
    let output = output.expect("promtool is installed by `scripts/test --all`");
    let written = [output.stdout, output.stderr].concat();
    let written = String::from_utf8_lossy(&written).into_owned();
    assert!(output.status.success(), "{written}");
    written
}
