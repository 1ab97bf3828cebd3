//! Requests that cannot be sent anywhere.

use std::num::NonZeroU32;

use kaskade_models::Tensor;
use kaskade_policy::plan::{Batching, Edge};
use tokio::sync::mpsc;

use super::*;
use crate::actor::{Actor, Context, Handler, System};
use crate::bus::BusConfig;
use crate::plan::{single, versions::PlanVersions};
use crate::wire::headers::Trace;

const APP: &str = "dispatch";

/// An ingress that passes on the faults of its requests.
struct Owner(mpsc::UnboundedSender<Fault>);

impl Actor for Owner {
    type Context = Context<Self>;
}

impl Handler<Finished> for Owner {
    type Result = ();

    fn handle(&mut self, Finished { done, .. }: Finished, _: &mut Context<Self>) {
        let DoneResult::Fault(fault) = done.result else {
            panic!("{:?}", done.result)
        };
        self.0.send(fault).unwrap();
    }
}

/// The fault of a request with `floats` values for a stage that no replica of the plan serves.
fn fault_of_a_request_to_no_replica(via_ingress: bool, floats: usize) -> Fault {
    System::new().block_on(async {
        let bus = Bus::connect(BusConfig::new(APP)).await.unwrap();
        let dispatcher = Dispatcher::new(&bus, App::new(APP).unwrap(), Clock::start());
        let plans = PlanVersions::new(APP);
        let plan = single(APP, "model", "worker", NonZeroU32::MIN, Batching::default());
        plans.adopt(1, plan).unwrap();
        let (version, gear) = plans.current().unwrap();
        let (faults, mut fault) = mpsc::unbounded_channel();
        dispatcher.register_ingress("i", Owner(faults).start().recipient());
        let request = StageRequest {
            id: 1,
            ingress: "i".to_owned(),
            attempt: 1,
            epoch: 1,
            gear,
            via_ingress,
            inputs: vec![Tensor::from_f32("x", &[floats], &vec![0.5; floats]).unwrap()],
            ..StageRequest::default()
        };
        let deadline = dispatcher.clock().now() + 1_000_000;
        let edge = Edge::to("elsewhere");
        let to = dispatcher.dispatch("i", &version, &edge, request, deadline, Trace::start());
        assert_eq!(to, None);
        fault.recv().await.unwrap()
    })
}

#[test]
fn a_small_request_that_must_be_addressed_and_has_no_replica_may_be_retried() {
    let fault = fault_of_a_request_to_no_replica(true, 1);
    assert_eq!(fault.code, Code::Unavailable, "{}", fault.message);
    assert!(fault.message.contains("`elsewhere`"), "{}", fault.message);
}

#[test]
fn a_large_request_without_a_replica_to_address_is_too_large() {
    for via_ingress in [false, true] {
        let fault = fault_of_a_request_to_no_replica(via_ingress, 1 << 20);
        assert_eq!(fault.code, Code::TooLarge, "{}", fault.message);
    }
}
