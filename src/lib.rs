//! Kaskade serves several models of one task behind one endpoint. A request starts at the smallest model and escalates to a
//! larger one if the calibrated confidence of the answer is below a threshold.
//!
//! This crate is the command line `kaskade` and the library for programs that embed it. The root re-exports what most
//! programs need:
//!
//! | step | items |
//! |---|---|
//! | configure | [`App`], the TOML file of an app |
//! | measure | [`Profiler`], [`Profile`] |
//! | plan | [`planning::cascade()`] from a profile, [`Plan::cascade`] by hand |
//! | serve | [`Service`] for an app's file, [`ModelService`] for models in Rust |
//! | extend | [`Model`] for batches, [`Stage`] and [`attach_stage`] for asynchronous code |
//! | send requests | [`Client`], [`Fault`] with its [`Code`] |
//!
//! The crates behind it are reachable whole:
//!
//! | module | holds |
//! |---|---|
//! | [`app`] | applications as a library: configuration, data, measuring, planning, serving, load |
//! | [`actors`] | connections to the broker, the wire messages, ingress, workers, control loops |
//! | [`models`] | tensors, checkpoints, architectures, the LLM engine |
//! | [`policy`] | the decisions of serving: plans, profiles, confidence, routing |
//! | [`planners`] | thresholds, placement, gears, pipelines |
//! | [`simulator`] | the effect of a plan on a load, without serving it |
//!
//! # From a profile to an answer
//! Without a URL, a service starts an embedded broker on the loopback interface. A profile for use takes more rounds than
//! this one.
//!
//! ```
//! use std::time::Duration;
//!
//! use kaskade::{App, Client, Profiler, Service, Tensor, planning};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let file = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/digits/app.toml");
//! let app = App::load(file.as_ref())?;
//! let profile = Profiler::new(&app)
//!     .batches([1, 32])
//!     .rounds(1)
//!     .measure_for(Duration::from_millis(10))
//!     .run()?;
//! let planned = planning::cascade(&profile).app(&app).plan()?;
//! let service = Service::builder(&app).plan(planned.plan).start()?;
//!
//! let runtime = tokio::runtime::Runtime::new()?;
//! let reply = runtime.block_on(async {
//!     let client = Client::connect(service.url(), "digits").await?;
//!     let blank = Tensor::from_f32("image", &[1, 8, 8], &[0.0; 64])?;
//!     let request = client.tensors(vec![blank]).budget(Duration::from_secs(10));
//!     Ok::<_, Box<dyn std::error::Error>>(request.send().await?)
//! })?;
//! println!("{} answered with confidence {:?}", reply.variant, reply.confidence);
//! # assert_eq!(reply.outputs[0].shape, [10]);
//! service.stop();
//! # Ok(())
//! # }
//! ```
//!
//! # A plan by hand, and models in Rust
//! A [`Model`] answers batches. Here each model gives its own confidence, as the output `confidence`.
//!
//! ```
//! use std::time::Duration;
//!
//! use kaskade::{Client, Inputs, Model, ModelError, ModelService, Outputs, Plan, Tensor};
//!
//! /// Rounds a number; sure of itself if there is nothing to round.
//! struct Rounder;
//!
//! impl Model for Rounder {
//!     fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
//!         let round = |inputs: &Inputs| {
//!             let number = inputs[0].to_f32()?[0];
//!             let sure = if number.fract() == 0.0 { 1.0 } else { 0.0 };
//!             Ok(vec![
//!                 Tensor::from_f32("rounded", &[1], &[number.round()])?,
//!                 Tensor::from_f32("confidence", &[1], &[sure])?,
//!             ])
//!         };
//!         batch.iter().map(round).collect()
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let plan = Plan::cascade("rounding")
//!     .stage("guess", "small")
//!     .below(0.5)
//!     .then("round", "large")
//!     .build()?;
//! let node = ModelService::new("rounding")
//!     .plan(plan)
//!     .model("small", || Ok::<_, String>(Rounder))
//!     .model("large", || Ok::<_, String>(Rounder))
//!     .start()?;
//!
//! let reply = tokio::runtime::Runtime::new()?.block_on(async {
//!     let client = Client::connect(node.bus().url(), "rounding").await?;
//!     let number = Tensor::from_f32("number", &[1], &[6.7])?;
//!     let request = client.tensors(vec![number]).budget(Duration::from_secs(10));
//!     Ok::<_, Box<dyn std::error::Error>>(request.send().await?)
//! })?;
//! assert_eq!(reply.stage, "round");
//! assert_eq!(reply.outputs[0].to_f32()?, [7.0]);
//! node.stop();
//! # Ok(())
//! # }
//! ```
//!
//! # A custom stage
//! A [`Stage`] is asynchronous code that answers requests one by one, such as a call of another service. It attaches to a
//! running app from any process that reaches the broker, and leaves in good order.
//!
//! ```
//! use std::time::Duration;
//!
//! use kaskade::{
//!     AttachConfig, BusConfig, Client, Fault, ModelService, Plan, Stage, StageInput, StageOutput, Tensor,
//!     attach_stage,
//! };
//!
//! struct Shout;
//!
//! impl Stage for Shout {
//!     async fn run(&self, input: StageInput) -> Result<StageOutput, Fault> {
//!         let text = input.inputs[0].to_texts()?.concat().to_uppercase();
//!         Ok(StageOutput::new(vec![Tensor::from_texts("text", &[&text])?]).confidence(0.9))
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // No process is called `custom`: the replica `shout-0` is whatever attaches under that id.
//! let plan = Plan::cascade("echo").stage("shout", "shout").worker("custom").build()?;
//! let node = ModelService::new("echo").plan(plan).start()?;
//!
//! let reply = tokio::runtime::Runtime::new()?.block_on(async {
//!     let url = node.bus().url();
//!     let config = AttachConfig::new("echo", "shout", "shout-0").max_in_flight(16);
//!     let attached = attach_stage(BusConfig::new("echo").url(url), config, Shout).await?;
//!     let client = Client::connect(url, "echo").await?;
//!     let reply = client.text("hello")?.budget(Duration::from_secs(10)).send().await?;
//!     attached.detach(Duration::from_secs(1)).await;
//!     Ok::<_, Box<dyn std::error::Error>>(reply)
//! })?;
//! assert_eq!(reply.outputs[0].to_texts()?, ["HELLO"]);
//! node.stop();
//! # Ok(())
//! # }
//! ```

pub use kaskade_actors as actors;
pub use kaskade_app as app;
pub use kaskade_models as models;
pub use kaskade_planners as planners;
pub use kaskade_policy as policy;
pub use kaskade_simulator as simulator;

pub use kaskade_app::{config, planning};

pub use kaskade_actors::bus::{BusConfig, BusError};
pub use kaskade_actors::client::Accepted;
pub use kaskade_actors::wire::{FeedbackLabel, FeedbackReply, InferReply};
pub use kaskade_actors::{
    AttachConfig, AttachedStage, Code, Fault, Node, NodeError, Service as ModelService, Stage, StageInput,
    StageOutput, attach_stage,
};
pub use kaskade_app::config::{App, ConfigError};
pub use kaskade_app::family::Family;
pub use kaskade_app::measure::{Judge, MeasureError, Profiler};
pub use kaskade_app::planning::PlanningError;
pub use kaskade_app::serving::{Client, Role, Service, ServingError};
pub use kaskade_models::{Inputs, Model, ModelError, Outputs, Signature, Tensor, TensorError};
pub use kaskade_planners::cascade::Objective;
pub use kaskade_policy::invalid::Invalid;
pub use kaskade_policy::plan::Plan;
pub use kaskade_policy::profile::Profile;
