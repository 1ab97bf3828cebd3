//! Tests of the ingress beside a replica of its process.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use kaskade_models::Tensor;
use kaskade_policy::plan::Batching;
use tokio::sync::{Semaphore, oneshot};

use super::client::LocalClient;
use super::reservation::RequestReservation;
use super::*;
use crate::actor::{Message, System};
use crate::bus::{Bus, BusConfig};
use crate::clock::Clock;
use crate::dispatch::delivery::Delivery;
use crate::dispatch::dispatcher::Dispatcher;
use crate::dispatch::local::LocalReplica;
use crate::plan::{single, versions::PlanVersions};
use crate::subjects::App;
use crate::wire::headers::Trace;
use crate::wire::{InferRequest, RequestOptions, TokenKey};

const APP: &str = "ingress";

/// A replica that answers nothing.
#[derive(Default)]
struct Busy(Vec<Delivery>);

/// Asks a replica how many requests it got.
#[derive(Message)]
#[rtype(result = "usize")]
struct Count;

impl Actor for Busy {
    type Context = Context<Self>;
}

impl Handler<Delivery> for Busy {
    type Result = ();

    fn handle(&mut self, delivery: Delivery, _: &mut Context<Self>) {
        self.0.push(delivery);
    }
}

impl Handler<Count> for Busy {
    type Result = usize;

    fn handle(&mut self, _: Count, _: &mut Context<Self>) -> usize {
        self.0.len()
    }
}

/// It computed twice, and a streamed answer that had begun there ended with a fault.
#[test]
fn a_request_at_a_replica_of_the_process_is_not_sent_again_when_the_connection_broke() {
    System::new().block_on(async {
        let bus = Bus::connect(BusConfig::new(APP)).await.unwrap();
        let dispatcher = Dispatcher::new(&bus, App::new(APP).unwrap(), Clock::start());
        let plans = PlanVersions::new(APP);
        let plan = single(APP, "model", "worker", NonZeroU32::MIN, Batching::default());
        let (placed, stage) = (
            plan.placement[0].clone(),
            plan.gears[0].wiring.entry.stage.clone(),
        );
        plans.adopt(1, plan).unwrap();
        let replica = Busy::default().start();
        let local = LocalReplica {
            id: placed.id.clone(),
            placed: Some(Arc::new(placed)),
            mailbox: replica.clone().recipient(),
            permits: Arc::new(Semaphore::new(9)),
            capacity: 9,
            depth: Arc::default(),
            running: Arc::default(),
            max_batch: Arc::new(AtomicU32::new(1)),
        };
        dispatcher.register_replica(&stage, local);
        let ingress = Ingress::new(
            "i",
            TokenKey::random().unwrap(),
            IngressConfig::default(),
            plans,
            dispatcher,
            Arc::default(),
            bus.max_payload(),
        );
        let ingress = ingress.start();
        let (reply, _answer) = oneshot::channel();
        let asked = LocalRequest {
            request: Arc::new(InferRequest {
                inputs: vec![Tensor::from_f32("x", &[1], &[0.5]).unwrap()],
                ..InferRequest::default()
            }),
            options: RequestOptions {
                id: "one".to_owned(),
                has_own_id: true,
                budget: Duration::from_secs(20),
                trace: Trace::start(),
            },
            to: LocalClient {
                reply,
                parts: None,
                held: RequestReservation::default(),
            },
        };
        ingress.send(asked).await.unwrap();
        assert_eq!(replica.send(Count).await.unwrap(), 1);
        ingress.send(Reconnected).await.unwrap();
        assert_eq!(replica.send(Count).await.unwrap(), 1);
    });
}
