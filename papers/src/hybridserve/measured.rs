//! Families of the project's own, from their measured profiles: accuracy kept, accuracy lost, energy saved.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use kaskade_app::charts::graph;
use kaskade_app::config::App;
use kaskade_app::planning::cascade;
use kaskade_app::report::{self, units};
use kaskade_planners::cascade::{CascadeOptions, CascadePlan, Objective, plan_cascade};
use kaskade_planners::thresholds::CostBasis;
use kaskade_policy::profile::Profile;

use crate::reproduction::{Claim, Reproduction};

/// The profiles that are compared where no app is named.
const OWN: [&str; 2] = [
    include_str!("../../../examples/digits/profile.json"),
    include_str!("../../../examples/sentiment/profile.json"),
];

/// The profiles of these apps, or the project's own where there are none.
///
/// # Errors
/// When an app or its profile cannot be read.
pub(super) fn profiles(apps: &[PathBuf]) -> anyhow::Result<Vec<Profile>> {
    if apps.is_empty() {
        let own = OWN.into_iter().map(Profile::from_json);
        return Ok(own.collect::<Result<_, _>>()?);
    }
    apps.iter().map(|app| profile_of(app)).collect()
}

/// Compares measured families.
///
/// # Errors
/// When a profile cannot be planned from, or a picture not be written.
pub(super) fn compare(
    profiles: &[Profile],
    out: &Path,
    seed: u64,
    found: &mut Reproduction,
) -> anyhow::Result<()> {
    for profile in profiles {
        family(profile, out, seed, found)?;
    }
    Ok(())
}

/// The profile beside an app's file.
fn profile_of(file: &Path) -> anyhow::Result<Profile> {
    let app = App::load(file)?;
    let path = file.with_file_name("profile.json");
    let text = std::fs::read_to_string(&path).with_context(|| {
        format!(
            "{} cannot be read; measure it: `kaskade profile --app {} --out {}`",
            path.display(),
            file.display(),
            path.display()
        )
    })?;
    let profile = Profile::from_json(&text).with_context(|| path.display().to_string())?;
    anyhow::ensure!(
        profile.app == app.name.as_str(),
        "{} is of app `{}`, not of `{}`; measure this one",
        path.display(),
        profile.app,
        app.name
    );
    Ok(profile)
}

fn family(profile: &Profile, out: &Path, seed: u64, found: &mut Reproduction) -> anyhow::Result<()> {
    let plan = |objective| {
        let options = CascadeOptions {
            objective,
            seed,
            ..CascadeOptions::default()
        };
        plan_cascade(profile, &options)
    };
    let (ap, eo) = (plan(Objective::Ap)?, plan(Objective::Eo)?);
    found.claims.extend([
        preserved(profile, &ap),
        bounded(profile, &eo),
        energy(profile, &ap, &eo),
    ]);
    found.assumptions.push(format!(
        "{}: measured on {}, energy {}; AP and EO with the safety margin of `plan cascade`, on {} validation samples",
        profile.app, profile.device, profile.energy_source, profile.samples
    ));
    let file = out.join(format!("hybridserve-energy-{}.svg", profile.app));
    let batch = CascadeOptions::default().batch;
    report::write_file(&file, &graph::svg(&cascade::graph(profile, &ap, batch))?)?;
    found.files.push(file);
    Ok(())
}

fn preserved(profile: &Profile, ap: &CascadePlan) -> Claim {
    let estimates = &ap.estimates;
    let met = estimates.accuracy >= estimates.largest_accuracy;
    Claim {
        name: format!("{} (measured): AP keeps the largest's accuracy", profile.app),
        paper: "equal".to_owned(),
        ours: format!(
            "{} and {}, {:.2} models run",
            units::percent(estimates.accuracy),
            units::percent(estimates.largest_accuracy),
            estimates.hops
        ),
        met,
        note: if met {
            String::new()
        } else {
            "the best variant of the family is not its largest, and AP keeps the accuracy of the best"
                .to_owned()
        },
    }
}

fn bounded(profile: &Profile, eo: &CascadePlan) -> Claim {
    let right = |place: usize| {
        let variant = profile.variants.get(place)?;
        let right = variant.validation.correct.iter().filter(|right| **right).count();
        Some(right as f64 / profile.samples.max(1) as f64)
    };
    let second = profile
        .variants
        .len()
        .checked_sub(2)
        .and_then(right)
        .unwrap_or(0.0);
    let met = eo.estimates.accuracy >= second;
    Claim {
        name: format!(
            "{} (measured): EO is no worse than the second largest",
            profile.app
        ),
        paper: "always better".to_owned(),
        ours: format!(
            "{}, the second largest {}, the largest {}",
            units::percent(eo.estimates.accuracy),
            units::percent(second),
            units::percent(eo.estimates.largest_accuracy)
        ),
        met,
        note: if met {
            String::new()
        } else {
            "EO is bound by the second most accurate variant, which is another here".to_owned()
        },
    }
}

fn energy(profile: &Profile, ap: &CascadePlan, eo: &CascadePlan) -> Claim {
    let times = [ap, eo].map(|planned| planned.estimates.largest_energy_j / planned.estimates.energy_j);
    let met = times.iter().all(|times| *times > 1.0);
    let unit = match ap.estimates.basis {
        CostBasis::Energy => "J",
        CostBasis::Latency => "s, standing in for unknown joules",
        CostBasis::Money => "of money",
    };
    let reach = ap.estimates.stages.last().map_or(0.0, |stage| stage.reach);
    Claim {
        name: format!("{} (measured): energy per request", profile.app),
        paper: "1.9x to 14x less with AP, 4.2x to 19.8x with EO".to_owned(),
        ours: format!(
            "{:.1}x less with AP, {:.1}x with EO: {}, {} and {}",
            times[0],
            times[1],
            units::prefixed(ap.estimates.largest_energy_j, unit),
            units::prefixed(ap.estimates.energy_j, unit),
            units::prefixed(eo.estimates.energy_j, unit)
        ),
        met,
        note: if met {
            format!(
                "in full batches, without the power of devices that wait; {} of the requests get to AP's last model",
                units::percent(reach)
            )
        } else {
            "the cascade needs more than the largest model: the small ones answer too few".to_owned()
        },
    }
}
