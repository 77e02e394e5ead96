//! Rows of figures: what something takes here, beside a floor or a peer in the same run.
//!
//! A bench prints each row. If [`FILE`] is set, it also adds the row to that file, as a line of
//! JSON, from which the program of this package writes tables and charts.

use std::{
    env,
    fs::File,
    io::{self, Write},
    time::Duration,
};

use serde::{Deserialize, Serialize};

/// The variable that names the file to which benches add their rows.
pub const FILE: &str = "REPORT_FIGURES";
/// The variable of a run that only shows that all rows are there. It takes few samples.
pub const SMOKE: &str = "REPORT_SMOKE";
/// How many parts of a run have a ratio of their own.
const PARTS: usize = 10;

/// Returns whether this run only shows that all rows are there.
pub fn is_smoke() -> bool {
    env::var_os(SMOKE).is_some()
}

/// Returns how often something is measured: so often, or far less in a smoke run.
pub fn turns(usual: usize) -> usize {
    if is_smoke() { usual.min((usual / 50).max(PARTS)) } else { usual }
}

/// Returns how long something is measured: so long, or a tenth in a smoke run.
pub fn lasts(usual: Duration) -> Duration {
    if is_smoke() { usual / 10 } else { usual }
}

/// A chart of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "the program says what each chart shows")]
pub enum Chart {
    Hit,
    ColdKey,
    HotLock,
    Expiry,
    Waiters,
    HttpHit,
}

/// The figure that stands for many.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Statistic {
    Mean,
    Median,
    P99,
}

impl Statistic {
    /// Returns the figure that stands for these, in microseconds.
    fn of(self, times: &[Duration]) -> f64 {
        let mut sorted = times.to_vec();
        sorted.sort_unstable();
        let at = |at: usize| sorted.get(at.min(sorted.len().saturating_sub(1)));
        let time = match self {
            Self::Mean => times.iter().sum::<Duration>().as_secs_f64() / times.len() as f64,
            Self::Median => at(sorted.len() / 2).map_or(f64::NAN, Duration::as_secs_f64),
            Self::P99 => at(sorted.len() * 99 / 100).map_or(f64::NAN, Duration::as_secs_f64),
        };
        time * 1e6
    }
}

/// What a step takes here, beside a floor or a peer.
#[derive(Debug, Serialize, Deserialize)]
pub struct Row {
    /// The chart that shows it.
    pub chart: Chart,
    /// What measures it again.
    pub command: String,
    /// The step.
    pub what: String,
    /// Its time in microseconds.
    pub here: f64,
    /// What stands beside it.
    pub beside: String,
    /// Whether a peer stands beside it, and not the least that it could take.
    pub is_peer: bool,
    /// The time of what stands beside it, in microseconds.
    pub there: f64,
    /// The ratios of parts of the run. Their spread says what the ratio of the whole is worth.
    pub parts: Vec<f64>,
}

impl Row {
    /// Returns the ratio of the whole run. Below 1, the step takes less here.
    pub fn ratio(&self) -> f64 {
        self.here / self.there
    }

    /// Returns the least and the greatest ratio of a part.
    pub fn spread(&self) -> (f64, f64) {
        let fold = |with: fn(f64, f64) -> f64| self.parts.iter().copied().fold(f64::NAN, with);
        (fold(f64::min), fold(f64::max))
    }
}

/// The rows that one command measures for a chart.
#[derive(Clone, Copy, Debug)]
pub struct Rows {
    /// The chart that shows them.
    pub chart: Chart,
    /// What measures them again.
    pub command: &'static str,
    /// The figure that stands for the samples.
    pub statistic: Statistic,
}

impl Rows {
    /// Notes the samples of a step, beside those of the least that it could take.
    ///
    /// # Errors
    ///
    /// The file of rows cannot be written.
    pub fn floor(&self, here: (&str, &[Duration]), floor: (&str, &[Duration])) -> io::Result<()> {
        self.note(here, floor, false)
    }

    /// Notes the samples of a step, beside those of a peer.
    ///
    /// # Errors
    ///
    /// The file of rows cannot be written.
    pub fn peer(&self, here: (&str, &[Duration]), peer: (&str, &[Duration])) -> io::Result<()> {
        self.note(here, peer, true)
    }

    fn note(
        &self,
        (what, ours): (&str, &[Duration]),
        (beside, theirs): (&str, &[Duration]),
        is_peer: bool,
    ) -> io::Result<()> {
        let ratio = |(ours, theirs)| self.statistic.of(ours) / self.statistic.of(theirs);
        let row = Row {
            chart: self.chart,
            command: self.command.to_owned(),
            what: what.to_owned(),
            here: self.statistic.of(ours),
            beside: beside.to_owned(),
            is_peer,
            there: self.statistic.of(theirs),
            parts: parts(ours).zip(parts(theirs)).map(ratio).collect(),
        };
        let (least, most) = row.spread();
        println!(
            "{what:28} {:8.2} us   {beside:34} {:8.2} us   ratio {:.2} ({least:.2} to {most:.2})",
            row.here,
            row.there,
            row.ratio()
        );
        let Some(path) = env::var_os(FILE) else { return Ok(()) };
        let mut file = File::options().create(true).append(true).open(path)?;
        // One write, because programs may run beside each other.
        file.write_all(format!("{}\n", serde_json::to_string(&row)?).as_bytes())
    }
}

/// Cuts samples into parts of about equal length, in the order in which they were taken.
fn parts(samples: &[Duration]) -> impl Iterator<Item = &[Duration]> {
    let count = samples.len().min(PARTS);
    (0..count).map(move |part| {
        let edge = |part| part * samples.len() / count;
        &samples[edge(part)..edge(part + 1)]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_cut_into_ten_parts() {
        let samples: Vec<_> = (0..25).map(Duration::from_micros).collect();
        let lengths: Vec<_> = parts(&samples).map(<[_]>::len).collect();
        assert_eq!(lengths, [2, 3, 2, 3, 2, 3, 2, 3, 2, 3]);
        assert_eq!(parts(&samples[..3]).count(), 3);
    }

    #[test]
    fn a_statistic_is_in_microseconds() {
        let times: Vec<_> = (1..=100).map(Duration::from_micros).collect();
        assert_eq!(Statistic::Mean.of(&times), 50.5);
        assert_eq!(Statistic::Median.of(&times), 51.0);
        assert_eq!(Statistic::P99.of(&times), 100.0);
        assert!(Statistic::P99.of(&[]).is_nan());
    }
}
