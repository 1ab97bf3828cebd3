//! The cost of the control plane: deliveries of idle workers, and a nats-server with a thousand of them.
//!
//! ```text
//! cargo bench -p kaskade-actors --bench control_plane -- [SECONDS] [LIGHT_WORKERS]
//! ```
//!
//! Starts a real nats-server with monitoring. First one ingress node and N idle worker nodes, in one process: messages
//! per second that the server delivers. Then one ingress node and light workers (1,000), each with a connection of its
//! own, which beat ten times a second and follow the ingress: processor time of the server and of this process, and the
//! time from the end of a worker until the ingress tells the others to avoid it. Prints tables and a line of JSON.
#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{Ipv4Addr, TcpStream},
    num::NonZeroU32,
    time::{Duration, Instant},
};

use futures::StreamExt;
use kaskade_actors::bus::{BusConfig, PlanStorage};
use kaskade_actors::ingress::IngressConfig;
use kaskade_actors::plan::single;
use kaskade_actors::stage::worker::WorkerConfig;
use kaskade_actors::wire::{Heartbeat, IngressState, Message as _, ReplicaBeat};
use kaskade_actors::{App, Node, NodeConfig, Service};
use kaskade_models::{Datatype, Extent, InputSpec, Inputs, Model, ModelError, Outputs, Signature, Tensor};
use kaskade_policy::plan::{Batching, Plan, Replica};
use kaskade_testkit::{NatsOptions, NatsServer, free_port};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinHandle;

type Failure = Box<dyn std::error::Error + Send + Sync>;

const APP: &str = "control";
const SIZES: [usize; 4] = [4, 16, 48, 96];
const KILLS: usize = 20;
const BEAT: Duration = Duration::from_millis(100);
/// Time in which a started fleet settles.
const SETTLE: Duration = Duration::from_secs(3);
/// Time in which the fleet must be heard and every death noticed.
const TIMEOUT: Duration = Duration::from_mins(1);

struct Yes;

impl Model for Yes {
    fn signature(&self) -> Signature {
        Signature {
            inputs: vec![InputSpec::required("x", Datatype::F32, vec![Extent::Exactly(1)])],
        }
    }

    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        let yes = || Ok(vec![Tensor::from_f32("logits", &[2], &[1.0, 0.0])?]);
        batch.iter().map(|_| yes()).collect()
    }
}

/// One replica on each worker.
fn plan(workers: usize) -> Plan {
    let mut plan = single(APP, "only", "w0", NonZeroU32::MIN, Batching::default());
    plan.placement = (0..workers)
        .map(|number| Replica {
            id: format!("only-{number}"),
            variant: "only".to_owned(),
            worker: format!("w{number}"),
            device: "cpu".to_owned(),
            partition: None,
            checkpoint: None,
        })
        .collect();
    plan
}

struct Server {
    server: NatsServer,
    monitor: u16,
}

impl Server {
    fn start() -> Self {
        let monitor = free_port();
        let options = NatsOptions {
            config: format!("http: \"127.0.0.1:{monitor}\""),
            ..NatsOptions::default()
        };
        Self {
            server: NatsServer::start(options),
            monitor,
        }
    }

    fn bus(&self) -> BusConfig {
        BusConfig {
            plans: PlanStorage::Memory,
            ..BusConfig::new(APP).url(self.server.url())
        }
    }

    /// Messages that the server has delivered.
    fn delivered(&self) -> Result<u64, Failure> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.monitor))?;
        stream.write_all(b"GET /varz HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (_, body) = answer
            .split_once("\r\n\r\n")
            .ok_or("no answer of the monitoring")?;
        let page: serde_json::Value = serde_json::from_str(body)?;
        let count = page.get("out_msgs").and_then(serde_json::Value::as_u64);
        count.ok_or_else(|| "the server's monitoring has no out_msgs".into())
    }

    fn ingress(&self, plan: Plan) -> Result<Node, Failure> {
        Ok(Node::start(NodeConfig {
            app: APP.to_owned(),
            bus: self.bus(),
            ingress: Some(IngressConfig::default()),
            worker: None,
            plan: Some(plan),
            planner: None,
            power: None,
            grace: Duration::ZERO,
        })?)
    }
}

/// Processor time of a process so far, user and system, seconds.
fn processor_s(pid: u32) -> Result<f64, Failure> {
    const TICKS_PER_S: f64 = 100.0;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name, in parentheses, may contain spaces.
    let (_, after) = stat.rsplit_once(')').ok_or("an unreadable /proc/PID/stat")?;
    let fields: Vec<&str> = after.split_whitespace().collect();
    let ticks = |place: usize| fields.get(place).and_then(|field| field.parse::<f64>().ok());
    Ok((ticks(11).unwrap_or(f64::NAN) + ticks(12).unwrap_or(f64::NAN)) / TICKS_PER_S)
}

/// Deliveries per second with that many idle workers.
fn idle(workers: usize, measure: Duration) -> Result<f64, Failure> {
    let server = Server::start();
    let mut nodes = vec![server.ingress(plan(workers))?];
    for number in 0..workers {
        let service = Service::new(APP)
            .plan(plan(workers))
            .model("only", || Ok::<_, String>(Yes))
            .bus(server.bus())
            .ingress(None)
            .worker(WorkerConfig {
                name: format!("w{number}"),
                queue_capacity: 64,
                ..WorkerConfig::default()
            });
        nodes.push(service.start()?);
    }
    std::thread::sleep(SETTLE);
    let (before, begun) = (server.delivered()?, Instant::now());
    std::thread::sleep(measure);
    let delivered = server.delivered()? - before;
    let per_s = delivered as f64 / begun.elapsed().as_secs_f64();
    drop(nodes);
    Ok(per_s)
}

/// A worker that only beats and listens to the ingress, on a connection of its own. It writes the protocol itself, because a
/// thousand client libraries would cost this process more than the messages cost the server.
async fn light(port: u16, number: usize) -> Result<(), Failure> {
    let app = App::new(APP)?;
    let mut stream = tokio::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
    stream.set_nodelay(true)?;
    let hello = format!("CONNECT {{\"verbose\":false}}\r\nSUB {} 1\r\n", app.ingresses());
    stream.write_all(hello.as_bytes()).await?;
    let subject = app.beat(&format!("w{number}"))?;
    let mut beat = Heartbeat {
        actor: format!("w{number}"),
        kind: "worker".to_owned(),
        epoch: 1,
        in_place: 1,
        replicas: vec![ReplicaBeat {
            id: format!("only-{number}"),
            stage: "only".to_owned(),
            variant: "only".to_owned(),
            ..ReplicaBeat::default()
        }],
        ..Heartbeat::default()
    };
    let mut period = tokio::time::interval(BEAT);
    let mut received = vec![0; 4 << 10];
    loop {
        tokio::select! {
            _ = period.tick() => {
                beat.sequence += 1;
                let payload = beat.encode()?;
                let mut message = format!("PUB {subject} {}\r\n", payload.len()).into_bytes();
                message.extend_from_slice(&payload);
                message.extend_from_slice(b"\r\n");
                stream.write_all(&message).await?;
            }
            read = stream.read(&mut received) => {
                let read = received.get(..read?).filter(|read| !read.is_empty());
                let read = read.ok_or("the server has closed the connection")?;
                // A state, which is a map of MessagePack, cannot contain this.
                if read.windows(6).any(|window| window == b"PING\r\n") {
                    stream.write_all(b"PONG\r\n").await?;
                }
            }
        }
    }
}

struct Fleet {
    server_cores: f64,
    own_cores: f64,
    deliveries_per_s: f64,
    detections: Vec<Duration>,
    /// Replicas that the ingress found lost although their workers lived.
    false_positives: usize,
}

async fn next(states: &mut async_nats::Subscriber) -> Result<IngressState, Failure> {
    let next = tokio::time::timeout(TIMEOUT, states.next());
    let message = next.await?.ok_or("the connection ended")?;
    Ok(IngressState::decode(&message.payload)?)
}

async fn fleet(light_workers: usize, measure: Duration) -> Result<Fleet, Failure> {
    let server = Server::start();
    let ingress = server.ingress(plan(light_workers))?;
    let client = async_nats::connect(server.server.url()).await?;
    let mut states = client.subscribe(App::new(APP)?.ingresses()).await?;
    let mut workers: Vec<JoinHandle<_>> = Vec::new();
    for number in 0..light_workers {
        workers.push(tokio::spawn(light(server.server.port(), number)));
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let begun = Instant::now();
    loop {
        let state = next(&mut states).await?;
        // An ingress that starts lists no replica yet.
        let missing = state.unavailable.len();
        if missing == 0 && !state.starting {
            break;
        }
        if begun.elapsed() > TIMEOUT {
            return Err(format!("{missing} light workers are not heard; the machine is too busy").into());
        }
    }
    tokio::time::sleep(SETTLE).await;
    let pid = server.server.pid();
    let (begun, delivered) = (Instant::now(), server.delivered()?);
    let (theirs, ours) = (processor_s(pid)?, processor_s(std::process::id())?);
    tokio::time::sleep(measure).await;
    let seconds = begun.elapsed().as_secs_f64();
    let server_cores = (processor_s(pid)? - theirs) / seconds;
    let own_cores = (processor_s(std::process::id())? - ours) / seconds;
    let deliveries_per_s = (server.delivered()? - delivered) as f64 / seconds;
    let (mut detections, mut killed, mut false_positives) = (Vec::new(), Vec::new(), 0);
    for kill in 0..KILLS {
        // At another phase of the heartbeats each time.
        tokio::time::sleep(Duration::from_millis(500 + 37 * kill as u64)).await;
        let number = kill * (light_workers / KILLS);
        let id = format!("only-{number}");
        if let Some(worker) = workers.get(number) {
            worker.abort();
        }
        killed.push(id.clone());
        let begun = Instant::now();
        loop {
            let lost = next(&mut states).await?.unavailable;
            false_positives += lost.iter().filter(|lost| !killed.contains(lost)).count();
            if lost.contains(&id) {
                break;
            }
        }
        detections.push(begun.elapsed());
    }
    for worker in &workers {
        worker.abort();
    }
    tokio::task::spawn_blocking(move || ingress.stop()).await?;
    detections.sort_unstable();
    Ok(Fleet {
        server_cores,
        own_cores,
        deliveries_per_s,
        detections,
        false_positives,
    })
}

fn main() -> Result<(), Failure> {
    // `cargo bench` adds `--bench`.
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let seconds: u64 = arguments.next().map_or(Ok(10), |text| text.parse())?;
    let light_workers: usize = arguments.next().map_or(Ok(1_000), |text| text.parse())?;
    let measure = Duration::from_secs(seconds);
    println!("| workers | deliveries/s | at most 30 N + 200 |\n|---|---|---|");
    let (mut rows, mut met) = (Vec::new(), true);
    for workers in SIZES {
        let per_s = idle(workers, measure)?;
        let most = 30 * workers + 200;
        met &= per_s <= most as f64;
        println!("| {workers} | {per_s:.0} | {most} |");
        rows.push(
            serde_json::json!({"workers": workers, "deliveries_per_s": per_s.round(), "at_most": most}),
        );
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let fleet = runtime.block_on(fleet(light_workers, measure))?;
    runtime.shutdown_background();
    let ms = |place: usize| {
        fleet
            .detections
            .get(place)
            .map_or(f64::NAN, |time| time.as_secs_f64() * 1e3)
    };
    let (median, longest) = (
        ms(fleet.detections.len() / 2),
        ms(fleet.detections.len().saturating_sub(1)),
    );
    met &= fleet.server_cores <= 0.5 && longest < 400.0 && fleet.false_positives == 0;
    println!("\n| {light_workers} light workers | figure | aim |\n|---|---|---|");
    println!("| nats-server, cores | {:.2} | 0.5 |", fleet.server_cores);
    println!(
        "| ingress and workers, one process, cores | {:.2} | |",
        fleet.own_cores
    );
    println!("| deliveries/s | {:.0} | |", fleet.deliveries_per_s);
    println!("| until a killed worker is avoided, median of {KILLS}, ms | {median:.0} | |");
    println!("| longest, ms | {longest:.0} | 400 |");
    println!("| live replicas found lost | {} | 0 |", fleet.false_positives);
    let report = serde_json::json!({
        "idle": rows,
        "light_workers": light_workers,
        "server_cores": fleet.server_cores,
        "own_cores": fleet.own_cores,
        "deliveries_per_s": fleet.deliveries_per_s.round(),
        "detection_median_ms": median.round(),
        "detection_longest_ms": longest.round(),
        "live_found_lost": fleet.false_positives,
        "met": met,
    });
    println!("\n{report}");
    if met {
        Ok(())
    } else {
        Err("a bound was missed".into())
    }
}
