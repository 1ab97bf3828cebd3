//! The router: applies the exit of a stage (reply, forward, continue or fan out). It runs in the replica's actor, so
//! that a cascade step costs one hop. The policy is [`kaskade_policy::routing`].

use std::sync::Arc;

use kaskade_models::{BatchResult, Tensor};
use kaskade_policy::confidence::{Calibration, ConfidenceError, Estimator, Scores};
use kaskade_policy::plan::{Child, Edge, Exit};
use kaskade_policy::remote::price::Cost;
use kaskade_policy::routing;
use kaskade_policy::routing::Route;

use crate::{
    dispatch::delivery::Delivery,
    dispatch::fan_out,
    dispatch::spans,
    dispatch::{cost, deferral},
    error::{Code, Fault},
    metrics::Metrics,
    plan::versions::{PlanVersion, PlanVersions},
};

/// Routes the results of one variant's replica. Not an actor: the replica's actor calls it.
pub(crate) struct Router {
    variant: String,
    plans: PlanVersions,
    metrics: Arc<Metrics>,
}

/// Destination of a result.
pub(crate) enum RouteDecision<'a> {
    /// To the client.
    Reply,
    /// To another stage, with the original inputs.
    Forward(&'a Edge),
    /// To the next partition, with these outputs as its inputs.
    Continue(&'a Edge),
    /// To the child tasks, with one request per row of these outputs.
    FanOut(&'a [Child]),
}

impl Router {
    /// Creates a router for the replicas of one variant.
    pub(crate) fn new(variant: &str, plans: PlanVersions, metrics: Arc<Metrics>) -> Self {
        Self {
            variant: variant.to_owned(),
            plans,
            metrics,
        }
    }

    /// Routes a finished batch. `deliveries` and the results are in the same order, and the result returns the inputs
    /// of the deliveries. `started` is the start of the batch on the process's clock, microseconds.
    pub(crate) fn route_batch(&self, deliveries: Vec<Delivery>, result: BatchResult, started: u64) {
        let size = deliveries.len();
        let waited = deliveries
            .iter()
            .map(|delivery| started.saturating_sub(delivery.arrived));
        self.metrics.batch(&self.variant, waited, result.run_us);
        let results = result.inputs.into_iter().zip(result.outputs);
        for (mut delivery, (inputs, outcome)) in deliveries.into_iter().zip(results) {
            delivery.request.inputs = inputs;
            let cost = outcome.as_ref().ok().and_then(|outputs| self.cost(outputs));
            delivery.record_hop(started, result.run_us, size, cost);
            spans::hop(&delivery, &self.variant, started, result.run_us, size);
            match outcome {
                Ok(outputs) => self.route(delivery, outputs),
                Err(error) => delivery.fail(Fault::from(error)),
            }
        }
    }

    /// Returns the cost of a request, and counts it.
    pub(crate) fn cost(&self, outputs: &[Tensor]) -> Option<Cost> {
        let cost = cost::stated_cost(outputs)?;
        self.metrics.cost(&self.variant, cost);
        Some(cost)
    }

    /// Routes the outputs of one request. The executor has checked them.
    pub(crate) fn route(&self, mut delivery: Delivery, outputs: Vec<Tensor>) {
        delivery.set_checked();
        let request = &delivery.request;
        let Some(version) = self.plans.at(request.epoch) else {
            // The work is done: the ingress knows the plan that admitted the request, and routes the result.
            return delivery.answer(outputs, None);
        };
        // Partitions of one model exit unconditionally, and hidden states have no confidence.
        let calibrated = if version.has_next_partition(request.gear, &request.stage) {
            None
        } else {
            match confidence(&version, &self.variant, &outputs) {
                Ok(confidence) => confidence,
                Err(fault) => return delivery.fail(fault),
            }
        };
        let confidence = deferral::score(
            &version,
            &deferral::StageVisit {
                gear: request.gear,
                stage: &request.stage,
                hops: &request.hops,
                // A stage that always replies may have consumed the inputs.
                input_bytes: (!request.inputs.is_empty()).then(|| deferral::input_bytes(&request.inputs)),
            },
            calibrated,
            &outputs,
        );
        let answer = deferral::answer_to_note(&version, request.gear, &request.stage, calibrated, &outputs);
        deferral::note(&mut delivery.request.hops, &delivery.request.stage, answer);
        let request = &delivery.request;
        let decision = decide(
            &version,
            request.gear,
            &request.stage,
            confidence,
            request.accept_below_threshold,
        );
        if let Ok(RouteDecision::Forward(edge)) = &decision {
            self.metrics.forwarded(&request.stage, &edge.stage);
        }
        match decision {
            Err(fault) => delivery.fail(fault),
            Ok(RouteDecision::Reply) => delivery.reply(outputs, confidence),
            // Only the ingress receives the broker's "no responders" notice, so it forwards the request.
            Ok(RouteDecision::Forward(edge) | RouteDecision::Continue(edge))
                if delivery.has_no_known_target(&version, edge) =>
            {
                // The ingress computes the score of the stage itself.
                delivery.answer(outputs, calibrated);
            }
            Ok(RouteDecision::Forward(edge)) => delivery.forward(&version, edge, None),
            Ok(RouteDecision::Continue(edge)) => delivery.forward(&version, edge, Some(outputs)),
            Ok(RouteDecision::FanOut(children)) => self.fan_out(delivery, &version, children, outputs),
        }
    }

    fn fan_out(&self, delivery: Delivery, version: &PlanVersion, children: &[Child], outputs: Vec<Tensor>) {
        let gear = delivery.request.gear;
        let tasks = children.iter().map(|child| version.task_of(gear, &child.to));
        match fan_out::split(outputs, tasks) {
            Err(fault) => delivery.fail(fault),
            Ok(parts) => {
                self.metrics.count_fan_out(&self.variant, &parts.counts());
                delivery.fan_out(version, children, parts);
            }
        }
    }
}

/// Applies a stage's exit. With `accept_below_threshold`, a band that would forward the request replies instead.
pub(crate) fn decide<'a>(
    version: &'a PlanVersion,
    gear: u32,
    stage: &str,
    confidence: Option<f64>,
    accept_below_threshold: bool,
) -> Result<RouteDecision<'a>, Fault> {
    let Some(found) = version.stage(gear, stage) else {
        let message = format!("epoch {} gear {gear} has no stage `{stage}`", version.epoch);
        return Err(Fault::new(Code::Internal, message));
    };
    let continues = matches!(found.exit, Exit::Next { .. });
    let pick = if accept_below_threshold {
        routing::accept_below_threshold
    } else {
        routing::route
    };
    match pick(&found.exit, confidence) {
        Ok(Route::Reply) => Ok(RouteDecision::Reply),
        Ok(Route::Forward(edge)) if continues => Ok(RouteDecision::Continue(edge)),
        Ok(Route::Forward(edge)) => Ok(RouteDecision::Forward(edge)),
        Ok(Route::FanOut(children)) => Ok(RouteDecision::FanOut(children)),
        Err(error) => Err(Fault::new(
            Code::NotCalibrated,
            format!("stage `{stage}`: {error}"),
        )),
    }
}

/// Returns the calibrated confidence of a variant's outputs; `None` if the variant has no calibration.
pub(crate) fn confidence(
    version: &PlanVersion,
    variant: &str,
    outputs: &[Tensor],
) -> Result<Option<f64>, Fault> {
    let Some(calibration) = version.calibration(variant) else {
        return Ok(None);
    };
    score(calibration, outputs)
        .map(Some)
        .map_err(|reason| Fault::new(Code::BadOutput, format!("variant `{variant}`: {reason}")))
}

fn score(calibration: &Calibration, outputs: &[Tensor]) -> Result<f64, String> {
    let read = |name: &str| {
        let tensor = outputs.iter().find(|tensor| tensor.name == name);
        let tensor = tensor
            .ok_or_else(|| format!("output `{name}`, from which the confidence is computed, is missing"))?;
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

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;
    use crate::actor::{Actor, Context, Handler, System};
    use crate::bus::{Bus, BusConfig};
    use crate::clock::Clock;
    use crate::dispatch::dispatcher::{Dispatcher, Finished};
    use crate::subjects::App;
    use crate::wire::headers::Trace;
    use crate::wire::{StageOutcome, StageReply, StageRequest};

    const APP: &str = "exits";

    /// Test ingress that passes on the results it receives.
    struct Owner(mpsc::UnboundedSender<StageReply>);

    impl Actor for Owner {
        type Context = Context<Self>;
    }

    impl Handler<Finished> for Owner {
        type Result = ();

        fn handle(&mut self, Finished { done, .. }: Finished, _: &mut Context<Self>) {
            self.0.send(done).unwrap();
        }
    }

    #[test]
    fn a_result_whose_plan_the_process_does_not_know_goes_to_the_ingress_that_does() {
        System::new().block_on(async {
            let bus = Bus::connect(BusConfig::new(APP)).await.unwrap();
            let dispatcher = Dispatcher::new(&bus, App::new(APP).unwrap(), Clock::start());
            let (results, mut result) = mpsc::unbounded_channel();
            dispatcher.register_ingress("i", Owner(results).start().recipient());
            let router = Router::new("model", PlanVersions::new(APP), Arc::default());
            let request = StageRequest {
                id: 7,
                ingress: "i".to_owned(),
                epoch: 3,
                ..StageRequest::default()
            };
            let deadline = dispatcher.clock().now() + 1_000_000;
            let delivery = Delivery::new(request, deadline, Trace::start(), dispatcher, "replica", None);
            let outputs = vec![Tensor::from_f32("logits", &[2], &[0.0, 1.0]).unwrap()];
            router.route(delivery, outputs.clone());
            let done = result.recv().await.unwrap();
            let unchanged = StageOutcome::Outputs {
                outputs,
                confidence: None,
                routed: false,
                children: std::collections::BTreeMap::new(),
            };
            assert_eq!((done.id, done.result), (7, unchanged));
        });
    }
}
