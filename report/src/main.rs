//! Writes the pages of figures from the rows that the benches have measured.
//!
//! `report ROWS DOCS SETTING` reads the rows, draws a chart for each topic into the folder, and
//! writes the marked parts of `benchmarks.md` and `comparison.md` there. A topic without rows, or a
//! row without a figure, is an error. `scripts/report` calls it.

mod chart;
mod pages;

use std::{env, fs, path::Path, process::ExitCode};

use report::figures::{Chart, Row};

/// What went wrong, in words.
type Failure = Box<dyn std::error::Error>;

/// A chart of the report, and what it says.
struct Topic {
    chart: Chart,
    /// The name of its file, without the ending.
    file: &'static str,
    title: &'static str,
    explanation: &'static str,
}

const TOPICS: [Topic; 6] = [
    Topic {
        chart: Chart::Hit,
        file: "report-hit",
        title: "A hit",
        explanation: "A value is there, in Redis or in the process.",
    },
    Topic {
        chart: Chart::ColdKey,
        file: "report-cold-key",
        title: "A cold key",
        explanation: "Many callers, in one process or in several, want a value that is missing.",
    },
    Topic {
        chart: Chart::HotLock,
        file: "report-hot-lock",
        title: "A hot lock",
        explanation: "One lock: alone, and from one holder to the next in another process.",
    },
    Topic {
        chart: Chart::Expiry,
        file: "report-expiry",
        title: "An expiry",
        explanation: "The slowest hundredth of the callers of a key that is loaded again.",
    },
    Topic {
        chart: Chart::Waiters,
        file: "report-waiters",
        title: "Waiters",
        explanation: "The time between two holds of a lock that many wait for.",
    },
    Topic {
        chart: Chart::HttpHit,
        file: "report-http-hit",
        title: "An HTTP hit",
        explanation: "A response is there, in Redis or in the process.",
    },
];

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Failure> {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let [rows, docs, setting] = arguments.as_slice() else {
        return Err("usage: report ROWS DOCS SETTING".into());
    };
    let rows = read(Path::new(rows))?;
    check(&rows)?;
    let docs = Path::new(docs);
    for topic in &TOPICS {
        let rows: Vec<_> = of(topic, &rows).collect();
        fs::write(docs.join(topic.file).with_extension("svg"), chart::draw(topic, &rows))?;
    }
    pages::write(&docs.join("benchmarks.md"), &pages::benchmarks(&rows, setting))?;
    pages::write(&docs.join("comparison.md"), &pages::comparison(&rows, setting))?;
    println!("{} rows, {} charts in {}", rows.len(), TOPICS.len(), docs.display());
    Ok(())
}

fn of<'a>(topic: &Topic, rows: &'a [Row]) -> impl Iterator<Item = &'a Row> {
    let chart = topic.chart;
    rows.iter().filter(move |row| row.chart == chart)
}

/// Reads the rows. A row that is measured twice counts once, as the last time.
fn read(path: &Path) -> Result<Vec<Row>, Failure> {
    let text = fs::read_to_string(path)
        .map_err(|error| format!("the rows {}: {error}", path.display()))?;
    let mut rows: Vec<Row> = Vec::new();
    for line in text.lines() {
        let row: Row = serde_json::from_str(line)?;
        let same =
            |old: &Row| (old.chart, &old.what, &old.beside) == (row.chart, &row.what, &row.beside);
        rows.retain(|old| !same(old));
        rows.push(row);
    }
    Ok(rows)
}

/// Checks that each chart has rows, and each row figures.
fn check(rows: &[Row]) -> Result<(), Failure> {
    for topic in &TOPICS {
        if of(topic, rows).count() < 2 {
            return Err(format!("the chart `{}` has fewer than two rows", topic.title).into());
        }
    }
    let is_figure = |figure: &f64| figure.is_finite() && *figure > 0.0;
    let has_figures = |row: &&Row| {
        [row.here, row.there].iter().all(is_figure)
            && !row.parts.is_empty()
            && row.parts.iter().all(is_figure)
    };
    match rows.iter().find(|row| !has_figures(row)) {
        Some(row) => Err(format!("a row lacks figures: {row:?}").into()),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn row(chart: Chart, is_peer: bool) -> Row {
        Row {
            chart,
            command: "cargo bench --bench costs".to_owned(),
            what: "a hit".to_owned(),
            here: 30.0,
            beside: "a bare socket".to_owned(),
            is_peer,
            there: 25.0,
            parts: vec![1.1, 1.3],
        }
    }

    #[test]
    fn a_chart_without_rows_is_an_error() {
        let mut rows: Vec<_> = TOPICS
            .iter()
            .flat_map(|topic| [row(topic.chart, false), row(topic.chart, true)])
            .collect();
        assert!(check(&rows).is_ok());
        let last = rows.pop();
        assert!(check(&rows).is_err());
        rows.extend(last);
        rows[3].parts.push(f64::NAN);
        assert!(check(&rows).is_err());
    }
}
