//! Throughput by the number of shards.

use std::num::NonZeroUsize;

use futures::future::join_all;
use kaskade_actors::Service;
use kaskade_testkit::bench::{Figures, closed_loop};

use crate::Failure;
use crate::apps::{BATCHING, Trivial, bus};
use crate::load::asking;

/// Numbers of shards that are compared.
const SHARDS: [usize; 4] = [1, 2, 4, 8];

/// Clients, each with a connection and a share of the requests in flight.
const CLIENTS: usize = 8;

/// Runs one service of a single model with each number of shards in turn, `rounds` times, and prints the throughput of all
/// clients and the latencies of the slowest one. The clients, the broker without a URL and the model share the machine.
pub(crate) fn scaling(url: &str, concurrency: usize, seconds: f64, rounds: usize) -> Result<(), Failure> {
    let cores = std::thread::available_parallelism()?;
    let clients = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(cores.get().min(CLIENTS))
        .enable_all()
        .build()?;
    for round in 1..=rounds {
        for shards in SHARDS.into_iter().filter_map(NonZeroUsize::new) {
            let app = format!("scaling-{shards}-{round}");
            let node = Service::new(app.as_str())
                .bus(bus(url, &app))
                .batching(BATCHING)
                .shards(shards)
                .model("s", || Ok::<_, String>(Trivial::new(1.1)))
                .start()?;
            let url = node.bus().url().to_owned();
            let figures = clients.block_on(async {
                let mut loops = Vec::new();
                for _ in 0..CLIENTS {
                    let ask = asking(&url, &app).await?;
                    loops.push(tokio::spawn(closed_loop(concurrency / CLIENTS, seconds, ask)));
                }
                let figures: Result<Vec<Figures>, _> = join_all(loops).await.into_iter().collect();
                Ok::<_, Failure>(figures?)
            })?;
            let (per_s, errors): (Vec<f64>, Vec<u64>) =
                figures.iter().map(|one| (one.per_s, one.errors)).unzip();
            let slowest = |latency: fn(&Figures) -> f64| figures.iter().map(latency).fold(0.0, f64::max);
            let all = Figures {
                per_s: per_s.iter().sum(),
                p50_ms: slowest(|one| one.p50_ms),
                p99_ms: slowest(|one| one.p99_ms),
                errors: errors.iter().sum(),
            };
            println!(
                "{{\"shards\":{shards},\"cores\":{cores},\"concurrency\":{concurrency},\"round\":{round},{}}}",
                all.json()
            );
            node.stop();
        }
    }
    Ok(())
}
