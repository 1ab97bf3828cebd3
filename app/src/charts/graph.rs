//! Draws the accuracy-energy graph (HybridServe §IV-B, Figure 3) as an SVG for light and dark pages.

use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::ChartError;
use super::drawing::{Area, Drawn, palette, text, title, with_dark_mode};
use crate::report::units;

/// Cost per request and accuracy.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// Joules per request, or the substitute for energy.
    pub cost: f64,
    /// Share of correct answers, in [0, 1].
    pub accuracy: f64,
}

/// A point with a label.
#[derive(Debug, Clone, PartialEq)]
pub struct NamedPoint {
    /// The name.
    pub name: String,
    /// Its position.
    pub at: Point,
}

/// The accuracy-energy graph.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Graph {
    /// Title.
    pub title: String,
    /// Name of the x axis, and source of its values.
    pub axis: String,
    /// Unit of the x axis.
    pub unit: &'static str,
    /// Points of cascades, ascending by energy and accuracy.
    pub frontier: Vec<Point>,
    /// The single models.
    pub models: Vec<NamedPoint>,
    /// Named points: AP, EO.
    pub marks: Vec<NamedPoint>,
}

const SIZE: (u32, u32) = (840, 520);

type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// Draws the graph.
///
/// # Errors
/// [`ChartError::NoCost`] if no point has a positive, finite cost and a finite accuracy.
pub fn svg(graph: &Graph) -> Result<String, ChartError> {
    let mut drawn = String::new();
    let (x, y) = ranges(graph).ok_or(ChartError::NoCost)?;
    draw(graph, x, y, &mut drawn).map_err(ChartError::backend("graph"))?;
    Ok(with_dark_mode(&drawn))
}

/// Returns the axis ranges with some room around the points: log10 of the cost, and the accuracy.
fn ranges(graph: &Graph) -> Option<((f64, f64), (f64, f64))> {
    let named = graph.models.iter().chain(&graph.marks).map(|named| named.at);
    let points: Vec<Point> = graph
        .frontier
        .iter()
        .copied()
        .chain(named)
        .filter(drawable)
        .collect();
    let span = |values: &mut dyn Iterator<Item = f64>| {
        values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
            (low.min(value), high.max(value))
        })
    };
    let (x0, x1) = span(&mut points.iter().map(|point| point.cost.log10()));
    let (y0, y1) = span(&mut points.iter().map(|point| point.accuracy));
    let padded = |low: f64, high: f64, least: f64| {
        let room = ((high - low) * 0.08).max(least);
        (low - room, high + room)
    };
    (!points.is_empty()).then(|| (padded(x0, x1, 0.1), padded(y0, y1, 0.005)))
}

fn drawable(point: &Point) -> bool {
    point.cost.is_finite() && point.cost > 0.0 && point.accuracy.is_finite()
}

fn draw(graph: &Graph, x: (f64, f64), y: (f64, f64), into: &mut String) -> Drawn {
    let root = SVGBackend::with_string(into, SIZE).into_drawing_area();
    root.fill(&palette::GROUND)?;
    let mut chart = ChartBuilder::on(&root)
        .margin_left(72)
        .margin_right(28)
        .margin_top(56)
        .margin_bottom(68)
        .build_cartesian_2d(x.0..x.1, y.0..y.1)?;
    draw_axes(&root, &chart, graph, x, y)?;
    draw_frontier(&root, &mut chart, graph, x.1)?;
    for model in graph.models.iter().filter(|model| drawable(&model.at)) {
        let at = chart.backend_coord(&position(model.at));
        root.draw(&Circle::new(at, 5, palette::INK.filled()))?;
        root.draw(&beside(&model.name, at))?;
    }
    for (name, at) in shared(&graph.marks, |mark| chart.backend_coord(&position(mark.at))) {
        root.draw(&Circle::new(at, 7, palette::MARK.filled()))?;
        root.draw(&Circle::new(at, 3, palette::GROUND.filled()))?;
        let above = (at.0, at.1 - 11);
        root.draw(&text(&name, above, 15, palette::MARK, HPos::Center, VPos::Bottom))?;
    }
    root.present()?;
    Ok(())
}

/// Returns the marks with their positions. Marks that would overlap share one label.
fn shared(marks: &[NamedPoint], place: impl Fn(&NamedPoint) -> (i32, i32)) -> Vec<(String, (i32, i32))> {
    const APART: i32 = 24;
    let mut labels: Vec<(String, (i32, i32))> = Vec::new();
    for mark in marks.iter().filter(|mark| drawable(&mark.at)) {
        let at = place(mark);
        let near = |(_, there): &&mut (String, (i32, i32))| {
            (there.0 - at.0).abs() < APART && (there.1 - at.1).abs() < APART
        };
        match labels.iter_mut().find(near) {
            Some((name, _)) => *name = format!("{name} = {}", mark.name),
            None => labels.push((mark.name.clone(), at)),
        }
    }
    labels
}

fn draw_axes(root: &Area<'_>, chart: &Chart<'_, '_>, graph: &Graph, x: (f64, f64), y: (f64, f64)) -> Drawn {
    for tick in energy_ticks(x) {
        let (foot, head) = (
            chart.backend_coord(&(tick.log10(), y.0)),
            chart.backend_coord(&(tick.log10(), y.1)),
        );
        root.draw(&PathElement::new(vec![foot, head], palette::GRID))?;
        let label = units::prefixed(tick, graph.unit)
            .replace(".00", "")
            .replace(".0 ", " ");
        root.draw(&text(
            &label,
            (foot.0, foot.1 + 8),
            13,
            palette::FAINT,
            HPos::Center,
            VPos::Top,
        ))?;
    }
    for tick in accuracy_ticks(y) {
        let (foot, head) = (
            chart.backend_coord(&(x.0, tick)),
            chart.backend_coord(&(x.1, tick)),
        );
        root.draw(&PathElement::new(vec![foot, head], palette::GRID))?;
        let label = format!("{} %", (tick * 1e4).round() / 1e2);
        root.draw(&text(
            &label,
            (foot.0 - 8, foot.1),
            13,
            palette::FAINT,
            HPos::Right,
            VPos::Center,
        ))?;
    }
    title(root, &graph.title)?;
    let height = i32::try_from(SIZE.1)?;
    let middle = chart.backend_coord(&(f64::midpoint(x.0, x.1), y.0)).0;
    root.draw(&text(
        &graph.axis,
        (middle, height - 30),
        13,
        palette::INK,
        HPos::Center,
        VPos::Top,
    ))?;
    root.draw(&text(
        "accuracy",
        (20, 44),
        13,
        palette::INK,
        HPos::Left,
        VPos::Top,
    ))?;
    Ok(())
}

/// Draws the frontier as steps: between two points, only the cheaper one is available.
fn draw_frontier(root: &Area<'_>, chart: &mut Chart<'_, '_>, graph: &Graph, end: f64) -> Drawn {
    let mut steps: Vec<(f64, f64)> = Vec::new();
    for point in graph.frontier.iter().filter(|point| drawable(point)) {
        let (x, y) = position(*point);
        if let Some((_, level)) = steps.last().copied() {
            steps.push((x, level));
        }
        steps.push((x, y));
    }
    if let Some((_, level)) = steps.last().copied() {
        steps.push((end, level));
        let (x, y) = chart.backend_coord(&(end, level));
        let at = (x - 2, y - 6);
        root.draw(&text(
            "cascades",
            at,
            13,
            palette::FRONTIER,
            HPos::Right,
            VPos::Bottom,
        ))?;
    }
    chart.draw_series(LineSeries::new(steps, palette::FRONTIER.stroke_width(3)))?;
    Ok(())
}

/// Returns a model's name, placed beside its point where there is room.
fn beside(name: &str, (x, y): (i32, i32)) -> Text<'static, (i32, i32), String> {
    let room = SIZE.0.cast_signed() * 3 / 4;
    let (x, side) = if x < room {
        (x + 8, HPos::Left)
    } else {
        (x + 4, HPos::Right)
    };
    text(name, (x, y + 7), 13, palette::INK, side, VPos::Top)
}

fn position(point: Point) -> (f64, f64) {
    (point.cost.log10(), point.accuracy)
}

/// Returns 1, 2 and 5 times the powers of ten inside a log10 range, or the powers alone if those would be too many.
fn energy_ticks((low, high): (f64, f64)) -> Vec<f64> {
    let steps: &[f64] = if high - low > 3.0 {
        &[1.0]
    } else {
        &[1.0, 2.0, 5.0]
    };
    let powers = (low.floor() as i32)..=(high.ceil() as i32);
    powers
        .flat_map(|power| steps.iter().map(move |step| step * 10_f64.powi(power)))
        .filter(|tick| (low..=high).contains(&tick.log10()))
        .collect()
}

/// Returns four to ten round values inside the range.
fn accuracy_ticks((low, high): (f64, f64)) -> Vec<f64> {
    let step = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2]
        .into_iter()
        .find(|step| (high - low) / step <= 9.0)
        .unwrap_or(0.5);
    let first = (low / step).ceil() as i64;
    let last = (high / step).floor() as i64;
    (first..=last)
        .map(|n| n as f64 * step)
        .filter(|tick| (0.0..=1.0).contains(tick))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(cost: f64, accuracy: f64) -> Point {
        Point { cost, accuracy }
    }

    fn graph() -> Graph {
        let named = |name: &str, at| NamedPoint {
            name: name.to_owned(),
            at,
        };
        Graph {
            title: "digits: what cascades reach".to_owned(),
            axis: "energy per request (modelled)".to_owned(),
            unit: "J",
            frontier: vec![
                point(2e-4, 0.90),
                point(5e-4, 0.955),
                point(9e-4, 0.975),
                point(2e-3, 0.984),
                point(4e-3, 0.9875),
            ],
            models: vec![
                named("tiny", point(2e-4, 0.90)),
                named("small", point(1e-3, 0.95)),
                named("base", point(6e-3, 0.975)),
                named("large", point(2e-2, 0.985)),
            ],
            marks: vec![named("EO", point(9e-4, 0.975)), named("AP", point(4e-3, 0.9875))],
        }
    }

    #[test]
    fn everything_with_a_name_is_on_it() {
        let svg = svg(&graph()).unwrap();
        for name in ["tiny", "small", "base", "large", "AP", "EO", "modelled"] {
            assert!(svg.contains(name), "{name}");
        }
        assert!(svg.contains("prefers-color-scheme:dark"));
    }

    #[test]
    fn every_colour_has_its_dark_counterpart() {
        let svg = svg(&graph()).unwrap();
        let body = svg.split_once("</style>").unwrap().1;
        for part in body
            .split("fill=\"")
            .skip(1)
            .chain(body.split("stroke=\"").skip(1))
        {
            let colour = part.split('"').next().unwrap();
            assert!(
                colour == "none" || palette::DARK.iter().any(|(light, _)| *light == colour),
                "{colour}"
            );
        }
    }

    #[test]
    fn marks_at_one_point_share_a_label() {
        let mut same = graph();
        same.marks[0].at = same.marks[1].at;
        let svg = svg(&same).unwrap();
        assert!(svg.contains("EO = AP"), "{svg}");
    }

    #[test]
    fn points_without_a_known_energy_are_left_out_and_none_at_all_is_an_error() {
        let mut unknown = graph();
        unknown.models[0].at.cost = f64::NAN;
        assert!(!svg(&unknown).unwrap().contains("tiny"));
        assert!(svg(&Graph::default()).is_err());
    }

    #[test]
    fn ticks_are_round_and_inside() {
        assert_eq!(energy_ticks((-0.1, 1.1)).len(), 4);
        let ticks = accuracy_ticks((0.89, 0.99));
        assert!((4..=10).contains(&ticks.len()), "{ticks:?}");
        assert!(accuracy_ticks((0.95, 1.02)).iter().all(|tick| *tick <= 1.0));
    }
}
