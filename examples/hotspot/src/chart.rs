//! The chart: one panel for each way, all to one scale. Bars above the line are queries that reach
//! the database, bars below it are requests that wait or fail.

use std::{
    fs::{self, File},
    ops::Range,
    path::Path,
};

use report::svg::{GREY, GRID, INK, Style, Svg};

use crate::{
    Failure,
    figures::{BAR, Figures},
    options::Options,
    origin,
    replica::Way,
    report::{number, share, thousands},
};

const WIDTH: f64 = 1000.0;
const HEAD: f64 = 112.0;
const FOOT: f64 = 22.0;
/// The heights of a panel: of its texts, of both halves of its plot, and in all.
const TEXTS: f64 = 56.0;
const QUERIES: f64 = 92.0;
const REQUESTS: f64 = 46.0;
const PANEL: f64 = 232.0;
const LEFT: f64 = 76.0;
const RIGHT: f64 = WIDTH - 96.0;
/// The right end of the texts above a panel.
const EDGE: f64 = WIDTH - 24.0;

const WAITING: &str = "#a9b1bb";
const FAILING: &str = "#fbe9e4";

pub(crate) fn color(way: Way) -> &'static str {
    match way {
        Way::NoProtection => "#d1493f",
        Way::InProcess => "#d9931e",
        Way::Bellwether => "#1f7a8c",
        Way::StaleWhileRevalidate => "#2f7d4f",
        Way::EarlyRefresh => "#6a4c93",
        Way::LocalTier => "#b0427a",
        Way::StoreAway => "#4a5a78",
    }
}

/// Returns the color on a dark ground.
pub(crate) fn dark_color(way: Way) -> &'static str {
    match way {
        Way::NoProtection => "#ef7a70",
        Way::InProcess => "#e9b04f",
        Way::Bellwether => "#4fb3c6",
        Way::StaleWhileRevalidate => "#62b585",
        Way::EarlyRefresh => "#ab8fd8",
        Way::LocalTier => "#e07fb0",
        Way::StoreAway => "#93a7cd",
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
    let height = HEAD + PANEL * ways.len() as f64 + FOOT;
    let mut svg = Svg::new(WIDTH, height);
    headline(&mut svg, options, ways);
    let most = greatest(ways.iter().flat_map(|way| &way.queries_per_100ms));
    let most_below = greatest(
        ways.iter().flat_map(|way| way.waiting_per_100ms.iter().chain(&way.failing_per_100ms)),
    );
    for (index, figures) in ways.iter().enumerate() {
        let top = HEAD + PANEL * index as f64;
        let axis = top + TEXTS + QUERIES;
        let panel = Panel { axis, seconds: figures.seconds, most, most_below };
        panel.shades(&mut svg, options, figures);
        panel.axes(&mut svg, index + 1 == ways.len());
        panel.bars(&mut svg, figures);
        panel.capacity(&mut svg, options);
        panel.takeover(&mut svg, figures);
        texts(&mut svg, top, options, figures);
    }
    Ok(fs::write(&options.chart, svg.document())?)
}

/// Returns the end of a scale for these counts.
fn greatest<'a>(counts: impl Iterator<Item = &'a u32>) -> f64 {
    counts.max().map_or(1.0, |most| f64::from(*most) * 1.1).max(5.0)
}

fn headline(svg: &mut Svg, options: &Options, ways: &[Figures]) {
    let title = match options.origin_fails {
        None => "What it costs when hot keys expire",
        Some(_) => "What it costs when hot keys expire, and the database fails",
    };
    let setting = format!(
        "{} requests a second for {} hot keys that live {:?}; {} replicas; a query takes {:?}",
        thousands(options.rate.into()),
        options.keys,
        options.ttl,
        options.fleet_size(),
        options.load_time,
    );
    svg.text((20.0, 38.0), Style { size: 27, bold: true, ..Style::default() }, title);
    let grey = Style { size: 16, color: GREY, ..Style::default() };
    svg.text((20.0, 66.0), grey, setting);
    let above = format!("In each {BAR:?}, above the line: queries to the database. Below it:");
    svg.text((20.0, 93.0), grey, above);
    svg.rectangle((568.0, 81.0), (13.0, 13.0), WAITING);
    svg.text((587.0, 93.0), grey, "requests that wait");
    if ways.iter().any(|figures| figures.failed > 0) {
        svg.rectangle((746.0, 81.0), (13.0, 13.0), INK);
        svg.text((765.0, 93.0), grey, "requests that fail");
    }
}

/// The panel's name beside its color, and its sums.
fn texts(svg: &mut Svg, top: f64, options: &Options, figures: &Figures) {
    let color = color(figures.way);
    svg.rectangle((78.0, top + 8.0), (14.0, 14.0), color);
    let name = Style { size: 19, bold: true, color, ..Style::default() };
    svg.text((100.0, top + 22.0), name, figures.way.title(options));
    let grey = Style { size: 15, color: GREY, ..Style::default() };
    svg.text((100.0, top + 42.0), grey, figures.way.explanation(options));
    let queries = format!(
        "{} queries for {} expiries: {} each",
        thousands(figures.queries as u64),
        figures.expiries,
        number(figures.queries_per_expiry),
    );
    let style = Style { size: 17, anchor: "end", ..Style::default() };
    svg.text((EDGE, top + 22.0), style, queries);
    let waited = share(figures.waited, figures.requests);
    let failed = share(figures.failed, figures.requests);
    svg.text(
        (EDGE, top + 42.0),
        style,
        format!("requests that wait: {waited}; that fail: {failed}"),
    );
}

/// The place of one panel, and its scales.
struct Panel {
    /// The line between both halves of the plot.
    axis: f64,
    seconds: f64,
    /// The ends of the scales.
    most: f64,
    most_below: f64,
}

impl Panel {
    fn x(&self, second: f64) -> f64 {
        LEFT + (RIGHT - LEFT) * second / self.seconds
    }

    fn y(&self, queries: f64) -> f64 {
        self.axis - QUERIES * queries / self.most
    }

    fn bottom(&self) -> f64 {
        self.axis + REQUESTS
    }

    /// A shade over the time in which the database fails, or the store is away.
    fn shades(&self, svg: &mut Svg, options: &Options, figures: &Figures) {
        if let Some(time) = options.failing() {
            let times = time.start.as_secs_f64()..time.end.as_secs_f64();
            self.shade(svg, times, "the database fails");
        }
        if let Some(away) = &figures.away {
            self.shade(svg, away.from..away.to, &format!("{} is away", options.store_name()));
        }
    }

    fn shade(&self, svg: &mut Svg, times: Range<f64>, words: &str) {
        let left = self.x(times.start);
        let width = self.x(times.end) - left;
        svg.rectangle((left, self.axis - QUERIES), (width, QUERIES + REQUESTS), FAILING);
        let style = Style { size: 14, color: color(Way::NoProtection), ..Style::default() };
        svg.text((left + 6.0, self.axis - QUERIES + 26.0), style, words);
    }

    fn axes(&self, svg: &mut Svg, last: bool) {
        let label = Style { size: 14, anchor: "end", ..Style::default() };
        for queries in steps(self.most, 4.0) {
            let y = self.y(queries);
            svg.line((LEFT, y), (RIGHT, y), GRID, false);
            svg.text((LEFT - 8.0, y + 5.0), label, queries);
        }
        svg.line((LEFT, self.bottom()), (RIGHT, self.bottom()), GRID, false);
        svg.text((LEFT - 8.0, self.bottom() + 5.0), label, self.most_below.round());
        svg.line((LEFT, self.axis - QUERIES), (LEFT, self.bottom()), GREY, false);
        svg.line((LEFT, self.axis), (RIGHT, self.axis), GREY, false);
        let label = Style { anchor: "middle", ..label };
        for second in steps(self.seconds, 11.0) {
            let x = self.x(second);
            svg.line((x, self.bottom()), (x, self.bottom() + 5.0), GREY, false);
            svg.text((x, self.bottom() + 19.0), label, (second * 10.0).round() / 10.0);
        }
        svg.upright((26.0, self.axis - QUERIES / 2.0), label, "queries");
        svg.upright((26.0, self.axis + REQUESTS / 2.0), label, "requests");
        if last {
            let style = Style { size: 15, ..label };
            let middle = (LEFT + RIGHT) / 2.0;
            svg.text((middle, self.bottom() + 40.0), style, "seconds since the start");
        }
    }

    fn bars(&self, svg: &mut Svg, figures: &Figures) {
        let width = self.x(BAR.as_secs_f64() * 0.9) - LEFT;
        let left = |index: u32| self.x(f64::from(index) * BAR.as_secs_f64());
        let filled = |bars: &[u32]| {
            let bars: Vec<u32> = bars.to_vec();
            (0..).zip(bars).filter(|(_, count)| *count > 0)
        };
        for (index, queries) in filled(&figures.queries_per_100ms) {
            // One query is seen, too, however large the scale is.
            let height = (self.axis - self.y(f64::from(queries))).max(3.0);
            svg.rectangle((left(index), self.axis - height), (width, height), color(figures.way));
        }
        for (bars, color) in
            [(&figures.waiting_per_100ms, WAITING), (&figures.failing_per_100ms, INK)]
        {
            for (index, requests) in filled(bars) {
                let height = REQUESTS * f64::from(requests) / self.most_below;
                svg.rectangle((left(index), self.axis), (width, height), color);
            }
        }
        if figures.waited == 0 && figures.failed == 0 {
            let style = Style { size: 17, anchor: "middle", bold: true, color: color(figures.way) };
            let middle = (LEFT + RIGHT) / 2.0;
            svg.text((middle, self.axis + REQUESTS / 2.0 + 6.0), style, "no request waits");
        }
    }

    /// A dashed line at the queries that the database can bear, with its label at the right end.
    fn capacity(&self, svg: &mut Svg, options: &Options) {
        let bars_per_load = options.load_time.as_secs_f64() / BAR.as_secs_f64();
        let capacity = origin::CAPACITY as f64 / bars_per_load;
        if capacity <= self.most {
            let y = self.y(capacity);
            svg.line((LEFT, y), (RIGHT, y), INK, true);
            let style = Style { size: 14, ..Style::default() };
            svg.text((RIGHT + 8.0, y - 3.0), style, "database");
            svg.text((RIGHT + 8.0, y + 12.0), style, "capacity");
        }
    }

    /// A line where the leader was killed.
    fn takeover(&self, svg: &mut Svg, figures: &Figures) {
        let Some(takeover) = &figures.takeover else { return };
        let (x, top) = (self.x(takeover.killed_at_s), self.y(self.most * 0.8));
        svg.line((x, self.axis), (x, top), INK, false);
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
