//! A load that jumps (CascadeServe §6.4, Figure 8): which systems hold the latency objective, at which accuracy, on how many devices.

use std::path::{Path, PathBuf};

use crate::charts::over_time;
use crate::peers::cocktail::{Autoscale, ensembles, plan_cocktail};
use crate::peers::gears::Peer;
use kaskade_app::charts::panels::{self, Panel, Panels};
use kaskade_app::report::{self, units};
use kaskade_policy::plan::{Plan, Slo};
use kaskade_simulator::trace::Trace;
use kaskade_simulator::{Bucket, SimConfig, Timeline};

use super::field::{Contestant, Field};
use crate::reproduction::Claim;

/// The objective, microseconds. The paper states none; this is the scale of its plot.
pub(super) const P95_US: u64 = 400_000;

/// Two spikes, the second one higher: seconds and shares of the peak.
const COURSE: [(usize, f64); 5] = [(40, 0.1), (20, 0.5), (40, 0.1), (20, 1.0), (40, 0.1)];

/// The paper's fleets: ours, MS+'s and DynBa's.
const FLEETS: [usize; 3] = [1, 3, 4];

/// One run.
struct Run {
    name: &'static str,
    devices: f64,
    course: Vec<Bucket>,
    accuracy: f64,
    /// Share of seconds with answers whose p95 held the objective.
    held: f64,
    worst_ms: f64,
}

/// The load, second by second.
///
/// # Errors
/// Never for a sound peak.
pub(super) fn course(peak_qps: f64) -> anyhow::Result<Trace> {
    let rates = COURSE
        .iter()
        .flat_map(|(seconds, share)| std::iter::repeat_n(peak_qps * share, *seconds));
    Ok(Trace::per_second(rates.collect())?)
}

/// Runs all systems and draws them; returns the claims and the picture.
///
/// # Errors
/// When a plan cannot be made or simulated.
pub(super) fn compare(field: &Field, folder: &Path) -> anyhow::Result<(Vec<Claim>, PathBuf)> {
    let [few, some, many] = FLEETS;
    let slo = Slo::Latency { p95_us: P95_US };
    let ours = field.plan(&Contestant::CascadeServe, few, slo)?.plan;
    let switching = field.plan(&Contestant::Peer(Peer::MsPlus), some, slo)?.plan;
    // As in the paper, the static model is one that the spike is too much for: the most accurate there is.
    let largest = field.profile.variants.last().map(|variant| variant.name.clone());
    let fixed = field
        .plan(&Contestant::Peer(Peer::DynBa { variant: largest }), many, slo)?
        .plan;
    let runs = [
        run(field, "CascadeServe", few as f64, &ours, SimConfig::default())?,
        run(field, "MS+", some as f64, &switching, SimConfig::default())?,
        run(field, "DynBa", many as f64, &fixed, SimConfig::default())?,
        cocktail(field)?,
    ];
    let file = folder.join("spike.svg");
    report::write_file(&file, &panels::svg(&picture(&runs))?)?;
    Ok((claims(&runs), file))
}

/// The ensemble whose accuracy is nearest to that of the most accurate variant, autoscaled every ten seconds.
fn cocktail(field: &Field) -> anyhow::Result<Run> {
    let options = field.options(1, Slo::Latency { p95_us: P95_US });
    let all = ensembles(&field.profile, &options, 2)?;
    let ensemble = all
        .last()
        .ok_or_else(|| anyhow::anyhow!("the family has no ensemble"))?;
    let autoscale = Autoscale {
        period_us: 10_000_000,
        ..Autoscale::default()
    };
    let planned = plan_cocktail(
        &field.profile,
        &options,
        ensemble,
        &autoscale,
        &field.trace.rates(),
    )?;
    let config = SimConfig {
        timeline: planned.timeline,
        initially_down: planned.initially_down,
        ..SimConfig::default()
    };
    run(field, "Cocktail+", planned.mean_devices, &planned.plan, config)
}

fn run(
    field: &Field,
    name: &'static str,
    devices: f64,
    plan: &Plan,
    config: SimConfig,
) -> anyhow::Result<Run> {
    let mut timeline = Timeline::new(1_000_000);
    let report = field.simulate(plan, config, &mut timeline)?;
    let course = timeline.finish();
    let judged = course.iter().filter_map(|bucket| bucket.p95_us);
    let seconds = judged.clone().count();
    let held = judged.clone().filter(|p95_us| *p95_us <= P95_US).count();
    Ok(Run {
        name,
        devices,
        accuracy: report.accuracy().unwrap_or(0.0),
        held: held as f64 / seconds.max(1) as f64,
        worst_ms: judged.max().unwrap_or(0) as f64 / 1e3,
        course,
    })
}

fn claims(runs: &[Run; 4]) -> Vec<Claim> {
    let [ours, switching, fixed, cocktail] = runs;
    let says = |run: &Run| {
        format!(
            "{} on {:.1} device(s): {} of seconds within {} ms, worst second {:.0} ms, {} right",
            run.name,
            run.devices,
            units::percent(run.held),
            P95_US / 1000,
            run.worst_ms,
            units::percent(run.accuracy)
        )
    };
    let holds = ours.held >= 0.99;
    let breaks = |run: &Run| run.worst_ms > 2.0 * P95_US as f64 / 1e3;
    let reason = |met: bool, why: &str| if met { String::new() } else { why.to_owned() };
    let beats = ours.accuracy >= switching.accuracy;
    vec![
        Claim {
            name: "spike: CascadeServe holds the objective on one device".to_owned(),
            paper: "holds it with a minor loss of accuracy".to_owned(),
            ours: says(ours),
            met: holds,
            note: reason(
                holds,
                "a shift takes a tick of 100 ms to be seen, and the queue of that tick a while to drain",
            ),
        },
        Claim {
            name: "spike: DynBa breaks it on four devices".to_owned(),
            paper: "p95 shoots up at the large peak".to_owned(),
            ours: says(fixed),
            met: breaks(fixed),
            note: reason(
                breaks(fixed),
                "four devices carry the whole peak with the stated latencies",
            ),
        },
        Claim {
            name: "spike: MS+ on three devices is less accurate than CascadeServe on one".to_owned(),
            paper: "its accuracy is worse throughout".to_owned(),
            ours: says(switching),
            met: beats,
            note: reason(
                beats,
                "three devices carry a single model at most loads that is as accurate as our cascades on one",
            ),
        },
        Claim {
            name: "spike: Cocktail+ breaks it while models load".to_owned(),
            paper: "latency shoots up at every peak".to_owned(),
            ours: says(cocktail),
            met: breaks(cocktail),
            note: reason(breaks(cocktail), "the forecast is exact and comes a period ahead"),
        },
    ]
}

fn picture(runs: &[Run]) -> Panels {
    let series = |of: &dyn Fn(&Bucket) -> f64| {
        let each = runs.iter().map(|run| {
            let name = format!("{} ({:.0})", run.name, run.devices.ceil());
            over_time(name, &run.course, of)
        });
        each.collect::<Vec<_>>()
    };
    let load = runs
        .first()
        .map(|run| over_time("load", &run.course, |bucket| bucket.qps));
    Panels {
        title: "two spikes; devices in brackets".to_owned(),
        axis: "time (s)".to_owned(),
        rows: vec![
            Panel {
                axis: "p95 (ms)".to_owned(),
                series: series(&|bucket| bucket.p95_us.map_or(f64::NAN, |us| us as f64 / 1e3)),
                level: Some((P95_US as f64 / 1e3, "objective".to_owned())),
                top: Some(5.0 * P95_US as f64 / 1e3),
                ..Panel::default()
            },
            Panel {
                axis: "accuracy (%)".to_owned(),
                series: series(&|bucket| bucket.accuracy.map_or(f64::NAN, |share| share * 100.0)),
                ..Panel::default()
            },
            Panel {
                axis: "load (requests/s)".to_owned(),
                series: load.into_iter().collect(),
                ..Panel::default()
            },
        ],
    }
}
