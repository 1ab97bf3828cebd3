//! The systems that the paper measures against, as plans (CascadeServe §6.2, §6.6).
//!
//! Each is an ordinary [`Plan`](kaskade_policy::plan::Plan), so the simulator and the live service run it by the same machinery as a gear
//! plan, and a difference between two figures is one between two policies. Cocktail+, which starts and stops replicas, is in
//! [`super::cocktail`].

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use kaskade_planners::gears::{
    Ablation, BatchingChoice, Cascade, Evaluate, GearError, GearOptions, GearOutcome, GearPlan, Group,
    ModelSet, Models, join, plan_gears_with,
};
use kaskade_planners::reference::{Context, Decision, plan_gears_by};
use kaskade_policy::plan::{LoadRange, Slo};
use kaskade_policy::profile::Profile;

/// A peer of the gear planner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Peer {
    /// `DynBa`: one variant on every device for every load, with CascadeServe's batching.
    DynBa {
        /// The variant, whether it holds the objective or not; `None`: the best one that holds it at the highest load.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        variant: Option<String>,
    },
    /// MS+ (Model Switching): single variants switched by load, as many of them on every device as fit, with Clipper's batching.
    MsPlus,
    /// The gear planner with one cascade for every load.
    NoSwitching,
    /// The gear planner with single variants.
    NoCascade,
}

impl Peer {
    /// Returns the peer's name, as a plan states it.
    pub fn name(&self) -> String {
        match self {
            Self::DynBa { variant: None } => "dynba".to_owned(),
            Self::DynBa { variant: Some(name) } => format!("dynba {name}"),
            Self::MsPlus => "ms+".to_owned(),
            Self::NoSwitching => "no-switching".to_owned(),
            Self::NoCascade => "no-cascade".to_owned(),
        }
    }
}

/// Plans as a peer would.
///
/// # Errors
/// A [`GearError`] if an input is unusable or the objective cannot be met. `DynBa` with a named variant, and MS+ under a latency
/// objective, always serve something: what to expect of it is in the plan's gears.
pub fn plan_peer(
    profile: &Profile,
    options: &GearOptions,
    peer: &Peer,
    evaluate: impl Evaluate,
) -> Result<GearPlan, GearError> {
    let ablated = |ablation| GearOptions {
        ablation,
        ..options.clone()
    };
    let mut found = match peer {
        Peer::DynBa { variant: Some(name) } => {
            one_variant(profile, &ablated(Ablation::Neither), name, evaluate)
        }
        Peer::DynBa { variant: None } => {
            plan_gears_with(profile, &ablated(Ablation::Neither), evaluate, |_| {})
        }
        Peer::MsPlus => model_switching(profile, &ablated(Ablation::NoCascade), evaluate),
        Peer::NoSwitching => plan_gears_with(profile, &ablated(Ablation::NoSwitching), evaluate, |_| {}),
        Peer::NoCascade => plan_gears_with(profile, &ablated(Ablation::NoCascade), evaluate, |_| {}),
    }?;
    found.plan.made_by = format!("{}: {}", peer.name(), found.plan.made_by);
    Ok(found)
}

/// A variant alone, as a cascade of one stage.
fn single(profile: &Profile, variant: usize) -> Cascade {
    let correct = profile
        .variants
        .get(variant)
        .map_or(&[][..], |variant| &variant.validation.correct);
    let right = correct.iter().filter(|right| **right).count();
    Cascade {
        variants: vec![variant],
        thresholds: Vec::new(),
        accuracy: right as f64 / profile.samples as f64,
        reach: vec![1.0],
    }
}

fn one_variant(
    profile: &Profile,
    options: &GearOptions,
    name: &str,
    evaluate: impl Evaluate,
) -> Result<GearPlan, GearError> {
    plan_gears_by(profile, options, evaluate, |context| {
        let variant = profile.variants.iter().position(|variant| variant.name == name);
        let variant = variant.ok_or_else(|| GearError::NoVariant {
            name: name.to_owned(),
        })?;
        let cascade = single(profile, variant);
        let mut placement = context.devices(ModelSet::default().with(variant));
        let needed = context.models().memory_bytes(variant);
        placement.retain(|group: &Group| needed <= group.memory_bytes);
        let load = context.ranges().first().copied().unwrap_or(LoadRange::ALL);
        let batching = match context.tune(&cascade, &placement, load)? {
            Some(tuned) => tuned,
            None => BatchingChoice {
                min_queue: 1,
                outcome: context.measure(&cascade, &placement, 1, options.qps_max)?,
            },
        };
        Ok(Decision {
            cascades: vec![cascade.clone()],
            placement,
            batching: vec![batching],
            pareto_cascades: vec![cascade],
        })
    })
}

/// The most accurate variant that holds the latency objective in every range, or the fastest where none does; under an accuracy
/// objective the switching of least latency that reaches it.
fn model_switching(
    profile: &Profile,
    options: &GearOptions,
    evaluate: impl Evaluate,
) -> Result<GearPlan, GearError> {
    plan_gears_by(profile, options, evaluate, |context| {
        switched(profile, options, context)
    })
}

fn switched<E: Evaluate>(
    profile: &Profile,
    options: &GearOptions,
    context: &mut Context<'_, E>,
) -> Result<Decision, GearError> {
    let placement = collocate(context.devices(ModelSet::default()), context.models());
    let hosted = placement
        .iter()
        .fold(ModelSet::default(), |set, group| set.union(group.hosted));
    let mut pareto_cascades: Vec<Cascade> = hosted.iter().map(|variant| single(profile, variant)).collect();
    pareto_cascades.sort_by(|a, b| a.accuracy.total_cmp(&b.accuracy));
    let mut outcomes: Vec<Vec<GearOutcome>> = Vec::new();
    for load in context.ranges().to_vec() {
        let mut row = Vec::new();
        for cascade in &pareto_cascades {
            row.push(context.measure(cascade, &placement, 1, load.to_qps.unwrap_or(load.from_qps))?);
        }
        outcomes.push(row);
    }
    let levels = match options.slo {
        Slo::Latency { p95_us } => outcomes.iter().map(|row| most_accurate(row, p95_us)).collect(),
        Slo::Accuracy { at_least } => {
            cheapest(context, &pareto_cascades, &outcomes, at_least).ok_or_else(|| GearError::Inaccurate {
                at_least,
                reached: pareto_cascades.last().map_or(0.0, |best| best.accuracy),
                devices: options.devices.len(),
                violation: None,
            })?
        }
    };
    let chosen = |level: &usize| pareto_cascades.get(*level).cloned();
    let outcome = |(row, level): (&Vec<GearOutcome>, &usize)| {
        row.get(*level).map(|outcome| BatchingChoice {
            min_queue: 1,
            outcome: *outcome,
        })
    };
    Ok(Decision {
        cascades: levels.iter().filter_map(chosen).collect(),
        batching: outcomes.iter().zip(&levels).filter_map(outcome).collect(),
        placement,
        pareto_cascades,
    })
}

/// The highest level that holds the objective, or the fastest of all.
fn most_accurate(row: &[GearOutcome], slo_us: u64) -> usize {
    let holds = |outcome: &GearOutcome| outcome.keeps_up && outcome.p95_us <= slo_us;
    let fastest = row
        .iter()
        .enumerate()
        .min_by_key(|(_, outcome)| (!outcome.keeps_up, outcome.p95_us));
    row.iter()
        .rposition(holds)
        .or(fastest.map(|(level, _)| level))
        .unwrap_or(0)
}

fn cheapest<E: Evaluate>(
    context: &Context<'_, E>,
    pareto_cascades: &[Cascade],
    outcomes: &[Vec<GearOutcome>],
    at_least: f64,
) -> Option<Vec<usize>> {
    context.fastest(pareto_cascades, at_least, |range, cascade| {
        let level = pareto_cascades.iter().position(|other| other == cascade);
        let outcome = level.and_then(|level| outcomes.get(range)?.get(level));
        let kept = outcome.filter(|outcome| outcome.keeps_up);
        kept.map_or(f64::INFINITY, |outcome| outcome.p95_us as f64)
    })
}

/// MS+ puts as many variants as fit on every device: first the one with the fewest replicas so far (the largest of several), then
/// whatever still fits, smallest first. So every variant that fits anywhere is somewhere.
fn collocate(kinds: Vec<Group>, models: &Models) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    let mut replicas = vec![0_usize; models.len()];
    let mut smallest_first: Vec<usize> = (0..models.len()).collect();
    smallest_first.sort_by_key(|model| models.memory_bytes(*model));
    for kind in kinds {
        for device in &kind.devices {
            let fits = |set: ModelSet| models.memory_of(set) <= kind.memory_bytes;
            let alone = smallest_first
                .iter()
                .rev()
                .filter(|model| fits(ModelSet::default().with(**model)));
            let rarest = alone.min_by_key(|model| replicas.get(**model).copied().unwrap_or(0));
            let mut hosted: ModelSet = rarest.copied().into_iter().collect();
            for model in &smallest_first {
                if fits(hosted.with(*model)) {
                    hosted = hosted.with(*model);
                }
            }
            for model in hosted.iter() {
                if let Some(count) = replicas.get_mut(model) {
                    *count += 1;
                }
            }
            let group = Group {
                hosted,
                devices: vec![*device],
                ..kind.clone()
            };
            join(&mut groups, group);
        }
    }
    groups
}

#[cfg(test)]
mod tests;
