//! The chart: what a hold costs, one line for each kind of lock. A flat line costs the same for
//! each number of waiters.

use std::{
    fmt::{Display, Write},
    fs, io,
    path::Path,
};

use super::Row;

const WIDTH: f64 = 1080.0;
const HEIGHT: f64 = 400.0;
const TOP: f64 = 92.0;
const BOTTOM: f64 = 340.0;
const INK: &str = "#222831";
const GREY: &str = "#8a929c";
const GRID: &str = "#e4e7eb";
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
    let mut svg = String::new();
    add(&mut svg, format_args!("<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#ffffff\"/>"));
    text(&mut svg, (24.0, 30.0), 18, INK, "What a lock costs with 1 to 10,000 waiters");
    let mut kinds: Vec<&str> = rows.iter().map(|row| row.kind.as_str()).collect();
    kinds.dedup();
    for (at, kind) in kinds.iter().enumerate() {
        let left = 24.0 + 120.0 * at as f64;
        let color = COLORS[at % COLORS.len()];
        add(
            &mut svg,
            format_args!(
                "<rect x=\"{left}\" y=\"44\" width=\"12\" height=\"12\" fill=\"{color}\"/>"
            ),
        );
        text(&mut svg, (left + 18.0, 55.0), 13, INK, kind);
    }
    for (at, panel) in PANELS.iter().enumerate() {
        panel.draw(&mut svg, 24.0 + 352.0 * at as f64, &kinds, rows);
    }
    let document = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
         viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\">\n{svg}</svg>\n",
    );
    fs::write(path, document)
}

impl Panel {
    fn draw(&self, svg: &mut String, left: f64, kinds: &[&str], rows: &[Row]) {
        let (left, right) = (left + 40.0, left + 324.0);
        text(svg, (left - 40.0, TOP - 12.0), 13, INK, self.title);
        let highest = rows.iter().map(self.figure).fold(self.most, f64::max);
        let y = |figure: f64| BOTTOM - (BOTTOM - TOP) * figure / highest;
        for part in 0..=4 {
            let value = highest * f64::from(part) / 4.0;
            line(svg, &[(left, y(value)), (right, y(value))], GRID, 1.0);
            text(svg, (left - 40.0, y(value) + 4.0), 11, GREY, rounded(value));
        }
        let most = rows.iter().map(|row| row.waiters).max().unwrap_or(1).max(10);
        let x = |waiters: usize| {
            left + (right - left) * (waiters.max(1) as f64).log10() / (most as f64).log10()
        };
        let mut power = 1;
        while power <= most {
            text(svg, (x(power) - 8.0, BOTTOM + 18.0), 11, GREY, power);
            power *= 10;
        }
        text(svg, (left, BOTTOM + 40.0), 12, GREY, "waiters (logarithmic)");
        for (at, kind) in kinds.iter().enumerate() {
            let points: Vec<_> = rows
                .iter()
                .filter(|row| row.kind == **kind)
                .map(|row| (x(row.waiters), y((self.figure)(row))))
                .collect();
            line(svg, &points, COLORS[at % COLORS.len()], 2.5);
        }
    }
}

fn rounded(value: f64) -> String {
    if value < 10.0 { format!("{value:.1}") } else { format!("{value:.0}") }
}

fn add(svg: &mut String, element: std::fmt::Arguments<'_>) {
    let _ = writeln!(svg, "{element}");
}

fn text(svg: &mut String, (x, y): (f64, f64), size: u32, color: &str, words: impl Display) {
    add(
        svg,
        format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{size}\" fill=\"{color}\">{words}</text>"
        ),
    );
}

fn line(svg: &mut String, points: &[(f64, f64)], color: &str, width: f64) {
    let points: Vec<_> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    add(
        svg,
        format_args!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"{width}\"/>",
            points.join(" "),
        ),
    );
}
