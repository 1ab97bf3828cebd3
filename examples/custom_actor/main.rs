//! Two ways to bring something of your own into a Kaskade app, in one process:
//!
//! (a) a [`Model`]: one method that answers a batch. Kaskade queues, batches, checks and routes around it;
//! (b) an actix actor with `Handler<Delivery>`: you get every request as it comes and answer when you like.
//!
//! The app is a cascade of the two. The model guesses a number's parity from its last digit and is sure of it for whole
//! numbers only; what it is not sure of goes on to the actor, which rounds first.
//!
//! ```text
//! cargo run --release --example custom_actor
//! ```
//!
//! (c), a process in another language, is `examples/python_client`.

#![allow(clippy::print_stdout, reason = "a program that talks to people")]

use std::time::Duration;

use actix::{Actor, Context, Handler};
use kaskade::policy::{
    confidence::{Calibration, Estimator},
    plan::{
        Band, Batching, Dropping, Edge, Exit, Gear, LoadRange, PLAN_VERSION, PlannedVariant, Replica,
        Sharing, Stage, Target, Wiring,
    },
};
use kaskade::{Inputs, Model, ModelError, Outputs, Plan, Tensor};
use kaskade_actors::bus::BusConfig;
use kaskade_actors::node::attach::{AttachConfig, attach};
use kaskade_actors::node::service::SOLE_WORKER;
use kaskade_actors::{App, Client, Delivery, Service};

/// (a) One batch in, one answer per request out.
struct LastDigit;

impl Model for LastDigit {
    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        batch.iter().map(|inputs| parity(inputs, f32::trunc)).collect()
    }
}

/// (b) Any actix actor that handles a delivery.
struct Rounder;

impl Actor for Rounder {
    type Context = Context<Self>;
}

impl Handler<Delivery> for Rounder {
    type Result = ();

    fn handle(&mut self, delivery: Delivery, _: &mut Context<Self>) {
        match parity(&delivery.request.inputs, f32::round) {
            Ok(outputs) => delivery.reply(outputs, None),
            Err(error) => delivery.fail(error.into()),
        }
    }
}

/// `odd` (0 or 1), and a confidence: 1 for a whole number, 0 otherwise.
fn parity(inputs: &Inputs, whole: impl Fn(f32) -> f32) -> Result<Outputs, ModelError> {
    let number = inputs
        .first()
        .map(Tensor::to_f32)
        .transpose()?
        .and_then(|values| values.first().copied());
    let number = number.ok_or_else(|| ModelError::Failed {
        reason: "there is no number".into(),
    })?;
    let odd = whole(number).rem_euclid(2.0);
    let sure = if number.fract() == 0.0 { 1.0 } else { 0.0 };
    Ok(vec![
        Tensor::from_f32("odd", &[1], &[odd])?,
        Tensor::from_f32("confidence", &[1], &[sure])?,
    ])
}

/// Below a confidence of one half, `guess` passes on to `round`.
fn plan() -> Plan {
    let given = Some(Calibration {
        estimator: Estimator::Given,
        temperature: 1.0,
    });
    let replica = |id: &str, variant: &str, worker: &str| Replica {
        id: id.into(),
        variant: variant.into(),
        worker: worker.into(),
        device: "cpu".into(),
        partition: None,
    };
    let stage = |name: &str, variant: &str, exit: Exit| Stage {
        name: name.into(),
        task: None,
        variant: variant.into(),
        partition: None,
        budget_us: None,
        profiled: None,
        exit,
        batching: Batching::default(),
    };
    Plan {
        version: PLAN_VERSION,
        app: "parity".into(),
        made_by: "by hand".into(),
        variants: vec![
            PlannedVariant {
                name: "last-digit".into(),
                calibration: given,
            },
            PlannedVariant {
                name: "rounder".into(),
                calibration: None,
            },
        ],
        placement: vec![
            replica("last-digit-0", "last-digit", SOLE_WORKER),
            // No worker of ours is called `custom`: this replica is the actor that attaches itself.
            replica("rounder-0", "rounder", "custom"),
        ],
        sharing: Sharing::default(),
        dropping: Dropping::None,
        slo: None,
        gears: vec![Gear {
            name: "only".into(),
            load: LoadRange::ALL,
            expected: None,
            wiring: Wiring {
                entry: Edge::to("guess"),
                ensemble: Vec::new(),
                stages: vec![
                    stage(
                        "guess",
                        "last-digit",
                        Exit::Bands {
                            bands: vec![
                                Band {
                                    from: 0.0,
                                    to: Target::Stage(Edge::to("round")),
                                },
                                Band {
                                    from: 0.5,
                                    to: Target::Reply,
                                },
                            ],
                        },
                    ),
                    stage("round", "rounder", Exit::Reply),
                ],
            },
        }],
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let node = Service::new("parity")
        .model("last-digit", || Ok::<_, String>(LastDigit))
        .plan(plan())
        .start()?;
    let url = node.bus().url();
    println!("serving `parity` on {url}");

    actix::System::new().block_on(async {
        let place = AttachConfig {
            app: "parity".into(),
            stage: "round".into(),
            replica: "rounder-0".into(),
            max_in_flight: 64,
        };
        let attached = attach(
            BusConfig::new("parity").url(url),
            &place,
            Rounder.start().recipient(),
        )
        .await?;

        let client = Client::new(node.bus(), App::new("parity")?);
        for number in [4.0_f32, 7.0, 7.4] {
            let inputs = vec![Tensor::from_f32("number", &[1], &[number])?];
            let reply = client.infer(inputs, Duration::from_secs(2)).await?;
            let odd = reply
                .outputs
                .first()
                .map(Tensor::to_f32)
                .transpose()?
                .unwrap_or_default()
                == [1.0];
            let path: Vec<_> = reply.hops.iter().map(|hop| hop.stage.as_str()).collect();
            println!(
                "{number} is {} (answered by `{}`, passed {path:?})",
                if odd { "odd" } else { "even" },
                reply.stage
            );
        }
        attached.detach(Duration::from_secs(1)).await;
        Ok::<_, Box<dyn std::error::Error>>(())
    })?;
    node.stop();
    Ok(())
}
