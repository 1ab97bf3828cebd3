//! Plans one cascade from a profile, with thresholds, drops and skips (HybridServe §IV).

mod emit;

use std::collections::BTreeMap;

use serde::Serialize;
use thiserror::Error;

use crate::certify::{
    self, CertificationCounts, CertifyError, CertifyOptions, HeldOut, PassedCascade, held_out,
};
use crate::skips::{Dropped, Pruned, Skips, Split, SplitOutcome, add_skips, prune, trim};
use crate::thresholds::{
    Baseline, CascadeOutcome, CostBasis, Exits, Family, FamilyError, Frontier, Minimise, NonInferiorityTest,
    Point, Search, accuracy_preserving, energy_optimising, evaluate, frontier, threshold_exits,
};
use kaskade_policy::confidence::deferral::DeferralScore;
use kaskade_policy::invalid::Invalid;
use kaskade_policy::plan::{Batching, Certificate, Plan};
use kaskade_policy::profile::Profile;

/// The objective of a cascade.
#[derive(Debug, Clone, PartialEq)]
pub enum Objective {
    /// The accuracy of the best variant at the least energy.
    Ap,
    /// The knee of the curve, never under the second-best variant.
    Eo,
    /// The largest variant alone, as a baseline.
    Largest,
    /// The cheapest cascade whose accuracy is certified on samples that it was not chosen on ([`crate::certify`]).
    Certified(CertifyOptions),
    /// These thresholds, one per variant but the last, in [0, 1]; 0 forwards nothing.
    Thresholds(Vec<f64>),
}

impl Objective {
    /// The name that the plan carries.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Ap => "ap",
            Self::Eo => "eo",
            Self::Largest => "largest",
            Self::Certified(_) => "certified",
            Self::Thresholds(_) => "thresholds",
        }
    }
}

/// Options of planning a cascade.
#[derive(Debug, Clone, PartialEq)]
pub struct CascadeOptions {
    /// The objective.
    pub objective: Objective,
    /// Quantity to minimise.
    pub minimise: Minimise,
    /// The batch size at which costs are taken.
    pub batch: u32,
    /// Seed of the search.
    pub seed: u64,
    /// Test that the named points must pass.
    pub safety_margin: NonInferiorityTest,
    /// Maximum number of steps of an exact search.
    pub exact_steps: u64,
    /// Whether to try skip connections.
    pub skips: bool,
    /// Whether the stages of a certified cascade may decide by a learned score ([`crate::deferral`]) in place of their confidence.
    pub learn_scores: bool,
    /// Loss of accuracy that skip connections may cost under given [`Objective::Thresholds`], in [0, 1]. Under the other objectives they
    /// never break the objective.
    pub skip_loss: f64,
    /// Replicas of each variant, unless named in `replicas_of`.
    pub replicas: u32,
    /// Replicas of single variants.
    pub replicas_of: BTreeMap<String, u32>,
    /// The workers, which get the replicas round robin. At least one.
    pub workers: Vec<String>,
    /// The device on every worker.
    pub device: String,
    /// Triggers by which a replica's queue becomes a batch.
    pub batching: Batching,
}

impl Default for CascadeOptions {
    fn default() -> Self {
        Self {
            objective: Objective::Ap,
            minimise: Minimise::Energy,
            batch: Batching::default().max_batch,
            seed: 0,
            safety_margin: NonInferiorityTest::default(),
            exact_steps: Search::default().exact_steps,
            skips: true,
            learn_scores: true,
            skip_loss: 0.0,
            replicas: 1,
            replicas_of: BTreeMap::new(),
            workers: vec!["local".to_owned()],
            device: "cpu".to_owned(),
            batching: Batching::default(),
        }
    }
}

/// A planned cascade and the steps of its planning.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CascadePlan {
    /// The plan, validated.
    pub plan: Plan,
    /// Quantity that was minimised.
    pub minimised: Minimise,
    /// The frontier of the whole family.
    pub frontier: Frontier,
    /// The accuracy-preserving point of the whole family.
    pub ap: Point,
    /// The energy-optimising point of the whole family.
    pub eo: Point,
    /// The variants that the plan leaves out.
    pub dropped: Vec<Dropped>,
    /// The split that the plan's skip connections follow.
    pub split: Split,
    /// The results of the splits, the plain cascade first.
    pub skips: Vec<SplitOutcome>,
    /// The expected results of the plan.
    pub estimates: Estimates,
    /// Result of the certification; `None` for an objective that is not certified.
    pub certification: Option<CertificationCounts>,
}

/// Expected results, from the validation set.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Estimates {
    /// Whether `energy_j` is joules or a substitute for them.
    pub basis: CostBasis,
    /// Share of right answers.
    pub accuracy: f64,
    /// Cost per request.
    pub energy_j: f64,
    /// Variants that a request runs, on average.
    pub hops: f64,
    /// The stages.
    pub stages: Vec<StageEstimate>,
    /// Share of right answers of the largest variant alone.
    pub largest_accuracy: f64,
    /// Cost per request of the largest variant alone.
    pub largest_energy_j: f64,
    /// The accuracy that cascades chosen in the same way, but of all variants and without skip connections, have on samples that they were
    /// not chosen on; `None` where nothing was chosen (given thresholds, the
    /// largest variant), where it is certified, or for want of samples.
    pub held_out: Option<HeldOut>,
}

/// Expected results of one stage.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StageEstimate {
    /// The variant.
    pub variant: String,
    /// Share of requests that it runs.
    pub reach: f64,
    /// Share of requests that it answers.
    pub answered: f64,
}

/// A cascade cannot be planned.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum PlanError {
    /// The profile cannot be planned from.
    #[error("the profile cannot be planned from: {0}")]
    Profile(#[from] FamilyError),
    /// The thresholds do not fit the family.
    #[error(
        "the number of thresholds is {found} and must be {expected}: one in [0, 1] for each variant but the last, in their order"
    )]
    Thresholds {
        /// Number of thresholds found.
        found: usize,
        /// Number of thresholds required.
        expected: usize,
    },
    /// A threshold is outside [0, 1].
    #[error("the threshold {0} is not in [0, 1]")]
    Threshold(f64),
    /// An option is 0 but must be at least 1.
    #[error("{option} must be at least 1")]
    Zero {
        /// Name of the option.
        option: &'static str,
    },
    /// The plan would be unsound.
    #[error("the options do not make a sound plan: {0}")]
    Plan(#[from] Invalid),
    /// No cascade was certified.
    #[error("no cascade can be certified: {0}")]
    Certify(#[from] CertifyError),
    /// No cascade keeps up with the best variant, not even itself.
    #[error("no cascade was found; the profile may be empty")]
    NoPoint,
}

/// Plans one cascade. The same profile and options give the same plan, byte for byte.
///
/// # Errors
/// A [`PlanError`] if the profile or an option is unusable. The caller keeps an older plan.
pub fn plan_cascade(profile: &Profile, options: &CascadeOptions) -> Result<CascadePlan, PlanError> {
    check(options)?;
    let (family, basis) = if options.learn_scores {
        Family::with_observations(profile, options.batch, options.minimise)?
    } else {
        Family::minimising(profile, options.batch, options.minimise)?
    };
    let search = Search {
        seed: options.seed,
        exact_steps: options.exact_steps,
    };
    let goals = Goals::new(&family, options.safety_margin);
    let found = frontier(&family, &search);
    let ap = goals.preserving(&family, &found).ok_or(PlanError::NoPoint)?;
    let eo = goals.optimising(&family, &found).ok_or(PlanError::NoPoint)?;
    let chosen = match &options.objective {
        Objective::Ap => {
            let choose = |family: &Family, found: &Frontier| goals.preserving(family, found);
            let pruned = prune(&family, &found, |family| frontier(family, &search), choose);
            with_skips(pruned.ok_or(PlanError::NoPoint)?, options, |outcome, _| {
                options.safety_margin.passes(outcome, &goals.best)
            })
        }
        Objective::Eo => {
            let choose = |family: &Family, found: &Frontier| goals.optimising(family, found);
            let pruned = prune(&family, &found, |family| frontier(family, &search), choose);
            with_skips(pruned.ok_or(PlanError::NoPoint)?, options, |outcome, plain| {
                outcome.accuracy >= plain
            })
        }
        Objective::Largest => {
            let largest = family.columns().len() - 1;
            let only = (0..largest).fold(family.clone(), |family, _| family.without(0));
            with_skips(given(&only, &[]), options, |_, _| false)
        }
        Objective::Certified(certify) => certified(&family, certify, options.skips)?,
        Objective::Thresholds(thresholds) => {
            check_thresholds(thresholds, largest_index(&family))?;
            with_skips(given(&family, thresholds), options, |outcome, plain| {
                outcome.accuracy >= plain - options.skip_loss
            })
        }
    };
    let plan = emit::plan(profile, &chosen, options);
    plan.validate()?;
    let held_out = match &options.objective {
        Objective::Ap | Objective::Eo => held_out(&family, |seen| named_exits(seen, options)),
        Objective::Certified(_) | Objective::Largest | Objective::Thresholds(_) => None,
    };
    let judged = chosen.certified.as_ref().map_or(&family, |(_, samples)| samples);
    Ok(CascadePlan {
        estimates: Estimates {
            held_out,
            ..estimates(judged, basis, &chosen.family, &chosen.outcome)
        },
        plan,
        minimised: options.minimise,
        frontier: found,
        ap,
        eo,
        dropped: chosen.dropped,
        split: chosen.skips.split,
        skips: chosen.skips.tried,
        certification: chosen.tested,
    })
}

/// The cascade that becomes the plan.
struct ChosenCascade {
    family: Family,
    /// The scores of its stages, one per variant but the last.
    scores: Vec<Option<DeferralScore>>,
    dropped: Vec<Dropped>,
    skips: Skips,
    /// Expected outcome: on the certification part if the cascade is certified, else on all validation samples.
    outcome: CascadeOutcome,
    /// Certificate of the cascade, and the certification part.
    certified: Option<(Certificate, Family)>,
    tested: Option<CertificationCounts>,
    /// The safer cascades that passed.
    safer: Vec<PassedCascade>,
}

/// Chooses the cheapest cascade that can be certified.
fn certified(family: &Family, options: &CertifyOptions, skips: bool) -> Result<ChosenCascade, CertifyError> {
    let found = certify::certify(family, options, skips)?;
    Ok(ChosenCascade {
        family: found.cascade.family,
        scores: found.cascade.scores,
        dropped: found.cascade.dropped,
        skips: found.cascade.skips,
        outcome: found.outcome,
        certified: Some((found.certificate, found.certification)),
        tested: Some(found.tested),
        safer: found.safer,
    })
}

/// Returns the exits of a named point of a family, without drops and skip connections, which change its cost more than its answers.
fn named_exits(family: &Family, options: &CascadeOptions) -> Option<Exits> {
    let search = Search {
        seed: options.seed,
        // Chosen several times over, and nothing is proven: a tenth of the effort.
        exact_steps: options.exact_steps / 10,
    };
    let goals = Goals::new(family, options.safety_margin);
    let found = frontier(family, &search);
    let point = match options.objective {
        Objective::Eo => goals.optimising(family, &found),
        _ => goals.preserving(family, &found),
    };
    Some(threshold_exits(&point?.thresholds))
}

fn check(options: &CascadeOptions) -> Result<(), PlanError> {
    let zero = |option| Err(PlanError::Zero { option });
    if options.batch == 0 {
        return zero("the batch size");
    }
    if options.workers.is_empty() {
        return zero("the number of workers");
    }
    if options.replicas == 0 || options.replicas_of.values().any(|replicas| *replicas == 0) {
        return zero("the number of replicas");
    }
    Ok(())
}

fn largest_index(family: &Family) -> usize {
    family.columns().len().saturating_sub(1)
}

fn check_thresholds(thresholds: &[f64], expected: usize) -> Result<(), PlanError> {
    if thresholds.len() != expected {
        return Err(PlanError::Thresholds {
            found: thresholds.len(),
            expected,
        });
    }
    let unsound = |threshold: &&f64| !(0.0..=1.0).contains(*threshold);
    match thresholds.iter().find(unsound) {
        Some(threshold) => Err(PlanError::Threshold(*threshold)),
        None => Ok(()),
    }
}

/// Baselines of the named points: always variants of the whole family, also when some are dropped.
struct Goals {
    best: Baseline,
    second_best: Baseline,
    safety_margin: NonInferiorityTest,
}

impl Goals {
    fn new(family: &Family, safety_margin: NonInferiorityTest) -> Self {
        Self {
            best: Baseline::new(family, family.best()),
            second_best: Baseline::new(family, family.second_best()),
            safety_margin,
        }
    }

    fn preserving(&self, family: &Family, found: &Frontier) -> Option<Point> {
        accuracy_preserving(family, found, &self.best, self.safety_margin)
    }

    fn optimising(&self, family: &Family, found: &Frontier) -> Option<Point> {
        let ap = self.preserving(family, found)?;
        Some(energy_optimising(family, found, &self.second_best, &ap, self.safety_margin).unwrap_or(ap))
    }
}

/// The thresholds are given and not searched for.
fn given(family: &Family, thresholds: &[f64]) -> Pruned {
    let outcome = evaluate(family, &threshold_exits(thresholds));
    let mut pruned = Pruned {
        family: family.clone(),
        point: outcome.into_point(thresholds.to_vec()),
        dropped: Vec::new(),
    };
    trim(&mut pruned);
    pruned
}

/// Adds skips where they help; `accepts` receives the result of a split and the accuracy without it.
fn with_skips(
    pruned: Pruned,
    options: &CascadeOptions,
    accepts: impl Fn(&CascadeOutcome, f64) -> bool,
) -> ChosenCascade {
    let plain = pruned.point.accuracy;
    let skips = add_skips(&pruned.family, &pruned.point.thresholds, |outcome| {
        options.skips && accepts(outcome, plain)
    });
    ChosenCascade {
        family: pruned.family,
        scores: Vec::new(),
        dropped: pruned.dropped,
        outcome: skips.outcome.clone(),
        skips,
        certified: None,
        tested: None,
        safer: Vec::new(),
    }
}

fn estimates(whole: &Family, basis: CostBasis, family: &Family, outcome: &CascadeOutcome) -> Estimates {
    let largest = largest_index(whole);
    let shares = outcome.reach.iter().zip(&outcome.answered);
    Estimates {
        basis,
        accuracy: outcome.accuracy,
        energy_j: outcome.energy_j,
        hops: outcome.reach.iter().sum(),
        stages: family
            .columns()
            .iter()
            .zip(shares)
            .map(|(column, (reach, answered))| StageEstimate {
                variant: column.name.clone(),
                reach: *reach,
                answered: *answered,
            })
            .collect(),
        largest_accuracy: whole.accuracy(largest),
        largest_energy_j: whole.columns().get(largest).map_or(0.0, |column| column.energy_j),
        held_out: None,
    }
}

#[cfg(test)]
mod tests;
