//! The setting, the table with its footnotes, and a summary in words.
//!
//! The page and the chart use the same words: queries reach the database, requests wait or fail.

use std::fmt::Write;

use crate::{
    figures::{Away, Figures},
    options::Options,
    origin,
    replica::Way,
};

/// The headings of the table, which is at most 100 columns wide.
const HEADINGS: [&str; 9] =
    ["", "queries", "expiries", "per expiry", "worst", "wait", "fail", "p99", "slowest"];

/// From this lateness on, the machine was too busy for its figures.
const LATE_MS: f64 = 20.0;

/// The space between two columns.
const GAP: &str = "  ";

/// Says where the replicas run, what they share and what they are asked.
pub(crate) fn setting(options: &Options) -> String {
    let replicas = match options.fleet_size() {
        1 => "1 replica".to_owned(),
        count => format!("{count} replicas"),
    };
    let place = match (options.processes, &options.redis) {
        (Some(_), _) => format!("{replicas} in processes of their own, over Redis."),
        (None, Some(_)) => format!(
            "{replicas} as tasks of this process, over Redis. Add `--processes N` for real \
             processes."
        ),
        (None, None) => format!(
            "{replicas} as tasks of this process, over one MemoryBackend.\n\
             For real processes over Redis: `--redis redis://127.0.0.1/ --processes N`."
        ),
    };
    let requests = thousands(options.rate.into());
    format!(
        "{place}\n{requests} requests a second for {} hot keys, whatever the answers.\n",
        options.keys
    )
}

/// Returns the table of all ways.
pub(crate) fn table(options: &Options, ways: &[Figures]) -> String {
    let mut rows = vec![HEADINGS.map(str::to_owned).to_vec()];
    for figures in ways {
        rows.push(vec![
            figures.way.title(options),
            thousands(figures.queries as u64),
            figures.expiries.to_string(),
            number(figures.queries_per_expiry),
            figures.worst_expiry.to_string(),
            share(figures.waited, figures.requests),
            share(figures.failed, figures.requests),
            milliseconds(figures.p99_ms),
            milliseconds(figures.slowest_ms),
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
            let padded = if column == 0 {
                format!("{cell:<width$}")
            } else {
                format!("{GAP}{cell:>width$}")
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
    let killed =
        if options.kill_leader { "Requests that the killed replica had open fail.\n" } else { "" };
    let failed = match options.failing() {
        Some(time) => {
            format!(
                "The database fails for {:?}, from {:?} on.\n",
                time.end - time.start,
                time.start
            )
        }
        None => String::new(),
    };
    format!(
        "\nThe caches are warm at the start.\n\
         Queries: those that reached the database, failures included.\n\
         An expiry: all queries for a key within one time to live ({:?}) of the first of them, or\n\
         within half of it with early refresh, which loads before the expiry.\n\
         Worst: the most queries that a single expiry caused.\n\
         Wait: the share of the requests whose answer took at least half as long as a query.\n\
         Fail: the share of the requests with another answer than 200, or with none in 10 s.\n\
         P99, slowest: the times of answers. A request that fails has no time.\n\
         The database runs {} queries at once, each for {:?}. More of them queue, and beyond {} \
         it\nrefuses with 503.\n\
         {killed}{failed}",
        options.ttl,
        origin::CAPACITY,
        options.load_time,
        origin::CONNECTIONS,
    )
}

/// Returns the summary of the figures. A way without an expiry has no sentence about expiries.
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
    if [without, alone, fleet].iter().any(|figures| figures.expiries == 0) {
        let _ = writeln!(
            text,
            "No key expired in some of the ways. Let each run for longer than a value lives \
             ({:?}).",
            options.ttl,
        );
    } else {
        let _ = writeln!(
            text,
            "For each expiry of a hot key, {} reached the database without protection,\n\
             {} where each replica loads for itself, and {} with bellwether.",
            queries(without.queries_per_expiry),
            number(alone.queries_per_expiry),
            number(fleet.queries_per_expiry),
        );
    }
    let _ = write!(
        text,
        "Of the requests without protection, {} waited and {} failed. With bellwether, {} waited\n\
         and {} failed; {} waited with old values meanwhile, and {} with early refresh.",
        share(without.waited, without.requests),
        share(without.failed, without.requests),
        share(fleet.waited, fleet.requests),
        share(fleet.failed, fleet.requests),
        share(stale.waited, stale.requests),
        share(early.waited, early.requests),
    );
    let _ = match options.origin_fails {
        Some(time) => write!(
            text,
            "\nThe database failed for {time:?}. Of the requests, {} failed with old values in \
             place of\nfailures (early refresh with stale-if-error), and {} with old values \
             while they are refreshed.",
            share(early.failed, early.requests),
            share(stale.failed, stale.requests),
        ),
        None => write!(
            text,
            "\nOne answer in a hundred took longer than {} without protection, {} with \
             bellwether,\n{} with old values, and {} with early refresh.",
            milliseconds(without.p99_ms),
            milliseconds(fleet.p99_ms),
            milliseconds(stale.p99_ms),
            milliseconds(early.p99_ms),
        ),
    };
    let _ = write!(
        text,
        "\nWith a local tier, {} of the reads were served from copies in their replica. The \
         oldest\nvalue that a client got there was {} old.",
        share(local.local, local.requests),
        milliseconds(local.oldest_ms),
    );
    let late = ways.iter().map(|figures| figures.late_ms).fold(0.0, f64::max);
    if late > LATE_MS {
        let _ = write!(
            text,
            "\nThis machine was busy: one request in a hundred was sent {} late or later. Its \
             figures\nsay little about times and waits.",
            milliseconds(late),
        );
    }
    if let Some(away) = of(Way::StoreAway).and_then(|figures| figures.away.as_ref()) {
        let _ = write!(text, "\n{}", outage(options, away));
    }
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

fn outage(options: &Options, away: &Away) -> String {
    let answered = away.requests - away.failed;
    let failed = if away.failed == 0 { "none".to_owned() } else { thousands(away.failed) };
    let slowest = if answered == 0 {
        String::new()
    } else {
        format!(",\nthe slowest after {}", milliseconds(away.slowest_ms))
    };
    let queries = match away.queries {
        0 => "no query".to_owned(),
        1 => "1 query".to_owned(),
        count => format!("{} queries", thousands(count as u64)),
    };
    format!(
        "{} was away for {:?}: {} requests were answered meanwhile{slowest}, and {failed} \
         failed; {queries} reached the database.",
        capitalized(options.store_name()),
        options.away,
        thousands(answered),
    )
}

fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|letter| letter.to_ascii_uppercase());
    first.into_iter().chain(letters).collect()
}

/// Returns the share of some requests in all.
pub(crate) fn share(count: u64, all: u64) -> String {
    let percent = 100.0 * count as f64 / all.max(1) as f64;
    match count {
        0 => "none".to_owned(),
        _ if percent < 0.05 => "under 0.1 %".to_owned(),
        _ => format!("{percent:.1} %"),
    }
}

fn queries(count: f64) -> String {
    match number(count).as_str() {
        "1" => "1 query".to_owned(),
        other => format!("{other} queries"),
    }
}

/// Formats a number with two decimals at most. 1.02 does not become 1.
pub(crate) fn number(value: f64) -> String {
    if value >= 10.0 {
        return format!("{value:.0}");
    }
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

pub(crate) fn milliseconds(value: f64) -> String {
    match value {
        999.5.. => format!("{:.2} s", value / 1e3),
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
