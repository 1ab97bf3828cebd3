//! The upper bound of the accuracy: the optimum of the configuration-path flow with fractions of workers, without a solver.
//!
//! Choose one path through the whole tree: it keeps `w` workers busy per request/s and has an accuracy `A`, one point. With
//! fractions of workers only two rows of the program are left, so its optimum at `S` workers and demand `D` mixes at most two points
//! that are neighbours on the upper hull of all of them, at `w = S / D`. The hull depends on neither `S` nor `D` and is made once.
//!
//! There are far too many points to list in a tree. But the hull of a choice is the hull of the union of the hulls, and the hull of
//! independent choices (the branches below one configuration) is the Minkowski sum of their hulls.

use super::paths::{Level, Path, Paths};
use crate::pareto::{Place, upper_hull};

/// A path through the whole tree, as a point.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Point {
    /// Workers kept busy per request/s at the root.
    pub(super) load: f64,
    /// Mean accuracy over the sinks.
    pub(super) accuracy: f64,
    /// The path to each task, by task, that makes it up; in no order.
    pub(super) picks: Vec<(usize, usize)>,
}

/// The points that no mix of others beats, ascending in load and accuracy.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Hull {
    points: Vec<Point>,
}

/// The best mix with fractions of workers.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Mix<'a> {
    /// Accuracy of the mix; no whole number of workers exceeds it.
    pub(super) accuracy: f64,
    /// Accuracy that one more worker per request/s would add, the program's dual.
    pub(super) price: f64,
    /// The points, with their shares.
    pub(super) points: Vec<(&'a Point, f64)>,
}

impl Hull {
    pub(super) fn new(paths: &Paths) -> Self {
        Self {
            points: choice(paths, paths.root(), paths.first()),
        }
    }

    /// The best mix that keeps at most this many workers busy per request/s at the root. `None` if there is none.
    pub(super) fn mix(&self, load: f64) -> Option<Mix<'_>> {
        let above = self.points.partition_point(|point| point.load <= load);
        let below = self.points.get(above.checked_sub(1)?)?;
        let Some(above) = self.points.get(above) else {
            return Some(Mix {
                accuracy: below.accuracy,
                price: 0.0,
                points: vec![(below, 1.0)],
            });
        };
        let price = (above.accuracy - below.accuracy) / (above.load - below.load);
        let share = (load - below.load) / (above.load - below.load);
        Some(Mix {
            accuracy: below.accuracy + price * (load - below.load),
            price,
            points: vec![(below, 1.0 - share), (above, share)],
        })
    }

    /// The point that keeps the fewest workers busy.
    pub(super) fn least(&self) -> Option<&Point> {
        self.points.first()
    }
}

/// The hull of a choice between paths to a task.
fn choice(paths: &Paths, task: usize, span: std::ops::Range<usize>) -> Vec<Point> {
    let Some(level) = paths.levels.get(task) else {
        return Vec::new();
    };
    let mut points = Vec::new();
    if paths.tree.children(task).is_empty() {
        for path in span {
            // Of one variant only the largest batch matters here, which comes last.
            if let Some(own) = level
                .paths
                .get(path)
                .filter(|own| !same_variant(paths, level, own, path + 1))
            {
                points.push(Point {
                    load: own.load,
                    accuracy: own.accuracy,
                    picks: vec![(task, path)],
                });
            }
        }
    } else {
        for path in span {
            points.extend(continued(paths, task, path));
        }
    }
    upper_hull(points, |point| Place {
        cost: point.load,
        gain: point.accuracy,
    })
}

fn same_variant(paths: &Paths, level: &Level, path: &Path, next: usize) -> bool {
    let variant = |path: &Path| paths.configs.get(path.config).map(|config| config.variant);
    let next = level.paths.get(next);
    next.is_some_and(|next| next.parent == path.parent && variant(next) == variant(path))
}

/// The hull of all that can follow one path: its branches are chosen independently.
fn continued(paths: &Paths, task: usize, path: usize) -> Vec<Point> {
    let load = paths.path(task, path).map_or(0.0, |path| path.load);
    let mut sum = vec![Point {
        load,
        accuracy: 0.0,
        picks: vec![(task, path)],
    }];
    for child in paths.tree.children(task) {
        sum = minkowski(&sum, &choice(paths, *child, paths.continuing(*child, path)));
    }
    sum
}

/// The sum of two hulls: their edges, the steepest first.
fn minkowski(one: &[Point], other: &[Point]) -> Vec<Point> {
    let mut sum = Vec::with_capacity(one.len() + other.len());
    let (mut i, mut j) = (0, 0);
    while let (Some(left), Some(right)) = (one.get(i), other.get(j)) {
        let picks = left.picks.iter().chain(&right.picks);
        sum.push(Point {
            load: left.load + right.load,
            accuracy: left.accuracy + right.accuracy,
            picks: picks.copied().collect(),
        });
        match (slope(one, i), slope(other, j)) {
            (Some(left), Some(right)) if left < right => j += 1,
            (None, Some(_)) => j += 1,
            (Some(_), _) => i += 1,
            (None, None) => break,
        }
    }
    sum
}

fn slope(hull: &[Point], at: usize) -> Option<f64> {
    let (here, next) = (hull.get(at)?, hull.get(at + 1)?);
    Some((next.accuracy - here.accuracy) / (next.load - here.load))
}
