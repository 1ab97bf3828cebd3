//! The examples of remote variants: the endpoint is another Kaskade, behind its own gateway.

use std::path::Path;

use kaskade_testkit::{PATIENCE, ROOT, Served, http_get, json, kaskade, wait_until};
use serde_json::Value;

/// Another Kaskade, and the address of its gateway.
fn endpoint(app: &str) -> (Served, String) {
    let app = Path::new(ROOT).join("examples").join(app).join("app.toml");
    let mut served = Served::start(&["--app", app.to_str().unwrap(), "--http", "127.0.0.1:0"]);
    let address = served.probes();
    let address = address.split(['/', ' ', ',']).next().unwrap().to_owned();
    wait_until("the endpoint serves", PATIENCE, || {
        http_get(&address, "/v2/health/ready").is_some_and(|(head, _)| head.contains(" 200 "))
    });
    (served, address)
}

/// An example with the address of its endpoint, in another folder.
fn example(folder: &Path, name: &str, address: &str) -> String {
    let root = Path::new(ROOT).join("examples");
    let read = |file: String| std::fs::read_to_string(root.join("remote").join(file)).unwrap();
    let app = read(format!("{name}.toml"));
    assert!(app.contains("127.0.0.1:8000"));
    let app = app
        .replace("127.0.0.1:8000", address)
        .replace("../", &format!("{}/", root.display()));
    std::fs::write(
        folder.join(format!("{name}.plan.json")),
        read(format!("{name}.plan.json")),
    )
    .unwrap();
    let path = folder.join(format!("{name}.toml"));
    std::fs::write(&path, app).unwrap();
    path.to_str().unwrap().to_owned()
}

fn ask(app: &str, text: &str) -> Value {
    json(&kaskade(
        ROOT,
        &["infer", "--app", app, "--text", text, "--budget", "20s", "--json"],
    ))
}

/// The costs of the stages passed.
fn costs(reply: &Value) -> Vec<f64> {
    let hops = reply["hops"].as_array().unwrap();
    let cost = |hop: &Value| hop["cost"]["amount"].as_f64();
    hops.iter().map(|hop| cost(hop).unwrap()).collect()
}

#[test]
fn what_a_local_classifier_is_unsure_about_goes_to_another_kaskade() {
    let folder = tempfile::tempdir().unwrap();
    let (served, address) = endpoint("sentiment");
    let app = example(folder.path(), "reviews", &address);
    let sure = ask(&app, "a warm, funny and deeply moving masterpiece");
    assert_eq!(
        (&sure["variant"], costs(&sure)),
        (&"small".into(), vec![0.0]),
        "{sure}"
    );
    let unsure = ask(&app, "neither good nor bad, it is a film");
    assert_eq!(unsure["variant"], "large", "{unsure}");
    assert_eq!(costs(&unsure), [0.0, 0.001], "{unsure}");
    assert_eq!(unsure["hops"][1]["cost"]["source"], "priced");
    served.end();
}

#[test]
fn an_openai_compatible_server_completes_what_a_small_model_passes_on() {
    let folder = tempfile::tempdir().unwrap();
    let (served, address) = endpoint("shakespeare");
    let app = example(folder.path(), "verses", &address);
    let reply = ask(&app, "O Romeo, Romeo! wherefore art ");
    assert_eq!(reply["variant"], "large", "{reply}");
    let outputs = reply["outputs"].as_array().unwrap();
    let text = outputs.iter().find(|output| output["name"] == "text").unwrap();
    assert!(!text["data"][0].as_str().unwrap().trim().is_empty(), "{reply}");
    // The endpoint is gone: the small model answers by itself.
    served.end();
    let alone = ask(&app, "O Romeo, Romeo! wherefore art ");
    assert_eq!(
        (&alone["variant"], &alone["degraded"]),
        (&"small".into(), &true.into()),
        "{alone}"
    );
}
