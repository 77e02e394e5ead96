//! The setting, the table with its footnotes, and a summary in words.

use std::fmt::Write;

use crate::{figures::Figures, options::Options, origin, replica::Way};

/// The headings of the table, which is at most 100 columns wide.
const HEADINGS: [&str; 10] = [
    "",
    "loads",
    "expiries",
    "loads/expiry",
    "worst",
    "requests/s",
    "p50",
    "p99",
    "slowest",
    "errors",
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
            milliseconds(figures.p50_ms),
            milliseconds(figures.p99_ms),
            milliseconds(figures.worst_ms),
            thousands(figures.errors),
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
        true => "Requests that the killed replica had open are errors.\n",
        false => "",
    };
    format!(
        "\nLoads are counted at the origin, those that it refuses included.\n\
         An expiry: all loads of a key that begin within one TTL ({:?}) of the first of them.\n\
         Worst: the most loads that a single expiry caused.\n\
         The origin runs {} loads at once, each {:?}; more wait, and beyond {} it refuses with \
         503.\n\
         Latency is what clients saw, errors included. An error is any answer but 200, or none.\n\
         {killed}",
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
    let (Some(without), Some(alone), Some(fleet)) =
        (of(Way::NoProtection), of(Way::InProcess), of(Way::Bellwether))
    else {
        return text;
    };
    let replicas = match options.fleet_size() {
        1 => "one replica".to_owned(),
        count => format!("{count} replicas, each for itself"),
    };
    let _ = write!(
        text,
        "Each time a hot key expired, the origin was asked for it {} without protection,\n{} by \
         {replicas}, and {} by the whole fleet with bellwether.",
        times(without.loads_per_expiry),
        times(alone.loads_per_expiry),
        times(fleet.loads_per_expiry),
    );
    let _ = write!(
        text,
        "\nOne request in a hundred took longer than {} without protection,\nand than {} with \
         bellwether; {} and {} failed.",
        milliseconds(without.p99_ms),
        milliseconds(fleet.p99_ms),
        share(without),
        share(fleet),
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

/// Returns how many requests failed, and their share of all.
fn share(figures: &Figures) -> String {
    match figures.errors {
        0 => "none".to_owned(),
        errors => {
            let percent = 100.0 * errors as f64 / figures.requests as f64;
            format!("{} ({percent:.1} %)", thousands(errors))
        }
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
