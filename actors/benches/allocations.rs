//! Heap allocations per request: a measure of the hot path that other load on the machine does not disturb.
//!
//! ```text
//! cargo bench -p kaskade-actors --bench allocations
//! ```
//!
//! One client asks one after the other over the embedded broker, so that every batch has one request. The figures hold what
//! the client, the broker, the node and the model allocate for a request; subtract two versions to compare nodes. Prints one
//! line of JSON per case, the smallest of several runs.
#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::alloc::System;
use std::num::NonZeroU32;
use std::time::Duration;

use kaskade_actors::plan::single;
use kaskade_actors::{App, Client, Service};
use kaskade_models::{Inputs, Model, ModelError, Outputs, Tensor};
use kaskade_policy::confidence::{Calibration, Estimator};
use kaskade_policy::plan::{Band, Batching, Edge, Exit, Plan, Target};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

type Failure = Box<dyn std::error::Error + Send + Sync>;

const REQUESTS: usize = 2_000;
const RUNS: usize = 5;
const BUDGET: Duration = Duration::from_secs(10);

/// Answers with the confidence that the request gives.
struct Given;

impl Model for Given {
    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        let one = |inputs: &Inputs| {
            Ok(vec![Tensor {
                name: "confidence".to_owned(),
                ..inputs.first().cloned().ok_or_else(|| ModelError::Failed {
                    reason: "no input".to_owned(),
                })?
            }])
        };
        batch.iter().map(one).collect()
    }
}

/// A cascade of that many stages, of which only the last one is confident enough.
fn cascade(app: &str, stages: usize) -> Plan {
    let batching = Batching {
        min_queue: 1,
        max_batch: 1,
        max_wait_us: 0,
    };
    let mut plan = single(app, "s0", "local", NonZeroU32::MIN, batching);
    let calibration = Calibration {
        estimator: Estimator::Given,
        temperature: 1.0,
    };
    let name = |stage: usize| format!("s{stage}");
    plan.variants.clear();
    let replica = plan.placement.remove(0);
    for stage in 0..stages {
        plan.variants.push(kaskade_policy::plan::PlannedVariant {
            name: name(stage),
            calibration: Some(calibration),
        });
        plan.placement.push(kaskade_policy::plan::Replica {
            id: format!("{}-0", name(stage)),
            variant: name(stage),
            ..replica.clone()
        });
    }
    for gear in &mut plan.gears {
        let first = gear.wiring.stages.remove(0);
        gear.wiring.entry = Edge::to(name(0));
        for stage in 0..stages {
            let next = Exit::Bands {
                bands: vec![
                    Band {
                        from: 0.0,
                        to: Target::Stage(Edge::to(name(stage + 1))),
                    },
                    Band {
                        from: 0.9,
                        to: Target::Reply,
                    },
                ],
            };
            let exit = if stage + 1 == stages { Exit::Reply } else { next };
            gear.wiring.stages.push(kaskade_policy::plan::Stage {
                name: name(stage),
                variant: name(stage),
                exit,
                ..first.clone()
            });
        }
    }
    plan
}

/// Returns the allocations per request of a cascade of that many stages.
fn count(stages: usize) -> Result<f64, Failure> {
    let app = format!("allocations-{stages}");
    let names = (0..stages).map(|stage| format!("s{stage}"));
    let service = names.fold(
        Service::new(app.as_str()).plan(cascade(&app, stages)),
        |service, name| service.model(&name, || Ok::<_, String>(Given)),
    );
    let node = service.start()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let fewest = runtime.block_on(async {
        let bus = kaskade_actors::bus::Bus::connect(kaskade_actors::bus::BusConfig::new(&app)).await?;
        let client = Client::new(&bus, App::new(app.as_str())?);
        let input = Tensor::from_f32("x", &[1], &[0.5])?;
        let mut fewest = f64::INFINITY;
        for _ in 0..RUNS {
            let region = Region::new(ALLOCATOR);
            for _ in 0..REQUESTS {
                client.infer(vec![input.clone()], BUDGET).await?;
            }
            fewest = fewest.min(region.change().allocations as f64 / REQUESTS as f64);
        }
        Ok::<_, Failure>(fewest)
    })?;
    node.stop();
    Ok(fewest)
}

fn main() -> Result<(), Failure> {
    for stages in [1, 3] {
        println!(
            "{{\"stages\":{stages},\"allocations_per_request\":{:.1}}}",
            count(stages)?
        );
    }
    Ok(())
}
