//! Plans on a family with one variant less, or with one cascade for every load.
//!
//! A violation downgrades the range that it names, and nothing else. So a rare load may keep a large model on devices whose memory
//! the common loads could use better: no range has a violation, and no range alone can free the memory. So the planner also
//! plans without that model.

use super::multistart::or_none;
use super::{Feasible, PlanWithCascades, Planner};
use crate::gears::evaluate::Evaluate;
use crate::gears::model_set::ModelSet;
use crate::gears::search::Space;
use crate::gears::violation::{GearError, Step};
use kaskade_policy::plan::Slo;

impl<E: Evaluate, P: FnMut(&Step)> Planner<'_, E, P> {
    /// Leaves out one variant after the other as long as that gives a better plan, of at most as many variants as there are.
    /// If memory does not bind, a hosted model takes nothing from the others, and no variant is dropped.
    pub(super) fn without_some(&mut self, mut best: PlanWithCascades) -> Result<PlanWithCascades, GearError> {
        while memory_binds(&best.0) {
            let space = self.scope.space.clone();
            let mut better: Option<(PlanWithCascades, Space)> = None;
            for model in used(&best.0).iter() {
                self.scope.space = space.clone().without(model);
                // Without this variant the objective may be out of reach.
                let Some(found) = or_none(self.plan_once())? else {
                    continue;
                };
                let yardstick = better.as_ref().map_or(&best.0, |((plan, _), _)| plan);
                if self.gains(&found.0, yardstick) {
                    better = Some((found, self.scope.space.clone()));
                }
            }
            let Some((chosen, smaller)) = better else {
                self.scope.space = space;
                break;
            };
            best = chosen;
            self.scope.space = smaller;
        }
        Ok(best)
    }

    /// The plan of one cascade for every load, improved range by range: a search from the other end, for cases in which downgrading single
    /// ranges leads to something less accurate.
    pub(super) fn or_steady(&mut self, best: PlanWithCascades) -> Result<PlanWithCascades, GearError> {
        let Slo::Latency { .. } = self.evaluations.options.slo else {
            return Ok(best);
        };
        let Some(highest) = self.scope.ranges.len().checked_sub(1) else {
            return Ok(best);
        };
        let (accuracy, _) = self.metrics(&best.0);
        let pareto_cascades = best.1.clone();
        for cascade in pareto_cascades
            .iter()
            .rev()
            .take_while(|cascade| cascade.accuracy > accuracy)
        {
            let everywhere = vec![cascade.clone(); self.scope.ranges.len()];
            if let Ok(plan) = self.realise(&everywhere, Some(highest))? {
                return self.improve(plan, pareto_cascades);
            }
        }
        Ok(best)
    }
}

/// Whether a device lacks a model that the plan uses.
fn memory_binds(plan: &Feasible) -> bool {
    let used = used(plan);
    let lacks = |hosted: ModelSet| used.iter().any(|model| !hosted.contains(model));
    used.iter().count() > 1 && plan.placement.iter().any(|group| lacks(group.hosted))
}

/// The models of all ranges.
fn used(plan: &Feasible) -> ModelSet {
    plan.cascades
        .iter()
        .fold(ModelSet::default(), |used, cascade| used.union(cascade.models()))
}
