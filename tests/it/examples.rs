//! The examples run and print the expected results.

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Stdio},
};

use kaskade_actors::bus::BusConfig;
use kaskade_actors::ingress::IngressConfig;
use kaskade_actors::{Node, NodeConfig};
use kaskade_policy::plan::Plan;
use kaskade_testkit::{Process, ROOT, built};

fn python(script: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(kaskade_testkit::python());
    command
        .arg(Path::new(ROOT).join("examples/python_client").join(script))
        .args(arguments);
    command
}

fn printed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_custom_model_a_stage_and_an_actor_form_a_cascade() {
    let printed = printed(&mut Command::new(built("examples/custom_actor")));
    for line in [
        "4 is even (answered by `guess`)",
        "7 is odd (answered by `guess`)",
        "7.4 is odd (answered by `round`)",
        "2.5 is even (answered by `tie`)",
    ] {
        assert!(
            printed.lines().any(|printed| printed == line),
            "{line}: {printed}"
        );
    }
}

#[test]
fn an_embedding_program_profiles_plans_serves_and_asks() {
    let printed = printed(&mut Command::new(built("examples/embed")));
    assert!(
        printed.contains("serving `digits` on nats://127.0.0.1:"),
        "{printed}"
    );
    assert_eq!(
        printed
            .lines()
            .filter(|line| line.contains("` answered "))
            .count(),
        20,
        "{printed}"
    );
    let right = printed.lines().find_map(|line| line.strip_suffix(" of 20 right"));
    let right: usize = right.unwrap().parse().unwrap();
    // Every variant of the family is right on more than 90 % of the test set.
    assert!(right >= 17, "{printed}");
    assert_eq!(printed.lines().last(), Some("stopped"));
}

/// A plan of two stages that Python processes serve: the first escalates below a confidence of `bar`.
fn doubling(app: &str, bar: f64) -> Plan {
    let plan = Plan::cascade(app)
        .stage("first", "doubler")
        .worker("python")
        .below(bar)
        .then("second", "doubler");
    plan.build().unwrap()
}

fn ingress(plan: Plan) -> Node {
    let app = plan.app.clone();
    Node::start(NodeConfig {
        bus: BusConfig::new(&app),
        app,
        ingress: Some(IngressConfig::default()),
        worker: None,
        plan: Some(plan),
        planner: None,
        power: None,
        grace: std::time::Duration::from_secs(1),
    })
    .unwrap()
}

fn stage(url: &str, app: &str, name: &str) -> Process {
    let mut process = Process::start(python("stage.py", &[url, app, name]).stdout(Stdio::piped()));
    let mut line = String::new();
    BufReader::new(process.child().stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert_eq!(line.trim(), "ready");
    process
}

#[test]
fn python_stages_and_a_python_client_work() {
    for (app, bar, answered_by) in [("lenient", 0.5, "first"), ("strict", 0.95, "second")] {
        let node = ingress(doubling(app, bar));
        let url = node.bus().url();
        let _stages = [stage(url, app, "first"), stage(url, app, "second")];
        let printed = printed(&mut python("client.py", &[url, app, "x", "1.5", "4"]));
        assert_eq!(
            printed.trim(),
            format!("stage={answered_by} outputs={{'doubled': [3.0, 8.0]}}")
        );
        node.stop();
    }
}

#[test]
fn the_python_client_gets_a_typed_error_from_a_stage_without_replicas() {
    let node = ingress(doubling("deserted", 0.5));
    let output = python("client.py", &[node.bus().url(), "deserted", "x", "1"])
        .output()
        .unwrap();
    assert!(!output.status.success());
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(message.contains("KSK0007"), "{message}");
    node.stop();
}
