//! Gear plans by other strategies than Algorithm 1: the caller decides, and its decisions are measured, balanced and written as by the
//! planner.

use kaskade_policy::plan::LoadRange;
use kaskade_policy::profile::Profile;

use crate::gears::assemble::Parts;
use crate::gears::balance::Group;
use crate::gears::batching::{BatchingChoice, tune};
use crate::gears::evaluate::{Evaluate, GearOutcome};
use crate::gears::evaluation_cache::BalancedCascade;
use crate::gears::mapping::Fleet;
use crate::gears::model_costs::Models;
use crate::gears::model_set::ModelSet;
use crate::gears::options::GearOptions;
use crate::gears::planner::{Feasible, GearPlan, Planner};
use crate::gears::search::Cascade;
use crate::gears::violation::{GearError, Step};
use crate::gears::workload::Workload;

/// The decision of a strategy.
#[derive(Debug, Clone)]
pub struct Decision {
    /// The cascade of every range, from the lowest load.
    pub cascades: Vec<Cascade>,
    /// The models on the devices, the same in all ranges.
    pub placement: Vec<Group>,
    /// The batching of every range.
    pub batching: Vec<BatchingChoice>,
    /// The cascades that the ranges could choose from, ascending in accuracy.
    pub pareto_cascades: Vec<Cascade>,
}

/// The inputs of a strategy: models, devices, ranges of load, and measurements.
pub struct Context<'a, E> {
    planner: Planner<'a, E, fn(&Step)>,
    parts: Parts<'a>,
    options: &'a GearOptions,
}

impl<E: Evaluate> Context<'_, E> {
    /// The models, by their place in the profile.
    pub fn models(&self) -> &Models {
        self.parts.models
    }

    /// The devices by kind, with these models on all of them, whether they fit or not.
    pub fn devices(&self, hosted: ModelSet) -> Vec<Group> {
        Fleet::new(&self.options.devices).everywhere(hosted)
    }

    /// The ranges of load, from the lowest.
    pub fn ranges(&self) -> &[LoadRange] {
        &self.planner.scope.ranges
    }

    /// Measures a cascade on a placement at a load, requests/s.
    ///
    /// # Errors
    /// A [`GearError`] if it cannot be balanced or run.
    pub fn measure(
        &mut self,
        cascade: &Cascade,
        placement: &[Group],
        min_queue: u32,
        qps: f64,
    ) -> Result<GearOutcome, GearError> {
        let balanced = BalancedCascade::new(&self.parts, cascade, placement)?;
        self.planner.evaluations.measure(&balanced, min_queue, qps)
    }

    /// Finds the batching of a cascade over a range of load; `None` if none holds the objective.
    ///
    /// # Errors
    /// A [`GearError`] if it cannot be balanced or run.
    pub fn tune(
        &mut self,
        cascade: &Cascade,
        placement: &[Group],
        load: LoadRange,
    ) -> Result<Option<BatchingChoice>, GearError> {
        let balanced = BalancedCascade::new(&self.parts, cascade, placement)?;
        Ok(tune(&mut self.planner.evaluations, &balanced, load)?.ok())
    }

    /// The assignment of cascades to ranges of least mean latency that reaches a mean accuracy; `None` if there is none.
    /// `latency` returns the latency of a range with one of the Pareto cascades, in any unit, infinite if it does not keep up.
    pub fn fastest(
        &self,
        pareto_cascades: &[Cascade],
        at_least: f64,
        mut latency: impl FnMut(usize, &Cascade) -> f64,
    ) -> Option<Vec<usize>> {
        let workload = Workload::new(pareto_cascades.to_vec(), self.planner.scope.weights.clone());
        let found: Result<_, std::convert::Infallible> =
            workload.fastest(at_least, |range, cascade| Ok(latency(range, cascade)));
        found.ok().flatten()
    }
}

/// Plans gears as a strategy decides.
///
/// # Errors
/// A [`GearError`] if an input is unusable, or the strategy's own.
pub fn plan_gears_by<E: Evaluate>(
    profile: &Profile,
    options: &GearOptions,
    evaluate: E,
    decide: impl FnOnce(&mut Context<'_, E>) -> Result<Decision, GearError>,
) -> Result<GearPlan, GearError> {
    let models = Models::checked(profile, options)?;
    let parts = Parts {
        profile,
        models: &models,
        devices: &options.devices,
    };
    let silent: fn(&Step) = |_| {};
    let mut context = Context {
        planner: Planner::new(parts, options, evaluate, silent)?,
        parts,
        options,
    };
    let decision = decide(&mut context)?;
    let plan = Feasible {
        cascades: decision.cascades,
        placement: decision.placement,
        tuned: decision.batching,
    };
    context.planner.finish(&plan, decision.pareto_cascades)
}
