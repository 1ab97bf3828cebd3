//! Replicas that die while a batch runs, over real processes and a real nats-server. `cargo xtask faults` has more faults.
#![allow(clippy::print_stdout, reason = "the figures belong into the documentation")]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kaskade::Tensor;
use kaskade_actors::bus::{Bus, BusConfig};
use kaskade_actors::wire::headers;
use kaskade_actors::wire::{InferReply, InferRequest, Message as _};
use kaskade_actors::{App, Client, Code, plan};
use kaskade_policy::plan::{Batching, Replica};
use kaskade_testkit::oracle::{End, Load, Tally};
use kaskade_testkit::{NatsOptions, NatsServer, ROOT, ServeProcess, alone, command};

const APP: &str = "digits";
const VARIANT: &str = "digits-large";
const BUDGET: Duration = Duration::from_secs(20);

/// An app of two workers with one replica of the largest digits model each.
struct Rig {
    nats: NatsServer,
    app: PathBuf,
    plan: PathBuf,
    _folder: tempfile::TempDir,
}

impl Rig {
    fn new() -> Self {
        let nats = NatsServer::start(NatsOptions::jetstream());
        let folder = tempfile::tempdir().unwrap();
        let (app, plan) = (folder.path().join("app.toml"), folder.path().join("plan.json"));
        let weights = Path::new(ROOT).join("examples/digits/weights").join(VARIANT);
        let toml = format!(
            "name = \"{APP}\"\ntask = \"classification\"\n\n[[variants]]\nname = \"{VARIANT}\"\ndir = \"{}\"\n\n\
             [[workers]]\nname = \"w1\"\n\n[[workers]]\nname = \"w2\"\n",
            weights.display()
        );
        std::fs::write(&app, toml).unwrap();
        let batching = Batching {
            min_queue: 1,
            max_batch: 16,
            max_wait_us: 1_000,
        };
        let mut two = plan::single(APP, VARIANT, "w1", std::num::NonZeroU32::MIN, batching);
        two.placement = ["w1", "w2"]
            .iter()
            .map(|worker| Replica {
                id: format!("large-{worker}"),
                variant: VARIANT.into(),
                worker: (*worker).into(),
                device: "cpu".into(),
                partition: None,
                checkpoint: None,
            })
            .collect();
        std::fs::write(&plan, two.to_json().unwrap()).unwrap();
        Self {
            nats,
            app,
            plan,
            _folder: folder,
        }
    }

    /// Starts a process of the app, and returns when it serves.
    fn serve(&self, role: &str, worker: Option<&str>) -> ServeProcess {
        let url = self.nats.url();
        let (app, plan) = (self.app.to_str().unwrap(), self.plan.to_str().unwrap());
        let mut args = vec![
            "serve", "--role", role, "--nats", &url, "--app", app, "--plan", plan,
        ];
        args.extend(worker.into_iter().flat_map(|worker| ["--worker", worker]));
        let mut served = ServeProcess::run(&mut command(ROOT, &args));
        served.line("serving");
        served
    }
}

fn image() -> Vec<Tensor> {
    vec![Tensor::from_f32("image", &[1, 8, 8], &[0.5; 64]).unwrap()]
}

/// Sends `total` requests, and calls `strike` after a third of them.
async fn load(url: &str, total: usize, rate: f64, strike: impl FnOnce()) -> Tally {
    let body = InferRequest {
        inputs: image(),
        ..InferRequest::default()
    }
    .encode()
    .unwrap();
    let mut headers = async_nats::HeaderMap::new();
    headers::put_budget(&mut headers, BUDGET);
    let load = Load {
        url: url.to_owned(),
        subject: App::new(APP).unwrap().infer().to_string(),
        rate,
        budget: BUDGET,
        requests: vec![(headers, body); total],
        classify: |reply| match headers::fault(reply.headers.as_ref()) {
            Some(fault) => End::Fault(fault.code.id()),
            None => InferReply::decode(&reply.payload).map_or(End::Fault(Code::Malformed.id()), |reply| {
                End::Answer {
                    degraded: reply.degraded,
                }
            }),
        },
    };
    let tally = load.with_fault(async || {
        let struck = Instant::now();
        strike();
        Ok(struck)
    });
    let tally = tally.await.unwrap();
    assert_eq!(tally.requests(), total);
    tally
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(future)
}

#[test]
fn a_replica_killed_during_a_batch_loses_no_request_and_duplicates_no_reply() {
    let _alone = alone();
    let rig = Rig::new();
    let mut first = rig.serve("worker", Some("w1"));
    let _second = rig.serve("worker", Some("w2"));
    let _ingress = rig.serve("ingress", None);
    let tally = block_on(load(&rig.nats.url(), 900, 500.0, || first.kill()));
    println!(
        "{} requests, {} lost, {} doubled, errors {:?}, usual wait {:?}, recovery {:?}",
        tally.requests(),
        tally.lost(),
        tally.doubled(),
        tally.faults(),
        tally.usual(),
        tally.recovery()
    );
    assert_eq!((tally.lost(), tally.doubled(), tally.late()), (0, 0, 0));
    assert_eq!(tally.answered(), tally.requests(), "{:?}", tally.faults());
}

#[test]
fn requests_fail_quickly_when_the_last_replica_dies() {
    let _alone = alone();
    let rig = Rig::new();
    let mut only = rig.serve("worker", Some("w1"));
    let _ingress = rig.serve("ingress", None);
    block_on(async {
        let url = rig.nats.url();
        let tally = load(&url, 90, 50.0, || only.kill()).await;
        assert_eq!(
            (tally.lost(), tally.doubled()),
            (0, 0),
            "every request gets one terminal reply"
        );
        let faults = tally.faults();
        let codes: Vec<&str> = faults.keys().copied().collect();
        assert_eq!(codes, [Code::Unavailable.id()], "{faults:?}");

        let bus = Bus::connect(BusConfig::new(APP).url(url)).await.unwrap();
        // The client would send again until the budget ends.
        let client = Client::new(&bus, App::new(APP).unwrap()).retry(false);
        let asked = Instant::now();
        let fault = client.infer(image(), BUDGET).await.unwrap_err();
        println!("without a replica: {} after {:?}", fault.code, asked.elapsed());
        assert_eq!(fault.code, Code::Unavailable, "{fault}");
        assert!(asked.elapsed() < Duration::from_secs(2), "{:?}", asked.elapsed());
    });
}
