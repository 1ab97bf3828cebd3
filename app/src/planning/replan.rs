//! Other plans for an app that is being served: what its planner does when it is asked.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use kaskade::App;
use kaskade::actors::planner::{PlannerConfig, Planning};
use kaskade::actors::rhythm::Rhythm;
use kaskade::actors::wire::PlanRequest;
use kaskade::config::planner::{GearPolicy, PlannerRule};
use kaskade::config::scalar::Span;
use kaskade_papers::peers::cocktail::{self, Autoscale};
use kaskade_papers::peers::gears::{Peer, plan_peer};
use kaskade::planners::gears::{GearOptions, GearPlan, Prior, Simulated, Step, plan_gears};
use kaskade::policy::plan::{Plan, Slo};
use kaskade::policy::profile::Profile;

use crate::config::App;
use crate::config::planner::{GearPolicy, PlannerRule};
use crate::config::scalar::Span;
use crate::planning::{PlanningError, allocator, gears, initial};
use crate::report::in_one_line;

/// Most members of an ensemble.
const MOST_MEMBERS: usize = 3;

/// The planner of an app, if its file asks for one.
///
/// # Errors
/// When the profile cannot be read or is another app's.
pub fn planner(app: &App) -> Result<Option<PlannerConfig>, PlanningError> {
    if let Some(rule) = &app.pipeline {
        return allocator::planner(app, rule);
    }
    let Some(rule) = &app.planner else { return Ok(None) };
    let profile = super::read_profile(&rule.profile)?;
    if profile.app != app.name.as_str() {
        return Err(PlanningError::OtherProfileFile {
            path: rule.profile.clone(),
            profile: profile.app,
            app: app.name.to_string(),
        });
    }
    let planning: Planning = {
        let (app, rule) = (app.clone(), rule.clone());
        Arc::new(move |request, running| {
            plan(&app, &rule, &profile, request, running).map_err(|error| in_one_line(&error))
        })
    };
    Ok(Some(PlannerConfig {
        planning,
        limit: rule.limit.duration(),
        on_drift: rule.on_drift,
        rhythm: rule
            .every
            .map_or(Rhythm::Asked, |span| Rhythm::Every(span.duration())),
    }))
}

/// Another plan, for the objective of the running one.
fn plan(
    app: &App,
    rule: &PlannerRule,
    profile: &Profile,
    request: &PlanRequest,
    running: Option<&Plan>,
) -> Result<Plan, PlanningError> {
    let qps_max = request.peak_qps.or_else(|| highest_load(running?));
    let qps_max = qps_max.ok_or(PlanningError::NoPeak)?;
    let slo = running.and_then(|plan| plan.slo).unwrap_or(Slo::Latency {
        p95_us: app.slo.as_micros(),
    });
    let ranges = rule.ranges.get();
    let measured =
        running.and_then(|plan| Prior::measured(&plan.gears, &request.measured, ranges as usize, qps_max));
    let mut options = GearOptions {
        ranges,
        hop_us: rule.hop.as_micros(),
        ..GearOptions::new(slo, qps_max, gears::devices(app, rule.memory.bytes()))
    };
    options.prior = measured.unwrap_or(options.prior);
    gears::limit_batches(&mut options, app);
    let planned = by_policy(
        profile,
        &options,
        rule.policy,
        rule.every.map(Span::duration),
        |_| {},
    )?;
    initial::check(app, planned.plan())?;
    Ok(planned.plan().clone())
}

/// The highest load that a plan was made for, requests/s.
fn highest_load(plan: &Plan) -> Option<f64> {
    let last = plan.gears.last()?;
    last.load
        .to_qps
        .or(Some(last.load.from_qps))
        .filter(|qps| *qps > 0.0)
}

/// What a policy made.
pub enum Planned {
    /// Gears.
    Gears(Box<GearPlan>),
    /// An ensemble with the replicas that the highest load needs.
    Ensemble(Plan),
}

impl Planned {
    /// The plan itself.
    pub fn plan(&self) -> &Plan {
        match self {
            Self::Gears(planned) => &planned.plan,
            Self::Ensemble(plan) => plan,
        }
    }
}

/// Plans as the policy does. `period` is how often an ensemble's replicas are set anew.
///
/// # Errors
/// When an input is unusable, or the objective cannot be met.
pub fn by_policy(
    profile: &Profile,
    options: &GearOptions,
    policy: GearPolicy,
    period: Option<Duration>,
    progress: impl FnMut(&Step),
) -> Result<Planned, PlanningError> {
    let peer = match policy {
        GearPolicy::Gears => {
            let planned = plan_gears(profile, options, progress)?;
            return Ok(Planned::Gears(Box::new(planned)));
        }
        GearPolicy::Cocktail => {
            let mut autoscale = Autoscale::default();
            if let Some(period) = period {
                autoscale.period_us = u64::try_from(period.as_micros()).unwrap_or(u64::MAX);
            }
            let ensemble = cocktail::choose(profile, options, MOST_MEMBERS)?;
            let plan = cocktail::plan_period(profile, options, &ensemble, &autoscale)?;
            return Ok(Planned::Ensemble(plan));
        }
        GearPolicy::NoSwitching => Peer::NoSwitching,
        GearPolicy::NoCascade => Peer::NoCascade,
        GearPolicy::Dynba => Peer::DynBa { variant: None },
        GearPolicy::MsPlus => Peer::MsPlus,
    };
    let planned = plan_peer(profile, options, &peer, Simulated::new(profile, options))?;
    Ok(Planned::Gears(Box::new(planned)))
}
