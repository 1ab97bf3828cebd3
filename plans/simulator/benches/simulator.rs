//! How fast the simulator is: a three-stage cascade under several regimes of batching, on one core.
//!
//! Prints requests and events per second of processor time, simulated over processor time, and the most requests in flight,
//! which is what the memory grows with.
//!
//! `cargo bench -p kaskade-simulator --bench simulator [requests]`
#![expect(clippy::print_stdout, reason = "it prints a table")]
#![expect(
    clippy::disallowed_methods,
    reason = "it measures time; the simulator does not read it"
)]

use std::collections::BTreeMap;
use std::error::Error;
use std::time::Instant;

use kaskade_policy::confidence::{Calibration, Estimator};
use kaskade_policy::plan::{
    Band, Batching, Edge, Exit, Plan, PlannedVariant, Replica, Sharing, Stage, Wiring,
};
use kaskade_policy::profile::{BatchCost, Profile, Validation, VariantProfile};
use kaskade_simulator::{SimConfig, Simulator};

const SAMPLES: usize = 10_000;

/// Latency of a batch, seconds: a fixed part and a part per request. A family like the small BERTs on a GPU.
const VARIANTS: [(&str, f64, f64); 3] = [
    ("tiny", 0.001, 0.000_01),
    ("small", 0.003, 0.000_05),
    ("base", 0.010, 0.000_4),
];

/// Up to these confidences a result is forwarded: 30 % after the first stage, 30 % of those after the second.
const THRESHOLD: f64 = 0.3;

struct Regime {
    name: &'static str,
    devices: usize,
    qps: f64,
    min_queue: u32,
    max_batch: u32,
    hop_us: u64,
    budget_us: Option<u64>,
    sharing: Sharing,
}

fn main() -> Result<(), Box<dyn Error>> {
    let requests = std::env::args()
        .skip(1)
        .find(|argument| argument != "--bench")
        .map_or(Ok(10_000_000), |text| text.parse())?;
    let plain = Regime {
        name: "min_queue 1",
        devices: 8,
        qps: 8_000.0,
        min_queue: 1,
        max_batch: 64,
        hop_us: 50,
        budget_us: None,
        sharing: Sharing::Exclusive,
    };
    let regimes = [
        Regime {
            name: "min_queue 1, light load",
            qps: 800.0,
            ..plain
        },
        Regime {
            name: "min_queue 1, concurrent",
            sharing: Sharing::Concurrent,
            ..plain
        },
        Regime {
            name: "min_queue 1, budget 200 ms",
            budget_us: Some(200_000),
            ..plain
        },
        Regime {
            name: "min_queue 1, no hop cost",
            hop_us: 0,
            ..plain
        },
        Regime {
            name: "min_queue 16",
            min_queue: 16,
            ..plain
        },
        Regime {
            name: "min_queue 64",
            min_queue: 64,
            ..plain
        },
        Regime {
            name: "1 device",
            devices: 1,
            qps: 1_000.0,
            ..plain
        },
        Regime {
            name: "100 devices",
            devices: 100,
            qps: 80_000.0,
            ..plain
        },
        Regime {
            name: "1000 devices",
            devices: 1_000,
            qps: 80_000.0,
            ..plain
        },
        Regime {
            name: "1000 devices, min_queue 16",
            devices: 1_000,
            qps: 80_000.0,
            min_queue: 16,
            ..plain
        },
        plain,
    ];
    println!(
        "{:<28} {:>9} {:>9} {:>9} {:>8} {:>9} {:>7} {:>7}",
        "regime", "Mreq/s", "Mevents/s", "x real", "in fl.", "p95 ms", "batch", "util"
    );
    for regime in &regimes {
        measure(regime, requests)?;
    }
    Ok(())
}

fn measure(regime: &Regime, requests: u64) -> Result<(), Box<dyn Error>> {
    let config = SimConfig {
        entry_hop_us: 2 * regime.hop_us,
        hop_us: regime.hop_us,
        budget_us: regime.budget_us,
        ..SimConfig::default()
    };
    let simulator = Simulator::new(&plan(regime), &profile(), &config)?;
    let gap = 1e6 / regime.qps;
    // Gaps between none and twice the mean, so that arrivals cost next to nothing themselves.
    let arrivals = (0..requests).map(|number| ((number as f64 + noise(number)) * gap) as u64);
    let clock = Clock::start();
    let report = simulator.run(arrivals, &mut ());
    let seconds = clock.seconds();
    let outcomes = report.answered + report.expired + report.refused + report.failed;
    if outcomes != requests || report.lost != 0 {
        return Err(format!("{outcomes} outcomes for {requests} requests").into());
    }
    let (runs, batches) = report
        .variants
        .iter()
        .fold((0, 0), |sum, of| (sum.0 + of.runs, sum.1 + of.batches));
    println!(
        "{:<28} {:>9.2} {:>9.2} {:>9.1} {:>8} {:>9.2} {:>7.1} {:>7.2}",
        regime.name,
        requests as f64 / seconds / 1e6,
        report.events as f64 / seconds / 1e6,
        report.duration_us as f64 / 1e6 / seconds,
        report.max_in_flight,
        report.latency.p95().unwrap_or_default() as f64 / 1e3,
        runs as f64 / f64::from(u32::try_from(batches)?.max(1)),
        report.max_utilisation(),
    );
    Ok(())
}

/// Processor time of this thread, so that other load on the machine does not change the result; wall time if the system does
/// not provide it.
struct Clock {
    wall: Instant,
    given: Option<f64>,
}

impl Clock {
    fn start() -> Self {
        Self {
            wall: Instant::now(),
            given: Self::given(),
        }
    }

    fn seconds(&self) -> f64 {
        match (Self::given(), self.given) {
            (Some(now), Some(then)) => now - then,
            _ => self.wall.elapsed().as_secs_f64(),
        }
    }

    fn given() -> Option<f64> {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
        let nanoseconds: f64 = text.split_whitespace().next()?.parse().ok()?;
        Some(nanoseconds / 1e9)
    }
}

/// A pseudo-random number in [0, 1).
fn noise(number: u64) -> f64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (mixed >> 11) as f64 / (1_u64 << 53) as f64
}

/// Every variant on every device.
fn plan(regime: &Regime) -> Plan {
    let [first, ..] = &VARIANTS;
    let batching = |stage: usize| Batching {
        min_queue: if stage == 0 { regime.min_queue } else { 1 },
        max_batch: regime.max_batch,
        max_wait_us: 20_000,
    };
    let edge = |(name, _, _): &(&str, f64, f64)| Edge {
        shares: shares(name, regime.devices),
        ..Edge::to(*name)
    };
    let exit = |next: &(&str, f64, f64)| Exit::Bands {
        bands: vec![Band::forward(0.0, edge(next)), Band::reply(THRESHOLD)],
    };
    let stage = |(place, (name, _, _)): (usize, &(&str, f64, f64))| {
        Stage::new(
            *name,
            *name,
            VARIANTS.get(place + 1).map_or(Exit::Reply, exit),
            batching(place),
        )
    };
    let replicas = (0..regime.devices).flat_map(|device| {
        VARIANTS.iter().map(move |(name, _, _)| {
            Replica::whole(
                id(name, device),
                *name,
                format!("w{}", device / 2),
                format!("cuda:{}", device % 2),
            )
        })
    });
    Plan {
        made_by: "the simulator's benchmark".into(),
        sharing: regime.sharing,
        ..Plan::one_gear(
            "bench",
            VARIANTS.iter().map(planned).collect(),
            replicas.collect(),
            Wiring {
                entry: edge(first),
                ensemble: Vec::new(),
                stages: VARIANTS.iter().enumerate().map(stage).collect(),
            },
        )
    }
}

fn planned((name, _, _): &(&str, f64, f64)) -> PlannedVariant {
    PlannedVariant {
        name: (*name).to_owned(),
        calibration: Some(calibration()),
    }
}

fn calibration() -> Calibration {
    Calibration::uncalibrated(Estimator::MaxSquared)
}

fn id(variant: &str, device: usize) -> String {
    format!("{variant}-{device}")
}

fn shares(variant: &str, devices: usize) -> BTreeMap<String, f64> {
    (0..devices)
        .map(|device| (id(variant, device), 1.0 / devices as f64))
        .collect()
}

fn profile() -> Profile {
    let cost = |fixed: f64, each: f64, batch: u32| BatchCost::new(batch, fixed + each * f64::from(batch));
    let variant = |(place, (name, fixed, each)): (u64, &(&str, f64, f64))| {
        let costs = [1, 8, 64].map(|batch| cost(*fixed, *each, batch)).to_vec();
        let samples = 0..SAMPLES as u64;
        let confidences = samples
            .clone()
            .map(|sample| noise(sample + 1_000_000 * place))
            .collect();
        let correct = samples
            .map(|sample| noise(sample + 7_000_000 * (place + 1)) < 0.9)
            .collect();
        let validation = Validation::new(vec![0; SAMPLES], confidences, correct);
        VariantProfile::new(*name, calibration(), costs, validation)
    };
    Profile::new(
        "bench",
        Estimator::MaxSquared,
        (0..).zip(&VARIANTS).map(variant).collect(),
    )
}
