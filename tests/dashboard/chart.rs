//! A picture of what the queries of some panels returned, with the faults as numbered shades.

use std::{fmt::Write, fs, path::Path};

use super::{
    fault::{Fault, Moved},
    panels,
    prometheus::{Prometheus, Series},
};

/// The panels that are drawn before and after the panels of the faults.
const FIRST: Moved = Moved { title: "Requests by result", label: None };
const LAST: Moved =
    Moved { title: "Local tiers that are not trusted", label: Some(("cache", "prices")) };
const COLORS: [&str; 7] =
    ["#1f7a8c", "#d1493f", "#d9931e", "#2f7d4f", "#6a4c93", "#6b7480", "#c2478f"];
const INK: &str = "#222831";
const GREY: &str = "#6b7480";
const GRID: &str = "#e4e7eb";
const FAULT: &str = "#fbe0d8";
const WIDTH: f64 = 500.0;
const HEIGHT: f64 = 216.0;
/// The edges of a plot within its panel.
const LEFT: f64 = 48.0;
const RIGHT: f64 = WIDTH - 14.0;
const TOP: f64 = 46.0;
const BOTTOM: f64 = 156.0;

/// A fault, and the seconds at which it began and ended.
pub type FaultSpan = (Fault, f64, f64);

/// A line of a panel: its legend and its points.
type Line = (String, Vec<(f64, f64)>);

/// Draws what the queries have returned since the server began.
pub async fn draw(path: &Path, prometheus: &Prometheus, faults: &[FaultSpan]) {
    let its = faults.iter().map(|(fault, ..)| fault.panel());
    let drawn: Vec<_> = std::iter::once(FIRST).chain(its).chain([LAST]).collect();
    let columns = 2;
    let rows = drawn.len().div_ceil(2);
    let width = WIDTH * columns as f64;
    let height = HEIGHT * rows as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>\n"
    );
    let seconds = prometheus.age();
    for (index, panel) in drawn.iter().enumerate() {
        let x = WIDTH * (index % columns) as f64;
        let y = HEIGHT * (index / columns) as f64;
        writeln!(svg, "<g transform=\"translate({x} {y})\">").unwrap();
        let lines = lines(panel, prometheus).await;
        shades(&mut svg, seconds, faults);
        plot(&mut svg, panel.title, seconds, &lines);
        svg.push_str("</g>\n");
    }
    svg.push_str("</svg>\n");
    fs::write(path, svg).expect("the chart can be written");
}

/// Returns what a panel shows of the series with its label, without the series that say nothing.
async fn lines(panel: &Moved, prometheus: &Prometheus) -> Vec<Line> {
    let mut lines = Vec::new();
    for query in panels::titled(panel.title).queries {
        let mut returned = prometheus.range(&query.text).await;
        returned.retain(|series| panel.is_of(series));
        lines.extend(returned.into_iter().map(|series| line(&query.legend, series)));
    }
    lines.retain(|(_, points)| points.iter().any(|(_, value)| *value > 0.0));
    lines
}

fn line(legend: &str, series: Series) -> Line {
    let mut text = legend.to_owned();
    for (name, value) in &series.labels {
        text = text.replace(&format!("{{{{{name}}}}}"), value);
    }
    (text, series.points)
}

fn x_of(second: f64, seconds: f64) -> f64 {
    LEFT + (RIGHT - LEFT) * second / seconds
}

fn shades(svg: &mut String, seconds: f64, faults: &[FaultSpan]) {
    for (number, (fault, from, to)) in (1..).zip(faults) {
        let left = x_of(*from, seconds);
        let height = BOTTOM - TOP;
        let width = x_of(*to, seconds) - left;
        let place = format!("x=\"{left:.0}\" y=\"{TOP}\" width=\"{width:.0}\" height=\"{height}\"");
        let words = format!("<title>{}</title>", fault.words());
        writeln!(svg, "<rect {place} fill=\"{FAULT}\">{words}</rect>").unwrap();
        text(svg, (left + 2.0, TOP - 4.0), GREY, "", &number.to_string());
    }
}

fn plot(svg: &mut String, title: &str, seconds: f64, lines: &[Line]) {
    let values = lines.iter().flat_map(|(_, points)| points.iter().map(|(_, value)| *value));
    let most = values.filter(|value| value.is_finite()).fold(1.0, f64::max);
    let y_of = |value: f64| BOTTOM - (BOTTOM - TOP) * value / most;
    text(svg, (LEFT, 18.0), INK, "font-size=\"14\" font-weight=\"bold\"", title);
    for value in [0.0, most / 2.0, most] {
        let y = y_of(value);
        writeln!(svg, "<path d=\"M{LEFT} {y:.0}H{RIGHT}\" stroke=\"{GRID}\"/>").unwrap();
        let words = if most < 5.0 { format!("{value:.1}") } else { format!("{value:.0}") };
        text(svg, (LEFT - 6.0, y + 4.0), GREY, "text-anchor=\"end\"", &words);
    }
    for second in (0..seconds as u32).step_by(10) {
        let place = (x_of(f64::from(second), seconds), BOTTOM + 15.0);
        text(svg, place, GREY, "text-anchor=\"middle\"", &format!("{second} s"));
    }
    let mut legend = LEFT;
    for ((words, points), color) in lines.iter().zip(COLORS.iter().cycle()) {
        let places = points.iter().filter(|(_, value)| value.is_finite());
        let place =
            |(at, value): &(f64, f64)| format!("{:.0},{:.1}", x_of(*at, seconds), y_of(*value));
        let places = places.map(place).collect::<Vec<_>>().join(" ");
        let style = "fill=\"none\" stroke-width=\"1.5\"";
        writeln!(svg, "<polyline points=\"{places}\" {style} stroke=\"{color}\"/>").unwrap();
        text(svg, (legend, BOTTOM + 36.0), color, "", words);
        legend += 14.0 + 6.2 * words.len() as f64;
    }
}

fn text(svg: &mut String, (x, y): (f64, f64), color: &str, style: &str, words: &str) {
    let place = format!("x=\"{x:.0}\" y=\"{y:.0}\"");
    writeln!(svg, "<text {place} fill=\"{color}\" {style}>{words}</text>").unwrap();
}
