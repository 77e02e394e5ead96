//! The setting, the table with its footnotes, and a summary in words.

use std::fmt::Write;

use crate::{figures::Figures, options::Options, origin, replica::Way};

/// The headings of the table, which is at most 100 columns wide.
const HEADINGS: [&str; 10] = [
    "",
    "loads",
    "expiries",
    "per expiry",
    "worst",
    "req/s",
    "waited",
    "p99",
    "slowest",
    "failing",
];

/// The space between two columns.
const GAP: &str = "  ";

/// Says where the replicas run and what they share.
pub(crate) fn setting(options: &Options) -> String {
    let replicas = match options.fleet_size() {
        1 => "1 replica".to_owned(),
        count => format!("{count} replicas"),
    };
    match (options.processes, &options.redis) {
        (Some(_), _) => format!("{replicas} in processes of their own, over Redis.\n"),
        (None, Some(_)) => format!(
            "{replicas} as tasks of this process, over Redis. Add `--processes N` for real \
             processes.\n"
        ),
        (None, None) => format!(
            "{replicas} as tasks of this process, over one MemoryBackend.\n\
             For real processes over Redis: `--redis redis://127.0.0.1/ --processes N`.\n"
        ),
    }
}

/// Returns the table of all ways.
pub(crate) fn table(options: &Options, ways: &[Figures]) -> String {
    let mut rows = vec![HEADINGS.map(str::to_owned).to_vec()];
    for figures in ways {
        rows.push(vec![
            figures.way.title().to_owned(),
            thousands(figures.loads as u64),
            figures.expiries.to_string(),
            format!("{:.2}", figures.loads_per_expiry),
            figures.worst_expiry.to_string(),
            thousands(figures.requests_per_second.round() as u64),
            thousands(figures.waited),
            milliseconds(figures.p99_ms),
            milliseconds(figures.worst_ms),
            failing(figures),
        ]);
    }
    let mut text = aligned(&rows);
    text.push_str(&footnote(options));
    text
}

fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for (index, row) in rows.iter().enumerate() {
        for (column, cell) in row.iter().enumerate() {
            let width = widths[column];
            let padded = match column {
                0 => format!("{cell:<width$}"),
                _ => format!("{GAP}{cell:>width$}"),
            };
            text.push_str(&padded);
        }
        text.push('\n');
        if index == 0 {
            let line = widths.iter().sum::<usize>() + GAP.len() * (columns - 1);
            text.push_str(&"-".repeat(line));
            text.push('\n');
        }
    }
    text
}

fn footnote(options: &Options) -> String {
    let killed = match options.kill_leader {
        true => "Requests that the killed replica had open fail.\n",
        false => "",
    };
    let failed = match options.failing() {
        Some(time) => {
            format!("The origin fails for {:?}, from {:?} on.\n", time.end - time.start, time.start)
        }
        None => String::new(),
    };
    format!(
        "\nThe caches are warm at the start. Loads are counted at the origin, failures included.\n\
         An expiry: all loads of a key that begin within one TTL ({:?}) of the first of them, or\n\
         within half of it with early refresh, which loads before the expiry.\n\
         Worst: the most loads that a single expiry caused.\n\
         Waited: answers that took at least half as long as a load.\n\
         The origin runs {} loads at once, each {:?}; more wait, and beyond {} it refuses with \
         503.\n\
         Latency is what clients saw, errors included. An error is any answer but 200, or none.\n\
         Failing: the share of the time of clients that ended in an error, counted from the last\n\
         answer on. A client that is refused at once only asks more often.\n\
         {killed}{failed}",
        options.ttl,
        origin::CAPACITY,
        options.load_time,
        origin::CONNECTIONS,
    )
}

/// Returns the summary of the figures.
pub(crate) fn sentences(options: &Options, ways: &[Figures]) -> String {
    let mut text = String::new();
    let of = |way| ways.iter().find(|figures| figures.way == way);
    let (Some(without), Some(alone), Some(fleet), Some(stale), Some(early), Some(local)) = (
        of(Way::NoProtection),
        of(Way::InProcess),
        of(Way::Bellwether),
        of(Way::StaleWhileRevalidate),
        of(Way::EarlyRefresh),
        of(Way::LocalTier),
    ) else {
        return text;
    };
    let replicas = match options.fleet_size() {
        1 => "one replica".to_owned(),
        count => format!("{count} replicas, each for itself"),
    };
    let _ = write!(
        text,
        "Each time a hot key expired, the origin was asked for it {} without protection,\n{} by \
         {replicas}, and {} by the whole fleet with bellwether.\n\
         Without protection, {} of the requests waited for a load.\n\
         With bellwether, {} waited; {} where the old value is served meanwhile,\nand {} with \
         early refresh.",
        times(without.loads_per_expiry),
        times(alone.loads_per_expiry),
        times(fleet.loads_per_expiry),
        share(without, without.waited),
        share(fleet, fleet.waited),
        share(stale, stale.waited),
        share(early, early.waited),
    );
    let _ = match options.origin_fails {
        Some(time) => write!(
            text,
            "\nThe origin failed for {time:?}. Clients were failing for {} of their time with old \
             values in\nplace of failures (early refresh with stale-if-error), and for {} with old \
             values while they\nare refreshed. Where no old value may be served, it was {} with \
             bellwether,\nand {} without.",
            failing(early),
            failing(stale),
            failing(fleet),
            failing(without),
        ),
        None => write!(
            text,
            "\nOne request in a hundred took longer than {} without protection, {} with \
             bellwether,\n{} with old values, and {} with early refresh.",
            milliseconds(without.p99_ms),
            milliseconds(fleet.p99_ms),
            milliseconds(stale.p99_ms),
            milliseconds(early.p99_ms),
        ),
    };
    let _ = write!(
        text,
        "\nWith a local tier, {} of the reads were served from copies in their replica,\nand \
         the others asked the shared store. The oldest value that a client saw was {} old.",
        share(local, local.local),
        milliseconds(local.oldest_ms),
    );
    match &fleet.takeover {
        Some(takeover) => {
            let _ = write!(text, "\n{}", takeover.sentence());
        }
        None if options.kill_leader => {
            text.push_str(
                "\nNo leader was killed, for no load began in the later part of the run.",
            );
        }
        None => {}
    }
    text
}

/// Returns a number of requests, and their share of all.
pub(crate) fn share(figures: &Figures, count: u64) -> String {
    if count == 0 {
        return "none".to_owned();
    }
    let percent = 100.0 * count as f64 / figures.requests.max(1) as f64;
    format!("{} ({percent:.1} %)", thousands(count))
}

/// Returns the share of their time in which clients were failing.
pub(crate) fn failing(figures: &Figures) -> String {
    match figures.errors {
        0 => "none".to_owned(),
        _ => format!("{:.1} %", figures.failing_percent),
    }
}

fn times(count: f64) -> String {
    match number(count).as_str() {
        "1" => "once".to_owned(),
        other => format!("{other} times"),
    }
}

/// Formats a number with two decimals at most. 1.02 does not become 1.
fn number(value: f64) -> String {
    if value >= 10.0 {
        return format!("{value:.0}");
    }
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn milliseconds(value: f64) -> String {
    match value {
        1000.0.. => format!("{:.2} s", value / 1e3),
        10.0.. => format!("{value:.0} ms"),
        _ => format!("{value:.1} ms"),
    }
}

/// A number with a comma before each three digits.
pub(crate) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
