//! Gears over a real bus: shifts under load, drift, shared devices.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::common::{
    BUDGET, Scripted, ask, cascade,
    gears::{TIMEOUT, block_on, events, geared, next, quick_shifts},
    service,
};
use async_nats::Subscriber;
use futures::future::join_all;
use kaskade_actors::bus::BusConfig;
use kaskade_actors::stage::worker::WorkerConfig;
use kaskade_actors::wire::{GearShift, LoadDriftNotice, Message, ShiftReport};
use kaskade_actors::{App, Client, Service};
use kaskade_models::{Inputs, Model, ModelError, Outputs, Signature};
use kaskade_policy::plan::Sharing;

/// Sends bursts of requests until the app has shifted.
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

/// Sends `count` requests at once.
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
        .ingress(quick_shifts())
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
        assert_eq!(node.plans().current().unwrap().1, 0);
        let reply = client.infer(ask(2.0, 0.3), BUDGET).await.unwrap();
        assert_eq!(reply.stage, "large", "unsure answers escalate in the first gear");
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
                // Each shift happens with requests in flight.
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

/// Counts the batches that run at once.
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
fn batches_never_overlap_on_an_exclusive_device_and_all_requests_are_answered() {
    for (sharing, side_by_side, app) in [
        (Sharing::Exclusive, false, "exclusive"),
        (Sharing::Concurrent, true, "concurrent"),
    ] {
        let (at_work, most) = (Arc::default(), Arc::<AtomicU64>::default());
        let mut plan = cascade(app);
        plan.sharing = sharing;
        let mut service = Service::new(app).plan(plan);
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
            let client = Client::new(node.bus(), App::new(app).unwrap());
            // Margins that exit in every stage, and one that skips.
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

/// Two ingresses and a worker as separate nodes on one broker.
#[test]
fn the_load_of_two_ingresses_is_summed_and_one_of_them_shifts_all_nodes() {
    let server = kaskade_testkit::NatsServer::start(kaskade_testkit::NatsOptions {
        jetstream: true,
        ..kaskade_testkit::NatsOptions::default()
    });
    let bus = || BusConfig {
        url: Some(server.url().clone()),
        ..BusConfig::new("pair")
    };
    let worker = WorkerConfig {
        name: kaskade_actors::node::service::SOLE_WORKER.to_owned(),
        queue_capacity: 1024,
        ..WorkerConfig::default()
    };
    let worker = service("pair")
        .plan(geared("pair"))
        .bus(bus())
        .ingress(None)
        .worker(worker)
        .start()
        .unwrap();
    let ingress = || {
        kaskade_actors::Service::new("pair")
            .plan(geared("pair"))
            .bus(bus())
            .ingress(quick_shifts())
            .worker(WorkerConfig {
                name: "nothing".to_owned(),
                queue_capacity: 1,
                ..WorkerConfig::default()
            })
            .start()
            .unwrap()
    };
    let ingresses = [ingress(), ingress()];
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
    kaskade_testkit::wait_until("the worker followed both shifts", TIMEOUT, || {
        worker.metrics().read().shifts >= 2
    });
    for node in ingresses {
        node.stop();
    }
    worker.stop();
}

#[test]
fn a_load_unlike_the_planned_one_is_reported_as_drift() {
    let mut plan = geared("drift");
    for (gear, time_share) in plan.gears.iter_mut().zip([0.1, 0.9]) {
        gear.expected.as_mut().unwrap().time_share = time_share;
    }
    let node = service("drift")
        .plan(plan)
        .ingress(quick_shifts())
        .start()
        .unwrap();
    block_on(async {
        let mut drifts = events(&node, "drift", "load_drift").await;
        let drift: LoadDriftNotice = next(&mut drifts).await;
        assert!(drift.distance > 0.8 && drift.measured.len() == 2, "{drift:?}");
    });
    node.stop();
}
