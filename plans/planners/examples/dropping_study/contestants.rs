//! The systems of the study, and how each manages a pipeline.

use std::collections::BTreeMap;

use kaskade_planners::allocate::{Allocate, AllocateOptions, Allocator, Slot, StandbyOptions};
use kaskade_planners::demand::{DemandOptions, FactorOptions, RunTimeOptions};
use kaskade_planners::manager::{Manager, ManagerOptions};
use kaskade_policy::pipeline::Pipeline;
use kaskade_policy::plan::Dropping;
use kaskade_simulator::trace::{ArrivalProcess, Trace};
use kaskade_simulator::{Loading, Report, SimConfig, Simulator};

use kaskade_stated::artefact::ArtefactFiles;

use crate::proteus;

/// The published traffic pipeline.
pub(crate) fn published(folder: &str) -> Pipeline {
    let folder = std::path::Path::new(folder);
    let text = |name: &str| std::fs::read_to_string(folder.join(name)).expect("the measurements can be read");
    let files = std::fs::read_dir(folder.join("variants")).expect("the variants can be read");
    let paths = files.map(|file| file.unwrap().path());
    let accuracies: BTreeMap<String, String> = paths
        .map(|path| {
            let task = path.file_stem().unwrap().to_str().unwrap().to_owned();
            (task, std::fs::read_to_string(&path).unwrap())
        })
        .collect();
    let files = ArtefactFiles {
        graph: &text("traffic_analysis.json"),
        branching: &text("branching.csv"),
        accuracies: &accuracies,
        runtimes: &text("simulator_runtimes.csv"),
        accelerator: "onnxruntime_gpu_pascal",
        batches: &[1, 2, 4, 8, 16, 32, 64],
        hop_us: 0,
    };
    files.read().unwrap().pipeline
}

pub(crate) const WORKERS: u32 = 20;

#[derive(Debug, Clone)]
pub(crate) struct Contestant {
    pub(crate) name: String,
    proteus: bool,
    dropping: Dropping,
    demand: DemandOptions,
    standby: StandbyOptions,
    /// Everything is planned for this many times the demand.
    headroom: f64,
}

/// The contestants that are always there: Loki's two, Proteus, the default, and its dropping without forecast and standby.
pub(crate) fn standard() -> Vec<Contestant> {
    let loki = |name: &str, dropping| Contestant {
        name: name.to_owned(),
        proteus: false,
        dropping,
        demand: DemandOptions::PAPER,
        standby: StandbyOptions::NONE,
        headroom: 1.3,
    };
    vec![
        loki("Loki, rerouting", Dropping::Rerouting),
        loki("Loki, last task", Dropping::LastTask),
        Contestant {
            proteus: true,
            ..loki("Proteus", Dropping::None)
        },
        Contestant {
            demand: DemandOptions::default(),
            standby: StandbyOptions::default(),
            ..loki("default", Dropping::Slack)
        },
        loki("slack alone", Dropping::Slack),
    ]
}

impl Contestant {
    /// Reads `slack,forecast=2,rise=2.5,give-up=0.01,headroom=1.3`; times in seconds, what is not named is the default.
    pub(crate) fn read(text: &str) -> Self {
        let mut contestant = Self {
            name: text.to_owned(),
            proteus: false,
            dropping: Dropping::Slack,
            demand: DemandOptions::default(),
            standby: StandbyOptions::default(),
            headroom: 1.3,
        };
        for part in text.split(',') {
            let (name, value) = part.split_once('=').unwrap_or((part, "0"));
            let value: f64 = value.parse().expect("a number");
            let us = (value * 1e6) as u64;
            match name {
                "slack" => contestant.dropping = Dropping::Slack,
                "last" => contestant.dropping = Dropping::LastTask,
                "rerouting" => contestant.dropping = Dropping::Rerouting,
                "none" => contestant.dropping = Dropping::None,
                "proteus" => contestant.proteus = true,
                "forecast" => contestant.demand.forecast_us = us,
                "least" => contestant.demand.min_interval_us = us,
                "step" => contestant.demand.step_us = us,
                "change" => contestant.demand.change = value,
                "com" => contestant.demand.com = value,
                "rise" => contestant.standby.surge_factor = value,
                "give-up" => contestant.standby.max_accuracy_loss = value,
                "headroom" => contestant.headroom = value,
                other => panic!("{other} is not an option of a contestant"),
            }
        }
        contestant
    }

    /// Lets it manage a pipeline under a load.
    pub(crate) fn play(&self, pipeline: &Pipeline, trace: &Trace, seed: u64) -> Report {
        let slot = |worker: u32| Slot {
            worker: format!("w{worker}"),
            device: "cuda:0".to_owned(),
        };
        let options = ManagerOptions {
            app: pipeline.name.clone(),
            slots: (0..WORKERS).map(slot).collect(),
            dropping: self.dropping,
            allocate: AllocateOptions::default(),
            demand: self.demand,
            headroom: self.headroom,
            standby: self.standby,
            factors: FactorOptions::default(),
            run_times: RunTimeOptions::default(),
        };
        let allocator: Box<dyn Allocate> = if self.proteus {
            Box::new(proteus::PerTask::new(pipeline.clone(), options.allocate).unwrap())
        } else {
            Box::new(Allocator::new(pipeline.clone(), options.allocate).unwrap())
        };
        let mut manager = Manager::with(allocator, pipeline.clone(), options, 0).unwrap();
        let first = trace.rates().first().copied().unwrap_or(0.0);
        let first = manager.first_plan(first.max(self.demand.min_rate), 0).unwrap();
        let config = SimConfig {
            seed,
            hop_us: pipeline.hop_us,
            slo_us: Some(pipeline.slo_us),
            budget_us: Some(pipeline.slo_us),
            control_interval_us: 200_000,
            loading: Loading {
                default_us: 1_000_000,
                ..Loading::default()
            },
            path_accuracies: pipeline.path_accuracies(),
            ..SimConfig::default()
        };
        let profile = pipeline.profile();
        let simulator = Simulator::new(&first, &profile, &config).unwrap();
        let arrivals = trace.arrivals(ArrivalProcess::Poisson, seed);
        let report = simulator.run_controlled(arrivals, &mut (), &profile, &mut manager);
        assert!(manager.error().is_none(), "{}: {:?}", self.name, manager.error());
        report
    }
}
