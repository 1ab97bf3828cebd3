//! Tests of one shifter with the counts of another ingress.

use std::num::NonZeroU32;

use kaskade_policy::plan::{Batching, Expected};

use super::*;
use crate::actor::System;
use crate::bus::BusConfig;
use crate::clock::Clock;
use crate::plan::single;
use crate::subjects::App;

const APP: &str = "shifter";

const TICKS: u64 = 30;

/// Returns a plan of two gears with an accuracy objective, the second for a load above 100 requests/s.
fn plan() -> Plan {
    let mut plan = single(APP, "model", "worker", NonZeroU32::MIN, Batching::default());
    let mut fast = plan.gears[0].clone();
    "fast".clone_into(&mut fast.name);
    plan.gears[0].load.to_qps = Some(100.0);
    fast.load.from_qps = 100.0;
    plan.gears.push(fast);
    for (gear, time_share) in plan.gears.iter_mut().zip([0.0, 1.0]) {
        gear.expected = Some(Expected {
            time_share,
            accuracy: 0.9,
            p95_us: 1_000,
            utilisation: 0.5,
        });
    }
    plan.slo = Some(Slo::Accuracy { at_least: 0.9 });
    plan
}

async fn shifter(ingress: &str) -> (Shifter, Bus) {
    let bus = Bus::connect(BusConfig::new("shifter")).await.unwrap();
    let dispatcher = Dispatcher::new(&bus, App::new(APP).unwrap(), Clock::start());
    let plans = PlanVersions::new(APP);
    plans.adopt(1, plan()).unwrap();
    let load_drift = LoadDriftConfig {
        distance: 0.3,
        memory_ticks: TICKS,
    };
    let (metrics, audit_counts) = (Arc::<Metrics>::default(), Arc::<AuditCounts>::default());
    let shifter = Shifter::new(
        ingress,
        ShiftConfig::default(),
        load_drift,
        plans,
        dispatcher,
        metrics,
        audit_counts,
    );
    (shifter, bus)
}

/// Regression: a new leader did not know the load before it led; it found no drift for ten minutes and lost the load
/// scale.
#[test]
fn a_shifter_that_follows_measures_the_load_as_the_leader_does() {
    System::new().block_on(async {
        let (mut follower, _bus) = shifter("b").await;
        for total in 1..TICKS {
            let now = follower.dispatcher.clock().now();
            follower.load.record("a", total, now);
            follower.tick();
            assert!(!follower.load.leads("b", now), "a smaller id is alive");
        }
        let detector = follower.load_drift.as_ref().unwrap();
        let measured: f64 = detector.shares().iter().sum();
        assert!((measured - 1.0).abs() < 1e-9, "{:?}", detector.shares());
        assert!(
            detector.scale() > 0.0 && (detector.scale() - 1.0).abs() > 1e-9,
            "{}",
            detector.scale()
        );
    });
}
