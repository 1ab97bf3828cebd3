//! Replicas that die in mid-batch, over real processes and a real nats-server.
//!
//! The oracle is the client: it sends with ids of its own to one inbox and demands exactly one terminal reply each.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests fail by panicking"
)]
#![allow(clippy::print_stdout, reason = "the figures belong into docs/benchmarks.md")]

use std::{
    cell::RefCell,
    collections::BTreeMap,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use futures::StreamExt;
use kaskade::Tensor;
use kaskade::actors::{
    Code, plan,
    wire::headers,
    wire::{InferReply, InferRequest, Message as _},
};
use kaskade::plans::plan::{Batching, Replica};
use kaskade_testkit::{NatsOptions, NatsServer};

const APP: &str = "digits";
const VARIANT: &str = "digits-large";

/// A `kaskade serve` process, killed when the test ends.
struct Process(Child);

impl Process {
    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

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
        let weights = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("examples/digits/weights")
            .join(VARIANT);
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

    /// Starts a process of the app and returns once it serves.
    fn serve(&self, role: &str, worker: Option<&str>) -> Process {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kaskade"));
        command
            .args(["serve", "--role", role, "--nats", &self.nats.url()])
            .arg("--app")
            .arg(&self.app);
        command.arg("--plan").arg(&self.plan);
        if let Some(worker) = worker {
            command.args(["--worker", worker]);
        }
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let serving = lines
            .by_ref()
            .map_while(Result::ok)
            .find(|line| line.contains("serving"));
        assert!(serving.is_some(), "the {role} did not start");
        std::thread::spawn(move || lines.for_each(drop));
        Process(child)
    }
}

/// What became of every request, by id.
struct Outcome {
    replies: BTreeMap<u64, Vec<Result<(), Code>>>,
    /// Longest that any request waited for its reply: those that the dead replica had, waited for the recovery.
    recovery: Duration,
    /// Median wait, for comparison.
    usual: Duration,
}

/// Sends `total` requests at an even pace, and calls `strike` after a third of them.
async fn load(url: &str, total: u64, gap: Duration, budget: Duration, strike: impl FnOnce()) -> Outcome {
    let nats = async_nats::connect(url).await.unwrap();
    let inbox = nats.new_inbox();
    let mut replies = nats.subscribe(format!("{inbox}.*")).await.unwrap();
    nats.flush().await.unwrap();
    let image = Tensor::from_f32("image", &[1, 8, 8], &[0.5; 64]).unwrap();
    let body = InferRequest {
        inputs: vec![image],
        ..InferRequest::default()
    }
    .encode()
    .unwrap();
    let mut headers = async_nats::HeaderMap::new();
    headers::put_budget(&mut headers, budget);

    let sent = RefCell::new(Vec::new());
    let asking = async {
        let mut strike = Some(strike);
        let mut pace = tokio::time::interval(gap);
        for id in 0..total {
            pace.tick().await;
            if id == total / 3
                && let Some(strike) = strike.take()
            {
                strike();
            }
            sent.borrow_mut().push(Instant::now());
            let (subject, to) = (format!("kaskade.{APP}.infer"), format!("{inbox}.{id}"));
            nats.publish_with_reply_and_headers(subject, to, headers.clone(), body.clone())
                .await
                .unwrap();
        }
    };
    let collect = async {
        let mut outcome: BTreeMap<u64, Vec<Result<(), Code>>> = BTreeMap::new();
        let mut waits = Vec::new();
        loop {
            // Every reply comes within its budget; what comes in the second after the last would be a second answer.
            let missing = (outcome.len() as u64) < total;
            let patience = if missing { budget } else { Duration::ZERO } + Duration::from_secs(1);
            let Ok(Some(reply)) = tokio::time::timeout(patience, replies.next()).await else {
                break;
            };
            let id: usize = reply.subject.rsplit('.').next().unwrap().parse().unwrap();
            waits.push(sent.borrow()[id].elapsed());
            let result = match headers::fault(reply.headers.as_ref()) {
                Some(fault) => Err(fault.code),
                None => InferReply::decode(&reply.payload)
                    .map(drop)
                    .map_err(|_| Code::Malformed),
            };
            outcome.entry(id as u64).or_default().push(result);
        }
        (outcome, waits)
    };
    let ((), (replies, mut waits)) = tokio::join!(asking, collect);
    waits.sort_unstable();
    Outcome {
        replies,
        recovery: waits.last().copied().unwrap_or_default(),
        usual: waits.get(waits.len() / 2).copied().unwrap_or_default(),
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(future)
}

#[test]
fn one_of_two_replicas_killed_in_mid_batch_loses_nothing_and_answers_nothing_twice() {
    let rig = Rig::new();
    let mut first = rig.serve("worker", Some("w1"));
    let _second = rig.serve("worker", Some("w2"));
    let _doors = rig.serve("ingress", None);
    let total = 900;
    let outcome = block_on(load(
        &rig.nats.url(),
        total,
        Duration::from_millis(2),
        Duration::from_secs(20),
        || first.kill(),
    ));
    let lost = (0..total).filter(|id| !outcome.replies.contains_key(id)).count();
    let twice = outcome
        .replies
        .values()
        .filter(|replies| replies.len() > 1)
        .count();
    let failed = outcome
        .replies
        .values()
        .filter(|replies| replies[0].is_err())
        .count();
    println!(
        "requests {total} lost {lost} twice {twice} failed {failed} usual wait {:?} longest {:?}",
        outcome.usual, outcome.recovery
    );
    assert_eq!((lost, twice, failed), (0, 0, 0));
}

#[test]
fn when_the_last_replica_dies_clients_are_told_so_quickly() {
    let rig = Rig::new();
    let mut only = rig.serve("worker", Some("w1"));
    let _doors = rig.serve("ingress", None);
    block_on(async {
        let url = rig.nats.url();
        let total = 90;
        let outcome = load(
            &url,
            total,
            Duration::from_millis(20),
            Duration::from_secs(20),
            || only.kill(),
        )
        .await;
        let lost = (0..total).filter(|id| !outcome.replies.contains_key(id)).count();
        assert_eq!(lost, 0, "every request gets its terminal reply");
        assert!(outcome.replies.values().all(|replies| replies.len() == 1));
        let codes: Vec<Code> = outcome
            .replies
            .values()
            .filter_map(|replies| replies[0].err())
            .collect();
        assert!(
            !codes.is_empty() && codes.iter().all(|code| *code == Code::Unavailable),
            "{codes:?}"
        );

        let bus = kaskade::actors::bus::Bus::connect(kaskade::actors::bus::BusConfig::new(APP).url(url))
            .await
            .unwrap();
        let client = kaskade::actors::Client::new(&bus, kaskade::actors::App::new(APP).unwrap());
        let image = Tensor::from_f32("image", &[1, 8, 8], &[0.5; 64]).unwrap();
        let asked = Instant::now();
        let fault = client
            .infer(vec![image], Duration::from_secs(20))
            .await
            .unwrap_err();
        println!(
            "the last replica killed: {} after {:?}",
            fault.code,
            asked.elapsed()
        );
        assert_eq!(fault.code, Code::Unavailable, "{fault}");
        assert!(asked.elapsed() < Duration::from_secs(2), "{:?}", asked.elapsed());
    });
}
