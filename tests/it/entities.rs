//! Token classification from data to answers: a family is profiled, planned, served and asked for entities.

use std::path::Path;

use kaskade::models::{Device, LoadOptions, Tensor, entities, load};
use kaskade_testkit::{ROOT, ServeProcess, command, http_post, json, kaskade, text};
use serde_json::{Value, json as value};

/// A small random classifier that transformers saved.
const LARGE: &str = "models/fixtures/bert-token-classification";

fn fixture(name: &str) -> String {
    Path::new(ROOT).join(name).display().to_string()
}

fn texts() -> Vec<String> {
    let words = [
        "the", "old", "keeper", "Éva", "sea", "tower", "green", "light", "house", "in",
    ];
    let word = |number: usize| words[number % words.len()];
    let text = |number: usize| {
        format!(
            "{} {} was {}",
            word(number),
            word(number / 7 + 2),
            word(number / 3 + 5)
        )
    };
    (0..60).map(text).collect()
}

/// The entities that the large variant finds, as a data set holds them.
fn found(texts: &[String]) -> Vec<Value> {
    let mut model = load(Path::new(&fixture(LARGE)), &Device::Cpu, &LoadOptions::default())
        .unwrap()
        .model;
    let requests: Vec<_> = texts
        .iter()
        .map(|text| vec![Tensor::from_texts("text", &[text]).unwrap()])
        .collect();
    let answers = model.run(&requests).into_iter();
    let entities = answers.map(|outputs| entities::of_outputs(&outputs.unwrap()).unwrap().unwrap());
    entities.map(|entities| value!(entities)).collect()
}

fn done(folder: &Path, args: &[&str]) -> std::process::Output {
    let output = kaskade(folder, args);
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    output
}

#[test]
fn entities_go_from_data_to_answers() {
    let folder = tempfile::tempdir().unwrap();
    let texts = texts();
    let found = found(&texts);
    let records: Vec<String> = texts
        .iter()
        .zip(&found)
        .map(|(text, entities)| value!({"text": text, "entities": entities}).to_string())
        .collect();
    std::fs::write(folder.path().join("validation.jsonl"), records.join("\n")).unwrap();
    let app = format!(
        "name = \"names\"\ntask = \"token_classification\"\n\
         [[variants]]\nname = \"small\"\ndir = {:?}\n[[variants]]\nname = \"half\"\ndir = {:?}\ndtype = \"bf16\"\n\
         [[variants]]\nname = \"large\"\ndir = {:?}\n\
         [data]\nmetric = \"entity_f1\"\nmin_score = 0.9\n[data.validation.records]\nfile = \"validation.jsonl\"\n",
        fixture("models/fixtures/roberta-token-classification"),
        fixture(LARGE),
        fixture(LARGE)
    );
    std::fs::write(folder.path().join("app.toml"), app).unwrap();
    let folder = folder.path();
    let app = ["--app", "app.toml"];
    done(folder, &["validate", "app.toml", "--load"]);
    let measured = [
        "--out",
        "profile.json",
        "--batches",
        "1,2",
        "--rounds",
        "1",
        "--measure-for",
        "5ms",
    ];
    done(folder, &[&["profile"], &app[..], &measured].concat());
    let profile = std::fs::read(folder.join("profile.json")).unwrap();
    let profile: Value = serde_json::from_slice(&profile).unwrap();
    let right = |variant: usize| {
        let correct = profile["variants"][variant]["validation"]["correct"]
            .as_array()
            .unwrap();
        correct.iter().filter(|right| **right == true).count()
    };
    // The labels are the large variant's answers.
    assert_eq!(right(2), 60);
    assert!(right(0) < 60 && right(1) > 30, "{} {}", right(0), right(1));
    let planned = ["--profile", "profile.json", "--thresholds", "1,1"];
    done(
        folder,
        &[&["plan", "cascade"], &app[..], &planned, &["--out", "plan.json"]].concat(),
    );
    let serve = [
        "--plan",
        "plan.json",
        "--listen",
        "127.0.0.1:0",
        "--http",
        "127.0.0.1:0",
    ];
    let mut served = ServeProcess::run(&mut command(folder, &[&["serve"], &app[..], &serve].concat()));
    let address = served.probes();
    let nats = served.url();
    let asked = ["--nats", &nats, "--text", &texts[3], "--json"];
    let reply = json(&done(folder, &[&["infer", "names"], &asked[..]].concat()));
    let spans = |reply: &Value| -> Vec<i64> {
        let outputs = reply["outputs"].as_array().unwrap();
        let spans = outputs
            .iter()
            .find(|output| output["name"] == "entity_spans")
            .unwrap();
        serde_json::from_value(spans["data"].clone()).unwrap()
    };
    let expected: Vec<i64> = found[3]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|entity| [&entity["start"], &entity["end"]].map(|place| place.as_i64().unwrap()))
        .collect();
    assert_eq!(spans(&reply), expected);
    // No answer is as certain as the thresholds ask.
    assert_eq!(reply["variant"], "large", "{reply}");
    let shown = done(
        folder,
        &[&["infer", "--index", "3", "--nats", &nats], &app[..]].concat(),
    );
    let shown = text(&shown.stdout);
    assert!(
        shown.contains("which is right") && shown.contains("characters"),
        "{shown}"
    );
    let (head, answer) = http_post(&address, "/predict", &value!({"inputs": texts[3]}).to_string());
    assert!(head.starts_with("HTTP/1.1 200"), "{head} {answer}");
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(answer[0]["start"], found[3][0]["start"]);
    assert_eq!(answer[0]["entity_group"], found[3][0]["label"]);
    served.end();
}
