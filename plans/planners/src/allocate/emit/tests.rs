use super::super::{AllocateOptions, Allocator};
use super::*;
use crate::allocate::AllocationPolicy;
use kaskade_stated::pipelines::stated;

fn slots(count: usize) -> Vec<Slot> {
    let slot = |place| Slot {
        worker: format!("w{place}"),
        device: "cpu".into(),
    };
    (0..count).map(slot).collect()
}

fn plan_for<'a>(slots: &'a [Slot], previous: Option<&'a Plan>) -> PlanFor<'a> {
    PlanFor {
        app: "traffic",
        slots,
        previous,
        dropping: Dropping::Rerouting,
    }
}

fn allocation(policy: AllocationPolicy, demand: f64) -> Allocation {
    let options = AllocateOptions {
        policy,
        ..AllocateOptions::default()
    };
    Allocator::new(stated(), options)
        .unwrap()
        .allocate(demand, 20)
        .unwrap()
}

fn plan(demand: f64, previous: Option<&Plan>) -> Plan {
    let allocation = allocation(AllocationPolicy::Loki, demand);
    allocation
        .plan(&stated(), plan_for(&slots(20), previous))
        .unwrap()
}

#[test]
fn an_allocation_becomes_a_plan() {
    insta::assert_snapshot!(plan(40.0, None).to_json().unwrap());
}

#[test]
fn every_policy_makes_sound_plans_at_every_load() {
    for policy in [AllocationPolicy::Loki, AllocationPolicy::HardwareOnly] {
        for demand in [0.5, 10.0, 100.0, 300.0, 1_000.0, 5_000.0] {
            let made = allocation(policy, demand)
                .plan(&stated(), plan_for(&slots(20), None))
                .unwrap();
            let tasks: BTreeSet<_> = made.gears[0]
                .wiring
                .stages
                .iter()
                .map(|stage| stage.task.clone())
                .collect();
            assert_eq!(tasks.len(), 3, "{policy:?} at {demand}");
        }
    }
}

#[test]
fn workers_keep_their_variants() {
    let first = plan(40.0, None);
    assert_eq!(plan(40.0, Some(&first)), first, "the same demand changes nothing");
    for demand in [60.0, 150.0, 400.0, 30.0] {
        let next = plan(demand, Some(&first));
        for variant in next.variants.iter().map(|variant| &variant.name) {
            let workers = |plan: &Plan| -> BTreeSet<String> {
                let own = plan
                    .placement
                    .iter()
                    .filter(|replica| &replica.variant == variant);
                own.map(|replica| replica.worker.clone()).collect()
            };
            let (old, new) = (workers(&first), workers(&next));
            assert_eq!(
                old.intersection(&new).count(),
                old.len().min(new.len()),
                "{variant} at {demand}"
            );
        }
    }
}

#[test]
fn what_is_new_goes_to_idle_workers() {
    let first = plan(20.0, None);
    let next = plan(40.0, Some(&first));
    let kept = first
        .placement
        .iter()
        .filter(|replica| next.placement.contains(replica));
    assert_eq!(kept.count(), first.placement.len());
}

#[test]
fn too_few_slots_are_an_error() {
    let allocation = allocation(AllocationPolicy::Loki, 300.0);
    let error = allocation.plan(&stated(), plan_for(&slots(3), None)).unwrap_err();
    assert_eq!(
        error,
        EmitError::TooFewSlots {
            needed: allocation.used,
            slots: 3
        }
    );
}

#[test]
fn ids_stay_unique_when_slots_move() {
    let first = plan(40.0, None);
    let mut moved = slots(20);
    moved.rotate_left(3);
    let next = allocation(AllocationPolicy::Loki, 300.0).plan(&stated(), plan_for(&moved, Some(&first)));
    assert!(next.is_ok());
}

#[test]
fn budgets_share_out_the_objective() {
    for demand in [40.0, 150.0, 400.0] {
        let made = plan(demand, None);
        let of_task = |task: &str| {
            let stages = made.gears[0].wiring.stages.iter();
            let budgets = stages.filter(|stage| stage.task.as_deref() == Some(task));
            budgets.filter_map(|stage| stage.budget_us).max().unwrap()
        };
        let root = &stated().tasks[0];
        let paths = root
            .children
            .iter()
            .map(|child| of_task(&root.name) + of_task(child));
        let slowest = paths.max().unwrap();
        let slo = stated().slo_us;
        assert!(slowest <= slo + 2, "{slowest} of {slo} at {demand}");
        for stage in &made.gears[0].wiring.stages {
            let run = stage.profiled.map(|profiled| profiled.run_us).unwrap();
            assert!(2 * stage.budget_us.unwrap() >= 3 * run, "{stage:?}");
        }
    }
}

/// A slot that keeps its variant gets the new weights too.
#[test]
fn replicas_name_the_profiled_checkpoints() {
    let first = plan(40.0, None);
    let mut pipeline = stated();
    for variant in pipeline.tasks.iter_mut().flat_map(|task| &mut task.variants) {
        variant.checkpoint = Some(format!("of-{}", variant.name));
    }
    let allocation = allocation(AllocationPolicy::Loki, 40.0);
    let plan = allocation
        .plan(&pipeline, plan_for(&slots(20), Some(&first)))
        .unwrap();
    for replica in plan.placement {
        assert_eq!(replica.checkpoint, Some(format!("of-{}", replica.variant)));
    }
}
