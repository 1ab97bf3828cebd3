//! The examples run, and do what they say.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

use std::{
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use kaskade::actors::{Node, NodeConfig, bus::BusConfig, ingress::IngressConfig, plan};
use kaskade::plans::confidence::{Calibration, Estimator};
use kaskade::plans::plan::{Band, Batching, Edge, Exit, Plan, Replica, Stage, Target};

/// The binary of a Rust example; `cargo test` builds them beside the tests.
fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent()
        .and_then(Path::parent)
        .unwrap()
        .join("examples")
        .join(name)
}

fn python(script: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(kaskade_testkit::python());
    command
        .arg(
            Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("examples/python_client")
                .join(script),
        )
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

/// Killed when the test ends, however it ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_model_and_an_actor_of_ones_own_make_a_cascade() {
    let printed = printed(&mut Command::new(example("custom_actor")));
    assert!(printed.contains("4 is even (answered by `guess`"), "{printed}");
    assert!(printed.contains("7 is odd (answered by `guess`"), "{printed}");
    assert!(
        printed.contains("7.4 is odd (answered by `round`, passed [\"guess\"]"),
        "{printed}"
    );
}

/// A plan whose two stages are served by processes of another language: below a confidence of `bar` the first passes on.
fn doubling(app: &str, bar: f64) -> Plan {
    let mut plan = plan::single(
        app,
        "doubler",
        "python",
        std::num::NonZeroU32::MIN,
        Batching::default(),
    );
    let variant = plan.variants.first_mut().unwrap();
    variant.calibration = Some(Calibration {
        estimator: Estimator::Given,
        temperature: 1.0,
    });
    plan.placement = vec![Replica {
        id: "doubler-0".into(),
        variant: "doubler".into(),
        worker: "python".into(),
        device: "cpu".into(),
        partition: None,
    }];
    let wiring = &mut plan.gears.first_mut().unwrap().wiring;
    let stage = |name: &str, exit: Exit| Stage {
        name: name.into(),
        task: None,
        variant: "doubler".into(),
        partition: None,
        budget_us: None,
        profiled: None,
        exit,
        batching: Batching::default(),
    };
    wiring.entry = Edge::to("first");
    let bands = vec![
        Band {
            from: 0.0,
            to: Target::Stage(Edge::to("second")),
        },
        Band {
            from: bar,
            to: Target::Reply,
        },
    ];
    wiring.stages = vec![
        stage("first", Exit::Bands { bands }),
        stage("second", Exit::Reply),
    ];
    plan
}

fn doors(plan: Plan) -> Node {
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

fn stage(url: &str, app: &str, name: &str) -> Running {
    let mut child = python("stage.py", &[url, app, name])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert_eq!(line.trim(), "ready");
    Running(child)
}

#[test]
fn a_stage_and_a_client_in_python_take_part() {
    for (app, bar, answered_by) in [("lenient", 0.5, "first"), ("strict", 0.95, "second")] {
        let node = doors(doubling(app, bar));
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
fn without_anybody_in_the_stage_the_python_client_gets_a_typed_fault() {
    let node = doors(doubling("deserted", 0.5));
    let output = python("client.py", &[node.bus().url(), "deserted", "x", "1"])
        .output()
        .unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("KSK0007"), "{said}");
    node.stop();
}
