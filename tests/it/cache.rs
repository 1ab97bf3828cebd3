//! `plan cache` from the outside.

use std::process::Output;

use kaskade_testkit::{json, kaskade};
use serde_json::Value;

fn refusal(output: &Output, code: i32) -> String {
    let message = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(code), "{message}");
    message
}

const LOAD: [&str; 6] = [
    "--requests",
    "32",
    "--prompt-tokens",
    "512",
    "--output-tokens",
    "8",
];

#[test]
fn a_cache_is_planned_beside_its_ends() {
    let folder = tempfile::tempdir().unwrap();
    let plan = [&["plan", "cache", "--model", "opt-13b"], &LOAD[..]].concat();
    let found = json(&kaskade(folder.path(), &[&plan[..], &["--json"]].concat()));
    let plans = found["plans"].as_array().unwrap();
    let modes: Vec<&str> = plans.iter().map(|plan| plan["mode"].as_str().unwrap()).collect();
    assert_eq!(modes, ["hybrid", "kv", "act"]);
    let step = |plan: &Value| plan["predicted_step_s"].as_f64().unwrap();
    for end in &plans[1..] {
        assert!(step(&plans[0]) <= step(end), "{found}");
        let arena: u64 = end["arena"]
            .as_object()
            .unwrap()
            .values()
            .map(|bytes| bytes.as_u64().unwrap())
            .sum();
        assert!(arena <= found["hardware"]["device_bytes"].as_u64().unwrap());
    }
    // 32 requests of 516 tokens in the middle are 33 blocks each.
    for plan in plans {
        let blocks = ["device", "host"].map(|place| {
            let of = |kind: &str| plan[place][kind].as_u64().unwrap();
            of("act") + of("kv")
        });
        assert_eq!(blocks.iter().sum::<u64>(), 32 * 33, "{plan}");
    }
    let text = kaskade(folder.path(), &plan);
    let text = String::from_utf8(text.stdout).unwrap();
    for said in [
        "hybrid",
        "KV only",
        "ACT only",
        "tokens/s",
        "Algorithm 1",
        "RTX 4090",
    ] {
        assert!(text.contains(said), "{said}: {text}");
    }
}

#[test]
fn a_faster_link_wants_fewer_activations() {
    let folder = tempfile::tempdir().unwrap();
    let share = |link: &str| {
        let plan = [
            "plan",
            "cache",
            "--model",
            "opt-30b",
            "--link-bandwidth",
            link,
            "--json",
        ];
        let found = json(&kaskade(folder.path(), &[&plan[..], &LOAD].concat()));
        assert_eq!(found["hardware"]["name"], "stated on the command line");
        found["plans"][0]["act_share"].as_f64().unwrap()
    };
    let shares = ["8GB", "100GB", "2000GB"].map(share);
    assert!(shares[0] >= shares[1] && shares[1] > shares[2], "{shares:?}");
}

#[test]
fn a_shape_is_read_from_a_config_and_refused_by_its_key() {
    let folder = tempfile::tempdir().unwrap();
    let config = r#"{"model_type": "llama", "num_hidden_layers": 4, "hidden_size": 1024, "intermediate_size": 2048,
        "num_attention_heads": 8, "num_key_value_heads": 2, "max_position_embeddings": 1024, "vocab_size": 1000}"#;
    std::fs::write(folder.path().join("config.json"), config).unwrap();
    let plan = [
        "plan",
        "cache",
        "--config",
        "config.json",
        "--device-memory",
        "200MB",
        "--json",
    ];
    let found = json(&kaskade(folder.path(), &[&plan[..], &LOAD].concat()));
    // Four heads share keys and values: activations are twice as large, so the plan caches none.
    assert_eq!(found["shape"]["kv_width"], 256);
    assert_eq!(found["plans"][0]["act_share"], 0.0);
    std::fs::write(
        folder.path().join("config.json"),
        config.replace("hidden_size", "size"),
    )
    .unwrap();
    assert!(refusal(&kaskade(folder.path(), &plan), 1).contains("`hidden_size`"));
    let small = ["plan", "cache", "--model", "opt-66b", "--device-memory", "2GB"];
    assert!(refusal(&kaskade(folder.path(), &small), 1).contains("does not fit"));
    let unknown = ["plan", "cache", "--model", "opt-175b"];
    assert!(refusal(&kaskade(folder.path(), &unknown), 2).contains("opt-66b"));
}
