//! The cost of serving itself: the model is trivial, so that everything else is measured.
//!
//! ```text
//! cargo bench -p kaskade-actors --bench serving_cost -- COMMAND
//!
//! serving_cost serve URL|embedded          three stages (60/25/15 exit) as `cascade`, one as `single`, and an echo
//! serving_cost nats URL APP CONCURRENCY SECONDS
//! serving_cost http ADDRESS PATH CONCURRENCY SECONDS
//! serving_cost hop URL BYTES SECONDS       a routed prediction beside a raw NATS request/reply of that size
//! ```
//!
//! `scripts/bench-peers.py` runs it beside the peers, interleaved. A request is a draw in [0, 1), which decides where the
//! cascade exits, and 64 numbers; the model multiplies them by a 64 x 64 matrix.
#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::{
    num::NonZeroU32,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures::{StreamExt, future::join_all};
use kaskade_actors::bus::{Bus, BusConfig, PlanStorage};
use kaskade_actors::plan::single;
use kaskade_actors::wire::{InferRequest, Message as _};
use kaskade_actors::{App, Client, Service};
use kaskade_models::{Inputs, Model, ModelError, Outputs, Tensor};
use kaskade_policy::{
    confidence::{Calibration, Estimator},
    plan::{Band, Batching, Edge, Exit, Plan, PlannedVariant, Replica, Stage, Target},
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

type Failure = Box<dyn std::error::Error + Send + Sync>;

const WIDTH: usize = 64;
const BATCHING: Batching = Batching {
    min_queue: 1,
    max_batch: 32,
    max_wait_us: 2_000,
};
const BUDGET: Duration = Duration::from_secs(10);

/// tanh(x W), arg max; confident for draws below its share.
struct Trivial {
    weights: Vec<f32>,
    exits_below: f32,
}

impl Trivial {
    fn new(exits_below: f32) -> Self {
        Self {
            weights: (0..WIDTH * WIDTH).map(|i| (i % 97) as f32 / 97.0).collect(),
            exits_below,
        }
    }

    fn one(&self, inputs: &Inputs) -> Result<Outputs, ModelError> {
        let values = inputs
            .first()
            .map(Tensor::to_f32)
            .transpose()?
            .unwrap_or_default();
        let Some((draw, x)) = values.split_first() else {
            return Err(ModelError::Failed {
                reason: "no input".into(),
            });
        };
        let mut sums = [0.0_f32; WIDTH];
        for (value, row) in x.iter().zip(self.weights.chunks_exact(WIDTH)) {
            for (sum, weight) in sums.iter_mut().zip(row) {
                *sum += value * weight;
            }
        }
        let best = sums
            .iter()
            .map(|sum| sum.tanh())
            .enumerate()
            .max_by(|a, b| a.1.total_cmp(&b.1));
        let label = best.map_or(0.0, |(label, _)| label as f32);
        let sure = if *draw < self.exits_below { 0.9 } else { 0.3 };
        Ok(vec![
            Tensor::from_f32("label", &[1], &[label])?,
            Tensor::from_f32("confidence", &[1], &[sure])?,
        ])
    }
}

impl Model for Trivial {
    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        batch.iter().map(|inputs| self.one(inputs)).collect()
    }
}

/// Returns its input, to measure the cost of a hop by size.
struct Echo;

impl Model for Echo {
    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        batch.iter().map(|inputs| Ok(inputs.clone())).collect()
    }
}

/// Exits at 0.5 of the given confidence: 60 % at the first stage, 25 % at the second, the rest at the third.
fn cascade() -> Plan {
    let mut plan = single("cascade", "s1", "local", NonZeroU32::MIN, BATCHING);
    let names = ["s1", "s2", "s3"];
    let calibration = Some(Calibration {
        estimator: Estimator::Given,
        temperature: 1.0,
    });
    plan.variants = names
        .iter()
        .map(|name| PlannedVariant {
            name: (*name).into(),
            calibration,
        })
        .collect();
    plan.placement = names
        .iter()
        .map(|name| Replica {
            id: format!("{name}-0"),
            variant: (*name).into(),
            worker: "local".into(),
            device: "cpu".into(),
            partition: None,
        })
        .collect();
    let stage = |name: &str, next: Option<&str>| Stage {
        name: name.into(),
        task: None,
        variant: name.into(),
        partition: None,
        budget_us: None,
        profiled: None,
        batching: BATCHING,
        exit: next.map_or(Exit::Reply, |next| Exit::Bands {
            bands: vec![
                Band {
                    from: 0.0,
                    to: Target::Stage(Edge::to(next)),
                },
                Band {
                    from: 0.5,
                    to: Target::Reply,
                },
            ],
        }),
    };
    for gear in &mut plan.gears {
        gear.wiring.stages = vec![
            stage("s1", Some("s2")),
            stage("s2", Some("s3")),
            stage("s3", None),
        ];
    }
    plan
}

fn bus(url: &str, app: &str) -> BusConfig {
    let config = BusConfig {
        plans: PlanStorage::Memory,
        ..BusConfig::new(app)
    };
    if url == "embedded" {
        config
    } else {
        config.url(url)
    }
}

fn serve(url: &str) -> Result<(), Failure> {
    let model = |draw: f32| move || Ok::<_, String>(Trivial::new(draw));
    let cascade = Service::new("cascade")
        .bus(bus(url, "cascade"))
        .plan(cascade())
        .model("s1", model(0.6))
        .model("s2", model(0.85))
        .model("s3", model(1.1))
        .start()?;
    // The nodes share the one broker of a process without a URL.
    let url = cascade.bus().url();
    let single = Service::new("single")
        .bus(bus(url, "single"))
        .batching(BATCHING)
        .model("s", model(1.1))
        .start()?;
    let echo = Service::new("echo")
        .bus(bus(url, "echo"))
        .batching(BATCHING)
        .model("e", || Ok::<_, String>(Echo))
        .start()?;
    println!("{url}");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    for node in [cascade, single, echo] {
        node.stop();
    }
    Ok(())
}

/// A seeded draw per request: xorshift.
fn draw(state: &mut u64) -> f32 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state >> 40) as f32 / (1_u32 << 24) as f32
}

fn features(draw: f32) -> Vec<f32> {
    std::iter::once(draw)
        .chain((0..WIDTH).map(|i| i as f32 / WIDTH as f32))
        .collect()
}

/// Runs `concurrency` loops of `ask` and prints throughput and latencies.
async fn closed_loop<F: Future<Output = Result<(), Failure>> + Send>(
    name: &str,
    concurrency: usize,
    seconds: f64,
    ask: impl Fn(usize, f32) -> F + Clone + Send + 'static,
) {
    let stop = Instant::now() + Duration::from_secs_f64(seconds);
    let latencies = Arc::new(Mutex::new((Vec::new(), 0_u64)));
    let loops = (0..concurrency).map(|index| {
        let (ask, latencies) = (ask.clone(), Arc::clone(&latencies));
        async move {
            let (mut taken, mut errors) = (Vec::new(), 0);
            let mut state = 0x9E37_79B9_7F4A_7C15 ^ (index as u64 + 1);
            while Instant::now() < stop {
                let begun = Instant::now();
                match ask(index, draw(&mut state)).await {
                    Ok(()) => taken.push(begun.elapsed().as_micros() as u64),
                    Err(_) => errors += 1,
                }
            }
            let mut all = latencies.lock().unwrap_or_else(PoisonError::into_inner);
            all.0.extend(taken);
            all.1 += errors;
        }
    });
    join_all(loops).await;
    let mut all = latencies.lock().unwrap_or_else(PoisonError::into_inner);
    all.0.sort_unstable();
    let at = |share: f64| {
        let rank = ((all.0.len().saturating_sub(1)) as f64 * share).round() as usize;
        all.0.get(rank).copied().unwrap_or(0) as f64 / 1e3
    };
    println!(
        "{{\"name\":\"{name}\",\"concurrency\":{concurrency},\"per_s\":{:.0},\"p50_ms\":{:.3},\"p99_ms\":{:.3},\"errors\":{}}}",
        all.0.len() as f64 / seconds,
        at(0.5),
        at(0.99),
        all.1
    );
}

async fn load_nats(url: &str, app: &str, concurrency: usize, seconds: f64) -> Result<(), Failure> {
    let connected = Bus::connect(bus(url, app)).await?;
    let client = Client::new(&connected, App::new(app)?);
    closed_loop(app, concurrency, seconds, move |_, draw| {
        let client = client.clone();
        async move {
            let inputs = vec![Tensor::from_f32("x", &[WIDTH + 1], &features(draw))?];
            client.infer(inputs, BUDGET).await?;
            Ok(())
        }
    })
    .await;
    Ok(())
}

/// Keep-alive HTTP/1.1 with one connection per loop; implements only what the peers need.
async fn load_http(address: &str, path: &str, concurrency: usize, seconds: f64) -> Result<(), Failure> {
    let mut connections = Vec::new();
    for _ in 0..concurrency {
        let stream = tokio::net::TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        connections.push(tokio::sync::Mutex::new(stream));
    }
    let connections = Arc::new(connections);
    let head =
        format!("POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/octet-stream\r\n");
    closed_loop(path, concurrency, seconds, move |index, draw| {
        let (connections, head) = (Arc::clone(&connections), head.clone());
        async move {
            let mut stream = connections.get(index).ok_or("no such connection")?.lock().await;
            let body: Vec<u8> = features(draw)
                .iter()
                .flat_map(|value| value.to_le_bytes())
                .collect();
            let mut request = format!("{head}Content-Length: {}\r\n\r\n", body.len()).into_bytes();
            request.extend(body);
            stream.write_all(&request).await?;
            read_response(&mut stream).await
        }
    })
    .await;
    Ok(())
}

async fn read_response(stream: &mut tokio::net::TcpStream) -> Result<(), Failure> {
    let mut received = Vec::with_capacity(1024);
    loop {
        if stream.read_buf(&mut received).await? == 0 {
            return Err("the connection was closed".into());
        }
        let Some(end) = received.windows(4).position(|window| window == b"\r\n\r\n") else {
            continue;
        };
        let head = String::from_utf8_lossy(received.get(..end).unwrap_or_default()).to_lowercase();
        if !head.starts_with("http/1.1 200") {
            return Err("not a 200".into());
        }
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length:")?.trim().parse::<usize>().ok());
        let whole = match length {
            Some(length) => received.len() >= end + 4 + length,
            None => received.ends_with(b"0\r\n\r\n"),
        };
        if whole {
            return Ok(());
        }
    }
}

/// Alternates a raw request/reply with a prediction of the same size, one at a time, and prints both medians.
async fn hop(url: &str, bytes: usize, seconds: f64) -> Result<(), Failure> {
    let responder = async_nats::connect(url).await?;
    let mut echo = responder.subscribe("raw.echo").await?;
    responder.flush().await?;
    let back = responder.clone();
    tokio::spawn(async move {
        while let Some(message) = echo.next().await {
            if let Some(reply) = message.reply {
                let _ = back.publish(reply, message.payload).await;
            }
        }
    });
    let connected = Bus::connect(bus(url, "echo")).await?;
    let nats = connected.client().clone();
    let values = vec![0.5_f32; bytes / 4];
    let request = InferRequest {
        inputs: vec![Tensor::from_f32("x", &[values.len()], &values)?],
        ..InferRequest::default()
    };
    let routed = request.encode()?;
    let raw = Bytes::from(vec![7_u8; routed.len()]);
    let subject = App::new("echo")?.infer();
    nats.request("raw.echo", raw.clone()).await?;
    nats.request(subject.clone(), routed.clone()).await?;
    let (mut raws, mut routeds) = (Vec::new(), Vec::new());
    let stop = Instant::now() + Duration::from_secs_f64(seconds);
    while Instant::now() < stop {
        let begun = Instant::now();
        nats.request("raw.echo", raw.clone()).await?;
        raws.push(begun.elapsed());
        let begun = Instant::now();
        let reply = nats.request(subject.clone(), routed.clone()).await?;
        routeds.push(begun.elapsed());
        if reply.payload.len() < bytes {
            return Err("the routed reply is a fault".into());
        }
    }
    let median = |taken: &mut Vec<Duration>| {
        taken.sort_unstable();
        taken
            .get(taken.len() / 2)
            .copied()
            .unwrap_or_default()
            .as_secs_f64()
            * 1e6
    };
    let (raw, routed) = (median(&mut raws), median(&mut routeds));
    println!(
        "{{\"name\":\"hop\",\"bytes\":{bytes},\"raw_p50_us\":{raw:.0},\"routed_p50_us\":{routed:.0},\"added_us\":{:.0},\"ratio\":{:.2},\"n\":{}}}",
        routed - raw,
        routed / raw,
        raws.len()
    );
    Ok(())
}

fn main() -> Result<(), Failure> {
    // `cargo bench` adds `--bench`.
    let arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let arguments: Vec<String> = arguments.collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    match words.as_slice() {
        ["serve", url] => serve(url),
        ["nats", url, app, concurrency, seconds] => {
            runtime.block_on(load_nats(url, app, concurrency.parse()?, seconds.parse()?))
        }
        ["http", address, path, concurrency, seconds] => {
            runtime.block_on(load_http(address, path, concurrency.parse()?, seconds.parse()?))
        }
        ["hop", url, bytes, seconds] => runtime.block_on(hop(url, bytes.parse()?, seconds.parse()?)),
        _ => Err("actors/benches/serving_cost.rs lists the four commands at its head".into()),
    }
}
