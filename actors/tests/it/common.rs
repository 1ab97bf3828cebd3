//! Scripted models and small plans.

pub(crate) mod gears;

use std::{collections::BTreeMap, time::Duration};

use kaskade_actors::Service;
use kaskade_actors::node::service::SOLE_WORKER;
use kaskade_models::{Datatype, Extent, InputSpec, Inputs, Model, ModelError, Outputs, Signature, Tensor};
use kaskade_policy::{
    confidence::{Calibration, Estimator},
    plan::{Band, Batching, Edge, Exit, Plan, PlannedVariant, Replica, Stage, Target, Wiring},
};

pub(crate) const BUDGET: Duration = Duration::from_secs(5);

/// A model that reads its behaviour from the request, `x` = [label, margin]: it returns logits in which `label` leads by
/// `margin` times `strength`. Special labels make it misbehave.
pub(crate) struct Scripted {
    pub(crate) strength: f32,
    pub(crate) run: Duration,
}

pub(crate) const NAN: f32 = -1.0;
pub(crate) const PANIC: f32 = -2.0;
pub(crate) const FAIL: f32 = -3.0;
pub(crate) const EMPTY: f32 = -4.0;

impl Model for Scripted {
    fn signature(&self) -> Signature {
        Signature {
            inputs: vec![InputSpec::required("x", Datatype::F32, vec![Extent::Exactly(2)])],
        }
    }

    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        // The run time of the model, not a wait for another thread.
        std::thread::sleep(self.run);
        batch.iter().map(|inputs| self.one(inputs)).collect()
    }
}

impl Scripted {
    fn one(&self, inputs: &Inputs) -> Result<Outputs, ModelError> {
        let x = inputs[0].to_f32()?;
        let mut logits = vec![0.0; 4];
        match x[0] {
            NAN => logits[0] = f32::NAN,
            PANIC => panic!("scripted to panic"),
            FAIL => {
                return Err(ModelError::Failed {
                    reason: "scripted to fail".into(),
                });
            }
            EMPTY => return Ok(Vec::new()),
            label => logits[label as usize] = x[1] * self.strength,
        }
        Ok(vec![Tensor::from_f32("logits", &[4], &logits)?])
    }
}

pub(crate) fn ask(label: f32, margin: f32) -> Vec<Tensor> {
    vec![Tensor::from_f32("x", &[2], &[label, margin]).unwrap()]
}

pub(crate) fn label(outputs: &[Tensor]) -> usize {
    let logits = outputs[0].to_f32().unwrap();
    (0..logits.len())
        .max_by(|a, b| logits[*a].total_cmp(&logits[*b]))
        .unwrap()
}

/// A cascade of stages `small`, `medium`, `large`: the first escalates below 0.5, and skips the second below 0.2.
pub(crate) fn cascade(app: &str) -> Plan {
    let calibration = Some(Calibration {
        estimator: Estimator::MaxSquared,
        temperature: 1.0,
    });
    let band = |from: f64, to: Option<&str>| Band {
        from,
        to: to.map_or(Target::Reply, |stage| Target::Stage(Edge::to(stage))),
    };
    let stage = |name: &str, exit: Exit| {
        Stage::new(
            name,
            name,
            exit,
            Batching {
                min_queue: 1,
                max_batch: 8,
                max_wait_us: 1_000,
            },
        )
    };
    let names = ["small", "medium", "large"];
    Plan {
        made_by: "test".into(),
        ..Plan::one_gear(
            app,
            names
                .iter()
                .map(|name| PlannedVariant {
                    name: (*name).into(),
                    calibration,
                })
                .collect(),
            names
                .iter()
                .map(|name| Replica {
                    id: format!("{name}-0"),
                    variant: (*name).into(),
                    worker: SOLE_WORKER.into(),
                    device: "cpu".into(),
                    partition: None,
                    checkpoint: None,
                })
                .collect(),
            Wiring {
                entry: Edge::to("small"),
                ensemble: Vec::new(),
                stages: vec![
                    stage(
                        "small",
                        Exit::Bands {
                            bands: vec![
                                band(0.0, Some("large")),
                                band(0.2, Some("medium")),
                                band(0.5, None),
                            ],
                        },
                    ),
                    stage(
                        "medium",
                        Exit::Bands {
                            bands: vec![band(0.0, Some("large")), band(0.5, None)],
                        },
                    ),
                    stage("large", Exit::Reply),
                ],
            },
        )
    }
}

/// A service of three scripted models of growing strength.
pub(crate) fn service(app: &str) -> Service {
    with_models(app).plan(cascade(app))
}

/// The same service with the plan of its store.
pub(crate) fn with_models(app: &str) -> Service {
    let strengths = BTreeMap::from([("small", 1.0), ("medium", 2.0), ("large", 4.0)]);
    strengths
        .into_iter()
        .fold(Service::new(app), |service, (name, strength)| {
            service.model(name, move || {
                Ok::<_, String>(Scripted {
                    strength,
                    run: Duration::ZERO,
                })
            })
        })
}
