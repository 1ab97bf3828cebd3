//! Samples, channels and memory, as `kaskade profile` reads and measures them.

use kaskade_testkit::{command, kaskade, text};

use crate::support::{SENTIMENT, here, refusal};

#[test]
fn a_missing_samples_variable_is_named() {
    for args in [
        &["profile", "--app", SENTIMENT, "--quiet"][..],
        &["infer", "--app", SENTIMENT, "--index", "0"],
    ] {
        let message = refusal(&kaskade(here(), args));
        assert!(message.contains("the environment variable `SST2`"), "{message}");
    }
}

#[test]
fn samples_are_read_and_a_malformed_line_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("dev.tsv", "a warm film\t1\na dull film\n");
    write("test.tsv", "a warm film\t1\na dull film\t0\n");
    let with_samples = |args: &[&str]| {
        let mut command = command(here(), args);
        command.env("SST2", folder.path()).output().unwrap()
    };
    let output = with_samples(&["infer", "--app", SENTIMENT, "--index", "1"]);
    assert!(
        text(&output.stdout).starts_with("class 0, which is right"),
        "{output:?}"
    );
    let message = refusal(&with_samples(&["profile", "--app", SENTIMENT, "--quiet"]));
    assert!(
        message.contains("dev.tsv cannot be used: line 2: has 1 columns"),
        "{message}"
    );
    std::fs::remove_file(folder.path().join("test.tsv")).unwrap();
    let message = refusal(&with_samples(&[
        "infer",
        "--app",
        SENTIMENT,
        "--text",
        "a warm film",
    ]));
    assert!(message.contains("data.test.tsv.file: `"), "{message}");
}

#[test]
fn channels_are_measured_by_size() {
    let folder = tempfile::tempdir().unwrap();
    let args = [
        "profile",
        "channels",
        "--rounds",
        "9",
        "--max-size",
        "64KiB",
        "--out",
        "c.json",
        "--json",
    ];
    let done = kaskade(folder.path(), &args);
    assert!(done.status.success(), "{}", text(&done.stderr));
    assert!(
        text(&done.stderr).contains("--network"),
        "channels that are not measured are named"
    );
    let written = std::fs::read_to_string(folder.path().join("c.json")).unwrap();
    let measured: serde_json::Value = serde_json::from_str(&written).unwrap();
    assert_eq!(
        measured,
        serde_json::from_slice::<serde_json::Value>(&done.stdout).unwrap()
    );
    for channel in ["same_device", "same_host"] {
        let samples = measured[channel]["measured"]["samples"].as_array().unwrap();
        assert_eq!(samples.len(), 9, "256 bytes to 64 KiB");
        assert!(
            samples
                .iter()
                .all(|sample| sample["seconds"].as_f64().unwrap() > 0.0)
        );
    }
    let of_64_kib = |channel: &str| {
        measured[channel]["measured"]["samples"][8]["seconds"]
            .as_f64()
            .unwrap()
    };
    assert!(of_64_kib("same_device") < of_64_kib("same_host"), "{measured}");
}

#[test]
fn memory_is_measured_for_whole_models_and_partitions() {
    let app = here().join("examples/sentiment/app.toml");
    let app = app.to_str().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let measure = |partitions: &str| {
        let args = [
            "profile",
            "memory",
            "--app",
            app,
            "--variant",
            "sentiment-mini",
            "--batches",
            "1,32",
        ];
        let done = kaskade(
            folder.path(),
            &[&args[..], &["--partitions", partitions, "--json"]].concat(),
        );
        assert!(done.status.success(), "{}", text(&done.stderr));
        let measured: Vec<serde_json::Value> = serde_json::from_slice(&done.stdout).unwrap();
        measured
    };
    let bytes = |memory: &serde_json::Value, field: &str| memory[field].as_f64().unwrap();
    let whole = &measure("1")[0];
    assert!(bytes(whole, "loaded_bytes") >= 4.0 * bytes(whole, "parameters"));
    assert!(bytes(&whole["batches"][1], "bytes") >= bytes(&whole["batches"][0], "bytes"));
    let partitions = measure("4");
    assert_eq!(partitions.len(), 4);
    let parameters: f64 = partitions
        .iter()
        .map(|partition| bytes(partition, "parameters"))
        .sum();
    assert!((parameters - bytes(whole, "parameters")).abs() < 1.0);
    // The last three hold one block each; the first also holds the embeddings.
    for partition in &partitions[1..] {
        assert!(
            bytes(partition, "loaded_bytes") < 0.75 * bytes(whole, "loaded_bytes"),
            "{partitions:?}"
        );
    }
    let args = ["profile", "memory", "--app", app, "--variant", "no-such"];
    assert!(refusal(&kaskade(folder.path(), &args)).contains("sentiment-mini"));
}
