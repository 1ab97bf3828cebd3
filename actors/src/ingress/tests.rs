//! Tests of an ingress with replicas in the same process.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use async_nats::Subject;
use futures::StreamExt;
use kaskade_models::Tensor;
use kaskade_policy::certificate_monitor::{AuditCounts as AgreementCounts, AuditSettings};
use kaskade_policy::plan::{Batching, Child, Edge, Exit, Plan, Replica};
use kaskade_testkit::certified;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;

use super::reply_target::LocalClient;
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

/// A replica that never answers.
#[derive(Default)]
struct Busy(Vec<Delivery>);

/// Returns the number of requests that a replica has received.
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
            has_unique_id: true,
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
    // Audit every request if the plan has a certified list.
    let config = IngressConfig {
        audit: AuditSettings::with_share(1.0),
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

/// Starts an ingress with a one-stage plan, whose replica in this process is `replica`.
fn ingress_at(bus: &Bus, replica: Recipient<Delivery>) -> Addr<Ingress> {
    let dispatcher = Dispatcher::new(bus, App::new(APP).unwrap(), Clock::start());
    let plans = PlanVersions::new(APP);
    let plan = single(APP, "model", "worker", NonZeroU32::MIN, Batching::default());
    let placed = plan.placement[0].clone();
    let stage = plan.gears[0].wiring.entry.stage.clone();
    plans.adopt(1, plan).unwrap();
    dispatcher.register_replica(&stage, local(placed, replica));
    ingress(plans, dispatcher, bus).start()
}

/// Regression: the request was computed twice, and a streamed answer that had begun at the replica ended with a fault.
#[test]
fn a_request_at_a_replica_of_the_process_is_not_sent_again_when_the_connection_broke() {
    System::new().block_on(async {
        let bus = Bus::connect(BusConfig::new(APP)).await.unwrap();
        let replica = Busy::default().start();
        let ingress = ingress_at(&bus, replica.clone().recipient());
        let (reply, _answer) = oneshot::channel();
        ingress.send(request(reply)).await.unwrap();
        assert_eq!(replica.send(Count).await.unwrap(), 1);
        ingress.send(Reconnected).await.unwrap();
        assert_eq!(replica.send(Count).await.unwrap(), 1);
    });
}

/// A replica whose model finds every request too long (`true`) or none (`false`).
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
        delivery.record_hop(delivery.arrived, 1, 1, None);
        delivery.answer(
            vec![Tensor::from_f32("logits", &[2], &[0.5, 0.0]).unwrap()],
            Some(0.9),
        );
    }
}

/// Starts an ingress under a plan. `first` serves the variant `first`; the other variants never answer, and `third` has
/// no replica here.
async fn started(app: &str, plan: Plan, first: Recipient<Delivery>) -> (Addr<Ingress>, Addr<Busy>) {
    let bus = Bus::connect(BusConfig::new(app)).await.unwrap();
    let waiting = Busy::default().start();
    let started = started_at(&bus, plan, &first, &waiting.clone().recipient());
    (started, waiting)
}

/// Starts an ingress under a plan: `first` serves the variant `first`, and `others` serves every variant but `third`.
fn started_at(
    bus: &Bus,
    plan: Plan,
    first: &Recipient<Delivery>,
    others: &Recipient<Delivery>,
) -> Addr<Ingress> {
    let dispatcher = Dispatcher::new(bus, App::new(APP).unwrap(), Clock::start());
    let plans = PlanVersions::new(APP);
    for placed in plan.placement.iter().filter(|placed| placed.variant != "third") {
        let mailbox = match placed.variant.as_str() {
            "first" => first.clone(),
            _ => others.clone(),
        };
        dispatcher.register_replica(&placed.variant, local(placed.clone(), mailbox));
    }
    plans.adopt(1, plan).unwrap();
    ingress(plans, dispatcher, bus).start()
}

/// Waits until a replica has received that many requests.
async fn got(replica: &Addr<Busy>, requests: usize) {
    let waits = async {
        while replica.send(Count).await.unwrap() < requests {
            tokio::task::yield_now().await;
        }
    };
    let waited = timeout(Duration::from_secs(10), waits).await;
    assert!(waited.is_ok(), "never {requests} requests");
}

/// Regression: the ingress assumed the request at its local stage, which had forwarded it over the broken connection.
#[test]
fn a_request_that_a_stage_of_the_process_may_have_sent_on_is_sent_again_when_the_connection_broke() {
    System::new().block_on(async {
        // `first` lets the ingress forward its result, or finds the request too long.
        for (app, is_short) in [("forwarded", false), ("passed-over", true)] {
            let first = Plan::cascade(APP).stage("first", "first").below(0.95);
            let second = first.then("second", "second").below(0.5);
            let plan = second.then("third", "third").build().unwrap();
            let first = Short(is_short).start();
            let (ingress, second) = started(app, plan, first.recipient()).await;
            let (reply, _answer) = oneshot::channel();
            ingress.send(request(reply)).await.unwrap();
            got(&second, 1).await;
            ingress.send(Reconnected).await.unwrap();
            got(&second, 2).await;
        }
    });
}

/// Regression: the ingress assumed the request at the task that had already sent its children.
#[test]
fn the_children_of_a_request_that_may_have_brought_a_replica_down_are_not_lost_with_a_connection() {
    System::new().block_on(async {
        let first = Plan::cascade(APP).stage("detect", "detect").below(0.5);
        let mut plan = first.then("third", "third").build().unwrap();
        plan.gears[0].wiring.stages[0].exit = Exit::FanOut {
            children: vec![Child {
                to: Edge::to("third"),
                multiplicity: 1.0,
            }],
        };
        let never = Short(false).start();
        let (ingress, detect) = started("suspect", plan, never.recipient()).await;
        let (reply, _answer) = oneshot::channel();
        ingress.send(request(reply)).await.unwrap();
        got(&detect, 1).await;
        ingress
            .send(LostReplicas(vec!["other".to_owned()]))
            .await
            .unwrap();
        got(&detect, 2).await;
        ingress.send(Reconnected).await.unwrap();
        got(&detect, 3).await;
    });
}

/// Returns a plan with a certified list: `large` alone, and `small` before `large`.
fn certified_plan() -> Plan {
    let small = Plan::cascade(APP).stage("small", "small");
    certified(small.below(0.5).then("large", "large").build().unwrap())
}

/// Starts replicas of the certified plan, whose small model finds every request too long, and an ingress.
fn certified_ingress(plans: &PlanVersions, bus: &Bus, counted: &Arc<AuditCounts>) -> Addr<Ingress> {
    let dispatcher = Dispatcher::new(bus, App::new(APP).unwrap(), Clock::start());
    let plan = certified_plan();
    for placed in &plan.placement {
        let replica = Short(placed.variant == "small").start();
        dispatcher.register_replica(&placed.variant, local(placed.clone(), replica.recipient()));
    }
    plans.adopt(1, plan).unwrap();
    ingress(plans.clone(), dispatcher, bus)
        .with_audit_counts(counted)
        .start()
}

/// Regression: the plan counts samples too long for a stage as deferred there, but live requests were not counted, so
/// the inputs seemed to drift.
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

/// Regression: such a probe counted as failed, and long prompts delayed the restoring of a cascade that defers them.
#[test]
fn a_probe_that_is_too_long_for_a_stage_goes_on_to_the_next() {
    System::new().block_on(async {
        let bus = Bus::connect(BusConfig::new("long-probe")).await.unwrap();
        let (plans, counted) = (PlanVersions::new(APP), Arc::<AuditCounts>::default());
        let ingress = certified_ingress(&plans, &bus, &counted);
        let alone = plans.newest().unwrap().plan.gear_of_certified(0).unwrap();
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
            delivery.send_part(vec![text], from, from + 1, false);
        }
        delivery.fail(Fault::new(Code::TooLong, "longer than the context"));
    }
}

/// Sends a streamed request over the bus. Returns its replies.
async fn streamed(bus: &Bus, ingress: &Addr<Ingress>) -> async_nats::Subscriber {
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
    replies
}

/// A replica that sends a part at once, and on [`Continue`] another part and the answer.
#[derive(Default)]
struct Pauses(Option<Delivery>);

/// Lets [`Pauses`] go on.
#[derive(Message)]
#[rtype(result = "()")]
struct Continue;

fn word() -> Vec<Tensor> {
    vec![Tensor::from_texts("text", &["a"]).unwrap()]
}

impl Actor for Pauses {
    type Context = Context<Self>;
}

impl Handler<Delivery> for Pauses {
    type Result = ();

    fn handle(&mut self, delivery: Delivery, _: &mut Context<Self>) {
        delivery.send_part(word(), 0, 1, false);
        self.0 = Some(delivery);
    }
}

impl Handler<Continue> for Pauses {
    type Result = ();

    fn handle(&mut self, _: Continue, _: &mut Context<Self>) {
        let mut delivery = self.0.take().unwrap();
        delivery.send_part(word(), 1, 2, false);
        delivery.record_hop(delivery.arrived, 1, 1, None);
        delivery.answer(word(), None);
    }
}

/// Regression: parts went on after a connection that may have lost one, and the client showed a text with a hole.
#[test]
fn parts_end_where_the_connection_broke() {
    System::new().block_on(async {
        let bus = Bus::connect(BusConfig::new("parts-lost")).await.unwrap();
        for breaks in [false, true] {
            let replica = Pauses::default().start();
            let ingress = ingress_at(&bus, replica.clone().recipient());
            let replies = streamed(&bus, &ingress).await;
            let mut replies = replies.map(|reply| InferReply::decode(&reply.payload).unwrap().part);
            assert_eq!(replies.next().await, Some(Some(0)));
            if breaks {
                ingress.send(Reconnected).await.unwrap();
            }
            replica.send(Continue).await.unwrap();
            if !breaks {
                assert_eq!(replies.next().await, Some(Some(1)));
            }
            assert_eq!(replies.next().await, Some(None), "breaks: {breaks}");
        }
    });
}

/// Regression: the control queue overtook the parts, and the client ended its stream without them.
#[test]
fn a_fault_comes_after_the_parts_of_its_stream() {
    System::new().block_on(async {
        let bus = Bus::connect(BusConfig::new("broken-off")).await.unwrap();
        let ingress = ingress_at(&bus, BreaksOff.start().recipient());
        let replies = streamed(&bus, &ingress).await;
        let replies: Vec<_> = replies
            .take(4)
            .map(|reply| headers::fault(reply.headers.as_ref()).is_some())
            .collect()
            .await;
        assert_eq!(replies, [false, false, false, true]);
    });
}

/// A replica that is unavailable for the first attempt, and fails the second.
#[derive(Default)]
struct FailsTwice(usize);

impl Actor for FailsTwice {
    type Context = Context<Self>;
}

impl Handler<Delivery> for FailsTwice {
    type Result = ();

    fn handle(&mut self, delivery: Delivery, _: &mut Context<Self>) {
        self.0 += 1;
        delivery.fail(match self.0 {
            1 => Fault::new(Code::Unavailable, "on its way out"),
            _ => Fault::new(Code::ModelFailed, "no such token"),
        });
    }
}

/// Regression: the replica of the first attempt generated until the deadline, although no reply was needed.
#[test]
fn a_request_that_ends_with_an_error_is_cancelled_where_earlier_attempts_may_run() {
    System::new().block_on(async {
        let bus = Bus::connect(BusConfig::new("fails-twice")).await.unwrap();
        let replica = FailsTwice::default().start();
        let cancelled = App::new(APP).unwrap().stage_cancel();
        let mut cancelled = bus.client().subscribe(cancelled).await.unwrap();
        let ingress = ingress_at(&bus, replica.recipient());
        let (reply, answer) = oneshot::channel();
        ingress.send(request(reply)).await.unwrap();
        assert_eq!(answer.await.unwrap().unwrap_err().code, Code::ModelFailed);
        let message = cancelled.next().await.unwrap();
        let cancelled = crate::wire::StageCancel::decode(&message.payload).unwrap();
        assert_eq!((cancelled.ingress.as_str(), cancelled.ids.len()), ("i", 1));
    });
}

/// A replica that answers its first request when the second comes, and never the second.
#[derive(Default)]
struct AnswersLate(Vec<Delivery>);

impl Actor for AnswersLate {
    type Context = Context<Self>;
}

impl Handler<Delivery> for AnswersLate {
    type Result = ();

    fn handle(&mut self, delivery: Delivery, _: &mut Context<Self>) {
        self.0.push(delivery);
        if self.0.len() == 2 {
            let mut first = self.0.remove(0);
            first.record_hop(first.arrived, 1, 1, None);
            first.answer(
                vec![Tensor::from_f32("logits", &[2], &[0.5, 0.0]).unwrap()],
                Some(0.9),
            );
        }
    }
}

impl Handler<Count> for AnswersLate {
    type Result = usize;

    fn handle(&mut self, _: Count, _: &mut Context<Self>) -> usize {
        self.0.len()
    }
}

/// Regression: only an older attempt than the one that answered was cancelled; the newer one ran to its end.
#[test]
fn a_newer_attempt_is_cancelled_when_an_older_one_answers() {
    System::new().block_on(async {
        let bus = Bus::connect(BusConfig::new("answers-late")).await.unwrap();
        // The second stage might send the request on, so that nobody knows where it is when the connection breaks.
        let first = Plan::cascade(APP).stage("first", "first").below(0.95);
        let second = first.then("second", "second").below(0.5);
        let plan = second.then("third", "third").build().unwrap();
        let second = AnswersLate::default().start();
        let cancelled = App::new(APP).unwrap().stage_cancel();
        let mut cancelled = bus.client().subscribe(cancelled).await.unwrap();
        let first = Short(false).start();
        let ingress = started_at(&bus, plan, &first.recipient(), &second.clone().recipient());
        let (reply, answer) = oneshot::channel();
        ingress.send(request(reply)).await.unwrap();
        let sent_on = async {
            while second.send(Count).await.unwrap() < 1 {
                tokio::task::yield_now().await;
            }
        };
        timeout(Duration::from_secs(10), sent_on).await.unwrap();
        ingress.send(Reconnected).await.unwrap();
        answer.await.unwrap().unwrap();
        let message = cancelled.next().await.unwrap();
        let cancelled = crate::wire::StageCancel::decode(&message.payload).unwrap();
        assert_eq!(cancelled.ids.len(), 1);
    });
}
