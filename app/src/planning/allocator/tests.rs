#![allow(clippy::unwrap_used, reason = "the helpers of a test may fail it")]
use kaskade_actors::wire::{Observation, Runs};
use kaskade_planners::allocate::StandbyOptions;

use super::*;

const SECOND: u64 = 1_000_000;

/// Returns the example app, planned by the paper's rules: only what the demand needs is placed.
fn app() -> App {
    let mut app = example();
    let config = app
        .pipeline
        .as_mut()
        .and_then(|config| config.planner.as_mut())
        .unwrap();
    config.standby = StandbyOptions::NONE;
    config.demand = DemandOptions::PAPER;
    app
}

fn example() -> App {
    App::load(&Path::new(kaskade_testkit::ROOT).join("examples/traffic/app.toml")).unwrap()
}

#[test]
fn by_default_idle_places_hold_fast_variants() {
    let example = example();
    let config = example.pipeline.as_ref().unwrap();
    assert_eq!(
        first_plan(&example, config).unwrap().placement.len(),
        slots(&example).unwrap().len()
    );
    let demand = config.planner.unwrap().demand;
    assert_eq!(observation_interval(&demand), FORECAST_INTERVAL);
    assert_eq!(
        observation_interval(&DemandOptions::PAPER),
        Duration::from_secs(1)
    );
}

fn planner(app: &App) -> PipelinePlanner {
    let config = app.pipeline.as_ref().unwrap();
    PipelinePlanner {
        manager: manager(app, config, &config.planner.unwrap()).unwrap(),
        slots: slots(app).unwrap(),
        arrivals: 0,
        now_us: 0,
        forks: BTreeMap::new(),
        runs: RunTotals::default(),
    }
}

/// Returns the fan-outs of a worker's `find-large` since its start.
fn forks(
    worker: &str,
    requests: u64,
    digits: u64,
    signs: u64,
) -> BTreeMap<String, BTreeMap<String, FanOuts>> {
    let forks = FanOuts {
        requests,
        children: BTreeMap::from([("digit".to_owned(), digits), ("sign".to_owned(), signs)]),
    };
    BTreeMap::from([(
        worker.to_owned(),
        BTreeMap::from([("find-large".to_owned(), forks)]),
    )])
}

fn observe(second: u64, arrivals: u64, forks: BTreeMap<String, BTreeMap<String, FanOuts>>) -> PlanRequest {
    PlanRequest {
        observed: Some(Observation {
            at_us: second * SECOND,
            arrivals,
            workers: Vec::new(),
        }),
        fan_outs: forks,
        ..PlanRequest::default()
    }
}

/// Updates once a second under a load, with each worker reporting `told` of the requests so far; returns the last plan.
fn followed(
    app: &App,
    qps: u64,
    seconds: u64,
    told: impl Fn(u64) -> BTreeMap<String, BTreeMap<String, FanOuts>>,
) -> Plan {
    let mut planner = planner(app);
    let mut running = first_plan(app, app.pipeline.as_ref().unwrap()).unwrap();
    for second in 1..=seconds {
        let arrivals = qps * second;
        running = planner
            .plan(&observe(second, arrivals, told(arrivals)), Some(&running))
            .unwrap();
    }
    running
}

#[test]
fn a_pipeline_begins_small_and_grows_with_its_load() {
    let app = app();
    let first = first_plan(&app, app.pipeline.as_ref().unwrap()).unwrap();
    let grown = followed(&app, 60, 12, |_| BTreeMap::new());
    assert!(first.placement.len() < grown.placement.len());
    assert!(grown.placement.len() <= 10);
}

#[test]
fn lost_heartbeats_leave_the_profiled_factors() {
    let app = app();
    let told = followed(&app, 40, 12, |arrivals| {
        forks("local", arrivals, 4 * arrivals, 2 * arrivals)
    });
    let silent = followed(&app, 40, 12, |_| BTreeMap::new());
    assert_eq!(
        told.placement.len(),
        silent.placement.len(),
        "the reports equal the profile"
    );
}

#[test]
fn scenes_with_more_objects_get_more_workers_to_read_them() {
    let app = app();
    let readers = |plan: &Plan| {
        let readers = plan.placement.iter();
        readers
            .filter(|replica| !replica.variant.starts_with("find"))
            .count()
    };
    let usual = followed(&app, 40, 30, |arrivals| {
        forks("local", arrivals, 4 * arrivals, 2 * arrivals)
    });
    let crowded = followed(&app, 40, 30, |arrivals| {
        forks("local", arrivals, 16 * arrivals, 8 * arrivals)
    });
    assert!(
        readers(&crowded) > readers(&usual),
        "{} and {}",
        readers(&crowded),
        readers(&usual)
    );
}

#[test]
fn a_machine_slower_than_its_profile_gets_more_workers() {
    let app = app();
    let profiled = measured(&app, app.pipeline.as_ref().unwrap()).unwrap();
    let workers = |times: f64| {
        let mut planner = planner(&app);
        let mut running = first_plan(&app, app.pipeline.as_ref().unwrap()).unwrap();
        for second in 1..=12 {
            let mut request = observe(second, 20 * second, BTreeMap::new());
            let ran = profiled
                .tasks
                .iter()
                .flat_map(|task| &task.variants)
                .map(|variant| {
                    let batches = 20 * second;
                    let busy_us = batches as f64 * times * variant.latency_us(1).unwrap();
                    let runs = Runs {
                        batches,
                        requests: batches,
                        busy_us: busy_us as u64,
                    };
                    (variant.name.clone(), runs)
                });
            request.runs.insert("local".to_owned(), ran.collect());
            running = planner.plan(&request, Some(&running)).unwrap();
        }
        running.placement.len()
    };
    let (as_profiled, slower) = (workers(1.0), workers(1.5));
    assert!(as_profiled < slower, "{as_profiled} {slower}");
}

#[test]
fn a_worker_that_starts_anew_counts_from_nothing() {
    let app = app();
    let mut planner = planner(&app);
    let running = first_plan(&app, app.pipeline.as_ref().unwrap()).unwrap();
    let told = [(1, 100), (2, 150), (3, 10)];
    for (second, requests) in told {
        let request = observe(
            second,
            requests,
            forks("local", requests, 4 * requests, 2 * requests),
        );
        planner.plan(&request, Some(&running)).unwrap();
    }
    let kept = planner.forks.values().next().unwrap();
    assert_eq!((kept.requests, kept.children.get("digit")), (10, Some(&40)));
}

#[test]
fn a_request_with_a_rate_is_planned_for_that_rate() {
    let app = app();
    let mut planner = planner(&app);
    let asked = |qps| PlanRequest {
        peak_qps: Some(qps),
        ..PlanRequest::default()
    };
    let small = planner.plan(&asked(5.0), None).unwrap();
    let large = planner.plan(&asked(80.0), Some(&small)).unwrap();
    assert!(small.placement.len() < large.placement.len());
    let error = planner.plan(&asked(f64::NAN), Some(&large)).unwrap_err();
    assert!(error.to_string().contains("demand"), "{error}");
}

#[test]
fn a_gpu_is_one_slot() {
    let mut app = app();
    assert_eq!(slots(&app).unwrap().len(), 10);
    app.device = DeviceChoice::Cuda(0);
    let error = slots(&app).unwrap_err().to_string();
    assert!(error.contains("name a worker for each"), "{error}");
    // The worker's own device takes precedence.
    app.workers[0].device = Some(DeviceChoice::Cpu);
    assert_eq!(slots(&app).unwrap().len(), 10);
    app.workers[0].device = Some(DeviceChoice::Cuda(1));
    let error = slots(&app).unwrap_err().to_string();
    assert!(error.contains("`cuda:1`"), "{error}");
    app.workers[0].replicas = std::num::NonZeroU32::MIN;
    assert_eq!(slots(&app).unwrap()[0].device, "cuda:1");
}

#[test]
fn what_was_measured_of_another_tree_is_refused() {
    let mut app = app();
    let mut config = app.pipeline.clone().unwrap();
    config.tasks.swap_remove(2);
    app.pipeline = Some(config.clone());
    let error = in_one_line(&measured(&app, &config).unwrap_err());
    assert!(error.contains("as the app describes it"), "{error}");
}

#[test]
fn what_was_on_a_dead_worker_goes_elsewhere_at_once() {
    let mut app = app();
    let mut far = app.workers[0].clone();
    far.name = "far".parse().unwrap();
    app.workers.insert(0, far);
    let mut planner = planner(&app);
    let mut plan = first_plan(&app, app.pipeline.as_ref().unwrap()).unwrap();
    assert!(plan.placement.iter().all(|replica| replica.worker == "far"));
    let mut plan_at = |second: u64, workers: &[&str], plan: &Plan| {
        let mut request = observe(second, 20 * second, BTreeMap::new());
        let workers = workers.iter().map(|name| (*name).to_owned());
        request.observed.as_mut().unwrap().workers = workers.collect();
        planner.plan(&request, Some(plan))
    };
    plan = plan_at(1, &["far", "local"], &plan).unwrap();
    plan = plan_at(2, &["local"], &plan).unwrap();
    assert!(
        plan.placement.iter().all(|replica| replica.worker == "local"),
        "{:?}",
        plan.placement
    );
    let error = plan_at(3, &["missing"], &plan).unwrap_err();
    assert!(error.to_string().contains("cannot serve"), "{error}");
}
