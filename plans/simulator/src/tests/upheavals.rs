//! Invariants for pipelines while plans change and replicas fail.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::pipelines::TaskTree;
use super::replans::{SECOND, Script, loading, run, steady};
use super::*;
use kaskade_policy::plan::Dropping;

/// A tree whose replicas run drawn variants on four devices, with drawn shares and mechanism.
#[derive(Debug, Clone)]
struct Drawn {
    /// By place: variant number 1 to 3 of the place's task.
    variants: [u32; 5],
    share: f64,
    dropping: Dropping,
}

impl Drawn {
    fn plan(&self, factors: (f64, f64)) -> Plan {
        let places = ["d", "d", "c", "c", "f"];
        let ids: Vec<String> = (0..5)
            .map(|place| format!("{}{}-{place}", places[place], self.variants[place]))
            .collect();
        let devices = ["a", "b", "c", "d", "a"];
        let on_devices: Vec<String> = ids
            .iter()
            .zip(devices)
            .map(|(id, device)| format!("{id}@{device}"))
            .collect();
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        let rest = 1.0 - self.share;
        let mut plan = TaskTree {
            replicas: &on_devices.iter().map(String::as_str).collect::<Vec<&str>>(),
            detect: &[(ids[0], self.share), (ids[1], rest)],
            cars: &[(ids[2], self.share), (ids[3], rest)],
            faces: &[(ids[4], 1.0)],
            backup: &[ids[3], ids[4]],
            factors,
            dropping: self.dropping,
        }
        .plan();
        // Ids are the places, as workers are: another plan gives them other variants.
        rename(&mut plan);
        plan
    }
}

fn rename(plan: &mut Plan) {
    let place = |id: &str| format!("w{}", id.split_once('-').unwrap().1);
    let edge = |edge: &mut Edge| {
        edge.shares = edge
            .shares
            .iter()
            .map(|(id, share)| (place(id), *share))
            .collect();
        edge.backup = edge.backup.iter().map(|id| place(id)).collect();
    };
    for replica in &mut plan.placement {
        replica.id = place(&replica.id);
    }
    let wiring = &mut plan.gears[0].wiring;
    edge(&mut wiring.entry);
    for stage in &mut wiring.stages {
        if let Exit::FanOut { children } = &mut stage.exit {
            for child in children.iter_mut() {
                edge(&mut child.to);
            }
        }
    }
}

fn drawn() -> impl Strategy<Value = Drawn> {
    let dropping = prop::sample::select(vec![
        Dropping::None,
        Dropping::LastTask,
        Dropping::PerTask,
        Dropping::Rerouting,
    ]);
    (prop::array::uniform5(1..4_u32), 0.0..1.0_f64, dropping).prop_map(|(variants, share, dropping)| Drawn {
        variants,
        share,
        dropping,
    })
}

fn mishaps() -> impl Strategy<Value = Vec<ReplicaEvent>> {
    let replica = prop::sample::select(vec!["w0", "w1", "w2", "w3", "w4"]);
    let change = prop::sample::select(vec![Change::Starts, Change::Stops, Change::Fails]);
    let event = (0..6 * SECOND, replica, change).prop_map(|(at_us, replica, change)| ReplicaEvent {
        at_us,
        replica: replica.into(),
        change,
    });
    prop::collection::vec(event, 0..8)
}

fn configs() -> impl Strategy<Value = SimConfig> {
    let budget = prop::option::of(5_000..100_000_u64);
    let capacity = prop::sample::select(vec![2, 20, usize::MAX]);
    let slo = prop::option::of(5_000..50_000_u64);
    (
        any::<u64>(),
        budget,
        slo,
        capacity,
        mishaps(),
        0..200_u64,
        0..3 * SECOND,
    )
        .prop_map(
            |(seed, budget_us, slo_us, queue_capacity, timeline, hop_us, default_us)| SimConfig {
                seed,
                budget_us,
                slo_us,
                queue_capacity,
                timeline,
                hop_us,
                entry_hop_us: hop_us,
                detection_us: 50_000,
                control_interval_us: SECOND / 2,
                loading: Loading {
                    default_us,
                    by_variant: BTreeMap::new(),
                },
                ..SimConfig::default()
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn every_request_ends_once_whatever_is_planned_and_whatever_fails(
        first in drawn(),
        plans in prop::collection::btree_map(1..12_usize, drawn(), 0..6),
        factors in (0.0..4.0_f64, 0.1..2.0_f64),
        config in configs(),
        gaps in prop::collection::vec(0..20_000_u64, 1..600),
    ) {
        let arrivals: Vec<u64> = gaps.iter().scan(0, |at, gap| { *at += gap; Some(*at) }).collect();
        let script = || Script::of(plans.iter().map(|(call, drawn)| (*call, drawn.plan(factors))));
        let (report, seen) = run(&first.plan(factors), &config, arrivals.iter().copied(), &mut script());
        let count = arrivals.len() as u64;
        prop_assert_eq!((report.requests, report.lost, report.plans_refused), (count, 0, 0));
        let losses = [report.expired, report.dropped, report.refused, report.failed];
        prop_assert_eq!(report.answered + losses.iter().sum::<u64>(), count);
        prop_assert_eq!(seen.answered.len() as u64, report.answered);
        for (loss, counted) in [Loss::Expired, Loss::Dropped, Loss::Refused, Loss::Failed].into_iter().zip(losses) {
            prop_assert_eq!(seen.lost.iter().filter(|lost| lost.loss == loss).count() as u64, counted);
        }
        prop_assert_eq!(report.slo_violations(), report.late + losses.iter().sum::<u64>());
        // Nothing is kept of what has ended.
        prop_assert_eq!(report.branches_left, 0);
        prop_assert!(report.max_places <= arrivals.len());
        prop_assert!(report.max_plans <= plans.len() + 1);
        prop_assert_eq!(seen.sinks, report.branches.answered);
        prop_assert_eq!(report.paths.iter().map(|path| path.answered).sum::<u64>(), report.branches.answered);
        if let Some(budget) = config.budget_us {
            prop_assert!(seen.answered.iter().all(|answered| answered.latency_us < budget));
        }
        for device in &report.devices {
            prop_assert!(device.busy_us <= device.up_us, "{device:?}");
        }
        let again = run(&first.plan(factors), &config, arrivals, &mut script());
        prop_assert_eq!(again.0, report);
    }
}

#[test]
fn without_mishaps_and_limits_every_plan_change_answers_everything() {
    let drawn = |variants, share| Drawn {
        variants,
        share,
        dropping: Dropping::None,
    };
    let plans = (1..20).map(|call| {
        let turn = |place: u32| 1 + (call as u32 + place) % 3;
        let plan = drawn(
            [turn(0), turn(1), turn(2), turn(3), turn(4)],
            f64::from(call as u32 % 5) / 4.0,
        );
        (call, plan.plan((1.3, 0.7)))
    });
    let mut script = Script::of(plans);
    let first = drawn([1, 2, 3, 1, 2], 0.5).plan((1.3, 0.7));
    let (report, seen) = run(&first, &loading(SECOND / 4), steady(25), &mut script);
    assert_eq!((report.answered, report.plans), (2_500, 19));
    assert!(seen.lost.is_empty());
    assert!(report.max_plans <= 3, "{}", report.max_plans);
    // Five places with three variants each are all that is ever known.
    assert!(report.variants.len() <= 9 && report.devices.len() == 4);
}
