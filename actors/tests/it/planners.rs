//! Planners that make new plans, crash, hang or lose a race.

use std::{sync::Arc, time::Duration};

use crate::common::{
    BUDGET, ask,
    gears::{TIMEOUT, block_on, events, geared, next},
    service,
};
use async_nats::Subscriber;
use futures::{FutureExt, StreamExt};
use kaskade_actors::bus::BusConfig;
use kaskade_actors::control::planner::{PlannerConfig, Planning};
use kaskade_actors::control::replan_trigger::ReplanTrigger;
use kaskade_actors::wire::{LoadDriftNotice, Message, PlanReport, PlanRequest};
use kaskade_actors::{App, Client, Node};
use kaskade_testkit::eventually;
use tokio::time::timeout;

fn planner(planning: Planning, limit: Duration) -> PlannerConfig {
    PlannerConfig {
        planning,
        limit,
        replan_on_load_drift: false,
        trigger: ReplanTrigger::OnRequest,
    }
}

/// Requests a new plan over the bus.
async fn replan(node: &Node, app: &str) -> PlanReport {
    let request = PlanRequest {
        reason: "a test".into(),
        ..PlanRequest::default()
    };
    let subject = App::new(app).unwrap().replan();
    let asked = node.bus().client().request(subject, request.encode().unwrap());
    let reply = timeout(TIMEOUT, asked).await.unwrap().unwrap();
    PlanReport::decode(&reply.payload).unwrap()
}

/// A planning function, its time limit, and a check of its report.
type Case = (Planning, Duration, fn(&PlanReport) -> bool);

#[test]
fn a_planner_that_fails_keeps_the_running_plan() {
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
        (Arc::new(|_, _| panic!("scripted to panic")), TIMEOUT, |report| {
            *report == PlanReport::Crashed
        }),
        (hang, brief, |report| {
            *report == PlanReport::TimedOut { limit_ms: 50 }
        }),
        (
            Arc::new(|_, _| Err("no cascade holds the SLO".to_owned())),
            TIMEOUT,
            |report| matches!(report, PlanReport::Refused { reason } if reason.contains("holds the SLO")),
        ),
        (
            unsound,
            TIMEOUT,
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
        assert_eq!(node.plans().current().unwrap().0.epoch, 1);
        node.stop();
    }
}

/// The planner's user may publish gears, and the requester may not.
#[test]
fn a_planner_reports_to_no_reserved_subject() {
    let name = "planner-reply";
    let planning: Planning = Arc::new(|_, _| Err("none".to_owned()));
    let service = service(name).planner(planner(planning, TIMEOUT));
    let node = service.plan(geared(name)).start().unwrap();
    block_on(async {
        let app = App::new(name).unwrap();
        let nats = node.bus().client();
        let mut reported = nats.subscribe("reports").await.unwrap();
        let mut reserved = nats.subscribe(app.cancel()).await.unwrap();
        let mut told = events(&node, name, "planner").await;
        for reply in [app.cancel().to_string(), "reports".to_owned()] {
            let request = PlanRequest::default().encode().unwrap();
            nats.publish_with_reply(app.replan(), reply, request)
                .await
                .unwrap();
            next::<PlanReport>(&mut told).await;
        }
        timeout(TIMEOUT, reported.next()).await.unwrap().unwrap();
        node.bus().barrier().await.unwrap();
        assert!(
            reserved.next().now_or_never().is_none(),
            "a report in another's name"
        );
    });
    node.stop();
}

#[test]
fn a_planner_that_hangs_is_busy_until_its_run_ends() {
    let (release, released) = std::sync::mpsc::channel::<()>();
    let released = Arc::new(std::sync::Mutex::new(released));
    let started = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let runs = Arc::clone(&started);
    let planning: Planning = Arc::new(move |_, _| {
        runs.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        let _ = released.lock().unwrap().recv();
        Err("it was released".to_owned())
    });
    let service = service("hangs").planner(planner(planning, Duration::from_millis(50)));
    let node = service.plan(geared("hangs")).start().unwrap();
    block_on(async {
        assert_eq!(
            replan(&node, "hangs").await,
            PlanReport::TimedOut { limit_ms: 50 }
        );
        for _ in 0..3 {
            assert_eq!(replan(&node, "hangs").await, PlanReport::Busy);
        }
        assert_eq!(started.load(std::sync::atomic::Ordering::SeqCst), 1);
        drop(release);
        eventually("the planner is free again", TIMEOUT, async || {
            matches!(replan(&node, "hangs").await, PlanReport::Refused { .. })
        })
        .await;
    });
    node.stop();
}

#[test]
fn one_of_two_racing_planners_is_adopted_and_the_other_is_stale() {
    // Both planners start from the same epoch before either is done.
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
            replan_on_load_drift: true,
            ..planner(planning(name), TIMEOUT)
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
        // Every planner receives a drift notice; only one of the queue group receives a request.
        let drift = LoadDriftNotice {
            epoch: 1,
            distance: 1.0,
            measured: vec![0.0, 1.0],
            peak_qps: 500.0,
        };
        let subject = App::new("race").unwrap().event("load_drift").unwrap();
        nodes[0]
            .bus()
            .client()
            .publish(subject, drift.encode().unwrap())
            .await
            .unwrap();
        let mut reports = [next::<PlanReport>(&mut told).await, next(&mut told).await];
        reports.sort_by_key(|report| !matches!(report, PlanReport::Adopted { .. }));
        let PlanReport::Adopted { epoch } = reports[0] else {
            panic!("no planner was adopted: {reports:?}");
        };
        assert!(matches!(reports[1], PlanReport::Stale { .. }), "{reports:?}");
        for node in &nodes {
            let mut changes = node.plans().changes();
            while node.plans().current().unwrap().0.epoch < epoch {
                assert!(timeout(TIMEOUT, changes.next()).await.unwrap());
            }
            assert_ne!(node.plans().current().unwrap().0.plan.made_by, "test");
        }
    });
    for node in nodes {
        node.stop();
    }
}

/// A planning function that adds a replica of the large stage whenever the load is above ten requests/s.
fn scaling() -> Planning {
    Arc::new(|request, running| {
        let mut plan = running.cloned().ok_or("nothing runs")?;
        plan.placement.retain(|replica| replica.id != "large-1");
        if request.peak_qps.is_some_and(|qps| qps > 10.0) {
            let mut more = plan.placement.last().cloned().ok_or("nothing is placed")?;
            "large-1".clone_into(&mut more.id);
            plan.placement.push(more);
        }
        Ok(plan)
    })
}

#[test]
fn replicas_follow_the_load_period_by_period() {
    let config = PlannerConfig {
        trigger: ReplanTrigger::Periodic(Duration::from_millis(200)),
        ..planner(scaling(), TIMEOUT)
    };
    let node = service("scale").planner(config).start().unwrap();
    let replicas = |node: &Node| node.plans().newest().unwrap().plan.placement.len();
    let told = block_on(async {
        let mut told = events(&node, "scale", "planner").await;
        let client = Client::new(node.bus(), App::new("scale").unwrap());
        let load = async {
            loop {
                client.infer(ask(1.0, 0.3), BUDGET).await.unwrap();
            }
        };
        let adopted = async |told: &mut Subscriber| {
            while !matches!(next::<PlanReport>(told).await, PlanReport::Adopted { .. }) {}
        };
        tokio::select! {
            () = load => unreachable!(),
            () = adopted(&mut told) => {}
        }
        assert_eq!(replicas(&node), 4);
        // The load ends: the next period but one has none.
        adopted(&mut told).await;
        assert_eq!(replicas(&node), 3);
        let quiet: PlanReport = next(&mut told).await;
        client.infer(ask(2.0, 0.3), BUDGET).await.unwrap();
        quiet
    });
    assert_eq!(
        told,
        PlanReport::Unchanged { epoch: 3 },
        "an unchanged plan is not written again"
    );
    assert!(
        node.metrics().read().faults.is_empty(),
        "scaling loses no request"
    );
    node.stop();
}
