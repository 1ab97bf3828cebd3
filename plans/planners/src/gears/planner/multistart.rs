//! The starting points of Algorithm 1.
//!
//! It goes down from the best cascades, and up again as far as possible, so its result depends on its start. The full planner must
//! not be worse than its ablations, whose plans are plans too. So it also starts from their plans, and keeps the best result.

use super::scope::Scope;
use super::{Feasible, PlanWithCascades, Planner};
use crate::gears::evaluate::Evaluate;
use crate::gears::options::Ablation;
use crate::gears::violation::{GearError, Step};

/// The ablations from whose plans the full planner starts.
const SMALLER: [Ablation; 3] = [Ablation::NoSwitching, Ablation::NoCascade, Ablation::Neither];

impl<E: Evaluate, P: FnMut(&Step)> Planner<'_, E, P> {
    /// The best plan from all starts.
    pub(super) fn start_everywhere(&mut self) -> Result<PlanWithCascades, GearError> {
        let whole = self.scope.clone();
        let mut best = self.start_from_best();
        let whole_planner = self.evaluations.options.ablation == Ablation::Full;
        if !whole_planner || best.as_ref().is_err_and(|error| !is_out_of_reach(error)) {
            return best;
        }
        for ablation in SMALLER {
            let Some((start, pareto_cascades)) = or_none(self.as_if(ablation, &whole))? else {
                continue;
            };
            self.scope = whole.clone();
            let found = self.improve(start, pareto_cascades)?;
            best = match best {
                Ok(best) if !self.gains(&found.0, &best.0) => Ok(best),
                _ => Ok(found),
            };
        }
        best
    }

    /// Algorithm 1 on the present scope, and the improvements after it.
    fn start_from_best(&mut self) -> Result<PlanWithCascades, GearError> {
        let whole = self.plan_once()?;
        let steady = self.or_steady(whole)?;
        self.without_some(steady)
    }

    /// The plan of an ablation, as one for all ranges.
    fn as_if(&mut self, ablation: Ablation, whole: &Scope) -> Result<PlanWithCascades, GearError> {
        self.scope = Scope::new(whole.space.clone(), self.evaluations.options, ablation);
        let found = self.start_from_best();
        self.scope = whole.clone();
        let (plan, pareto_cascades) = found?;
        Ok((spread(plan, whole.ranges.len()), pareto_cascades))
    }
}

/// A plan of one range serves all: what holds at the highest load holds below it.
fn spread(plan: Feasible, ranges: usize) -> Feasible {
    match (plan.cascades.as_slice(), plan.tuned.as_slice()) {
        ([cascade], [tuned]) => Feasible {
            cascades: vec![cascade.clone(); ranges],
            tuned: vec![*tuned; ranges],
            placement: plan.placement,
        },
        _ => plan,
    }
}

/// Whether there may be a plan from another start.
fn is_out_of_reach(error: &GearError) -> bool {
    matches!(
        error,
        GearError::Unattainable { .. } | GearError::Inaccurate { .. }
    )
}

/// `None` where the objective is out of reach.
pub(super) fn or_none(
    found: Result<PlanWithCascades, GearError>,
) -> Result<Option<PlanWithCascades>, GearError> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if is_out_of_reach(&error) => Ok(None),
        Err(error) => Err(error),
    }
}
