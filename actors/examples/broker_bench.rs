//! Request/reply over the embedded broker and over a real nats-server, interleaved in one run.
//!
//! `cargo run --release -p kaskade-actors --example broker_bench [-- <seconds per cell>]`
//!
//! Both are driven in the same way: one connection asks, another one echoes. The figures that mean something on another
//! machine are the ratios, embedded over nats-server: the rounds alternate between the two, so that both see the same
//! disturbances.
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
use kaskade_actors::broker::{Broker, BrokerConfig};
use kaskade_testkit::{NatsOptions, NatsServer};

const ROUNDS: u32 = 6;
const SUBJECT: &str = "bench.echo";

/// What one engine did in one cell, over all rounds.
#[derive(Default)]
struct Figures {
    /// Requests per second of each round.
    rates: Vec<f64>,
    /// Seconds of each request.
    latencies: Vec<f64>,
}

impl Figures {
    fn rate(&mut self) -> f64 {
        median(&mut self.rates)
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let seconds: f64 = std::env::args()
        .nth(1)
        .map_or(4.0, |argument| argument.parse().unwrap());
    let broker = Broker::start(BrokerConfig::default()).unwrap();
    let server = NatsServer::start(NatsOptions::default());
    let engines = [echo(&broker.url()).await, echo(&server.url()).await];
    println!(
        "request/reply, one connection asks, one echoes; {ROUNDS} rounds, interleaved; embedded / nats-server"
    );
    println!("   bytes  at once |       requests/s        ratio |       p50 us           ratio");
    for size in [128, 50_000, 1_000_000] {
        for at_once in [1, 64] {
            let mut figures = [Figures::default(), Figures::default()];
            for _ in 0..ROUNDS {
                for (client, figures) in engines.iter().zip(&mut figures) {
                    let length = Duration::from_secs_f64(seconds / f64::from(2 * ROUNDS));
                    round(client, size, at_once, length, figures).await;
                }
            }
            print_cell(size, at_once, figures);
        }
    }
    drop(server);
    broker.shutdown().await;
}

/// A client of the engine at `url`, on which another client answers.
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

async fn round(client: &Client, size: usize, at_once: usize, length: Duration, figures: &mut Figures) {
    let body = Bytes::from(vec![b'x'; size]);
    let start = Instant::now();
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
    figures.latencies.extend(latencies);
}

fn print_cell(size: usize, at_once: usize, [mut ours, mut theirs]: [Figures; 2]) {
    let (our_rate, their_rate) = (ours.rate(), theirs.rate());
    let (our_p50, their_p50) = (
        median(&mut ours.latencies) * 1e6,
        median(&mut theirs.latencies) * 1e6,
    );
    println!(
        "{size:>8} {at_once:>8} | {our_rate:>9.0} / {their_rate:>9.0} {:>7.2}x | {our_p50:>8.0} / {their_p50:>8.0} {:>7.2}x",
        our_rate / their_rate,
        our_p50 / their_p50,
    );
}
