//! Three ways to bring custom code into a Kaskade app, in one process:
//!
//! (a) a [`Model`]: one method that answers a batch. Kaskade queues, batches, checks and routes around it;
//! (b) a [`Stage`]: one asynchronous method that answers a request. Kaskade queues, limits and checks around it;
//! (c) an actix actor with `Handler<Delivery>`: it gets every request as it arrives and answers when it likes.
//!
//! The app is a cascade of the three that tells whether a number is odd. The model looks at the last digit and is sure of
//! whole numbers only; the stage rounds and is sure of everything but halves; the actor rounds halves to even.
//!
//! ```text
//! cargo run --release --example custom_actor
//! ```
//!
//! (d), a process in another language, is `examples/python_client`.

#![allow(clippy::print_stdout, reason = "the program reports on standard output")]

use std::time::Duration;

use actix::{Actor, Context, Handler};
use kaskade::actors::Delivery;
use kaskade::actors::node::attach::attach;
use kaskade::{
    AttachConfig, BusConfig, Client, Fault, Inputs, Model, ModelError, ModelService, Outputs, Plan, Stage,
    StageInput, StageOutput, Tensor, TensorError, attach_stage,
};

/// The worker of the replicas that attach. No process has this name.
const CUSTOM: &str = "custom";

/// (a) One batch in, one answer per request out. The plan takes the confidence from the output `confidence`.
struct LastDigit;

impl Model for LastDigit {
    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        let answer = |inputs: &Inputs| {
            let number = number_of(inputs)?;
            let sure = if number.fract() == 0.0 { 1.0 } else { 0.0 };
            let mut outputs = parity(number.trunc())?;
            outputs.push(Tensor::from_f32("confidence", &[1], &[sure])?);
            Ok(outputs)
        };
        batch.iter().map(answer).collect()
    }
}

/// (b) Any asynchronous code: it could as well call another service.
struct Rounder;

impl Stage for Rounder {
    async fn run(&self, input: StageInput) -> Result<StageOutput, Fault> {
        let number = number_of(&input.inputs)?;
        let half = (number.fract().abs() - 0.5).abs() < f32::EPSILON;
        let outputs = parity(number.round())?;
        Ok(StageOutput::new(outputs).confidence(if half { 0.0 } else { 1.0 }))
    }
}

/// (c) Any actix actor that handles a delivery.
struct HalvesToEven;

impl Actor for HalvesToEven {
    type Context = Context<Self>;
}

impl Handler<Delivery> for HalvesToEven {
    type Result = ();

    fn handle(&mut self, delivery: Delivery, _: &mut Context<Self>) {
        let outputs =
            number_of(&delivery.request.inputs).and_then(|number| Ok(parity(number.round_ties_even())?));
        match outputs {
            Ok(outputs) => delivery.reply(outputs, None),
            Err(error) => delivery.fail(error.into()),
        }
    }
}

/// The number of a request.
fn number_of(inputs: &Inputs) -> Result<f32, ModelError> {
    let values = inputs.first().map(Tensor::to_f32).transpose()?;
    let number = values.and_then(|values| values.first().copied());
    number.ok_or_else(|| ModelError::Failed {
        reason: "there is no number".into(),
    })
}

/// The output `odd`: 0 or 1.
fn parity(whole: f32) -> Result<Outputs, TensorError> {
    Ok(vec![Tensor::from_f32("odd", &[1], &[whole.rem_euclid(2.0)])?])
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let plan = Plan::cascade("parity")
        .stage("guess", "last-digit")
        .below(0.5)
        .then("round", "rounder")
        .worker(CUSTOM)
        .below(0.5)
        .then("tie", "halves")
        .worker(CUSTOM)
        .build()?;
    let node = ModelService::new("parity")
        .model("last-digit", || Ok::<_, String>(LastDigit))
        .plan(plan)
        .start()?;
    let url = node.bus().url();
    println!("serving `parity` on {url}");

    // Only the actor needs an actix system; the stage runs on any tokio runtime.
    actix::System::new().block_on(async {
        let bus = BusConfig::new("parity").url(url);
        let config = AttachConfig::new("parity", "round", "rounder-0");
        let stage = attach_stage(bus.clone(), config, Rounder).await?;
        let config = AttachConfig::new("parity", "tie", "halves-0");
        let actor = attach(bus, &config, HalvesToEven.start().recipient()).await?;

        let client = Client::connect(url, "parity").await?;
        for number in [4.0_f32, 7.0, 7.4, 2.5] {
            let inputs = vec![Tensor::from_f32("number", &[1], &[number])?];
            let reply = client.tensors(inputs).send().await?;
            let odd = reply.outputs.first().map(Tensor::to_f32).transpose()?;
            let parity = if odd.unwrap_or_default() == [1.0] {
                "odd"
            } else {
                "even"
            };
            println!("{number} is {parity} (answered by `{}`)", reply.stage);
        }
        stage.detach(Duration::from_secs(1)).await;
        actor.detach(Duration::from_secs(1)).await;
        Ok::<_, Box<dyn std::error::Error>>(())
    })?;
    node.stop();
    Ok(())
}
