//! Makes the corpus from messages, and from files of this repository. What `libFuzzer` finds may stand beside it.

use std::fs;
use std::io;

use kaskade_policy::profile::Profile;
use serde_json::{Value, json};

use crate::corpus::repository;
use crate::kinds::{AS_BYTES, AS_EDITS, KINDS, target_of};
use crate::messages::examples;

/// Writes the corpus of every target. Other files in it stay.
///
/// # Errors
/// Where a file cannot be read or written.
pub fn write() -> io::Result<()> {
    plans()?;
    traces()?;
    wire()?;
    names()?;
    files()?;
    scripts()
}

fn put(target: &str, name: &str, bytes: impl AsRef<[u8]>) -> io::Result<()> {
    let folder = repository().join("fuzz/corpus").join(target);
    fs::create_dir_all(&folder)?;
    fs::write(folder.join(name), bytes)
}

fn read(path: &str) -> io::Result<Vec<u8>> {
    let bytes = fs::read(repository().join(path));
    bytes.map_err(|error| io::Error::new(error.kind(), format!("{path}: {error}")))
}

fn read_text(path: &str) -> io::Result<String> {
    String::from_utf8(read(path)?).map_err(|_| io::Error::other(format!("{path}: not UTF-8")))
}

fn plans() -> io::Result<()> {
    let snapshots = [
        (
            "cascade.json",
            "plans/planners/src/snapshots/kaskade_planners__cascade__tests__ap_plan.snap",
        ),
        (
            "gears.json",
            "plans/planners/src/gears/snapshots/kaskade_planners__gears__planner__tests__small_gear_plan.snap",
        ),
        (
            "pipeline.json",
            "plans/planners/src/allocate/snapshots/kaskade_planners__allocate__emit__tests__an_allocation_becomes_a_plan.snap",
        ),
    ];
    for (name, snapshot) in snapshots {
        let text = read_text(snapshot)?;
        let plan = text.splitn(3, "---\n").nth(2).unwrap_or_default();
        put("plan", name, compact(plan))?;
    }
    put("plan", "partitions.json", partitions().to_string())?;
    put(
        "pipeline",
        "traffic.json",
        compact(&read_text("examples/traffic/pipeline.json")?),
    )?;
    put(
        "profile",
        "family.json",
        short_profile(&read_text("examples/digits/profile.json")?),
    )
}

fn compact(json: &str) -> String {
    let value: Value = serde_json::from_str(json).expect("the file is JSON");
    value.to_string()
}

/// The first variants and answers of a profile: a file of hundreds is mutated no better.
fn short_profile(text: &str) -> String {
    let mut profile = Profile::from_json(text).expect("the file is a profile");
    profile.samples = 12;
    profile.variants.truncate(2);
    for variant in &mut profile.variants {
        variant.costs.truncate(3);
        variant.validation.predictions.truncate(12);
        variant.validation.confidences.truncate(12);
        variant.validation.correct.truncate(12);
    }
    profile.to_json().expect("a shorter profile is sound")
}

/// What no planner's snapshot holds: a model in two partitions, and an ensemble.
fn partitions() -> Value {
    let batching = json!({"min_queue": 1, "max_batch": 8, "max_wait_us": 2000});
    let replica =
        |id: &str, variant: &str| json!({"id": id, "variant": variant, "worker": "a", "device": "cpu"});
    let partition = |id: &str, index: u32| {
        let partition = json!({"index": index, "of": 2});
        json!({"id": id, "variant": "cut", "worker": id, "device": "cuda:0", "partition": partition})
    };
    let member =
        |name: &str| json!({"name": name, "variant": name, "exit": {"kind": "reply"}, "batching": batching});
    let to_back = json!({"stage": "back", "shares": {"back-0": 1.0}, "pairs": {"front-0": "back-0"}});
    let front = json!({"name": "front", "variant": "cut", "partition": {"index": 0, "of": 2},
        "exit": {"kind": "next", "to": to_back}, "batching": batching});
    let back = json!({"name": "back", "variant": "cut", "partition": {"index": 1, "of": 2},
        "exit": {"kind": "reply"}, "batching": batching, "budget_us": 100_000});
    json!({
        "version": 1,
        "app": "made-up",
        "made_by": "hand",
        "variants": [{"name": "cut"}, {"name": "one"}, {"name": "two"}],
        "placement": [partition("front-0", 0), partition("back-0", 1), replica("one-0", "one"), replica("two-0", "two")],
        "sharing": "exclusive",
        "slo": {"on": "accuracy", "at_least": 0.9},
        "gears": [
            {"name": "partitions", "load": {"from_qps": 0.0, "to_qps": 10.0},
             "wiring": {"entry": {"stage": "front"}, "stages": [front, back]}},
            {"name": "votes", "load": {"from_qps": 10.0},
             "wiring": {"entry": {"stage": "one"}, "ensemble": [{"stage": "two"}], "stages": [member("one"), member("two")]}},
        ],
    })
}

fn traces() -> io::Result<()> {
    put("trace", "counts.txt", "12 0 7\n3\n\n40 41 39\n")?;
    put(
        "trace",
        "times.txt",
        "# seconds\n0\n0.25\n0.25\n\n1.5\n9.999999\n",
    )?;
    let azure = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n\
        2023-11-16 18:15:46.6805900,374,44\r\n\
        2023-11-16 18:15:50.9951690,396,109\r\n\
        2023-11-17 00:00:00,879,55\r\n";
    put("trace", "azure.csv", azure)?;
    put("branch", "root.txt", "")?;
    put("branch", "two-levels.txt", "classify.3/colour.0")
}

fn wire() -> io::Result<()> {
    for example in examples() {
        put("wire", &format!("{}.msgpack", example.name), &example.bytes)?;
        if let Some(target) = target_of(example.message) {
            let bytes = [&[AS_BYTES], &*example.bytes].concat();
            put(target, &format!("{}.bytes", example.name), bytes)?;
        }
        let has_body = ["InferRequest", "InferReply", "PlanRequest", "PlanReport"].contains(&example.message);
        if let Some(json) = example.json.filter(|_| has_body) {
            put("body", &format!("{}.json", example.name), json)?;
        }
    }
    let fault = r#"{"error": {"code": "KSK0005", "message": "full"}}"#;
    put("body", "fault.json", fault)?;
    let nested = r#"{"inputs": [{"name": "image", "shape": [2, 2], "datatype": "FP32", "data": [[0, 0.5], [0.25, 1e0]]}]}"#;
    put("body", "nested.json", nested)?;
    put("body", "media-type.txt", "Application/JSON; charset=utf-8")
}

fn names() -> io::Result<()> {
    let subjects = "digits\nworker-1\nkaskade.digits.infer\nkaskade.digits.stage.small\n\
        kaskade.digits.done.a-1.18446744073709551615.1.1-0123456789abcdef-fedcba9876543210\nkaskade.digits.event.load\n$SRV.PING.digits\n_INBOX.x";
    put("subjects", "all.txt", subjects)?;
    put(
        "subjects",
        "hostile.txt",
        "a\na.b c\r\nkaskade.a.beat.*\nkaskade.a.>\nkaskade.a.done.b.+1.+1.1-2-3",
    )?;
    let headers = "Kaskade-Request-Id: 42\nKaskade-Budget-Us: 250000\nKaskade-Epoch: 7\n\
        Kaskade-Chunk: 00000000000000ff/0/3\ncontent-type: application/json\n\
        traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    put("headers", "request.txt", headers)?;
    put(
        "headers",
        "fault.txt",
        "Nats-Service-Error: full\nNats-Service-Error-Code: 429\nKaskade-Fault: KSK0005",
    )
}

fn files() -> io::Result<()> {
    for app in [
        "digits",
        "sentiment",
        "shakespeare",
        "critics",
        "remote",
        "traffic",
        "compose",
    ] {
        put(
            "app",
            &format!("{app}.toml"),
            read(&format!("examples/{app}/app.toml"))?,
        )?;
    }
    put(
        "weights",
        "mlp.safetensors",
        read("models/fixtures/mlp/model.safetensors")?,
    )?;
    put(
        "weights",
        "digit-tiny.safetensors",
        read("examples/traffic/weights/digit-tiny/model.safetensors")?,
    )?;
    put("weights", "types.safetensors", types())?;
    for file in ["archive.bin", "sequence.bin"] {
        put("weights", file, read(&format!("models/fixtures/pytorch/{file}"))?)?;
    }
    for fixture in ["llama-q4", "qwen2"] {
        let file = read(&format!("models/fixtures/gguf/{fixture}/model.gguf"))?;
        put("gguf", &format!("{fixture}.gguf"), file)?;
    }
    for fixture in ["mlp", "cnn", "vit", "bert-classification", "gpt2", "llama", "t5"] {
        let config = read(&format!("models/fixtures/{fixture}/config.json"))?;
        put("hf_config", &format!("{fixture}.json"), config)?;
    }
    put(
        "idx",
        "images.idx3",
        [
            &[0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2][..],
            &[1, 2, 3, 4],
        ]
        .concat(),
    )?;
    put("idx", "labels.idx1", [0, 0, 8, 1, 0, 0, 0, 2, 7, 9])
}

/// A file with a tensor of each type that is served, one that is not, and one of nothing.
fn types() -> Vec<u8> {
    let tensor = |dtype: &str, shape: Value, from: u32, to: u32| json!({"dtype": dtype, "shape": shape, "data_offsets": [from, to]});
    let header = json!({
        "__metadata__": {"format": "pt"},
        "f32.weight": tensor("F32", json!([2]), 0, 8),
        "f16.bias": tensor("F16", json!([1, 2]), 8, 12),
        "bf16.gamma": tensor("BF16", json!([]), 12, 14),
        "position_ids": tensor("I64", json!([1]), 14, 22),
        "nothing": tensor("F32", json!([0, 4]), 22, 22),
    })
    .to_string();
    let length = header.len() as u64;
    [&length.to_le_bytes(), header.as_bytes(), &[0x3c; 22]].concat()
}

/// Where the input is a list of decisions, a few of them to begin with.
fn scripts() -> io::Result<()> {
    for target in [
        "plan_edited",
        "profile_edited",
        "pipeline_edited",
        "chunks",
        "checkpoint",
    ] {
        for seed in 0..15 {
            put(target, &format!("{seed:02}.script"), script(seed))?;
        }
    }
    for target in KINDS {
        for seed in 0..3 {
            let edits = [&[AS_EDITS], script(seed).as_slice()].concat();
            put(target.name, &format!("{seed:02}.script"), edits)?;
        }
    }
    Ok(())
}

/// The first decision is often which template; every seed takes another one.
fn script(seed: u8) -> Vec<u8> {
    let decisions = (0..32).map(|at: u8| at.wrapping_mul(37).wrapping_add(seed));
    std::iter::once(seed).chain(decisions).collect()
}
