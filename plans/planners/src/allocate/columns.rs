//! The columns that a plan is made of: whole ways through the tree, best reduced cost first.
//!
//! At the price `λ` of a worker that the [hull](super::hull) tells, a way through the tree is worth `A - λ w`. What a plan with whole
//! workers uses lies close to the best of these, so a few hundred columns stand for all. Each is the best way through the tree
//! among those that end, at one sink, in one given way.

use std::collections::BTreeSet;

use super::hull::Point;
use super::ways::Ways;

/// A way through the whole tree: one configuration per task.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Column {
    /// By task.
    pub(super) ways: Vec<usize>,
    /// By task.
    pub(super) configs: Vec<usize>,
    /// By task, workers that are kept busy per request/s at the door.
    pub(super) loads: Vec<f64>,
    /// Mean accuracy over the sinks.
    pub(super) worth: f64,
}

impl Column {
    pub(super) fn load(&self) -> f64 {
        self.loads.iter().sum()
    }

    /// The column of a point of the hull.
    pub(super) fn of(ways: &Ways, point: &Point) -> Self {
        let mut picked = vec![0; ways.levels.len()];
        for (task, way) in &point.picks {
            if let Some(slot) = picked.get_mut(*task) {
                *slot = *way;
            }
        }
        Self::new(ways, picked)
    }

    /// The column of a way per task.
    pub(super) fn new(ways: &Ways, picked: Vec<usize>) -> Self {
        let own = |(task, way): (usize, &usize)| ways.way(task, *way);
        let picks: Vec<_> = picked.iter().enumerate().filter_map(own).collect();
        Self {
            configs: picks.iter().map(|way| way.config).collect(),
            loads: picks.iter().map(|way| way.load).collect(),
            worth: ways
                .tree
                .sinks
                .iter()
                .filter_map(|sink| picks.get(*sink).map(|way| way.worth))
                .sum(),
            ways: picked,
        }
    }
}

/// At most `most` columns and a few, best first, at this price of a worker per request/s.
pub(super) fn columns(ways: &Ways, price: f64, most: usize) -> Vec<Column> {
    let prices = Prices::new(ways, price);
    let mut ends: Vec<(f64, usize, usize)> = Vec::new();
    for sink in &ways.tree.sinks {
        let through = prices.through.get(*sink).into_iter().flatten().enumerate();
        let whole = through.filter(|(_, value)| value.is_finite());
        ends.extend(whole.map(|(way, value)| (*value, *sink, way)));
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
    for (_, sink, way) in ends {
        let picked = prices.completed(ways, sink, way);
        if seen.insert(picked.clone()) {
            columns.push(Column::new(ways, picked));
        }
    }
    columns
}

/// What ways are worth at a price, by task and way.
struct Prices {
    /// A way and the best that can follow it.
    value: Vec<Vec<f64>>,
    /// The best way through the whole tree of which it is part.
    through: Vec<Vec<f64>>,
}

impl Prices {
    fn new(ways: &Ways, price: f64) -> Self {
        let own = |level: &super::ways::Level| {
            let ways = level.ways.iter();
            // Worth counts where it is complete, at the sinks.
            ways.map(|way| -price * way.load).collect()
        };
        let mut prices = Self {
            value: ways.levels.iter().map(own).collect(),
            through: Vec::new(),
        };
        for task in ways.tree.order.iter().rev() {
            prices.follow(ways, *task);
        }
        prices.through = prices.value.clone();
        for task in &ways.tree.order {
            prices.lead(ways, *task);
        }
        prices
    }

    /// Adds to the ways to a task the best that can follow.
    fn follow(&mut self, ways: &Ways, task: usize) {
        let children = ways.tree.children(task);
        let count = ways.levels.get(task).map_or(0, |level| level.ways.len());
        for way in 0..count {
            let gain = if children.is_empty() {
                ways.way(task, way).map_or(0.0, |way| way.worth)
            } else {
                let best = |child: &usize| {
                    self.best(ways, *child, way)
                        .map_or(f64::NEG_INFINITY, |best| best.0)
                };
                children.iter().map(best).sum()
            };
            if let Some(value) = self.value.get_mut(task).and_then(|values| values.get_mut(way)) {
                *value += gain;
            }
        }
    }

    /// Adds to the ways to a task's children what comes before and beside them.
    fn lead(&mut self, ways: &Ways, task: usize) {
        let count = ways.levels.get(task).map_or(0, |level| level.ways.len());
        for child in ways.tree.children(task) {
            for way in 0..count {
                let best = self
                    .best(ways, *child, way)
                    .map_or(f64::NEG_INFINITY, |best| best.0);
                let whole = self.through.get(task).and_then(|values| values.get(way)).copied();
                let whole = whole.unwrap_or(f64::NEG_INFINITY);
                // Where nothing follows in one branch, nothing does in the others.
                let rest = if best.is_finite() && whole.is_finite() {
                    whole - best
                } else {
                    f64::NEG_INFINITY
                };
                let span = ways.continuing(*child, way);
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

    /// The best way to a child that continues this way, and its value.
    fn best(&self, ways: &Ways, child: usize, way: usize) -> Option<(f64, usize)> {
        let span = ways.continuing(child, way);
        let values = self.value.get(child)?.get(span.clone())?;
        let better = |best: (f64, usize), next: (f64, usize)| if next.0 > best.0 { next } else { best };
        values.iter().copied().zip(span).reduce(better)
    }

    /// The best way through the tree that contains this one, by task.
    fn completed(&self, ways: &Ways, task: usize, way: usize) -> Vec<usize> {
        let mut picked = vec![usize::MAX; ways.levels.len()];
        let mut at = Some((task, way));
        while let Some((task, way)) = at {
            if let Some(slot) = picked.get_mut(task) {
                *slot = way;
            }
            let own = ways.way(task, way);
            at = ways.tree.parent(task).zip(own.map(|own| own.parent));
        }
        for task in &ways.tree.order {
            let way = picked.get(*task).copied().unwrap_or(usize::MAX);
            for child in ways.tree.children(*task) {
                let best = self.best(ways, *child, way).map(|(_, best)| best);
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
