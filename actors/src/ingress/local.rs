//! Intake for clients in the same process: requests and replies pass between threads, without the broker and without
//! encoding. Permits, admission control, ledger and refusals are the same as for other requests.

use std::fmt;
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use crate::actor::Addr;
use tokio::sync::{oneshot, watch};

use super::actor::Ingress;
use super::intake::Capacity;
use super::messages::{Dropped, LocalRequest};
use super::refusal::{TOO_MANY_BYTES, TOO_MANY_REQUESTS};
use super::reply_target::{LocalClient, Parts};
use super::reservation::RequestReservation;
use crate::{
    bus::publisher::HEADROOM,
    error::Fault,
    metrics::Metrics,
    plan::versions::PlanVersions,
    wire::Message as _,
    wire::{InferReply, InferRequest, RequestOptions},
};

/// Accepts requests of clients in the same process. Cheap to clone.
#[derive(Clone)]
pub struct LocalIntake(Arc<Inner>);

struct Inner {
    entries: Vec<Entry>,
    /// Rotates among the ingresses.
    turn: AtomicUsize,
    capacity: Capacity,
    plans: PlanVersions,
    /// True once the node is leaving.
    closed: watch::Receiver<bool>,
    /// Largest request, bytes: the broker's limit, so that a retry can go over the broker.
    max_payload: usize,
}

/// An ingress with its counters.
#[derive(Clone)]
pub(crate) struct Entry {
    pub(crate) ingress: Addr<Ingress>,
    pub(crate) metrics: Arc<Metrics>,
}

impl fmt::Debug for LocalIntake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalIntake")
            .field("app", &self.0.plans.app())
            .field("ingresses", &self.0.entries.len())
            .finish_non_exhaustive()
    }
}

/// A request accepted by an ingress of this process. Dropping it before the reply cancels the request.
pub(crate) struct Pending {
    reply: oneshot::Receiver<Result<InferReply, Fault>>,
    /// The ingress and the request id, until the reply has arrived.
    taken: Option<(Addr<Ingress>, String)>,
}

impl Pending {
    /// Waits for the reply; `None` if the ingress has ended without one.
    pub(crate) async fn reply(&mut self) -> Option<Result<InferReply, Fault>> {
        let reply = (&mut self.reply).await;
        self.taken = None;
        reply.ok()
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some((ingress, id)) = self.taken.take() {
            // The ingress identifies the request by its closed channel, because other requests may have the same id.
            self.reply.close();
            ingress.do_send(Dropped { id });
        }
    }
}

impl LocalIntake {
    /// Creates the intake of these ingresses, which share the capacity. It accepts nothing once `closed` is true.
    pub(crate) fn new(
        entries: Vec<Entry>,
        capacity: Capacity,
        plans: PlanVersions,
        closed: watch::Receiver<bool>,
        max_payload: usize,
    ) -> Self {
        Self(Arc::new(Inner {
            entries,
            turn: AtomicUsize::new(0),
            capacity,
            plans,
            closed,
            max_payload,
        }))
    }

    /// Hands a request to an ingress of this process; if the capacity is used up, the request is refused immediately.
    /// `None` if the request must go over the broker: no ingress of this process can answer it now, or it exceeds the
    /// broker's limit.
    pub(crate) fn take(
        &self,
        request: &Arc<InferRequest>,
        options: &RequestOptions,
        parts: Option<Parts>,
    ) -> Option<Pending> {
        let size = request.size_hint();
        if !self.0.plans.is_serving() || size > self.0.max_payload.saturating_sub(HEADROOM) {
            return None;
        }
        let entry = self.next()?;
        let permit = Arc::clone(&self.0.capacity.permits).try_acquire_owned();
        // Check after acquiring the permit: a leaving node first closes, then waits for the permits.
        if *self.0.closed.borrow() {
            return None;
        }
        entry.metrics.arrived();
        let (reply, replied) = oneshot::channel();
        let refuse = |fault: &Arc<Fault>, reply: oneshot::Sender<_>| {
            entry.metrics.shared_fault(fault);
            // The receiver still exists, see below.
            let _ = reply.send(Err(Fault::clone(fault)));
            None
        };
        let taken = match permit {
            Err(_) => refuse(TOO_MANY_REQUESTS.fault(), reply),
            Ok(permit) => {
                let mut held = RequestReservation::new(permit, &self.0.capacity.bytes);
                if held.charge(size) {
                    entry.ingress.do_send(LocalRequest {
                        request: Arc::clone(request),
                        options: options.clone(),
                        to: LocalClient { reply, parts, held },
                    });
                    Some((entry.ingress.clone(), options.id.clone()))
                } else {
                    refuse(TOO_MANY_BYTES.fault(), reply)
                }
            }
        };
        Some(Pending {
            reply: replied,
            taken,
        })
    }

    /// Returns the next running ingress.
    fn next(&self) -> Option<&Entry> {
        let entries = &self.0.entries;
        let first = self.0.turn.fetch_add(1, Ordering::Relaxed) % entries.len().max(1);
        let (last, from_first) = entries.split_at_checked(first)?;
        let mut in_turn = from_first.iter().chain(last);
        in_turn.find(|entry| entry.ingress.connected())
    }
}
