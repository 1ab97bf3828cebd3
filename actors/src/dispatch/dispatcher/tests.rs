//! Tests of requests that cannot be sent to any replica.

use std::num::NonZeroU32;
use std::sync::atomic::AtomicU32;

use kaskade_models::Tensor;
use kaskade_policy::plan::{Batching, Edge};
use tokio::sync::{Semaphore, mpsc};

use super::*;
use crate::actor::{Actor, Context, Handler, System};
use crate::bus::BusConfig;
use crate::dispatch::delivery::Delivery;
use crate::plan::{single, versions::PlanVersions};
use crate::wire::headers::Trace;

const APP: &str = "dispatch";

/// An ingress that forwards the faults of its requests to the test.
struct Owner(mpsc::UnboundedSender<Fault>);

impl Actor for Owner {
    type Context = Context<Self>;
}

impl Handler<Finished> for Owner {
    type Result = ();

    fn handle(&mut self, Finished { done, .. }: Finished, _: &mut Context<Self>) {
        let StageOutcome::Fault(fault) = done.result else {
            panic!("{:?}", done.result)
        };
        self.0.send(fault).unwrap();
    }
}

/// Returns the fault of a request with `floats` values for a stage that no replica of the plan serves.
fn fault_of_a_request_to_no_replica(return_to_ingress: bool, floats: usize) -> Fault {
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
            return_to_ingress,
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
    for return_to_ingress in [false, true] {
        let fault = fault_of_a_request_to_no_replica(return_to_ingress, 3 << 20);
        assert_eq!(fault.code, Code::TooLarge, "{}", fault.message);
    }
}

/// A replica that records its requests.
struct Noting(mpsc::UnboundedSender<u64>);

impl Actor for Noting {
    type Context = Context<Self>;
}

impl Handler<Delivery> for Noting {
    type Result = ();

    fn handle(&mut self, delivery: Delivery, _: &mut Context<Self>) {
        self.0.send(delivery.request.id).unwrap();
        delivery.discard();
    }
}

/// Returns the replicas that receive three consecutive requests, with a largest batch of 1 and the first request
/// unanswered. `elsewhere` places a second replica on another worker.
fn three_requests(elsewhere: bool) -> Vec<Option<String>> {
    System::new().block_on(async {
        let bus = Bus::connect(BusConfig::new(APP)).await.unwrap();
        let dispatcher = Dispatcher::new(&bus, App::new(APP).unwrap(), Clock::start());
        let plans = PlanVersions::new(APP);
        let mut plan = single(APP, "model", "worker", NonZeroU32::MIN, Batching::default());
        let placed = plan.placement[0].clone();
        if elsewhere {
            plan.placement.push(Replica {
                id: "elsewhere".to_owned(),
                worker: "another".to_owned(),
                ..placed.clone()
            });
        }
        plans.adopt(1, plan).unwrap();
        let (version, gear) = plans.current().unwrap();
        let (sender, mut received) = mpsc::unbounded_channel();
        let local = LocalReplica {
            id: placed.id.clone(),
            placed: Some(Arc::new(placed)),
            mailbox: Noting(sender).start().recipient(),
            permits: Arc::new(Semaphore::new(9)),
            capacity: 9,
            depth: Arc::default(),
            running: Arc::default(),
            max_batch: Arc::new(AtomicU32::new(1)),
        };
        let edge = Edge::to(version.plan.gears[0].wiring.entry.stage.clone());
        dispatcher.register_replica(&edge.stage, local.clone());
        let _taken = Arc::clone(&local.permits).try_acquire_owned().unwrap();
        let deadline = dispatcher.clock().now() + 1_000_000;
        let mut to = Vec::new();
        for id in 1..=3 {
            let request = StageRequest {
                id,
                ingress: "i".to_owned(),
                attempt: 1,
                epoch: 1,
                gear,
                ..StageRequest::default()
            };
            to.push(dispatcher.dispatch("i", &version, &edge, request, deadline, Trace::start()));
        }
        for id in to.iter().flatten().zip(1..).map(|(_, id)| id) {
            assert_eq!(received.recv().await, Some(id));
        }
        to
    })
}

#[test]
fn requests_leave_the_process_while_a_batch_waits_only_if_another_process_has_the_stage() {
    let here = Some("model-0".to_owned());
    assert_eq!(three_requests(false), [here.clone(), here.clone(), here]);
    assert_eq!(three_requests(true), [None, None, None]);
}
