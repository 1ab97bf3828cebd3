use proptest::prelude::*;

use super::*;

const BEAT: u64 = HEARTBEAT_PERIOD_US;

/// A cascade of `small` and `large`, each with one replica on the given worker.
fn plan(small: &str, large: &str) -> Plan {
    Plan::cascade("a")
        .stage("small", "small")
        .worker(small)
        .below(0.5)
        .then("large", "large")
        .worker(large)
        .build()
        .unwrap()
}

fn report(gate: &mut Gate, worker: &str, in_place: u64, now: u64) -> bool {
    failing(gate, worker, in_place, &[], now)
}

fn failing(gate: &mut Gate, worker: &str, in_place: u64, failed: &[&str], now: u64) -> bool {
    let failed: Vec<String> = failed.iter().map(|id| (*id).to_owned()).collect();
    let report = Report {
        worker,
        in_place,
        failed: &failed,
        leaving: false,
    };
    gate.report(report, now)
}

/// The plans by epoch from 1.
fn admits(gate: &mut Gate, current: u64, plans: &[Plan], now: u64) -> Option<u64> {
    let plans = plans.iter().enumerate();
    gate.admits(current, true, plans.map(|(at, plan)| (at as u64 + 1, plan)), now)
}

#[test]
fn a_plan_is_admitted_once_every_worker_has_it() {
    let (mut gate, plans) = (Gate::default(), [plan("w1", "w2"), plan("w2", "w1")]);
    for worker in ["w1", "w2"] {
        assert!(report(&mut gate, worker, 1, 0));
        assert!(!report(&mut gate, worker, 1, 0), "nothing new");
    }
    assert_eq!(admits(&mut gate, 1, &plans, 0), None);
    report(&mut gate, "w1", 2, 1);
    assert_eq!(admits(&mut gate, 1, &plans, 1), None, "w2 is loading");
    report(&mut gate, "w2", 2, 2);
    assert_eq!(admits(&mut gate, 1, &plans, 2), Some(2));
}

#[test]
fn the_newest_in_place_is_admitted_and_one_that_was_skipped_is_not() {
    let plans = [plan("w1", "w1"), plan("w2", "w1"), plan("w1", "w2")];
    let mut gate = Gate::default();
    report(&mut gate, "w1", 2, 0);
    report(&mut gate, "w1", 3, 1);
    report(&mut gate, "w2", 3, 1);
    assert_eq!(admits(&mut gate, 1, &plans, 1), Some(3));
    assert_eq!(
        admits(&mut gate, 1, &plans[..2], 1),
        None,
        "w2 never had 2 in place"
    );
}

#[test]
fn a_dead_worker_blocks_no_plan_that_can_do_without_it() {
    let mut two = plan("w1", "w1");
    let mut copy = two.placement[0].clone();
    "w2".clone_into(&mut copy.worker);
    "small-1".clone_into(&mut copy.id);
    two.placement.push(copy);
    let (mut gate, plans) = (Gate::default(), [plan("w1", "w1"), two]);
    report(&mut gate, "w1", 1, 0);
    report(&mut gate, "w2", 1, 0);
    report(&mut gate, "w1", 2, 3 * BEAT);
    assert_eq!(admits(&mut gate, 1, &plans, 3 * BEAT), None, "w2 lives and loads");
    assert_eq!(
        admits(&mut gate, 1, &plans, 3 * BEAT + 1),
        Some(2),
        "w2 is silent"
    );
    // One that sent no heartbeat blocks as little.
    let mut gate = Gate::default();
    report(&mut gate, "w1", 1, 0);
    report(&mut gate, "w1", 2, 0);
    assert_eq!(admits(&mut gate, 1, &plans, 0), Some(2));
}

#[test]
fn a_plan_that_lacks_a_stage_does_not_replace_one_that_serves() {
    let plans = [plan("w1", "w1"), plan("w1", "gone")];
    let mut gate = Gate::default();
    for second in 0..100 {
        let now = second * 10 * BEAT;
        report(&mut gate, "w1", 1, now);
        report(&mut gate, "w1", 2, now);
        assert_eq!(admits(&mut gate, 1, &plans, now), None, "{second} s");
    }
}

#[test]
fn a_replica_that_failed_to_load_does_not_count() {
    let plans = [plan("w1", "w1"), plan("w2", "w1")];
    let mut gate = Gate::default();
    report(&mut gate, "w1", 1, 0);
    report(&mut gate, "w1", 2, 0);
    assert!(failing(&mut gate, "w2", 2, &["small-0"], 0));
    assert_eq!(admits(&mut gate, 1, &plans, 0), None);
    assert_eq!(gate.lacks(2, &plans[1], 0), BTreeSet::from(["small"]));
    assert!(report(&mut gate, "w2", 2, 1), "it was loaded after all");
    assert_eq!(admits(&mut gate, 1, &plans, 1), Some(2));
}

#[test]
fn a_worker_that_started_again_or_leaves_does_not_count() {
    let (mut gate, plans) = (Gate::default(), [plan("w1", "w1"), plan("w1", "w1")]);
    report(&mut gate, "w1", 2, 0);
    assert!(gate.is_in_place(2, &plans[1], 0));
    report(&mut gate, "w1", 0, 1);
    assert!(!gate.is_in_place(2, &plans[1], 1));
    report(&mut gate, "w1", 2, 2);
    let leaving = Report {
        worker: "w1",
        in_place: 2,
        failed: &[],
        leaving: true,
    };
    assert!(gate.report(leaving, 3));
    assert_eq!(
        admits(&mut gate, 1, &plans, 3),
        None,
        "no worker is left to serve it"
    );
}

#[test]
fn a_plan_that_serves_replaces_one_that_cannot_before_the_last_worker_is_ready() {
    let mut two = plan("w1", "w1");
    let mut copy = two.placement[0].clone();
    "w2".clone_into(&mut copy.worker);
    "small-1".clone_into(&mut copy.id);
    two.placement.push(copy);
    let plans = [plan("gone", "w1"), two];
    let mut gate = Gate::default();
    report(&mut gate, "w1", 2, 0);
    report(&mut gate, "w2", 1, 0);
    assert_eq!(admits(&mut gate, 1, &plans, 0), Some(2));
}

#[test]
fn a_plan_that_lacks_the_same_stages_is_admitted_after_a_while() {
    let plans = [plan("w1", "gone"), plan("w1", "gone")];
    let mut gate = Gate::default();
    let mut tick = |now| {
        report(&mut gate, "w1", 2, now);
        admits(&mut gate, 1, &plans, now)
    };
    assert_eq!((tick(0), tick(WITHOUT_REPLICA_US - 1)), (None, None));
    assert_eq!(tick(WITHOUT_REPLICA_US), Some(2));
}

#[test]
fn custom_actors_serve_every_epoch() {
    let plans = [plan("elsewhere", "w1"), plan("elsewhere", "w1")];
    let mut gate = Gate::default();
    report(&mut gate, "w1", 2, 0);
    assert_eq!(admits(&mut gate, 1, &plans, 0), None);
    gate.custom("attached", ["attached", "small"].into_iter(), 1);
    assert_eq!(admits(&mut gate, 1, &plans, 1), Some(2));
}

#[test]
fn the_first_plan_is_confirmed_once_it_is_in_place() {
    let (mut gate, first) = (Gate::default(), plan("w1", "w1"));
    let plans = [(4, &first)];
    assert_eq!(gate.admits(4, false, plans.into_iter(), 0), None);
    report(&mut gate, "w1", 4, 0);
    assert_eq!(gate.admits(4, false, plans.into_iter(), 0), Some(4));
    assert_eq!(gate.admits(4, true, plans.into_iter(), 0), None);
}

#[test]
fn before_any_epoch_is_in_place_requests_are_refused_only_while_a_live_worker_loads_what_is_lacking() {
    let (mut gate, plan) = (Gate::default(), plan("w1", "w2"));
    assert!(
        !gate.is_loading(3, &plan, 0),
        "no worker sent a heartbeat: the broker reports it"
    );
    report(&mut gate, "w1", 0, 0);
    assert!(gate.is_loading(3, &plan, 0));
    report(&mut gate, "w1", 3, 1);
    assert!(!gate.is_loading(3, &plan, 1), "w2 sent no heartbeat");
    report(&mut gate, "w2", 0, 2);
    assert!(gate.is_loading(3, &plan, 2));
    assert!(
        !gate.is_loading(3, &plan, 3 + 3 * BEAT),
        "a worker that fell silent is not waited for"
    );
    report(&mut gate, "w1", 3, 3 * BEAT);
    failing(&mut gate, "w2", 3, &["large-0"], 3 * BEAT);
    assert!(
        !gate.is_loading(3, &plan, 3 * BEAT),
        "it has failed and will not load"
    );
    report(&mut gate, "stranger", 0, 3 * BEAT);
    assert!(
        !gate.is_loading(3, &plan, 3 * BEAT),
        "the plan places nothing there"
    );
}

#[test]
fn a_replica_that_failed_to_load_is_named_while_its_worker_lives() {
    let (mut gate, plan) = (Gate::default(), plan("w1", "w2"));
    // Of another epoch, or not placed there.
    failing(&mut gate, "w2", 2, &["large-0"], 0);
    failing(&mut gate, "w1", 3, &["large-0"], 0);
    assert_eq!(gate.unloadable(3, &plan, 0), BTreeSet::new());
    failing(&mut gate, "w2", 3, &["large-0"], 0);
    assert_eq!(
        gate.unloadable(3, &plan, 0),
        BTreeSet::from(["large-0".to_owned()])
    );
    assert_eq!(gate.unloadable(3, &plan, 3 * BEAT + 1), BTreeSet::new());
}

proptest! {
    /// Whatever workers report and whenever they die: an epoch that is admitted is newer than the current one, and unless the current
    /// one could not serve it can.
    #[test]
    fn what_is_admitted_serves(
        steps in prop::collection::vec((0_usize..3, 0_u64..6, any::<bool>(), 0_u64..400_000), 1..80),
        places in prop::collection::vec((0_usize..3, 0_usize..3), 6),
    ) {
        let names = ["w0", "w1", "w2"];
        let plans: Vec<Plan> = places.iter().map(|(small, large)| plan(names[*small], names[*large])).collect();
        let (mut gate, mut current, mut now) = (Gate::default(), 1, 0);
        for (worker, in_place, fails, pause) in steps {
            now += pause;
            let failed: &[&str] = if fails { &["large-0"] } else { &[] };
            failing(&mut gate, names[worker], in_place, failed, now);
            let served = gate.lacks(current, &plans[current as usize - 1], now).is_empty();
            if let Some(next) = admits(&mut gate, current, &plans, now) {
                prop_assert!(next > current);
                let plan = &plans[next as usize - 1];
                prop_assert!(!served || (gate.lacks(next, plan, now).is_empty() && gate.is_in_place(next, plan, now)));
                current = next;
            }
        }
    }
}

#[test]
fn workers_are_compared_with_those_that_the_plan_names() {
    let (mut gate, plan) = (Gate::default(), plan("w1", "w2"));
    report(&mut gate, "w1", 1, 0);
    report(&mut gate, "other", 0, 0);
    assert_eq!(gate.absent(&plan, 0), BTreeSet::from(["w2"]));
    assert_eq!(gate.unplaced(&plan, 0), BTreeSet::from(["other"]));
    gate.custom("program", ["large-0"].into_iter(), 0);
    assert!(gate.absent(&plan, 0).is_empty(), "a custom actor serves it");
    let silent = WITHOUT_REPLICA_US;
    assert_eq!(gate.absent(&plan, silent), BTreeSet::from(["w1", "w2"]));
    assert!(gate.unplaced(&plan, silent).is_empty());
}

/// A custom actor whose stage was misspelt got no request, and nothing said why.
#[test]
fn custom_actors_of_no_stage_of_the_plan_are_found() {
    let (mut gate, plan) = (Gate::default(), plan("w1", "w2"));
    gate.custom("named", ["named", "small"].into_iter(), 0);
    gate.custom("placed", ["large-0", "elsewhere"].into_iter(), 0);
    gate.custom("misspelt", ["misspelt", "smal"].into_iter(), 0);
    gate.custom("observer", std::iter::empty(), 0);
    assert_eq!(gate.unnamed(&plan, 0), BTreeSet::from(["misspelt"]));
    assert!(gate.unnamed(&plan, WITHOUT_REPLICA_US).is_empty(), "it has ended");
}
