use super::*;
use crate::allocate::{AllocateOptions, Allocator};
use kaskade_stated::pipelines::{stated, stated_social};
use proptest::prelude::*;

fn capacity(pipeline: &Pipeline, allocation: &Allocation) -> f64 {
    Balancer::new(pipeline, &allocation.instances).capacity_qps()
}

#[test]
fn idle_workers_hold_fast_variants_that_take_nothing_of_the_planned_demand() {
    let pipeline = stated();
    let allocator = Allocator::new(pipeline.clone(), AllocateOptions::default()).unwrap();
    let alone = allocator.allocate(20.0, 20).unwrap();
    let free = StandbyOptions {
        surge_factor: 10.0,
        max_accuracy_loss: 0.0,
    };
    let ready = allocate_with_standby(&allocator, &pipeline, (20.0, 20), free).unwrap();
    assert!(alone.used < 20 && ready.used == 20);
    assert!(
        capacity(&pipeline, &ready) > 2.0 * capacity(&pipeline, &alone),
        "{ready:?}"
    );
    let balanced = ready.balance(&pipeline, 20.0);
    assert!((balanced.accuracy - alone.accuracy).abs() < 1e-9);
}

#[test]
fn nothing_is_ready_in_the_paper_and_under_overload() {
    let pipeline = stated_social();
    let allocator = Allocator::new(pipeline.clone(), AllocateOptions::default()).unwrap();
    for demand in [20.0, 1e6] {
        let alone = allocator.allocate(demand, 20).unwrap();
        let none = allocate_with_standby(&allocator, &pipeline, (demand, 20), StandbyOptions::NONE).unwrap();
        assert_eq!(none, alone);
    }
    let over = allocate_with_standby(&allocator, &pipeline, (1e6, 20), StandbyOptions::default()).unwrap();
    assert_eq!(over, allocator.allocate(1e6, 20).unwrap());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn no_more_accuracy_is_given_up_than_allowed_and_no_capacity_lost(
        demand in 5.0..400.0_f64, workers in 4..30_u32, surge_factor in 1.0..4.0_f64, max_accuracy_loss in 0.0..0.1_f64, social: bool,
    ) {
        let pipeline = if social { stated_social() } else { stated() };
        let allocator = Allocator::new(pipeline.clone(), AllocateOptions::default()).unwrap();
        let best = allocator.allocate(demand, workers).unwrap();
        let options = StandbyOptions { surge_factor, max_accuracy_loss };
        let ready = allocate_with_standby(&allocator, &pipeline, (demand, workers), options).unwrap();
        prop_assert!(ready.accuracy >= best.accuracy * (1.0 - max_accuracy_loss) - 1e-9);
        prop_assert!(ready.used <= workers);
        let served = ready.served_qps;
        let balanced = ready.balance(&pipeline, served);
        prop_assert!(balanced.unserved_qps <= 1e-3 * served, "{:?}", balanced.unserved_qps);
    }
}
