//! Plans gears for an app: the planner's options and the text output.

use kaskade_planners::gears::{Cascade, DeviceSpec, GearOptions, GearPlan, Unaudited};
use kaskade_policy::plan::{Certificate, Gear, Guarantee, MAX_CERTIFIED, Plan, Slo};
use kaskade_policy::profile::Profile;

use crate::charts::panels::{Panel, Panels, Series, Shape};
use crate::config::App;
use crate::config::scalar::ByteSize;
use crate::planning::PlanningError;
use crate::planning::worker_device::worker_device;
use crate::report::profile_warnings;
use crate::report::table::{Align, table};
use crate::report::units;

/// Returns the latency objective for planning the gears of an app. The planner bounds the 95th percentile, which also
/// bounds lower quantiles.
///
/// # Errors
/// [`PlanningError::Quantile`] if the app's objective is a higher quantile.
pub fn objective(app: &App) -> Result<Slo, PlanningError> {
    let limit = app.slo.implied_by_p95().ok_or_else(|| PlanningError::Quantile {
        quantile: app.slo.quantile(),
        limit: app.slo.limit().to_string(),
    })?;
    Ok(Slo::Latency {
        p95_us: limit.as_micros(),
    })
}

/// Returns the devices of an app, one per worker, with `memory_bytes` for workers that state no memory.
///
/// # Errors
/// [`PlanningError::SeveralDevices`] if variants run on different devices of a worker.
pub fn devices(app: &App, memory_bytes: u64) -> Result<Vec<DeviceSpec>, PlanningError> {
    let device = |worker: &crate::config::WorkerConfig| {
        Ok(DeviceSpec {
            worker: worker.name.to_string(),
            device: worker_device(app, worker)?.to_string(),
            memory_bytes: worker.memory.map_or(memory_bytes, ByteSize::bytes),
            speed: 1.0,
        })
    };
    app.workers.iter().map(device).collect()
}

/// Limits the batch sizes in the options to those that the app allows.
pub fn limit_batches(options: &mut GearOptions, app: &App) {
    let limits = &mut options.batching;
    limits.max_batch = app.batching.max_batch.get();
    limits.max_min_queue = limits.max_min_queue.min(limits.max_batch);
}

/// Formats a gear plan as text.
pub fn as_text(profile: &Profile, planned: &GearPlan) -> String {
    let plan = &planned.plan;
    let promise = match plan.slo {
        Some(Slo::Latency { p95_us }) => format!("promises p95 at most {}", micros(p95_us)),
        Some(Slo::Accuracy { at_least }) => format!("aims at accuracy at least {}", units::percent(at_least)),
        None => "promises nothing".to_owned(),
    };
    let rows = plan.gears.iter().map(|gear| row(profile, planned, gear));
    let gears = table(
        [
            ("gear", Align::Left),
            ("requests/s", Align::Right),
            ("cascade", Align::Left),
            ("batch from", Align::Right),
            ("accuracy", Align::Right),
            ("p95", Align::Right),
            ("busiest device", Align::Right),
            ("of time", Align::Right),
        ],
        rows,
    );
    let effort = planned.effort;
    let uncertified = || {
        "\nnot certified: accuracies are those on the samples that the cascades were chosen on; `--max-loss 1%` proves a bound".to_owned()
    };
    let certified = plan.certificate.as_ref().map_or_else(uncertified, |certificate| {
        format!(
            "\ncertified with {} confidence: every gear is {}, by {} samples that it was not chosen on (p = {:.4} for the gear closest to \
             missing it)",
            units::percent(certificate.confidence),
            guarantee(certificate),
            certificate.samples,
            certificate.p_value,
        )
    });
    let unaudited = planned.unaudited.map_or_else(String::new, |reason| {
        format!("\nnot audited when it serves: {}", not_audited(profile, reason))
    });
    let note = profile_warnings::remarks_on_plan(profile, plan.certificate.is_some());
    format!(
        "{}: {}, {promise}\n{gears}\nexpected, weighed by what each gear serves: {} right, mean of the gears' p95 {}\n{} on {}; \
         {}{certified}{unaudited}{note}",
        plan.app,
        plan.made_by,
        units::percent(planned.accuracy),
        micros(planned.p95_us.round() as u64),
        units::count_of(plan.placement.len(), "replica", "replicas"),
        units::count_of(devices_used(plan), "device", "devices"),
        units::count_of(effort.simulations, "simulation", "simulations"),
    )
}

/// Explains why a plan cannot be audited, with a remedy.
fn not_audited(profile: &Profile, reason: Unaudited) -> String {
    match reason {
        Unaudited::LargestNotPlaced => format!(
            "no device has room for `{}`, which audits ask; give the devices more memory",
            profile
                .variants
                .last()
                .map_or("the largest variant", |variant| variant.name.as_str())
        ),
        Unaudited::TooManyCascades => {
            format!("its gears run more than {MAX_CERTIFIED} certified cascades; plan with fewer `--ranges`")
        }
    }
}

/// Describes what a certificate proves.
pub(super) fn guarantee(certificate: &Certificate) -> String {
    let judged = judged(certificate.judge.as_deref());
    match &certificate.guarantee {
        Guarantee::MaxLoss { loss, against } => {
            format!(
                "at most {:.2} points less accurate than {against} alone{judged}",
                100.0 * loss
            )
        }
        Guarantee::MinAccuracy { accuracy } => {
            format!("at least {} right{judged}", units::percent(*accuracy))
        }
        _ => "as the plan's certificate says".to_owned(),
    }
}

/// Returns what decides which answers are right, in parentheses after a space; empty for labels.
pub(super) fn judged(judge: Option<&str>) -> String {
    judge.map_or_else(String::new, |judge| {
        format!(" (judged by `{judge}`, not by labels)")
    })
}

/// Returns how many devices host a replica.
pub fn devices_used(plan: &Plan) -> usize {
    let devices = plan
        .placement
        .iter()
        .map(|replica| (&replica.worker, &replica.device));
    devices.collect::<std::collections::BTreeSet<_>>().len()
}

fn row(profile: &Profile, planned: &GearPlan, gear: &Gear) -> [String; 8] {
    let load = match gear.load.to_qps {
        Some(to) => format!("{:.0} .. {to:.0}", gear.load.from_qps),
        None => format!("{:.0} and more", gear.load.from_qps),
    };
    let first = gear.wiring.stages.first();
    let expected = |of: &dyn Fn(&kaskade_policy::plan::Expected) -> String| {
        gear.expected.as_ref().map_or_else(|| "-".to_owned(), of)
    };
    [
        gear.name.clone(),
        load,
        cascade_of(profile, planned, gear),
        first.map_or_else(String::new, |stage| stage.batching.min_queue.to_string()),
        expected(&|figures| units::percent(figures.accuracy)),
        expected(&|figures| micros(figures.p95_us)),
        expected(&|figures| units::percent(figures.utilisation)),
        expected(&|figures| units::percent(figures.time_share)),
    ]
}

/// Formats the cascade of a gear as its variants with the thresholds between them: `tiny 0.83> base`.
fn cascade_of(profile: &Profile, planned: &GearPlan, gear: &Gear) -> String {
    let variants: Vec<&str> = gear
        .wiring
        .stages
        .iter()
        .map(|stage| stage.variant.as_str())
        .collect();
    let name = |index: &usize| {
        profile
            .variants
            .get(*index)
            .map_or("?", |variant| variant.name.as_str())
    };
    let accuracy = gear.expected.map(|expected| expected.accuracy);
    let same = |cascade: &&Cascade| {
        cascade.variants.iter().map(name).eq(variants.iter().copied())
            && accuracy.is_none_or(|accuracy| (accuracy - cascade.accuracy).abs() < 1e-9)
    };
    let Some(cascade) = planned.chosen.iter().find(same) else {
        return variants.join(" > ");
    };
    let thresholds = cascade
        .thresholds
        .iter()
        .map(|threshold| format!(" {threshold:.2}> "));
    let thresholds = thresholds.chain(std::iter::once(String::new()));
    let parts = variants.iter().zip(thresholds);
    parts
        .flat_map(|(name, bound)| [(*name).to_owned(), bound])
        .collect()
}

fn micros(us: u64) -> String {
    units::seconds(us as f64 / 1e6)
}

/// Returns charts of the planned accuracy, latency and utilisation by load.
pub fn picture(plan: &Plan) -> Panels {
    let steps = |of: &dyn Fn(&kaskade_policy::plan::Expected) -> f64| {
        let gears = plan.gears.iter();
        let ends = gears.filter_map(|gear| {
            let value = of(gear.expected.as_ref()?);
            let from = gear.load.from_qps;
            Some([
                (from, value),
                (gear.load.to_qps.unwrap_or(from * 1.1 + 1.0), value),
            ])
        });
        Series {
            name: "as planned".to_owned(),
            points: ends.flatten().collect(),
            shape: Shape::Line,
        }
    };
    let level = |value: f64| Some((value, "objective".to_owned()));
    let (accuracy_level, latency_level) = match plan.slo {
        Some(Slo::Latency { p95_us }) => (None, level(p95_us as f64 / 1e3)),
        Some(Slo::Accuracy { at_least }) => (level(at_least * 100.0), None),
        None => (None, None),
    };
    let panel = |axis: &str, series: Series, level| Panel {
        axis: axis.to_owned(),
        series: vec![series],
        level,
        ..Panel::default()
    };
    Panels {
        title: format!("{}: gears by load", plan.app),
        axis: "load (requests/s)".to_owned(),
        rows: vec![
            panel(
                "accuracy (%)",
                steps(&|figures| figures.accuracy * 100.0),
                accuracy_level,
            ),
            panel(
                "p95 (ms)",
                steps(&|figures| figures.p95_us as f64 / 1e3),
                latency_level,
            ),
            panel(
                "busiest device (%)",
                steps(&|figures| figures.utilisation * 100.0),
                None,
            ),
        ],
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use kaskade_planners::certify::{AccuracyTarget, CertifyOptions};
    use kaskade_planners::gears::plan_gears;

    use super::*;

    /// Regression: the text promised "accuracy at least 98 %" on the samples that the plan was chosen on.
    #[test]
    fn a_plan_says_whether_its_accuracies_are_certified() {
        let path = Path::new(kaskade_testkit::ROOT).join("examples/digits/profile.json");
        let profile = crate::planning::read_profile(&path).unwrap();
        let text = |slo, guarantee| {
            let options = GearOptions {
                ranges: 2,
                guarantee,
                ..GearOptions::serving(&profile, slo, 20.0, DeviceSpec::fleet(2, 1_000_000_000))
            };
            as_text(&profile, &plan_gears(&profile, &options, |_| {}).unwrap())
        };
        let (latency, accuracy) = (Slo::Latency { p95_us: 100_000 }, Slo::Accuracy { at_least: 0.95 });
        let free = text(accuracy, None);
        assert!(
            free.contains("aims at accuracy at least 95.00 %") && !free.contains("promises"),
            "{free}"
        );
        let proof = "not certified: accuracies are those on the samples that the cascades were chosen on";
        assert!(
            free.contains(proof) && text(latency, None).contains(proof),
            "{free}"
        );
        let target = AccuracyTarget::MaxLoss { loss: 0.05 };
        let certified = text(latency, Some(CertifyOptions::new(target)));
        assert!(
            certified.contains("certified with 95.00 % confidence"),
            "{certified}"
        );
        assert!(!certified.contains("not certified") && certified.contains("promises p95"));
    }
}
