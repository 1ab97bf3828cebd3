//! Tasks: several stages that share the work of one, by variant.

use proptest::prelude::*;

use crate::plan::{
    Batching, Child, Dropping, Edge, Exit, Plan, PlannedVariant, Profiled, Replica, Stage, Wiring,
};

fn stage(task: &str, variant: &str, exit: Exit) -> Stage {
    Stage {
        score: None,
        name: format!("{task}-{variant}"),
        task: Some(task.into()),
        variant: variant.into(),
        partition: None,
        exit,
        batching: Batching::default(),
        budget_us: Some(20_000),
        profiled: Some(Profiled {
            run_us: 10_000,
            accuracy: 0.9,
        }),
    }
}

fn edge(stage: &str, shares: &[(&str, f64)], backup: &[&str]) -> Edge {
    Edge {
        shares: shares.iter().map(|(id, share)| ((*id).into(), *share)).collect(),
        backup: backup.iter().map(|id| (*id).into()).collect(),
        ..Edge::to(stage)
    }
}

/// Two detectors, then two classifiers; replica `x-0` runs variant `x`.
fn sound() -> Plan {
    let children = |multiplicity| Exit::FanOut {
        children: vec![Child {
            to: edge(
                "classify-large",
                &[("large-0", 0.5), ("small-0", 0.5)],
                &["small-0"],
            ),
            multiplicity,
        }],
    };
    let variants = ["fast", "exact", "small", "large", "other"];
    let replica = |variant: &&str| Replica::whole(format!("{variant}-0"), *variant, "w", "cpu");
    let variant = |name: &&str| PlannedVariant {
        name: (*name).into(),
        calibration: None,
    };
    let stages = vec![
        stage("detect", "fast", children(1.5)),
        stage("detect", "exact", children(3.0)),
        stage("classify", "small", Exit::Reply),
        stage("classify", "large", Exit::Reply),
    ];
    Plan {
        dropping: Dropping::Rerouting,
        ..Plan::one_gear(
            "digits",
            variants.iter().map(variant).collect(),
            variants.iter().map(replica).collect(),
            Wiring {
                entry: edge("detect-fast", &[("fast-0", 0.25), ("exact-0", 0.75)], &["fast-0"]),
                ensemble: Vec::new(),
                stages,
            },
        )
    }
}

fn after(change: impl FnOnce(&mut Wiring)) -> String {
    let mut plan = sound();
    change(&mut plan.gears[0].wiring);
    plan.validate()
        .expect_err("the plan should be unsound")
        .to_string()
}

fn children(wiring: &mut Wiring, stage: usize) -> &mut Vec<Child> {
    match &mut wiring.stages[stage].exit {
        Exit::FanOut { children } => children,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_pipeline_of_tasks_passes_and_survives_the_file() {
    let plan = sound();
    let text = plan.to_json().unwrap();
    assert_eq!(Plan::from_json(&text).unwrap(), plan);
    assert!(text.contains("\"dropping\": \"rerouting\""));
}

#[test]
fn what_no_pipeline_uses_is_not_in_the_file() {
    let mut plan = sound();
    plan.dropping = Dropping::None;
    for stage in &mut plan.gears[0].wiring.stages {
        (stage.task, stage.budget_us, stage.profiled) = (None, None, None);
    }
    plan.gears[0].wiring.entry = Edge::to("detect-fast");
    for place in [0, 1] {
        children(&mut plan.gears[0].wiring, place)[0].to = Edge::to("classify-large");
    }
    let text = plan.to_json().unwrap();
    for field in ["task", "budget_us", "profiled", "dropping"] {
        assert!(!text.contains(field), "{field}: {text}");
    }
}

#[test]
fn a_request_is_handled_at_the_stage_of_its_replicas_variant() {
    let mut plan = sound();
    let handled = |plan: &Plan, variant: &str| {
        let wiring = &plan.gears[0].wiring;
        let stage = wiring.stage_for(&wiring.entry, variant);
        stage.map(|stage| stage.name.clone())
    };
    assert_eq!(handled(&plan, "fast").as_deref(), Some("detect-fast"));
    assert_eq!(handled(&plan, "exact").as_deref(), Some("detect-exact"));
    assert_eq!(handled(&plan, "small"), None, "of another task");
    plan.gears[0].wiring.stages[0].task = None;
    assert_eq!(handled(&plan, "small").as_deref(), Some("detect-fast"));
}

#[test]
fn only_a_request_that_ends_with_one_answer_may_be_read_along() {
    let mut wiring = sound().gears.remove(0).wiring;
    assert!(!wiring.has_single_answer(), "branches are gathered");
    for stage in &mut wiring.stages {
        assert_eq!(stage.exit.always_replies(), stage.exit == Exit::Reply);
        stage.exit = Exit::Reply;
    }
    assert!(wiring.has_single_answer());
    wiring.ensemble.push(wiring.entry.clone());
    assert!(!wiring.has_single_answer(), "members vote");
}

#[test]
fn shares_and_backups_are_of_the_task() {
    let share = after(|wiring| wiring.entry.shares = [("small-0".to_owned(), 1.0)].into());
    assert!(
        share.starts_with("gears[0].wiring.entry.shares[\"small-0\"]: replica `small-0` runs `small`, and no stage of task `detect`"),
        "{share}"
    );
    let backup = after(|wiring| children(wiring, 1)[0].to.backup.push("other-0".into()));
    assert!(
        backup.starts_with("gears[0].wiring.stages[1].exit.children[0].to.backup[1]: replica `other-0` runs"),
        "{backup}"
    );
}

#[test]
fn stages_of_a_task_run_different_variants_and_do_not_reach_each_other() {
    let twice = after(|wiring| {
        wiring.stages[1].variant = "fast".into();
        wiring.entry = edge("detect-fast", &[], &[]);
    });
    assert!(
        twice.starts_with("gears[0].wiring.stages[1].variant: task `detect` has a stage of `fast`"),
        "{twice}"
    );
    // From the first detector straight to the second.
    let direct = after(|wiring| children(wiring, 0)[0].to = edge("detect-exact", &[], &[]));
    assert!(
        direct.starts_with(
            "gears[0].wiring.stages[0].exit.children[0].to.stage: leads to task `detect`, whose stage `detect-fast`"
        ),
        "{direct}"
    );
    // Through another task.
    let through = after(|wiring| wiring.stages.swap(1, 2));
    assert!(through.contains("leads to task `classify`"), "{through}");
}

#[test]
fn early_dropping_has_what_it_goes_by() {
    let without = |dropping: Dropping, change: fn(&mut Stage)| {
        let mut plan = sound();
        plan.dropping = dropping;
        change(&mut plan.gears[0].wiring.stages[2]);
        plan.validate().err().map(|invalid| invalid.to_string())
    };
    let budget = |stage: &mut Stage| stage.budget_us = None;
    let profiled = |stage: &mut Stage| stage.profiled = None;
    assert_eq!(without(Dropping::None, budget), None);
    assert_eq!(without(Dropping::LastTask, budget), None);
    assert_eq!(without(Dropping::PerTask, profiled), None);
    for dropping in [Dropping::PerTask, Dropping::Rerouting] {
        let error = without(dropping, budget).unwrap();
        assert!(
            error.starts_with("gears[0].wiring.stages[2].budget_us: is missing"),
            "{error}"
        );
    }
    for dropping in [Dropping::LastTask, Dropping::Rerouting] {
        let error = without(dropping, profiled).unwrap();
        assert!(
            error.starts_with("gears[0].wiring.stages[2].profiled: is missing"),
            "{error}"
        );
    }
    let zero = after(|wiring| wiring.stages[0].budget_us = Some(0));
    assert!(
        zero.starts_with("gears[0].wiring.stages[0].budget_us: 0 is not"),
        "{zero}"
    );
    let accuracy = after(|wiring| wiring.stages[0].profiled.as_mut().unwrap().accuracy = 1.5);
    assert!(
        accuracy.contains("stages[0].profiled.accuracy: 1.5"),
        "{accuracy}"
    );
    let run = after(|wiring| wiring.stages[0].profiled.as_mut().unwrap().run_us = 0);
    assert!(run.contains("stages[0].profiled.run_us: 0"), "{run}");
    let name = after(|wiring| wiring.stages[0].task = Some("a.b".into()));
    assert!(name.contains("`a.b` is not a valid name"), "{name}");
}

proptest! {
    /// However tasks are given to stages, a sound plan lets no request come to a task twice.
    #[test]
    fn no_way_leads_to_a_task_twice(
        tasks in prop::collection::vec(prop::option::of(0..3_usize), 4),
        steps in prop::collection::vec(0..4_usize, 4),
    ) {
        let mut plan = sound();
        plan.dropping = Dropping::None;
        let wiring = &mut plan.gears[0].wiring;
        wiring.entry = Edge::to("s0");
        for (place, stage) in wiring.stages.iter_mut().enumerate() {
            stage.name = format!("s{place}");
            stage.task = tasks[place].map(|task| format!("t{task}"));
            let to = place + steps[place];
            stage.exit = if (place + 1..4).contains(&to) {
                Exit::Next { to: Edge::to(format!("s{to}")) }
            } else {
                Exit::Reply
            };
        }
        if plan.validate().is_err() {
            return Ok(());
        }
        let wiring = &plan.gears[0].wiring;
        // Any stage of a task may be the one that is come to, so all ways are walked.
        let mut ways: Vec<Vec<&Stage>> = wiring.stages.iter().map(|stage| vec![stage]).collect();
        while let Some(way) = ways.pop() {
            let last = way[way.len() - 1];
            prop_assert!(way[..way.len() - 1].iter().all(|before| !before.is_sibling(last)), "{way:?}");
            if let Exit::Next { to } = &last.exit {
                let named = wiring.stages.iter().find(|stage| stage.name == to.stage).unwrap();
                ways.extend(wiring.siblings(named).map(|next| [&way[..], &[next]].concat()));
            }
        }
    }
}

#[test]
fn a_request_may_move_on_from_a_stage_that_forwards_or_fans_out() {
    let tasks = sound().gears.remove(0).wiring;
    let moves_on = |wiring: &Wiring, stage: &str| {
        let edge = Edge::to(stage);
        [false, true].map(|returns| wiring.may_be_forwarded(&edge, returns))
    };
    // Any sibling may be the one that runs it.
    assert_eq!(
        moves_on(&tasks, "detect-fast"),
        [true, true],
        "children are sent on"
    );
    assert_eq!(moves_on(&tasks, "classify-small"), [false, false]);
    assert_eq!(moves_on(&tasks, "unknown"), [false, false]);
    let cascade = Plan::cascade("a").stage("first", "small").below(0.5);
    let mut cascade = cascade
        .then("second", "large")
        .build()
        .unwrap()
        .gears
        .remove(0)
        .wiring;
    assert_eq!(
        moves_on(&cascade, "first"),
        [true, false],
        "the ingress forwards it"
    );
    assert_eq!(moves_on(&cascade, "second"), [false, false]);
    cascade.stages[0].exit = Exit::Next {
        to: Edge::to("second"),
    };
    assert_eq!(moves_on(&cascade, "first"), [true, false]);
}
