//! `kaskade demo`: its cascades keep the accuracy of the largest model at a fraction of its energy, and answer every request.

use kaskade_testkit::{alone, json, kaskade};
use serde_json::Value;

fn number(value: &Value, path: &str) -> f64 {
    let found = value.pointer(path).and_then(Value::as_f64);
    found.unwrap_or_else(|| panic!("no number at {path} in {value}"))
}

#[test]
fn cascades_keep_the_accuracy_of_the_largest_model_at_a_fraction_of_its_energy() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let demo = ["demo", "--json", "--passes", "1", "--out", "out"];
    let report = json(&kaskade(folder.path(), &demo));
    assert_eq!(report["variants"].as_array().unwrap().len(), 4);
    let energy = |mode: &str| number(&report, &format!("/modes/{mode}/joules_per_request"));
    let accuracy = |mode: &str| number(&report, &format!("/modes/{mode}/accuracy"));
    for mode in ["largest", "ap", "eo"] {
        let figures = &report["modes"][mode];
        assert_eq!(figures["sent"], 500, "{mode}: {figures}");
        assert_eq!(figures["answered"], figures["sent"], "{mode}");
        assert_eq!(figures["errors"], 0, "{mode}");
        let shares = figures["distribution"].as_object().unwrap().values();
        let total: f64 = shares.map(|share| share.as_f64().unwrap()).sum();
        assert!((total - 1.0).abs() < 1e-9, "{mode}: {figures}");
        assert!(figures["p50_ms"].as_f64() <= figures["p99_ms"].as_f64(), "{mode}");
    }
    assert!(accuracy("ap") >= accuracy("largest") - 0.005, "{report}");
    assert!(energy("largest") >= 3.0 * energy("ap"), "{report}");
    assert!(energy("largest") >= 6.0 * energy("eo"), "{report}");
    for file in ["graph", "profile", "plan_ap", "plan_eo"] {
        let path = folder.path().join(report["files"][file].as_str().unwrap());
        assert!(path.is_file(), "{}", path.display());
    }
}
