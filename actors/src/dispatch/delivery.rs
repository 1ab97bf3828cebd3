//! A request delivered to a stage, with the handle to answer it.

use std::collections::BTreeMap;

use crate::actor::Message;
use kaskade_models::Tensor;
use kaskade_policy::plan::{Child, Edge};
use kaskade_policy::remote::price::Cost;
use tokio::sync::OwnedSemaphorePermit;

use crate::{
    dispatch::dispatcher::{Dispatcher, Finished, TaskTiming},
    dispatch::fan_out::FannedOut,
    error::{Code, Fault},
    plan::versions::PlanVersion,
    wire::headers::Trace,
    wire::{Hop, StageOutcome, StageReply, StageRequest},
};

/// A request delivered to a stage, with the handle to answer it.
///
/// Any actix actor with `Handler<Delivery>` can serve a stage (see [`crate::dispatch::subscribe::bind`]). A delivery
/// that is dropped unanswered, by a bug or a panic, answers with a fault, so that the request does not wait until its
/// budget ends.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Delivery {
    /// The request.
    pub request: StageRequest,
    /// End of the budget, on this process's clock, microseconds.
    pub deadline: u64,
    /// Arrival time, on this process's clock, microseconds.
    pub arrived: u64,
    /// Trace context of the request.
    pub trace: Trace,
    handle: Option<ReplyHandle>,
    /// Whether the outputs come from this process's executor, which has checked them.
    checked: bool,
}

/// Parts needed to answer. The permit is held until the answer has been written to the connection.
struct ReplyHandle {
    dispatcher: Dispatcher,
    replica: String,
    permit: Option<OwnedSemaphorePermit>,
}

impl Delivery {
    /// Creates a delivery to `replica` that answers through `dispatcher` and then releases the permit.
    pub fn new(
        request: StageRequest,
        deadline: u64,
        trace: Trace,
        dispatcher: Dispatcher,
        replica: &str,
        permit: Option<OwnedSemaphorePermit>,
    ) -> Self {
        let arrived = dispatcher.clock().now();
        let handle = Some(ReplyHandle {
            dispatcher,
            replica: replica.to_owned(),
            permit,
        });
        Self {
            request,
            deadline,
            arrived,
            trace,
            handle,
            checked: false,
        }
    }

    /// Marks the outputs of the answer as checked by this process's executor.
    pub(crate) fn set_checked(&mut self) {
        self.checked = true;
    }

    /// Returns the current time on the clock of `deadline` and `arrived`, microseconds.
    pub fn now(&self) -> u64 {
        let handle = self.handle.as_ref();
        handle.map_or(self.arrived, |handle| handle.dispatcher.clock().now())
    }

    /// Answers with outputs that the ingress routes: it applies the stage's exit to `confidence`, or, if that is
    /// `None`, to the confidence computed from the outputs.
    pub fn answer(self, outputs: Vec<Tensor>, confidence: Option<f64>) {
        self.finish(StageOutcome::Outputs {
            outputs,
            confidence,
            routed: false,
            children: BTreeMap::new(),
        });
    }

    /// Answers with outputs that are the reply, regardless of the stage's exit.
    pub fn reply(self, outputs: Vec<Tensor>, confidence: Option<f64>) {
        self.finish(StageOutcome::Outputs {
            outputs,
            confidence,
            routed: true,
            children: BTreeMap::new(),
        });
    }

    /// Sends the pieces `from` to `until` (exclusive) of a streamed answer ([`StageRequest::stream`]). The complete
    /// answer must still follow. `once` marks an answer that another attempt would not repeat.
    pub fn send_part(&self, outputs: Vec<Tensor>, from: u32, until: u32, once: bool) {
        let Some(handle) = &self.handle else { return };
        let request = &self.request;
        let done = StageReply {
            id: request.id,
            attempt: request.attempt,
            branch: request.branch.clone(),
            stage: request.stage.clone(),
            replica: handle.replica.clone(),
            hops: Vec::new(),
            result: StageOutcome::Part {
                outputs,
                from,
                until,
                once,
            },
        };
        let finished = Finished {
            done,
            checked: false,
            dispatch: 0,
        };
        handle
            .dispatcher
            .done(&request.ingress, request.token, finished, Vec::new());
    }

    /// Drops a cancelled request without an answer.
    pub fn discard(mut self) {
        self.handle = None;
    }

    /// Answers with a fault.
    pub fn fail(self, fault: Fault) {
        self.finish(StageOutcome::Fault(fault));
    }

    /// Appends a hop: the time and, if known, the money that the stage spent on this request. Times are in
    /// microseconds.
    pub fn record_hop(&mut self, started: u64, run_us: u64, batch: usize, cost: Option<Cost>) {
        let wait_us = u32::try_from(started.saturating_sub(self.arrived)).unwrap_or(u32::MAX);
        let run_us = u32::try_from(run_us).unwrap_or(u32::MAX);
        let batch = u32::try_from(batch).unwrap_or(u32::MAX);
        self.request.hops.push(Hop {
            stage: self.request.stage.clone(),
            wait_us,
            run_us,
            batch,
            cost,
            answer: None,
        });
    }

    /// Returns whether the ingress must forward the request: this process knows no live replica for the edge, or the
    /// request must return to the ingress. Always false for a branch of a pipeline, because its inputs exist only here.
    pub(crate) fn has_no_known_target(&self, version: &PlanVersion, edge: &Edge) -> bool {
        let (is_root, gear) = (self.request.branch.is_root(), self.request.gear);
        if self.request.return_to_ingress && is_root {
            return true;
        }
        let leaves = |handle: &ReplyHandle| {
            let owner = &self.request.ingress;
            handle
                .dispatcher
                .leaves_to_ingress(is_root, version, edge, gear, owner)
        };
        self.handle.as_ref().is_some_and(leaves)
    }

    /// Forwards the request to the next stage, which then has to answer it. `inputs`, if given, replaces the request's
    /// inputs.
    pub(crate) fn forward(mut self, version: &PlanVersion, edge: &Edge, inputs: Option<Vec<Tensor>>) {
        let Some(handle) = self.handle.take() else { return };
        let mut request = std::mem::take(&mut self.request);
        if let Some(inputs) = inputs {
            request.inputs = inputs;
        }
        handle
            .dispatcher
            .dispatch(&handle.replica, version, edge, request, self.deadline, self.trace);
    }

    /// Forwards the child requests of a pipeline's task, and answers with their numbers and the task's own outputs. A
    /// child dropped for being late is answered in its branch.
    pub(crate) fn fan_out(mut self, version: &PlanVersion, children: &[Child], parts: FannedOut) {
        let Some(handle) = &self.handle else { return };
        let (dispatcher, replica) = (handle.dispatcher.clone(), handle.replica.clone());
        let stage = version.stage(self.request.gear, &self.request.stage);
        let end = TaskTiming {
            replica: &replica,
            spent_us: dispatcher.clock().now().saturating_sub(self.arrived),
            budget_us: stage.and_then(|stage| stage.budget_us),
        };
        let counts = parts.counts();
        for child in children {
            let task = version.task_of(self.request.gear, &child.to);
            let requests = parts.children.get(task).map_or(&[][..], Vec::as_slice);
            for (index, inputs) in (0..).zip(requests) {
                let request = StageRequest {
                    branch: self.request.branch.child(task, index),
                    token: self.request.token.child(task, index),
                    inputs: inputs.clone(),
                    ..self.request.without_inputs()
                };
                let (deadline, trace) = (self.deadline, self.trace);
                let sent = dispatcher.forward(version, &child.to, request, deadline, trace, &end);
                if let Err(dropped) = sent {
                    let (request, dropped) = *dropped;
                    dispatcher.refuse(request, Fault::new(Code::Dropped, dropped.to_string()));
                }
            }
        }
        self.send_result(StageOutcome::Outputs {
            outputs: parts.own,
            confidence: None,
            routed: true,
            children: counts,
        });
    }

    fn finish(mut self, result: StageOutcome) {
        self.send_result(result);
    }

    fn send_result(&mut self, result: StageOutcome) {
        let Some(handle) = self.handle.take() else { return };
        let request = std::mem::take(&mut self.request);
        let done = StageReply {
            id: request.id,
            attempt: request.attempt,
            branch: request.branch,
            stage: request.stage,
            replica: handle.replica,
            hops: request.hops,
            result,
        };
        let permits = handle.permit.into_iter().collect();
        let finished = Finished {
            done,
            checked: self.checked,
            dispatch: 0,
        };
        handle
            .dispatcher
            .done(&request.ingress, request.token, finished, permits);
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        let message = "the stage dropped the request without an answer";
        self.send_result(StageOutcome::Fault(Fault::new(Code::ModelFailed, message)));
    }
}
