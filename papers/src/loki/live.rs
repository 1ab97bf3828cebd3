//! A live pipeline under a load that rises and falls, and the same in the simulator: real actors with real models in this process,
//! planned by the planner that runs beside the ingress.
//!
//! | module | holds |
//! |---|---|
//! | `parts` | outcomes of a run, by parts of it |
//! | `simulated`, `served` | the run in the simulator, and on real actors |
//! | `claims` | what the paper says of it |

mod claims;
mod parts;
mod served;
mod simulated;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use kaskade_app::charts::panels::{self, Panel, Panels, Series, Shape};
use kaskade_app::config::App;
use kaskade_app::config::pipeline::{PipelineConfig, PipelinePlannerConfig};
use kaskade_app::data::scenes::Scenes;
use kaskade_app::family::Family;
use kaskade_app::measure::pipeline::{Measured, PipelineMeasurement};
use kaskade_app::planning::allocator;
use kaskade_app::report::progress::say;
use kaskade_app::report::{self, units};
use kaskade_planners::allocate::{AllocateOptions, Allocator, Scaling, StandbyOptions};
use kaskade_planners::demand::DemandOptions;
use kaskade_policy::plan::Dropping;
use kaskade_simulator::trace::Trace;

use self::parts::{PARTS, Part, Run};
use crate::reproduction::Reproduction;

/// Lowest and highest load, as multiples of the capacity of the most accurate variants.
const LOADS: (f64, f64) = (0.2, 2.0);

/// A pipeline, measured and about to be served.
struct Live {
    app: App,
    config: PipelineConfig,
    measured: Measured,
    scenes: Scenes,
    trace: Trace,
    seed: u64,
}

/// Serves the app under a load that rises and falls for `seconds`, with rerouting and with per-task dropping as in the paper, and by the
/// rules of the app's file, and simulates the same.
///
/// # Errors
/// When the app is no pipeline, cannot be served, or has no load that its most accurate variants carry.
pub(super) fn run(path: &Path, folder: &Path, seconds: u32, seed: u64) -> anyhow::Result<Reproduction> {
    let live = Live::prepare(path, folder, seconds as usize, seed)?;
    let mut found = Reproduction {
        system: "loki",
        ..Reproduction::default()
    };
    found.assumptions.push(format!(
        "{} on {} places, each {} of a core; measured before the run; the requests are the scenes that it was measured on",
        live.app.name,
        allocator::slots(&live.app)?.len(),
        live.app.core_share.get()
    ));
    let rerouting = live.both(&live.paper(Dropping::Rerouting))?;
    let per_task = live.both(&live.paper(Dropping::PerTask))?;
    let own = live.both(&live.config.planner.unwrap_or_default())?;
    found.claims.extend(claims::claims(&rerouting, &per_task));
    found.claims.push(claims::of_the_app(&own));
    let file = folder.join("live-pipeline.svg");
    report::write_file(&file, &panels::svg(&live.picture(&rerouting))?)?;
    found.files.push(file);
    Ok(found)
}

impl Live {
    fn prepare(path: &Path, folder: &Path, seconds: usize, seed: u64) -> anyhow::Result<Self> {
        let mut app = App::load(path)?;
        let config = app
            .pipeline
            .clone()
            .context("the app is not a pipeline; name one that has `[pipeline]`")?;
        let set = app
            .data
            .validation
            .clone()
            .context("the app names no `data.validation` to ask from")?;
        let measurement = PipelineMeasurement {
            app: &app,
            config: &config,
            rounds: 3,
            measure_for: Duration::from_millis(150),
            quiet: false,
        };
        let measured = measurement.measure(&set)?;
        let file = folder.join("pipeline.json");
        report::write_file(&file, &serde_json::to_string_pretty(&measured.pipeline)?)?;
        if let Some(config) = &mut app.pipeline {
            config.profile = Some(file);
        }
        let config = app.pipeline.clone().unwrap_or(config);
        let root = config.root().and_then(|task| task.variants.first());
        let members = Family::from_app(&app).members;
        let root = members
            .iter()
            .find(|member| root.is_some_and(|root| root.as_str() == member.name));
        let root = root.context("the root task has no variants")?;
        let scenes = Scenes::read(&set, &root.load(root.device)?.model.signature())?;
        let slots = allocator::slots(&app)?.len();
        let carried = carried(&measured, u32::try_from(slots).unwrap_or(u32::MAX))?;
        say(&format!(
            "the most accurate variants carry {carried:.0} requests/s on {slots} places"
        ));
        let (low, high) = LOADS;
        let rate = |second: usize| {
            let way = (second as f64 + 0.5) / seconds as f64;
            carried * (low + (high - low) * (std::f64::consts::PI * way).sin().powi(2))
        };
        let trace = Trace::per_second((0..seconds).map(rate).collect())?;
        Ok(Self {
            app,
            config,
            measured,
            scenes,
            trace,
            seed,
        })
    }

    /// Loki's rules with this policy for late requests: the moving average alone, and nothing kept ready.
    fn paper(&self, dropping: Dropping) -> PipelinePlannerConfig {
        PipelinePlannerConfig {
            dropping,
            demand: DemandOptions::PAPER,
            standby: StandbyOptions::NONE,
            ..self.config.planner.unwrap_or_default()
        }
    }

    /// Live and simulated.
    fn both(&self, allocator: &PipelinePlannerConfig) -> anyhow::Result<(Run, Run)> {
        let simulated = simulated::run(self, allocator)?;
        let live = served::run(self, allocator)?;
        for (name, run) in [("simulated", &simulated), ("live", &live)] {
            let total = run.total();
            say(&format!(
                "{name}, {:?}: accuracy {}, violations {}, {:.2} workers",
                allocator.dropping,
                units::percent(total.accuracy()),
                units::percent(total.violation_ratio()),
                run.workers
            ));
        }
        Ok((live, simulated))
    }

    fn picture(&self, (live, simulated): &(Run, Run)) -> Panels {
        let seconds = self.trace.seconds() as f64;
        let series = |name: &str, run: &Run, value: fn(&Part) -> f64| {
            let points = run.parts.iter().enumerate();
            Series {
                name: name.to_owned(),
                points: points
                    .map(|(at, part)| ((at as f64 + 0.5) * seconds / PARTS as f64, value(part)))
                    .collect(),
                shape: Shape::Marked,
            }
        };
        let row = |axis: &str, value: fn(&Part) -> f64| Panel {
            axis: axis.to_owned(),
            series: vec![series("live", live, value), series("simulated", simulated, value)],
            ..Panel::default()
        };
        let demand = self.trace.rates().into_iter().enumerate();
        let demand = Panel {
            axis: "requests/s".to_owned(),
            series: vec![Series {
                name: "demand".to_owned(),
                points: demand.map(|(second, rate)| (second as f64, rate)).collect(),
                shape: Shape::Line,
            }],
            ..Panel::default()
        };
        Panels {
            title: "a live pipeline under a load that rises and falls".to_owned(),
            axis: "time (s)".to_owned(),
            rows: vec![
                demand,
                row("workers", |part| part.workers / part.counted.max(1.0)),
                row("accuracy (F1, %)", |part| part.accuracy() * 100.0),
                row("violations (%)", |part| part.violation_ratio() * 100.0),
            ],
        }
    }
}

/// The highest demand that the most accurate variants carry, requests/s.
fn carried(measured: &Measured, workers: u32) -> anyhow::Result<f64> {
    let allocator = Allocator::new(measured.pipeline.clone(), AllocateOptions::default())?;
    let fits = |qps: f64| {
        allocator
            .allocate(qps, workers)
            .is_ok_and(|allocation| allocation.scaling == Scaling::Hardware)
    };
    ensure!(
        fits(0.1),
        "not even a request in ten seconds is carried by the most accurate variants"
    );
    let (mut low, mut high) = (0.1, 0.2);
    while fits(high) {
        (low, high) = (high, 2.0 * high);
    }
    for _ in 0..20 {
        let middle = f64::midpoint(low, high);
        if fits(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    Ok(low)
}
