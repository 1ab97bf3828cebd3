//! Plans again while an app is served, on request.

use std::sync::{Arc, Mutex, PoisonError};

use kaskade_actors::control::planner::{PlannerConfig, Planning};
use kaskade_actors::control::replan_trigger::ReplanTrigger;
use kaskade_actors::wire::PlanRequest;
use kaskade_planners::certify::CertifyOptions;
use kaskade_planners::demand::RunTimeEstimator;
use kaskade_planners::gears::{GearOptions, Prior, plan_gears};
use kaskade_policy::plan::Plan;
use kaskade_policy::profile::Profile;

use crate::config::App;
use crate::config::planner::GearPlannerConfig;
use crate::config::scalar::HumanDuration;
use crate::planning::batch_counts::RunTotals;
use crate::planning::{PlanningError, allocator, gears, initial};
use crate::report::in_one_line;

/// Returns the gear planner of an app, if one is configured.
///
/// # Errors
/// [`PlanningError`] if the profile cannot be read or belongs to another app.
pub fn planner(app: &App) -> Result<Option<PlannerConfig>, PlanningError> {
    if let Some(config) = &app.pipeline {
        return allocator::planner(app, config);
    }
    let Some(config) = &app.planner else {
        return Ok(None);
    };
    let profile = super::read_profile(&config.profile)?;
    if profile.app != app.name.as_str() {
        return Err(PlanningError::OtherProfileFile {
            path: config.profile.clone(),
            profile: profile.app,
            app: app.name.to_string(),
        });
    }
    let planning: Planning = {
        let (app, config) = (app.clone(), config.clone());
        let measured = Mutex::new(MeasuredProfile::new(profile, &config));
        Arc::new(move |request, running| {
            let mut measured = measured.lock().unwrap_or_else(PoisonError::into_inner);
            let profile = measured.corrected(request);
            plan(&app, &config, &profile, request, running).map_err(|error| in_one_line(&error))
        })
    };
    Ok(Some(PlannerConfig {
        planning,
        limit: config.timeout.duration(),
        replan_on_load_drift: config.replan_on_load_drift,
        trigger: config.interval.map_or(ReplanTrigger::OnRequest, |span| {
            ReplanTrigger::Periodic(span.duration())
        }),
    }))
}

/// A profile corrected by the run times that workers report.
struct MeasuredProfile {
    profile: Profile,
    run_times: RunTimeEstimator,
    totals: RunTotals,
}

impl MeasuredProfile {
    fn new(profile: Profile, config: &GearPlannerConfig) -> Self {
        Self {
            run_times: RunTimeEstimator::of_profile(&profile, config.run_times),
            totals: RunTotals::default(),
            profile,
        }
    }

    fn corrected(&mut self, request: &PlanRequest) -> Profile {
        for (variant, ran) in self.totals.since(&request.runs) {
            self.run_times.record(variant, ran);
        }
        self.run_times.corrected(&self.profile).0
    }
}

/// Returns a new plan for the objective and the guarantee of the running plan, or the app's if the running plan has
/// none.
fn plan(
    app: &App,
    config: &GearPlannerConfig,
    profile: &Profile,
    request: &PlanRequest,
    running: Option<&Plan>,
) -> Result<Plan, PlanningError> {
    let qps_max = request.peak_qps.or_else(|| highest_load(running?));
    let qps_max = qps_max.ok_or(PlanningError::NoPeak)?;
    let slo = match running.and_then(|plan| plan.slo) {
        Some(slo) => slo,
        None => gears::objective(app)?,
    };
    let promised = running.and_then(|plan| CertifyOptions::from_certificate(plan.certificate.as_ref()?));
    let ranges = config.ranges.get();
    let measured =
        running.and_then(|plan| Prior::measured(&plan.gears, &request.measured, ranges as usize, qps_max));
    let mut options = GearOptions {
        ranges,
        guarantee: promised.or_else(|| app.guarantee?.certify()),
        ..GearOptions::serving(profile, slo, qps_max, gears::devices(app, config.memory.bytes())?)
            .with_hop(profile, config.hop_latency.map(HumanDuration::as_micros))
    };
    options.prior = measured.unwrap_or(options.prior);
    gears::limit_batches(&mut options, app);
    let plan = plan_gears(profile, &options, |_| {})?.plan;
    initial::check(app, &plan)?;
    Ok(plan)
}

/// Returns the highest load that a plan was made for, requests/s.
fn highest_load(plan: &Plan) -> Option<f64> {
    let last = plan.gears.last()?;
    last.load
        .to_qps
        .or(Some(last.load.from_qps))
        .filter(|qps| *qps > 0.0)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use kaskade_actors::wire::Runs;
    use kaskade_planners::demand::RunTimeOptions;

    use super::*;

    /// Returns a report of `batches` batches of one request, each three times as slow as profiled.
    fn told(profile: &Profile, batches: u64) -> PlanRequest {
        let variant = &profile.variants[0];
        let runs = Runs {
            batches,
            requests: batches,
            busy_us: (3e6 * variant.costs[0].latency_s * batches as f64) as u64,
        };
        let runs = BTreeMap::from([(variant.name.clone(), runs)]);
        PlanRequest {
            runs: BTreeMap::from([("w".to_owned(), runs)]),
            ..PlanRequest::default()
        }
    }

    /// Regression: a plan made with `plan gears --max-loss` was replaced by one without a certificate.
    #[test]
    fn a_new_plan_is_certified_as_the_running_one_is() {
        let folder = Path::new(kaskade_testkit::ROOT).join("examples/digits");
        let profile = crate::planning::read_profile(&folder.join("profile.json")).unwrap();
        let mut app = App::load(&folder.join("app.toml")).unwrap();
        let config: GearPlannerConfig = toml::from_str("profile = \"profile.json\"\nranges = 2").unwrap();
        let request = PlanRequest {
            peak_qps: Some(20.0),
            ..PlanRequest::default()
        };
        let of = |app: &App, running: Option<&Plan>| {
            let certificate = plan(app, &config, &profile, &request, running)
                .unwrap()
                .certificate;
            certificate.map(|certificate| (certificate.guarantee, certificate.confidence))
        };
        assert_eq!(of(&app, None), None);
        let guarantee = |text: &str| toml::from_str(text).ok();
        app.guarantee = guarantee("max_loss = \"5%\"\nconfidence = \"90%\"");
        let running = plan(&app, &config, &profile, &request, None).unwrap();
        let promised = of(&app, Some(&running));
        assert!(promised.is_some());
        for of_app in [None, guarantee("max_loss = \"8%\"")] {
            app.guarantee = of_app;
            assert_eq!(of(&app, Some(&running)), promised);
        }
    }

    #[test]
    fn gears_are_planned_with_the_run_times_that_workers_report() {
        let path = Path::new(kaskade_testkit::ROOT).join("examples/digits/profile.json");
        let profile = crate::planning::read_profile(&path).unwrap();
        let mut measured = MeasuredProfile {
            run_times: RunTimeEstimator::of_profile(&profile, RunTimeOptions::default()),
            totals: RunTotals::default(),
            profile: profile.clone(),
        };
        assert_eq!(measured.corrected(&told(&profile, 5)), profile, "too few batches");
        let corrected = measured.corrected(&told(&profile, 1_000));
        for (now, before) in corrected.variants.iter().zip(&profile.variants) {
            let times = now.costs[0].latency_s / before.costs[0].latency_s;
            assert!((2.9..3.1).contains(&times), "{}: {times}", now.name);
        }
        // Without reports the last correction is kept.
        assert_eq!(measured.corrected(&PlanRequest::default()), corrected);
    }
}
