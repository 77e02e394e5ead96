//! The chart: what a hold costs, one line for each kind of lock. A flat line costs the same for
//! each number of waiters.

use std::{fs, io, path::Path};

use report::svg::{GREY, GRID, INK, Style, Svg};

use super::Row;

const WIDTH: f64 = 1080.0;
const HEIGHT: f64 = 400.0;
const TOP: f64 = 92.0;
const BOTTOM: f64 = 340.0;
const WORDS: Style = Style { size: 13, bold: false, color: INK, anchor: "start" };
const LABEL: Style = Style { size: 11, color: GREY, ..WORDS };
const COLORS: [&str; 4] = ["#1f7a8c", "#d9931e", "#d1493f", "#5b5f97"];

/// What a panel shows, and how much of it fits.
struct Panel {
    title: &'static str,
    most: f64,
    figure: fn(&Row) -> f64,
}

const PANELS: [Panel; 3] = [
    Panel { title: "commands for a hold", most: 5.0, figure: |row| row.commands },
    Panel {
        title: "microseconds between two holds",
        most: 1_000.0,
        figure: |row| 1e6 / row.holds.max(1.0),
    },
    Panel { title: "scripts a second of idle waiters", most: 20.0, figure: |row| row.idle },
];

/// Draws the rows into an SVG file.
pub(super) fn draw(path: &Path, rows: &[Row]) -> io::Result<()> {
    let mut svg = Svg::new(WIDTH, HEIGHT);
    let title = Style { size: 18, ..Style::default() };
    svg.text((24.0, 30.0), title, "What a lock costs with 1 to 10,000 waiters");
    let mut kinds: Vec<&str> = rows.iter().map(|row| row.kind.as_str()).collect();
    kinds.dedup();
    for (at, kind) in kinds.iter().enumerate() {
        let left = 24.0 + 120.0 * at as f64;
        svg.rectangle((left, 44.0), (12.0, 12.0), COLORS[at % COLORS.len()]);
        svg.text((left + 18.0, 55.0), WORDS, kind);
    }
    for (at, panel) in PANELS.iter().enumerate() {
        panel.draw(&mut svg, 24.0 + 352.0 * at as f64, &kinds, rows);
    }
    fs::write(path, svg.document())
}

impl Panel {
    fn draw(&self, svg: &mut Svg, left: f64, kinds: &[&str], rows: &[Row]) {
        let (left, right) = (left + 40.0, left + 324.0);
        svg.text((left - 40.0, TOP - 12.0), WORDS, self.title);
        let highest = rows.iter().map(self.figure).fold(self.most, f64::max);
        let y = |figure: f64| BOTTOM - (BOTTOM - TOP) * figure / highest;
        for part in 0..=4 {
            let value = highest * f64::from(part) / 4.0;
            svg.line((left, y(value)), (right, y(value)), GRID, false);
            svg.text((left - 40.0, y(value) + 4.0), LABEL, rounded(value));
        }
        let most = rows.iter().map(|row| row.waiters).max().unwrap_or(1).max(10);
        let x = |waiters: usize| {
            left + (right - left) * (waiters.max(1) as f64).log10() / (most as f64).log10()
        };
        let mut power = 1;
        while power <= most {
            svg.text((x(power) - 8.0, BOTTOM + 18.0), LABEL, power);
            power *= 10;
        }
        svg.text((left, BOTTOM + 40.0), LABEL, "waiters (logarithmic)");
        for (at, kind) in kinds.iter().enumerate() {
            let points: Vec<_> = rows
                .iter()
                .filter(|row| row.kind == **kind)
                .map(|row| (x(row.waiters), y((self.figure)(row))))
                .collect();
            svg.curve(&points, COLORS[at % COLORS.len()]);
        }
    }
}

fn rounded(value: f64) -> String {
    if value < 10.0 { format!("{value:.1}") } else { format!("{value:.0}") }
}
