//! Delivery of a request: to an actor of this process, a replica's subject, or a stage's queue group.

use std::rc::Rc;

use kaskade_policy::plan::{Edge, Plan};
use kaskade_policy::routing::{self, Destination};
use rand::Rng;

use super::messages::{Delivery, Done, Mail, Message, Name, Request};
use super::oracle::Fault;
use super::world::World;

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
        match routing::destination_from(edge, from, |replica| process.reachable(replica), draw) {
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

    fn send_to_replica(&mut self, of: usize, id: &Name, request: Request, deadline: u64) {
        if self.processes[of].replicas.contains_key(id) {
            return self.hand_over(of, id, request, deadline);
        }
        let listener = self
            .processes
            .iter()
            .position(|there| there.up && there.replicas.contains_key(id));
        self.publish(of, listener.map(|to| (to, Rc::clone(id))), request, deadline);
    }

    fn send_to_group(&mut self, of: usize, request: Request, deadline: u64) -> Option<Name> {
        let near = self.processes[of].replicas.values();
        let near = near
            .filter(|replica| *replica.variant == *request.stage)
            .find(|replica| routing::prefer_local(replica.depth, replica.max_batch));
        if let Some(id) = near.map(|replica| Rc::clone(&replica.id)) {
            self.hand_over(of, &id, request, deadline);
            return Some(id);
        }
        let members = self.members(&request.stage);
        let picked = (!members.is_empty()).then(|| members[self.rng.random_range(0..members.len())].clone());
        self.publish(of, picked, request, deadline);
        None
    }

    /// The replicas that listen for a stage, each with its process.
    fn members(&self, stage: &str) -> Vec<(usize, Name)> {
        let up = self.processes.iter().enumerate().filter(|(_, there)| there.up);
        let members = up.flat_map(|(to, there)| there.replicas.values().map(move |replica| (to, replica)));
        let of_stage = members.filter(|(_, replica)| replica.variant == stage);
        of_stage
            .map(|(to, replica)| (to, Rc::clone(&replica.id)))
            .collect()
    }

    /// Over the bus, to the listener that the broker picked; without one the broker notifies the reply subject, which is the
    /// ingress's.
    fn publish(&mut self, of: usize, listener: Option<(usize, Name)>, request: Request, deadline: u64) {
        if self.processes[of].cut_until > self.now {
            let token = request.token;
            return self.note(format_args!("p{of} is cut off: request {token} goes nowhere"));
        }
        let Some((to, replica)) = listener else {
            let Request {
                owner,
                id,
                attempt,
                token,
                ..
            } = request;
            self.note(format_args!(
                "no listener where request {token}, attempt {attempt}, goes"
            ));
            let notice = Message::NobodyListens { owner, id, attempt };
            return self.broker_says(owner.process, notice);
        };
        let message = Message::Stage {
            replica,
            request,
            budget_us: deadline.saturating_sub(self.now),
        };
        self.post(of, to, message);
    }

    /// From the bus: the budget that is left is counted from now.
    pub(crate) fn receive(&mut self, of: usize, replica: &Name, request: Request, budget_us: u64) {
        self.hand_over(of, replica, request, self.now + budget_us);
    }

    /// Into the mailbox of a replica, or back at once if that has no room.
    fn hand_over(&mut self, of: usize, id: &Name, request: Request, deadline: u64) {
        let serial = self.serial();
        let Some(replica) = self.processes[of].replicas.get_mut(id) else {
            return;
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
        let done = Done {
            owner: request.owner,
            id: request.id,
            attempt: request.attempt,
            token: request.token,
            stage: Rc::clone(&request.stage),
            decided_by: (request.epoch, request.gear),
            settle: request.settle,
            confidence: 0.0,
            result: Err(fault),
        };
        self.done(of, done);
    }

    /// Brings an answer to the ingress that owns the request.
    pub(crate) fn done(&mut self, of: usize, done: Done) {
        let owner = done.owner;
        if owner == self.processes[of].owner(of) {
            return self.mail(of, Mail::Finished(done));
        }
        // The subject belongs to one life of an ingress; an earlier life's has no listener and needs no notice.
        let there = &self.processes[owner.process];
        if there.up && there.life == owner.life {
            self.post(of, owner.process, Message::Done(done));
        }
    }

    /// The plan of an epoch in that process.
    pub(crate) fn plan_at(&self, of: usize, epoch: u64) -> Option<Rc<Plan>> {
        self.processes[of].book.at(epoch).cloned()
    }
}
