use super::*;
use crate::plan::Partition;

/// One stage that runs a variant on a worker.
fn plan(stage: &str, variant: &str, worker: &str) -> Plan {
    Plan::cascade("a")
        .stage(stage, variant)
        .worker(worker)
        .build()
        .unwrap()
}

fn to_group(stage: &str) -> ArrivingRequest<'_> {
    ArrivingRequest {
        epoch: 2,
        gear: 0,
        stage,
        addressed: false,
    }
}

fn addressed(stage: &str) -> ArrivingRequest<'_> {
    ArrivingRequest {
        addressed: true,
        ..to_group(stage)
    }
}

fn alone(plan: &Plan, request: ArrivingRequest<'_>, me: &Replica) -> Arrival<'static> {
    arrival(Some(plan), request, me, std::iter::empty())
}

#[test]
fn a_replica_serves_what_the_plan_places_on_it() {
    let plan = plan("s", "small", "w1");
    let me = &plan.placement[0];
    assert_eq!(alone(&plan, to_group("s"), me), Arrival::Serve);
    assert_eq!(alone(&plan, addressed("s"), me), Arrival::Serve);
    assert_eq!(alone(&plan, addressed("unknown"), me), Arrival::Refuse);
    let gear = ArrivingRequest {
        gear: 1,
        ..to_group("s")
    };
    assert_eq!(alone(&plan, gear, me), Arrival::Refuse);
    assert_eq!(
        arrival(None, to_group("s"), me, std::iter::empty()),
        Arrival::Refuse
    );
    let foreign = ArrivingRequest {
        epoch: 0,
        ..to_group("unknown")
    };
    assert_eq!(arrival(None, foreign, me, std::iter::empty()), Arrival::Serve);
}

#[test]
fn a_stage_name_that_changed_its_variant_leads_to_the_new_one() {
    let (old, new) = (plan("s", "small", "w1"), plan("s", "large", "w1"));
    let me = &old.placement[0];
    assert_eq!(
        alone(&new, to_group("s"), me),
        Arrival::Refuse,
        "the new one is not loaded"
    );
    let other = &new.placement[0];
    let both = || [me, other].into_iter();
    assert_eq!(
        arrival(Some(&new), to_group("s"), me, both()),
        Arrival::HandOver(other)
    );
    let elsewhere = plan("s", "large", "w2");
    assert_eq!(alone(&elsewhere, to_group("s"), me), Arrival::Forward);
}

#[test]
fn an_id_that_moved_is_served_where_the_plan_places_it() {
    let (old, new) = (plan("s", "small", "w1"), plan("s", "small", "w2"));
    let me = &old.placement[0];
    assert_eq!(
        alone(&new, addressed("s"), me),
        Arrival::Ignore,
        "w2 receives it too"
    );
    assert_eq!(alone(&new, addressed("s"), &new.placement[0]), Arrival::Serve);
    assert_eq!(alone(&new, to_group("s"), me), Arrival::Forward);
}

#[test]
fn an_id_that_was_cut_anew_is_served_by_the_new_partition() {
    let (old, mut new) = (plan("s", "large", "w1"), plan("s", "large", "w1"));
    let partition = Some(Partition { index: 0, of: 3 });
    new.placement[0].partition = partition;
    new.gears[0].wiring.stages[0].partition = partition;
    let (me, other) = (&old.placement[0], &new.placement[0]);
    let both = || [me, other].into_iter();
    assert_eq!(arrival(Some(&new), addressed("s"), me, both()), Arrival::Ignore);
    assert_eq!(arrival(Some(&new), addressed("s"), other, both()), Arrival::Serve);
    assert_eq!(
        arrival(Some(&old), addressed("s"), other, both()),
        Arrival::Ignore
    );
    assert_eq!(
        alone(&new, addressed("s"), me),
        Arrival::Refuse,
        "it failed to load"
    );
}

#[test]
fn a_sibling_of_the_task_serves_too() {
    let mut plan = plan("detect-s", "small", "w1");
    let wiring = &mut plan.gears[0].wiring;
    wiring.stages[0].task = Some("detect".to_owned());
    let mut large = wiring.stages[0].clone();
    "detect-l".clone_into(&mut large.name);
    "large".clone_into(&mut large.variant);
    wiring.stages.push(large);
    let me = plan.placement[0].clone();
    assert_eq!(alone(&plan, addressed("detect-l"), &me), Arrival::Serve);
}
