//! The chart: the loads of the origin over time, one panel for each way, all to one scale.

use std::{fs::File, path::Path};

use plotters::{
    coord::{Shift, types::RangedCoordf64},
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};

use crate::{
    Failure,
    figures::{BAR, Figures},
    options::Options,
    origin,
    replica::Way,
    report::thousands,
};

const SIZE: (u32, u32) = (1000, 900);
const FONT: &str = "sans-serif";
const INK: RGBColor = RGBColor(0x22, 0x28, 0x31);
const GREY: RGBColor = RGBColor(0x8a, 0x92, 0x9c);
const GRID: RGBColor = RGBColor(0xe4, 0xe7, 0xeb);

fn color(way: Way) -> RGBColor {
    match way {
        Way::NoProtection => RGBColor(0xd1, 0x49, 0x3f),
        Way::InProcess => RGBColor(0xd9, 0x93, 0x1e),
        Way::Bellwether => RGBColor(0x1f, 0x7a, 0x8c),
    }
}

/// Makes the file, so that what forbids it is told before the run and not after.
pub(crate) fn prepare(path: &Path) -> Result<(), Failure> {
    match File::options().create(true).append(true).open(path) {
        Ok(_) => Ok(()),
        Err(error) => Err(format!("cannot write the chart {}: {error}", path.display()).into()),
    }
}

/// Draws the chart into an SVG file.
pub(crate) fn draw(options: &Options, ways: &[Figures]) -> Result<(), Failure> {
    let path = &options.chart;
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let (head, body) = root.split_vertically(84);
    headline(&head, options)?;
    let most = ways.iter().flat_map(|way| &way.loads_per_100ms).max();
    let top = most.map_or(1.0, |most| f64::from(*most) * 1.1).max(5.0);
    let panels = body.split_evenly((ways.len().max(1), 1));
    for (index, (area, figures)) in panels.iter().zip(ways).enumerate() {
        let last = index + 1 == ways.len();
        panel(area, options, figures, top, last)?;
    }
    root.present()?;
    Ok(())
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Panel<'a> = ChartContext<'a, SVGBackend<'a>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

fn headline(area: &Area<'_>, options: &Options) -> Result<(), Failure> {
    let title = "What the origin is asked for when hot keys expire";
    let below = format!(
        "{} hot keys that live {:?}, {} clients, {} replicas; each bar is {:?}; all panels to one scale",
        options.keys,
        options.ttl,
        options.clients,
        options.fleet_size(),
        BAR,
    );
    area.draw_text(title, &(FONT, 27).into_font().style(FontStyle::Bold).color(&INK), (20, 16))?;
    area.draw_text(&below, &(FONT, 16).into_font().color(&GREY), (20, 54))?;
    let right = SIZE.0 as i32 - 24;
    let style = (FONT, 15).into_font().color(&INK).pos(Pos::new(HPos::Right, VPos::Top));
    area.draw_text("what the origin can do", &style, (right, 55))?;
    for dash in 0..4 {
        let left = right - 210 + dash * 11;
        let ends = [(left, 63), (left + 6, 63)];
        area.draw(&PathElement::new(ends, INK.stroke_width(1)))?;
    }
    Ok(())
}

fn panel(
    area: &Area<'_>,
    options: &Options,
    figures: &Figures,
    top: f64,
    last: bool,
) -> Result<(), Failure> {
    let seconds = options.length().as_secs_f64();
    let mut chart = ChartBuilder::on(area)
        .margin_left(12)
        .margin_right(24)
        .margin_top(34)
        .margin_bottom(6)
        .y_label_area_size(64)
        .x_label_area_size(46)
        .build_cartesian_2d(0.0..seconds, 0.0..top)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .axis_style(GREY)
        .y_labels(5)
        .x_labels(11)
        .y_label_formatter(&|value| format!("{value:.0}"))
        .x_label_formatter(&|value| ((value * 10.0).round() / 10.0).to_string())
        .y_desc(format!("loads per {BAR:?}"))
        .x_desc(if last { "seconds since the start" } else { "" })
        .label_style((FONT, 14).into_font().color(&INK))
        .axis_desc_style((FONT, 15).into_font().color(&INK))
        .draw()?;
    let width = BAR.as_secs_f64();
    let bars = figures.loads_per_100ms.iter().zip(0_u32..).map(|(loads, index)| {
        let left = f64::from(index) * width;
        let corners = [(left, 0.0), (left + width * 0.9, f64::from(*loads))];
        Rectangle::new(corners, color(figures.way).filled())
    });
    chart.draw_series(bars)?;
    capacity(&mut chart, options)?;
    if let Some(takeover) = &figures.takeover {
        let at = takeover.killed_at_s;
        let line = PathElement::new([(at, 0.0), (at, top * 0.8)], INK.stroke_width(1));
        chart.draw_series([line])?;
        let style = (FONT, 14).into_font().color(&INK).pos(Pos::new(HPos::Left, VPos::Top));
        let words = match &takeover.heir {
            Some(heir) => format!(
                "the leader is killed; the next load of its key begins {:.0} ms later",
                heir.after_ms
            ),
            None => "the leader is killed".to_owned(),
        };
        chart.draw_series([Text::new(words, (at + seconds * 0.006, top * 0.8), style)])?;
    }
    legend(area, figures)
}

/// A dashed line where the origin cannot follow any more.
fn capacity(chart: &mut Panel<'_>, options: &Options) -> Result<(), Failure> {
    let seconds = options.length().as_secs_f64();
    let bars_per_load = options.load_time.as_secs_f64() / BAR.as_secs_f64();
    let capacity = origin::CAPACITY as f64 / bars_per_load;
    let ends = [(0.0, capacity), (seconds, capacity)];
    let dashes = DashedLineSeries::new(ends, 6, 5, INK.stroke_width(1));
    chart.draw_series(dashes)?;
    Ok(())
}

/// The panel's name beside its color, and what it came to.
fn legend(area: &Area<'_>, figures: &Figures) -> Result<(), Failure> {
    let color = color(figures.way);
    area.draw(&Rectangle::new([(78, 10), (92, 24)], color.filled()))?;
    let name = (FONT, 19).into_font().style(FontStyle::Bold).color(&color);
    let (width, _) = area.estimate_text_size(figures.way.title(), &name)?;
    area.draw_text(figures.way.title(), &name, (100, 8))?;
    let grey = (FONT, 15).into_font().color(&GREY);
    area.draw_text(figures.way.explanation(), &grey, (132 + width as i32, 11))?;
    let sum = format!(
        "{} loads for {} expiries: {:.2} each",
        thousands(figures.loads as u64),
        figures.expiries,
        figures.loads_per_expiry,
    );
    let style = (FONT, 17).into_font().color(&INK).pos(Pos::new(HPos::Right, VPos::Top));
    area.draw_text(&sum, &style, (SIZE.0 as i32 - 24, 10))?;
    Ok(())
}
