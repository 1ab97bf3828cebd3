//! Pareto fronts and upper hulls of points with a cost and a gain.

/// Relative difference below which two gains are the same sum in another order.
const SAME: f64 = 1e-9;

/// Height above a line, in units of both axes, below which a point lies on the line.
const ON_LINE: f64 = 1e-15;

/// The place of a point in the plane.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Place {
    /// Less is better.
    pub cost: f64,
    /// More is better.
    pub gain: f64,
}

/// Returns the points that no other point beats or equals in both cost and gain, ascending in both.
pub fn pareto_front<T>(mut points: Vec<T>, place: impl Fn(&T) -> Place) -> Vec<T> {
    points.sort_by(|one, other| {
        let (one, other) = (place(one), place(other));
        one.cost
            .total_cmp(&other.cost)
            .then(other.gain.total_cmp(&one.gain))
    });
    let mut best: Option<f64> = None;
    points.retain(|point| {
        let gain = place(point).gain;
        let better = best.is_none_or(|best| gain > best + SAME * best.abs());
        if better {
            best = Some(gain);
        }
        better
    });
    points
}

/// Returns the points of the Pareto front that lie above every line between two others, ascending in cost and gain.
pub(crate) fn upper_hull<T>(points: Vec<T>, place: impl Fn(&T) -> Place) -> Vec<T> {
    let mut hull: Vec<T> = Vec::new();
    for point in pareto_front(points, &place) {
        while let [.., before, last] = hull.as_slice() {
            if height(place(before), place(last), place(&point)) > ON_LINE {
                break;
            }
            hull.pop();
        }
        hull.push(point);
    }
    hull
}

/// Returns the height of `middle` above the line between the others, times the difference of their costs.
fn height(before: Place, middle: Place, after: Place) -> f64 {
    (middle.gain - before.gain) * (after.cost - before.cost)
        - (after.gain - before.gain) * (middle.cost - before.cost)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[expect(
        clippy::trivially_copy_pass_by_ref,
        reason = "the functions pass a point by reference"
    )]
    fn place(point: &(u8, u8)) -> Place {
        Place {
            cost: f64::from(point.0),
            gain: f64::from(point.1),
        }
    }

    #[test]
    fn the_front_is_ascending_and_the_hull_leaves_out_what_a_mix_beats() {
        let points = vec![(4, 4), (1, 1), (2, 1), (3, 2), (1, 0), (5, 4)];
        assert_eq!(pareto_front(points.clone(), place), [(1, 1), (3, 2), (4, 4)]);
        assert_eq!(upper_hull(points, place), [(1, 1), (4, 4)]);
    }

    #[test]
    fn a_gain_in_the_last_digits_is_none() {
        let points = vec![(1.0, 0.3), (2.0, 0.1 + 0.2)];
        let place = |point: &(f64, f64)| Place {
            cost: point.0,
            gain: point.1,
        };
        assert_eq!(pareto_front(points, place), [(1.0, 0.3)]);
    }

    proptest! {
        #[test]
        fn every_point_is_beaten_or_on_the_front(points in prop::collection::vec((0..9_u8, 0..9_u8), 0..30)) {
            let front = pareto_front(points.clone(), place);
            for point in &points {
                prop_assert!(front.iter().any(|kept| kept.0 <= point.0 && kept.1 >= point.1));
            }
            prop_assert!(front.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 < pair[1].1));
        }

        #[test]
        fn slopes_of_a_hull_fall_and_no_point_is_above_it(points in prop::collection::vec((0..9_u8, 0..9_u8), 1..30)) {
            let hull = upper_hull(points.clone(), place);
            for three in hull.windows(3) {
                prop_assert!(height(place(&three[0]), place(&three[1]), place(&three[2])) > 0.0);
            }
            for two in hull.windows(2) {
                for point in points.iter().filter(|point| (two[0].0..=two[1].0).contains(&point.0)) {
                    prop_assert!(height(place(&two[0]), place(point), place(&two[1])) <= 0.0);
                }
            }
        }
    }
}
