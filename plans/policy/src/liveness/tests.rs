use proptest::prelude::*;

use super::*;

const SECOND: u64 = 1_000_000;

#[test]
fn a_restart_between_heartbeats_loses_its_requests() {
    let mut liveness = Liveness::default();
    assert_eq!(
        liveness.started("w1", 1, 7, 0),
        Start::Same,
        "no earlier heartbeat"
    );
    assert_eq!(liveness.started("w1", 1, 8, 0), Start::Same);
    assert_eq!(
        liveness.started("w1", 1, 0, 0),
        Start::Restarted,
        "it lost its connection"
    );
    assert_eq!(liveness.started("w1", 1, 1, 0), Start::Same);
    assert_eq!(
        liveness.started("w1", 2, 1, 0),
        Start::Restarted,
        "it died before it had sent more beats than the next"
    );
    assert_eq!(liveness.started("w1", 2, 2, 0), Start::Same);
    assert_eq!(liveness.started("w2", 0, 0, 0), Start::Same);
    assert_eq!(
        liveness.started("w2", 0, 0, 0),
        Start::Same,
        "an uncounted process never restarts"
    );
}

#[test]
fn two_processes_of_one_name_are_reported_once() {
    let mut liveness = Liveness::default();
    assert_eq!(liveness.started("w", 1, 100, 0), Start::Same);
    assert_eq!(liveness.started("w", 2, 0, 0), Start::Restarted);
    let found: Vec<Start> = (1..=60)
        .map(|number| liveness.started("w", 1 + number % 2, 100 + number, 0))
        .collect();
    assert!(
        found.iter().all(|start| *start != Start::Restarted),
        "neither has started again"
    );
    assert_eq!(
        found
            .iter()
            .filter(|start| **start == Start::DuplicateName)
            .count(),
        1
    );
    assert_eq!(liveness.started("w", 3, 0, 0), Start::Restarted);
}

#[test]
fn several_processes_of_one_name_start_once_each() {
    let mut liveness = Liveness::default();
    let beats = (0..60_u64).map(|beat| liveness.started("w", beat % 3, beat / 3, 0));
    let found: Vec<Start> = beats.collect();
    assert_eq!(
        found.iter().filter(|start| **start == Start::Restarted).count(),
        2
    );
    assert_eq!(
        found
            .iter()
            .filter(|start| **start == Start::DuplicateName)
            .count(),
        1
    );
    for instance in 3..1_000 {
        assert_eq!(liveness.started("w", instance, 0, 0), Start::Restarted);
    }
    assert_eq!(liveness.processes["w"].previous_instances.len(), MAX_INSTANCES);
}

#[test]
fn a_replica_that_could_not_be_loaded_is_avoided_although_another_worker_lists_its_name() {
    let mut liveness = Liveness::default();
    liveness.record_heartbeat("a", 0);
    liveness.set_unloadable(&BTreeSet::from(["a".to_owned()]));
    liveness.record_heartbeat("a", 1);
    let view = liveness.reachability();
    assert!(!view.is_reachable("a") && view.is_avoided("a"));
    assert!(liveness.unavailable(["a"], 1).contains("a"));
    liveness.set_unloadable(&BTreeSet::new());
    assert!(liveness.reachability().is_reachable("a"));
}

/// Looks in time from one point to another; returns what was found.
fn checks(liveness: &mut Liveness, from: u64, until: u64) -> Vec<String> {
    let times = (from..=until).step_by(CHECK_PERIOD_US as usize);
    times.flat_map(|now| liveness.newly_lost(now)).collect()
}

#[test]
fn every_change_of_reachability_changes_the_revision() {
    let mut liveness = Liveness::default();
    let mut changed = |change: &mut dyn FnMut(&mut Liveness)| {
        let before = (liveness.revision(), liveness.reachability());
        change(&mut liveness);
        let changed = before.0 != liveness.revision();
        assert_eq!(changed, before.1 != liveness.reachability());
        changed
    };
    assert!(changed(&mut |liveness| assert!(
        liveness.record_heartbeat("a", 0)
    )));
    let failed = BTreeSet::from(["a".to_owned(), "b".to_owned()]);
    assert!(changed(&mut |liveness| liveness.set_unloadable(&failed)));
    assert!(!changed(&mut |liveness| liveness.set_unloadable(&failed)));
    assert!(changed(&mut |liveness| liveness.set_unloadable(&BTreeSet::new())));
    assert!(!changed(&mut |liveness| assert!(
        !liveness.record_heartbeat("a", 1)
    )));
    assert!(changed(&mut |liveness| assert!(liveness.declare_lost("a"))));
    assert!(!changed(&mut |liveness| assert!(!liveness.declare_lost("a"))));
    assert!(
        changed(&mut |liveness| assert!(liveness.record_heartbeat("a", 2))),
        "it is back"
    );
    assert!(changed(&mut |liveness| liveness.record_leaving("a", 3)));
    assert!(!changed(&mut |liveness| liveness.record_leaving("a", 4)));
    assert!(changed(&mut |liveness| liveness.forget("a")));
    assert!(!changed(&mut |liveness| liveness.forget("a")));
}

/// Stages that start under new names again and again must not fill the memory of every process.
#[test]
fn the_lost_are_forgotten_unless_a_plan_places_them() {
    let mut liveness = Liveness::default();
    for name in ["placed", "killed", "alive"] {
        liveness.record_heartbeat(name, 0);
        assert_eq!(liveness.started(name, 1, 1, 0), Start::Same);
    }
    checks(&mut liveness, 0, FORGOTTEN_US - CHECK_PERIOD_US);
    liveness.record_heartbeat("alive", FORGOTTEN_US);
    liveness.started("alive", 1, 2, FORGOTTEN_US);
    let forget = |liveness: &mut Liveness, now| {
        liveness.forget_lost(now, |name| name == "placed");
        let known = ["placed", "killed", "alive"].map(|name| liveness.alive(name) || liveness.lost(name));
        (known, liveness.revision())
    };
    let (known, before) = forget(&mut liveness, FORGOTTEN_US);
    assert_eq!(known, [true; 3], "a minute has not passed");
    let (known, after) = forget(&mut liveness, FORGOTTEN_US + 1);
    assert_eq!(known, [true, false, true]);
    assert_eq!(after, before + 1);
    assert_eq!(forget(&mut liveness, FORGOTTEN_US + 1).1, after);
    assert!(liveness.reachability().is_avoided("placed"));
    assert!(!liveness.unavailable([], FORGOTTEN_US + 1).contains("killed"));
    assert!(liveness.knows_process("alive") && !liveness.knows_process("killed"));
    assert_eq!(
        liveness.started("killed", 2, 0, FORGOTTEN_US + 2),
        Start::Same,
        "it is new"
    );
}

/// A stall of the observer is no silence.
#[test]
fn a_long_stall_forgets_nobody() {
    let mut liveness = Liveness::default();
    checks(&mut liveness, 0, SECOND);
    liveness.record_heartbeat("a", SECOND);
    liveness.started("w", 1, 1, SECOND);
    liveness.declare_lost("a");
    liveness.newly_lost(100 * SECOND);
    liveness.forget_lost(100 * SECOND, |_| false);
    assert!(liveness.lost("a") && liveness.knows_process("w"));
}

#[test]
fn a_leaving_replica_is_avoided_and_still_lost_when_silent() {
    let mut liveness = Liveness::default();
    liveness.record_leaving("a", 0);
    assert!(liveness.alive("a") && !liveness.reachability().is_reachable("a"));
    assert!(liveness.reachability().is_avoided("a"));
    assert_eq!(checks(&mut liveness, 0, DETECTION_US + CHECK_PERIOD_US), ["a"]);
}

#[test]
fn a_stall_of_the_observer_is_no_evidence() {
    let mut liveness = Liveness::default();
    assert!(checks(&mut liveness, 0, 1_000_000).is_empty());
    for name in ["a", "b"] {
        liveness.record_heartbeat(name, 1_000_000);
    }
    // The process does not run for 500 ms. Then it looks before it reads a beat, and one tick later again.
    assert!(liveness.newly_lost(1_500_000).is_empty());
    assert!(liveness.newly_lost(1_550_000).is_empty());
    liveness.record_heartbeat("a", 1_560_000);
    // From here the time counts again: b fell silent, a goes on.
    let mut found = Vec::new();
    for now in (1_600_000..=2_500_000).step_by(CHECK_PERIOD_US as usize) {
        liveness.record_heartbeat("a", now);
        found.extend(liveness.newly_lost(now));
    }
    assert_eq!(found, ["b"]);
}

#[test]
fn a_beat_read_after_a_stall_does_not_hide_a_death() {
    let mut liveness = Liveness::default();
    assert!(liveness.newly_lost(0).is_empty());
    liveness.record_heartbeat("a", 5_000_000);
    assert!(liveness.newly_lost(5_000_000).is_empty());
    let until = 5_000_000 + DETECTION_US + CHECK_PERIOD_US;
    assert_eq!(checks(&mut liveness, 5_050_000, until), ["a"]);
}

#[test]
fn a_process_whose_looks_are_always_late_finds_the_lost() {
    let mut liveness = Liveness::default();
    liveness.record_heartbeat("a", 0);
    let mut times = (0..20).map(|check| check * 3 * CHECK_PERIOD_US);
    assert!(times.any(|now| liveness.newly_lost(now) == ["a"]));
}

#[test]
fn placed_replicas_that_were_never_heard_are_unavailable_after_the_detection_time() {
    let mut liveness = Liveness::default();
    let placed = ["a", "b", "c"];
    let unavailable = |liveness: &Liveness, now| Vec::from_iter(liveness.unavailable(placed, now));
    assert!(checks(&mut liveness, 0, DETECTION_US).is_empty());
    liveness.record_heartbeat("a", DETECTION_US);
    assert!(
        unavailable(&liveness, DETECTION_US).is_empty(),
        "it may be too early to know"
    );
    assert_eq!(unavailable(&liveness, DETECTION_US + 1), ["b", "c"]);
    liveness.declare_lost("a");
    liveness.record_heartbeat("b", DETECTION_US);
    liveness.record_leaving("elsewhere", DETECTION_US);
    assert_eq!(unavailable(&liveness, DETECTION_US + 1), ["a", "c", "elsewhere"]);
}

proptest! {
    /// However the process is stalled, it never loses a replica whose beats it reads before it looks again in time.
    #[test]
    fn stalls_make_no_beating_replica_lost(stalls in prop::collection::vec(0_u64..3_000_000, 1..40)) {
        let mut liveness = Liveness::default();
        let mut now = 0;
        for stall in stalls {
            liveness.record_heartbeat("a", now);
            for _ in 0..2 {
                now += CHECK_PERIOD_US;
                prop_assert!(liveness.newly_lost(now).is_empty());
            }
            now += stall;
            // The look comes first, and the beats that waited right after it.
            prop_assert!(liveness.newly_lost(now).is_empty());
        }
    }

    /// A replica that is silent is found, and in time if the looks are.
    #[test]
    fn silence_is_found_in_time(last_beat in 0_u64..1_000_000) {
        let mut liveness = Liveness::default();
        let late = last_beat + DETECTION_US + CHECK_PERIOD_US + 1;
        liveness.newly_lost(0);
        let found = (0..=late)
            .step_by(CHECK_PERIOD_US as usize)
            .find(|now| {
                if *now >= last_beat && !liveness.alive("a") && !liveness.lost("a") {
                    liveness.record_heartbeat("a", last_beat);
                }
                !liveness.newly_lost(*now).is_empty()
            });
        prop_assert!(found.is_some_and(|found| found > last_beat + DETECTION_US));
    }
}

#[test]
fn silence_is_noticed_once_and_a_return_too() {
    let mut liveness = Liveness::default();
    assert!(liveness.record_heartbeat("a", 0));
    assert!(!liveness.record_heartbeat("a", HEARTBEAT_PERIOD_US));
    assert!(checks(&mut liveness, 0, 4 * HEARTBEAT_PERIOD_US).is_empty());
    assert_eq!(liveness.newly_lost(4 * HEARTBEAT_PERIOD_US + 1), ["a"]);
    assert!(
        checks(
            &mut liveness,
            4 * HEARTBEAT_PERIOD_US + 2,
            9 * HEARTBEAT_PERIOD_US
        )
        .is_empty()
    );
    assert!(liveness.lost("a") && !liveness.alive("a"));
    assert!(liveness.record_heartbeat("a", 9 * HEARTBEAT_PERIOD_US));
    assert!(liveness.alive("a"));
}

#[test]
fn a_beat_that_arrives_late_does_not_turn_back_the_clock() {
    let mut liveness = Liveness::default();
    liveness.record_heartbeat("a", 10 * HEARTBEAT_PERIOD_US);
    liveness.record_heartbeat("a", 2 * HEARTBEAT_PERIOD_US);
    assert!(checks(&mut liveness, 10 * HEARTBEAT_PERIOD_US, 12 * HEARTBEAT_PERIOD_US).is_empty());
}

#[test]
fn a_process_that_left_is_not_reported_lost() {
    let mut liveness = Liveness::default();
    liveness.record_heartbeat("a", 0);
    liveness.forget("a");
    assert!(checks(&mut liveness, 0, 9 * HEARTBEAT_PERIOD_US).is_empty());
    assert!(!liveness.alive("a") && !liveness.lost("a"));
}
