//! One batch size per variant: the part of the problem that rounding leaves open.
//!
//! A variant runs in batches of one size on all its workers (the paper's `y(i, k)`, and a plan's stage). Once every variant's size
//! is fixed, few columns are left, and the program over them needs no binaries and is solved in milliseconds. So the sizes are
//! searched outside of it: from those of the best columns, one variant's size at a time is moved to its neighbour as long as rounding
//! gets better.

use std::collections::BTreeSet;

use super::columns::{Column, columns};
use super::flow::{self, Flow, FlowProblem};
use super::hull::Hull;
use super::options::AllocateOptions;
use super::paths::Paths;
use super::round::{Rounded, rounded};
use super::scaled::{Scaled, needs};
use crate::lp::{Limits, LpError};

/// The problem to improve.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizing<'a> {
    pub(super) paths: &'a Paths,
    /// Number of each configuration's variant. The configurations of one variant are adjacent, faster batches first.
    pub(super) variants: &'a [usize],
    pub(super) demand: f64,
    pub(super) workers: u32,
    pub(super) options: &'a AllocateOptions,
    /// Accuracy at which the search stops.
    pub(super) goal: f64,
}

/// Choices of batch sizes that the solver is asked about: the best, and those next to it.
const SOLVED: usize = 4;

/// A choice of batch sizes and its rounded allocation.
struct Choice {
    /// Whether each configuration is admitted.
    admitted: Vec<bool>,
    paths: Paths,
    /// For each task, the indices of its paths among all paths.
    places: Vec<Vec<usize>>,
    columns: Vec<Column>,
    rounded: Option<Rounded>,
}

impl Choice {
    fn accuracy(&self) -> f64 {
        self.rounded
            .as_ref()
            .map_or(f64::NEG_INFINITY, |rounded| rounded.accuracy)
    }
}

impl Sizing<'_> {
    /// The best of the known columns and those that can be found with one batch size per variant; `pool` is the examined columns, best
    /// first.
    pub(super) fn improved(&self, pool: &[Column], known: Option<Scaled>, bound: f64) -> Option<Scaled> {
        let in_use = known.as_ref().map_or(Vec::new(), |known| {
            flow::loads(self.paths, &known.flows).into_keys().collect()
        });
        let found = self.search(self.sizes(&in_use, pool));
        let mut scaled = known;
        if let Some((best, rounded)) = found
            .first()
            .and_then(|best| Some((best, best.rounded.as_ref()?)))
        {
            let flows = flow::flows(&best.paths, &best.columns, &rounded.shares);
            self.keep_better(&mut scaled, best, flows, bound);
        }
        let mut error = None;
        for choice in &found {
            if scaled.as_ref().is_some_and(|scaled| scaled.accuracy >= self.goal) {
                break;
            }
            match self.solved(choice) {
                Ok(flows) => self.keep_better(&mut scaled, choice, flows, bound),
                Err(failed) => error = Some(failed),
            }
        }
        if let Some(scaled) = &mut scaled {
            scaled.error = error;
        }
        scaled
    }

    /// The best choices of sizes around these, best first.
    fn search(&self, sizes: Vec<bool>) -> Vec<Choice> {
        let mut found = vec![self.choice(sizes)];
        let mut before = f64::NEG_INFINITY;
        while let Some(best) = found.first() {
            let accuracy = best.accuracy();
            // Every step tries all neighbours of the best choice; the search ends when none is better.
            if accuracy >= self.goal || (found.len() > 1 && accuracy <= before + 1e-9) {
                break;
            }
            before = accuracy;
            let near: Vec<Choice> = self
                .neighbours(best)
                .into_iter()
                .map(|sizes| self.choice(sizes))
                .collect();
            if near.is_empty() {
                break;
            }
            found.extend(near);
            found.sort_by(|one, other| other.accuracy().total_cmp(&one.accuracy()));
            found.truncate(SOLVED);
        }
        found
    }

    fn keep_better(&self, scaled: &mut Option<Scaled>, choice: &Choice, flows: Vec<Flow>, bound: f64) {
        let accuracy = flow::accuracy(&choice.paths, &flows);
        if scaled.as_ref().is_some_and(|scaled| scaled.accuracy >= accuracy) {
            return;
        }
        let original = |flow: Flow| {
            let path = *choice.places.get(flow.sink)?.get(flow.path)?;
            Some(Flow { path, ..flow })
        };
        *scaled = Some(Scaled {
            demand: self.demand,
            flows: flows.into_iter().filter_map(original).collect(),
            accuracy,
            bound,
            error: None,
        });
    }

    /// One configuration per variant: that in use, or else that of the best column with the variant.
    fn sizes(&self, in_use: &[usize], pool: &[Column]) -> Vec<bool> {
        let mut admitted = vec![false; self.variants.len()];
        let mut decided = BTreeSet::new();
        let pooled = pool.iter().flat_map(|column| &column.configs);
        for config in in_use.iter().chain(pooled) {
            let Some(variant) = self.variants.get(*config) else {
                continue;
            };
            if decided.insert(*variant)
                && let Some(slot) = admitted.get_mut(*config)
            {
                *slot = true;
            }
        }
        admitted
    }

    /// The rounded allocation of a choice of sizes.
    fn choice(&self, admitted: Vec<bool>) -> Choice {
        let (paths, places) = self.paths.restricted(&admitted);
        let hull = Hull::new(&paths);
        let mix = hull.mix(f64::from(self.workers) / self.demand);
        let (columns, rounded) = mix.map_or((Vec::new(), None), |mix| {
            let mut pool = columns(&paths, mix.price, self.options.columns);
            pool.extend(mix.points.iter().map(|(point, _)| Column::of(&paths, point)));
            let rounded = rounded(&pool, self.demand, f64::from(self.workers), None, self.goal);
            (pool, rounded)
        });
        Choice {
            admitted,
            paths,
            places,
            columns,
            rounded,
        }
    }

    /// The choices in which one of the variants that are in use has the next smaller or larger batch.
    fn neighbours(&self, choice: &Choice) -> Vec<Vec<bool>> {
        let used: BTreeSet<usize> = choice.rounded.iter().flat_map(|rounded| &rounded.shares).fold(
            BTreeSet::new(),
            |mut used, (place, _)| {
                used.extend(
                    choice
                        .columns
                        .get(*place)
                        .into_iter()
                        .flat_map(|column| column.configs.iter().copied()),
                );
                used
            },
        );
        let moved = |from: usize, to: Option<usize>| {
            let to = to.filter(|to| {
                self.variants
                    .get(*to)
                    .is_some_and(|variant| self.variants.get(from) == Some(variant))
            })?;
            let mut admitted = choice.admitted.clone();
            *admitted.get_mut(from)? = false;
            *admitted.get_mut(to)? = true;
            Some(admitted)
        };
        let both = |config: usize| {
            [
                moved(config, config.checked_sub(1)),
                moved(config, Some(config + 1)),
            ]
        };
        used.into_iter().flat_map(both).flatten().collect()
    }

    /// The flow over the columns of a choice, by the chosen solver.
    fn solved(&self, choice: &Choice) -> Result<Vec<Flow>, LpError> {
        let sinks = &choice.paths.tree.sinks;
        let ends = choice.columns.iter().flat_map(|column| {
            let end = |sink: &usize| Some((*sink, *column.paths.get(*sink)?));
            sinks.iter().filter_map(end)
        });
        let problem = FlowProblem {
            paths: &choice.paths,
            demand: self.demand,
            workers: self.workers,
            single: false,
        };
        let limits = Limits {
            nodes: Some(self.options.nodes),
            time: None,
            gap: self.options.gap / 10.0,
            start: Vec::new(),
        };
        let rounded = choice.rounded.as_ref();
        let start = rounded.map_or(Vec::new(), |rounded| {
            flow::flows(&choice.paths, &choice.columns, &rounded.shares)
        });
        let flows = flow::solve(&problem, &ends.collect(), &start, self.options.solver, &limits)?;
        let used: f64 = needs(&choice.paths, &flows, self.demand).values().sum();
        if used > f64::from(self.workers) {
            return Err(LpError::Failed(format!(
                "its flows need {used} of {} workers",
                self.workers
            )));
        }
        Ok(flows)
    }
}
