use proptest::prelude::*;

use super::*;

const LATE_BY_5: Forwarding = Forwarding {
    spent_us: 25,
    budget_us: Some(20),
    left_us: Some(100),
    run_us: 30,
    after_us: 0,
    last: false,
};

fn backup(replica: u32, run_us: u64, accuracy: f64) -> Backup<u32> {
    Backup {
        replica,
        run_us,
        after_us: 0,
        accuracy,
    }
}

fn opportunistic(forwarding: &Forwarding, backups: &[Backup<u32>], draw: f64) -> Decision<u32> {
    decide(Dropping::Rerouting, forwarding, backups.iter().copied(), draw)
}

#[test]
fn a_late_request_goes_to_the_most_accurate_backup_that_makes_up_for_it() {
    let backups = [
        backup(0, 26, 1.0),
        backup(1, 25, 0.8),
        backup(2, 10, 0.9),
        backup(3, 5, 0.7),
    ];
    assert_eq!(opportunistic(&LATE_BY_5, &backups, 0.5), Decision::Reroute(2));
    assert_eq!(
        opportunistic(&LATE_BY_5, &backups[..2], 0.5),
        Decision::Reroute(1)
    );
    let too_slow = opportunistic(&LATE_BY_5, &backups[..1], 0.5);
    assert_eq!(too_slow, Decision::Drop(Dropped::NoBackup { late_us: 5 }));
    let on_time = Forwarding {
        spent_us: 20,
        ..LATE_BY_5
    };
    assert_eq!(opportunistic(&on_time, &backups, 0.5), Decision::Forward);
}

#[test]
fn what_is_later_than_the_next_task_is_long_cannot_be_made_up_for() {
    let hopeless = Forwarding {
        spent_us: 51,
        ..LATE_BY_5
    };
    let dropped = Decision::Drop(Dropped::NoBackup { late_us: 31 });
    assert_eq!(opportunistic(&hopeless, &[backup(0, 0, 1.0)], 0.0), dropped);
}

#[test]
fn a_backup_that_ends_too_late_is_passed_over() {
    let hurried = Forwarding {
        left_us: Some(9),
        ..LATE_BY_5
    };
    let backups = [backup(0, 10, 1.0), backup(1, 9, 0.5)];
    assert_eq!(opportunistic(&hurried, &backups, 0.0), Decision::Reroute(1));
}

#[test]
fn ties_are_drawn_evenly() {
    let backups = [
        backup(0, 10, 0.9),
        backup(1, 9, 0.5),
        backup(2, 12, 0.9),
        backup(3, 25, 0.9),
    ];
    let mut counts = [0; 4];
    for draw in 0..300 {
        match opportunistic(&LATE_BY_5, &backups, f64::from(draw) / 300.0) {
            Decision::Reroute(replica) => counts[replica as usize] += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(counts, [100, 0, 100, 100]);
}

#[test]
fn the_naive_mechanisms_do_as_named() {
    let with = |dropping, forwarding: &Forwarding| {
        decide(dropping, forwarding, [backup(0, 1, 1.0)].iter().copied(), 0.0)
    };
    assert_eq!(with(Dropping::None, &LATE_BY_5), Decision::Forward);
    let over = Decision::Drop(Dropped::OverBudget { late_us: 5 });
    assert_eq!(with(Dropping::PerTask, &LATE_BY_5), over);
    let without_budget = Forwarding {
        budget_us: None,
        ..LATE_BY_5
    };
    assert_eq!(with(Dropping::PerTask, &without_budget), Decision::Forward);
    let mut last = Forwarding {
        left_us: Some(29),
        ..LATE_BY_5
    };
    assert_eq!(
        with(Dropping::LastTask, &last),
        Decision::Forward,
        "not the last task"
    );
    last.last = true;
    let no_time = Decision::Drop(Dropped::NoTime {
        left_us: 29,
        run_us: 30,
    });
    assert_eq!(with(Dropping::LastTask, &last), no_time);
    last.left_us = Some(30);
    assert_eq!(with(Dropping::LastTask, &last), Decision::Forward);
    last.left_us = None;
    assert_eq!(with(Dropping::LastTask, &last), Decision::Forward);
}

#[test]
fn by_slack_the_rest_of_the_path_counts_and_no_budget() {
    let tight = Forwarding {
        left_us: Some(70),
        after_us: 40,
        ..LATE_BY_5
    };
    let slack = |forwarding: &Forwarding, backups: &[Backup<u32>]| {
        decide(Dropping::Slack, forwarding, backups.iter().copied(), 0.0)
    };
    assert_eq!(
        slack(&tight, &[]),
        Decision::Forward,
        "late for its budget, in time for its answer"
    );
    let tighter = Forwarding {
        left_us: Some(69),
        ..tight
    };
    let dropped = Decision::Drop(Dropped::NoSlack {
        left_us: 69,
        path_us: 70,
    });
    assert_eq!(slack(&tighter, &[backup(0, 70, 1.0)]), dropped);
    let backups = [
        backup(0, 29, 0.7),
        Backup {
            after_us: 50,
            ..backup(1, 29, 0.9)
        },
        backup(2, 69, 0.8),
    ];
    assert_eq!(slack(&tighter, &backups), Decision::Reroute(2));
    let unbounded = Forwarding {
        left_us: None,
        ..tighter
    };
    assert_eq!(slack(&unbounded, &backups), Decision::Forward);
}

fn forwardings() -> impl Strategy<Value = Forwarding> {
    let budget = prop::option::of(0..100_u64);
    let left = prop::option::of(0..100_u64);
    (0..100_u64, budget, left, 0..100_u64, any::<bool>()).prop_map(
        |(spent_us, budget_us, left_us, run_us, last)| Forwarding {
            spent_us,
            budget_us,
            left_us,
            run_us,
            after_us: 0,
            last,
        },
    )
}

fn backups() -> impl Strategy<Value = Vec<Backup<u32>>> {
    let one = (0..100_u64, 0..5_u32);
    prop::collection::vec(one, 0..8).prop_map(|list| {
        let backups = (0..).zip(list);
        backups
            .map(|(replica, (run_us, accuracy))| backup(replica, run_us, f64::from(accuracy) / 4.0))
            .collect()
    })
}

proptest! {
    #[test]
    fn a_reroute_makes_up_for_the_delay_and_nothing_better_does(
        forwarding in forwardings(),
        backups in backups(),
        draw in 0.0..1.0_f64,
    ) {
        let late = forwarding.late_us();
        let makes_up = |backup: &&Backup<u32>| {
            backup.run_us + late <= forwarding.run_us
                && forwarding.left_us.is_none_or(|left| backup.run_us <= left)
        };
        match opportunistic(&forwarding, &backups, draw) {
            Decision::Forward => prop_assert_eq!(late, 0),
            Decision::Reroute(replica) => {
                let chosen = &backups[replica as usize];
                prop_assert!(late > 0 && makes_up(&chosen));
                prop_assert!(backups.iter().filter(makes_up).all(|other| other.accuracy <= chosen.accuracy));
            }
            Decision::Drop(Dropped::NoBackup { late_us }) => {
                prop_assert!(late > 0 && late_us == late);
                prop_assert_eq!(backups.iter().filter(makes_up).count(), 0);
            }
            Decision::Drop(other) => prop_assert!(false, "{:?}", other),
        }
    }

    /// Per-task dropping drops all that rerouting drops, and all that it saves.
    #[test]
    fn rerouting_saves_some_of_what_per_task_dropping_drops(
        forwarding in forwardings(),
        backups in backups(),
        draw in 0.0..1.0_f64,
    ) {
        let per_task = decide(Dropping::PerTask, &forwarding, backups.iter().copied(), draw);
        let rerouting = opportunistic(&forwarding, &backups, draw);
        prop_assert_eq!(per_task == Decision::Forward, rerouting == Decision::Forward);
    }

    #[test]
    fn no_naive_mechanism_reroutes(forwarding in forwardings(), backups in backups()) {
        for dropping in [Dropping::None, Dropping::LastTask, Dropping::PerTask] {
            let decision = decide(dropping, &forwarding, backups.iter().copied(), 0.5);
            prop_assert!(!matches!(decision, Decision::Reroute(_)));
        }
    }
}
