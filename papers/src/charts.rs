//! Pictures that only the comparisons with papers draw, in the style of [`kaskade_app::charts`].
//!
//! | module | holds |
//! |---|---|
//! | [`bars`] | groups of bars |
//! | [`grid`] | a table of coloured cells |

pub(crate) mod bars;
pub(crate) mod grid;

use kaskade_app::charts::panels::{Series, Shape};
use kaskade_simulator::Bucket;

/// Returns the line of a figure over the time in seconds.
pub(crate) fn over_time(
    name: impl Into<String>,
    course: &[Bucket],
    figure: impl Fn(&Bucket) -> f64,
) -> Series {
    Series {
        name: name.into(),
        points: course
            .iter()
            .map(|bucket| (bucket.from_us as f64 / 1e6, figure(bucket)))
            .collect(),
        shape: Shape::Line,
    }
}

/// Returns whether every colour of a picture has its dark counterpart.
#[cfg(test)]
fn colours_are_known(svg: &str) -> bool {
    use kaskade_app::charts::drawing::palette;

    let body = svg.split_once("</style>").unwrap().1;
    let parts = body
        .split("fill=\"")
        .skip(1)
        .chain(body.split("stroke=\"").skip(1));
    parts
        .map(|part| part.split('"').next().unwrap())
        .all(|colour| colour == "none" || palette::DARK.iter().any(|(light, _)| *light == colour))
}
