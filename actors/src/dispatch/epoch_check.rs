//! Checks whether a replica serves the stage of a request under the plan that admitted it. The policy is
//! [`kaskade_policy::adoption::arrival`].

use std::sync::Arc;

use kaskade_policy::adoption::arrival::{Arrival, ArrivingRequest, arrival};
use kaskade_policy::plan::Replica;

use super::dispatcher::{Dispatcher, not_served};
use crate::{plan::versions::PlanVersions, wire::StageRequest, wire::headers::Trace};

/// Checks the epochs of requests that arrive at one replica.
#[derive(Clone)]
pub struct EpochCheck {
    /// The replica, as the plan places it.
    pub replica: Arc<Replica>,
    /// The plans known to this process.
    pub plans: PlanVersions,
}

impl EpochCheck {
    /// Returns the request if the replica serves it. Otherwise passes it to another replica, or a retryable fault to
    /// the ingress.
    ///
    /// `addressed` is whether the request was sent to the replica's own subject.
    pub(super) fn pass(
        &self,
        dispatcher: &Dispatcher,
        request: StageRequest,
        addressed: bool,
        deadline: u64,
        trace: Trace,
    ) -> Option<StageRequest> {
        let version = self.plans.at(request.epoch);
        let plan = version.as_ref().map(|version| &version.plan);
        let arriving = ArrivingRequest {
            epoch: request.epoch,
            gear: request.gear,
            stage: &request.stage,
            addressed,
        };
        // Fast path: the usual case does not depend on the other replicas.
        if arrival(plan, arriving, &self.replica, std::iter::empty()) == Arrival::Serve {
            return Some(request);
        }
        let here = dispatcher.placed();
        let others = here.iter().map(|other| &**other);
        match (arrival(plan, arriving, &self.replica, others), version) {
            (Arrival::Serve, _) => return Some(request),
            (Arrival::Ignore, _) => {}
            (Arrival::HandOver(other), _) => {
                let epoch = request.epoch;
                if let Err(request) = dispatcher.hand_over(other, request, deadline, trace) {
                    dispatcher.refuse(*request, not_served(epoch));
                }
            }
            (Arrival::Forward, Some(version)) => {
                dispatcher.send_on(&self.replica, &version, request, deadline, trace);
            }
            (Arrival::Forward | Arrival::Refuse, _) => {
                let epoch = request.epoch;
                dispatcher.refuse(request, not_served(epoch));
            }
        }
        None
    }
}
