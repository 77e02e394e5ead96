//! The chart: the loads of the origin over time, one panel for each way, all to one scale.

use std::{
    fmt::{Display, Write},
    fs::{self, File},
    path::Path,
};

use crate::{
    Failure,
    figures::{BAR, Figures},
    options::Options,
    origin,
    replica::Way,
    report::thousands,
};

const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 900.0;
const HEAD: f64 = 84.0;
const LEFT: f64 = 76.0;
const RIGHT: f64 = WIDTH - 96.0;
/// The right end of the texts above a panel.
const EDGE: f64 = WIDTH - 24.0;

const INK: &str = "#222831";
const GREY: &str = "#8a929c";
const GRID: &str = "#e4e7eb";

fn color(way: Way) -> &'static str {
    match way {
        Way::NoProtection => "#d1493f",
        Way::InProcess => "#d9931e",
        Way::Bellwether => "#1f7a8c",
    }
}

/// Makes the file, so that a path that cannot be written is reported before the run.
pub(crate) fn prepare(path: &Path) -> Result<(), Failure> {
    match File::options().create(true).append(true).open(path) {
        Ok(_) => Ok(()),
        Err(error) => Err(format!("cannot write the chart {}: {error:#}", path.display()).into()),
    }
}

/// Draws the chart into an SVG file.
pub(crate) fn draw(options: &Options, ways: &[Figures]) -> Result<(), Failure> {
    let mut svg = Svg(String::new());
    svg.rectangle((0.0, 0.0), (WIDTH, HEIGHT), "#ffffff");
    headline(&mut svg, options);
    let most = ways.iter().flat_map(|way| &way.loads_per_100ms).max();
    let most = most.map_or(1.0, |most| f64::from(*most) * 1.1).max(5.0);
    let height = (HEIGHT - HEAD) / ways.len().max(1) as f64;
    for (index, figures) in ways.iter().enumerate() {
        let top = HEAD + height * index as f64;
        let last = index + 1 == ways.len();
        let seconds = options.length().as_secs_f64();
        let panel = Panel { top: top + 34.0, bottom: top + height - 52.0, seconds, most };
        panel.axes(&mut svg, last);
        panel.bars(&mut svg, figures);
        panel.capacity(&mut svg, options);
        panel.takeover(&mut svg, figures);
        legend(&mut svg, top, figures);
    }
    let document = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
         viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\">\n{}</svg>\n",
        svg.0,
    );
    Ok(fs::write(&options.chart, document)?)
}

fn headline(svg: &mut Svg, options: &Options) {
    let title = "What the origin is asked for when hot keys expire";
    let below = format!(
        "{} hot keys that live {:?}, {} clients, {} replicas; each bar is {:?}; \
         all panels to one scale",
        options.keys,
        options.ttl,
        options.clients,
        options.fleet_size(),
        BAR,
    );
    svg.text((20.0, 40.0), Style { size: 27, bold: true, ..Style::default() }, title);
    svg.text((20.0, 68.0), Style { size: 16, color: GREY, ..Style::default() }, below);
}

/// The panel's name beside its color, and its sums.
fn legend(svg: &mut Svg, top: f64, figures: &Figures) {
    let color = color(figures.way);
    svg.rectangle((78.0, top + 10.0), (14.0, 14.0), color);
    let name = Style { size: 19, bold: true, color, ..Style::default() };
    svg.text((100.0, top + 24.0), name, figures.way.title());
    let grey = Style { size: 15, color: GREY, ..Style::default() };
    svg.text((284.0, top + 24.0), grey, figures.way.explanation());
    let sum = format!(
        "{} loads for {} expiries: {:.2} each, {} errors",
        thousands(figures.loads as u64),
        figures.expiries,
        figures.loads_per_expiry,
        thousands(figures.errors),
    );
    let style = Style { size: 17, anchor: "end", ..Style::default() };
    svg.text((EDGE, top + 24.0), style, sum);
}

/// The place of one panel, and its scales.
struct Panel {
    top: f64,
    bottom: f64,
    seconds: f64,
    most: f64,
}

impl Panel {
    fn x(&self, second: f64) -> f64 {
        LEFT + (RIGHT - LEFT) * second / self.seconds
    }

    fn y(&self, loads: f64) -> f64 {
        self.bottom - (self.bottom - self.top) * loads / self.most
    }

    fn axes(&self, svg: &mut Svg, last: bool) {
        let label = Style { size: 14, anchor: "end", ..Style::default() };
        for loads in steps(self.most, 5.0) {
            let y = self.y(loads);
            svg.line((LEFT, y), (RIGHT, y), GRID, false);
            svg.text((LEFT - 8.0, y + 5.0), label, loads);
        }
        svg.line((LEFT, self.top), (LEFT, self.bottom), GREY, false);
        svg.line((LEFT, self.bottom), (RIGHT, self.bottom), GREY, false);
        let label = Style { anchor: "middle", ..label };
        for second in steps(self.seconds, 11.0) {
            let x = self.x(second);
            svg.line((x, self.bottom), (x, self.bottom + 5.0), GREY, false);
            svg.text((x, self.bottom + 19.0), label, (second * 10.0).round() / 10.0);
        }
        let style = Style { size: 15, anchor: "middle", ..Style::default() };
        let middle = (self.top + self.bottom) / 2.0;
        svg.upright((24.0, middle), style, format!("loads per {BAR:?}"));
        if last {
            let middle = (LEFT + RIGHT) / 2.0;
            svg.text((middle, self.bottom + 41.0), style, "seconds since the start");
        }
    }

    fn bars(&self, svg: &mut Svg, figures: &Figures) {
        let width = BAR.as_secs_f64();
        for (loads, index) in figures.loads_per_100ms.iter().zip(0_u32..) {
            let (left, top) = (self.x(f64::from(index) * width), self.y(f64::from(*loads)));
            let size = (self.x(width * 0.9) - LEFT, self.bottom - top);
            svg.rectangle((left, top), size, color(figures.way));
        }
    }

    /// A dashed line at the load that the origin can bear, with its label at the right end.
    fn capacity(&self, svg: &mut Svg, options: &Options) {
        let bars_per_load = options.load_time.as_secs_f64() / BAR.as_secs_f64();
        let capacity = origin::CAPACITY as f64 / bars_per_load;
        if capacity <= self.most {
            let y = self.y(capacity);
            svg.line((LEFT, y), (RIGHT, y), INK, true);
            let style = Style { size: 14, ..Style::default() };
            svg.text((RIGHT + 8.0, y - 3.0), style, "origin");
            svg.text((RIGHT + 8.0, y + 12.0), style, "capacity");
        }
    }

    /// A line where the leader was killed.
    fn takeover(&self, svg: &mut Svg, figures: &Figures) {
        let Some(takeover) = &figures.takeover else { return };
        let (x, top) = (self.x(takeover.killed_at_s), self.y(self.most * 0.8));
        svg.line((x, self.bottom), (x, top), INK, false);
        let words = match &takeover.heir {
            Some(heir) => format!(
                "leader killed; the next load of its key begins {:.0} ms later",
                heir.after_ms
            ),
            None => "leader killed".to_owned(),
        };
        // The words stand on the side that has more space.
        let (at, anchor) = match x > (LEFT + RIGHT) / 2.0 {
            true => (x - 6.0, "end"),
            false => (x + 6.0, "start"),
        };
        svg.text((at, top + 12.0), Style { size: 14, anchor, ..Style::default() }, words);
    }
}

/// Returns round numbers from 0 to the end, at most so many steps apart.
fn steps(end: f64, count: f64) -> impl Iterator<Item = f64> {
    let power = 10_f64.powf((end / count).log10().floor());
    let step = [1.0, 2.0, 5.0].into_iter().map(|digit| digit * power);
    let step = step.into_iter().find(|step| end / step <= count).unwrap_or(10.0 * power);
    (0_u32..).map(move |index| f64::from(index) * step).take_while(move |at| *at <= end)
}

/// How a text looks.
#[derive(Clone, Copy)]
struct Style {
    size: u32,
    bold: bool,
    color: &'static str,
    anchor: &'static str,
}

impl Default for Style {
    fn default() -> Self {
        Self { size: 15, bold: false, color: INK, anchor: "start" }
    }
}

/// The elements of the document.
struct Svg(String);

impl Svg {
    fn push(&mut self, element: std::fmt::Arguments<'_>) {
        // A `String` takes any text.
        let _ = writeln!(self.0, "{element}");
    }

    fn rectangle(&mut self, (x, y): (f64, f64), (width, height): (f64, f64), color: &str) {
        self.push(format_args!(
            r#"<path d="M{x:.1} {y:.1} h{width:.1} v{height:.1} h-{width:.1} z" fill="{color}"/>"#,
        ));
    }

    fn line(&mut self, (x1, y1): (f64, f64), (x2, y2): (f64, f64), color: &str, dashed: bool) {
        let dashes = if dashed { r#" stroke-dasharray="6 5""# } else { "" };
        self.push(format_args!(
            r#"<path d="M{x1:.1} {y1:.1} L{x2:.1} {y2:.1}" stroke="{color}"{dashes}/>"#,
        ));
    }

    fn text(&mut self, at: (f64, f64), style: Style, text: impl Display) {
        self.write(at, style, "", text);
    }

    /// A text that reads from the bottom to the top.
    fn upright(&mut self, (x, y): (f64, f64), style: Style, text: impl Display) {
        self.write((x, y), style, &format!(r#" transform="rotate(-90 {x:.1} {y:.1})""#), text);
    }

    /// Writes a text. None of the texts has a character that needs an escape in XML.
    fn write(&mut self, (x, y): (f64, f64), style: Style, more: &str, text: impl Display) {
        let Style { size, bold, color, anchor } = style;
        let weight = if bold { "bold" } else { "normal" };
        let font = format_args!(r#"font-size="{size}" font-weight="{weight}" fill="{color}""#);
        self.push(format_args!(
            r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}" {font}{more}>{text}</text>"#,
        ));
    }
}
