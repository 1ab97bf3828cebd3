//! Compares request/reply over the embedded broker with a nats-server, interleaved in one run.
//!
//! `cargo bench -p kaskade-broker --bench broker [-- <seconds per cell>]`
//!
//! Both are driven in the same way: one connection asks, another one echoes. The portable figures are the ratios,
//! embedded over nats-server: the rounds alternate between the two, so that both see the same disturbances. Rate and
//! core time are those of the least disturbed round; the latency is the median of all requests.
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark prints its figures, and has nothing better to do than to stop when something fails"
)]

use std::time::{Duration, Instant};

use async_nats::Client;
use bytes::Bytes;
use futures::StreamExt as _;
use futures::future::join_all;
use kaskade_broker::{Broker, BrokerConfig};
use kaskade_testkit::{NatsOptions, NatsServer};

const ROUNDS: u32 = 10;
const SUBJECT: &str = "bench.echo";

/// Results of one engine in one cell, over all rounds.
#[derive(Default)]
struct Figures {
    /// Requests per second of each round.
    rates: Vec<f64>,
    /// Seconds of each request.
    latencies: Vec<f64>,
    /// Core time that the engine used per request in each round, microseconds.
    core_us: Vec<f64>,
}

/// Source of an engine's core time: its process, or its thread in this process.
struct Engine {
    client: Client,
    stat: String,
}

impl Engine {
    /// Core time so far, microseconds; NaN if the system does not report it.
    fn core_us(&self) -> f64 {
        const TICK_US: f64 = 10_000.0;
        let stat = std::fs::read_to_string(&self.stat).unwrap_or_default();
        // Fields 12 and 13 after the name in brackets are the ticks in user and in system mode.
        let ticks = stat.rsplit_once(')').map(|(_, rest)| {
            let fields = rest.split_whitespace().skip(11).take(2);
            fields.map(|ticks| ticks.parse().unwrap_or(f64::NAN)).sum()
        });
        ticks.unwrap_or(f64::NAN) * TICK_US
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let seconds: f64 = std::env::args()
        .skip(1)
        .find(|argument| argument != "--bench")
        .map_or(4.0, |argument| argument.parse().unwrap());
    let broker = Broker::start(BrokerConfig::default()).unwrap();
    let server = NatsServer::start(NatsOptions::default());
    let engines = [
        Engine {
            client: echo(&broker.url()).await,
            stat: thread_stat("kaskade-broker"),
        },
        Engine {
            client: echo(&server.url()).await,
            stat: format!("/proc/{}/stat", server.pid()),
        },
    ];
    println!(
        "request/reply, one connection asks, one echoes; {ROUNDS} rounds, interleaved; embedded / nats-server"
    );
    println!(
        "   bytes  at once |   requests/s           ratio |   p50 us             ratio |   core us/request ratio"
    );
    for size in [128, 50_000, 1_000_000] {
        for at_once in [1, 64] {
            let mut figures = [Figures::default(), Figures::default()];
            for _ in 0..ROUNDS {
                for (engine, figures) in engines.iter().zip(&mut figures) {
                    let length = Duration::from_secs_f64(seconds / f64::from(2 * ROUNDS));
                    round(engine, size, at_once, length, figures).await;
                }
            }
            print_cell(size, at_once, figures);
        }
    }
    drop(server);
    broker.shutdown().await;
}

/// Connects a client to the engine at `url`, on which another client echoes.
async fn echo(url: &str) -> Client {
    let responder = async_nats::connect(url).await.unwrap();
    let mut requests = responder.subscribe(SUBJECT).await.unwrap();
    responder.flush().await.unwrap();
    tokio::spawn(async move {
        while let Some(request) = requests.next().await {
            responder
                .publish(request.reply.unwrap(), request.payload)
                .await
                .unwrap();
        }
    });
    let client = async_nats::connect(url).await.unwrap();
    while client.request(SUBJECT, Bytes::new()).await.is_err() {}
    client
}

async fn round(engine: &Engine, size: usize, at_once: usize, length: Duration, figures: &mut Figures) {
    let body = Bytes::from(vec![b'x'; size]);
    let client = &engine.client;
    let (start, used) = (Instant::now(), engine.core_us());
    let lanes = (0..at_once).map(|_| async {
        let mut latencies = Vec::new();
        while start.elapsed() < length {
            let asked = Instant::now();
            let reply = client.request(SUBJECT, body.clone()).await.unwrap();
            assert_eq!(reply.payload.len(), size);
            latencies.push(asked.elapsed().as_secs_f64());
        }
        latencies
    });
    let latencies = join_all(lanes).await.concat();
    figures
        .rates
        .push(latencies.len() as f64 / start.elapsed().as_secs_f64());
    figures
        .core_us
        .push((engine.core_us() - used) / latencies.len() as f64);
    figures.latencies.extend(latencies);
}

fn print_cell(size: usize, at_once: usize, [ours, theirs]: [Figures; 2]) {
    let most = |values: Vec<f64>| values.into_iter().fold(f64::NAN, f64::max);
    let least = |values: Vec<f64>| values.into_iter().fold(f64::NAN, f64::min);
    let columns = [
        (most(ours.rates), most(theirs.rates)),
        (median(ours.latencies) * 1e6, median(theirs.latencies) * 1e6),
        (least(ours.core_us), least(theirs.core_us)),
    ];
    let columns =
        columns.map(|(ours, theirs)| format!("{ours:>8.0} / {theirs:>8.0} {:>5.2}x", ours / theirs));
    println!("{size:>8} {at_once:>8} | {}", columns.join(" | "));
}

/// Path of the accounting file of this process's thread of that name.
fn thread_stat(name: &str) -> String {
    let tasks = std::fs::read_dir("/proc/self/task")
        .into_iter()
        .flatten()
        .flatten();
    let mut found = tasks.filter(|task| {
        let comm = std::fs::read_to_string(task.path().join("comm"));
        comm.is_ok_and(|comm| comm.trim() == name)
    });
    found
        .next()
        .map_or_else(String::new, |task| task.path().join("stat").display().to_string())
}
