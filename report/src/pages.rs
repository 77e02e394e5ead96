//! The marked parts of the pages.

use std::{collections::BTreeSet, fmt::Write, fs, path::Path};

use report::figures::Row;

use crate::{Failure, TOPICS, chart, of};

/// The lines between which a page is written.
const BEGIN: &str = "<!-- scripts/report writes from here -->";
const END: &str = "<!-- to here -->";

/// Replaces the marked part of a page.
pub(crate) fn write(path: &Path, part: &str) -> Result<(), Failure> {
    let page = fs::read_to_string(path)?;
    let page = replaced(&page, part)
        .ok_or_else(|| format!("{} has no line `{BEGIN}`, or no `{END}`", path.display()))?;
    Ok(fs::write(path, page)?)
}

fn replaced(page: &str, part: &str) -> Option<String> {
    let (before, rest) = page.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n\n{part}\n{END}{after}"))
}

/// Returns all charts, each with its table and its commands.
pub(crate) fn benchmarks(rows: &[Row], setting: &str) -> String {
    let mut page = format!("{}\n", about(setting));
    for topic in &TOPICS {
        let title = topic.title;
        let _ = write!(page, "\n## {title}\n\n![{title}, as ratios]({}.svg)\n\n", topic.file);
        let rows: Vec<_> = of(topic, rows).collect();
        let commands: BTreeSet<_> = rows.iter().map(|row| row.command.as_str()).collect();
        for command in &commands {
            let _ = writeln!(page, "- `{command}`");
        }
        page.push_str("\n| here | | beside | | ratio | of parts |\n|---|---|---|---|---|---|\n");
        for row in rows {
            let Row { what, beside, .. } = row;
            let (here, there, ratios) = cells(row);
            let _ = writeln!(page, "| {what} | {here} | {beside} | {there} | {ratios} |");
        }
    }
    page
}

/// Returns the table of all rows with a peer.
pub(crate) fn comparison(rows: &[Row], setting: &str) -> String {
    let mut page = format!("{}\n\n", about(setting));
    page.push_str(
        "| here | | peer | | ratio | of parts | command |\n|---|---|---|---|---|---|---|\n",
    );
    for row in rows.iter().filter(|row| row.is_peer) {
        let Row { what, beside, command, .. } = row;
        let (here, there, ratios) = cells(row);
        let _ = writeln!(page, "| {what} | {here} | {beside} | {there} | {ratios} | `{command}` |");
    }
    page
}

fn about(setting: &str) -> String {
    format!(
        "One run of `scripts/report`:\n{setting}.\nA ratio below 1 means that this crate takes \
         less. Its spread is the least and the greatest\nof ten parts of the run.",
    )
}

/// Returns the figures of a row: here, there, and the ratio with its spread as two cells.
fn cells(row: &Row) -> (String, String, String) {
    let (least, most) = row.spread();
    let ratios = [row.ratio(), least, most].map(chart::ratio);
    let [ratio, least, most] = ratios;
    (time(row.here), time(row.there), format!("{ratio} | {least} to {most}"))
}

/// Returns a time in microseconds as words.
fn time(micros: f64) -> String {
    match micros {
        0.0..10.0 => format!("{micros:.2} us"),
        10.0..100.0 => format!("{micros:.1} us"),
        100.0..1_000.0 => format!("{micros:.0} us"),
        1_000.0..10_000.0 => format!("{:.1} ms", micros / 1e3),
        _ => format!("{:.0} ms", micros / 1e3),
    }
}

#[cfg(test)]
mod tests {
    use report::figures::Chart;

    use super::*;

    #[test]
    fn a_page_keeps_what_stands_outside_of_the_marks() {
        let page = format!("# Page\n\n{BEGIN}\nold\n{END}\n\n## Rest\n");
        let new = format!("# Page\n\n{BEGIN}\n\nnew\n{END}\n\n## Rest\n");
        assert_eq!(replaced(&page, "new").as_deref(), Some(new.as_str()));
        assert_eq!(replaced(&new, "new").as_deref(), Some(new.as_str()));
        assert_eq!(replaced("# Page", "new"), None);
    }

    #[test]
    fn only_peers_are_compared() {
        let rows = [crate::tests::row(Chart::Hit, false), crate::tests::row(Chart::Hit, true)];
        let table = comparison(&rows, "2 cores");
        let line = "| a hit | 30.0 us | a bare socket | 25.0 us | 1.20 | 1.10 to 1.30 | ";
        assert_eq!(table.matches(line).count(), 1);
    }
}
