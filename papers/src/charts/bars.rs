//! Groups of bars: ablations (CascadeServe Figure 12), differences (Figure 13).

use kaskade_app::charts::ChartError;
use kaskade_app::charts::drawing::{
    Drawn, axis, colour, legend, palette, plain, round_ticks, text, title, with_dark_mode,
};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

/// A bar chart.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Bars {
    /// Title.
    pub(crate) title: String,
    /// Name and unit of the heights.
    pub(crate) axis: String,
    /// The names of the bars of every group.
    pub(crate) names: Vec<String>,
    /// Groups from left to right: a name, and a height for each bar. NaN draws none.
    pub(crate) groups: Vec<(String, Vec<f64>)>,
}

const SIZE: (i32, i32) = (840, 420);
const LEFT: i32 = 72;
const RIGHT: i32 = 28;
const TOP: i32 = 90;
const BOTTOM: i32 = 52;

/// Draws it.
///
/// # Errors
/// When there is no bar of a finite height.
pub(crate) fn svg(bars: &Bars) -> Result<String, ChartError> {
    let heights = bars
        .groups
        .iter()
        .flat_map(|(_, heights)| heights.iter().copied());
    let heights: Vec<f64> = heights.filter(|height| height.is_finite()).collect();
    if heights.is_empty() {
        return Err(ChartError::Empty {
            what: "picture",
            title: bars.title.clone(),
            missing: "bars",
        });
    }
    let low = heights.iter().copied().fold(0.0, f64::min);
    let high = heights.iter().copied().fold(0.0, f64::max).max(f64::MIN_POSITIVE);
    let mut drawn = String::new();
    draw(bars, (low * 1.05, high * 1.08), &mut drawn).map_err(ChartError::backend("picture"))?;
    Ok(with_dark_mode(&drawn))
}

fn draw(bars: &Bars, (low, high): (f64, f64), into: &mut String) -> Drawn {
    let size = (SIZE.0.cast_unsigned(), SIZE.1.cast_unsigned());
    let root = SVGBackend::with_string(into, size).into_drawing_area();
    root.fill(&palette::GROUND)?;
    title(&root, &bars.title)?;
    axis(&root, &bars.axis, (20, 68))?;
    let place = |height: f64| {
        let way = (height - low) / (high - low);
        SIZE.1 - BOTTOM - (way * f64::from(SIZE.1 - TOP - BOTTOM)) as i32
    };
    for tick in round_ticks((low, high), 5) {
        let line = vec![(LEFT, place(tick)), (SIZE.0 - RIGHT, place(tick))];
        root.draw(&PathElement::new(line, palette::GRID))?;
        let at = (LEFT - 8, place(tick));
        root.draw(&text(
            &plain(tick),
            at,
            13,
            palette::FAINT,
            HPos::Right,
            VPos::Center,
        ))?;
    }
    let width = f64::from(SIZE.0 - LEFT - RIGHT) / bars.groups.len() as f64;
    let bar = width * 0.8 / bars.names.len().max(1) as f64;
    for (group, (name, heights)) in bars.groups.iter().enumerate() {
        let start = f64::from(LEFT) + width * (group as f64 + 0.1);
        for (number, height) in heights
            .iter()
            .enumerate()
            .filter(|(_, height)| height.is_finite())
        {
            let left = start + bar * number as f64;
            let corners = [
                (left as i32, place(*height)),
                ((left + bar * 0.92) as i32, place(0.0)),
            ];
            root.draw(&Rectangle::new(corners, colour(number).filled()))?;
        }
        let middle = (start + width * 0.4) as i32;
        root.draw(&text(
            name,
            (middle, SIZE.1 - BOTTOM + 8),
            13,
            palette::INK,
            HPos::Center,
            VPos::Top,
        ))?;
    }
    legend(&root, &bars.names)?;
    root.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::charts::colours_are_known;

    #[test]
    fn every_bar_and_name_is_drawn() {
        let bars = Bars {
            title: "ablations".to_owned(),
            axis: "devices".to_owned(),
            names: vec!["full".to_owned(), "no switching".to_owned()],
            groups: vec![
                ("BERT".to_owned(), vec![2.0, 4.0]),
                ("Llama".to_owned(), vec![3.0, f64::NAN]),
            ],
        };
        let svg = svg(&bars).unwrap();
        for name in ["ablations", "devices", "full", "no switching", "BERT", "Llama"] {
            assert!(svg.contains(name), "{name}");
        }
        // The ground, two marks of the legend, three bars.
        assert_eq!(svg.matches("<rect").count(), 6, "{svg}");
        assert!(colours_are_known(&svg));
    }

    #[test]
    fn no_bars_are_an_error() {
        assert!(svg(&Bars::default()).is_err());
    }
}
