//! The configuration-path flow (F2): the program that runs.
//!
//! ```text
//! maximise  sum of f_p A_p
//! subject to  the f_p of every sink sum to 1, and agree on the prefixes that the sinks share,
//!             sum over the paths through n of f_p D m(p, n) / q_n <= z_n,  for every configuration n,
//!             sum of z_n <= S,  z whole
//! ```
//!
//! Paths whose batches do not fit the objective are no columns, so the paper's `y`, `I` and their products are gone. A configuration is
//! a variant in batches of one size; where a variant may have one size only, as in the paper and in a [`Plan`](kaskade_policy::plan::Plan), a
//! binary per configuration selects it (`single`).

use std::collections::{BTreeMap, BTreeSet};

use super::columns::Column;
use super::paths::Paths;
use super::round::{WHOLE, whole};
use crate::lp::{Limits, LpError, Program, Relation, Solution, Solver, Variable};

/// Shares below this are noise of the solver.
const NO_SHARE: f64 = 1e-9;

/// The share of the requests at the root that takes one path to a sink.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Flow {
    pub(super) sink: usize,
    pub(super) path: usize,
    pub(super) share: f64,
}

/// The inputs of a flow program.
#[derive(Debug, Clone, Copy)]
pub(super) struct FlowProblem<'a> {
    pub(super) paths: &'a Paths,
    /// Requests/s at the root.
    pub(super) demand: f64,
    pub(super) workers: u32,
    /// Whether every variant has batches of one size only.
    pub(super) single: bool,
}

/// The flows of columns and their shares.
pub(super) fn flows(paths: &Paths, columns: &[Column], shares: &[(usize, f64)]) -> Vec<Flow> {
    let mut flows: BTreeMap<(usize, usize), f64> = BTreeMap::new();
    for (place, share) in shares {
        let Some(column) = columns.get(*place) else {
            continue;
        };
        for sink in &paths.tree.sinks {
            if let Some(path) = column.paths.get(*sink) {
                *flows.entry((*sink, *path)).or_default() += share;
            }
        }
    }
    let flow = |((sink, path), share)| Flow { sink, path, share };
    flows.into_iter().map(flow).collect()
}

/// Workers that flows keep busy, by configuration, per request/s at the root.
pub(super) fn loads(paths: &Paths, flows: &[Flow]) -> BTreeMap<usize, f64> {
    let mut loads: BTreeMap<usize, f64> = BTreeMap::new();
    for flow in flows {
        for (task, path) in counted(paths, flow.sink, flow.path) {
            if let Some(path) = paths.path(task, path) {
                *loads.entry(path.config).or_default() += path.load * flow.share;
            }
        }
    }
    loads
}

/// Mean accuracy over the sinks.
pub(super) fn accuracy(paths: &Paths, flows: &[Flow]) -> f64 {
    let accuracy =
        |flow: &Flow| flow.share * paths.path(flow.sink, flow.path).map_or(0.0, |path| path.accuracy);
    flows.iter().map(accuracy).sum()
}

/// The paths on the path to a sink at which its flow is counted. A prefix that several sinks share is counted once, with the sinks that
/// are reached by first children.
fn counted(paths: &Paths, sink: usize, path: usize) -> Vec<(usize, usize)> {
    let mut list = vec![(sink, path)];
    let (mut task, mut path) = (sink, path);
    while let Some(parent) = paths.tree.parent(task) {
        if paths.tree.children(parent).first() != Some(&task) {
            break;
        }
        path = paths.path(task, path).map_or(usize::MAX, |path| path.parent);
        task = parent;
        list.push((task, path));
    }
    list
}

/// The best flows over the given paths to sinks; `start` are flows to begin from.
///
/// # Errors
/// Those of the solver.
pub(super) fn solve(
    problem: &FlowProblem<'_>,
    ends: &BTreeSet<(usize, usize)>,
    start: &[Flow],
    solver: Solver,
    limits: &Limits,
) -> Result<Vec<Flow>, LpError> {
    let model = Model::new(problem, ends, None);
    let limits = Limits {
        start: model.start(problem, start),
        ..limits.clone()
    };
    let found = model.program.minimise_by(solver, &limits)?;
    // Shares from rounding errors would each cost a worker. So only the workers are taken, and the flows over them are solved again.
    let fixed: BTreeMap<usize, f64> = model.staffed(&found);
    let staffed = |(sink, path): &&(usize, usize)| {
        let mut configs = problem.paths.configs_on(*sink, *path).into_iter();
        configs.all(|config| fixed.contains_key(&config))
    };
    let left: BTreeSet<(usize, usize)> = ends.iter().filter(staffed).copied().collect();
    let model = Model::new(problem, &left, Some(&fixed));
    let solution = model.program.minimise()?;
    let flow = |((sink, path), variable): (&(usize, usize), &Variable)| Flow {
        sink: *sink,
        path: *path,
        share: solution.value(*variable),
    };
    let flows = model.ends.iter().map(flow);
    Ok(flows.filter(|flow| flow.share > NO_SHARE).collect())
}

/// The program and the meaning of its variables.
struct Model {
    program: Program,
    ends: BTreeMap<(usize, usize), Variable>,
    /// Number of workers of each configuration.
    workers: BTreeMap<usize, Variable>,
    /// Whether a configuration is the one in use, for variants with several.
    chosen: BTreeMap<usize, Variable>,
}

/// Variables that flow through each configuration, with the workers that they keep busy and their shares.
type Served = BTreeMap<usize, Vec<(Variable, f64, f64)>>;

fn served(problem: &FlowProblem<'_>, sums: &Sums) -> Served {
    let mut served = Served::new();
    for ((task, path), variables) in sums {
        if let Some(path) = problem.paths.path(*task, *path) {
            let load = path.load * problem.demand;
            let terms = variables.iter().map(|variable| (*variable, load, 1.0));
            served.entry(path.config).or_default().extend(terms);
        }
    }
    served
}

/// Variables that sum to the flow of a path, by task and path.
type Sums = BTreeMap<(usize, usize), Vec<Variable>>;

impl Model {
    /// Creates the program. With `fixed`, the workers of each configuration are given and only flows are variables.
    fn new(
        problem: &FlowProblem<'_>,
        ends: &BTreeSet<(usize, usize)>,
        fixed: Option<&BTreeMap<usize, f64>>,
    ) -> Self {
        let paths = problem.paths;
        let mut program = Program::new();
        let mut model_ends = BTreeMap::new();
        let (mut sums, mut sibling_sums) = (Sums::new(), Sums::new());
        for (sink, path) in ends {
            let accuracy = paths.path(*sink, *path).map_or(0.0, |path| path.accuracy);
            // In percent, so that solvers with absolute tolerances resolve the gaps.
            let variable = program.bounded(-100.0 * accuracy, 1.0);
            model_ends.insert((*sink, *path), variable);
            let counted = counted(paths, *sink, *path);
            for place in &counted {
                sums.entry(*place).or_default().push(variable);
            }
            if let Some((task, path)) = counted.last()
                && paths.tree.parent(*task).is_some()
            {
                let parent = paths.path(*task, *path).map_or(usize::MAX, |path| path.parent);
                sibling_sums.entry((*task, parent)).or_default().push(variable);
            }
        }
        let mut model = Self {
            program,
            ends: model_ends,
            workers: BTreeMap::new(),
            chosen: BTreeMap::new(),
        };
        model.conserve(paths, &sums, &sibling_sums);
        let served = served(problem, &sums);
        match fixed {
            Some(fixed) => model.bound(&served, fixed),
            None => model.serve(problem, &served),
        }
        model
    }

    /// The flows of every sink sum to 1, and those through a path are the same in all its branches.
    fn conserve(&mut self, paths: &Paths, sums: &Sums, sibling_sums: &Sums) {
        for sink in &paths.tree.sinks {
            let own = self.ends.iter().filter(|((of, _), _)| of == sink);
            let terms: Vec<_> = own.map(|(_, variable)| (*variable, 1.0)).collect();
            self.program.constraint(terms, Relation::Equal, 1.0);
        }
        for task in &paths.tree.order {
            for child in paths.tree.children(*task).iter().skip(1) {
                let through = sums.range((*task, 0)..(*task + 1, 0)).map(|((_, path), _)| *path);
                let branching = sibling_sums
                    .range((*child, 0)..(*child + 1, 0))
                    .map(|((_, path), _)| *path);
                let all: BTreeSet<usize> = through.chain(branching).collect();
                for path in all {
                    let own = sums.get(&(*task, path)).into_iter().flatten();
                    let other = sibling_sums.get(&(*child, path)).into_iter().flatten();
                    let terms = own
                        .map(|own| (*own, 1.0))
                        .chain(other.map(|other| (*other, -1.0)));
                    self.program.constraint(terms, Relation::Equal, 0.0);
                }
            }
        }
    }

    /// Constrains the flow through every configuration to the workers that it is given.
    fn bound(&mut self, served: &Served, fixed: &BTreeMap<usize, f64>) {
        for (config, terms) in served {
            let workers = fixed.get(config).copied().unwrap_or(0.0);
            let terms = terms.iter().map(|(variable, load, _)| (*variable, *load));
            self.program
                .constraint(terms, Relation::AtMost, workers + WHOLE / 2.0);
        }
    }

    /// Every configuration has the workers for what flows through it, and all together no more than there are.
    fn serve(&mut self, problem: &FlowProblem<'_>, served: &Served) {
        for (config, terms) in served {
            let workers = self.program.integer(0.0, problem.workers);
            let terms = terms.iter().map(|(variable, load, _)| (*variable, *load));
            let terms = terms.chain([(workers, -1.0)]);
            // The same tolerance as for rounding up: without it, nodes of the search would be feasible in a single point or not at all.
            self.program.constraint(terms, Relation::AtMost, WHOLE / 2.0);
            self.workers.insert(*config, workers);
        }
        let all = self
            .workers
            .values()
            .map(|workers| (*workers, 1.0))
            .collect::<Vec<_>>();
        self.program
            .constraint(all, Relation::AtMost, f64::from(problem.workers));
        if problem.single {
            self.choose(problem.paths, served);
        }
    }

    /// Constrains the flow of each variant to one chosen configuration.
    fn choose(&mut self, paths: &Paths, served: &Served) {
        let mut variants: BTreeMap<(usize, usize), Vec<usize>> = BTreeMap::new();
        for config in served.keys() {
            if let Some(own) = paths.configs.get(*config) {
                variants.entry((own.task, own.variant)).or_default().push(*config);
            }
        }
        for configs in variants.values().filter(|configs| configs.len() > 1) {
            for config in configs {
                let chosen = self.program.integer(0.0, 1);
                let terms = served.get(config).into_iter().flatten();
                let terms = terms.map(|(variable, _, share)| (*variable, *share));
                self.program
                    .constraint(terms.chain([(chosen, -1.0)]), Relation::AtMost, 0.0);
                self.chosen.insert(*config, chosen);
            }
            let all: Vec<_> = configs
                .iter()
                .filter_map(|config| self.chosen.get(config))
                .map(|one| (*one, 1.0))
                .collect();
            self.program.constraint(all, Relation::AtMost, 1.0);
        }
    }

    /// The configurations that have workers and, where a variant has several, are the chosen one.
    fn staffed(&self, solution: &Solution) -> BTreeMap<usize, f64> {
        let chosen = |config: &usize| {
            let chosen = self.chosen.get(config);
            chosen.is_none_or(|chosen| solution.value(*chosen) > 0.5)
        };
        let workers = self
            .workers
            .iter()
            .map(|(config, workers)| (*config, solution.value(*workers)));
        workers
            .filter(|(config, workers)| *workers > 0.5 && chosen(config))
            .collect()
    }

    /// Flows as values of the program's variables; nothing if one of them has no column.
    fn start(&self, problem: &FlowProblem<'_>, flows: &[Flow]) -> Vec<f64> {
        if flows.is_empty() {
            return Vec::new();
        }
        let mut values = vec![0.0; self.program.variables()];
        let mut set = |variable: Option<&Variable>, value: f64| {
            let slot = variable.and_then(|variable| values.get_mut(variable.place()));
            slot.map(|slot| *slot = value).is_some()
        };
        for flow in flows {
            if !set(self.ends.get(&(flow.sink, flow.path)), flow.share) {
                return Vec::new();
            }
        }
        for (config, load) in loads(problem.paths, flows) {
            if !set(self.workers.get(&config), whole(load * problem.demand)) {
                return Vec::new();
            }
            set(self.chosen.get(&config), 1.0);
        }
        values
    }
}
