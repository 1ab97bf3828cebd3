//! Turns the results of stages into the one reply: exits of stages that do not route, votes, branches, failures.

use std::{collections::BTreeMap, sync::Arc};

use kaskade_models::Tensor;
use kaskade_policy::ledger::{AnswerOutcome, FailureOutcome};
use kaskade_policy::plan::{Child, Edge};
use kaskade_policy::routing;

use super::actor::{Ingress, may_retry};
use super::in_flight::InFlight;
use crate::{
    dispatch::deferral,
    dispatch::exits::{self, RouteDecision},
    dispatch::fan_out,
    error::{Code, Fault},
    plan::versions::PlanVersion,
    wire::{MAX_CANCELLED, Message as _, StageCancel, StageOutcome, StageReply, StageRequest},
};

impl Ingress {
    /// Routes the result of a stage that does not route by itself (a custom actor, or a process in another language).
    pub(super) fn route_for_stage(&mut self, mut done: StageReply, now: u64) {
        let StageOutcome::Outputs {
            outputs, confidence, ..
        } = std::mem::replace(&mut done.result, StageOutcome::nothing())
        else {
            return;
        };
        let Some(version) = self.ledger.get(done.id).map(|entry| Arc::clone(&entry.version)) else {
            return self.metrics.stale();
        };
        match self.decide_for_stage(&version, &mut done, confidence, &outputs) {
            Err(fault) => self.fail_branch(done, fault, now),
            Ok((RouteDecision::Reply, confidence)) => {
                let result = StageOutcome::Outputs {
                    outputs,
                    confidence,
                    routed: true,
                    children: BTreeMap::new(),
                };
                self.answer(StageReply { result, ..done }, now);
            }
            Ok((RouteDecision::Forward(edge), _)) => self.forward_for_stage(edge, done, now),
            Ok((RouteDecision::Continue(edge), _)) => self.continue_for_stage(edge, done, outputs),
            Ok((RouteDecision::FanOut(children), _)) => self.fan_out_for_stage(done, children, outputs, now),
        }
    }

    /// Applies the exit of a stage to its result. Returns the destination and the score that decided. `given` is the
    /// confidence that the stage stated.
    fn decide_for_stage<'a>(
        &self,
        version: &'a PlanVersion,
        done: &mut StageReply,
        given: Option<f64>,
        outputs: &[Tensor],
    ) -> Result<(RouteDecision<'a>, Option<f64>), Fault> {
        let entry = self.ledger.get(done.id);
        let gear = entry.map_or(0, |entry| entry.gear);
        let calibrated = match given {
            Some(given) => Some(given),
            None => confidence_of(version, gear, &done.stage, outputs)?,
        };
        // The inputs of a branch were made by its parent, so they are unknown here.
        let inputs = entry.filter(|_| done.branch.is_root());
        let input_bytes = inputs.map(|entry| entry.inputs.input_bytes());
        let (stage, hops) = (&done.stage, &mut done.hops);
        let score = deferral::score_for_stage(version, gear, stage, hops, input_bytes, calibrated, outputs);
        let accept_below_threshold = self.ledger.must_accept_below_threshold(done.id, done.attempt);
        let route = exits::decide(version, gear, stage, score, accept_below_threshold)?;
        Ok((route, score))
    }

    /// Forwards a request with its original inputs to the next stage.
    fn forward_for_stage(&mut self, edge: &Edge, done: StageReply, now: u64) {
        // The ingress keeps the inputs of the root request only.
        if !done.branch.is_root() {
            let message = format!(
                "stage `{}` forwards a branch whose inputs only it has; route in the stage, or fan out",
                done.stage
            );
            return self.fail_branch(done, Fault::new(Code::Internal, message), now);
        }
        if !self.forward_once(&done) {
            return self.metrics.stale();
        }
        if let Some(request) = self.stage_request(done.id, done.attempt, done.hops) {
            self.send_to(edge, request);
        }
    }

    /// Sends the outputs of a partition to the next partition.
    fn continue_for_stage(&mut self, edge: &Edge, done: StageReply, outputs: Vec<Tensor>) {
        if !self.forward_once(&done) {
            return self.metrics.stale();
        }
        if let Some(request) = self.stage_request(done.id, done.attempt, done.hops) {
            let request = StageRequest {
                inputs: outputs,
                token: request.token.of_branch(&done.branch),
                branch: done.branch,
                ..request
            };
            self.send_to(edge, request);
        }
    }

    /// Forwards a request that is too long for a stage's model to the next stage. Returns false if there is none.
    pub(super) fn forward_too_long(&mut self, done: &StageReply, fault: &Fault) -> bool {
        if fault.code != Code::TooLong || !done.branch.is_root() {
            return false;
        }
        let Some(entry) = self.ledger.get(done.id) else {
            return false;
        };
        let stage = entry.version.stage(entry.gear, &done.stage);
        let onward = stage.and_then(|stage| routing::past_a_short_context(&stage.exit));
        let Some(edge) = onward.cloned() else {
            return false;
        };
        if self.ledger.must_accept_below_threshold(done.id, done.attempt) {
            return false;
        }
        if !self.forward_once(done) {
            self.metrics.stale();
            return true;
        }
        self.metrics.forwarded(&done.stage, &edge.stage);
        if let Some(entry) = self.ledger.get_mut(done.id)
            && !entry.refused_by.contains(&done.stage)
        {
            entry.refused_by.push(done.stage.clone());
        }
        if let Some(request) = self.stage_request(done.id, done.attempt, done.hops.clone()) {
            self.send_to(&edge, request);
        }
        true
    }

    fn forward_once(&mut self, done: &StageReply) -> bool {
        let entry = self.ledger.get_mut(done.id);
        entry.is_some_and(|entry| entry.forward_once(done))
    }

    /// Sends the child requests of a pipeline's task for a stage that does not send them itself.
    fn fan_out_for_stage(&mut self, done: StageReply, children: &[Child], outputs: Vec<Tensor>, now: u64) {
        let Some(entry) = self.ledger.get(done.id) else {
            return;
        };
        let (version, gear) = (Arc::clone(&entry.version), entry.gear);
        let tasks = children.iter().map(|child| version.task_of(gear, &child.to));
        let parts = match fan_out::split(outputs, tasks) {
            Ok(parts) => parts,
            Err(fault) => return self.fail_branch(done, fault, now),
        };
        let newest = self.ledger.newest_attempt(done.id);
        let Some(entry) = self.ledger.get(done.id) else {
            return;
        };
        if !entry.fan_in.accepts(done.attempt, newest, &done.branch) {
            return self.metrics.stale();
        }
        let counts = parts.counts();
        let children_sent: usize = counts.values().map(|count| *count as usize).sum();
        let room = entry.fan_in.remaining_branches(done.attempt);
        if children_sent > room {
            let message = format!(
                "stage `{}` makes {children_sent} requests of one; {room} more are allowed",
                done.stage
            );
            return self.fail_branch(done, Fault::new(Code::BadOutput, message), now);
        }
        let Some(request) = self.stage_request(done.id, done.attempt, done.hops.clone()) else {
            return;
        };
        let bare = StageRequest {
            inputs: Vec::new(),
            token: request.token.of_branch(&done.branch),
            ..request
        };
        for child in children {
            let task = version.task_of(gear, &child.to);
            let requests = parts.children.get(task).map_or(&[][..], Vec::as_slice);
            for (index, inputs) in (0..).zip(requests) {
                let request = StageRequest {
                    branch: done.branch.child(task, index),
                    token: bare.token.child(task, index),
                    inputs: inputs.clone(),
                    ..bare.clone()
                };
                self.send_to(&child.to, request);
            }
        }
        self.ledger.sent(done.id, done.attempt, None);
        let result = StageOutcome::Outputs {
            children: counts,
            outputs: parts.own,
            confidence: None,
            routed: true,
        };
        self.answer(StageReply { result, ..done }, now);
    }

    /// Fills in fields that a worker in another language may omit, from the dispatch that it answers. A stage name that
    /// the gear does not have counts as omitted. For an ensemble, the dispatch always determines the member.
    pub(super) fn fill_defaults(&self, done: &mut StageReply, dispatch: u32) {
        if done.attempt == 0 {
            done.attempt = self.ledger.newest_attempt(done.id);
        }
        let Some(entry) = self.ledger.get(done.id) else {
            return;
        };
        let is_known = entry.version.stage(entry.gear, &done.stage).is_some();
        if !is_known || (dispatch > 0 && self.members(done.id) > 1) {
            entry.stage_of(dispatch).clone_into(&mut done.stage);
        }
    }

    /// Handles a routed result: ends the request, or collects the votes of an ensemble or the branches of a pipeline.
    pub(super) fn answer(&mut self, done: StageReply, now: u64) {
        let (id, attempt) = (done.id, done.attempt);
        if done.is_of_a_pipeline() {
            return self.gather(done, now);
        }
        let members = self.members(id);
        if members <= 1 {
            let degraded = self.would_defer(&done);
            return self.finish(done, degraded, now);
        }
        if let Some(entry) = self.ledger.get_mut(id) {
            entry.tally.add(done);
        }
        self.finish_ensemble(id, attempt, members, now);
    }

    /// Returns whether the stage would have deferred this answer, had a later stage been available.
    fn would_defer(&self, done: &StageReply) -> bool {
        let StageOutcome::Outputs { confidence, .. } = &done.result else {
            return false;
        };
        let Some(entry) = self.ledger.get(done.id) else {
            return false;
        };
        let route = exits::decide(&entry.version, entry.gear, &done.stage, *confidence, false);
        matches!(route, Ok(RouteDecision::Forward(_)))
    }

    /// Returns the number of results that make up the reply; 0 for a request that has been answered.
    fn members(&self, id: u64) -> usize {
        let gear = self
            .ledger
            .get(id)
            .and_then(|entry| entry.version.gear(entry.gear));
        gear.map_or(0, |gear| gear.wiring.members().count())
    }

    /// Ends an ensemble request once every member has answered or failed. Returns whether the request ended.
    fn finish_ensemble(&mut self, id: u64, attempt: u32, members: usize, now: u64) -> bool {
        let Some(tally) = self.ledger.get(id).map(|entry| &entry.tally) else {
            return false;
        };
        let degraded = tally.is_incomplete(members);
        match tally.winner().filter(|_| tally.len() >= members) {
            Some(winner) => self.finish(
                StageReply {
                    id,
                    attempt,
                    ..winner
                },
                degraded,
                now,
            ),
            None => return false,
        }
        true
    }

    /// Forwards a part of a streamed answer to the client if it is the next part of the newest attempt.
    pub(super) fn forward_part(&mut self, done: StageReply) {
        let StageOutcome::Part {
            outputs,
            from,
            until,
            once,
        } = done.result
        else {
            return;
        };
        let newest = self.ledger.newest_attempt(done.id) == done.attempt;
        let Some(entry) = self.ledger.get_mut(done.id) else {
            return;
        };
        let progress = entry.progress.as_mut().filter(|_| !entry.parts_lost);
        if progress.is_some_and(|progress| progress.take(&done.stage, newest, from, until)) {
            if once && entry.once.as_ref() != Some(&done.stage) {
                entry.once = Some(done.stage.clone());
            }
            entry.target.has_parts = true;
            if !self.publish_part(done.id, done.stage, outputs, from)
                && let Some(entry) = self.ledger.get_mut(done.id)
            {
                entry.parts_lost = true;
            }
        }
    }

    /// Tells the replicas that an answered request is cancelled if it was sent again: an earlier or a later attempt may still run.
    fn cancel_other_attempts(&self, id: u64, newest: u32) {
        if newest > 1 {
            self.cancel_at_replicas(&[id]);
        }
    }

    /// Tells the replicas that these requests are cancelled.
    pub(super) fn cancel_at_replicas(&self, ids: &[u64]) {
        for ids in ids.chunks(MAX_CANCELLED) {
            let cancelled = StageCancel {
                ingress: self.id.clone(),
                ids: ids.to_vec(),
            };
            if let Ok(payload) = cancelled.encode() {
                self.dispatcher
                    .publish(self.dispatcher.app().stage_cancel(), None, None, payload);
            }
        }
    }

    /// Reports an answered request to the admission control.
    fn served(&mut self, entry: &InFlight, attempt: u32, now: u64) {
        if attempt > 1 {
            self.admission.completed_after_resend();
        } else {
            self.admission.completed(now, now.saturating_sub(entry.accepted));
        }
    }

    fn finish(&mut self, done: StageReply, degraded: bool, now: u64) {
        let newest = self.ledger.newest_attempt(done.id);
        match self.ledger.answered(done.id, done.attempt) {
            AnswerOutcome::First(entry) => {
                self.served(&entry, done.attempt, now);
                self.cancel_other_attempts(done.id, newest);
                let audit = self.note_answer(&entry, &done, degraded);
                self.reply_with(entry, done, degraded);
                if let Some(audit) = audit {
                    self.begin_audit(audit, now);
                }
            }
            AnswerOutcome::Stale => self.metrics.stale(),
        }
    }

    /// Records the end of a branch of a pipeline's request, with outputs or with its own fault. The last branch ends
    /// the request.
    pub(super) fn gather(&mut self, done: StageReply, now: u64) {
        let (id, attempt) = (done.id, done.attempt);
        let newest = self.ledger.newest_attempt(id);
        let Some(entry) = self.ledger.get_mut(id) else {
            return self.metrics.stale();
        };
        let (branch, children) = (done.branch.clone(), done.children().clone());
        if let Err(error) = entry.fan_in.record(attempt, newest, branch, &children, done) {
            let fault = Fault::new(Code::BadOutput, error.to_string());
            return self.fail(id, attempt, &fault, now);
        }
        if !entry.fan_in.is_complete() {
            return;
        }
        match self.ledger.answered(id, attempt) {
            AnswerOutcome::First(entry) => {
                self.served(&entry, attempt, now);
                self.cancel_other_attempts(id, newest);
                self.reply_with_branches(entry, None);
            }
            AnswerOutcome::Stale => self.metrics.stale(),
        }
    }

    /// Records a permanent failure: of the whole request, or of one branch of a pipeline.
    fn fail_branch(&mut self, done: StageReply, fault: Fault, now: u64) {
        if done.branch.is_root() {
            return self.fail(done.id, done.attempt, &fault, now);
        }
        let result = StageOutcome::Fault(fault);
        self.gather(StageReply { result, ..done }, now);
    }

    /// Ends a request without its regular answer: with the branches that finished, the vote of the members that
    /// answered, or the fault.
    pub(super) fn close(&mut self, entry: InFlight, fault: &Fault) {
        // A refusal is not a service: counting it would make a refusing stage look fast.
        if fault.code == Code::Expired && entry.dispatches() <= 1 {
            let now = self.dispatcher.clock().now();
            self.admission.expired(now, entry.deadline - entry.accepted);
        } else {
            self.admission.ended();
        }
        if entry.fan_in.has_begun() {
            return self.reply_with_branches(entry, Some(fault));
        }
        if let Some(done) = entry.tally.winner() {
            return self.reply_with(entry, done, true);
        }
        self.trace(&entry, Err(fault));
        self.refuse(entry.target, fault);
    }

    /// Records the permanent failure of an ensemble member. Returns true if other members have answered or still may.
    pub(super) fn fail_member(&mut self, done: &StageReply, fault: &Fault, now: u64) -> bool {
        let members = self.members(done.id);
        if members <= 1 || may_retry(fault) {
            return false;
        }
        if let Some(entry) = self.ledger.get_mut(done.id) {
            entry.tally.add_failure(&done.stage);
            if entry.tally.len() < members {
                return true;
            }
        }
        self.finish_ensemble(done.id, done.attempt, members, now)
    }

    /// Handles a failed attempt: retries it, or answers with the terminal fault.
    pub(super) fn fail(&mut self, id: u64, attempt: u32, fault: &Fault, now: u64) {
        let outcome = if fault.code == Code::Overloaded {
            self.ledger.overloaded(id, attempt, now)
        } else {
            self.ledger.failed(id, attempt, may_retry(fault), now)
        };
        self.end_attempt(id, outcome, fault);
    }

    /// Ends an attempt with a fault that no other attempt helps against.
    pub(super) fn fail_finally(&mut self, id: u64, attempt: u32, fault: &Fault, now: u64) {
        let outcome = self.ledger.failed(id, attempt, false, now);
        self.end_attempt(id, outcome, fault);
    }

    /// Returns whether a remote endpoint broke off an answer whose first parts the client has. Another attempt would
    /// give a different answer, since endpoints do not repeat answers.
    pub(super) fn is_stream_interrupted(&self, done: &StageReply, fault: &Fault) -> bool {
        let progress = || self.ledger.get(done.id)?.progress.as_ref();
        fault.code == Code::EndpointUnavailable
            && progress().is_some_and(|progress| progress.has_begun(&done.stage))
    }

    /// Ends a failed attempt: schedules a retry if one may help, or answers with the fault.
    fn end_attempt(&mut self, id: u64, outcome: FailureOutcome<InFlight>, fault: &Fault) {
        match outcome {
            // The sweep resends it once it is due, or ends it at its deadline.
            FailureOutcome::Retry { .. } | FailureOutcome::Waiting => {}
            FailureOutcome::Terminal(entry) => {
                // Other ensemble members, pipeline branches or attempts may still work on it.
                if entry.dispatches() > 1 || entry.fan_in.has_begun() {
                    self.cancel_at_replicas(&[id]);
                }
                self.close(entry, fault);
            }
            FailureOutcome::Stale => self.metrics.stale(),
        }
    }
}

/// Returns the calibrated confidence of a stage's outputs.
fn confidence_of(
    version: &PlanVersion,
    gear: u32,
    stage: &str,
    outputs: &[Tensor],
) -> Result<Option<f64>, Fault> {
    // Partitions of one model exit unconditionally, and hidden states have no confidence.
    if version.has_next_partition(gear, stage) {
        return Ok(None);
    }
    let variant = version.stage(gear, stage).map(|stage| stage.variant.as_str());
    variant.map_or(Ok(None), |variant| exits::confidence(version, variant, outputs))
}
