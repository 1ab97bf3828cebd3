//! The models and plans that are served: trivial, so that serving itself is measured.

use std::num::NonZeroU32;

use kaskade_actors::bus::{BusConfig, PlanStorage};
use kaskade_actors::plan::single;
use kaskade_models::{Inputs, Model, ModelError, Outputs, Tensor};
use kaskade_policy::{
    confidence::{Calibration, Estimator},
    plan::{Band, Batching, Edge, Exit, Plan, PlannedVariant, Replica, Stage, Target},
};
use kaskade_testkit::bench::WIDTH;

pub(crate) const BATCHING: Batching = Batching {
    min_queue: 1,
    max_batch: 32,
    max_wait_us: 2_000,
};

/// Whether the models run inline. They take a few microseconds, so they do, unless their own threads are to be measured: then the
/// variable `KASKADE_BENCH_THREADS` is set.
pub(crate) fn inline() -> bool {
    std::env::var_os("KASKADE_BENCH_THREADS").is_none()
}

/// tanh(x W), arg max; confident for draws below its share.
pub(crate) struct Trivial {
    weights: Vec<f32>,
    exits_below: f32,
}

impl Trivial {
    pub(crate) fn new(exits_below: f32) -> Self {
        Self {
            weights: (0..WIDTH * WIDTH).map(|i| (i % 97) as f32 / 97.0).collect(),
            exits_below,
        }
    }

    fn one(&self, inputs: &Inputs) -> Result<Outputs, ModelError> {
        let values = inputs
            .first()
            .map(Tensor::to_f32)
            .transpose()?
            .unwrap_or_default();
        let Some((draw, x)) = values.split_first() else {
            return Err(ModelError::Failed {
                reason: "no input".into(),
            });
        };
        let mut sums = [0.0_f32; WIDTH];
        for (value, row) in x.iter().zip(self.weights.chunks_exact(WIDTH)) {
            for (sum, weight) in sums.iter_mut().zip(row) {
                *sum += value * weight;
            }
        }
        let best = sums
            .iter()
            .map(|sum| sum.tanh())
            .enumerate()
            .max_by(|a, b| a.1.total_cmp(&b.1));
        let label = best.map_or(0.0, |(label, _)| label as f32);
        let sure = if *draw < self.exits_below { 0.9 } else { 0.3 };
        Ok(vec![
            Tensor::from_f32("label", &[1], &[label])?,
            Tensor::from_f32("confidence", &[1], &[sure])?,
        ])
    }
}

impl Model for Trivial {
    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        batch.iter().map(|inputs| self.one(inputs)).collect()
    }

    fn runs_inline(&self) -> bool {
        inline()
    }
}

/// Returns its input, to measure the cost of a hop by size.
pub(crate) struct Echo;

impl Model for Echo {
    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        batch.iter().map(|inputs| Ok(inputs.clone())).collect()
    }

    fn runs_inline(&self) -> bool {
        inline()
    }
}

/// Exits at 0.5 of the given confidence: 60 % at the first stage, 25 % at the second, the rest at the third.
pub(crate) fn cascade() -> Plan {
    let mut plan = single("cascade", "s1", "local", NonZeroU32::MIN, BATCHING);
    let names = ["s1", "s2", "s3"];
    let calibration = Some(Calibration {
        estimator: Estimator::Given,
        temperature: 1.0,
    });
    plan.variants = names
        .iter()
        .map(|name| PlannedVariant {
            name: (*name).into(),
            calibration,
        })
        .collect();
    plan.placement = names
        .iter()
        .map(|name| Replica {
            id: format!("{name}-0"),
            variant: (*name).into(),
            worker: "local".into(),
            device: "cpu".into(),
            partition: None,
            checkpoint: None,
        })
        .collect();
    let stage = |name: &str, next: Option<&str>| {
        Stage::new(
            name,
            name,
            next.map_or(Exit::Reply, |next| Exit::Bands {
                bands: vec![
                    Band {
                        from: 0.0,
                        to: Target::Stage(Edge::to(next)),
                    },
                    Band {
                        from: 0.5,
                        to: Target::Reply,
                    },
                ],
            }),
            BATCHING,
        )
    };
    for gear in &mut plan.gears {
        gear.wiring.stages = vec![
            stage("s1", Some("s2")),
            stage("s2", Some("s3")),
            stage("s3", None),
        ];
    }
    plan
}

pub(crate) fn bus(url: &str, app: &str) -> BusConfig {
    let config = BusConfig {
        plans: PlanStorage::Memory,
        ..BusConfig::new(app)
    };
    if url == "embedded" {
        config
    } else {
        config.url(url)
    }
}
