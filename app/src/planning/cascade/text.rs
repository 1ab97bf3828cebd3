//! Formats a planned cascade as text.

use kaskade_planners::cascade::CascadePlan;
use kaskade_planners::skips::{Reason, Split};
use kaskade_planners::thresholds::{CostBasis, FORWARD_ALL, Minimise, Point};
use kaskade_policy::confidence::deferral::{DeferralScore, Feature};
use kaskade_policy::plan::{Band, Exit, Plan, Stage, Target};
use kaskade_policy::profile::Profile;
use kaskade_policy::remote::price;

use super::unit;
use crate::planning::gears;
use crate::report::profile_warnings;
use crate::report::table::{Align, table};
use crate::report::units;

/// Number of frontier points shown besides the named ones.
const EXCERPT: usize = 10;

/// Returns a planned cascade as text.
pub fn as_text(profile: &Profile, planned: &CascadePlan) -> String {
    let estimates = &planned.estimates;
    let cost = |cost: f64| amount(cost, estimates.basis);
    let kind = if planned.frontier.exact {
        "exact"
    } else {
        "heuristic search"
    };
    // The frontier is computed on all samples, so its accuracies differ.
    let held_out = match (&planned.plan.certificate, planned.certification) {
        (Some(certificate), Some(_)) => {
            format!(
                ", on the {} samples that it was not chosen on",
                certificate.samples
            )
        }
        _ => String::new(),
    };
    let expected = format!(
        "expected{held_out}: {} right at {} per request, {:.2} models run; {} alone: {} right at {}, {} as much",
        units::percent(estimates.accuracy),
        cost(estimates.energy_j),
        estimates.hops,
        profile
            .variants
            .last()
            .map_or("the largest", |variant| variant.name.as_str()),
        units::percent(estimates.largest_accuracy),
        cost(estimates.largest_energy_j),
        units::times(Some(estimates.largest_energy_j / estimates.energy_j)),
    );
    let mut parts = vec![
        format!(
            "{}: {}, from {}{} on {}, energy {}",
            planned.plan.app,
            planned.plan.made_by,
            units::count_of(profile.samples, "validation sample", "validation samples"),
            gears::judged(profile.judge.as_deref()),
            profile.device,
            profile.energy_source
        ),
        frontier_text(profile, planned, kind),
        format!("\nplan\n{}", stage_table(planned)),
        expected,
        skips_line(planned),
        promise(planned) + &profile_warnings::remarks_on_plan(profile, planned.plan.certificate.is_some()),
    ];
    parts.extend(stands_in(profile, planned));
    let placed = |name: &str| {
        planned
            .plan
            .placement
            .iter()
            .any(|replica| replica.variant == name)
    };
    parts.extend(planned.dropped.iter().map(|dropped| {
        if placed(&dropped.name) {
            return format!(
                "`{}` answers no requests now; it stays loaded for audits, and to answer when they refute the plan's cascades",
                dropped.name
            );
        }
        let reason = match dropped.reason {
            Reason::NoEnergyBenefit {
                benefit,
                energy_before,
                energy_after,
            } => format!(
                "its {} benefit is {} per request: {} with it, {} without",
                match estimates.basis {
                    CostBasis::Energy => "energy",
                    CostBasis::Latency => "latency",
                    CostBasis::Money => "cost",
                },
                cost(benefit),
                cost(energy_before),
                cost(energy_after)
            ),
            Reason::CheaperWithout => "the cheapest certified cascade does not use it".to_owned(),
            Reason::NeverReached => "no validation sample is escalated to it".to_owned(),
        };
        format!("dropped {}: {reason}", dropped.name)
    }));
    parts.join("\n")
}

/// Returns the note that seconds are minimised instead of joules, if joules of a variant are unknown.
fn stands_in(profile: &Profile, planned: &CascadePlan) -> Option<String> {
    if (planned.minimised, planned.estimates.basis) != (Minimise::Energy, CostBasis::Latency) {
        return None;
    }
    let unknown = profile.variants.iter();
    let unknown = unknown.filter(|variant| variant.costs.iter().any(|cost| cost.energy_j.is_none()));
    let names: Vec<String> = unknown.map(|variant| format!("`{}`", variant.name)).collect();
    Some(format!(
        "the joules of {} are unknown: seconds are minimised in their place",
        names.join(", ")
    ))
}

/// Describes what is certified about the plan.
fn promise(planned: &CascadePlan) -> String {
    let (Some(certificate), Some(tested)) = (&planned.plan.certificate, planned.certification) else {
        return uncertified(planned);
    };
    let proven = gears::guarantee(certificate);
    let counted = match (certificate.lost, certificate.gained) {
        (Some(lost), Some(gained)) => {
            format!(
                "{} right, {lost} lost and {gained} gained against it",
                certificate.right
            )
        }
        _ => format!("{} right", certificate.right),
    };
    let next = match tested.next_needs {
        Some(samples) => format!("; about {samples} validation samples would certify a cheaper one"),
        None => String::new(),
    };
    let safer = planned
        .plan
        .certified
        .as_ref()
        .map_or(0, |list| list.cascades.len().saturating_sub(1));
    let safer = match safer {
        0 => String::new(),
        1 => "; a safer one is kept, to run when audits refute this one".to_owned(),
        _ => format!("; {safer} safer ones are kept, to run when audits refute this one"),
    };
    format!(
        "certified with {} confidence: {proven}, by {} samples that it was not chosen on ({counted}; p = {:.4}); {} of {} cascades \
         passed{next}{safer}",
        units::percent(certificate.confidence),
        certificate.samples,
        certificate.p_value,
        tested.passed,
        tested.candidates,
    )
}

/// Loss against the largest variant, estimated on samples that the plan was not chosen on, from which a plan is warned about.
const NOTABLE_LOSS: f64 = 0.005;

fn uncertified(planned: &CascadePlan) -> String {
    // The estimate is of cascades of all variants.
    let is_cascade = planned
        .plan
        .gears
        .first()
        .is_some_and(|gear| gear.wiring.stages.len() > 1);
    let Some(held_out) = planned.estimates.held_out.filter(|_| is_cascade) else {
        return "Not certified. `--max-loss 1%` proves a bound on the loss of accuracy.".to_owned();
    };
    let points = |share: f64| format!("{:+.2}", 100.0 * share);
    let [low, high] = held_out.interval;
    let warning = if held_out.difference < -NOTABLE_LOSS
        && planned.estimates.accuracy > planned.estimates.largest_accuracy - NOTABLE_LOSS
    {
        "\nwarning: on the validation samples this plan is about as accurate as the largest variant, but it was chosen on them, and the \
         estimate is lower. Profile more samples or fewer variants, or use `--max-loss`"
    } else {
        ""
    };
    format!(
        "Not certified. Cross-validated estimate (all variants, no skip connections): accuracy {}, {} points vs. the largest variant (95 % CI \
         {} to {}). `--max-loss 1%` proves a bound.{warning}",
        units::percent(held_out.accuracy),
        points(held_out.difference),
        points(low),
        points(high),
    )
}

/// Returns whether the largest variant alone is as accurate at no higher cost. A cascade runs the variants before it
/// too.
fn is_dominated(point: &Point, profile: &Profile, planned: &CascadePlan) -> bool {
    let Some(largest) = profile.variants.last() else {
        return false;
    };
    let right = largest.validation.correct.iter().filter(|right| **right).count();
    let accuracy = right as f64 / profile.samples.max(1) as f64;
    let cost = planned.estimates.largest_energy_j;
    let is_better = accuracy > point.accuracy || cost < point.energy_j;
    accuracy >= point.accuracy && cost <= point.energy_j && is_better
}

/// Formats the frontier without the cascades that the largest variant alone dominates.
fn frontier_text(profile: &Profile, planned: &CascadePlan, kind: &str) -> String {
    let keeps = |point: &&Point| !is_dominated(point, profile, planned);
    let points: Vec<&Point> = planned.frontier.points.iter().filter(keeps).collect();
    let named = [(&planned.eo, "EO"), (&planned.ap, "AP")];
    let (shown, left_out): (Vec<_>, Vec<_>) = named.into_iter().partition(|(point, _)| keeps(point));
    let mut left_out: Vec<String> = left_out.iter().map(|(_, name)| (*name).to_owned()).collect();
    let dominated = planned.frontier.points.len() - points.len();
    if dominated > 0 {
        left_out.push(units::count_of(dominated, "cascade", "cascades"));
    }
    let remark = if left_out.is_empty() {
        String::new()
    } else {
        format!(
            "\nleft out, because the largest variant alone is as accurate at no more cost: {}",
            left_out.join(", ")
        )
    };
    format!(
        "\nfrontier: {} ({kind})\n{}{remark}",
        units::count_of(points.len(), "cascade", "cascades"),
        frontier_table(profile, planned, &points, shown)
    )
}

/// Formats evenly spaced points of the frontier, and all named ones.
fn frontier_table<'a>(
    profile: &Profile,
    planned: &CascadePlan,
    points: &[&'a Point],
    labelled: Vec<(&'a Point, &'static str)>,
) -> String {
    let last = points.len().saturating_sub(1);
    let step = (last as f64 / (EXCERPT - 1) as f64).max(1.0);
    let spread = (0..EXCERPT)
        .map(|n| (n as f64 * step).round() as usize)
        .filter(|place| *place <= last);
    let mut shown: Vec<(&Point, &str)> = spread
        .filter_map(|place| Some((*points.get(place)?, "")))
        .collect();
    shown.retain(|(point, _)| **point != planned.ap && **point != planned.eo);
    shown.extend(labelled);
    shown.sort_by(|(a, _), (b, _)| a.energy_j.total_cmp(&b.energy_j));
    let largest = planned.estimates.largest_energy_j;
    let rows = shown.into_iter().map(|(point, name)| {
        let answered = point.answered.iter().map(|share| format!("{:.0}", share * 100.0));
        [
            name.to_owned(),
            units::percent(point.accuracy),
            amount(point.energy_j, planned.estimates.basis),
            units::times(Some(largest / point.energy_j)),
            answered.collect::<Vec<_>>().join(" / "),
            point
                .thresholds
                .iter()
                .map(|threshold| threshold_text(*threshold))
                .collect::<Vec<_>>()
                .join(" / "),
        ]
    });
    let names: Vec<&str> = profile
        .variants
        .iter()
        .map(|variant| variant.name.as_str())
        .collect();
    let shares = format!("answered by {}, %", names.join(" / "));
    table(
        [
            ("", Align::Left),
            ("accuracy", Align::Right),
            ("per request", Align::Right),
            ("saved", Align::Right),
            (shares.as_str(), Align::Left),
            ("thresholds", Align::Left),
        ],
        rows,
    )
}

fn threshold_text(threshold: f64) -> String {
    if threshold >= FORWARD_ALL {
        "all on".to_owned()
    } else {
        format!("{threshold:.3}")
    }
}

/// Formats the stages of the plan.
fn stage_table(planned: &CascadePlan) -> String {
    let rows = stages(&planned.plan).map(|stage| {
        let estimate = planned
            .estimates
            .stages
            .iter()
            .find(|estimate| estimate.variant == stage.variant);
        let share = |pick: fn(&kaskade_planners::cascade::StageEstimate) -> f64| {
            estimate.map_or_else(|| "-".to_owned(), |estimate| units::percent(pick(estimate)))
        };
        [
            stage.name.clone(),
            share(|estimate| estimate.reach),
            share(|estimate| estimate.answered),
            score_text(stage.score.as_ref()) + &exit_text(&stage.exit),
        ]
    });
    table(
        [
            ("stage", Align::Left),
            ("reach", Align::Right),
            ("answers", Align::Right),
            ("by confidence", Align::Left),
        ],
        rows,
    )
}

fn stages(plan: &Plan) -> impl Iterator<Item = &Stage> {
    plan.gears.iter().flat_map(|gear| &gear.wiring.stages)
}

/// Formats the deferral score of a stage, with its most important features; empty without a score.
fn score_text(score: Option<&DeferralScore>) -> String {
    let Some(score) = score else {
        return String::new();
    };
    let mut weights: Vec<(&Feature, f64)> = Vec::new();
    for term in score.terms() {
        match weights.iter_mut().find(|(feature, _)| **feature == term.feature) {
            Some((_, weight)) => *weight += term.weight.abs(),
            None => weights.push((&term.feature, term.weight.abs())),
        }
    }
    weights.sort_by(|a, b| b.1.total_cmp(&a.1));
    let names: Vec<String> = weights
        .iter()
        .take(3)
        .map(|(feature, _)| feature.to_string())
        .collect();
    if names.is_empty() {
        return format!("{}: ", score.name());
    }
    format!("{} of {}: ", score.name(), names.join(", "))
}

fn exit_text(exit: &Exit) -> String {
    match exit {
        Exit::Bands { bands } => {
            let text = |band: &Band| {
                let to = match &band.to {
                    Target::Reply => "reply",
                    Target::Stage(edge) => edge.stage.as_str(),
                };
                format!("from {:.3} {to}", band.from)
            };
            bands.iter().map(text).collect::<Vec<_>>().join(", ")
        }
        Exit::Reply => "reply".to_owned(),
        Exit::Next { to } => format!("then {}", to.stage),
        Exit::FanOut { children } => {
            let names: Vec<&str> = children.iter().map(|child| child.to.stage.as_str()).collect();
            format!("to each of {}", names.join(", "))
        }
    }
}

fn skips_line(planned: &CascadePlan) -> String {
    let split = match planned.split {
        Split::None if planned.skips.len() < 2 => "none".to_owned(),
        Split::None => {
            let saved = match planned.estimates.basis {
                CostBasis::Energy => "energy",
                CostBasis::Latency => "time",
                CostBasis::Money => "money",
            };
            format!("none saves {saved} at the accuracy that the plan must keep")
        }
        Split::Even => "each range below a threshold, split evenly".to_owned(),
        Split::LogUniform => "each range below a threshold, split log-uniformly".to_owned(),
    };
    format!("skip connections: {split}")
}

/// Formats a cost with its unit. Money is in the currency of the app's prices.
pub(super) fn amount(cost: f64, basis: CostBasis) -> String {
    match basis {
        CostBasis::Money => price::written(cost),
        CostBasis::Energy | CostBasis::Latency => units::prefixed(cost, unit(basis)),
    }
}
