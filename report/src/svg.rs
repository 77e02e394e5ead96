//! The elements of a chart, as a document of SVG.

use std::fmt::{Arguments, Display, Write};

/// The color of words and of lines that matter.
pub const INK: &str = "#222831";
/// The color of what stands beside.
pub const GREY: &str = "#6b7480";
/// The color of the lines of a scale.
pub const GRID: &str = "#e4e7eb";

/// How a text looks.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    /// The height of the letters.
    pub size: u32,
    /// Whether the letters are heavy.
    pub bold: bool,
    /// The color of the letters.
    pub color: &'static str,
    /// Which point of the text stands at its place: `start`, `middle` or `end`.
    pub anchor: &'static str,
}

impl Default for Style {
    fn default() -> Self {
        Self { size: 15, bold: false, color: INK, anchor: "start" }
    }
}

/// A chart that is drawn, one element after the other.
#[derive(Debug)]
pub struct Svg {
    elements: String,
    size: (f64, f64),
}

impl Svg {
    /// Makes a white chart.
    pub fn new(width: f64, height: f64) -> Self {
        let mut svg = Self { elements: String::new(), size: (width, height) };
        svg.rectangle((0.0, 0.0), svg.size, "#ffffff");
        svg
    }

    /// Returns the whole document.
    pub fn document(self) -> String {
        let (width, height) = self.size;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\">\n{}</svg>\n",
            self.elements,
        )
    }

    fn push(&mut self, element: Arguments<'_>) {
        // A `String` takes any text.
        let _ = writeln!(self.elements, "{element}");
    }

    /// Draws a filled rectangle.
    pub fn rectangle(&mut self, (x, y): (f64, f64), (width, height): (f64, f64), color: &str) {
        self.push(format_args!(
            r#"<path d="M{x:.1} {y:.1} h{width:.1} v{height:.1} h-{width:.1} z" fill="{color}"/>"#,
        ));
    }

    /// Draws a filled circle.
    pub fn dot(&mut self, (x, y): (f64, f64), radius: f64, color: &str) {
        self.push(format_args!(
            r#"<circle cx="{x:.1}" cy="{y:.1}" r="{radius:.1}" fill="{color}"/>"#,
        ));
    }

    /// Draws a thin line.
    pub fn line(&mut self, (x1, y1): (f64, f64), (x2, y2): (f64, f64), color: &str, dashed: bool) {
        let dashes = if dashed { r#" stroke-dasharray="6 5""# } else { "" };
        self.push(format_args!(
            r#"<path d="M{x1:.1} {y1:.1} L{x2:.1} {y2:.1}" stroke="{color}"{dashes}/>"#,
        ));
    }

    /// Draws a thick line through all points.
    pub fn curve(&mut self, points: &[(f64, f64)], color: &str) {
        let points: Vec<_> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        self.push(format_args!(
            r#"<polyline points="{}" fill="none" stroke="{color}" stroke-width="2.5"/>"#,
            points.join(" "),
        ));
    }

    /// Writes a text.
    pub fn text(&mut self, at: (f64, f64), style: Style, text: impl Display) {
        self.write(at, style, "", text);
    }

    /// Writes a text that reads from the bottom to the top.
    pub fn upright(&mut self, (x, y): (f64, f64), style: Style, text: impl Display) {
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
