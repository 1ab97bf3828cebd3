//! Custom stages: [`Stage`] attached to an app, over the embedded broker and a real nats-server.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use crate::common::gears::block_on;
use crate::common::{BUDGET, Scripted, ask, cascade};
use kaskade_actors::bus::BusConfig;
use kaskade_actors::{
    App, AttachConfig, AttachedStage, Client, Code, Fault, Node, Service, Stage, StageInput, StageOutput,
    attach_stage,
};
use kaskade_models::{Datatype, Extent, InputSpec, Inputs, Model, ModelError, Outputs, Signature, Tensor};
use kaskade_policy::confidence::deferral::{DeferralScore, Feature, Linear, Term};
use kaskade_policy::plan::Plan;
use kaskade_testkit::{NatsOptions, NatsServer, TIMEOUT, wait_until};
use tokio::sync::Semaphore;

/// The worker of replicas that no process of the tests hosts.
const ELSEWHERE: &str = "elsewhere";

/// Doubles `x`. It panics at 13, fails at 14, waits for a permit of `gate` at 15, and is sure of itself at 10 and above. 16 is too long for the
/// first stage, and 17 for both.
#[derive(Clone)]
struct Doubler {
    gate: Arc<Semaphore>,
    /// Requests that run.
    running: Arc<AtomicUsize>,
    /// Requests that began to run.
    begun: Arc<Semaphore>,
}

/// Counts a request as running until it is dropped.
struct Running<'a>(&'a AtomicUsize);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Doubler {
    fn new() -> Self {
        Self {
            gate: Arc::new(Semaphore::new(0)),
            running: Arc::default(),
            begun: Arc::new(Semaphore::new(0)),
        }
    }

    fn runs(&self, requests: usize) {
        wait_until("the stage runs that many requests", TIMEOUT, || {
            self.running.load(Ordering::SeqCst) == requests
        });
    }
}

impl Stage for Doubler {
    async fn run(&self, input: StageInput) -> Result<StageOutput, Fault> {
        self.running.fetch_add(1, Ordering::SeqCst);
        self.begun.add_permits(1);
        let _running = Running(&self.running);
        let x = input.inputs[0].to_f32()?[0];
        match x {
            13.0 => panic!("scripted to panic"),
            14.0 => return Err(Fault::new(Code::BadOutput, "scripted to fail")),
            17.0 => return Err(Fault::new(Code::TooLong, "scripted to be too long")),
            16.0 if input.stage == "first" => {
                return Err(Fault::new(Code::TooLong, "scripted to be too long"));
            }
            15.0 => self.gate.acquire().await.unwrap().forget(),
            _ => {}
        }
        let doubled = Tensor::from_f32("doubled", &[1], &[2.0 * x])?;
        Ok(StageOutput::new(vec![doubled]).confidence(if x < 10.0 { 0.1 } else { 0.9 }))
    }
}

/// A cascade of two stages that only custom stages serve.
fn plan(app: &str) -> Plan {
    Plan::cascade(app)
        .stage("first", "doubler")
        .worker(ELSEWHERE)
        .below(0.5)
        .then("second", "redoubler")
        .worker(ELSEWHERE)
        .build()
        .unwrap()
}

struct Served {
    node: Node,
    bus: BusConfig,
    app: String,
    client: Client,
}

impl Served {
    fn start(app: &str, bus: BusConfig) -> Self {
        Self::start_with(app, plan(app), bus)
    }

    fn start_with(app: &str, plan: Plan, bus: BusConfig) -> Self {
        let node = Service::new(app).plan(plan).bus(bus).start().unwrap();
        Self {
            bus: BusConfig::new(app).url(node.bus().url()),
            client: Client::new(node.bus(), App::new(app).unwrap()),
            app: app.to_owned(),
            node,
        }
    }

    fn place(&self, stage: &str, replica: &str) -> AttachConfig {
        AttachConfig::new(self.app.as_str(), stage, replica)
    }

    async fn attach(&self, config: AttachConfig, stage: &Doubler) -> AttachedStage {
        attach_stage(self.bus.clone(), config, stage.clone())
            .await
            .unwrap()
    }

    async fn ask(&self, x: f32) -> Result<(f32, String), Fault> {
        self.ask_within(x, BUDGET).await
    }

    async fn ask_within(&self, x: f32, budget: Duration) -> Result<(f32, String), Fault> {
        Self::ask_by(&self.client, x, budget).await
    }

    /// Sends it once: a client that retries asks a full stage until its budget is nearly over.
    async fn ask_once(&self, x: f32) -> Result<(f32, String), Fault> {
        Self::ask_by(&self.client.clone().retry(false), x, BUDGET).await
    }

    async fn ask_by(client: &Client, x: f32, budget: Duration) -> Result<(f32, String), Fault> {
        let inputs = vec![Tensor::from_f32("x", &[1], &[x]).unwrap()];
        let reply = client.infer(inputs, budget).await?;
        Ok((reply.outputs[0].to_f32().unwrap()[0], reply.stage))
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
}

/// Confidence routes, a panic and a fault fail one request, and a detached stage finishes what it took.
fn serves_a_cascade(app: &str, bus: BusConfig) {
    let served = Arc::new(Served::start(app, bus));
    runtime().block_on(async {
        let stage = Doubler::new();
        let first = served.attach(served.place("first", "doubler-0"), &stage).await;
        let second = served.attach(served.place("second", "redoubler-0"), &stage).await;
        assert_eq!(served.ask(11.0).await.unwrap(), (22.0, "first".to_owned()));
        assert_eq!(served.ask(4.0).await.unwrap(), (8.0, "second".to_owned()));

        let panicked = served.ask(13.0).await.unwrap_err();
        assert_eq!(panicked.code, Code::ModelFailed);
        assert!(panicked.message.contains("scripted to panic"), "{panicked}");
        assert_eq!(served.ask(14.0).await.unwrap_err().code, Code::BadOutput);
        assert_eq!(served.ask(11.0).await.unwrap().1, "first");
        // What is too long for one stage goes on to the next.
        assert_eq!(served.ask(16.0).await.unwrap(), (32.0, "second".to_owned()));
        assert_eq!(served.ask(17.0).await.unwrap_err().code, Code::TooLong);

        let asking = tokio::spawn({
            let served = Arc::clone(&served);
            async move { served.ask(15.0).await }
        });
        tokio::task::block_in_place(|| stage.runs(1));
        let leaving = tokio::spawn(first.detach(TIMEOUT));
        stage.gate.add_permits(1);
        assert_eq!(asking.await.unwrap().unwrap(), (30.0, "first".to_owned()));
        leaving.await.unwrap();
        let gone = served
            .ask_within(11.0, Duration::from_millis(500))
            .await
            .unwrap_err();
        assert!(matches!(gone.code, Code::Unavailable | Code::Expired), "{gone}");
        second.detach(TIMEOUT).await;
    });
    Arc::into_inner(served).unwrap().node.stop();
}

#[test]
fn custom_stages_serve_a_cascade_on_the_embedded_broker() {
    serves_a_cascade("stages-embedded", BusConfig::new("stages-embedded"));
}

#[test]
fn custom_stages_serve_a_cascade_on_a_nats_server() {
    let server = NatsServer::start(NatsOptions::jetstream());
    serves_a_cascade(
        "stages-nats",
        BusConfig::new("stages-nats").url(server.url().clone()),
    );
}

#[test]
fn a_full_stage_refuses_and_one_without_a_free_slot_queues() {
    let served = Arc::new(Served::start("stages-full", BusConfig::new("stages-full")));
    runtime().block_on(async {
        let stage = Doubler::new();
        let place = served.place("first", "doubler-0").max_in_flight(2).concurrency(1);
        let attached = served.attach(place, &stage).await;
        let ask = || {
            let served = Arc::clone(&served);
            tokio::spawn(async move { served.ask_once(15.0).await })
        };
        let taken = ask();
        tokio::task::block_in_place(|| stage.runs(1));
        // One of the next two waits in the queue, and the queue is full for the other.
        let (refused, waiting) = match futures::future::select(ask(), ask()).await {
            futures::future::Either::Left((refused, waiting))
            | futures::future::Either::Right((refused, waiting)) => (refused, waiting),
        };
        assert_eq!(refused.unwrap().unwrap_err().code, Code::Overloaded);
        assert_eq!(stage.running.load(Ordering::SeqCst), 1);
        stage.gate.add_permits(2);
        for answered in [taken, waiting] {
            assert_eq!(answered.await.unwrap().unwrap(), (30.0, "first".to_owned()));
        }
        attached.detach(TIMEOUT).await;
    });
    Arc::into_inner(served).unwrap().node.stop();
}

#[test]
fn a_stage_stops_working_when_the_budget_ends() {
    let served = Arc::new(Served::start("stages-budget", BusConfig::new("stages-budget")));
    runtime().block_on(async {
        let stage = Doubler::new();
        let attached = served.attach(served.place("first", "doubler-0"), &stage).await;
        let late = tokio::spawn({
            let served = Arc::clone(&served);
            async move { served.ask_within(15.0, Duration::from_secs(2)).await }
        });
        stage.begun.acquire().await.unwrap().forget();
        assert_eq!(late.await.unwrap().unwrap_err().code, Code::Expired);
        tokio::task::block_in_place(|| stage.runs(0));
        attached.detach(TIMEOUT).await;
    });
    Arc::into_inner(served).unwrap().node.stop();
}

#[test]
fn an_invalid_name_is_refused_before_anything_is_subscribed() {
    runtime().block_on(async {
        let config = AttachConfig::new("stages-name", "not.a.token", "doubler-0");
        let refused = attach_stage(BusConfig::new("stages-name"), config, Doubler::new()).await;
        assert!(refused.is_err());
    });
}

/// The ingress scored the answers of custom stages as if every input were of average length.
#[test]
fn the_score_of_a_custom_stage_reads_the_length_of_the_input() {
    let app = "scored-stages";
    let mut plan = plan(app);
    // Surely right about inputs of less than eight bytes, surely wrong about longer ones.
    let term = Term {
        feature: Feature::Length,
        weight: -10.0,
        mean: 9.0_f64.ln(),
    };
    plan.gears[0].wiring.stages[0].score = Some(DeferralScore::Logistic {
        right: Linear {
            intercept: 0.0,
            terms: vec![term],
        },
    });
    runtime().block_on(async {
        let served = Served::start_with(app, plan, BusConfig::new(app));
        let doubler = Doubler::new();
        let first = served.attach(served.place("first", "first-a"), &doubler).await;
        let second = served.attach(served.place("second", "second-a"), &doubler).await;
        for (values, stage) in [(1, "first"), (4, "second")] {
            let inputs = vec![Tensor::from_f32("x", &[values], &vec![1.0; values]).unwrap()];
            let reply = served.client.infer(inputs, BUDGET).await.unwrap();
            assert_eq!(reply.stage, stage, "{values} values");
        }
        first.detach(TIMEOUT).await;
        second.detach(TIMEOUT).await;
    });
}

/// Takes an option that the larger model does not know.
struct WithOption(Scripted);

impl Model for WithOption {
    fn signature(&self) -> Signature {
        let mut signature = self.0.signature();
        let option = InputSpec::optional("num_beams", Datatype::I64, vec![Extent::Exactly(1)]);
        signature.inputs.push(option);
        signature
    }

    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        self.0.run(batch)
    }
}

/// It was answered with 500, as if the app were at fault, once the request was escalated.
#[test]
fn an_input_that_only_the_first_stage_takes_is_refused_by_name_when_it_is_escalated() {
    let app = "optional";
    let scripted = |strength| Scripted {
        strength,
        run: Duration::ZERO,
    };
    let node = Service::new(app)
        .model("small", move || Ok::<_, String>(WithOption(scripted(1.0))))
        .model("medium", move || Ok::<_, String>(scripted(2.0)))
        .model("large", move || Ok::<_, String>(scripted(4.0)))
        .plan(cascade(app))
        .start()
        .unwrap();
    block_on(async {
        let client = Client::new(node.bus(), App::new(app).unwrap());
        let asked = |margin| {
            let option = Tensor::from_i64("num_beams", &[1], &[2]).unwrap();
            let inputs: Vec<Tensor> = ask(1.0, margin).into_iter().chain([option]).collect();
            client.infer(inputs, BUDGET)
        };
        assert!(asked(9.0).await.is_ok());
        let refused = asked(0.0).await.unwrap_err();
        assert_eq!(refused.code, Code::InvalidInput, "{refused}");
        assert!(
            refused.message.contains("input `num_beams` is unknown"),
            "{refused}"
        );
    });
    node.stop();
}
