//! Bagging ensembles over the embedded broker.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod common;

use std::time::Duration;

use common::{BUDGET, Scripted, ask, cascade, gears::block_on, label};
use kaskade_actors::{App, Client, Service};
use kaskade_models::{Inputs, Model, ModelError, Outputs, Signature};
use kaskade_plans::plan::{Edge, Exit};

#[test]
fn an_ensemble_is_put_to_the_vote() {
    // Each member always answers with its own class.
    let mut plan = cascade("vote");
    let wiring = &mut plan.gears[0].wiring;
    wiring.ensemble = vec![Edge::to("medium"), Edge::to("large")];
    for stage in &mut wiring.stages {
        stage.exit = Exit::Reply;
    }
    let member = |class: f32, margin: f32, fails: bool| Stubborn {
        class,
        margin,
        fails,
        inner: Scripted {
            strength: 1.0,
            run: Duration::ZERO,
        },
    };
    let node = Service::new("vote")
        .plan(plan)
        .model("small", move || Ok::<_, String>(member(1.0, 0.5, true)))
        .model("medium", move || Ok::<_, String>(member(2.0, 9.0, false)))
        .model("large", move || Ok::<_, String>(member(1.0, 0.4, false)))
        .start()
        .unwrap();
    block_on(async {
        let client = Client::new(node.bus(), App::new("vote").unwrap());
        let reply = client.infer(ask(0.0, 4.0), BUDGET).await.unwrap();
        assert_eq!(label(&reply.outputs), 1, "two of three say so");
        assert_eq!(
            (reply.stage.as_str(), reply.degraded),
            ("small", false),
            "the surer of the two"
        );
        let mut hops: Vec<_> = reply.hops.iter().map(|hop| hop.stage.as_str()).collect();
        hops.sort_unstable();
        assert_eq!(hops, ["large", "medium", "small"]);
        // One member fails permanently: the others answer for it.
        let reply = client.infer(ask(FAIL_THE_FIRST, 0.0), BUDGET).await.unwrap();
        assert!(reply.degraded);
        assert_eq!((reply.stage.as_str(), label(&reply.outputs)), ("medium", 2));
    });
    let counted = node.metrics().read();
    assert_eq!((counted.accepted, counted.answered), (2, 2));
    node.stop();
}

/// The label of a request that makes the first member fail.
const FAIL_THE_FIRST: f32 = -9.0;

/// Answers with its own class.
struct Stubborn {
    class: f32,
    margin: f32,
    /// Whether it fails when the label says so.
    fails: bool,
    inner: Scripted,
}

impl Model for Stubborn {
    fn signature(&self) -> Signature {
        self.inner.signature()
    }

    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        let asked: Vec<f32> = batch
            .iter()
            .map(|inputs| inputs[0].to_f32().unwrap()[0])
            .collect();
        let own: Vec<Inputs> = batch.iter().map(|_| ask(self.class, self.margin)).collect();
        let outputs = self.inner.run(&own);
        let spoiled = outputs.into_iter().zip(asked).map(|(output, asked)| {
            if asked == FAIL_THE_FIRST && self.fails {
                return Err(ModelError::Failed {
                    reason: "scripted to fail".into(),
                });
            }
            output
        });
        spoiled.collect()
    }
}
