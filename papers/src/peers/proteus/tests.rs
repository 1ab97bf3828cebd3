use super::*;
use kaskade_planners::allocate::{Slot, StandbyOptions};
use kaskade_planners::demand::{DemandOptions, FactorOptions, RunTimeOptions};
use kaskade_planners::manager::{Manager, ManagerOptions};
use kaskade_policy::plan::Dropping;

use kaskade_stated::pipelines::stated;

const SECOND: u64 = 1_000_000;

fn proteus() -> PerTask {
    PerTask::new(stated(), AllocateOptions::default()).unwrap()
}

fn begun(qps: f64) -> Manager {
    let slot = |place: usize| Slot {
        worker: format!("w{place}"),
        device: "cpu".into(),
    };
    let options = ManagerOptions {
        app: "traffic".into(),
        slots: (0..20).map(slot).collect(),
        dropping: Dropping::Rerouting,
        allocate: AllocateOptions::default(),
        demand: DemandOptions::PAPER,
        standby: StandbyOptions::NONE,
        headroom: 1.0,
        factors: FactorOptions::default(),
        run_times: RunTimeOptions::default(),
    };
    let mut manager = Manager::with(Box::new(proteus()), stated(), options, 0).unwrap();
    manager.first_plan(qps, 0).unwrap();
    manager
}

fn loki() -> Allocator {
    Allocator::new(stated(), AllocateOptions::default()).unwrap()
}

#[test]
fn proteus_uses_all_workers_and_does_not_see_the_pipeline() {
    let allocator = proteus();
    for demand in [1.0, 50.0, 300.0] {
        let allocation = allocator.allocate(demand, 20).unwrap();
        assert_eq!(allocation.used, 20);
        let loki = loki().allocate(demand, 20).unwrap();
        assert!(allocation.accuracy <= loki.accuracy + 1e-3, "{demand}");
    }
}

#[test]
fn proteus_splits_the_workers_by_what_arrives_at_every_task() {
    let allocator = proteus();
    let workers = |allocation: &Allocation, task: &str| -> u32 {
        let own = allocation.instances.iter().filter(|own| own.task == task);
        own.map(|own| own.count).sum()
    };
    let many = allocator.allocate_tasks(&[60.0, 1_000.0, 50.0], 20).unwrap();
    let few = allocator.allocate_tasks(&[60.0, 60.0, 50.0], 20).unwrap();
    assert_eq!((many.used, few.used), (20, 20));
    assert!(workers(&many, "car") > workers(&few, "car"));
    assert!(workers(&many, "detect") < workers(&few, "detect"));
    assert_eq!(few.scaling, Scaling::Accuracy, "all of it is served");
    let over = allocator.allocate_tasks(&[60.0, 1e6, 50.0], 20).unwrap();
    assert_eq!((over.scaling, over.used), (Scaling::Overload, 20));
    assert!(allocator.allocate_tasks(&[], 20).is_err());
}

#[test]
fn proteus_goes_by_what_arrives_at_every_task() {
    let mut manager = begun(60.0);
    let batch_of = |manager: &Manager| {
        let instances = &manager.allocation().unwrap().instances;
        let cars = instances.iter().filter(|own| own.task == "car");
        cars.map(|own| own.load_qps).sum::<f64>()
    };
    let assumed = batch_of(&manager);
    for second in 1..=12 {
        manager.observe(60, second * SECOND - 1);
        let made = [("car".to_owned(), 300), ("face".to_owned(), 3)].into();
        manager.record("detect-x", 60, &made, second * SECOND - 1);
        manager.next_plan(second * SECOND);
    }
    let counted = batch_of(&manager);
    assert!((assumed - 60.0 * 17.1).abs() < 1.0, "{assumed}");
    assert!((counted - 300.0).abs() < 1.0, "{counted}");
    assert_eq!(manager.allocation().unwrap().used, 20);
}

#[test]
fn its_allocations_are_sound_plans_at_every_load() {
    let mut manager = begun(60.0);
    for demand in [0.5, 10.0, 100.0, 300.0, 1_000.0, 5_000.0] {
        manager.first_plan(demand, 0).unwrap().validate().unwrap();
    }
}
