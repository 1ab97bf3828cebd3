//! The best cascade of every range on a placement that stays.
//!
//! Ranges interact only through the placement. If the placement stays, each may have the most accurate cascade that holds there,
//! independently of the others. A more accurate cascade that needs another model would not fit in; on the way to one that
//! does, the search must not end at such a local optimum.

use super::{Feasible, Planner};
use crate::gears::evaluate::Evaluate;
use crate::gears::model_set::ModelSet;
use crate::gears::search::Cascade;
use crate::gears::violation::{GearError, Step};

/// Number of cascades in a row that do not hold after which the search ends.
const PATIENCE: u32 = 3;

impl<E: Evaluate, P: FnMut(&Step)> Planner<'_, E, P> {
    /// Gives every range, from the highest load down, a more accurate cascade of the Pareto cascades that holds on the placement there is.
    pub(super) fn locally_improved(
        &mut self,
        mut plan: Feasible,
        pareto_cascades: &[Cascade],
    ) -> Result<Feasible, GearError> {
        let hosted = plan
            .placement
            .iter()
            .fold(ModelSet::default(), |set, group| set.union(group.hosted));
        let placed: Vec<&Cascade> = pareto_cascades
            .iter()
            .filter(|cascade| cascade.variants.iter().all(|model| hosted.contains(*model)))
            .collect();
        for range in (0..self.scope.ranges.len()).rev() {
            // What holds at a higher load most likely holds here.
            if let Some(above) = plan.cascades.get(range + 1).cloned() {
                self.raise(&mut plan, range, &above)?;
            }
            let mut missed = 0;
            for cascade in &placed {
                if missed >= PATIENCE {
                    break;
                }
                match self.raise(&mut plan, range, cascade)? {
                    Some(true) => missed = 0,
                    Some(false) => missed += 1,
                    None => {}
                }
            }
        }
        Ok(plan)
    }

    /// Gives a range another cascade if that is more accurate and holds. `None` if there was nothing to try out.
    fn raise(
        &mut self,
        plan: &mut Feasible,
        range: usize,
        cascade: &Cascade,
    ) -> Result<Option<bool>, GearError> {
        let Some(now) = plan.cascades.get(range) else {
            return Ok(None);
        };
        let carried = || cascade.throughput(self.models(), &plan.placement) >= self.upper_end(range);
        if cascade.accuracy <= now.accuracy || !carried() {
            return Ok(None);
        }
        let Ok(found) = self.batch_one(cascade, &plan.placement, range)? else {
            return Ok(Some(false));
        };
        if let (Some(now), Some(tuned)) = (plan.cascades.get_mut(range), plan.tuned.get_mut(range)) {
            *now = cascade.clone();
            *tuned = found;
        }
        Ok(Some(true))
    }
}
