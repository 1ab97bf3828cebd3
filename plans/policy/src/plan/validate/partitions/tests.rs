use serde_json::{Value, json};

use crate::plan::Plan;

/// A small model, and a large one in two partitions, of which there are two copies.
fn sound() -> Value {
    let replica = |id: &str, variant: &str, partition: Option<u32>| match partition {
        None => json!({ "id": id, "variant": variant, "worker": "w", "device": "cpu" }),
        Some(index) => json!({
            "id": id, "variant": variant, "worker": "w", "device": "cpu",
            "partition": { "index": index, "of": 2 },
        }),
    };
    let batching = json!({ "min_queue": 1, "max_batch": 8, "max_wait_us": 1000 });
    json!({
        "version": 1,
        "app": "a",
        "made_by": "by hand",
        "variants": [
            { "name": "small", "calibration": { "estimator": { "kind": "margin" }, "temperature": 1.0 } },
            { "name": "large" },
        ],
        "placement": [
            replica("s", "small", None),
            replica("g0", "large", Some(0)),
            replica("g1", "large", Some(1)),
            replica("h0", "large", Some(0)),
            replica("h1", "large", Some(1)),
        ],
        "gears": [{
            "name": "only",
            "load": { "from_qps": 0.0 },
            "wiring": {
                "entry": { "stage": "small" },
                "stages": [
                    { "name": "small", "variant": "small", "batching": batching, "exit": { "kind": "bands", "bands": [
                        { "from": 0.0, "to": { "stage": { "stage": "front", "shares": { "g0": 0.5, "h0": 0.5 } } } },
                        { "from": 0.5, "to": "reply" },
                    ] } },
                    { "name": "front", "variant": "large", "partition": { "index": 0, "of": 2 }, "batching": batching,
                      "exit": { "kind": "next", "to": {
                          "stage": "back", "shares": { "g1": 0.5, "h1": 0.5 }, "pairs": { "g0": "g1", "h0": "h1" },
                      } } },
                    { "name": "back", "variant": "large", "partition": { "index": 1, "of": 2 }, "batching": batching,
                      "exit": { "kind": "reply" } },
                ],
            },
        }],
    })
}

/// Returns the validation error after this value was put into a valid plan.
fn with(place: &str, value: Value) -> String {
    let mut plan = sound();
    *plan.pointer_mut(place).unwrap() = value;
    Plan::from_json(&plan.to_string())
        .expect_err("the plan should be unsound")
        .to_string()
}

const STAGES: &str = "/gears/0/wiring/stages";

#[test]
fn a_chain_of_partitions_passes_and_survives_the_file() {
    let plan = Plan::from_json(&sound().to_string()).unwrap();
    assert_eq!(Plan::from_json(&plan.to_json().unwrap()).unwrap(), plan);
}

#[test]
fn only_the_last_partition_answers() {
    let early = with(&format!("{STAGES}/1/exit"), json!({ "kind": "reply" }));
    assert!(
        early.contains("stages[1].exit: is not `next`, and the stage runs partition 0 of 2"),
        "{early}"
    );
}

#[test]
fn partitions_follow_each_other_and_nothing_enters_in_the_middle() {
    let skipped = with(&format!("{STAGES}/2/partition"), json!({ "index": 0, "of": 2 }));
    assert!(
        skipped.contains("leads to partition 0 of 2 of `large` where only partition 1 of 2 can follow"),
        "{skipped}"
    );
    let entered = with("/gears/0/wiring/entry/stage", json!("back"));
    assert!(
        entered.contains(
            "entry.stage: leads to partition 1 of 2 of `large` where only partition 0 of 2 can follow"
        ),
        "{entered}"
    );
    let outside = with(&format!("{STAGES}/1/partition/index"), json!(2));
    assert!(
        outside.contains("2 is not below the number of partitions"),
        "{outside}"
    );
}

#[test]
fn shares_and_pairs_name_replicas_of_the_stages_partition() {
    let shares = format!("{STAGES}/1/exit/to/shares");
    let wrong = with(&shares, json!({ "g0": 1.0 }));
    assert!(
        wrong.contains("replica `g0` holds partition 0 of 2, and the stage partition 1 of 2"),
        "{wrong}"
    );
    let pairs = format!("{STAGES}/1/exit/to/pairs");
    let backwards = with(&pairs, json!({ "g1": "g0" }));
    assert!(
        backwards.contains("pairs[\"g1\"]: replica `g1` holds partition 1 of 2"),
        "{backwards}"
    );
    let unknown = with(&pairs, json!({ "g0": "missing" }));
    assert!(unknown.contains("there is no replica `missing`"), "{unknown}");
    let elsewhere = with(
        "/gears/0/wiring/entry",
        json!({ "stage": "small", "pairs": { "s": "s" } }),
    );
    assert!(
        elsewhere.contains("entry.pairs: applies to `next` only"),
        "{elsewhere}"
    );
}

#[test]
fn every_partition_has_a_replica_and_a_whole_model_is_no_partition() {
    let mut plan = sound();
    let placement = plan["placement"].as_array_mut().unwrap();
    for replica in placement
        .iter_mut()
        .filter(|replica| replica["partition"]["index"] == json!(1))
    {
        replica.as_object_mut().unwrap().remove("partition");
    }
    *plan.pointer_mut(&format!("{STAGES}/1/exit/to")).unwrap() = json!({ "stage": "back" });
    let missing = Plan::from_json(&plan.to_string()).unwrap_err().to_string();
    assert!(
        missing.contains("stages[2].variant: no replica in `placement` runs `large`, partition 1 of 2"),
        "{missing}"
    );
}
