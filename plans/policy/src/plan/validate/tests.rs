use proptest::prelude::*;

use crate::confidence::{Calibration, Estimator};
use crate::plan::{
    Band, Batching, Child, Edge, Exit, Expected, LoadRange, Plan, PlannedVariant, Replica, Sharing, Slo,
    Stage, Target, Wiring,
};

fn variant(name: &str) -> PlannedVariant {
    PlannedVariant {
        name: name.into(),
        calibration: Some(Calibration {
            estimator: Estimator::MaxSquared,
            temperature: 1.5,
        }),
    }
}

fn replica(id: &str, variant: &str) -> Replica {
    Replica::whole(id, variant, "w", "cpu")
}

fn stage(variant: &str, exit: Exit) -> Stage {
    Stage::new(variant, variant, exit, Batching::default())
}

fn band(from: f64, to: Option<&str>) -> Band {
    to.map_or(Band::reply(from), |stage| Band::forward(from, Edge::to(stage)))
}

/// Three stages: tiny skips to large below 0.25, forwards to middle below 0.75.
fn sound() -> Plan {
    let mut entry = Edge::to("tiny");
    entry.shares = [("t1".to_owned(), 0.25), ("t2".to_owned(), 0.75)].into();
    entry.backup = vec!["t2".into()];
    let bands = vec![
        band(0.0, Some("large")),
        band(0.25, Some("middle")),
        band(0.75, None),
    ];
    Plan::one_gear(
        "digits",
        ["tiny", "middle", "large"].map(variant).to_vec(),
        vec![
            replica("t1", "tiny"),
            replica("t2", "tiny"),
            replica("m", "middle"),
            replica("g", "large"),
        ],
        Wiring {
            entry,
            ensemble: Vec::new(),
            stages: vec![
                stage("tiny", Exit::Bands { bands }),
                stage(
                    "middle",
                    Exit::Next {
                        to: Edge::to("large"),
                    },
                ),
                stage("large", Exit::Reply),
            ],
        },
    )
}

/// Returns the validation error after a change of a valid plan.
fn after(change: impl FnOnce(&mut Plan)) -> String {
    let mut plan = sound();
    change(&mut plan);
    plan.validate()
        .expect_err("the plan should be unsound")
        .to_string()
}

fn bands(plan: &mut Plan) -> &mut Vec<Band> {
    match &mut plan.gears[0].wiring.stages[0].exit {
        Exit::Bands { bands } => bands,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_sound_plan_passes_and_survives_the_file() {
    let plan = sound();
    let text = plan.to_json().unwrap();
    assert_eq!(Plan::from_json(&text).unwrap(), plan);
    assert_eq!(Plan::from_json(&text).unwrap().to_json().unwrap(), text);
}

#[test]
fn bands_ascend_from_zero_within_the_unit_interval() {
    let from = "gears[0].wiring.stages[0].exit.bands";
    assert!(after(|plan| bands(plan)[0].from = 0.1).starts_with(&format!("{from}[0].from: 0.1 is not 0")));
    assert!(
        after(|plan| bands(plan)[2].from = 0.25).starts_with(&format!("{from}[2].from: 0.25 is not above"))
    );
    for bad in [f64::NAN, -0.5, 1.5, f64::INFINITY] {
        assert!(after(|plan| bands(plan)[1].from = bad).starts_with(&format!("{from}[1].from: ")));
    }
    assert!(after(|plan| bands(plan).clear()).starts_with(&format!("{from}: is empty")));
}

#[test]
fn edges_lead_to_later_stages_that_exist() {
    let back = after(|plan| {
        plan.gears[0].wiring.stages[1].exit = Exit::Next {
            to: Edge::to("middle"),
        }
    });
    assert!(
        back.starts_with("gears[0].wiring.stages[1].exit.to.stage: leads to `middle`"),
        "{back}"
    );
    let nowhere = after(|plan| bands(plan)[0].to = Target::Stage(Edge::to("nowhere")));
    assert!(
        nowhere.starts_with(
            "gears[0].wiring.stages[0].exit.bands[0].to.stage.stage: there is no stage `nowhere`"
        ),
        "{nowhere}"
    );
    assert!(
        after(|plan| plan.gears[0].wiring.entry.stage = "x".into())
            .starts_with("gears[0].wiring.entry.stage: ")
    );
}

#[test]
fn names_are_unique_subject_tokens() {
    for bad in ["", "a.b", "a b", "*", ">", "ä", &"x".repeat(65)] {
        assert!(after(|plan| plan.app = bad.into()).starts_with("app: "), "{bad}");
    }
    assert!(
        after(|plan| plan.placement[2].id = "t1".into()).starts_with("placement[2].id: `t1` is a duplicate")
    );
    assert!(after(|plan| plan.variants[1].name = "tiny".into()).starts_with("variants[1].name: "));
    assert!(after(|plan| plan.gears[0].wiring.stages[2].name = "tiny".into()).contains("stages[2].name"));
}

#[test]
fn a_stage_that_exits_by_confidence_is_calibrated() {
    let missing = after(|plan| plan.variants[0].calibration = None);
    assert!(
        missing.contains("stages[0].variant: `tiny` exits by confidence and has no calibration"),
        "{missing}"
    );
    let mut plan = sound();
    plan.variants[2].calibration = None;
    plan.validate().unwrap();
    let cold = after(|plan| {
        plan.variants[2] = PlannedVariant {
            calibration: Some(Calibration {
                estimator: Estimator::Margin,
                temperature: 0.0,
            }),
            ..variant("large")
        }
    });
    assert!(
        cold.starts_with("variants[2].calibration.temperature: 0 is not positive"),
        "{cold}"
    );
}

#[test]
fn every_stage_has_a_replica_of_a_known_variant() {
    assert!(after(|plan| drop(plan.placement.remove(3))).contains("stages[2].variant: no replica"));
    assert!(
        after(|plan| plan.placement[0].variant = "x".into())
            .starts_with("placement[0].variant: there is no variant")
    );
    assert!(
        after(|plan| plan.gears[0].wiring.stages[1].variant = "x".into()).contains("there is no variant `x`")
    );
    assert!(
        after(|plan| plan.placement[0].partition = Some(crate::plan::Partition { index: 2, of: 2 }))
            .starts_with("placement[0].partition.index")
    );
}

#[test]
fn shares_sum_to_one_over_the_replicas_of_the_stage() {
    let entry = |plan: &mut Plan, shares: &[(&str, f64)]| {
        plan.gears[0].wiring.entry.shares = shares
            .iter()
            .map(|(id, share)| ((*id).to_owned(), *share))
            .collect();
    };
    let sum = after(|plan| entry(plan, &[("t1", 0.5), ("t2", 0.6)]));
    assert!(
        sum.starts_with("gears[0].wiring.entry.shares: the shares sum to 1.1"),
        "{sum}"
    );
    let other = after(|plan| entry(plan, &[("t1", 0.5), ("g", 0.5)]));
    assert!(
        other.starts_with("gears[0].wiring.entry.shares[\"g\"]: replica `g` runs `large`"),
        "{other}"
    );
    assert!(after(|plan| entry(plan, &[("missing", 1.0)])).contains("there is no replica `missing`"));
    assert!(after(|plan| entry(plan, &[("t1", f64::NAN), ("t2", 1.0)])).contains("shares[\"t1\"]"));
    assert!(after(|plan| plan.gears[0].wiring.entry.backup.push("x".into())).contains("entry.backup[1]"));
}

#[test]
fn loads_ascend_without_overlap() {
    let two = |first: LoadRange, second: LoadRange| {
        move |plan: &mut Plan| {
            let mut gear = plan.gears[0].clone();
            gear.name = "second".into();
            gear.load = second;
            plan.gears[0].load = first;
            plan.gears.push(gear);
        }
    };
    let range = |from_qps, to_qps| LoadRange { from_qps, to_qps };
    assert!(after(two(LoadRange::ALL, range(10.0, None))).starts_with("gears[1].load: begins before"));
    assert!(after(two(range(0.0, Some(10.0)), range(9.0, None))).starts_with("gears[1].load: begins before"));
    assert!(after(two(range(5.0, Some(5.0)), range(9.0, None))).starts_with("gears[0].load.to_qps"));
    assert!(after(two(range(f64::NAN, Some(5.0)), range(9.0, None))).starts_with("gears[0].load.from_qps"));
    let mut plan = sound();
    two(range(0.0, Some(10.0)), range(10.0, None))(&mut plan);
    plan.validate().unwrap();
}

#[test]
fn batches_have_a_size_and_trees_children() {
    let zero = Batching {
        min_queue: 1,
        max_batch: 0,
        max_wait_us: 0,
    };
    assert!(after(|plan| plan.gears[0].wiring.stages[0].batching = zero).contains("batching.max_batch"));
    let never = Batching {
        min_queue: 9,
        max_batch: 8,
        max_wait_us: 0,
    };
    assert!(after(|plan| plan.gears[0].wiring.stages[0].batching = never).contains("batching.min_queue"));
    let fan_out = |multiplicity| Exit::FanOut {
        children: vec![Child {
            to: Edge::to("large"),
            multiplicity,
        }],
    };
    let mut plan = sound();
    plan.gears[0].wiring.stages[0].exit = fan_out(1.5);
    plan.validate().unwrap();
    // The simulator makes as many copies as the plan lists.
    for impossible in [f64::NAN, 0.0, 4097.0, 2e9] {
        assert!(
            after(|plan| plan.gears[0].wiring.stages[0].exit = fan_out(impossible))
                .contains("children[0].multiplicity"),
            "{impossible}"
        );
    }
}

#[test]
fn what_is_no_plan_is_refused_with_its_place() {
    assert!(after(|plan| plan.version = 2).starts_with("version: version 2 is not 1"));
    for text in ["", "{", "[]", "null", "{\"version\": 1}", &"[".repeat(100_000)] {
        assert!(Plan::from_json(text).is_err());
    }
    let unknown = sound()
        .to_json()
        .unwrap()
        .replacen("\"app\"", "\"colour\": 1, \"app\"", 1);
    let error = Plan::from_json(&unknown).unwrap_err().to_string();
    assert!(
        error.contains("unknown field `colour`") && error.contains("line"),
        "{error}"
    );
    let mut nan = sound();
    nan.gears[0].load.from_qps = f64::NAN;
    assert!(nan.to_json().is_err());
}

#[test]
fn the_committed_schema_is_the_one_of_the_types() {
    crate::schema_tests::committed("plan.schema.json", &Plan::json_schema());
}

proptest! {
    /// Numbers of up to 15 digits come back exactly, which is all that planners write.
    #[test]
    fn any_sound_plan_survives_the_file(
        thresholds in prop::collection::btree_set(1..1_000_000_u32, 0..6),
        temperature in 1..1_000_000_u32,
        share in 0..1_000_u32,
        batching in (1..100_u32, 0..100_u32, any::<u64>()),
        qps in 1..1_000_000_u32,
    ) {
        let mut plan = sound();
        let mut list = vec![band(0.0, Some("large"))];
        list.extend(thresholds.iter().map(|from| band(f64::from(*from) / 1e6, None)));
        *bands(&mut plan) = list;
        plan.variants[1].calibration = Some(Calibration {
            estimator: Estimator::TopK { k: 5 },
            temperature: f64::from(temperature) / 1e3,
        });
        let (share, rest) = (f64::from(share) / 1e3, f64::from(1_000 - share) / 1e3);
        plan.gears[0].wiring.entry.shares = [("t1".to_owned(), share), ("t2".to_owned(), rest)].into();
        let (min_queue, more, max_wait_us) = batching;
        plan.gears[0].wiring.stages[1].batching = Batching { min_queue, max_batch: min_queue + more, max_wait_us };
        plan.gears[0].load.to_qps = Some(f64::from(qps) / 1e3);
        let text = plan.to_json().unwrap();
        let read = Plan::from_json(&text).unwrap();
        prop_assert_eq!(read.to_json().unwrap(), text);
    }

    #[test]
    fn no_text_makes_the_reader_panic(text in ".{0,200}", cut in 0..4_000_usize) {
        let _ = Plan::from_json(&text);
        let sound = sound().to_json().unwrap();
        let cut = cut.min(sound.len());
        prop_assert!(cut == sound.len() || Plan::from_json(&sound[..cut]).is_err() || sound[cut..].trim().is_empty());
    }
}

#[test]
fn members_of_an_ensemble_are_different_and_reply() {
    let vote = |plan: &mut Plan, members: &[&str]| {
        let wiring = &mut plan.gears[0].wiring;
        wiring.entry = Edge::to("tiny");
        wiring.stages[0].exit = Exit::Reply;
        wiring.ensemble = members.iter().map(|name| Edge::to(*name)).collect();
    };
    let mut plan = sound();
    vote(&mut plan, &["large"]);
    plan.validate().unwrap();
    for (members, message) in [
        (
            &["large", "large"][..],
            "ensemble[1].stage: `large` is a duplicate",
        ),
        (&["tiny"], "ensemble[0].stage: `tiny` is a duplicate"),
        (&["huge"], "ensemble[0].stage: there is no stage `huge`"),
        (
            &["middle"],
            "`middle` is a member of an ensemble and does not exit by `reply`",
        ),
    ] {
        let error = after(|plan| vote(plan, members));
        assert!(error.contains(message), "{error}");
    }
}

#[test]
fn objectives_and_expectations_are_in_range() {
    let error = after(|plan| plan.slo = Some(Slo::Latency { p95_us: 0 }));
    assert!(error.starts_with("slo.p95_us"), "{error}");
    let error = after(|plan| plan.slo = Some(Slo::Accuracy { at_least: 1.5 }));
    assert!(error.starts_with("slo.at_least"), "{error}");
    let figures = Expected {
        time_share: 0.5,
        accuracy: 0.9,
        p95_us: 1000,
        utilisation: 0.7,
    };
    let error = after(|plan| {
        plan.gears[0].expected = Some(Expected {
            accuracy: f64::NAN,
            ..figures
        });
    });
    assert!(error.starts_with("gears[0].expected.accuracy"), "{error}");
    let mut plan = sound();
    plan.sharing = Sharing::Exclusive;
    plan.slo = Some(Slo::Latency { p95_us: 50_000 });
    plan.gears[0].expected = Some(figures);
    assert_eq!(Plan::from_json(&plan.to_json().unwrap()).unwrap(), plan);
}
