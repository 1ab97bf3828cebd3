//! `kaskade plan apply`, `get`, `history` and `rollback`, and what a starting process does with a stored plan.

use kaskade_testkit::{
    NatsOptions, NatsServer, ROOT, ServeProcess, digits_app, json, kaskade, refusal, text,
};
use serde_json::{Value, json as value};

#[test]
fn plans_are_applied_listed_and_rolled_back_and_a_restart_keeps_them() {
    let nats = NatsServer::start(NatsOptions::jetstream());
    let (folder, url) = (tempfile::tempdir().unwrap(), nats.url());
    let app = digits_app(folder.path(), "");
    let plan = |args: &[&str]| kaskade(ROOT, &[&["plan"], args, &["--nats", &url]].concat());
    let [first, second] = ["first.json", "second.json"].map(|name| folder.path().join(name));
    let [first, second] = [&first, &second].map(|path| path.to_str().unwrap());

    let none = refusal(&plan(&["get", "digits"]));
    assert!(none.contains("no stored plan"), "{none}");

    let mut served = ServeProcess::start(&["--app", &app, "--nats", &url]);
    let line = served.line("serving");
    assert!(line.contains("(epoch 1)"), "{line}");
    let got = text(&plan(&["get", "digits", "--out", first]).stdout);
    assert!(got.contains("epoch 1"), "{got}");

    let mut edited: Value = serde_json::from_str(&std::fs::read_to_string(first).unwrap()).unwrap();
    edited["made_by"] = value!("by hand");
    std::fs::write(second, edited.to_string()).unwrap();
    let applied = json(&plan(&["apply", second, "--app", &app, "--no-wait", "--json"]));
    assert_eq!(applied, value!({"epoch": 2, "replaced": 1, "admitted": null}));
    let stale = plan(&["apply", second, "--expect", "1", "--no-wait", "--json"]);
    assert_eq!(stale.status.code(), Some(1), "it can never succeed");
    let error: Value = serde_json::from_slice(&stale.stderr).unwrap();
    assert_eq!(error["error"]["code"], "KSK0016");

    served.end();
    let mut served = ServeProcess::start(&["--app", &app, "--nats", &url]);
    let line = served.line("serving");
    assert!(line.contains("by hand (epoch 2)"), "{line}");
    let said = served.end();
    assert!(
        said.contains("kaskade plan apply"),
        "a warning names the command: {said}"
    );

    let rolled_back = json(&plan(&["rollback", "digits", "--no-wait", "--json"]));
    assert_eq!(
        rolled_back,
        value!({"epoch": 3, "replaced": 2, "rolled_back_to": 1, "has_served": false, "admitted": null})
    );
    let rolled_back = json(&plan(&[
        "rollback",
        "digits",
        "--epoch",
        "2",
        "--no-wait",
        "--json",
    ]));
    assert_eq!(rolled_back["epoch"], 4);
    let history = json(&plan(&["history", "digits", "--json"]));
    let rows = history["plans"].as_array().unwrap();
    let made_by: Vec<&Value> = rows.iter().map(|row| &row["made_by"]).collect();
    assert_eq!(made_by[1], "by hand");
    assert_eq!((made_by[0], made_by[1]), (made_by[2], made_by[3]));
    assert_eq!((&rows[3]["epoch"], &rows[3]["gears"]), (&value!(4), &value!(1)));
    let table = text(&plan(&["history", "digits"]).stdout);
    assert!(
        table.contains("written at") && table.contains("by hand"),
        "{table}"
    );

    let misspelt = std::fs::read_to_string(first).unwrap();
    let other = folder.path().join("other.json");
    std::fs::write(&other, misspelt.replace("\"digits\"", "\"digit\"")).unwrap();
    let other = other.to_str().unwrap();
    let unknown = refusal(&plan(&["apply", other, "--no-wait"]));
    assert!(
        unknown.contains("app `digit` is unknown") && unknown.contains("--create"),
        "{unknown}"
    );
    let none = refusal(&plan(&["history", "digit"]));
    assert!(none.contains("no stored plan"), "{none}");
    let created = json(&plan(&["apply", other, "--create", "--no-wait", "--json"]));
    assert_eq!(created["epoch"], 1);

    let unserved = plan(&["apply", first, "--timeout", "300ms"]);
    assert_eq!(unserved.status.code(), Some(75));
    let said = text(&unserved.stderr);
    assert!(said.contains("epoch 5") && said.contains("no ingress"), "{said}");
}

#[test]
fn an_invalid_plan_is_refused_before_anything_is_written() {
    let nats = NatsServer::start(NatsOptions::jetstream());
    let (folder, url) = (tempfile::tempdir().unwrap(), nats.url());
    let file = folder.path().join("plan.json");
    std::fs::write(&file, "{\"version\": 1}").unwrap();
    let file = file.to_str().unwrap();
    let refused = kaskade(ROOT, &["plan", "apply", file, "--nats", &url]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("plan.json"));
}
