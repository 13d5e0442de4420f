//! Curves as SVG.

use anyhow::anyhow;
use plotters::prelude::*;
use plotters::style::RelativeSize;

const SIZE: (u32, u32) = (640, 360);
/// Colours that colour-blind readers can distinguish, too.
const COLORS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];
const GREY: RGBColor = RGBColor(120, 120, 120);

/// Some curves of one quantity.
pub(super) struct Plot {
    pub(super) title: String,
    pub(super) x: &'static str,
    pub(super) y: &'static str,
    pub(super) series: Vec<Series>,
}

/// A curve.
pub(super) struct Series {
    name: String,
    points: Vec<(f64, f64)>,
    /// Whether it comes from a paper instead of a measurement here.
    is_reference: bool,
}

impl Series {
    pub(super) fn line(name: &str, points: Vec<(f64, f64)>) -> Self {
        Self { name: name.to_owned(), points, is_reference: false }
    }

    /// Makes a curve of values that a paper states.
    pub(super) fn reference(name: &str, mut points: Vec<(f64, f64)>) -> Self {
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        points.dedup();
        Self { name: name.to_owned(), points, is_reference: true }
    }
}

impl Plot {
    /// Returns the plot as an SVG element.
    pub(super) fn svg(&self) -> anyhow::Result<String> {
        let mut svg = String::new();
        self.draw(SVGBackend::with_string(&mut svg, SIZE)).map_err(|error| anyhow!("{}: {error}", self.title))?;
        Ok(svg)
    }

    fn draw(&self, backend: SVGBackend) -> Result<(), Box<dyn std::error::Error>> {
        let area = backend.into_drawing_area();
        let (x_max, y_max) = self.maxima();
        let mut chart = ChartBuilder::on(&area)
            .caption(&self.title, ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(36)
            .y_label_area_size(56)
            .build_cartesian_2d(0.0..x_max * 1.05, 0.0..y_max * 1.1)?;
        chart.configure_mesh().light_line_style(TRANSPARENT).x_desc(self.x).y_desc(self.y).draw()?;
        for (place, series) in self.series.iter().enumerate() {
            let color = if series.is_reference { GREY } else { COLORS[place % COLORS.len()] };
            let style = color.stroke_width(2);
            let points = series.points.iter().copied();
            let drawn = match series.is_reference {
                true => chart.draw_series(DashedLineSeries::new(points, 6, 4, style))?,
                false => chart.draw_series(LineSeries::new(points, style).point_size(3))?,
            };
            drawn.label(&series.name).legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
        }
        let background = WHITE.mix(0.8);
        chart
            .configure_series_labels()
            .background_style(background)
            .label_font(("sans-serif", RelativeSize::Height(0.04)))
            .draw()?;
        area.present()?;
        Ok(())
    }

    fn maxima(&self) -> (f64, f64) {
        let points = self.series.iter().flat_map(|series| &series.points);
        points.fold((f64::MIN_POSITIVE, f64::MIN_POSITIVE), |(x, y), point| (x.max(point.0), y.max(point.1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plot_has_its_title_and_the_names_of_its_curves() {
        let series = vec![
            Series::line("Pinion", vec![(1.0, 10.0), (2.0, 8.0)]),
            Series::reference("EdgeOS", vec![(2.0, 5.0), (1.0, 5.0)]),
        ];
        let svg = Plot { title: "Throughput".to_owned(), x: "length", y: "Mpps", series }.svg().unwrap();
        assert!(svg.starts_with("<svg"));
        for text in ["Throughput", "Pinion", "EdgeOS", "length", "Mpps"] {
            assert!(svg.contains(text), "{text} is missing in {svg}");
        }
    }
}
