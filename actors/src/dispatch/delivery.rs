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

/// A request delivered to a stage. Dropping it unanswered sends an error.
///
/// Any actix actor with `Handler<Delivery>` can serve a stage (see [`crate::dispatch::subscribe::bind`]). A delivery
/// that is dropped unanswered, by a bug or a panic, answers itself with a fault, so that the request does not wait
/// until its budget ends.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Delivery {
    /// The request.
    pub request: StageRequest,
    /// When its budget ends, on this process's clock, microseconds.
    pub deadline: u64,
    /// When it arrived, on this process's clock, microseconds.
    pub arrived: u64,
    /// Its trace context.
    pub trace: Trace,
    handle: Option<ReplyHandle>,
    /// Whether its outputs come from this process's executor, which checks them.
    checked: bool,
}

/// What is needed to answer. The permit travels with the answer until that has been written to the connection.
struct ReplyHandle {
    dispatcher: Dispatcher,
    replica: String,
    permit: Option<OwnedSemaphorePermit>,
}

impl Delivery {
    /// Creates a delivery to `replica`, which answers through `dispatcher` and then releases the permit.
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

    /// Notes that the outputs of the answer come from this process's executor, which has checked them.
    pub(crate) fn set_checked(&mut self) {
        self.checked = true;
    }

    /// Returns the current time on the clock of `deadline` and `arrived`, microseconds.
    pub fn now(&self) -> u64 {
        let handle = self.handle.as_ref();
        handle.map_or(self.arrived, |handle| handle.dispatcher.clock().now())
    }

    /// Answers with outputs that the ingress has to route: it applies the stage's exit to `confidence`, or to the
    /// confidence that it computes from the outputs if `confidence` is `None`.
    pub fn answer(self, outputs: Vec<Tensor>, confidence: Option<f64>) {
        self.finish(StageOutcome::Outputs {
            outputs,
            confidence,
            routed: false,
            children: BTreeMap::new(),
        });
    }

    /// Answers with outputs that are the reply, whatever the stage's exit.
    pub fn reply(self, outputs: Vec<Tensor>, confidence: Option<f64>) {
        self.finish(StageOutcome::Outputs {
            outputs,
            confidence,
            routed: true,
            children: BTreeMap::new(),
        });
    }

    /// Sends new pieces of a streamed answer ([`StageRequest::stream`]), from piece `from` up to `until`. The answer
    /// itself is still due. `once` says that another attempt would give another answer.
    pub fn part(&self, outputs: Vec<Tensor>, from: u32, until: u32, once: bool) {
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

    /// Drops a request that was cancelled, without an answer.
    pub fn discard(mut self) {
        self.handle = None;
    }

    /// Answers with a fault.
    pub fn fail(self, fault: Fault) {
        self.finish(StageOutcome::Fault(fault));
    }

    /// Appends a hop: what the stage cost this request, in time and, if that is known, in money.
    pub fn hop(&mut self, started: u64, run_us: u64, batch: usize, cost: Option<Cost>) {
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

    /// Returns whether this process knows no live replica to forward the request to, or must leave that to the ingress. A branch of a pipeline is
    /// forwarded regardless, because its inputs exist nowhere else.
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

    /// Forwards the request; the next stage then has to answer it. `inputs`, if given, replaces its inputs.
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
    /// child that is dropped for being late is answered in its branch.
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
