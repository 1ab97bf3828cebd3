//! Draws stacked panels with a shared x axis: the course of a run (CascadeServe Figures 8 and 9), or, as a single
//! panel, frontiers (Figures 5 and 6).

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::ChartError;
use super::drawing::{
    self, Area, Drawn, colour, legend, palette, plain, round_ticks, text, title, with_dark_mode,
};

/// Stacked panels with a common x axis.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Panels {
    /// Title.
    pub title: String,
    /// Name and unit of the x axis.
    pub axis: String,
    /// The panels, top to bottom.
    pub rows: Vec<Panel>,
}

/// A panel: series over one y axis.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Panel {
    /// Name and unit of the y axis.
    pub axis: String,
    /// The series. Series with the same name have the same colour in every panel.
    pub series: Vec<Series>,
    /// A horizontal line to compare with, such as an objective, and its name.
    pub level: Option<(f64, String)>,
    /// Highest value shown; larger values are cut off, which the axis notes [default: all are shown].
    pub top: Option<f64>,
    /// Values on the x axis to mark with vertical lines.
    pub moments: Vec<f64>,
}

/// A series of points.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// Name of the series.
    pub name: String,
    /// Points, ascending by x; y may be NaN for a missing value.
    pub points: Vec<(f64, f64)>,
    /// Shape in which the points are drawn.
    pub shape: Shape,
}

/// Shape in which a series is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// A line from point to point.
    Line,
    /// A line with its points marked.
    Marked,
}

const WIDTH: u32 = 840;
const PANEL: u32 = 190;
const HEAD: u32 = 74;
const FOOT: u32 = 56;

/// Draws the panels.
///
/// # Errors
/// [`ChartError::Empty`] if no series has a point.
pub fn svg(picture: &Panels) -> Result<String, ChartError> {
    let points = picture.rows.iter().flat_map(|panel| &panel.series);
    let xs: Vec<f64> = points
        .flat_map(|series| &series.points)
        .map(|(x, _)| *x)
        .collect();
    if xs.is_empty() {
        return Err(ChartError::Empty {
            what: "picture",
            title: picture.title.clone(),
            missing: "points",
        });
    }
    let mut drawn = String::new();
    draw(picture, span(xs.into_iter()), &mut drawn).map_err(ChartError::backend("picture"))?;
    Ok(with_dark_mode(&drawn))
}

fn span(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) = values
        .filter(|value| value.is_finite())
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
            (low.min(value), high.max(value))
        });
    if low < high {
        (low, high)
    } else {
        (low - 0.5, low + 0.5)
    }
}

fn draw(picture: &Panels, x: (f64, f64), into: &mut String) -> Drawn {
    let count = u32::try_from(picture.rows.len())?;
    let root = SVGBackend::with_string(into, (WIDTH, HEAD + count * PANEL + FOOT)).into_drawing_area();
    root.fill(&palette::GROUND)?;
    title(&root, &picture.title)?;
    let names = names(picture);
    legend(&root, &names)?;
    let (mut top, mut rest) = (HEAD, root.split_vertically(HEAD).1);
    for panel in &picture.rows {
        let (area, below) = rest.split_vertically(PANEL);
        draw_panel(&area, panel, x, &names)?;
        rest = below;
        top += PANEL;
    }
    let foot = i32::try_from(top)?;
    for tick in round_ticks(x, 8) {
        let way = (tick - x.0) / (x.1 - x.0);
        let at = LEFT + (way * f64::from(WIDTH.cast_signed() - LEFT - RIGHT)) as i32;
        root.draw(&text(
            &plain(tick),
            (at, foot + 4),
            13,
            palette::FAINT,
            HPos::Center,
            VPos::Top,
        ))?;
    }
    let middle = i32::midpoint(LEFT, WIDTH.cast_signed() - RIGHT);
    root.draw(&text(
        &picture.axis,
        (middle, foot + 26),
        13,
        palette::INK,
        HPos::Center,
        VPos::Top,
    ))?;
    root.present()?;
    Ok(())
}

const LEFT: i32 = 72;
const RIGHT: i32 = 28;

/// Returns the names of the series, each once, in order of appearance.
fn names(picture: &Panels) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for series in picture.rows.iter().flat_map(|panel| &panel.series) {
        if !names.contains(&series.name.as_str()) {
            names.push(&series.name);
        }
    }
    names
}

fn draw_panel(area: &Area<'_>, panel: &Panel, x: (f64, f64), names: &[&str]) -> Drawn {
    let level = panel.level.iter().map(|(value, _)| *value);
    let ys = panel
        .series
        .iter()
        .flat_map(|series| &series.points)
        .map(|(_, y)| *y);
    let (low, high) = span(ys.chain(level));
    let high = panel
        .top
        .map_or(high, |top| high.min(top.max(low + f64::EPSILON)));
    let room = (high - low).max(f64::MIN_POSITIVE) * 0.06;
    // Axes begin at zero unless the values would then be indistinguishable.
    let low = if low >= 0.0 && low < 0.4 * high {
        0.0
    } else {
        low - room
    };
    let y = (low, high + room);
    let mut chart = ChartBuilder::on(area)
        .margin_left(LEFT)
        .margin_right(RIGHT)
        .margin_top(20)
        .margin_bottom(6)
        .build_cartesian_2d(x.0..x.1, y.0..y.1)?;
    for tick in round_ticks(y, 4) {
        let ends = [x.0, x.1].map(|end| chart.backend_coord(&(end, tick)));
        area_line(area, ends, palette::GRID)?;
        let [left, _] = relative(area, ends);
        area.draw(&text(
            &plain(tick),
            (left.0 - 8, left.1),
            13,
            palette::FAINT,
            HPos::Right,
            VPos::Center,
        ))?;
    }
    drawing::axis(area, &panel.axis, (20, 2))?;
    if let Some((value, name)) = &panel.level {
        let ends = [x.0, x.1].map(|end| chart.backend_coord(&(end, *value)));
        area_line(area, ends, palette::INK)?;
        let [_, right] = relative(area, ends);
        area.draw(&text(
            name,
            (right.0, right.1 - 2),
            12,
            palette::INK,
            HPos::Right,
            VPos::Bottom,
        ))?;
    }
    for moment in panel.moments.iter().filter(|at| (x.0..=x.1).contains(at)) {
        let ends = [y.0, y.1].map(|end| chart.backend_coord(&(*moment, end)));
        area_line(area, ends, palette::FAINT)?;
    }
    // The first series is drawn last, so that it stays visible where series coincide.
    for series in panel.series.iter().rev() {
        let number = names.iter().position(|name| *name == series.name).unwrap_or(0);
        for part in series.points.split(|(_, value)| !value.is_finite()) {
            let part: Vec<(f64, f64)> = part.iter().map(|(at, value)| (*at, value.min(y.1))).collect();
            chart.draw_series(LineSeries::new(part.clone(), colour(number).stroke_width(2)))?;
            if series.shape == Shape::Marked {
                chart.draw_series(part.iter().map(|at| Circle::new(*at, 4, colour(number).filled())))?;
            }
        }
    }
    Ok(())
}

/// Converts positions on the whole chart to positions in this area.
fn relative<const N: usize>(area: &Area<'_>, places: [(i32, i32); N]) -> [(i32, i32); N] {
    let (left, top) = area.get_base_pixel();
    places.map(|(x, y)| (x - left, y - top))
}

fn area_line(area: &Area<'_>, ends: [(i32, i32); 2], colour: RGBColor) -> Drawn {
    area.draw(&PathElement::new(relative(area, ends).to_vec(), colour))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::charts::drawing::colours_are_known;

    fn picture() -> Panels {
        let series = |name: &str, points: &[(f64, f64)]| Series {
            name: name.to_owned(),
            points: points.to_vec(),
            shape: Shape::Line,
        };
        Panels {
            title: "a spike".to_owned(),
            axis: "time (s)".to_owned(),
            rows: vec![
                Panel {
                    axis: "load (requests/s)".to_owned(),
                    series: vec![series("load", &[(0.0, 100.0), (1.0, 900.0), (2.0, 100.0)])],
                    ..Panel::default()
                },
                Panel {
                    axis: "p95 (ms)".to_owned(),
                    series: vec![
                        series("gears", &[(0.0, 5.0), (1.0, 8.0), (2.0, 5.0)]),
                        series("static", &[(0.0, 5.0), (1.0, f64::NAN), (2.0, 400.0)]),
                    ],
                    level: Some((20.0, "SLO".to_owned())),
                    top: Some(100.0),
                    moments: vec![1.0, 7.0],
                },
            ],
        }
    }

    #[test]
    fn everything_with_a_name_is_on_it() {
        let svg = svg(&picture()).unwrap();
        for name in [
            "a spike",
            "time (s)",
            "load (requests/s)",
            "p95 (ms)",
            "gears",
            "static",
            "SLO",
        ] {
            assert!(svg.contains(name), "{name}");
        }
        assert!(colours_are_known(&svg));
    }

    #[test]
    fn moments_are_drawn_where_they_are_on_it() {
        let lines = |moments: Vec<f64>| {
            let mut picture = picture();
            for panel in &mut picture.rows {
                panel.moments.clone_from(&moments);
            }
            svg(&picture).unwrap().matches("<polyline").count()
        };
        let none = lines(Vec::new());
        assert_eq!(lines(vec![0.5, 1.5]), none + 4, "two in each of two panels");
        assert_eq!(lines(vec![-1.0, 9.0]), none);
    }

    #[test]
    fn nothing_to_draw_is_an_error() {
        assert!(svg(&Panels::default()).is_err());
    }
}
