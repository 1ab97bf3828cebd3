//! Hardware scaling, accuracy scaling and overload, over one list of paths.

use std::collections::BTreeSet;

use super::batches::Sizing;
use super::columns::{Column, columns};
use super::fewest::{fewest, max_throughput};
use super::flow::{self, FlowProblem};
use super::hull::Hull;
use super::options::AllocateOptions;
use super::paths::Paths;
use super::round::{Rounded, rounded};
use super::scaled::Scaled;
use crate::lp::{Limits, LpError, Solver};

/// Share of the workers that the planned demand leaves free under overload, so that rounding finds a solution.
const ROOM: f64 = 1e-9;

/// A price of a worker at which only the number of workers matters.
const PROHIBITIVE_PRICE: f64 = 1e9;

/// The paths of a pipeline and their hull.
#[derive(Debug, Clone)]
pub(super) struct Scaler {
    pub(super) paths: Paths,
    hull: Hull,
    /// Number of each configuration's variant.
    variants: Vec<usize>,
}

impl Scaler {
    pub(super) fn new(paths: Paths) -> Self {
        let mut numbers = std::collections::BTreeMap::new();
        let mut number = |place: (usize, usize)| {
            let next = numbers.len();
            *numbers.entry(place).or_insert(next)
        };
        Self {
            hull: Hull::new(&paths),
            variants: paths
                .configs
                .iter()
                .map(|config| number((config.task, config.variant)))
                .collect(),
            paths,
        }
    }

    /// Workers kept busy per request/s by the path that needs fewest.
    pub(super) fn min_load(&self) -> Option<f64> {
        Some(self.hull.least()?.load)
    }

    /// The best accuracy that this many workers per request/s could give, fractions of them included; 0 where they cannot serve it.
    pub(super) fn worth_at_most(&self, load: f64) -> f64 {
        self.hull.mix(load).map_or(0.0, |mix| mix.accuracy)
    }

    /// The fewest workers for a demand by whole columns; `None` if there are not enough.
    pub(super) fn hardware(&self, demand: f64, workers: u32) -> Option<Scaled> {
        let (column, needed) = fewest(&self.paths, demand)?;
        (needed <= f64::from(workers)).then(|| self.whole(column, demand))
    }

    fn whole(&self, column: Column, demand: f64) -> Scaled {
        let accuracy = column.accuracy;
        Scaled {
            demand,
            flows: flow::flows(&self.paths, &[column], &[(0, 1.0)]),
            accuracy,
            bound: accuracy,
            error: None,
        }
    }

    /// The best accuracy for a demand: bound, rounding, and where that leaves a gap, [batch sizes](super::batches) and the
    /// restricted program. `known` is a column that may do. `None` if nothing fits.
    pub(super) fn accuracy(
        &self,
        demand: f64,
        workers: u32,
        options: &AllocateOptions,
        known: Option<Column>,
    ) -> Option<Scaled> {
        let mix = self.hull.mix(f64::from(workers) / demand)?;
        let mut pool = columns(&self.paths, mix.price, options.columns);
        pool.extend(mix.points.iter().map(|(point, _)| Column::of(&self.paths, point)));
        pool.extend(known);
        let goal = mix.accuracy * (1.0 - options.gap);
        let rounded = rounded(&pool, demand, f64::from(workers), Some(&self.variants), goal);
        let stated = |rounded: Rounded| Scaled {
            demand,
            flows: flow::flows(&self.paths, &pool, &rounded.shares),
            accuracy: rounded.accuracy,
            bound: mix.accuracy,
            error: None,
        };
        let scaled = rounded.map(stated);
        if scaled.as_ref().is_some_and(|scaled| scaled.accuracy >= goal) {
            return scaled;
        }
        let sizing = Sizing {
            paths: &self.paths,
            variants: &self.variants,
            demand,
            workers,
            options,
            goal,
        };
        sizing.improved(&pool, scaled, mix.accuracy)
    }

    /// All of a demand at the best accuracy for it, or else as much as these workers can serve. `None` if they are fewer than the
    /// tasks.
    pub(super) fn served(&self, demand: f64, workers: u32, options: &AllocateOptions) -> Option<Scaled> {
        self.accuracy(demand, workers, options, None)
            .or_else(|| self.max_served(demand, workers, options))
    }

    /// Serves as much of a demand as these workers can, at the best accuracy for that.
    pub(super) fn max_served(&self, demand: f64, workers: u32, options: &AllocateOptions) -> Option<Scaled> {
        let mut pool = columns(&self.paths, PROHIBITIVE_PRICE, options.columns);
        pool.extend(self.hull.least().map(|point| Column::of(&self.paths, point)));
        let (place, capacity) = max_throughput(&pool, f64::from(workers))?;
        let demand = demand.min(capacity * (1.0 - ROOM));
        let column = pool.swap_remove(place);
        let scaled = self.accuracy(demand, workers, options, Some(column.clone()));
        let bound = self
            .hull
            .mix(f64::from(workers) / demand)
            .map_or(1.0, |mix| mix.accuracy);
        Some(scaled.unwrap_or_else(|| Scaled {
            bound,
            ..self.whole(column, demand)
        }))
    }
}

/// The optimum of the flow over all paths, proven.
pub(super) fn optimum(
    paths: &Paths,
    demand: f64,
    workers: u32,
    single: bool,
    solver: Solver,
) -> Result<f64, LpError> {
    let end = |sink: &usize| {
        let level = paths.levels.get(*sink);
        let count = level.map_or(0, |level| level.paths.len());
        (0..count).map(|path| (*sink, path)).collect::<Vec<_>>()
    };
    let ends: BTreeSet<(usize, usize)> = paths.tree.sinks.iter().flat_map(end).collect();
    let problem = FlowProblem {
        paths,
        demand,
        workers,
        single,
    };
    let flows = flow::solve(&problem, &ends, &[], solver, &Limits::NONE)?;
    Ok(flow::accuracy(paths, &flows))
}
