//! After the first feasible plan: only better ones (CascadeServe §4.3, appendix A).

use super::{Feasible, Planner, cascades};
use crate::gears::balance::Group;
use crate::gears::evaluate::Evaluate;
use crate::gears::search::Cascade;
use crate::gears::violation::{GearError, Step, Submodule};
use crate::gears::workload::Workload;
use kaskade_policy::plan::Slo;

impl<E: Evaluate, P: FnMut(&Step)> Planner<'_, E, P> {
    /// A pass through all submodules that starts from a feasible plan; a better one, if it finds any.
    pub(super) fn improved(
        &mut self,
        workload: &mut Workload,
        plan: &Feasible,
    ) -> Result<Option<Feasible>, GearError> {
        let fresh = self.search(&plan.placement);
        workload.add(&fresh);
        match self.evaluations.options.slo {
            Slo::Latency { .. } => self.more_accurate(workload, plan),
            Slo::Accuracy { at_least } => self.faster(workload, plan, at_least),
        }
    }

    /// Swaps in cascades that are at least as good in accuracy and throughput, then tries for every range, from the one that weighs most,
    /// the next more accurate cascade: what ruled it out may be gone since.
    fn more_accurate(&mut self, workload: &Workload, plan: &Feasible) -> Result<Option<Feasible>, GearError> {
        self.effort.workload_adaption += 1;
        self.report(Submodule::WorkloadAdaption, None);
        let mut best = plan.clone();
        let swapped: Vec<Cascade> = best
            .cascades
            .iter()
            .map(|cascade| self.better_in_both(&workload.pareto_cascades, cascade, &plan.placement))
            .collect();
        if swapped != best.cascades {
            self.try_out(&mut best, &swapped, None)?;
        }
        best = self.locally_improved(best, &workload.pareto_cascades)?;
        let mut order: Vec<usize> = (0..self.scope.ranges.len()).collect();
        let weight = |range: &usize| self.scope.weights.get(*range).copied().unwrap_or(0.0);
        order.sort_by(|a, b| weight(b).total_cmp(&weight(a)));
        for range in order {
            while let Some(up) = next_up(&workload.pareto_cascades, &best, range) {
                let mut cascades = best.cascades.clone();
                if let Some(slot) = cascades.get_mut(range) {
                    *slot = up;
                }
                if !self.try_out(&mut best, &cascades, Some(range))? {
                    break;
                }
            }
        }
        Ok(self.gains(&best, plan).then_some(best))
    }

    fn better_in_both(&self, pareto_cascades: &[Cascade], cascade: &Cascade, placement: &[Group]) -> Cascade {
        let throughput = |cascade: &Cascade| cascade.throughput(self.models(), placement);
        let now = throughput(cascade);
        let better = |other: &&Cascade| other.accuracy > cascade.accuracy && throughput(other) >= now;
        pareto_cascades
            .iter()
            .rev()
            .find(better)
            .unwrap_or(cascade)
            .clone()
    }

    /// Takes other cascades if they are feasible and better.
    fn try_out(
        &mut self,
        best: &mut Feasible,
        cascades: &[Cascade],
        first: Option<usize>,
    ) -> Result<bool, GearError> {
        let found = self.realise(cascades, first)?;
        Ok(match found {
            Ok(plan) if self.gains(&plan, best) => {
                *best = plan;
                true
            }
            _ => false,
        })
    }

    /// Chooses again with the latencies of the present placement.
    fn faster(
        &mut self,
        workload: &Workload,
        plan: &Feasible,
        at_least: f64,
    ) -> Result<Option<Feasible>, GearError> {
        self.effort.workload_adaption += 1;
        self.report(Submodule::WorkloadAdaption, None);
        let found = workload.fastest(at_least, |range, cascade| {
            self.latency(&plan.placement, range, cascade)
        })?;
        let Some(assignment) = found else {
            return Ok(None);
        };
        let mut best = plan.clone();
        let better = self.try_out(&mut best, &cascades(workload, &assignment), None)?;
        Ok(better.then_some(best))
    }

    /// Whether a plan is better than another by what is not promised.
    pub(super) fn gains(&self, plan: &Feasible, other: &Feasible) -> bool {
        let ((accuracy, p95), (other_accuracy, other_p95)) = (self.metrics(plan), self.metrics(other));
        match self.evaluations.options.slo {
            Slo::Latency { .. } => accuracy > other_accuracy + 1e-9,
            Slo::Accuracy { at_least } => accuracy >= at_least - 1e-9 && p95 < other_p95 * (1.0 - 1e-6),
        }
    }
}

/// The next more accurate cascade of a range.
fn next_up(pareto_cascades: &[Cascade], plan: &Feasible, range: usize) -> Option<Cascade> {
    let now = plan.cascades.get(range)?.accuracy;
    pareto_cascades
        .iter()
        .find(|cascade| cascade.accuracy > now)
        .cloned()
}
