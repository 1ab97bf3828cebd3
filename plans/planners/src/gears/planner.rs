//! Algorithm 1: the submodules in order, with backtracking on violations (CascadeServe §4.1).
//!
//! A violation of the batching goes to the hardware mapping, which demands one more replica of the bottleneck; if that cannot be
//! placed, the workload adaption follows, which rules the cascade out for that range and falls back; if there is nothing to
//! fall back to, the cascade search has no cheaper one either, and the violation is returned to the user.
//!
//! **It ends (appendix A).** Before the first feasible plan, every violation either raises the number of demanded replicas of a model,
//! which stops at the number of devices, or permanently rules out one of `N K` pairs of range and cascade; then replicas are counted again.
//! So there are at most `N K` passes of at most `M D` mappings each. After it, a plan is only replaced by one that is better in what
//! is not promised (mean accuracy, or mean latency), of finitely many; passes are capped at [`PASSES`] besides, since
//! each but the last few gains next to nothing. All that is done once per start, of which there are four.
//!
//! **It only improves.** After the first feasible plan, it raises single ranges on the present placement (`local_search`), tries
//! other assignments through the same submodules, then one cascade for every load and families with a variant less
//! (`drop_one_variant`), and starts again from the plans of the ablations (`multistart`). It keeps a result only if it is feasible and better.
//!
//! **The objective** is weighed by the served load: a range has the weight of what its gear serves, not of its load's frequency (`served`).

mod drop_one_variant;
mod finish;
mod improve;
mod local_search;
mod multistart;
mod scope;

use std::collections::BTreeMap;

use super::assemble::Parts;
use super::balance::{Group, HallBounds};
use super::batching::{BatchingChoice, tune};
use super::evaluate::{Evaluate, Simulated};
use super::evaluation_cache::{BalancedCascade, EvaluationCache};
use super::guaranteed::guaranteed;
use super::mapping::{Fleet, Need, Unplaced, bottleneck, place, replicas};
use super::model_costs::Models;
use super::options::GearOptions;
use super::search::{Cascade, Space};
use super::violation::{Effort, GearError, Remedy, Step, Submodule, Violation, ViolationKind};
use super::workload::Workload;
use kaskade_policy::plan::{Certificate, LoadRange, Slo};
use kaskade_policy::profile::Profile;

pub use finish::{GearPlan, Unaudited};
use scope::Scope;
pub(super) use scope::ranges;

/// Most passes that improve a feasible plan.
const PASSES: u64 = 8;

/// Most plans that are made to name the accuracy that can be met, if the objective cannot.
const LIMIT_PASSES: u32 = 9;

/// By how much the accuracy of the first of these falls at least; each further one falls by twice as much.
const LIMIT_STEP: f64 = 5e-4;

/// Plans gears, judged by the simulator. The same profile and options give the same plan, byte for byte.
///
/// # Errors
/// A [`GearError`] if an input is unusable, or the objective cannot be met. The caller keeps an older plan.
pub fn plan_gears(
    profile: &Profile,
    options: &GearOptions,
    progress: impl FnMut(&Step),
) -> Result<GearPlan, GearError> {
    options.check_speeds()?;
    plan_gears_with(profile, options, Simulated::new(profile, options), progress)
}

/// Plans gears with a custom evaluator; `progress` receives every call of a submodule. The same profile, options and
/// outcomes give the same plan, byte for byte.
///
/// # Errors
/// A [`GearError`] if an input is unusable, or the objective cannot be met. The caller keeps an older plan.
pub fn plan_gears_with(
    profile: &Profile,
    options: &GearOptions,
    evaluate: impl Evaluate,
    progress: impl FnMut(&Step),
) -> Result<GearPlan, GearError> {
    let (mut evaluate, mut progress) = (evaluate, progress);
    let planned = plan_for(profile, options, &mut evaluate, &mut progress);
    let Err(GearError::Inaccurate {
        at_least,
        reached,
        devices,
        violation: Some(violation),
    }) = planned
    else {
        return planned;
    };
    // Ruling cascades out ends at a sum that is not always a plan.
    let mut step = LIMIT_STEP;
    let mut limit = reached.min(at_least - step);
    for _ in 0..LIMIT_PASSES {
        let options = GearOptions {
            slo: Slo::Accuracy { at_least: limit },
            ..options.clone()
        };
        match plan_for(profile, &options, &mut evaluate, &mut progress) {
            Ok(found) => {
                return Err(GearError::Inaccurate {
                    at_least,
                    reached: found.accuracy,
                    devices,
                    violation: Some(violation),
                });
            }
            Err(GearError::Inaccurate { reached, .. }) => {
                step *= 2.0;
                limit = reached.min(limit - step);
            }
            Err(_) => break,
        }
    }
    Err(GearError::NoLimitKnown {
        at_least,
        devices,
        violation,
    })
}

/// Plans gears for the objective of the options.
fn plan_for(
    profile: &Profile,
    options: &GearOptions,
    evaluate: impl Evaluate,
    progress: impl FnMut(&Step),
) -> Result<GearPlan, GearError> {
    let models = Models::checked(profile, options)?;
    let parts = Parts {
        profile,
        models: &models,
        devices: &options.devices,
    };
    Planner::new(parts, options, evaluate, progress)?.run()
}

/// A plan that holds: for every range its cascade and batching, and one placement for all.
#[derive(Debug, Clone)]
pub(super) struct Feasible {
    pub(super) cascades: Vec<Cascade>,
    pub(super) placement: Vec<Group>,
    pub(super) tuned: Vec<BatchingChoice>,
}

/// A plan and the cascades that its ranges could choose from.
type PlanWithCascades = (Feasible, Vec<Cascade>);

/// A violation and its bottleneck by index.
type Named = (Violation, usize);

pub(super) struct Planner<'a, E, P> {
    pub(super) evaluations: EvaluationCache<'a, E>,
    fleet: Fleet,
    /// The certified cascades with their certificates; empty without a guarantee.
    certified: Vec<(Cascade, Certificate)>,
    pub(super) scope: Scope,
    pub(super) effort: Effort,
    pub(super) violations: Vec<Violation>,
    progress: P,
}

impl<'a, E: Evaluate, P: FnMut(&Step)> Planner<'a, E, P> {
    /// `options` have been checked.
    pub(super) fn new(
        parts: Parts<'a>,
        options: &'a GearOptions,
        evaluate: E,
        progress: P,
    ) -> Result<Self, GearError> {
        let certified = match &options.guarantee {
            Some(certify) => guaranteed(parts.profile, certify, options.batching.max_batch)?,
            None => Vec::new(),
        };
        let space = match options.guarantee {
            Some(_) => Space::of(certified.iter().map(|(cascade, _)| cascade.clone()).collect()),
            None => Space::new(parts.profile, &options.search, options.seed),
        };
        Ok(Self {
            certified,
            evaluations: EvaluationCache::new(parts, options, evaluate),
            fleet: Fleet::new(&options.devices),
            scope: Scope::new(space, options, options.ablation),
            effort: Effort::default(),
            violations: Vec::new(),
            progress,
        })
    }

    fn run(mut self) -> Result<GearPlan, GearError> {
        let whole = self.scope.clone();
        let (mut plan, mut pareto_cascades) = self.start_everywhere()?;
        // A plan without a certified list cannot be audited; fewer cascades lose little.
        if let Some(fewer) = self.fewer_cascades(&plan) {
            self.scope = Scope {
                space: Space::of(fewer),
                ..whole.clone()
            };
            if let Some(smaller) = multistart::or_none(self.start_everywhere())? {
                (plan, pareto_cascades) = smaller;
            }
            self.scope = whole;
        }
        self.finish(&plan, pareto_cascades)
    }

    /// Algorithm 1 on the cascades that there are.
    fn plan_once(&mut self) -> Result<PlanWithCascades, GearError> {
        let all = (0..self.models().len()).collect();
        let placement = self.fleet.everywhere(all);
        let mut workload = Workload::new(self.search(&placement), self.scope.weights.clone());
        let plan = self.first(&mut workload, &placement)?;
        self.improve(plan, workload.pareto_cascades)
    }

    /// Passes through all submodules as long as they find something better.
    fn improve(
        &mut self,
        mut plan: Feasible,
        pareto_cascades: Vec<Cascade>,
    ) -> Result<PlanWithCascades, GearError> {
        let mut workload = Workload::new(pareto_cascades, self.scope.weights.clone());
        for _ in 0..PASSES {
            self.effort.improvements += 1;
            match self.improved(&mut workload, &plan)? {
                Some(better) => plan = better,
                None => break,
            }
        }
        Ok((plan, workload.pareto_cascades))
    }

    fn models(&self) -> &'a Models {
        self.evaluations.parts.models
    }

    /// SP1.
    fn search(&mut self, placement: &[Group]) -> Vec<Cascade> {
        self.effort.cascade_search += 1;
        self.report(Submodule::CascadeSearch, None);
        let most = self.evaluations.options.search.max_cascades as usize;
        self.scope.space.front(self.models(), placement, most)
    }

    /// Downgrades until the other submodules have no violation.
    fn first(&mut self, workload: &mut Workload, placement: &[Group]) -> Result<Feasible, GearError> {
        let mut last = None;
        let mut first_range = None;
        // By range, the violation of the cascade with the least work; it need not be the last one to be ruled out.
        let mut cheapest: BTreeMap<usize, (f64, Violation)> = BTreeMap::new();
        loop {
            let assignment = self.assign(workload, placement, last.as_ref())?;
            let cascades = cascades(workload, &assignment);
            let (violation, model) = match self.realise(&cascades, first_range)? {
                Ok(plan) => return Ok(plan),
                Err(named) => named,
            };
            first_range = Some(violation.range);
            let work = self.work(&cascades, violation.range);
            if cheapest
                .get(&violation.range)
                .is_none_or(|(least, _)| work < *least)
            {
                cheapest.insert(violation.range, (work, violation.clone()));
            }
            if workload.rule_out(&assignment, &violation, model).is_none() {
                let (work, violation) = cheapest.remove(&violation.range).unwrap_or((work, violation));
                return Err(self.unattainable(work, violation));
            }
            self.violations.push(violation.clone());
            last = Some(violation);
        }
    }

    /// SP2: the best assignment by what is not promised, of what is not ruled out.
    fn assign(
        &mut self,
        workload: &Workload,
        placement: &[Group],
        last: Option<&Violation>,
    ) -> Result<Vec<usize>, GearError> {
        self.effort.workload_adaption += 1;
        self.report(Submodule::WorkloadAdaption, last.cloned());
        let highest = workload.most_accurate().unwrap_or_default();
        let Slo::Accuracy { at_least } = self.evaluations.options.slo else {
            return Ok(highest);
        };
        let found = workload.fastest(at_least, |range, cascade| self.latency(placement, range, cascade))?;
        found.ok_or_else(|| GearError::Inaccurate {
            at_least,
            reached: workload.accuracy(&highest),
            devices: self.fleet.devices(),
            violation: last.cloned(),
        })
    }

    /// 95th percentile of a cascade at the upper end of a range, microseconds; infinite if it does not keep up.
    fn latency(&mut self, placement: &[Group], range: usize, cascade: &Cascade) -> Result<f64, GearError> {
        let qps = self.upper_end(range);
        if cascade.throughput(self.models(), placement) < qps {
            return Ok(f64::INFINITY);
        }
        let balanced = BalancedCascade::new(&self.evaluations.parts, cascade, placement)?;
        let outcome = self.evaluations.measure(&balanced, 1, qps)?;
        Ok(
            if outcome.keeps_up && outcome.utilisation <= self.evaluations.options.max_utilisation {
                outcome.p95_us as f64
            } else {
                f64::INFINITY
            },
        )
    }

    fn upper_end(&self, range: usize) -> f64 {
        self.scope
            .ranges
            .get(range)
            .and_then(|load| load.to_qps)
            .unwrap_or(0.0)
    }

    /// SP3 and SP4, with one more replica of the bottleneck as long as that helps. `first` is the range that is tuned first.
    pub(super) fn realise(
        &mut self,
        cascades: &[Cascade],
        first: Option<usize>,
    ) -> Result<Result<Feasible, Named>, GearError> {
        let mut at_least: BTreeMap<usize, usize> = BTreeMap::new();
        let mut first = first;
        let mut unresolved: Option<Named> = None;
        loop {
            let placement = match self.map(cascades, &at_least) {
                Ok(placement) => placement,
                Err(named) => return Ok(Err(unresolved.unwrap_or(named))),
            };
            match self.batch(cascades, &placement, first)? {
                Ok(tuned) => {
                    return Ok(Ok(Feasible {
                        cascades: cascades.to_vec(),
                        placement,
                        tuned,
                    }));
                }
                Err(((violation, model), replicas_help)) => {
                    let more = replicas(&placement, model) + 1;
                    if !replicas_help || more > self.fleet.devices() {
                        return Ok(Err((violation, model)));
                    }
                    let more = (more + self.fleet.step - 1).min(self.fleet.devices());
                    at_least.insert(model, more);
                    first = Some(violation.range);
                    unresolved = Some((violation, model));
                }
            }
        }
    }

    /// SP3.
    fn map(&mut self, cascades: &[Cascade], at_least: &BTreeMap<usize, usize>) -> Result<Vec<Group>, Named> {
        self.effort.hardware_mapping += 1;
        let mut needs: Vec<Need<'_>> = Vec::new();
        for (range, cascade) in cascades.iter().enumerate() {
            let need = Need {
                cascade,
                range,
                qps: self.upper_end(range),
            };
            // The highest load represents all ranges with the same cascade.
            match needs.iter_mut().find(|other| other.cascade == cascade) {
                Some(other) => *other = need,
                None => needs.push(need),
            }
        }
        let placed = place(&self.fleet, self.evaluations.parts.models, &needs, at_least);
        let placed = placed.map_err(|Unplaced { range, model, kind }| self.named(range, model, kind));
        self.report(
            Submodule::HardwareMapping,
            placed.as_ref().err().map(|(violation, _)| violation.clone()),
        );
        placed
    }

    /// SP4 for every range, from the highest load down, one of them first. The flag of a violation is whether replicas help.
    fn batch(
        &mut self,
        cascades: &[Cascade],
        placement: &[Group],
        first: Option<usize>,
    ) -> Result<Result<Vec<BatchingChoice>, (Named, bool)>, GearError> {
        let mut tuned: Vec<Option<BatchingChoice>> = vec![None; cascades.len()];
        let rest = (0..cascades.len()).rev().filter(|range| Some(*range) != first);
        for range in first.into_iter().chain(rest) {
            let (Some(cascade), Some(slot)) = (cascades.get(range), tuned.get_mut(range)) else {
                continue;
            };
            match self.batch_one(cascade, placement, range)? {
                Ok(found) => *slot = Some(found),
                Err(short) => return Ok(Err(short)),
            }
        }
        Ok(Ok(tuned.into_iter().flatten().collect()))
    }

    /// SP4 for one range.
    fn batch_one(
        &mut self,
        cascade: &Cascade,
        placement: &[Group],
        range: usize,
    ) -> Result<Result<BatchingChoice, (Named, bool)>, GearError> {
        let load = self.scope.ranges.get(range).copied().unwrap_or(LoadRange::ALL);
        self.effort.batching += 1;
        let balanced = BalancedCascade::new(&self.evaluations.parts, cascade, placement)?;
        let short = match tune(&mut self.evaluations, &balanced, load)? {
            Ok(found) => {
                self.report(Submodule::Batching, None);
                return Ok(Ok(found));
            }
            Err(short) => short,
        };
        let bounds = HallBounds::new(cascade.demands(self.models(), 1.0), &balanced.groups);
        let model = bottleneck(self.models(), cascade, bounds.load().binding);
        let named = self.named(range, model, short.kind);
        self.report(Submodule::Batching, Some(named.0.clone()));
        Ok(Err((named, short.replicas_help)))
    }

    fn named(&self, range: usize, model: usize, kind: ViolationKind) -> Named {
        let violation = Violation {
            range,
            load: self.scope.ranges.get(range).copied().unwrap_or(LoadRange::ALL),
            bottleneck: self.models().name(model).to_owned(),
            kind,
        };
        (violation, model)
    }

    /// Mean accuracy, and mean 95th percentile of latency, microseconds, over what is served.
    pub(super) fn metrics(&self, plan: &Feasible) -> (f64, f64) {
        let accuracy = self
            .scope
            .weights
            .iter()
            .zip(&plan.cascades)
            .map(|(weight, cascade)| weight * cascade.accuracy);
        let p95 = self
            .scope
            .weights
            .iter()
            .zip(&plan.tuned)
            .map(|(weight, tuned)| weight * tuned.outcome.p95_us as f64);
        (accuracy.sum(), p95.sum())
    }

    /// Work of a range's cascade at the highest load of the range: devices of speed one that it keeps busy.
    fn work(&self, cascades: &[Cascade], range: usize) -> f64 {
        cascades.get(range).map_or(0.0, |cascade| {
            let demands = cascade.demands(self.models(), self.upper_end(range));
            demands.iter().map(|demand| demand.work).sum()
        })
    }

    fn unattainable(&self, work: f64, violation: Violation) -> GearError {
        let devices = self.fleet.devices();
        let remedy = match violation.kind {
            ViolationKind::Latency { p95_us, .. } => Remedy::Objective { p95_us },
            ViolationKind::Memory { .. } => Remedy::Memory,
            ViolationKind::Utilisation { .. }
            | ViolationKind::Throughput { .. }
            | ViolationKind::Headroom { .. } => Remedy::Devices {
                at_least: (work * devices as f64 / self.fleet.speed()).ceil() as usize,
            },
        };
        GearError::Unattainable {
            violation,
            devices,
            remedy,
            certified: self.evaluations.options.guarantee.is_some(),
        }
    }

    fn report(&mut self, submodule: Submodule, violation: Option<Violation>) {
        let step = Step {
            call: self.effort.calls(),
            submodule,
            violation,
        };
        (self.progress)(&step);
    }
}

fn cascades(workload: &Workload, assignment: &[usize]) -> Vec<Cascade> {
    let cascade = |level: &usize| workload.pareto_cascades.get(*level).cloned();
    assignment.iter().filter_map(cascade).collect()
}

#[cfg(test)]
mod tests;
