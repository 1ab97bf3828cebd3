//! The optima of accuracy scaling: of the paper's own program (F1; §4.1, eqs. 1 to 12), and of the flow over all columns (F2).
//!
//! The variables of F1 are instances `x` and batch size `y` per variant, and per path of the augmented graph the share `c` and whether
//! it is used, `I`. Two products make it nonlinear, and are written out: `x q(y)` (eq. 2) becomes instances per batch size of which one is
//! chosen, and `I l <= L` (eq. 7) a row that holds when `I` is 1, with the least constant that frees it otherwise. `c <= I` ties them;
//! the published code bounds `I` by a tolerance instead, so that paths which carry little escape the objective.
//!
//! It grows with the product of the variants and is solved to the end, so it is for small pipelines and for checking.

use std::collections::BTreeMap;

use super::paths::{Config, Paths};
use super::{AllocateError, Allocator, scale};
use crate::lp::{Limits, LpError, Program, Relation, Solver, Variable};
use kaskade_policy::pipeline::{Pipeline, TaskTree};

/// A variant: its task's place and its own.
type Place = (usize, usize);

/// The optimum of the paper's own program (F1) for accuracy scaling, in [0, 1], by the solver of the options and without limits. The
/// embedded one takes from milliseconds on small pipelines to hours on published ones, HiGHS seconds there.
///
/// # Errors
/// [`AllocateError::Lp`] if the workers cannot serve the demand.
pub fn exact_accuracy(allocator: &Allocator, demand_qps: f64, workers: u32) -> Result<f64, AllocateError> {
    let pipeline = allocator.pipeline();
    let paths = all_paths(pipeline)?;
    let solver = allocator.options().solver;
    Ok(accuracy(pipeline, &paths, demand_qps, workers, solver)?)
}

/// The optimum of the configuration-path flow (F2) over all columns, in [0, 1], by the same solver. With `single`, every variant has
/// batches of one size, and it equals [`exact_accuracy`]; without, it may exceed it a little.
///
/// # Errors
/// [`AllocateError::Lp`] if the workers cannot serve the demand.
pub fn flow_accuracy(
    allocator: &Allocator,
    demand_qps: f64,
    workers: u32,
    single: bool,
) -> Result<f64, AllocateError> {
    let paths = all_paths(allocator.pipeline())?;
    let solver = allocator.options().solver;
    Ok(scale::optimum(&paths, demand_qps, workers, single, solver)?)
}

fn all_paths(pipeline: &Pipeline) -> Result<Paths, AllocateError> {
    let tree = TaskTree::new(pipeline).map_err(|invalid| AllocateError::Pipeline(Box::new(invalid)))?;
    Paths::new(pipeline, &tree, |_, _| true)
}

/// The best accuracy that this many workers can give this demand, one batch size per variant.
///
/// # Errors
/// [`LpError::Infeasible`] if they cannot serve it.
fn accuracy(
    pipeline: &Pipeline,
    paths: &Paths,
    demand: f64,
    workers: u32,
    solver: Solver,
) -> Result<f64, LpError> {
    let mut paper = Paper {
        pipeline,
        tree: &paths.tree,
        configs: &paths.configs,
        profiled: pipeline.profiled(),
        program: Program::new(),
        batches: BTreeMap::new(),
        used: BTreeMap::new(),
        through: BTreeMap::new(),
    };
    paper.instances(workers);
    for sink in &paths.tree.sinks {
        paper.paths(*sink);
    }
    paper.agree();
    paper.serve(demand);
    let solution = paper.program.minimise_by(solver, &Limits::NONE)?;
    Ok(-solution.cost / 100.0)
}

struct Paper<'a> {
    pipeline: &'a Pipeline,
    tree: &'a TaskTree,
    configs: &'a [Config],
    profiled: Option<BTreeMap<Vec<Place>, f64>>,
    program: Program,
    /// Configurations of each variant, with the instances and whether the batch size is chosen.
    batches: BTreeMap<Place, Vec<(Config, Variable, Variable)>>,
    /// Share of each path to a sink.
    used: BTreeMap<(usize, Vec<Place>), Variable>,
    /// Shares that pass each prefix of a path, by sink.
    through: BTreeMap<(Vec<Place>, usize), Vec<Variable>>,
}

impl Paper<'_> {
    /// Eqs. 3 and 4.
    fn instances(&mut self, workers: u32) {
        for config in self.configs {
            let instances = self.program.integer(0.0, workers);
            let chosen = self.program.integer(0.0, 1);
            let most = f64::from(workers);
            self.program
                .constraint([(instances, 1.0), (chosen, -most)], Relation::AtMost, 0.0);
            let of = self.batches.entry((config.task, config.variant)).or_default();
            of.push((*config, instances, chosen));
        }
        let all = self
            .batches
            .values()
            .flatten()
            .map(|(_, instances, _)| (*instances, 1.0));
        let all: Vec<_> = all.collect();
        self.program.constraint(all, Relation::AtMost, f64::from(workers));
        for batches in self.batches.values() {
            let chosen = batches.iter().map(|(_, _, chosen)| (*chosen, 1.0));
            self.program.constraint(chosen, Relation::AtMost, 1.0);
        }
    }

    /// The paths to a sink, their latencies (eqs. 5 to 7) and that their shares sum to 1.
    fn paths(&mut self, sink: usize) {
        let trail = self.tree.trail(sink);
        let mut paths: Vec<Vec<Place>> = vec![Vec::new()];
        for task in &trail {
            let here: Vec<Place> = self
                .batches
                .keys()
                .filter(|place| place.0 == *task)
                .copied()
                .collect();
            let longer = |path: &Vec<Place>| {
                here.iter()
                    .map(|place| [path.as_slice(), &[*place]].concat())
                    .collect::<Vec<_>>()
            };
            paths = paths.iter().flat_map(longer).collect();
        }
        let budget =
            self.pipeline.slo_us as f64 / 2.0 - trail.len() as f64 * self.pipeline.hop_us as f64 / 2.0;
        let mut all = Vec::new();
        for path in paths {
            let accuracy = self.accuracy(&path) / self.tree.sinks.len() as f64;
            let share = self.program.variable(-100.0 * accuracy);
            let used = self.program.integer(0.0, 1);
            self.program
                .constraint([(share, 1.0), (used, -1.0)], Relation::AtMost, 0.0);
            let mut terms = Vec::new();
            let mut slowest = 0.0;
            for place in &path {
                let batches = self.batches.get(place).into_iter().flatten();
                let mut longest = 0.0;
                for (config, _, chosen) in batches {
                    longest = f64::max(longest, config.us);
                    terms.push((*chosen, config.us / budget));
                }
                slowest += longest;
            }
            let free = (slowest / budget - 1.0).max(0.0);
            terms.push((used, free));
            self.program
                .constraint(terms, Relation::AtMost, 1.0 + free + 1e-9);
            for end in 1..=path.len() {
                let prefix: Vec<Place> = path.iter().take(end).copied().collect();
                self.through.entry((prefix, sink)).or_default().push(share);
            }
            all.push((share, 1.0));
            self.used.insert((sink, path), share);
        }
        self.program.constraint(all, Relation::Equal, 1.0);
    }

    fn accuracy(&self, path: &[Place]) -> f64 {
        let profiled = self.profiled.as_ref().and_then(|profiled| profiled.get(path));
        let accuracy = |place: &Place| {
            let task = self.pipeline.tasks.get(place.0);
            task.and_then(|task| task.variants.get(place.1))
                .map_or(0.0, |variant| variant.accuracy)
        };
        profiled
            .copied()
            .unwrap_or_else(|| path.iter().map(accuracy).product())
    }

    /// Constrains the flow through a prefix to be the same on the way to every sink behind it.
    fn agree(&mut self) {
        let mut sinks: BTreeMap<&Vec<Place>, Vec<&Vec<Variable>>> = BTreeMap::new();
        for ((prefix, _), shares) in &self.through {
            sinks.entry(prefix).or_default().push(shares);
        }
        for sums in sinks.values() {
            let Some((first, others)) = sums.split_first() else {
                continue;
            };
            for other in others {
                let terms = first
                    .iter()
                    .map(|one| (*one, 1.0))
                    .chain(other.iter().map(|one| (*one, -1.0)));
                self.program.constraint(terms, Relation::Equal, 0.0);
            }
        }
    }

    /// Eqs. 1 and 2.
    fn serve(&mut self, demand: f64) {
        let mut asked: BTreeMap<Place, Vec<(Variable, f64)>> = BTreeMap::new();
        let mut counted = std::collections::BTreeSet::new();
        for ((prefix, _), shares) in &self.through {
            // Every prefix once, with the first sink behind it.
            if let Some(place) = prefix.last().filter(|_| counted.insert(prefix)) {
                let requests = demand * self.multiplicity(prefix);
                asked
                    .entry(*place)
                    .or_default()
                    .extend(shares.iter().map(|share| (*share, requests)));
            }
        }
        for (place, terms) in asked {
            let batches = self.batches.get(&place).into_iter().flatten();
            let served = batches.map(|(config, instances, _)| (*instances, -config.qps));
            // In units of the demand, so that the coefficients are near 1.
            let terms = terms
                .into_iter()
                .chain(served)
                .map(|(variable, factor)| (variable, factor / demand));
            self.program.constraint(terms, Relation::AtMost, 0.0);
        }
    }

    fn multiplicity(&self, prefix: &[Place]) -> f64 {
        let pairs = prefix.windows(2).filter_map(|pair| {
            let [(task, variant), (child, _)] = pair else {
                return None;
            };
            let variant = self.pipeline.tasks.get(*task)?.variants.get(*variant)?;
            Some(variant.multiplicity(&self.pipeline.tasks.get(*child)?.name))
        });
        pairs.product()
    }
}
