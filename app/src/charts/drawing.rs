//! Shared parts of all charts: colours for light and dark pages, text, round ticks.

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// A chart, or a part of one.
pub type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Result of drawing.
pub type Drawn = Result<(), Box<dyn std::error::Error>>;

/// Colours on a light background, and their replacements on a dark one.
pub mod palette {
    use plotters::style::RGBColor;

    /// Background.
    pub const GROUND: RGBColor = RGBColor(255, 255, 255);
    /// Names and titles.
    pub const INK: RGBColor = RGBColor(31, 41, 55);
    /// Numbers and notes.
    pub const FAINT: RGBColor = RGBColor(107, 114, 128);
    /// Grid lines and frames.
    pub const GRID: RGBColor = RGBColor(229, 231, 235);
    /// First series; a frontier.
    pub const FRONTIER: RGBColor = RGBColor(29, 111, 216);
    /// Second series; a marked point.
    pub const MARK: RGBColor = RGBColor(200, 58, 30);

    /// Colours of series, in order; distinguishable in both modes and for most colour-blind readers.
    pub const SERIES: [RGBColor; 10] = [
        FRONTIER,
        MARK,
        RGBColor(15, 128, 99),
        RGBColor(138, 78, 190),
        RGBColor(176, 120, 10),
        FAINT,
        RGBColor(14, 116, 144),
        RGBColor(190, 24, 93),
        RGBColor(94, 110, 20),
        RGBColor(120, 72, 48),
    ];

    /// Light and dark value of every colour above, as the SVG backend writes it.
    pub const DARK: [(&str, &str); 13] = [
        ("#FFFFFF", "#0F1419"),
        ("#1F2937", "#E6E9EE"),
        ("#6B7280", "#9AA4B2"),
        ("#E5E7EB", "#2A323C"),
        ("#1D6FD8", "#6CB0FF"),
        ("#C83A1E", "#FF9274"),
        ("#0F8063", "#4FD1A8"),
        ("#8A4EBE", "#C79BF2"),
        ("#B0780A", "#F0BC5A"),
        ("#0E7490", "#41C7E0"),
        ("#BE185D", "#F78FB8"),
        ("#5E6E14", "#B9C75A"),
        ("#784830", "#CFA387"),
    ];
}

/// Returns the colour of a series, by its index.
pub fn colour(number: usize) -> RGBColor {
    let [first, ..] = palette::SERIES;
    let place = number % palette::SERIES.len();
    palette::SERIES.get(place).copied().unwrap_or(first)
}

/// Creates text at a position, with the given anchor.
pub fn text(
    words: &str,
    at: (i32, i32),
    size: i32,
    colour: RGBColor,
    horizontal: HPos,
    vertical: VPos,
) -> Text<'static, (i32, i32), String> {
    let style = ("sans-serif", size)
        .into_font()
        .color(&colour)
        .pos(Pos::new(horizontal, vertical));
    Text::new(words.to_owned(), at, style)
}

/// Draws the title of a chart.
///
/// # Errors
/// Errors of the back end.
pub fn title(root: &Area<'_>, words: &str) -> Drawn {
    words_at(root, words, (20, 16), 18)
}

/// Draws the name of an axis at its upper end.
///
/// # Errors
/// Errors of the back end.
pub fn axis(area: &Area<'_>, words: &str, at: (i32, i32)) -> Drawn {
    words_at(area, words, at, 13)
}

fn words_at(area: &Area<'_>, words: &str, at: (i32, i32), size: i32) -> Drawn {
    area.draw(&text(words, at, size, palette::INK, HPos::Left, VPos::Top))?;
    Ok(())
}

/// Draws the names of series in their colours, side by side under the title.
///
/// # Errors
/// Errors of the back end.
pub fn legend(root: &Area<'_>, names: impl IntoIterator<Item = impl AsRef<str>>) -> Drawn {
    let mut left = 20;
    for (number, name) in names.into_iter().enumerate() {
        let name = name.as_ref();
        let mark = [(left, 48), (left + 18, 54)];
        root.draw(&Rectangle::new(mark, colour(number).filled()))?;
        words_at(root, name, (left + 24, 44), 13)?;
        left += 44 + i32::try_from(name.chars().count())? * 7;
    }
    Ok(())
}

/// Returns about `wanted` round values inside a range.
pub fn round_ticks((low, high): (f64, f64), wanted: usize) -> Vec<f64> {
    let rough = (high - low) / wanted.max(1) as f64;
    if !(rough.is_finite() && rough > 0.0) {
        return Vec::new();
    }
    let power = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|times| times * power)
        .find(|step| *step >= rough)
        .unwrap_or(10.0 * power);
    let first = (low / step - 1e-9).ceil() as i64;
    let last = (high / step + 1e-9).floor() as i64;
    (first..=last).map(|n| n as f64 * step).collect()
}

/// Formats a number for a tick, without unneeded digits.
pub fn plain(value: f64) -> String {
    let rounded = (value * 1e4).round() / 1e4;
    if rounded.abs() >= 10_000.0 {
        return format!("{}k", (rounded / 1e3 * 10.0).round() / 10.0);
    }
    format!("{rounded}")
}

/// Adds a style that replaces every colour if the reader prefers dark mode.
pub fn with_dark_mode(svg: &str) -> String {
    let rule = |(light, dark): (&str, &str)| {
        [
            format!("[fill=\"{light}\"]{{fill:{dark}}}"),
            format!("[stroke=\"{light}\"]{{stroke:{dark}}}"),
        ]
    };
    let rules = palette::DARK.into_iter().flat_map(rule).collect::<String>();
    let style = format!("<style>@media (prefers-color-scheme:dark){{{rules}}}</style>\n");
    match svg.find(">\n") {
        Some(end) => {
            let (head, body) = svg.split_at(end + 2);
            format!("{head}{style}{body}")
        }
        None => svg.to_owned(),
    }
}

/// Returns whether every colour of a chart has a dark counterpart.
#[cfg(test)]
pub(super) fn colours_are_known(svg: &str) -> bool {
    let body = svg.split_once("</style>").unwrap().1;
    let parts = body
        .split("fill=\"")
        .skip(1)
        .chain(body.split("stroke=\"").skip(1));
    parts
        .map(|part| part.split('"').next().unwrap())
        .all(|colour| colour == "none" || palette::DARK.iter().any(|(light, _)| *light == colour))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_inside() {
        assert_eq!(
            round_ticks((0.0, 1.0), 5),
            [0, 1, 2, 3, 4, 5].map(|n| f64::from(n) * 0.2)
        );
        assert_eq!(round_ticks((3.0, 47.0), 4), [20.0, 40.0]);
        assert!(round_ticks((1.0, 1.0), 4).is_empty());
        assert_eq!([3.0 * 0.2, 25_000.0, 7.0].map(plain), ["0.6", "25k", "7"]);
    }
}
