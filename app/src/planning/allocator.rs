//! Plans pipelines: the initial plan, and the planner while the app serves.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kaskade_actors::control::planner::{PlannerConfig, Planning};
use kaskade_actors::control::replan_trigger::ReplanTrigger;
use kaskade_actors::wire::{FanOuts, PlanRequest};
use kaskade_models::DeviceChoice;
use kaskade_planners::allocate::{AllocateOptions, Slot};
use kaskade_planners::demand::{DemandOptions, FactorOptions};
use kaskade_planners::manager::{Manager, ManagerOptions};
use kaskade_policy::pipeline::Pipeline;
use kaskade_policy::plan::Plan;

use crate::config::App;
use crate::config::pipeline::{PipelineConfig, PipelinePlannerConfig};
use crate::planning::PlanningError;
use crate::planning::batch_counts::RunTotals;
use crate::planning::check::check;
use crate::planning::worker_device::worker_device;
use crate::report::in_one_line;

/// Longest interval at which a forecasting planner observes the load.
const FORECAST_INTERVAL: Duration = Duration::from_millis(250);

/// Returns the slots of an app's workers. Each slot runs one variant.
///
/// # Errors
/// [`PlanningError::SharedGpu`] if a worker has several slots on a GPU, whose use by each is not limited;
/// [`PlanningError::SeveralDevices`] if variants run on different devices of a worker.
pub fn slots(app: &App) -> Result<Vec<Slot>, PlanningError> {
    let mut slots = Vec::new();
    for worker in &app.workers {
        let (places, choice) = (worker.replicas.get(), worker_device(app, worker)?);
        if places > 1 && choice != DeviceChoice::Cpu {
            return Err(PlanningError::SharedGpu {
                worker: worker.name.to_string(),
                places,
                device: choice.to_string(),
            });
        }
        slots.extend((0..places).map(|place| Slot {
            worker: worker.name.to_string(),
            device: if places == 1 {
                choice.to_string()
            } else {
                format!("cpu:{place}")
            },
        }));
    }
    Ok(slots)
}

/// Returns the measured pipeline of an app, checked against the app's configuration.
///
/// # Errors
/// [`PlanningError`] if the file does not exist, or belongs to another pipeline.
pub fn measured(app: &App, config: &PipelineConfig) -> Result<Pipeline, PlanningError> {
    let path = config.profile.as_deref();
    let path = path.ok_or(PlanningError::NoPipelineProfile)?;
    read(app, config, path).map_err(PlanningError::in_file(path))
}

fn read(app: &App, config: &PipelineConfig, path: &Path) -> Result<Pipeline, PlanningError> {
    let mut pipeline = Pipeline::from_json(&std::fs::read_to_string(path)?)?;
    let tree = |pipeline: &Pipeline| -> BTreeMap<String, (Vec<String>, Vec<String>)> {
        let tasks = pipeline.tasks.iter().map(|task| {
            let names = task.variants.iter().map(|variant| variant.name.clone()).collect();
            (task.name.clone(), (task.children.clone(), names))
        });
        tasks.collect()
    };
    if pipeline.name != app.name.as_str() || tree(&pipeline) != tree(&config.unmeasured(app)) {
        return Err(PlanningError::OtherPipeline {
            pipeline: pipeline.name,
            app: app.name.to_string(),
        });
    }
    // The latency objective and the message time come from the app, the measurements from the file.
    pipeline.slo_us = app.slo.as_micros();
    pipeline.hop_us = config.hop_latency.as_micros();
    Ok(pipeline)
}

/// Returns the manager that plans an app's pipeline, starting at time 0.
///
/// # Errors
/// [`PlanningError`] if there are no measurements, or no path can meet the objective.
pub fn manager(
    app: &App,
    config: &PipelineConfig,
    allocator: &PipelinePlannerConfig,
) -> Result<Manager, PlanningError> {
    let pipeline = measured(app, config)?;
    Ok(Manager::new(pipeline, options(app, allocator)?, 0)?)
}

/// Returns the options of the manager of an app's pipeline.
///
/// # Errors
/// As [`slots`].
pub fn options(app: &App, allocator: &PipelinePlannerConfig) -> Result<ManagerOptions, PlanningError> {
    Ok(ManagerOptions {
        app: app.name.to_string(),
        slots: slots(app)?,
        dropping: allocator.dropping,
        allocate: AllocateOptions::default(),
        demand: allocator.demand,
        standby: allocator.standby,
        factors: FactorOptions::default(),
        run_times: allocator.run_times,
        headroom: allocator.headroom.get(),
    })
}

/// Returns the initial plan of a pipeline, for the lowest demand that is planned for.
///
/// # Errors
/// As [`manager`], or if there are fewer slots than tasks.
pub fn first_plan(app: &App, config: &PipelineConfig) -> Result<Plan, PlanningError> {
    let allocator = config.planner.unwrap_or_default();
    let mut manager = manager(app, config, &allocator)?;
    Ok(manager.first_plan(allocator.demand.min_rate, 0)?)
}

/// Returns the planner of an app with a pipeline, if one is configured.
///
/// # Errors
/// As [`manager`].
pub fn planner(app: &App, config: &PipelineConfig) -> Result<Option<PlannerConfig>, PlanningError> {
    let Some(allocator) = config.planner else {
        return Ok(None);
    };
    let planner = Mutex::new(PipelinePlanner {
        manager: manager(app, config, &allocator)?,
        slots: slots(app)?,
        arrivals: 0,
        now_us: 0,
        forks: BTreeMap::new(),
        runs: RunTotals::default(),
    });
    let app = app.clone();
    let planning: Planning = Arc::new(move |request, running| {
        let mut planner = planner.lock().unwrap_or_else(PoisonError::into_inner);
        let plan = planner
            .plan(request, running)
            .map_err(|error| in_one_line(&error))?;
        check(&app, &plan).map_err(|error| in_one_line(&error))?;
        Ok(plan)
    });
    Ok(Some(PlannerConfig {
        planning,
        limit: allocator.timeout.duration(),
        replan_on_load_drift: false,
        trigger: ReplanTrigger::Observing(observation_interval(&allocator.demand)),
    }))
}

/// Returns the interval at which the load is observed. A forecast must notice a rise within a step.
pub fn observation_interval(demand: &DemandOptions) -> Duration {
    let step = Duration::from_micros(demand.step_us);
    if demand.forecast_us > 0 {
        step.min(FORECAST_INTERVAL)
    } else {
        step
    }
}

/// A manager, with the latest totals received from workers and ingresses.
struct PipelinePlanner {
    manager: Manager,
    /// All slots, including those of lost workers.
    slots: Vec<Slot>,
    arrivals: u64,
    now_us: u64,
    forks: BTreeMap<(String, String), FanOuts>,
    runs: RunTotals,
}

impl PipelinePlanner {
    fn plan(&mut self, request: &PlanRequest, running: Option<&Plan>) -> Result<Plan, PlanningError> {
        self.manager.follow(running);
        let Some(seen) = &request.observed else {
            // An explicit request: plan for the stated load, or for the current demand.
            let qps = request.peak_qps.unwrap_or_else(|| self.manager.demand_qps());
            return Ok(self.manager.first_plan(qps, self.now_us)?);
        };
        self.now_us = seen.at_us;
        self.manager.set_slots(self.places(&seen.workers));
        let arrivals = seen
            .arrivals
            .saturating_sub(std::mem::replace(&mut self.arrivals, seen.arrivals));
        self.manager.observe(arrivals, seen.at_us);
        self.record(request);
        self.record_runs(request);
        match (
            self.manager.next_plan(seen.at_us),
            self.manager.take_error(),
            running,
        ) {
            (Some(plan), ..) => Ok(plan),
            (None, Some(fault), _) => Err(fault.into()),
            (None, None, Some(running)) => Ok(running.clone()),
            (None, None, None) => Err(PlanningError::NothingToPlan),
        }
    }

    /// Returns the slots of these workers, or all slots if no worker has sent a heartbeat yet.
    fn places(&self, workers: &[String]) -> Vec<Slot> {
        let alive = |slot: &&Slot| workers.is_empty() || workers.contains(&slot.worker);
        self.slots.iter().filter(alive).cloned().collect()
    }

    /// Passes the fan-outs since the last call to the manager. A total that falls means that its worker restarted.
    fn record(&mut self, request: &PlanRequest) {
        if !request.fan_outs.is_empty() {
            self.forks
                .retain(|(worker, _), _| request.fan_outs.contains_key(worker));
        }
        let mut news: BTreeMap<&str, (u64, BTreeMap<String, u64>)> = BTreeMap::new();
        for (worker, variants) in &request.fan_outs {
            for (variant, now) in variants {
                let old = self.forks.insert((worker.clone(), variant.clone()), now.clone());
                let old = old.filter(|old| old.requests <= now.requests).unwrap_or_default();
                let news = news.entry(variant).or_default();
                news.0 += now.requests - old.requests;
                for (child, made) in &now.children {
                    let before = old.children.get(child).copied().unwrap_or(0);
                    *news.1.entry(child.clone()).or_default() += made.saturating_sub(before);
                }
            }
        }
        for (variant, (served, made)) in news {
            self.manager.record(variant, served, &made, self.now_us);
        }
    }

    /// Passes the batch runs since the last call to the manager.
    fn record_runs(&mut self, request: &PlanRequest) {
        for (variant, ran) in self.runs.since(&request.runs) {
            self.manager.record_runs(variant, ran);
        }
    }
}

#[cfg(test)]
mod tests;
