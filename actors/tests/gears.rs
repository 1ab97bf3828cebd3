//! Gears over the embedded broker: shifts under load, drifts, and planners that crash, hang or lose a race.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod common;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_nats::Subscriber;
use common::{BUDGET, Scripted, ask, cascade, label, service};
use futures::{StreamExt, future::join_all};
use kaskade_actors::{
    App, Client, Node, Service,
    bus::BusConfig,
    ingress::IngressConfig,
    planner::{PlannerConfig, Planning},
    wire::{DriftNotice, GearShift, Message, PlanReport, PlanRequest, ShiftReport},
    worker::WorkerConfig,
};
use kaskade_models::{Inputs, Model, ModelError, Outputs, Signature};
use kaskade_plans::{
    drift::DriftConfig,
    plan::{Edge, Expected, Plan, Sharing},
    shifting::ShiftConfig,
};
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(20);

/// The cascade below 200 requests/s, its first stage alone above.
fn geared(app: &str) -> Plan {
    let mut plan = cascade(app);
    let mut fast = plan.gears[0].clone();
    plan.gears[0].load.to_qps = Some(200.0);
    fast.name = "fast".into();
    fast.load.from_qps = 200.0;
    fast.wiring.stages.truncate(1);
    fast.wiring.stages[0].exit = kaskade_plans::plan::Exit::Reply;
    fast.wiring.stages[0].batching.min_queue = 2;
    plan.gears.push(fast);
    for (gear, time_share) in plan.gears.iter_mut().zip([0.9, 0.1]) {
        gear.expected = Some(Expected {
            time_share,
            accuracy: 0.9,
            p95_us: 10_000,
            utilisation: 0.5,
        });
    }
    plan
}

/// Counts in ticks of 20 ms and holds for 100 ms, so that a test is over soon.
fn brisk() -> IngressConfig {
    IngressConfig {
        shift: ShiftConfig {
            tick_us: 20_000,
            hold_us: 100_000,
            ..ShiftConfig::default()
        },
        drift: DriftConfig {
            distance: 0.3,
            memory_ticks: 20,
        },
        ..IngressConfig::default()
    }
}

fn block_on<F: Future>(test: F) -> F::Output {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
        .block_on(async { timeout(4 * PATIENCE, test).await.unwrap() })
}

async fn next<M: Message>(events: &mut Subscriber) -> M {
    let message = timeout(PATIENCE, events.next()).await.unwrap().unwrap();
    M::decode(&message.payload).unwrap()
}

async fn events(node: &Node, app: &str, name: &str) -> Subscriber {
    let subject = App::new(app).unwrap().event(name).unwrap();
    let events = node.bus().subscribe(subject, None).await.unwrap();
    node.bus().barrier().await.unwrap();
    events
}

/// Asks, many at once, until the app has shifted.
async fn load_until_shifted(client: &Client, shifts: &mut Subscriber) -> ShiftReport {
    let load = async {
        loop {
            burst(client, 100).await;
        }
    };
    tokio::select! {
        () = load => unreachable!(),
        shift = next(shifts) => shift,
    }
}

/// Asks `count` requests at once.
async fn burst(client: &Client, count: usize) {
    let asked = (0..count).map(|_| client.infer(ask(1.0, 4.0), BUDGET));
    for reply in join_all(asked).await {
        reply.unwrap();
    }
}

#[test]
fn a_jump_of_load_shifts_up_and_its_end_shifts_down() {
    let node = service("shift")
        .plan(geared("shift"))
        .ingress(brisk())
        .start()
        .unwrap();
    block_on(async {
        let mut shifts = events(&node, "shift", "gear").await;
        let client = Client::new(node.bus(), App::new("shift").unwrap());
        let up = load_until_shifted(&client, &mut shifts).await;
        assert_eq!((up.from, up.to, up.epoch), (0, 1, 1));
        assert!(up.qps >= 200.0, "{up:?}");
        let down: ShiftReport = next(&mut shifts).await;
        assert_eq!((down.from, down.to), (1, 0));
        assert_eq!(node.book().current().unwrap().1, 0);
        let reply = client.infer(ask(2.0, 0.3), BUDGET).await.unwrap();
        assert_eq!(reply.stage, "large", "the unsure go on again in the first gear");
    });
    assert!(node.metrics().read().shifts >= 2);
    node.stop();
}

#[test]
fn requests_survive_a_hundred_shifts_and_each_is_answered_once() {
    let node = service("often").plan(geared("often")).start().unwrap();
    let answered = Arc::new(AtomicU64::new(0));
    block_on(async {
        let app = App::new("often").unwrap();
        let client = Client::new(node.bus(), app.clone());
        let asking = async {
            for _ in 0..100 {
                burst(&client, 10).await;
                answered.fetch_add(10, Ordering::Relaxed);
            }
        };
        let shifting = async {
            for turn in 0_u32..120 {
                let shift = GearShift {
                    epoch: 1,
                    gear: (turn + 1) % 2,
                };
                node.bus()
                    .client()
                    .publish(app.gear(), shift.encode().unwrap())
                    .await
                    .unwrap();
                // Each shift meets requests in flight.
                client.infer(ask(2.0, 0.3), BUDGET).await.unwrap();
            }
        };
        futures::future::join(asking, shifting).await;
    });
    let counted = node.metrics().read();
    assert!(counted.shifts >= 100, "{}", counted.shifts);
    assert_eq!(counted.answered, answered.load(Ordering::Relaxed) + 120);
    assert_eq!((counted.accepted, counted.stale), (counted.answered, 0));
    assert!(counted.faults.is_empty(), "{:?}", counted.faults);
    node.stop();
}

/// Runs batches that note when they began and ended.
struct Watched {
    at_work: Arc<AtomicU64>,
    most: Arc<AtomicU64>,
    inner: Scripted,
}

impl Model for Watched {
    fn signature(&self) -> Signature {
        self.inner.signature()
    }

    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        let at_work = self.at_work.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(at_work, Ordering::SeqCst);
        let outputs = self.inner.run(batch);
        self.at_work.fetch_sub(1, Ordering::SeqCst);
        outputs
    }
}

#[test]
fn on_an_exclusive_device_batches_never_overlap_and_nobody_starves() {
    for (sharing, side_by_side) in [(Sharing::Exclusive, false), (Sharing::Concurrent, true)] {
        let (at_work, most) = (Arc::default(), Arc::<AtomicU64>::default());
        let mut plan = cascade("turns");
        plan.sharing = sharing;
        let mut service = Service::new("turns").plan(plan);
        for (name, strength) in [("small", 1.0), ("medium", 2.0), ("large", 4.0)] {
            let (at_work, most) = (Arc::clone(&at_work), Arc::clone(&most));
            service = service.model(name, move || {
                let inner = Scripted {
                    strength,
                    run: Duration::from_millis(2),
                };
                Ok::<_, String>(Watched {
                    at_work: Arc::clone(&at_work),
                    most: Arc::clone(&most),
                    inner,
                })
            });
        }
        let node = service.start().unwrap();
        block_on(async {
            let client = Client::new(node.bus(), App::new("turns").unwrap());
            // Margins that end in every stage, and skip.
            let margins = [4.0, 1.8, 0.3, 1.2];
            let asked = (0..200).map(|turn| client.infer(ask(1.0, margins[turn % margins.len()]), BUDGET));
            for reply in join_all(asked).await {
                reply.unwrap();
            }
        });
        assert_eq!(most.load(Ordering::SeqCst) > 1, side_by_side, "{sharing:?}");
        node.stop();
    }
}

#[test]
fn an_ensemble_is_put_to_the_vote() {
    // Members that answer with a class of their own, whatever is asked.
    let mut plan = cascade("vote");
    let wiring = &mut plan.gears[0].wiring;
    wiring.ensemble = vec![Edge::to("medium"), Edge::to("large")];
    for stage in &mut wiring.stages {
        stage.exit = kaskade_plans::plan::Exit::Reply;
    }
    let member = |class: f32, margin: f32, fails: bool| Stubborn {
        class,
        margin,
        fails,
        inner: Scripted {
            strength: 1.0,
            run: Duration::ZERO,
        },
    };
    let node = Service::new("vote")
        .plan(plan)
        .model("small", move || Ok::<_, String>(member(1.0, 0.5, true)))
        .model("medium", move || Ok::<_, String>(member(2.0, 9.0, false)))
        .model("large", move || Ok::<_, String>(member(1.0, 0.4, false)))
        .start()
        .unwrap();
    block_on(async {
        let client = Client::new(node.bus(), App::new("vote").unwrap());
        let reply = client.infer(ask(0.0, 4.0), BUDGET).await.unwrap();
        assert_eq!(label(&reply.outputs), 1, "two of three say so");
        assert_eq!(
            (reply.stage.as_str(), reply.degraded),
            ("small", false),
            "the surer of the two"
        );
        let mut hops: Vec<_> = reply.hops.iter().map(|hop| hop.stage.as_str()).collect();
        hops.sort_unstable();
        assert_eq!(hops, ["large", "medium", "small"]);
        // One member fails for good: the others answer for it.
        let reply = client.infer(ask(FAIL_THE_FIRST, 0.0), BUDGET).await.unwrap();
        assert!(reply.degraded);
        assert_eq!((reply.stage.as_str(), label(&reply.outputs)), ("medium", 2));
    });
    let counted = node.metrics().read();
    assert_eq!((counted.accepted, counted.answered), (2, 2));
    node.stop();
}

/// The label of a request that makes the first member fail.
const FAIL_THE_FIRST: f32 = -9.0;

/// Answers with its own class.
struct Stubborn {
    class: f32,
    margin: f32,
    /// Whether it fails when the label says so.
    fails: bool,
    inner: Scripted,
}

impl Model for Stubborn {
    fn signature(&self) -> Signature {
        self.inner.signature()
    }

    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        let asked: Vec<f32> = batch
            .iter()
            .map(|inputs| inputs[0].to_f32().unwrap()[0])
            .collect();
        let own: Vec<Inputs> = batch.iter().map(|_| ask(self.class, self.margin)).collect();
        let outputs = self.inner.run(&own);
        let spoiled = outputs.into_iter().zip(asked).map(|(output, asked)| {
            if asked == FAIL_THE_FIRST && self.fails {
                return Err(ModelError::Failed {
                    reason: "scripted to fail".into(),
                });
            }
            output
        });
        spoiled.collect()
    }
}

/// Two doors and a worker of their own process each, on one broker.
#[test]
fn two_ingresses_are_summed_and_one_of_them_shifts_everybody() {
    let server = kaskade_testkit::NatsServer::start(kaskade_testkit::NatsOptions {
        jetstream: true,
        ..kaskade_testkit::NatsOptions::default()
    });
    let bus = || BusConfig {
        url: Some(server.url().clone()),
        ..BusConfig::new("pair")
    };
    let worker = WorkerConfig {
        name: kaskade_actors::service::SOLE_WORKER.to_owned(),
        queue_capacity: 1024,
    };
    let worker = service("pair")
        .plan(geared("pair"))
        .bus(bus())
        .ingress(None)
        .worker(worker)
        .start()
        .unwrap();
    let door = || {
        kaskade_actors::Service::new("pair")
            .plan(geared("pair"))
            .bus(bus())
            .ingress(brisk())
            .worker(WorkerConfig {
                name: "nothing".to_owned(),
                queue_capacity: 1,
            })
            .start()
            .unwrap()
    };
    let doors = [door(), door()];
    block_on(async {
        let mut shifts = events(&worker, "pair", "gear").await;
        let client = Client::new(worker.bus(), App::new("pair").unwrap());
        let up = load_until_shifted(&client, &mut shifts).await;
        assert_eq!((up.from, up.to), (0, 1));
        let down: ShiftReport = next(&mut shifts).await;
        assert_eq!(
            (down.from, down.to),
            (1, 0),
            "two shifters would each have reported the shift up"
        );
    });
    kaskade_testkit::wait_until("the worker followed both shifts", PATIENCE, || {
        worker.metrics().read().shifts >= 2
    });
    for node in doors {
        node.stop();
    }
    worker.stop();
}

#[test]
fn a_load_unlike_the_planned_one_is_told() {
    let mut plan = geared("drift");
    for (gear, time_share) in plan.gears.iter_mut().zip([0.1, 0.9]) {
        gear.expected.as_mut().unwrap().time_share = time_share;
    }
    let node = service("drift").plan(plan).ingress(brisk()).start().unwrap();
    block_on(async {
        let mut drifts = events(&node, "drift", "drift").await;
        let drift: DriftNotice = next(&mut drifts).await;
        assert!(drift.distance > 0.8 && drift.measured.len() == 2, "{drift:?}");
    });
    node.stop();
}

fn planner(planning: Planning, limit: Duration) -> PlannerConfig {
    PlannerConfig {
        planning,
        limit,
        on_drift: false,
    }
}

/// Asks the app's planner over the bus.
async fn replan(node: &Node, app: &str) -> PlanReport {
    let request = PlanRequest {
        reason: "a test".into(),
        ..PlanRequest::default()
    };
    let subject = App::new(app).unwrap().replan();
    let asked = node.bus().client().request(subject, request.encode().unwrap());
    let reply = timeout(PATIENCE, asked).await.unwrap().unwrap();
    PlanReport::decode(&reply.payload).unwrap()
}

/// What plans, how long it may take, and what is to be reported.
type Case = (Planning, Duration, fn(&PlanReport) -> bool);

#[test]
fn a_planner_that_crashes_hangs_or_finds_nothing_leaves_the_running_plan() {
    let hang: Planning = Arc::new(|_, _| {
        loop {
            std::thread::park();
        }
    });
    let unsound: Planning = Arc::new(|_, running| {
        let mut plan = running.cloned().unwrap();
        plan.placement.clear();
        Ok(plan)
    });
    let brief = Duration::from_millis(50);
    let cases: [Case; 4] = [
        (Arc::new(|_, _| panic!("scripted to panic")), PATIENCE, |report| {
            *report == PlanReport::Crashed
        }),
        (hang, brief, |report| {
            *report == PlanReport::TimedOut { limit_ms: 50 }
        }),
        (
            Arc::new(|_, _| Err("no cascade holds the SLO".to_owned())),
            PATIENCE,
            |report| matches!(report, PlanReport::Refused { reason } if reason.contains("holds the SLO")),
        ),
        (
            unsound,
            PATIENCE,
            |report| matches!(report, PlanReport::Refused { reason } if reason.contains("placement")),
        ),
    ];
    for (planning, limit, as_expected) in cases {
        let service = service("bad").planner(planner(planning, limit));
        let node = service.plan(geared("bad")).start().unwrap();
        block_on(async {
            let mut told = events(&node, "bad", "planner").await;
            let report = replan(&node, "bad").await;
            assert!(as_expected(&report), "{report:?}");
            assert_eq!(next::<PlanReport>(&mut told).await, report);
            let client = Client::new(node.bus(), App::new("bad").unwrap());
            client.infer(ask(1.0, 4.0), BUDGET).await.unwrap();
        });
        assert_eq!(node.book().current().unwrap().0.epoch, 1);
        node.stop();
    }
}

#[test]
fn a_new_plan_is_adopted_and_of_two_planners_one_is_stale() {
    // Both planners have begun, on the same epoch, before either is done.
    let meeting = Arc::new(std::sync::Barrier::new(2));
    let planning = |name: &'static str| -> Planning {
        let meeting = Arc::clone(&meeting);
        Arc::new(move |_, running| {
            meeting.wait();
            let mut plan = running.cloned().unwrap();
            name.clone_into(&mut plan.made_by);
            Ok(plan)
        })
    };
    let server = kaskade_testkit::NatsServer::start(kaskade_testkit::NatsOptions {
        jetstream: true,
        ..kaskade_testkit::NatsOptions::default()
    });
    let start = |name| {
        let bus = BusConfig {
            url: Some(server.url().clone()),
            ..BusConfig::new("race")
        };
        let config = PlannerConfig {
            on_drift: true,
            ..planner(planning(name), PATIENCE)
        };
        service("race")
            .plan(geared("race"))
            .bus(bus)
            .planner(config)
            .start()
            .unwrap()
    };
    let nodes = [start("one"), start("two")];
    block_on(async {
        let mut told = events(&nodes[0], "race", "planner").await;
        // A drift is heard by every planner; a request only by one of the queue group.
        let drift = DriftNotice {
            epoch: 1,
            distance: 1.0,
            measured: vec![0.0, 1.0],
            peak_qps: 500.0,
        };
        let subject = App::new("race").unwrap().event("drift").unwrap();
        nodes[0]
            .bus()
            .client()
            .publish(subject, drift.encode().unwrap())
            .await
            .unwrap();
        let mut reports = [next::<PlanReport>(&mut told).await, next(&mut told).await];
        reports.sort_by_key(|report| !matches!(report, PlanReport::Adopted { .. }));
        let PlanReport::Adopted { epoch } = reports[0] else {
            panic!("nobody won: {reports:?}");
        };
        assert!(matches!(reports[1], PlanReport::Stale { .. }), "{reports:?}");
        for node in &nodes {
            let mut changes = node.book().changes();
            while node.book().current().unwrap().0.epoch < epoch {
                assert!(timeout(PATIENCE, changes.next()).await.unwrap());
            }
            assert_ne!(node.book().current().unwrap().0.plan.made_by, "test");
        }
    });
    for node in nodes {
        node.stop();
    }
}
