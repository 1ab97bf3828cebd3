//! Delivery of a request: to an actor of this process, a replica's subject, or a stage's queue group.

use std::rc::Rc;

use kaskade_policy::adoption::arrival::{self, Arrival, ArrivingRequest};
use kaskade_policy::plan::{Edge, Plan, Replica as Placed};
use kaskade_policy::routing::{self, Destination};
use rand::Rng;

use super::messages::{Delivery, Mail, Message, Name, Request, StageReply};
use super::oracle::{Fault, Oracle};
use super::replica::{Replica, key as key_of};
use super::sabotage::Sabotage;
use super::scenario::Weather;
use super::world::World;

/// Time in which the state of an ingress reaches every worker over a network without faults, microseconds.
const TOLD_US: u64 = 1_000;

impl World {
    /// Sends a request along an edge. Returns the replica it went to, if the sender knows.
    pub(crate) fn dispatch(
        &mut self,
        of: usize,
        from: &Name,
        edge: &Edge,
        mut request: Request,
        deadline: u64,
    ) -> Option<Name> {
        let draw = self.draw(of, from);
        request.stage = edge.stage.as_str().into();
        let process = &self.processes[of];
        let plan = process.adoption.at(request.epoch);
        match routing::destination_from(edge, from, |replica| process.reachable(plan, replica), draw) {
            Destination::Replica(id) => {
                let id = Name::from(id);
                self.send_to_replica(of, &id, request, deadline);
                Some(id)
            }
            Destination::QueueGroup => self.send_to_group(of, request, deadline),
        }
    }

    fn draw(&mut self, of: usize, from: &Name) -> f64 {
        let draws = &mut self.processes[of].draws;
        let count = draws
            .entry(Rc::clone(from))
            .and_modify(|count| *count += 1)
            .or_insert(0);
        routing::draw(*count)
    }

    pub(crate) fn send_to_replica(&mut self, of: usize, id: &Name, request: Request, deadline: u64) {
        if let Some(key) = self.near(of, &request, |replica| replica.id == *id) {
            return self.hand_over(of, &key, request, deadline);
        }
        // Every process with a replica of that id receives it.
        let processes = self.processes.iter().enumerate();
        let up = processes.filter(|(_, there)| there.up && there.subscribed);
        let listeners = up.flat_map(|(to, there)| there.replicas.values().map(move |replica| (to, replica)));
        let listeners = listeners.filter(|(_, replica)| replica.id == *id);
        let listeners: Vec<(usize, Name)> = listeners
            .map(|(to, replica)| (to, Rc::clone(&replica.key)))
            .collect();
        if listeners.is_empty() {
            self.examine_destination(of, id, &request);
        }
        self.publish(of, &listeners, true, &request, deadline);
    }

    /// Whether a process that learns from ingresses may still send a request to a replica that is dead: not once the ingress of
    /// the request knew that, and could tell.
    fn examine_destination(&mut self, of: usize, replica: &str, request: &Request) {
        if self.processes[of].ingress.is_some() {
            // It hears the heartbeats itself, and not when another ingress does.
            return;
        }
        let owner = &self.processes[request.owner.process];
        let known = owner
            .unavailable
            .get(replica)
            .filter(|_| owner.life == request.owner.life);
        let Some(since) = known
            .copied()
            .filter(|_| self.scenario.weather == Weather::Crashes)
        else {
            return;
        };
        let (now, token) = (self.now, request.token);
        self.judge.demand(Oracle::Avoids, now <= since + TOLD_US, || {
            format!("p{of} sends request {token} to {replica}, which its ingress knows to be dead since {since} us")
        });
    }

    fn send_to_group(&mut self, of: usize, request: Request, deadline: u64) -> Option<Name> {
        let near = self.near(of, &request, |replica| {
            routing::prefer_local(replica.depth, replica.max_batch)
        });
        if let Some(key) = near {
            let id = self.processes[of]
                .replicas
                .get(&key)
                .map(|replica| Rc::clone(&replica.id));
            self.hand_over(of, &key, request, deadline);
            return id;
        }
        let members = self.members(&request.stage);
        let picked = (!members.is_empty()).then(|| members[self.rng.random_range(0..members.len())].clone());
        self.publish(of, picked.as_slice(), false, &request, deadline);
        None
    }

    /// The key of a replica of this process that runs the request's stage, and passes the test.
    fn near(&self, of: usize, request: &Request, passes: impl Fn(&Replica) -> bool) -> Option<Name> {
        let process = &self.processes[of];
        let plan = process.adoption.at(request.epoch);
        let unchecked = self.sabotage == Some(Sabotage::ChecksNoEpoch);
        let serves = |replica: &Replica| {
            unchecked
                || plan
                    .is_some_and(|plan| arrival::serves(plan, request.gear, &request.stage, &replica.placed))
        };
        let mut replicas = process.replicas.values().filter(|_| process.subscribed);
        let found = replicas
            .find(|replica| replica.stages.contains(&*request.stage) && passes(replica) && serves(replica));
        found.map(|replica| Rc::clone(&replica.key))
    }

    /// The replicas that listen for a stage, each with its process.
    fn members(&self, stage: &str) -> Vec<(usize, Name)> {
        let processes = self.processes.iter().enumerate();
        let up = processes.filter(|(_, there)| there.up && there.subscribed);
        let members = up.flat_map(|(to, there)| there.replicas.values().map(move |replica| (to, replica)));
        let of_stage = members.filter(|(_, replica)| replica.stages.contains(stage));
        of_stage
            .map(|(to, replica)| (to, Rc::clone(&replica.key)))
            .collect()
    }

    /// Over the bus, to the listeners that the broker knows; without one the broker notifies the reply subject, which is the
    /// ingress's.
    fn publish(
        &mut self,
        of: usize,
        listeners: &[(usize, Name)],
        addressed: bool,
        request: &Request,
        deadline: u64,
    ) {
        if self.processes[of].cut_until > self.now {
            let token = request.token;
            return self.note(format_args!("p{of} is cut off: request {token} goes nowhere"));
        }
        if listeners.is_empty() {
            let &Request {
                owner,
                id,
                attempt,
                token,
                ..
            } = request;
            self.note(format_args!(
                "p{of} sends request {token}, attempt {attempt}, for {} to no listener",
                request.stage
            ));
            let notice = Message::NobodyListens { owner, id, attempt };
            return self.broker_says(owner.process, notice);
        }
        self.log.note(
            self.now,
            format_args!(
                "p{of} sends request {} for {} to {listeners:?}",
                request.token, request.stage
            ),
        );
        for (to, replica) in listeners {
            let message = Message::Stage {
                replica: Rc::clone(replica),
                addressed,
                request: request.clone(),
                budget_us: deadline.saturating_sub(self.now),
            };
            self.post(of, *to, message);
        }
    }

    /// From the bus: the budget that is left is counted from now. The replica checks whether it runs the stage under the request's
    /// plan.
    pub(crate) fn receive(
        &mut self,
        of: usize,
        key: &Name,
        addressed: bool,
        request: Request,
        budget_us: u64,
    ) {
        let deadline = self.now + budget_us;
        let process = &self.processes[of];
        let placed = process.replicas.get(key).map(|replica| &replica.placed);
        let Some(me) = placed.or_else(|| process.retired.get(key)).map(Rc::clone) else {
            return;
        };
        let plan = process.adoption.at(request.epoch).map(|plan| &**plan);
        let arriving = ArrivingRequest {
            epoch: request.epoch,
            gear: request.gear,
            stage: &request.stage,
            addressed,
        };
        let others: Vec<Rc<Placed>> = process
            .replicas
            .values()
            .map(|other| Rc::clone(&other.placed))
            .collect();
        let here = others.iter().map(|other| &**other);
        if self.sabotage == Some(Sabotage::ChecksNoEpoch) {
            return self.hand_over(of, key, request, deadline);
        }
        let arrives = arrival::arrival(plan, arriving, &me, here);
        if arrives != Arrival::Serve {
            self.log.note(
                self.now,
                format_args!(
                    "p{of}: request {} for {} finds {key}: {arrives:?}",
                    request.token, request.stage
                ),
            );
        }
        match arrives {
            Arrival::Serve => self.hand_over(of, key, request, deadline),
            Arrival::HandOver(other) => self.hand_over(of, &key_of(other), request, deadline),
            Arrival::Ignore => {}
            Arrival::Forward => self.send_on(of, &me, request, deadline),
            Arrival::Refuse => self.answer_fault(of, &request, Fault::Unavailable),
        }
    }

    /// Sends a request of a queue group on to a replica elsewhere.
    fn send_on(&mut self, of: usize, me: &Placed, request: Request, deadline: u64) {
        let from = Name::from(me.id.as_str());
        let draw = self.draw(of, &from);
        let process = &self.processes[of];
        let plan = process.adoption.at(request.epoch);
        let members = plan
            .into_iter()
            .flat_map(|plan| arrival::members(plan, request.gear, &request.stage));
        let members = members
            .filter(|member| member.worker != me.worker)
            .map(|member| member.id.as_str());
        let to = routing::member(members, |id| process.reachable(plan, id), draw).map(Name::from);
        match to {
            Some(id) => self.send_to_replica(of, &id, request, deadline),
            None => self.answer_fault(of, &request, Fault::Unavailable),
        }
    }

    /// Into the mailbox of a replica, or back at once if that has no room.
    fn hand_over(&mut self, of: usize, id: &Name, request: Request, deadline: u64) {
        let serial = self.serial();
        let Some(replica) = self.processes[of].replicas.get_mut(id) else {
            return self.answer_fault(of, &request, Fault::Unavailable);
        };
        let delivery = Delivery {
            serial,
            request,
            deadline,
        };
        if replica.take_room() {
            let replica = Rc::clone(id);
            self.mail(of, Mail::Delivery { replica, delivery });
        } else {
            self.answer_fault(of, &delivery.request, Fault::Overloaded);
        }
    }

    pub(crate) fn answer_fault(&mut self, of: usize, request: &Request, fault: Fault) {
        let done = StageReply {
            owner: request.owner,
            id: request.id,
            attempt: request.attempt,
            token: request.token,
            stage: Rc::clone(&request.stage),
            routed: true,
            decided_by: (request.epoch, request.gear),
            accept_below_threshold: request.accept_below_threshold,
            confidence: 0.0,
            result: Err(fault),
        };
        self.done(of, done);
    }

    /// Brings an answer to the ingress that owns the request.
    pub(crate) fn done(&mut self, of: usize, done: StageReply) {
        let owner = done.owner;
        if owner == self.processes[of].owner(of) {
            return self.mail(of, Mail::Finished(done));
        }
        // The subject belongs to one life of an ingress; an earlier life's has no listener and needs no notice.
        let there = &self.processes[owner.process];
        if there.up && there.life == owner.life {
            self.post(of, owner.process, Message::StageReply(done));
        }
    }

    /// The plan of an epoch in that process.
    pub(crate) fn plan_at(&self, of: usize, epoch: u64) -> Option<Rc<Plan>> {
        self.processes[of].adoption.at(epoch).cloned()
    }
}
