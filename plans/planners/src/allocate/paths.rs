//! The paths through a pipeline: every choice of a variant and a batch size per task that the latency objective allows.
//!
//! A *configuration* is a variant in batches of one size. A *path* is a root-to-task prefix of configurations; the paths to a task's
//! children continue it. Paths are built once per profile and set of factors, and hold, per request at the root, how many workers
//! they keep busy: demand and cluster size are used later. A path that cannot end in time is not listed, so the later
//! steps do not use latencies (the paper's eqs. 4 to 7 and its variables `y` and `I` are not needed).

use std::ops::Range;

use super::error::AllocateError;
use crate::pareto::{Place, pareto_front};
use kaskade_policy::pipeline::{Pipeline, TaskTree};

/// More paths than this are refused: three tasks of ten variants in seven batch sizes have a third of a million.
const MAX_PATHS: usize = 3_000_000;

/// Latencies may exceed the budget by this share of it, for the rounding of sums.
const ROUNDING: f64 = 1e-9;

/// A variant in batches of one size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Config {
    pub(super) task: usize,
    pub(super) variant: usize,
    pub(super) batch: u32,
    /// Time of such a batch, microseconds.
    pub(super) us: f64,
    /// Throughput `q(i, k, b)`, requests/s.
    pub(super) qps: f64,
}

/// A prefix of configurations, from the root's to a task's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Path {
    pub(super) config: usize,
    /// The path that it continues, an index into the parent task's level; unused at the root.
    pub(super) parent: usize,
    us: f64,
    /// Requests that reach it for one at the root, `m(p, i, k)` (eq. 1).
    pub(super) requests: f64,
    /// Workers that it keeps busy per request/s at the root.
    pub(super) load: f64,
    /// Accuracy of the path at a sink, divided by the number of sinks, so that the sinks' accuracies add up; 0 elsewhere.
    pub(super) accuracy: f64,
}

/// The paths to one task.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Level {
    /// The paths. Those that continue the same path are adjacent, within them those of the same variant, faster batches first.
    pub(super) paths: Vec<Path>,
    /// Range of the paths that continue each path of the parent task; one range at the root.
    spans: Vec<Range<usize>>,
}

/// All paths through a pipeline.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Paths {
    pub(super) tree: TaskTree,
    pub(super) configs: Vec<Config>,
    /// Levels of the tree, one per task.
    pub(super) levels: Vec<Level>,
}

impl Paths {
    /// The paths that use only variants that `keep` (task, variant) admits.
    ///
    /// # Errors
    /// [`AllocateError::Slo`] if there are none, [`AllocateError::TooMany`] if there are too many.
    pub(super) fn new(
        pipeline: &Pipeline,
        tree: &TaskTree,
        keep: impl Fn(usize, usize) -> bool,
    ) -> Result<Self, AllocateError> {
        let configs = configs(pipeline, keep);
        let reserve = reserve(pipeline, tree, &configs);
        let mut builder = Builder {
            pipeline,
            configs: &configs,
            budget_us: pipeline.slo_us as f64 / 2.0 * (1.0 + ROUNDING),
            reserve,
            profiled: pipeline.profiled(),
            levels: vec![Level::default(); pipeline.tasks.len()],
            built: 0,
        };
        for task in &tree.order {
            builder.level(tree, *task)?;
        }
        let levels = builder.levels;
        let root = tree.order.first().and_then(|root| levels.get(*root));
        if root.is_none_or(|level| level.paths.is_empty()) {
            return Err(tightest(pipeline, tree, &configs));
        }
        Ok(Self {
            tree: tree.clone(),
            configs,
            levels,
        })
    }

    pub(super) fn root(&self) -> usize {
        self.tree.order.first().copied().unwrap_or(0)
    }

    pub(super) fn path(&self, task: usize, path: usize) -> Option<&Path> {
        self.levels.get(task)?.paths.get(path)
    }

    /// The paths to the root.
    pub(super) fn first(&self) -> Range<usize> {
        self.continuing(self.root(), 0)
    }

    /// The paths to `task` that continue this path to its parent.
    pub(super) fn continuing(&self, task: usize, parent: usize) -> Range<usize> {
        let level = self.levels.get(task);
        level
            .and_then(|level| level.spans.get(parent))
            .cloned()
            .unwrap_or(0..0)
    }

    /// The paths that use only these configurations, and by task the places that they have here. A path may end before a sink, if
    /// nothing that is admitted is fast enough to follow it.
    pub(super) fn restricted(&self, admitted: &[bool]) -> (Self, Vec<Vec<usize>>) {
        let mut levels = vec![Level::default(); self.levels.len()];
        let mut places: Vec<Vec<usize>> = vec![Vec::new(); self.levels.len()];
        for task in &self.tree.order {
            let parents = match self.tree.parent(*task) {
                Some(parent) => places.get(parent).cloned().unwrap_or_default(),
                None => vec![0],
            };
            let (mut level, mut kept) = (Level::default(), Vec::new());
            for (place, parent) in parents.iter().enumerate() {
                let start = level.paths.len();
                for path in self.continuing(*task, *parent) {
                    let own = self.path(*task, path);
                    let own = own.filter(|own| admitted.get(own.config).copied().unwrap_or(false));
                    if let Some(own) = own {
                        level.paths.push(Path {
                            parent: place,
                            ..*own
                        });
                        kept.push(path);
                    }
                }
                level.spans.push(start..level.paths.len());
            }
            if let (Some(levels), Some(places)) = (levels.get_mut(*task), places.get_mut(*task)) {
                (*levels, *places) = (level, kept);
            }
        }
        let paths = Self {
            tree: self.tree.clone(),
            configs: self.configs.clone(),
            levels,
        };
        (paths, places)
    }

    /// The configurations on a path to `task`, its own first.
    pub(super) fn configs_on(&self, task: usize, path: usize) -> Vec<usize> {
        let mut configs = Vec::new();
        let mut at = Some((task, path));
        while let Some((task, path)) = at {
            let own = self.path(task, path);
            configs.extend(own.map(|own| own.config));
            at = self.tree.parent(task).zip(own.map(|own| own.parent));
        }
        configs
    }

    /// The places of the variants on a path to `task`, the root's first.
    pub(super) fn variants(&self, task: usize, path: usize) -> Vec<(usize, usize)> {
        variants(&self.tree, &self.levels, &self.configs, task, path)
    }
}

fn variants(
    tree: &TaskTree,
    levels: &[Level],
    configs: &[Config],
    task: usize,
    path: usize,
) -> Vec<(usize, usize)> {
    let mut places = Vec::new();
    let mut at = Some((task, path));
    while let Some((task, path)) = at {
        let Some(path) = levels.get(task).and_then(|level| level.paths.get(path)) else {
            break;
        };
        places.extend(configs.get(path.config).map(|config| (task, config.variant)));
        at = tree.parent(task).map(|parent| (parent, path.parent));
    }
    places.reverse();
    places
}

/// Returns the configurations on their variant's Pareto front of latency and throughput.
fn configs(pipeline: &Pipeline, keep: impl Fn(usize, usize) -> bool) -> Vec<Config> {
    let mut configs = Vec::new();
    for (task, spec) in pipeline.tasks.iter().enumerate() {
        for (variant, spec) in spec.variants.iter().enumerate() {
            if !keep(task, variant) {
                continue;
            }
            let all = spec.latency.iter().map(|sample| Config {
                task,
                variant,
                batch: sample.batch,
                us: sample.us,
                qps: f64::from(sample.batch) / sample.us * 1e6,
            });
            configs.extend(pareto_front(all.collect(), |config: &Config| Place {
                cost: config.us,
                gain: config.qps,
            }));
        }
    }
    configs
}

/// Returns, for each task, the minimum time that must be left when its batch ends: that of the fastest batches after it, and half of that
/// of the path's messages. Half, because the objective without the messages is divided by two for queueing (§4.1, §4.2).
fn reserve(pipeline: &Pipeline, tree: &TaskTree, configs: &[Config]) -> Vec<f64> {
    let mut reserve: Vec<f64> = vec![0.0; pipeline.tasks.len()];
    for task in tree.order.iter().rev() {
        let after = |child: &usize| fastest(configs, *child) + reserve.get(*child).copied().unwrap_or(0.0);
        let children = tree.children(*task);
        let left = if children.is_empty() {
            tree.trail(*task).len() as f64 * pipeline.hop_us as f64 / 2.0
        } else {
            children.iter().map(after).fold(0.0, f64::max)
        };
        if let Some(slot) = reserve.get_mut(*task) {
            *slot = left;
        }
    }
    reserve
}

fn fastest(configs: &[Config], task: usize) -> f64 {
    let of = configs.iter().filter(|config| config.task == task);
    of.map(|config| config.us).fold(f64::INFINITY, f64::min)
}

/// The error for an objective that even the fastest batches exceed, with the slowest path.
fn tightest(pipeline: &Pipeline, tree: &TaskTree, configs: &[Config]) -> AllocateError {
    let needs = |sink: &usize| {
        let trail = tree.trail(*sink);
        let busy: f64 = trail.iter().map(|task| fastest(configs, *task)).sum();
        let needed = 2.0 * busy + trail.len() as f64 * pipeline.hop_us as f64;
        (trail, needed)
    };
    let worst = tree
        .sinks
        .iter()
        .map(needs)
        .max_by(|one, other| one.1.total_cmp(&other.1));
    let (trail, needed) = worst.unwrap_or_default();
    let quickest = |task: usize| {
        let of = configs.iter().filter(move |config| config.task == task);
        let config = of.min_by(|one, other| one.us.total_cmp(&other.us))?;
        let variant = pipeline.tasks.get(task)?.variants.get(config.variant)?;
        Some(variant.name.clone())
    };
    AllocateError::Slo {
        path: trail.into_iter().filter_map(quickest).collect(),
        slo_us: pipeline.slo_us,
        needed_us: needed.ceil() as u64,
    }
}

struct Builder<'a> {
    pipeline: &'a Pipeline,
    configs: &'a [Config],
    budget_us: f64,
    reserve: Vec<f64>,
    profiled: Option<std::collections::BTreeMap<Vec<(usize, usize)>, f64>>,
    levels: Vec<Level>,
    built: usize,
}

impl Builder<'_> {
    fn level(&mut self, tree: &TaskTree, task: usize) -> Result<(), AllocateError> {
        let parent = tree.parent(task);
        let before: Vec<Option<Path>> = match parent.and_then(|parent| self.levels.get(parent)) {
            Some(level) => level.paths.iter().copied().map(Some).collect(),
            None => vec![None],
        };
        let sinks = tree.sinks.len() as f64;
        let is_sink = tree.children(task).is_empty();
        let mut level = Level::default();
        for (place, before) in before.iter().enumerate() {
            let start = level.paths.len();
            let requests = before.map_or(1.0, |path| path.requests * self.multiplicity(&path, task));
            let accuracy = before.map_or(1.0, |path| path.accuracy);
            let used = before.map_or(0.0, |path| path.us);
            let reserve = self.reserve.get(task).copied().unwrap_or(0.0);
            for (index, config) in self.configs.iter().enumerate() {
                let us = used + config.us;
                if config.task != task || us + reserve > self.budget_us {
                    continue;
                }
                level.paths.push(Path {
                    config: index,
                    parent: place,
                    us,
                    requests,
                    load: requests / config.qps,
                    accuracy: accuracy * self.accuracy(config),
                });
            }
            level.spans.push(start..level.paths.len());
            if self.built + level.paths.len() > MAX_PATHS {
                return Err(AllocateError::TooMany { max: MAX_PATHS });
            }
        }
        self.built += level.paths.len();
        if let Some(slot) = self.levels.get_mut(task) {
            *slot = level;
        }
        if is_sink {
            self.worths(tree, task, sinks);
        }
        Ok(())
    }

    /// Completes the accuracies of the paths to a sink, until now products: shares of the sink, and profiled values if there are any.
    fn worths(&mut self, tree: &TaskTree, sink: usize, sinks: f64) {
        let found: Vec<Option<f64>> = match (&self.profiled, self.levels.get(sink)) {
            (Some(profiled), Some(level)) => (0..level.paths.len())
                .map(|path| {
                    let places = variants(tree, &self.levels, self.configs, sink, path);
                    profiled.get(&places).copied()
                })
                .collect(),
            _ => Vec::new(),
        };
        for (place, path) in self
            .levels
            .get_mut(sink)
            .into_iter()
            .flat_map(|level| level.paths.iter_mut())
            .enumerate()
        {
            let profiled = found.get(place).copied().flatten();
            path.accuracy = profiled.unwrap_or(path.accuracy) / sinks;
        }
    }

    fn multiplicity(&self, path: &Path, child: usize) -> f64 {
        let variant = self.configs.get(path.config).and_then(|config| {
            let task = self.pipeline.tasks.get(config.task)?;
            task.variants.get(config.variant)
        });
        let child = self.pipeline.tasks.get(child);
        variant
            .zip(child)
            .map_or(0.0, |(variant, child)| variant.multiplicity(&child.name))
    }

    fn accuracy(&self, config: &Config) -> f64 {
        let task = self.pipeline.tasks.get(config.task);
        let variant = task.and_then(|task| task.variants.get(config.variant));
        variant.map_or(0.0, |variant| variant.accuracy)
    }
}
