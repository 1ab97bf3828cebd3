//! Figures of a simulated run over time, as series of a picture.

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
