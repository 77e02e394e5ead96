//! `/metrics`, in the text format of Prometheus.

use std::{
    convert::Infallible,
    fmt::Write,
    future::{Ready, ready},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bellwether::{Cache, cache::Stats, layer::CachedResponse};
use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header::CONTENT_TYPE};
use http_body_util::Full;
use hyper::body::Incoming;
use tower::{service_fn, util::ServiceFn};

/// Counts what clients received.
#[derive(Default)]
pub(crate) struct Metrics {
    /// Responses by the first digit of their status.
    by_class: [AtomicU64; 6],
    /// The time from requests to the heads of their responses.
    micros: AtomicU64,
}

impl Metrics {
    pub(crate) fn count(&self, status: StatusCode, time: Duration) {
        let class = usize::from(status.as_u16() / 100);
        if let Some(counter) = self.by_class.get(class) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.micros.fetch_add(micros, Ordering::Relaxed);
    }

    /// Writes all counters. A `String` takes any text, so no write fails.
    fn text(&self, stats: &Stats) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        let responses = "proxy_responses_total";
        writeln!(text, "# TYPE {responses} counter")?;
        for (class, counter) in self.by_class.iter().enumerate().skip(1) {
            let count = counter.load(Ordering::Relaxed);
            writeln!(text, "{responses}{{class=\"{class}xx\"}} {count}")?;
        }
        let seconds = self.micros.load(Ordering::Relaxed) as f64 / 1e6;
        writeln!(text, "# TYPE proxy_seconds_total counter\nproxy_seconds_total {seconds}")?;
        writeln!(text, "# TYPE bellwether_requests_total counter")?;
        for (result, count) in results(stats) {
            writeln!(text, "bellwether_requests_total{{result=\"{result}\"}} {count}")?;
        }
        for (name, count) in counted(stats) {
            let name = format!("bellwether_{name}_total");
            writeln!(text, "# TYPE {name} counter\n{name} {count}")?;
        }
        let flights = "bellwether_flights";
        writeln!(text, "# TYPE {flights} gauge\n{flights} {}", stats.flights)?;
        Ok(text)
    }
}

/// Returns how requests were answered.
fn results(stats: &Stats) -> [(&'static str, u64); 8] {
    [
        ("hit", stats.hits),
        ("stale", stats.stale),
        ("led", stats.led),
        ("followed", stats.followed),
        ("received", stats.received),
        ("degraded", stats.degraded),
        ("failed", stats.failed),
        ("passed", stats.passed),
    ]
}

fn counted(stats: &Stats) -> [(&'static str, u64); 13] {
    [
        ("loads", stats.loads),
        ("load_failures", stats.failures),
        ("refreshes", stats.refreshes),
        ("stored", stats.stored),
        ("unchanged", stats.unchanged),
        ("missed_variant", stats.missed_variant),
        ("missed_stale", stats.missed_stale),
        ("passed_failed", stats.passed_failed),
        ("passed_method", stats.passed_method),
        ("passed_uncacheable", stats.passed_uncacheable),
        ("passed_overloaded", stats.passed_overloaded),
        ("refused", stats.refused),
        ("backend_errors", stats.backend_errors),
    ]
}

type Scraped = Ready<Result<Response<Full<Bytes>>, Infallible>>;

/// Returns the service behind the second port.
pub(crate) fn service(
    metrics: Arc<Metrics>,
    cache: Cache<CachedResponse>,
) -> ServiceFn<impl Fn(Request<Incoming>) -> Scraped + Clone> {
    service_fn(move |request: Request<Incoming>| {
        let text = match request.uri().path() {
            "/metrics" => metrics.text(&cache.stats()).ok(),
            _ => None,
        };
        ready(Ok(answer(text)))
    })
}

fn answer(text: Option<String>) -> Response<Full<Bytes>> {
    let found = text.is_some();
    let mut response = Response::new(Full::from(text.unwrap_or_default()));
    let plain = HeaderValue::from_static("text/plain; version=0.0.4");
    response.headers_mut().insert(CONTENT_TYPE, plain);
    if !found {
        *response.status_mut() = StatusCode::NOT_FOUND;
    }
    response
}
