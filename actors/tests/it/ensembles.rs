//! Bagging ensembles over the embedded broker.

use std::time::Duration;

use crate::common::{BUDGET, Scripted, ask, cascade, gears::block_on, label};
use crate::foreign::{Foreign, outputs, runtime};
use kaskade_actors::{App, Client, Service};
use kaskade_models::{Inputs, Model, ModelError, Outputs, Signature, Tensor};
use kaskade_policy::plan::{Edge, Exit, Plan};

#[test]
fn an_ensemble_answers_by_majority_vote() {
    // Members that always answer with the same class.
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
        assert_eq!(label(&reply.outputs), 1, "two of three members vote for it");
        assert_eq!(
            (reply.stage.as_str(), reply.degraded),
            ("small", false),
            "the more confident of the two"
        );
        let mut hops: Vec<_> = reply.hops.iter().map(|hop| hop.stage.as_str()).collect();
        hops.sort_unstable();
        assert_eq!(hops, ["large", "medium", "small"]);
        // One member fails permanently: the others answer.
        let reply = client.infer(ask(FAIL_THE_FIRST, 0.0), BUDGET).await.unwrap();
        assert!(reply.degraded);
        assert_eq!((reply.stage.as_str(), label(&reply.outputs)), ("medium", 2));
    });
    let counted = node.metrics().read();
    assert_eq!((counted.accepted, counted.answered), (2, 2));
    node.stop();
}

/// Both answers were taken for one of the last member, and the reply waited for the other until the budget ended.
#[test]
fn members_in_other_languages_need_not_name_their_stages() {
    let app = "vote-foreign";
    let plan = Plan::cascade(app)
        .stage("one", "first")
        .worker("elsewhere")
        .below(0.5);
    let mut plan = plan.then("other", "second").worker("elsewhere").build().unwrap();
    let wiring = &mut plan.gears[0].wiring;
    wiring.ensemble = vec![Edge::to("other")];
    for stage in &mut wiring.stages {
        stage.exit = Exit::Reply;
    }
    let served = Foreign::start(app, plan);
    runtime().block_on(async {
        let logits = || vec![Tensor::from_f32("logits", &[2], &[0.0, 1.0]).unwrap()];
        let answer = move |_| outputs(logits(), Some(0.9), false);
        let members = [
            served.serve("one", answer).await,
            served.serve("other", answer).await,
        ];
        let reply = served.ask(BUDGET).await.unwrap();
        assert!(!reply.degraded);
        for member in members {
            member.abort();
        }
    });
    served.node.stop();
}

/// The label of a request that makes the first member fail.
const FAIL_THE_FIRST: f32 = -9.0;

/// Answers always with the same class.
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
