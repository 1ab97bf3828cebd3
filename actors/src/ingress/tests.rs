//! Tests of the ingress beside a replica of its process.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use async_nats::Subject;
use futures::StreamExt;
use kaskade_models::Tensor;
use kaskade_policy::certificate_monitor::{AuditCounts as AgreementCounts, AuditSettings};
use kaskade_policy::plan::{
    Batching, Certificate, CertifiedCascade, CertifiedList, Edge, ExpectedStage, Guarantee, Plan, Replica,
};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;

use super::client::LocalClient;
use super::reservation::RequestReservation;
use super::*;
use crate::actor::{Addr, Message, Recipient, System};
use crate::audit_counts::AuditCounts;
use crate::bus::{Bus, BusConfig};
use crate::clock::Clock;
use crate::dispatch::delivery::Delivery;
use crate::dispatch::dispatcher::Dispatcher;
use crate::dispatch::local::LocalReplica;
use crate::plan::{single, versions::PlanVersions};
use crate::subjects::App;
use crate::wire::Message as _;
use crate::wire::headers::{self, Trace};
use crate::wire::{InferReply, InferRequest, RequestOptions, TokenKey};

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

fn local(placed: Replica, mailbox: Recipient<Delivery>) -> LocalReplica {
    LocalReplica {
        id: placed.id.clone(),
        placed: Some(Arc::new(placed)),
        mailbox,
        permits: Arc::new(Semaphore::new(9)),
        capacity: 9,
        depth: Arc::default(),
        running: Arc::default(),
        max_batch: Arc::new(AtomicU32::new(1)),
    }
}

fn request(reply: oneshot::Sender<Result<InferReply, Fault>>) -> LocalRequest {
    LocalRequest {
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
    }
}

fn ingress(plans: PlanVersions, dispatcher: Dispatcher, bus: &Bus) -> Ingress {
    // Every request is audited, if the plan has a certified list.
    let config = IngressConfig {
        audit: AuditSettings::of_share(1.0),
        ..IngressConfig::default()
    };
    Ingress::new(
        "i",
        TokenKey::random().unwrap(),
        config,
        plans,
        dispatcher,
        Arc::default(),
        bus.max_payload(),
    )
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
        dispatcher.register_replica(&stage, local(placed, replica.clone().recipient()));
        let ingress = ingress(plans, dispatcher, &bus).start();
        let (reply, _answer) = oneshot::channel();
        ingress.send(request(reply)).await.unwrap();
        assert_eq!(replica.send(Count).await.unwrap(), 1);
        ingress.send(Reconnected).await.unwrap();
        assert_eq!(replica.send(Count).await.unwrap(), 1);
    });
}

/// A replica for whose model every request is too long, or none.
struct Short(bool);

impl Actor for Short {
    type Context = Context<Self>;
}

impl Handler<Delivery> for Short {
    type Result = ();

    fn handle(&mut self, mut delivery: Delivery, _: &mut Context<Self>) {
        if self.0 {
            return delivery.fail(Fault::new(Code::TooLong, "longer than the context"));
        }
        delivery.hop(delivery.arrived, 1, 1, None);
        delivery.answer(
            vec![Tensor::from_f32("logits", &[2], &[0.5, 0.0]).unwrap()],
            Some(0.9),
        );
    }
}

/// A plan whose list has `large` alone, and `small` before it.
fn certified() -> Plan {
    let small = Plan::cascade(APP).stage("small", "small");
    let mut plan = small.below(0.5).then("large", "large").build().unwrap();
    let cheap = plan.gears[0].clone();
    let mut alone = cheap.clone();
    "large".clone_into(&mut alone.name);
    alone.wiring.stages.remove(0);
    alone.wiring.entry = Edge::to("large");
    let stage = |stage: &str, samples| ExpectedStage {
        stage: stage.to_owned(),
        samples,
        deferred: 0,
        edges: Vec::new(),
        exits: vec![samples],
    };
    let certificate = Certificate {
        guarantee: Guarantee::MaxLoss {
            loss: 0.02,
            against: "large".to_owned(),
        },
        confidence: 0.95,
        samples: 1_000,
        right: 990,
        lost: Some(0),
        gained: Some(0),
        p_value: 0.0,
    };
    let cascades = [
        (alone, vec![stage("large", 1_000)]),
        (cheap, vec![stage("small", 1_000), stage("large", 0)]),
    ];
    let cascades = cascades.map(|(gear, stages)| CertifiedCascade {
        gear,
        certificate: certificate.clone(),
        differs: Some(0),
        stages,
    });
    plan.certified = Some(CertifiedList {
        texts: None,
        samples: None,
        cascade_of_gear: vec![1],
        cascades: cascades.into(),
    });
    plan
}

/// Starts replicas of the certified plan, for whose small model every request is too long, and an ingress.
fn certified_ingress(plans: &PlanVersions, bus: &Bus, counted: &Arc<AuditCounts>) -> Addr<Ingress> {
    let dispatcher = Dispatcher::new(bus, App::new(APP).unwrap(), Clock::start());
    let plan = certified();
    for placed in &plan.placement {
        let replica = Short(placed.variant == "small").start();
        dispatcher.register_replica(&placed.variant, local(placed.clone(), replica.recipient()));
    }
    plans.adopt(1, plan).unwrap();
    ingress(plans.clone(), dispatcher, bus)
        .watched_by(counted)
        .start()
}

/// The plan counts samples that are too long for a stage as deferred there; live they were not counted, and the inputs drifted.
#[test]
fn a_request_that_is_too_long_for_a_stage_counts_as_deferred_there() {
    System::new().block_on(async {
        let bus = Bus::connect(BusConfig::new("too-long")).await.unwrap();
        let (plans, counted) = (PlanVersions::new(APP), Arc::<AuditCounts>::default());
        let ingress = certified_ingress(&plans, &bus, &counted);
        let (reply, answer) = oneshot::channel();
        ingress.send(request(reply)).await.unwrap();
        assert_eq!(answer.await.unwrap().unwrap().stage, "large");
        let (_, counts) = counted.take();
        assert_eq!(counts.cascades[1].stages, [vec![1], vec![0, 1]]);
    });
}

/// Such a probe counted as failed, and long prompts held back the restore of a cascade that defers them.
#[test]
fn a_probe_that_is_too_long_for_a_stage_goes_on_to_the_next() {
    System::new().block_on(async {
        let bus = Bus::connect(BusConfig::new("long-probe")).await.unwrap();
        let (plans, counted) = (PlanVersions::new(APP), Arc::<AuditCounts>::default());
        let ingress = certified_ingress(&plans, &bus, &counted);
        let alone = plans.newest().unwrap().plan.gear_at(0).unwrap();
        plans.shift(1, alone).unwrap();
        let (reply, answer) = oneshot::channel();
        ingress.send(request(reply)).await.unwrap();
        assert_eq!(answer.await.unwrap().unwrap().stage, "large");
        let probes = async {
            loop {
                let (_, counts) = counted.take();
                let probes = counts.cascades.get(1).map(|cascade| cascade.probes);
                match probes.filter(|probes| *probes != AgreementCounts::default()) {
                    Some(probes) => return probes,
                    None => tokio::task::yield_now().await,
                }
            }
        };
        let probes = timeout(Duration::from_secs(10), probes).await.unwrap();
        let agrees = AgreementCounts {
            agree: 1,
            ..AgreementCounts::default()
        };
        assert_eq!(probes, agrees);
    });
}

/// A replica that sends three parts of an answer and then fails.
struct BreaksOff;

impl Actor for BreaksOff {
    type Context = Context<Self>;
}

impl Handler<Delivery> for BreaksOff {
    type Result = ();

    fn handle(&mut self, delivery: Delivery, _: &mut Context<Self>) {
        for from in 0..3 {
            let text = Tensor::from_texts("text", &["a"]).unwrap();
            delivery.part(vec![text], from, from + 1, false);
        }
        delivery.fail(Fault::new(Code::TooLong, "longer than the context"));
    }
}

/// The control queue overtook the parts, and the client ended its stream without them.
#[test]
fn a_fault_comes_after_the_parts_of_its_stream() {
    System::new().block_on(async {
        let bus = Bus::connect(BusConfig::new("broken-off")).await.unwrap();
        let dispatcher = Dispatcher::new(&bus, App::new(APP).unwrap(), Clock::start());
        let plans = PlanVersions::new(APP);
        let plan = single(APP, "model", "worker", NonZeroU32::MIN, Batching::default());
        let (placed, stage) = (
            plan.placement[0].clone(),
            plan.gears[0].wiring.entry.stage.clone(),
        );
        plans.adopt(1, plan).unwrap();
        dispatcher.register_replica(&stage, local(placed, BreaksOff.start().recipient()));
        let ingress = ingress(plans, dispatcher, &bus).start();
        let inbox = Subject::from(bus.client().new_inbox());
        let replies = bus.client().subscribe(inbox.clone()).await.unwrap();
        let mut asked = InferRequest {
            inputs: vec![Tensor::from_f32("x", &[1], &[0.5]).unwrap()],
            ..InferRequest::default()
        };
        asked.ask_for_parts();
        let payload = asked.encode().unwrap();
        let message = async_nats::Message {
            subject: App::new(APP).unwrap().infer(),
            reply: Some(inbox),
            length: payload.len(),
            payload,
            headers: None,
            status: None,
            description: None,
        };
        let held = RequestReservation::default();
        ingress.do_send(Inbound { message, held });
        let replies: Vec<_> = replies
            .take(4)
            .map(|reply| headers::fault(reply.headers.as_ref()).is_some())
            .collect()
            .await;
        assert_eq!(replies, [false, false, false, true]);
    });
}
