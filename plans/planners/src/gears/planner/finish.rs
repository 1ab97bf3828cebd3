//! Writes the decisions into a plan.

use serde::Serialize;

use super::{Feasible, Planner};
use crate::certify::{Wired, certified_list, steps};
use crate::gears::evaluate::Evaluate;
use crate::gears::evaluation_cache::BalancedCascade;
use crate::gears::mapping::{add_replica, replicas};
use crate::gears::model_set::ModelSet;
use crate::gears::options::{Ablation, GearOptions};
use crate::gears::search::Cascade;
use crate::gears::violation::{Effort, GearError, Step, Violation};
use kaskade_policy::plan::{Certificate, CertifiedList, Expected, Gear, MAX_CERTIFIED, Plan, Slo};

/// A gear plan and the steps of its planning.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GearPlan {
    /// The plan, validated.
    pub plan: Plan,
    /// The cascades that the ranges could choose from, ascending in accuracy.
    pub cascades: Vec<Cascade>,
    /// The cascade of every range, from the lowest load.
    pub chosen: Vec<Cascade>,
    /// How much of the load is served in the gear of every range, summing to 1. It is not how common its load is: the shifter
    /// counts, and shifts up sooner than down.
    pub served: Vec<f64>,
    /// Mean accuracy over the ranges, weighed by how much is served in each.
    pub accuracy: f64,
    /// Mean 95th percentile of latency over the ranges, weighed likewise, microseconds.
    pub p95_us: f64,
    /// Effort of planning.
    pub effort: Effort,
    /// The violations that were met and resolved, in order.
    pub violations: Vec<Violation>,
    /// Why live answers cannot be audited, although the plan is certified: it has no certified list. `None` if it has one, or is not
    /// certified, or runs the largest variant alone.
    pub unaudited: Option<Unaudited>,
}

/// Why a certified plan has no certified list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unaudited {
    /// No device has room for the largest variant, which audits ask.
    LargestNotPlaced,
    /// Gears run more cascades than a list holds.
    TooManyCascades,
}

impl<E: Evaluate, P: FnMut(&Step)> Planner<'_, E, P> {
    /// The plan as a file.
    pub(in crate::gears) fn finish(
        mut self,
        found: &Feasible,
        pareto_cascades: Vec<Cascade>,
    ) -> Result<GearPlan, GearError> {
        self.effort.simulations = self.evaluations.simulations;
        let found = &self.with_audits(found);
        let options = self.evaluations.options;
        let made_by = made_by(options, self.scope.ranges.len());
        let mut plan = self
            .evaluations
            .parts
            .plan(&found.placement, made_by, Some(options.slo));
        let mut of_gears: Vec<&Cascade> = Vec::new();
        let settings = found.cascades.iter().zip(&found.tuned);
        for (((cascade, tuned), load), common) in settings.zip(&self.scope.ranges).zip(&self.scope.common) {
            let balanced = BalancedCascade::new(&self.evaluations.parts, cascade, &found.placement)?;
            let gear = Gear {
                name: format!("g{}", plan.gears.len()),
                load: *load,
                expected: Some(Expected {
                    time_share: *common,
                    accuracy: cascade.accuracy,
                    p95_us: tuned.outcome.p95_us,
                    utilisation: tuned.outcome.utilisation,
                }),
                wiring: self.evaluations.wiring(&balanced, tuned.min_queue),
            };
            merge(&mut plan.gears, gear);
            if of_gears.len() < plan.gears.len() {
                of_gears.push(cascade);
            }
        }
        plan.certificate = self.certificate(&found.cascades);
        let unaudited = match self.certified_list(found, &of_gears)? {
            Ok(list) => {
                plan.certified = list;
                None
            }
            Err(reason) => Some(reason),
        };
        plan.validate()?;
        let (accuracy, p95_us) = self.metrics(found);
        Ok(GearPlan {
            plan,
            cascades: pareto_cascades,
            chosen: found.cascades.clone(),
            served: self.scope.weights,
            accuracy,
            p95_us,
            effort: self.effort,
            violations: self.violations,
            unaudited,
        })
    }

    /// Returns a plan with a replica of the largest variant, which audits ask also where no gear runs it; as it is if it has one, is not
    /// certified, or no device has room.
    fn with_audits(&self, found: &Feasible) -> Feasible {
        let mut found = found.clone();
        let alone = self.certified.first().map(|(cascade, _)| cascade.models());
        let largest = alone.and_then(|models| models.iter().next());
        if let Some(largest) = largest
            && replicas(&found.placement, largest) == 0
            && let Some(placement) = add_replica(&found.placement, self.models(), largest)
        {
            found.placement = placement;
        }
        found
    }

    /// Returns certified cascades, few enough for a list, at even distances among those that a plan uses; `None` if a list has room for all.
    pub(super) fn fewer_cascades(&self, found: &Feasible) -> Option<Vec<Cascade>> {
        let used: Vec<&Cascade> = self
            .certified
            .iter()
            .enumerate()
            .filter(|(place, (cascade, _))| *place == 0 || found.cascades.contains(cascade))
            .map(|(_, (cascade, _))| cascade)
            .collect();
        let last = used.len().checked_sub(1).filter(|_| used.len() > MAX_CERTIFIED)?;
        let even = (0..MAX_CERTIFIED).map(|step| step * last / (MAX_CERTIFIED - 1));
        Some(
            even.filter_map(|place| used.get(place).copied().cloned())
                .collect(),
        )
    }
}

impl<E, P> Planner<'_, E, P> {
    /// Returns the certificate of the chosen cascade that is closest to missing the guarantee: it holds for all of them together.
    fn certificate(&self, chosen: &[Cascade]) -> Option<Certificate> {
        let of_chosen = self
            .certified
            .iter()
            .filter(|(cascade, _)| chosen.contains(cascade));
        let closest = of_chosen.max_by(|(_, a), (_, b)| a.p_value.total_cmp(&b.p_value));
        closest.map(|(_, certificate)| certificate.clone())
    }
}

impl<E: Evaluate, P> Planner<'_, E, P> {
    /// Returns the certified cascades that the placement can run, some steps of them and all that gears run; `of_gears` are the cascades
    /// of the plan's gears. `None` without a guarantee, or if the largest variant answers everything; why there is none although there
    /// should be.
    fn certified_list(
        &self,
        found: &Feasible,
        of_gears: &[&Cascade],
    ) -> Result<Result<Option<CertifiedList>, Unaudited>, GearError> {
        let Some((largest, _)) = self.certified.first() else {
            return Ok(Ok(None));
        };
        let hosted = found
            .placement
            .iter()
            .fold(ModelSet::default(), |set, group| set.union(group.hosted));
        let runs = |cascade: &Cascade| cascade.models().iter().all(|model| hosted.contains(model));
        if !runs(largest) {
            return Ok(Err(Unaudited::LargestNotPlaced));
        }
        let runnable: Vec<&(Cascade, Certificate)> = self
            .certified
            .iter()
            .filter(|(cascade, _)| runs(cascade))
            .collect();
        let place_of = |cascade: &Cascade| runnable.iter().position(|(known, _)| known == cascade);
        // The placement runs every gear's cascade, and all are certified.
        let needed: Vec<usize> = of_gears.iter().filter_map(|cascade| place_of(cascade)).collect();
        // What is cheaper than every gear is no step towards safety.
        let cheapest = needed.iter().max().map_or(0, |place| place + 1);
        let kept = steps(cheapest, &needed);
        if kept.len() < 2 {
            return Ok(Ok(None));
        }
        if kept.len() > MAX_CERTIFIED {
            return Ok(Err(Unaudited::TooManyCascades));
        }
        let mut wired = Vec::new();
        for (cascade, certificate) in kept.iter().filter_map(|place| runnable.get(*place)) {
            let balanced = BalancedCascade::new(&self.evaluations.parts, cascade, &found.placement)?;
            wired.push(Wired {
                wiring: self.evaluations.wiring(&balanced, 1),
                certificate: certificate.clone(),
            });
        }
        let places = needed.iter().filter_map(|place| {
            let place = kept.iter().position(|kept| kept == place)?;
            Some(place as u32)
        });
        let cascade_of_gear = places.collect();
        let profile = self.evaluations.parts.profile;
        Ok(Ok(Some(certified_list(profile, wired, cascade_of_gear))))
    }
}

fn made_by(options: &GearOptions, ranges: usize) -> String {
    let slo = match options.slo {
        Slo::Latency { p95_us } => format!("p95<={p95_us}us"),
        Slo::Accuracy { at_least } => format!("accuracy>={at_least}"),
    };
    let ablation = match options.ablation {
        Ablation::Full => "",
        Ablation::NoSwitching => " no-switching",
        Ablation::NoCascade => " no-cascade",
        Ablation::Neither => " one-model",
    };
    let (rate, devices, seed) = (options.qps_max, options.devices.len(), options.seed);
    format!("gears/{slo} rate_max={rate} ranges={ranges} devices={devices} seed={seed}{ablation}")
}

/// Adds a gear, or widens the last one if it is wired alike: its figures are then those of its worst load.
fn merge(gears: &mut Vec<Gear>, gear: Gear) {
    match gears.last_mut() {
        Some(last) if last.wiring == gear.wiring => {
            last.load.to_qps = gear.load.to_qps;
            if let (Some(expected), Some(more)) = (&mut last.expected, gear.expected) {
                expected.time_share = (expected.time_share + more.time_share).min(1.0);
                expected.p95_us = expected.p95_us.max(more.p95_us);
                expected.utilisation = expected.utilisation.max(more.utilisation);
            }
        }
        _ => gears.push(gear),
    }
}
