//! What benches and the demo share: rows of figures, and the elements of a chart.

pub mod figures;
pub mod svg;
