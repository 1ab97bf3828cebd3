//! Sends requests along the edges of a plan: to a replica of this process, to a named replica, or to a queue group.

use std::sync::Arc;

use async_nats::Subject;
use bytes::Bytes;
use kaskade_policy::adoption::arrival;
use kaskade_policy::plan::{Edge, Exit, Replica};
use kaskade_policy::reachability::Reachability;
use kaskade_policy::rerouting::{Backup, Decision, Dropped, Forwarding};
use kaskade_policy::routing::Destination;
use kaskade_policy::{rerouting, routing};

use super::{Dispatcher, TaskTiming, full_queue, not_served};
use crate::{
    bus::publisher::Permits,
    dispatch::delivery::Delivery,
    dispatch::local::LocalReplica,
    error::{Code, Fault},
    plan::versions::PlanVersion,
    subjects::SubjectError,
    wire::StageRequest,
    wire::headers::{self, Trace},
};

impl Dispatcher {
    /// Sends a request along an edge of the plan that admitted it: to a replica of this process if the policy prefers
    /// one, else over the bus. `from` is the sending replica or ingress. Returns the chosen replica if it is known.
    pub fn dispatch(
        &self,
        from: &str,
        version: &PlanVersion,
        edge: &Edge,
        request: StageRequest,
        deadline: u64,
        trace: Trace,
    ) -> Option<String> {
        match self.destination(from, version, edge) {
            Destination::Replica(id) => {
                let id = id.to_owned();
                self.to_replica(version, edge, &id, request, deadline, trace);
                Some(id)
            }
            Destination::QueueGroup => self.to_group(from, version, edge, request, deadline, trace),
        }
    }

    /// Forwards a child request of a pipeline's task, unless the policy drops it because it is late ([`rerouting`]).
    ///
    /// # Errors
    /// The request and the reason why it was dropped.
    pub(crate) fn forward(
        &self,
        version: &PlanVersion,
        edge: &Edge,
        request: StageRequest,
        deadline: u64,
        trace: Trace,
        end: &TaskTiming<'_>,
    ) -> Result<(), Box<(StageRequest, Dropped)>> {
        let Destination::Replica(chosen) = self.destination(end.replica, version, edge) else {
            self.to_group(end.replica, version, edge, request, deadline, trace);
            return Ok(());
        };
        let gear = request.gear;
        let stage = |id: &str| version.stage_at(gear, edge, Some(id));
        let profiled = |id: &str| stage(id).and_then(|stage| stage.profiled);
        let after_us = |id: &str| stage(id).map_or(0, |stage| version.after_us(gear, &stage.name));
        let forwarding = Forwarding {
            spent_us: end.spent_us,
            budget_us: end.budget_us,
            left_us: Some(deadline.saturating_sub(self.0.process.clock.now())),
            run_us: profiled(chosen).map_or(0, |profiled| profiled.run_us),
            after_us: after_us(chosen),
            last: stage(chosen).is_some_and(|stage| !matches!(stage.exit, Exit::FanOut { .. })),
        };
        let view = self.view();
        let backups = edge.backup.iter().map(String::as_str).filter_map(|id| {
            let profiled = profiled(id).filter(|_| self.is_reachable(&view, version, id))?;
            Some(Backup {
                replica: id,
                run_us: profiled.run_us,
                after_us: after_us(id),
                accuracy: profiled.accuracy,
            })
        });
        let backups: Vec<Backup<&str>> = backups.collect();
        let dropping = version.plan.dropping;
        let draw = self.draw(end.replica);
        let to = match rerouting::decide(dropping, &forwarding, backups.iter().copied(), draw) {
            Decision::Forward => chosen,
            Decision::Reroute(backup) => backup,
            Decision::Drop(dropped) => return Err(Box::new((request, dropped))),
        };
        self.to_replica(version, edge, to, request, deadline, trace);
        Ok(())
    }

    /// Delivers a request to the replica of this process with exactly that placement.
    ///
    /// # Errors
    /// The request, if that replica has been unloaded.
    pub(in crate::dispatch) fn hand_over(
        &self,
        placed: &Replica,
        request: StageRequest,
        deadline: u64,
        trace: Trace,
    ) -> Result<(), Box<StageRequest>> {
        match self.0.process.local.of(placed) {
            Some(replica) => {
                self.deliver_locally(&replica, request, deadline, trace);
                Ok(())
            }
            None => Err(Box::new(request)),
        }
    }

    /// Sends a request from a stage's queue group to a replica that the plan of its epoch places on another worker.
    pub(in crate::dispatch) fn send_on(
        &self,
        me: &Replica,
        version: &PlanVersion,
        request: StageRequest,
        deadline: u64,
        trace: Trace,
    ) {
        let edge = Edge::to(request.stage.clone());
        let members = arrival::members(&version.plan, request.gear, &request.stage)
            .filter(|member| member.worker != me.worker)
            .map(|member| member.id.as_str());
        let draw = self.draw(&me.id);
        let view = self.view();
        match routing::member(members, |id| self.is_reachable(&view, version, id), draw) {
            Some(id) => self.to_replica(version, &edge, id, request, deadline, trace),
            None => self.refuse(request, not_served(version.epoch)),
        }
    }

    /// Returns whether the request must be sent along the edge by its ingress ([`routing::leave_to_ingress`]). For a
    /// root request this is also the case if this process has no state of that ingress and so does not know which
    /// replicas live.
    pub(crate) fn leaves_to_ingress(
        &self,
        is_root: bool,
        version: &PlanVersion,
        edge: &Edge,
        gear: u32,
        ingress: &str,
    ) -> bool {
        let Some(stage) = version.stage(gear, &edge.stage) else {
            return false;
        };
        let view = self.view();
        if !view.is_informed_by(ingress) {
            return is_root;
        }
        let placed = version.plan.placement.iter();
        let serving = placed.filter(|replica| version.serves(gear, stage, replica));
        let ids = serving.map(|replica| replica.id.as_str());
        routing::leave_to_ingress(is_root, ids, |id| self.is_reachable(&view, version, id))
    }

    fn destination<'a>(&self, from: &str, version: &PlanVersion, edge: &'a Edge) -> Destination<&'a str> {
        let view = self.view();
        let reachable = |replica: &str| self.is_reachable(&view, version, replica);
        routing::destination_from(edge, from, reachable, self.draw(from))
    }

    fn to_replica(
        &self,
        version: &PlanVersion,
        edge: &Edge,
        id: &str,
        mut request: StageRequest,
        deadline: u64,
        trace: Trace,
    ) {
        let (gear, stage) = (request.gear, version.stage_at(request.gear, edge, Some(id)));
        let stage = stage.map_or(edge.stage.as_str(), |stage| stage.name.as_str());
        stage.clone_into(&mut request.stage);
        let is_it = |replica: &LocalReplica| replica.id == id && replica.serves(version, gear, stage);
        match self.0.process.local.least_busy(stage, is_it) {
            Some(replica) => self.deliver_locally(&replica, request, deadline, trace),
            None => match self.0.publisher.encode_checked(&request) {
                Ok(payload) => self.send(self.0.process.app.replica(id), request, &payload, deadline, trace),
                Err(fault) => self.refuse(request, fault),
            },
        }
    }

    fn to_group(
        &self,
        from: &str,
        version: &PlanVersion,
        edge: &Edge,
        mut request: StageRequest,
        deadline: u64,
        trace: Trace,
    ) -> Option<String> {
        edge.stage.clone_into(&mut request.stage);
        let gear = request.gear;
        let serves = |replica: &LocalReplica| replica.serves(version, gear, &edge.stage);
        let alone = || self.has_all(version, edge, gear);
        let local = &self.0.process.local;
        if let Some(replica) = local.instead_of_group(&edge.stage, serves, alone) {
            self.deliver_locally(&replica, request, deadline, trace);
            return Some(replica.id.clone());
        }
        if let Some(one) = self.replica_past_lost(from, version, edge, request.gear) {
            self.to_replica(version, edge, &one, request, deadline, trace);
            return Some(one);
        }
        let payload = match self.0.publisher.encode_checked(&request) {
            Ok(payload) => payload,
            Err(fault) => {
                self.refuse(request, fault);
                return None;
            }
        };
        let fits = payload.len() <= self.0.publisher.payload_limit();
        if fits && !request.return_to_ingress {
            self.send(
                self.0.process.app.stage(&edge.stage),
                request,
                &payload,
                deadline,
                trace,
            );
            return None;
        }
        // Members of a queue group would each get some of the chunks, and the sender would not learn which member got
        // the request.
        let one = self.group_member(from, version, edge, request.gear);
        match &one {
            Some(id) => self.send(self.0.process.app.replica(id), request, &payload, deadline, trace),
            None if fits => self.refuse(request, no_replica(version.epoch, &edge.stage)),
            // A retry would be too large as well.
            None => self.refuse(request, self.0.publisher.too_large::<StageRequest>(payload.len())),
        }
        one
    }

    /// Returns whether this process runs every replica that the plan places for the edge's stage.
    fn has_all(&self, version: &PlanVersion, edge: &Edge, gear: u32) -> bool {
        planned(version, edge, gear).all(|id| self.0.process.local.has(version, id))
    }

    /// Returns a replica to address instead of the queue group if one of the stage's replicas is lost or leaving
    /// ([`routing::past_the_silent`]).
    fn replica_past_lost(&self, from: &str, version: &PlanVersion, edge: &Edge, gear: u32) -> Option<String> {
        let view = self.view();
        if !view.avoids_any() {
            return None;
        }
        let members = planned(version, edge, gear);
        let alive = |id: &str| self.is_reachable(&view, version, id);
        let one = routing::past_the_silent(members, |id| view.is_avoided(id), alive, self.draw(from));
        one.map(ToOwned::to_owned)
    }

    /// Returns a reachable replica of the plan that serves the edge's stage. Actors outside the plan are excluded
    /// because they need not support chunks.
    fn group_member(&self, from: &str, version: &PlanVersion, edge: &Edge, gear: u32) -> Option<String> {
        let members = planned(version, edge, gear);
        let view = self.view();
        let alive = |id: &str| self.is_reachable(&view, version, id);
        routing::member(members, alive, self.draw(from)).map(ToOwned::to_owned)
    }

    fn is_reachable(&self, view: &Reachability, version: &PlanVersion, replica: &str) -> bool {
        view.is_reachable(replica) || self.0.process.local.has(version, replica)
    }

    fn deliver_locally(&self, replica: &LocalReplica, request: StageRequest, deadline: u64, trace: Trace) {
        let permit = Arc::clone(&replica.permits).try_acquire_owned().ok();
        let full = permit.is_none();
        let delivery = Delivery::new(request, deadline, trace, self.clone(), &replica.id, permit);
        if full {
            delivery.fail(full_queue(&replica.id));
        } else {
            replica.mailbox.do_send(delivery);
        }
    }

    fn send(
        &self,
        subject: Result<Subject, SubjectError>,
        request: StageRequest,
        payload: &Bytes,
        deadline: u64,
        trace: Trace,
    ) {
        // The reply subject receives the result and the server's "no responders" notice.
        let StageRequest {
            ingress,
            id,
            attempt,
            token,
            ..
        } = &request;
        let reply = self
            .0
            .process
            .app
            .done(ingress, *id, *attempt, &token.to_string());
        let addressed = subject.and_then(|subject| Ok((subject, reply?)));
        match addressed {
            Ok((subject, reply)) => {
                let headers = headers::for_trace(&trace);
                let publisher = &self.0.publisher;
                let sent = publisher.send(
                    &subject,
                    Some(reply),
                    headers,
                    Some(deadline),
                    payload,
                    Permits::new(),
                );
                if let Err(fault) = sent {
                    self.refuse(request, fault);
                }
            }
            Err(error) => self.refuse(request, error.into()),
        }
    }

    fn draw(&self, from: &str) -> f64 {
        if let Some(mut count) = self.0.process.draws.get_mut(from) {
            *count += 1;
            return routing::draw(*count);
        }
        self.0.process.draws.insert(from.to_owned(), 0);
        routing::draw(0)
    }
}

/// Returns the ids of the replicas that the plan places for the edge's stage.
fn planned<'a>(version: &'a PlanVersion, edge: &Edge, gear: u32) -> impl Iterator<Item = &'a str> + Clone {
    let stage = version.stage(gear, &edge.stage);
    let placed = version.plan.placement.iter();
    placed
        .filter(move |replica| stage.is_some_and(|stage| stage.is_run_by(replica)))
        .map(|replica| replica.id.as_str())
}

/// Returns the retryable fault of a request that must go to a named replica of a stage when the plan has none.
fn no_replica(epoch: u64, stage: &str) -> Fault {
    let message = format!("epoch {epoch} has no replica for stage `{stage}`");
    Fault::new(Code::Unavailable, message)
}
