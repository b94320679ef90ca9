//! Plots of growth as SVG. Both axes are logarithmic, so that growth by a power is a line.

use anyhow::{Result, anyhow};
use plotters::prelude::*;

use super::growth::Curve;

const SIZE: (u32, u32) = (640, 400);

/// A palette for colour-blind users (Okabe and Ito) and a grey.
const COLOURS: [RGBColor; 5] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 86, 86),
];

pub fn svg(curve: &Curve) -> Result<String> {
    let mut text = String::new();
    draw(curve, &mut text)
        .map_err(|error| anyhow!("the plot of {} cannot be drawn: {error}", curve.label))?;
    Ok(text + "\n")
}

fn draw(curve: &Curve, text: &mut String) -> Result<(), String> {
    let text_of = |error: &dyn std::fmt::Display| error.to_string();
    let points = || curve.lines.iter().flat_map(|line| line.points.iter().copied());
    let range = |of: fn((f64, f64)) -> f64| {
        let least = points().map(of).fold(f64::INFINITY, f64::min);
        let most = points().map(of).fold(0.0, f64::max);
        // Leave room at both ends. Without points, any range will do.
        if most > 0.0 { least.max(most / 1e6) / 1.5..most * 1.5 } else { 0.1..1.0 }
    };
    let area = SVGBackend::with_string(text, SIZE).into_drawing_area();
    area.fill(&WHITE).map_err(|error| text_of(&error))?;
    let mut chart = ChartBuilder::on(&area)
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d(range(|point| point.0).log_scale(), range(|point| point.1).log_scale())
        .map_err(|error| text_of(&error))?;
    chart
        .configure_mesh()
        .x_desc(curve.size)
        .y_desc(curve.label)
        .light_line_style(TRANSPARENT)
        .draw()
        .map_err(|error| text_of(&error))?;
    for (line, colour) in curve.lines.iter().zip(COLOURS.iter().cycle()) {
        let style = ShapeStyle::from(colour).stroke_width(2);
        chart
            .draw_series(LineSeries::new(line.points.iter().copied(), style).point_size(3))
            .map_err(|error| text_of(&error))?
            .label(line.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE)
        .border_style(BLACK)
        .draw()
        .map_err(|error| text_of(&error))?;
    area.present().map_err(|error| text_of(&error))
}
