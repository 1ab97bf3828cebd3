//! The columns that a plan is made of: whole paths through the tree, best reduced cost first.
//!
//! At the price `λ` of a worker, the dual of the [hull](super::hull), a path through the tree has the value `A - λ w`. The columns of a
//! plan with whole workers are close to the best of these, so a few hundred columns suffice. Each is the best path through the tree
//! among those that end, at one sink, with one given path.

use std::collections::BTreeSet;

use super::hull::Point;
use super::paths::Paths;

/// A path through the whole tree: one configuration per task.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Column {
    /// Path of each task.
    pub(super) paths: Vec<usize>,
    /// Configuration of each task.
    pub(super) configs: Vec<usize>,
    /// Workers that each task keeps busy per request/s at the root.
    pub(super) loads: Vec<f64>,
    /// Mean accuracy over the sinks.
    pub(super) accuracy: f64,
}

impl Column {
    pub(super) fn load(&self) -> f64 {
        self.loads.iter().sum()
    }

    /// The column of a point of the hull.
    pub(super) fn of(paths: &Paths, point: &Point) -> Self {
        let mut picked = vec![0; paths.levels.len()];
        for (task, path) in &point.picks {
            if let Some(slot) = picked.get_mut(*task) {
                *slot = *path;
            }
        }
        Self::new(paths, picked)
    }

    /// The column of a path per task.
    pub(super) fn new(paths: &Paths, picked: Vec<usize>) -> Self {
        let own = |(task, path): (usize, &usize)| paths.path(task, *path);
        let picks: Vec<_> = picked.iter().enumerate().filter_map(own).collect();
        Self {
            configs: picks.iter().map(|path| path.config).collect(),
            loads: picks.iter().map(|path| path.load).collect(),
            accuracy: paths
                .tree
                .sinks
                .iter()
                .filter_map(|sink| picks.get(*sink).map(|path| path.accuracy))
                .sum(),
            paths: picked,
        }
    }
}

/// Returns slightly more than `most` columns at most, best first, at this price of a worker per request/s.
pub(super) fn columns(paths: &Paths, price: f64, most: usize) -> Vec<Column> {
    let prices = Prices::new(paths, price);
    let mut ends: Vec<(f64, usize, usize)> = Vec::new();
    for sink in &paths.tree.sinks {
        let through = prices.through.get(*sink).into_iter().flatten().enumerate();
        let whole = through.filter(|(_, value)| value.is_finite());
        ends.extend(whole.map(|(path, value)| (*value, *sink, path)));
    }
    let by_value = |one: &(f64, usize, usize), other: &(f64, usize, usize)| other.0.total_cmp(&one.0);
    let most = most.min(ends.len());
    if let Some(last) = most.checked_sub(1) {
        ends.select_nth_unstable_by(last, by_value);
    }
    ends.truncate(most);
    ends.sort_by(|one, other| by_value(one, other).then((one.1, one.2).cmp(&(other.1, other.2))));
    let mut seen = BTreeSet::new();
    let mut columns = Vec::new();
    for (_, sink, path) in ends {
        let picked = prices.completed(paths, sink, path);
        if seen.insert(picked.clone()) {
            columns.push(Column::new(paths, picked));
        }
    }
    columns
}

/// Values of paths at a price, by task and path.
struct Prices {
    /// A path and the best that can follow it.
    value: Vec<Vec<f64>>,
    /// The best path through the whole tree of which it is part.
    through: Vec<Vec<f64>>,
}

impl Prices {
    fn new(paths: &Paths, price: f64) -> Self {
        let own = |level: &super::paths::Level| {
            let paths = level.paths.iter();
            // Accuracy counts where it is complete, at the sinks.
            paths.map(|path| -price * path.load).collect()
        };
        let mut prices = Self {
            value: paths.levels.iter().map(own).collect(),
            through: Vec::new(),
        };
        for task in paths.tree.order.iter().rev() {
            prices.follow(paths, *task);
        }
        prices.through = prices.value.clone();
        for task in &paths.tree.order {
            prices.lead(paths, *task);
        }
        prices
    }

    /// Adds to the paths to a task the best that can follow.
    fn follow(&mut self, paths: &Paths, task: usize) {
        let children = paths.tree.children(task);
        let count = paths.levels.get(task).map_or(0, |level| level.paths.len());
        for path in 0..count {
            let gain = if children.is_empty() {
                paths.path(task, path).map_or(0.0, |path| path.accuracy)
            } else {
                let best = |child: &usize| {
                    self.best(paths, *child, path)
                        .map_or(f64::NEG_INFINITY, |best| best.0)
                };
                children.iter().map(best).sum()
            };
            if let Some(value) = self.value.get_mut(task).and_then(|values| values.get_mut(path)) {
                *value += gain;
            }
        }
    }

    /// Adds to the paths to a task's children what comes before and beside them.
    fn lead(&mut self, paths: &Paths, task: usize) {
        let count = paths.levels.get(task).map_or(0, |level| level.paths.len());
        for child in paths.tree.children(task) {
            for path in 0..count {
                let best = self
                    .best(paths, *child, path)
                    .map_or(f64::NEG_INFINITY, |best| best.0);
                let whole = self
                    .through
                    .get(task)
                    .and_then(|values| values.get(path))
                    .copied();
                let whole = whole.unwrap_or(f64::NEG_INFINITY);
                // If no path continues in one branch, the other branches are dropped too.
                let rest = if best.is_finite() && whole.is_finite() {
                    whole - best
                } else {
                    f64::NEG_INFINITY
                };
                let span = paths.continuing(*child, path);
                let through = self
                    .through
                    .get_mut(*child)
                    .and_then(|values| values.get_mut(span));
                for value in through.into_iter().flatten() {
                    *value += rest;
                }
            }
        }
    }

    /// The best path to a child that continues this path, and its value.
    fn best(&self, paths: &Paths, child: usize, path: usize) -> Option<(f64, usize)> {
        let span = paths.continuing(child, path);
        let values = self.value.get(child)?.get(span.clone())?;
        let better = |best: (f64, usize), next: (f64, usize)| if next.0 > best.0 { next } else { best };
        values.iter().copied().zip(span).reduce(better)
    }

    /// The best path through the tree that contains this one, by task.
    fn completed(&self, paths: &Paths, task: usize, path: usize) -> Vec<usize> {
        let mut picked = vec![usize::MAX; paths.levels.len()];
        let mut at = Some((task, path));
        while let Some((task, path)) = at {
            if let Some(slot) = picked.get_mut(task) {
                *slot = path;
            }
            let own = paths.path(task, path);
            at = paths.tree.parent(task).zip(own.map(|own| own.parent));
        }
        for task in &paths.tree.order {
            let path = picked.get(*task).copied().unwrap_or(usize::MAX);
            for child in paths.tree.children(*task) {
                let best = self.best(paths, *child, path).map(|(_, best)| best);
                if let (Some(slot), Some(best)) = (picked.get_mut(*child), best)
                    && *slot == usize::MAX
                {
                    *slot = best;
                }
            }
        }
        picked
    }
}
