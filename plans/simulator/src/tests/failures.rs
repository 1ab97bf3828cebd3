//! Replicas that come, go and fail, and requests that run out of time.

use super::*;

fn event(at_us: u64, replica: &str, change: Change) -> ReplicaEvent {
    ReplicaEvent {
        at_us,
        replica: replica.into(),
        change,
    }
}

fn service(replicas: &[&str], shares: &[(&str, f64)], backup: &[&str]) -> (Plan, Profile) {
    let mut gear = gear(0.0, None, vec![stage("s", Exit::Reply, BATCHING)]);
    gear.wiring.entry.shares = shares.iter().map(|(id, share)| ((*id).into(), *share)).collect();
    gear.wiring.entry.backup = backup.iter().map(|id| (*id).into()).collect();
    let profile = profile(vec![variant("s", 90, 10, &[(1, 0.9, true)])]);
    (plan(replicas, Sharing::Exclusive, vec![gear]), profile)
}

#[test]
fn what_a_failed_replica_held_is_answered_by_another_after_the_failure_is_noticed() {
    let (plan, profile) = service(&["s-0@a", "s-1@b"], &[("s-0", 1.0)], &["s-1"]);
    let config = SimConfig {
        detection_us: 5_000,
        timeline: vec![event(50, "s-0", Change::Fails)],
        ..SimConfig::default()
    };
    let (report, seen) = simulate(&plan, &profile, &config, [0, 10]);
    // Both come back at 5050, one after the other as they were.
    assert_eq!(latencies(&seen), [5_150, 5_240]);
    assert_eq!((report.answered, report.failed, report.lost), (2, 0, 0));
    assert_eq!(seen.runs[0].to_us, 50, "the batch ended with the replica");
    assert_eq!(report.devices[0].up_us, 50);
}

#[test]
fn a_request_that_no_replica_takes_is_tried_as_often_as_the_ledger_allows() {
    let (plan, profile) = service(&["s-0@a"], &[], &[]);
    let mut config = SimConfig {
        initially_down: vec!["s-0".into()],
        ..SimConfig::default()
    };
    let (report, seen) = simulate(&plan, &profile, &config, [0]);
    assert_eq!((report.failed, report.answered), (1, 0));
    let ledger = &config.ledger;
    let longest: u64 = (1..ledger.max_attempts)
        .map(|attempt| (ledger.backoff_us << (attempt - 1)).min(ledger.max_backoff_us))
        .sum();
    assert!(
        (longest / 2..=longest).contains(&report.duration_us),
        "{}",
        report.duration_us
    );
    assert!(seen.runs.is_empty());
    // A replica that starts in between is found.
    config.timeline = vec![event(1_500, "s-0", Change::Starts)];
    let (report, _) = simulate(&plan, &profile, &config, [0]);
    assert_eq!((report.failed, report.answered), (0, 1));
}

#[test]
fn without_the_larger_model_an_answer_below_the_threshold_is_given_after_the_same_attempts_as_in_the_service()
{
    let stages = vec![
        stage("s", unsure(Edge::to("l")), BATCHING),
        stage("l", Exit::Reply, BATCHING),
    ];
    let plan = plan(
        &["s-0@a", "l-0@b"],
        Sharing::Exclusive,
        vec![gear(0.0, None, stages)],
    );
    let profile = profile(vec![
        variant("s", 90, 10, &[(1, 0.1, false), (1, 0.9, true)]),
        variant("l", 90, 10, &[(1, 0.9, true), (1, 0.9, true)]),
    ]);
    // The attempts are the service's by default; with as many as the ledger once had, they ended before one might settle.
    let mut config = SimConfig {
        initially_down: vec!["l-0".into()],
        ..SimConfig::default()
    };
    config.ledger.max_attempts = 4;
    let (report, _) = simulate(&plan, &profile, &config, [0]);
    assert_eq!((report.failed, report.answered), (1, 0));
    config.ledger = SimConfig::default().ledger;
    let (report, seen) = simulate(&plan, &profile, &config, [0]);
    assert_eq!((report.failed, report.answered, report.right), (0, 1, 0));
    let attempts = u32::try_from(seen.runs.len()).unwrap();
    assert_eq!(attempts, config.ledger.accept_any_from_attempt);
    // A partition's result is no answer.
    let mut split = plan.clone();
    split.gears[0].wiring.stages[0].exit = Exit::Next { to: Edge::to("l") };
    let (report, _) = simulate(&split, &profile, &config, [0]);
    assert_eq!((report.failed, report.answered), (1, 0));
}

#[test]
fn a_replica_that_stops_answers_what_it_has_and_takes_nothing_new() {
    let (plan, profile) = service(&["s-0@a", "s-1@b"], &[("s-0", 1.0)], &["s-1"]);
    let config = SimConfig {
        timeline: vec![event(20, "s-0", Change::Stops)],
        ..SimConfig::default()
    };
    let (report, seen) = simulate(&plan, &profile, &config, [0, 10, 30]);
    let runs: Vec<(u32, u64)> = seen.runs.iter().map(|run| (run.replica, run.from_us)).collect();
    assert_eq!(runs, [(0, 0), (1, 30), (0, 100)]);
    assert_eq!((report.answered, report.lost), (3, 0));
    assert_eq!(report.devices[0].up_us, 200);
    assert!((report.device_seconds() - 400e-6).abs() < 1e-12);
}

#[test]
fn a_budget_is_kept_or_the_request_is_not_run() {
    let (plan, profile) = service(&["s-0@a"], &[], &[]);
    let config = SimConfig {
        budget_us: Some(150),
        ..SimConfig::default()
    };
    // Until a few batches have ended, their run time is unknown; afterwards the second of the last three would end at 1000,
    // which is too late for it, and in time for the third.
    let (report, seen) = simulate(&plan, &profile, &config, [0, 200, 400, 600, 800, 810, 860]);
    assert_eq!(latencies(&seen), [100, 100, 100, 100, 100, 140]);
    assert_eq!((report.answered, report.expired), (6, 1));
}

#[test]
fn a_full_queue_and_a_full_book_refuse() {
    let (plan, profile) = service(&["s-0@a"], &[], &[]);
    let mut config = SimConfig {
        queue_capacity: 2,
        ..SimConfig::default()
    };
    let (report, _) = simulate(&plan, &profile, &config, [0, 1, 2, 3, 4]);
    assert_eq!((report.answered, report.refused, report.max_queue), (3, 2, 2));
    config.ledger.max_in_flight = 1;
    let (report, _) = simulate(&plan, &profile, &config, [0, 1, 2, 300]);
    assert_eq!((report.answered, report.refused, report.max_in_flight), (2, 2, 1));
}

#[test]
fn an_overloaded_service_sheds_early_and_answers_in_time() {
    let (plan, profile) = service(&["s-0@a"], &[], &[]);
    let overload = || (0..20_000).map(|n| n * 20);
    let mut config = SimConfig {
        budget_us: Some(20_000),
        ..SimConfig::default()
    };
    let (without, _) = simulate(&plan, &profile, &config, overload());
    config.admission = Some(kaskade_policy::admission::AdmissionConfig {
        always: 16,
        ..kaskade_policy::admission::AdmissionConfig::default()
    });
    let (with, _) = simulate(&plan, &profile, &config, overload());
    assert!(without.expired > 0 && without.refused == 0);
    assert!(
        with.refused > 0 && with.expired < without.expired / 4,
        "{} {}",
        with.expired,
        without.expired
    );
}

#[test]
fn a_backup_of_another_variant_answers_with_its_own_samples() {
    let mut gear = gear(0.0, None, vec![stage("s", Exit::Reply, BATCHING)]);
    gear.wiring.entry.shares.insert("s-0".into(), 1.0);
    gear.wiring.entry.backup = vec!["t-0".into()];
    let profile = profile(vec![
        variant("s", 90, 10, &[(1, 0.9, true)]),
        variant("t", 900, 100, &[(2, 0.9, false)]),
    ]);
    let plan = plan(&["s-0@a", "t-0@b"], Sharing::Exclusive, vec![gear]);
    let config = SimConfig {
        initially_down: vec!["s-0".into()],
        ..SimConfig::default()
    };
    let (report, seen) = simulate(&plan, &profile, &config, [0]);
    assert_eq!(latencies(&seen), [1_000]);
    assert_eq!(
        (report.answered, report.right, seen.answered[0].variant),
        (1, 0, 1)
    );
}
