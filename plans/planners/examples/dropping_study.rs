//! Ways to handle late requests of pipelines, and a forecast of the demand, on even and on bursty loads.
//!
//! `cargo run --release -p kaskade-planners --example dropping_study -- [--seconds N] [--seed N] [--trace FILE]` prints a table. `FILE`
//! holds requests per second, separated by spaces; the part around its busiest second is replayed. Every contestant manages the same pipeline
//! on 20 workers under the same arrivals; the busiest second has 2.5 times what the most accurate variants serve.
#![expect(clippy::print_stdout, reason = "it prints a table")]
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a study that fails shows why"
)]

use kaskade_planners::allocate::{Allocate, AllocateOptions, AllocationPolicy, Allocator, Slot};
use kaskade_planners::demand::{DemandOptions, FactorOptions, RunTimeOptions};
use kaskade_planners::manager::{Manager, ManagerOptions};
use kaskade_policy::pipeline::Pipeline;
use kaskade_policy::plan::Dropping;
use kaskade_simulator::trace::{Diurnal, Spacing, Trace};
use kaskade_simulator::{Loading, Report, SimConfig, Simulator};
use kaskade_stated::pipelines::{stated, stated_social};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

#[expect(unreachable_pub, reason = "the peer is public where it belongs")]
#[path = "../../../papers/src/peers/proteus.rs"]
mod proteus;

const WORKERS: u32 = 20;

/// The busiest second, in multiples of what the most accurate variants serve.
const PEAK: f64 = 2.5;

/// Everything is planned for this many times the demand.
const HEADROOM: f64 = 1.3;

#[derive(Clone, Copy)]
struct Contestant {
    name: &'static str,
    proteus: bool,
    dropping: Dropping,
    forecasts: bool,
}

const CONTESTANTS: [Contestant; 6] = [
    contestant("Loki, rerouting", Dropping::OpportunisticRerouting, false),
    contestant("Loki, last task", Dropping::LastTask, false),
    Contestant {
        proteus: true,
        ..contestant("Proteus", Dropping::None, false)
    },
    contestant("last task, forecast", Dropping::LastTask, true),
    contestant("slack", Dropping::Slack, false),
    contestant("slack, forecast", Dropping::Slack, true),
];

const fn contestant(name: &'static str, dropping: Dropping, forecasts: bool) -> Contestant {
    Contestant {
        name,
        proteus: false,
        dropping,
        forecasts,
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let flag = |name: &str| {
        let at = arguments.iter().position(|argument| argument == name)?;
        arguments.get(at + 1)
    };
    let number =
        |name: &str, default: u64| flag(name).map_or(default, |text| text.parse().expect("a number"));
    let (seconds, seed) = (number("--seconds", 300) as usize, number("--seed", 1));
    let names = CONTESTANTS.map(|contestant| contestant.name);
    println!("| pipeline | load | {} |", names.join(" | "));
    println!("|---|---|{}", "---|".repeat(names.len()));
    for pipeline in [stated(), stated_social()] {
        let hardware = AllocateOptions {
            policy: AllocationPolicy::HardwareOnly,
            ..AllocateOptions::default()
        };
        let hardware = Allocator::new(pipeline.clone(), hardware).unwrap();
        let served = hardware.allocate(1e9, WORKERS).unwrap().served_qps;
        let mut loads = loads(seconds, seed);
        if let Some(path) = flag("--trace") {
            let text = std::fs::read_to_string(path).expect("the trace can be read");
            let whole = Trace::from_counts(&text).unwrap().without_idle_seconds().unwrap();
            let day = whole.excerpt(0, whole.seconds().min(86_400)).unwrap();
            loads.push(("real trace", day.around_busiest(seconds).unwrap().0));
        }
        for (name, trace) in loads {
            let trace = trace.scale_to_peak(PEAK * served).unwrap();
            let cells = CONTESTANTS.map(|contestant| {
                let report = play(&pipeline, &trace, contestant, seed);
                format!(
                    "{:.2} % ({:.1})",
                    100.0 * report.slo_violation_ratio().unwrap(),
                    100.0 * report.path_accuracy().unwrap_or(f64::NAN)
                )
            });
            println!("| {} | {name} | {} |", pipeline.name, cells.join(" | "));
        }
    }
}

/// The loads, relative to their peaks.
fn loads(seconds: usize, seed: u64) -> Vec<(&'static str, Trace)> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let day = Diurnal {
        low_qps: 0.1,
        high_qps: 1.0,
        period_s: seconds as f64,
        noise: 0.05,
    };
    let of = |rates: Vec<f64>| Trace::per_second(rates).unwrap();
    let mut level = 0.5;
    let steps = (0..seconds).map(|second| {
        if second % 30 == 0 {
            level = rng.random_range(0.15..1.0);
        }
        level
    });
    let steps: Vec<f64> = steps.collect();
    let spikes = (0..seconds).map(|second| if second % 40 < 4 { 1.0 } else { 0.3 });
    let on_off = (0..seconds).map(|second| if second / 20 % 2 == 1 { 0.9 } else { 0.1 });
    let ramps = (0..seconds).map(|second| match second % 120 {
        at @ 0..60 => 0.2 + 0.8 * at as f64 / 60.0,
        at @ 60..90 => 1.0 - 0.8 * (at - 60) as f64 / 30.0,
        _ => 0.2,
    });
    vec![
        ("generated day", day.trace(seconds, seed).unwrap()),
        ("rises within 60 s", of(ramps.collect())),
        ("steps", of(steps)),
        ("spikes", of(spikes.collect())),
        ("on-off", of(on_off.collect())),
    ]
}

fn play(pipeline: &Pipeline, trace: &Trace, contestant: Contestant, seed: u64) -> Report {
    let slot = |worker: u32| Slot {
        worker: format!("w{worker}"),
        device: "cuda:0".to_owned(),
    };
    let demand = DemandOptions {
        forecast_us: if contestant.forecasts { 2_000_000 } else { 0 },
        ..DemandOptions::default()
    };
    let options = ManagerOptions {
        app: pipeline.name.clone(),
        slots: (0..WORKERS).map(slot).collect(),
        dropping: contestant.dropping,
        allocate: AllocateOptions::default(),
        demand,
        headroom: HEADROOM,
        factors: FactorOptions::default(),
        run_times: RunTimeOptions::default(),
    };
    let allocator: Box<dyn Allocate> = if contestant.proteus {
        Box::new(proteus::PerTask::new(pipeline.clone(), options.allocate).unwrap())
    } else {
        Box::new(Allocator::new(pipeline.clone(), options.allocate).unwrap())
    };
    let mut manager = Manager::with(allocator, pipeline.clone(), options, 0).unwrap();
    let first = trace.rates().first().copied().unwrap_or(0.0);
    let first = manager.begin(first.max(demand.floor_qps), 0).unwrap();
    let config = SimConfig {
        seed,
        hop_us: pipeline.hop_us,
        slo_us: Some(pipeline.slo_us),
        budget_us: Some(pipeline.slo_us),
        look_us: 200_000,
        loading: Loading {
            default_us: 1_000_000,
            ..Loading::default()
        },
        path_accuracies: pipeline.path_accuracies(),
        ..SimConfig::default()
    };
    let profile = pipeline.profile();
    let simulator = Simulator::new(&first, &profile, &config).unwrap();
    simulator.run_controlled(
        trace.arrivals(Spacing::Poisson, seed),
        &mut (),
        &profile,
        &mut manager,
    )
}
