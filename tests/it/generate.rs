//! `kaskade generate`: tokens do not depend on device memory, and refusals name a remedy.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use kaskade_testkit::ROOT;
use serde_json::Value;

const PROMPT: &str = "the inner thing, a tour";

fn command(args: &[&str]) -> Command {
    let generate = ["generate", "--model", "models/fixtures/gpt2"];
    kaskade_testkit::command(ROOT, &[&generate, args].concat())
}

fn generate(args: &[&str]) -> Output {
    command(args).output().unwrap()
}

fn json(args: &[&str]) -> Value {
    kaskade_testkit::json(&generate(&[args, &["--json"]].concat()))
}

fn refusal(args: &[&str]) -> String {
    let message = kaskade_testkit::refusal(&generate(args));
    assert_eq!(message.trim_end().lines().count(), 1, "{message}");
    message
}

#[test]
fn tokens_do_not_depend_on_the_cache_mode() {
    let prompts = [
        "--text",
        PROMPT,
        "--text",
        "on the one hand",
        "--max-tokens",
        "24",
    ];
    let resident = json(&prompts);
    assert_eq!(resident["tokens"], 48);
    assert_eq!(resident["loaded_bytes"], 0);
    for cache in ["hybrid", "kv", "act", "tokens"] {
        let bounded = [
            "--device-memory",
            "4MB",
            "--link-bandwidth",
            "200MB",
            "--cache",
            cache,
        ];
        let offloaded = json(&[&prompts[..], &bounded].concat());
        for (one, other) in [0, 1].map(|place| (&resident["answers"][place], &offloaded["answers"][place])) {
            assert_eq!(
                (&one["tokens"], &one["text"]),
                (&other["tokens"], &other["text"]),
                "{cache}"
            );
        }
    }
}

#[test]
fn an_answer_is_streamed_and_its_figures_are_printed_afterwards() {
    let whole = json(&["--text", PROMPT, "--max-tokens", "16"]);
    let shown = generate(&["--text", PROMPT, "--max-tokens", "16"]);
    let text = whole["answers"][0]["text"].as_str().unwrap();
    assert_eq!(
        String::from_utf8(shown.stdout).unwrap().trim_end(),
        text.trim_end()
    );
    let said = String::from_utf8(shown.stderr).unwrap();
    assert!(said.contains("16 tokens") && said.contains("a token"), "{said}");
    let mut piped = command(&["--text", "-", "--max-tokens", "16", "--json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    piped.stdin.take().unwrap().write_all(PROMPT.as_bytes()).unwrap();
    let read: Value = serde_json::from_slice(&piped.wait_with_output().unwrap().stdout).unwrap();
    assert_eq!(read["answers"][0]["text"], text);
}

#[test]
fn sampling_follows_the_seed_and_stop_texts_end_answers() {
    let drawn = |seed: &str| {
        let args = [
            "--text",
            PROMPT,
            "--temperature",
            "1.5",
            "--top-k",
            "40",
            "--seed",
            seed,
        ];
        json(&args)["answers"][0]["tokens"].clone()
    };
    assert_eq!(drawn("3"), drawn("3"));
    assert_ne!(drawn("3"), drawn("4"));
    let greedy = json(&["--text", PROMPT, "--max-tokens", "32"]);
    let text = greedy["answers"][0]["text"].as_str().unwrap();
    let stop: String = text.chars().skip(4).take(3).collect();
    let stopped = json(&["--text", PROMPT, "--max-tokens", "32", "--stop", &stop]);
    assert_eq!(stopped["answers"][0]["finish_reason"], "stop");
    assert!(!stopped["answers"][0]["text"].as_str().unwrap().contains(&stop));
}

/// `num_beams`, `repetition_penalty` and `stop_strings` were left out, so that the text was another than the served one.
#[test]
fn the_generation_config_applies_as_in_a_served_app() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("model");
    std::fs::create_dir(&dir).unwrap();
    let fixture = Path::new(ROOT).join("models/fixtures/gpt2");
    for file in ["config.json", "model.safetensors", "tokenizer.json"] {
        std::fs::copy(fixture.join(file), dir.join(file)).unwrap();
    }
    std::fs::write(
        folder.path().join("app.toml"),
        "name = \"a\"\ntask = \"generation\"\nplan = { single = \"one\" }\n[[variants]]\nname = \"one\"\ndir = \"model\"\n\
         [generation]\nmax_tokens = 24\n",
    )
    .unwrap();
    let run = |args: &[&str]| kaskade_testkit::json(&kaskade_testkit::kaskade(folder.path(), args));
    let text = |config: &Value| {
        std::fs::write(dir.join("generation_config.json"), config.to_string()).unwrap();
        let answer = run(&[
            "generate",
            "--model",
            "model",
            "--text",
            PROMPT,
            "--max-tokens",
            "24",
            "--json",
        ]);
        let reply = run(&[
            "infer", "--app", "app.toml", "--text", PROMPT, "--budget", "20s", "--json",
        ]);
        let outputs = reply["outputs"].as_array().unwrap();
        let served = outputs.iter().find(|output| output["name"] == "text").unwrap();
        assert_eq!(answer["answers"][0]["text"], served["data"][0], "{config}");
        answer["answers"][0]["text"].as_str().unwrap().to_owned()
    };
    let greedy = text(&serde_json::json!({}));
    let stop: String = greedy.chars().skip(4).take(3).collect();
    for config in [
        serde_json::json!({"num_beams": 3}),
        serde_json::json!({"repetition_penalty": 1.5}),
        serde_json::json!({"stop_strings": stop}),
        serde_json::json!({"num_beams": 4, "length_penalty": 0.5, "repetition_penalty": 1.5, "early_stopping": true}),
    ] {
        assert_ne!(text(&config), greedy, "{config}");
    }
    std::fs::write(dir.join("generation_config.json"), r#"{"repetition_penalty": 0}"#).unwrap();
    let args = ["generate", "--model", "model", "--text", PROMPT];
    let message = kaskade_testkit::refusal(&kaskade_testkit::kaskade(folder.path(), &args));
    assert!(message.contains("repetition_penalty"), "{message}");
}

#[test]
fn invalid_options_are_refused_with_a_remedy() {
    let long = "word ".repeat(4_000);
    assert!(refusal(&["--text", &long]).contains("text 1"));
    assert!(refusal(&["--text", ""]).contains("empty"));
    assert!(refusal(&["--text", "a", "--temperature", "-1"]).contains("temperature"));
    let message = kaskade_testkit::misuse(&generate(&["--text", "a", "--cache", "act"]));
    assert!(message.contains("--device-memory"), "{message}");
    assert!(refusal(&["--text", "a", "--device-memory", "1kB"]).contains("bytes"));
    let nowhere = ["generate", "--model", "no-such-folder", "--text", "a"];
    let message = kaskade_testkit::refusal(&kaskade_testkit::kaskade(ROOT, &nowhere));
    assert!(message.contains("no-such-folder"), "{message}");
}
