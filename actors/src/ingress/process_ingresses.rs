//! The ingresses of one process.

use std::sync::{Arc, Mutex, PoisonError};

use crate::actor::Recipient;

use super::messages::{DepartedReplicas, LostReplicas};

/// The ingresses of a process, one per shard. The process learns once that a replica is gone, and each of its ingresses may
/// have requests there. Clones are the same list.
#[derive(Clone, Default)]
pub(crate) struct Ingresses(Arc<Mutex<Vec<Member>>>);

#[derive(Clone)]
struct Member {
    id: String,
    losses: Recipient<LostReplicas>,
    leaves: Recipient<DepartedReplicas>,
}

impl Ingresses {
    /// Adds the ingress of that id.
    pub(crate) fn add(&self, id: &str, losses: Recipient<LostReplicas>, leaves: Recipient<DepartedReplicas>) {
        let mut members = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        members.push(Member {
            id: id.to_owned(),
            losses,
            leaves,
        });
    }

    /// Tells every ingress that these replicas are lost.
    pub(crate) fn lost(&self, replicas: &[String]) {
        self.lost_at_others("", replicas);
    }

    /// Tells every ingress but that one that these replicas are lost.
    pub(super) fn lost_at_others(&self, id: &str, replicas: &[String]) {
        for member in self.members().iter().filter(|member| member.id != id) {
            member.losses.do_send(LostReplicas(replicas.to_vec()));
        }
    }

    /// Tells every ingress that these replicas have left in good order.
    pub(crate) fn left(&self, replicas: &[String]) {
        for member in self.members() {
            member.leaves.do_send(DepartedReplicas(replicas.to_vec()));
        }
    }

    /// Returns how many there are.
    pub(super) fn count(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    fn members(&self) -> Vec<Member> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
