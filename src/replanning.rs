//! Other plans for an app that is being served: what its planner does when it is asked.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use kaskade::App;
use kaskade::actors::control::planner::{PlannerConfig, Planning};
use kaskade::actors::control::replan_trigger::ReplanTrigger;
use kaskade::actors::wire::PlanRequest;
use kaskade::config::planner::{GearPolicy, PlannerRule};
use kaskade::config::scalar::Span;
use kaskade::plans::gears::cocktail::{self, Autoscale};
use kaskade::plans::gears::peers::{Peer, plan_peer};
use kaskade::plans::gears::{GearOptions, GearPlan, Prior, Simulated, Step, plan_gears};
use kaskade::plans::plan::{Plan, Slo};
use kaskade::plans::profile::Profile;

use crate::{allocating, appplan, gearing};

/// Most members of an ensemble.
const MOST_MEMBERS: usize = 3;

/// The planner of an app, if its file asks for one.
///
/// # Errors
/// When the profile cannot be read or is another app's.
pub(crate) fn planner(app: &App) -> anyhow::Result<Option<PlannerConfig>> {
    if let Some(rule) = &app.pipeline {
        return allocating::planner(app, rule);
    }
    let Some(rule) = &app.planner else { return Ok(None) };
    let profile = crate::verbs::plan::read(&rule.profile)?;
    anyhow::ensure!(
        profile.app == app.name.as_str(),
        "{}: is the profile of app `{}`, not of `{}`; `kaskade profile` makes one",
        rule.profile.display(),
        profile.app,
        app.name
    );
    let planning: Planning = {
        let (app, rule) = (app.clone(), rule.clone());
        Arc::new(move |request, running| {
            plan(&app, &rule, &profile, request, running).map_err(|error| format!("{error:#}"))
        })
    };
    Ok(Some(PlannerConfig {
        planning,
        limit: rule.limit.duration(),
        on_drift: rule.on_drift,
        trigger: rule.every.map_or(ReplanTrigger::OnRequest, |span| {
            ReplanTrigger::Periodic(span.duration())
        }),
    }))
}

/// Another plan, for the objective of the running one.
fn plan(
    app: &App,
    rule: &PlannerRule,
    profile: &Profile,
    request: &PlanRequest,
    running: Option<&Plan>,
) -> anyhow::Result<Plan> {
    let qps_max = request.peak_qps.or_else(|| highest_load(running?));
    let qps_max = qps_max.context("the request names no `peak_qps` and the running plan no highest load")?;
    let slo = running.and_then(|plan| plan.slo).unwrap_or(Slo::Latency {
        p95_us: app.slo.as_micros(),
    });
    let ranges = rule.ranges.get();
    let measured =
        running.and_then(|plan| Prior::measured(&plan.gears, &request.measured, ranges as usize, qps_max));
    let mut options = GearOptions {
        ranges,
        hop_us: rule.hop.as_micros(),
        ..GearOptions::new(slo, qps_max, gearing::devices(app, rule.memory.bytes()))
    };
    options.prior = measured.unwrap_or(options.prior);
    gearing::limit_batches(&mut options, app);
    let planned = by_policy(
        profile,
        &options,
        rule.policy,
        rule.every.map(Span::duration),
        |_| {},
    )?;
    appplan::check(app, planned.plan())?;
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
pub(crate) enum Planned {
    /// Gears.
    Gears(Box<GearPlan>),
    /// An ensemble with the replicas that the highest load needs.
    Ensemble(Plan),
}

impl Planned {
    /// The plan itself.
    pub(crate) fn plan(&self) -> &Plan {
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
pub(crate) fn by_policy(
    profile: &Profile,
    options: &GearOptions,
    policy: GearPolicy,
    period: Option<Duration>,
    progress: impl FnMut(&Step),
) -> anyhow::Result<Planned> {
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
