//! A chart of ratios, on a logarithmic scale. A dot is a ratio, and a bar its spread.

use report::{
    figures::Row,
    svg::{GREY, GRID, INK, Style, Svg},
};

use crate::Topic;

const WIDTH: f64 = 1_000.0;
const TOP: f64 = 104.0;
const ROW: f64 = 46.0;
const FOOT: f64 = 50.0;
/// The ends of the scale, between the words of a row and its figures.
const LEFT: f64 = 400.0;
const RIGHT: f64 = 800.0;

const FLOOR: &str = "#1f7a8c";
const PEER: &str = "#d9931e";

/// Returns the chart of a topic as a document.
pub(crate) fn draw(topic: &Topic, rows: &[&Row]) -> String {
    let bottom = TOP + ROW * rows.len() as f64;
    let mut svg = Svg::new(WIDTH, bottom + FOOT);
    headline(&mut svg, topic);
    let scale = Scale::of(rows);
    let label = Style { size: 13, color: GREY, anchor: "middle", ..Style::default() };
    for ratio in scale.steps() {
        svg.line((scale.x(ratio), TOP), (scale.x(ratio), bottom), GRID, false);
        svg.text((scale.x(ratio), bottom + 18.0), label, ratio);
    }
    svg.line((scale.x(1.0), TOP - 6.0), (scale.x(1.0), bottom), INK, true);
    let words = "time here / time beside it in the same run, on a logarithmic scale";
    svg.text(((LEFT + RIGHT) / 2.0, bottom + 38.0), label, words);
    for (at, row) in rows.iter().enumerate() {
        draw_row(&mut svg, &scale, TOP + ROW * at as f64, row);
    }
    svg.document()
}

fn headline(svg: &mut Svg, topic: &Topic) {
    let title = Style { size: 24, bold: true, ..Style::default() };
    svg.text((20.0, 36.0), title, topic.title);
    let grey = Style { color: GREY, ..Style::default() };
    svg.text((20.0, 60.0), grey, topic.explanation);
    for (x, color, words) in [(20.0, FLOOR, "beside a floor"), (160.0, PEER, "beside a peer")] {
        svg.dot((x + 6.0, 80.0), 6.0, color);
        svg.text((x + 20.0, 85.0), grey, words);
    }
    svg.text((300.0, 85.0), grey, "bars: from the least to the greatest part of the run");
}

fn draw_row(svg: &mut Svg, scale: &Scale, top: f64, row: &Row) {
    let middle = top + ROW / 2.0;
    let color = if row.is_peer { PEER } else { FLOOR };
    svg.text((20.0, middle - 3.0), Style::default(), &row.what);
    let grey = Style { size: 13, color: GREY, ..Style::default() };
    svg.text((20.0, middle + 14.0), grey, format_args!("beside {}", row.beside));
    let (least, most) = row.spread();
    let (left, right) = (scale.x(least), scale.x(most));
    svg.rectangle((left, middle - 3.0), ((right - left).max(1.0), 6.0), color);
    svg.dot((scale.x(row.ratio()), middle), 6.0, color);
    let figures = Style { bold: true, ..Style::default() };
    svg.text((RIGHT + 20.0, middle - 3.0), figures, ratio(row.ratio()));
    let spread = format!("{} to {}", ratio(least), ratio(most));
    svg.text((RIGHT + 20.0, middle + 14.0), grey, spread);
}

/// Returns a ratio in as many digits as it is worth.
pub(crate) fn ratio(ratio: f64) -> String {
    match ratio {
        0.0..10.0 => format!("{ratio:.2}"),
        10.0..100.0 => format!("{ratio:.1}"),
        _ => format!("{ratio:.0}"),
    }
}

/// The logarithmic scale of all rows.
struct Scale {
    least: f64,
    most: f64,
}

impl Scale {
    /// Returns a scale that has a place for 1 and for each ratio.
    fn of(rows: &[&Row]) -> Self {
        let (mut least, mut most) = (0.8_f64, 1.25_f64);
        for row in rows {
            let (low, high) = row.spread();
            least = least.min(low).min(row.ratio());
            most = most.max(high).max(row.ratio());
        }
        Self { least: least / 1.1, most: most * 1.1 }
    }

    fn x(&self, ratio: f64) -> f64 {
        LEFT + (RIGHT - LEFT) * (ratio / self.least).ln() / (self.most / self.least).ln()
    }

    /// Returns the round numbers on the scale, few enough for their labels.
    fn steps(&self) -> Vec<f64> {
        let decades = (self.most / self.least).log10();
        let digits: &[f64] = match decades {
            0.0..2.0 => &[1.0, 2.0, 5.0],
            _ => &[1.0],
        };
        let powers = -4..6;
        powers
            .flat_map(|power: i32| digits.iter().map(move |digit| (digit, power)))
            // A division gives 0.2, and a multiplication would give 0.2000000001.
            .map(|(digit, power)| match power {
                0.. => digit * 10_f64.powi(power),
                _ => digit / 10_f64.powi(-power),
            })
            .filter(|step| (self.least..=self.most).contains(step))
            .collect()
    }
}
