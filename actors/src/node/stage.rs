//! Serves a stage with asynchronous Rust code: the trait [`Stage`], attached by [`attach_stage`].
//!
//! The stage runs on the caller's tokio runtime. Subscriptions and heartbeats run on a separate thread, so that a
//! blocking stage does not make the replica look lost.

use std::{any::Any, panic::AssertUnwindSafe, sync::Arc, thread, time::Duration};

use futures::FutureExt;
use kaskade_models::{Inputs, Outputs};
use tokio::{
    runtime::Handle,
    sync::{Semaphore, oneshot, watch},
    time::{Instant, timeout_at},
};

use crate::{
    actor::{self, Actor, Context, Handler},
    bus::BusConfig,
    dispatch::cost,
    dispatch::delivery::Delivery,
    dispatch::spans,
    error::{Code, Fault},
    node::NodeError,
    node::attach::{AttachConfig, attach},
};

/// Answers the requests of a stage, concurrently and without batching. An implementation may be written with `async
/// fn`.
///
/// A stage that computes in batches is a [`kaskade_models::Model`]; Kaskade queues and batches its requests.
///
/// ```
/// use kaskade_actors::{Fault, Stage, StageInput, StageOutput};
///
/// struct Echo;
///
/// impl Stage for Echo {
///     async fn run(&self, input: StageInput) -> Result<StageOutput, Fault> {
///         Ok(StageOutput::new(input.inputs).confidence(0.5))
///     }
/// }
/// ```
pub trait Stage: Send + Sync + 'static {
    /// Answers one request. The future is dropped when the request's budget ends; a panic fails only this request.
    fn run(&self, input: StageInput) -> impl Future<Output = Result<StageOutput, Fault>> + Send;
}

/// A request for a stage.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct StageInput {
    /// The inputs, without a batch dimension.
    pub inputs: Inputs,
    /// Name of the stage.
    pub stage: String,
    /// The remaining budget.
    pub budget: Duration,
    /// W3C trace context, to pass on to other services.
    pub traceparent: String,
}

/// The answer of a stage.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct StageOutput {
    /// The outputs, without a batch dimension.
    pub outputs: Outputs,
    /// The confidence in [0, 1]; `None` if it is computed from the outputs with the plan's calibration.
    pub confidence: Option<f64>,
    /// Whether the outputs are the reply, regardless of the stage's exit.
    pub terminal: bool,
}

impl StageOutput {
    /// Creates an answer to which the stage's exit is applied.
    pub fn new(outputs: Outputs) -> Self {
        Self {
            outputs,
            confidence: None,
            terminal: false,
        }
    }

    /// Sets the confidence, in [0, 1].
    #[must_use]
    pub fn confidence(mut self, confidence: f64) -> Self {
        self.confidence = Some(confidence);
        self
    }

    /// Makes the outputs the reply, regardless of the stage's exit.
    #[must_use]
    pub fn terminal(mut self) -> Self {
        self.terminal = true;
        self
    }
}

impl From<Outputs> for StageOutput {
    fn from(outputs: Outputs) -> Self {
        Self::new(outputs)
    }
}

/// An attached stage. Dropping it detaches the stage without waiting for requests in flight.
#[derive(Debug)]
#[must_use = "dropping it detaches the stage"]
pub struct AttachedStage {
    stop: watch::Sender<Option<Duration>>,
    ended: oneshot::Receiver<()>,
}

impl AttachedStage {
    /// Announces the departure, stops accepting requests, and waits at most `grace` until the accepted ones are
    /// answered.
    pub async fn detach(self, grace: Duration) {
        self.stop.send_replace(Some(grace));
        let _ = self.ended.await;
    }
}

/// Serves a stage of a running app with `stage`, as the replica in `config`. Returns once requests can arrive.
///
/// The queue is bounded: senders beyond [`AttachConfig::max_in_flight`] get [`Code::Overloaded`] immediately. Heartbeats
/// report the replica as alive until it is detached.
///
/// # Errors
/// [`NodeError`] if the broker fails, a name is invalid, or it is called outside a tokio runtime.
pub async fn attach_stage<S: Stage>(
    bus: BusConfig,
    config: AttachConfig,
    stage: S,
) -> Result<AttachedStage, NodeError> {
    let slots = config.concurrency.unwrap_or(Semaphore::MAX_PERMITS);
    let runner = Runner {
        stage: Arc::new(stage),
        slots: Arc::new(Semaphore::new(slots.clamp(1, Semaphore::MAX_PERMITS))),
        runtime: Handle::try_current().map_err(|error| NodeError::Thread(error.to_string()))?,
    };
    let (stop, stopped) = watch::channel(None);
    let (up, attached) = oneshot::channel();
    let (end, ended) = oneshot::channel();
    thread::Builder::new()
        .name("kaskade-stage".to_owned())
        .spawn(move || {
            actor::System::new().block_on(host(bus, config, runner, stopped, up));
            let _ = end.send(());
        })
        .map_err(|error| NodeError::Thread(error.to_string()))?;
    match attached.await {
        Ok(Ok(())) => Ok(AttachedStage { stop, ended }),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(NodeError::Thread(
            "it ended before the stage was attached".to_owned(),
        )),
    }
}

/// Attaches the stage, and detaches it when `stopped` has a value or its sender is dropped.
async fn host<S: Stage>(
    bus: BusConfig,
    config: AttachConfig,
    runner: Runner<S>,
    mut stopped: watch::Receiver<Option<Duration>>,
    up: oneshot::Sender<Result<(), NodeError>>,
) {
    let attached = match attach(bus, &config, runner.start().recipient()).await {
        Ok(attached) => attached,
        Err(error) => {
            let _ = up.send(Err(error));
            return;
        }
    };
    let grace = match up.send(Ok(())) {
        Ok(()) => {
            let asked = stopped.wait_for(Option::is_some).await;
            asked.map_or(Duration::ZERO, |grace| grace.unwrap_or_default())
        }
        // The caller no longer waits for the attachment.
        Err(_) => Duration::ZERO,
    };
    attached.detach(grace).await;
}

/// Passes deliveries to the stage on the caller's runtime.
struct Runner<S> {
    stage: Arc<S>,
    slots: Arc<Semaphore>,
    runtime: Handle,
}

impl<S: Stage> Actor for Runner<S> {
    type Context = Context<Self>;
}

impl<S: Stage> Handler<Delivery> for Runner<S> {
    type Result = ();

    fn handle(&mut self, delivery: Delivery, _: &mut Context<Self>) {
        let serving = serve(Arc::clone(&self.stage), Arc::clone(&self.slots), delivery);
        drop(self.runtime.spawn(serving));
    }
}

/// Runs the stage for one request within its budget, and answers.
async fn serve<S: Stage>(stage: Arc<S>, slots: Arc<Semaphore>, mut delivery: Delivery) {
    let left = Duration::from_micros(delivery.deadline.saturating_sub(delivery.now()));
    let end = Instant::now() + left;
    let slot = match timeout_at(end, slots.acquire_owned()).await {
        Ok(Ok(slot)) if Instant::now() < end => slot,
        _ => return delivery.fail(expired("it waited for the stage")),
    };
    let started = delivery.now();
    let input = StageInput {
        inputs: std::mem::take(&mut delivery.request.inputs),
        stage: delivery.request.stage.clone(),
        budget: end.saturating_duration_since(Instant::now()),
        traceparent: delivery.trace.to_string(),
    };
    // Called inside the block, so that a panic before the first `await` is caught too.
    let run = AssertUnwindSafe(async { stage.run(input).await }).catch_unwind();
    let result = timeout_at(end, run).await;
    drop(slot);
    let outputs = match &result {
        Ok(Ok(Ok(output))) => output.outputs.as_slice(),
        _ => &[],
    };
    let cost = cost::stated_cost(outputs);
    let run_us = delivery.now().saturating_sub(started);
    delivery.record_hop(started, run_us, 1, cost);
    spans::hop(&delivery, &delivery.request.stage, started, run_us, 1);
    match result {
        Err(_) => delivery.fail(expired("the stage worked on it")),
        Ok(Err(panic)) => {
            let message = format!("the stage panicked: {}", text_of(panic.as_ref()));
            delivery.fail(Fault::new(Code::ModelFailed, message));
        }
        Ok(Ok(Err(fault))) => delivery.fail(fault),
        Ok(Ok(Ok(output))) if output.terminal => delivery.reply(output.outputs, output.confidence),
        Ok(Ok(Ok(output))) => delivery.answer(output.outputs, output.confidence),
    }
}

fn expired(during: &str) -> Fault {
    Fault::new(
        Code::Expired,
        format!("the request's budget ended while {during}"),
    )
}

/// Returns the message of a panic.
fn text_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a message")
}
