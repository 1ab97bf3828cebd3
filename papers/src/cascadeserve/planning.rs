//! The planner itself (CascadeServe §6.5 and §6.6, Figures 10 to 12): how near to the best it comes, how long it takes, and what
//! the effect of each of its ideas.

use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::charts::bars::{self, Bars};
use crate::peers::gears::Peer;
use kaskade_app::report::{self, units};
use kaskade_planners::gears::{GearOptions, Prior, Simulated, plan_gears};
use kaskade_planners::reference::{CascadeOutcomes, constrained};
use kaskade_policy::plan::Slo;

use super::field::{Contestant, Field};
use crate::reproduction::Claim;

/// Objectives of the sweep, as multiples of the least latency of the most accurate variant.
const SWEEP: [f64; 5] = [2.0, 3.0, 5.0, 8.0, 13.0];

/// Cascades and ranges of the constrained space: all assignments are 8 to the power of 6.
const CASCADES: u32 = 8;
const CONSTRAINED_RANGES: u32 = 6;

/// The constrained space of Figure 10: near exhaustive search, ahead of random sampling at twice the simulations.
///
/// # Errors
/// When an input is unusable.
pub(super) fn quality(field: &Field, devices: usize) -> anyhow::Result<Claim> {
    let largest = field.profile.variants.last();
    let least = largest
        .and_then(|variant| variant.costs.first())
        .map_or(1.0, |cost| cost.latency_s * 1e6);
    let (mut worst, mut ahead, mut compared, mut short) = (0.0_f64, 0, 0, Vec::new());
    for times in SWEEP {
        let slo = Slo::Latency {
            p95_us: (least * times) as u64,
        };
        let options = constrained(&small(field, devices, slo), CASCADES);
        let landscape =
            CascadeOutcomes::new(&field.profile, &options, Simulated::new(&field.profile, &options))?;
        let Some(best) = landscape.exhaustive()? else {
            continue;
        };
        let Ok(planned) = plan_gears(&field.profile, &options, |_| {}) else {
            short.push(format!("{times}x: no plan where exhaustive search has one"));
            worst = f64::INFINITY;
            continue;
        };
        compared += 1;
        let gap = (best.accuracy - planned.accuracy) / best.accuracy;
        worst = worst.max(gap);
        let budget = 2 * planned.effort.simulations / u64::from(CONSTRAINED_RANGES);
        let drawn = landscape.random(budget.max(1), field.seed);
        if drawn.is_none_or(|drawn| planned.accuracy >= drawn.accuracy) {
            ahead += 1;
        } else {
            short.push(format!("{times}x: random sampling is ahead"));
        }
    }
    let met = compared > 0 && worst <= 0.01 && ahead == compared;
    Ok(Claim {
        name: "planning: near exhaustive search, ahead of random sampling at twice the simulations"
            .to_owned(),
        paper: "closely approximates the frontier of exhaustive search".to_owned(),
        ours: format!(
            "worst gap {:.2} % over {compared} objectives; ahead of random in {ahead} of {compared}",
            worst.max(0.0) * 100.0
        ),
        met,
        note: short.join("; "),
    })
}

fn small(field: &Field, devices: usize, slo: Slo) -> GearOptions {
    GearOptions {
        ranges: CONSTRAINED_RANGES,
        prior: Prior::Zipf { s: 1.0 },
        ..field.options(devices, slo)
    }
}

/// How long a full plan takes (Figure 11).
///
/// # Errors
/// When there is no plan.
pub(super) fn speed(field: &Field, devices: usize, slo: Slo) -> anyhow::Result<Claim> {
    let begun = Instant::now();
    let planned = field.plan(&Contestant::CascadeServe, devices, slo)?;
    let seconds = begun.elapsed().as_secs_f64();
    Ok(Claim {
        name: format!("planning: the full workload `{}`", field.profile.app),
        paper: "a few minutes".to_owned(),
        ours: format!(
            "{} for {} gears on {devices} devices: {} submodule calls, {} simulations",
            units::seconds(seconds),
            planned.plan.gears.len(),
            planned.effort.calls(),
            planned.effort.simulations
        ),
        met: seconds < 10.0,
        note: if seconds < 10.0 {
            String::new()
        } else {
            "slower than the ten seconds that are this project's own bound; the machine may be busy"
                .to_owned()
        },
    })
}

/// The effects of switching and of cascades (Figure 12): accuracy on the same devices at the same objective.
///
/// # Errors
/// When a plan cannot be simulated.
pub(super) fn ablations(fields: &[(&Field, usize, u64)], folder: &Path) -> anyhow::Result<(Claim, PathBuf)> {
    let contestants = [
        Contestant::CascadeServe,
        Contestant::Peer(Peer::NoSwitching),
        Contestant::Peer(Peer::NoCascade),
        Contestant::Peer(Peer::MsPlus),
    ];
    let mut groups = Vec::new();
    for (field, devices, p95_us) in fields {
        let mut heights = Vec::new();
        for contestant in &contestants {
            let reached = field.reach(contestant, *devices, *p95_us)?;
            heights.push(reached.map_or(f64::NAN, |reached| reached.accuracy * 100.0));
        }
        let name = format!(
            "{}, {devices} devices, p95 {} ms",
            field.profile.app,
            *p95_us as f64 / 1e3
        );
        groups.push((name, heights));
    }
    let picture = Bars {
        title: "accuracy with parts of the planner left out".to_owned(),
        axis: "accuracy (%)".to_owned(),
        names: contestants.iter().map(|one| one.name().to_owned()).collect(),
        groups,
    };
    let file = folder.join("ablations.svg");
    report::write_file(&file, &bars::svg(&picture)?)?;
    Ok((ablation_claim(&picture), file))
}

fn ablation_claim(picture: &Bars) -> Claim {
    let shown = picture.groups.iter().map(|(name, heights)| {
        let figures = picture.names.iter().zip(heights).map(|(name, height)| {
            if height.is_finite() {
                format!("{name} {height:.2} %")
            } else {
                format!("{name} has no plan")
            }
        });
        format!("{name}: {}", figures.collect::<Vec<_>>().join(", "))
    });
    // A part that is left out must not help, and the planner must do better than with either part alone.
    let helps = |heights: &Vec<f64>| match heights.as_slice() {
        [full, rest @ ..] => rest.iter().all(|less| !less.is_finite() || *full + 0.05 >= *less),
        [] => false,
    };
    let gains = |heights: &Vec<f64>| match heights.as_slice() {
        [full, no_switching, no_cascade, ..] => [no_switching, no_cascade]
            .iter()
            .all(|less| !less.is_finite() || *full > **less + 0.05),
        _ => false,
    };
    let all = picture.groups.iter().map(|(_, heights)| heights);
    let idle: Vec<&str> = picture
        .groups
        .iter()
        .filter(|(_, heights)| !gains(heights))
        .map(|(name, _)| name.as_str())
        .collect();
    let met = all.clone().all(helps) && idle.is_empty();
    Claim {
        name: "ablation: switching and cascades each contribute".to_owned(),
        paper: "both optimisations contribute significantly".to_owned(),
        ours: shown.collect::<Vec<_>>().join("; "),
        met,
        note: if met {
            String::new()
        } else {
            format!("one of the two gains less than 0.05 points: {}", idle.join("; "))
        },
    }
}
