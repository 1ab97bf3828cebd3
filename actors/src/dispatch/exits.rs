//! The router: exit, next or skip. It runs where the replica runs, so that a cascade step costs one hop.
//! *Where* a result goes is decided by [`kaskade_plans::routing`].

use std::sync::Arc;

use actix::{Actor, Context, Handler, Message};
use kaskade_models::{BatchResult, Tensor};
use kaskade_plans::{
    confidence::{Calibration, ConfidenceError, Estimator, Scores},
    plan::{Child, Edge, Exit},
    routing::{self, Route},
};

use crate::{
    dispatch::delivery::Delivery,
    dispatch::fan_out,
    error::{Code, Fault},
    metrics::Metrics,
    plan::versions::{Adopted, PlanBook},
};

/// Sends every result of a batch on its way.
pub struct Router {
    variant: String,
    book: PlanBook,
    metrics: Arc<Metrics>,
}

/// A finished batch: the deliveries and, in the same order, what the model made of them.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Batch {
    /// Whose batch it was.
    pub deliveries: Vec<Delivery>,
    /// What the model returned.
    pub result: BatchResult,
    /// When it started, on the process's clock, microseconds.
    pub started: u64,
}

/// One finished answer, of a model that is not run batch by batch.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Answered {
    /// Whose it is.
    pub delivery: Delivery,
    /// What the model returned.
    pub outputs: Vec<Tensor>,
}

/// Where a result goes next.
pub(crate) enum Way<'a> {
    /// To the client.
    Reply,
    /// To another stage with the original inputs.
    Forward(&'a Edge),
    /// To the next partition, which continues from these outputs.
    Continue(&'a Edge),
    /// To the tasks below, as many requests as there are in these outputs.
    Fork(&'a [Child]),
}

impl Router {
    /// A router for the replicas of one variant.
    pub fn new(variant: &str, book: PlanBook, metrics: Arc<Metrics>) -> Self {
        Self {
            variant: variant.to_owned(),
            book,
            metrics,
        }
    }

    fn route(&self, delivery: Delivery, outputs: Vec<Tensor>) {
        let request = &delivery.request;
        let Some(adopted) = self.book.at(request.epoch) else {
            let fault = unknown_epoch(request.epoch);
            return delivery.fail(fault);
        };
        // Between the slices of a model nothing decides, and hidden states have no confidence.
        let confidence = if adopted.goes_on(request.gear, &request.stage) {
            None
        } else {
            match confidence(&adopted, &self.variant, &outputs) {
                Ok(confidence) => confidence,
                Err(fault) => return delivery.fail(fault),
            }
        };
        match way(&adopted, request.gear, &request.stage, confidence, request.settle) {
            Err(fault) => delivery.fail(fault),
            Ok(Way::Reply) => delivery.reply(outputs, confidence),
            // Only the ingress hears from the broker that nobody is there; it passes on in our place.
            Ok(Way::Forward(edge) | Way::Continue(edge)) if delivery.leads_nowhere(&adopted, edge) => {
                delivery.answer(outputs, confidence);
            }
            Ok(Way::Forward(edge)) => delivery.forward(&adopted, edge, None),
            Ok(Way::Continue(edge)) => delivery.forward(&adopted, edge, Some(outputs)),
            Ok(Way::Fork(children)) => self.fork(delivery, &adopted, children, outputs),
        }
    }

    fn fork(&self, delivery: Delivery, adopted: &Adopted, children: &[Child], outputs: Vec<Tensor>) {
        let gear = delivery.request.gear;
        let tasks = children.iter().map(|child| adopted.task_of(gear, &child.to));
        match fan_out::fork(outputs, tasks) {
            Err(fault) => delivery.fail(fault),
            Ok(forked) => {
                self.metrics.forked(&self.variant, &forked.counts());
                delivery.fork(adopted, children, forked);
            }
        }
    }
}

impl Actor for Router {
    type Context = Context<Self>;
}

impl Handler<Batch> for Router {
    type Result = ();

    fn handle(
        &mut self,
        Batch {
            deliveries,
            result,
            started,
        }: Batch,
        _: &mut Context<Self>,
    ) {
        let size = deliveries.len();
        self.metrics.batch(&self.variant, size, &result);
        for (mut delivery, outcome) in deliveries.into_iter().zip(result.outputs) {
            delivery.hop(started, result.run_us, size);
            match outcome {
                Ok(outputs) => self.route(delivery, outputs),
                Err(error) => delivery.fail(Fault::from(error)),
            }
        }
    }
}

impl Handler<Answered> for Router {
    type Result = ();

    fn handle(&mut self, Answered { delivery, outputs }: Answered, _: &mut Context<Self>) {
        self.route(delivery, outputs);
    }
}

/// Applies a stage's exit; to a request that must `settle`, as far as there is an answer.
pub(crate) fn way<'a>(
    adopted: &'a Adopted,
    gear: u32,
    stage: &str,
    confidence: Option<f64>,
    settle: bool,
) -> Result<Way<'a>, Fault> {
    let Some(found) = adopted.stage(gear, stage) else {
        let message = format!("epoch {} gear {gear} has no stage `{stage}`", adopted.epoch);
        return Err(Fault::new(Code::Internal, message));
    };
    let continues = matches!(found.exit, Exit::Next { .. });
    let route = if settle { routing::settle } else { routing::route };
    match route(&found.exit, confidence) {
        Ok(Route::Reply) => Ok(Way::Reply),
        Ok(Route::Forward(edge)) if continues => Ok(Way::Continue(edge)),
        Ok(Route::Forward(edge)) => Ok(Way::Forward(edge)),
        Ok(Route::FanOut(children)) => Ok(Way::Fork(children)),
        Err(error) => Err(Fault::new(
            Code::NotCalibrated,
            format!("stage `{stage}`: {error}"),
        )),
    }
}

/// The calibrated confidence of a variant's outputs; `None` for a variant without calibration.
pub(crate) fn confidence(adopted: &Adopted, variant: &str, outputs: &[Tensor]) -> Result<Option<f64>, Fault> {
    let Some(calibration) = adopted.calibration(variant) else {
        return Ok(None);
    };
    score(calibration, outputs)
        .map(Some)
        .map_err(|reason| Fault::new(Code::BadOutput, format!("variant `{variant}`: {reason}")))
}

fn score(calibration: &Calibration, outputs: &[Tensor]) -> Result<f64, String> {
    let read = |name: &str| {
        let tensor = outputs.iter().find(|tensor| tensor.name == name);
        let tensor =
            tensor.ok_or_else(|| format!("there is no output `{name}` to judge its confidence by"))?;
        tensor
            .to_f32()
            .map(|values| (values, tensor.shape.last().copied().unwrap_or(1)))
            .map_err(|e| e.to_string())
    };
    let judge = |scores: &Scores<'_>| {
        calibration
            .confidence(scores)
            .map_err(|e: ConfidenceError| e.to_string())
    };
    match calibration.estimator {
        Estimator::MaxSquared | Estimator::Margin => judge(&Scores::Logits(&read("logits")?.0)),
        Estimator::TopK { .. } => {
            let (logits, vocabulary) = read("logits")?;
            judge(&Scores::Tokens {
                logits: &logits,
                vocabulary,
            })
        }
        Estimator::Span => judge(&Scores::Span {
            start: &read("start_logits")?.0,
            end: &read("end_logits")?.0,
        }),
        Estimator::Given => {
            let given = read("confidence")?.0.first().copied().map(f64::from);
            judge(&Scores::Given(given.ok_or("output `confidence` is empty")?))
        }
    }
}

fn unknown_epoch(epoch: u64) -> Fault {
    // Retryable: the ingress resends under the same epoch, and this process may learn it in the meantime.
    Fault::new(
        Code::Unavailable,
        format!("this worker does not know the plan of epoch {epoch} (yet)"),
    )
}
