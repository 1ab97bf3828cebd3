//! Runs audits: counts answers, sends the stage requests of an audit, and counts their results.

use std::sync::Arc;

use kaskade_models::Tensor;
use kaskade_policy::certificate_monitor::{Audit, AuditCapacity, ComparedAnswer, RecentReply};
use kaskade_policy::fan_in::Branch;
use kaskade_policy::plan::Edge;
use kaskade_policy::routing;

use super::{Chosen, LARGEST, MARK, Open, PROBE, Part, audit_part};
use crate::ingress::actor::Ingress;
use crate::ingress::in_flight::InFlight;
use crate::{
    dispatch::{
        answer::comparable,
        deferral,
        exits::{self, RouteDecision},
    },
    error::Code,
    wire::headers::Trace,
    wire::{Hop, StageOutcome, StageReply, StageRequest},
};

impl Ingress {
    /// Counts an answer by its stages, remembers it for labels, and decides whether to audit it.
    pub(in crate::ingress) fn note_answer(
        &mut self,
        entry: &InFlight,
        done: &StageReply,
        degraded: bool,
    ) -> Option<Chosen> {
        let version = &entry.version;
        let index = version.plan.certified_index(entry.gear)?;
        // Drawn independently of the variant that answered.
        let capacity = AuditCapacity {
            in_flight: self.ledger.len(),
            max_in_flight: self.config.max_in_flight,
            open: self.audits.open.len(),
        };
        let is_chosen = self
            .audits
            .sampler
            .selects(self.audits.audit_counts.is_elevated(), capacity);
        let StageOutcome::Outputs {
            outputs, confidence, ..
        } = &done.result
        else {
            return None;
        };
        // A degraded answer or an ensemble's is not the cascade's answer.
        if degraded || version.gear(entry.gear)?.wiring.members().count() > 1 {
            return None;
        }
        let list = version.plan.certified.as_ref()?;
        let expected = &list.cascades.get(index)?.stages;
        self.audits.audit_counts.count(version.epoch, |counts| {
            let Some(counts) = counts.at(index) else { return };
            let mut count = |name: &str, deferred: bool, confidence: Option<f64>| {
                let found = expected.iter().position(|stage| stage.stage == name);
                if let (Some(stage), Some(confidence)) = (found, confidence)
                    && let Some(expected) = expected.get(stage)
                {
                    counts.count(stage, expected.category(deferred, confidence));
                }
            };
            for (index, hop) in done.hops.iter().enumerate() {
                let deferred = index + 1 < done.hops.len();
                count(
                    &hop.stage,
                    deferred,
                    if deferred { Some(0.0) } else { *confidence },
                );
            }
            // A stage whose model could not take the long request leaves no hop if it did not run. The plan counts such
            // samples as deferred.
            for stage in &entry.refused_by {
                if done.hops.iter().all(|hop| hop.stage != *stage) {
                    count(stage, true, Some(0.0));
                }
            }
        });
        let live = comparable(outputs, list.texts)?;
        let variant = version.stage(entry.gear, &done.stage)?.variant.as_str();
        let chosen = if is_chosen {
            Audit::new(&version.plan, entry.gear, variant)
        } else {
            None
        };
        let chosen = chosen.map(|audit| (self.audits.number(), audit));
        self.remember(entry, index, variant, live.clone(), chosen);
        chosen.map(|(number, audit)| Chosen {
            number,
            audit,
            version: Arc::clone(version),
            inputs: entry.inputs.again(),
            client: entry.target.id.clone(),
            live,
        })
    }

    fn remember(
        &mut self,
        entry: &InFlight,
        index: usize,
        variant: &str,
        live: ComparedAnswer,
        chosen: Option<(u64, Audit)>,
    ) {
        let Some(id) = &entry.target.id else { return };
        let is_largest = chosen.is_some_and(|(_, audit)| audit.largest.is_none());
        let reply = RecentReply {
            epoch: entry.version.epoch,
            index,
            variant: variant.to_owned(),
            largest: is_largest.then(|| live.clone()),
            answer: live,
            audit: chosen.filter(|_| !is_largest).map(|(number, _)| number),
        };
        self.audits.recent.keep(id, reply);
    }

    /// Sends the stage requests of an audit. An audit without stage requests is counted immediately.
    pub(in crate::ingress) fn begin_audit(&mut self, chosen: Chosen, now: u64) {
        let Chosen {
            number,
            audit,
            version,
            inputs,
            client,
            live,
        } = chosen;
        let part = |gear: Option<u32>| Part {
            gear: gear.unwrap_or_default(),
            waits: gear.is_some(),
            ..Part::default()
        };
        let open = Open {
            parts: [part(audit.largest), part(audit.probe.map(|(_, gear)| gear))],
            audit,
            version,
            inputs,
            client,
            live,
            // The longest budget: the largest variant may need more than the client's budget.
            deadline: now.saturating_add(self.config.max_budget.as_micros() as u64),
        };
        let entries: Vec<(usize, Option<Edge>)> = [LARGEST, PROBE]
            .into_iter()
            .filter_map(|part| Some((part, open.parts.get(part).filter(|part| part.waits)?)))
            .map(|(part, asked)| {
                let gear = open.version.gear(asked.gear);
                (part, gear.map(|gear| gear.wiring.entry.clone()))
            })
            .collect();
        self.audits.open.insert(number, open);
        for (part, entry) in entries {
            match entry {
                Some(edge) => self.ask(number, part, &edge, Vec::new(), None),
                None => self.end_part(number, part, None),
            }
        }
        self.close_audit(number);
    }

    /// Sends a stage request of an audit along an edge. `hops` have been passed; `inputs` replace the client's if
    /// given.
    fn ask(&mut self, number: u64, part: usize, edge: &Edge, hops: Vec<Hop>, inputs: Option<Vec<Tensor>>) {
        let Some(open) = self.audits.open.get_mut(&number) else {
            return;
        };
        let inputs = inputs.map_or_else(|| open.inputs.get(), Ok);
        let (Some(asked), Ok(inputs)) = (open.parts.get_mut(part), inputs) else {
            return self.end_part(number, part, None);
        };
        asked.dispatches += 1;
        asked.stage.clone_from(&edge.stage);
        let id = MARK | (number << 1) | part as u64;
        let request = StageRequest {
            id,
            ingress: self.id.clone(),
            attempt: 0,
            token: self.key.issue(id, 0, asked.dispatches),
            branch: Branch::ROOT,
            epoch: open.version.epoch,
            gear: asked.gear,
            stage: String::new(),
            hops,
            stream: false,
            accept_below_threshold: false,
            return_to_ingress: false,
            optimistic: false,
            inputs,
        };
        let (version, deadline) = (Arc::clone(&open.version), open.deadline);
        self.dispatcher
            .dispatch(&self.id, &version, edge, request, deadline, Trace::start());
    }

    /// Handles the result of an audit's stage request.
    pub(in crate::ingress) fn audit_ended(&mut self, mut done: StageReply) {
        let (number, part) = audit_part(done.id);
        let Some(open) = self.audits.open.get(&number) else {
            return;
        };
        let Some(asked) = open.parts.get(part).filter(|part| part.waits) else {
            return;
        };
        if done.stage.is_empty() {
            done.stage.clone_from(&asked.stage);
        }
        let texts = open.version.plan.certified.as_ref().and_then(|list| list.texts);
        match done.result {
            StageOutcome::Part { .. } => {}
            StageOutcome::Fault(fault) => {
                let stage = open.version.stage(asked.gear, &done.stage);
                let onward = stage.and_then(|stage| routing::past_a_short_context(&stage.exit));
                match onward.filter(|_| fault.code == Code::TooLong).cloned() {
                    // As for a client's request: the plan counts such samples as deferred.
                    Some(edge) => self.ask(number, part, &edge, done.hops, None),
                    None => self.end_part(number, part, None),
                }
            }
            StageOutcome::Outputs {
                outputs,
                routed: true,
                ..
            } => self.end_part(number, part, comparable(&outputs, texts)),
            StageOutcome::Outputs {
                outputs, confidence, ..
            } => {
                let (version, gear) = (Arc::clone(&open.version), asked.gear);
                let confidence = match (confidence, version.stage(gear, &done.stage)) {
                    (None, Some(stage)) if !version.has_next_partition(gear, &done.stage) => {
                        exits::confidence(&version, &stage.variant, &outputs).unwrap_or(None)
                    }
                    (given, _) => given,
                };
                let confidence = deferral::score_for_stage(
                    &version,
                    gear,
                    &done.stage,
                    &mut done.hops,
                    Some(open.inputs.input_bytes()),
                    confidence,
                    &outputs,
                );
                let hops = done.hops;
                match exits::decide(&version, gear, &done.stage, confidence, false) {
                    Ok(RouteDecision::Reply) => self.end_part(number, part, comparable(&outputs, texts)),
                    Ok(RouteDecision::Forward(edge)) => self.ask(number, part, edge, hops, None),
                    Ok(RouteDecision::Continue(edge)) => self.ask(number, part, edge, hops, Some(outputs)),
                    Ok(RouteDecision::FanOut(_)) | Err(_) => self.end_part(number, part, None),
                }
            }
        }
        self.close_audit(number);
    }

    /// Ends the run of an audit whose stage request could not be delivered.
    pub(in crate::ingress) fn audit_failed(&mut self, id: u64) {
        let (number, part) = audit_part(id);
        self.end_part(number, part, None);
        self.close_audit(number);
    }

    fn end_part(&mut self, number: u64, part: usize, answer: Option<ComparedAnswer>) {
        let open = self.audits.open.get_mut(&number);
        if let Some(part) = open.and_then(|open| open.parts.get_mut(part)) {
            part.waits = false;
            part.answer = answer;
        }
    }

    /// Counts an audit once all its runs have ended.
    fn close_audit(&mut self, number: u64) {
        let waits = |open: &Open| open.parts.iter().any(|part| part.waits);
        if self.audits.open.get(&number).is_none_or(waits) {
            return;
        }
        if let Some(open) = self.audits.open.remove(&number) {
            self.count_audit(number, &open);
        }
    }

    fn count_audit(&mut self, number: u64, open: &Open) {
        let [largest, probe] = &open.parts;
        let answer = if open.audit.largest.is_none() {
            Some(&open.live)
        } else {
            largest.answer.as_ref()
        };
        self.audits.audit_counts.count(open.version.epoch, |counts| {
            open.audit
                .count(counts, &open.live, answer, probe.answer.as_ref());
        });
        self.metrics
            .certificates(|metrics| metrics.audited(answer.map(|answer| answer.accepts(&open.live))));
        if let Some(id) = &open.client {
            self.audits.labels_of(id, number, answer.cloned());
        }
    }

    /// Ends audits past their deadline.
    pub(in crate::ingress) fn sweep_audits(&mut self, now: u64) {
        let late = self.audits.open.iter().filter(|(_, open)| open.deadline <= now);
        let late: Vec<u64> = late.map(|(number, _)| *number).collect();
        for number in late {
            if let Some(open) = self.audits.open.remove(&number) {
                self.count_audit(number, &open);
            }
        }
    }
}
