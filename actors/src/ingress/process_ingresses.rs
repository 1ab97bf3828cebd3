//! The ingresses of one process.

use std::sync::{Arc, Mutex, PoisonError};

use crate::actor::{Actor, Addr, Context, Handler, Recipient};

use super::messages::{DepartedReplicas, LostReplicas, ProcessReconnected};

/// The ingresses of a process, one per shard. They are notified together, because each may have requests at a replica
/// that is gone. Clones share the list.
#[derive(Clone, Default)]
pub(crate) struct Ingresses(Arc<Mutex<Vec<Member>>>);

#[derive(Clone)]
struct Member {
    id: String,
    losses: Recipient<LostReplicas>,
    leaves: Recipient<DepartedReplicas>,
    reconnects: Recipient<ProcessReconnected>,
}

impl Ingresses {
    /// Adds an ingress with that id.
    pub(crate) fn add<A>(&self, id: &str, ingress: &Addr<A>)
    where
        A: Actor<Context = Context<A>>
            + Handler<LostReplicas>
            + Handler<DepartedReplicas>
            + Handler<ProcessReconnected>,
    {
        let mut members = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        members.push(Member {
            id: id.to_owned(),
            losses: ingress.clone().recipient(),
            leaves: ingress.clone().recipient(),
            reconnects: ingress.clone().recipient(),
        });
    }

    /// Notifies every ingress that these replicas are lost.
    pub(crate) fn replicas_lost(&self, replicas: &[String]) {
        self.lost_at_others("", replicas);
    }

    /// Notifies every ingress except `id` that these replicas are lost.
    pub(super) fn lost_at_others(&self, id: &str, replicas: &[String]) {
        for member in self.members().iter().filter(|member| member.id != id) {
            member.losses.do_send(LostReplicas(replicas.to_vec()));
        }
    }

    /// Notifies every ingress that these replicas have left in good order.
    pub(crate) fn replicas_left(&self, replicas: &[String]) {
        for member in self.members() {
            member.leaves.do_send(DepartedReplicas(replicas.to_vec()));
        }
    }

    /// Returns the number of ingresses.
    pub(super) fn count(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Notifies the ingresses that a connection of the process was lost and is up again. A single ingress is not
    /// notified, because it watches its connection itself.
    pub(crate) fn reconnected(&self) {
        let members = self.members();
        for member in members.iter().filter(|_| members.len() > 1) {
            member.reconnects.do_send(ProcessReconnected);
        }
    }

    fn members(&self) -> Vec<Member> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
